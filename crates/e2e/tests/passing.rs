//! Two sites share a public address and are at different hubs: what comes to one hub for the site of the other one is
//! passed on, and connections go on when a hub dies.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use ropewalk_e2e::routers::{
    SECOND, SECOND_SIDE, SERVER_SIDE, bird, of_passing_hub, of_reflecting_server, second_place,
};
use ropewalk_e2e::{Ground, packet, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{HUB, HUB_LAN, SERVER};
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use ropewalk_testbed::{Namespace, Process, TopologySpec, veth};
use ropewalk_types::checksum;

const LIMIT: Duration = Duration::from_secs(20);
const SHARED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// A port of the server.
const ECHO: u16 = 7_007;
/// The server's interfaces to the hubs.
const TO_HUBS: [&str; 2] = ["wan", "tosecond"];
/// Longest time without a packet of a call of a site whose hub dies.
const GAP: Duration = Duration::from_secs(1);
/// The same of the other site, when the hub dies that announces the shared address.
const GAP_BESIDE: Duration = Duration::from_millis(500);

/// Two hubs, and a site at each of them.
struct Scene {
    // Fields are dropped in this order: what runs in namespaces first.
    sites: [Gateway; 2],
    hubs: [Gateway; 2],
    _routers: Vec<Process>,
    _spaces: [Namespace; 2],
    ends: [Endpoints; 2],
    ground: Ground,
}

/// A namespace for the second site, with one uplink to the network of the first hub.
fn farm_place(purpose: &str, net: &Namespace) -> Namespace {
    let farm = Namespace::create(purpose, "farm").unwrap();
    veth((&farm, "up0"), (net, "isp9"), 1_500).unwrap();
    farm.ip("addr add 192.168.99.2/24 dev up0\nroute add default via 192.168.99.1 dev up0")
        .unwrap();
    net.ip("addr add 192.168.99.1/24 dev isp9").unwrap();
    for (namespace, interface) in [(&farm, "up0"), (net, "isp9")] {
        let shape = ["qdisc", "add", "dev", interface, "root", "tbf"];
        let shape = namespace.program("tc").args(shape);
        let shape = shape.args(["rate", "40mbit", "burst", "60kb", "latency", "50ms"]);
        shape.success(LIMIT).unwrap();
    }
    farm
}

/// The routers of the hubs and of the server.
fn routers(ground: &Ground, space: &Namespace) -> Vec<Process> {
    let (net, server) = (ground.topology.hub(), ground.topology.server());
    let directory = ground.topology.directory();
    let (lan, pool) = (HUB_LAN.to_string(), "10.86.0.0/24");
    let peers = [
        (SERVER.to_string(), lan.clone()),
        (SERVER_SIDE.to_owned(), SECOND_SIDE.to_owned()),
    ];
    [
        ("bird-first", net, of_passing_hub(lan, SERVER, pool)),
        (
            "bird-second",
            space,
            of_passing_hub(SECOND_SIDE, SERVER_SIDE, pool),
        ),
        ("bird-server", server, of_reflecting_server(&peers)),
    ]
    .map(|(name, within, text)| bird(directory, name, within, &text).unwrap())
    .into()
}

/// Two hubs that share the address.
fn hubs(ground: &Ground, space: &Namespace) -> [Gateway; 2] {
    let hub = |within: &Namespace, name: &str, public: &str| {
        let spec = GatewaySpec {
            pool: format!("shared = [\"{SHARED}\"]"),
            network: "masquerade = false\nroutes_table = 4443".into(),
            public: vec![format!("{public}:4443")],
            // As in the field: sites do not reach inner addresses.
            egress: format!("allow = [\"{SERVER}\"]"),
            ..GatewaySpec::default()
        };
        let directory = ground.topology.directory();
        let mut hub = Gateway::hub_named(within, directory, name, &spec).unwrap();
        hub.start().unwrap();
        hub
    };
    [
        hub(ground.topology.hub(), "first", &HUB.to_string()),
        hub(space, "second", SECOND),
    ]
}

impl Scene {
    fn new(purpose: &str) -> Self {
        let spec = TopologySpec {
            server_routes: false,
            ..TopologySpec::new(purpose, two_links())
        };
        let ground = Ground::new(&spec).unwrap();
        let (net, server) = (ground.topology.hub(), ground.topology.server());
        let space = second_place(purpose, net, server).unwrap();
        let farm = farm_place(purpose, net);
        server.sysctl("net/ipv4/ip_forward", "1").unwrap();
        for hub in [net, &space] {
            // The hubs make it loose.
            hub.sysctl("net/ipv4/conf/all/rp_filter", "1").unwrap();
        }
        let routers = routers(&ground, &space);
        let hubs = hubs(&ground, &space);
        let keys = [0, 1].map(|at| hubs[at].run(&["key"]).unwrap().success().unwrap());
        let list = |hub: &Gateway| hub.directory().join("state/sites.toml");
        let site = |at: usize, within: &Namespace, name: &str| {
            let token = hubs[0].invite(name).unwrap();
            let mut site = Gateway::site(
                within,
                ground.topology.directory(),
                name,
                &token,
                &GatewaySpec::default(),
            )
            .unwrap();
            std::fs::copy(list(&hubs[0]), list(&hubs[1])).unwrap();
            let reload = hubs[1].run(&["invite", "--reload"]).unwrap();
            reload.success().unwrap();
            // The site joined at the first hub: its home is the one that it is to begin with.
            let of = |hub: usize, section: &str| {
                let place = [HUB.to_string(), SECOND.to_owned()][hub].clone();
                let key = keys[hub].trim();
                format!("{section}\nkey = \"{key}\"\nendpoints = [\"{place}:4443\"]\n")
            };
            let text = std::fs::read_to_string(site.config()).unwrap();
            let text = without_section(&text, "[hub]");
            let text = text + &of(at, "[hub]") + &of(1 - at, "[[spare]]");
            std::fs::write(site.config(), text).unwrap();
            site.start().unwrap();
            site.wait_paths(if at == 0 { 2 } else { 1 }, LIMIT).unwrap();
            site
        };
        let boat = ground.topology.site();
        let sites = [site(0, boat, "boat"), site(1, &farm, "farm")];
        let ends = [boat, &farm].map(|client| Endpoints {
            client: client.clone(),
            ..ground.topology.endpoints()
        });
        let scene = Self {
            sites,
            hubs,
            _routers: routers,
            _spaces: [space, farm],
            ends,
            ground,
        };
        for at in 0..2 {
            assert!(scene.serves(at, at), "each site has its hub");
            let inner = scene.sites[at].status().unwrap().address(false).unwrap();
            scene.await_route(&inner.to_string(), |hub| hub == at);
        }
        scene.await_route(&SHARED.to_string(), |_| true);
        // The idle connections to the spare are up after a round trip or two.
        std::thread::sleep(Duration::from_secs(1));
        scene
    }

    /// The hub by which the server sends packets to an address.
    fn way(&self, address: &str) -> Option<usize> {
        let server = self.ground.topology.server();
        let route = server.ip_json(&["route", "show", address]).unwrap();
        TO_HUBS.iter().position(|name| route[0]["dev"] == *name)
    }

    fn await_route(&self, address: &str, wanted: impl Fn(usize) -> bool) {
        let end = Instant::now() + LIMIT;
        while !self.way(address).is_some_and(&wanted) {
            assert!(Instant::now() < end, "{address} by {:?}", self.way(address));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The hub that has the route of the shared address.
    fn announcer(&self) -> usize {
        self.way(&SHARED.to_string()).unwrap()
    }

    /// Whether a hub has a tunnel to a site that works.
    fn serves(&self, hub: usize, site: usize) -> bool {
        let name = ["boat", "farm"][site];
        let tunnels = self.hubs[hub].status().unwrap().tunnels;
        tunnels.iter().any(|one| one.peer == name && one.up)
    }

    /// Packets that a hub has passed on, and that it has unwrapped.
    fn passed(&self, hub: usize) -> (u64, u64) {
        let passed = self.hubs[hub].status().unwrap().passed.unwrap();
        (passed.passed_on, passed.unwrapped)
    }

    fn call(&self, site: usize) -> Probe {
        let call = ProbeSpec {
            direction: Direction::Download,
            interval: Duration::from_millis(20),
            size: 160,
        };
        Probe::start(&self.ends[site], &call).unwrap()
    }

    /// Kills a hub amid downloads and calls of both sites.
    fn lose(&mut self, hub: usize) {
        let announcer = self.announcer();
        let bulk = |ends: &Endpoints| Bulk::start(ends, &BulkSpec::download(2, 2 * LIMIT)).unwrap();
        let bulks = [0, 1].map(|site| bulk(&self.ends[site]));
        let calls = [0, 1].map(|site| self.call(site));
        let before = [0, 1].map(|site| bulks[site].received());
        std::thread::sleep(Duration::from_secs(3));
        let carried = [0, 1].map(|site| bulks[site].received() - before[site]);
        assert!(
            carried.iter().all(|bytes| *bytes > 1_500_000),
            "{carried:?} bytes in 3 s: {:#?}",
            [0, 1].map(|hub| self.hubs[hub].status().unwrap().drops)
        );
        let (passed_on, _) = self.passed(announcer);
        let (_, unwrapped) = self.passed(1 - announcer);
        eprintln!("{passed_on} packets passed on, {unwrapped} unwrapped");
        assert!(unwrapped > 1_000 && passed_on > 1_000);
        let from = calls[0].elapsed();
        self.hubs[hub].kill();
        std::thread::sleep(Duration::from_secs(3));
        let to = calls[0].elapsed();
        let before = [0, 1].map(|site| bulks[site].received());
        std::thread::sleep(Duration::from_secs(2));
        let carried = [0, 1].map(|site| bulks[site].received() - before[site]);
        let gaps = calls.map(|call| call.finish().unwrap().longest_gap(from, to));
        eprintln!("hub {hub} killed, {announcer} announced: longest gaps {gaps:?}");
        for (site, bulk) in bulks.into_iter().enumerate() {
            let report = bulk.stop().unwrap();
            assert_eq!(report.broken(), 0, "site {site}: {:?}", report.reasons());
            assert!(carried[site] > 1_000_000, "site {site}: {}", carried[site]);
            let longest = if site == hub { GAP } else { GAP_BESIDE };
            assert!(gaps[site] < longest, "site {site}: {gaps:?}");
            assert!(self.serves(1 - hub, site));
        }
        assert_eq!(self.announcer(), 1 - hub);
    }
}

/// A configuration without one of its sections.
fn without_section(text: &str, head: &str) -> String {
    let mut is_in = false;
    let lines = text.lines().filter(|line| {
        if line.starts_with('[') {
            is_in = line.trim() == head;
        }
        !is_in
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn sites_of_one_address_are_at_two_hubs_and_the_one_that_announces_it_is_killed() {
    if !ready() {
        return;
    }
    let mut scene = Scene::new("passkill");
    let announcer = scene.announcer();
    scene.lose(announcer);
}

#[test]
fn the_hub_is_killed_to_which_packets_are_passed_on() {
    if !ready() {
        return;
    }
    let mut scene = Scene::new("passbeside");
    let other = 1 - scene.announcer();
    scene.lose(other);
}

/// A socket for UDP in a namespace.
fn socket(within: &Namespace, at: (Ipv4Addr, u16)) -> UdpSocket {
    let socket = within.enter(move || UdpSocket::bind(at)).unwrap().unwrap();
    let limit = Some(Duration::from_secs(2));
    socket.set_read_timeout(limit).unwrap();
    socket
}

/// How many datagrams of so many bytes the server sends to a site before one arrives.
fn until_echoed(ends: &Endpoints, bytes: usize) -> usize {
    let far = socket(&ends.server, (SERVER, ECHO));
    let near = socket(&ends.client, (Ipv4Addr::UNSPECIFIED, 0));
    near.send_to(b"x", (SERVER, ECHO)).unwrap();
    let (_, peer) = far.recv_from(&mut [0; 9]).unwrap();
    assert_eq!(peer.ip(), SHARED);
    let mut buffer = vec![0; 10_000];
    for count in 1..=3 {
        far.send_to(&vec![7; bytes], peer).unwrap();
        if let Ok((length, _)) = near.recv_from(&mut buffer) {
            assert_eq!(length, bytes);
            return count;
        }
    }
    panic!("no datagram of {bytes} bytes arrives");
}

#[test]
fn packets_of_all_sizes_and_kinds_are_passed_on_and_others_are_not_unwrapped() {
    if !ready() {
        return;
    }
    let scene = Scene::new("passkinds");
    let announcer = scene.announcer();
    let away = 1 - announcer;
    let ends = &scene.ends[away];
    let (_, before) = scene.passed(away);
    // The first one of 1,500 bytes is too large for the route, and those of 1,480 bytes for the paths: a hub says so, and
    // the server cuts the next one. The last ones come in pieces at once.
    for (bytes, most) in [(100, 1), (1_472, 2), (1_452, 2), (5_000, 1)] {
        let sent = until_echoed(ends, bytes);
        assert!(sent <= most, "{sent} packets of {bytes} bytes");
    }
    let ping = PingSpec {
        count: 3,
        ..PingSpec::new(SERVER.into())
    };
    assert_eq!(ping::run(&ends.client, &ping).unwrap().received, 3);
    // An ICMP error of the server: nobody listens there.
    let near = socket(&ends.client, (Ipv4Addr::UNSPECIFIED, 0));
    near.connect((SERVER, ECHO)).unwrap();
    near.send(b"x").unwrap();
    let error = near.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let (_, after) = scene.passed(away);
    assert!(after >= before + 10, "{before} and {after} unwrapped");
    foreign(&scene, away);
}

/// Packets in packets that no hub has made: from a site, and from the server.
fn foreign(scene: &Scene, away: usize) {
    let farm = &scene.ends[away];
    let near = socket(&farm.client, (Ipv4Addr::UNSPECIFIED, 0));
    let far = socket(&farm.server, (SERVER, ECHO));
    near.send_to(b"x", (SERVER, ECHO)).unwrap();
    let (_, peer) = far.recv_from(&mut [0; 9]).unwrap();
    let inner = scene.sites[away].status().unwrap().address(false).unwrap();
    let IpAddr::V4(inner) = inner else {
        panic!("an IPv4 address")
    };
    let boat = scene.sites[1 - away].status().unwrap();
    let Some(IpAddr::V4(boat)) = boat.address(false) else {
        panic!("an IPv4 address")
    };
    let (_, before) = scene.passed(away);
    let packet = |from: Ipv4Addr| ip(from, inner, 4, &datagram(peer.port()));
    // As the site itself, and as a hub: neither gets through to the other site.
    let site = packet::raw(&scene.ends[1 - away].client, inner.into(), 255).unwrap();
    let server = packet::raw(&farm.server, inner.into(), 255).unwrap();
    for (socket, from) in [(&site, boat), (&site, SHARED), (&server, SERVER)] {
        packet::inject(socket, &packet(from)).unwrap();
        let got = near.recv_from(&mut [0; 9]);
        assert!(got.is_err(), "{from}: {got:?}");
    }
    assert_eq!(scene.passed(away).1, before);
    let drops = scene.hubs[1 - away].status().unwrap().drops;
    assert_eq!(drops["spoofed_source"], 1);
    // The same from who says to be a hub, as anybody could who sends from an address of others.
    packet::inject(&server, &packet(SHARED)).unwrap();
    near.recv_from(&mut [0; 9]).unwrap();
    assert_eq!(scene.passed(away).1, before + 1);
}

/// An IPv4 packet without a checksum, which raw sockets add.
fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + contents.len()).unwrap();
    let mut packet = vec![0; 20];
    (packet[0], packet[8], packet[9]) = (0x45, 64, protocol);
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet.extend_from_slice(contents);
    packet
}

/// A datagram of the server to a port of the shared address, with the checksum of its header.
fn datagram(port: u16) -> Vec<u8> {
    let mut udp = Vec::new();
    for field in [ECHO, port, 9, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.push(b'y');
    let mut packet = ip(SERVER, SHARED, packet::UDP, &udp);
    let sum = checksum::fold(checksum::add(0, &packet[..20]));
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    packet
}
