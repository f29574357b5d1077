//! QUIC connections with DATAGRAM frames (RFC 9221), one per path, behind one UDP endpoint.

use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};
use ropewalk_core::path::PathSnapshot;
use ropewalk_types::{Duration, Ecn, Instant};

use crate::{
    CloseReason, CongestionControl, Identity, KeyCheck, PublicKey, SendError, TransportError,
};

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
    /// The system's instant that is [`Instant::ZERO`] here.
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
            mtu_max: 8_972,
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
}

/// Names a connection of one endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

/// UDP datagrams to send: the bytes are in the buffer the caller passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub destination: SocketAddr,
    /// Source address to use; `None` leaves it to the system.
    pub source_ip: Option<IpAddr>,
    /// ECN field for the outer header.
    pub ecn: Ecn,
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
    /// UDP datagrams that belong to no connection and start none, or do not decrypt.
    pub garbage_datagrams: u64,
    /// Handshakes that ended because the peer's key is not on the list.
    pub keys_refused: u64,
    /// Retry packets sent (RFC 9000 §8.1.2).
    pub retries_sent: u64,
    /// Connection attempts refused because a bound was reached.
    pub handshakes_refused: u64,
    /// Handshakes that failed for another reason.
    pub handshakes_failed: u64,
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
}

/// All QUIC connections of one UDP socket.
pub struct Endpoint {}

impl Endpoint {
    /// An endpoint that sends through one UDP socket.
    ///
    /// # Errors
    /// When a value of `config` is out of range or TLS refuses the key.
    pub fn new(_config: EndpointConfig) -> Result<Self, TransportError> {
        unimplemented!()
    }

    /// Starts a connection to `remote`, whose key must be `peer_key`.
    ///
    /// # Errors
    /// When the address is unusable or the number of connections is at its limit.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        peer_key: PublicKey,
        congestion: CongestionControl,
    ) -> Result<ConnectionId, TransportError> {
        let options = ConnectOptions {
            congestion,
            mtu_max: None,
        };
        self.connect_with(now, remote, peer_key, options)
    }

    /// [`Self::connect`] with more to choose.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(
        &mut self,
        _now: Instant,
        _remote: SocketAddr,
        _peer_key: PublicKey,
        _options: ConnectOptions,
    ) -> Result<ConnectionId, TransportError> {
        unimplemented!()
    }

    /// Takes one UDP datagram in; answers the connection it belonged to. Drain
    /// [`Self::receive`] of that connection before the next call, so that arrival time and
    /// outer ECN belong to the right inner packets.
    pub fn handle_udp(
        &mut self,
        _now: Instant,
        _remote: SocketAddr,
        _local_ip: Option<IpAddr>,
        _ecn: Ecn,
        _data: BytesMut,
    ) -> Option<ConnectionId> {
        unimplemented!()
    }

    /// The next packet that belongs to no connection (Retry, version negotiation, reset,
    /// refusal), put into `buf`, which is cleared first.
    pub fn poll_stateless(&mut self, _buf: &mut Vec<u8>) -> Option<Transmit> {
        unimplemented!()
    }

    /// The next event of any connection.
    pub fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
        unimplemented!()
    }

    /// Queues a datagram. Never drops an older one for it.
    ///
    /// # Errors
    /// When the datagram is too large, the queue is full, or the connection is not up.
    pub fn send(&mut self, _id: ConnectionId, _datagram: Bytes) -> Result<(), SendError> {
        unimplemented!()
    }

    /// The next datagram received on `id`.
    pub fn receive(&mut self, _id: ConnectionId) -> Option<Bytes> {
        unimplemented!()
    }

    /// The next UDP datagrams of `id`, put into `buf`, which is cleared first. Call until `None`.
    pub fn poll_transmit(
        &mut self,
        _now: Instant,
        _id: ConnectionId,
        _buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        unimplemented!()
    }

    /// The state of the path, for the scheduler; `None` unless connected.
    #[must_use]
    pub fn snapshot(&self, _now: Instant, _id: ConnectionId) -> Option<PathSnapshot> {
        unimplemented!()
    }

    /// When [`Self::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        unimplemented!()
    }

    /// Lets the timers of all connections that are due at `now` run.
    pub fn handle_timeout(&mut self, _now: Instant) {
        unimplemented!()
    }

    /// The next connection that may have something to transmit after input, a timeout, a send
    /// or a close. Each is named once; call [`Self::poll_transmit`] for it until `None`.
    pub fn poll_dirty(&mut self) -> Option<ConnectionId> {
        unimplemented!()
    }

    /// Sends an ack-eliciting packet soon, to measure or to keep the path open.
    pub fn ping(&mut self, _id: ConnectionId) {
        unimplemented!()
    }

    /// Closes with a reason the peer sees, at most 100 bytes of it.
    pub fn close(&mut self, _now: Instant, _id: ConnectionId, _reason: &str) {
        unimplemented!()
    }

    /// Says that this side's address changed, so that the path is used from there at once.
    pub fn address_changed(&mut self, _id: ConnectionId) {
        unimplemented!()
    }

    /// The present address of the peer.
    #[must_use]
    pub fn remote(&self, _id: ConnectionId) -> Option<SocketAddr> {
        unimplemented!()
    }

    /// UDP payload bytes the path takes now; 1200 before discovery or for an unknown connection.
    #[must_use]
    pub fn mtu(&self, _id: ConnectionId) -> usize {
        unimplemented!()
    }

    /// Counters of the endpoint.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        unimplemented!()
    }

    /// Counters of a connection.
    #[must_use]
    pub fn counters(&self, _id: ConnectionId) -> Option<ConnectionCounters> {
        unimplemented!()
    }
}
