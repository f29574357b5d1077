//! Repair of losses: the egress asks for the numbers that a path lost. The ingress sends those
//! datagrams once more, over the path that delivers first.
//!
//! Every datagram of a path carries the path's own number. So the egress sees a gap when the next
//! datagram arrives, one round trip before missing acknowledgements could tell the sender. The
//! egress names each number in several NACKs, because a NACK may be lost on all its paths. A
//! datagram that is sent again has a number like any other, so the same rule repairs its loss.
//! (Negative acknowledgements as in RFC 4585 §6.2.1, local recovery below TCP as in RFC 3366.)
//!
//! Invariant: each loss of a datagram is repaired at most once, the first with one copy, the second
//! with two, later ones with three. Each copy has a path of its own. Where there are fewer paths,
//! the other copies follow a little later on the same path.

mod requests;
mod sent;
mod tuning;

pub use requests::Requests;
pub(crate) use sent::age_max;
pub use sent::{Sent, SentLog};
pub(crate) use tuning::{GAP_MAX, PACKETS_MAX};
