//! The dispatcher: one scheduler at a time per direction of a tunnel, exchangeable while
//! packets flow.
//!
//! Invariants: a packet that some path has room for waits only with a wake-up time, or for a path
//! whose credit ends the wait. The flows that the egress must put in order do not depend on the
//! algorithm, so they survive a change of algorithm.

use super::active_backup::ActiveBackup;
use super::afmt::Afmt;
use super::auto::Auto;
use super::blest::Blest;
use super::cost_aware::CostAware;
use super::ecf::Ecf;
use super::htmt::Htmt;
use super::htmt_paper::HtmtPaper;
use super::htmt_prototype::HtmtPrototype;
use super::low_rtt::LowRtt;
use super::order::FlowOrder;
use super::otias::Otias;
use super::priority::Priority;
use super::redundant::Redundant;
use super::round_robin::RoundRobin;
use super::weighted_round_robin::WeightedRoundRobin;
use super::{Decision, Head, Policy, SchedulerKind};
use crate::estimate::EgressFeedback;
use crate::path::PathView;
use ropewalk_types::{Instant, PathId};

/// A scheduler for one direction of one tunnel.
#[derive(Debug)]
pub struct Scheduler {
    kind: SchedulerKind,
    active: Active,
    order: FlowOrder,
    /// The tunnel has send buffers.
    buffered: bool,
}

/// Declares the algorithms: one line for each scheduler, with the type that decides for it.
macro_rules! algorithms {
    ($($kind:ident($policy:ty),)+) => {
        enum Active {
            $($kind($policy),)+
            /// The caller's.
            Custom(Box<dyn Policy>),
        }

        /// Calls the same method of whichever algorithm is active.
        macro_rules! dispatch {
            ($active:expr, $name:ident => $call:expr) => {
                match $active {
                    $(Active::$kind($name) => $call,)+
                    Active::Custom($name) => $call,
                }
            };
        }

        impl Active {
            fn new(kind: SchedulerKind) -> Self {
                match kind {
                    $(SchedulerKind::$kind => Self::$kind(<$policy>::default()),)+
                }
            }
        }
    };
}

algorithms! {
    // Boxed: its state per path is much larger than the others'.
    Auto(Box<Auto>),
    Htmt(Htmt),
    HtmtPaper(HtmtPaper),
    HtmtPrototype(HtmtPrototype),
    LowRtt(LowRtt),
    Ecf(Ecf),
    Blest(Blest),
    Otias(Otias),
    Afmt(Afmt),
    RoundRobin(RoundRobin),
    WeightedRoundRobin(WeightedRoundRobin),
    Redundant(Redundant),
    ActiveBackup(ActiveBackup),
    CostAware(CostAware),
    Priority(Priority),
}

impl core::fmt::Debug for Active {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&dispatch!(self, policy => policy.reason()))
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
            buffered: false,
        }
    }

    /// A scheduler that asks `policy`. It must give paths only what they have room for, and may
    /// let packets wait only as [`Decision`] says. [`kind`](Self::kind) answers the default.
    #[must_use]
    pub fn with_policy(policy: Box<dyn Policy>) -> Self {
        Self {
            kind: SchedulerKind::default(),
            active: Active::Custom(policy),
            order: FlowOrder::new(),
            buffered: false,
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
        if kind != self.kind || matches!(self.active, Active::Custom(_)) {
            self.kind = kind;
            self.active = Active::new(kind);
            if self.buffered {
                self.use_send_buffers();
            }
        }
    }

    /// The tunnel has send buffers: tells this algorithm, and those that are chosen later.
    pub fn use_send_buffers(&mut self) {
        self.buffered = true;
        dispatch!(&mut self.active, policy => policy.on_send_buffers());
    }

    /// Decides on the head packet of one flow. `paths` are the usable paths (standby ones only
    /// when no other is usable), in any order; O(paths), no allocation.
    pub fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        if paths.is_empty() {
            return Decision::WaitAll;
        }
        dispatch!(&mut self.active, policy => policy.pick(now, head, paths))
    }

    /// See [`Policy::fills_buffers`].
    #[must_use]
    pub fn fills_buffers(&self) -> bool {
        dispatch!(&self.active, policy => policy.fills_buffers())
    }

    /// The packet was bound to `path`, the view being that shown to [`pick`](Self::pick); once
    /// per copy. Call it before asking [`must_order`](Self::must_order) for the packet.
    pub fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        self.order.on_sent(now, head.flow, path);
        dispatch!(&mut self.active, policy => policy.on_sent(now, head, path));
    }

    /// A report of the egress came in.
    pub fn on_feedback(&mut self, now: Instant, feedback: &EgressFeedback) {
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

    /// Gives the memory of flows back that have been idle for long.
    pub fn forget_idle(&mut self, now: Instant) {
        self.order.forget_idle(now);
        dispatch!(&mut self.active, policy => policy.forget_idle(now));
    }

    /// Whether the egress should put the packet of `flow` just given to [`on_sent`](Self::on_sent)
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

#[cfg(test)]
mod tests {
    use super::super::FLOW_BUCKETS;
    use super::super::inputs::{head, view};
    use super::*;
    use proptest::prelude::*;
    use ropewalk_types::{Duration, Rate};

    #[test]
    fn a_switch_keeps_what_must_be_ordered_and_answers_for_the_new_kind() {
        let paths = [view(0, 50, 9), view(1, 70, 9)];
        let mut scheduler = Scheduler::new(SchedulerKind::RoundRobin);
        for path in &paths {
            scheduler.on_sent(Instant::ZERO, &head(3), path);
        }
        assert!(scheduler.must_order(3) && !scheduler.must_order(4));
        scheduler.switch(SchedulerKind::LowRtt);
        assert_eq!(scheduler.kind(), SchedulerKind::LowRtt);
        assert!(scheduler.must_order(3));
        assert!(scheduler.reason().contains("smallest round-trip time"));
    }

    /// Always the path with the highest number.
    struct Last;

    impl Policy for Last {
        fn pick(&mut self, _now: Instant, _head: &Head, paths: &[PathView]) -> Decision {
            paths.last().map_or(Decision::WaitAll, super::super::send)
        }

        fn reason(&self) -> String {
            "the last".into()
        }
    }

    #[test]
    fn a_policy_of_the_caller_decides_until_another_scheduler_is_chosen() {
        let paths = [view(0, 50, 9), view(1, 70, 9)];
        let mut scheduler = Scheduler::with_policy(Box::new(Last));
        let picked = scheduler.pick(Instant::ZERO, &head(3), &paths);
        assert_eq!(picked, super::super::send(&paths[1]));
        scheduler.switch(SchedulerKind::default());
        assert_ne!(scheduler.reason(), "the last");
    }

    #[test]
    fn no_path_means_wait_and_a_flow_out_of_range_is_harmless() {
        for kind in SchedulerKind::ALL {
            let mut scheduler = Scheduler::new(kind);
            assert_eq!(
                scheduler.pick(Instant::ZERO, &head(0), &[]),
                Decision::WaitAll
            );
            let wild = head(u16::try_from(FLOW_BUCKETS).unwrap());
            let paths = [view(0, 50, 9)];
            scheduler.pick(Instant::ZERO, &wild, &paths);
            scheduler.on_sent(Instant::ZERO, &wild, &paths[0]);
            scheduler.on_flow_idle(wild.flow);
            scheduler.on_path_removed(PathId(255));
        }
    }

    fn any_path(id: u8) -> impl Strategy<Value = PathView> {
        (
            1u64..800,
            0u64..21,
            0u64..200_000_000,
            0u64..500,
            0.0f64..0.3,
            any::<bool>(),
        )
            .prop_map(move |(rtt, free, rate, lag, loss, metered)| {
                let mut path = view(id, rtt, free);
                path.rate = Rate::from_bits_per_sec(rate);
                path.owd_relative = Duration::from_millis(lag);
                path.loss = loss;
                path.config.metered = metered;
                path
            })
    }

    proptest! {
        #[test]
        fn packets_go_only_where_there_is_room_and_none_waits_for_ever(
            kind in prop::sample::select(&SchedulerKind::ALL[..]),
            rounds in prop::collection::vec(
                ((any_path(0), any_path(5), any_path(15)), 1usize..4, 0u16..4, 1u64..30, 0u64..50),
                1..40),
        ) {
            let mut scheduler = Scheduler::new(kind);
            let mut now = Instant::from_millis(5);
            for (paths, shown, flow, packets, wait_ms) in rounds {
                let mut paths: Vec<_> = [paths.0, paths.1, paths.2].into_iter().take(shown).collect();
                now += Duration::from_millis(wait_ms);
                let backlog = packets * 1_400;
                let head = Head { flow, bytes: 1_400, flow_backlog: backlog, backlog: 2 * backlog };
                let asked_at = now;
                loop {
                    match scheduler.pick(now, &head, &paths) {
                        Decision::Send(set) => {
                            prop_assert!(!set.is_empty());
                            for id in set.iter() {
                                let path = paths.iter().find(|path| path.id == id);
                                let path = path.expect("a path that was shown");
                                prop_assert!(path.free >= head.bytes);
                                scheduler.on_sent(now, &head, path);
                            }
                            break;
                        }
                        Decision::WaitFlow(Some(until)) => {
                            prop_assert!(until > now);
                            now = until.min(now + Duration::from_millis(100));
                        }
                        Decision::WaitFlow(None) | Decision::WaitAll => {
                            now += Duration::from_millis(10);
                        }
                    }
                    // Every window opens again in the end.
                    if now.since(asked_at) > Duration::from_millis(200) {
                        for path in &mut paths {
                            (path.free, path.in_flight) = (path.cwnd, 0);
                        }
                    }
                    prop_assert!(now.since(asked_at) < Duration::from_secs(3), "{kind} stalls");
                }
            }
        }
    }
}
