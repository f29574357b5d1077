//! What travels on the emulated links, and the inner packets that tests send.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use ropewalk_types::{Ecn, FlowKey, PacketInfo, mark_ce, source_of};
use ropewalk_wire::HEADROOM;

/// Bytes of an IPv4 and a UDP header.
const UDP_HEADERS: usize = 28;
/// Bytes of an IPv4 and a TCP header with timestamps.
const TCP_HEADERS: usize = 52;
/// Protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of an IPv4 header.
const IP_HEADER: usize = 20;

/// One outer packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Who sent it, as the receiver sees it.
    pub from: SocketAddr,
    /// Who gets it.
    pub to: SocketAddr,
    /// What it carries.
    pub body: Body,
}

/// What an outer packet carries.
#[derive(Clone, Debug)]
pub enum Body {
    /// A UDP datagram.
    Udp(Ecn, BytesMut),
    /// The first packet of a TCP connection, or the answer.
    TcpOpen,
    /// Bytes of a TCP connection, from this place in the stream on.
    TcpData(u64, Bytes),
    /// Everything before this place in the stream of a TCP connection has come.
    TcpAck(u64),
    /// The end of a TCP connection.
    TcpClose,
    /// A whole IP packet of a host beside the tunnel.
    Plain(BytesMut),
}

impl Packet {
    /// An IP packet of a host beside the tunnel.
    #[must_use]
    pub const fn plain(ip: BytesMut) -> Self {
        let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self {
            from: nobody,
            to: nobody,
            body: Body::Plain(ip),
        }
    }

    /// Length with IP header, bytes.
    #[must_use]
    pub fn ip_bytes(&self) -> usize {
        match &self.body {
            Body::Udp(_, data) => UDP_HEADERS + data.len(),
            Body::TcpData(_, data) => TCP_HEADERS + data.len(),
            Body::TcpOpen | Body::TcpAck(_) | Body::TcpClose => TCP_HEADERS,
            Body::Plain(ip) => ip.len(),
        }
    }

    /// A hash of addresses, ports and protocol: one for each connection and direction.
    #[must_use]
    pub fn flow(&self) -> u64 {
        if let Body::Plain(ip) = &self.body {
            return PacketInfo::parse(ip).map_or(0, |info| info.flow.hash(0));
        }
        let octets = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let key = FlowKey {
            source: octets(self.from),
            destination: octets(self.to),
            ports: [self.from.port(), self.to.port()],
            protocol: if self.is_udp() { UDP } else { TCP },
        };
        key.hash(0)
    }

    /// The ECN field of its IP header. TLS over TCP sets none.
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        match &self.body {
            Body::Udp(ecn, _) => *ecn,
            Body::Plain(ip) => Ecn::of(ip).unwrap_or_default(),
            Body::TcpOpen | Body::TcpData(..) | Body::TcpAck(_) | Body::TcpClose => Ecn::NotEct,
        }
    }

    /// Sets that field to "congestion experienced".
    pub fn mark_ce(&mut self) {
        match &mut self.body {
            Body::Udp(ecn, _) => *ecn = Ecn::Ce,
            Body::Plain(ip) => mark_ce(ip),
            Body::TcpOpen | Body::TcpData(..) | Body::TcpAck(_) | Body::TcpClose => {}
        }
    }

    /// Whether it is a UDP datagram.
    #[must_use]
    pub const fn is_udp(&self) -> bool {
        matches!(self.body, Body::Udp(..))
    }
}

/// An inner IPv4 packet of `bytes` bytes with this number in it, as a driver hands it to a
/// session.
///
/// # Panics
/// When `bytes` is less than 28 or more than 65,535.
#[must_use]
pub fn inner(source: Ipv4Addr, destination: Ipv4Addr, number: u64, bytes: usize) -> BytesMut {
    let length = u16::try_from(bytes).expect("an IPv4 packet");
    let mut data = BytesMut::zeroed(HEADROOM + bytes);
    let ip = &mut data[HEADROOM..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    // No protocol with ports: one flow per pair of addresses.
    (ip[8], ip[9]) = (64, 253);
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    ip[IP_HEADER..IP_HEADER + 8].copy_from_slice(&number.to_be_bytes());
    data
}

/// The number in such a packet, and who sent it.
#[must_use]
pub fn read_inner(ip: &[u8]) -> Option<(IpAddr, u64)> {
    let source = source_of(ip)?;
    let number = ip.get(IP_HEADER..IP_HEADER + 8)?.try_into().ok()?;
    Some((source, u64::from_be_bytes(number)))
}

/// A UDP packet over IPv4 with this number in it: one flow per port.
///
/// # Panics
/// When `bytes` is less than 40 or more than 65,535.
#[must_use]
pub fn udp(number: u32, port: u16, bytes: usize) -> BytesMut {
    let length = u16::try_from(bytes).expect("an IPv4 packet");
    let mut data = BytesMut::zeroed(HEADROOM + bytes);
    let ip = &mut data[HEADROOM..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[9] = 17;
    ip[20..22].copy_from_slice(&port.to_be_bytes());
    ip[28..32].copy_from_slice(&number.to_be_bytes());
    data
}

/// A TCP segment, else like the packet of [`udp`].
///
/// # Panics
/// When `bytes` is less than 40 or more than 65,535.
#[must_use]
pub fn tcp(number: u32, port: u16, bytes: usize) -> BytesMut {
    let mut data = udp(number, port, bytes);
    // A header of 20 bytes; the number stands where the acknowledgement number does.
    (data[HEADROOM + 9], data[HEADROOM + 32]) = (6, 0x50);
    data
}

/// The number in a packet of [`udp`] or [`tcp`].
///
/// # Panics
/// When the packet is shorter.
#[must_use]
pub fn number(ip: &[u8]) -> u32 {
    u32::from_be_bytes([ip[28], ip[29], ip[30], ip[31]])
}
