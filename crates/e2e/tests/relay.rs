//! A site behind a relay: both hops lose packets, die and come back; nothing stays behind.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use ropewalk_e2e::{Ground, packet, ready, whole};
use ropewalk_testbed::branch::DIRECT;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{Cut, HUB, HUB_V6, SERVER, SERVER_V6};
use ropewalk_testbed::traffic::bulk::{self, Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use ropewalk_testbed::{Branch, LinkSpec, Namespace, TopologySpec, veth};
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(20);

/// A relay in the place of a topology's site, and a branch behind it. Gateways go first.
struct Chain {
    relay: Gateway,
    hub: Gateway,
    branch: Branch,
    ground: Ground,
}

impl Chain {
    /// Hub and relay run; nothing runs on the branch.
    fn new(purpose: &str, hops: [Vec<LinkSpec>; 2], direct: Option<&LinkSpec>) -> Self {
        Self::invited(purpose, hops, direct, Gateway::invite_relay)
    }

    /// The same with a token that `invite` gets from the hub.
    fn invited(
        purpose: &str,
        hops: [Vec<LinkSpec>; 2],
        direct: Option<&LinkSpec>,
        invite: fn(&Gateway, &str) -> anyhow::Result<String>,
    ) -> Self {
        let [near, far] = hops;
        let ground = Ground::new(&TopologySpec::new(purpose, far)).unwrap();
        let topology = &ground.topology;
        let branch = Branch::build(topology, None, "boat", &near, direct).unwrap();
        let (directory, spec) = (topology.directory(), GatewaySpec::default());
        let mut hub = Gateway::hub(topology.hub(), directory, &spec).unwrap();
        hub.start().unwrap();
        let token = invite(&hub, "harbour").unwrap();
        let named = ("harbour", token.as_str());
        let site = topology.site();
        let mut relay = Gateway::relay(site, directory, named, &branch.relay(), &spec).unwrap();
        relay.start().unwrap();
        relay
            .wait_paths(topology.uplinks().len(), PATIENCE)
            .unwrap();
        Self {
            relay,
            hub,
            branch,
            ground,
        }
    }

    /// A site with a tunnel to the hub, one uplink of which is its tunnel to the relay (the first
    /// of the gateways) and the other leads past it. That one is the slower: what needs to be
    /// quick goes over the relay.
    fn nested(purpose: &str) -> (Self, Gateway, Gateway) {
        let direct = LinkSpec::steady(30.0, Duration::from_millis(25)).with_seed(3);
        let chain = Self::new(purpose, [vec![clean(1)], vec![clean(2)]], Some(&direct));
        let first = GatewaySpec {
            tunnel: "interface = \"torelay0\"".into(),
            network: format!("routes = [\"{HUB}/32\", \"{HUB_V6}/128\"]"),
            ..GatewaySpec::default()
        };
        let token = chain.relay.invite("boat").unwrap();
        let inner = chain.site("boat-relay", &token, &first, 1);
        let second = GatewaySpec {
            uplinks: format!("include = [\"{DIRECT}\", \"torelay0\"]"),
            ..GatewaySpec::default()
        };
        let token = chain.hub.invite("boat").unwrap();
        let site = chain.site("boat", &token, &second, 2);
        (chain, inner, site)
    }

    /// A site on the branch that has joined with `token`, running, with so many paths up.
    fn site(&self, name: &str, token: &str, spec: &GatewaySpec, paths: usize) -> Gateway {
        let (namespace, directory) = (self.branch.namespace(), self.ground.topology.directory());
        let mut site = Gateway::site(namespace, directory, name, token, spec).unwrap();
        site.start().unwrap();
        site.wait_paths(paths, PATIENCE).unwrap();
        site
    }

    /// A site on the branch with a path over every link to the relay.
    fn plain_site(&self) -> Gateway {
        let token = self.relay.invite("boat").unwrap();
        let spec = GatewaySpec::default();
        self.site("boat", &token, &spec, self.branch.links().len())
    }

    fn boat(&self) -> &Namespace {
        self.branch.namespace()
    }

    fn server(&self) -> &Namespace {
        self.ground.topology.server()
    }

    fn to_server(&self) -> Endpoints {
        ends(self.boat(), self.server(), SERVER.into())
    }
}

fn lossy(seed: u64) -> LinkSpec {
    LinkSpec::steady(30.0, Duration::from_millis(8))
        .with_loss(0.05)
        .with_seed(seed)
}

fn clean(seed: u64) -> LinkSpec {
    LinkSpec::steady(30.0, Duration::from_millis(5)).with_seed(seed)
}

fn bare() -> LinkSpec {
    LinkSpec::unshaped(true)
}

fn ends(client: &Namespace, server: &Namespace, server_address: IpAddr) -> Endpoints {
    Endpoints {
        client: client.clone(),
        server: server.clone(),
        server_address,
        device: None,
    }
}

/// Transfers so much over two connections each; every byte must arrive. Mbit/s.
fn transfer(ends: &Endpoints, direction: Direction, bytes: u64) -> f64 {
    let limit = LIMIT;
    let spec = BulkSpec {
        amount: Amount::Bytes { bytes, limit },
        direction,
        ..BulkSpec::download(2, LIMIT)
    };
    let report = whole(bulk::run(ends, &spec).unwrap()).unwrap();
    assert_eq!(report.bytes, 2 * bytes, "{report:?}");
    report.goodput_mbit
}

/// How many of 20 requests of so many bytes are answered.
fn answered(from: &Namespace, target: IpAddr, size: usize) -> u64 {
    let mut spec = PingSpec::new(target);
    (spec.count, spec.size) = (20, size);
    spec.interval = Duration::from_millis(20);
    let report = ping::run(from, &spec).unwrap();
    eprintln!("{size} bytes to {target}: {:?}", report.rtt_ms);
    report.received
}

#[test]
fn what_two_lossy_hops_lose_arrives_and_either_end_may_begin() {
    if !ready() {
        return;
    }
    let hops = [vec![lossy(1), lossy(2)], vec![lossy(3), lossy(4)]];
    let chain = Chain::new("relay", hops, None);
    let site = chain.plain_site();
    let status = site.status().unwrap();
    let (v4, v6) = (
        status.address(false).unwrap(),
        status.address(true).unwrap(),
    );
    let (boat, hub, server) = (chain.boat(), chain.ground.topology.hub(), chain.server());
    // Each packet crosses four lossy links: 19 of 100 would have no answer.
    let all = answered(boat, SERVER.into(), 56)
        + answered(boat, SERVER_V6.into(), 56)
        + answered(server, v4, 56)
        + answered(hub, v6, 56);
    assert!(all >= 76, "{all} of 80");
    for (what, ends, direction) in [
        ("boat, down", chain.to_server(), Direction::Download),
        (
            "boat, up, IPv6",
            ends(boat, server, SERVER_V6.into()),
            Direction::Upload,
        ),
        (
            "server to boat, down",
            ends(server, boat, v4),
            Direction::Download,
        ),
        (
            "hub to boat, up, IPv6",
            ends(hub, boat, v6),
            Direction::Upload,
        ),
    ] {
        let rate = transfer(&ends, direction, 700_000);
        eprintln!("{what}: {rate:.1} Mbit/s");
    }
    let status = chain.relay.status().unwrap();
    assert_eq!(status.tunnels.len(), 2, "{status:#?}");
    for tunnel in &status.tunnels {
        let saved = tunnel.recovered + tunnel.repairs_sent;
        eprintln!(
            "{}: recovered {}, sent again {}, {:.1} % more",
            tunnel.peer,
            tunnel.recovered,
            tunnel.repairs_sent,
            100.0 * tunnel.protection_bytes as f64 / tunnel.data_bytes as f64
        );
        assert!(saved > 0, "no loss towards {} was made good", tunnel.peer);
    }
}

#[test]
fn a_connection_survives_the_relay_and_uses_it_again() {
    if !ready() {
        return;
    }
    let (mut chain, _inner, site) = Chain::nested("relaykill");
    let boat = chain.boat().clone();
    let through_relay = || boat.interface_bytes("torelay0").unwrap().0;
    let spec = BulkSpec::download(2, Duration::from_millis(6_500));
    let bulk = Bulk::start(&chain.to_server(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let carried = through_relay();
    assert!(carried > 100_000, "the relay carried {carried} bytes only");
    chain.relay.kill();
    std::thread::sleep(Duration::from_secs(1));
    let before = bulk.received();
    std::thread::sleep(Duration::from_secs(1));
    let alone = bulk.received() - before;
    assert!(
        alone > 100_000,
        "{alone} bytes in a second without the relay"
    );
    chain.relay.start().unwrap();
    site.wait_paths(2, PATIENCE).unwrap();
    let before = through_relay();
    std::thread::sleep(Duration::from_secs(1));
    let again = through_relay() - before;
    assert!(again > 100_000, "the relay carried {again} bytes again");
    let report = whole(bulk.finish().unwrap()).unwrap();
    eprintln!(
        "in all {:.1} Mbit/s, through the relay {:.1} MB before, without {:.1} Mbit/s, samples {:.0?}",
        report.goodput_mbit,
        carried as f64 / 1e6,
        alone as f64 * 8e-6,
        report.samples_mbit
    );
}

#[test]
fn a_connection_survives_seconds_without_a_way_from_relay_to_hub() {
    if !ready() {
        return;
    }
    let hops = [vec![bare()], vec![clean(1), clean(2)]];
    let chain = Chain::new("relaydark", hops, None);
    let _site = chain.plain_site();
    let spec = BulkSpec::download(2, Duration::from_secs(4));
    let bulk = Bulk::start(&chain.to_server(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let topology = &chain.ground.topology;
    for uplink in [0, 1] {
        topology.cut(uplink, Cut::Blackhole).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1_500));
    for uplink in [0, 1] {
        topology.restore(uplink, Cut::Blackhole).unwrap();
    }
    let before = bulk.received();
    let report = whole(bulk.finish().unwrap()).unwrap();
    eprintln!("{:.0?}", report.samples_mbit);
    assert!(report.bytes > before + 1_000_000, "{report:?}");
}

#[test]
fn packets_too_big_for_either_hop_arrive_or_are_answered() {
    if !ready() {
        return;
    }
    let small = || LinkSpec::steady(100.0, Duration::from_millis(2)).with_mtu(1_300);
    for (purpose, hops) in [
        ("relaynear", [vec![small()], vec![bare()]]),
        ("relayfar", [vec![bare()], vec![small()]]),
    ] {
        let chain = Chain::new(purpose, hops, None);
        let site = chain.plain_site();
        let address = site.status().unwrap().address(false).unwrap();
        for (what, from, target) in [
            ("boat to server", chain.boat(), SERVER.into()),
            ("server to boat", chain.server(), address),
        ] {
            // The first may only teach the sender the MTU.
            for size in [1_252, 1_372, 3_000] {
                let received = answered(from, target, size);
                assert!(received >= 18, "{purpose}, {what}, {size}: {received}");
            }
        }
        transfer(&chain.to_server(), Direction::Download, 500_000);
        transfer(&chain.to_server(), Direction::Upload, 500_000);
    }
}

#[test]
fn relays_stand_in_a_row_and_one_that_is_not_routed_translates() {
    if !ready() {
        return;
    }
    let chain = Chain::new("relayrow", [vec![bare()], vec![bare()]], None);
    let topology = &chain.ground.topology;
    let (directory, spec) = (topology.directory(), GatewaySpec::default());
    let far = Branch::build(topology, Some((&chain.branch, 1)), "buoy", &[bare()], None).unwrap();
    let token = chain.relay.invite_relay("boat").unwrap();
    let named = ("boat", token.as_str());
    let mut second = Gateway::relay(chain.boat(), directory, named, &far.relay(), &spec).unwrap();
    second.start().unwrap();
    second.wait_paths(1, PATIENCE).unwrap();
    let token = second.invite("buoy").unwrap();
    let mut site = Gateway::site(far.namespace(), directory, "buoy", &token, &spec).unwrap();
    site.start().unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
    let status = site.status().unwrap();
    eprintln!("{:?}", status.addresses);
    for v6 in [false, true] {
        let address = status.address(v6).unwrap();
        assert!(answered(topology.hub(), address, 56) >= 19);
    }
    assert!(answered(far.namespace(), SERVER.into(), 56) >= 19);
    drop((site, second, far));
    drop(chain);

    let chain = Chain::invited(
        "relaynat",
        [vec![bare()], vec![bare()]],
        None,
        Gateway::invite,
    );
    let _site = chain.plain_site();
    assert!(answered(chain.boat(), SERVER.into(), 56) >= 19);
    assert!(answered(chain.boat(), SERVER_V6.into(), 56) >= 19);
}

/// Whether a packet from one of its addresses, forged or not, comes to a machine in time.
fn comes(
    (from, source): (&Namespace, IpAddr),
    (to, target): (&Namespace, IpAddr),
    limit: Duration,
) -> bool {
    let payload = format!("{source} to {target}").into_bytes();
    let receiver = packet::raw(to, target, EXPERIMENT).unwrap();
    let sender = packet::raw(from, target, EXPERIMENT).unwrap();
    let forged = if target.is_ipv6() {
        sender.set_ip_transparent_v6(true)
    } else {
        sender.set_ip_transparent_v4(true)
    };
    forged.unwrap();
    sender.bind(&SocketAddr::new(source, 0).into()).unwrap();
    let target = SocketAddr::new(target, 0).into();
    sender.send_to(&payload, &target).unwrap();
    packet::receive(&receiver, limit, |got| got.ends_with(&payload)).unwrap()
}

/// A protocol for experiments (RFC 3692).
const EXPERIMENT: u8 = 253;

/// What a packet is, its sender and source, its receiver and target.
type Way<'a> = (
    &'static str,
    (&'a Namespace, IpAddr),
    (&'a Namespace, IpAddr),
);

/// Joins a machine to the relay's local network; the ways of packets between it and the tunnels.
fn beside<'a>(chain: &'a Chain, site: &Gateway, lan: &'a Namespace) -> Vec<Way<'a>> {
    let topology = &chain.ground.topology;
    let (relay, hub) = (topology.site(), topology.hub());
    veth((relay, "lan0"), (lan, "eth0"), 1_500).unwrap();
    for which in ["all", "lan0"] {
        let key = format!("net/ipv4/conf/{which}/rp_filter");
        relay.sysctl(&key, "0").unwrap();
    }
    let (status, of_hub) = (site.status().unwrap(), chain.hub.status().unwrap());
    let mut ways = Vec::new();
    for (v6, gateway, own, far) in [
        (false, "192.168.90.1", "192.168.90.2", IpAddr::from(SERVER)),
        (true, "fd00:90::1", "fd00:90::2", SERVER_V6.into()),
    ] {
        let (length, whole) = if v6 { (64, 128) } else { (24, 32) };
        let (site, of_hub) = (status.address(v6).unwrap(), of_hub.address(v6).unwrap());
        // Of the relay's network, and of no site.
        let free = match site {
            IpAddr::V4(ip) => IpAddr::from(Ipv4Addr::from_bits(ip.to_bits() + 1)),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() + 1).into(),
        };
        let near =
            format!("addr add {gateway}/{length} dev lan0\nroute add {free}/{whole} dev lan0\n");
        relay.ip(&near).unwrap();
        let far_end = format!(
            "addr add {own}/{length} dev eth0\naddr add {free}/{whole} dev eth0\n\
             route add default via {gateway} dev eth0\n"
        );
        lan.ip(&far_end).unwrap();
        let (own, to_site) = (own.parse().unwrap(), (chain.boat(), site));
        ways.extend([
            ("a site's address", (lan, site), (chain.server(), far)),
            ("a free address to the hub", (lan, free), (hub, of_hub)),
            ("its own address to a site", (lan, own), to_site),
            ("a free address to a site", (lan, free), to_site),
            ("the hub to what is beside", (hub, of_hub), (lan, free)),
        ]);
    }
    ways
}

#[test]
fn a_machine_beside_the_relay_speaks_for_no_site_and_is_reached_through_none() {
    if !ready() {
        return;
    }
    let chain = Chain::new("relaylan", [vec![bare()], vec![bare()]], None);
    let site = chain.plain_site();
    let lan = Namespace::create("relaylan", "lan").unwrap();
    let ways = beside(&chain, &site, &lan);
    let status = site.status().unwrap();
    let topology = &chain.ground.topology;
    let (boat, relay) = (chain.boat(), topology.site());
    let (hub, server) = (topology.hub(), chain.server());
    for (what, from, to) in &ways {
        let came = comes(*from, *to, Duration::from_millis(300));
        assert!(!came, "{what}: {} to {}", from.1, to.1);
    }
    // What is to pass does, and the relay's own traffic.
    for (from, to) in [
        (boat, SERVER.into()),
        (boat, SERVER_V6.into()),
        (hub, status.address(false).unwrap()),
        (server, status.address(true).unwrap()),
        (relay, SERVER.into()),
        (relay, SERVER_V6.into()),
        (relay, status.address(false).unwrap()),
        (relay, HUB.into()),
    ] {
        assert!(answered(from, to, 56) >= 19, "{} to {to}", from.name());
    }
    // Nothing but these rules was in the way.
    relay.nft("delete table inet ropewalk_ropehub0\n").unwrap();
    for (what, from, to) in &ways {
        assert!(
            comes(*from, *to, PATIENCE),
            "{what}: {} to {}",
            from.1,
            to.1
        );
    }
}

/// Everything a gateway may change of a machine's network.
fn network(namespace: &Namespace) -> Vec<String> {
    let commands = [
        ["-4", "rule", "show"].as_slice(),
        &["-6", "rule", "show"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["link", "show"],
    ];
    let mut programs = Vec::from(commands.map(|words| namespace.program("ip").args(words)));
    programs.push(namespace.program("nft").args(["list", "tables"]));
    let texts = programs.into_iter().map(|program| program.success(LIMIT));
    let mut state: Vec<String> = texts.map(Result::unwrap).collect();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        state.push(namespace.sysctl_value(key).unwrap());
    }
    state
}

#[test]
fn a_relay_leaves_nothing_behind() {
    if !ready() {
        return;
    }
    let mut chain = Chain::new("relayclean", [vec![bare()], vec![bare()]], None);
    let namespace = chain.ground.topology.site().clone();
    let running = network(&namespace);
    let words = ["5000", "5000", "rope", "rope", "rope", "ropewalk"];
    for (text, word) in running.iter().zip(words) {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    chain.relay.signal(Signal::TERM);
    for _ in 0..60 {
        if !chain.relay.is_running() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!chain.relay.is_running(), "SIGTERM did not end it");
    let clean = network(&namespace);
    for (text, word) in clean.iter().zip(words) {
        assert!(!text.contains(word), "{word} is left in {text}");
    }
    assert_eq!(clean[6..], ["0", "0"]);
    // After a kill the next start or the doctor undoes it.
    chain.relay.start().unwrap();
    chain.relay.wait_paths(1, PATIENCE).unwrap();
    chain.relay.kill();
    let killed = network(&namespace);
    assert!(killed[0].contains("5000"), "{killed:?}");
    let repaired = chain.relay.run(&["doctor", "--repair"]).unwrap();
    repaired.success().unwrap();
    assert_eq!(network(&namespace), clean);
    for key in ["relay.key", "relay-hub.key"] {
        let path = chain.relay.directory().join(key);
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

#[test]
#[ignore = "a measurement: one TCP stream over bare links, with a relay and without"]
fn throughput_with_a_relay_and_without() {
    if !ready() {
        return;
    }
    for through_relay in [true, false, true, false] {
        let chain = Chain::new("relayspeed", [vec![bare()], vec![bare()]], Some(&bare()));
        let _site = if through_relay {
            chain.plain_site()
        } else {
            let spec = GatewaySpec {
                uplinks: format!("include = [\"{DIRECT}\"]"),
                ..GatewaySpec::default()
            };
            let token = chain.hub.invite("boat").unwrap();
            chain.site("boat", &token, &spec, 1)
        };
        for direction in [Direction::Download, Direction::Upload] {
            let spec = BulkSpec {
                direction,
                ..BulkSpec::download(1, Duration::from_secs(4))
            };
            let report = whole(bulk::run(&chain.to_server(), &spec).unwrap()).unwrap();
            let rate = report.goodput_mbit;
            eprintln!("relay {through_relay}, {direction:?}: {rate:.0} Mbit/s");
        }
        answered(chain.boat(), SERVER.into(), 56);
    }
}

#[test]
#[ignore = "a measurement: how long a stream over the relay falls silent when the relay is killed"]
fn silence_when_the_relay_is_killed() {
    if !ready() {
        return;
    }
    for _ in 0..5 {
        let (mut chain, _inner, _site) = Chain::nested("relaysilence");
        std::thread::sleep(Duration::from_secs(1));
        let bytes = |name: &str| chain.boat().interface_bytes(name).unwrap().0;
        let fine = ProbeSpec::fine(Direction::Download);
        let probe = Probe::start(&chain.to_server(), &fine).unwrap();
        let before = (bytes("torelay0"), bytes(DIRECT));
        std::thread::sleep(Duration::from_secs(2));
        let (relay, direct) = (bytes("torelay0") - before.0, bytes(DIRECT) - before.1);
        chain.relay.kill();
        std::thread::sleep(Duration::from_secs(2));
        let report = probe.finish().unwrap().report();
        eprintln!(
            "{relay} bytes over the relay and {direct} past it, then killed: silent for {:.0} ms, \
             {} of {} arrived",
            report.longest_gap_ms, report.received, report.sent
        );
    }
}
