//! OTIAS: the path with the earliest delivery estimate, even if its window is full.
//!
//! Source: Yang, Wang, Amer, "Out-of-order transmission for in-order arrival scheduling for
//! multipath TCP" (AINA 2014), section III. With `wait = ⌊(queued − (cwnd − inflight)) / cwnd⌋`
//! round trips to wait until the queue in front of the packet is gone, the estimate is
//! `T = wait · srtt + srtt / 2`, and the smallest `T` wins.
//!
//! Deviations: `wait` is not negative (otherwise the slowest idle path wins). As published, a
//! packet is appended to the send queue of a full path. Here packets are bound late: the packet
//! waits for that path at the ingress. Waiting packets count as queued behind every full path,
//! because the same packets would be in front. The wait is bounded by a round trip of that path,
//! because the publication leaves open what happens when the estimate does not come true.

use super::{Decision, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PathId};

/// The path waited for, and since when.
#[derive(Debug, Default)]
pub(super) struct Otias {
    waiting: Option<(PathId, Instant)>,
}

impl Policy for Otias {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let earliest = |path: &&PathView| (delivery(path, head), path.id);
        let Some(best) = paths.iter().min_by_key(earliest) else {
            return Decision::WaitAll;
        };
        if has_room(best, head) {
            return send(best);
        }
        let since = match self.waiting {
            Some((id, since)) if id == best.id => since,
            _ => {
                self.waiting = Some((best.id, now));
                now
            }
        };
        if now.since(since) < best.srtt {
            return Decision::WaitFlow(Some(since + best.srtt));
        }
        paths
            .iter()
            .filter(|path| has_room(path, head))
            .min_by_key(earliest)
            .map_or(Decision::WaitAll, send)
    }

    fn fills_buffers(&self) -> bool {
        true
    }

    fn on_sent(&mut self, _now: Instant, _head: &Head, path: &PathView) {
        if self.waiting.is_some_and(|(id, _)| id == path.id) {
            self.waiting = None;
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        if self.waiting.is_some_and(|(id, _)| id == path) {
            self.waiting = None;
        }
    }

    fn reason(&self) -> String {
        match self.waiting {
            Some((id, _)) => format!("waiting for path {}: full, but earliest by its RTT", id.0),
            None => "earliest delivery by window, queue and half a round trip".into(),
        }
    }
}

/// `T` of the publication.
fn delivery(path: &PathView, head: &Head) -> Duration {
    let waiting = if has_room(path, head) {
        0
    } else {
        head.backlog
    };
    let room = path.cwnd.saturating_sub(path.in_flight);
    let rounds = (path.queued + waiting).saturating_sub(room) / path.cwnd.max(1);
    path.srtt
        .saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
        + path.srtt / 2
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;
    use crate::schedule::PathSet;

    #[test]
    fn an_idle_fast_path_beats_an_idle_slow_one() {
        let mut otias = Otias::default();
        let paths = [view(0, 70, 9), view(1, 50, 9)];
        assert_eq!(otias.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
    }

    #[test]
    fn waits_for_the_fast_path_while_less_than_a_window_waits() {
        let mut otias = Otias::default();
        let paths = [view(0, 50, 0), view(1, 70, 9)];
        let until = Instant::ZERO + paths[0].srtt;
        assert_eq!(
            otias.pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitFlow(Some(until))
        );
    }

    #[test]
    fn a_window_of_backlog_makes_the_slow_path_earlier() {
        let mut otias = Otias::default();
        let paths = [view(0, 50, 0), view(1, 70, 9)];
        let mut long = head(0);
        long.backlog = paths[0].cwnd;
        assert_eq!(otias.pick(Instant::ZERO, &long, &paths), send(&paths[1]));
    }

    #[test]
    fn the_wait_for_a_path_that_gives_no_credit_ends_after_its_round_trip() {
        let mut otias = Otias::default();
        let paths = [view(0, 50, 0), view(1, 70, 9)];
        otias.pick(Instant::ZERO, &head(0), &paths);
        let later = Instant::ZERO + paths[0].srtt;
        assert_eq!(
            otias.pick(later, &head(0), &paths),
            Decision::Send(PathSet::one(PathId(1)))
        );
    }
}
