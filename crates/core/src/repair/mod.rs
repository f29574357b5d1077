//! Repair of losses: the exit asks for the numbers a path lost, the entry sends those datagrams
//! once more over whichever path delivers first.
//!
//! Every datagram of a path carries the path's own number, so the exit sees a gap as soon as the
//! next datagram arrives, one round trip before a sender could learn of it from missing
//! acknowledgements. It asks once. What is sent again, and the question itself, are numbered
//! datagrams like any other: if they are lost, the same rule repairs them, so that no timers,
//! counters or states per packet are needed. (Negative acknowledgements as in RFC 4585 §6.2.1,
//! local recovery below TCP as in RFC 3366.)
//!
//! Invariant: a datagram is sent again at most once for every time it was lost, so repairs never
//! exceed the losses of the paths.

mod requests;
mod sent;

pub(crate) use requests::GAP_MAX;
pub use requests::Requests;
pub(crate) use sent::PACKETS_MAX;
pub use sent::{Sent, SentLog};
