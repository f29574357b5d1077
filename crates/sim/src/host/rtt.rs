//! Round-trip time and retransmission timeout (RFC 6298), with Linux's floor under the variation.

use super::MS;

/// Least the timeout stays above the smoothed round-trip time (Linux `TCP_RTO_MIN`).
pub const RTO_MIN_NS: u64 = 200 * MS;
/// Before the first sample (RFC 6298 §2.1).
const RTO_INITIAL_NS: u64 = 1_000 * MS;
/// RFC 6298 §2.5 allows a bound.
pub const RTO_MAX_NS: u64 = 120_000 * MS;

/// Estimates of one connection, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    /// Smoothed; zero before the first sample.
    pub smoothed_ns: u64,
    /// Mean deviation.
    pub variation_ns: u64,
    /// Smallest ever.
    pub min_ns: u64,
    /// Latest sample.
    pub latest_ns: u64,
}

impl Rtt {
    /// Takes a sample in.
    pub fn sample(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        self.latest_ns = rtt_ns;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns, self.min_ns) = (rtt_ns, rtt_ns / 2, rtt_ns);
            return;
        }
        self.min_ns = self.min_ns.min(rtt_ns);
        let deviation = self.smoothed_ns.abs_diff(rtt_ns);
        self.variation_ns = (3 * self.variation_ns + deviation) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
    }

    /// Retransmission timeout without backoff.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        if self.smoothed_ns == 0 {
            return RTO_INITIAL_NS;
        }
        self.smoothed_ns + (4 * self.variation_ns).max(RTO_MIN_NS)
    }

    /// The smoothed time, or a guess before the first sample.
    #[must_use]
    pub fn smoothed_or(&self, guess_ns: u64) -> u64 {
        if self.smoothed_ns == 0 {
            guess_ns
        } else {
            self.smoothed_ns
        }
    }
}
