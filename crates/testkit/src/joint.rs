//! Links that uplinks share, and the packets of hosts beside the tunnels on them.

use bytes::BytesMut;
use ropewalk_netem::{self as netem, Counters, Network, Side};
use ropewalk_types::Instant;

use crate::packet::{Body, Packet};
use crate::world::{End, Fate, Numbered};

/// The links, in place of those of the uplinks.
#[derive(Debug)]
pub(crate) struct Joint {
    network: Network<Numbered>,
    /// The site and the uplink of each route, in order; routes beyond are of hosts.
    ends: Vec<(usize, usize)>,
    /// When the links started.
    epoch: Instant,
    /// Packets that entered.
    sent: u32,
    /// What has come to hosts beside the tunnel.
    beside: Vec<(Side, BytesMut)>,
}

/// An outer packet that has left the links, or any packet that was lost there.
pub(crate) struct Event {
    /// What became of it; the number of the uplink is that of the route.
    pub(crate) fate: Fate,
    /// The outer packet, if it arrived.
    pub(crate) arrived: Option<(Side, Packet)>,
}

impl Joint {
    pub(crate) const fn new(
        network: Network<Numbered>,
        ends: Vec<(usize, usize)>,
        epoch: Instant,
    ) -> Self {
        Self {
            network,
            ends,
            epoch,
            sent: 0,
            beside: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, now: Instant, route: usize, side: Side, packet: Packet) {
        let bytes = packet.ip_bytes();
        self.sent = self.sent.wrapping_add(1);
        let digest = u64::from(self.sent) << 32 | bytes as u64;
        let item = Numbered { packet, digest };
        self.network.send(self.time(now), route, side, bytes, item);
    }

    /// Sends a packet of a tunnel over the route of this site's uplink.
    pub(crate) fn send_from(
        &mut self,
        end: (usize, usize),
        now: Instant,
        side: Side,
        packet: Packet,
    ) {
        if let Some(route) = self.ends.iter().position(|known| *known == end) {
            self.send(now, route, side, packet);
        }
    }

    /// The site and the uplink of a route.
    pub(crate) fn end(&self, route: usize) -> Option<(usize, usize)> {
        self.ends.get(route).copied()
    }

    /// What left by `now`; packets of hosts beside the tunnel are kept.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Event> {
        let event = self.network.poll(self.time(now))?;
        let (end, item) = match event.fate {
            netem::Fate::Arrived(item) => (End::Delivered, item),
            netem::Fate::Refused(reason, item) => (End::Refused(reason), item),
            netem::Fate::Lost(item) => (End::Lost, item),
        };
        let fate = Fate {
            at: now,
            uplink: event.route,
            side: event.side,
            digest: item.digest,
            end,
        };
        let side = event.side;
        let arrived = (end == End::Delivered).then_some(item.packet);
        let arrived = arrived.and_then(|packet| match packet.body {
            Body::Plain(data) => {
                self.beside.push((side, data));
                None
            }
            Body::Udp(..)
            | Body::TcpOpen
            | Body::TcpData(..)
            | Body::TcpAck(_)
            | Body::TcpClose => Some((side, packet)),
        });
        Some(Event { fate, arrived })
    }

    pub(crate) fn take_beside(&mut self) -> impl Iterator<Item = (Side, BytesMut)> {
        self.beside.drain(..)
    }

    pub(crate) const fn has_beside(&self) -> bool {
        !self.beside.is_empty()
    }

    /// When there is something to do, in the time of the world.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let at = self.network.poll_timeout()?;
        Some(self.epoch + at.since(Instant::ZERO))
    }

    pub(crate) fn counters(&mut self, now: Instant, link: usize, side: Side) -> Counters {
        self.network.counters(self.time(now), link, side)
    }

    /// The world's time as the links'.
    fn time(&self, now: Instant) -> Instant {
        Instant::ZERO + now.since(self.epoch)
    }
}
