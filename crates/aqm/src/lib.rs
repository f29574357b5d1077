//! Active queue management: when a packet that waits is dropped or marked.
//!
//! Sans-IO rules: the caller passes time, waits and random numbers. CoDel and PIE judge the packets
//! of the caller's queue; [`FlowQueues`] is a queue for each flow. The ingress of a tunnel and the
//! link model use the same code.

#![forbid(unsafe_code)]

mod codel;
mod flows;
mod pie;
pub mod tuning;

pub use codel::CoDel;
pub use flows::{FlowQueues, Queued};
pub use pie::Pie;

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it go.
    Pass,
    /// Mark it, or drop it when it cannot be marked.
    Congested,
    /// Drop it, also when it could be marked.
    Drop,
}
