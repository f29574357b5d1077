//! Sans-IO link model: queue, serialiser, loss, delay and jitter, per direction.
//!
//! A packet passes, in this order: the queue (tail drop by bytes and packets, or managed by CoDel,
//! FQ-CoDel or PIE, which can mark instead of drop) → the serialiser
//! (one packet after the other at the rate, or as a capacity trace allows; no burst allowance) →
//! loss (a silent blackhole, then random loss) → delay with jitter. The caller passes the time;
//! the same seed, plan and arrivals give the same result in real and in virtual time.
//!
//! Conservation: every packet that entered was delivered, dropped (counted by reason) or is still
//! inside. [`Link`] joins two [`Direction`]s and carries out the timed changes of a [`LinkPlan`].

#![forbid(unsafe_code)]

mod capacity;
mod direction;
mod link;
mod loss;
mod mean;
mod network;
mod plan;
mod queue;
mod trace;
pub mod units;

pub use capacity::Capacity;
pub use direction::{
    Change, Counters, Direction, DirectionConfig, DropReason, IN_FLIGHT_PACKETS_MAX,
    QUEUE_PACKETS_DEFAULT, Refused,
};
pub use link::{Link, LinkConfig, Selector, Side, TimedChange};
pub use loss::{GilbertElliott, LossModel};
pub use network::{Event, Fate, Network};
pub use plan::{ChangePlan, DirectionPlan, GilbertPlan, LinkPlan, PlanError};
pub use queue::{Aqm, Carried};
pub use trace::{CapacityTrace, OPPORTUNITY_BYTES, TRACE_BYTES_MAX, TraceError, trace_text};
