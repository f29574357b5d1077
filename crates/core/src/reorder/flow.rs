//! Order and copies of one flow bucket at the egress.
//!
//! Sequence numbers are 16 bits and compared modulo 2^16. Invariants: `next` is one past the newest
//! number delivered or given up. For the [`SEEN_WINDOW`] numbers before it, `seen` says whether
//! each was delivered. Slot `k` of `held` is the packet `next + k`.
//!
//! A packet that comes more than 2^15 numbers late looks as if it were ahead. Its send time tells: it was
//! sent before packets that were delivered a quarter of all numbers ago.

use super::Inner;
use super::tuning::{
    BEGINNING, BURST, FORGOTTEN, HOLD_WINDOW, IDLE, PACE, PACE_BEHIND_MAX, PACE_INTERVAL,
    PACKET_MIN, RUN_MAX, SEEN_WINDOW,
};
use ropewalk_types::{Instant, count_steps};
use ropewalk_wire::{DataHeader, Timestamp};
use std::collections::VecDeque;

// Figures for pacing as a whole: `docs/decisions/exit-order.md`. None of these constants was measured
// by itself. Larger bursts and paces: sooner in order, more losses in small socket buffers.

#[derive(Debug)]
struct Held {
    /// `None` when it needed no order and was passed on at once.
    inner: Option<Inner>,
    sent_at: Timestamp,
    deadline: Instant,
}

/// Memory that a place takes, bytes.
pub const PLACE_BYTES: usize = size_of::<Option<Held>>();
// `PLACES_MAX` says how much memory all places take.
const _: () = assert!(PLACE_BYTES <= 88);

/// A quarter of all sequence numbers.
const QUARTER: u16 = 1 << 14;

/// Which of the last [`SEEN_WINDOW`] numbers were delivered: a ring of bits by number.
#[derive(Debug, Default)]
struct Seen([u64; SEEN_WINDOW as usize / 64]);

impl Seen {
    const fn place(seq: u16) -> (usize, u64) {
        let at = seq % SEEN_WINDOW;
        (at as usize / 64, 1 << (at % 64))
    }

    const fn set(&mut self, seq: u16, delivered: bool) {
        let (word, bit) = Self::place(seq);
        if delivered {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    const fn get(&self, seq: u16) -> bool {
        let (word, bit) = Self::place(seq);
        self.0[word] & bit != 0
    }
}

/// State of one flow bucket.
#[derive(Debug, Default)]
pub struct Flow {
    started: bool,
    next: u16,
    seen: Seen,
    last: Instant,
    /// `next` divided by a quarter of all numbers.
    quarter: u16,
    /// When the first packet in order of the quarter before that one, and of that one, was sent and came.
    firsts: [Option<(Timestamp, Instant)>; 2],
    held: VecDeque<Option<Held>>,
    held_count: usize,
    /// Place of the oldest held packet, while any is held: a gap may be thousands long.
    oldest: usize,
    /// The last packet that arrived was the first one, or the first after a pause.
    pub begins: bool,
    /// In the egress's list of flows that hold packets.
    pub listed: bool,
    /// Bytes of a run that may leave now.
    credit: usize,
    /// When a run that waits for credit goes on.
    paced_until: Instant,
    /// Since when a run is paced; `None` while none waits for credit.
    run_since: Option<Instant>,
}

/// What an arriving packet is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The one expected; already noted as delivered.
    Next,
    /// Delivered before.
    Duplicate,
    /// Older than what was delivered, and missing; already noted as delivered.
    Late,
    /// Newer than expected: something is missing in between.
    Ahead,
    /// So far from expected that the numbers must have restarted.
    Beyond,
}

/// A packet from so far back that nobody knows whether it was delivered. Only what was sent in copies can
/// be a copy.
const fn unknown(header: &DataHeader) -> Arrival {
    if header.copy {
        Arrival::Duplicate
    } else {
        Arrival::Late
    }
}

impl Flow {
    /// Whether nothing of it is worth its memory.
    pub fn is_forgettable(&self, now: Instant) -> bool {
        !self.holds() && !self.listed && now.since(self.last) > FORGOTTEN
    }

    /// Classifies a packet and notes it, unless it is ahead or beyond. `again` says that the bucket has
    /// carried packets before: a flow that was forgotten begins with whatever comes.
    pub fn arrival(&mut self, now: Instant, header: &DataHeader, again: bool) -> Arrival {
        let idle = !self.started || (!self.holds() && now.since(self.last) > IDLE);
        self.last = now;
        self.begins = idle;
        let ahead = header.flow_seq.wrapping_sub(self.next);
        if !self.started && (again || ahead >= BEGINNING) {
            return self.restart(header);
        }
        self.started = true;
        if ahead == 0 {
            if self.is_due() {
                return Arrival::Duplicate;
            }
            self.deliver_next(header.stamp.sent_at);
            return Arrival::Next;
        }
        if ahead >= 0x8000 {
            let behind = !ahead; // next − 1 − seq
            if behind >= SEEN_WINDOW {
                return if idle {
                    self.restart(header)
                } else {
                    unknown(header)
                };
            }
            if self.seen.get(header.flow_seq) {
                return Arrival::Duplicate;
            }
            self.seen.set(header.flow_seq, true);
            return Arrival::Late;
        }
        if self.is_old(now, header.stamp.sent_at) {
            return unknown(header);
        }
        if idle && ahead >= BEGINNING {
            return self.restart(header);
        }
        if ahead < HOLD_WINDOW {
            Arrival::Ahead
        } else {
            Arrival::Beyond
        }
    }

    fn restart(&mut self, header: &DataHeader) -> Arrival {
        if self.started {
            self.advance_to(header.flow_seq);
        } else {
            self.started = true;
            self.next = header.flow_seq;
            // What came before the first packet we saw may still come: it is late, not a copy.
            self.seen = Seen::default();
        }
        self.deliver_next(header.stamp.sent_at);
        Arrival::Next
    }

    /// Whether a packet was sent before those delivered a quarter of all numbers ago.
    fn is_old(&self, now: Instant, sent_at: Timestamp) -> bool {
        // Beyond FORGOTTEN the difference of two timestamps may have another sign.
        self.firsts[0]
            .is_some_and(|(first, came)| now.since(came) < FORGOTTEN && sent_at.distance(first) < 0)
    }

    fn deliver_next(&mut self, sent_at: Timestamp) {
        let quarter = self.next / QUARTER;
        if quarter != self.quarter || self.firsts[1].is_none() {
            let follows = quarter == (self.quarter + 1) % (u16::MAX / QUARTER + 1);
            let before = self.firsts[1].filter(|_| follows);
            self.firsts = [before, Some((sent_at, self.last))];
            self.quarter = quarter;
        }
        self.seen.set(self.next, true);
        self.next = self.next.wrapping_add(1);
        if !self.held.is_empty() {
            self.pop_place();
        }
    }

    /// Takes the first place out.
    fn pop_place(&mut self) {
        self.oldest = self.oldest.saturating_sub(1);
        self.held.pop_front();
    }

    /// Moves `next` to `seq` with everything between counted as missing; nothing may be held.
    fn advance_to(&mut self, seq: u16) {
        if seq.wrapping_sub(self.next) >= SEEN_WINDOW {
            self.seen = Seen::default();
        }
        while self.next != seq && seq.wrapping_sub(self.next) < SEEN_WINDOW {
            self.seen.set(self.next, false);
            self.next = self.next.wrapping_add(1);
        }
        self.next = seq;
        self.held.clear();
    }

    /// Delivers this packet at once, giving up what is missing before it. Nothing may be held.
    pub fn skip_to(&mut self, header: &DataHeader) {
        self.advance_to(header.flow_seq);
        self.deliver_next(header.stamp.sent_at);
    }

    /// Whether any packet is held.
    pub const fn holds(&self) -> bool {
        self.held_count > 0
    }

    /// Holds a packet that is ahead, or the place of one that was passed on (`None`); false when
    /// it was there already.
    pub fn hold(&mut self, header: &DataHeader, inner: Option<Inner>, deadline: Instant) -> bool {
        let slot = usize::from(header.flow_seq.wrapping_sub(self.next));
        if self.held.len() <= slot {
            let missing = (slot + 1).next_power_of_two() - self.held.len();
            count_steps(missing);
            self.held.reserve_exact(missing);
            self.held.resize_with(slot + 1, || None);
        }
        if self.held[slot].is_some() {
            return false;
        }
        self.held[slot] = Some(Held {
            inner,
            sent_at: header.stamp.sent_at,
            deadline,
        });
        self.oldest = if self.held_count == 0 {
            slot
        } else {
            self.oldest.min(slot)
        };
        self.held_count += 1;
        true
    }

    /// Whether the oldest held packet is next in order and waits for nothing but its pace.
    pub fn is_due(&self) -> bool {
        matches!(self.held.front(), Some(Some(_)))
    }

    /// When the oldest held packet leaves at the latest.
    pub fn next_release(&self) -> Option<Instant> {
        let (_, deadline) = self.first_held()?;
        Some(if self.is_due() {
            self.paced_until
        } else {
            deadline
        })
    }

    /// Places there is memory for.
    pub fn places(&self) -> usize {
        self.held.capacity()
    }

    /// Places there would be memory for with this packet held.
    pub fn places_with(&self, header: &DataHeader) -> usize {
        let slot = usize::from(header.flow_seq.wrapping_sub(self.next));
        self.places().max((slot + 1).next_power_of_two())
    }

    /// Gives the memory back; nothing may be held.
    pub fn shrink(&mut self) {
        self.held = VecDeque::new();
    }

    /// Notes that `bytes` arrived: they give a run that is paced credit.
    pub fn earn(&mut self, bytes: usize) {
        if self.run_since.is_some() {
            self.credit += PACE * bytes.max(PACKET_MIN);
        }
    }

    /// Send time and deadline of the oldest held packet.
    pub fn first_held(&self) -> Option<(Timestamp, Instant)> {
        if self.held_count == 0 {
            return None;
        }
        let held = self.held.get(self.oldest)?.as_ref()?;
        Some((held.sent_at, held.deadline))
    }

    /// The oldest held packet may wait until `at`, if that is later than its deadline.
    pub fn wait_until(&mut self, at: Instant) {
        if let Some(Some(first)) = self.held.get_mut(self.oldest) {
            first.deadline = first.deadline.max(at);
        }
    }

    /// Counts everything before the oldest held packet as missing.
    pub fn give_up_gap(&mut self) {
        while self.held_count > 0 && matches!(self.held.front(), Some(None)) {
            count_steps(1);
            self.pop_place();
            self.seen.set(self.next, false);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Takes the held packet that is next in order, if it is there and its pace allows;
    /// `Some(None)` stands for one that was passed on before.
    pub fn pop_due(&mut self, now: Instant) -> Option<Option<Inner>> {
        let Some(Some(held)) = self.held.front() else {
            self.end_run();
            return None;
        };
        // What was passed on before costs nothing.
        let bytes = held.inner.as_ref();
        let bytes = bytes.map_or(0, |inner| inner.bytes().max(PACKET_MIN));
        if bytes > self.credit {
            let since = *self.run_since.get_or_insert(now);
            if now < self.paced_until && now.since(since) < RUN_MAX {
                return None;
            }
            self.refill(now, since);
        }
        self.credit = self.credit.saturating_sub(bytes);
        self.pop_next()
    }

    fn refill(&mut self, now: Instant, since: Instant) {
        let behind = if self.paced_until > since {
            now.since(self.paced_until).as_micros() / 1_000
        } else {
            0
        };
        let behind = usize::try_from(behind).map_or(PACE_BEHIND_MAX, |n| n.min(PACE_BEHIND_MAX));
        self.credit += BURST * (1 + behind);
        self.paced_until = now + PACE_INTERVAL;
    }

    fn end_run(&mut self) {
        self.run_since = None;
        self.credit = self.credit.min(BURST);
    }

    /// Takes out the oldest slot at any pace: the packet, or `None` in it for a gap.
    pub fn pop_next(&mut self) -> Option<Option<Inner>> {
        let slot = self.held.front_mut()?;
        let held = slot.take()?;
        self.held_count -= 1;
        self.deliver_next(held.sent_at);
        if self.held_count == 0 {
            self.held.clear();
            self.end_run();
        } else {
            self.oldest = self.held.iter().position(Option::is_some).unwrap_or(0);
            count_steps(self.oldest);
        }
        Some(held.inner)
    }
}
