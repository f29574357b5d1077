//! The vocabulary shared by every crate: time, rates, identifiers, names of algorithms and seeded
//! randomness.
//!
//! Nothing here reads a clock or a random source of the system: callers pass both in.

#![forbid(unsafe_code)]

mod buckets;
pub mod checksum;
mod flow;
mod names;
mod pace;
mod path;
mod quote;
mod random;
mod rate;
mod registry;
mod shared;
mod steps;
mod time;
mod wrap;

pub use buckets::Buckets;
pub use core::time::Duration;
pub use flow::{Ecn, FlowKey, PacketInfo, WITH_PORTS, destination_of, mark_ce, source_of};
pub use names::{UnknownName, closest};
pub use pace::{Lines, Pace};
pub use path::PathSnapshot;
pub use quote::Quote;
pub use random::Random;
pub use rate::Rate;
pub use registry::{CongestionControl, SchedulerKind};
pub use shared::{
    FragmentKey, NotABlock, PortBlock, fragment_bytes, fragment_of, port_of_receiver,
    port_of_sender,
};
pub use steps::{count_steps, steps};
pub use time::Instant;
pub use wrap::{PROTOCOL_IPV4, WRAP_BYTES, unwrap, wrapping};

use serde::{Deserialize, Serialize};

/// Largest number of paths one tunnel can have; path identifiers are below it.
pub const PATHS_MAX: usize = 16;

/// Identifies a path within one tunnel on one side; `0..PATHS_MAX`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct PathId(pub u8);

impl PathId {
    /// Position in a per-path table of [`PATHS_MAX`] entries.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl core::fmt::Display for PathId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}
