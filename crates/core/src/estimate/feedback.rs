//! What the egress of a tunnel saw in one report period, as the ingress's estimators and scheduler
//! use it. The tunnel fills these types from a report on the wire.
//!
//! Invariants: counts cover one period and never the same packet twice. Delays are modulo
//! [`DELAY_MODULUS_US`], because the clocks of both ends share neither origin nor range.

use ropewalk_types::{Duration, PathId};

/// Delays (receive time minus send time) are known modulo this many microseconds: transmit
/// timestamps have 24 bits in units of 16 µs, about 268 s.
pub const DELAY_MODULUS_US: i64 = (1 << 24) * 16;

/// What the egress saw on all paths in one report period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressFeedback {
    /// Length of the period.
    pub period: Duration,
    /// One ingress per path on which anything is known.
    pub paths: Vec<PathFeedback>,
    /// Packets the egress held until their predecessors came.
    pub held: u32,
    /// Holds that ended by time, their predecessors still missing.
    pub hold_timeouts: u32,
}

/// What the egress saw on one path in one report period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathFeedback {
    /// The path.
    pub path: PathId,
    /// Packets received.
    pub received_packets: u32,
    /// Bytes received, as handed to the egress.
    pub received_bytes: u64,
    /// Packets called lost: missing in the path's own sequence numbers.
    pub lost_packets: u32,
    /// Runs of consecutive losses that began.
    pub loss_runs: u32,
    /// Smallest and mean delay, if any packet came.
    pub delay: Option<DelaySample>,
    /// Packets that came over this path after the egress had stopped waiting for them.
    pub late_packets: u32,
}

/// Delay of one path in one period: receive time minus send time in microseconds, each on its
/// own clock, in `0..DELAY_MODULUS_US`. Only differences between paths mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelaySample {
    /// Smallest of the period.
    pub min_us: i64,
    /// Mean of the period.
    pub mean_us: i64,
}

/// The difference `a - b` of two delays modulo [`DELAY_MODULUS_US`], nearest to zero.
#[must_use]
pub const fn delay_difference_us(a: i64, b: i64) -> i64 {
    let half = DELAY_MODULUS_US / 2;
    (a.wrapping_sub(b))
        .wrapping_add(half)
        .rem_euclid(DELAY_MODULUS_US)
        - half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_survive_the_wrap() {
        assert_eq!(delay_difference_us(10, DELAY_MODULUS_US - 10), 20);
        assert_eq!(delay_difference_us(DELAY_MODULUS_US - 10, 10), -20);
        assert_eq!(delay_difference_us(5_000, 3_000), 2_000);
        assert_eq!(delay_difference_us(i64::MAX, i64::MIN), -1);
    }
}
