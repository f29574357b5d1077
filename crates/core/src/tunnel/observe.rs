//! Someone who is told of every datagram of a tunnel, and of packets that it drops: the simulator's log of events.
//!
//! Without an observer a datagram costs one comparison.

use super::Outgoing;
use bytes::Bytes;
use core::fmt;
use ropewalk_types::{Instant, PathId, PathSnapshot};

/// Is told of datagrams in the order in which a tunnel handles them. Must not decide anything.
pub trait Observer: Send {
    /// A datagram was bound to a path, which the transport last described so; `backlog` bytes of
    /// inner packets are left at the ingress.
    fn on_sent(&mut self, now: Instant, sent: &Outgoing, path: &PathSnapshot, backlog: u64);

    /// A datagram of the peer came over a path.
    fn on_received(&mut self, now: Instant, path: PathId, datagram: &Bytes);

    /// The ingress queue has dropped an inner packet, an IP packet, at `now` or shortly before.
    fn on_dropped(&mut self, _now: Instant, _ip: &[u8]) {}
}

/// The observer, if there is one.
#[derive(Default)]
pub(super) struct Observed(pub Option<Box<dyn Observer>>);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.is_some()).finish()
    }
}
