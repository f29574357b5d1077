//! `ropewalk-testbed run` with short plans, and what a run leaves behind when it is ended early.
//!
//! Needs root and the programs built in the same profile (`make test` builds them first).
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_plan::{PathReport, Report};
use ropewalk_testbed::programs;
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-testbed");

const PATHS: &str = r#"
duration = "4s"
warmup = "1500ms"
[[path]]
name = "a"
both = { rate = "16Mbit", delay = "10ms", queue = "64KiB" }
[[path]]
name = "b"
both = { rate = "8Mbit", delay = "15ms", queue = "64KiB" }
"#;
const TUNNEL: &str = "[carrier]\nkind = \"tunnel\"\n";
const TCP: &str = "[[traffic]]\nkind = \"tcp\"\n";
const QUIC: &str = "[[traffic]]\nkind = \"quic\"\n";
const PING: &str = "[[traffic]]\nkind = \"ping\"\n";

/// A plan file that is removed with its directory.
struct PlanFile {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl PlanFile {
    fn new(sections: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.toml");
        let text = format!("name = \"short\"\n{PATHS}{}", sections.concat());
        std::fs::write(&path, text).unwrap();
        Self {
            _directory: directory,
            path,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("run").arg(&self.path).arg("--json");
        command
    }

    fn start(&self) -> Child {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

/// Says why not when the programs are not built or this is not root.
fn ready() -> bool {
    let built = [
        "ropewalk",
        "ropewalk-linkem",
        "ropewalk-bulk",
        "ropewalk-tcpnc",
    ];
    let error = match built.iter().find_map(|name| programs::own(name).err()) {
        Some(error) => Some(error),
        None => programs::require(&[programs::IP, programs::IPERF3, programs::CURL]).err(),
    };
    if let Some(error) = &error {
        eprintln!("skipped: {error}");
    }
    error.is_none()
}

fn report(run: Child) -> Report {
    let output = run.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first traffic got this share of the ceiling or more, and never more than there is.
fn reaches(report: &Report, share: f64) {
    let bulk = &report.traffic[0];
    let reached = bulk.goodput_mbit / report.ceiling_mbit;
    // What waits in the receiver's reordering at the start of counting may come on top.
    assert!((share..1.1).contains(&reached), "{reached}: {report:?}");
    assert_eq!(bulk.series_mbit.len(), 4);
    assert_eq!(bulk.flows.len(), 1);
    assert!(!bulk.flows[0].broken, "{report:?}");
    assert!(bulk.longest_stall_seconds.unwrap() < 2.5, "{report:?}");
}

/// Names of namespaces and directories that a process made.
fn things_of(pid: u32) -> Vec<String> {
    let mark = format!("-{pid}-");
    let mut names = Vec::new();
    for directory in [Path::new("/run/netns"), &std::env::temp_dir()] {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("rw-") && name.contains(&mark) {
                names.push(name);
            }
        }
    }
    names
}

/// Processes that a process has started.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        let words = list.split_whitespace().map(str::to_owned);
        words.collect::<Vec<_>>()
    });
    numbers.filter_map(|word| word.parse().ok()).collect()
}

fn is_alive(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Waits until a run has sent for a while; its programs.
fn under_traffic(run: &Child) -> Vec<u32> {
    let end = Instant::now() + Duration::from_secs(20);
    while !children_of(run.id()).iter().any(|&pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"ping\0")
    }) {
        assert!(Instant::now() < end, "no traffic");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        things_of(run.id()).len() >= 4,
        "three namespaces and a directory"
    );
    children_of(run.id())
}

#[test]
fn two_runs_at_once_direct_and_through_the_tunnel() {
    if !ready() {
        return;
    }
    let direct = PlanFile::new(&[TCP]);
    let tunnel = PlanFile::new(&[TUNNEL, TCP, PING]);
    let runs = [direct.start(), tunnel.start()];
    let pids = runs.each_ref().map(Child::id);
    let [direct, tunnel] = runs.map(report);
    reaches(&direct, 0.85);
    assert_eq!(direct.paths[1].bytes, 0);
    assert!((direct.ceiling_mbit - 16.0 * 1_448.0 / 1_500.0).abs() < 0.01);
    reaches(&tunnel, 0.3);
    let ping = &tunnel.traffic[1];
    assert_eq!(ping.sent, Some(25));
    assert!(ping.delay_ms.unwrap().min >= 20.0, "{ping:?}");
    let counters = tunnel.tunnel.unwrap();
    assert!(counters.delivered > 1_000, "{counters:?}");
    assert!(!counters.reason.is_empty());
    for pid in pids {
        assert_eq!(things_of(pid), Vec::<String>::new());
    }
}

#[test]
fn tunnels_and_links_in_a_row_carry_hosts_at_every_gateway() {
    if !ready() {
        return;
    }
    let hosts = "[[traffic]]\nkind = \"tcp\"\ndirection = \"up\"\nsegment = 1000\n\
                 access = { rate = \"4Mbit\", delay = \"2ms\" }\n\
                 [[traffic]]\nkind = \"tcp\"\nenter = 2\ncongestion = \"new-reno\"\n";
    let relay = "[carrier]\nkind = \"relay\"\nhops = [[\"a\"], [\"b\"]]\n\
                 tunnel.protect_up = \"none\"\n";
    let chain = "[carrier]\nkind = \"chain\"\nhops = [\"a\", \"b\"]\n";
    let runs = [relay, chain].map(|carrier| PlanFile::new(&[carrier, hosts, PING]));
    let runs = runs.each_ref().map(PlanFile::start);
    let pids = runs.each_ref().map(Child::id);
    let reports = runs.map(report);
    for report in &reports {
        let each: Vec<f64> = report.traffic.iter().map(|t| t.goodput_mbit).collect();
        // The first host's link of 4 Mbit/s is its limit, the other's is the second hop of 8; the
        // first hop has 16. A link that stood still for a moment catches up: some percent more.
        assert!((2.0..5.0).contains(&each[0]), "{report:?}");
        assert!((3.0..10.0).contains(&each[1]), "{report:?}");
        let ping = report.traffic[2].delay_ms.unwrap();
        assert!(ping.min >= 50.0, "both hops both ways: {ping:?}");
        assert!(
            report.paths.iter().all(|path| path.bytes > 500_000),
            "{report:?}"
        );
    }
    let [relay, chain] = reports;
    // The second hop of 8 Mbit/s decides, in either direction; one host goes up, the other down.
    let each_way = 8.0 * 1_448.0 / 1_500.0;
    assert!((chain.ceiling_mbit - 2.0 * each_way).abs() < 0.01);
    for section in &chain.traffic[..2] {
        assert!((section.ceiling_mbit.unwrap() - each_way).abs() < 0.01);
    }
    assert!(chain.tunnel.is_none());
    let tunnel = relay.tunnel.unwrap();
    assert!(tunnel.reason.contains("hop 2"), "{tunnel:?}");
    for pid in pids {
        assert_eq!(things_of(pid), Vec::<String>::new());
    }
}

#[test]
fn tcp_nc_carries_hosts_at_every_gateway_over_a_link_that_loses() {
    if !ready() {
        return;
    }
    let hosts = "[[traffic]]\nkind = \"tcp\"\ndirection = \"up\"\nsegment = 1000\n\
                 congestion = \"new-reno\"\nplain = true\n\
                 access = { rate = \"4Mbit\", delay = \"2ms\" }\n\
                 [[traffic]]\nkind = \"tcp\"\nenter = 2\ncongestion = \"new-reno\"\n\
                 direction = \"up\"\nsegment = 1000\n";
    // Fixed, so that the first second has redundancy already: without it TCP/NC starts slowly.
    let carrier = "[carrier]\nkind = \"tcp-nc\"\nhops = [\"a\", \"b\"]\nn = 10\nk = 4\n";
    let plan = PlanFile::new(&["up.loss = 0.02\n", carrier, hosts, PING]);
    let run = plan.start();
    let pid = run.id();
    let report = report(run);
    // The second host has the shorter way over the hop that both share, and takes most of it.
    let each: Vec<f64> = report.traffic.iter().map(|t| t.goodput_mbit).collect();
    assert!(each[0] > 0.1 && each[1] > 1.0, "{report:?}");
    assert!(each[0] + each[1] < 8.0, "{report:?}");
    let ping = report.traffic[2].delay_ms.unwrap();
    assert!(ping.min >= 50.0, "both hops both ways: {ping:?}");
    assert!(report.paths[1].lost > 0, "{report:?}");
    assert_eq!(things_of(pid), Vec::<String>::new());
}

#[test]
fn quic_runs_through_the_tunnel_and_another_seed_is_reported() {
    if !ready() {
        return;
    }
    let plan = PlanFile::new(&[TUNNEL, QUIC]);
    let mut command = plan.command();
    command.args(["--seed", "7"]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let report = report(run.spawn().unwrap());
    assert_eq!((report.seed, report.runner.as_str()), (7, "kernel"));
    reaches(&report, 0.2);
}

#[test]
fn a_call_costs_less_of_the_paths_with_compressed_headers() {
    if !ready() {
        return;
    }
    // 60 bytes of IP each. A download's bytes would say less: how much of them waits in queues when
    // counting begins and ends differs by more than compression saves.
    let call = "[[traffic]]\nkind = \"call\"\nbytes = 32\ninterval = \"5ms\"\n";
    let [plain, compressed] = [false, true].map(|compress| {
        let setting = format!("compress_headers = {compress}\n");
        let found = report(PlanFile::new(&[TUNNEL, &setting, call]).start());
        let bytes: u64 = found.paths.iter().map(|path| path.bytes).sum();
        // The paths' bytes are those towards the site, the call's packets those of both ways.
        bytes as f64 / (found.traffic[0].sent.unwrap() as f64 / 2.0)
    });
    // Of the 28 bytes of IPv4 and UDP headers about six are left.
    assert!(
        compressed < plain - 15.0,
        "bytes on the paths for a packet: {plain}, compressed {compressed}"
    );
}

#[test]
fn pages_load_through_the_tunnel() {
    if !ready() {
        return;
    }
    let web = "[[traffic]]\nkind = \"web\"\nusers = 2\nobjects = 8\npause = \"50ms\"\n";
    let report = report(PlanFile::new(&[TUNNEL, web]).start());
    let pages = report.traffic[0].delay_ms.unwrap();
    assert!(pages.count >= 4, "{report:?}");
    // A round trip to connect, one for the document: 20 ms each.
    assert!(pages.min > 40.0 && pages.max < 2_500.0, "{pages:?}");
    assert!(
        !report.notes.iter().any(|note| note.contains("failed")),
        "{report:?}"
    );
}

#[test]
fn a_signal_ends_a_run_without_a_trace() {
    if !ready() {
        return;
    }
    let plan = PlanFile::new(&[TUNNEL, TCP, PING]);
    let mut run = plan.start();
    let programs = under_traffic(&run);
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(things_of(run.id()), Vec::<String>::new());
    assert!(!programs.iter().any(|&pid| is_alive(pid)), "{programs:?}");
}

#[test]
fn clean_removes_what_a_killed_run_left_and_nothing_else() {
    if !ready() {
        return;
    }
    let plan = PlanFile::new(&[TUNNEL, TCP, PING]);
    let mut killed = plan.start();
    let programs = under_traffic(&killed);
    let other = plan.start();
    under_traffic(&other);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!things_of(killed.id()).is_empty());
    let clean = Command::new(PROGRAM).arg("clean").status().unwrap();
    assert!(clean.success());
    assert_eq!(things_of(killed.id()), Vec::<String>::new());
    assert!(!programs.iter().any(|&pid| is_alive(pid)), "{programs:?}");
    reaches(&report(other), 0.3);
}

#[test]
fn bad_plans_have_their_own_exit_code() {
    if !ready() {
        return;
    }
    let code = |sections: &[&str]| {
        let output = PlanFile::new(sections).command().output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    let (exit, errors) = code(&["[carrier]\nkind = \"path\"\npath = \"c\"\n"]);
    assert_eq!(exit, Some(2), "{errors}");
    assert!(errors.contains("`c`"), "{errors}");
    let (exit, errors) = code(&["[carrier]\nkind = \"peer\"\npeer = \"pigeon\"\n"]);
    assert_eq!(exit, Some(2), "{errors}");
    assert!(errors.contains("carrier.peer: "), "{errors}");
    assert!(errors.contains("openvpn-udp"), "{errors}");
    for (carrier, key) in [
        (
            "kind = \"tunnel\"\nscheduler = \"best-ever\"\n",
            "scheduler",
        ),
        ("kind = \"balance\"\nmode = \"best-ever\"\n", "mode"),
    ] {
        let (exit, errors) = code(&["[carrier]\n", carrier]);
        assert_eq!(exit, Some(2), "{errors}");
        assert!(
            errors.contains(&format!(".toml: carrier.{key}: ")),
            "{errors}"
        );
    }
    let trace = "[[path]]\nname = \"c\"\nboth.trace = \"nowhere.csv\"\n";
    let (exit, errors) = code(&[trace]);
    assert_eq!(exit, Some(2), "{errors}");
    assert!(errors.contains("nowhere.csv"), "{errors}");
    assert!(errors.contains(".toml: path `c`: "), "{errors}");
    let chain = "[carrier]\nkind = \"chain\"\nhops = [\"a\"]\n";
    let (exit, errors) = code(&[chain, TCP, "access.loss_burst = 4\n"]);
    assert_eq!(exit, Some(2), "{errors}");
    assert!(errors.contains("traffic[0].access.loss_burst"), "{errors}");
}

/// A plan that was set up, and what it answers.
struct SetUp {
    process: Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl SetUp {
    fn start(plan: &PlanFile) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("set-up").arg(&plan.path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let answers = std::io::BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, answers }
    }

    fn ask(&mut self, command: &str) -> serde_json::Value {
        let input = self.process.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.answers.next().unwrap().unwrap()).unwrap()
    }
}

/// How many of `count` connections from the site to addresses of the server came from each address.
fn sources(ready: &serde_json::Value, count: usize) -> BTreeMap<String, usize> {
    let name = |key: &str| ready[key].as_str().unwrap().to_owned();
    let script = "import socket, sys\n\
        listener = socket.create_server(('', 7001), backlog=64)\n\
        print('listening', flush=True)\n\
        for _ in range(int(sys.argv[1])): print(listener.accept()[1][0], flush=True)\n";
    let mut server = Command::new("ip")
        .args(["netns", "exec", &name("server"), "python3", "-c", script])
        .arg(count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    let client = "import socket, sys\n\
        for i in range(int(sys.argv[1])): \
        socket.create_connection((f'198.18.{i}.10', 7001), 10).close()\n";
    let done = Command::new("ip")
        .args(["netns", "exec", &name("site"), "python3", "-c", client])
        .arg(count.to_string())
        .status()
        .unwrap();
    assert!(done.success());
    let mut found = BTreeMap::new();
    for line in lines.take(count) {
        *found.entry(line.unwrap()).or_default() += 1;
    }
    server.wait().unwrap();
    found
}

#[test]
fn a_plan_is_set_up_for_the_traffic_of_others_over_both_paths_and_taken_down_with_its_input() {
    if !ready() {
        return;
    }
    let carriers = [
        "[carrier]\nkind = \"round-robin\"\n",
        "[carrier]\nkind = \"balance\"\naffinity_minutes = 0\n",
    ];
    for carrier in carriers {
        let file = PlanFile::new(&[carrier]);
        let mut plan = SetUp::start(&file);
        let ready = plan.answer();
        assert_eq!(ready["network"], "198.18.0.0/15");
        assert_eq!(plan.ask("begin"), serde_json::json!({}));
        let found = sources(&ready, 12);
        assert_eq!(
            found.values().copied().collect::<Vec<_>>(),
            [6, 6],
            "{carrier}: {found:?}"
        );
        let paths: Vec<PathReport> = serde_json::from_value(plan.ask("counters")).unwrap();
        assert_eq!(paths[1].name, "b");
        assert!(paths.iter().all(|path| path.bytes > 300), "{paths:?}");
        drop(plan.process.stdin.take());
        assert!(plan.process.wait().unwrap().success());
        assert_eq!(things_of(plan.process.id()), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_set_up_says_so() {
    if !ready() {
        return;
    }
    let chain = "[carrier]\nkind = \"chain\"\nhops = [\"a\"]\n";
    for (section, key) in [(TCP, "traffic"), (chain, "carrier.kind")] {
        let plan = PlanFile::new(&[section]);
        let mut command = Command::new(PROGRAM);
        let output = command.arg("set-up").arg(&plan.path).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(key), "{errors}");
    }
}
