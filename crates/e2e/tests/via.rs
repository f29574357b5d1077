//! Classes of a site that go beside its tunnel, always or while the hub is dead, and those that
//! never do.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_e2e::{Ground, Lab, machine_state, ready};
use ropewalk_testbed::balanced::{self, PORT};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{Cut, SERVER, SERVER_V6};
use ropewalk_testbed::{Balanced, LinkSpec, Namespace, TopologySpec};
use rustix::process::Signal;

const COMMAND: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(15);
const SERVERS: [IpAddr; 2] = [IpAddr::V4(SERVER), IpAddr::V6(SERVER_V6)];
/// Ports of classes that go direct, and either way; the others go through the tunnel.
const DIRECT: u16 = 443;
const AUTO: u16 = 8_443;
/// Traffic class of packets with the codepoint EF, which go through the tunnel with any port.
const EF: u32 = 46 << 2;

/// A site with a network behind it, and what goes beside its tunnel.
struct Split {
    lab: Lab,
    balanced: Balanced,
}

fn spec(more: &str) -> GatewaySpec {
    probing([SERVER.to_string(), SERVER_V6.to_string()], more)
}

/// A site whose uplinks are probed by asking these targets.
fn probing(targets: [String; 2], more: &str) -> GatewaySpec {
    let class = |name: &str, port: u16, via: &str| {
        format!("[[class]]\nname = \"{name}\"\nports = [\"{port}\"]\nvia = \"{via}\"\n")
    };
    GatewaySpec {
        more: format!(
            "[[class]]\nname = \"calls\"\ndscp = [\"ef\"]\nprotect = \"duplicate\"\n\
             {}{}protect = \"adaptive\"\n\
             [probe]\ntargets = {targets:?}\n\
             [direct]\naffinity_minutes = 0\nforward = true\n{more}",
            class("video", DIRECT, "direct"),
            class("mail", AUTO, "auto"),
        ),
        ..GatewaySpec::default()
    }
}

fn split(purpose: &str, uplinks: usize, more: &str) -> Split {
    split_with(purpose, uplinks, &spec(more))
}

fn split_with(purpose: &str, uplinks: usize, spec: &GatewaySpec) -> Split {
    let links = vec![LinkSpec::unshaped(true); uplinks];
    let ground = Ground::new(&TopologySpec::new(purpose, links)).unwrap();
    let balanced = Balanced::new(&ground.topology).unwrap();
    for port in [DIRECT, AUTO] {
        balanced::listen(&ground.topology, port).unwrap();
    }
    let lab = ground.connect(&GatewaySpec::default(), spec).unwrap();
    Split { lab, balanced }
}

impl Split {
    fn sources(&self) -> [&Namespace; 2] {
        [self.balanced.client(), self.lab.topology.site()]
    }

    /// How many of so many connections came over each uplink, and last through the tunnel.
    fn ways(&self, from: &Namespace, server: IpAddr, port: u16, count: usize) -> Vec<usize> {
        let counts = Balanced::count_at(from, SocketAddr::new(server, port), count).unwrap();
        self.by_way(&counts)
    }

    fn by_way(&self, counts: &BTreeMap<IpAddr, usize>) -> Vec<usize> {
        let uplinks = self.lab.topology.uplinks();
        let mut out = vec![0; uplinks.len() + 1];
        for (address, count) in counts {
            let found = uplinks.iter().position(|u| u.addresses.contains(address));
            out[found.unwrap_or(uplinks.len())] += count;
        }
        out
    }

    /// A connection that stays, and whether it came through the tunnel.
    fn open(&self, from: &Namespace, server: IpAddr, port: u16) -> (TcpStream, bool) {
        let (stream, address) = Balanced::connect(from, server, port).unwrap();
        let ways = self.by_way(&[(address, 1)].into());
        (stream, ways.last() == Some(&1))
    }

    fn wait_fallen_back(&self, wanted: bool) -> Status {
        let what = format!("state with fallen_back = {wanted}");
        let so = |status: &Status| {
            let direct = status.direct.as_ref();
            direct.is_some_and(|direct| direct.fallen_back == wanted)
        };
        self.lab.site.wait_for(&what, PATIENCE, so).unwrap()
    }
}

/// Sends a byte and waits until it comes back.
fn echoes(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok() && byte == *b"x"
}

/// Counts, at the far ends of the uplinks, packets of TCP to ports of the server.
struct Tap<'a>(&'a Namespace);

impl<'a> Tap<'a> {
    fn new(internet: &'a Namespace) -> Self {
        let mut table =
            "table inet tap { chain c { type filter hook prerouting priority raw;\n".to_owned();
        for port in [DIRECT, AUTO, PORT] {
            for server in [
                format!("ip daddr {SERVER}"),
                format!("ip6 daddr {SERVER_V6}"),
            ] {
                table += &format!("iifname \"isp*\" tcp dport {port} {server} counter\n");
            }
        }
        table += &format!("iifname \"isp*\" tcp sport {PORT} counter\n");
        internet.nft(&(table + "}\n}\n")).unwrap();
        Self(internet)
    }

    /// Packets that came to this port beside the tunnel.
    fn seen(&self, port: u16) -> u64 {
        self.count(&format!("dport {port} "))
    }

    /// Packets of servers on this side that came beside the tunnel.
    fn answers(&self) -> u64 {
        self.count("sport ")
    }

    fn count(&self, rule: &str) -> u64 {
        let list = self.0.program("nft").args(["list", "table", "inet", "tap"]);
        let list = list.success(COMMAND).unwrap();
        let of_rule = list.lines().filter(|line| line.contains(rule));
        let count = |line: &str| {
            let (_, rest) = line.split_once("packets ")?;
            rest.split(' ').next()?.parse::<u64>().ok()
        };
        of_rule.map(|line| count(line).unwrap()).sum()
    }
}

/// Where a connection with a traffic class came from.
fn address_with(from: &Namespace, to: SocketAddr, class: u32) -> IpAddr {
    let connect = || {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(to),
            socket2::Type::STREAM,
            None,
        )?;
        socket.set_tos_v4(class)?;
        socket.connect(&to.into())?;
        std::io::Result::Ok(TcpStream::from(socket))
    };
    let mut stream = from.enter(connect).unwrap().unwrap();
    balanced::read_address(&mut stream).unwrap()
}

/// A datagram flow, and the server that it goes to.
struct Datagrams {
    client: UdpSocket,
    server: UdpSocket,
    to: SocketAddr,
}

impl Datagrams {
    fn new(from: &Namespace, server: &Namespace) -> Self {
        let to = SocketAddr::new(SERVER.into(), AUTO);
        let server = server.enter(|| UdpSocket::bind(to)).unwrap().unwrap();
        let client = from
            .enter(|| UdpSocket::bind("0.0.0.0:0"))
            .unwrap()
            .unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Self { client, server, to }
    }

    /// Sends there and back; where it came from.
    fn exchange(&self) -> IpAddr {
        let mut buffer = [0; 16];
        self.client.send_to(b"x", self.to).unwrap();
        let (_, from) = self.server.recv_from(&mut buffer).unwrap();
        self.server.send_to(b"y", from).unwrap();
        let (_, answered) = self.client.recv_from(&mut buffer).unwrap();
        assert_eq!(answered, self.to);
        from.ip()
    }
}

#[test]
fn a_class_goes_over_the_uplinks_and_the_rest_through_the_tunnel() {
    if !ready() {
        return;
    }
    let weights =
        "[[uplink]]\nmatch = \"up0\"\nweight = 3\n[[uplink]]\nmatch = \"up1\"\nweight = 1\n";
    let split = split("viashare", 2, weights);
    for from in split.sources() {
        for server in SERVERS {
            let ways = split.ways(from, server, DIRECT, 40);
            assert_eq!(ways[2], 0, "{ways:?} to {server}");
            assert!(ways[0].abs_diff(30) <= 2, "{ways:?} to {server}");
            for port in [PORT, AUTO] {
                assert_eq!(
                    split.ways(from, server, port, 5),
                    [0, 0, 5],
                    "{port} {server}"
                );
            }
        }
    }
    let marked = SocketAddr::new(SERVERS[0], DIRECT);
    for (class, beside) in [(0, true), (EF, false)] {
        let address = address_with(split.lab.topology.site(), marked, class);
        let uplinks = split.lab.topology.uplinks();
        let found = uplinks
            .iter()
            .any(|uplink| uplink.addresses.contains(&address));
        assert_eq!(found, beside, "class {class} came from {address}");
    }
    let from = split.balanced.client();
    let open = |port| split.open(from, SERVERS[0], port).0;
    let mut waiting: Vec<TcpStream> = (0..8).map(|_| open(DIRECT)).collect();
    let mut through = open(PORT);
    split.lab.topology.cut(0, Cut::Blackhole).unwrap();
    let dead = |status: &Status| {
        let uplinks = &status.direct.as_ref().unwrap().spread.uplinks;
        uplinks.iter().any(|uplink| uplink.state_ipv4 == "dead")
    };
    split
        .lab
        .site
        .wait_for("dead uplink", PATIENCE, dead)
        .unwrap();
    let reset = waiting.iter_mut().filter_map(|stream| {
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let error = stream.read(&mut [0]).err()?;
        (error.kind() == std::io::ErrorKind::ConnectionReset).then_some(())
    });
    assert_eq!(reset.count(), 6, "of those over the dead uplink");
    assert!(echoes(&mut through), "a flow through the tunnel was ended");
    for from in split.sources() {
        assert_eq!(split.ways(from, SERVERS[0], DIRECT, 10), [0, 10, 0]);
        assert_eq!(split.ways(from, SERVERS[0], PORT, 2), [0, 0, 2]);
    }
}

#[test]
fn with_a_dead_hub_auto_goes_direct_and_nothing_of_the_tunnel_leaves_beside_it() {
    if !ready() {
        return;
    }
    let mut split = split("viadead", 1, "");
    let tap = Tap::new(split.lab.topology.hub());
    let uplink = split.lab.topology.uplinks()[0].addresses[0];
    let datagrams = Datagrams::new(split.balanced.client(), split.lab.topology.server());
    assert_ne!(datagrams.exchange(), uplink);
    let mut through = Vec::new();
    for from in split.sources() {
        for server in SERVERS {
            let (stream, in_tunnel) = split.open(from, server, AUTO);
            assert!(in_tunnel, "to {server}");
            through.push(stream);
            let (stream, in_tunnel) = split.open(from, server, PORT);
            assert!(in_tunnel, "to {server}");
            through.push(stream);
        }
    }
    split.lab.hub.kill();
    for stream in &mut through {
        stream.write_all(b"x").unwrap();
    }
    let status = split.wait_fallen_back(true);
    assert_eq!(status.direct.unwrap().fallbacks, 1);
    assert_eq!(
        datagrams.exchange(),
        uplink,
        "datagrams go on beside the tunnel"
    );
    let mut beside = Vec::new();
    for from in split.sources() {
        for server in SERVERS {
            let (stream, in_tunnel) = split.open(from, server, AUTO);
            assert!(!in_tunnel, "to {server}");
            beside.push(stream);
            let only = SocketAddr::new(server, PORT);
            let soon = Duration::from_millis(300);
            let held = from
                .enter(|| TcpStream::connect_timeout(&only, soon))
                .unwrap();
            assert!(held.is_err(), "{server} was reached without a tunnel");
        }
    }
    split.lab.hub.start().unwrap();
    split.wait_fallen_back(false);
    for from in split.sources() {
        for server in SERVERS {
            assert_eq!(split.ways(from, server, AUTO, 5), [0, 5], "to {server}");
        }
    }
    for stream in &mut through {
        let mut byte = [0];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .read_exact(&mut byte)
            .expect("what was sent to the dead hub came back");
        assert!(echoes(stream), "a flow through the tunnel was cut");
    }
    for stream in &mut beside {
        assert!(echoes(stream), "a direct flow was cut by the return");
    }
    assert_eq!(
        datagrams.exchange(),
        uplink,
        "datagrams were moved by the return"
    );
    assert_eq!(tap.seen(PORT), 0, "packets left beside the tunnel");
}

#[test]
fn where_no_target_ever_answers_auto_goes_direct_by_the_silence_of_the_hub_alone() {
    if !ready() {
        return;
    }
    // Addresses for documentation, which nobody has (RFC 5737, RFC 3849).
    let silent = ["192.0.2.77".to_owned(), "2001:db8:77::1".to_owned()];
    let mut split = split_with("viablind", 1, &probing(silent, ""));
    assert_eq!(
        split.ways(split.balanced.client(), SERVERS[0], AUTO, 2),
        [0, 2]
    );
    split.lab.hub.kill();
    assert_eq!(split.wait_fallen_back(true).direct.unwrap().fallbacks, 1);
    for from in split.sources() {
        for server in SERVERS {
            assert_eq!(split.ways(from, server, AUTO, 2), [2, 0], "to {server}");
        }
    }
    split.lab.hub.start().unwrap();
    split.wait_fallen_back(false);
    assert_eq!(
        split.ways(split.balanced.client(), SERVERS[0], AUTO, 2),
        [0, 2]
    );
}

#[test]
fn what_an_open_flow_in_the_tunnel_of_a_killed_site_sends_is_dropped() {
    if !ready() {
        return;
    }
    let mut split = split("viakill", 1, "");
    let tap = Tap::new(split.lab.topology.hub());
    // Those of the site itself have an address that is gone with its interface.
    let client = split.balanced.client();
    let open = |port| split.open(client, SERVERS[0], port).0;
    let mut streams: Vec<TcpStream> = [AUTO, PORT, DIRECT].into_iter().map(open).collect();
    // Another was opened from the other side: the site sends its answers.
    let (site, hub) = (split.lab.topology.site(), split.lab.topology.hub());
    let inner = split.lab.site.status().unwrap().address(true).unwrap();
    let listener = site
        .enter(|| TcpListener::bind((inner, PORT)))
        .unwrap()
        .unwrap();
    let asker = hub
        .enter(|| TcpStream::connect((inner, PORT)))
        .unwrap()
        .unwrap();
    let mut answering = listener.accept().unwrap().0;
    split.lab.site.kill();
    let before = tap.seen(DIRECT);
    answering.write_all(b"answer").unwrap();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    for port in [AUTO, PORT] {
        assert_eq!(tap.seen(port), 0, "port {port} left beside the tunnel");
    }
    assert_eq!(tap.answers(), 0, "an answer left beside the tunnel");
    assert!(tap.seen(DIRECT) > before, "a direct flow was cut");
    drop(asker);
}

#[test]
fn before_the_hub_has_answered_only_direct_flows_leave() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("viaboot", links)).unwrap();
    let (balanced, topology) = (Balanced::new(&ground.topology).unwrap(), &ground.topology);
    balanced::listen(topology, DIRECT).unwrap();
    let tap = Tap::new(topology.hub());
    let directory = topology.directory();
    let mut hub = Gateway::hub(topology.hub(), directory, &GatewaySpec::default()).unwrap();
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let mut site = Gateway::site(topology.site(), directory, "site", &token, &spec("")).unwrap();
    hub.kill();
    site.start().unwrap();
    for from in [topology.site(), balanced.client()] {
        for server in SERVERS {
            let direct = SocketAddr::new(server, DIRECT);
            Balanced::count_at(from, direct, 3).unwrap();
            let only = SocketAddr::new(server, PORT);
            let refused = from
                .enter(|| TcpStream::connect_timeout(&only, PATIENCE))
                .unwrap();
            let refused = refused.expect_err("reached without a tunnel");
            assert_ne!(refused.kind(), std::io::ErrorKind::TimedOut, "{refused}");
        }
    }
    assert_eq!(tap.seen(PORT), 0, "packets left beside the tunnel");
    assert!(tap.seen(DIRECT) > 0, "the counters count nothing");
}

#[test]
fn the_machine_is_as_before_after_stop_interrupt_and_kill() {
    if !ready() {
        return;
    }
    let mut split = split("viastate", 1, "");
    let (topology, site) = (&split.lab.topology, &mut split.lab.site);
    let direct = SocketAddr::new(SERVERS[0], DIRECT);
    Balanced::count_at(split.balanced.client(), direct, 3).unwrap();
    let during = machine_state(topology.site());
    for part in ["table inet ropewalk_balance", "suppress_ifgroup"] {
        assert!(during.contains(part), "{part} is not in:\n{during}");
    }
    assert!(site.stop());
    let before = machine_state(topology.site());
    for part in ["ropewalk", "fwmark", "0x5242", "ip_forward = 1"] {
        assert!(!before.contains(part), "{part} is in:\n{before}");
    }
    let plan = site.run(&["up", "--plan"]).unwrap().success().unwrap();
    for part in [
        "net.ipv4.ip_forward = 1",
        "fwmark 0x11000000",
        "chain classify",
        "group 21058",
    ] {
        assert!(plan.contains(part), "{part} is not in:\n{plan}");
    }
    assert_eq!(
        machine_state(topology.site()),
        before,
        "the plan changed something"
    );
    site.start().unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
    site.signal(Signal::TERM);
    let end = std::time::Instant::now() + PATIENCE;
    while site.is_running() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(machine_state(topology.site()), before, "after SIGTERM");
    site.start().unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
    site.kill();
    assert_ne!(
        machine_state(topology.site()),
        before,
        "kill -9 leaves what is to be undone"
    );
    site.run(&["doctor", "--repair"]).unwrap();
    assert_eq!(
        machine_state(topology.site()),
        before,
        "after kill -9 and repair"
    );
}
