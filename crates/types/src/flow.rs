//! What the data path needs to know of an inner IP packet: its flow, its DSCP and ECN.
//!
//! [`PacketInfo`] is read once, where a packet enters. Whoever needs one field of a packet that was
//! not read whole, as the egress does, has [`Ecn::of`], [`source_of`] and [`destination_of`].

use crate::checksum;
use core::net::IpAddr;

/// ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable transport.
    #[default]
    NotEct = 0,
    /// ECN-capable, codepoint ECT(1).
    Ect1 = 1,
    /// ECN-capable, codepoint ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// From the two low bits of the traffic class.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The field of an IPv4 or IPv6 packet; `None` when it is neither.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        let second = *packet.get(1)?;
        match packet[0] >> 4 {
            4 => Some(Self::from_bits(second)),
            6 => Some(Self::from_bits(second >> 4)),
            _ => None,
        }
    }
}

/// Sets ECN to CE in an IPv4 or IPv6 header, keeping the IPv4 header checksum right (RFC 1624).
pub fn mark_ce(ip: &mut [u8]) {
    match ip.first().map(|b| b >> 4) {
        Some(4) if ip.len() >= 20 => {
            let old = u16::from_be_bytes([ip[0], ip[1]]);
            ip[1] |= 3;
            let new = u16::from_be_bytes([ip[0], ip[1]]);
            checksum::update(&mut ip[10..12], old, new);
        }
        Some(6) if ip.len() >= 40 => ip[1] |= 0x30,
        _ => {}
    }
}

/// Source address of an IPv4 or IPv6 packet; `None` when it is neither or too short.
#[must_use]
pub fn source_of(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// Destination address of an IPv4 or IPv6 packet; `None` when it is neither or too short.
#[must_use]
pub fn destination_of(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 16, 24)
}

/// The address at offset `v4` or `v6` by the version of the packet.
fn address(packet: &[u8], v4: usize, v6: usize) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(*packet.get(v4..)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*packet.get(v6..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Identity of a flow: addresses, protocol and ports (or ICMP identifier), IPv4 or IPv6.
///
/// Later fragments of a packet carry no ports: all fragments share the key without ports, so
/// that they keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source address; IPv4 in the low four bytes.
    pub source: [u8; 16],
    /// Destination address; IPv4 in the low four bytes.
    pub destination: [u8; 16],
    /// Source and destination port, or ICMP identifier and zero.
    pub ports: [u16; 2],
    /// Upper-layer protocol number.
    pub protocol: u8,
}

impl FlowKey {
    /// The key of the packets in the other direction. That of ICMP has none.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        let [from, to] = self.ports;
        Self {
            source: self.destination,
            destination: self.source,
            ports: [to, from],
            protocol: self.protocol,
        }
    }

    /// A 64-bit hash under `secret`, so that a stranger cannot aim at one bucket.
    #[must_use]
    pub fn hash(&self, secret: u64) -> u64 {
        let word = |bytes: &[u8]| {
            let mut w = [0u8; 8];
            w.copy_from_slice(bytes);
            u64::from_le_bytes(w)
        };
        let ports = (u64::from(self.ports[0]) << 16) | u64::from(self.ports[1]);
        let words = [
            word(&self.source[..8]),
            word(&self.source[8..]),
            word(&self.destination[..8]),
            word(&self.destination[8..]),
            (ports << 8) | u64::from(self.protocol),
        ];
        // Folded 64x64->128 multiplication mixes every input bit into both halves.
        words.iter().fold(secret, |hash, w| {
            let wide = u128::from(hash ^ w ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
            #[expect(clippy::cast_possible_truncation, reason = "folding both halves")]
            let folded = (wide >> 64) as u64 ^ wide as u64;
            folded
        })
    }
}

/// Summary of one inner IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The flow it belongs to.
    pub flow: FlowKey,
    /// Whether it is IPv6.
    pub v6: bool,
    /// Length that the IP header says, in bytes; what follows in the buffer is no part of the packet.
    pub length: usize,
    /// Differentiated services codepoint, 0..=63.
    pub dscp: u8,
    /// ECN field of the inner header.
    pub ecn: Ecn,
    /// Offset of the upper-layer header in bytes; the packet length when there is none.
    pub transport_offset: usize,
    /// Whether this is a fragment (its ports are unknown).
    pub fragment: bool,
}

impl PacketInfo {
    /// Reads an IPv4 or IPv6 packet; `None` when it is truncated or neither.
    ///
    /// IPv6 extension headers are walked up to `EXTENSION_HEADERS_MAX` deep (RFC 8200 §4).
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => parse_v4(packet),
            6 => parse_v6(packet),
            _ => None,
        }
    }
}

impl PacketInfo {
    /// Destination address.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        let octets = self.flow.destination;
        match octets.last_chunk::<4>() {
            Some(last) if !self.v6 => IpAddr::from(*last),
            _ => IpAddr::from(octets),
        }
    }

    /// Whether it is TCP.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        self.flow.protocol == PROTOCOL_TCP
    }

    /// Whether this packet, `ip`, is a TCP segment whose receiver would wait for what came
    /// before: it has data, or opens or ends the connection. Bare acknowledgements do not wait.
    #[must_use]
    pub fn tcp_in_order(&self, ip: &[u8]) -> bool {
        if self.flow.protocol != PROTOCOL_TCP || self.fragment {
            return false;
        }
        let at = self.transport_offset + 12;
        let Some(&[offset, flags]) = ip.get(at..at + 2) else {
            return false;
        };
        //= RFC 9293 §3.1: data offset in words in the high four bits; then SYN, FIN and RST.
        let data_at = self.transport_offset + usize::from(offset >> 4) * 4;
        ip.len() > data_at || flags & 0b0111 != 0
    }
}

/// Extension headers walked before the rest counts as payload.
pub const EXTENSION_HEADERS_MAX: usize = 8;

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
const PROTOCOL_DCCP: u8 = 33;
const PROTOCOL_SCTP: u8 = 132;

/// Protocols whose packets begin with a source and a destination port.
pub const WITH_PORTS: [u8; 4] = [PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_DCCP, PROTOCOL_SCTP];

fn parse_v4(packet: &[u8]) -> Option<PacketInfo> {
    let header = usize::from(packet[0] & 15) * 4;
    if header < 20 || packet.len() < header {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    if total < header || total > packet.len() {
        return None;
    }
    let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
    let mut flow = FlowKey {
        source: [0; 16],
        destination: [0; 16],
        ports: [0; 2],
        protocol: packet[9],
    };
    flow.source[12..].copy_from_slice(&packet[12..16]);
    flow.destination[12..].copy_from_slice(&packet[16..20]);
    if !fragment {
        flow.ports = ports(packet[9], &packet[header..]);
    }
    Some(PacketInfo {
        flow,
        v6: false,
        length: total,
        dscp: packet[1] >> 2,
        ecn: Ecn::from_bits(packet[1]),
        transport_offset: header,
        fragment,
    })
}

fn parse_v6(packet: &[u8]) -> Option<PacketInfo> {
    if packet.len() < 40 {
        return None;
    }
    let payload = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    if payload + 40 > packet.len() {
        return None;
    }
    let Chain {
        next: protocol,
        offset,
        fragment,
        ..
    } = walk_extensions(packet);
    let fragment = fragment.is_some();
    let mut flow = FlowKey {
        source: [0; 16],
        destination: [0; 16],
        ports: [0; 2],
        protocol,
    };
    flow.source.copy_from_slice(&packet[8..24]);
    flow.destination.copy_from_slice(&packet[24..40]);
    if !fragment {
        flow.ports = ports(protocol, packet.get(offset..).unwrap_or(&[]));
    }
    let class = (packet[0] << 4) | (packet[1] >> 4);
    Some(PacketInfo {
        flow,
        v6: true,
        length: payload + 40,
        dscp: class >> 2,
        ecn: Ecn::from_bits(class),
        transport_offset: offset.min(packet.len()),
        fragment,
    })
}

/// The headers of an IPv6 packet before its upper-layer one.
struct Chain {
    /// Protocol of what follows, which is an extension header where the walk ended early.
    next: u8,
    /// Where it begins; the packet length when it is cut off.
    offset: usize,
    /// Where the data of the last fragment header that was passed begin, in units of 8 bytes.
    fragment: Option<u16>,
}

/// Hop-by-hop 0, routing 43, fragment 44, authentication 51, destination options 60.
const fn is_extension(header: u8) -> bool {
    matches!(header, 0 | 43 | 44 | 51 | 60)
}

fn walk_extensions(packet: &[u8]) -> Chain {
    let (mut next, mut offset, mut fragment) = (packet[6], 40, None);
    for _ in 0..EXTENSION_HEADERS_MAX {
        if !is_extension(next) {
            break;
        }
        let Some(header) = packet.get(offset..offset + 8) else {
            return Chain {
                next,
                offset: packet.len(),
                fragment,
            };
        };
        let length = match next {
            44 => 8,
            51 => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if next == 44 {
            fragment = Some(u16::from_be_bytes([header[2], header[3]]) >> 3);
        }
        next = header[0];
        offset += length;
    }
    Chain {
        next,
        offset,
        fragment,
    }
}

/// Where the upper-layer header of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    /// The packet is no fragment.
    Whole { protocol: u8, offset: usize },
    /// It is the first fragment.
    FirstFragment { protocol: u8, offset: usize },
    /// It is a later fragment, which has none.
    LaterFragment,
    /// The packet is neither IPv4 nor IPv6, its headers are cut off, or it has too many.
    Unknown,
}

/// Finds the upper-layer header of a packet that may end behind its headers.
pub(crate) fn upper_of(packet: &[u8]) -> Upper {
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => {
            let (protocol, offset) = (packet[9], usize::from(packet[0] & 15) * 4);
            let word = u16::from_be_bytes([packet[6], packet[7]]);
            match (word & 0x1fff, word & 0x2000) {
                _ if offset < 20 => Upper::Unknown,
                (0, 0) => Upper::Whole { protocol, offset },
                (0, _) => Upper::FirstFragment { protocol, offset },
                _ => Upper::LaterFragment,
            }
        }
        Some(6) if packet.len() >= 40 => {
            let Chain {
                next: protocol,
                offset,
                fragment,
            } = walk_extensions(packet);
            match fragment {
                Some(1..) => Upper::LaterFragment,
                _ if is_extension(protocol) => Upper::Unknown,
                Some(0) => Upper::FirstFragment { protocol, offset },
                None => Upper::Whole { protocol, offset },
            }
        }
        _ => Upper::Unknown,
    }
}

fn ports(protocol: u8, transport: &[u8]) -> [u16; 2] {
    let pair = |at: usize| {
        transport
            .get(at..at + 2)
            .map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
    };
    match protocol {
        number if WITH_PORTS.contains(&number) => [pair(0), pair(2)],
        // Echo request and reply carry an identifier; other types hash to the address pair.
        PROTOCOL_ICMP if matches!(transport.first(), Some(0 | 8)) => [pair(4), 0],
        PROTOCOL_ICMPV6 if matches!(transport.first(), Some(128 | 129)) => [pair(4), 0],
        _ => [0; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp_v4(source_port: u16) -> Vec<u8> {
        let mut p = vec![0u8; 28];
        p[0] = 0x45;
        p[1] = 0xb9; // DSCP 46, ECT(1)
        p[3] = 28;
        p[9] = 17;
        p[12..16].copy_from_slice(&[10, 0, 0, 1]);
        p[16..20].copy_from_slice(&[10, 0, 0, 2]);
        p[20..22].copy_from_slice(&source_port.to_be_bytes());
        p[22..24].copy_from_slice(&53u16.to_be_bytes());
        p
    }

    #[test]
    fn reads_ports_dscp_and_ecn_of_ipv4() {
        let info = PacketInfo::parse(&udp_v4(4000)).expect("valid");
        assert_eq!(info.flow.ports, [4000, 53]);
        assert_eq!(
            (info.dscp, info.ecn, info.transport_offset),
            (46, Ecn::Ect1, 20)
        );
        assert!(!info.fragment);
    }

    #[test]
    fn single_fields_are_those_of_the_whole_packet() {
        let mut v6 = vec![0u8; 48];
        (v6[0], v6[1], v6[5], v6[6]) = (0x6b, 0x20, 8, 17);
        v6[8..24].fill(0x11);
        v6[24..40].fill(0x22);
        for (packet, length) in [(udp_v4(4000), 28), (v6, 48)] {
            let with_rest = [&packet[..], &[0; 5]].concat();
            let info = PacketInfo::parse(&with_rest).expect("valid");
            assert_eq!((info.length, info.v6), (length, length == 48));
            assert_eq!(Ecn::of(&packet), Some(info.ecn));
            assert_eq!(destination_of(&packet), Some(info.destination()));
            assert_ne!(source_of(&packet), destination_of(&packet));
        }
        assert_eq!(source_of(&[0x45; 15]), None);
        assert_eq!(destination_of(&[0x60; 39]), None);
        assert_eq!((Ecn::of(&[]), Ecn::of(&[0x00, 3])), (None, None));
    }

    #[test]
    fn fragments_of_one_packet_share_a_flow() {
        let (mut first, mut later) = (udp_v4(4000), udp_v4(0x4141));
        first[6] = 0x20; // more fragments
        later[7] = 3; // offset
        let (first, later) = (PacketInfo::parse(&first), PacketInfo::parse(&later));
        assert_eq!(first.expect("valid").flow, later.expect("valid").flow);
    }

    #[test]
    fn walks_ipv6_extension_headers() {
        let mut p = vec![0u8; 40 + 8 + 8];
        p[0] = 0x60;
        p[5] = 16;
        p[6] = 60; // destination options, then UDP
        p[40] = 17;
        p[48..50].copy_from_slice(&9u16.to_be_bytes());
        let info = PacketInfo::parse(&p).expect("valid");
        assert_eq!(
            (
                info.flow.protocol,
                info.flow.ports[0],
                info.transport_offset
            ),
            (17, 9, 48)
        );
    }

    #[test]
    fn truncated_and_foreign_packets_are_refused() {
        assert_eq!(PacketInfo::parse(&[]), None);
        assert_eq!(PacketInfo::parse(&[0x45; 19]), None);
        assert_eq!(PacketInfo::parse(&[0x60; 39]), None);
        assert_eq!(PacketInfo::parse(&[0x00; 64]), None);
        let mut lies = udp_v4(1);
        lies[3] = 200;
        assert_eq!(PacketInfo::parse(&lies), None);
    }

    #[test]
    fn flows_spread_over_buckets() {
        let buckets: std::collections::BTreeSet<u64> = (0..256)
            .map(|port| {
                let info = PacketInfo::parse(&udp_v4(port)).expect("valid");
                info.flow.hash(99) % 4096
            })
            .collect();
        assert!(buckets.len() > 235, "{}", buckets.len());
    }
}
