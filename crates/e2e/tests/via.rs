//! Classes of a site that go beside its tunnel, always or while the hub is dead, and those that
//! never do.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use ropewalk_e2e::{Ground, Lab, ready};
use ropewalk_testbed::balanced::{self, PORT};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, Status};
use ropewalk_testbed::topology::{Cut, SERVER, SERVER_V6};
use ropewalk_testbed::{Balanced, LinkSpec, Namespace, TopologySpec};

const COMMAND: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(15);
const SERVERS: [IpAddr; 2] = [IpAddr::V4(SERVER), IpAddr::V6(SERVER_V6)];
/// Ports of classes that go direct, and either way; the others go through the tunnel.
const DIRECT: u16 = 443;
const AUTO: u16 = 8_443;

/// A site with a network behind it, and what goes beside its tunnel.
struct Split {
    lab: Lab,
    balanced: Balanced,
}

fn spec(more: &str) -> GatewaySpec {
    let class = |name: &str, port: u16, via: &str| {
        format!(
            "[[class]]\nname = \"{name}\"\nprotocol = [\"tcp\"]\nports = [\"{port}\"]\nvia = \"{via}\"\n"
        )
    };
    GatewaySpec {
        more: format!(
            "{}{}protect = \"adaptive\"\n\
             [probe]\ntargets = [\"{SERVER}\", \"{SERVER_V6}\"]\n\
             [direct]\naffinity_minutes = 0\nforward = true\n{more}",
            class("video", DIRECT, "direct"),
            class("mail", AUTO, "auto"),
        ),
        ..GatewaySpec::default()
    }
}

fn split(purpose: &str, uplinks: usize, more: &str) -> Split {
    let links = vec![LinkSpec::unshaped(true); uplinks];
    let ground = Ground::new(&TopologySpec::new(purpose, links)).unwrap();
    let balanced = Balanced::new(&ground.topology).unwrap();
    for port in [DIRECT, AUTO] {
        balanced::listen(&ground.topology, port).unwrap();
    }
    let lab = ground
        .connect(&GatewaySpec::default(), &spec(more))
        .unwrap();
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

/// Counts, at the far ends of the uplinks, packets of TCP to a port of the server.
struct Tap<'a>(&'a Namespace);

impl<'a> Tap<'a> {
    fn new(internet: &'a Namespace, port: u16) -> Self {
        let rule = format!("iifname \"isp*\" tcp dport {port} ip daddr {SERVER} counter");
        let rule_v6 = format!("iifname \"isp*\" tcp dport {port} ip6 daddr {SERVER_V6} counter");
        let table = format!(
            "table inet tap {{ chain c {{ type filter hook prerouting priority raw;\n{rule}\n{rule_v6}\n}}\n}}\n"
        );
        internet.nft(&table).unwrap();
        Self(internet)
    }

    fn seen(&self) -> u64 {
        let list = self.0.program("nft").args(["list", "table", "inet", "tap"]);
        let list = list.success(COMMAND).unwrap();
        let counts = list.split("packets ").skip(1);
        let number = |text: &str| text.split(' ').next()?.parse::<u64>().ok();
        counts.filter_map(number).sum()
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
    let hub = split.lab.site.status().unwrap().tunnels[0].rx_packets;
    assert!(hub > 0, "the tunnel carried nothing");
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
    let tap = Tap::new(split.lab.topology.hub(), PORT);
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
    assert_eq!(tap.seen(), 0, "packets left beside the tunnel");
    let (mut own, _) = split.open(split.lab.topology.site(), SERVERS[0], PORT);
    split.lab.site.kill();
    let _ = own.write_all(b"x");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        tap.seen(),
        0,
        "an open flow left beside the tunnel of a killed site"
    );
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
    let tap = Tap::new(topology.hub(), PORT);
    let hub = Gateway::hub(
        topology.hub(),
        topology.directory(),
        &GatewaySpec::default(),
    )
    .unwrap();
    let token = hub.invite("site").unwrap();
    let directory = topology.directory();
    let mut site = Gateway::site(topology.site(), directory, "site", &token, &spec("")).unwrap();
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
    assert_eq!(tap.seen(), 0, "packets left beside the tunnel");
}
