//! What an idle way out carries, from packets that went out back to back: the slowest link spreads
//! them, and they arrive as far apart as it takes to send one.
//!
//! An echo makes the way there and back, so the slower direction is measured. Other traffic between
//! the packets makes the rate look lower, buckets of tokens make it look higher; so several trains
//! are taken, and what was seen of a full uplink counts more ([`super::capacity`]).
//!
//! Source: packet dispersion, `C = (N - 1) L / (t_N - t_1)`; the median of several trains.

use core::time::Duration;

use ropewalk_types::Rate;

/// Packets of a train: enough to even out the timer of a link, few enough for shallow queues.
pub const PACKETS: usize = 20;
/// Bytes of each with its IP header: within the smallest MTU of IPv6.
pub const PACKET_BYTES: usize = 1_200;
/// Trains of a first estimate.
pub const FIRST: usize = 5;
/// Trains that make an estimate at least.
const TRAINS_MIN: usize = 3;
/// Answers that make a rate, of [`PACKETS`]: a train with holes is spread by something else too.
const ANSWERS_MIN: usize = PACKETS * 3 / 4;

/// The rate of one train whose answers arrived at these times; `None` when too few did, or all at
/// once. The times may be in any order, and count from anything.
#[must_use]
pub fn rate(arrivals: &[Duration]) -> Option<Rate> {
    let (first, last) = (arrivals.iter().min()?, arrivals.iter().max()?);
    let time = last.saturating_sub(*first);
    if arrivals.len() < ANSWERS_MIN || time.is_zero() {
        return None;
    }
    let bytes = (arrivals.len() - 1) * PACKET_BYTES;
    Some(Rate::from_transfer(u64::try_from(bytes).ok()?, time))
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

    /// Their median, once there are three.
    #[must_use]
    pub fn median(&self) -> Option<Rate> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable();
        let middle = sorted.get(sorted.len() / 2).copied();
        middle
            .filter(|_| sorted.len() >= TRAINS_MIN)
            .map(Rate::from_bits_per_sec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = mbit(rate(&arrivals).expect("a rate"));
            assert!((found / wanted as f64 - 1.0).abs() < 0.01, "{found}");
        }
    }

    #[test]
    fn trains_with_holes_and_packets_that_come_at_once_tell_nothing() {
        assert_eq!(rate(&behind(10, 14)), None);
        assert_eq!(rate(&[Duration::ZERO; PACKETS]), None);
        assert_eq!(rate(&[]), None);
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
