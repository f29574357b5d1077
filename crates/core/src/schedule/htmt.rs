//! HTMT with its defects corrected: no packet overtakes an earlier one of its flow.
//!
//! Source: Sailer and Hähner, "HTMT: High-throughput multipath tunnelling for asymmetric paths",
//! section IV. Per flow the table keeps `A`, the predicted arrival of its newest packet. A path
//! with room is applicable in three cases: it is the flow's last one (a path keeps its order), the
//! packet would arrive by it no earlier than `A` plus a margin, or `A` has passed, so that nothing
//! is left to overtake. The applicable path with the largest `ln(1 + free slots) / srtt` carries
//! the packet, ties by the smaller `srtt`. Without one the flow waits in its own queue until the
//! last path has credit or the margin is met. Other flows go on.
//!
//! Deviations from the publication, each because the published form fails its own aim:
//! - Predicted arrivals take relative one-way delays. Round-trip times make the test twice too
//!   strict on symmetric paths, and arbitrary on others.
//! - `A` is kept instead of path and time, because the round-trip time changes after sending.
//! - `ln(1 + free)` makes one free slot count.
//! - The flow's last path is always applicable: the published test is strict, and refuses that path
//!   to two packets of one instant.
//! - Only the flow concerned waits.
//!
//! Two additions for backlogged flows, because with late binding a path in full use is mostly full:
//! - A flow whose path is full for the moment would move to any path with room, and take that room
//!   from the flows there. So it moves only to room that has stayed unused for a while.
//! - A flow on a slow path that always has room would stay there for ever, because each packet
//!   renews `A`. A better path would stand idle. So after twice that while the flow may overtake,
//!   and the egress puts it in order.

use super::order::crossing_margin;
use super::room::{UnusedRoom, grace, is_backlogged};
use super::tuning::WAIT_MIN;
use super::{Decision, FLOW_BUCKETS, Head, Policy, has_room, send, wake_at};
use crate::path::{PathView, SLOT_BYTES};
use ropewalk_types::{Instant, PathId};

#[derive(Clone, Copy, Debug, Default)]
struct HtmtFlow {
    last: Option<PathId>,
    /// Predicted arrival of the newest packet, on the common clock of [`PathView::arrival`].
    newest_arrival: Instant,
}

/// Flow table; entries age by `A` passing.
#[derive(Debug)]
pub(super) struct Htmt {
    flows: Box<[HtmtFlow]>,
    room: UnusedRoom,
}

impl Default for Htmt {
    fn default() -> Self {
        Self {
            flows: vec![HtmtFlow::default(); FLOW_BUCKETS].into_boxed_slice(),
            room: UnusedRoom::default(),
        }
    }
}

impl Htmt {
    /// When `path`, which has room, is applicable.
    fn applicable_at(
        &self,
        now: Instant,
        head: &Head,
        flow: &HtmtFlow,
        path: &PathView,
    ) -> Instant {
        if flow.last.is_none_or(|last| last == path.id) {
            return now;
        }
        let overtakes = overtakes_until(now, head, flow, path);
        if !is_backlogged(head) {
            return overtakes;
        }
        let unused_since = self.room.since(now, path.id);
        let grace = grace(path, head);
        overtakes
            .min(unused_since + grace * 2)
            .max(unused_since + grace)
    }
}

/// Until when a packet of `flow` on `path` would overtake the newest one. Past `A` nothing is left
/// to overtake.
fn overtakes_until(now: Instant, head: &Head, flow: &HtmtFlow, path: &PathView) -> Instant {
    let not_before = flow.newest_arrival + crossing_margin(path);
    let short = not_before.since(path.arrival(now, head.bytes));
    let gone = if flow.newest_arrival < now {
        now
    } else {
        flow.newest_arrival + WAIT_MIN
    };
    (now + short).min(gone)
}

impl Policy for Htmt {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        self.room.observe(now, head, paths);
        let mut flow = self
            .flows
            .get(usize::from(head.flow))
            .copied()
            .unwrap_or_default();
        flow.last = flow
            .last
            .filter(|last| paths.iter().any(|path| path.id == *last));
        let (mut best, mut wake) = (None::<(&PathView, f64)>, None::<Instant>);
        for path in paths.iter().filter(|path| has_room(path, head)) {
            let at = self.applicable_at(now, head, &flow, path);
            let weight = weighted_slots(path);
            if at > now {
                wake = Some(wake.map_or(at, |wake| wake.min(at)));
            } else if best.is_none_or(|(best, other)| {
                weight > other || (weight == other && path.srtt < best.srtt)
            }) {
                best = Some((path, weight));
            }
        }
        match (best, wake) {
            (Some((path, _)), _) => send(path),
            (None, Some(wake)) => Decision::WaitFlow(Some(wake_at(now, wake))),
            (None, None) => Decision::WaitAll,
        }
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if let Some(flow) = self.flows.get_mut(usize::from(head.flow)) {
            flow.last = Some(path.id);
            flow.newest_arrival = flow.newest_arrival.max(path.arrival(now, head.bytes));
        }
        self.room.used(head, path);
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

/// Line 2 of algorithm 1 with `ln(1 + free)`: `free` is what the window leaves, whatever the pacer.
#[expect(clippy::cast_precision_loss, reason = "slots are far below 2^53")]
fn weighted_slots(path: &PathView) -> f64 {
    let slots = path.cwnd.saturating_sub(path.in_flight + path.queued) / SLOT_BYTES;
    (slots as f64).ln_1p() / path.srtt.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
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
}
