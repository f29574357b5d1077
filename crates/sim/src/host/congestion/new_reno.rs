//! NewReno: one segment more per round trip, half the window after a loss (RFC 5681, RFC 6582).

use super::{AckSample, Window};

/// Keeps nothing besides the window.
#[derive(Clone, Copy, Debug)]
pub struct NewReno;

impl NewReno {
    /// Grows the window (RFC 5681 §3.1, counting segments as RFC 3465).
    pub fn on_ack(self, window: &mut Window, sample: &AckSample) {
        if !sample.window_limited {
            return;
        }
        let mut acked = sample.acked;
        if window.slow_start() {
            acked = window.grow_slow_start(acked);
        }
        if acked > 0 && !window.slow_start() {
            window.grow_one_per(window.cwnd, acked);
        }
    }
}
