//! Cost-aware: paths that cost nothing first; metered ones when those cannot keep up.
//!
//! Source: the cheapest-path-first scheduler of the MP-DCCP framework (Amend et al., "A framework
//! for multiaccess support for unreliable internet traffic using multipath DCCP", LCN 2019). The
//! path with the highest priority and a free window is next, ties by the smaller round-trip time.
//! Deviation: a paced path is full most of the time, so a full path alone should not spend money.
//! Metered paths are used only when the waiting packets would keep the others busy for longer than
//! [`SPILL_DELAY`].

use super::tuning::SPILL_DELAY;
use super::{Decision, Head, Policy, by_srtt, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Instant, Rate};

/// Whether the last decision had to use a metered path.
#[derive(Debug, Default)]
pub(super) struct CostAware {
    spilling: bool,
}

impl Policy for CostAware {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let best = |metered: bool| {
            let candidates = paths
                .iter()
                .filter(move |path| path.config.metered == metered);
            candidates
                .filter(|path| has_room(path, head))
                .min_by(by_srtt)
        };
        if let Some(path) = best(false) {
            self.spilling = false;
            return send(path);
        }
        let unmetered = paths.iter().filter(|path| !path.config.metered);
        let rate = unmetered.fold(Rate::ZERO, |sum, path| {
            sum.saturating_add(path.rate_or_window())
        });
        self.spilling = rate.time_for(head.backlog) > SPILL_DELAY;
        match best(true) {
            Some(path) if self.spilling => send(path),
            _ => Decision::WaitAll,
        }
    }

    fn reason(&self) -> String {
        if self.spilling {
            "metered paths in use: the others cannot keep up".into()
        } else {
            "unmetered paths suffice".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    fn pair(free: [u64; 2]) -> [PathView; 2] {
        let mut paths = [view(0, 20, free[0]), view(1, 50, free[1])];
        paths[0].config.metered = true;
        paths[1].rate = Rate::from_bits_per_sec(8_000_000);
        paths
    }

    #[test]
    fn a_slower_path_that_costs_nothing_comes_first() {
        let paths = pair([9, 9]);
        assert_eq!(
            CostAware::default().pick(Instant::ZERO, &head(0), &paths),
            send(&paths[1])
        );
    }

    #[test]
    fn a_short_queue_waits_and_a_long_one_is_worth_money() {
        let paths = pair([9, 0]);
        let mut policy = CostAware::default();
        let mut packet = head(0);
        packet.backlog = 20_000; // 20 ms at 8 Mbit/s
        assert_eq!(
            policy.pick(Instant::ZERO, &packet, &paths),
            Decision::WaitAll
        );
        packet.backlog = 20_001;
        assert_eq!(policy.pick(Instant::ZERO, &packet, &paths), send(&paths[0]));
        assert!(policy.reason().contains("metered paths in use"));
    }

    #[test]
    fn metered_paths_alone_are_used() {
        let paths = pair([9, 0]);
        let decision = CostAware::default().pick(Instant::ZERO, &head(0), &paths[..1]);
        assert_eq!(decision, send(&paths[0]));
    }
}
