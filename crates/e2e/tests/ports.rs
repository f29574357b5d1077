//! Sites that share a public address: each sends from its own ports, and translates to them itself.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use ropewalk_e2e::{Ground, machine_state, packet, ready};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{HUB_LAN, SERVER};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, Namespace, TopologySpec, veth};

const PATIENCE: Duration = Duration::from_secs(20);
/// What the sites share.
const SHARED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const BOAT: RangeInclusive<u16> = 1_024..=2_031;
const FARM: RangeInclusive<u16> = 2_032..=3_039;
/// A port of the block of a site that never connects.
const OF_VAN: u16 = 3_500;
/// A port at which a host gives back what it gets.
const ECHO: u16 = 7_007;
/// A host in a private network behind the hub.
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 7);
/// A network behind the boat.
const LAN: [&str; 2] = ["192.168.77.1", "192.168.77.2"];

/// A hub that does not translate, two sites that share an address, and a host behind one of them.
struct Scene {
    boat: Gateway,
    farm: Gateway,
    hub: Gateway,
    /// It has joined, and does not run.
    _van: Gateway,
    second: Namespace,
    lan: Namespace,
    ground: Ground,
}

impl Scene {
    fn new(purpose: &str, ports: u16, egress: &str) -> Self {
        let ground = Ground::new(&TopologySpec::new(purpose, vec![LinkSpec::unshaped(true)]));
        let ground = ground.unwrap();
        let topology = &ground.topology;
        let private = format!("addr add {PRIVATE}/32 dev lo\n");
        topology.server().ip(&private).unwrap();
        let route = format!("route add {PRIVATE} via {SERVER}\n");
        topology.hub().ip(&route).unwrap();
        let second = Namespace::create("second", "site").unwrap();
        veth((&second, "up0"), (topology.hub(), "isp9"), 1_500).unwrap();
        let there =
            "addr add 192.168.99.2/24 dev up0\nroute add default via 192.168.99.1 dev up0\n";
        second.ip(there).unwrap();
        let here = "addr add 192.168.99.1/24 dev isp9\n";
        topology.hub().ip(here).unwrap();
        let lan = Namespace::create("lan", "host").unwrap();
        veth((&lan, "net"), (topology.site(), "lan"), 1_500).unwrap();
        let [gateway, host] = LAN;
        lan.ip(&format!(
            "addr add {host}/24 dev net\nroute add default via {gateway} dev net\n"
        ))
        .unwrap();
        let site = topology.site();
        site.ip(&format!("addr add {gateway}/24 dev lan\n"))
            .unwrap();
        site.sysctl("net/ipv4/ip_forward", "1").unwrap();
        let (directory, spec) = (topology.directory(), GatewaySpec::default());
        let hub = GatewaySpec {
            pool: format!("shared = [\"{SHARED}\"]\nports = {ports}"),
            network: "masquerade = false".to_owned(),
            egress: egress.to_owned(),
            ..spec.clone()
        };
        let mut hub = Gateway::hub(topology.hub(), directory, &hub).unwrap();
        hub.start().unwrap();
        // Blocks are given in this order.
        let tokens = ["boat", "farm", "van"].map(|name| hub.invite(name).unwrap());
        let join = |namespace: &Namespace, name: &str, token: &str| {
            Gateway::site(namespace, directory, name, token, &spec).unwrap()
        };
        let van = join(&second, "van", &tokens[2]);
        let site = |namespace: &Namespace, name: &str, token: &str| {
            let mut site = join(namespace, name, token);
            site.start().unwrap();
            site.wait_paths(1, PATIENCE).unwrap();
            site
        };
        let boat = site(topology.site(), "boat", &tokens[0]);
        let farm = site(&second, "farm", &tokens[1]);
        Self {
            _van: van,
            boat,
            farm,
            hub,
            second,
            lan,
            ground,
        }
    }

    fn server(&self) -> &Namespace {
        self.ground.topology.server()
    }

    /// Dropped packets of the hub by reason.
    fn dropped(&self, reason: &str) -> u64 {
        let drops = self.hub.status().unwrap().drops;
        drops.get(reason).copied().unwrap_or_default()
    }

    /// Waits until the hub has dropped so many packets for this reason.
    fn await_dropped(&self, reason: &str, count: u64) {
        let end = Instant::now() + PATIENCE;
        while self.dropped(reason) < count {
            let drops = self.hub.status().unwrap().drops;
            assert!(Instant::now() < end, "{reason} < {count}: {drops:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(self.dropped(reason), count, "{reason}");
    }
}

/// Who opens a connection from `from` to `at` in the namespace `to`, as that end sees it. Bytes pass both ways.
fn opener(from: &Namespace, to: &Namespace, at: IpAddr) -> SocketAddr {
    let listener = to.enter(|| TcpListener::bind((at, ECHO))).unwrap().unwrap();
    let target = SocketAddr::new(at, ECHO);
    let near = connect(from, target).unwrap();
    let (far, peer) = listener.accept().unwrap();
    for (mut one, mut other) in [(&near, &far), (&far, &near)] {
        one.write_all(b"rope").unwrap();
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        other.read_exact(&mut [0; 4]).unwrap();
    }
    peer
}

fn connect(from: &Namespace, target: SocketAddr) -> std::io::Result<TcpStream> {
    let limit = Duration::from_secs(3);
    from.enter(move || TcpStream::connect_timeout(&target, limit))
        .unwrap()
}

/// Who sends a datagram of so many bytes to the server, which answers with as many.
fn sender(from: &Namespace, server: &Namespace, bytes: usize) -> SocketAddr {
    let far = server
        .enter(|| UdpSocket::bind((SERVER, ECHO)))
        .unwrap()
        .unwrap();
    let near = from
        .enter(|| UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    for socket in [&far, &near] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    near.send_to(&vec![7; bytes], (SERVER, ECHO)).unwrap();
    let mut buffer = vec![0; 20_000];
    let (length, peer) = far.recv_from(&mut buffer).unwrap();
    assert_eq!(length, bytes);
    far.send_to(&buffer[..length], peer).unwrap();
    let (length, _) = near.recv_from(&mut buffer).unwrap();
    assert_eq!(length, bytes, "back from {peer}");
    peer
}

fn answers(from: &Namespace, target: impl Into<IpAddr>) -> bool {
    let spec = PingSpec {
        count: 2,
        ..PingSpec::new(target.into())
    };
    ping::run(from, &spec).unwrap().received > 0
}

fn assert_from(peer: SocketAddr, ports: &RangeInclusive<u16>, what: &str) {
    let own = peer.ip() == IpAddr::V4(SHARED) && ports.contains(&peer.port());
    assert!(own, "{what} from {peer}, which is not in {ports:?}");
}

#[test]
fn two_sites_share_an_address_and_each_sends_from_its_own_ports() {
    if !ready() {
        return;
    }
    let scene = Scene::new("ports", 1_008, "");
    let (site, server) = (scene.ground.topology.site(), scene.server());
    for (from, ports) in [(site, BOAT), (&scene.second, FARM), (&scene.lan, BOAT)] {
        assert_from(opener(from, server, SERVER.into()), &ports, "TCP");
        assert_from(sender(from, server, 100), &ports, "UDP");
        assert_from(sender(from, server, 5_000), &ports, "UDP in fragments");
        assert!(answers(from, SERVER), "ping");
        // An ICMP error of the server: nobody listens there.
        let socket = from
            .enter(|| UdpSocket::bind("0.0.0.0:0"))
            .unwrap()
            .unwrap();
        socket.connect((SERVER, ECHO)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(b"x").unwrap();
        let error = socket.recv(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    // One of the hub, as traceroute(8) finds routers.
    let ping = site.program("ping").args(["-c", "1", "-W", "5", "-t", "1"]);
    let said = ping.arg(SERVER.to_string()).run(PATIENCE).unwrap();
    let said = format!("{said:?}");
    assert!(said.contains("Time to live exceeded"), "{said}");
    // Inner addresses are reached as they are.
    let [hub, boat] = [&scene.hub, &scene.boat].map(|gateway| {
        let status = gateway.status().unwrap();
        status.address(false).unwrap()
    });
    let peer = opener(site, scene.ground.topology.hub(), hub);
    assert_eq!(peer.ip(), boat);
    assert!(answers(server, boat), "the inner address has its route");
    for reason in ["spoofed_source", "withdrawn"] {
        assert_eq!(scene.dropped(reason), 0, "{reason}");
    }
}

/// A UDP packet from a port of the shared address.
fn datagram(port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, packet::UDP, 0, 0];
    packet.extend(SHARED.octets());
    packet.extend(SERVER.octets());
    for field in [port, ECHO, 12, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(*b"rope");
    packet
}

#[test]
fn ports_of_others_are_not_sent_from_and_packets_for_nobody_are_counted() {
    if !ready() {
        return;
    }
    let scene = Scene::new("spoofports", 1_008, "");
    let (site, server) = (scene.ground.topology.site(), scene.server());
    let far = server
        .enter(|| UdpSocket::bind((SERVER, ECHO)))
        .unwrap()
        .unwrap();
    far.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let raw = packet::raw(site, SERVER.into(), 255).unwrap();
    // Address translation would mend what the site is not to send.
    site.nft(&format!(
        "table ip cheat {{\n chain out {{\n type filter hook output priority raw;\n \
         ip saddr {SHARED} notrack\n }}\n}}\n"
    ))
    .unwrap();
    for port in [*BOAT.start(), *BOAT.end()] {
        packet::inject(&raw, &datagram(port)).unwrap();
        let (_, peer) = far.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(peer, SocketAddr::new(SHARED.into(), port));
    }
    for port in [*FARM.start(), 80, 60_000] {
        packet::inject(&raw, &datagram(port)).unwrap();
    }
    scene.await_dropped("spoofed_source", 3);
    far.recv_from(&mut [0; 9]).expect_err("nothing came");
    // To a site that is not connected, and to a port that no site has.
    far.send_to(b"x", (SHARED, OF_VAN)).unwrap();
    scene.await_dropped("withdrawn", 1);
    let before = scene.dropped("unroutable");
    far.send_to(b"x", (SHARED, 60_000)).unwrap();
    scene.await_dropped("unroutable", before + 1);
    // To a site that knows of no such connection: it does not send the packet back.
    far.send_to(b"x", (SHARED, *BOAT.end())).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(scene.dropped("spoofed_source"), 3);
}

#[test]
fn what_one_site_may_reach_counts_for_its_ports_too() {
    if !ready() {
        return;
    }
    let scene = Scene::new("allowports", 1_008, "allow = [\"10.1.0.0/16\"]");
    let path = scene.hub.directory().join("state/sites.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let name = "name = \"boat\"\n";
    let text = text.replace(name, &format!("{name}allow = []\n"));
    std::fs::write(&path, text).unwrap();
    let reload = scene.hub.run(&["invite", "--reload"]).unwrap();
    reload.success().unwrap();
    let private = SocketAddr::new(PRIVATE.into(), ECHO);
    let server = scene.server();
    let listener = server
        .enter(|| TcpListener::bind(private))
        .unwrap()
        .unwrap();
    let [boat, farm] = [scene.ground.topology.site(), &scene.second];
    for (from, reaches) in [(boat, false), (farm, true)] {
        assert_eq!(connect(from, private).is_ok(), reaches, "TCP");
        assert_eq!(answers(from, PRIVATE), reaches, "ping");
    }
    // Sites do not reach each other by the shared address.
    let of_farm = SocketAddr::new(SHARED.into(), *FARM.start());
    let error = connect(boat, of_farm).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{error}");
    drop(listener);
}

#[test]
fn a_site_whose_ports_are_all_in_use_says_so_and_leaves_nothing_when_it_ends() {
    if !ready() {
        return;
    }
    let mut scene = Scene::new("fullports", 64, "");
    let topology = &scene.ground.topology;
    let (site, server) = (topology.site(), topology.server());
    let target = SocketAddr::new(SERVER.into(), ECHO);
    let listener = server.enter(|| TcpListener::bind(target)).unwrap().unwrap();
    let far = std::thread::spawn(move || {
        listener
            .incoming()
            .take(64)
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    });
    let opened: Vec<_> = (0..64).map(|_| connect(site, target).unwrap()).collect();
    let far = far.join().unwrap();
    let peers = far.iter().map(|stream| stream.peer_addr().unwrap());
    let mut ports: Vec<u16> = peers.map(|peer| peer.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1_024..=1_087).collect::<Vec<_>>());
    connect(site, target).expect_err("no port is left");
    // Another destination has all ports again.
    assert!(answers(site, SERVER));
    let end = Instant::now() + PATIENCE;
    let log = || scene.boat.process().unwrap().log_tail();
    while !log().contains("connections could not be opened") {
        assert!(Instant::now() < end, "{}", log());
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(opened);
    let named = |site: &Namespace| machine_state(site).contains("ropewalk_ports_");
    // As another program's restart does.
    assert!(named(site));
    let flush = site.program("nft").args(["flush", "ruleset"]);
    flush.success(PATIENCE).unwrap();
    let end = Instant::now() + PATIENCE;
    while !named(site) {
        assert!(Instant::now() < end, "the rules are set again");
        std::thread::sleep(Duration::from_millis(100));
    }
    scene.boat.kill();
    assert!(named(site), "nobody could remove them");
    scene.boat.run(&["down"]).unwrap().success().unwrap();
    assert!(!named(site));
    assert!(scene.farm.stop());
    assert!(!named(&scene.second));
}

/// The server has no other way to the sites than the hub's.
#[test]
fn without_a_block_nothing_is_translated_at_the_site() {
    if !ready() {
        return;
    }
    let spec = TopologySpec::new("noports", vec![LinkSpec::unshaped(true)]);
    let usual = GatewaySpec::default();
    let lab = Ground::new(&spec).unwrap().connect(&usual, &usual).unwrap();
    let (site, server) = (lab.topology.site(), lab.topology.server());
    let peer = opener(site, server, SERVER.into());
    assert_eq!(peer.ip(), IpAddr::V4(HUB_LAN), "the hub translates");
    assert!(!machine_state(site).contains("ropewalk_ports_"));
}
