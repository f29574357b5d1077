//! What NetworkManager and ModemManager say reaches the site: money, radios, ends. Both are mocks on a system bus of
//! the test's own, and come, go and lie.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use ropewalk_api::{PathStatus, Status};
use ropewalk_e2e::{Ground, Lab, ready, two_links};
use ropewalk_testbed::TopologySpec;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::process::{Process, Program};
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};

const PATIENCE: Duration = Duration::from_secs(15);
/// Longest time from what a service says to what the site does, with room for the commands that ask.
const SOON: Duration = Duration::from_secs(2);
const COMMAND: Duration = Duration::from_secs(10);

const NETWORK: &str = "org.freedesktop.NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const WIFI: &str = "/org/freedesktop/NetworkManager/Devices/wifi";
const MODEM_DEVICE: &str = "/org/freedesktop/NetworkManager/Devices/modem";
const POINT: &str = "/org/freedesktop/NetworkManager/AccessPoint/point";
const MODEM_MANAGER: &str = "org.freedesktop.ModemManager1";
const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
const MODEM_PATH: &str = "/org/freedesktop/ModemManager1/Modem/0";

/// A system bus, and the services on it.
struct Machine {
    directory: PathBuf,
    bus: Option<Process>,
    network: Option<Process>,
    modem: Option<Process>,
}

impl Machine {
    fn new(directory: &Path) -> Self {
        let policy = "<policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
                      <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy>";
        let bus = directory.join("bus");
        let text = format!(
            "<busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>{policy}</busconfig>",
            bus.display()
        );
        std::fs::write(directory.join("bus.conf"), text).unwrap();
        Self {
            directory: directory.to_owned(),
            bus: None,
            network: None,
            modem: None,
        }
    }

    fn start_bus(&mut self) {
        let _ = std::fs::remove_file(self.directory.join("bus"));
        let configuration = self.directory.join("bus.conf");
        let program = Program::new("dbus-daemon")
            .args(["--nofork", "--nopidfile", "--config-file"])
            .arg(configuration);
        self.bus = Some(program.start(&self.directory, "dbus").unwrap());
        let end = Instant::now() + PATIENCE;
        while !self.directory.join("bus").exists() {
            assert!(Instant::now() < end, "no bus");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn mock(&self, name: &str, parameters: &str) -> Process {
        let template =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/managers/{name}.py"));
        let program = self
            .python()
            .args(["-m", "dbusmock", "-p", parameters, "-t"]);
        program.arg(template).start(&self.directory, name).unwrap()
    }

    fn python(&self) -> Program {
        let address = format!("unix:path={}", self.directory.join("bus").display());
        Program::new("/usr/bin/python3").env("DBUS_SYSTEM_BUS_ADDRESS", address)
    }

    fn start_network(&mut self, metered: u32) {
        self.network = Some(self.mock("networkmanager", &format!("{{\"Metered\": {metered}}}")));
    }

    /// Has a service say something.
    fn say(&self, service: &str, path: &str, interface: &str, property: &str, value: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/managers/say.py");
        let program = self.python().arg(script);
        let program = program.args([service, path, interface, property, value]);
        program.success(COMMAND).unwrap();
    }

    fn say_metered(&self, value: u32) {
        let value = format!("dbus.UInt32({value})");
        self.say(NETWORK, MODEM_DEVICE, DEVICE, "Metered", &value);
    }

    fn kill(service: &mut Option<Process>) {
        service.take().unwrap().kill();
    }
}

fn has_mocks() -> bool {
    let look = Program::new("/usr/bin/python3").args(["-c", "import dbusmock"]);
    let found = look.success(COMMAND).is_ok()
        && ropewalk_testbed::programs::in_path("dbus-daemon").is_some();
    if !found {
        eprintln!("skipped: dbus-daemon or python3-dbusmock is missing: scripts/packages");
    }
    found
}

fn path<'a>(status: &'a Status, uplink: &str) -> &'a PathStatus {
    status.paths().find(|path| path.uplink == uplink).unwrap()
}

fn says(path: &PathStatus, text: &str) -> bool {
    path.words.iter().any(|words| words.text.contains(text))
}

fn leaving(uplink: &str) -> impl Fn(&Status) -> bool {
    move |status| path(status, uplink).state == "leaving"
}

/// Waits for a state, for as long.
fn wait(lab: &Lab, what: &str, limit: Duration, wanted: impl Fn(&Status) -> bool) {
    let begin = Instant::now();
    lab.site.wait_for(what, limit, wanted).unwrap();
    println!("{what}: {} ms", begin.elapsed().as_millis());
}

fn lab(level: &str) -> Lab {
    let ground = Ground::new(&TopologySpec::new("managers", two_links())).unwrap();
    let bus = ground.topology.directory().join("bus");
    let spec = GatewaySpec {
        tunnel: "scheduler = \"cost-aware\"\nscheduler_receive = \"cost-aware\"".to_owned(),
        uplinks: format!("include = [\"up*\"]\nsystem_bus = \"{}\"", bus.display()),
        more: format!("[log]\nlevel = \"{level}\"\n"),
        ..GatewaySpec::default()
    };
    // Copies of packets would make both uplinks carry the same.
    let hub = GatewaySpec {
        tunnel: "protect = \"none\"".to_owned(),
        ..GatewaySpec::default()
    };
    ground.connect(&hub, &spec).unwrap()
}

/// Bytes that the site gets over an uplink in a second.
fn carries(lab: &Lab, uplink: &str) -> u64 {
    let bytes = || lab.topology.site().interface_bytes(uplink).unwrap().0;
    let before = bytes();
    std::thread::sleep(Duration::from_secs(1));
    bytes() - before
}

/// Without a bus the site says almost nothing, and works.
fn without_a_bus(lab: &Lab) {
    let log = lab.site.process().unwrap().log();
    let about = |line: &&str| line.contains("bus") || line.contains("NetworkManager");
    assert!(log.lines().filter(about).count() <= 1, "{log}");
    let status = lab.site.status().unwrap();
    let bare = |path: &PathStatus| path.technology.is_none() && path.said_metered.is_none();
    assert!(status.paths().all(bare), "{status:?}");
}

/// Money: words follow within two seconds, at both ends.
fn money(lab: &Lab, machine: &Machine) {
    let metered = |status: &Status| {
        let path = path(status, "up1");
        path.metered && says(path, "metered, as NetworkManager says")
    };
    assert!(!metered(&lab.site.status().unwrap()));
    machine.say_metered(1);
    wait(lab, "metered", SOON, metered);
    let hub = |status: &Status| path(status, "up1").metered;
    lab.hub.wait_for("metered at the hub", SOON, hub).unwrap();
    machine.say_metered(2);
    wait(lab, "not metered", SOON, |status| {
        !path(status, "up1").metered
    });
}

/// Values of other types than documented.
fn lies(lab: &Lab, machine: &Machine) {
    let before = lab.site.status().unwrap();
    for (property, value) in [
        ("Metered", "'very'"),
        ("State", "dbus.Array([dbus.UInt32(110)])"),
        ("State", "dbus.UInt64(2**64 - 1)"),
        ("Interface", "dbus.Boolean(True)"),
        ("IpInterface", "'x' * 100000"),
        ("Udi", "dbus.Array([dbus.Array(['a'], signature='s')])"),
    ] {
        machine.say(NETWORK, MODEM_DEVICE, DEVICE, property, value);
    }
    machine.say(NETWORK, WIFI, DEVICE, "StateChanged", "[dbus.UInt32(110)]");
    machine.say(
        MODEM_MANAGER,
        MODEM_PATH,
        MODEM,
        "SignalQuality",
        "dbus.Int64(-5)",
    );
    machine.say(
        MODEM_MANAGER,
        MODEM_PATH,
        MODEM,
        "Ports",
        "dbus.Array(['up0'], signature='s')",
    );
    // Messages come in order: what is said after them is the proof that they were read.
    let point = "org.freedesktop.NetworkManager.AccessPoint";
    machine.say(NETWORK, POINT, point, "Strength", "dbus.Byte(12)");
    wait(lab, "weak signal", SOON, |status| {
        says(path(status, "up0"), "Wi-Fi, weak signal: 12 %")
    });
    let after = lab.site.status().unwrap();
    for uplink in ["up0", "up1"] {
        let of = |status: &Status| {
            let path = path(status, uplink);
            (path.state.clone(), path.metered, path.technology.clone())
        };
        assert_eq!(of(&before), of(&after), "{uplink}");
    }
    assert_eq!(path(&after, "up1").signal, Some(0.62));
}

/// What is larger than is read: said by a signal, and in the answer with everything.
fn huge(lab: &Lab, machine: &Machine) {
    let site = lab.site.process().unwrap();
    let before = site.resident_bytes();
    for bytes in [1_000_000, 2_200_000] {
        let value = format!("dbus.ByteArray(b'x' * {bytes})");
        machine.say(NETWORK, MODEM_DEVICE, DEVICE, "Udi", &value);
    }
    let point = "org.freedesktop.NetworkManager.AccessPoint";
    machine.say(NETWORK, POINT, point, "Strength", "dbus.Byte(13)");
    wait(lab, "heard after what is huge", PATIENCE, |status| {
        path(status, "up0").signal == Some(0.13)
    });
    let after = site.resident_bytes();
    let status = std::fs::read_to_string(format!("/proc/{}/status", site.pid())).unwrap();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    println!("resident before and after what is huge: {before}, {after} bytes, {peak}");
    assert!(after < before + (64 << 20));
    let modem = format!("'{MODEM_PATH}'");
    machine.say(NETWORK, MODEM_DEVICE, DEVICE, "Udi", &modem);
}

/// Programs on the bus.
fn on_the_bus(machine: &Machine) -> usize {
    let script = "import dbus; print(len(dbus.SystemBus().list_names()))";
    let said = machine.python().args(["-c", script]).success(COMMAND);
    said.unwrap().trim().parse().unwrap()
}

/// Nothing is listened to and nothing is known once the configuration says so.
fn switched_off(lab: &Lab, machine: &Machine) {
    let before = on_the_bus(machine);
    let text = std::fs::read_to_string(lab.site.config()).unwrap();
    let bus = machine.directory.join("bus").display().to_string();
    assert!(text.contains(&bus));
    std::fs::write(lab.site.config(), text.replace(&bus, "")).unwrap();
    lab.site.signal(Signal::HUP);
    wait(lab, "switched off", PATIENCE, |status| {
        let bare = |path: &PathStatus| path.technology.is_none() && !path.metered;
        status.paths().all(bare)
    });
    assert_eq!(on_the_bus(machine), before - 1);
}

/// Services and the bus go and come back: what costs money goes on to, and they are heard again.
fn restarts(lab: &Lab, machine: &mut Machine) {
    let metered = |status: &Status| path(status, "up1").metered;
    machine.say_metered(1);
    wait(lab, "metered again", SOON, metered);
    Machine::kill(&mut machine.network);
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        metered(&lab.site.status().unwrap()),
        "NetworkManager restarts"
    );
    Machine::kill(&mut machine.bus);
    Machine::kill(&mut machine.modem);
    std::thread::sleep(Duration::from_millis(300));
    assert!(metered(&lab.site.status().unwrap()), "the bus restarts");
    machine.start_bus();
    machine.start_network(2);
    wait(lab, "heard again", PATIENCE, |status| {
        !path(status, "up1").metered && path(status, "up0").signal == Some(0.71)
    });
}

#[test]
fn what_the_managers_of_the_machine_say_is_followed_while_they_come_and_go() {
    if !ready() || !has_mocks() {
        return;
    }
    let lab = lab("info");
    without_a_bus(&lab);
    let mut machine = Machine::new(lab.topology.directory());
    machine.start_bus();
    machine.start_network(2);
    machine.modem = Some(machine.mock("modemmanager", "{}"));
    wait(&lab, "radios", PATIENCE, |status| {
        says(path(status, "up0"), "Wi-Fi, signal 71 %")
            && says(path(status, "up1"), "LTE, signal 62 %")
    });
    let text = lab.site.run(&["status"]).unwrap().success().unwrap();
    assert!(text.contains("up1 (LTE, signal 62 %)"), "{text}");
    money(&lab, &machine);
    lies(&lab, &machine);
    huge(&lab, &machine);
    restarts(&lab, &mut machine);
    switched_off(&lab, &machine);
}

/// Answers as no bus does, one after the other.
fn lie(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let ok = "OK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\n";
    let long = format!("\u{1b}[31m{}\r\n", "HOSTILE ".repeat(20_000));
    let wrong = format!("{ok}{}", "\u{1b}[31m".repeat(1_000));
    for answer in ["", "\n", &long, &wrong, ok] {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write_all(answer.as_bytes());
        if answer == ok {
            // It says no more.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

#[test]
fn a_bus_that_lies_costs_little_and_is_heard_once_it_is_a_bus() {
    if !ready() || !has_mocks() {
        return;
    }
    let lab = lab("debug");
    let mut machine = Machine::new(lab.topology.directory());
    let site = lab.site.process().unwrap();
    let (begin, cpu) = (Instant::now(), site.cpu_seconds());
    lie(&machine.directory.join("bus"));
    let used = (site.cpu_seconds() - cpu) / begin.elapsed().as_secs_f64();
    println!("{:.2} % of a processor", used * 100.0);
    assert!(used < 0.1, "{used}");
    let log = site.log();
    assert!(log.contains("HOSTILE"), "it was told: {log}");
    let bare = |line: &str| line.len() < 1_000 && !line.contains("\u{1b}[31m");
    assert!(log.lines().all(bare), "{log}");
    machine.start_bus();
    machine.start_network(1);
    wait(&lab, "heard at last", PATIENCE, |status| {
        path(status, "up0").signal == Some(0.71) && path(status, "up1").metered
    });
}

#[test]
fn traffic_leaves_what_costs_money_and_what_is_about_to_end_before_it_does() {
    if !ready() || !has_mocks() {
        return;
    }
    let lab = lab("info");
    let mut machine = Machine::new(lab.topology.directory());
    machine.start_bus();
    machine.start_network(2);
    machine.modem = Some(machine.mock("modemmanager", "{}"));
    wait(&lab, "radios", PATIENCE, |status| {
        path(status, "up0").signal.is_some() && path(status, "up1").signal.is_some()
    });
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Download),
    )
    .unwrap();
    // The shorter way carries the stream, until it costs money.
    let free = carries(&lab, "up0");
    machine.say(NETWORK, WIFI, DEVICE, "Metered", "dbus.UInt32(3)");
    wait(&lab, "metered", SOON, |status| path(status, "up0").metered);
    lab.hub
        .wait_for("metered at the hub", SOON, |status| {
            path(status, "up0").metered
        })
        .unwrap();
    let (costs, other) = (carries(&lab, "up0"), carries(&lab, "up1"));
    println!("bytes a second: {free} free, {costs} metered, {other} over the other uplink");
    assert!(free > 10_000 && costs < free / 4 && other > 10_000);
    machine.say(NETWORK, WIFI, DEVICE, "Metered", "dbus.UInt32(4)");
    wait(&lab, "free again", SOON, |status| {
        !path(status, "up0").metered
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(carries(&lab, "up0") > 10_000, "the stream is back");

    let state = "[dbus.UInt32(110), dbus.UInt32(100), dbus.UInt32(0)]";
    machine.say(NETWORK, WIFI, DEVICE, "StateChanged", state);
    wait(&lab, "Wi-Fi is leaving", SOON, leaving("up0"));
    // What is under way arrives.
    std::thread::sleep(Duration::from_millis(200));
    lab.topology.cut(0, Cut::Blackhole).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let report = probe.finish().unwrap().report();
    println!("{report:?}");
    assert_eq!(report.received, report.sent, "{report:?}");
    lab.topology.restore(0, Cut::Blackhole).unwrap();
    let state = "[dbus.UInt32(100), dbus.UInt32(90), dbus.UInt32(0)]";
    machine.say(NETWORK, WIFI, DEVICE, "StateChanged", state);
    lab.site.wait_paths(2, PATIENCE).unwrap();

    machine.say(MODEM_MANAGER, MODEM_PATH, MODEM, "State", "dbus.Int32(9)");
    wait(&lab, "the modem is leaving", SOON, leaving("up1"));
    machine.say(MODEM_MANAGER, MODEM_PATH, MODEM, "State", "dbus.Int32(11)");
    lab.site.wait_paths(2, SOON).unwrap();
    hook(&lab);
}

/// NetworkManager runs the hook and waits for it.
fn hook(lab: &Lab) {
    let hook =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/networkmanager/50-ropewalk");
    let ropewalk = ropewalk_testbed::programs::own("ropewalk").unwrap();
    let search = format!("{}:/usr/bin:/bin", ropewalk.parent().unwrap().display());
    let run = |interface: &str, action: &str| {
        let program = Program::new(&hook).args([interface, action]);
        let program = program
            .env("ROPEWALK_RUN", lab.site.directory())
            .env("PATH", &search);
        let begin = Instant::now();
        program.success(COMMAND).unwrap();
        begin.elapsed()
    };
    run("up0", "down");
    run("eth9", "pre-down");
    assert!(!leaving("up0")(&lab.site.status().unwrap()));
    let took = run("up0", "pre-down");
    println!("the hook took {} ms", took.as_millis());
    assert!(took >= Duration::from_millis(500));
    wait(lab, "announced by the hook", SOON, leaving("up0"));
}
