//! ECF: waits for the fast path when what waits completes earlier that way.
//!
//! Source: Lim, Nahum, Towsley, Gibbens, "ECF: An MPTCP path scheduler to manage heterogeneous
//! paths" (CoNEXT 2017), algorithm 1. `f` is the path with the smallest round-trip time, and `s`
//! the one LowRTT would use while `f` is full. `k` are the bytes that wait, `δ` is the larger
//! variation of both. Nothing is sent when two conditions hold. Sending `k` over `f` in windows
//! beats one round trip of `s`: `srtt_f (max(k, cwnd_f) + cwnd_f) < cwnd_f (srtt_s + δ)(1 + β ·
//! waiting)`. And `s` takes at least two round trips of `f`: `srtt_s max(k, cwnd_s) ≥ cwnd_s (2
//! srtt_f + δ)`. `β = ¼` keeps the answer from flapping.

use super::tuning::BETA;
use super::{Decision, Head, Policy, fast_or_slow, send};
use crate::path::PathView;
use ropewalk_types::Instant;

/// Whether the last answer was to wait.
#[derive(Debug, Default)]
pub(super) struct Ecf {
    waiting: bool,
}

impl Policy for Ecf {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let (fast, slow) = match fast_or_slow(head, paths) {
            Ok(choice) => choice,
            Err(decision) => return decision,
        };
        let backlog = as_f64(head.backlog);
        let (cwnd_f, cwnd_s) = (as_f64(fast.cwnd), as_f64(slow.cwnd));
        let (srtt_f, srtt_s) = (fast.srtt.as_secs_f64(), slow.srtt.as_secs_f64());
        let delta = fast.rttvar.max(slow.rttvar).as_secs_f64();
        let hysteresis = if self.waiting { 1.0 + BETA } else { 1.0 };
        let fast_is_sooner =
            srtt_f * (backlog.max(cwnd_f) + cwnd_f) < cwnd_f * (srtt_s + delta) * hysteresis;
        if !fast_is_sooner {
            self.waiting = false;
            return send(slow);
        }
        if srtt_s * backlog.max(cwnd_s) >= cwnd_s * (2.0 * srtt_f + delta) {
            self.waiting = true;
            return Decision::WaitAll;
        }
        send(slow)
    }

    fn reason(&self) -> String {
        if self.waiting {
            "waiting for the fastest path: it completes earlier".into()
        } else {
            "fastest path, others when they complete earlier".into()
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^53")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;
    use ropewalk_types::Duration;

    fn pair(slow_ms: u64) -> [PathView; 2] {
        let mut paths = [view(0, 50, 0), view(1, slow_ms, 9)];
        for path in &mut paths {
            path.rttvar = Duration::ZERO;
        }
        paths
    }

    #[test]
    fn waits_when_the_slow_path_takes_more_than_two_fast_round_trips() {
        let paths = pair(101);
        assert_eq!(
            Ecf::default().pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitAll
        );
    }

    #[test]
    fn uses_the_slow_path_when_it_is_nearly_as_fast() {
        let paths = pair(99);
        assert_eq!(
            Ecf::default().pick(Instant::ZERO, &head(0), &paths),
            send(&paths[1])
        );
    }

    #[test]
    fn a_long_backlog_makes_the_slow_path_pay() {
        let paths = pair(150);
        let mut bulk = head(0);
        bulk.backlog = 3 * paths[0].cwnd;
        assert_eq!(
            Ecf::default().pick(Instant::ZERO, &bulk, &paths),
            send(&paths[1])
        );
    }

    #[test]
    fn once_waiting_a_slightly_longer_backlog_does_not_change_its_mind() {
        let paths = pair(150);
        let mut bulk = head(0);
        bulk.backlog = paths[0].cwnd * 22 / 10;
        assert_eq!(
            Ecf::default().pick(Instant::ZERO, &bulk, &paths),
            send(&paths[1])
        );
        let mut waiting = Ecf { waiting: true };
        assert_eq!(
            waiting.pick(Instant::ZERO, &bulk, &paths),
            Decision::WaitAll
        );
    }
}
