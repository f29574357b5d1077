//! A site behind a relay: both hops lose packets, the relay dies and comes back, nothing stays.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::IpAddr;
use std::time::Duration;

use ropewalk_e2e::{Ground, ready, whole};
use ropewalk_testbed::branch::DIRECT;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, Status};
use ropewalk_testbed::topology::{HUB, HUB_V6, SERVER, SERVER_V6};
use ropewalk_testbed::traffic::bulk::{self, Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use ropewalk_testbed::{Branch, LinkSpec, Namespace, TopologySpec};
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(20);
/// Each connection must carry so much, whole.
const BYTES: u64 = 2_000_000;

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
        let [near, far] = hops;
        let ground = Ground::new(&TopologySpec::new(purpose, far)).unwrap();
        let topology = &ground.topology;
        let branch = Branch::build(topology, "boat", &near, direct).unwrap();
        let (directory, spec) = (topology.directory(), GatewaySpec::default());
        let mut hub = Gateway::hub(topology.hub(), directory, &spec).unwrap();
        hub.start().unwrap();
        let token = hub.invite_relay("harbour").unwrap();
        let relay = Gateway::relay(topology.site(), directory, "harbour", &token, &spec);
        let mut relay = relay.unwrap();
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

    /// A site on the branch that has joined with `token`, running, with so many paths up.
    fn site(&self, name: &str, token: &str, spec: &GatewaySpec, paths: usize) -> Gateway {
        let (namespace, directory) = (self.branch.namespace(), self.ground.topology.directory());
        let mut site = Gateway::site(namespace, directory, name, token, spec).unwrap();
        site.start().unwrap();
        site.wait_paths(paths, PATIENCE).unwrap();
        site
    }

    fn server(&self) -> &Namespace {
        self.ground.topology.server()
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

/// Transfers over two connections that `client` opens; every byte must arrive.
fn transfer(client: &Namespace, server: &Namespace, address: IpAddr, direction: Direction) -> f64 {
    let ends = Endpoints {
        client: client.clone(),
        server: server.clone(),
        server_address: address,
        device: None,
    };
    let amount = Amount::Bytes {
        bytes: BYTES,
        limit: LIMIT,
    };
    let spec = BulkSpec {
        amount,
        direction,
        ..BulkSpec::download(2, LIMIT)
    };
    let report = whole(bulk::run(&ends, &spec).unwrap()).unwrap();
    assert_eq!(report.bytes, 2 * BYTES, "{report:?}");
    report.goodput_mbit
}

#[test]
fn what_two_lossy_hops_lose_arrives_and_either_end_may_begin() {
    if !ready() {
        return;
    }
    let hops = [vec![lossy(1), lossy(2)], vec![lossy(3), lossy(4)]];
    let chain = Chain::new("relay", hops, None);
    let token = chain.relay.invite("boat").unwrap();
    let site = chain.site("boat", &token, &GatewaySpec::default(), 2);
    let boat = chain.branch.namespace();
    let status = site.status().unwrap();
    let (v4, v6) = (
        status.address(false).unwrap(),
        status.address(true).unwrap(),
    );
    let (hub, server) = (chain.ground.topology.hub(), chain.server());
    for target in [IpAddr::from(SERVER), SERVER_V6.into()] {
        let mut spec = PingSpec::new(target);
        (spec.count, spec.interval) = (20, Duration::from_millis(20));
        let report = ping::run(boat, &spec).unwrap();
        eprintln!("ping {target}: {report:?}");
        // Twenty packets over eight lossy links: without recovery four in five would be lost... of
        // them some are always.
        assert!(report.received >= 18, "{target}: {report:?}");
    }
    for (what, client, end, address, direction) in [
        (
            "boat down",
            boat,
            server,
            SERVER.into(),
            Direction::Download,
        ),
        (
            "boat up, IPv6",
            boat,
            server,
            SERVER_V6.into(),
            Direction::Upload,
        ),
        ("server down", server, boat, v4, Direction::Download),
        ("hub up, IPv6", hub, boat, v6, Direction::Upload),
    ] {
        let rate = transfer(client, end, address, direction);
        eprintln!("{what}: {rate:.1} Mbit/s");
    }
    let status = chain.relay.status().unwrap();
    eprintln!("{status:#?}");
    assert_eq!(status.tunnels.len(), 2);
    for tunnel in &status.tunnels {
        let saved = tunnel.recovered + tunnel.repairs_sent;
        assert!(saved > 0, "no loss towards {} was made good", tunnel.peer);
    }
}

#[test]
fn a_connection_survives_the_relay_and_uses_it_again() {
    if !ready() {
        return;
    }
    let hops = [vec![clean(1)], vec![clean(2)]];
    let mut chain = Chain::new("relaykill", hops, Some(&clean(3)));
    let first = GatewaySpec {
        tunnel: "interface = \"torelay0\"".into(),
        network: format!("routes = [\"{HUB}/32\", \"{HUB_V6}/128\"]"),
        ..GatewaySpec::default()
    };
    let token = chain.relay.invite("boat").unwrap();
    let _inner = chain.site("boat-relay", &token, &first, 1);
    let second = GatewaySpec {
        uplinks: format!("include = [\"{DIRECT}\", \"torelay0\"]"),
        ..GatewaySpec::default()
    };
    let token = chain.hub.invite("boat").unwrap();
    let site = chain.site("boat", &token, &second, 2);
    let boat = chain.branch.namespace();
    let ends = Endpoints {
        client: boat.clone(),
        server: chain.server().clone(),
        server_address: SERVER.into(),
        device: None,
    };
    let bulk = Bulk::start(&ends, &BulkSpec::download(2, Duration::from_secs(10))).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let through_relay = || boat.interface_bytes("torelay0").unwrap().0;
    let carried = through_relay();
    assert!(carried > 100_000, "the relay carried {carried} bytes only");
    chain.relay.kill();
    std::thread::sleep(Duration::from_millis(1_500));
    let before = bulk.received();
    std::thread::sleep(Duration::from_secs(1));
    let alone = bulk.received() - before;
    eprintln!("without the relay: {:.1} Mbit/s", alone as f64 * 8e-6);
    assert!(
        alone > 100_000,
        "{alone} bytes in a second without the relay"
    );
    chain.relay.start().unwrap();
    site.wait_paths(2, PATIENCE).unwrap();
    let before = through_relay();
    std::thread::sleep(Duration::from_secs(2));
    let again = through_relay() - before;
    eprintln!("through the relay again: {:.1} Mbit/s", again as f64 * 4e-6);
    assert!(
        again > 100_000,
        "the relay carried {again} bytes after its return"
    );
    let report = whole(bulk.finish().unwrap()).unwrap();
    eprintln!(
        "in all: {:.1} Mbit/s {:?}",
        report.goodput_mbit, report.samples_mbit
    );
}

/// Everything a gateway may change of a machine's network.
fn network(namespace: &Namespace) -> Vec<String> {
    let mut state: Vec<String> = [
        ["-4", "rule", "show"].as_slice(),
        &["-6", "rule", "show"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["link", "show"],
    ]
    .map(|arguments| namespace.program("ip").args(arguments))
    .into_iter()
    .chain([namespace.program("nft").args(["list", "tables"])])
    .map(|program| program.success(LIMIT).unwrap())
    .collect();
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
    let hops = [
        vec![LinkSpec::unshaped(true)],
        vec![LinkSpec::unshaped(true)],
    ];
    let mut chain = Chain::new("relayclean", hops, None);
    let namespace = chain.ground.topology.site().clone();
    let running = network(&namespace);
    chain.relay.signal(Signal::TERM);
    let ended = |chain: &mut Chain| !chain.relay.is_running();
    for _ in 0..60 {
        if ended(&mut chain) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(ended(&mut chain), "SIGTERM did not end it");
    let clean = network(&namespace);
    assert_ne!(running, clean);
    for (text, word) in clean
        .iter()
        .zip(["5000", "5000", "rope", "rope", "rope", "ropewalk"])
    {
        assert!(!text.contains(word), "{word} is left in {text}");
    }
    assert_eq!(clean[6..], ["0", "0"]);
    // After a kill the next start or the doctor undoes it.
    chain.relay.start().unwrap();
    chain.relay.wait_paths(1, PATIENCE).unwrap();
    let again = network(&namespace);
    assert!(
        again[0].contains("5000") && again[1].contains("5000"),
        "{again:?}"
    );
    chain.relay.kill();
    let finished = chain.relay.run(&["doctor", "--repair"]).unwrap();
    finished.success().unwrap();
    assert_eq!(network(&namespace), clean);
    let directory = chain.relay.directory();
    for key in ["relay.key", "relay-hub.key"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(directory.join(key))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

/// The relay's own view, for whoever reads a failed test.
#[allow(dead_code)]
fn explain(status: &Status) -> String {
    format!("{status:#?}")
}
