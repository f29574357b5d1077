//! Schedulers: which path carries the next packet. One file per algorithm, each with its source.
//!
//! A packet is bound to a path only when the path can take it (late binding). A scheduler is asked
//! for the head packet of one flow at a time, and may tell that flow to wait.

mod active_backup;
mod afmt;
mod auto;
mod blest;
mod cost_aware;
mod ecf;
mod htmt;
mod htmt_paper;
mod htmt_prototype;
#[cfg(test)]
mod inputs;
mod low_rtt;
mod order;
mod otias;
mod priority;
mod redundant;
mod room;
mod round_robin;
mod scheduler;
mod tuning;
mod weighted_round_robin;

pub use ropewalk_types::SchedulerKind;
pub use scheduler::Scheduler;
pub use tuning::FLOW_BUCKETS;

use crate::estimate::EgressFeedback;
use crate::path::PathView;
use core::cmp::Ordering;
use ropewalk_types::{Instant, PathId};
use tuning::WAIT_MIN;

/// A set of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(u16);

impl PathSet {
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// Just `id`.
    #[must_use]
    pub const fn one(id: PathId) -> Self {
        Self(1 << id.0)
    }

    /// This set and `id`.
    #[must_use]
    pub const fn with(self, id: PathId) -> Self {
        Self(self.0 | 1 << id.0)
    }

    /// This set without `id`.
    #[must_use]
    pub const fn without(self, id: PathId) -> Self {
        Self(self.0 & !(1 << id.0))
    }

    /// Whether `id` is in the set.
    #[must_use]
    pub const fn contains(self, id: PathId) -> bool {
        self.0 & (1 << id.0) != 0
    }

    /// The paths of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of paths.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The paths in ascending order.
    pub fn iter(self) -> impl Iterator<Item = PathId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then_some(left.trailing_zeros())?;
            left &= left - 1;
            u8::try_from(lowest).ok().map(PathId)
        })
    }
}

/// The packet to place: the head of one flow's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Flow bucket, `0..FLOW_BUCKETS`.
    pub flow: u16,
    /// Bytes of the inner packet.
    pub bytes: u64,
    /// Bytes waiting in this flow, the head included.
    pub flow_backlog: u64,
    /// Bytes waiting in all flows, the head included.
    pub backlog: u64,
}

/// A scheduler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send now: one path, or a copy on each.
    Send(PathSet),
    /// Keep this flow's packet; other flows may go. Ask again at the instant, if given, or when
    /// any path gains credit.
    WaitFlow(Option<Instant>),
    /// Nothing can go now, for any flow: ask again when a path gains credit.
    WaitAll,
}

/// One scheduling algorithm. [`Scheduler`] dispatches to those of this crate through an enum; one
/// of the caller's is called through a box ([`Scheduler::with_policy`]).
pub trait Policy: Send {
    /// Where the head packet goes, or how long it waits. O(paths), no allocation.
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision;

    /// Whether the published form binds packets to a path whose window is full, into its send
    /// buffer, where a tunnel has such buffers.
    fn fills_buffers(&self) -> bool {
        false
    }

    /// The tunnel has send buffers ([`SendOptions`](crate::tunnel::SendOptions)).
    fn on_send_buffers(&mut self) {}

    /// The packet was bound to `path`; called once per copy, the view as `pick` saw it.
    fn on_sent(&mut self, _now: Instant, _head: &Head, _path: &PathView) {}

    /// A report of the egress came in.
    fn on_feedback(&mut self, _now: Instant, _feedback: &EgressFeedback) {}

    /// The queue of `flow` ran empty: its bucket may serve another flow next.
    fn on_flow_idle(&mut self, _flow: u16) {}

    /// `path` is gone for good: its identifier may be given to another one.
    fn on_path_removed(&mut self, _path: PathId) {}

    /// Gives the memory of flows back that have been idle for long.
    fn forget_idle(&mut self, _now: Instant) {}

    /// What the algorithm does at present, and why, in words.
    fn reason(&self) -> String;
}

/// The bucket of a flow, whatever its number.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "there are fewer than 2^16")]
const fn bucket(flow: u16) -> u16 {
    flow % FLOW_BUCKETS as u16
}

/// Whether `path` takes the packet now.
fn has_room(path: &PathView, head: &Head) -> bool {
    path.free >= head.bytes
}

/// The fastest path while it is full, and the fastest that has room: what remains to be chosen
/// between. Where nothing is, the decision.
fn fast_or_slow<'a>(
    head: &Head,
    paths: &'a [PathView],
) -> Result<(&'a PathView, &'a PathView), Decision> {
    let fast = paths.iter().min_by(by_srtt).ok_or(Decision::WaitAll)?;
    if has_room(fast, head) {
        return Err(send(fast));
    }
    let with_room = paths.iter().filter(|path| has_room(path, head));
    let slow = with_room.min_by(by_srtt).ok_or(Decision::WaitAll)?;
    Ok((fast, slow))
}

/// Smaller round-trip time first; ties by identifier, so that decisions are reproducible.
fn by_srtt(a: &&PathView, b: &&PathView) -> Ordering {
    (a.srtt, a.id).cmp(&(b.srtt, b.id))
}

/// Send on this one path.
fn send(path: &PathView) -> Decision {
    Decision::Send(PathSet::one(path.id))
}

/// When to ask again: `at`, but no sooner than [`WAIT_MIN`] from now.
fn wake_at(now: Instant, at: Instant) -> Instant {
    at.max(now + WAIT_MIN)
}
