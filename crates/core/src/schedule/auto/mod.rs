//! `auto`: predicted arrival for sparse flows, and a pinned path for each backlogged flow. One flow
//! gets several paths only where nothing else would fill them, and no path that does not pay.
//!
//! - A **sparse** flow has at most a few packets waiting. It goes where its packet arrives first,
//!   also to a path without credit. Waiting for the fast path's next credit is right when the
//!   packet arrives earlier that way (Lim et al., "ECF", CoNEXT 2017). A lossy path counts as later
//!   by what a lost packet costs. The wait is bounded by what waiting can gain.
//! - A **backlogged** flow stays on its pinned path, so that it neither overtakes itself nor pays
//!   the delay of another path. Pinned paths are chosen so that each flow may expect as much of its
//!   path as the others. Now and then a flow is moved for that (`pinned_paths`).
//! - Room that stays unused is offered to a backlogged flow whose pinned path is full: it is then
//!   **striped**, and the egress puts it in order. One flow is striped rather than many. Striping
//!   must pay: the loss of the other path must not cost a loss-driven sender more than the path
//!   brings (RFC 9438 §5 for the average window), and the spread of delays is bounded.
//!   What it brought is weighed (`gain`): a small part more is not worth the disorder.
//! - A path is **excluded** while it loses much or lags far behind and another does not, and is
//!   then tried again with copies of packets, at growing intervals: nothing depends on them.
//! - When the egress reports holds that time out or packets that come late, striping pauses,
//!   longer each time it happens again.
//!
//! Invariant: a packet waits only for credit of a path that is shown, or until an instant.

mod gain;
mod pinned_paths;
mod trust;
mod tuning;

use super::order::crossing_margin;
use super::room::{UnusedRoom, grace};
use super::{Decision, FLOW_BUCKETS, Head, PathSet, Policy, bucket, has_room, send, wake_at};
use crate::estimate::EgressFeedback;
use crate::path::PathView;
use gain::Gain;
use pinned_paths::PinnedPaths;
use ropewalk_types::{Buckets, Duration, Instant, PathId, Rate};
use trust::Trust;
use tuning::{
    BACKLOG_BYTES, BACKLOG_HOLD, DRAINS_SHARE, ELEPHANT_BYTES, FULL_HOLD, LOSS_ROUND_TRIPS,
    LOSS_SMALL, PROVEN, SPREAD_MAX, SPREAD_SMALL, STRIPER_FOR, STRIPER_LEAD, TIE_MAX,
    UNPROVEN_BYTES, YOUNG_QUEUE_SHARE,
};

#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    /// Path of the newest packet.
    last: Option<PathId>,
    /// Predicted arrival of the newest packet.
    newest_arrival: Instant,
    /// Pinned path while backlogged.
    pinned_path: Option<PathId>,
    backlogged_until: Instant,
    /// Bytes since the flow became backlogged.
    bytes: u64,
    moved_at: Instant,
    counted_in: u32,
    waiting_since: Option<Instant>,
    /// Since when its queue has not been empty.
    standing_since: Option<Instant>,
    /// Until when its pinned path counts as full.
    full_until: Instant,
    /// What striping it brings.
    gain: Gain,
}

/// State per flow and per path.
#[derive(Debug)]
pub(super) struct Auto {
    flows: Buckets<FlowState>,
    room: UnusedRoom,
    pinned_paths: PinnedPaths,
    trust: Trust,
    /// The flow striped last, and when.
    striper: Option<(u16, Instant)>,
    /// The flow last not striped because that had brought too little, and when.
    poor: Option<(u16, Instant)>,
}

impl Default for Auto {
    fn default() -> Self {
        Self {
            flows: Buckets::new(FLOW_BUCKETS),
            room: UnusedRoom::default(),
            pinned_paths: PinnedPaths::default(),
            trust: Trust::default(),
            striper: None,
            poor: None,
        }
    }
}

impl Policy for Auto {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let index = bucket(head.flow);
        self.room.observe(now, head, paths);
        self.trust.assess(now, paths);
        self.pinned_paths.roll(now);
        if !paths
            .iter()
            .any(|path| self.trust.open(path.id) && has_room(path, head))
        {
            return Decision::WaitAll;
        }
        let mut flow = self.flows[index];
        if head.flow_backlog > BACKLOG_BYTES {
            flow.backlogged_until = now + BACKLOG_HOLD;
        }
        if head.flow_backlog > 2 * head.bytes {
            flow.standing_since.get_or_insert(now);
        } else {
            flow.standing_since = None;
        }
        let decision = if now < flow.backlogged_until {
            self.pick_backlogged(now, head, paths, &mut flow)
        } else {
            (flow.bytes, flow.pinned_path) = (0, None);
            flow.gain.forget();
            self.pick_thin(now, head, paths, &mut flow)
        };
        self.flows[index] = flow;
        self.add_copies(now, head, paths, decision)
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if !self.trust.open(path.id) {
            return self.trust.copy_sent(path.id); // a copy: the flow does not depend on it
        }
        self.room.used(head, path);
        let flow = &mut self.flows[bucket(head.flow)];
        flow.last = Some(path.id);
        flow.newest_arrival = flow.newest_arrival.max(path.arrival(now, head.bytes));
        flow.waiting_since = None;
        flow.bytes = flow.bytes.saturating_add(head.bytes);
        if let Some(pinned_path) = flow.pinned_path {
            flow.gain
                .sent(now, head.bytes, path, pinned_path == path.id);
            self.pinned_paths.sent(pinned_path, head.bytes);
            if pinned_path != path.id {
                self.striper = Some((head.flow, now));
            }
        }
    }

    fn on_feedback(&mut self, now: Instant, feedback: &EgressFeedback) {
        let striping = self
            .striper
            .is_some_and(|(_, at)| now.since(at) < STRIPER_FOR * 5);
        self.trust.on_feedback(now, feedback, striping);
    }

    fn on_flow_idle(&mut self, flow: u16) {
        self.flows[bucket(flow)].waiting_since = None;
    }

    fn on_path_removed(&mut self, path: PathId) {
        for flow in self.flows.iter_mut() {
            flow.last = flow.last.filter(|last| *last != path);
            flow.pinned_path = flow.pinned_path.filter(|pinned_path| *pinned_path != path);
        }
        self.pinned_paths.on_path_removed(path);
        self.trust.on_path_removed(path);
    }

    fn forget_idle(&mut self, now: Instant) {
        self.flows.forget(|flow| {
            flow.backlogged_until < now
                && flow.waiting_since.is_none()
                && flow.newest_arrival < now
                && flow.gain.worth_it(now)
        });
    }

    fn reason(&self) -> String {
        let now = self.pinned_paths.now();
        let recent = |(_, at): &(u16, Instant)| now.since(*at) < STRIPER_FOR;
        let poor = self.poor.filter(recent);
        let poor = poor.map(|(flow, _)| {
            format!(
                "flow {flow} keeps to one path: several brought it too little, as they differ or lose packets"
            )
        });
        let striper = self.striper.filter(recent);
        let striped = striper.map(|(flow, _)| format!("flow {flow} uses several paths at once"));
        [
            Some(self.pinned_paths.describe()),
            striped,
            poor,
            self.trust.describe(now),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
    }
}

impl Auto {
    fn pick_thin(
        &self,
        now: Instant,
        head: &Head,
        paths: &[PathView],
        flow: &mut FlowState,
    ) -> Decision {
        let arrival = |path: &PathView| expected(now, head, path).max(flow.newest_arrival);
        let preferred = |path: &PathView| {
            let at = arrival(path);
            let tie = (crossing_margin(path) / 2).min(TIE_MAX);
            if flow.last == Some(path.id) {
                at - tie
            } else {
                at
            }
        };
        let open = || paths.iter().filter(|path| self.trust.open(path.id));
        let earliest = |path: &&PathView| (preferred(path), path.id);
        let Some(best) = open().min_by_key(earliest) else {
            return Decision::WaitAll;
        };
        if has_room(best, head) {
            return send(best);
        }
        let since = *flow.waiting_since.get_or_insert(now);
        let Some(other) = open()
            .filter(|path| has_room(path, head))
            .min_by_key(earliest)
        else {
            return Decision::WaitAll;
        };
        let gain = arrival(other).since(arrival(best));
        if now.since(since) >= gain {
            return send(other);
        }
        let credit = best.next_credit.unwrap_or(since + gain);
        Decision::WaitFlow(Some(wake_at(now, credit.min(since + gain))))
    }

    fn pick_backlogged(
        &mut self,
        now: Instant,
        head: &Head,
        paths: &[PathView],
        flow: &mut FlowState,
    ) -> Decision {
        let Some(pinned_path) = self.pinned_path(now, head, paths, flow) else {
            return Decision::WaitAll;
        };
        if has_room(pinned_path, head) {
            return send(pinned_path);
        }
        let mut wake = pinned_path.next_credit;
        let mut best: Option<&PathView> = None;
        for path in paths {
            if path.id == pinned_path.id
                || !self.trust.open(path.id)
                || !has_room(path, head)
                || !self.striping_pays(now, head, pinned_path, path, flow)
            {
                continue;
            }
            let at = self.offered_at(now, head, path);
            if at > now {
                wake = Some(wake.map_or(at, |wake| wake.min(at)));
            } else if best
                .is_none_or(|best| path.arrival(now, head.bytes) < best.arrival(now, head.bytes))
            {
                best = Some(path);
            }
        }
        match best {
            Some(path) => send(path),
            None => Decision::WaitFlow(wake.map(|at| wake_at(now, at))),
        }
    }

    /// The pinned path of a backlogged flow, chosen or moved if need be.
    fn pinned_path<'a>(
        &mut self,
        now: Instant,
        head: &Head,
        paths: &'a [PathView],
        flow: &mut FlowState,
    ) -> Option<&'a PathView> {
        let open = |path: &&PathView| self.trust.open(path.id);
        let old = flow.pinned_path.and_then(|pinned_path| {
            paths
                .iter()
                .filter(open)
                .find(|path| path.id == pinned_path)
        });
        let bytes = flow.bytes.max(head.flow_backlog);
        let best = || {
            self.pinned_paths
                .best(bytes, old, paths.iter().filter(open))
        };
        let chosen = match old {
            Some(old) if !self.pinned_paths.may_look(now, flow.moved_at) => old,
            Some(old) => match best() {
                Some(best) if self.pinned_paths.is_better(bytes, old, best) => {
                    flow.moved_at = now;
                    self.pinned_paths.moved(now, old.id, best.id);
                    best
                }
                _ => old,
            },
            None => {
                flow.moved_at = now;
                best()?
            }
        };
        flow.pinned_path = Some(chosen.id);
        self.pinned_paths.count(chosen.id, &mut flow.counted_in);
        Some(chosen)
    }

    /// When the room of `path` may go to a flow that is not pinned there.
    fn offered_at(&self, now: Instant, head: &Head, path: &PathView) -> Instant {
        let own = if self.pinned_paths.residents(path.id) == 0 {
            Duration::ZERO
        } else {
            grace(path, head)
        };
        let taken = self
            .striper
            .is_some_and(|(flow, at)| flow != head.flow && now.since(at) < STRIPER_FOR);
        let lead = if taken { STRIPER_LEAD } else { Duration::ZERO };
        self.room.since(now, path.id) + own + lead
    }

    /// Whether the flow at `pinned path` gains by using `path` as well.
    fn striping_pays(
        &mut self,
        now: Instant,
        head: &Head,
        pinned_path: &PathView,
        path: &PathView,
        flow: &mut FlowState,
    ) -> bool {
        let spread = path.owd_relative.saturating_sub(pinned_path.owd_relative);
        if spread > SPREAD_MAX || self.trust.striping_paused(now) || !proven(path) {
            return false;
        }
        let differ = path.min_rtt.saturating_sub(pinned_path.min_rtt) / 2;
        let costs = differ > SPREAD_SMALL || path.loss > LOSS_SMALL;
        flow.gain.consider(pinned_path, path, costs);
        if costs && !flow.gain.worth_it(now) {
            self.poor = Some((head.flow, now));
            return false;
        }
        let residents = u32::from(self.pinned_paths.residents(pinned_path.id).max(1));
        // What a path has carried so far is no bound while it is young.
        let drain = pinned_path
            .rate
            .max(Rate::from_transfer(pinned_path.cwnd, pinned_path.srtt))
            .time_for(head.flow_backlog)
            .saturating_mul(residents);
        // A burst that waits for the pacer should not give a flow a longer round trip. Only a queue
        // that stands for that long says that its pinned path is full.
        let standing = flow
            .standing_since
            .is_some_and(|since| now.since(since) >= spread + pinned_path.srtt / 2);
        // What a flow is striped over takes away the queue that was the reason to.
        let overflows = now < flow.full_until && self.pinned_paths.overflows(pinned_path);
        if standing && drain >= spread / DRAINS_SHARE || overflows {
            flow.full_until = now + FULL_HOLD;
        }
        // What delays vary by themselves a flow meets on one path, too.
        let small = SPREAD_SMALL.max(pinned_path.rttvar).max(path.rttvar);
        let full = spread <= small || now < flow.full_until;
        full && (flow.bytes >= ELEPHANT_BYTES
            || drain > spread.max(pinned_path.srtt / YOUNG_QUEUE_SHARE))
            && self.pinned_paths.loss_allows(pinned_path, path)
    }

    /// Adds copies for excluded paths that are due to be tried again.
    fn add_copies(
        &mut self,
        now: Instant,
        head: &Head,
        paths: &[PathView],
        decision: Decision,
    ) -> Decision {
        let Decision::Send(set) = decision else {
            return decision;
        };
        let tried = paths
            .iter()
            .filter(|path| has_room(path, head) && self.trust.wants_copy(now, path.id));
        Decision::Send(tried.fold(set, |set: PathSet, path| set.with(path.id)))
    }
}

/// Whether no more is under way on the path than twice what it has carried in a round trip: a path
/// finds its rate by doubling, as any transfer does.
fn proven(path: &PathView) -> bool {
    path.in_flight <= (PROVEN * path.rate.bytes_in(path.srtt)).max(UNPROVEN_BYTES)
}

/// When a packet of a sparse flow may be expected at the egress, losses included.
fn expected(now: Instant, head: &Head, path: &PathView) -> Instant {
    let window_wait = if has_room(path, head) || path.next_credit.is_some() {
        Duration::ZERO
    } else {
        // Acknowledgements return at the rate of the path.
        path.rate_or_window().time_for(head.bytes).min(path.srtt)
    };
    let repair = path
        .srtt
        .mul_f64(path.loss.clamp(0.0, 1.0) * LOSS_ROUND_TRIPS);
    path.arrival(now, head.bytes) + window_wait + repair
}

#[cfg(test)]
mod tests;
