//! IPv4 addresses that several hosts share, each with a block of ports of its own (RFC 7597).
//!
//! A packet of a shared address belongs to whoever has the port. An ICMP query has an identifier in the place of the
//! port. An ICMP error belongs to the sender of the packet that it quotes (RFC 7597 §8.2).

use std::net::{IpAddr, Ipv4Addr};

use crate::flow::source_of;

/// The ports of a shared address that belong to one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortBlock {
    /// The shared address.
    pub address: Ipv4Addr,
    /// First port of the block, from 1.
    pub first: u16,
    /// Last port of the block, not below `first`.
    pub last: u16,
}

impl PortBlock {
    /// A block; `None` when it has no ports or port 0.
    #[must_use]
    pub const fn new(address: Ipv4Addr, first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last {
            return None;
        }
        Some(Self {
            address,
            first,
            last,
        })
    }

    /// Whether a port of the shared address belongs to the block.
    #[must_use]
    pub const fn has(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether the two blocks have a port in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.address == other.address && self.first <= other.last && other.first <= self.last
    }

    /// Whether an IPv4 packet comes from the block. `front` is the packet, or as much of it as has all headers. `false`
    /// for later fragments, which have no ports.
    #[must_use]
    pub fn sends(&self, front: &[u8]) -> bool {
        source_of(front) == Some(IpAddr::V4(self.address))
            && port_of_sender(front).is_some_and(|port| self.has(port))
    }
}

/// Reads what [`PortBlock`]'s `Display` writes, such as `203.0.113.7:1024-2031`.
impl std::str::FromStr for PortBlock {
    type Err = NotABlock;

    fn from_str(text: &str) -> Result<Self, NotABlock> {
        let parts = || {
            let (address, ports) = text.split_once(':')?;
            let (first, last) = ports.split_once('-')?;
            // Ports as `Display` writes them: the standard library takes a `+`, too.
            let port = |text: &str| {
                let number: u16 = text.parse().ok()?;
                (number.to_string() == text).then_some(number)
            };
            Self::new(address.parse().ok()?, port(first)?, port(last)?)
        };
        parts().ok_or(NotABlock)
    }
}

/// Why a text is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotABlock;

impl std::fmt::Display for NotABlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not an IPv4 address with the first and the last of its ports, from 1")
    }
}

impl std::error::Error for NotABlock {}

impl std::fmt::Display for PortBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}-{}", self.address, self.first, self.last)
    }
}

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// ICMP errors quote a packet after their header (RFC 792).
const ERRORS: [u8; 3] = [3, 11, 12];
const ICMP_HEADER: usize = 8;

/// The port by which the receiver of an IPv4 packet to a shared address is found. `packet` may end behind its headers.
/// `None` for all fragments of a packet but the first ([`fragment_of`]), for other protocols than TCP, UDP and ICMP,
/// and for ICMP that nobody behind the address has caused.
#[must_use]
pub fn port_of_receiver(packet: &[u8]) -> Option<u16> {
    port(packet, 1, ECHO_REPLY)
}

/// The port by which the sender of an IPv4 packet from a shared address is known; `None` as for
/// [`port_of_receiver`].
#[must_use]
pub fn port_of_sender(packet: &[u8]) -> Option<u16> {
    port(packet, 0, ECHO_REQUEST)
}

/// `end` is the place of the port: 0 for the source, 1 for the destination. `query` is the ICMP query with an
/// identifier of that end.
fn port(packet: &[u8], end: usize, query: u8) -> Option<u16> {
    let (protocol, transport) = first_transport(packet)?;
    match protocol {
        PROTOCOL_TCP | PROTOCOL_UDP => read(transport, end * 2),
        PROTOCOL_ICMP => match *transport.first()? {
            kind if kind == query => read(transport, 4),
            // The quoted packet went the other way, and its later part may be missing.
            kind if ERRORS.contains(&kind) => quoted_port(transport.get(ICMP_HEADER..)?, 1 - end),
            _ => None,
        },
        _ => None,
    }
}

/// The protocol of an IPv4 packet, and what is there behind its header. `None` for later fragments.
fn first_transport(packet: &[u8]) -> Option<(u8, &[u8])> {
    let first = *packet.first()?;
    let header = usize::from(first & 15) * 4;
    let end = usize::from(read(packet, 2)?).min(packet.len());
    if first >> 4 != 4 || header < 20 || fragment_offset(packet) != 0 {
        return None;
    }
    Some((*packet.get(9)?, packet.get(header..end)?))
}

/// The port or the identifier of a packet that an ICMP error quotes, of which only the beginning is there.
fn quoted_port(packet: &[u8], end: usize) -> Option<u16> {
    let first = *packet.first()?;
    let header = usize::from(first & 15) * 4;
    // The length is that of the whole packet, of which less is quoted.
    if first >> 4 != 4 || header < 20 || fragment_offset(packet) != 0 {
        return None;
    }
    let transport = packet.get(header..)?;
    match packet[9] {
        PROTOCOL_TCP | PROTOCOL_UDP => read(transport, end * 2),
        PROTOCOL_ICMP => {
            let query = if end == 0 { ECHO_REQUEST } else { ECHO_REPLY };
            (*transport.first()? == query).then(|| read(transport, 4))?
        }
        _ => None,
    }
}

/// What the fragments of an IPv4 packet have in common (RFC 791 §3.2): the words of identification, protocol, source
/// and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKey([u8; 11]);

/// The packet that an IPv4 packet is a fragment of, and whether the fragment is a later one, which has no ports. `None`
/// for what is whole, or not IPv4.
#[must_use]
pub fn fragment_of(packet: &[u8]) -> Option<(FragmentKey, bool)> {
    // More fragments follow, or some came before.
    if packet.first()? >> 4 != 4 || read(packet, 6)? & 0x3fff == 0 {
        return None;
    }
    let mut key = [0; 11];
    key[..2].copy_from_slice(packet.get(4..6)?);
    key[2] = *packet.get(9)?;
    key[3..].copy_from_slice(packet.get(12..20)?);
    Some((FragmentKey(key), fragment_offset(packet) != 0))
}

/// How many bytes of its packet a fragment of IPv4 has, and how many the packet has, which the last fragment says. Headers
/// are not counted.
#[must_use]
pub fn fragment_bytes(packet: &[u8]) -> Option<(u32, Option<u32>)> {
    let header = u32::from(*packet.first()? & 15) * 4;
    let bytes = u32::from(read(packet, 2)?).saturating_sub(header);
    let is_last = read(packet, 6)? & 0x2000 == 0;
    let end = u32::from(fragment_offset(packet)) * 8 + bytes;
    Some((bytes, is_last.then_some(end)))
}

/// Where the data of a fragment begin, in units of 8 bytes; 0 of a packet that is whole.
fn fragment_offset(packet: &[u8]) -> u16 {
    read(packet, 6).unwrap_or(0) & 0x1fff
}

fn read(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
    const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    /// An IPv4 packet with these bytes after a header of `words` words of four bytes.
    fn ip(words: u8, protocol: u8, [from, to]: [Ipv4Addr; 2], contents: &[u8]) -> Vec<u8> {
        let header = usize::from(words) * 4;
        let mut packet = vec![0; header];
        packet[0] = 0x40 | words;
        let length = u16::try_from(header + contents.len()).expect("short");
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&from.octets());
        packet[16..20].copy_from_slice(&to.octets());
        packet.extend_from_slice(contents);
        packet
    }

    fn ports(from: u16, to: u16) -> Vec<u8> {
        let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        bytes.resize(20, 0);
        bytes
    }

    fn icmp(kind: u8, identifier: u16, quoted: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend_from_slice(&identifier.to_be_bytes());
        bytes.extend_from_slice(&[0, 1]);
        bytes.extend_from_slice(quoted);
        bytes
    }

    fn found(packet: &[u8]) -> [Option<u16>; 2] {
        [port_of_sender(packet), port_of_receiver(packet)]
    }

    #[test]
    fn ports_of_both_ends_are_found_behind_options_too() {
        for (protocol, words) in [(PROTOCOL_TCP, 5), (PROTOCOL_UDP, 5), (PROTOCOL_TCP, 15)] {
            let packet = ip(words, protocol, [HERE, THERE], &ports(5_000, 443));
            assert_eq!(found(&packet), [Some(5_000), Some(443)]);
        }
    }

    #[test]
    fn an_echo_belongs_to_who_asked() {
        let request = ip(5, PROTOCOL_ICMP, [HERE, THERE], &icmp(8, 77, b"data"));
        let reply = ip(5, PROTOCOL_ICMP, [THERE, HERE], &icmp(0, 77, b"data"));
        assert_eq!(found(&request), [Some(77), None]);
        assert_eq!(found(&reply), [None, Some(77)]);
        let redirect = ip(5, PROTOCOL_ICMP, [THERE, HERE], &icmp(5, 77, &request));
        assert_eq!(found(&redirect), [None, None]);
    }

    #[test]
    fn an_error_belongs_to_the_sender_of_what_it_quotes() {
        let sent = ip(6, PROTOCOL_UDP, [HERE, THERE], &ports(5_000, 53));
        let received = ip(5, PROTOCOL_TCP, [THERE, HERE], &ports(443, 5_001));
        let asked = ip(5, PROTOCOL_ICMP, [HERE, THERE], &icmp(8, 77, b""));
        for kind in ERRORS {
            // Eight bytes of what follows the quoted header are enough (RFC 792).
            let error = |ends, quoted: &[u8]| ip(5, PROTOCOL_ICMP, ends, &icmp(kind, 0, quoted));
            assert_eq!(found(&error([THERE, HERE], &sent[..32]))[1], Some(5_000));
            assert_eq!(
                found(&error([HERE, THERE], &received[..28]))[0],
                Some(5_001)
            );
            assert_eq!(found(&error([THERE, HERE], &asked[..28]))[1], Some(77));
            assert_eq!(
                found(&error([THERE, HERE], &sent[..24]))[1],
                None,
                "cut off"
            );
            let mut later = sent.clone();
            later[7] = 1;
            assert_eq!(found(&error([THERE, HERE], &later))[1], None, "no ports");
        }
    }

    #[test]
    fn what_has_no_port_belongs_to_nobody() {
        let mut fragment = ip(5, PROTOCOL_UDP, [HERE, THERE], &ports(5_000, 53));
        fragment[7] = 1;
        assert_eq!(found(&fragment), [None, None]);
        let tunnel = ip(5, 47, [HERE, THERE], &ports(5_000, 53));
        assert_eq!(found(&tunnel), [None, None]);
        let short = ip(5, PROTOCOL_UDP, [HERE, THERE], &[19]);
        assert_eq!(found(&short), [None, None]);
    }

    #[test]
    fn the_first_fragment_has_the_ports_and_those_after_it_are_of_the_same_packet() {
        let mut first = ip(5, PROTOCOL_UDP, [HERE, THERE], &ports(5_000, 53));
        (first[5], first[6]) = (7, 0x20);
        let mut later = first.clone();
        (later[6], later[7]) = (0, 3);
        let mut other = later.clone();
        other[5] = 8;
        assert_eq!(found(&first), [Some(5_000), Some(53)]);
        assert_eq!(found(&later), [None, None]);
        let (key, is_later) = fragment_of(&first).expect("a fragment");
        assert!(!is_later);
        assert_eq!(fragment_of(&later), Some((key, true)));
        assert_ne!(fragment_of(&other), Some((key, true)));
        first[6] = 0x40;
        assert_eq!(fragment_of(&first), None, "whole, and not to be cut");
    }

    #[test]
    fn a_block_reads_back_and_nothing_else_is_one() {
        let block = PortBlock::new(HERE, 1_024, 2_031).expect("a block");
        assert_eq!(block.to_string().parse(), Ok(block));
        for text in [
            "",
            "203.0.113.7",
            "203.0.113.7:1024",
            "203.0.113.7:2031-1024",
            "203.0.113.7:0-9",
            "203.0.113.7:1024-65536",
            "203.0.113.7:+1024-2031",
            "203.0.113.7:01024-2031",
            "[::1]:1024-2031",
        ] {
            assert_eq!(text.parse::<PortBlock>(), Err(NotABlock), "{text}");
        }
    }

    #[test]
    fn a_block_sends_from_its_ports_of_its_address_only() {
        let block = PortBlock {
            address: HERE,
            first: 5_000,
            last: 5_999,
        };
        let sends = |from, port| {
            let packet = ip(5, PROTOCOL_TCP, [from, THERE], &ports(port, 443));
            let headers = &packet[..40];
            assert_eq!(block.sends(headers), block.sends(&packet));
            block.sends(&packet)
        };
        assert_eq!(
            [4_999, 5_000, 5_999, 6_000].map(|port| sends(HERE, port)),
            [false, true, true, false]
        );
        assert!(!sends(THERE, 5_000));
        let next = PortBlock {
            first: 5_999,
            last: 6_500,
            ..block
        };
        assert!(block.overlaps(&next) && next.overlaps(&block));
        let elsewhere = PortBlock {
            address: THERE,
            ..block
        };
        assert!(!block.overlaps(&elsewhere));
        assert_eq!(block.to_string(), "203.0.113.7:5000-5999");
    }
}
