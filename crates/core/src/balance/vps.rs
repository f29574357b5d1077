//! Variable packet size probing: what a way out carries, from how much longer large packets take
//! than small ones. Kept to compare with [`super::train`].
//!
//! For each size the lower quartile of the round trips counts: over an idle way few packets wait.
//! The published minimum is one lucky turn of the timers on the way, and scattered more. Each link
//! stores a packet before it sends it on. So a byte costs the sum of its costs on every link, there
//! and back. The estimate takes two equal links, one for each direction. Every further link makes
//! it too low. Where packets are sent in aggregates, as in Wi-Fi, it says nothing.
//!
//! Sources: Al-Najjar, Pakzad, Layeghy, Portmann, "Link capacity estimation in SDN-based
//! end-hosts", ICSPCS 2016, and Prasad et al. 2003 for the sum over links.

use core::time::Duration;
use std::collections::BTreeMap;

use ropewalk_types::Rate;

use super::train::plausible;

/// Sizes that are sent, bytes with the IP header. Further apart: surer slopes, above 1,280 bytes
/// not every path takes them.
pub const SIZES: [usize; 5] = [100, 375, 650, 925, 1_200];
/// Times that each size is sent. More: surer, more bytes, longer rounds.
pub const REPEATS: usize = 20;
/// Fewest sizes that must have been answered. More: surer, fewer estimates on paths that lose.
const SIZES_MIN: usize = 3;
/// Fewest answers of each of them: with fewer there was likely none without waiting. More: surer,
/// fewer estimates on paths that lose.
const ANSWERS_MIN: usize = REPEATS / 2;

/// The rate from sizes and round trips; `None` when too few came back, or large packets were not slower.
#[must_use]
pub fn rate(round_trips: &[(usize, Duration)]) -> Option<Rate> {
    let mut times: BTreeMap<usize, Vec<Duration>> = BTreeMap::new();
    for &(bytes, time) in round_trips {
        times.entry(bytes).or_default().push(time);
    }
    times.retain(|_, all| all.len() >= ANSWERS_MIN);
    if times.len() < SIZES_MIN {
        return None;
    }
    let points = times.into_iter().map(|(bytes, mut all)| {
        all.sort_unstable();
        (bytes as f64 * 8.0, all[all.len() / 4].as_secs_f64())
    });
    let seconds_per_bit = slope(&points.collect::<Vec<_>>());
    let bits_per_second = 2.0 / seconds_per_bit;
    let is_rate = seconds_per_bit > 0.0 && bits_per_second < u64::MAX as f64;
    let rate = is_rate.then(|| Rate::from_bits_per_sec(bits_per_second as u64));
    rate.and_then(plausible)
}

/// Of the line with the least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let product: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let square: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    product / square
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips over links of these rates, there and back, with waiting in two thirds of each size.
    fn over(up_mbit: f64, down_mbit: f64) -> Vec<(usize, Duration)> {
        let one = |bytes: usize, turn: usize| {
            let micros = bytes as f64 * 8.0 * (1.0 / up_mbit + 1.0 / down_mbit);
            let waiting = (turn * 7 % REPEATS).saturating_sub(6) as f64 * 130.0;
            (
                bytes,
                Duration::from_secs_f64((20_000.0 + micros + waiting) / 1e6),
            )
        };
        let sizes = SIZES.into_iter();
        sizes
            .flat_map(|bytes| (0..REPEATS).map(move |turn| one(bytes, turn)))
            .collect()
    }

    #[test]
    fn the_slope_over_sizes_tells_the_rate_whatever_the_delay_is() {
        for (up, down, wanted) in [(10.0, 10.0, 10.0), (5.0, 20.0, 8.0), (100.0, 100.0, 100.0)] {
            let found = rate(&over(up, down)).expect("a rate").bits_per_sec() as f64 / 1e6;
            assert!((found / wanted - 1.0).abs() < 0.02, "{found} of {wanted}");
        }
    }

    #[test]
    fn few_answers_and_equal_times_tell_nothing() {
        let all = over(10.0, 10.0);
        assert_eq!(rate(&all[..2 * REPEATS]), None, "two sizes");
        let sparse: Vec<_> = all.iter().step_by(3).copied().collect();
        assert_eq!(rate(&sparse), None, "seven of each");
        let flat: Vec<_> = all
            .iter()
            .map(|&(b, _)| (b, Duration::from_millis(9)))
            .collect();
        assert_eq!(rate(&flat), None);
        assert_eq!(rate(&[]), None);
    }
}
