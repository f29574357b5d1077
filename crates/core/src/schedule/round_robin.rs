//! Round robin: each path with room in turn, one packet each.
//!
//! Source: the `roundrobin` scheduler of MPTCP v0 with one segment per turn (Paasch, Ferlin,
//! Alay, Bonaventure, "Experimental evaluation of multipath TCP schedulers", CSWS 2014, section
//! 2.1). A full path misses its turn, so that it does not hold up the others.

use super::{Decision, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

/// Remembers whose turn it was.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    last: Option<PathId>,
}

impl Policy for RoundRobin {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        paths
            .iter()
            .filter(|path| has_room(path, head))
            .min_by_key(|path| (self.last.is_some_and(|last| path.id <= last), path.id))
            .map_or(Decision::WaitAll, send)
    }

    fn on_sent(&mut self, _now: Instant, _head: &Head, path: &PathView) {
        self.last = Some(path.id);
    }

    fn reason(&self) -> String {
        "each path with room in turn".into()
    }
}
