//! The alert rules and the Grafana dashboard of `packaging/monitoring`, read by a real Prometheus that
//! asks real gateways.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ropewalk_e2e::{Ground, ready, two_links};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::process::Process;
use ropewalk_testbed::{Namespace, TopologySpec, programs};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);
const METRICS: &str = "127.0.0.1:9490";
const PROMETHEUS: &str = "127.0.0.1:9090";

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring")
}

fn has(program: &str) -> bool {
    let there = programs::in_path(program).is_some();
    if !there {
        eprintln!("skipped: {program} is missing; `scripts/packages browser` installs it");
    }
    there
}

/// Every expression of the dashboard, as Grafana asks with everything chosen.
fn dashboard() -> Vec<String> {
    let text = fs::read_to_string(files().join("grafana.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let asked = targets.flatten().map(|target| {
        let asked = target["expr"].as_str().unwrap();
        asked
            .replace("$__rate_interval", "5s")
            .replace("$instance", ".*")
            .replace("$peer", ".*")
    });
    asked.collect()
}

/// Names of our metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("ropewalk_"));
    ours.map(str::to_owned).collect()
}

fn get(namespace: &Namespace, url: &str, query: &[(&str, &str)]) -> String {
    let mut program = namespace
        .program("curl")
        .args(["-sS", "-m", "5", "-G", url]);
    for (key, value) in query {
        program = program.args(["--data-urlencode", &format!("{key}={value}")]);
    }
    program.success(PATIENCE).unwrap_or_default()
}

/// Prometheus beside a gateway, with our rules.
fn watch(namespace: &Namespace, directory: &Path) -> Process {
    fs::create_dir_all(directory).unwrap();
    let config = directory.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [\"{}\"]\n\
         scrape_configs: [{{job_name: ropewalk, static_configs: [{{targets: [\"{METRICS}\"]}}]}}]\n",
        files().join("ropewalk.rules.yml").display()
    );
    fs::write(&config, text).unwrap();
    let program = namespace.program("prometheus").args([
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", directory.join("data").display()),
        format!("--web.listen-address={PROMETHEUS}"),
    ]);
    program.start(directory, "prometheus").unwrap()
}

fn ask(namespace: &Namespace, query: &str) -> Value {
    let url = format!("http://{PROMETHEUS}/api/v1/query");
    let answer = get(namespace, &url, &[("query", query)]);
    serde_json::from_str(&answer).unwrap_or_default()
}

#[test]
fn promtool_agrees_with_every_rule() {
    if !has("promtool") {
        return;
    }
    for arguments in [
        ["check", "rules", "ropewalk.rules.yml"],
        ["test", "rules", "ropewalk.rules.test.yml"],
    ] {
        let done = std::process::Command::new("promtool")
            .args(arguments)
            .current_dir(files())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{arguments:?}: {said}");
        assert!(said.contains("SUCCESS"), "{said}");
    }
}

#[test]
fn prometheus_answers_what_dashboard_and_alerts_ask() {
    if !ready() || !has("prometheus") {
        return;
    }
    let api = format!("listen = \"{METRICS}\"\n");
    let hub = GatewaySpec {
        root: "workers = 2\n".to_owned(),
        more: api.clone(),
        ..GatewaySpec::default()
    };
    let site = GatewaySpec {
        more: format!(
            "{api}[[class]]\nname = \"mail\"\nports = [\"25\"]\nvia = \"auto\"\nprotect = \"adaptive\"\n\
             [direct]\naffinity_minutes = 0\n"
        ),
        ..GatewaySpec::default()
    };
    let ground = Ground::new(&TopologySpec::new("monitoring", two_links())).unwrap();
    let lab = ground.connect(&hub, &site).unwrap();
    let mut served = BTreeSet::new();
    for (namespace, gateway) in [
        (lab.topology.site(), &lab.site),
        (lab.topology.hub(), &lab.hub),
    ] {
        let mut prometheus = watch(namespace, &gateway.directory().join("prometheus"));
        let begin = Instant::now();
        let scraped = "count_over_time(up{job=\"ropewalk\"}[1m]) > 3 and up == 1";
        while ask(namespace, scraped)["data"]["result"][0].is_null() {
            assert!(begin.elapsed() < PATIENCE, "{}", prometheus.log_tail());
            std::thread::sleep(Duration::from_millis(300));
        }
        for query in dashboard() {
            let answer = ask(namespace, &query);
            assert_eq!(answer["status"], "success", "{query}: {answer}");
        }
        let rules = get(namespace, &format!("http://{PROMETHEUS}/api/v1/rules"), &[]);
        let rules: Value = serde_json::from_str(&rules).unwrap();
        let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
        assert!(rules.len() > 10, "{rules:?}");
        for rule in rules {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
        served.extend(names(&get(
            namespace,
            &format!("http://{METRICS}/metrics"),
            &[],
        )));
        prometheus.stop();
    }
    let rules = fs::read_to_string(files().join("ropewalk.rules.yml")).unwrap();
    let mut asked = names(&rules);
    asked.extend(names(&dashboard().join("\n")));
    let unknown: Vec<_> = asked.difference(&served).collect();
    assert!(unknown.is_empty(), "no gateway has {unknown:?}");
}
