//! Which flows the exit has to put back in order.
//!
//! A flow needs it once one of its packets may have overtaken an earlier one: it was sent over
//! another path with a predicted arrival before, or hardly after, that of the newest packet of
//! the flow. The need ends when no packet that can be overtaken is under way any more, and as
//! long again. Invariant: a flow that stays on one path is never put in order, because a path
//! keeps its order.

use super::FLOW_BUCKETS;
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PathId};

/// Predictions closer than this may come out the other way round.
pub(super) const CROSSING_MARGIN_MIN: Duration = Duration::from_millis(1);

/// How wrong the predicted arrival over `path` may be: its round-trip time variation.
pub(super) fn crossing_margin(path: &PathView) -> Duration {
    path.rttvar.max(CROSSING_MARGIN_MIN)
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    last: Option<PathId>,
    /// Predicted arrival of the newest packet, on the common clock of [`PathView::arrival`].
    newest_arrival: Instant,
    ordered_until: Instant,
    sent_at: Instant,
}

/// Per-flow record of where packets went; allocated once.
#[derive(Debug)]
pub(super) struct FlowOrder {
    flows: Box<[FlowState]>,
}

impl FlowOrder {
    pub(super) fn new() -> Self {
        Self {
            flows: vec![FlowState::default(); FLOW_BUCKETS].into_boxed_slice(),
        }
    }

    /// A packet of `flow` was bound to `path`.
    pub(super) fn on_sent(&mut self, now: Instant, flow: u16, bytes: u64, path: &PathView) {
        let Some(state) = self.flows.get_mut(usize::from(flow)) else {
            return;
        };
        let arrival = path.arrival(now, bytes);
        let switched = state.last.is_some_and(|last| last != path.id);
        if switched && arrival < state.newest_arrival + crossing_margin(path) {
            // What is under way lands by the later of both arrivals: twice that span from now.
            let span = arrival.max(state.newest_arrival).since(now) + crossing_margin(path);
            state.ordered_until = state.ordered_until.max(now + span * 2);
        }
        state.last = Some(path.id);
        state.newest_arrival = state.newest_arrival.max(arrival);
        state.sent_at = now;
    }

    /// Whether the newest packet of `flow` belongs to a stretch that may arrive out of order.
    pub(super) fn must_order(&self, flow: u16) -> bool {
        self.flows
            .get(usize::from(flow))
            .is_some_and(|state| state.sent_at < state.ordered_until)
    }

    /// The identifier may be given to another path: forget that flows used it.
    pub(super) fn on_path_removed(&mut self, path: PathId) {
        for state in &mut self.flows {
            if state.last == Some(path) {
                state.last = None;
            }
        }
    }
}
