//! UDP socket with batches, segmentation offloads, ECN and source addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use bytes::BytesMut;
use ropewalk_types::Ecn;

/// How to open a UDP socket.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Local address; port 0 lets the kernel choose. `[::]` takes IPv4 as well.
    pub bind: SocketAddr,
    /// Interface the socket is bound to (`SO_BINDTODEVICE`), so that routes of others do not count.
    pub device: Option<String>,
    /// Receive buffer in bytes; beyond the limit of the system where the process may.
    pub recv_buffer: usize,
    /// Send buffer in bytes; the same.
    pub send_buffer: usize,
}

/// What is known of a received datagram besides its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Sender. IPv4 senders are shown as IPv4 on dual-stack sockets too.
    pub remote: SocketAddr,
    /// Address of this machine it was sent to: the source for replies.
    pub local_ip: Option<IpAddr>,
    /// ECN field of the outer header.
    pub ecn: Ecn,
}

/// Counts of a UDP socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams received, after GRO was undone.
    pub received: u64,
    /// Buffers received, each with one or more datagrams.
    pub received_buffers: u64,
    /// Datagrams sent, counted by segment.
    pub sent: u64,
    /// Buffers sent.
    pub sent_buffers: u64,
    /// ICMP errors of earlier sends (`ECONNREFUSED`, `EHOSTUNREACH`, …) that were swallowed.
    pub icmp_errors: u64,
    /// Datagrams cut short because they did not fit the receive buffer; dropped.
    pub truncated: u64,
}

/// A non-blocking, unconnected UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    socket: socket2::Socket,
}

impl UdpSocket {
    /// Opens and binds the socket.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV` (no such device), `EPERM`.
    pub fn bind(_config: &UdpConfig) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Address the socket is bound to.
    ///
    /// # Errors
    /// None known for a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Largest `contents.len() / segment_size` (rounded up) that [`Self::send`] takes; 1 without
    /// segmentation offload.
    #[must_use]
    pub const fn max_segments(&self) -> usize {
        1
    }

    /// Counts since the socket was opened.
    #[must_use]
    pub const fn counters(&self) -> UdpCounters {
        UdpCounters {
            received: 0,
            received_buffers: 0,
            sent: 0,
            sent_buffers: 0,
            icmp_errors: 0,
            truncated: 0,
        }
    }

    /// Appends waiting datagrams to `out`, one entry each, in order of arrival; returns how many.
    /// Zero means nothing waits. One call reads a bounded batch: call again until zero.
    ///
    /// # Errors
    /// The socket is broken. Errors that ICMP reported are counted instead.
    pub fn recv_batch(&mut self, _out: &mut Vec<(RecvMeta, BytesMut)>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends `contents` to `destination`: as one datagram, or as datagrams of `segment_size` bytes
    /// (the last may be shorter), at most [`Self::max_segments`] of them and
    /// [`UDP_PAYLOAD_MAX`] bytes. `dscp` is 0..=63. Never fragments.
    ///
    /// # Errors
    /// `WouldBlock` (send buffer full: nothing was sent), `EMSGSIZE` (larger than the interface
    /// takes), `ENETUNREACH`, `EADDRNOTAVAIL`, `ENOBUFS` (queue of the interface full).
    pub fn send(
        &mut self,
        _destination: SocketAddr,
        _source_ip: Option<IpAddr>,
        _ecn: Ecn,
        _dscp: u8,
        _contents: &[u8],
        _segment_size: Option<usize>,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Largest UDP payload over IPv4: 65,535 less 20 bytes of IP and 8 bytes of UDP header.
pub const UDP_PAYLOAD_MAX: usize = 65_507;

/// Segments the kernel takes in one buffer (`UDP_MAX_SEGMENTS` was 64 before Linux 6.9).
pub const SEGMENTS_MAX: usize = 64;

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
