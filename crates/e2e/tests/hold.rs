//! Every uplink is away for a while: what was sent meanwhile arrives afterwards, within bounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_e2e::outages::Outage;
use ropewalk_e2e::{Ground, Lab, ready, two_links, whole};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::process::Process;
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{LinkSpec, TopologySpec, serial};

/// Enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// A sender of TCP that was told nothing would wait longer than this after the outages below: its timer has doubled
/// up to then. How soon it really goes on, the experiment `hold` of the lab says.
const SOON: Duration = Duration::from_secs(1);
/// What a path that is left may still be sent in [`SOON`]: its probes. Streams that were not told
/// lose 30 to 90 kB there before the path that fell silent is suspected.
const LEFT_BYTES: u64 = 5_000;

fn set_all(lab: &Lab, count: usize, away: bool) {
    for uplink in 0..count {
        if away {
            lab.topology
                .cut(uplink, Cut::Blackhole)
                .expect("the link exists");
        } else {
            lab.topology
                .restore(uplink, Cut::Blackhole)
                .expect("the link exists");
        }
    }
}

#[test]
fn streams_both_ways_go_on_soon_after_an_outage_and_lose_no_byte() {
    if !ready() {
        return;
    }
    for direction in [Direction::Download, Direction::Upload] {
        let link = LinkSpec::steady(20.0, Duration::from_millis(20));
        let lab = Lab::new("hold", vec![link]).unwrap();
        let spec = BulkSpec {
            amount: Amount::Time(Duration::from_secs(14)),
            direction,
            ..BulkSpec::download(2, PATIENCE)
        };
        let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        set_all(&lab, 1, true);
        std::thread::sleep(Duration::from_secs(7));
        let back = Instant::now();
        set_all(&lab, 1, false);
        let report = whole(bulk.finish().unwrap()).unwrap();
        let back = back - report.begin.unwrap();
        for flow in &report.flows {
            let pause = flow
                .pauses
                .iter()
                .find(|(from, to)| *from < back && *to > back);
            let (_, to) = pause.expect("the path was away");
            let idle = *to - back;
            assert!(
                idle < SOON,
                "{direction:?}: idle for {idle:?}; {}",
                lab.explain()
            );
        }
        let sending = match direction {
            Direction::Download => &lab.hub,
            Direction::Upload => &lab.site,
        };
        let status = sending.status().unwrap();
        let tunnel = &status.tunnels[0];
        assert_eq!(tunnel.outages, 1, "{}", lab.explain());
        assert!((6.0..8.0).contains(&tunnel.outage_s), "{}", lab.explain());
        assert!(tunnel.replayed > 0, "{}", lab.explain());
        assert_eq!(tunnel.hold_dropped_full, 0, "{}", lab.explain());
    }
}

#[test]
fn streams_go_on_soon_after_one_end_or_both_heard_nothing() {
    if !ready() {
        return;
    }
    let serial = Arc::new(serial().unwrap());
    // They mostly wait: all kinds at once, slow enough to leave the processors to others.
    let runs: Vec<_> = Outage::kinds(Duration::from_secs(8), 2, 2.0)
        .map(|outage| {
            let serial = serial.clone();
            (outage, std::thread::spawn(move || outage.run(serial)))
        })
        .collect();
    for (outage, run) in runs {
        let recovery = run.join().unwrap().unwrap();
        let byte = recovery.byte_ms.unwrap_or(f64::INFINITY);
        assert!(byte < SOON.as_secs_f64() * 1e3, "{outage:?}: {recovery:?}");
    }
}

#[test]
fn datagrams_come_late_but_never_older_than_two_seconds_and_once() {
    if !ready() {
        return;
    }
    let lab = Lab::new("hold-udp", two_links()).unwrap();
    let fine = ProbeSpec::fine(Direction::Download);
    let probe = Probe::start(&lab.topology.endpoints(), &fine).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    set_all(&lab, 2, true);
    std::thread::sleep(Duration::from_secs(5));
    set_all(&lab, 2, false);
    std::thread::sleep(Duration::from_secs(2));
    let report = probe.finish().unwrap().report();
    assert_eq!(report.duplicates, 0, "{report:?}");
    // What was sent in the last two of five seconds comes; a machine that stands still adds to it.
    assert!(
        (1_200.0..3_000.0).contains(&report.delay_ms.max),
        "{report:?}"
    );
    let missing = report.sent - report.received;
    assert!((150..400).contains(&missing), "{report:?}");
    let status = lab.hub.status().unwrap();
    assert!(status.tunnels[0].hold_dropped_old > 0, "{}", lab.explain());
}

#[test]
fn a_path_whose_end_is_announced_is_left_before_it_ends() {
    if !ready() {
        return;
    }
    let lab = Lab::new("leaving", two_links()).unwrap();
    let fine = ProbeSpec::fine(Direction::Download);
    let probe = Probe::start(&lab.topology.endpoints(), &fine).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let told = lab.site.run(&["path", "leaving", "up0"]).unwrap();
    assert!(told.status.success(), "{told:?}");
    let leaving = |status: &ropewalk_api::Status| {
        status
            .paths()
            .any(|path| path.uplink == "up0" && path.state == "leaving")
    };
    lab.site
        .wait_for("leaving path", PATIENCE, leaving)
        .unwrap();
    // The hub is told over the other path.
    std::thread::sleep(Duration::from_millis(500));
    let before = lab.hub.status().unwrap();
    lab.topology.cut(0, Cut::Blackhole).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let report = probe.finish().unwrap().report();
    assert_eq!(report.sent, report.received, "{report:?}; {before:?}");
    lab.topology.restore(0, Cut::Blackhole).unwrap();
    let unknown = lab.site.run(&["path", "leaving", "up9"]).unwrap();
    assert!(!unknown.status.success(), "{unknown:?}");
}

#[test]
fn streams_leave_a_path_whose_end_is_announced_before_it_ends() {
    if !ready() {
        return;
    }
    let lab = Lab::new("leaving-tcp", two_links()).unwrap();
    let spec = BulkSpec {
        amount: Amount::Time(Duration::from_secs(8)),
        ..BulkSpec::download(4, PATIENCE)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let sent = || {
        let status = lab.hub.status().unwrap();
        let path = status.paths().find(|path| path.uplink == "up0");
        path.unwrap().tx_bytes
    };
    let told = lab.site.run(&["path", "leaving", "up0", "--for", "30"]);
    assert!(told.unwrap().status.success());
    std::thread::sleep(Duration::from_millis(500));
    let before = sent();
    // The streams did use it: two seconds at 40 Mbit/s are 10 MB.
    assert!(before > 1_000_000, "{before}; {}", lab.explain());
    lab.topology.cut(0, Cut::Blackhole).unwrap();
    std::thread::sleep(SOON);
    let lost = sent() - before;
    // How long the streams pause says little: they crowd onto the other path, and wait for what is
    // lost there. What is sent to the path that is left says it: its probes, no streams.
    assert!(lost < LEFT_BYTES, "{lost} bytes; {}", lab.explain());
    whole(bulk.finish().unwrap()).unwrap();
}

#[test]
fn an_announcement_is_forgotten_in_time_and_can_be_taken_back() {
    if !ready() {
        return;
    }
    let lab = Lab::new("returning", two_links()).unwrap();
    let is = |state: &'static str| {
        move |status: &ropewalk_api::Status| {
            status
                .paths()
                .any(|path| path.uplink == "up0" && path.state == state)
        }
    };
    for (more, back) in [(vec!["--for", "1"], None), (vec![], Some("returning"))] {
        let leaving = [vec!["path", "leaving", "up0"], more].concat();
        assert!(lab.site.run(&leaving).unwrap().status.success());
        lab.site
            .wait_for("leaving path", PATIENCE, is("leaving"))
            .unwrap();
        if let Some(back) = back {
            let told = lab.site.run(&["path", back, "up0"]).unwrap();
            assert!(told.status.success(), "{told:?}");
        }
        lab.site
            .wait_for("path in use", PATIENCE, is("up"))
            .unwrap();
    }
    let wrong = lab.site.run(&["path", "leaving", "up0", "--for", "0"]);
    assert!(!wrong.unwrap().status.success());
}

#[test]
fn a_path_is_left_when_wpa_supplicant_says_that_it_ends() {
    if !ready() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let site = GatewaySpec {
        uplinks: format!("include = [\"up*\"]\nwpa_supplicant = {control:?}\n"),
        ..GatewaySpec::default()
    };
    let ground = Ground::new(&TopologySpec::new("supplicant", two_links())).unwrap();
    let lab = ground.connect(&GatewaySpec::default(), &site).unwrap();
    let is = |state: &'static str| {
        lab.site
            .wait_for(state, PATIENCE, |status: &ropewalk_api::Status| {
                let mut paths = status.paths();
                paths.any(|path| path.uplink == "up0" && path.state == state)
            })
            .unwrap();
    };
    // Its driver for wired links needs no radio; what it says of them is the same.
    let config = directory.path().join("wpa_supplicant.conf");
    let text = format!(
        "ctrl_interface={}\nap_scan=0\nnetwork={{\nkey_mgmt=NONE\n}}\n",
        control.display()
    );
    std::fs::write(&config, text).unwrap();
    let namespace = lab.topology.site();
    let mut supplicant = namespace
        .program("wpa_supplicant")
        .args(["-D", "wired", "-i", "up0", "-c"])
        .arg(&config)
        .start(directory.path(), "wpa_supplicant")
        .unwrap();
    let tell = |command: &str| {
        let cli = namespace.program("wpa_cli").arg("-p").arg(&control);
        cli.args(["-i", "up0", command]).success(PATIENCE).unwrap();
    };
    let listening = Instant::now();
    let log = || lab.site.process().map(Process::log).unwrap_or_default();
    while !log().contains("listening to wpa_supplicant") {
        assert!(listening.elapsed() < PATIENCE, "{}", lab.explain());
        std::thread::sleep(Duration::from_millis(50));
    }
    is("up");
    tell("disconnect");
    is("leaving");
    tell("reconnect");
    is("up");
    // What the user says, it does not take back.
    let told = lab.site.run(&["path", "leaving", "up0"]).unwrap();
    assert!(told.status.success(), "{told:?}");
    tell("disconnect");
    tell("reconnect");
    std::thread::sleep(Duration::from_millis(500));
    is("leaving");
    let told = lab.site.run(&["path", "returning", "up0"]).unwrap();
    assert!(told.status.success(), "{told:?}");
    is("up");
    assert!(supplicant.is_running());
}
