//! Which packets belong to a class.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use ropewalk_types::{PacketInfo, WITH_PORTS};

/// Ports from one to another, both included.
pub type Ports = RangeInclusive<u16>;

/// A network, of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its first address.
    pub address: IpAddr,
    /// Prefix length in bits, at most 32 or 128.
    pub prefix: u8,
}

impl Network {
    /// Whether an address of a flow key lies in it. Addresses of IPv4 are those whose upper 96 bits
    /// are zero: those of IPv6 that look like it are not routed (RFC 4291 §2.5.5.1).
    fn contains(&self, address: &[u8; 16]) -> bool {
        let address = u128::from_be_bytes(*address);
        let (own, prefix, ipv4) = match self.address {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()), 96 + u32::from(self.prefix), true),
            IpAddr::V6(ip) => (ip.to_bits(), u32::from(self.prefix), false),
        };
        let differs = (own ^ address).checked_shr(128 - prefix).unwrap_or(0);
        (address >> 32 == 0) == ipv4 && differs == 0
    }
}

/// A packet matches when it does what every list that is not empty says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Differentiated services codepoints, `0..64`.
    pub dscp: Vec<u8>,
    /// IP protocol numbers.
    pub protocols: Vec<u8>,
    /// Source or destination port, of protocols that have ports.
    pub ports: Vec<Ports>,
    /// Source or destination address.
    pub addresses: Vec<Network>,
    /// Most bytes of the inner packet; 0 for any number.
    pub packet_bytes_max: usize,
}

impl Rule {
    /// Whether an inner packet of so many bytes matches.
    #[must_use]
    pub fn matches(&self, info: &PacketInfo, bytes: usize) -> bool {
        let any = |list: &[u8], value| list.is_empty() || list.contains(&value);
        let has = |ports: &Ports| info.flow.ports.iter().any(|port| ports.contains(port));
        // Of an echo request the key has its identifier in place of a port.
        let with_ports = WITH_PORTS.contains(&info.flow.protocol);
        let at = |network: &Network| {
            let ends = [&info.flow.source, &info.flow.destination];
            ends.into_iter().any(|end| network.contains(end))
        };
        any(&self.dscp, info.dscp)
            && any(&self.protocols, info.flow.protocol)
            && (self.ports.is_empty() || with_ports && self.ports.iter().any(has))
            && (self.addresses.is_empty() || self.addresses.iter().any(at))
            && (self.packet_bytes_max == 0 || bytes <= self.packet_bytes_max)
    }
}
