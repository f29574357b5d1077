//! HTMT with its defects corrected: no packet overtakes an earlier one of its flow.
//!
//! Source: Sailer and Hähner, "HTMT: High-throughput multipath tunnelling for asymmetric paths",
//! section IV. Per flow the table keeps `A`, the predicted arrival of its newest packet. A path
//! with room is applicable when it is the flow's last one (a path keeps its order) or when the
//! packet would arrive by it no earlier than `A` plus a margin; once `A` has passed, nothing is
//! left to overtake and every path with room is applicable. Of the applicable paths the one with
//! the largest `ln(1 + free slots) / srtt` carries the packet, ties by the smaller `srtt`. With
//! none the flow waits in its own queue until the last path has credit or the margin is met;
//! other flows go on.
//!
//! Deviations from the publication, each because the published form fails its own aim: predicted
//! arrivals with relative one-way delays instead of round-trip times (which make the test twice
//! too strict on symmetric paths and arbitrary on others); `A` instead of path and time, since
//! the round-trip time changes after sending; `ln(1 + free)`, so that one free slot counts; only
//! the flow concerned waits.

use super::order::crossing_margin;
use super::{Decision, FLOW_BUCKETS, Head, Policy, WAIT_MIN, has_room, send, wake_at};
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    last: Option<PathId>,
    /// Predicted arrival of the newest packet, on the common clock of [`PathView::arrival`].
    newest_arrival: Instant,
}

/// Flow table; entries age by `A` passing.
#[derive(Debug)]
pub(super) struct Htmt {
    flows: Box<[FlowState]>,
}

impl Default for Htmt {
    fn default() -> Self {
        Self {
            flows: vec![FlowState::default(); FLOW_BUCKETS].into_boxed_slice(),
        }
    }
}

impl Policy for Htmt {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let Some(flow) = self.flows.get_mut(usize::from(head.flow)) else {
            return Decision::WaitAll;
        };
        if flow.newest_arrival < now {
            *flow = FlowState::default();
        }
        // The earliest arrival by this path that overtakes nothing.
        let not_before = |path: &PathView| {
            if flow.last.is_none() || flow.last == Some(path.id) {
                Instant::ZERO
            } else {
                flow.newest_arrival + crossing_margin(path)
            }
        };
        let (mut best, mut best_weight) = (None::<&PathView>, f64::NEG_INFINITY);
        let (mut any_room, mut wake) = (false, Instant::FAR_FUTURE);
        for path in paths {
            if !has_room(path, head) {
                continue;
            }
            any_room = true;
            let short = not_before(path).since(path.arrival(now, head.bytes));
            if !short.is_zero() {
                // Past `A` nothing is left to overtake, whatever the margin.
                wake = wake.min(now + short).min(flow.newest_arrival + WAIT_MIN);
                continue;
            }
            let weight = weighted_slots(path);
            let tie_won = best.is_some_and(|best| weight == best_weight && path.srtt < best.srtt);
            if weight > best_weight || tie_won {
                (best, best_weight) = (Some(path), weight);
            }
        }
        match best {
            Some(path) => send(path),
            None if any_room => Decision::WaitFlow(Some(wake_at(now, wake))),
            None => Decision::WaitAll,
        }
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if let Some(flow) = self.flows.get_mut(usize::from(head.flow)) {
            flow.last = Some(path.id);
            flow.newest_arrival = flow.newest_arrival.max(path.arrival(now, head.bytes));
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        for flow in &mut self.flows {
            flow.last = flow.last.filter(|last| *last != path);
        }
    }

    fn reason(&self) -> String {
        "largest ln(1 + free slots)/RTT among the paths where the flow overtakes nothing".into()
    }
}

#[expect(clippy::cast_precision_loss, reason = "slots are far below 2^53")]
fn weighted_slots(path: &PathView) -> f64 {
    (path.free_slots() as f64).ln_1p() / path.srtt.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::toy::{self, head, view};
    use super::*;
    use ropewalk_types::{Duration, Rate};

    /// Paths whose arrival is `now` plus 0 and 10 ms, with a margin of 1 ms.
    fn pair(free: [u64; 2]) -> [PathView; 2] {
        let mut paths = [view(0, 50, free[0]), view(1, 70, free[1])];
        for path in &mut paths {
            path.rttvar = Duration::ZERO;
            path.rate = Rate::from_bits_per_sec(u64::MAX);
        }
        paths[1].owd_relative = Duration::from_millis(10);
        paths
    }

    #[test]
    fn one_free_slot_counts() {
        let mut htmt = Htmt::default();
        let paths = pair([1, 1]);
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn equal_weights_go_to_the_smaller_rtt() {
        let mut htmt = Htmt::default();
        let mut paths = pair([0, 0]);
        // No whole slot, yet room for a small packet: both weigh zero.
        (paths[0].free, paths[1].free) = (600, 600);
        (paths[0].srtt, paths[1].srtt) = (paths[1].srtt, paths[0].srtt);
        let small = Head {
            bytes: 100,
            ..head(0)
        };
        assert_eq!(htmt.pick(Instant::ZERO, &small, &paths), send(&paths[1]));
    }

    #[test]
    fn a_flow_waits_until_it_overtakes_nothing_while_others_go() {
        let mut htmt = Htmt::default();
        let paths = pair([9, 0]);
        htmt.on_sent(Instant::ZERO, &head(7), &paths[1]);
        let wait = htmt.pick(Instant::ZERO, &head(7), &paths);
        let Decision::WaitFlow(Some(at)) = wait else {
            panic!("{wait:?}")
        };
        let past_newest = at.since(Instant::from_millis(10));
        assert!(
            !past_newest.is_zero() && past_newest < Duration::from_millis(1),
            "{at:?}"
        );
        assert_eq!(htmt.pick(Instant::ZERO, &head(8), &paths), send(&paths[0]));
        assert_eq!(htmt.pick(at, &head(7), &paths), send(&paths[0]));
    }

    #[test]
    fn the_last_path_is_always_applicable() {
        let mut htmt = Htmt::default();
        let paths = pair([9, 9]);
        htmt.on_sent(Instant::ZERO, &head(7), &paths[1]);
        assert_eq!(htmt.pick(Instant::ZERO, &head(7), &paths), send(&paths[1]));
    }

    #[test]
    fn once_the_newest_packet_has_arrived_every_path_is_applicable() {
        let mut htmt = Htmt::default();
        let mut paths = pair([9, 9]);
        htmt.on_sent(Instant::ZERO, &head(7), &paths[1]);
        // A margin that could never be met.
        paths[0].rttvar = Duration::from_secs(1);
        let later = Instant::from_millis(12);
        assert_eq!(htmt.pick(later, &head(7), &paths), send(&paths[0]));
    }

    #[test]
    fn golden_trace() {
        toy::golden("htmt", super::super::SchedulerKind::Htmt);
    }
}
