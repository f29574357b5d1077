//! One run: hosts, what joins them, and the events between them, in virtual time.
//!
//! Invariant: everything that happens at one instant is answered at that instant, in the order of
//! the events; nothing depends on a clock, an address or a hash map's order.

use crate::carrier::{Arrival, Carrier, Core};
use crate::engine::EventQueue;
use crate::events::Trace;
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
}

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
    span: Span,
    paths: usize,
    arrivals: Vec<Arrival>,
    outbox: Outbox,
    base: usize,
}

impl<C: Carrier> World<C> {
    /// A run that has not begun.
    pub fn new(carrier: C, flows: Vec<Flow>, sections: Vec<Section>, span: Span, paths: usize) -> Self {
        let base = carrier.components();
        let core = Core {
            now_ns: 0,
            queue: EventQueue::new(base + flows.len()),
            trace: Trace::default(),
        };
        Self {
            core,
            carrier,
            flows,
            sections,
            packets: 0,
            span,
            paths,
            arrivals: Vec::new(),
            outbox: Vec::new(),
            base,
        }
    }

    /// Runs to the end; the counters of all paths at the end of the warm-up and at the end.
    pub fn run(&mut self) -> (Snapshot, Snapshot) {
        for (index, flow) in self.flows.iter().enumerate() {
            self.core.queue.set(self.base + index, flow.due_ns());
        }
        self.carrier.settle(&mut self.core, &mut self.arrivals);
        let mut warm = None;
        while let Some((at_ns, component)) = self.core.queue.pop() {
            if warm.is_none() && at_ns >= self.span.warmup_ns {
                warm = Some(self.snapshot(self.span.warmup_ns));
                self.mark_warm();
            }
            if at_ns >= self.span.end_ns {
                break;
            }
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

    fn step(&mut self, component: usize) {
        match component.checked_sub(self.base) {
            None => self.carrier.wake(&mut self.core, component, &mut self.arrivals),
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
    }

    fn deliver(&mut self) {
        self.send();
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for (_, packet) in arrivals.drain(..) {
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
        for (direction, packet) in self.outbox.drain(..) {
            self.packets += 1;
            self.carrier.send(&mut self.core, direction, &packet);
        }
    }

    fn mark_warm(&mut self) {
        for flow in &mut self.flows {
            flow.mark_warm();
        }
    }

    fn snapshot(&mut self, at_ns: u64) -> Snapshot {
        let now = Instant::from_nanos(at_ns);
        (0..self.paths)
            .map(|path| Side::ALL.map(|side| self.carrier.counters(now, path, side)))
            .collect()
    }
}
