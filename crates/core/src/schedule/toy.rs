//! Tests only: a tiny deterministic tunnel of two paths, to record what a scheduler does.
//!
//! Each path is a serialiser with a rate and a delay, a window whose credit returns one round
//! trip later, and a pacer that lets two full packets stand in front of the serialiser. Two
//! flows have a backlog from the start, a third sends a small packet every 10 ms. The flows take
//! turns. At 40 ms the window of path 0 shrinks to ten packets. Path 1 is metered.

use super::{Decision, Head, Scheduler, SchedulerKind};
use crate::path::{PathConfig, PathView, SLOT_BYTES};
use core::fmt::Write;
use ropewalk_types::{Duration, Instant, PathId, Rate};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

/// A full packet of `flow`, nothing else waiting.
pub(super) fn head(flow: u16) -> Head {
    Head {
        flow,
        bytes: SLOT_BYTES,
        flow_backlog: SLOT_BYTES,
        backlog: SLOT_BYTES,
    }
}

/// A path of 8 Mbit/s with a window of 20 packets of which `free_slots` are free.
pub(super) fn view(id: u8, rtt_ms: u64, free_slots: u64) -> PathView {
    let rtt = Duration::from_millis(rtt_ms);
    PathView {
        id: PathId(id),
        config: PathConfig::default(),
        srtt: rtt,
        rttvar: rtt / 10,
        min_rtt: rtt,
        owd_relative: Duration::ZERO,
        cwnd: 20 * SLOT_BYTES,
        in_flight: (20 - free_slots) * SLOT_BYTES,
        queued: 0,
        free: free_slots * SLOT_BYTES,
        next_credit: None,
        rate: Rate::from_bits_per_sec(8_000_000),
        payload_max: 1_400,
        loss: 0.0,
    }
}

struct Path {
    rate: Rate,
    delay: Duration,
    cwnd: u64,
    in_flight: u64,
    busy_until: Instant,
}

impl Path {
    fn view(&self, now: Instant, id: u8, fastest: Duration) -> PathView {
        let standing = self.rate.bytes_in(self.busy_until.since(now));
        let paced = (2 * SLOT_BYTES).saturating_sub(standing);
        let window = self.cwnd.saturating_sub(self.in_flight);
        let slot = self.rate.time_for(SLOT_BYTES);
        let pacer_blocks = paced < SLOT_BYTES && window >= SLOT_BYTES;
        PathView {
            owd_relative: self.owd(now) - fastest,
            cwnd: self.cwnd,
            in_flight: self.in_flight,
            free: window.min(paced),
            next_credit: pacer_blocks.then(|| self.busy_until - slot),
            rate: self.rate,
            rttvar: Duration::from_millis(2),
            config: PathConfig {
                metered: id == 1,
                ..PathConfig::default()
            },
            ..view(id, u64::try_from((self.delay * 2).as_millis()).unwrap(), 0)
        }
    }

    fn owd(&self, now: Instant) -> Duration {
        self.busy_until.since(now) + self.delay
    }
}

enum Event {
    Acknowledged { path: usize, bytes: u64 },
    Small,
    Shrink,
}

struct Toy {
    now: Instant,
    scheduler: Scheduler,
    paths: [Path; 2],
    /// Packet number and length.
    flows: [VecDeque<(u64, u64)>; 3],
    turn: usize,
    /// Earliest instant a decision or a pacer named in the last round.
    wake: Option<Instant>,
    events: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    trace: String,
    /// Arrival by flow and packet number.
    arrivals: [BTreeMap<u64, Instant>; 3],
}

const BULK_PACKETS: u64 = 60;
const SMALL_PACKETS: u64 = 12;
const SMALL_BYTES: u64 = 200;

impl Toy {
    fn new(kind: SchedulerKind) -> Self {
        let path = |mbit: u64, delay_ms: u64, slots: u64| Path {
            rate: Rate::from_bits_per_sec(mbit * 1_000_000),
            delay: Duration::from_millis(delay_ms),
            cwnd: slots * SLOT_BYTES,
            in_flight: 0,
            busy_until: Instant::ZERO,
        };
        let bulk = || {
            (0..BULK_PACKETS)
                .map(|number| (number, SLOT_BYTES))
                .collect()
        };
        let mut toy = Self {
            now: Instant::ZERO,
            scheduler: Scheduler::new(kind),
            paths: [path(8, 25, 40), path(16, 35, 110)],
            flows: [bulk(), bulk(), VecDeque::new()],
            turn: 0,
            wake: None,
            events: BTreeMap::new(),
            serial: 0,
            trace: String::from("# ms flow#packet -> path arrival_ms, or what the answer was\n"),
            arrivals: Default::default(),
        };
        for number in 0..SMALL_PACKETS {
            toy.at(Instant::from_millis(5 + 10 * number), Event::Small);
        }
        toy.at(Instant::from_millis(40), Event::Shrink);
        toy
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    fn views(&self) -> [PathView; 2] {
        let fastest = self
            .paths
            .iter()
            .map(|path| path.owd(self.now))
            .min()
            .unwrap();
        [0, 1].map(|id| self.paths[usize::from(id)].view(self.now, id, fastest))
    }

    fn run(mut self) -> String {
        let mut small = 0;
        self.schedule();
        loop {
            let next = self.events.keys().next().map(|(at, _)| *at);
            let Some(at) = next.into_iter().chain(self.wake).min() else {
                break;
            };
            assert!(at < Instant::from_millis(2_000), "stalled:\n{}", self.trace);
            self.now = at;
            if next == Some(at) {
                match self.events.pop_first().unwrap().1 {
                    Event::Acknowledged { path, bytes } => self.paths[path].in_flight -= bytes,
                    Event::Small => {
                        self.flows[2].push_back((small, SMALL_BYTES));
                        small += 1;
                    }
                    Event::Shrink => self.paths[0].cwnd = 10 * SLOT_BYTES,
                }
            }
            self.schedule();
        }
        assert!(
            self.flows.iter().all(VecDeque::is_empty),
            "packets left:\n{}",
            self.trace
        );
        self.summarise();
        self.trace
    }

    /// Offers the heads of the flows in turn until all wait.
    fn schedule(&mut self) {
        self.wake = None;
        let mut refused = 0;
        while refused < self.flows.len() {
            let flow = self.turn % self.flows.len();
            self.turn += 1;
            let backlog = self.flows.iter().flatten().map(|(_, bytes)| bytes).sum();
            let Some(&(number, bytes)) = self.flows[flow].front() else {
                refused += 1;
                continue;
            };
            let head = Head {
                flow: u16::try_from(flow).unwrap(),
                bytes,
                flow_backlog: self.flows[flow].iter().map(|(_, bytes)| bytes).sum(),
                backlog,
            };
            match self.scheduler.pick(self.now, &head, &self.views()) {
                Decision::Send(set) => {
                    refused = 0;
                    self.flows[flow].pop_front();
                    for id in set.iter() {
                        self.send(&head, number, usize::from(id.0));
                    }
                    if self.flows[flow].is_empty() {
                        self.scheduler.on_flow_idle(head.flow);
                    }
                }
                Decision::WaitFlow(until) => {
                    refused += 1;
                    let until_text = until.map_or("credit".into(), millis);
                    writeln!(
                        self.trace,
                        "{} f{flow}#{number} waits for {until_text}",
                        self.ms()
                    )
                    .unwrap();
                    if let Some(until) = until {
                        assert!(until > self.now, "a wait must end later than now");
                        self.wake_by(until);
                    }
                }
                Decision::WaitAll => break,
            }
        }
        if self.flows.iter().any(|flow| !flow.is_empty()) {
            let credit = self
                .views()
                .iter()
                .filter_map(|view| view.next_credit)
                .min();
            if let Some(at) = credit.filter(|at| *at > self.now) {
                self.wake_by(at);
            }
        }
    }

    fn wake_by(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn send(&mut self, head: &Head, number: u64, id: usize) {
        let view = &self.views()[id];
        assert!(view.free >= head.bytes, "sent into a full path");
        self.scheduler.on_sent(self.now, head, view);
        let order = if self.scheduler.must_order(head.flow) {
            " ordered"
        } else {
            ""
        };
        let path = &mut self.paths[id];
        path.busy_until = path.busy_until.max(self.now) + path.rate.time_for(head.bytes);
        path.in_flight += head.bytes;
        let arrival = path.busy_until + path.delay;
        let acknowledged = arrival + path.delay;
        self.at(
            acknowledged,
            Event::Acknowledged {
                path: id,
                bytes: head.bytes,
            },
        );
        let (now, flow) = (self.ms(), head.flow);
        writeln!(
            self.trace,
            "{now} f{flow}#{number} -> p{id} {}{order}",
            millis(arrival)
        )
        .unwrap();
        let first = self.arrivals[usize::from(flow)]
            .entry(number)
            .or_insert(arrival);
        *first = arrival.min(*first);
    }

    fn summarise(&mut self) {
        for (flow, arrivals) in self.arrivals.iter().enumerate() {
            let mut newest = Instant::ZERO;
            let mut overtaken = 0;
            for arrival in arrivals.values() {
                overtaken += u32::from(*arrival < newest);
                newest = newest.max(*arrival);
            }
            let count = arrivals.len();
            writeln!(
                self.trace,
                "# flow {flow}: {count} packets, {overtaken} overtook, last arrival {}",
                millis(newest)
            )
            .unwrap();
        }
    }

    fn ms(&self) -> String {
        millis(self.now)
    }
}

fn millis(at: Instant) -> String {
    let micros = at.as_nanos() / 1_000;
    format!("{}.{:03}", micros / 1_000, micros % 1_000)
}

/// Compares the trace of `kind` with the recorded one; with `UPDATE_GOLDEN` set in the
/// environment, records it instead.
pub(super) fn golden(name: &str, kind: SchedulerKind) {
    let trace = Toy::new(kind).run();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/schedule/golden");
    let file = directory.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &trace).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(&file).expect("a recorded trace");
    for (line, (now, then)) in trace.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(now, then, "{} line {}", file.display(), line + 1);
    }
    assert_eq!(
        trace.lines().count(),
        recorded.lines().count(),
        "{}",
        file.display()
    );
}
