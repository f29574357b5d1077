//! A queue for each flow, served in turns, with CoDel in each (RFC 8290 §4).
//!
//! The turns are a deficit round robin. A flow that begins to send is *new* and goes before those
//! that have sent for longer. The caller takes packets out itself, so that a caller can look at the
//! packet whose turn it is and leave that packet where it is.

use crate::tuning::QUANTUM;
use crate::{CoDel, Verdict};
use ropewalk_types::{Buckets, Duration, Instant};
use std::collections::VecDeque;

/// What waits in a flow.
pub trait Queued {
    /// Length, bytes.
    fn bytes(&self) -> u64;
}

#[derive(Debug)]
struct Flow<T> {
    waiting: VecDeque<T>,
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

/// The queues of all flows. A flow is a number below that of the queues.
///
/// Invariant: a flow that has packets is in exactly one of the lists.
#[derive(Debug)]
pub struct FlowQueues<T> {
    flows: Buckets<Flow<T>>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    /// Set aside until the end of the round.
    skipped_new: Vec<u16>,
    skipped_old: Vec<u16>,
}

impl<T: Queued> FlowQueues<T> {
    /// So many empty queues.
    #[must_use]
    pub fn new(flows: usize) -> Self {
        Self {
            flows: Buckets::new(flows),
            new: VecDeque::new(),
            old: VecDeque::new(),
            skipped_new: Vec::new(),
            skipped_old: Vec::new(),
        }
    }

    /// Takes a packet in at the end of its flow.
    pub fn push(&mut self, flow: u16, packet: T) {
        let queue = &mut self.flows[flow];
        queue.bytes += packet.bytes();
        queue.waiting.push_back(packet);
        if !queue.listed {
            queue.listed = true;
            queue.deficit = QUANTUM;
            self.new.push_back(flow);
        }
    }

    /// The flow whose turn it is, if any packet waits.
    pub fn turn(&mut self) -> Option<u16> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            let index = *list.front()?;
            let flow = &mut self.flows[index];
            // A flow that ran empty in debt waits for its next turn, too, before it can be new.
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(index);
            } else if flow.waiting.is_empty() {
                list.pop_front();
                if from_new {
                    // A flow cannot jump the queue by sending one packet at a time.
                    self.old.push_back(index);
                } else {
                    flow.listed = false;
                }
            } else {
                return Some(index);
            }
        }
    }

    /// Counts bytes that left as part of the flow's turn. A packet that is dropped is not charged.
    pub fn charge(&mut self, flow: u16, bytes: u64) {
        self.flows[flow].deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
    }

    /// CoDel's verdict on a packet that has just left the flow and waited for `sojourn`.
    pub fn judge(
        &mut self,
        now: Instant,
        flow: u16,
        sojourn: Duration,
        parameters: (Duration, Duration),
    ) -> Verdict {
        let flow = &mut self.flows[flow];
        flow.codel.judge(now, sojourn, parameters, flow.bytes)
    }

    /// Sets the flow whose turn it is aside for this round, its credit and place kept.
    pub fn skip(&mut self) {
        if let Some(flow) = self.new.pop_front() {
            self.skipped_new.push(flow);
        } else if let Some(flow) = self.old.pop_front() {
            self.skipped_old.push(flow);
        }
    }

    /// Ends a round: the flows skipped in it stand first again, in their order.
    pub fn end_round(&mut self) {
        while let Some(flow) = self.skipped_new.pop() {
            self.new.push_front(flow);
        }
        while let Some(flow) = self.skipped_old.pop() {
            self.old.push_front(flow);
        }
    }

    /// Gives the memory of flows back in which nothing waits.
    pub fn forget(&mut self) {
        // Flows that ran empty leave the lists.
        let _turn = self.turn();
        self.flows
            .forget(|flow| flow.waiting.is_empty() && !flow.listed);
        if self.new.is_empty() && self.old.is_empty() {
            self.new = VecDeque::new();
            self.old = VecDeque::new();
        }
    }

    /// The flows that have their turns, new ones first. One of them may have run empty.
    pub fn listed(&self) -> impl Iterator<Item = u16> {
        self.new.iter().chain(&self.old).copied()
    }

    /// The flow with most bytes, which pays when all queues hold too much together (RFC 8290
    /// §4.1.3).
    #[must_use]
    pub fn fattest(&self) -> Option<u16> {
        self.listed().max_by_key(|&flow| self.bytes(flow))
    }

    /// Bytes that wait in a flow.
    #[must_use]
    pub fn bytes(&self, flow: u16) -> u64 {
        self.flows[flow].bytes
    }

    /// The oldest packet of a flow.
    #[must_use]
    pub fn front(&self, flow: u16) -> Option<&T> {
        self.flows[flow].waiting.front()
    }

    /// The newest packet of a flow.
    #[must_use]
    pub fn back(&self, flow: u16) -> Option<&T> {
        self.flows[flow].waiting.back()
    }

    /// Takes the oldest packet of a flow out.
    pub fn pop_front(&mut self, flow: u16) -> Option<T> {
        let flow = &mut self.flows[flow];
        let packet = flow.waiting.pop_front()?;
        flow.bytes -= packet.bytes();
        Some(packet)
    }

    /// Takes the newest packet of a flow out.
    pub fn pop_back(&mut self, flow: u16) -> Option<T> {
        let flow = &mut self.flows[flow];
        let packet = flow.waiting.pop_back()?;
        flow.bytes -= packet.bytes();
        Some(packet)
    }

    /// Everything that waits, flow by flow.
    pub fn into_packets(self) -> impl Iterator<Item = T> {
        self.flows.into_values().flat_map(|flow| flow.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Queued for u64 {
        fn bytes(&self) -> u64 {
            *self
        }
    }

    /// Lets packets leave until nothing waits; the flows in their order.
    fn drain(queues: &mut FlowQueues<u64>) -> Vec<u16> {
        let next = || {
            let flow = queues.turn()?;
            let bytes = queues.pop_front(flow)?;
            queues.charge(flow, bytes);
            Some(flow)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn backlogged_flows_get_equal_bytes_and_a_new_one_goes_first() {
        let mut queues = FlowQueues::new(4);
        for _ in 0..20 {
            queues.push(1, 1_514);
            queues.push(2, 757);
            queues.push(2, 757);
        }
        let mut bytes = [0; 3];
        for _ in 0..30 {
            let flow = queues.turn().unwrap();
            let length = queues.pop_front(flow).unwrap();
            queues.charge(flow, length);
            bytes[usize::from(flow)] += length;
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 2 * 1_514, "{bytes:?}");
        queues.push(3, 100);
        assert_eq!(queues.turn(), Some(3));
    }

    #[test]
    fn a_flow_that_ran_empty_in_debt_is_not_new_at_once() {
        let mut queues = FlowQueues::new(4);
        for (flow, packets) in [(1, 4), (2, 2)] {
            (0..packets).for_each(|_| queues.push(flow, 1_514));
        }
        // Both are served twice, and owe; the second has nothing left.
        for wanted in [1, 2, 1, 2] {
            let flow = queues.turn().unwrap();
            assert_eq!(flow, wanted);
            queues.pop_front(flow);
            queues.charge(flow, 1_514);
        }
        let _turn = queues.turn();
        queues.push(2, 1_514);
        queues.push(2, 1_514);
        assert_eq!(drain(&mut queues)[..3], [1, 2, 1]);
    }

    #[test]
    fn flows_that_ran_empty_give_their_memory_back() {
        let mut queues = FlowQueues::new(400);
        (0..400).for_each(|flow| queues.push(flow, 100));
        queues.forget();
        assert_eq!(queues.flows.allocated(), 400);
        assert_eq!(drain(&mut queues).len(), 400);
        queues.push(17, 100);
        queues.forget();
        assert_eq!(queues.flows.allocated(), 16, "one page");
        assert_eq!(drain(&mut queues), [17]);
        queues.forget();
        assert_eq!(queues.flows.allocated(), 0);
    }

    #[test]
    fn flows_set_aside_come_back_in_their_order() {
        let mut queues = FlowQueues::new(4);
        (0..3).for_each(|flow| queues.push(flow, 100 + u64::from(flow == 1)));
        assert_eq!(queues.fattest(), Some(1));
        queues.skip();
        queues.skip();
        assert_eq!(queues.turn(), Some(2));
        queues.end_round();
        assert_eq!(drain(&mut queues), [0, 1, 2]);
    }
}
