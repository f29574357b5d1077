//! One run: hosts, what joins them, and the events between them, in virtual time.
//!
//! Invariants: everything that happens at one instant is answered at that instant, in the order of
//! the events. Nothing depends on a clock, an address or a hash map's order.

use crate::carrier::{Arrival, Carrier, Core, observer};
use crate::engine::EventQueue;
use crate::events::Trace;
use crate::host::MS;
use crate::packet::Packet;
use crate::traffic::Outbox;
use crate::traffic::flow::Flow;
use crate::traffic::section::Section;
use ropewalk_netem::{Counters, Side};
use ropewalk_types::Instant;

/// When a run starts and stops counting, and ends.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// What happens before does not count.
    pub warmup_ns: u64,
    /// The run ends.
    pub end_ns: u64,
    /// The direction in which buffers are looked at, if they are.
    pub watched: Option<Side>,
}

/// How often the log looks at what schedulers say.
const REASON_INTERVAL_NS: u64 = 10 * MS;

/// How often buffers are looked at.
const WATCH_INTERVAL_NS: u64 = 500 * MS;

/// Counters of a path in both directions at one time.
pub type Snapshot = Vec<[Counters; 2]>;

/// A run under way.
pub struct World<C> {
    pub core: Core,
    pub carrier: C,
    pub flows: Vec<Flow>,
    pub sections: Vec<Section>,
    /// Packets hosts sent.
    pub packets: u64,
    /// Packets in each link's queue, then in each gateway's send buffer, at every look.
    pub watched: Vec<Vec<u32>>,
    span: Span,
    paths: usize,
    arrivals: Vec<Arrival>,
    outbox: Outbox,
    base: usize,
    log: LogState,
}

/// What hosts send.
pub struct Hosts {
    /// All flows.
    pub flows: Vec<Flow>,
    /// The plan's sections they belong to.
    pub sections: Vec<Section>,
}

/// What was last written to the log.
#[derive(Default)]
struct LogState {
    windows: Vec<u32>,
    reasons: [String; 2],
    due_ns: u64,
}

/// Wake-ups at one instant beyond which something is wrong.
const AT_ONCE_MAX: u32 = 10_000_000;

impl<C: Carrier> World<C> {
    /// A run that has not begun.
    pub fn new(carrier: C, traffic: Hosts, span: Span, paths: usize, trace: Trace) -> Self {
        let base = carrier.components();
        let Hosts { flows, sections } = traffic;
        let core = Core {
            now_ns: 0,
            queue: EventQueue::new(base + flows.len()),
            trace,
            first: 0,
        };
        Self {
            core,
            carrier,
            flows,
            sections,
            packets: 0,
            watched: Vec::new(),
            span,
            paths,
            arrivals: Vec::new(),
            outbox: Vec::new(),
            base,
            log: LogState::default(),
        }
    }

    /// Runs to the end; the counters of all paths at the end of the warm-up and at the end.
    pub fn run(&mut self) -> (Snapshot, Snapshot) {
        for (index, flow) in self.flows.iter().enumerate() {
            self.core.queue.set(self.base + index, flow.due_ns());
        }
        self.carrier.settle(&mut self.core, &mut self.arrivals);
        let mut warm = None;
        let mut at_once = 0_u32;
        while let Some((at_ns, component)) = self.core.queue.pop() {
            if warm.is_none() && at_ns >= self.span.warmup_ns {
                warm = Some(self.snapshot(self.span.warmup_ns));
                self.mark_warm();
            }
            if at_ns >= self.span.end_ns {
                break;
            }
            self.watch(at_ns);
            at_once = if at_ns == self.core.now_ns {
                at_once + 1
            } else {
                0
            };
            // Better loud than endless: a component asks to be woken for nothing.
            assert!(
                at_once < AT_ONCE_MAX,
                "simulator: component {component} stands still at {at_ns} ns; please report the plan"
            );
            self.core.now_ns = at_ns;
            self.step(component);
        }
        if warm.is_none() {
            self.mark_warm();
        }
        self.core.now_ns = self.span.end_ns;
        let end = self.snapshot(self.span.end_ns);
        (warm.unwrap_or_else(|| end.clone()), end)
    }

    /// Looks at the buffers as often as is due by `at_ns`: since the last event nothing but links
    /// has gone on.
    fn watch(&mut self, at_ns: u64) {
        let Some(side) = self.span.watched else {
            return;
        };
        while self.watched.len() as u64 * WATCH_INTERVAL_NS <= at_ns {
            let look_ns = self.watched.len() as u64 * WATCH_INTERVAL_NS;
            let now = Instant::from_nanos(look_ns);
            let queued = (0..self.paths)
                .map(|path| self.carrier.counters(now, path, side).queued_packets)
                .collect::<Vec<_>>();
            let waiting = self.carrier.waiting_by_hop(side);
            let all = queued
                .into_iter()
                .chain(waiting.into_iter().map(|n| n as u64));
            let count = |packets: u64| u32::try_from(packets).unwrap_or(u32::MAX);
            self.watched.push(all.map(count).collect());
        }
    }

    fn step(&mut self, component: usize) {
        match component.checked_sub(self.base) {
            None => self
                .carrier
                .wake(&mut self.core, component, &mut self.arrivals),
            Some(flow) => {
                self.flows[flow].on_timer(self.core.now_ns, &mut self.outbox);
                self.after(flow);
            }
        }
        // Answers may arrive at once where links take no time; each round serves what came.
        loop {
            self.deliver();
            self.carrier.settle(&mut self.core, &mut self.arrivals);
            if self.arrivals.is_empty() {
                break;
            }
        }
        if self.core.trace.logs() {
            self.log_state();
        }
    }

    /// Logs windows and scheduler reasons that have changed.
    fn log_state(&mut self) {
        let now_ns = self.core.now_ns;
        self.log.windows.resize(self.flows.len(), 0);
        for (index, (flow, known)) in self.flows.iter().zip(&mut self.log.windows).enumerate() {
            let window = flow.cwnd();
            if window != *known {
                *known = window;
                let data = format_args!("\"flow\":{index},\"cwnd\":{window}");
                self.core.trace.event(now_ns, "window", data);
            }
        }
        if now_ns < self.log.due_ns {
            return;
        }
        self.log.due_ns = now_ns + REASON_INTERVAL_NS;
        for (direction, known) in Side::ALL.into_iter().zip(&mut self.log.reasons) {
            let report = self.carrier.tunnel_report(direction);
            if let Some(report) = report.filter(|report| report.reason != *known) {
                let text = serde_json::Value::from(report.reason.as_str());
                let direction = observer::direction(direction);
                let data = format_args!("\"direction\":\"{direction}\",\"reason\":{text}");
                self.core.trace.event(now_ns, "scheduler", data);
                *known = report.reason;
            }
        }
    }

    /// A packet leaves its host, or is at the other one.
    fn note(&mut self, leaves: bool, direction: Side, packet: &Packet) {
        let now_ns = self.core.now_ns;
        if let Some(capture) = &mut self.core.trace.capture {
            capture.host(now_ns, direction, leaves, packet);
        }
        if self.core.trace.logs() {
            self.core.trace.host(now_ns, leaves, direction, packet);
        }
    }

    fn deliver(&mut self) {
        self.send();
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for (direction, packet) in arrivals.drain(..) {
            if self.core.trace.notes() {
                self.note(false, direction, &packet);
            }
            self.arrive(&packet);
            self.send();
        }
        self.arrivals = arrivals;
    }

    fn arrive(&mut self, packet: &Packet) {
        let index = usize::from(packet.flow);
        let Some(flow) = self.flows.get_mut(index) else {
            return;
        };
        let before = flow.delivered_bytes();
        flow.on_packet(self.core.now_ns, packet, &mut self.outbox);
        let news = flow.delivered_bytes() - before;
        if news > 0 {
            let section = flow.section();
            self.sections[section].on_delivered(self.core.now_ns, news);
        }
        self.after(index);
    }

    /// Sets the flow's deadline.
    fn after(&mut self, flow: usize) {
        let due_ns = self.flows[flow].due_ns();
        self.core
            .queue
            .set(self.base + flow, due_ns.max(self.core.now_ns));
    }

    fn send(&mut self) {
        let mut outbox = std::mem::take(&mut self.outbox);
        for (direction, packet) in outbox.drain(..) {
            self.packets += 1;
            if self.core.trace.notes() {
                self.note(true, direction, &packet);
            }
            self.carrier.send(&mut self.core, direction, &packet);
        }
        self.outbox = outbox;
    }

    fn mark_warm(&mut self) {
        for flow in &mut self.flows {
            flow.mark_warm();
        }
        self.carrier.mark_warm();
    }

    fn snapshot(&mut self, at_ns: u64) -> Snapshot {
        let now = Instant::from_nanos(at_ns);
        (0..self.paths)
            .map(|path| Side::ALL.map(|side| self.carrier.counters(now, path, side)))
            .collect()
    }
}
