//! The receiving side: order, delayed and selective acknowledgements (RFC 5681 §4.2, RFC 2018).

use crate::host::MS;
use crate::host::ranges::Ranges;
use crate::packet::Ack;

/// Longest delay of an acknowledgement (Linux `TCP_DELACK_MIN`).
const DELAY_NS: u64 = 40 * MS;
/// Segments acknowledged one by one at the start of a connection (Linux quick acknowledgements).
const QUICK_SEGMENTS: u32 = 16;
/// Segments acknowledged one by one after the first mark (Linux).
const QUICK_AFTER_MARK: u32 = 2;
/// Blocks beside timestamps (RFC 2018 §3).
const BLOCKS: usize = 3;

/// One connection's receiver.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    next: u32,
    beyond: Ranges,
    /// First segments of blocks, the most recently changed first.
    recent: Vec<u32>,
    /// Clock of the segment that moved `next`.
    echo: u32,
    unacknowledged: u32,
    quick_left: u32,
    due_ns: Option<u64>,
    /// A gap was open when the last acknowledgement left.
    gap: bool,
    /// A segment came marked, and the sender has not said since that it has answered.
    congested: bool,
}

impl Receiver {
    /// A receiver that expects segment zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            quick_left: QUICK_SEGMENTS,
            ..Self::default()
        }
    }

    /// Segments delivered in order so far.
    #[must_use]
    pub const fn delivered(&self) -> u32 {
        self.next
    }

    /// When an acknowledgement is due that was delayed.
    #[must_use]
    pub const fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Reads the marks of a segment before it is taken in: whether it came with "congestion
    /// experienced", and whether the sender says that it has reduced its window (RFC 3168 §6.1.3).
    pub fn on_marks(&mut self, experienced: bool, reduced: bool) {
        if reduced {
            self.congested = false;
        }
        if experienced {
            if !self.congested {
                // Linux `tcp_data_ecn_check`: the sender is told at once.
                self.quick_left = self.quick_left.max(QUICK_AFTER_MARK);
            }
            self.congested = true;
        }
    }

    /// Takes a segment in; the acknowledgement if one leaves at once.
    pub fn on_segment(&mut self, now_ns: u64, segment: u32, stamp: u32) -> Option<Ack> {
        let new = segment >= self.next && (segment == self.next || self.beyond.insert(segment));
        if !new {
            let block = self
                .beyond
                .containing(segment)
                .filter(|_| segment >= self.next);
            return Some(self.duplicate(segment, block));
        }
        if segment != self.next {
            self.touch(segment);
            return Some(self.acknowledge(None));
        }
        self.echo = stamp;
        self.next += 1;
        let filled = self.beyond.take_from(self.next);
        if let Some(end) = filled {
            self.next = end;
            let next = self.next;
            self.recent.retain(|&start| start >= next);
        }
        self.unacknowledged += 1;
        let quick = self.quick_left > 0;
        self.quick_left = self.quick_left.saturating_sub(1);
        let gap = self.gap || filled.is_some() || !self.beyond.is_empty();
        if self.unacknowledged >= 2 || quick || gap {
            return Some(self.acknowledge(None));
        }
        self.due_ns = Some(now_ns + DELAY_NS);
        None
    }

    /// The delayed acknowledgement, if it is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Option<Ack> {
        self.due_ns.filter(|&due| due <= now_ns)?;
        Some(self.acknowledge(None))
    }

    fn touch(&mut self, segment: u32) {
        let Some((start, end)) = self.beyond.containing(segment) else {
            return;
        };
        self.recent.retain(|&old| old < start || old >= end);
        self.recent.insert(0, start);
        self.recent.truncate(BLOCKS + 1);
    }

    /// RFC 2883 §4: the first block names what came twice.
    fn duplicate(&mut self, segment: u32, block: Option<(u32, u32)>) -> Ack {
        if block.is_some() {
            self.touch(segment);
        }
        self.acknowledge(Some((segment, segment + 1)))
    }

    fn acknowledge(&mut self, duplicate: Option<(u32, u32)>) -> Ack {
        self.unacknowledged = 0;
        self.due_ns = None;
        self.gap = !self.beyond.is_empty();
        let mut ack = Ack {
            next: self.next,
            echo: self.echo,
            duplicate: duplicate.is_some(),
            congested: self.congested,
            ..Ack::default()
        };
        if let Some(block) = duplicate {
            ack.push(block);
        }
        for &start in &self.recent {
            if usize::from(ack.count) == BLOCKS {
                break;
            }
            if let Some(block) = self.beyond.containing(start) {
                ack.push(block);
            }
        }
        ack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_reported_and_its_filling_acknowledged_at_once() {
        let mut receiver = Receiver::new();
        receiver.quick_left = 0;
        assert_eq!(receiver.on_segment(0, 0, 1), None);
        assert_eq!(receiver.on_segment(0, 1, 1).unwrap().next, 2);
        let ack = receiver.on_segment(0, 4, 1).unwrap();
        assert_eq!((ack.next, ack.blocks()), (2, &[(4, 5)][..]));
        let ack = receiver.on_segment(0, 3, 1).unwrap();
        assert_eq!((ack.next, ack.blocks()), (2, &[(3, 5)][..]));
        let ack = receiver.on_segment(0, 2, 1).unwrap();
        assert_eq!((ack.next, ack.count), (5, 0));
        let ack = receiver.on_segment(0, 3, 1).unwrap();
        assert!(ack.duplicate && ack.blocks() == [(3, 4)]);
    }

    #[test]
    fn a_mark_is_echoed_until_the_sender_has_answered_it() {
        let mut receiver = Receiver::new();
        let mut echo = |segment, experienced, reduced| {
            receiver.on_marks(experienced, reduced);
            receiver.on_segment(0, segment, 1).unwrap().congested
        };
        assert!(!echo(0, false, false));
        assert!(echo(1, true, false));
        assert!(echo(2, false, false), "until the answer");
        assert!(!echo(3, false, true));
        assert!(echo(4, true, true), "a new mark beside the answer");
    }
}
