//! FQ-CoDel as Linux has it: a queue for each flow, served in turns (RFC 8290).

use std::collections::VecDeque;

use ropewalk_aqm::tuning::FLOW_BUCKETS;
use ropewalk_aqm::{FlowQueues, Queued, Verdict};
use ropewalk_types::{Duration, Ecn, Instant};

use super::{Carried, Waiting};

impl<T> Queued for Waiting<T> {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// All flows of a direction.
#[derive(Debug)]
pub(super) struct Fair<T>(FlowQueues<Waiting<T>>);

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Self(FlowQueues::new(FLOW_BUCKETS))
    }
}

impl<T: Carried> Fair<T> {
    pub(super) fn push(&mut self, packet: Waiting<T>) {
        let hash = packet.item.flow() % FLOW_BUCKETS as u64;
        self.0.push(u16::try_from(hash).unwrap_or(0), packet);
    }

    /// Drops the oldest packet of the flow with most bytes (RFC 8290 §4.1.3).
    pub(super) fn drop_from_fattest(&mut self) -> Option<Waiting<T>> {
        self.0.pop_front(self.0.fattest()?)
    }

    /// The packet whose turn it is, with CoDel's verdict on it; `marks` says whether the caller
    /// marks instead of dropping.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        parameters: (Duration, Duration),
        marks: bool,
    ) -> Option<(Waiting<T>, Verdict)> {
        let flow = self.0.turn()?;
        let packet = self.0.pop_front(flow)?;
        let sojourn = now.since(packet.arrived);
        let verdict = self.0.judge(now, flow, sojourn, parameters);
        // A packet that is dropped does not use up the flow's turn.
        let marked = marks && packet.item.ecn() != Ecn::NotEct;
        if verdict == Verdict::Pass || marked {
            self.0.charge(flow, packet.bytes);
        }
        Some((packet, verdict))
    }

    /// Everything that waits in the order in which it came.
    pub(super) fn into_arrivals(self) -> VecDeque<Waiting<T>> {
        let mut waiting: Vec<_> = self.0.into_packets().collect();
        waiting.sort_by_key(|packet| packet.arrived);
        waiting.into()
    }
}
