//! Which packets go over several paths at once, besides those that the scheduler sends so.

use super::paths::Paths;
use super::tuning::{OPENINGS_CREDIT_MAX, OPENINGS_LOSS, OPENINGS_PER_SECOND, OPENINGS_SHARE};
use crate::protect::Class;
use crate::schedule::PathSet;
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::DATA_HEADER;

/// `set` and the quickest other paths, as many as the class wants where it wants any.
pub(super) fn duplicated(
    now: Instant,
    mut set: PathSet,
    class: &Class,
    bytes: usize,
    paths: &mut Paths,
) -> PathSet {
    let loses = |id: PathId| paths.get(id).map_or(0.0, |path| path.loss.loss());
    if class.loss_above > 0.0 && set.iter().all(|id| loses(id) < class.loss_above) {
        return set;
    }
    while set.len() < class.copies {
        let others = paths
            .iter()
            .filter(|(id, path)| path.usable() && !path.config.standby && !set.contains(*id));
        let best = others.min_by_key(|(id, path)| (path.snapshot.srtt, *id));
        let Some(id) = best.map(|(id, _)| id) else {
            break;
        };
        if !paths.afford(now, id, bytes + DATA_HEADER) {
            break;
        }
        set = set.with(id);
    }
    set
}

/// `set` and another path beside those in doubt: the quickest that is not, or whichever there is.
pub(super) fn undoubted(now: Instant, set: PathSet, bytes: usize, paths: &mut Paths) -> PathSet {
    let doubted = |id: PathId| paths.get(id).is_some_and(|path| path.doubt_until > now);
    if !set.iter().any(doubted) {
        return set;
    }
    let others = paths
        .iter()
        .filter(|(id, path)| path.usable() && !path.config.standby && !set.contains(*id));
    let best = others.min_by_key(|(id, path)| (doubted(*id), path.snapshot.srtt, *id));
    match best.map(|(id, _)| id) {
        Some(id) if paths.afford(now, id, bytes + DATA_HEADER) => set.with(id),
        _ => set,
    }
}

/// What copies of isolated packets may cost: a share of all bytes, and a little besides. A lost query
/// or handshake costs its user a timeout; what is repaired costs a round trip, for nothing follows that
/// would show the loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Openings {
    credit: f64,
    at: Instant,
}

impl Default for Openings {
    fn default() -> Self {
        Self {
            credit: OPENINGS_CREDIT_MAX,
            at: Instant::ZERO,
        }
    }
}

impl Openings {
    /// Earns the share of `bytes` sent.
    pub fn earn(&mut self, now: Instant, bytes: usize) {
        let earned =
            OPENINGS_SHARE * bytes as f64 + OPENINGS_PER_SECOND * now.since(self.at).as_secs_f64();
        self.credit = (self.credit + earned).min(OPENINGS_CREDIT_MAX);
        self.at = now;
    }

    /// `set` and the quickest other path, where the packet may be lost and its copy is affordable.
    pub fn spare(
        &mut self,
        now: Instant,
        set: PathSet,
        bytes: usize,
        paths: &mut Paths,
    ) -> PathSet {
        let loses = |id: PathId| {
            paths
                .get(id)
                .is_some_and(|p| p.loss.loss() >= OPENINGS_LOSS)
        };
        let cost = (bytes + DATA_HEADER) as f64;
        if set.len() != 1 || self.credit < cost || !set.iter().all(loses) {
            return set;
        }
        let class = Class::default();
        let with = duplicated(now, set, &class, bytes, paths);
        if with != set {
            self.credit -= cost;
        }
        with
    }
}
