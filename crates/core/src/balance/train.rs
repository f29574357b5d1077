//! What an idle way out carries, from packets that went out back to back. The slowest link spreads
//! them: they arrive as far apart as that link takes to send one.
//!
//! An echo makes the way there and back, so the slower direction is measured. Other traffic between
//! the packets makes the rate look lower, token buckets make it look higher. So several trains are
//! taken, and the rate of an uplink that was seen full counts more ([`super::capacity`]).
//!
//! Source: packet dispersion, `C = N L / (t_N - t_0)`; the median of several trains. Here the time is
//! the median over all halves of a train: one packet that is read late moves that median little.
//! From the first packet to the last, 30 trains over 10 Mbit/s gave 0.76 to 1.03 of the rate; by
//! halves, the same trains gave 0.95 to 1.06.

use core::ops::RangeInclusive;
use core::time::Duration;

use ropewalk_types::Rate;

/// Fewest packets of a train: enough to even out the timer of a link, few enough for shallow
/// queues. More: steadier rates, more bytes, and losses in shallow queues.
pub const PACKETS: usize = 20;
/// Most packets of a train. More: fast links are measured better, more bytes at once.
pub const PACKETS_MAX: usize = 100;
/// Time for which a long train keeps the link busy, far above the uneven work of a switch and its
/// controller. Longer: steadier rates, more bytes. Measured in `docs/decisions/sdn.md`: over 100
/// Mbit/s 20 packets found 0.98 to 1.27 of the rate, long trains 0.97 to 1.03.
const SPREAD: Duration = Duration::from_millis(10);
/// Bytes of each packet with its IP header: within the smallest MTU of IPv6. More: steadier rates,
/// more bytes.
pub const PACKET_BYTES: usize = 1_200;
/// Trains of a first estimate, and rates whose median counts. More: surer, later, more bytes.
pub const FIRST: usize = 5;
/// Fewest trains, or rounds of sizes, that make an estimate. More: surer, later.
pub const TRAINS_MIN: usize = 3;
/// Fewest answers that make a rate, percent of the packets sent: losses behind the slowest link
/// make that link look as much slower. Larger: fewer rates that are too low, no rate on paths that
/// lose.
const ANSWERED_MIN: usize = 85;
/// Rates that a link can have, bits per second: 10 kbit/s to 100 Gbit/s. Any other one is an error
/// of the measurement.
const PLAUSIBLE: RangeInclusive<u64> = 10_000..=100_000_000_000;

/// Packets of the next train over a link of this rate, for an observer whose times are coarse: between
/// [`PACKETS`] and [`PACKETS_MAX`].
#[must_use]
pub fn packets(known: Option<Rate>) -> usize {
    let bytes = known.unwrap_or_default().bytes_in(SPREAD);
    let packets = usize::try_from(bytes).unwrap_or(usize::MAX) / PACKET_BYTES;
    packets.saturating_add(1).clamp(PACKETS, PACKETS_MAX)
}

/// The rate, if a link can have it.
#[must_use]
pub fn plausible(rate: Rate) -> Option<Rate> {
    PLAUSIBLE.contains(&rate.bits_per_sec()).then_some(rate)
}

/// The rate of one train of `sent` packets whose answers arrived at these times; `None` when too few
/// did, or half of them at once. The times may be in any order, and count from anything.
#[must_use]
pub fn rate(arrivals: &[Duration], sent: usize) -> Option<Rate> {
    let half = arrivals.len() / 2;
    if arrivals.len() * 100 < sent * ANSWERED_MIN || half == 0 {
        return None;
    }
    let mut arrivals = arrivals.to_vec();
    arrivals.sort_unstable();
    let mut halves: Vec<Duration> = (half..arrivals.len())
        .map(|last| arrivals[last].saturating_sub(arrivals[last - half]))
        .collect();
    halves.sort_unstable();
    let time = halves[halves.len() / 2];
    if time.is_zero() {
        return None;
    }
    plausible(Rate::from_transfer((half * PACKET_BYTES) as u64, time))
}

/// The last estimates of one way out.
#[derive(Clone, Debug, Default)]
pub struct Estimates {
    /// Bits per second, the oldest first; at most [`FIRST`].
    rates: Vec<u64>,
}

impl Estimates {
    /// Takes an estimate.
    pub fn push(&mut self, rate: Rate) {
        if self.rates.len() == FIRST {
            self.rates.remove(0);
        }
        self.rates.push(rate.bits_per_sec());
    }

    /// The last rates, the oldest first; at most [`FIRST`].
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        self.rates.iter().copied().map(Rate::from_bits_per_sec)
    }

    /// The middle one of them, however few there are.
    #[must_use]
    pub fn middle(&self) -> Option<Rate> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable();
        let middle = sorted.get(sorted.len() / 2).copied();
        middle.map(Rate::from_bits_per_sec)
    }

    /// Their median, once there are three.
    #[must_use]
    pub fn median(&self) -> Option<Rate> {
        self.middle().filter(|_| self.rates.len() >= TRAINS_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mbit(rate: Rate) -> f64 {
        rate.bits_per_sec() as f64 / 1e6
    }

    /// Arrivals behind a link of this rate.
    fn behind(mbit: u64, packets: u32) -> Vec<Duration> {
        let gap = Duration::from_nanos(PACKET_BYTES as u64 * 8_000 / mbit);
        (0..packets).map(|n| gap * n).collect()
    }

    #[test]
    fn the_gaps_of_a_train_tell_the_rate_of_the_slowest_link() {
        for wanted in [1, 10, 300] {
            let mut arrivals = behind(wanted, 20);
            arrivals.reverse();
            let found = mbit(rate(&arrivals, 20).expect("a rate"));
            assert!((found / wanted as f64 - 1.0).abs() < 0.01, "{found}");
        }
    }

    #[test]
    fn trains_with_holes_and_packets_that_come_at_once_tell_nothing() {
        assert!(rate(&behind(10, 17), 20).is_some());
        assert_eq!(rate(&behind(10, 16), 20), None);
        assert_eq!(rate(&behind(10, 80), 100), None);
        assert_eq!(rate(&[Duration::ZERO; PACKETS], PACKETS), None);
        assert_eq!(rate(&[Duration::ZERO], 1), None);
        assert_eq!(rate(&[], 0), None);
        let far_apart: Vec<_> = (0..20).map(|n| Duration::from_secs(2 * n)).collect();
        assert_eq!(rate(&far_apart, 20), None, "no link is as slow");
    }

    #[test]
    fn packets_that_are_read_late_do_not_make_a_link_look_slower() {
        let mut arrivals = behind(10, 20);
        // A busy machine reads the last packets 5 ms late, and all at once.
        let late = arrivals[19] + Duration::from_millis(5);
        arrivals[17..].fill(late);
        let found = mbit(rate(&arrivals, 20).expect("a rate"));
        assert!((found / 10.0 - 1.0).abs() < 0.01, "{found}");
    }

    #[test]
    fn trains_over_faster_links_are_longer_within_bounds() {
        let of = |mbit: u64| packets(Some(Rate::from_bits_per_sec(mbit * 1_000_000)));
        assert_eq!(
            [packets(None), of(1), of(50), of(100_000)],
            [20, 20, 53, 100]
        );
    }

    proptest! {
        #[test]
        fn jitter_loss_and_reordering_shift_the_rate_by_no_more_than_they_are(
            wanted in 50_000_u64..200_000_000,
            jitter in prop::collection::vec(0.0_f64..3.0, PACKETS_MAX),
            lost in prop::collection::btree_set(1_usize..19, 0..3),
        ) {
            let rate_wanted = Rate::from_bits_per_sec(wanted);
            let sent = packets(Some(rate_wanted));
            let gap = PACKET_BYTES as f64 * 8.0 / wanted as f64;
            // Up to three packets' time: later ones then overtake earlier ones.
            let mut arrivals: Vec<Duration> = (0..sent)
                .filter(|n| !lost.contains(n))
                .map(|n| Duration::from_secs_f64((n as f64 + jitter[n]) * gap))
                .collect();
            let middle = arrivals.len() / 2;
            arrivals.rotate_left(middle);
            let found = rate(&arrivals, sent).expect("a rate").bits_per_sec() as f64;
            let half = arrivals.len() / 2;
            let bits = PACKET_BYTES as f64 * 8.0 * half as f64;
            // Jitter takes three packets' time at most, a lost packet adds one.
            let shortest = (half - 3) as f64 * gap;
            let longest = (half + 3 + lost.len()) as f64 * gap;
            prop_assert!(found >= bits / longest * 0.999 && found <= bits / shortest * 1.001);
        }
    }

    #[test]
    fn the_median_needs_three_and_forgets_the_oldest() {
        let mut estimates = Estimates::default();
        let rates = [10, 900, 11, 12, 10, 40, 41, 42];
        let seen: Vec<Option<u64>> = rates
            .into_iter()
            .map(|rate| {
                estimates.push(Rate::from_bits_per_sec(rate));
                estimates.median().map(Rate::bits_per_sec)
            })
            .collect();
        let wanted = [0, 0, 11, 12, 11, 12, 12, 40].map(|rate| (rate > 0).then_some(rate));
        assert_eq!(seen, wanted);
    }
}
