//! Active queue management: when a packet that waits is dropped or marked.
//!
//! Sans-IO rules without any queue: the caller has the queue and passes time, waits and random
//! numbers. The ingress of a tunnel and the link model use the same code.

#![forbid(unsafe_code)]

mod codel;
mod pie;
pub mod tuning;

pub use codel::CoDel;
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
