//! A site with two hubs: one dies, and connections go on through the other.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ropewalk_e2e::routers::{
    SECOND, SECOND_SIDE, SERVER_SIDE, bird, of_hub, of_server, second_place,
};
use ropewalk_e2e::{Ground, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{HUB_LAN, SERVER};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{Namespace, Process, TopologySpec};

const LIMIT: Duration = Duration::from_secs(20);
/// Two hubs between a site and a server, which hears the routes of both by BGP.
struct Scene {
    // Fields are dropped in this order: what runs in namespaces first.
    _site: Gateway,
    first: Gateway,
    second: Gateway,
    _routers: Vec<Process>,
    _space: Namespace,
    ground: Ground,
    /// Where the server reaches the site.
    reached: IpAddr,
}

/// The list of sites of a hub.
fn list_of(hub: &Gateway) -> PathBuf {
    hub.directory().join("state/sites.toml")
}

impl Scene {
    /// The site is reached by its inner address.
    fn new(purpose: &str) -> Self {
        Self::with(purpose, None)
    }

    /// The site is reached by its ports of a shared address only, if there is one.
    fn with(purpose: &str, shared: Option<IpAddr>) -> Self {
        let spec = TopologySpec {
            server_routes: false,
            ..TopologySpec::new(purpose, two_links())
        };
        let ground = Ground::new(&spec).unwrap();
        let (net, server) = (ground.topology.hub(), ground.topology.server());
        let space = second_place(purpose, net, server).unwrap();
        let directory = ground.topology.directory().to_owned();
        let lan = HUB_LAN.to_string();
        let left_out = shared.map_or("", |_| "if net ~ 10.86.0.0/24 then reject;");
        let peers = [
            (SERVER.to_string(), HUB_LAN.to_string()),
            (SERVER_SIDE.to_owned(), SECOND_SIDE.to_owned()),
        ];
        let routers = [
            ("bird-first", net, of_hub(&lan, SERVER, left_out)),
            (
                "bird-second",
                &space,
                of_hub(SECOND_SIDE, SERVER_SIDE, left_out),
            ),
            ("bird-server", server, of_server(&peers)),
        ]
        .map(|(name, within, text)| bird(&directory, name, within, &text).unwrap())
        .into();
        let pool = shared.map(|shared| format!("shared = [\"{shared}\"]\nports = 64512"));
        let hub = GatewaySpec {
            pool: pool.unwrap_or_default(),
            network: "masquerade = false\nroutes_table = 4443".into(),
            ..GatewaySpec::default()
        };
        let beside = directory.join("second");
        std::fs::create_dir_all(&beside).unwrap();
        let mut first = Gateway::hub(net, &directory, &hub).unwrap();
        let mut second = Gateway::hub(&space, &beside, &hub).unwrap();
        first.start().unwrap();
        second.start().unwrap();
        let key = second.run(&["key"]).unwrap().success().unwrap();
        let token = first.invite("site").unwrap();
        let spare = format!(
            "[[spare]]\nkey = \"{}\"\nendpoints = [\"{SECOND}:4443\"]\n",
            key.trim()
        );
        let spec = GatewaySpec {
            more: spare,
            ..GatewaySpec::default()
        };
        let site = ground.topology.site();
        let mut site = Gateway::site(site, &directory, "site", &token, &spec).unwrap();
        std::fs::copy(list_of(&first), list_of(&second)).unwrap();
        second
            .run(&["invite", "--reload"])
            .unwrap()
            .success()
            .unwrap();
        site.start().unwrap();
        site.wait_paths(2, LIMIT).unwrap();
        let inner = site.status().unwrap().address(false).unwrap();
        let scene = Self {
            reached: shared.unwrap_or(inner),
            _site: site,
            first,
            second,
            _routers: routers,
            _space: space,
            ground,
        };
        scene.await_route("wan");
        // The idle connections to the spare are up after a round trip or two.
        std::thread::sleep(Duration::from_secs(1));
        scene
    }

    /// Waits until the server sends packets for the site by this interface.
    fn await_route(&self, interface: &str) {
        let site = self.reached;
        let end = Instant::now() + LIMIT;
        loop {
            let server = self.ground.topology.server();
            let arguments = ["route", "show", &site.to_string()];
            let route = server.ip_json(&arguments).unwrap();
            if route[0]["dev"] == interface {
                return;
            }
            assert!(Instant::now() < end, "no route by {interface}: {route}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Loses the first hub amid downloads and a call. The longest time without a packet of the call.
    fn lose(&mut self, lose: impl FnOnce(&mut Self)) -> Duration {
        let ends = self.ground.topology.endpoints();
        let bulk = Bulk::start(&ends, &BulkSpec::download(2, 2 * LIMIT)).unwrap();
        let call = ProbeSpec {
            direction: Direction::Download,
            interval: Duration::from_millis(20),
            size: 160,
        };
        let call = Probe::start(&ends, &call).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let from = call.elapsed();
        lose(self);
        std::thread::sleep(Duration::from_secs(3));
        let to = call.elapsed();
        let before = bulk.received();
        std::thread::sleep(Duration::from_secs(2));
        let after = bulk.received();
        let gap = call.finish().unwrap().longest_gap(from, to);
        let report = bulk.stop().unwrap();
        assert_eq!(report.broken(), 0, "{:?}", report.reasons());
        assert!(
            after - before > 1_000_000,
            "{} bytes in 2 s",
            after - before
        );
        self.await_route("tosecond");
        let served = self.second.status().unwrap().tunnels;
        assert!(served.iter().any(|tunnel| tunnel.up), "{served:?}");
        eprintln!("longest gap {} ms", gap.as_millis());
        gap
    }
}

/// Longest time without a packet of a call. The site notices a silence within 0.5 s, and moves in two round trips
/// of 20 ms; the rest is for a busy machine.
const GAP: Duration = Duration::from_millis(1_500);

#[test]
fn connections_go_on_when_their_hub_is_killed() {
    if !ready() {
        return;
    }
    let mut scene = Scene::new("hubdies");
    let gap = scene.lose(|scene| scene.first.kill());
    assert!(gap < GAP, "{gap:?}");
    // The first hub is the spare once it is back, and takes over when the second dies.
    scene.first.start().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    let bulk = Bulk::start(
        &scene.ground.topology.endpoints(),
        &BulkSpec::download(2, LIMIT),
    )
    .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    scene.second.kill();
    scene.await_route("wan");
    std::thread::sleep(Duration::from_secs(2));
    let before = bulk.received();
    std::thread::sleep(Duration::from_secs(2));
    let carried = bulk.received() - before;
    let report = bulk.stop().unwrap();
    assert_eq!(report.broken(), 0, "{:?}", report.reasons());
    assert!(carried > 1_000_000, "{carried} bytes in 2 s");
}

#[test]
fn connections_from_ports_of_a_shared_address_go_on_when_their_hub_is_killed() {
    if !ready() {
        return;
    }
    let shared = [203, 0, 113, 7].into();
    let mut scene = Scene::with("portsmove", Some(shared));
    let gap = scene.lose(|scene| scene.first.kill());
    assert!(gap < Duration::from_secs(1), "{gap:?}");
}

#[test]
fn connections_go_on_when_nothing_reaches_their_hub_any_more() {
    if !ready() {
        return;
    }
    let mut scene = Scene::new("hubcut");
    let gap = scene.lose(|scene| {
        let net = scene.ground.topology.hub();
        net.nft(
            "table inet cut {\n chain input {\n type filter hook input priority 0;\n \
             udp dport 4443 drop\n tcp dport 443 drop\n }\n}\n",
        )
        .unwrap();
    });
    assert!(gap < GAP, "{gap:?}");
    // The first hub has not heard of the move, and its route is still there: the newer one wins.
    let listed = scene.ground.topology.hub();
    let listed = listed.ip_json(&["route", "show", "table", "4443"]).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}
