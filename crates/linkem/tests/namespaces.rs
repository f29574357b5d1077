//! The real program between real network namespaces. Needs root and iproute2.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_io::netns::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk-linkem");

/// Two namespaces, removed when dropped.
struct Pair {
    names: [String; 2],
    directory: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("lkt-{}-{number}-{end}", std::process::id());
        let pair = Self {
            names: [name("a"), name("b")],
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        for name in &pair.names {
            let made = Command::new("ip")
                .args(["netns", "add", name])
                .status()
                .expect("iproute2");
            assert!(made.success(), "these tests need root");
        }
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, options: &str) -> Command {
        let [a, b] = &self.names;
        let mut command = Command::new(PROGRAM);
        command.args(["--a", &format!("{a}:wan0"), "--b", &format!("{b}:wan0")]);
        command.args("--address-a 10.66.0.1/24 --address-a fd66::1/64".split(' '));
        command.args("--address-b 10.66.0.2/24 --address-b fd66::2/64 --for 30s".split(' '));
        command.arg("--control").arg(self.path("control"));
        command.args(options.split_whitespace());
        command
    }

    fn link(&self, options: &str) -> Running {
        let mut child = self
            .command(options)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("readable");
        let ready: Value = serde_json::from_str(&line).expect("one line of JSON");
        assert_eq!(ready["ready"], true);
        Running { child, out }
    }

    fn fails(&self, options: &str) -> String {
        let output = self.command(options).output().expect("the program starts");
        failure(&output)
    }

    /// A socket at end 0 or 1, bound to `address`.
    fn socket(&self, end: usize, address: &str) -> UdpSocket {
        let address: IpAddr = address.parse().expect("an address");
        let namespace = Namespace::open(&self.names[end]).expect("exists");
        let bind = || UdpSocket::bind(SocketAddr::new(address, 7_000));
        let socket = namespace.enter(bind).expect("root").expect("bindable");
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .expect("settable");
        socket
    }

    /// Sockets at both ends that know each other, after a packet has passed.
    fn sockets(&self, a: &str, b: &str) -> (UdpSocket, UdpSocket) {
        let (from, to) = (self.socket(0, a), self.socket(1, b));
        from.connect(to.local_addr().expect("bound"))
            .expect("connectable");
        to.connect(from.local_addr().expect("bound"))
            .expect("connectable");
        let passed = (0..20).any(|_| passes(&from, &to, 1));
        assert!(passed, "nothing passed from {a} to {b}");
        while to.recv(&mut [0; 16]).is_ok() {}
        (from, to)
    }

    /// Sends a command to the control socket; the answer.
    fn control(&self, line: &str) -> Value {
        let mut stream = UnixStream::connect(self.path("control")).expect("it listens");
        stream
            .write_all(format!("{line}\n").as_bytes())
            .expect("writable");
        let mut answer = String::new();
        BufReader::new(stream)
            .read_line(&mut answer)
            .expect("readable");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn interfaces(&self, end: usize) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.names[end], "link"])
            .output();
        String::from_utf8(output.expect("iproute2").stdout).expect("text")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A running link, killed when dropped.
struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// Ends it with SIGTERM; its final counters.
    fn stop(mut self) -> Value {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("running");
        let mut text = String::new();
        self.out.read_to_string(&mut text).expect("readable");
        assert!(self.child.wait().expect("a child").success());
        serde_json::from_str(&text).expect("one line of JSON")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failure(output: &Output) -> String {
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn passes(from: &UdpSocket, to: &UdpSocket, bytes: usize) -> bool {
    from.send(&vec![7; bytes]).expect("sendable");
    to.recv(&mut vec![0; 65_536])
        .is_ok_and(|length| length == bytes)
}

fn count(stats: &Value, side: &str, key: &str) -> u64 {
    stats[side][key]
        .as_u64()
        .unwrap_or_else(|| panic!("{side}.{key} in {stats}"))
}

#[test]
fn both_ip_versions_pass_and_counters_add_up() {
    let pair = Pair::new();
    let stats_file = pair.path("stats");
    let link = pair.link(&format!(
        "--delay 5ms --mtu 9000 --stats {}",
        stats_file.display()
    ));
    for (a, b) in [("10.66.0.1", "10.66.0.2"), ("fd66::1", "fd66::2")] {
        let (from, to) = pair.sockets(a, b);
        assert!(passes(&from, &to, 8_900), "a jumbo packet from {a}");
        assert!(passes(&to, &from, 8_900), "a jumbo packet from {b}");
    }
    let stats = link.stop();
    for side in ["up", "down"] {
        let c = |key| count(&stats, side, key);
        let drops = c("dropped_queue")
            + c("dropped_mtu")
            + c("dropped_loss")
            + c("dropped_blackhole")
            + c("dropped_in_flight");
        let inside = c("queued_packets") + c("in_flight_packets");
        assert!(c("delivered_packets") >= 2);
        assert_eq!(
            c("sent_packets"),
            c("delivered_packets") + drops + inside,
            "{stats}"
        );
    }
    let written = std::fs::read_to_string(stats_file).expect("written");
    assert_eq!(
        serde_json::from_str::<Value>(&written).expect("JSON"),
        stats
    );
    assert!(!pair.interfaces(0).contains("wan0") && !pair.interfaces(1).contains("wan0"));
}

#[test]
fn the_rate_is_reached_and_never_exceeded() {
    let pair = Pair::new();
    let link = pair.link("--rate 4Mbit --queue 200kB");
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    let start = Instant::now();
    let sending = std::thread::spawn(move || {
        while start.elapsed() < Duration::from_secs(2) {
            for _ in 0..5 {
                from.send(&[0; 1_472]).expect("sendable");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let mut arrivals = Vec::new();
    while to.recv(&mut [0; 2_000]).is_ok() {
        arrivals.push(start.elapsed());
    }
    sending.join().expect("sent");
    let (first, last) = (arrivals[0], arrivals[arrivals.len() - 1]);
    let bits = (arrivals.len() - 1) as f64 * 1_500.0 * 8.0;
    let rate = bits / (last - first).as_secs_f64();
    assert!((3.2e6..4.2e6).contains(&rate), "{rate}");
    assert!(count(&link.stop(), "up", "dropped_queue") > 0);
}

#[test]
fn control_commands_change_a_running_link() {
    let pair = Pair::new();
    let _link = pair.link("--delay 1ms");
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    assert_eq!(pair.control("set both blackhole on")["ok"], true);
    assert!(!passes(&from, &to, 100));
    assert!(!passes(&to, &from, 100));
    assert_eq!(pair.control("set down blackhole off")["ok"], true);
    assert!(!passes(&from, &to, 100));
    assert!(passes(&to, &from, 100));
    assert_eq!(pair.control("set both blackhole off")["ok"], true);
    assert!(passes(&from, &to, 100));
    assert_eq!(pair.control("set up loss=100% rate=5Mbit")["ok"], true);
    assert!(!passes(&from, &to, 100));
    let answer = pair.control("stats");
    assert!(
        count(&answer["stats"], "up", "dropped_blackhole") >= 2,
        "{answer}"
    );
    assert!(
        count(&answer["stats"], "up", "dropped_loss") >= 1,
        "{answer}"
    );
    let wrong = [
        ("set", "up|down|both"),
        ("set up", "nothing to set"),
        ("set up rate", "needs a value"),
        ("set up speed 3", "speed"),
        ("set up rate fast", "16Mbit"),
        ("set up trace /nowhere", "/nowhere"),
        ("reboot", "unknown command"),
        ("", "empty"),
    ];
    for (line, part) in wrong {
        let answer = pair.control(line);
        assert_eq!(answer["ok"], false, "{line}");
        assert!(
            answer["error"].as_str().expect("text").contains(part),
            "{line}: {answer}"
        );
    }
    // A client that sends without end is closed, and the link lives on.
    let mut flood = UnixStream::connect(pair.path("control")).expect("it listens");
    flood
        .set_write_timeout(Some(Duration::from_secs(2)))
        .expect("settable");
    assert!((0..1_000).any(|_| flood.write_all(&[b'x'; 4_096]).is_err()));
    assert_eq!(pair.control("stats")["ok"], true);
    assert_eq!(pair.control("stop")["ok"], true);
}

#[test]
fn packets_larger_than_the_hop_vanish_and_are_counted() {
    let pair = Pair::new();
    let link = pair.link("--hop-mtu-up 1280");
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    assert!(passes(&from, &to, 1_280 - 28));
    assert!(!passes(&from, &to, 1_281 - 28));
    assert!(passes(&to, &from, 1_400));
    assert_eq!(count(&link.stop(), "up", "dropped_mtu"), 1);
}

#[test]
fn a_plan_file_sets_directions_traces_and_timed_changes() {
    let pair = Pair::new();
    std::fs::write(pair.path("trace"), "1\n2\n").expect("writable");
    let plan =
        "seed = 5\n[down]\ntrace = \"trace\"\n[[change]]\nat = \"1s\"\nup.blackhole = true\n";
    std::fs::write(pair.path("plan.toml"), plan).expect("writable");
    let start = Instant::now();
    let _link = pair.link(&format!("--plan {}", pair.path("plan.toml").display()));
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    while start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!passes(&from, &to, 100));
    assert!(passes(&to, &from, 100));
}

#[test]
fn a_waiting_link_counts_its_time_from_the_restart() {
    let pair = Pair::new();
    let plan = "[[change]]\nat = \"200ms\"\nup.blackhole = true\n";
    std::fs::write(pair.path("plan"), plan).expect("writable");
    let _link = pair.link(&format!("--wait --plan {}", pair.path("plan").display()));
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    std::thread::sleep(Duration::from_millis(250));
    assert!(passes(&from, &to, 100), "a change happened before its time");
    assert_eq!(pair.control("restart")["ok"], true);
    assert!(passes(&from, &to, 100), "restarting took more than 200 ms");
    let stats = pair.control("stats")["stats"].clone();
    assert_eq!(count(&stats, "up", "sent_packets"), 1, "{stats}");
    std::thread::sleep(Duration::from_millis(250));
    assert!(!passes(&from, &to, 100), "the change did not happen");
}

#[test]
fn what_is_inside_a_link_at_a_restart_arrives() {
    let pair = Pair::new();
    let _link = pair.link("--delay 300ms");
    let (from, to) = pair.sockets("10.66.0.1", "10.66.0.2");
    to.set_read_timeout(Some(Duration::from_secs(2)))
        .expect("it is set");
    let sent = Instant::now();
    from.send(b"x").expect("it leaves");
    for _ in 0..2 {
        assert_eq!(pair.control("restart")["ok"], true);
    }
    to.recv(&mut [0; 16]).expect("it arrives");
    let took = sent.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}: no delay");
    let stats = pair.control("stats")["stats"].clone();
    assert_eq!(count(&stats, "up", "sent_packets"), 0, "{stats}");
}

#[test]
fn wrong_use_fails_with_a_remedy() {
    let pair = Pair::new();
    let [a, _] = pair.names.clone();
    let missing = Command::new(PROGRAM)
        .args(["--a", "no-such-ns:wan0", "--b", &format!("{a}:wan0")])
        .output()
        .expect("the program starts");
    assert!(failure(&missing).contains("ip netns add no-such-ns"));
    std::fs::write(pair.path("bad.toml"), "[up]\nspeed = \"1Mbit\"\n").expect("writable");
    std::fs::write(pair.path("bad.csv"), "1,100\nx\n").expect("writable");
    let cases = [
        (
            format!("--plan {}", pair.path("bad.toml").display()),
            "speed",
        ),
        (
            format!("--plan {}", pair.path("none.toml").display()),
            "none.toml",
        ),
        (
            format!("--trace {}", pair.path("bad.csv").display()),
            "bad.csv, line 2",
        ),
        ("--rate fast".into(), "16Mbit"),
        ("--mtu 70000".into(), "68 to 65521"),
        ("--loss-burst 4".into(), "needs `loss`"),
        ("--address-a 10.0.0.1".into(), "10.0.0.1/24"),
    ];
    for (options, part) in cases {
        let text = pair.fails(&options);
        assert!(text.contains(part), "{options} should say {part}: {text}");
    }
}

#[test]
fn names_and_sockets_in_use_are_refused_and_stale_sockets_replaced() {
    let pair = Pair::new();
    let path = pair.path("control");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bindable"));
    let _link = pair.link("");
    let text = pair.fails("");
    assert!(text.contains("control socket"), "{text}");
    let [a, b] = &pair.names;
    let taken = Command::new(PROGRAM)
        .args(["--a", &format!("{a}:wan0"), "--b", &format!("{b}:wan1")])
        .output()
        .expect("the program starts");
    let text = failure(&taken);
    assert!(text.contains("already has an interface wan0"), "{text}");
    assert!(!pair.interfaces(1).contains("wan1"));
}

#[test]
fn an_ordinary_user_is_told_to_be_root() {
    use std::os::unix::process::CommandExt;
    let pair = Pair::new();
    // An ordinary user may read this copy under any permissions of the build directory.
    let copy = std::env::temp_dir().join(format!("ropewalk-linkem-test-{}", std::process::id()));
    std::fs::copy(PROGRAM, &copy).expect("copied");
    let [a, b] = &pair.names;
    let output = Command::new(&copy)
        .args(["--a", &format!("{a}:wan0"), "--b", &format!("{b}:wan0")])
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .output();
    let _ = std::fs::remove_file(&copy);
    let text = failure(&output.expect("the program starts"));
    assert!(text.contains("run as root"), "{text}");
}

#[test]
fn a_link_ends_with_its_parent_when_asked() {
    let pair = Pair::new();
    let [a, b] = &pair.names;
    let line =
        format!("{PROGRAM} --a {a}:wan0 --b {b}:wan0 --for 30s --exit-with-parent & echo $!; wait");
    let mut shell = Command::new("sh")
        .args(["-c", &line])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut out = BufReader::new(shell.stdout.take().expect("piped"));
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        out.read_line(line).expect("readable");
    }
    assert!(lines.iter().any(|line| line.contains("ready")), "{lines:?}");
    shell.kill().expect("running");
    shell.wait().expect("a child");
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !pair.interfaces(0).contains("wan0")
    });
    assert!(gone);
}
