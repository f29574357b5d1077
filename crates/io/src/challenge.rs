//! Makes the far end of a TCP connection speak: sends it a segment that it must answer.
//!
//! A segment outside the receiver's window is answered with an acknowledgement that tells what the
//! receiver waits for (RFC 9293 §3.10.7.4). A router between can answer that with a reset
//! that the receiver accepts (RFC 5961 §3.2), without knowing the connection's sequence numbers.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use crate::checksum;

/// Bytes of a TCP header without options.
const TCP_BYTES: usize = 20;
const TCP: u8 = 6;
/// ACK alone (RFC 9293 §3.1).
const FLAG_ACK: u8 = 0x10;
const HOPS: u8 = 64;

/// Sends `to` a segment as if from `from`, outside of any likely window. The packet carries `mark`.
///
/// # Errors
/// Not permitted (`CAP_NET_RAW`), different families, or no route.
pub fn tcp(from: SocketAddr, to: SocketAddr, mark: u32) -> io::Result<()> {
    let packet = packet(from, to)?;
    let domain = Domain::for_address(to);
    let raw = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(domain, Type::RAW, Some(raw))?;
    crate::set_mark(&socket, mark)?;
    if to.is_ipv4() {
        socket.set_header_included_v4(true)?;
    }
    let to = SocketAddr::new(to.ip(), 0);
    socket.send_to(&packet, &to.into()).map(drop)
}

fn packet(from: SocketAddr, to: SocketAddr) -> io::Result<Vec<u8>> {
    let mut tcp = Vec::with_capacity(TCP_BYTES);
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    // A sequence number the receiver is unlikely to expect, and nothing acknowledged that it sent.
    tcp.extend([0; 8]);
    tcp.extend([0x50, FLAG_ACK, 0, 0, 0, 0, 0, 0]);
    let length = u16::try_from(TCP_BYTES).unwrap_or(u16::MAX);
    let (mut packet, addresses) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0];
            // The kernel fills in the length, the identification and the checksum.
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 0, 0, 0, HOPS, TCP, 0, 0]);
            let addresses = [from.octets(), to.octets()].concat();
            (header, addresses)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([TCP, HOPS]);
            let addresses = [from.octets(), to.octets()].concat();
            (header, addresses)
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let sum = checksum::pseudo_header(&addresses, TCP, TCP_BYTES);
    let sum = !checksum::fold(checksum::add(sum, &tcp));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet.extend(addresses);
    packet.extend(tcp);
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_a_valid_checksum_and_families_do_not_mix() {
        for (from, to, header) in [
            ("192.0.2.1:443", "10.0.0.2:4000", 20),
            ("[2001:db8::1]:443", "[fd00::2]:4000", 40),
        ] {
            let (from, to) = (from.parse().expect("from"), to.parse().expect("to"));
            let packet = packet(from, to).expect("one family");
            assert_eq!(packet.len(), header + TCP_BYTES);
            let addresses = if header == 20 { 12..20 } else { 8..40 };
            let sum = checksum::pseudo_header(&packet[addresses], TCP, TCP_BYTES);
            assert_eq!(
                checksum::fold(checksum::add(sum, &packet[header..])),
                0xffff
            );
        }
        let mixed = packet(
            "192.0.2.1:1".parse().expect("from"),
            "[::1]:1".parse().expect("to"),
        );
        assert!(mixed.is_err());
    }
}
