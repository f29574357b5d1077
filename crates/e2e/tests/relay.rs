//! A site behind a relay: both hops lose packets, die and come back, and nothing stays behind.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use ropewalk_e2e::chain::{Chain, ends};
use ropewalk_e2e::{packet, ready, whole};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{Cut, HUB, SERVER, SERVER_V6};
use ropewalk_testbed::traffic::bulk::{self, Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use ropewalk_testbed::{Branch, LinkSpec, Namespace, veth};
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(20);

fn clean(seed: u64) -> LinkSpec {
    LinkSpec::steady(30.0, Duration::from_millis(5)).with_seed(seed)
}

fn bare() -> LinkSpec {
    LinkSpec::unshaped(true)
}

fn lossy(seed: u64) -> LinkSpec {
    LinkSpec::steady(30.0, Duration::from_millis(8))
        .with_loss(0.05)
        .with_seed(seed)
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
    let chain = Chain::new("relay", hops, None).unwrap();
    let site = chain.plain_site().unwrap();
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
    let (mut chain, _inner, site) = Chain::nested("relaykill").unwrap();
    let boat = chain.boat().clone();
    let through_relay = || boat.interface_bytes("torelay0").unwrap().0;
    // The test ends the transfer itself: how long the relay takes to come back is not judged here.
    let spec = BulkSpec::download(2, 2 * PATIENCE);
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
    let report = whole(bulk.stop().unwrap()).unwrap();
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
    let chain = Chain::new("relaydark", hops, None).unwrap();
    let _site = chain.plain_site().unwrap();
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
        let chain = Chain::new(purpose, hops, None).unwrap();
        let site = chain.plain_site().unwrap();
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
    let chain = Chain::new("relayrow", [vec![bare()], vec![bare()]], None).unwrap();
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
}

#[test]
fn connections_that_a_relay_translates_survive_the_relay() {
    if !ready() {
        return;
    }
    let hops = [vec![clean(1)], vec![clean(2)]];
    let mut chain = Chain::invited("relaynat", hops, None, Gateway::invite).unwrap();
    let site = chain.plain_site().unwrap();
    assert!(answered(chain.boat(), SERVER.into(), 56) >= 19);
    assert!(answered(chain.boat(), SERVER_V6.into(), 56) >= 19);
    let to_server = |address| ends(chain.boat(), chain.server(), address);
    let spec = BulkSpec::download(2, 4 * PATIENCE);
    let transfers = [SERVER.into(), SERVER_V6.into()]
        .map(|address| Bulk::start(&to_server(address), &spec).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    chain.relay.kill();
    std::thread::sleep(Duration::from_secs(1));
    chain.relay.start().unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
    for bulk in transfers {
        let before = bulk.received();
        let goes_on = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            bulk.received() > before + 100_000
        });
        assert!(goes_on, "{} bytes, then no more", before);
        whole(bulk.stop().unwrap()).unwrap();
    }
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
        // An address of the relay's network that no site has.
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
    let chain = Chain::new("relaylan", [vec![bare()], vec![bare()]], None).unwrap();
    let site = chain.plain_site().unwrap();
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
    let mut chain = Chain::new("relayclean", [vec![bare()], vec![bare()]], None).unwrap();
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
        let path = chain.relay.directory().join("keys").join(key);
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}
