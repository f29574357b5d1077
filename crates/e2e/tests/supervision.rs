//! What a service manager sees of the programs: a gateway that hangs is silent, and one that works is not.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use ropewalk_e2e::{Ground, ready, whole};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::process::{Finished, Process, Program};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::bulk::{self, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, TopologySpec, programs};
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(25);
/// What the programs are told to be granted, as `WatchdogSec=` of their units.
const GRANTED: Duration = Duration::from_secs(2);
const ALIVE: &str = "WATCHDOG=1";

/// Stands in for systemd: where programs say how they are.
struct Manager(UnixDatagram);

impl Manager {
    fn new(path: &Path) -> Self {
        Self(UnixDatagram::bind(path).unwrap())
    }

    /// A program that is told of this manager.
    fn told(&self, program: Program) -> Program {
        let address = self.0.local_addr().unwrap();
        let path = address.as_pathname().unwrap().as_os_str().to_owned();
        program
            .env("NOTIFY_SOCKET", path)
            .env("WATCHDOG_USEC", GRANTED.as_micros().to_string())
    }

    /// The next message until `end`.
    fn next(&self, end: Instant) -> Option<String> {
        let mut buffer = [0; 1_024];
        let left = end.saturating_duration_since(Instant::now());
        self.0
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .unwrap();
        match self.0.recv(&mut buffer) {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn wait_for(&self, wanted: &str) {
        let end = Instant::now() + PATIENCE;
        while let Some(message) = self.next(end) {
            if message.trim() == wanted {
                return;
            }
        }
        panic!("no {wanted}");
    }

    /// Whether a service manager would have ended the program within `time`: no sign of life for as long as was
    /// granted.
    fn would_end(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut last = Instant::now();
        while Instant::now() < end {
            if self.next(end.min(last + GRANTED)).as_deref().map(str::trim) == Some(ALIVE) {
                last = Instant::now();
            } else if last.elapsed() >= GRANTED {
                return true;
            }
        }
        false
    }

    /// Takes what has come so far.
    fn clear(&self) {
        while self.next(Instant::now()).is_some() {}
    }
}

/// Stops a single thread, as ptrace(2) does, until it is dropped.
struct Stopped(Process);

impl Stopped {
    fn new(directory: &Path, thread: u32) -> Self {
        let script = format!(
            "import ctypes, sys, time\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             for request in (0x4206, 0x4207):\n    \
                 if libc.ptrace(request, {thread}, 0, 0): sys.exit(ctypes.get_errno())\n\
             print('stopped', flush=True)\n\
             time.sleep(3600)\n"
        );
        let python = Program::new("python3").args(["-c", &script]);
        let mut process = python.start(directory, "stopped").unwrap();
        let line = process.first_line(PATIENCE);
        assert_eq!(line.unwrap().trim(), "stopped", "{}", process.log());
        Self(process)
    }
}

/// The thread of a process with this name; the first is that of the process.
fn thread(process: &Process, name: &str) -> u32 {
    let tasks = format!("/proc/{}/task", process.pid());
    let mut found = std::fs::read_dir(tasks).unwrap().filter_map(|task| {
        let task = task.unwrap();
        let is = std::fs::read_to_string(task.path().join("comm")).unwrap();
        (is.trim() == name).then(|| task.file_name().to_string_lossy().parse().unwrap())
    });
    found.next().unwrap_or_else(|| panic!("no thread {name}"))
}

/// Stops each thread in turn, and lets it go on.
fn silent_while_stopped(manager: &Manager, process: &Process, directory: &Path, threads: &[&str]) {
    for name in threads {
        let mut stopped = Stopped::new(directory, thread(process, name));
        manager.clear();
        assert!(
            manager.would_end(3 * GRANTED),
            "{name} hangs, and nobody can tell"
        );
        stopped.0.kill();
        manager.wait_for(ALIVE);
        assert!(!manager.would_end(GRANTED), "{name} goes on");
    }
}

#[test]
fn a_gateway_of_which_one_thread_hangs_is_silent_and_one_that_is_idle_or_busy_is_not() {
    if !ready() || programs::in_path("python3").is_none() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("watchdog", links)).unwrap();
    let topology = &ground.topology;
    let directory = topology.directory();
    let managers = ["hub", "site"].map(|name| Manager::new(&directory.join(format!("{name}.sd"))));
    let spec = GatewaySpec {
        root: "workers = 2\n".to_owned(),
        ..GatewaySpec::default()
    };
    let hub = Gateway::hub(topology.hub(), directory, &spec).unwrap();
    let program = managers[0].told(hub.program(&["hub"]).unwrap());
    let hub_process = program.start(directory, "hub").unwrap();
    managers[0].wait_for("READY=1");
    let token = hub.invite("site").unwrap();
    let spec = GatewaySpec::default();
    let site = Gateway::site(topology.site(), directory, "site", &token, &spec).unwrap();
    let program = managers[1].told(site.program(&["up"]).unwrap());
    let site_process = program.start(directory, "site").unwrap();
    managers[1].wait_for("READY=1");
    site.wait_paths(1, PATIENCE).unwrap();

    // Idle.
    for manager in &managers {
        manager.clear();
        assert!(!manager.would_end(2 * GRANTED), "idle");
    }
    // Busy.
    let spec = BulkSpec::download(4, 3 * GRANTED);
    std::thread::scope(|scope| {
        let ends = topology.endpoints();
        let load = scope.spawn(move || whole(bulk::run(&ends, &spec)?));
        let watch = managers.each_ref().map(|manager| {
            scope.spawn(move || {
                manager.clear();
                assert!(!manager.would_end(2 * GRANTED), "busy");
            })
        });
        for watch in watch {
            watch.join().unwrap();
        }
        let report = load.join().unwrap().unwrap();
        assert!(report.bytes > 10_000_000, "{report:?}");
    });
    silent_while_stopped(
        &managers[0],
        &hub_process,
        directory,
        &["engine-0", "engine-1", "ropewalk"],
    );
    silent_while_stopped(&managers[1], &site_process, directory, &["engine-0"]);
    let log = hub_process.log();
    assert!(log.contains("hangs") && log.contains("engine-1"), "{log}");
    site.wait_paths(1, PATIENCE).unwrap();
}

#[test]
fn a_service_manager_that_does_not_watch_is_told_of_start_and_stop_only() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("unwatched", links)).unwrap();
    let directory = ground.topology.directory();
    let manager = Manager::new(&directory.join("hub.sd"));
    let spec = GatewaySpec::default();
    let hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    let program = hub.program(&["hub"]).unwrap();
    let program = program.env("NOTIFY_SOCKET", directory.join("hub.sd"));
    let mut process = program.start(directory, "hub").unwrap();
    manager.wait_for("READY=1");
    assert_eq!(manager.next(Instant::now() + 2 * GRANTED), None);
    assert!(process.stop().unwrap().success());
    manager.wait_for("STOPPING=1");
}

/// A hub whose state is on a file system of 64 kB, in a mount namespace that its process has alone.
struct SmallDisk {
    hub: Gateway,
    state: String,
}

impl SmallDisk {
    /// A hub that has run once, and has a site that joined.
    fn new(ground: &Ground) -> (Self, Gateway) {
        let topology = &ground.topology;
        let directory = topology.directory();
        let spec = GatewaySpec::default();
        let mut hub = Gateway::hub(topology.hub(), directory, &spec).unwrap();
        hub.start().unwrap();
        let token = hub.invite("site").unwrap();
        let site = Gateway::site(topology.site(), directory, "site", &token, &spec).unwrap();
        assert!(hub.stop());
        let state = hub.directory().join("state").display().to_string();
        (Self { hub, state }, site)
    }

    /// Starts the hub with a copy of its state on the small disk, after `more`.
    fn start(&self, more: &str) -> Process {
        let script = format!(
            "set -e; cp -a {0} {0}.kept; mount -t tmpfs -o size=64k,mode=700 none {0}; \
             cp -a {0}.kept/. {0}; rm -r {0}.kept; {more} exec {1} hub --config {2}",
            self.state,
            programs::own("ropewalk").unwrap().display(),
            self.hub.config().display()
        );
        let program = self.hub.namespace().program("unshare");
        let program = program.args(["-m", "bash", "-c", &script]);
        let process = program.start(self.hub.directory(), "hub").unwrap();
        let end = Instant::now() + PATIENCE;
        while self.hub.status().is_err() {
            assert!(
                !process.has_ended() && Instant::now() < end,
                "{}",
                process.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        process
    }

    /// A shell command where the small disk is seen.
    fn there(&self, process: &Process, script: &str) -> Finished {
        let program = Program::new("nsenter").args(["-m", "-t", &process.pid().to_string()]);
        program.args(["bash", "-c", script]).run(PATIENCE).unwrap()
    }

    fn fill(&self) -> String {
        format!(
            "dd if=/dev/zero of={}/fill bs=1k 2>/dev/null || true;",
            self.state
        )
    }
}

#[test]
fn a_full_disk_keeps_the_sites_names_the_file_and_stops_no_packet() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("fulldisk", links)).unwrap();
    let (disk, mut site) = SmallDisk::new(&ground);
    let mut process = disk.start("");
    site.start().unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
    let list = format!("cat {0}/sites.toml; ls -A {0}", disk.state);
    let invite = format!(
        "{} invite other --config {}",
        programs::own("ropewalk").unwrap().display(),
        disk.hub.config().display()
    );
    disk.there(&process, &disk.fill());
    let before = disk.there(&process, &list).success().unwrap();
    let refused = disk.there(&process, &invite);
    assert!(!refused.status.success());
    assert!(
        refused.stderr.contains("state/sites.toml") && refused.stderr.contains("No space left"),
        "{}",
        refused.stderr
    );
    let after = disk.there(&process, &list).success().unwrap();
    assert_eq!(
        before, after,
        "a file was cut off, or a part of one was left"
    );
    assert!(before.contains("name = \"site\""), "{before}");
    let ping = PingSpec {
        count: 3,
        ..PingSpec::new(SERVER.into())
    };
    let report = ping::run(ground.topology.site(), &ping).unwrap();
    assert_eq!(report.received, 3, "packets pass meanwhile");
    let free = format!("rm {}/fill; {invite}", disk.state);
    disk.there(&process, &free).success().unwrap();
    let after = disk.there(&process, &list).success().unwrap();
    assert!(after.contains("name = \"other\""), "{after}");

    // Killed, and started again with the disk full: its changes cannot be listed.
    process.kill();
    let mut process = disk.start(&disk.fill());
    site.wait_paths(1, PATIENCE).unwrap();
    let report = ping::run(ground.topology.site(), &ping).unwrap();
    assert_eq!(report.received, 3, "packets pass again");
    let log = process.log();
    assert!(
        log.contains("hub-changes.json") && log.contains("not listed"),
        "{log}"
    );
    assert!(process.stop().unwrap().success());
}

#[test]
fn failed_starts_are_tried_for_ever_with_pauses_that_end_when_the_configuration_is_mended() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("restarts", links)).unwrap();
    let directory = ground.topology.directory();
    let manager = Manager::new(&directory.join("hub.sd"));
    let spec = GatewaySpec::default();
    let hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    let good = std::fs::read_to_string(hub.config()).unwrap();
    std::fs::write(hub.config(), good.replace("[pool]", "[poool]")).unwrap();
    let run = directory.join("run");
    std::fs::create_dir(&run).unwrap();
    let start = || {
        let program = manager.told(hub.program(&["hub"]).unwrap());
        let program = program.env("RUNTIME_DIRECTORY", &run);
        (program.start(directory, "hub").unwrap(), Instant::now())
    };
    std::thread::sleep(Duration::from_millis(20));
    for pause in [0, 0, 0, 1, 2] {
        let (mut process, begun) = start();
        let status = process.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(status.code(), Some(2), "{}", process.log());
        let (took, pause) = (begun.elapsed(), Duration::from_secs(pause));
        assert!(
            took >= pause && took < pause + Duration::from_secs(3),
            "{took:?} with a pause of {pause:?}"
        );
    }
    // The pause would be 4 s, and the next one 8 s.
    let (mut process, _) = start();
    manager.wait_for("EXTEND_TIMEOUT_USEC=94000000");
    process.signal(Signal::TERM);
    assert!(process.wait(PATIENCE).unwrap().unwrap().success());
    for _ in 0..4 {
        let (mut process, _) = start();
        process.wait(PATIENCE).unwrap().unwrap();
    }
    let (_process, _) = start();
    manager.wait_for("EXTEND_TIMEOUT_USEC=92000000");
    std::fs::write(hub.config(), good).unwrap();
    let mended = Instant::now();
    manager.wait_for("READY=1");
    assert!(mended.elapsed() < 2 * GRANTED, "{:?}", mended.elapsed());
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
}

#[test]
fn eleven_crashes_in_a_row_cost_no_pause() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("crashes", links)).unwrap();
    let directory = ground.topology.directory();
    let manager = Manager::new(&directory.join("hub.sd"));
    let spec = GatewaySpec::default();
    let hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    let mut longest = Duration::ZERO;
    for crash in 0..=11 {
        let begun = Instant::now();
        let program = manager.told(hub.program(&["hub"]).unwrap());
        let program = program.env("RUNTIME_DIRECTORY", directory);
        let mut process = program.start(directory, "hub").unwrap();
        manager.wait_for("READY=1");
        longest = longest.max(begun.elapsed());
        assert!(hub.status().is_ok(), "after {crash} crashes");
        // As a crash: nothing of the program runs any more.
        process.signal(Signal::ABORT);
        assert!(!process.wait(PATIENCE).unwrap().unwrap().success());
        manager.clear();
    }
    eprintln!("ready again after {longest:?} at most");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

/// A worker that ends ends the hub: sites of a hub that runs on without it would be lost.
#[test]
fn a_hub_whose_interface_is_taken_away_ends_and_says_why() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::unshaped(true)];
    let ground = Ground::new(&TopologySpec::new("lostworker", links)).unwrap();
    let directory = ground.topology.directory();
    let spec = GatewaySpec {
        root: "workers = 2\n".to_owned(),
        ..GatewaySpec::default()
    };
    let hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    let manager = Manager::new(&directory.join("hub.sd"));
    let program = manager.told(hub.program(&["hub"]).unwrap());
    let mut process = program.start(directory, "hub").unwrap();
    manager.wait_for("READY=1");
    let tun = hub.status().unwrap().interface;
    let remove = format!("link del {tun}\n");
    ground.topology.hub().ip(&remove).unwrap();
    let status = process.wait(PATIENCE).unwrap().expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", process.log());
    let log = process.log();
    assert!(
        log.contains("the engine failed") && log.contains("TUN interface"),
        "{log}"
    );
}
