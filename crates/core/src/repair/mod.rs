//! Repair of losses: the egress asks for the numbers a path lost, the ingress sends those datagrams
//! once more over whichever path delivers first.
//!
//! Every datagram of a path carries the path's own number, so the egress sees a gap as soon as the
//! next datagram arrives, one round trip before a sender could learn of it from missing
//! acknowledgements. It names each number in several NACKs, for one may be lost on all its paths.
//! What is sent again is a numbered datagram like any other: if it is lost, the same rule repairs it.
//! (Negative acknowledgements as in RFC 4585 §6.2.1, local recovery below TCP as in RFC 3366.)
//!
//! Invariant: a datagram is answered for at most once for every time it was lost, with one copy the
//! first time, two the second and three after that: each on a path of its own, or, where there are
//! fewer, a little later on the same.

mod requests;
mod sent;
mod tuning;

pub use requests::Requests;
pub use sent::{Sent, SentLog};
pub(crate) use tuning::{GAP_MAX, PACKETS_MAX};
