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

    fn fills_buffers(&self) -> bool {
        true
    }

    fn on_sent(&mut self, _now: Instant, _head: &Head, path: &PathView) {
        self.last = Some(path.id);
    }

    fn reason(&self) -> String {
        "each path with room in turn".into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn paths_take_turns_and_a_full_one_misses_its_turn() {
        let mut policy = RoundRobin::default();
        let mut paths = [view(0, 50, 9), view(1, 50, 9), view(2, 50, 9)];
        let mut turn = |paths: &[PathView]| {
            let Decision::Send(set) = policy.pick(Instant::ZERO, &head(0), paths) else {
                panic!("a path has room")
            };
            let id = set.iter().next().unwrap();
            policy.on_sent(Instant::ZERO, &head(0), &paths[usize::from(id.0)]);
            id.0
        };
        assert_eq!(
            [turn(&paths), turn(&paths), turn(&paths), turn(&paths)],
            [0, 1, 2, 0]
        );
        paths[1].free = 0;
        assert_eq!([turn(&paths), turn(&paths)], [2, 0]);
    }
}
