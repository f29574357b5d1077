//! What the exit counts per path: arrivals, losses and their runs, and delays.
//!
//! The path's own 16-bit sequence numbers are extended; a number counts as lost once
//! [`REORDER_WINDOW`] newer ones are known, and never twice. Invariant: within one run of
//! numbers, received + lost + still awaited = numbers passed.

use super::{DELAY_MODULUS_US, DelaySample, PathFeedback};
use ropewalk_types::{Instant, PathId};

/// Numbers behind the newest that may still arrive before they count as lost.
pub const REORDER_WINDOW: u64 = 64;
/// A jump beyond this is a restart of the sender, not a loss.
const RESYNC: u64 = 8_192;
/// One unit of a transmit timestamp, microseconds.
const UNIT_US: i64 = 16;

/// Arrivals on one path since the last report.
#[derive(Debug, Default)]
pub struct PathArrivals {
    /// One past the newest number seen; numbers are extended to 64 bits.
    next: Option<u64>,
    /// Bit k: whether number `next − 1 − k` has arrived.
    seen: u64,
    /// Whether the number that left the window last was lost: a run of losses goes on.
    in_run: bool,
    received: u32,
    bytes: u64,
    lost: u32,
    runs: u32,
    delay_min: Option<i64>,
    /// Sum of delays relative to the first of the period, which keeps the wrap out.
    delay_first: i64,
    delay_sum: i64,
}

impl PathArrivals {
    /// Nothing has arrived.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a datagram: its 16-bit path sequence number, its 24-bit transmit timestamp in
    /// units of 16 µs, and its length in bytes.
    pub fn on_packet(&mut self, now: Instant, path_seq: u16, sent_at: u32, bytes: usize) {
        self.received = self.received.saturating_add(1);
        self.bytes += bytes as u64;
        self.note_delay(now, sent_at);
        let Some(next) = self.next else {
            self.restart(path_seq);
            return;
        };
        let ahead = path_seq.wrapping_sub((next & 0xffff) as u16);
        if ahead < 0x8000 {
            if u64::from(ahead) > RESYNC {
                self.restart(path_seq);
                return;
            }
            for _ in 0..ahead {
                self.shift(false);
            }
            self.shift(true);
        } else {
            let behind = u64::from(!ahead);
            if behind >= RESYNC {
                self.restart(path_seq);
            } else if behind < REORDER_WINDOW {
                self.seen |= 1 << behind;
            }
        }
    }

    /// Moves the window one number on; what leaves it unseen is lost.
    fn shift(&mut self, arrived: bool) {
        let leaves_seen = self.seen >> (REORDER_WINDOW - 1) == 1;
        if leaves_seen {
            self.in_run = false;
        } else {
            self.lost = self.lost.saturating_add(1);
            self.runs = self.runs.saturating_add(u32::from(!self.in_run));
            self.in_run = true;
        }
        self.seen = self.seen << 1 | u64::from(arrived);
        self.next = self.next.map(|n| n + 1);
    }

    fn restart(&mut self, path_seq: u16) {
        // The first 64 numbers before it are taken as seen: they were not ours to count.
        self.next = Some(0x1_0000 + u64::from(path_seq) + 1);
        self.seen = u64::MAX;
        self.in_run = false;
    }

    fn note_delay(&mut self, now: Instant, sent_at: u32) {
        let received_us = i64::try_from(now.as_nanos() / 1_000).unwrap_or(0);
        let delay = (received_us - i64::from(sent_at) * UNIT_US).rem_euclid(DELAY_MODULUS_US);
        let Some(min) = self.delay_min else {
            (self.delay_min, self.delay_first, self.delay_sum) = (Some(delay), delay, 0);
            return;
        };
        let from_first = super::delay_difference_us(delay, self.delay_first);
        self.delay_sum += from_first;
        if super::delay_difference_us(delay, min) < 0 {
            self.delay_min = Some(delay);
        }
    }

    /// What was seen since the last call; counting goes on.
    pub fn take(&mut self, path: PathId) -> PathFeedback {
        let delay = self.delay_min.take().map(|min_us| DelaySample {
            min_us,
            mean_us: (self.delay_first + self.delay_sum / i64::from(self.received.max(1)))
                .rem_euclid(DELAY_MODULUS_US),
        });
        PathFeedback {
            path,
            received_packets: std::mem::take(&mut self.received),
            received_bytes: std::mem::take(&mut self.bytes),
            lost_packets: std::mem::take(&mut self.lost),
            loss_runs: std::mem::take(&mut self.runs),
            delay,
            late_packets: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ropewalk_types::{Duration, Random};

    fn feed(numbers: impl IntoIterator<Item = u64>) -> PathFeedback {
        let mut arrivals = PathArrivals::new();
        for n in numbers {
            arrivals.on_packet(Instant::from_millis(n), (n & 0xffff) as u16, 0, 100);
        }
        arrivals.take(PathId(0))
    }

    #[test]
    fn a_gap_is_a_loss_only_after_the_window() {
        assert_eq!(feed((0..30).filter(|&n| n != 10)).lost_packets, 0);
        let seen = feed((0..200).filter(|&n| n != 10 && n != 11 && n != 50));
        assert_eq!(
            (seen.lost_packets, seen.loss_runs, seen.received_packets),
            (3, 2, 197)
        );
    }

    #[test]
    fn disorder_within_the_window_is_no_loss() {
        let swapped = (0..200u64).map(|n| n ^ 1).chain(200..300);
        assert_eq!(feed(swapped).lost_packets, 0);
    }

    #[test]
    fn numbers_wrap_and_restart() {
        assert_eq!(feed(65_000..67_000).lost_packets, 0);
        assert_eq!(feed((0..100).chain(30_000..30_100)).lost_packets, 0);
    }

    #[test]
    fn bursts_of_a_gilbert_channel_are_counted_as_they_are() {
        let (p, r) = (0.02, 0.25);
        let mut random = Random::new(4);
        let mut bad = false;
        let mut lost = 0;
        let survivors: Vec<u64> = (0..100_000)
            .filter(|_| {
                bad = if bad {
                    !random.chance(r)
                } else {
                    random.chance(p)
                };
                lost += u32::from(bad);
                !bad
            })
            .collect();
        let seen = feed(survivors);
        assert!(
            seen.lost_packets.abs_diff(lost) <= 64,
            "{} {lost}",
            seen.lost_packets
        );
        let burst = f64::from(seen.lost_packets) / f64::from(seen.loss_runs);
        assert!((burst - 4.0).abs() < 0.4, "{burst}");
    }

    #[test]
    fn delays_are_differences_of_clocks() {
        let mut arrivals = PathArrivals::new();
        for ms in [30u64, 20, 40] {
            let now = Instant::from_millis(1_000) + Duration::from_millis(ms);
            arrivals.on_packet(now, ms as u16, 1_000_000 / 16, 1);
        }
        let delay = arrivals.take(PathId(0)).delay.expect("three came");
        assert_eq!((delay.min_us, delay.mean_us), (20_000, 30_000));
    }

    proptest! {
        #[test]
        fn any_sequence_is_counted_without_panic(numbers in proptest::collection::vec(any::<u16>(), 0..300)) {
            let mut arrivals = PathArrivals::new();
            for &n in &numbers {
                arrivals.on_packet(Instant::from_millis(5), n, u32::from(n), 1);
            }
            prop_assert_eq!(arrivals.take(PathId(0)).received_packets as usize, numbers.len());
        }
    }
}
