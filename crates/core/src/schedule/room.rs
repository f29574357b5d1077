//! Since when each path has had room that nobody used.
//!
//! With late binding a path that is in full use has room only for a moment. Room that stays is
//! capacity about to be wasted. It shows that the flows which use the path cannot fill it, and only
//! then is it worth moving another flow there. Invariants: a path that was just full starts without
//! unused room. A path that is used and still has room keeps that room, whichever flow used the
//! path.

use super::tuning::{GRACE_MAX, GRACE_MIN};
use super::{Head, has_room};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

/// Start of the unused room per path.
#[derive(Debug, Default)]
pub(super) struct UnusedRoom {
    since: [Option<Instant>; PATHS_MAX],
}

impl UnusedRoom {
    /// Notes which paths have room for the packet now.
    pub(super) fn observe(&mut self, now: Instant, head: &Head, paths: &[PathView]) {
        for path in paths {
            if let Some(since) = self.since.get_mut(usize::from(path.id.0)) {
                *since = since.or(Some(now)).filter(|_| has_room(path, head));
            }
        }
    }

    /// A packet was bound to `path`, seen as it was before.
    pub(super) fn used(&mut self, head: &Head, path: &PathView) {
        if path.free < 2 * head.bytes
            && let Some(since) = self.since.get_mut(usize::from(path.id.0))
        {
            *since = None;
        }
    }

    /// Since when `path` has had room unused; now, if it has not.
    pub(super) fn since(&self, now: Instant, path: PathId) -> Instant {
        self.since
            .get(usize::from(path.0))
            .copied()
            .flatten()
            .unwrap_or(now)
    }
}

/// Whether more of the flow waits behind the head.
pub(super) const fn is_backlogged(head: &Head) -> bool {
    head.flow_backlog > head.bytes
}

/// Time left to a path's own flows to use its room: two packets at its rate.
pub(super) fn grace(path: &PathView, head: &Head) -> Duration {
    path.rate_or_window()
        .time_for(2 * head.bytes)
        .clamp(GRACE_MIN, GRACE_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn room_counts_from_when_it_appeared_until_it_is_used_up() {
        let mut room = UnusedRoom::default();
        let at = Instant::from_millis;
        let (free, last) = ([view(0, 50, 9)], [view(0, 50, 1)]);
        room.observe(at(1), &head(0), &free);
        room.used(&head(0), &free[0]);
        assert_eq!(room.since(at(5), PathId(0)), at(1), "there is more");
        room.used(&head(0), &last[0]);
        assert_eq!(room.since(at(6), PathId(0)), at(6), "that was the last");
        room.observe(at(7), &head(0), &free);
        room.observe(at(8), &head(0), &[view(0, 50, 0)]);
        assert_eq!(room.since(at(9), PathId(0)), at(9), "it was full");
    }
}
