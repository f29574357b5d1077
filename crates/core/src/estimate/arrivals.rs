//! The egress's counter of one path: what arrived, what is missing, how long it was under way.
//!
//! Every datagram of a path carries the path's own 16-bit sequence number. A number is called lost
//! once it is [`REORDER_WINDOW`] numbers behind the highest. At a report it is called lost when it
//! was missing already [`SETTLE_AFTER`] earlier, so that losses of a slow path are told too.
//! Numbers that lead too far ([`JUMP_MAX`]) are a new start instead of losses. Numbers that are
//! missing because the path was silent for a while ([`OUTAGE_SILENCE`]) belong to an outage: path
//! states deal with it, and a path that is back should not be judged by it.
//!
//! Invariants: each sequence number counts at most once, as received or as lost. Any sequence of
//! inputs is taken without a panic and in constant time per packet.

use super::feedback::{DELAY_MODULUS_US, DelaySample, PathFeedback};
use super::tuning::{
    JUMP_MAX, OUTAGE_PACKETS, OUTAGE_SILENCE, REORDER_WINDOW, RESTART_AFTER, SETTLE_AFTER,
};
use ropewalk_types::{Duration, Instant, PathId};

const UNIT_NANOS: u64 = 16_000;
const UNIT_US: i64 = 16;
const TIMESTAMP_MASK: u64 = (1 << 24) - 1;

/// Counter of one path at its egress.
#[derive(Clone, Debug, Default)]
pub struct PathArrivals {
    highest: Option<u16>,
    /// Bit `i`: number `highest - i` was received or has been called lost already.
    settled: u64,
    /// Bit `i`: number `highest - i` was called lost; tells where a loss run goes on.
    lost: u64,
    /// Whether the number that last left the window was lost.
    last_was_lost: bool,
    newest_at: Instant,
    /// Numbers in a row that were behind the window.
    outdated: u8,
    /// Highest number at an earlier report, and when it was the newest.
    mark: Option<(u16, Instant)>,
    received_packets: u32,
    received_bytes: u64,
    lost_packets: u32,
    loss_runs: u32,
    /// First delay of the period in units modulo 2^24: the others are taken relative to it.
    delay_origin: Option<u32>,
    delay_min: i64,
    delay_sum: i64,
    delay_count: i64,
}

impl PathArrivals {
    /// Nothing arrived yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Newest number that arrived.
    #[must_use]
    pub const fn newest(&self) -> Option<u16> {
        self.highest
    }

    /// A datagram of `bytes` with the path sequence number `seq` arrived, sent at `sent`: the
    /// sender's clock in units of 16 µs modulo 2^24 (higher bits are ignored).
    pub fn on_packet(&mut self, now: Instant, seq: u16, sent: u32, bytes: usize) {
        let silence = now.since(self.newest_at);
        self.newest_at = self.newest_at.max(now);
        if !self.place(seq, silence) {
            return;
        }
        self.received_packets = self.received_packets.saturating_add(1);
        self.received_bytes = self.received_bytes.saturating_add(bytes as u64);
        self.delay(now, sent);
    }

    /// Marks `seq` as received; false for a duplicate or one that came too late to count.
    fn place(&mut self, seq: u16, silence: Duration) -> bool {
        let Some(highest) = self.highest else {
            self.start(seq);
            return true;
        };
        let ahead = seq.wrapping_sub(highest);
        let behind = highest.wrapping_sub(seq);
        if ahead == 0 {
            return false;
        }
        if ahead <= JUMP_MAX {
            self.outdated = 0;
        }
        let outage = ahead > OUTAGE_PACKETS && silence >= OUTAGE_SILENCE;
        if ahead <= JUMP_MAX && !outage {
            self.advance(seq, ahead);
            return true;
        }
        if ahead <= JUMP_MAX || behind > JUMP_MAX {
            // What was missing before stays uncounted: a handful of packets at most.
            self.start(seq);
            return true;
        }
        if behind >= REORDER_WINDOW {
            self.outdated += 1;
            if self.outdated < RESTART_AFTER {
                return false;
            }
            self.start(seq);
            return true;
        }
        if self.settled & (1 << behind) != 0 {
            return false;
        }
        self.settled |= 1 << behind;
        true
    }

    fn start(&mut self, seq: u16) {
        self.highest = Some(seq);
        self.settled = u64::MAX;
        self.lost = 0;
        self.last_was_lost = false;
        self.mark = None;
        self.outdated = 0;
    }

    /// Moves the window up to `seq`; what leaves it without having come is lost.
    fn advance(&mut self, seq: u16, steps: u16) {
        let window = u32::from(REORDER_WINDOW);
        for _ in 0..steps.min(REORDER_WINDOW) {
            let settled = self.settled >> (window - 1) & 1 == 1;
            let was_lost = self.lost >> (window - 1) & 1 == 1;
            if !settled {
                self.count_lost(!self.last_was_lost, 1);
            }
            self.last_was_lost = !settled || was_lost;
            self.settled <<= 1;
            self.lost <<= 1;
        }
        // Numbers that enter and leave the window in one step.
        let skipped = steps.saturating_sub(REORDER_WINDOW);
        if skipped > 0 {
            self.count_lost(!self.last_was_lost, u32::from(skipped));
            self.last_was_lost = true;
        }
        self.settled |= 1;
        self.highest = Some(seq);
    }

    const fn count_lost(&mut self, run_begins: bool, packets: u32) {
        self.lost_packets = self.lost_packets.saturating_add(packets);
        if run_begins {
            self.loss_runs = self.loss_runs.saturating_add(1);
        }
    }

    fn delay(&mut self, now: Instant, sent: u32) {
        let received = now.as_nanos() / UNIT_NANOS;
        let units = received.wrapping_sub(u64::from(sent)) & TIMESTAMP_MASK;
        let units = u32::try_from(units).unwrap_or(0);
        let origin = *self.delay_origin.get_or_insert(units);
        let offset = i64::from((units.wrapping_sub(origin) << 8).cast_signed() >> 8);
        self.delay_min = if self.delay_count == 0 {
            offset
        } else {
            self.delay_min.min(offset)
        };
        self.delay_sum += offset;
        self.delay_count += 1;
    }

    /// Whether anything arrived since the last [`PathArrivals::take`].
    #[must_use]
    pub const fn any(&self) -> bool {
        self.received_packets > 0
    }

    /// What arrived since the last call, as the path `path` of a report.
    pub fn take(&mut self, path: PathId) -> PathFeedback {
        self.settle();
        let delay = self.delay_origin.take().map(|origin| {
            let us =
                |units: i64| ((i64::from(origin) + units) * UNIT_US).rem_euclid(DELAY_MODULUS_US);
            let mean = self.delay_sum / self.delay_count.max(1);
            DelaySample {
                min_us: us(self.delay_min),
                mean_us: us(mean),
            }
        });
        (self.delay_sum, self.delay_count) = (0, 0);
        PathFeedback {
            path,
            received_packets: std::mem::take(&mut self.received_packets),
            received_bytes: std::mem::take(&mut self.received_bytes),
            lost_packets: std::mem::take(&mut self.lost_packets),
            loss_runs: std::mem::take(&mut self.loss_runs),
            delay,
            late_packets: 0,
        }
    }

    /// Calls lost what was missing already at the mark, if that is long enough ago.
    fn settle(&mut self) {
        let Some(highest) = self.highest else { return };
        let due = self
            .mark
            .filter(|(_, at)| self.newest_at.since(*at) >= SETTLE_AFTER);
        if let Some((mark, _)) = due {
            let marked = highest.wrapping_sub(mark);
            let mut previous_lost = self.last_was_lost;
            for behind in (marked.min(REORDER_WINDOW)..REORDER_WINDOW).rev() {
                let bit = 1 << behind;
                if self.settled & bit == 0 {
                    self.count_lost(!previous_lost, 1);
                    self.settled |= bit;
                    self.lost |= bit;
                }
                previous_lost = self.lost & bit != 0;
            }
        }
        if due.is_some() || self.mark.is_none() {
            self.mark = Some((highest, self.newest_at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(egress: &mut PathArrivals, numbers: impl IntoIterator<Item = u16>) {
        for number in numbers {
            egress.on_packet(Instant::ZERO, number, 0, 100);
        }
    }

    fn counts(egress: &mut PathArrivals) -> (u32, u32, u32) {
        let seen = egress.take(PathId(3));
        (seen.received_packets, seen.lost_packets, seen.loss_runs)
    }

    #[test]
    fn losses_and_their_runs_are_counted_across_the_wrap() {
        let mut egress = PathArrivals::new();
        let sent = (0..1_000u32).map(|n| u16::try_from((n + 65_000) & 0xffff).unwrap());
        // Lost: 10..13, 500, 536..540 (the wrap of the numbers is at 536).
        let gone = |n: usize| (10..13).contains(&n) || n == 500 || (536..540).contains(&n);
        feed(
            &mut egress,
            sent.enumerate()
                .filter(|(n, _)| !gone(*n))
                .map(|(_, seq)| seq),
        );
        assert_eq!(counts(&mut egress), (992, 8, 3));
        assert_eq!(counts(&mut egress), (0, 0, 0), "a period counts once");
    }

    #[test]
    fn reordering_within_the_window_is_no_loss_and_duplicates_count_once() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, [0, 5, 4, 3, 2, 1, 3, 5]);
        feed(&mut egress, 7..70);
        feed(&mut egress, [6]);
        feed(&mut egress, 70..300);
        assert_eq!(counts(&mut egress), (300, 0, 0));
    }

    #[test]
    fn a_packet_behind_the_window_stays_lost() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, (0..10).chain(11..75));
        feed(&mut egress, [10]);
        assert_eq!(counts(&mut egress), (74, 1, 1));
    }

    #[test]
    fn a_long_outage_is_one_run() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, (0..100).chain(2_100..2_300));
        assert_eq!(counts(&mut egress), (300, 2_000, 1));
    }

    #[test]
    fn a_wild_jump_is_a_new_start_in_both_directions() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, (0..100).chain(20_000..20_200).chain(0..200));
        assert_eq!(counts(&mut egress), (500, 0, 0));
    }

    #[test]
    fn a_sender_that_counts_from_the_beginning_is_heard_soon() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, 0..3_000);
        counts(&mut egress);
        feed(&mut egress, 0..100);
        let restart = u32::from(RESTART_AFTER);
        assert_eq!(counts(&mut egress), (100 - (restart - 1), 0, 0));
    }

    #[test]
    fn an_outage_is_no_loss_but_loss_at_the_same_rate_is() {
        let mut egress = PathArrivals::new();
        let mut total = 0;
        for number in 0..400u16 {
            let now = Instant::from_millis(u64::from(number) * 10);
            let outage = (100..150).contains(&number);
            if !outage && number % 10 != 0 {
                egress.on_packet(now, number, 0, 9);
            }
            if number % 10 == 9 {
                total += egress.take(PathId(0)).lost_packets;
            }
        }
        // One in ten of the other 350, less the first, the last, and those next to the outage.
        assert_eq!(total, 31);
    }

    #[test]
    fn a_slow_path_reports_its_losses_before_64_more_packets() {
        let mut egress = PathArrivals::new();
        let mut total = (0, 0, 0);
        for second in 0..20u16 {
            if !(5..8).contains(&second) && second != 12 {
                egress.on_packet(
                    Instant::from_millis(u64::from(second) * 1_000),
                    second,
                    0,
                    9,
                );
            }
            let (received, lost, runs) = counts(&mut egress);
            total = (total.0 + received, total.1 + lost, total.2 + runs);
        }
        assert_eq!(total, (16, 4, 2));
    }

    #[test]
    fn a_run_reported_in_parts_is_one_run() {
        let mut egress = PathArrivals::new();
        feed(&mut egress, 0..10);
        egress.take(PathId(0));
        egress.on_packet(Instant::from_millis(100), 12, 0, 9); // 10 and 11 are missing
        assert_eq!(counts(&mut egress), (1, 0, 0));
        egress.on_packet(Instant::from_millis(200), 13, 0, 9);
        assert_eq!(counts(&mut egress), (1, 2, 1));
        for number in 14..200 {
            egress.on_packet(Instant::from_millis(300), number, 0, 9);
        }
        assert_eq!(counts(&mut egress), (186, 0, 0));
    }

    #[test]
    fn delays_are_receive_minus_send_time() {
        let mut egress = PathArrivals::new();
        let unit = |units: u64| Instant::from_nanos(units * UNIT_NANOS);
        egress.on_packet(unit(1_000), 0, 0x00ff_ffff, 100); // sent one unit before the wrap
        egress.on_packet(unit(1_003), 1, 0, 100);
        egress.on_packet(unit(1_002), 2, 1, 100);
        let seen = egress.take(PathId(0));
        assert_eq!(seen.received_bytes, 300);
        // 1001, 1003 and 1001 units.
        let expected = DelaySample {
            min_us: 1_001 * 16,
            mean_us: 1_001 * 16,
        };
        assert_eq!(seen.delay, Some(expected));
        assert_eq!(egress.take(PathId(0)).delay, None);
    }

    proptest! {
        #[test]
        fn any_input_is_taken_and_no_number_counts_twice(
            steps in prop::collection::vec(
                (any::<u16>(), any::<bool>(), any::<u32>(), 0u64..200), 0..500),
        ) {
            let mut egress = PathArrivals::new();
            let mut now = Instant::ZERO;
            let (mut seq, mut given, mut received) = (0u16, 0, 0);
            for (number, wild, sent, wait_ms) in steps {
                now += Duration::from_millis(wait_ms);
                seq = if wild { number } else { seq.wrapping_add(number % 100) };
                egress.on_packet(now, seq, sent, 100);
                given += 1;
                if wait_ms < 40 {
                    let seen = egress.take(PathId(0));
                    prop_assert!(seen.loss_runs <= seen.lost_packets);
                    received += seen.received_packets;
                    if let Some(delay) = seen.delay {
                        prop_assert!((0..DELAY_MODULUS_US).contains(&delay.min_us));
                        prop_assert!((0..DELAY_MODULUS_US).contains(&delay.mean_us));
                    }
                }
            }
            received += egress.take(PathId(0)).received_packets;
            prop_assert!(received <= given);
        }

        #[test]
        fn sent_is_received_plus_lost_however_packets_are_shuffled_and_dropped(
            lost in prop::collection::vec(prop::bool::weighted(0.2), 300..1_000),
            swaps in prop::collection::vec(0usize..1_000, 0..200),
            first in any::<u16>(),
            report_every in 1usize..50,
        ) {
            let count = lost.len();
            let mut order: Vec<usize> = (0..count).filter(|n| !lost[*n]).collect();
            for swap in swaps {
                // Neighbours change places: far less than the window.
                let at = swap % (order.len() - 1);
                order.swap(at, at + 1);
            }
            // Ends of the sequence that certainly arrive, so that every loss is between packets.
            let numbers = order.iter().map(|n| n + 1).chain(count + 1..count + 200);
            let mut egress = PathArrivals::new();
            let mut total = (0, 0);
            for (at, number) in std::iter::once(0).chain(numbers).enumerate() {
                let seq = first.wrapping_add(u16::try_from(number).unwrap());
                egress.on_packet(Instant::from_nanos(at as u64), seq, 0, 1);
                if at % report_every == 0 {
                    let seen = egress.take(PathId(0));
                    total = (total.0 + seen.received_packets, total.1 + seen.lost_packets);
                }
            }
            let seen = egress.take(PathId(0));
            let total = (total.0 + seen.received_packets, total.1 + seen.lost_packets);
            let gone = u32::try_from(lost.iter().filter(|lost| **lost).count()).unwrap();
            prop_assert_eq!(total.1, gone);
            prop_assert_eq!(total.0 + total.1, u32::try_from(count + 200).unwrap());
        }
    }
}
