//! UDP socket with batches, segmentation offloads, ECN, DSCP and source addresses.
//!
//! Invariants:
//! - Nothing the peer or the network sends is an error of the socket.
//! - A datagram is never fragmented.
//! - An offload that the kernel refuses is given up for good with one log line, and its datagrams
//!   are sent without it.
//!
//! Source: Linux udp(7), ip(7), ipv6(7).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use bytes::BytesMut;
use ropewalk_types::Ecn;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tracing::{debug, warn};

use crate::helper::{self, Order};
use crate::pool::Pool;
use crate::sys::{self, Outgoing, Received, SLOTS};

/// How to open a UDP socket.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Local address; port 0 lets the kernel choose. A socket serves one address family, so that
    /// one port can be served on both.
    pub bind: SocketAddr,
    /// Interface the socket is bound to (`SO_BINDTODEVICE`), so that routes of others do not count.
    pub device: Option<String>,
    /// Mark of its packets for firewall and routing rules (`SO_MARK`). Needs `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Receive buffer in bytes; beyond the limit of the system where the process may.
    pub recv_buffer: usize,
    /// Send buffer in bytes; the same.
    pub send_buffer: usize,
    /// The socket is one of several at its address.
    pub group: Option<UdpGroup>,
}

/// A socket of several that are bound to one address in one process. The kernel gives a QUIC packet to the
/// one that the first byte of the packet's destination identifier names: the lower six bits, modulo `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpGroup {
    /// Which of them it is. They have to be bound in this order, and none may be closed before the others.
    pub index: u8,
    /// How many they are, 1..=64.
    pub count: u8,
}

/// What is known of a received datagram besides its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Sender.
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
    /// Buffers dropped because they were cut short or came without a sender.
    pub truncated: u64,
    /// Datagrams lost while an offload was given up half-way through a buffer.
    pub lost_on_fallback: u64,
}

/// A non-blocking, unconnected UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    v6: bool,
    max_segments: usize,
    counters: UdpCounters,
}

/// Memory into which datagrams are received. Sockets that are read in turn can share it.
#[derive(Debug)]
pub struct UdpReceiver {
    slots: [BytesMut; SLOTS],
    received: Vec<Received>,
    pool: Pool,
}

impl Default for UdpReceiver {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| BytesMut::new()),
            received: Vec::with_capacity(SLOTS),
            pool: Pool::new(POOL_BLOCK_BYTES),
        }
    }
}

impl UdpReceiver {
    /// Gives every slot room for the largest buffer.
    fn refill(&mut self) {
        for slot in &mut self.slots {
            if slot.capacity() < SLOT_BYTES {
                *slot = self.pool.exchange(std::mem::take(slot));
            }
        }
    }
}

/// Largest UDP payload over IPv4: 65,535 less 20 bytes of IP and 8 bytes of UDP header.
pub const UDP_PAYLOAD_MAX: usize = 65_507;

/// Segments the kernel takes in one buffer (`UDP_MAX_SEGMENTS` was 64 before Linux 6.9).
pub const SEGMENTS_MAX: usize = 64;

/// What one receive buffer must hold: the largest buffer GRO makes.
const SLOT_BYTES: usize = 65_536;

/// Pool blocks hold a full buffer and the small ones that came before it.
const POOL_BLOCK_BYTES: usize = 2 * SLOT_BYTES;

impl UdpSocket {
    /// Opens and binds the socket.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV` (no such device), `EPERM`.
    pub fn bind(config: &UdpConfig) -> io::Result<Self> {
        let v6 = config.bind.is_ipv6();
        let socket = Socket::new(
            Domain::for_address(config.bind),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        socket.set_nonblocking(true)?;
        if v6 {
            // One socket per family, so that both can have the same port.
            socket.set_only_v6(true)?;
        }
        if let Some(device) = &config.device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        if let Some(mark) = config.mark {
            crate::set_mark(&socket, mark)?;
        }
        set_buffer(&socket, Buffer::Receive, config.recv_buffer)?;
        set_buffer(&socket, Buffer::Send, config.send_buffer)?;
        set_options(&socket, v6)?;
        if let Some(group) = config.group {
            if group.index == 0 {
                // Sockets of a group do not notice that another process has the address.
                let alone = Socket::new(
                    Domain::for_address(config.bind),
                    Type::DGRAM,
                    Some(Protocol::UDP),
                )?;
                if v6 {
                    alone.set_only_v6(true)?;
                }
                alone.bind(&config.bind.into())?;
            }
            socket.set_reuse_port(true)?;
        }
        socket.bind(&config.bind.into())?;
        if let Some(group) = config.group {
            sys::steer_by_identifier(socket.as_fd(), group.count)?;
        }
        Ok(Self {
            max_segments: probe_offload(&socket),
            socket,
            v6,
            counters: UdpCounters::default(),
        })
    }

    /// Address the socket is bound to.
    ///
    /// # Errors
    /// None known for a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::Error::other("the socket has no IP address"))
    }

    /// Part of the receive buffer that is filled, 0 to 1; 0 where the kernel does not say.
    #[must_use]
    pub fn backlog(&self) -> f64 {
        // `struct sk_meminfo` (linux/sock_diag.h): 32-bit values, of which the first is what is used and the
        // second what may be.
        let mut info = [0; 36];
        let read = sys::read_option(
            self.socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            &mut info,
        );
        let value = |at: usize| {
            let bytes: Option<[u8; 4]> = info.get(at..at + 4)?.try_into().ok();
            bytes.map(u32::from_ne_bytes)
        };
        match (read, value(0), value(4)) {
            (Ok(8..), Some(used), Some(limit)) if limit > 0 => f64::from(used) / f64::from(limit),
            _ => 0.0,
        }
    }

    /// Largest `contents.len() / segment_size` (rounded up) that [`Self::send`] takes; 1 without
    /// segmentation offload.
    #[must_use]
    pub const fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Counts since the socket was opened.
    #[must_use]
    pub const fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Receives waiting datagrams into `receiver` and appends them to `out`, one entry each, in order
    /// of arrival; returns how many. Zero means nothing waits. One call is one system call that fills a few buffers: call again
    /// until zero, or wait (level-triggered).
    ///
    /// # Errors
    /// The socket is broken. Errors that ICMP reported are counted instead.
    pub fn recv_batch(
        &mut self,
        receiver: &mut UdpReceiver,
        out: &mut Vec<(RecvMeta, BytesMut)>,
    ) -> io::Result<usize> {
        let before = out.len();
        // Every buffer may be bad: then there may be more behind them, and zero would be a lie.
        for _ in 0..RECV_TRIES_MAX {
            if !self.fill(receiver)? {
                break;
            }
            for (index, received) in receiver.received.iter().enumerate() {
                let mut buffer = receiver.slots[index].split();
                if received.truncated {
                    self.counters.truncated += 1;
                    continue;
                }
                self.counters.received_buffers += 1;
                let meta = RecvMeta {
                    remote: received.remote,
                    local_ip: received.local_ip,
                    ecn: Ecn::from_bits(received.traffic_class),
                };
                let segment = received.segment.filter(|s| *s > 0).unwrap_or(usize::MAX);
                while buffer.len() > segment {
                    out.push((meta, buffer.split_to(segment)));
                }
                out.push((meta, buffer));
            }
            if out.len() > before {
                break;
            }
        }
        let count = out.len() - before;
        self.counters.received += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }

    /// Fills the slots; false when nothing waits.
    fn fill(&mut self, into: &mut UdpReceiver) -> io::Result<bool> {
        into.refill();
        for _ in 0..ICMP_ERRORS_MAX {
            into.received.clear();
            match sys::receive(self.socket.as_fd(), &mut into.slots, &mut into.received) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_from_network(&e) => self.note_icmp(&e),
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    fn note_icmp(&mut self, error: &io::Error) {
        self.counters.icmp_errors += 1;
        debug!(%error, "error of an earlier datagram");
    }

    /// Sends `contents` to `destination`: as one datagram, or as datagrams of `segment_size` bytes
    /// (the last may be shorter), at most [`Self::max_segments`] of them and
    /// [`UDP_PAYLOAD_MAX`] bytes. `dscp` is 0..=63; `source_ip` must be of the family of
    /// `destination`. Never fragments.
    ///
    /// # Errors
    /// `WouldBlock` (send buffer full: nothing was sent), `EMSGSIZE` (larger than the interface
    /// takes), `ENETUNREACH`, `EADDRNOTAVAIL`, `ENOBUFS` (queue of the interface full);
    /// `InvalidInput` when `segment_size` or `contents` break the limits.
    pub fn send(
        &mut self,
        destination: SocketAddr,
        source_ip: Option<IpAddr>,
        ecn: Ecn,
        dscp: u8,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let segment = segment_size.filter(|size| *size < contents.len());
        let count = segment.map_or(1, |size| contents.len().div_ceil(size.max(1)));
        if contents.len() > UDP_PAYLOAD_MAX || count > SEGMENTS_MAX || segment == Some(0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "more segments or bytes than one buffer takes",
            ));
        }
        if destination.is_ipv6() != self.v6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let destination = SockAddr::from(destination);
        let message = Outgoing {
            destination: &destination,
            source_ip,
            traffic_class: (dscp & 63) << 2 | ecn as u8,
            contents,
            segment: segment.and_then(|size| u16::try_from(size).ok()),
            v4: !self.v6,
        };
        if message.segment.is_some() && self.max_segments == 1 {
            return self.send_one_by_one(&message);
        }
        match self.send_message(&message) {
            Err(e) if message.segment.is_some() && may_be_offload(&e) => {
                self.send_one_by_one(&message)?;
                self.give_up(&e);
                Ok(())
            }
            Err(e) => Err(e),
            Ok(()) => {
                self.counters.sent += u64::try_from(count).unwrap_or(1);
                Ok(())
            }
        }
    }

    /// One system call; an error that an earlier datagram caused does not count for this one.
    fn send_message(&mut self, message: &Outgoing<'_>) -> io::Result<()> {
        let mut result = Err(io::ErrorKind::Interrupted.into());
        for _ in 0..ICMP_ERRORS_MAX {
            result = sys::send(self.socket.as_fd(), message);
            match &result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    self.counters.icmp_errors += 1;
                }
                Err(_) => break,
                Ok(()) => {
                    self.counters.sent_buffers += 1;
                    break;
                }
            }
        }
        result
    }

    /// What the kernel does with `UDP_SEGMENT`, by hand. An error on the first datagram is the
    /// caller's; later ones are losses, because part of the buffer left already.
    fn send_one_by_one(&mut self, message: &Outgoing<'_>) -> io::Result<()> {
        let size = message.segment.map_or(message.contents.len(), usize::from);
        for (index, contents) in message.contents.chunks(size.max(1)).enumerate() {
            match self.send_message(&Outgoing {
                contents,
                segment: None,
                ..*message
            }) {
                Ok(()) => self.counters.sent += 1,
                Err(e) if index == 0 => return Err(e),
                Err(_) => self.counters.lost_on_fallback += 1,
            }
        }
        Ok(())
    }

    fn give_up(&mut self, error: &io::Error) {
        if self.max_segments > 1 {
            warn!(%error, "UDP segmentation offload given up");
            self.max_segments = 1;
        }
    }
}

/// Receive calls per batch while all of what they give is bad.
const RECV_TRIES_MAX: usize = 16;

/// Pending errors skipped per call.
const ICMP_ERRORS_MAX: usize = 16;

/// Errors that report what the network did with an earlier datagram.
fn is_from_network(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENETDOWN
                | libc::ECONNRESET
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EMSGSIZE
                | libc::EACCES
        )
    )
}

/// `EIO`: the interface cannot checksum. `EINVAL`: it cannot segment, or (before Linux 6.13) the
/// segment is too large, which sending one by one then shows.
fn may_be_offload(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP)
    )
}

#[derive(Clone, Copy)]
enum Buffer {
    Receive,
    Send,
}

/// Linux doubles the value for its own bookkeeping, so `bytes` is about what of datagrams fits.
/// Beyond the system's limit with CAP_NET_ADMIN, up to it without.
fn set_buffer(socket: &Socket, which: Buffer, bytes: usize) -> io::Result<()> {
    let forced = match which {
        Buffer::Receive => libc::SO_RCVBUFFORCE,
        Buffer::Send => libc::SO_SNDBUFFORCE,
    };
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
    if force_buffer(socket, forced, value).is_ok() {
        return Ok(());
    }
    let order = match which {
        Buffer::Receive => Order::ReceiveBuffer(value),
        Buffer::Send => Order::SendBuffer(value),
    };
    if let Some(Ok(((), _))) = helper::quick_order(&order, Some(socket.as_fd())) {
        return Ok(());
    }
    match which {
        Buffer::Receive => socket.set_recv_buffer_size(bytes),
        Buffer::Send => socket.set_send_buffer_size(bytes),
    }
}

/// Sets a buffer beyond the system's limit. Needs CAP_NET_ADMIN.
pub(crate) fn force_buffer(
    socket: &impl AsFd,
    option: libc::c_int,
    bytes: libc::c_int,
) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, option, bytes)
}

/// Ancillary data on reception, and DF without regard to ICMP: the transport finds the path MTU.
fn set_options(socket: &Socket, v6: bool) -> io::Result<()> {
    let options = if v6 {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
            (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            ),
        ]
    } else {
        [
            (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
            (
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_PROBE,
            ),
        ]
    };
    for (level, option, value) in options {
        sys::set_option(socket, level, option, value)?;
    }
    Ok(())
}

/// Switches GRO on where the kernel has it; returns the segments one send may have.
fn probe_offload(socket: &Socket) -> usize {
    if let Err(error) = sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1) {
        warn!(%error, "no UDP receive offload on this kernel");
    }
    match sys::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0) {
        Ok(()) => SEGMENTS_MAX,
        Err(error) => {
            warn!(%error, "no UDP segmentation offload on this kernel");
            1
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn bind() -> UdpSocket {
        let config = UdpConfig {
            bind: "127.0.0.1:0".parse().expect("address"),
            device: None,
            mark: None,
            recv_buffer: 1 << 20,
            send_buffer: 1 << 20,
            group: None,
        };
        UdpSocket::bind(&config).expect("bound")
    }

    #[test]
    fn without_segmentation_offload_the_same_datagrams_arrive() {
        let (mut sender, mut receiver) = (bind(), bind());
        sender.give_up(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(sender.max_segments(), 1);
        let contents: Vec<u8> = (0..2500u32).map(|i| i.to_le_bytes()[0]).collect();
        let to = receiver.local_addr().expect("bound");
        sender
            .send(to, None, Ecn::Ect0, 0, &contents, Some(1000))
            .expect("sent");
        let (mut into, mut got) = (UdpReceiver::default(), Vec::new());
        while got.len() < 3 {
            receiver.recv_batch(&mut into, &mut got).expect("received");
        }
        assert_eq!(
            got.iter().map(|(_, d)| d.len()).collect::<Vec<_>>(),
            [1000, 1000, 500]
        );
        assert_eq!(
            got.iter().flat_map(|(_, d)| d.to_vec()).collect::<Vec<_>>(),
            contents
        );
        assert!(got.iter().all(|(meta, _)| meta.ecn == Ecn::Ect0));
        assert_eq!(
            (sender.counters().sent, sender.counters().sent_buffers),
            (3, 3)
        );
    }
}
