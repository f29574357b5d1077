//! Which flows the egress has to put back in order.
//!
//! A flow needs it once one of its packets is sent over another path while an earlier one may still
//! be under way. Predicted arrivals are not trusted here, because they lag behind queues. A marked
//! packet costs nothing at an egress without a gap to wait for. A packet that overtakes unmarked
//! costs the flow a false loss. A packet counts as under way for a round trip of its path, which
//! bounds its one-way delay. Invariant: a flow that stays on one path is never put in order,
//! because a path keeps its order.

use super::tuning::CROSSING_MARGIN_MIN;
use super::{FLOW_BUCKETS, bucket};
use crate::path::PathView;
use ropewalk_types::{Buckets, Duration, Instant, PathId};

/// How wrong the predicted arrival over `path` may be: its round-trip time variation.
pub(super) fn crossing_margin(path: &PathView) -> Duration {
    path.rttvar.max(CROSSING_MARGIN_MIN)
}

#[derive(Clone, Copy, Debug, Default)]
struct OrderedFlow {
    last: Option<PathId>,
    /// When the newest packet was sent.
    sent_at: Instant,
    /// Until when any packet may be under way.
    under_way_until: Instant,
    /// Until when packets are marked.
    ordered_until: Instant,
}

/// Per-flow record of where packets went.
#[derive(Debug)]
pub(super) struct FlowOrder {
    flows: Buckets<OrderedFlow>,
}

impl FlowOrder {
    pub(super) fn new() -> Self {
        Self {
            flows: Buckets::new(FLOW_BUCKETS),
        }
    }

    /// A packet of `flow` was bound to `path`.
    pub(super) fn on_sent(&mut self, now: Instant, flow: u16, path: &PathView) {
        let state = &mut self.flows[bucket(flow)];
        let switched = state.last.is_some_and(|last| last != path.id);
        let crosses = switched && now < state.under_way_until;
        let lands = now + path.srtt + crossing_margin(path);
        state.under_way_until = state.under_way_until.max(lands);
        if crosses {
            state.ordered_until = state.ordered_until.max(state.under_way_until);
        }
        (state.last, state.sent_at) = (Some(path.id), now);
    }

    /// Whether the newest packet of `flow` belongs to a stretch that may arrive out of order.
    pub(super) fn must_order(&self, flow: u16) -> bool {
        let state = &self.flows[bucket(flow)];
        state.sent_at < state.ordered_until
    }

    /// Gives the memory of flows back that have nothing under way.
    pub(super) fn forget_idle(&mut self, now: Instant) {
        self.flows
            .forget(|state| state.under_way_until < now && state.ordered_until < now);
    }

    /// The identifier may be given to another path: forget that flows used it.
    pub(super) fn on_path_removed(&mut self, path: PathId) {
        for state in self.flows.iter_mut() {
            if state.last == Some(path) {
                state.last = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::view;
    use super::*;

    fn marks(sends: &[(u64, u8)]) -> Vec<bool> {
        let mut order = FlowOrder::new();
        let paths = [view(0, 50, 9), view(1, 70, 9)];
        let mut mark = |&(ms, path): &(u64, u8)| {
            order.on_sent(Instant::from_millis(ms), 5, &paths[usize::from(path)]);
            order.must_order(5)
        };
        sends.iter().map(&mut mark).collect()
    }

    #[test]
    fn a_flow_on_one_path_is_left_alone() {
        assert_eq!(marks(&[(0, 1), (1, 1), (2, 1)]), [false; 3]);
    }

    #[test]
    fn a_switch_within_a_round_trip_is_ordered_until_all_have_landed() {
        // Round trips of 50 and 70 ms with margins of 5 and 7 ms.
        let sends = [(0, 1), (10, 0), (20, 0), (76, 0), (77, 0), (200, 0)];
        assert_eq!(marks(&sends), [false, true, true, true, false, false]);
    }

    #[test]
    fn a_switch_after_everything_has_landed_is_not() {
        assert_eq!(marks(&[(0, 1), (77, 0), (132, 1)]), [false; 3]);
    }

    #[test]
    fn a_removed_path_is_forgotten() {
        let mut order = FlowOrder::new();
        order.on_sent(Instant::ZERO, 5, &view(1, 70, 9));
        order.on_path_removed(PathId(1));
        order.on_sent(Instant::ZERO, 5, &view(0, 50, 9));
        assert!(!order.must_order(5));
    }
}
