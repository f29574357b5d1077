//! What hosts send: numbered packets and TCP, and what came of it.
//!
//! Every site has the same flows. A flow's number tells the site and the kind; so does its address.
//! Numbered TCP segments have nobody who sends them again: what does not come was lost by the tunnel.

use bytes::BytesMut;
use ropewalk_core::reorder::SEEN_WINDOW;
use ropewalk_netem::Side;
use ropewalk_plan::Congestion;
use ropewalk_types::{Ecn, Instant, Random, source_of};
use std::net::IpAddr;

use super::tuning::MTU;
use crate::headers::{Headers, site_address};
use crate::host::{RECEIVE_WINDOW_BYTES, tcp};
use crate::packet::{Body, Packet, Upper};
use crate::traffic::Outbox;
use crate::traffic::transfer::{Address, Protocol, Transfer};

/// Flows of a site: their addresses.
pub const FLOWS: u16 = 8;
/// Numbers from here on are those of packets with the source of another site.
const SPOOFED: u32 = 1 << 31;

/// A flow of numbered packets.
#[derive(Debug)]
pub struct Numbered {
    /// Where it goes.
    pub side: Side,
    /// It is TCP to gateways; otherwise they hold its packets for two seconds at most.
    pub tcp: bool,
    /// When each packet was sent; `None` if no gateway took it.
    pub sent: Vec<Option<Instant>>,
    /// How often each packet came.
    pub came: Vec<u8>,
    /// Whether the queue of a gateway has dropped each packet.
    pub dropped: Vec<bool>,
    newest: u32,
    /// When packets came after newer ones.
    pub late: Vec<Instant>,
}

/// The traffic of a site.
#[derive(Debug)]
pub struct Traffic {
    site: u16,
    /// Bytes of a numbered packet.
    bytes: u32,
    /// Numbered packets.
    pub numbered: Vec<Numbered>,
    /// TCP, up and down.
    pub streams: Vec<Transfer>,
    /// Segments that each stream was given.
    pub offered: u32,
    headers: Headers,
}

/// What is wrong with a packet that came, and when it was sent.
pub type Wrong = (&'static str, Instant);

/// A packet came again.
pub const TWICE: &str = "it came twice";

/// Addresses of a site.
pub fn addresses(site: usize) -> Vec<IpAddr> {
    let first = number(site) * FLOWS;
    (first..first + FLOWS)
        .map(|flow| site_address(flow).into())
        .collect()
}

fn number(site: usize) -> u16 {
    u16::try_from(site).unwrap_or(u16::MAX / FLOWS)
}

impl Traffic {
    /// Nothing was sent yet.
    pub fn new(site: usize, bytes: u32, random: &mut Random) -> Self {
        let numbered = [
            (Side::Up, true),
            (Side::Down, true),
            (Side::Up, false),
            (Side::Down, false),
        ];
        let numbered = numbered.map(|(side, tcp)| Numbered {
            side,
            tcp,
            sent: Vec::new(),
            came: Vec::new(),
            dropped: Vec::new(),
            newest: 0,
            late: Vec::new(),
        });
        let first = number(site) * FLOWS + 4;
        let streams = Side::ALL.into_iter().zip(first..).map(|(data, flow)| {
            let settings = tcp::Settings {
                segment_bytes: Protocol::tcp_payload(MTU),
                congestion: Congestion::Cubic,
                detection: tcp::LossDetection::default(),
                window_bytes: RECEIVE_WINDOW_BYTES,
                ecn: false,
            };
            let sender = Box::new(tcp::Sender::new(settings, random.fork()));
            let protocol = Protocol::Tcp(sender, tcp::Receiver::new());
            let address = Address {
                flow,
                use_count: 0,
                data,
            };
            Transfer::on_demand(address, protocol, MTU)
        });
        Self {
            site: number(site),
            bytes,
            numbered: numbered.into(),
            streams: streams.collect(),
            offered: 0,
            headers: Headers::default(),
        }
    }

    /// Writes the next packet of a numbered flow.
    pub fn next_numbered(&mut self, now: Instant, flow: usize, data: &mut BytesMut) {
        let numbered = &self.numbered[flow];
        let number = u32::try_from(numbered.sent.len()).unwrap_or(u32::MAX);
        let index = u16::try_from(flow).unwrap_or(0);
        let packet = plain(
            now,
            self.site * FLOWS + index,
            number,
            self.bytes,
            numbered.tcp,
        );
        self.headers.write(numbered.side, &packet, data);
    }

    /// The packet was taken by a gateway, or was not.
    pub fn note_sent(&mut self, now: Instant, flow: usize, taken: bool) {
        self.numbered[flow].sent.push(taken.then_some(now));
        self.numbered[flow].came.push(0);
        self.numbered[flow].dropped.push(false);
    }

    /// A gateway has dropped a packet of this site's hosts.
    pub fn note_dropped(&mut self, ip: &[u8]) {
        let Some(packet) = self.headers.read(ip) else {
            return;
        };
        let flow = self.numbered.get_mut(usize::from(packet.flow % FLOWS));
        if let (Some(flow), Body::Data { segment, .. }) = (flow, packet.body)
            && let Some(dropped) = flow.dropped.get_mut(segment as usize)
        {
            *dropped = true;
        }
    }

    /// Writes a packet to the hub that another site says to send.
    pub fn spoofed(&mut self, now: Instant, victim: usize, data: &mut BytesMut) {
        let packet = plain(now, number(victim) * FLOWS, SPOOFED, self.bytes, false);
        self.headers.write(Side::Up, &packet, data);
    }

    /// Writes a packet of a stream.
    pub fn write(&mut self, side: Side, packet: &Packet, data: &mut BytesMut) {
        self.headers.write(side, packet, data);
    }

    /// The number of the site whose address is the source of a packet.
    pub fn owner(ip: &[u8]) -> Option<usize> {
        let IpAddr::V4(source) = source_of(ip)? else {
            return None;
        };
        let flow = source.to_bits().checked_sub(site_address(0).to_bits())?;
        usize::try_from(flow / u32::from(FLOWS)).ok()
    }

    /// A packet of this site's hosts came out. What is wrong with it, and its number.
    pub fn came(
        &mut self,
        now: Instant,
        side: Side,
        ip: &[u8],
        out: &mut Outbox,
    ) -> Result<u64, Wrong> {
        let packet = self
            .headers
            .read(ip)
            .ok_or(("its headers are none of ours", now))?;
        if packet.flow / FLOWS != self.site {
            return Err(("it is of another site", now));
        }
        let index = usize::from(packet.flow % FLOWS);
        let Some(flow) = self.numbered.get_mut(index) else {
            let stream = self
                .streams
                .get_mut(index - 4)
                .ok_or(("its flow is unknown", now))?;
            stream.on_packet(now.as_nanos(), &packet, out);
            return Ok(packet.digest());
        };
        let number = match packet.body {
            Body::Data { segment, .. } if flow.tcp => segment,
            Body::Ping(number) if !flow.tcp => number,
            Body::Data { .. }
            | Body::Ping(_)
            | Body::Pong(_)
            | Body::Ack(_)
            | Body::Voice { .. }
            | Body::Request(_) => return Err(("its content has changed", now)),
        };
        if number & SPOOFED != 0 {
            return Err(("another site sent it", now));
        }
        if side != flow.side {
            return Err(("it came back", now));
        }
        if packet.bytes != self.bytes {
            return Err(("its length has changed", now));
        }
        let count = flow
            .came
            .get_mut(number as usize)
            .ok_or(("nobody sent it", now))?;
        *count = count.saturating_add(1);
        // Copies are known among so many numbers of a flow, not beyond.
        if *count > 1 && flow.newest.saturating_sub(number) < u32::from(SEEN_WINDOW) {
            return Err((TWICE, flow.sent[number as usize].unwrap_or(now)));
        }
        if number < flow.newest {
            flow.late.push(now);
        }
        flow.newest = flow.newest.max(number);
        Ok(packet.digest())
    }
}

fn plain(now: Instant, flow: u16, number: u32, bytes: u32, tcp: bool) -> Packet {
    let body = Body::Data {
        segment: number,
        stamp: 0,
        echo: 0,
        sent_ns: now.as_nanos(),
    };
    Packet {
        flow,
        use_count: 0,
        subflow: 0,
        bytes,
        upper: if tcp { Upper::Tcp } else { Upper::Echo },
        clock: tcp::Sender::clock(now.as_nanos()),
        ecn: Ecn::NotEct,
        reduced: false,
        body: if tcp { body } else { Body::Ping(number) },
    }
}
