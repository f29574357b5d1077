//! A swarm of sites on a real hub.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::time::Duration;

use ropewalk_e2e::{Ground, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::process::Finished;
use ropewalk_testbed::{TopologySpec, programs};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const SITES: &str = "60";

/// A hub that knows the sites of a swarm, and where the secret of these is.
fn hub(ground: &Ground) -> (Gateway, String) {
    let directory = ground.topology.directory();
    let mut hub = Gateway::hub(ground.topology.hub(), directory, &GatewaySpec::default()).unwrap();
    let secret = directory.join("swarm.key").display().to_string();
    let pool = "10.86.0.0/24";
    let arguments = [
        "sites", "--secret", &secret, "--count", SITES, "--pool", pool,
    ];
    let sites = swarm(ground, &arguments).success().unwrap();
    let state = hub.directory().join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("sites.toml"), sites).unwrap();
    hub.start().unwrap();
    (hub, secret)
}

fn swarm(ground: &Ground, arguments: &[&str]) -> Finished {
    let program = programs::own("ropewalk-swarm").unwrap();
    let program = ground.topology.hub().program(program);
    program.args(arguments).run(LIMIT).unwrap()
}

fn key_of(hub: &Gateway) -> String {
    hub.status().unwrap().public_key
}

#[test]
fn every_site_of_a_swarm_connects_and_its_pings_are_answered() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("swarm", two_links())).unwrap();
    let (hub, secret) = hub(&ground);
    let key = key_of(&hub);
    let pid = hub.process().unwrap().pid().to_string();
    let report = swarm(
        &ground,
        &[
            "run",
            "--secret",
            &secret,
            "--count",
            SITES,
            "--hub",
            "127.0.0.1:4443",
            "--hub-key",
            &key,
            "--join-over",
            "2",
            "--seconds",
            "4",
            "--pings",
            "5",
            "--bytes",
            "1500",
            "--hub-pid",
            &pid,
            "--json",
            "--quiet",
        ],
    );
    let report: Value = serde_json::from_str(&report.success().unwrap()).unwrap();
    assert_eq!(report["joined"], 60, "{report:#}");
    assert_eq!(report["paths_up"], 120, "{report:#}");
    assert_eq!(report["downs"], 0, "{report:#}");
    let number = |name: &str| report["pings"][name].as_f64().unwrap();
    // The last ones are still under way at the end.
    assert!(number("sent") > 60.0 * 4.0 * 4.0, "{report:#}");
    assert!(number("answered") > 0.95 * number("sent"), "{report:#}");
    assert!(
        report["hub"]["resident_mb"].as_f64().unwrap() > 1.0,
        "{report:#}"
    );
}

#[test]
fn a_host_that_misbehaves_harms_no_site_of_the_hub() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("swarm", two_links())).unwrap();
    let (hub, secret) = hub(&ground);
    let key = key_of(&hub);
    let pid = hub.process().unwrap().pid().to_string();
    // And how often, times in a second.
    for (behaviour, rate) in [
        ("mute", "200"),
        ("hellos", "1000"),
        ("connections", "100"),
        ("questions", "1000"),
        ("gaps", "2000"),
        ("combinations", "2000"),
        ("pieces", "2000"),
        // The hub of a test is not optimized.
        ("flood", "5000"),
    ] {
        let report = swarm(
            &ground,
            &[
                "run",
                "--secret",
                &secret,
                "--count",
                "20",
                "--hub",
                "127.0.0.1:4443",
                "--hub-key",
                &key,
                "--join-over",
                "0.5",
                "--seconds",
                "6",
                "--pings",
                "20",
                "--hostile",
                behaviour,
                "--hostile-rate",
                rate,
                "--hub-pid",
                &pid,
                "--json",
                "--quiet",
            ],
        );
        let report: Value = serde_json::from_str(&report.success().unwrap()).unwrap();
        assert_eq!(report["joined"], 20, "{report:#}");
        assert_eq!(report["downs"], 0, "{report:#}");
        let hostile = &report["hostile"];
        // Counted only once the hub has welcomed a host that pretends to be a site.
        assert!(hostile["times"].as_u64().unwrap() > 100, "{report:#}");
        assert!(
            hostile["late_join_ms"].as_f64().unwrap() < 2_000.0,
            "{report:#}"
        );
        let pings = &report["pings_hostile"];
        let (sent, answered) = (&pings["sent"], &pings["answered"]);
        let share = answered.as_f64().unwrap() / sent.as_f64().unwrap();
        assert!(share > 0.9, "{report:#}");
        let resident = report["hub"]["resident_mb"].as_f64().unwrap();
        assert!(resident < 300.0, "{report:#}");
    }
}

#[test]
fn a_swarm_without_a_hub_says_that_nobody_connected() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("swarm", two_links())).unwrap();
    let secret = ground.topology.directory().join("swarm.key");
    let secret = secret.display().to_string();
    let sites = ["sites", "--secret", &secret, "--count", "3"];
    swarm(&ground, &sites).success().unwrap();
    let key = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    let finished = swarm(
        &ground,
        &[
            "run",
            "--secret",
            &secret,
            "--count",
            "3",
            "--hub",
            "127.0.0.1:4443",
            "--hub-key",
            key,
            "--join-over",
            "0",
            "--seconds",
            "1",
        ],
    );
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert!(
        finished.stdout.contains("0 of 3 connected"),
        "{}",
        finished.stdout
    );
}

#[test]
fn a_swarm_says_why_it_cannot_begin() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("swarm", two_links())).unwrap();
    let directory = ground.topology.directory();
    let missing = directory.join("none.key").display().to_string();
    let key = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    let run = |secret: &str| {
        let hub = ["--hub", "127.0.0.1:4443", "--hub-key", key];
        swarm(
            &ground,
            &[["run", "--secret", secret].as_slice(), &hub].concat(),
        )
    };
    let finished = run(&missing);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("none.key"), "{}", finished.stderr);
    let readable = directory.join("readable.key");
    std::fs::write(&readable, key).unwrap();
    let finished = run(readable.to_str().unwrap());
    assert!(finished.stderr.contains("chmod 600"), "{}", finished.stderr);
    let secret = directory.join("swarm.key").display().to_string();
    let few = [
        "sites",
        "--secret",
        &secret,
        "--count",
        "300",
        "--pool",
        "10.0.0.0/24",
    ];
    let finished = swarm(&ground, &few);
    assert!(
        finished.stderr.contains("too few addresses"),
        "{}",
        finished.stderr
    );
    assert!(Path::new(&secret).exists());
}

#[test]
fn sites_that_push_roam_and_vanish_all_come_back() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("swarm", two_links())).unwrap();
    let (hub, secret) = hub(&ground);
    let key = key_of(&hub);
    let report = swarm(
        &ground,
        &[
            "run",
            "--secret",
            &secret,
            "--count",
            "8",
            "--hub",
            "127.0.0.1:4443",
            "--hub-key",
            &key,
            "--join-over",
            "0.5",
            "--seconds",
            "14",
            "--pings",
            "20",
            "--traffic",
            "bulk",
            "--rate",
            "2",
            "--roam",
            "4",
            "--vanish",
            "10",
            "--json",
            "--quiet",
        ],
    );
    let report: Value = serde_json::from_str(&report.success().unwrap()).unwrap();
    assert_eq!(report["joined"], 8, "{report:#}");
    assert_eq!(report["paths_up"], 16, "{report:#}");
    let goodput = &report["goodput"];
    // 16 Mbit/s if nobody was ever away.
    assert!(goodput["mbit"].as_f64().unwrap() > 4.0, "{report:#}");
    assert!(
        goodput["site_least_mbit"].as_f64().unwrap() > 0.0,
        "{report:#}"
    );
    let vanish = &report["vanish"];
    assert!(vanish["vanished"].as_u64().unwrap() > 0, "{report:#}");
    assert_eq!(vanish["vanished"], vanish["back"], "{report:#}");
    let moves = report["roam"].as_array().unwrap();
    let sum = |name: &str| -> u64 { moves.iter().map(|one| one[name].as_u64().unwrap()).sum() };
    assert!(sum("moves") > 5, "{report:#}");
    // Those that a site made just before it vanished are not answered.
    assert!(2 * sum("answered") > sum("moves"), "{report:#}");
    assert_eq!(report["not_moved"], 0, "{report:#}");
}
