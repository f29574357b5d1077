//! Priority: the first path carries what it has room for, the next one the rest.
//!
//! Source: the steering mode "priority-based" of 3GPP ATSSS (TS 23.501 §5.32.8), and "cheapest pipe
//! first" of the MP-DCCP framework (Amend et al., LCN 2019). The order is that of the path
//! identifiers.

use super::{Decision, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

/// The path that carried the last packet.
#[derive(Debug, Default)]
pub(super) struct Priority {
    last: Option<PathId>,
}

impl Policy for Priority {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let with_room = paths.iter().filter(|path| has_room(path, head));
        match with_room.min_by_key(|path| path.id) {
            Some(path) => {
                self.last = Some(path.id);
                send(path)
            }
            None => Decision::WaitAll,
        }
    }

    fn reason(&self) -> String {
        match self.last {
            Some(path) => format!("the first path with room: last path {}", path.0),
            None => "no path has been used yet".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn a_full_path_spills_to_the_next_and_takes_over_again_at_once() {
        let mut policy = Priority::default();
        let at = Instant::from_millis;
        let (slow, fast) = (view(0, 50, 9), view(1, 20, 9));
        let full = view(0, 50, 0);
        assert_eq!(
            policy.pick(at(0), &head(0), &[fast.clone(), slow.clone()]),
            send(&slow)
        );
        assert_eq!(
            policy.pick(at(1), &head(0), &[full.clone(), fast.clone()]),
            send(&fast)
        );
        assert_eq!(
            policy.pick(at(2), &head(0), &[slow.clone(), fast]),
            send(&slow)
        );
        assert_eq!(policy.pick(at(3), &head(0), &[full]), Decision::WaitAll);
    }
}
