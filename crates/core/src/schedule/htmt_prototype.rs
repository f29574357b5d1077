//! HTMT as its authors' public prototype codes it, with its defects: for comparison.
//!
//! Source: the scheduler `afmt_noqueue_busy_wait` of the prototype `einsfroest` of Sailer and
//! Hähner. `htmt_paper` is the rule as their paper writes it. A path with a free
//! slot is applicable when `srtt + δ ≥ srtt_last`. The applicable path with the largest `ln(free) /
//! srtt` carries the packet. Without an applicable path everything waits.
//!
//! Defects kept on purpose:
//! 1. `ln(1) = 0`, and the search for the maximum starts at zero with a strict comparison. So none
//!    is chosen from several applicable paths with one free slot each.
//! 2. `δ` counts microseconds and `srtt` milliseconds. So 20 µs pass for the 20 ms between round
//!    trips of 50 and 70 ms, and the test for overtaking seldom fails.
//! 3. When none is chosen, the flow's entry is overwritten with path −1. It reads back as the last
//!    path of the list.
//! 4. One packet that waits holds back every flow.
//!
//! Deviation: with nothing in flight no credit would ever end the wait of defect 1. Then the path
//! with the smallest round-trip time is used.

use super::{Decision, FLOW_BUCKETS, Head, Policy, by_srtt, has_room, send};
use crate::path::{PathView, SLOT_BYTES};
use ropewalk_types::{Instant, PathId};

/// Path of a flow's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastPath {
    One(PathId),
    /// Index −1: the last path of the list.
    MinusOne,
}

/// Flow table: path and time of the newest packet.
#[derive(Debug)]
pub(super) struct HtmtPrototype {
    flows: Box<[Option<(LastPath, Instant)>]>,
}

impl Default for HtmtPrototype {
    fn default() -> Self {
        Self {
            flows: vec![None; FLOW_BUCKETS].into_boxed_slice(),
        }
    }
}

impl HtmtPrototype {
    /// `srtt_last` in milliseconds and `δ` in microseconds, if the flow is in the table.
    fn last(&self, now: Instant, flow: u16, paths: &[PathView]) -> Option<(u128, u128)> {
        let (last, at) = (*self.flows.get(usize::from(flow))?)?;
        let path = match last {
            LastPath::One(id) => paths.iter().find(|path| path.id == id),
            LastPath::MinusOne => paths.last(),
        }?;
        Some((path.srtt.as_millis(), now.since(at).as_micros()))
    }
}

impl Policy for HtmtPrototype {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let last = self.last(now, head.flow, paths);
        let free = |path: &&PathView| slots(path) > 0 && has_room(path, head);
        let applicable = |path: &&PathView| {
            // Defect 2: milliseconds plus microseconds.
            free(path) && last.is_none_or(|(srtt, delta)| path.srtt.as_millis() + delta >= srtt)
        };
        let mut candidates = paths.iter().filter(applicable);
        let Some(first) = candidates.next() else {
            return Decision::WaitAll;
        };
        if candidates.next().is_none() {
            return send(first);
        }
        let (mut best, mut best_weight) = (None, 0.0);
        for path in paths.iter().filter(applicable) {
            let weight = weighted_slots(path);
            // Defect 1: a path with one slot weighs zero and is never larger.
            if weight > best_weight {
                (best, best_weight) = (Some(path), weight);
            }
        }
        if let Some(path) = best {
            return send(path);
        }
        if paths.iter().all(|path| path.in_flight == 0) {
            return paths
                .iter()
                .filter(free)
                .min_by(by_srtt)
                .map_or(Decision::WaitAll, send);
        }
        if let Some(entry) = self.flows.get_mut(usize::from(head.flow)) {
            *entry = Some((LastPath::MinusOne, now)); // defect 3
        }
        Decision::WaitAll // defect 4
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if let Some(entry) = self.flows.get_mut(usize::from(head.flow)) {
            *entry = Some((LastPath::One(path.id), now));
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        for entry in &mut self.flows {
            *entry = entry.filter(|(last, _)| *last != LastPath::One(path));
        }
    }

    fn reason(&self) -> String {
        "largest ln(free slots)/RTT where the prototype's test sees no overtaking".into()
    }
}

/// `cwnd − inflight` in packets; what is queued counts as in flight.
fn slots(path: &PathView) -> u64 {
    path.cwnd.saturating_sub(path.in_flight + path.queued) / SLOT_BYTES
}

/// Line 2 of algorithm 1.
#[expect(clippy::cast_precision_loss, reason = "slots are far below 2^53")]
fn weighted_slots(path: &PathView) -> f64 {
    (slots(path) as f64).ln() / path.srtt.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn the_largest_weight_wins_not_the_smallest_rtt() {
        let mut htmt = HtmtPrototype::default();
        // ln 2 / 50 ms = 13.9, ln 9 / 70 ms = 31.4
        let paths = [view(0, 50, 2), view(1, 70, 9)];
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
    }

    #[test]
    fn two_paths_with_one_slot_each_block_everything() {
        let mut htmt = HtmtPrototype::default();
        let paths = [view(0, 50, 1), view(1, 70, 1)];
        assert_eq!(
            htmt.pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitAll
        );
        assert_eq!(htmt.flows[0], Some((LastPath::MinusOne, Instant::ZERO)));
    }

    #[test]
    fn one_path_with_one_slot_is_used() {
        let mut htmt = HtmtPrototype::default();
        let paths = [view(0, 50, 1), view(1, 70, 0)];
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn twenty_microseconds_pass_for_twenty_milliseconds() {
        let mut htmt = HtmtPrototype::default();
        let paths = [view(0, 50, 9), view(1, 70, 0)];
        htmt.on_sent(Instant::ZERO, &head(0), &paths[1]);
        let wait = htmt.pick(Instant::from_nanos(19_000), &head(0), &paths);
        assert_eq!(wait, Decision::WaitAll);
        let go = htmt.pick(Instant::from_nanos(20_000), &head(0), &paths);
        assert_eq!(go, send(&paths[0]));
    }

    #[test]
    fn nothing_in_flight_never_blocks() {
        let mut htmt = HtmtPrototype::default();
        let mut paths = [view(0, 50, 1), view(1, 70, 1)];
        for path in &mut paths {
            (path.cwnd, path.in_flight) = (SLOT_BYTES, 0);
        }
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
    }
}
