//! Headers of what is written to a TUN interface: virtio header and a copy of the packet's own
//! headers, with lengths and checksum as the kernel expects them. Payloads are not touched.

use crate::InnerPacket;
use crate::coalesce::Group;
use crate::headers::{self, PLAIN_HEADER_MAX, Plain};
use crate::virtio::{
    GSO_TCP_V4, GSO_TCP_V6, GSO_UDP_L4, NEEDS_CHECKSUM, VNET_HEADER_LEN, VnetHeader,
};

/// Headers of a single packet that came with a partial checksum. The kernel completes it when
/// `offload` is set, otherwise it is complete here.
pub(crate) fn completed(packet: &InnerPacket, plain: Plain, offload: bool) -> Scratch {
    let mut scratch = Scratch::new(&packet.front()[..plain.header_len]);
    if offload {
        plain.set_pseudo_checksum(scratch.header(), packet.len());
        scratch.vnet(checksum_header(plain));
    } else {
        plain.set_full_checksum(scratch.header(), packet.payload(plain.header_len));
    }
    scratch
}

/// Headers of the super packet that `group`, which begins with `first`, becomes.
pub(crate) fn super_packet(first: &InnerPacket, group: &Group, plain: Plain) -> Scratch {
    let mut scratch = Scratch::new(&first.front()[..plain.header_len]);
    let header = scratch.header();
    plain.set_length(header, group.total);
    if group.push {
        header[plain.l4 + 13] |= headers::FLAG_PSH;
    }
    plain.set_pseudo_checksum(header, group.total);
    scratch.vnet(VnetHeader {
        gso_type: match (plain.tcp, plain.v6) {
            (true, false) => GSO_TCP_V4,
            (true, true) => GSO_TCP_V6,
            (false, _) => GSO_UDP_L4,
        },
        gso_size: headers::low16(first.len() - plain.header_len),
        ..checksum_header(plain)
    });
    scratch
}

/// Virtio header of a packet whose checksum the kernel completes.
fn checksum_header(plain: Plain) -> VnetHeader {
    VnetHeader {
        flags: NEEDS_CHECKSUM,
        header_len: headers::low16(plain.header_len),
        checksum_start: headers::low16(plain.l4),
        checksum_offset: headers::low16(plain.checksum_offset()),
        ..VnetHeader::default()
    }
}

/// Copy of the headers of a packet with room for the virtio header in front.
pub(crate) struct Scratch {
    bytes: [u8; VNET_HEADER_LEN + PLAIN_HEADER_MAX],
    end: usize,
}

impl Scratch {
    fn new(header: &[u8]) -> Self {
        let mut bytes = [0; VNET_HEADER_LEN + PLAIN_HEADER_MAX];
        let end = VNET_HEADER_LEN + header.len();
        bytes[VNET_HEADER_LEN..end].copy_from_slice(header);
        Self { bytes, end }
    }

    fn header(&mut self) -> &mut [u8] {
        &mut self.bytes[VNET_HEADER_LEN..self.end]
    }

    fn vnet(&mut self, header: VnetHeader) {
        self.bytes[..VNET_HEADER_LEN].copy_from_slice(&header.to_bytes());
    }

    /// The headers, with the virtio header in front if asked for.
    pub(crate) fn bytes(&self, vnet: bool) -> &[u8] {
        &self.bytes[if vnet { 0 } else { VNET_HEADER_LEN }..self.end]
    }
}
