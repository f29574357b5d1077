//! Which packets belong to a class.

use core::ops::RangeInclusive;
use ropewalk_types::PacketInfo;

/// Ports from one to another, both included.
pub type Ports = RangeInclusive<u16>;

/// A packet matches when it does what every list that is not empty says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Differentiated services codepoints, `0..64`.
    pub dscp: Vec<u8>,
    /// IP protocol numbers.
    pub protocols: Vec<u8>,
    /// Source or destination port.
    pub ports: Vec<Ports>,
    /// Most bytes of the inner packet; 0 for any number.
    pub packet_bytes_max: usize,
}

impl Rule {
    /// Whether an inner packet of so many bytes matches.
    #[must_use]
    pub fn matches(&self, info: &PacketInfo, bytes: usize) -> bool {
        let any = |list: &[u8], value| list.is_empty() || list.contains(&value);
        let has = |ports: &Ports| info.flow.ports.iter().any(|port| ports.contains(port));
        any(&self.dscp, info.dscp)
            && any(&self.protocols, info.flow.protocol)
            && (self.ports.is_empty() || self.ports.iter().any(has))
            && (self.packet_bytes_max == 0 || bytes <= self.packet_bytes_max)
    }
}
