//! The pacer of sub-tunnels: a token bucket that refills at 5/4 of a window per round trip, in
//! bursts of two milliseconds' worth, as `quinn-proto` has it (RFC 9002 §7.7).

use crate::host::MS;

/// Time's worth of a full bucket.
const BURST_NS: u64 = 2 * MS;
/// Bounds of a full bucket in packets.
const BURST_PACKETS_MIN: u64 = 10;
const BURST_PACKETS_MAX: u64 = 256;

/// State of one path.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    capacity: u64,
    window: u64,
    tokens: u64,
    at_ns: u64,
    mtu: u64,
}

impl Pacer {
    /// A full bucket.
    #[must_use]
    pub fn new(now_ns: u64, rtt_ns: u64, window: u64, mtu: u64) -> Self {
        let capacity = capacity(rtt_ns, window, mtu);
        Self {
            capacity,
            window,
            tokens: capacity,
            at_ns: now_ns,
            mtu,
        }
    }

    /// So many bytes were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// When a packet of `bytes` may go, unless it may now.
    pub fn wait_until(&mut self, now_ns: u64, rtt_ns: u64, bytes: u64, window: u64) -> Option<u64> {
        if window != self.window {
            self.capacity = capacity(rtt_ns, window, self.mtu);
            self.tokens = self.tokens.min(self.capacity);
            self.window = window;
        }
        if self.tokens >= bytes || rtt_ns == 0 {
            return None;
        }
        let elapsed = now_ns.saturating_sub(self.at_ns) as f64 / rtt_ns as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of the window, rounded down as the original does"
        )]
        let fresh = (window as f64 * 1.25 * elapsed) as u64;
        self.tokens = self.tokens.saturating_add(fresh).min(self.capacity);
        self.at_ns = now_ns;
        if self.tokens >= bytes {
            return None;
        }
        // At most 256 packets are missing: 64 bits hold round trips of hours.
        let missing = bytes.max(self.capacity) - self.tokens;
        let wait_ns = rtt_ns.saturating_mul(4 * missing) / (5 * window.max(1));
        Some(now_ns + wait_ns.max(1))
    }
}

fn capacity(rtt_ns: u64, window: u64, mtu: u64) -> u64 {
    let burst = window.saturating_mul(BURST_NS) / rtt_ns.max(1);
    burst.clamp(BURST_PACKETS_MIN * mtu, BURST_PACKETS_MAX * mtu)
}
