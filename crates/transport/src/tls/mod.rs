//! The fallback path: TLS 1.3 over a TCP byte stream, without I/O.

use bytes::Bytes;
use ropewalk_core::path::PathSnapshot;
use ropewalk_types::{Duration, Instant, Rate};

use crate::{Event, Identity, KeyCheck, PublicKey, SendError, TransportError};

/// What the kernel says of the TCP connection below (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time lately seen.
    pub min_rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes in the socket's buffer and not sent yet.
    pub not_sent_bytes: u64,
    /// Delivery rate.
    pub delivery_rate: Rate,
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments sent again.
    pub segments_retransmitted: u64,
    /// Time since the last ACK came.
    pub last_ack_age: Duration,
}

/// A sub-tunnel over one TCP connection.
pub struct TlsPath {}

impl TlsPath {
    /// The connecting side; the peer's key must be `peer_key`.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn client(_identity: &Identity, _peer_key: PublicKey) -> Result<Self, TransportError> {
        unimplemented!()
    }

    /// The accepting side; `allowed` says which keys may connect.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn server(_identity: &Identity, _allowed: KeyCheck) -> Result<Self, TransportError> {
        unimplemented!()
    }

    /// Takes bytes read from the TCP connection in.
    ///
    /// # Errors
    /// When the peer breaks the protocol: write what [`Self::poll_output`] still gives (an
    /// alert), then close the TCP connection.
    pub fn handle_bytes(&mut self, _bytes: &[u8]) -> Result<(), TransportError> {
        unimplemented!()
    }

    /// Appends bytes for the TCP connection to `buf`, at most [`OUTPUT_MAX`] at once; the number appended.
    pub fn poll_output(&mut self, _buf: &mut Vec<u8>) -> usize {
        unimplemented!()
    }

    /// Queues a datagram.
    ///
    /// # Errors
    /// When it is too large, the queue is full, or the handshake is not done.
    pub fn send(&mut self, _datagram: Bytes) -> Result<(), SendError> {
        unimplemented!()
    }

    /// The next datagram received.
    pub fn receive(&mut self) -> Option<Bytes> {
        unimplemented!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// Whether the handshake is still going on.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        unimplemented!()
    }

    /// Takes the kernel's view of the TCP connection in; call before [`Self::snapshot`].
    pub fn update_tcp_info(&mut self, _now: Instant, _info: TcpInfo) {
        unimplemented!()
    }

    /// The state of the path, for the scheduler; `None` unless connected.
    #[must_use]
    pub fn snapshot(&self, _now: Instant) -> Option<PathSnapshot> {
        unimplemented!()
    }

    /// Says goodbye: queues a close alert with no reason.
    pub fn close(&mut self) {
        unimplemented!()
    }
}

/// Most bytes one call of [`TlsPath::poll_output`] appends.
pub const OUTPUT_MAX: usize = 64 * 1024;
