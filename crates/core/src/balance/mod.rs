//! Spreading flows over uplinks on the client alone: which uplink the next new flows take.
//!
//! Nothing here touches a packet. The caller measures bytes and answers to probes. Once a second it
//! asks for the [`shares`] of the uplinks and turns them into a table of [`SLOTS`] places
//! ([`smooth::sequence`]). The kernel, or the controller of a switch, takes one place for each new
//! flow.
//!
//! Invariant: as long as any uplink is usable, some usable uplink has a share. Sources: flow-based
//! load balancing of multi-homed hosts by weighted round robin over link capacities, and
//! join-the-shortest-queue with unequal servers (least expected finish).

pub mod affinity;
pub mod capacity;
pub mod echoes;
pub mod fallback;
pub mod finish;
pub mod liveness;
mod policy;
pub mod rounds;
pub mod smooth;
pub mod train;
pub mod vps;
mod watch;

pub use affinity::Affinity;
pub use capacity::{Capacity, Sample};
pub use echoes::{Answer, Echoes};
pub use fallback::Fallback;
pub use liveness::{Liveness, State};
pub use policy::{Candidate, Expected, Mode, UnknownMode, shares};
pub use rounds::{Pace, Rounds};
pub use watch::Watch;

/// Places in the table of the kernel: shares are exact to half a 256th. More: exacter shares, more
/// work per table.
pub const SLOTS: usize = 256;
/// Most uplinks: their numbers have four bits of the packet mark.
pub const UPLINKS_MAX: usize = 15;
