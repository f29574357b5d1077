//! Sending at a rate: small bursts, each followed by the time it is worth.

/// Time's worth of a burst (Linux `sk_pacing_shift` 10: about a millisecond).
const BURST_PER_SEC: f64 = 1_024.0;
/// Most segments in a burst.
const BURST_MAX: f64 = 44.0;

/// State of one sender; rates are segments per second.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    until_ns: u64,
    left: u32,
    debt_ns: u64,
    burst_min: f64,
}

impl Pacing {
    /// Bursts of at least so many segments.
    #[must_use]
    pub fn new(burst_min: u32) -> Self {
        Self {
            until_ns: 0,
            left: 0,
            debt_ns: 0,
            burst_min: f64::from(burst_min),
        }
    }

    /// When the next burst may leave.
    #[must_use]
    pub const fn due_ns(&self) -> u64 {
        self.until_ns
    }

    /// Whether a segment may leave now.
    pub fn allows(&mut self, now_ns: u64, per_sec: f64) -> bool {
        if now_ns < self.until_ns {
            return false;
        }
        if self.left == 0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "bounded"
            )]
            let burst = (per_sec / BURST_PER_SEC).clamp(self.burst_min, BURST_MAX) as u32;
            self.left = burst;
        }
        true
    }

    /// A segment left.
    pub fn on_sent(&mut self, now_ns: u64, per_sec: f64) {
        self.left = self.left.saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are positive"
        )]
        let gap_ns = (1e9 / per_sec.max(1.0)) as u64;
        self.debt_ns += gap_ns;
        if self.left == 0 {
            self.until_ns = now_ns + core::mem::take(&mut self.debt_ns);
        }
    }

    /// What was owed is forgiven.
    pub fn reset(&mut self) {
        (self.until_ns, self.left, self.debt_ns) = (0, 0, 0);
    }
}
