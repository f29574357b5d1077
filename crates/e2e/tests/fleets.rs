//! A fleet of three hubs on three members of etcd: a site moves between hubs, is invited and revoked at any of them, and
//! goes on while etcd is away.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_api::FleetStatus;
use ropewalk_e2e::routers::{bird, of_hub, of_server};
use ropewalk_e2e::{Ground, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{HUB, HUB_LAN, SERVER};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{Namespace, Process, TopologySpec, veth};

const LIMIT: Duration = Duration::from_secs(20);
/// Members of etcd.
const MEMBERS: usize = 3;

/// Where a hub is reached by sites and by the server, and the server by the hub.
struct Place {
    name: &'static str,
    wan: String,
    lan: String,
    server: String,
    /// Interface of the server towards the hub.
    interface: String,
}

fn places() -> [Place; 3] {
    let beside = |name, number: u8| Place {
        name,
        wan: format!("192.0.2.{}", number * 4 + 2),
        lan: format!("10.9.{number}.2"),
        server: format!("10.9.{number}.1"),
        interface: format!("to{name}"),
    };
    let first = Place {
        name: "a",
        wan: HUB.to_string(),
        lan: HUB_LAN.to_string(),
        server: SERVER.to_string(),
        interface: "wan".to_owned(),
    };
    [first, beside("b", 2), beside("c", 3)]
}

/// A namespace for a hub between the network of the first and the server.
fn space(purpose: &str, place: &Place, net: &Namespace, server: &Namespace) -> Namespace {
    let space = Namespace::create(purpose, place.name).unwrap();
    let to = &place.interface;
    veth((net, to), (&space, "wan"), 1_500).unwrap();
    veth((server, to), (&space, "lan"), 1_500).unwrap();
    let last = place.wan.rsplit('.').next().unwrap();
    let gateway = format!("192.0.2.{}", last.parse::<u8>().unwrap() - 1);
    net.ip(&format!("addr add {gateway}/30 dev {to}")).unwrap();
    server
        .ip(&format!("addr add {}/30 dev {to}", place.server))
        .unwrap();
    let (wan, lan, server) = (&place.wan, &place.lan, &place.server);
    space
        .ip(&format!(
            "addr add {wan}/30 dev wan\naddr add {lan}/30 dev lan\nroute add default via {gateway}\n\
             route add {SERVER} via {server}"
        ))
        .unwrap();
    space
}

/// Members of etcd on the server.
struct Etcd {
    server: Namespace,
    directory: PathBuf,
    members: Vec<Process>,
}

fn url(member: usize) -> String {
    format!("http://{SERVER}:2{member}79")
}

impl Etcd {
    fn start(&mut self, state: &str) {
        let peer = |n: usize| format!("http://{SERVER}:2{n}80");
        let cluster: Vec<_> = (0..MEMBERS).map(|n| format!("m{n}={}", peer(n))).collect();
        self.members = (0..MEMBERS)
            .map(|n| {
                let program = self.server.program("etcd").args([
                    "--name",
                    &format!("m{n}"),
                    "--data-dir",
                    self.directory.join(format!("etcd{n}")).to_str().unwrap(),
                    "--listen-client-urls",
                    &url(n),
                    "--advertise-client-urls",
                    &url(n),
                    "--listen-peer-urls",
                    &peer(n),
                    "--initial-advertise-peer-urls",
                    &peer(n),
                    "--initial-cluster",
                    &cluster.join(","),
                    "--initial-cluster-state",
                    state,
                    // Elections within 0.5 s on a busy machine.
                    "--heartbeat-interval",
                    "50",
                    "--election-timeout",
                    "500",
                ]);
                program.start(&self.directory, &format!("etcd{n}")).unwrap()
            })
            .collect();
    }
}

/// Three hubs between a site and a server, which hears the routes of all by BGP.
struct Scene {
    // Fields are dropped in this order: what runs in namespaces first.
    hubs: Vec<Gateway>,
    _routers: Vec<Process>,
    etcd: Etcd,
    _spaces: Vec<Namespace>,
    ground: Ground,
}

impl Scene {
    fn new(purpose: &str) -> Self {
        let spec = TopologySpec {
            server_routes: false,
            ..TopologySpec::new(purpose, two_links())
        };
        let ground = Ground::new(&spec).unwrap();
        let (net, server) = (ground.topology.hub(), ground.topology.server());
        let directory = ground.topology.directory().to_owned();
        let places = places();
        let mut spaces = vec![net.clone()];
        spaces.extend(places[1..].iter().map(|p| space(purpose, p, net, server)));
        let peers = places
            .iter()
            .map(|place| (place.server.clone(), place.lan.clone()));
        let text = of_server(&peers.collect::<Vec<_>>());
        let mut routers = vec![bird(&directory, "bird-server", server, &text).unwrap()];
        for (place, space) in places.iter().zip(&spaces) {
            let name = format!("bird-{}", place.name);
            let text = of_hub(&place.lan, &place.server, "");
            routers.push(bird(&directory, &name, space, &text).unwrap());
        }
        let mut etcd = Etcd {
            server: server.clone(),
            directory: directory.clone(),
            members: Vec::new(),
        };
        etcd.start("new");
        let hub = |(place, space): (&Place, &Namespace)| {
            let spec = GatewaySpec {
                network: "masquerade = false\nroutes_table = 4443".into(),
                public: vec![format!("{}:4443", place.wan)],
                ..GatewaySpec::default()
            };
            Gateway::hub_named(space, &directory, place.name, &spec).unwrap()
        };
        let hubs = places.iter().zip(&spaces).map(hub).collect();
        let mut scene = Self {
            hubs,
            _routers: routers,
            etcd,
            _spaces: spaces,
            ground,
        };
        scene.init();
        scene
    }

    /// Makes the fleet at the first hub, and starts all.
    fn init(&mut self) {
        for hub in &self.hubs {
            hub.run(&["key", "generate"]).unwrap().success().unwrap();
        }
        let urls: Vec<_> = (0..MEMBERS).map(url).collect();
        let mut line = vec!["fleet", "init", "north"];
        line.extend(urls.iter().flat_map(|url| ["--endpoint", url.as_str()]));
        // Members of etcd that have just begun have no leader yet.
        let end = Instant::now() + LIMIT;
        let section = loop {
            match self.hubs[0].run(&line).unwrap().success() {
                Ok(section) => break section,
                Err(error) => assert!(Instant::now() < end, "{error:#}"),
            }
        };
        for hub in &mut self.hubs {
            let text = std::fs::read_to_string(hub.config()).unwrap() + &section;
            std::fs::write(hub.config(), text).unwrap();
            hub.start().unwrap();
        }
        for hub in 0..self.hubs.len() {
            self.await_fleet(hub, "three hubs run", |fleet| {
                fleet.hubs.iter().filter(|hub| hub.runs).count() == 3
            });
        }
    }

    fn fleet(&self, hub: usize) -> FleetStatus {
        let hub = &self.hubs[hub];
        let text = hub.run(&["fleet", "status", "--json"]).unwrap();
        serde_json::from_str(&text.success().unwrap()).unwrap()
    }

    fn await_fleet(&self, hub: usize, what: &str, holds: impl Fn(&FleetStatus) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let fleet = self.fleet(hub);
            if holds(&fleet) {
                return;
            }
            assert!(
                Instant::now() < end,
                "not within {LIMIT:?}: {what}: {fleet:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until this hub's copy of the fleet's state has a record on the disk. A slow disk needs seconds. A hub that
    /// dies before does not have the record when it starts without etcd.
    fn await_copy(&self, hub: usize, record: &str) {
        let file = self.hubs[hub].config().with_file_name("state/fleet.json");
        let end = Instant::now() + LIMIT;
        while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(record)) {
            let file = file.display();
            assert!(Instant::now() < end, "no {record} in {file}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the server sends packets for the site by the hub with this number.
    fn await_route(&self, site: &Gateway, hub: usize) {
        let interface = &places()[hub].interface;
        let address = site.status().unwrap().address(false).unwrap();
        let end = Instant::now() + LIMIT;
        loop {
            let server = self.ground.topology.server();
            let arguments = ["route", "show", &address.to_string()];
            let route = server.ip_json(&arguments).unwrap();
            if route[0]["dev"] == interface.as_str() {
                return;
            }
            assert!(Instant::now() < end, "no route by {interface}: {route}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the hub with this number has a tunnel to the site that works.
    fn serves(&self, hub: usize) -> bool {
        let tunnels = self.hubs[hub].status().unwrap().tunnels;
        tunnels
            .iter()
            .any(|tunnel| tunnel.peer == "site" && tunnel.up)
    }

    fn call(&self) -> Probe {
        self.call_to(Direction::Download)
    }

    fn call_to(&self, direction: Direction) -> Probe {
        let call = ProbeSpec {
            direction,
            interval: Duration::from_millis(20),
            size: 160,
        };
        Probe::start(&self.ground.topology.endpoints(), &call).unwrap()
    }
}

#[test]
fn a_site_of_a_hub_that_is_drained_moves_without_a_loss() {
    if !ready() || !has_etcd() {
        return;
    }
    let scene = Scene::new("drains");
    let token = scene.hubs[1].invite("site").unwrap();
    let within = scene.ground.topology.site();
    let directory = scene.ground.topology.directory();
    let spec = GatewaySpec::default();
    let mut site = Gateway::site(within, directory, "site", &token, &spec).unwrap();
    site.start().unwrap();
    site.wait_paths(2, LIMIT).unwrap();
    scene.await_route(&site, 1);
    std::thread::sleep(Duration::from_secs(1));
    let ends = scene.ground.topology.endpoints();
    let bulk = Bulk::start(&ends, &BulkSpec::download(2, 3 * LIMIT)).unwrap();
    let calls = [Direction::Download, Direction::Upload].map(|way| (way, scene.call_to(way)));
    std::thread::sleep(Duration::from_secs(2));
    let from = calls[0].1.elapsed();
    // Asked at a hub that has nothing to do with the site.
    let drain = ["fleet", "drain", "b", "--wait=30"];
    let begun = Instant::now();
    let drained = scene.hubs[2].run(&drain).unwrap().success();
    eprintln!(
        "drained within {} ms: {drained:?}",
        begun.elapsed().as_millis()
    );
    drained.unwrap();
    let to = calls[0].1.elapsed();
    let before = bulk.received();
    std::thread::sleep(Duration::from_secs(2));
    let carried = bulk.received() - before;
    assert!(scene.serves(0) && !scene.serves(1));
    scene.await_route(&site, 0);
    let report = bulk.stop().unwrap();
    assert_eq!(report.broken(), 0, "{:?}", report.reasons());
    assert!(carried > 1_000_000, "{carried} bytes in 2 s");
    for (way, call) in calls {
        let log = call.finish().unwrap();
        let (gap, pause) = (log.longest_gap(from, to), log.sender_gap);
        let usual = log.longest_gap(Duration::ZERO, from);
        let report = log.report();
        let lost = report.sent - report.received;
        eprintln!(
            "{way:?}: longest gap {} ms, before the drain {} ms, sender's {} ms; {lost} of {} lost, {} twice",
            gap.as_millis(),
            usual.as_millis(),
            pause.as_millis(),
            report.sent,
            report.duplicates
        );
        // A busy machine has such gaps without a drain.
        assert!(gap < GAP, "{way:?}: {gap:?}");
        assert_eq!((lost, report.duplicates), (0, 0), "{way:?}");
    }
    // The mark holds for later moves, and goes.
    let end = ["fleet", "drain", "b", "--end"];
    scene.hubs[0].run(&end).unwrap().success().unwrap();
    scene.await_fleet(2, "no hub is drained", |fleet| {
        fleet.hubs.iter().all(|hub| hub.drained_since.is_none())
    });
}

fn has_etcd() -> bool {
    let mut etcd = Command::new("etcd");
    let there = etcd.arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("skipped: there is no etcd (package etcd-server)");
    }
    there
}

/// Longest time without a packet of a call. The site notices a silence within 0.5 s, and moves in two round trips
/// of 20 ms; the rest is for a busy machine.
const GAP: Duration = Duration::from_millis(1_500);

#[test]
fn a_site_of_a_fleet_outlives_its_hub_and_etcd_and_is_revoked_at_any_hub() {
    if !ready() || !has_etcd() {
        return;
    }
    let mut scene = Scene::new("fleet");
    // Invited at the second hub, so that one is the home.
    let token = scene.hubs[1].invite("site").unwrap();
    let within = scene.ground.topology.site();
    let directory = scene.ground.topology.directory();
    let spec = GatewaySpec::default();
    let mut site = Gateway::site(within, directory, "site", &token, &spec).unwrap();
    site.start().unwrap();
    site.wait_paths(2, LIMIT).unwrap();
    scene.await_route(&site, 1);
    scene.await_copy(1, "site/site");
    // The idle connections to the spare are up after a round trip or two.
    std::thread::sleep(Duration::from_secs(1));
    hub_dies(&mut scene, &site);
    etcd_is_away(&mut scene, &site);
    hub_is_cut_off(&scene, &site);
    revoked(&scene, &site);
}

/// The home is killed amid downloads and a call.
fn hub_dies(scene: &mut Scene, site: &Gateway) {
    let ends = scene.ground.topology.endpoints();
    let bulk = Bulk::start(&ends, &BulkSpec::download(2, 2 * LIMIT)).unwrap();
    let call = scene.call();
    std::thread::sleep(Duration::from_secs(2));
    let from = call.elapsed();
    scene.hubs[1].kill();
    std::thread::sleep(Duration::from_secs(3));
    let to = call.elapsed();
    let before = bulk.received();
    std::thread::sleep(Duration::from_secs(1));
    let after = bulk.received();
    let gap = call.finish().unwrap().longest_gap(from, to);
    let report = bulk.stop().unwrap();
    assert_eq!(report.broken(), 0, "{:?}", report.reasons());
    assert!(after - before > 500_000, "{} bytes in 1 s", after - before);
    eprintln!("longest gap {} ms", gap.as_millis());
    assert!(gap < GAP, "{gap:?}");
    scene.await_route(site, 0);
    assert!(scene.serves(0));
    scene.await_fleet(2, "the first hub serves the site", |fleet| {
        let mut hubs = fleet.hubs.iter();
        hubs.any(|hub| hub.name == "a" && hub.sites == 1)
    });
}

/// Without etcd the site goes on, and an invitation waits in vain and says so.
fn etcd_is_away(scene: &mut Scene, site: &Gateway) {
    let call = scene.call();
    scene.etcd.members.clear();
    let from = call.elapsed();
    scene.await_fleet(0, "the hub misses etcd", |fleet| !fleet.etcd.is_there());
    let finished = scene.hubs[0].run(&["invite", "other"]).unwrap();
    let refused = format!("{:#}", finished.success().unwrap_err());
    for part in [
        "for the running hub etcd is away since 20",
        "etcd does not answer for",
        "nothing was changed",
        "Known sites go on",
    ] {
        assert!(refused.contains(part), "{refused}\nwithout {part}");
    }
    let shown = scene.hubs[0].run(&["fleet", "status"]).unwrap();
    let shown = shown.success().unwrap();
    assert!(
        shown.contains("etcd is away since") && shown.contains("s old;"),
        "{shown}"
    );
    let gap = call.elapsed();
    let gap = call.finish().unwrap().longest_gap(from, gap);
    assert!(gap < GAP, "{gap:?} without etcd");
    // A hub that starts without etcd serves the sites of its copy.
    scene.hubs[1].start().unwrap();
    let list = scene.hubs[1].run(&["invite", "--list"]).unwrap();
    let list = list.success().unwrap();
    assert!(list.contains("site"), "{list:?}");
    site.wait_paths(2, LIMIT).unwrap();
    scene.etcd.start("existing");
    for hub in 0..3 {
        scene.await_fleet(hub, "etcd is back", |fleet| fleet.etcd.is_there());
    }
}

/// No site reaches the first hub any more. The site moves to the third one, its other spare, since the second one was
/// silent. The first one hears of it by way of etcd alone.
fn hub_is_cut_off(scene: &Scene, site: &Gateway) {
    assert!(scene.serves(0));
    let net = scene.ground.topology.hub();
    net.nft(
        "table inet cut {\n chain input {\n type filter hook input priority 0;\n \
         udp dport 4443 drop\n tcp dport 443 drop\n }\n}\n",
    )
    .unwrap();
    scene.await_route(site, 2);
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let listed = net.ip_json(&["route", "show", "table", "4443"]).unwrap();
        if listed.as_array().is_some_and(Vec::is_empty) {
            break;
        }
        assert!(
            Instant::now() < end,
            "the hub that is cut off still announces {listed}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The second hub revokes the site, which the third one serves.
fn revoked(scene: &Scene, site: &Gateway) {
    assert!(scene.serves(2) && site.status().unwrap().paths_up() > 0);
    let begun = Instant::now();
    let revoke = scene.hubs[1].run(&["invite", "--revoke", "site"]).unwrap();
    revoke.success().unwrap();
    while scene.serves(2) {
        assert!(begun.elapsed() < Duration::from_secs(5), "still served");
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("revoked within {} ms", begun.elapsed().as_millis());
}
