//! ICMP errors quote the packet that caused them. Whoever says an error got that packet, or passed it on to a host
//! behind: the destination of the quoted packet tells.
//!
//! Connection tracking of a kernel takes an error for a part of the quoted connection, whoever sends the error.

use std::net::IpAddr;

use crate::flow::{Upper, destination_of, upper_of};

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Destination unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
const ERRORS_V4: [u8; 5] = [3, 4, 5, 11, 12];
/// Types below are errors (RFC 4443 §2.1).
const QUERIES_V6: u8 = 128;
/// It quotes a packet too (RFC 4861 §4.5).
const REDIRECT_V6: u8 = 137;
/// Type, code, checksum and four bytes more.
const ICMP_HEADER: usize = 8;

/// What an IP packet quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote {
    /// Nothing: it is no ICMP error.
    Nothing,
    /// It is an error about a packet to this address.
    PacketTo(IpAddr),
    /// It is an error, or may be one, and its quote cannot be read. The quoted header is cut off or of another version,
    /// the error comes in fragments, or too many extension headers come before the error.
    Unknown,
}

impl Quote {
    /// Reads an IPv4 or IPv6 packet. `packet` may end behind the headers of the packet that it quotes.
    #[must_use]
    pub fn of(packet: &[u8]) -> Self {
        let (protocol, offset, first_part) = match upper_of(packet) {
            Upper::Whole { protocol, offset } => (protocol, offset, false),
            Upper::FirstFragment { protocol, offset } => (protocol, offset, true),
            Upper::LaterFragment => return Self::Nothing,
            Upper::Unknown => return Self::Unknown,
        };
        let Some(&kind) = packet.get(offset) else {
            let may_be_icmp = [PROTOCOL_ICMP, PROTOCOL_ICMPV6].contains(&protocol);
            return if may_be_icmp {
                Self::Unknown
            } else {
                Self::Nothing
            };
        };
        let is_error = match protocol {
            PROTOCOL_ICMP => ERRORS_V4.contains(&kind),
            PROTOCOL_ICMPV6 => kind < QUERIES_V6 || kind == REDIRECT_V6,
            _ => false,
        };
        if !is_error {
            return Self::Nothing;
        }
        // No error is long enough for fragments, and its quote may be in the second one.
        let quoted = packet.get(offset + ICMP_HEADER..).filter(|_| !first_part);
        // Type 137 names two addresses first, and the quote is in an option. No host of a tunnel has a reason to say it.
        let quoted = quoted.filter(|_| (protocol, kind) != (PROTOCOL_ICMPV6, REDIRECT_V6));
        // Linux reads the addresses of a quote by the family of the error, whatever version the quote names.
        let version = |packet: &[u8]| packet.first().map(|first| first >> 4);
        quoted
            .filter(|quoted| version(quoted) == version(packet))
            .and_then(destination_of)
            .map_or(Self::Unknown, Self::PacketTo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM_V4: [u8; 4] = [10, 0, 0, 1];
    const TO_V4: [u8; 4] = [10, 0, 0, 2];

    fn v4(protocol: u8, fragment: u16, contents: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(20 + contents.len() as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&FROM_V4);
        packet[16..20].copy_from_slice(&TO_V4);
        packet.extend_from_slice(contents);
        packet
    }

    fn v6(next: u8, contents: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(contents.len() as u16).to_be_bytes());
        packet[6] = next;
        packet[8..24].fill(1);
        packet[24..40].fill(2);
        packet.extend_from_slice(contents);
        packet
    }

    fn icmp(kind: u8, quoted: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 8];
        message[0] = kind;
        message.extend_from_slice(quoted);
        message
    }

    #[test]
    fn an_error_names_the_receiver_of_the_packet_that_it_quotes() {
        let quoted = v4(17, 0, &[0; 8]);
        for kind in 0..=u8::MAX {
            let expected = if [3, 4, 5, 11, 12].contains(&kind) {
                Quote::PacketTo(TO_V4.into())
            } else {
                Quote::Nothing
            };
            assert_eq!(
                Quote::of(&v4(1, 0, &icmp(kind, &quoted))),
                expected,
                "{kind}"
            );
        }
        let quoted = v6(17, &[0; 8]);
        for kind in 0..=u8::MAX {
            let expected = match kind {
                0..128 => Quote::PacketTo([2; 16].into()),
                137 => Quote::Unknown,
                _ => Quote::Nothing,
            };
            assert_eq!(Quote::of(&v6(58, &icmp(kind, &quoted))), expected, "{kind}");
        }
        for other in [v4(17, 0, &icmp(3, &quoted)), v6(17, &icmp(1, &quoted))] {
            assert_eq!(Quote::of(&other), Quote::Nothing);
        }
    }

    #[test]
    fn an_error_whose_quote_cannot_be_read_is_told() {
        let quoted = v4(17, 0, &[0; 8]);
        let error = icmp(3, &quoted);
        for length in 0..8 + 20 {
            let cut = v4(1, 0, &error[..length]);
            assert_eq!(Quote::of(&cut), Quote::Unknown, "{length}");
        }
        // The quote names another version than the error.
        let mut other = v4(1, 0, &icmp(3, &[0; 60]));
        other[28] = 0x65;
        assert_eq!(Quote::of(&other), Quote::Unknown);
        let mut other = v6(58, &icmp(1, &[0; 60]));
        other[48] = 0x45;
        assert_eq!(Quote::of(&other), Quote::Unknown);
        // More fragments follow: the quote may be in another one than the kernel reads.
        assert_eq!(Quote::of(&v4(1, 0x2000, &error)), Quote::Unknown);
        assert_eq!(Quote::of(&v4(1, 3, &error)), Quote::Nothing);
        assert_eq!(Quote::of(&v4(17, 0x2000, &error)), Quote::Nothing);
        for packet in [&[][..], &[0x45; 19], &[0x60; 39], &[0; 60]] {
            assert_eq!(Quote::of(packet), Quote::Unknown);
        }
    }

    #[test]
    fn extension_headers_hide_no_error() {
        let error = icmp(1, &v6(17, &[0; 8]));
        let behind = |headers: usize| {
            let mut contents = Vec::new();
            for left in (0..headers).rev() {
                contents.extend_from_slice(&[if left == 0 { 58 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            contents.extend_from_slice(&error);
            v6(if headers == 0 { 58 } else { 60 }, &contents)
        };
        for headers in 0..=8 {
            let quote = Quote::of(&behind(headers));
            assert_eq!(quote, Quote::PacketTo([2; 16].into()), "{headers}");
        }
        assert_eq!(Quote::of(&behind(9)), Quote::Unknown);
        let fragment = |place: u16, next: u8, contents: &[u8]| {
            let mut all = vec![next, 0, 0, 0, 0, 0, 0, 9];
            all[2..4].copy_from_slice(&place.to_be_bytes());
            all.extend_from_slice(contents);
            v6(44, &all)
        };
        assert_eq!(Quote::of(&fragment(1, 58, &error)), Quote::Unknown);
        assert_eq!(Quote::of(&fragment(8, 58, &error)), Quote::Nothing);
        // A fragment that is the whole packet (RFC 6946), and a chain that goes on in the next one.
        assert_eq!(Quote::of(&fragment(0, 58, &error)), Quote::Unknown);
        assert_eq!(Quote::of(&fragment(1, 60, &[])), Quote::Unknown);
        assert_eq!(Quote::of(&fragment(1, 17, &error)), Quote::Nothing);
    }
}
