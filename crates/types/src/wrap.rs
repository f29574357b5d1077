//! IPv4 packets in IPv4 packets (RFC 2003), as hubs pass packets for shared addresses to each other.
//!
//! A packet that is wrapped has no options and is no fragment. Its source is the destination of the packet inside: a
//! shared address, from which nobody sends this protocol otherwise. So a packet says of itself that it is wrapped.

use std::net::{IpAddr, Ipv4Addr};

use crate::checksum;
use crate::flow::{Ecn, PacketInfo, mark_ce};

/// Bytes that wrapping puts in front of a packet: an IPv4 header without options.
pub const WRAP_BYTES: usize = 20;
/// Protocol number of what is wrapped (RFC 2003 §3.1).
pub const PROTOCOL_IPV4: u8 = 4;
/// Routers that a wrapped packet passes before it is dropped. More: hubs may be farther apart, a packet that routers
/// send around in a circle goes around more often.
const TTL: u8 = 16;
/// Nobody may cut it: the hub that unwraps puts no pieces together.
const DONT_FRAGMENT: u16 = 0x4000;

/// What wraps an IPv4 packet, of which `info` is the summary, on its way to `to`. `None` for IPv6 and for a packet that
/// is too long for it.
///
/// Source: RFC 2003 §3.1. The marks of congestion are those of the packet (RFC 6040 §4.1).
#[must_use]
pub fn wrapping(packet: &[u8], info: &PacketInfo, to: Ipv4Addr) -> Option<[u8; WRAP_BYTES]> {
    let IpAddr::V4(from) = info.destination() else {
        return None;
    };
    let length = u16::try_from(info.length + WRAP_BYTES).ok()?;
    let mut header = [0; WRAP_BYTES];
    (header[0], header[1]) = (0x45, *packet.get(1)?);
    header[2..4].copy_from_slice(&length.to_be_bytes());
    // What is never cut needs no identification (RFC 6864 §4.1).
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    (header[8], header[9]) = (TTL, PROTOCOL_IPV4);
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum = !checksum::fold(checksum::add(0, &header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(header)
}

/// The summary of the packet in a wrapped one, of which `outer` is the summary. It begins after [`WRAP_BYTES`], and has
/// the mark of congestion that the wrapped one has got under way (RFC 6040 §4.2).
///
/// `None` for what [`wrapping`] does not make: options, fragments, another length, another version of IP inside,
/// another source than the destination inside; and for a mark of congestion that the packet inside cannot carry.
#[must_use]
pub fn unwrap(packet: &mut [u8], outer: &PacketInfo) -> Option<PacketInfo> {
    if outer.v6
        || outer.flow.protocol != PROTOCOL_IPV4
        || outer.transport_offset != WRAP_BYTES
        || outer.fragment
    {
        return None;
    }
    let inner = packet.get_mut(WRAP_BYTES..outer.length)?;
    let mut info = PacketInfo::parse(inner)?;
    if info.v6
        || info.length != inner.len()
        || info.flow.destination != outer.flow.source
        || info.flow.source == info.flow.destination
    {
        return None;
    }
    if outer.ecn == Ecn::Ce {
        if info.ecn == Ecn::NotEct {
            return None;
        }
        mark_ce(inner);
        info.ecn = Ecn::Ce;
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    const SERVER: [u8; 4] = [192, 0, 2, 1];
    const SHARED: [u8; 4] = [203, 0, 113, 7];
    const SITE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

    /// A datagram of UDP with so many bytes after its headers, and these DSCP and ECN.
    fn datagram(contents: usize, class: u8) -> Vec<u8> {
        let mut packet = vec![0; 28 + contents];
        let length = u16::try_from(packet.len()).expect("short");
        (packet[0], packet[1], packet[8], packet[9]) = (0x45, class, 61, 17);
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[12..16].copy_from_slice(&SERVER);
        packet[16..20].copy_from_slice(&SHARED);
        packet[22..24].copy_from_slice(&2_500_u16.to_be_bytes());
        packet
    }

    fn info(packet: &[u8]) -> PacketInfo {
        PacketInfo::parse(packet).expect("whole")
    }

    fn wrapped(packet: &[u8]) -> Vec<u8> {
        let header = wrapping(packet, &info(packet), SITE).expect("short enough");
        [&header[..], packet].concat()
    }

    fn unwrapped(packet: &mut [u8]) -> Option<PacketInfo> {
        let outer = info(packet);
        unwrap(packet, &outer)
    }

    #[test]
    fn a_packet_is_wrapped_for_the_site_and_comes_out_as_it_was() {
        let packet = datagram(100, 0xb9);
        let mut outer = wrapped(&packet);
        let seen = info(&outer);
        assert_eq!(outer.len(), packet.len() + WRAP_BYTES);
        assert_eq!(
            (seen.length, seen.flow.protocol),
            (outer.len(), PROTOCOL_IPV4)
        );
        assert_eq!(seen.destination(), IpAddr::V4(SITE));
        assert_eq!(outer[12..16], SHARED);
        assert_eq!(
            (outer[1], outer[8], outer[6]),
            (0xb9, TTL, 0x40),
            "class, TTL, no fragments"
        );
        let sum = checksum::fold(checksum::add(0, &outer[..WRAP_BYTES]));
        assert_eq!(sum, 0xffff, "the checksum of the header");
        assert_eq!(unwrapped(&mut outer), Some(info(&packet)));
        assert_eq!(outer[WRAP_BYTES..], packet);
    }

    #[test]
    fn what_does_not_fit_or_is_ipv6_is_not_wrapped() {
        let packet = datagram(65_515 - 28, 0);
        assert!(wrapping(&packet, &info(&packet), SITE).is_some());
        let packet = datagram(65_516 - 28, 0);
        assert_eq!(wrapping(&packet, &info(&packet), SITE), None);
        let mut v6 = [0; 40];
        v6[0] = 0x60;
        assert_eq!(wrapping(&v6, &info(&v6), SITE), None);
    }

    #[test]
    fn congestion_on_the_way_is_kept_or_drops_what_cannot_tell() {
        let (not_ect, ect0, ce) = (0, 2, 3);
        for (inside, outside, out) in [
            (not_ect, not_ect, Some(Ecn::NotEct)),
            (not_ect, ce, None),
            (ect0, ect0, Some(Ecn::Ect0)),
            (ect0, ce, Some(Ecn::Ce)),
            (ce, ce, Some(Ecn::Ce)),
            (ce, ect0, Some(Ecn::Ce)),
        ] {
            let mut packet = wrapped(&datagram(0, inside));
            packet[1] = outside;
            let ecn = unwrapped(&mut packet).map(|info| info.ecn);
            assert_eq!(ecn, out, "{inside} in {outside}");
            if let Some(ecn) = out {
                assert_eq!(Ecn::of(&packet[WRAP_BYTES..]), Some(ecn));
            }
        }
    }

    #[test]
    fn what_no_hub_makes_is_not_unwrapped() {
        type Change = fn(&mut Vec<u8>);
        let good = wrapped(&datagram(40, 0));
        let changed = |change: Change| {
            let mut packet = good.clone();
            change(&mut packet);
            unwrapped(&mut packet)
        };
        let bad: [(&str, Change); 13] = [
            ("another protocol", |p| p[9] = 17),
            ("options", |p| {
                p[0] = 0x46;
                p.splice(20..20, [1; 4]);
                p[3] += 4;
            }),
            ("a first fragment", |p| p[6] = 0x20),
            ("a later fragment", |p| p[7] = 1),
            ("a header only", |p| p[3] = 20),
            ("cut inside the header", |p| p[3] = 20 + 19),
            ("cut behind the header", |p| p[3] -= 1),
            ("more than a packet", |p| {
                p.push(0);
                p[3] += 1;
            }),
            ("IPv6 inside", |p| p[20] = 0x60),
            ("no IP inside", |p| p[20] = 0),
            ("a header inside that is too short", |p| p[20] = 0x44),
            ("the source of a stranger", |p| p[12] = 198),
            ("a shared address that sends to itself", |p| {
                p.copy_within(36..40, 32);
            }),
        ];
        assert!(changed(|_| {}).is_some());
        for (what, change) in bad {
            assert_eq!(changed(change), None, "{what}");
        }
    }

    #[test]
    fn nothing_in_a_packet_makes_it_panic() {
        let mut random = Random::new(7);
        for _ in 0..200_000 {
            let mut packet = wrapped(&datagram(random.next_u64() as usize % 30, 2));
            for _ in 0..1 + random.next_u64() % 4 {
                let at = random.next_u64() as usize % packet.len().min(48);
                packet[at] = random.next_u64() as u8;
            }
            packet.truncate(1 + random.next_u64() as usize % packet.len());
            let Some(outer) = PacketInfo::parse(&packet) else {
                continue;
            };
            if let Some(inner) = unwrap(&mut packet, &outer) {
                assert_eq!(WRAP_BYTES + inner.length, outer.length);
                assert_eq!(inner.flow.destination, outer.flow.source);
            }
        }
    }
}
