//! The dispatcher: one scheduler at a time per direction of a tunnel, exchangeable while
//! packets flow.
//!
//! Invariant: whatever the algorithm, a packet that some path has room for is never made to
//! wait without a wake-up time or a path whose credit ends the wait, and what the exit must put
//! in order does not depend on the algorithm: it survives a switch.

use super::active_backup::ActiveBackup;
use super::afmt::Afmt;
use super::auto::Auto;
use super::blest::Blest;
use super::cost_aware::CostAware;
use super::ecf::Ecf;
use super::htmt::Htmt;
use super::htmt_as_published::HtmtAsPublished;
use super::low_rtt::LowRtt;
use super::order::FlowOrder;
use super::otias::Otias;
use super::redundant::Redundant;
use super::round_robin::RoundRobin;
use super::weighted_round_robin::WeightedRoundRobin;
use super::{Decision, Head, Policy, SchedulerKind};
use crate::estimate::ExitFeedback;
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

/// A scheduler for one direction of one tunnel.
#[derive(Debug)]
pub struct Scheduler {
    kind: SchedulerKind,
    active: Active,
    order: FlowOrder,
}

#[derive(Debug)]
enum Active {
    ActiveBackup(ActiveBackup),
    Afmt(Afmt),
    Auto(Auto),
    Blest(Blest),
    CostAware(CostAware),
    Ecf(Ecf),
    Htmt(Htmt),
    HtmtAsPublished(HtmtAsPublished),
    LowRtt(LowRtt),
    Otias(Otias),
    Redundant(Redundant),
    RoundRobin(RoundRobin),
    WeightedRoundRobin(WeightedRoundRobin),
}

/// Calls the same method of whichever algorithm is active.
macro_rules! dispatch {
    ($active:expr, $policy:ident => $call:expr) => {
        match $active {
            Active::ActiveBackup($policy) => $call,
            Active::Afmt($policy) => $call,
            Active::Auto($policy) => $call,
            Active::Blest($policy) => $call,
            Active::CostAware($policy) => $call,
            Active::Ecf($policy) => $call,
            Active::Htmt($policy) => $call,
            Active::HtmtAsPublished($policy) => $call,
            Active::LowRtt($policy) => $call,
            Active::Otias($policy) => $call,
            Active::Redundant($policy) => $call,
            Active::RoundRobin($policy) => $call,
            Active::WeightedRoundRobin($policy) => $call,
        }
    };
}

impl Active {
    fn new(kind: SchedulerKind) -> Self {
        match kind {
            SchedulerKind::ActiveBackup => Self::ActiveBackup(ActiveBackup::default()),
            SchedulerKind::Afmt => Self::Afmt(Afmt::default()),
            SchedulerKind::Blest => Self::Blest(Blest::default()),
            SchedulerKind::CostAware => Self::CostAware(CostAware::default()),
            SchedulerKind::Ecf => Self::Ecf(Ecf::default()),
            SchedulerKind::Htmt => Self::Htmt(Htmt::default()),
            SchedulerKind::HtmtAsPublished => Self::HtmtAsPublished(HtmtAsPublished::default()),
            SchedulerKind::LowRtt => Self::LowRtt(LowRtt::default()),
            SchedulerKind::Otias => Self::Otias(Otias::default()),
            SchedulerKind::Redundant => Self::Redundant(Redundant::default()),
            SchedulerKind::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            SchedulerKind::WeightedRoundRobin => {
                Self::WeightedRoundRobin(WeightedRoundRobin::default())
            }
            SchedulerKind::Auto => Self::Auto(Auto::default()),
        }
    }
}

impl Scheduler {
    /// A scheduler of `kind` that knows nothing yet.
    #[must_use]
    pub fn new(kind: SchedulerKind) -> Self {
        Self {
            kind,
            active: Active::new(kind),
            order: FlowOrder::new(),
        }
    }

    /// The algorithm in use.
    #[must_use]
    pub const fn kind(&self) -> SchedulerKind {
        self.kind
    }

    /// Uses another algorithm from the next packet on. Nothing of the old one remains that
    /// could make a packet wait; flows under way stay ordered. Waits granted by earlier
    /// decisions are void: ask again.
    pub fn switch(&mut self, kind: SchedulerKind) {
        if kind != self.kind {
            self.kind = kind;
            self.active = Active::new(kind);
        }
    }

    /// Decides on the head packet of one flow. `paths` are the usable paths (standby ones only
    /// when no other is usable), in any order; O(paths), no allocation.
    pub fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        if paths.is_empty() {
            return Decision::WaitAll;
        }
        dispatch!(&mut self.active, policy => policy.pick(now, head, paths))
    }

    /// The packet was bound to `path`, the view being that shown to [`pick`](Self::pick); once
    /// per copy. Call it before asking [`must_order`](Self::must_order) for the packet.
    pub fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        self.order.on_sent(now, head.flow, path);
        dispatch!(&mut self.active, policy => policy.on_sent(now, head, path));
    }

    /// A report of the exit came in.
    pub fn on_feedback(&mut self, now: Instant, feedback: &ExitFeedback) {
        dispatch!(&mut self.active, policy => policy.on_feedback(now, feedback));
    }

    /// The queue of `flow` ran empty. Optional: it only makes decisions better.
    pub fn on_flow_idle(&mut self, flow: u16) {
        dispatch!(&mut self.active, policy => policy.on_flow_idle(flow));
    }

    /// `path` is gone for good; its identifier may be given to another path.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.order.on_path_removed(path);
        dispatch!(&mut self.active, policy => policy.on_path_removed(path));
    }

    /// Whether the exit should put the packet of `flow` just given to [`on_sent`](Self::on_sent)
    /// in order: the flow was lately spread over paths whose arrivals may cross.
    #[must_use]
    pub fn must_order(&self, flow: u16) -> bool {
        self.order.must_order(flow)
    }

    /// What the scheduler does at present, and why, in words.
    #[must_use]
    pub fn reason(&self) -> String {
        dispatch!(&self.active, policy => policy.reason())
    }
}
