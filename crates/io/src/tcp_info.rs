//! What the kernel knows of a TCP connection, and non-blocking connects through one interface.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use ropewalk_types::Rate;

/// State of a TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes sent and neither acknowledged nor known lost.
    pub in_flight_bytes: u64,
    /// Bytes in the socket that were not sent yet.
    pub not_sent_bytes: u64,
    /// Delivery rate; zero before the first sample.
    pub delivery_rate: Rate,
    /// Segment size in bytes.
    pub mss: u32,
    /// Segments sent again, in total.
    pub retransmitted: u32,
    /// Segments sent, in total.
    pub sent: u32,
    /// Bytes the peer acknowledged, in total.
    pub acked_bytes: u64,
}

/// Reads `TCP_INFO`.
///
/// # Errors
/// Not a TCP socket, or a kernel older than 4.9.
pub fn tcp_info(_socket: impl AsFd) -> io::Result<TcpInfo> {
    Err(io::ErrorKind::Unsupported.into())
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Where to.
    pub destination: SocketAddr,
    /// Interface the connection is bound to (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// Local address; `None` lets the kernel choose.
    pub source: Option<SocketAddr>,
    /// Congestion control by name (`bbr`, `cubic`); `None` or unknown ones leave the default.
    pub congestion: Option<String>,
    /// Bytes that may wait unsent in the socket before it stops being writable
    /// (`TCP_NOTSENT_LOWAT`), so that packets wait where they can still be rescheduled.
    pub not_sent_low_water: Option<u32>,
}

/// Starts to connect without waiting: the stream is writable when it succeeded or failed;
/// `take_error` tells which.
///
/// # Errors
/// What `socket`, `bind` or `connect` report at once.
pub fn connect(_config: &ConnectConfig) -> io::Result<std::net::TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}
