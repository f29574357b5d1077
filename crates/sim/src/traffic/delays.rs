//! What became of a bulk flow's packets at their receiver: delays, and pauses.
//!
//! A delay is counted in microseconds, in bins of 1/128 of an octave's width: 0.4 % at most beside
//! the middle of its bin. So a packet costs one increment, however long the run is.

use ropewalk_plan::{Distribution, Pause};

/// Bins of an octave: more are more precise and take more memory (HdrHistogram's sub-buckets).
const BINS: u64 = 128;
const BIN_BITS: u32 = BINS.trailing_zeros();
/// Shorter times without new data are no pauses, as in the testbed.
const PAUSE_MIN_NS: u64 = 20_000_000;

/// One-way delays of many packets.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    /// Numbers of packets, as long as the largest delay asks for.
    bins: Vec<u32>,
    count: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

/// The bin of a delay in microseconds: those below [`BINS`] have their own.
const fn bin(us: u64) -> usize {
    let octave = (us | (BINS - 1)).ilog2() + 1 - BIN_BITS;
    if octave == 0 {
        us as usize
    } else {
        let within = (us >> octave) as usize;
        // From the second octave on only the upper half of the bins is new.
        within + octave as usize * (BINS as usize / 2)
    }
}

/// The smallest microsecond of the bin after this one.
const fn end(bin: usize) -> u64 {
    let next = bin as u64 + 1;
    if next < BINS {
        return next;
    }
    let octave = next / (BINS / 2) - 1;
    (next - octave * (BINS / 2)) << octave
}

impl Delays {
    /// A packet took so long.
    pub fn add(&mut self, delay_ns: u64) {
        let bin = bin(delay_ns / 1_000);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
        self.min_ns = if self.count == 0 {
            delay_ns
        } else {
            self.min_ns.min(delay_ns)
        };
        self.max_ns = self.max_ns.max(delay_ns);
        self.count += 1;
        self.sum_ns += u128::from(delay_ns);
    }

    /// Adds those of another flow.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), 0);
        }
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            *mine += theirs;
        }
        let known = self.count > 0;
        self.min_ns = if known {
            self.min_ns.min(other.min_ns)
        } else {
            other.min_ns
        };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count += other.count;
        self.sum_ns += other.sum_ns;
    }

    /// Mean, least and largest exactly, quantiles by their bins, ms; `None` of no packet.
    #[must_use]
    pub fn distribution(&self) -> Option<Distribution> {
        if self.count == 0 {
            return None;
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        let (min, max) = (ms(self.min_ns), ms(self.max_ns));
        let quantile = |percent: u64| {
            let rank = (self.count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            for (bin, &packets) in self.bins.iter().enumerate() {
                seen += u64::from(packets);
                if seen >= rank {
                    let begin = bin.checked_sub(1).map_or(0, end);
                    let middle = (begin + end(bin)) as f64 / 2e3;
                    return middle.clamp(min, max);
                }
            }
            max
        };
        Some(Distribution {
            count: self.count,
            mean: self.sum_ns as f64 / self.count as f64 / 1e6,
            min,
            p50: quantile(50),
            p95: quantile(95),
            p99: quantile(99),
            max,
        })
    }

    /// Ends of the bins that are not empty in ms, and how many packets are in each.
    #[must_use]
    pub fn histogram_ms(&self) -> Vec<(f64, u64)> {
        let bins = self.bins.iter().enumerate();
        let full = bins.filter(|(_, packets)| **packets > 0);
        full.map(|(bin, &packets)| (end(bin) as f64 / 1e3, u64::from(packets)))
            .collect()
    }
}

/// Times without new data.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    last_ns: Option<u64>,
    found: Vec<Pause>,
}

impl Pauses {
    /// New data came.
    pub fn on_delivered(&mut self, now_ns: u64) {
        let before = self.last_ns.replace(now_ns);
        if let Some(last_ns) = before.filter(|last| now_ns - last >= PAUSE_MIN_NS) {
            self.found.push(Pause {
                begin: last_ns as f64 / 1e9,
                end: now_ns as f64 / 1e9,
            });
        }
    }

    /// All of them so far.
    #[must_use]
    pub fn found(&self) -> &[Pause] {
        &self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delay_is_in_a_bin_that_ends_shortly_after_it() {
        for us in (0..3_000).chain((12..40).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 3 << bit])) {
            let found = bin(us);
            assert!(us < end(found), "{us}");
            let begin = found.checked_sub(1).map_or(0, end);
            assert!(begin <= us, "{us}");
            assert!(end(found) - begin <= 1 + us / 64, "{us}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values_to_half_a_percent() {
        let (mut all, mut odd) = (Delays::default(), Delays::default());
        for ms in 1..=1_000_u64 {
            let delays = if ms % 2 == 0 { &mut all } else { &mut odd };
            delays.add(ms * 1_000_000);
        }
        all.merge(&odd);
        all.merge(&Delays::default());
        let found = all.distribution().expect("delays");
        let exact = (found.count, found.mean, found.min, found.max);
        assert_eq!(exact, (1_000, 500.5, 1.0, 1_000.0));
        for (found, wanted) in [(found.p50, 500.0), (found.p95, 950.0), (found.p99, 990.0)] {
            assert!((found / wanted - 1.0).abs() < 0.005, "{found} of {wanted}");
        }
        let packets: u64 = all.histogram_ms().iter().map(|(_, packets)| packets).sum();
        assert_eq!(packets, 1_000);
        assert_eq!(Delays::default().distribution(), None);
    }

    #[test]
    fn a_pause_is_a_fiftieth_of_a_second_or_more() {
        let mut pauses = Pauses::default();
        for at_ms in [100, 119, 139, 140] {
            pauses.on_delivered(at_ms * 1_000_000);
        }
        assert_eq!(
            pauses.found(),
            [Pause {
                begin: 0.119,
                end: 0.139
            }]
        );
    }
}
