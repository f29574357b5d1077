//! BLEST: the fastest path; a slower one only while it will not block the fast one.
//!
//! Source: Ferlin, Alay, Mehani, Boreli, "BLEST: Blocking estimation-based MPTCP scheduler for
//! heterogeneous networks" (IFIP Networking 2016), section III. When the fastest path is full, the
//! bytes it could send during one round trip of the slower one are estimated: `X = λ · Σ cwnd`. Its
//! window grows by a packet per round trip. If they do not fit in the send window beside what the
//! slower path then has in flight, nothing is sent. `λ` rises by 0.04 when blocking was seen in the
//! last slow round trip, else falls by 0.01, within 1.0..=1.3.
//!
//! Deviation: a tunnel has no send window shared by its paths. In its place stands what the
//! inner senders have under way: bytes in flight on all paths and bytes waiting at the ingress.
//! Blocking is seen as late packets or holds that timed out at the egress.

use super::tuning::{LAMBDA_DOWN, LAMBDA_MAX, LAMBDA_MIN, LAMBDA_START, LAMBDA_UP};
use super::{Decision, Head, Policy, fast_or_slow, send};
use crate::estimate::EgressFeedback;
use crate::path::{PathView, SLOT_BYTES};
use ropewalk_types::Instant;

/// The correction factor and whether blocking was seen since it last changed.
#[derive(Debug)]
pub(super) struct Blest {
    lambda: f64,
    blocked: bool,
    corrected_at: Instant,
}

impl Default for Blest {
    fn default() -> Self {
        Self {
            lambda: LAMBDA_START,
            blocked: false,
            corrected_at: Instant::ZERO,
        }
    }
}

impl Blest {
    fn correct(&mut self, now: Instant, slow: &PathView) {
        if now.since(self.corrected_at) < slow.srtt {
            return;
        }
        let step = if self.blocked {
            LAMBDA_UP
        } else {
            -LAMBDA_DOWN
        };
        self.lambda = (self.lambda + step).clamp(LAMBDA_MIN, LAMBDA_MAX);
        (self.blocked, self.corrected_at) = (false, now);
    }
}

impl Policy for Blest {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let (fast, slow) = match fast_or_slow(head, paths) {
            Ok(choice) => choice,
            Err(decision) => return decision,
        };
        self.correct(now, slow);
        let under_way: u64 = paths.iter().map(|path| path.in_flight + path.queued).sum();
        let window = under_way + head.backlog;
        let left = window.saturating_sub(slow.in_flight + slow.queued + head.bytes);
        if self.lambda * fast_bytes(fast, slow) > as_f64(left) {
            Decision::WaitAll
        } else {
            send(slow)
        }
    }

    fn on_feedback(&mut self, _now: Instant, feedback: &EgressFeedback) {
        let late = feedback.paths.iter().any(|path| path.late_packets > 0);
        self.blocked |= late || feedback.hold_timeouts > 0;
    }

    fn reason(&self) -> String {
        format!(
            "fastest path, others while they do not block it (lambda {:.2})",
            self.lambda
        )
    }
}

/// Bytes `fast` sends in one round trip of `slow`: section III, equation for `X`.
fn fast_bytes(fast: &PathView, slow: &PathView) -> f64 {
    let rounds = slow.srtt.as_secs_f64() / fast.srtt.as_secs_f64().max(1e-6);
    (as_f64(fast.cwnd) + as_f64(SLOT_BYTES) * (rounds - 1.0) / 2.0) * rounds
}

#[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^53")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;
    use crate::estimate::PathFeedback;

    #[test]
    fn the_fast_path_is_used_while_it_has_room() {
        let mut blest = Blest::default();
        let paths = [view(0, 50, 1), view(1, 70, 9)];
        assert_eq!(blest.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn a_slow_path_that_would_block_is_left_alone() {
        let mut blest = Blest::default();
        let mut paths = [view(0, 50, 0), view(1, 500, 9)];
        paths[0].in_flight = paths[0].cwnd;
        assert_eq!(
            blest.pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitAll
        );
        // With enough waiting for both, it pays.
        let mut bulk = head(0);
        bulk.backlog = 100 * paths[0].cwnd;
        assert_eq!(blest.pick(Instant::ZERO, &bulk, &paths), send(&paths[1]));
    }

    #[test]
    fn lambda_rises_after_blocking_and_falls_without() {
        let mut blest = Blest::default();
        let paths = [view(0, 50, 0), view(1, 70, 9)];
        let late = PathFeedback {
            late_packets: 1,
            ..PathFeedback::default()
        };
        let feedback = EgressFeedback {
            paths: vec![late],
            ..EgressFeedback::default()
        };
        blest.on_feedback(Instant::ZERO, &feedback);
        blest.pick(Instant::from_millis(100), &head(0), &paths);
        assert!((blest.lambda - 1.24).abs() < 1e-9, "{}", blest.lambda);
        blest.pick(Instant::from_millis(200), &head(0), &paths);
        assert!((blest.lambda - 1.23).abs() < 1e-9, "{}", blest.lambda);
        blest.pick(Instant::from_millis(210), &head(0), &paths);
        assert!(
            (blest.lambda - 1.23).abs() < 1e-9,
            "less than a slow round trip"
        );
    }
}
