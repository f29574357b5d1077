//! Sub-tunnels: what carries a tunnel's datagrams over one path.

pub mod model;
mod pacer;

use crate::run::SimError;
use bytes::Bytes;
use ropewalk_transport::CongestionControl;
use ropewalk_types::{Duration, Instant, PathSnapshot};

/// IPv4 and UDP header.
const IP_UDP: u64 = 28;

/// A packet of a sub-tunnel, as links see it.
pub trait LinkItem: Sized {
    /// Length of the IP packet.
    fn ip_bytes(&self) -> u64;

    /// One number for all it is, for the trace hash.
    fn digest(&self) -> u64;
}

/// What both ends of a sub-tunnel are made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Congestion control.
    pub congestion: CongestionControl,
    /// One-way delays of the idle path from the site, and to it.
    pub delays: [Duration; 2],
}

/// One end of the sub-tunnel of one path, connected from the beginning.
pub trait SubTunnel: Sized {
    /// What it puts on the link.
    type Packet: LinkItem;

    /// The ends of site and hub, with the round trip that their handshake measured.
    ///
    /// # Errors
    /// With the key, when the settings ask for what it cannot do.
    fn pair(settings: &Settings, seed: u64) -> Result<[Self; 2], SimError>;

    /// The report for the scheduler, if it has changed since it was last taken.
    fn take_news(&mut self) -> Option<PathSnapshot>;

    /// When [`Self::on_timer`] is wanted.
    fn due_ns(&mut self) -> u64;

    /// Takes a datagram to send.
    fn push(&mut self, datagram: Bytes);

    /// The same for one that leaves although the window is full.
    fn push_urgent(&mut self, datagram: Bytes);

    /// What is in flight is lost: it takes no place in the window any more.
    fn declare_lost(&mut self);

    /// The next packet to send now, if any.
    fn poll_transmit(&mut self, now: Instant) -> Option<Self::Packet>;

    /// A packet of the peer arrived, with datagrams for `take`; whether there is something to
    /// send or news of the path.
    fn on_packet(&mut self, now: Instant, packet: Self::Packet, take: impl FnMut(Bytes)) -> bool;

    /// A timer may be due.
    fn on_timer(&mut self, now: Instant);
}
