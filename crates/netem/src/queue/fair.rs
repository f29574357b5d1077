//! A queue for each flow, served in turns, with CoDel in each (RFC 8290 §4).

use std::collections::VecDeque;

use ropewalk_aqm::tuning::{FLOW_BUCKETS, QUANTUM};
use ropewalk_aqm::{CoDel, Verdict};
use ropewalk_types::{Duration, Ecn, Instant};

use super::{Carried, Waiting};

/// One bucket of flows.
#[derive(Debug)]
struct Flow<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: u64,
    deficit: i64,
    codel: CoDel,
    listed: bool,
}

impl<T> Default for Flow<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            codel: CoDel::default(),
            listed: false,
        }
    }
}

/// All flows of a direction. Invariant: a flow that has packets is in exactly one of the lists.
#[derive(Debug)]
pub(super) struct Fair<T> {
    flows: Vec<Flow<T>>,
    /// Flows that have just become active go first (RFC 8290 §4.2).
    new: VecDeque<usize>,
    old: VecDeque<usize>,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        let mut flows = Vec::new();
        flows.resize_with(FLOW_BUCKETS, Flow::default);
        Self {
            flows,
            new: VecDeque::new(),
            old: VecDeque::new(),
        }
    }
}

impl<T: Carried> Fair<T> {
    pub(super) fn push(&mut self, packet: Waiting<T>) {
        let hash = packet.item.flow() % FLOW_BUCKETS as u64;
        let index = usize::try_from(hash).unwrap_or(0);
        let flow = &mut self.flows[index];
        flow.bytes += packet.bytes;
        flow.waiting.push_back(packet);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = QUANTUM;
            self.new.push_back(index);
        }
    }

    /// Drops the oldest packet of the flow with most bytes (RFC 8290 §4.1.3).
    pub(super) fn drop_from_fattest(&mut self) -> Option<Waiting<T>> {
        let listed = self.new.iter().chain(&self.old);
        let fattest = *listed.max_by_key(|&&index| self.flows[index].bytes)?;
        let flow = &mut self.flows[fattest];
        let packet = flow.waiting.pop_front()?;
        flow.bytes -= packet.bytes;
        Some(packet)
    }

    /// The packet whose turn it is, with CoDel's verdict on it; `marks` says whether the caller
    /// marks instead of dropping.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        parameters: (Duration, Duration),
        marks: bool,
    ) -> Option<(Waiting<T>, Verdict)> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            let index = *list.front()?;
            let flow = &mut self.flows[index];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            let Some(packet) = flow.waiting.pop_front() else {
                list.pop_front();
                if from_new {
                    // A flow cannot jump the queue by sending one packet at a time.
                    self.old.push_back(index);
                } else {
                    flow.listed = false;
                }
                continue;
            };
            flow.bytes -= packet.bytes;
            let sojourn = now.since(packet.arrived);
            let verdict = flow.codel.judge(now, sojourn, parameters, flow.bytes);
            // A packet that is dropped does not use up the flow's turn.
            let marked = marks && packet.item.ecn() != Ecn::NotEct;
            if verdict == Verdict::Pass || marked {
                flow.deficit -= i64::try_from(packet.bytes).unwrap_or(i64::MAX);
            }
            return Some((packet, verdict));
        }
    }

    /// Everything that waits in the order in which it came.
    pub(super) fn into_arrivals(self) -> VecDeque<Waiting<T>> {
        let flows = self.flows.into_iter();
        let mut waiting: Vec<_> = flows.flat_map(|flow| flow.waiting).collect();
        waiting.sort_by_key(|packet| packet.arrived);
        waiting.into()
    }
}
