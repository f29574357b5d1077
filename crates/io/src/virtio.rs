//! The header in front of every packet of a TUN interface with `IFF_VNET_HDR`
//! (virtio 1.2 §5.1.6, legacy form in the machine's byte order).

/// Length of the header in bytes.
pub(crate) const VNET_HEADER_LEN: usize = 10;

pub(crate) const NEEDS_CHECKSUM: u8 = 1;

pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCP_V4: u8 = 1;
pub(crate) const GSO_TCP_V6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
/// Set beside a TCP type: CWR belongs to the first segment only (RFC 3168 §6.1.2).
pub(crate) const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

impl VnetHeader {
    pub(crate) fn parse(bytes: &[u8; VNET_HEADER_LEN]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; VNET_HEADER_LEN] {
        let mut bytes = [0; VNET_HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.checksum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.checksum_offset.to_ne_bytes());
        bytes
    }
}
