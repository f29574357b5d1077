//! Active-backup: one path carries everything; the next one when it fails.
//!
//! Source: the handover scheduler of the MP-DCCP framework (Amend et al., "A framework for
//! multiaccess support for unreliable internet traffic using multipath DCCP", LCN 2019). A full
//! window does not spill over. Only a path that is not usable is replaced. The order is that of the
//! path identifiers. Addition: an earlier path that returns takes over after it has been usable for
//! [`REVERT_AFTER`]. So a path that comes and goes does not take the traffic with it.

use super::tuning::REVERT_AFTER;
use super::{Decision, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

/// The active path, and since when an earlier one has been back.
#[derive(Debug, Default)]
pub(super) struct ActiveBackup {
    active: Option<PathId>,
    back: Option<(PathId, Instant)>,
}

impl Policy for ActiveBackup {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let Some(first) = paths.iter().min_by_key(|path| path.id) else {
            return Decision::WaitAll;
        };
        let active = paths
            .iter()
            .find(|path| Some(path.id) == self.active)
            .unwrap_or(first);
        let active = if active.id == first.id {
            self.back = None;
            active
        } else {
            match self.back {
                Some((id, since)) if id == first.id && now.since(since) >= REVERT_AFTER => first,
                Some((id, _)) if id == first.id => active,
                _ => {
                    self.back = Some((first.id, now));
                    active
                }
            }
        };
        self.active = Some(active.id);
        if has_room(active, head) {
            send(active)
        } else {
            Decision::WaitAll
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        self.active = self.active.filter(|id| *id != path);
        self.back = self.back.filter(|(id, _)| *id != path);
    }

    fn reason(&self) -> String {
        match (self.active, self.back) {
            (Some(active), Some((back, _))) => format!(
                "path {} is active; path {} is back and takes over once it has been stable",
                active.0, back.0
            ),
            (Some(active), None) => format!("path {} is active, the others stand by", active.0),
            (None, _) => "no path has been used yet".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn a_full_active_path_does_not_spill() {
        let mut policy = ActiveBackup::default();
        let paths = [view(0, 50, 0), view(1, 20, 9)];
        assert_eq!(
            policy.pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitAll
        );
    }

    #[test]
    fn the_next_path_takes_over_at_once_and_gives_back_after_a_while() {
        let mut policy = ActiveBackup::default();
        let paths = [view(0, 50, 9), view(1, 20, 9)];
        let at = Instant::from_millis;
        assert_eq!(policy.pick(at(0), &head(0), &paths), send(&paths[0]));
        assert_eq!(policy.pick(at(1), &head(0), &paths[1..]), send(&paths[1]));
        assert_eq!(policy.pick(at(2), &head(0), &paths), send(&paths[1]));
        assert_eq!(policy.pick(at(5_001), &head(0), &paths), send(&paths[1]));
        assert_eq!(policy.pick(at(5_002), &head(0), &paths), send(&paths[0]));
    }
}
