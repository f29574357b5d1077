//! What a run writes beside its report: events, packets, delays.

use ropewalk_plan::{Carrier, Plan};
use ropewalk_sim::run::Options;
use ropewalk_sim::{LogFile, SimError, events, run, run_with};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const PATHS: &str = r#"
    [[path]]
    name = "a"
    both = { rate = "16Mbit", delay = "25ms", queue = "128KiB", loss = "1%" }
    [[path]]
    name = "b"
    both = { rate = "8Mbit", delay = "35ms", queue = "128KiB" }
"#;

fn plan(carrier: &str, traffic: &str) -> Plan {
    let text = format!(
        "name = \"test\"\nduration = \"2s\"\n{PATHS}\n[carrier]\n{carrier}\n[[traffic]]\n{traffic}"
    );
    Plan::parse(&text).expect("a valid plan")
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one writer").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines of the log of a run that is the same without a log.
fn log(plan: &Plan) -> Vec<Value> {
    let sink = Sink::default();
    let options = Options {
        events: Some(Box::new(sink.clone())),
        ..Options::default()
    };
    let logged = run_with(plan, 1, options).expect("a run");
    assert_eq!(logged.trace_hash, run(plan, 1).expect("a run").trace_hash);
    let bytes = sink.0.lock().expect("one writer").clone();
    let text = String::from_utf8(bytes).expect("text");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn the_log_shows_the_way_of_every_packet() {
    let lines = log(&plan("kind = \"tunnel\"", "kind = \"tcp\""));
    let header = &lines[0];
    assert_eq!(header["schema"], events::SCHEMA);
    assert_eq!(header["version"], events::VERSION);
    assert_eq!(header["paths"], serde_json::json!(["a", "b"]));
    let mut names = BTreeMap::<&str, usize>::new();
    let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
    let mut used = BTreeSet::new();
    let mut before = 0.0;
    for line in &lines[1..] {
        let time = line["time"].as_f64().expect("a time");
        assert!(time >= before, "{line}");
        before = time;
        let name = line["event"].as_str().expect("a name");
        *names.entry(name).or_default() += 1;
        let key = |member: &str| line[member].to_string();
        let place = (key("direction"), key("path"), key("path_seq"));
        if name == "tunnel_sent" {
            for member in [
                "srtt_ms",
                "cwnd",
                "in_flight",
                "queued",
                "backlog",
                "rate_mbit",
            ] {
                assert!(line[member].is_number(), "{member}: {line}");
            }
            if line["kind"] == "data" && line["direction"] == "down" {
                assert!(line["flow"] == 0 && line["segment"].is_u64(), "{line}");
                used.insert(key("path"));
            }
            sent.insert(place);
        } else if name == "tunnel_received" {
            received.insert(place);
        }
    }
    for name in [
        "host_sent",
        "host_received",
        "tunnel_sent",
        "tunnel_received",
        "link_delivered",
    ] {
        assert!(names[name] > 500, "{name}: {names:?}");
    }
    for name in ["link_dropped", "window", "scheduler"] {
        assert!(names[name] > 0, "{name}: {names:?}");
    }
    assert_eq!(used.len(), 2, "both paths are chosen");
    // What was received had been sent before; what was lost is missing. What the first instants
    // bring was sent before the run began.
    let strange = received.difference(&sent).count();
    assert!(strange < 10, "{strange} of {} never sent", received.len());
    assert!(sent.len() > received.len(), "some are lost or under way");
}

#[test]
fn the_log_knows_packets_whose_headers_are_compressed() {
    let lines = log(&plan(
        "kind = \"tunnel\"\ncompress_headers = true",
        "kind = \"tcp\"",
    ));
    let mut count = BTreeMap::<(&str, &str), usize>::new();
    for line in lines.iter().filter(|line| line["kind"] == "data") {
        let content = if line["direction"] == "down" {
            "segment"
        } else {
            "ack"
        };
        assert!(line["flow"] == 0 && line[content].is_u64(), "{line}");
        let event = line["event"].as_str().expect("a name");
        *count.entry((event, content)).or_default() += 1;
    }
    assert_eq!(
        count.len(),
        4,
        "sent and received, data and acknowledgements"
    );
    assert!(count.values().all(|&count| count > 200), "{count:?}");
    let announced = lines.iter().any(|line| line["kind"] == "headers");
    assert!(announced, "nothing was compressed");
}

#[test]
fn a_log_without_a_tunnel_has_the_delay_of_every_packet_of_data() {
    let lines = log(&plan("kind = \"direct\"", "kind = \"quic\""));
    let received = lines.iter().filter(|line| line["event"] == "host_received");
    let delays: Vec<f64> = received
        .filter_map(|line| line["delay_ms"].as_f64())
        .collect();
    assert!(delays.len() > 200);
    assert!(delays.iter().all(|ms| (25.0..200.0).contains(ms)));
    let report = run(&plan("kind = \"direct\"", "kind = \"quic\""), 1).expect("a run");
    let delay = report.traffic[0].delay_ms.expect("delays");
    assert_eq!(delay.count as usize, delays.len());
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    assert!((delay.mean - mean).abs() < 0.01, "{} of {mean}", delay.mean);
}

#[test]
fn packets_of_every_interface_are_in_files() {
    let directory = std::env::temp_dir().join(format!("ropewalk-pcap-{}", std::process::id()));
    for carrier in ["direct", "tunnel", "mptcp"] {
        let options = Options {
            pcap: Some(directory.clone()),
            ..Options::default()
        };
        let plan = plan(&format!("kind = \"{carrier}\""), "kind = \"tcp\"");
        let report = run_with(&plan, 1, options).expect("a run");
        assert!(
            report.notes.iter().all(|note| !note.contains("pcap")),
            "{report:?}"
        );
        let count = |name: &str| {
            let bytes = std::fs::read(directory.join(name)).expect(name);
            assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
            let (mut at, mut packets) = (24, 0);
            while at < bytes.len() {
                let kept = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("four"));
                let ip = &bytes[at + 16..];
                assert_eq!(ip[0], 0x45, "{name}: packet {packets}");
                at += 16 + kept as usize;
                packets += 1;
            }
            packets
        };
        let (left, came) = (count("host-server.pcap"), count("host-site.pcap"));
        assert!(left > 200 && came > 200, "{carrier}: {left}, {came}");
        let b = count("path-b-hub.pcap");
        assert_eq!(b == 0, carrier == "direct", "{carrier}: {b} packets");
    }
    std::fs::remove_dir_all(&directory).expect("files of our own");
}

/// A directory of our own with the events of an earlier run in it.
fn former(name: &str) -> (PathBuf, PathBuf) {
    let directory = std::env::temp_dir().join(format!("ropewalk-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let events = directory.join("events.jsonl");
    std::fs::write(&events, "former").expect("a file");
    (directory, events)
}

#[test]
fn a_plan_that_is_refused_leaves_former_output_as_it_is() {
    let (directory, events) = former("refused");
    let missing = plan("kind = \"direct\"", "kind = \"tcp\"\nbeside = \"b\"");
    let mut lacks_trace = plan("kind = \"tunnel\"", "kind = \"tcp\"");
    lacks_trace.path[0].both.rate = None;
    lacks_trace.path[0].both.trace = Some("not-there.csv".into());
    // As from a program that makes its plan by itself: one that is read says so at once.
    let mut wrong = plan("kind = \"tunnel\"", "kind = \"tcp\"");
    if let Carrier::Tunnel(tunnel) = &mut wrong.carrier {
        tunnel.scheduler = Some("no".into());
    }
    for plan in [missing, lacks_trace, wrong] {
        let options = Options {
            events: Some(Box::new(LogFile::new(events.clone()))),
            pcap: Some(directory.join("packets")),
            ..Options::default()
        };
        let error = run_with(&plan, 1, options).expect_err("refused");
        assert!(!matches!(error, SimError::Output(_)), "{error}");
        assert_eq!(std::fs::read(&events).expect("there"), b"former", "{error}");
        assert!(!directory.join("packets").exists(), "{error}");
    }
    std::fs::remove_dir_all(&directory).expect("files of our own");
}

#[test]
fn output_that_cannot_be_written_is_an_error_that_names_the_file() {
    let plan = plan("kind = \"direct\"", "kind = \"ping\"");
    let full = "/dev/full";
    for (events, pcap, name) in [
        (Some(full), None, full),
        (Some("/nonexist/x"), None, "/nonexist/x"),
        (None, Some("/dev/null/x"), "/dev/null/x"),
    ] {
        let events = events.map(|file| Box::new(LogFile::new(file.into())) as _);
        let options = Options {
            events,
            pcap: pcap.map(Into::into),
            ..Options::default()
        };
        let error = run_with(&plan, 1, options).expect_err("not written");
        assert!(matches!(error, SimError::Output(_)), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}
