//! The process with the rights, when what it runs hangs, and when it ends.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ropewalk_e2e::leaks::{LeakLab, Leaks};
use ropewalk_e2e::{Ground, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::process::{Process, Program};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::ping::{Ping, PingSpec};
use ropewalk_testbed::{Namespace, TopologySpec};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);
/// Twice the longest time of a program of the helper.
const LATE: Duration = Duration::from_secs(10);
/// What a service manager of a test grants.
const GRANTED: Duration = Duration::from_secs(2);

/// `/etc` with another file of name servers, and stand-ins for programs.
struct Stage {
    etc: PathBuf,
    bin: PathBuf,
}

impl Stage {
    /// The file of name servers leads to `target`.
    fn new(directory: &Path, target: &str) -> Self {
        let (etc, bin) = (directory.join("etc"), directory.join("bin"));
        let copy = Program::new("cp").args(["-a", "/etc"]).arg(&etc);
        copy.success(PATIENCE).unwrap();
        let _ = fs::remove_file(etc.join("resolv.conf"));
        std::os::unix::fs::symlink(target, etc.join("resolv.conf")).unwrap();
        fs::create_dir(&bin).unwrap();
        Self { etc, bin }
    }

    fn stand_in(&self, name: &str, script: &str) {
        let file = self.bin.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Starts a gateway on this stage, and waits until it answers.
    fn start(&self, gateway: &Gateway, verb: &str, environment: &[(&str, String)]) -> Process {
        let script = format!(
            "mount --bind {} /etc && exec env PATH={}:$PATH {} {verb} --config {}",
            self.etc.display(),
            self.bin.display(),
            ropewalk_testbed::programs::own("ropewalk")
                .unwrap()
                .display(),
            gateway.config().display()
        );
        let program = gateway.namespace().program("unshare");
        let mut program = program.args(["-m", "sh", "-c", &script]);
        for (name, value) in environment {
            program = program.env(*name, value);
        }
        let process = program.start(gateway.directory(), "staged").unwrap();
        let end = Instant::now() + PATIENCE;
        while gateway.status().is_err() {
            assert!(
                !process.has_ended() && Instant::now() < end,
                "{}",
                process.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }
}

/// A hub that runs, and a site that has joined it, with these lines of its section `[network]`.
fn pair(ground: &Ground, network: &str) -> (Gateway, Gateway) {
    let topology = &ground.topology;
    let directory = topology.directory();
    let spec = GatewaySpec::default();
    let mut hub = Gateway::hub(topology.hub(), directory, &spec).unwrap();
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let spec = GatewaySpec {
        network: network.to_owned(),
        ..GatewaySpec::default()
    };
    let site = Gateway::site(topology.site(), directory, "site", &token, &spec).unwrap();
    (hub, site)
}

fn wait_until(what: &str, limit: Duration, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The helper of a process.
fn helper_of(parent: u32) -> Pid {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("Name:\tropewalk-helper\n")
            && status.contains(&format!("PPid:\t{parent}\n"))
    };
    Pid::from_raw(numbers.find(is).unwrap()).unwrap()
}

/// The longest time without an answer of a series of pings, milliseconds.
fn longest_gap(spec: &PingSpec, sent: u64, sequences: impl Iterator<Item = u64>) -> u64 {
    let mut last = 0;
    let mut longest = 0;
    for sequence in sequences.chain([sent + 1]) {
        longest = longest.max(sequence.saturating_sub(last + 1));
        last = last.max(sequence);
    }
    longest * u64::try_from(spec.interval.as_millis()).unwrap()
}

#[test]
fn a_resolvectl_that_hangs_is_killed_and_neither_packets_nor_watchdog_nor_status_wait_for_it() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("hangs", two_links())).unwrap();
    let (_hub, site) = pair(&ground, &format!("dns = [\"{SERVER}\"]"));
    let directory = ground.topology.directory();
    let stage = Stage::new(directory, "../run/systemd/resolve/stub-resolv.conf");
    let pids = directory.join("pids");
    let script = format!("echo $$ >> {}; sleep 600", pids.display());
    stage.stand_in("resolvectl", &script);
    let manager = UnixDatagram::bind(directory.join("sd")).unwrap();
    let granted = GRANTED.as_micros().to_string();
    let notify = directory.join("sd").display().to_string();
    let process = stage.start(
        &site,
        "up",
        &[("NOTIFY_SOCKET", notify), ("WATCHDOG_USEC", granted)],
    );
    site.wait_paths(2, PATIENCE).unwrap();
    wait_until("it is run", PATIENCE, || pids.exists());
    let begin = Instant::now();
    let spec = PingSpec {
        interval: Duration::from_millis(5),
        ..PingSpec::new(SERVER.into())
    };
    let ping = Ping::start(ground.topology.site(), &spec, directory, "ping").unwrap();
    // Until the program has been killed, there is a sign of life in time, and status answers.
    let (mut slowest, mut last, mut quiet) = (Duration::ZERO, begin, Duration::ZERO);
    manager.set_nonblocking(true).unwrap();
    let killed = loop {
        let asked = Instant::now();
        site.status().unwrap();
        slowest = slowest.max(asked.elapsed());
        let mut message = [0; 64];
        while let Ok(length) = manager.recv(&mut message) {
            if message[..length].starts_with(b"WATCHDOG=1") {
                last = Instant::now();
            }
        }
        quiet = quiet.max(last.elapsed());
        if process.log().contains("had not ended after") {
            break begin.elapsed();
        }
        assert!(begin.elapsed() < LATE, "{}", process.log());
    };
    let report = ping.finish().unwrap();
    let gap = longest_gap(
        &spec,
        report.sent,
        report.replies.iter().map(|r| r.sequence),
    );
    println!(
        "killed after {killed:?}; meanwhile no packet for {gap} ms at most, status within {slowest:?}, \
         no sign of life for {quiet:?} at most"
    );
    assert!(report.received > 300, "{} answers", report.received);
    assert!(gap < 500 && slowest < Duration::from_secs(1) && quiet < GRANTED);
    let log = process.log();
    let line = log
        .lines()
        .find(|line| line.contains("had not ended"))
        .unwrap();
    assert!(
        line.contains("resolvectl dns ") && line.contains("after 5.") && line.contains("killed"),
        "{line}"
    );
    for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
        let gone = || !fs::exists(format!("/proc/{pid}")).unwrap();
        wait_until("it is killed and reaped", PATIENCE, gone);
    }
}

#[test]
fn after_a_kill_a_site_with_another_interface_starts_and_the_old_record_of_resolvconf_is_gone() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("renamed", two_links())).unwrap();
    let (_hub, site) = pair(&ground, &format!("dns = [\"{SERVER}\"]"));
    let directory = ground.topology.directory();
    let stage = Stage::new(directory, "../run/resolvconf/resolv.conf");
    let asked = directory.join("asked");
    let note = format!("cat > /dev/null; echo \"$@\" >> {}", asked.display());
    stage.stand_in("resolvconf", &note);
    let said = || fs::read_to_string(&asked).unwrap_or_default();
    let mut process = stage.start(&site, "up", &[]);
    let tun = site.status().unwrap().interface;
    let added = format!("-a tun.{tun}.ropewalk -m 0 -x\n");
    wait_until("servers are set", PATIENCE, || said().contains(&added));
    process.kill();
    let config = fs::read_to_string(site.config()).unwrap();
    let renamed = config.replace("[tunnel]\n", "[tunnel]\ninterface = \"other0\"\n");
    fs::write(site.config(), renamed).unwrap();
    // It refuses: that is told, and keeps no site from starting.
    stage.stand_in("resolvconf", "echo 'not today' >&2; exit 1");
    let mut process = stage.start(&site, "up", &[]);
    assert!(process.log().contains("not today"), "{}", process.log());
    process.kill();
    stage.stand_in("resolvconf", &note);
    let process = stage.start(&site, "up", &[]);
    assert_eq!(site.status().unwrap().interface, "other0");
    let removed = format!("-d tun.{tun}.ropewalk\n");
    assert!(said().contains(&removed), "{}: {}", said(), process.log());
    let added = "-a tun.other0.ropewalk -m 0 -x\n";
    wait_until("servers are set", PATIENCE, || said().contains(added));
}

#[test]
fn a_site_whose_helper_is_killed_ends_at_once_and_nothing_leaks_until_it_is_back() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("helperless", "kill_switch = true").unwrap();
    lab.connect().unwrap();
    let site: Namespace = lab.topology().site().clone();
    let directory = lab.topology().directory().to_owned();
    lab.reset().unwrap();
    let spec = PingSpec {
        interval: Duration::from_millis(10),
        ..PingSpec::new(SERVER.into())
    };
    let ping = Ping::start(&site, &spec, &directory, "ping").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let helper = helper_of(lab.site.process().unwrap().pid());
    let killed = Instant::now();
    kill_process(helper, Signal::KILL).unwrap();
    wait_until("it ends", PATIENCE, || {
        lab.site.process().unwrap().has_ended()
    });
    let ended = killed.elapsed();
    let log = lab.site.process().unwrap().log();
    assert!(!lab.site.is_running());
    assert!(
        log.contains("(the helper) was killed by signal 9: this gateway ends"),
        "{log}"
    );
    assert!(ended < Duration::from_secs(3), "after {ended:?}: {log}");
    // What a service manager does.
    lab.connect().unwrap();
    let back = killed.elapsed();
    std::thread::sleep(Duration::from_millis(500));
    let report = ping.finish().unwrap();
    assert_eq!(lab.counted().unwrap(), Leaks::default());
    let gap = longest_gap(
        &spec,
        report.sent,
        report.replies.iter().map(|r| r.sequence),
    );
    println!("ended after {ended:?}, both paths back after {back:?}, no answer for {gap} ms");
    assert!(back < Duration::from_secs(10) && report.received > 50);
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
    // Again, with somebody who tries everything while there is no gateway.
    let helper = helper_of(lab.site.process().unwrap().pid());
    kill_process(helper, Signal::KILL).unwrap();
    assert_eq!(
        lab.provoke_for(Duration::from_secs(2)).unwrap(),
        Leaks::default()
    );
    assert!(!lab.site.is_running());
    lab.connect().unwrap();
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
}
