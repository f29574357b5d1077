//! Redundant: a copy on every path that has room; the egress keeps the first.
//!
//! Source: the `redundant` schedulers of MPTCP and of the reference implementation of MP-DCCP (RFC
//! 9897 describes the protocol). A path that is full at that moment gets no copy, so the fastest
//! path alone sets the pace.

use super::{Decision, Head, PathSet, Policy, has_room};
use crate::path::PathView;
use ropewalk_types::Instant;

/// Keeps no state.
#[derive(Debug, Default)]
pub(super) struct Redundant;

impl Policy for Redundant {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let open = paths.iter().filter(|path| has_room(path, head));
        let set = open.fold(PathSet::EMPTY, |set, path| set.with(path.id));
        if set.is_empty() {
            Decision::WaitAll
        } else {
            Decision::Send(set)
        }
    }

    fn reason(&self) -> String {
        "a copy on every path with room".into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;
    use ropewalk_types::PathId;

    #[test]
    fn every_path_with_room_gets_a_copy() {
        let paths = [view(0, 50, 9), view(1, 70, 0), view(2, 90, 1)];
        let both = PathSet::one(PathId(0)).with(PathId(2));
        let decision = Redundant.pick(Instant::ZERO, &head(0), &paths);
        assert_eq!(decision, Decision::Send(both));
        assert_eq!(
            Redundant.pick(Instant::ZERO, &head(0), &paths[1..2]),
            Decision::WaitAll
        );
    }
}
