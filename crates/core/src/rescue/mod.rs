//! Rescue: packets of sparse flows that keep a rhythm, such as calls, are missed by the clock.
//!
//! A call sends one small packet every 20 ms or so. Until the next one shows a gap half of the time
//! it can wait is over, and a burst of losses on its path hides the gap still longer. But the egress
//! knows the rhythm: it asks for a packet as soon as it is overdue ([`Rhythms`]). The ingress keeps the
//! last packets of such flows and sends what is asked for several times over two paths, a few
//! milliseconds apart; the path that lost it is in doubt for a moment, and what would take it takes
//! another one as well ([`Rescuer`]). Nothing is spent as long as nothing is lost.
//!
//! Invariant: what is kept and asked for is bounded; a packet is rescued at most four times,
//! and the egress removes all copies but the first.

mod rescuer;
mod rhythm;

pub use rescuer::{DOUBT, Rescue, Rescuer};
pub use rhythm::Rhythms;

/// How often one packet is asked for, at most.
const ASKED_MAX: u8 = 4;
