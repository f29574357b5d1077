//! A hub with several workers: each serves a part of the sites, with sockets and a queue of its own.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_e2e::{Ground, Lab, ready, two_links, whole};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, Namespace, TopologySpec, veth};

const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);

/// So many that a site is seldom at the first one, which accepts for all.
const WORKERS: usize = 16;

fn lab(purpose: &str) -> Lab {
    let ground = Ground::new(&TopologySpec::new(purpose, two_links())).unwrap();
    let hub = GatewaySpec {
        root: format!("workers = {WORKERS}\n"),
        ..GatewaySpec::default()
    };
    ground.connect(&hub, &GatewaySpec::default()).unwrap()
}

fn all_over(transport: &'static str) -> impl Fn(&Status) -> bool {
    move |status| status.paths_up() == 2 && status.paths().all(|path| path.transport == transport)
}

/// The worker that has the paths of the only site.
fn at_worker(hub: &Gateway) -> usize {
    let workers = hub.status().unwrap().workers;
    assert_eq!(workers.len(), WORKERS);
    let mut busy = workers.iter().filter(|worker| worker.paths_up > 0);
    let one = busy.next().unwrap();
    assert_eq!((one.paths_up, one.sites), (2, 1), "{workers:?}");
    assert!(busy.next().is_none(), "{workers:?}");
    one.worker
}

#[test]
fn every_path_of_a_site_is_at_one_worker_over_quic_and_tls_and_after_a_restart() {
    if !ready() {
        return;
    }
    let mut lab = lab("workers");
    lab.site
        .wait_for("QUIC on both paths", PATIENCE, all_over("quic"))
        .unwrap();
    let worker = at_worker(&lab.hub);
    for direction in [Direction::Download, Direction::Upload] {
        lab.transfer(direction, 4, 2_000_000, LIMIT).unwrap();
    }
    let amount = Amount::Bytes {
        bytes: 8_000_000,
        limit: LIMIT,
    };
    let spec = BulkSpec {
        amount,
        ..BulkSpec::download(3, LIMIT)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    lab.topology.block_udp(true).unwrap();
    lab.site
        .wait_for("TLS on both paths", PATIENCE, all_over("tls"))
        .unwrap();
    whole(bulk.finish().unwrap()).unwrap();
    assert_eq!(at_worker(&lab.hub), worker);
    lab.topology.block_udp(false).unwrap();
    lab.site
        .wait_for("QUIC on both paths again", 2 * LIMIT, all_over("quic"))
        .unwrap();
    // Killed, it leaves no socket that serves nobody.
    lab.hub.kill();
    lab.hub.start().unwrap();
    lab.hub.wait_paths(2, PATIENCE).unwrap();
    assert_eq!(at_worker(&lab.hub), worker);
    lab.transfer(Direction::Download, 4, 2_000_000, LIMIT)
        .unwrap();
    lab.transfer(Direction::Upload, 4, 2_000_000, LIMIT)
        .unwrap();
}

#[test]
fn packets_of_new_flows_find_the_worker_of_their_site() {
    if !ready() {
        return;
    }
    let lab = lab("newflows");
    lab.site.wait_paths(2, PATIENCE).unwrap();
    // The first packet of a flow towards the site comes in at any of the queues.
    for v6 in [false, true] {
        let site = lab.site.status().unwrap().address(v6).unwrap();
        let spec = PingSpec {
            count: 3,
            ..PingSpec::new(site)
        };
        let report = ping::run(lab.topology.hub(), &spec).unwrap();
        assert_eq!(report.received, 3);
        let flows = format!("for port in {{2001..2040}}; do echo > /dev/udp/{site}/$port; done");
        let hub = lab.topology.hub().program("bash");
        hub.args(["-c", &flows]).success(PATIENCE).unwrap();
    }
    let status = lab.hub.status().unwrap();
    let sum = |value: fn(&ropewalk_api::WorkerStatus) -> u64| -> u64 {
        status.workers.iter().map(value).sum()
    };
    let (handed, lost) = (sum(|w| w.handed_over), sum(|w| w.handover_drops));
    // 80 flows, of which one in 16 is right at once.
    assert!(handed > 40 && lost == 0, "{:?}", status.workers);
}

/// The fault is in programs with debug assertions only.
#[test]
fn a_hub_that_panics_in_the_work_for_one_site_goes_on_serving_another_at_the_same_worker() {
    if !ready() {
        return;
    }
    if !cfg!(debug_assertions) {
        eprintln!("skipped: release builds have no fault to plant");
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("panics", links)).unwrap();
    let topology = &ground.topology;
    let directory = topology.directory();
    let second = Namespace::create("second", "site").unwrap();
    veth((&second, "up0"), (topology.hub(), "isp9"), 1_500).unwrap();
    let there = "addr add 192.168.99.2/24 dev up0\nroute add default via 192.168.99.1 dev up0\n";
    second.ip(there).unwrap();
    let here = "addr add 192.168.99.1/24 dev isp9\n";
    topology.hub().ip(here).unwrap();
    let spec = GatewaySpec::default();
    let hub = GatewaySpec {
        root: "workers = 1\n".to_owned(),
        ..spec.clone()
    };
    let hub = Gateway::hub(topology.hub(), directory, &hub).unwrap();
    let program = hub.program(&["hub"]).unwrap();
    let program = program.env("ROPEWALK_TEST_FAULT", "ill");
    let process = program.start(directory, "hub").unwrap();
    while hub.status().is_err() {
        assert!(!process.has_ended(), "{}", process.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let site = |namespace: &Namespace, name: &str| {
        let token = hub.invite(name).unwrap();
        let mut site = Gateway::site(namespace, directory, name, &token, &spec).unwrap();
        site.start().unwrap();
        site.wait_paths(1, PATIENCE).unwrap();
        site
    };
    let (_ill, _well) = (site(topology.site(), "ill"), site(&second, "well"));
    // Each packet of the one site is a panic, while packets of the other go on.
    let to_server = PingSpec {
        interval: Duration::from_millis(20),
        count: 250,
        ..PingSpec::new(SERVER.into())
    };
    let reports = std::thread::scope(|scope| {
        let runs = [topology.site(), &second]
            .map(|from| scope.spawn(|| ping::run(from, &to_server).unwrap()));
        runs.map(|run| run.join().unwrap())
    });
    let panics = hub.status().unwrap().drops["internal_errors"];
    println!(
        "{panics} panics; of 250 pings {} of the one site and {} of the other were answered",
        reports[0].received, reports[1].received
    );
    let log = process.log();
    assert!(
        log.contains("a fault that was planted") && log.contains("site=\"ill\""),
        "{log}"
    );
    assert!(panics > 0 && !process.has_ended());
    assert_eq!((reports[0].received, reports[1].received), (0, 250));
}
