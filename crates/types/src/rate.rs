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
    #[inline]
    pub fn from_transfer(bytes: u64, time: Duration) -> Self {
        if time.is_zero() {
            return Self::ZERO;
        }
        Self(muldiv(bytes, BIT_NANOS, whole_nanos(time)))
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
    #[inline]
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = match bytes.checked_mul(BIT_NANOS) {
            Some(work) => work.div_ceil(self.0),
            None => {
                let work = u128::from(bytes) * u128::from(BIT_NANOS);
                u64::try_from(work.div_ceil(u128::from(self.0))).unwrap_or(u64::MAX)
            }
        };
        Duration::from_nanos(nanos)
    }

    /// Whole bytes that pass in `time`, rounded down; saturates.
    #[must_use]
    #[inline]
    pub fn bytes_in(self, time: Duration) -> u64 {
        muldiv(self.0, whole_nanos(time), BIT_NANOS)
    }

    /// Sum; saturates.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// `a · b / divisor`, rounded down; saturates. What is asked per packet fits 64 bits, and there
/// the division takes a fraction of the time.
#[inline]
fn muldiv(a: u64, b: u64, divisor: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / divisor,
        None => {
            let quotient = u128::from(a) * u128::from(b) / u128::from(divisor);
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

#[inline]
fn whole_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a byte at one bit per second takes, in nanoseconds.
const BIT_NANOS: u64 = 8_000_000_000;

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

    #[test]
    fn products_beyond_64_bits_are_exact_as_well() {
        let (rate, hour) = (
            Rate::from_bits_per_sec(100_000_000_000),
            Duration::from_secs(3_600),
        );
        let bytes = 45_000_000_000_000;
        assert_eq!(rate.bytes_in(hour), bytes);
        assert_eq!(rate.time_for(bytes), hour);
        assert_eq!(rate.time_for(bytes + 1), hour + Duration::from_nanos(1));
        assert_eq!(Rate::from_transfer(bytes, hour), rate);
    }
}
