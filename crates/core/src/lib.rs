//! The tunnel as a state machine without I/O: packets, time and path reports go in, datagrams
//! bound to paths and ordered packets come out.
//!
//! Callers pass `now` and a seed. Nothing here reads a clock, a socket, a file or a global random
//! source. So the same inputs give the same outputs in a gateway and a simulator.

#![forbid(unsafe_code)]

pub mod balance;
pub mod code;
pub mod estimate;
pub mod hold;
pub mod path;
pub mod protect;
pub mod queue;
pub mod reorder;
pub mod repair;
pub mod rescue;
pub mod schedule;
pub mod tunnel;
