//! The packets hosts exchange, as values and as the bytes a gateway's tunnel sees.
//!
//! Invariant: what is written into an IP packet of the packet's length is read back unchanged.

use bytes::BytesMut;
use ropewalk_netem::Carried;
use ropewalk_types::Ecn;
use ropewalk_wire::HEADROOM;

/// Blocks of an acknowledgement: three beside timestamps (RFC 2018 §3), and a duplicate's.
pub const BLOCKS_MAX: usize = 4;
/// IPv4 and TCP header with timestamps.
pub const TCP_HEADERS: u32 = 52;
/// IPv4, UDP and QUIC short header with tag, as an HTTP/3 server sends it.
pub const QUIC_HEADERS: u32 = 20 + 8 + 1 + 8 + 2 + 16;
/// IPv4 and UDP header.
pub const UDP_HEADERS: u32 = 28;
/// IPv4 and ICMP header and the 56 bytes `ping` sends.
pub const PING_BYTES: u32 = 84;

/// Where the content begins in the bytes: after IPv4 header, ports and what tells a gateway whether
/// a TCP segment has data.
const CONTENT: usize = 34;
/// Where TCP says how long its header is, and its flags.
const TCP_OFFSET: usize = 32;
const TCP_ACK: u8 = 0x10;
const TCP_ECE: u8 = 0x40;
const TCP_CWR: u8 = 0x80;

/// One packet between site and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The flow it belongs to.
    pub flow: u16,
    /// Which use of the flow: web connections are used again.
    pub use_count: u16,
    /// MPTCP: which subflow, and so which path; 0 otherwise.
    pub subflow: u8,
    /// Length of the IP packet.
    pub bytes: u32,
    /// Whether it is a TCP segment; a UDP packet otherwise.
    pub tcp: bool,
    /// ECN field of its IP header.
    pub ecn: Ecn,
    /// TCP: the sender has reduced its window after a mark (RFC 3168 §6.1.2).
    pub reduced: bool,
    /// What it says.
    pub body: Body,
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// One segment of data.
    Data {
        /// Which segment of the stream.
        segment: u32,
        /// QUIC: number of the packet. TCP: the sender's clock in ms.
        stamp: u32,
        /// When this packet left its host; hosts do not read it, reports do.
        sent_ns: u64,
    },
    /// An acknowledgement.
    Ack(Ack),
    /// Asks for an answer.
    Ping(u32),
    /// The answer.
    Pong(u32),
    /// One packet of a call, sent at this time.
    Voice(u64),
    /// Asks the server for the next object of a connection: how many segments.
    Request(u32),
}

impl Body {
    /// Members of a JSON object that say the same.
    #[must_use]
    pub fn content(&self) -> String {
        match self {
            Self::Data { segment, .. } => format!("\"segment\":{segment}"),
            Self::Ack(ack) => format!(
                "\"ack\":{},\"data_ack\":{},\"blocks\":{}",
                ack.next,
                ack.data_next,
                serde_json::Value::from_iter(ack.blocks().iter().map(|b| vec![b.0, b.1]))
            ),
            Self::Ping(number) => format!("\"ping\":{number}"),
            Self::Pong(number) => format!("\"pong\":{number}"),
            Self::Voice(sent_ns) => format!("\"voice_ms\":{}", *sent_ns as f64 / 1e6),
            Self::Request(segments) => format!("\"request\":{segments}"),
        }
    }
}

/// An acknowledgement: blocks are of segments (TCP) or packet numbers (QUIC), end excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// TCP: the next segment expected.
    pub next: u32,
    /// TCP: clock of the segment that moved `next`.
    pub echo: u32,
    /// MPTCP: the next segment of the data expected; 0 otherwise.
    pub data_next: u32,
    /// Whether the first block is of a segment that came twice (RFC 2883).
    pub duplicate: bool,
    /// TCP: a segment was marked on its way (RFC 3168 §6.1.3).
    pub congested: bool,
    /// Blocks in use.
    pub count: u8,
    /// What came beyond `next`, newest first.
    pub blocks: [(u32, u32); BLOCKS_MAX],
}

impl Ack {
    /// The blocks in use.
    #[must_use]
    pub fn blocks(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Adds a block while there is room.
    pub fn push(&mut self, block: (u32, u32)) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.count)) {
            *slot = block;
            self.count += 1;
        }
    }

    /// Length of a TCP acknowledgement with these blocks.
    #[must_use]
    pub fn tcp_bytes(&self) -> u32 {
        match self.count {
            0 => TCP_HEADERS,
            // Kind, length and padding; four times eight bytes do not fit beside timestamps.
            count => TCP_HEADERS + 4 + 8 * u32::from(count.min(3)),
        }
    }

    /// Length of a QUIC acknowledgement with these blocks.
    #[must_use]
    pub fn quic_bytes(&self) -> u32 {
        QUIC_HEADERS + 6 + 8 * u32::from(self.count)
    }
}

impl Carried for Packet {
    fn flow(&self) -> u64 {
        let use_of_flow = u64::from(self.flow) << 16 | u64::from(self.use_count);
        use_of_flow.wrapping_mul(FLOW_MIX) >> 32
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

impl Packet {
    /// Writes the packet as an IPv4 packet behind free bytes for the tunnel's header.
    pub fn write(&self, data: &mut BytesMut) {
        data.clear();
        data.resize(HEADROOM + self.bytes as usize, 0);
        let ip = &mut data[HEADROOM..];
        ip[0] = 0x45;
        ip[1] = self.ecn as u8;
        ip[2..4].copy_from_slice(&u16::try_from(self.bytes).unwrap_or(u16::MAX).to_be_bytes());
        ip[9] = if self.tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
        ip[20..22].copy_from_slice(&self.flow.to_be_bytes());
        ip[22..24].copy_from_slice(&self.use_count.to_be_bytes());
        if self.tcp {
            let header = match self.body {
                Body::Ack(_) => self.bytes,
                Body::Data { .. }
                | Body::Ping(_)
                | Body::Pong(_)
                | Body::Voice(_)
                | Body::Request(_) => TCP_HEADERS,
            };
            let words = (header.saturating_sub(IPV4_HEADER) / 4).min(15);
            ip[TCP_OFFSET] = words.to_le_bytes()[0] << 4;
            ip[TCP_OFFSET + 1] = TCP_ACK | self.flags();
        }
        let mut to = Writer {
            bytes: ip,
            at: CONTENT,
        };
        match self.body {
            Body::Data {
                segment,
                stamp,
                sent_ns,
            } => {
                to.byte(0);
                to.word(segment);
                to.word(stamp);
                to.double(sent_ns);
            }
            Body::Ack(ack) => {
                to.byte(1 | u8::from(ack.duplicate) << 3 | ack.count << 4);
                to.word(ack.next);
                for &(start, end) in ack.blocks() {
                    to.word(start);
                    to.word(end);
                }
                // Last: an acknowledgement without timestamps has no room for it.
                to.word(ack.echo);
            }
            Body::Ping(number) => to.tagged(2, number),
            Body::Pong(number) => to.tagged(3, number),
            Body::Voice(sent_ns) => {
                to.byte(4);
                to.double(sent_ns);
            }
            Body::Request(segments) => to.tagged(5, segments),
        }
    }

    /// The TCP flags of RFC 3168.
    const fn flags(&self) -> u8 {
        let congested = matches!(self.body, Body::Ack(ack) if ack.congested);
        (if congested { TCP_ECE } else { 0 }) | (if self.reduced { TCP_CWR } else { 0 })
    }

    /// Reads a packet back from its IPv4 bytes; `None` if it is none of ours.
    #[must_use]
    pub fn read(ip: &[u8]) -> Option<Self> {
        let flow = u16::from_be_bytes([*ip.get(20)?, *ip.get(21)?]);
        let use_count = u16::from_be_bytes([*ip.get(22)?, *ip.get(23)?]);
        let tag = *ip.get(CONTENT)?;
        let tcp = ip[9] == PROTOCOL_TCP;
        let flags = if tcp { ip[TCP_OFFSET + 1] } else { 0 };
        let mut from = Reader {
            bytes: ip,
            at: CONTENT + 1,
        };
        let body = match tag & 7 {
            0 => Body::Data {
                segment: from.word()?,
                stamp: from.word()?,
                sent_ns: from.double()?,
            },
            1 => {
                let mut ack = Ack {
                    next: from.word()?,
                    duplicate: tag & 8 != 0,
                    congested: flags & TCP_ECE != 0,
                    ..Ack::default()
                };
                for _ in 0..tag >> 4 {
                    ack.push((from.word()?, from.word()?));
                }
                ack.echo = from.word().unwrap_or(0);
                Body::Ack(ack)
            }
            2 => Body::Ping(from.word()?),
            3 => Body::Pong(from.word()?),
            4 => Body::Voice(from.double()?),
            5 => Body::Request(from.word()?),
            _ => return None,
        };
        Some(Self {
            flow,
            use_count,
            subflow: 0,
            bytes: u32::try_from(ip.len()).ok()?,
            tcp,
            ecn: Ecn::from_bits(ip[1]),
            reduced: flags & TCP_CWR != 0,
            body,
        })
    }

    /// One number for all it is, for the trace hash.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let body = match self.body {
            Body::Data { segment, stamp, .. } => u64::from(segment) << 32 | u64::from(stamp),
            Body::Ack(ack) => u64::from(ack.next) << 8 | u64::from(ack.count) | 1 << 62,
            Body::Ping(n) | Body::Pong(n) | Body::Request(n) => u64::from(n) | 1 << 61,
            Body::Voice(sent_ns) => sent_ns,
        };
        body ^ (u64::from(self.flow) << 48) ^ (u64::from(self.bytes) << 32)
    }
}

/// Odd constant that spreads flows over buckets, from the golden ratio.
const FLOW_MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const IPV4_HEADER: u32 = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn byte(&mut self, value: u8) {
        if let Some(slot) = self.bytes.get_mut(self.at) {
            *slot = value;
        }
        self.at += 1;
    }

    fn word(&mut self, value: u32) {
        if let Some(slot) = self.bytes.get_mut(self.at..self.at + 4) {
            slot.copy_from_slice(&value.to_be_bytes());
        }
        self.at += 4;
    }

    fn double(&mut self, value: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "both halves are written")]
        let (high, low) = ((value >> 32) as u32, value as u32);
        self.word(high);
        self.word(low);
    }

    fn tagged(&mut self, tag: u8, value: u32) {
        self.byte(tag);
        self.word(value);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn word(&mut self) -> Option<u32> {
        let word = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        Some(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
    }

    fn double(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::PacketInfo;

    #[test]
    fn a_mark_is_told_in_the_flag_of_the_rfc() {
        let ack = Ack {
            congested: true,
            ..Ack::default()
        };
        let packet = Packet {
            flow: 1,
            use_count: 0,
            subflow: 0,
            bytes: TCP_HEADERS,
            tcp: true,
            ecn: Ecn::NotEct,
            reduced: false,
            body: Body::Ack(ack),
        };
        let mut data = BytesMut::new();
        packet.write(&mut data);
        assert_eq!(data[HEADROOM + 33], TCP_ACK | TCP_ECE);
        assert_eq!(Packet::read(&data[HEADROOM..]), Some(packet));
    }

    #[test]
    fn packets_survive_their_bytes_at_their_smallest_length() {
        let mut ack = Ack {
            next: 7,
            echo: 9,
            duplicate: true,
            ..Ack::default()
        };
        let mut bodies = vec![(TCP_HEADERS, Body::Ack(ack))];
        for n in 1..=3 {
            ack.push((n * 10, n * 10 + 3));
            bodies.push((ack.tcp_bytes(), Body::Ack(ack)));
        }
        ack.push((90, 91));
        bodies.push((ack.quic_bytes(), Body::Ack(ack)));
        let (segment, stamp) = (u32::MAX, 5);
        let sent_ns = 3 << 40 | 7;
        let data = Body::Data {
            segment,
            stamp,
            sent_ns,
        };
        bodies.push((TCP_HEADERS + 1, data));
        bodies.push((PING_BYTES, Body::Pong(3)));
        bodies.push((UDP_HEADERS + 32, Body::Voice(1 << 40 | 5)));
        for (bytes, body) in bodies {
            // Four blocks are more than TCP has room for.
            let most = matches!(body, Body::Ack(ack) if ack.count > 3);
            for tcp in [false, !most] {
                let packet = Packet {
                    flow: 40_000,
                    use_count: 3,
                    subflow: 0,
                    bytes,
                    tcp,
                    ecn: Ecn::Ect0,
                    reduced: tcp,
                    body,
                };
                let mut data = BytesMut::new();
                packet.write(&mut data);
                let ip = &data[HEADROOM..];
                assert_eq!(Packet::read(ip), Some(packet));
                assert_eq!(Ecn::of(ip), Some(Ecn::Ect0));
                let in_order = PacketInfo::parse(ip).unwrap().tcp_in_order(ip);
                assert_eq!(in_order, tcp && !matches!(body, Body::Ack(_)), "{packet:?}");
            }
        }
    }
}
