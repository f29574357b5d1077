//! Raw IP packets for tests: what no ordinary socket would send.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ropewalk_testbed::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Sends the payload of one IP packet with any protocol number from inside a namespace.
///
/// # Errors
/// If the socket cannot be made or the kernel refuses the packet.
pub fn send(from: &Namespace, to: IpAddr, protocol: u8, payload: &[u8]) -> Result<()> {
    let socket = raw(from, to, protocol)?;
    socket.send_to(payload, &SockAddr::from(SocketAddr::new(to, 0)))?;
    Ok(())
}

/// A raw socket inside a namespace.
///
/// # Errors
/// If the kernel refuses.
pub fn raw(namespace: &Namespace, family_of: IpAddr, protocol: u8) -> Result<Socket> {
    let domain = Domain::for_address(SocketAddr::new(family_of, 0));
    let protocol = Protocol::from(i32::from(protocol));
    let socket = namespace.enter(|| Socket::new(domain, Type::RAW, Some(protocol)))?;
    socket.context("cannot make a raw socket")
}

/// What arrives on a socket within `limit`: every packet, until `enough` says so.
///
/// # Errors
/// If the socket fails.
pub fn receive(
    socket: &Socket,
    limit: Duration,
    mut enough: impl FnMut(&[u8]) -> bool,
) -> Result<bool> {
    let end = Instant::now() + limit;
    let mut buffer = vec![0; 70_000];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        let length = match (&*socket).read(&mut buffer) {
            Ok(length) => length,
            Err(error) if is_pause(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        if enough(&buffer[..length]) {
            return Ok(true);
        }
    }
}

/// A UDP header with checksum over IPv6 and the payload (RFC 8200 §8.1).
#[must_use]
pub fn udp_over_ipv6(source: (Ipv6Addr, u16), target: (Ipv6Addr, u16), payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap_or(u16::MAX);
    let mut segment = Vec::new();
    for field in [source.1, target.1, length, 0] {
        segment.extend(field.to_be_bytes());
    }
    segment.extend(payload);
    let mut pseudo = Vec::new();
    pseudo.extend(source.0.octets());
    pseudo.extend(target.0.octets());
    pseudo.extend(u32::from(length).to_be_bytes());
    pseudo.extend([0, 0, 0, UDP]);
    pseudo.extend(&segment);
    segment[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    segment
}

/// An extension header of eight bytes with padding only (RFC 8200 §4.2), then `next`.
#[must_use]
pub fn options_header(next_header: u8, next: &[u8]) -> Vec<u8> {
    let mut header = vec![next_header, 0, 1, 4, 0, 0, 0, 0];
    header.extend(next);
    header
}

/// Whole IPv4 packets that any interface of a namespace sees, until `count` or `limit`.
///
/// # Errors
/// If the packet socket cannot be made.
pub fn capture(
    namespace: &Namespace,
    count: usize,
    limit: Duration,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>> {
    let protocol = Protocol::from(i32::from(ETHERTYPE_IPV4.to_be()));
    let socket = namespace.enter(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)))??;
    let mut packets = Vec::new();
    receive(&socket, limit, |packet| {
        if wanted(packet) {
            packets.push(packet.to_vec());
        }
        packets.len() >= count
    })?;
    Ok(packets)
}

/// Sends a whole IPv4 packet, header included.
///
/// # Errors
/// If the kernel refuses.
pub fn inject(socket: &Socket, packet: &[u8]) -> Result<()> {
    let octets: [u8; 4] = packet.get(16..20).context("no IPv4 header")?.try_into()?;
    let target = SocketAddr::new(Ipv4Addr::from(octets).into(), 0);
    socket.send_to(packet, &SockAddr::from(target))?;
    Ok(())
}

/// Whether an IPv4 packet is UDP to this port.
#[must_use]
pub fn is_udp_to(packet: &[u8], port: u16) -> bool {
    let header = packet.first().map_or(0, |byte| usize::from(byte & 15) * 4);
    packet.get(9) == Some(&UDP) && packet.get(header + 2..header + 4) == Some(&port.to_be_bytes())
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6 destination options (RFC 8200 §4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
const ETHERTYPE_IPV4: u16 = 0x0800;
