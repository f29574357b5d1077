//! One hop of TCP/NC: two ends of a session (`crates/tcpnc`), and the link between them.
//!
//! The session carries what goes in the direction of the data. What comes back is routed beside the
//! session: the paper's gateways take "data packets" into the session (§2.2), and we read that as
//! packets that are no acknowledgements.

use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::events::Item;
use crate::headers::Headers;
use crate::packet::Packet;
use crate::traffic::back;
use bytes::BytesMut;
use ropewalk_netem::{Carried, Counters, Link, Refused, Side};
use ropewalk_plan::TunnelReport;
use ropewalk_tcpnc::wire::IP_UDP;
use ropewalk_tcpnc::{Endpoint, Redundancy, Stats};
use ropewalk_types::Instant;
use ropewalk_wire::HEADROOM;

/// What a link carries.
#[derive(Clone, Debug)]
pub enum Outer {
    /// A datagram of the session.
    Session(Vec<u8>),
    /// A packet beside the session.
    Routed(Packet),
}

impl Carried for Outer {
    fn flow(&self) -> u64 {
        match self {
            // A session is one flow, whatever it carries.
            Self::Session(_) => u64::MAX,
            Self::Routed(packet) => packet.flow(),
        }
    }
}

impl Outer {
    /// What the trace is told.
    fn item(&self) -> Item<'_> {
        match self {
            Self::Routed(packet) => Item::Host(packet),
            Self::Session(datagram) => Item::Session(self.digest(), datagram.len() + IP_UDP),
        }
    }

    /// One number for the trace hash; of a datagram its length and its header.
    fn digest(&self) -> u64 {
        match self {
            Self::Routed(packet) => packet.digest(),
            Self::Session(datagram) => {
                let word = |at: usize| {
                    let bytes = datagram.iter().skip(at).take(4);
                    bytes.fold(0, |word: u64, &byte| word << 8 | u64::from(byte))
                };
                let length = datagram.len() as u64;
                word(0).rotate_left(40) ^ word(4).rotate_left(20) ^ word(8) ^ length << 48
            }
        }
    }
}

/// Two gateways and what joins them.
#[derive(Debug)]
pub struct TcpNc {
    link: Link<Outer>,
    path: usize,
    /// Of the data.
    direction: Side,
    /// The source's gateway and the sink's.
    ends: [Endpoint; 2],
    warm: [Stats; 2],
    headers: Headers,
    buffer: BytesMut,
    packets: u64,
}

impl TcpNc {
    /// A session over this link, the plan's path of this number.
    #[must_use]
    pub fn new(link: Link<Outer>, path: usize, direction: Side, redundancy: Redundancy) -> Self {
        Self {
            link,
            path,
            direction,
            ends: [Endpoint::new(redundancy), Endpoint::new(redundancy)],
            warm: [Stats::default(); 2],
            headers: Headers::default(),
            buffer: BytesMut::new(),
            packets: 0,
        }
    }

    /// Lets everything leave that the ends have to send.
    fn transmit(&mut self, core: &mut Core) {
        for end in 0..self.ends.len() {
            let direction = if end == 0 {
                self.direction
            } else {
                back(self.direction)
            };
            while let Some(datagram) = self.ends[end].poll_transmit() {
                self.packets += 1;
                let bytes = datagram.len() + IP_UDP;
                self.enqueue(core, direction, bytes, Outer::Session(datagram));
            }
        }
    }

    fn enqueue(&mut self, core: &mut Core, direction: Side, bytes: usize, outer: Outer) {
        let sent = self.link.enqueue(core.now(), direction, bytes, outer);
        if let Err(Refused { reason, item }) = sent {
            let place = (self.path, direction);
            core.trace.dropped(core.now_ns, place, reason, item.item());
        }
    }

    fn receive(&mut self, core: &mut Core, direction: Side, arrivals: &mut Vec<Arrival>) {
        let now = core.now();
        let receiver = usize::from(direction == self.direction);
        let place = (self.path, direction);
        while let Some(outer) = self.link.poll(now, direction) {
            core.trace.delivered(core.now_ns, place, outer.item());
            let end = &mut self.ends[receiver];
            match outer {
                Outer::Routed(packet) => arrivals.push((direction, packet)),
                Outer::Session(datagram) => {
                    let read = end.handle(now, &datagram);
                    debug_assert!(read.is_ok(), "a session sends what it reads");
                }
            }
            while let Some(packet) = end.poll_packet() {
                let packet = self.headers.read(&packet);
                debug_assert!(packet.is_some(), "what went in comes out");
                arrivals.extend(packet.map(|packet| (direction, packet)));
            }
        }
        while let Some(outer) = self.link.poll_lost(direction) {
            core.trace.lost(core.now_ns, place, outer.item());
        }
    }
}

impl Carrier for TcpNc {
    fn components(&self) -> usize {
        1
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        if direction != self.direction {
            let bytes = packet.bytes as usize;
            self.enqueue(core, direction, bytes, Outer::Routed(*packet));
            return;
        }
        self.headers.write(direction, packet, &mut self.buffer);
        let data = &self.buffer[HEADROOM..];
        self.ends[0].offer(core.now(), data);
        self.transmit(core);
    }

    fn wake(&mut self, core: &mut Core, _component: usize, arrivals: &mut Vec<Arrival>) {
        for direction in Side::ALL {
            self.receive(core, direction, arrivals);
        }
        let now = core.now();
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|at| at <= now) {
                end.handle_timeout(now);
            }
        }
        self.transmit(core);
    }

    fn settle(&mut self, core: &mut Core, _arrivals: &mut Vec<Arrival>) {
        let ends = self.ends.iter().filter_map(Endpoint::poll_timeout);
        let due = ends.chain(self.link.poll_timeout()).min();
        core.look_at(0, due.map_or(NEVER, Instant::as_nanos).max(core.now_ns));
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        if path != self.path {
            return Counters::default();
        }
        self.link.advance(now);
        self.link.counters(direction)
    }

    fn mark_warm(&mut self) {
        self.warm = [0, 1].map(|end| self.ends[end].stats());
    }

    fn waiting(&self, direction: Side) -> Option<usize> {
        (direction == self.direction).then(|| self.ends[0].buffered())
    }

    fn tunnel_report(&self, direction: Side) -> Option<TunnelReport> {
        if direction != self.direction {
            return None;
        }
        let (source, before) = (self.ends[0].stats(), self.warm[0]);
        let delivered = self.ends[1].stats().delivered - self.warm[1].delivered;
        let combinations = source.combinations - before.combinations;
        let repairs = source.retransmissions - before.retransmissions;
        // Packets that TCP has sent, by those that arrived: what is under way evens out.
        let redundant = combinations.saturating_sub(delivered + repairs);
        Some(TunnelReport {
            delivered,
            ingress_drops: source.refused - before.refused,
            repairs,
            repair_symbols: redundant,
            overhead: ropewalk_plan::overhead(redundant + repairs, delivered),
            reason: self.ends[0].reason(),
            ..TunnelReport::default()
        })
    }

    fn packets(&self) -> u64 {
        self.packets
    }
}
