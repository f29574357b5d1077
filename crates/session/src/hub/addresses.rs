//! The addresses in inner packets: which site a packet is for, and whether a site may send it.

use std::net::IpAddr;

/// Whether an IP packet is meant for the link it was sent on only.
pub(super) fn is_link_local(packet: &[u8]) -> bool {
    let local = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    };
    [true, false]
        .into_iter()
        .any(|source| address(packet, source).is_some_and(local))
}

/// Source or destination address of an IP packet.
pub(super) fn address(packet: &[u8], source: bool) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let at = if source { 12 } else { 16 };
            let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        6 => {
            let at = if source { 8 } else { 24 };
            let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}
