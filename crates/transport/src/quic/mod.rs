//! QUIC connections with DATAGRAM frames (RFC 9221), one per path, behind one UDP endpoint.
//!
//! `quinn-proto` is the protocol. This module adds pinned keys, bounds against floods, names that
//! are never reused, one timer over all connections, and what schedulers must know of a path.
//!
//! Invariant: every connection whose state changed is in the dirty queue exactly once until it is
//! taken out. Source: RFC 9000, RFC 9001, RFC 9002, RFC 9221, draft-ietf-quic-ack-frequency.

mod connection;
mod endpoint;
mod handshakes;
mod mark;
mod setup;
mod tuning;
mod waiting;

use std::net::{IpAddr, SocketAddr};

use ropewalk_types::{Duration, Ecn};

use crate::{CloseReason, CongestionControl, Identity, KeyCheck, PublicKey};

pub(crate) use connection::{refused_here, refused_there};
pub use endpoint::Endpoint;
pub use handshakes::{Source, gives_way};
pub use mark::{GROUPS, Slice, begins_connection, group_of};
pub(crate) use tuning::ACK_DELAY;

/// How an endpoint behaves.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// Who this side is.
    pub identity: Identity,
    /// Which keys may connect to this side; `None` accepts no connection at all (a site).
    pub allowed: Option<KeyCheck>,
    /// Congestion control of accepted connections.
    pub congestion: CongestionControl,
    /// The system's instant that is [`ropewalk_types::Instant::ZERO`] here.
    pub base: std::time::Instant,
    /// Most datagrams in one [`Transmit`], `1..=64`; 1 turns segmentation offload off.
    pub gso_segments_max: usize,
    /// Seed of connection identifiers and timers' randomness, for tests; `None` asks the system.
    pub seed: Option<[u8; 32]>,
    /// Silence after which a connection ends.
    pub idle_timeout: Duration,
    /// Interval of keep-alive packets on a quiet connection; `None` sends none.
    pub keep_alive: Option<Duration>,
    /// Largest UDP payload in bytes that path MTU discovery tries, `1200..=65_000`.
    pub mtu_max: u16,
    /// Which sites this side serves, if it accepts connections.
    pub slice: Slice,
}

impl EndpointConfig {
    /// The defaults for `identity`, with time counted from `base`.
    #[must_use]
    pub fn new(identity: Identity, base: std::time::Instant) -> Self {
        Self {
            identity,
            allowed: None,
            congestion: CongestionControl::default(),
            base,
            gso_segments_max: 10,
            seed: None,
            idle_timeout: Duration::from_secs(30),
            keep_alive: Some(Duration::from_secs(5)),
            mtu_max: 1_472,
            slice: Slice::WHOLE,
        }
    }
}

/// What one outgoing connection does differently from the endpoint's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Largest UDP payload in bytes that path MTU discovery tries; `None` as the endpoint.
    pub mtu_max: Option<u16>,
    /// The socket through which the connection sends.
    pub socket: SocketId,
    /// Another key that the peer may have.
    pub also: Option<PublicKey>,
    /// The key by which the peer tells its sites apart and strangers from them, if that is another one.
    pub marked_for: Option<PublicKey>,
    /// The group that the peer has named, below [`GROUPS`]; `None` is that of both keys.
    pub group: Option<u8>,
    /// The round trip that is assumed until one is measured. The first packet is repeated after three times as long.
    pub assumed_rtt: Option<core::time::Duration>,
}

/// Names a UDP socket of the caller; the endpoint only remembers which connection uses which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// Names a connection of one endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

/// UDP datagrams to send: the bytes are in the buffer the caller passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Through which socket: the one named to `connect_with`, or the one at which the peer's first
    /// datagram arrived.
    pub socket: SocketId,
    /// Where to.
    pub destination: SocketAddr,
    /// Source address to use; `None` leaves it to the system.
    pub source_ip: Option<IpAddr>,
    /// ECN field for the outer header.
    pub ecn: Ecn,
    /// Differentiated services codepoint for the outer header, 6 bits.
    pub dscp: u8,
    /// Bytes of the buffer that belong to this transmit.
    pub size: usize,
    /// Length of every datagram but the last when there are several.
    pub segment_size: Option<usize>,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is done; `peer` proved to hold this key.
    Connected {
        /// Key of the peer.
        peer: PublicKey,
    },
    /// The connection is over; its identifier is dead.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// Counters of an endpoint since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// UDP datagrams that belong to no connection and start none, do not decrypt, or came before.
    /// One right after a delivered datagram can be missed.
    pub garbage_datagrams: u64,
    /// Handshakes that ended because the peer's key is not on the list.
    pub keys_refused: u64,
    /// First packets without the mark of this side's key, or of another version of QUIC, which got no answer while
    /// this side was busy.
    pub strangers_ignored: u64,
    /// First packets for another worker, which got no answer: the kernel's choice of a worker was not made yet.
    pub handshakes_misrouted: u64,
    /// Retry packets sent (RFC 9000 §8.1.2).
    pub retries_sent: u64,
    /// Connection attempts refused because a bound was reached.
    pub handshakes_refused: u64,
    /// Handshakes that failed for another reason.
    pub handshakes_failed: u64,
    /// Panics in the work of one connection, which ended that connection or dropped its first packet.
    pub internal_errors: u64,
    /// Handshakes in progress as the accepting side now.
    pub handshakes_open: u64,
    /// Connections now, in any state.
    pub connections: u64,
}

/// Counters of one connection since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// UDP datagrams sent.
    pub sent_datagrams: u64,
    /// UDP datagrams received.
    pub received_datagrams: u64,
    /// QUIC packets declared lost.
    pub lost_packets: u64,
    /// Times path MTU discovery found large packets to vanish.
    pub black_holes: u64,
    /// Congestion events, ECN marks included.
    pub congestion_events: u64,
    /// Changes of the keys that protect packets, on either side's wish.
    pub key_updates: u64,
}
