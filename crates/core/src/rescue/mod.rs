//! Rescue: packets of sparse flows that keep a rhythm, such as calls, are missed by the clock.
//!
//! A call sends one small packet every 20 ms or so. Half of the time that a packet can wait is over
//! before the next one shows the gap. A burst of losses on its path hides the gap still longer. But
//! the egress knows the rhythm: it asks for a packet as soon as it is overdue ([`Rhythms`]). The
//! ingress keeps the last packets of these flows. It sends a packet that is asked for several times
//! over two paths, a few milliseconds apart. The path that lost the packet is in doubt for a
//! moment: packets that would take it take another path as well ([`Rescuer`]). Nothing is spent as
//! long as nothing is lost.
//!
//! Invariants: the packets that are kept and asked for are bounded. A packet is rescued at most
//! four times. The egress removes all copies but the first.

mod rescuer;
mod rhythm;
mod tuning;

pub use rescuer::{Rescue, Rescuer};
pub use rhythm::Rhythms;
pub use tuning::DOUBT;
