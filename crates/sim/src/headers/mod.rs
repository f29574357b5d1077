//! The bytes of hosts' packets, with the headers that real hosts would send.
//!
//! Hosts exchange values. Tunnels and captures get the bytes that are made here from those values,
//! and the values are read back from the bytes. Sequence numbers, acknowledgements, selective
//! acknowledgements, timestamps, flags, lengths and checksums are those that the values mean. What
//! no header has a place for begins the payload; the rest of it is zeros.
//!
//! Flow number `n` has the site's address 10.254.0.1 + `n`, so that a filter finds it; the server
//! has 10.255.0.1. Each use of a flow has a port of its own.
//!
//! Invariant: what is written into a packet of its length is read back unchanged. Sequence numbers
//! have 32 bits, segments more: a reader must have read or written packets of the flow that are
//! less than 2 GiB of data away.

mod content;
pub(crate) mod ipv4;
#[cfg(test)]
mod tests;

use crate::packet::{Ack, BLOCKS_MAX, Body, Packet, Upper};
use bytes::BytesMut;
use content::{Content, Reader};
use ipv4::{
    BLOCKS, FLAG_ACK, FLAG_CWR, FLAG_ECE, FLAG_PUSH, FLAG_SYN, ICMP, IP_HEADER, Ipv4, TCP_FLAGS,
    TCP_HEADER, TCP_OFFSET, TIMESTAMP_OPTIONS, TIMESTAMPS, Tcp, UDP, UDP_HEADER,
};
use ropewalk_netem::Side;
use ropewalk_testkit::HUB_INNER;
use ropewalk_types::Ecn;
use ropewalk_wire::HEADROOM;
use std::net::Ipv4Addr;

/// Uses of a flow that the ports of its site tell apart.
pub const USES: u16 = 50_000;

const SERVER: Ipv4Addr = HUB_INNER;
/// Address of the site's host of flow 0.
const FIRST_SITE: u32 = u32::from_be_bytes([10, 254, 0, 1]);
/// Port of the first connection of a flow at the site.
const CLIENT_PORT: u16 = 10_000;
/// Ports of the server: of iperf3, HTTP/3 and RTP.
const TCP_PORT: u16 = 5_201;
const QUIC_PORT: u16 = 443;
const CALL_PORT: u16 = 5_004;
/// Identifier of the echo requests of a flow's first use.
const PING_ID: u16 = 1;
/// Kinds of ICMP (RFC 792).
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_HEADER: usize = 8;
/// First byte of a QUIC short header (RFC 9000 §17.3.1).
const QUIC_SHORT: u8 = 0x40;
/// First byte of RTP without extensions (RFC 3550 §5.1), and its length.
const RTP: u8 = 0x80;
const RTP_HEADER: usize = 12;
/// RTP's clock of telephone speech: 8 kHz (RFC 3551 §4.5).
const RTP_TICK_NS: u64 = 125_000;
/// Blocks beside timestamps (RFC 2018 §3).
const TCP_BLOCKS: usize = 3;

/// Writes and reads packets of any flow.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// By flow.
    streams: Vec<Stream>,
}

/// What sequence numbers of a flow mean. Its connections share it: those of web pages are short.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Bytes of data in a segment, as its segments show.
    payload: u32,
    /// The highest segment so far.
    newest: u32,
}

impl Stream {
    /// The sequence number at which this segment begins.
    const fn place(&self, segment: u32) -> u32 {
        segment.wrapping_mul(self.payload).wrapping_add(1)
    }

    /// The segment that begins at this sequence number; `None` if none does.
    fn segment(&self, place: u32) -> Option<u32> {
        let ahead = i64::from(place.wrapping_sub(self.place(self.newest)).cast_signed());
        let payload = i64::from(self.payload);
        if ahead % payload != 0 {
            return None;
        }
        u32::try_from(i64::from(self.newest) + ahead / payload).ok()
    }

    /// A segment of data was written or read.
    fn note(&mut self, payload: u32, segment: u32) {
        self.payload = payload.max(1);
        self.newest = self.newest.max(segment);
    }
}

/// The address of a flow's host at the site's end.
pub fn site_address(flow: u16) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_SITE + u32::from(flow))
}

impl Headers {
    /// Writes a packet behind free bytes for the tunnel's header.
    pub fn write(&mut self, direction: Side, packet: &Packet, data: &mut BytesMut) {
        data.clear();
        data.resize(HEADROOM + packet.bytes as usize, 0);
        self.fill(direction, packet, &mut data[HEADROOM..]);
    }

    /// Writes a packet into zeros of its length, at least headers of IP and UDP.
    pub fn fill(&mut self, direction: Side, packet: &Packet, ip: &mut [u8]) {
        let length = packet.bytes as usize;
        let site = site_address(packet.flow);
        let addresses = in_direction(direction, site, SERVER);
        let protocol = packet.upper.protocol();
        let mut ip = Ipv4::new(ip, length, protocol, addresses, packet.ecn as u8);
        let client = CLIENT_PORT.wrapping_add(packet.use_count);
        let end = match (packet.upper, &packet.body) {
            (Upper::Tcp | Upper::PlainTcp, _) => {
                ip.ports(in_direction(direction, client, TCP_PORT));
                let stream = self.stream(packet.flow);
                tcp(stream, packet, &mut ip)
            }
            (Upper::Udp, &Body::Voice { number, sent_ns }) => {
                ip.ports(in_direction(direction, client, CALL_PORT));
                ip.udp();
                rtp(packet.flow, number, sent_ns, &mut ip)
            }
            (Upper::Udp, body) => {
                ip.ports(in_direction(direction, client, QUIC_PORT));
                ip.udp();
                let at = ip.put(IP_HEADER + UDP_HEADER, &[QUIC_SHORT]);
                ip.put(at, Content::of(body).bytes())
            }
            (Upper::Echo, body) => {
                let (kind, number) = match *body {
                    Body::Pong(number) => (ECHO_REPLY, number),
                    Body::Ping(number) | Body::Request(number) => (ECHO_REQUEST, number),
                    Body::Data { .. } | Body::Ack(_) | Body::Voice { .. } => (ECHO_REQUEST, 0),
                };
                let [_, _, high, low] = number.to_be_bytes();
                ip.put(IP_HEADER, &[kind]);
                let id = PING_ID.wrapping_add(packet.use_count);
                ip.put(IP_HEADER + 4, &id.to_be_bytes());
                let at = ip.put(IP_HEADER + 6, &[high, low]);
                ip.put(at, Content::of(body).bytes())
            }
        };
        ip.sum(end);
    }

    /// Reads a packet back; `None` if it is none of ours.
    pub fn read(&mut self, ip: &[u8]) -> Option<Packet> {
        let (head, rest) = ip.split_first_chunk::<IP_HEADER>()?;
        let mut addresses = Reader(&head[12..]);
        let (source, destination) = (addresses.word()?, addresses.word()?);
        let is_down = source == SERVER.to_bits();
        let site = if is_down { destination } else { source };
        let flow = u16::try_from(site.checked_sub(FIRST_SITE)?).ok()?;
        let mut ports = Reader(rest);
        let ports = [ports.short()?, ports.short()?];
        let [client, server] = if is_down { [ports[1], ports[0]] } else { ports };
        let mut packet = Packet {
            flow,
            use_count: client.wrapping_sub(CLIENT_PORT),
            subflow: 0,
            bytes: u32::try_from(ip.len()).ok()?,
            upper: Upper::Udp,
            clock: 0,
            ecn: Ecn::from_bits(head[1]),
            reduced: false,
            body: Body::Ping(0),
        };
        match head[9] {
            ipv4::TCP => self.read_tcp(rest, &mut packet)?,
            UDP if server == CALL_PORT => packet.body = read_rtp(rest.get(UDP_HEADER..)?)?,
            UDP => packet.body = content::read(rest.get(UDP_HEADER + 1..)?)?,
            ICMP => {
                packet.upper = Upper::Echo;
                let id = Reader(rest.get(4..)?).short()?;
                packet.use_count = id.wrapping_sub(PING_ID);
                packet.body = content::read(rest.get(ECHO_HEADER..)?)?;
            }
            _ => return None,
        }
        Some(packet)
    }

    fn stream(&mut self, flow: u16) -> &mut Stream {
        let flow = usize::from(flow);
        if flow >= self.streams.len() {
            let unknown = Stream {
                payload: ropewalk_plan::SEGMENT_MAX,
                newest: 0,
            };
            self.streams.resize(flow + 1, unknown);
        }
        &mut self.streams[flow]
    }

    fn read_tcp(&mut self, segment: &[u8], packet: &mut Packet) -> Option<()> {
        let (header, _) = segment.split_first_chunk::<TCP_HEADER>()?;
        let length = usize::from(header[TCP_OFFSET] >> 4) * 4;
        let (header, content) = segment.split_at_checked(length)?;
        let flags = header[TCP_FLAGS];
        let options = header.get(TCP_HEADER..)?;
        packet.upper = if options.is_empty() {
            Upper::PlainTcp
        } else {
            Upper::Tcp
        };
        packet.reduced = flags & FLAG_CWR != 0;
        let mut stamps = Reader(options.strip_prefix(&TIMESTAMPS).unwrap_or_default());
        packet.clock = stamps.word().unwrap_or(0);
        let echo = stamps.word().unwrap_or(0);
        let mut places = Reader(&header[4..]);
        let (sequence, acknowledgement) = (places.word()?, places.word()?);
        let stream = self.stream(packet.flow);
        packet.body = if flags & (FLAG_PUSH | FLAG_SYN) != 0 {
            content::read(content)?
        } else if content.is_empty() {
            let mut ack = Ack {
                next: stream.segment(acknowledgement)?,
                echo,
                congested: flags & FLAG_ECE != 0,
                ..Ack::default()
            };
            read_blocks(stream, options, &mut ack)?;
            Body::Ack(ack)
        } else {
            stream.payload = u32::try_from(content.len()).ok()?;
            let segment = stream.segment(sequence)?;
            stream.note(stream.payload, segment);
            Body::Data {
                segment,
                stamp: packet.clock,
                echo,
                sent_ns: Reader(content).double()?,
            }
        };
        Some(())
    }
}

/// Source and destination of what goes in this direction.
const fn in_direction<T: Copy>(direction: Side, site: T, server: T) -> [T; 2] {
    match direction {
        Side::Up => [site, server],
        Side::Down => [server, site],
    }
}

/// Header and content behind the ports; where they end.
fn tcp(stream: &mut Stream, packet: &Packet, ip: &mut Ipv4<'_>) -> usize {
    let has_options = packet.upper == Upper::Tcp;
    let stamps = |echo| has_options.then_some([packet.clock, echo]);
    let reduced = if packet.reduced { FLAG_CWR } else { 0 };
    let mut header = Tcp {
        flags: FLAG_ACK | reduced,
        sequence: 1,
        acknowledgement: 1,
        stamps: None,
    };
    match packet.body {
        Body::Data {
            segment,
            echo,
            sent_ns,
            ..
        } => {
            let payload = packet.bytes.saturating_sub(packet.upper.header_bytes());
            stream.note(payload, segment);
            header.sequence = stream.place(segment);
            header.stamps = stamps(echo);
            let at = ip.tcp(&header, [].into_iter());
            ip.put(at, &sent_ns.to_be_bytes())
        }
        Body::Ack(ack) => {
            header.flags |= if ack.congested { FLAG_ECE } else { 0 };
            header.acknowledgement = stream.place(ack.next);
            header.stamps = stamps(ack.echo);
            let blocks = &ack.blocks()[..ack.blocks().len().min(TCP_BLOCKS)];
            let places = |block: &(u32, u32)| [stream.place(block.0), stream.place(block.1)];
            ip.tcp(&header, blocks.iter().map(places))
        }
        // Handshakes and requests of web clients, which have no place in a stream. The first of
        // them stand for TCP's own handshake.
        Body::Ping(_) | Body::Pong(_) | Body::Request(_) | Body::Voice { .. } => {
            if packet.body == Body::Ping(0) {
                header.flags = FLAG_SYN;
                (header.sequence, header.acknowledgement) = (0, 0);
            } else if packet.body == Body::Pong(0) {
                header.flags |= FLAG_SYN;
                header.sequence = 0;
            } else {
                header.flags |= FLAG_PUSH;
            }
            header.stamps = stamps(0);
            let at = ip.tcp(&header, [].into_iter());
            ip.put(at, Content::of(&packet.body).bytes())
        }
    }
}

/// Selective acknowledgements, and whether the first of them names a duplicate.
fn read_blocks(stream: &Stream, options: &[u8], ack: &mut Ack) -> Option<()> {
    let Some(blocks) = options
        .get(TIMESTAMP_OPTIONS..)
        .filter(|rest| !rest.is_empty())
    else {
        return Some(());
    };
    let mut edges = Reader(blocks.strip_prefix(&BLOCKS)?.get(1..)?);
    while let Some(start) = edges.word() {
        ack.push((stream.segment(start)?, stream.segment(edges.word()?)?));
    }
    // RFC 2883 §4: it is below the acknowledgement, or within the block behind it.
    if let [first, rest @ ..] = ack.blocks() {
        let within = |other: &(u32, u32)| other.0 <= first.0 && first.1 <= other.1;
        ack.duplicate = first.0 < ack.next || rest.first().is_some_and(within);
    }
    Some(())
}

/// RTP and what follows it (RFC 3550 §5.1); where that ends.
fn rtp(flow: u16, number: u16, sent_ns: u64, ip: &mut Ipv4<'_>) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
    let clock = (sent_ns / RTP_TICK_NS) as u32;
    let at = ip.put(IP_HEADER + UDP_HEADER, &[RTP, 0]);
    let at = ip.put(at, &number.to_be_bytes());
    let at = ip.put(at, &clock.to_be_bytes());
    let at = ip.put(at, &u32::from(flow).to_be_bytes());
    ip.put(at, &sent_ns.to_be_bytes())
}

fn read_rtp(bytes: &[u8]) -> Option<Body> {
    let number = Reader(bytes.get(2..)?).short()?;
    let sent_ns = Reader(bytes.get(RTP_HEADER..)?).double()?;
    Some(Body::Voice { number, sent_ns })
}

// A tag has four bits for the number of blocks.
const _: () = assert!(BLOCKS_MAX < 16);
