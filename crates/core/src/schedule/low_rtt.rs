//! LowRTT: the path with room and the smallest smoothed round-trip time.
//!
//! Source: the default scheduler of MPTCP v0, described in Paasch, Ferlin, Alay, Bonaventure,
//! "Experimental evaluation of multipath TCP schedulers" (CSWS 2014), section 2.1.
//! Deviation: penalisation and reinjection are left out; both act on a shared receive window,
//! which a tunnel does not have.

use super::{Decision, Head, Policy, by_srtt, has_room, send};
use crate::path::PathView;
use ropewalk_types::Instant;

/// Keeps no state.
#[derive(Debug, Default)]
pub(super) struct LowRtt;

impl Policy for LowRtt {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        paths
            .iter()
            .filter(|path| has_room(path, head))
            .min_by(by_srtt)
            .map_or(Decision::WaitAll, send)
    }

    fn reason(&self) -> String {
        "smallest round-trip time among the paths with room".into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn the_smallest_rtt_with_room_wins() {
        let paths = [view(0, 70, 9), view(1, 50, 9), view(2, 20, 0)];
        assert_eq!(
            LowRtt.pick(Instant::ZERO, &head(0), &paths),
            send(&paths[1])
        );
        assert_eq!(
            LowRtt.pick(Instant::ZERO, &head(0), &paths[2..]),
            Decision::WaitAll
        );
    }
}
