//! Inner packets that are meant for one link only.

use std::net::IpAddr;

use ropewalk_types::{destination_of, source_of};

/// Whether an IP packet is meant for the link it was sent on only.
pub(super) fn is_link_local(packet: &[u8]) -> bool {
    let local = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    };
    let addresses = [source_of(packet), destination_of(packet)];
    addresses.into_iter().flatten().any(local)
}
