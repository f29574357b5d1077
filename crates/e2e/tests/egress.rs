//! What sites reach through a hub, by default and by `allow`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ropewalk_e2e::{Ground, packet, ready};
use ropewalk_io::conntrack::{self, Connection};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, TCP_PORT};
use ropewalk_testbed::topology::{HUB, HUB_V6, SERVER, SERVER_V6};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, Namespace, TopologySpec, veth};

const PATIENCE: Duration = Duration::from_secs(20);
const TUNNEL: &str = "ropewalk0";
/// Hosts behind the server: in the internet, in private networks, and where clouds keep metadata.
const INTERNET: [&str; 2] = ["192.0.2.1", "2001:db8:99::1"];
const PRIVATE: [&str; 2] = ["10.1.0.7", "fd55::7"];
const METADATA: [&str; 2] = ["169.254.169.254", "fd00:ec2::254"];

/// A hub, two sites, and hosts behind the hub.
struct Scene {
    boat: Gateway,
    farm: Gateway,
    hub: Gateway,
    second: Namespace,
    ground: Ground,
}

impl Scene {
    /// With these lines in `[egress]` of the hub.
    fn new(purpose: &str, egress: &str) -> Self {
        let ground = Ground::new(&TopologySpec::new(purpose, vec![LinkSpec::unshaped(true)]));
        let ground = ground.unwrap();
        let topology = &ground.topology;
        for [v4, v6] in [INTERNET, PRIVATE, METADATA] {
            let addresses = format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo\n");
            topology.server().ip(&addresses).unwrap();
            let routes = format!("route add {v4} via {SERVER}\nroute add {v6} via {SERVER_V6}\n");
            topology.hub().ip(&routes).unwrap();
        }
        let second = Namespace::create("second", "site").unwrap();
        veth((&second, "up0"), (topology.hub(), "isp9"), 1_500).unwrap();
        let there =
            "addr add 192.168.99.2/24 dev up0\nroute add default via 192.168.99.1 dev up0\n";
        second.ip(there).unwrap();
        topology
            .hub()
            .ip("addr add 192.168.99.1/24 dev isp9\n")
            .unwrap();
        let (directory, spec) = (topology.directory(), GatewaySpec::default());
        let hub = GatewaySpec {
            egress: egress.to_owned(),
            ..spec.clone()
        };
        let mut hub = Gateway::hub(topology.hub(), directory, &hub).unwrap();
        hub.start().unwrap();
        let site = |namespace: &Namespace, name: &str| {
            let token = hub.invite(name).unwrap();
            let mut site = Gateway::site(namespace, directory, name, &token, &spec).unwrap();
            site.start().unwrap();
            site.wait_paths(1, PATIENCE).unwrap();
            site
        };
        let (boat, farm) = (site(topology.site(), "boat"), site(&second, "farm"));
        Self {
            boat,
            farm,
            hub,
            second,
            ground,
        }
    }

    /// Sets `allow` of the boat alone, as an operator does.
    fn allow(&self, allow: &str) {
        self.allow_site("boat", allow);
    }

    /// Sets `allow` of one site, and of no other.
    fn allow_site(&self, name: &str, allow: &str) {
        let name = format!("name = \"{name}\"");
        let path = self.hub.directory().join("state/sites.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = text.lines().filter(|line| !line.starts_with("allow"));
        let with = |line: &str| {
            let allow = (line == name).then(|| format!("allow = {allow}\n"));
            format!("{line}\n{}", allow.unwrap_or_default())
        };
        std::fs::write(&path, kept.map(with).collect::<String>()).unwrap();
        let reload = self.hub.run(&["invite", "--reload"]).unwrap();
        reload.success().unwrap();
    }

    /// What the boat reaches through its tunnel, of all that there is, in both families or in none.
    fn reached(&self) -> Vec<&'static str> {
        let [of_hub, of_farm] = [&self.hub, &self.farm].map(|gateway| {
            let status = gateway.status().unwrap();
            [false, true].map(|v6| status.address(v6).unwrap())
        });
        let parsed = |pair: [&str; 2]| pair.map(|text| text.parse::<IpAddr>().unwrap());
        let targets = [
            ("internet", parsed(INTERNET)),
            ("hub", of_hub),
            ("hub outside", [HUB.into(), HUB_V6.into()]),
            ("connected", [SERVER.into(), SERVER_V6.into()]),
            ("private", parsed(PRIVATE)),
            ("metadata", parsed(METADATA)),
            ("farm", of_farm),
        ];
        let boat = self.ground.topology.site();
        let reached = targets.iter().filter(|(name, pair)| {
            let answered = pair.map(|target| answers(boat, target, Some(TUNNEL)));
            assert_eq!(answered[0], answered[1], "{name}: IPv4 and IPv6 differ");
            answered[0]
        });
        reached.map(|(name, _)| *name).collect()
    }
}

fn answers(from: &Namespace, target: IpAddr, device: Option<&str>) -> bool {
    let spec = PingSpec {
        count: 2,
        device: device.map(str::to_owned),
        ..PingSpec::new(target)
    };
    ping::run(from, &spec).unwrap().received > 0
}

#[test]
fn a_site_reaches_the_internet_and_the_hub_and_what_it_is_allowed() {
    if !ready() {
        return;
    }
    let scene = Scene::new("egress", "allow = []");
    let usual = ["internet", "hub"];
    assert_eq!(scene.reached(), usual);
    // Whoever is behind the hub may still open connections to sites.
    let boat = scene.boat.status().unwrap();
    let server = scene.ground.topology.server();
    for v6 in [false, true] {
        assert!(answers(server, boat.address(v6).unwrap(), None));
    }
    // A second tunnel may lead to the hub through the first.
    let hub = SocketAddr::new(HUB.into(), TCP_PORT);
    let connected = scene
        .ground
        .topology
        .site()
        .enter(move || TcpStream::connect_timeout(&hub, PATIENCE));
    connected.unwrap().unwrap();
    scene.allow("[\"10.1.0.0/16\", \"fd55::/16\"]");
    assert_eq!(scene.reached(), ["internet", "hub", "private"]);
    scene.allow("[\"site:farm\"]");
    assert_eq!(scene.reached(), ["internet", "hub", "farm"]);
    let from_farm =
        || [false, true].map(|v6| answers(&scene.second, boat.address(v6).unwrap(), Some(TUNNEL)));
    assert_eq!(from_farm(), [false; 2], "the farm opens a connection");
    scene.allow_site("farm", "[\"site:boat\"]");
    assert_eq!(from_farm(), [true; 2], "silence was no refusal");
    scene.allow(&format!(
        "[\"{HUB}\", \"{HUB_V6}\", \"{SERVER}\", \"{SERVER_V6}\"]"
    ));
    let reached = ["internet", "hub", "hub outside", "connected"];
    assert_eq!(scene.reached(), reached);
    scene.allow("[\"site:nobody\"]");
    assert_eq!(scene.reached(), usual);
    // As a restart of nftables.service does.
    let nft = scene.ground.topology.hub().program("nft");
    let nft = nft.args(["flush", "ruleset"]);
    nft.success(PATIENCE).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        scene.reached(),
        usual,
        "the hub notices that its rules are gone"
    );
}

#[test]
fn what_the_hub_allows_counts_for_sites_that_say_nothing() {
    if !ready() {
        return;
    }
    let scene = Scene::new("egressall", "allow = [\"0.0.0.0/0\", \"::/0\"]");
    let all = [
        "internet",
        "hub",
        "hub outside",
        "connected",
        "private",
        "metadata",
        "farm",
    ];
    assert_eq!(scene.reached(), all);
    scene.allow("[]");
    assert_eq!(scene.reached(), ["internet", "hub"]);
}

/// A port of the server that gives back what it gets.
const ECHO: u16 = 7_007;

/// Answers at [`ECHO`] in the namespace of the server, over both families.
fn answer(server: &Namespace) {
    for ip in [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)] {
        let listener = server.enter(|| TcpListener::bind((ip, ECHO))).unwrap();
        let listener = listener.unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut back = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut &stream, &mut back);
                });
            }
        });
    }
}

fn connect(from: &Namespace, ip: impl Into<IpAddr>) -> TcpStream {
    let target = SocketAddr::new(ip.into(), ECHO);
    let connected = from.enter(move || TcpStream::connect_timeout(&target, PATIENCE));
    let stream = connected.unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    echoes(&stream);
    stream
}

/// Sends a byte and wants it back.
fn echoes(mut stream: &TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

impl Scene {
    /// What the hub's kernel knows of connections to the server that came from `ip`.
    fn tracked(&self, ip: IpAddr) -> Vec<Connection> {
        let hub = self.ground.topology.hub();
        let mut found = Vec::new();
        let of = |connection: Connection| {
            if connection.source.ip() == ip && connection.destination.port() == ECHO {
                found.push(connection);
            }
        };
        hub.enter(|| conntrack::for_each(0, 0, of))
            .unwrap()
            .unwrap();
        found
    }

    fn inner(gateway: &Gateway) -> [IpAddr; 2] {
        let status = gateway.status().unwrap();
        [false, true].map(|v6| status.address(v6).unwrap())
    }

    /// Takes the boat from the list of sites, as an operator does.
    fn remove_boat(&self) {
        let path = self.hub.directory().join("state/sites.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut parts = text.split("[[site]]");
        let head = parts.next().unwrap().to_owned();
        let kept = parts.filter(|part| !part.contains("name = \"boat\""));
        let kept: String = kept.map(|part| format!("[[site]]{part}")).collect();
        std::fs::write(&path, head + &kept).unwrap();
        let reload = self.hub.run(&["invite", "--reload"]).unwrap();
        reload.success().unwrap();
    }
}

#[test]
fn the_kernel_of_the_hub_forgets_connections_of_a_site_that_was_removed_and_no_others() {
    if !ready() {
        return;
    }
    let scene = Scene::new("forgets", "allow = [\"0.0.0.0/0\", \"::/0\"]");
    let topology = &scene.ground.topology;
    answer(topology.server());
    let (boat, farm) = (Scene::inner(&scene.boat), Scene::inner(&scene.farm));
    let mut streams = vec![
        connect(topology.site(), SERVER),
        connect(topology.site(), SERVER_V6),
    ];
    let other = connect(&scene.second, SERVER);
    for ip in boat {
        assert_eq!(scene.tracked(ip).len(), 1, "{ip}");
    }
    scene.remove_boat();
    let end = Instant::now() + PATIENCE;
    while boat.iter().any(|ip| !scene.tracked(*ip).is_empty()) {
        let left = boat.map(|ip| scene.tracked(ip));
        assert!(Instant::now() < end, "still known: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // What the boat still sends makes none anew.
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(boat.map(|ip| scene.tracked(ip).len()), [0, 0]);
    assert_eq!(scene.tracked(farm[0]).len(), 1);
    echoes(&other);
}

#[test]
fn packets_without_a_connection_do_not_leave_a_hub_with_the_inner_address_of_a_site() {
    if !ready() {
        return;
    }
    let scene = Scene::new("invalid", "allow = [\"0.0.0.0/0\", \"::/0\"]");
    let topology = &scene.ground.topology;
    let [inner, _] = Scene::inner(&scene.boat);
    answer(topology.server());
    let ends = format!("tcp dport {ECHO} tcp flags & fin == fin");
    count(topology.hub(), &format!("ip saddr {inner} {ends}"));
    // At the server the hub's address is to stand in place of the inner one.
    count(topology.server(), &ends);
    // What came out of the tunnel at the hub since the last call, and what came to the server.
    let ends = || [topology.hub(), topology.server()].map(counted);
    // The end of a connection that the kernel knows gets through.
    drop(connect(topology.site(), SERVER));
    std::thread::sleep(Duration::from_secs(1));
    let [left, came] = ends();
    assert!(
        left > 0 && came > 0,
        "known: {left} at the hub, {came} at the server"
    );
    let stream = connect(topology.site(), SERVER);
    let known = scene.tracked(inner);
    assert!(!known.is_empty());
    for known in known {
        let forget = || conntrack::delete(&known);
        topology.hub().enter(forget).unwrap().unwrap();
    }
    // The end of a connection that the kernel does not know.
    drop(stream);
    std::thread::sleep(Duration::from_secs(1));
    let [left, came] = ends();
    assert!(left > 0, "the tunnel carried no end of the connection");
    assert_eq!(came, 0, "of {left} at the hub");
    // What neighbours say to each other, and for comparison an echo request.
    for (kind, expected) in [(128, 1), (143, 0)] {
        let server = topology.server();
        server.nft("delete table inet counted\n").unwrap();
        count(server, &format!("icmpv6 type {kind}"));
        let to = INTERNET[1].parse().unwrap();
        packet::send(topology.site(), to, ICMPV6, &[kind, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(counted(server), expected, "type {kind}");
    }
}

#[test]
fn datagrams_with_a_wrong_checksum_do_not_leave_a_hub_with_the_inner_address_of_a_site() {
    if !ready() {
        return;
    }
    let scene = Scene::new("wrongsum", "allow = [\"0.0.0.0/0\", \"::/0\"]");
    let topology = &scene.ground.topology;
    let [IpAddr::V4(inner), _] = Scene::inner(&scene.boat) else {
        panic!("the boat has no inner IPv4 address");
    };
    let datagrams = format!("udp dport {ECHO}");
    count(topology.hub(), &format!("ip saddr {inner} {datagrams}"));
    count(topology.server(), &datagrams);
    let came = |checksum: u16| {
        scene.inject(&datagram(inner, SERVER, &[], ECHO, checksum));
        std::thread::sleep(Duration::from_secs(1));
        [topology.hub(), topology.server()].map(counted)
    };
    assert_eq!(came(0), [1, 1], "without a checksum");
    assert_eq!(came(1), [1, 0], "with a wrong one");
}

/// An IPv4 packet of UDP to a port, with options of whole words, and with this checksum of UDP: 0 is none. The
/// kernel fills in the other lengths and the checksum of the header.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, options: &[u8], port: u16, checksum: u16) -> Vec<u8> {
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    let mut packet = vec![0x40 | words, 0, 0, 0, 0, 0, 0, 0, 64, packet::UDP, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(options);
    for field in [5_555, port, 16, checksum] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(b"8 octets");
    packet
}

impl Scene {
    /// Sends a whole IPv4 packet from the boat into its tunnel.
    fn inject(&self, packet: &[u8]) {
        const WHOLE: u8 = 255;
        let socket = packet::raw(self.ground.topology.site(), HUB.into(), WHOLE).unwrap();
        socket.bind_device(Some(TUNNEL.as_bytes())).unwrap();
        packet::inject(&socket, packet).unwrap();
    }
}

/// Counts packets that come to a namespace and match, in a table of their own.
fn count(namespace: &Namespace, matches: &str) {
    let script = format!(
        "table inet counted {{ counter seen {{ }}\nchain seen {{ type filter hook prerouting priority -300; \
         {matches} counter name seen\n }}\n }}\n"
    );
    namespace.nft(&script).unwrap();
}

/// Packets counted since the last call.
fn counted(namespace: &Namespace) -> u32 {
    let reset = ["reset", "counters", "table", "inet", "counted"];
    let said = namespace.program("nft").args(reset).success(PATIENCE);
    let said = said.unwrap();
    let packets = said.split("packets ").nth(1);
    let packets = packets.and_then(|rest| rest.split(' ').next());
    packets.unwrap().parse().unwrap()
}

#[test]
fn packets_that_name_their_own_route_do_not_get_past_the_rules_of_the_hub() {
    if !ready() {
        return;
    }
    let outside = format!("allow = [\"{HUB}\", \"{HUB_V6}\"]");
    let scene = Scene::new("sourceroute", &outside);
    let topology = &scene.ground.topology;
    // The kernel of the hub follows such routes.
    let switch = "for f in /proc/sys/net/ipv4/conf/*/accept_source_route; do echo 1 > $f; done";
    let shell = topology.hub().program("sh").args(["-c", switch]);
    shell.success(PATIENCE).unwrap();
    let [IpAddr::V4(inner), _] = Scene::inner(&scene.boat) else {
        panic!("the boat has no inner IPv4 address");
    };
    let soon = || std::thread::sleep(Duration::from_secs(1));
    let [private, internet] = [PRIVATE, INTERNET].map(|pair| pair[0].parse().unwrap());
    count(
        topology.server(),
        &format!("ip daddr {{ {private}, {internet} }} udp dport {ECHO}"),
    );
    // Other options are no reason to drop a packet.
    scene.inject(&datagram(inner, internet, &[1, 1, 1, 1], ECHO, 0));
    soon();
    assert_eq!(counted(topology.server()), 1, "a packet with an option");
    for kind in [131, 137] {
        let mut option = vec![kind, 7, 4];
        option.extend(private.octets());
        option.push(0);
        scene.inject(&datagram(inner, HUB, &option, ECHO, 0));
    }
    soon();
    assert_eq!(counted(topology.server()), 0, "packets by way of the hub");
    // Of IPv6 the kernel follows no such route any more. Those behind the hub may.
    let server = topology.server();
    server.nft("delete table inet counted\n").unwrap();
    count(server, "exthdr rt exists");
    let send = |kind: u8| {
        let to: std::net::Ipv6Addr = INTERNET[1].parse().unwrap();
        let mut header = vec![packet::UDP, 2, kind, 1, 0, 0, 0, 0];
        header.extend(PRIVATE[1].parse::<std::net::Ipv6Addr>().unwrap().octets());
        header.extend([21, 179, 27, 95, 0, 8, 0, 0]);
        packet::send(topology.site(), to.into(), ROUTING, &header).unwrap();
        soon();
        counted(server)
    };
    assert_eq!(send(2), 1, "a routing header of mobile hosts");
    assert_eq!(send(0), 0, "a source route");
}

const ICMPV6: u8 = 58;

/// Number of the routing header of IPv6 (RFC 8200 §4.4).
const ROUTING: u8 = 43;
