//! Medians, percentiles and ranges of measured values.
//!
//! Percentiles use the nearest rank (the smallest value with at least that share at or below
//! it), so every figure reported was really measured.

use serde::{Deserialize, Serialize};

/// A sample of one quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<f64>);

/// The figures reported of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl Sample {
    /// Nearest-rank percentile, `share` in `0.0..=1.0`; 0 of an empty sample.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is between 0 and the number of values"
    )]
    pub fn percentile(&self, share: f64) -> f64 {
        let rank = (share.clamp(0.0, 1.0) * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// All figures of an empty sample are 0.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "samples are far below 2^53 values"
    )]
    pub fn summary(&self) -> Summary {
        let count = self.0.len();
        Summary {
            count,
            mean: if count == 0 {
                0.0
            } else {
                self.0.iter().sum::<f64>() / count as f64
            },
            median: self.percentile(0.5),
            p95: self.percentile(0.95),
            min: self.0.first().copied().unwrap_or(0.0),
            max: self.0.last().copied().unwrap_or(0.0),
        }
    }
}

/// Summary of values in any order.
#[must_use]
pub fn summarize(values: impl IntoIterator<Item = f64>) -> Summary {
    values.into_iter().collect::<Sample>().summary()
}

/// Megabits per second of a number of bytes in a time.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "byte counts of a run are below 2^53"
)]
pub fn mbit_per_second(bytes: u64, time: std::time::Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        bytes as f64 * 8.0 / 1e6 / time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let summary = summarize((1..=20).rev().map(f64::from));
        assert_eq!((summary.median, summary.p95), (10.0, 19.0));
        assert_eq!((summary.min, summary.max, summary.count), (1.0, 20.0, 20));
        assert!((summary.mean - 10.5).abs() < 1e-9);
        assert_eq!(summarize([]), Summary::default());
        assert_eq!(summarize([7.0]).p95, 7.0);
    }
}
