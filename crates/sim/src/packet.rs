//! The packets hosts exchange, as values. [`crate::headers`] makes bytes of them.

use crate::host::plain;
use ropewalk_netem::Carried;
use ropewalk_types::Ecn;

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
    /// What its IP header carries.
    pub upper: Upper,
    /// TCP with options: clock of its host in ms; 0 otherwise.
    pub clock: u32,
    /// ECN field of its IP header.
    pub ecn: Ecn,
    /// TCP: the sender has reduced its window after a mark (RFC 3168 §6.1.2).
    pub reduced: bool,
    /// What it says.
    pub body: Body,
}

/// The protocol above IP, and how hosts speak it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// TCP with timestamps and selective acknowledgements.
    Tcp,
    /// TCP without options, of `plain` hosts.
    PlainTcp,
    /// UDP.
    Udp,
    /// ICMP's echo.
    Echo,
}

impl Upper {
    /// Its number in IP's header.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Self::Tcp | Self::PlainTcp => 6,
            Self::Udp => 17,
            Self::Echo => 1,
        }
    }

    /// Headers of a packet with data, IPv4's included, bytes.
    #[must_use]
    pub const fn header_bytes(self) -> u32 {
        match self {
            Self::Tcp => TCP_HEADERS,
            Self::PlainTcp => plain::HEADERS,
            Self::Udp | Self::Echo => UDP_HEADERS,
        }
    }
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// One segment of data.
    Data {
        /// Which segment of the stream.
        segment: u32,
        /// QUIC: number of the packet. TCP: the sender's clock, [`Packet::clock`].
        stamp: u32,
        /// TCP: clock of the newest acknowledgement that the sender has; 0 otherwise.
        echo: u32,
        /// When this packet left its host; hosts do not read it, reports do.
        sent_ns: u64,
    },
    /// An acknowledgement.
    Ack(Ack),
    /// Asks for an answer.
    Ping(u32),
    /// The answer.
    Pong(u32),
    /// One packet of a call.
    Voice {
        /// Which one of its direction.
        number: u16,
        /// When it left its host.
        sent_ns: u64,
    },
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
            Self::Voice { sent_ns, .. } => format!("\"voice_ms\":{}", *sent_ns as f64 / 1e6),
            Self::Request(segments) => format!("\"request\":{segments}"),
        }
    }
}

/// An acknowledgement: blocks are of segments (TCP) or packet numbers (QUIC), end excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// TCP: the next segment expected.
    pub next: u32,
    /// TCP: clock of the segment that moved `next`. QUIC: for how long it was held, µs.
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
    /// One number for all it is, for the trace hash.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let body = match self.body {
            Body::Data { segment, stamp, .. } => u64::from(segment) << 32 | u64::from(stamp),
            Body::Ack(ack) => u64::from(ack.next) << 8 | u64::from(ack.count) | 1 << 62,
            Body::Ping(n) | Body::Pong(n) | Body::Request(n) => u64::from(n) | 1 << 61,
            Body::Voice { sent_ns, .. } => sent_ns,
        };
        body ^ (u64::from(self.flow) << 48) ^ (u64::from(self.bytes) << 32)
    }
}

// Packets are copied several times on their way: 72 bytes cost a simulation without a tunnel 10 %.
const _: () = assert!(size_of::<Packet>() <= 64);

/// Odd constant that spreads flows over buckets, from the golden ratio.
const FLOW_MIX: u64 = 0x9e37_79b9_7f4a_7c15;
