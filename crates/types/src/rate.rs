//! Transmission rates in bits per second.

use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Bits per second.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rate(u64);

impl Rate {
    /// No capacity at all.
    pub const ZERO: Self = Self(0);

    /// A rate of `bits` per second.
    #[must_use]
    pub const fn from_bits_per_sec(bits: u64) -> Self {
        Self(bits)
    }

    /// The rate at which `bytes` pass in `time`; zero when `time` is zero.
    #[must_use]
    pub fn from_transfer(bytes: u64, time: Duration) -> Self {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return Self::ZERO;
        }
        let bits = u128::from(bytes) * 8 * 1_000_000_000 / nanos;
        Self(u64::try_from(bits).unwrap_or(u64::MAX))
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_sec(self) -> u64 {
        self.0
    }

    /// Whole bytes per second, rounded down.
    #[must_use]
    pub const fn bytes_per_sec(self) -> u64 {
        self.0 / 8
    }

    /// Time to serialise `bytes`, rounded up to a nanosecond; [`Duration::MAX`] at rate zero.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Whole bytes that pass in `time`, rounded down; saturates.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Sum; saturates.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_bytes_agree() {
        let rate = Rate::from_bits_per_sec(8_000_000);
        assert_eq!(rate.time_for(1_000), Duration::from_millis(1));
        assert_eq!(rate.bytes_in(Duration::from_millis(1)), 1_000);
        assert_eq!(Rate::from_transfer(1_000, Duration::from_millis(1)), rate);
        assert_eq!(Rate::ZERO.time_for(1), Duration::MAX);
    }
}
