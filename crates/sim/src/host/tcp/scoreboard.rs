//! What is known of every segment between the first unacknowledged and the newest.
//!
//! Invariants: `in_flight` counts the segments marked as out, `sacked` those marked as sacked. A
//! segment is out, sacked, or lost and waiting to be sent again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The segment was selectively acknowledged.
pub const SACKED: u8 = 1;
/// It was found lost.
pub const LOST: u8 = 2;
/// It was sent more than once.
pub const RETRANSMITTED: u8 = 4;
/// It is in the network as far as known.
pub const OUT: u8 = 8;
/// The application limited sending when it was sent.
pub const APP_LIMITED: u8 = 16;

/// One segment, with the delivery state when it was last sent.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// When it was last sent.
    pub sent_ns: u64,
    /// Segments delivered before, and when the last of them was.
    pub delivered: u64,
    /// See `delivered`.
    pub delivered_ns: u64,
    /// Send time of the segment whose delivery was the last before.
    pub first_sent_ns: u64,
    /// Number of the transmission.
    pub transmission: u64,
    /// Marks.
    pub marks: u8,
}

impl Segment {
    /// Whether any of these marks is set.
    #[must_use]
    pub const fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }
}

/// The segments of one connection.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    /// First segment not acknowledged.
    pub una: u32,
    /// First segment never sent.
    pub next: u32,
    /// Segments in the network.
    pub in_flight: u32,
    /// Segments selectively acknowledged.
    pub sacked: u32,
    /// One past the highest segment selectively acknowledged.
    pub highest_sacked: u32,
    segments: VecDeque<Segment>,
    /// Segments in the order of their sending; entries of older transmissions are passed over.
    order: VecDeque<(u32, u64)>,
    /// Segments to be sent again, lowest first; passed over when acknowledged since.
    lost: BinaryHeap<Reverse<u32>>,
}

impl Scoreboard {
    /// A segment between `una` and `next`.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Segment> {
        self.segments.get(number.checked_sub(self.una)? as usize)
    }

    /// A segment between `una` and `next`.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Segment> {
        self.segments
            .get_mut(number.checked_sub(self.una)? as usize)
    }

    /// Takes the first segment out: it is acknowledged.
    pub fn pop(&mut self) -> Option<Segment> {
        let segment = self.segments.pop_front()?;
        self.una += 1;
        self.in_flight -= u32::from(segment.has(OUT));
        self.sacked -= u32::from(segment.has(SACKED));
        Some(segment)
    }

    /// Marks a segment as selectively acknowledged; as it was before, if that is news.
    pub fn sack(&mut self, number: u32) -> Option<Segment> {
        let segment = self.get_mut(number)?;
        if segment.has(SACKED) {
            return None;
        }
        let before = *segment;
        segment.marks = (segment.marks & !(OUT | LOST)) | SACKED;
        self.sacked += 1;
        self.in_flight -= u32::from(before.has(OUT));
        Some(before)
    }

    /// Marks a segment as lost; whether it was in the network.
    pub fn lose(&mut self, number: u32) -> bool {
        let Some(segment) = self.get_mut(number) else {
            return false;
        };
        if !segment.has(OUT) {
            return false;
        }
        segment.marks = (segment.marks & !OUT) | LOST;
        self.in_flight -= 1;
        self.lost.push(Reverse(number));
        true
    }

    /// Marks everything that is neither acknowledged nor lost yet as lost; how many.
    pub fn lose_all(&mut self) -> u32 {
        (self.una..self.next).map(|n| u32::from(self.lose(n))).sum()
    }

    /// What was marked lost is in the network after all.
    pub fn forgive(&mut self) {
        self.lost.clear();
        for segment in &mut self.segments {
            if segment.has(LOST) && !segment.has(OUT) {
                segment.marks |= OUT;
                self.in_flight += 1;
            }
            segment.marks &= !LOST;
        }
    }

    /// Whether some segment may have to be sent again: [`Self::next_lost`] knows.
    #[must_use]
    pub fn repeats(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The lowest segment to be sent again.
    pub fn next_lost(&mut self) -> Option<u32> {
        while let Some(&Reverse(number)) = self.lost.peek() {
            let waits = self
                .get(number)
                .is_some_and(|segment| segment.has(LOST) && !segment.has(OUT));
            if waits {
                return Some(number);
            }
            self.lost.pop();
        }
        None
    }

    /// Records that `number` was sent, again or for the first time.
    pub fn record(&mut self, number: u32, sent: Segment) {
        self.order.push_back((number, sent.transmission));
        self.in_flight += 1;
        if number == self.next {
            self.next += 1;
            self.segments.push_back(sent);
        } else if let Some(segment) = self.get_mut(number) {
            let was_out = segment.has(OUT);
            *segment = Segment {
                marks: sent.marks | RETRANSMITTED,
                ..sent
            };
            self.in_flight -= u32::from(was_out);
        }
    }

    /// The oldest transmission still in the network.
    pub fn oldest_out(&mut self) -> Option<(u32, Segment)> {
        while let Some(&(number, transmission)) = self.order.front() {
            if let Some(segment) = self.get(number)
                && segment.transmission == transmission
                && segment.has(OUT)
            {
                return Some((number, *segment));
            }
            self.order.pop_front();
        }
        None
    }

    /// After [`Self::forgive`]: puts what is out back into the order of sending.
    pub fn reorder(&mut self) {
        let una = self.una;
        let mut order: Vec<(u32, u64)> = (una..)
            .zip(&self.segments)
            .filter(|(_, segment)| segment.has(OUT))
            .map(|(number, segment)| (number, segment.transmission))
            .collect();
        order.sort_unstable_by_key(|&(_, transmission)| transmission);
        self.order = order.into();
    }

    /// Whether nothing is unacknowledged.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.una == self.next
    }
}
