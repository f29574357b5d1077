//! What each scheduler does with the same packets over the same two paths, as recorded.
//!
//! Two flows have a backlog from the start, a third sends a small packet every 10 ms. After 40 ms
//! the window of path 0 shrinks to ten packets. Path 1 is faster and longer, and metered. Pacers
//! let two full packets go at once.
//! `UPDATE_GOLDEN=1` in the environment records anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use ropewalk_core::path::{PathConfig, SLOT_BYTES};
use ropewalk_core::protect::{Classes, Protection};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::TunnelConfig;
use ropewalk_testkit::tunnels::{PathSpec, TunnelEnd};
use ropewalk_testkit::{Pair, packet};
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::Datagram;

/// Packets of each flow with a backlog, and their bytes.
const BULK: (u32, usize) = (60, 1_250);
/// Packets of the flow without, and their bytes.
const SMALL: (u32, usize) = (12, 200);
/// Ports of the flows.
const FLOWS: [u16; 3] = [0, 1, 2];

fn run(scheduler: SchedulerKind) -> Pair<TunnelEnd> {
    let config = TunnelConfig {
        scheduler,
        probe_interval: None,
        classes: Classes::all(Protection::None).into(),
        hold: Default::default(),
        send: Default::default(),
    };
    let mut paths = [PathSpec::new(8, 25), PathSpec::new(16, 35)];
    paths[0].reports[0].cwnd = 40_000;
    paths[1].reports[0].cwnd = 90_000;
    let mut pair = Pair::tunnels([config.clone(), config], 1, &paths);
    for path in &mut pair.site.paths {
        path.burst = Some(2 * SLOT_BYTES);
    }
    let metered = PathConfig {
        metered: true,
        ..PathConfig::default()
    };
    pair.site.tunnel.set_path_config(PathId(1), metered);
    for number in 0..BULK.0 {
        for flow in &FLOWS[..2] {
            enter(&mut pair, *flow, number, BULK.1);
        }
    }
    pair.run(Duration::from_millis(5));
    for number in 0..SMALL.0 {
        enter(&mut pair, FLOWS[2], number, SMALL.1);
        pair.run(Duration::from_millis(10));
        if number == 3 {
            pair.site.paths[0].report.cwnd = 14_000;
        }
    }
    pair.run(Duration::from_secs(2));
    pair
}

fn enter(pair: &mut Pair<TunnelEnd>, flow: u16, number: u32, bytes: usize) {
    let now = pair.now();
    let data = packet::udp(number, flow, bytes);
    pair.site.tunnel.handle_inner(now, data, false);
}

/// Flow and number of a packet.
fn name(ip: &[u8]) -> (u16, u32) {
    (u16::from_be_bytes([ip[20], ip[21]]), packet::number(ip))
}

fn millis(at: Instant) -> String {
    let micros = at.as_nanos() / 1_000;
    format!("{}.{:03}", micros / 1_000, micros % 1_000)
}

/// A line for each packet that left, and one for each flow as it came out.
fn trace(pair: &Pair<TunnelEnd>) -> String {
    let mut trace = String::from("# ms flow#packet -> path\n");
    for (at, path, datagram) in &pair.site.sent {
        let Ok(Datagram::Data {
            header,
            at: payload,
        }) = Datagram::parse(datagram)
        else {
            continue;
        };
        let (flow, number) = name(&datagram[payload..]);
        let ordered = if header.ordered { " ordered" } else { "" };
        let copy = if header.copy { " copy" } else { "" };
        let ms = millis(*at);
        writeln!(trace, "{ms} f{flow}#{number} -> p{}{ordered}{copy}", path.0).expect("a string");
    }
    let mut flows: BTreeMap<u16, Vec<(Instant, u32)>> = BTreeMap::new();
    for (at, data) in &pair.hub.delivered {
        let (flow, number) = name(data);
        flows.entry(flow).or_default().push((*at, number));
    }
    for (flow, packets) in &flows {
        let overtaken = packets.windows(2).filter(|two| two[1].1 < two[0].1);
        let (count, overtaken) = (packets.len(), overtaken.count());
        let last = packets.last().map_or(Instant::ZERO, |last| last.0);
        let last = millis(last);
        writeln!(
            trace,
            "# flow {flow}: {count} packets, {overtaken} after a later one, the last at {last}"
        )
        .expect("a string");
    }
    trace
}

#[test]
fn every_scheduler_decides_as_recorded_and_delivers_what_the_queue_keeps() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for kind in SchedulerKind::ALL {
        let pair = run(kind);
        let queue = pair.site.tunnel.stats().queue;
        let arrived = pair.hub.delivered.len() as u64;
        let packets = u64::from(2 * BULK.0 + SMALL.0);
        assert_eq!(arrived + queue.dropped_codel, packets, "{kind}: {queue:?}");
        let file = directory.join(format!("{kind}.txt"));
        let trace = trace(&pair);
        if update {
            std::fs::write(&file, &trace).expect("a place for the trace");
            continue;
        }
        let recorded = std::fs::read_to_string(&file).expect("a recorded trace");
        for (line, (now, then)) in trace.lines().zip(recorded.lines()).enumerate() {
            assert_eq!(now, then, "{} line {}", file.display(), line + 1);
        }
        let (now, then) = (trace.lines().count(), recorded.lines().count());
        assert_eq!(now, then, "{}", file.display());
    }
}
