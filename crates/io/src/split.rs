//! Cuts what one read of a TUN interface gives into inner packets of at most the MTU.
//!
//! TCP super packets as Linux makes them (RFC 9293 §3.7 for the fields, RFC 3168 §6.1.2 for CWR)
//! and UDP super packets (`UDP_SEGMENT`). The checksums of plain packets are left partial: the
//! tunnel protects their integrity and the exit completes them. Those of other packets are
//! completed here, because the exit could not tell where they stand.

use crate::checksum;
use crate::headers::{
    self, FLAG_CWR, FLAG_FIN, FLAG_PSH, Plain, TCP, UDP, be16, be32, low16, put16,
};
use crate::pool::Pool;
use crate::virtio::{
    GSO_ECN, GSO_NONE, GSO_TCP_V4, GSO_TCP_V6, GSO_UDP_L4, NEEDS_CHECKSUM, VnetHeader,
};
use crate::{HEADROOM, TunPacket};

/// The virtio header and the packet behind it contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadSuperPacket;

/// Appends the packets that `packet` holds to `out`; returns how many.
pub(crate) fn split(
    vnet: &VnetHeader,
    packet: &mut [u8],
    pool: &mut Pool,
    out: &mut Vec<TunPacket>,
) -> Result<usize, BadSuperPacket> {
    if vnet.gso_type & !GSO_ECN == GSO_NONE {
        let checksum_partial = vnet.flags & NEEDS_CHECKSUM != 0 && leave_partial(vnet, packet)?;
        out.push(TunPacket {
            data: pool.packet(&[], packet),
            checksum_partial,
        });
        return Ok(1);
    }
    let shape = Shape::parse(vnet, packet)?;
    let before = out.len();
    let (header, payload) = packet.split_at(shape.header_len);
    let count = payload.len().div_ceil(shape.segment).max(1);
    for index in 0..count {
        let start = index * shape.segment;
        let end = payload.len().min(start + shape.segment);
        let mut data = pool.packet(header, &payload[start..end]);
        let place = Place {
            index,
            last: index + 1 == count,
            start,
        };
        shape.patch(&mut data[HEADROOM..], packet, place);
        out.push(TunPacket {
            data,
            checksum_partial: shape.plain,
        });
    }
    Ok(out.len() - before)
}

/// Whether the checksum of a packet that is not segmented may stay partial; otherwise completes
/// it in place.
fn leave_partial(vnet: &VnetHeader, packet: &mut [u8]) -> Result<bool, BadSuperPacket> {
    let start = usize::from(vnet.checksum_start);
    let field = start + usize::from(vnet.checksum_offset);
    if let Some(plain) = Plain::parse(packet, packet.len())
        && start == plain.l4
        && usize::from(vnet.checksum_offset) == plain.checksum_offset()
    {
        return Ok(true);
    }
    if field + 2 > packet.len() {
        return Err(BadSuperPacket);
    }
    complete(packet, start, field);
    Ok(false)
}

/// Completes a checksum whose field holds the sum of the pseudo-header.
fn complete(packet: &mut [u8], start: usize, field: usize) {
    let sum = !checksum::fold(checksum::add(0, &packet[start..]));
    // As CHECKSUM_PARTIAL in Linux: zero would mean "none" for UDP and equals all ones otherwise.
    put16(packet, field, if sum == 0 { 0xffff } else { sum });
}

/// Where a segment stands in its super packet.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    last: bool,
    /// Offset of its payload.
    start: usize,
}

/// What is the same for all segments of a super packet.
struct Shape {
    v6: bool,
    tcp: bool,
    /// Only the fixed IP header stands before TCP or UDP.
    plain: bool,
    l4: usize,
    header_len: usize,
    /// Payload bytes per segment.
    segment: usize,
}

impl Shape {
    fn parse(vnet: &VnetHeader, packet: &[u8]) -> Result<Self, BadSuperPacket> {
        let version = packet.first().map_or(0, |b| b >> 4);
        let (v6, tcp) = match (vnet.gso_type & !GSO_ECN, version) {
            (GSO_TCP_V4, 4) => (false, true),
            (GSO_TCP_V6, 6) => (true, true),
            (GSO_UDP_L4, 4) => (false, false),
            (GSO_UDP_L4, 6) => (true, false),
            _ => return Err(BadSuperPacket),
        };
        let l4 = usize::from(vnet.checksum_start);
        let l4_min = if v6 { 40 } else { 20 };
        let l4_header = if tcp { 20 } else { 8 };
        let segment = usize::from(vnet.gso_size);
        if vnet.flags & NEEDS_CHECKSUM == 0
            || segment == 0
            || l4 < l4_min
            || packet.len() < l4 + l4_header
            || !v6 && l4 != usize::from(packet[0] & 15) * 4
        {
            return Err(BadSuperPacket);
        }
        let header_len = if tcp {
            l4 + usize::from(packet[l4 + 12] >> 4) * 4
        } else {
            l4 + 8
        };
        // A segment beyond what an IP length can say, or a TCP header shorter than its fixed part.
        if header_len < l4 + l4_header
            || header_len > packet.len()
            || header_len + segment > usize::from(u16::MAX)
        {
            return Err(BadSuperPacket);
        }
        let protocol = if v6 { packet[6] } else { packet[9] };
        let plain = l4 == l4_min && protocol == if tcp { TCP } else { UDP };
        Ok(Self {
            v6,
            tcp,
            plain,
            l4,
            header_len,
            segment,
        })
    }

    /// Makes the copied headers of one segment say what its place demands.
    fn patch(&self, segment: &mut [u8], whole: &[u8], place: Place) {
        let total = segment.len();
        if !self.v6 {
            // As Linux segments in software: consecutive identifications.
            let id = be16(whole, 4).wrapping_add(u16::try_from(place.index).unwrap_or(0));
            put16(segment, 4, id);
        }
        headers::set_ip_length(segment, self.v6, total);
        if self.tcp {
            self.patch_tcp(segment, whole, place);
        } else {
            put16(segment, self.l4 + 4, low16(total - self.l4));
        }
        if !self.plain {
            self.complete_checksum(segment, whole);
        }
    }

    fn patch_tcp(&self, segment: &mut [u8], whole: &[u8], place: Place) {
        let offset = u32::try_from(place.start).unwrap_or(0);
        let seq = be32(whole, self.l4 + 4).wrapping_add(offset);
        segment[self.l4 + 4..self.l4 + 8].copy_from_slice(&seq.to_be_bytes());
        if place.index > 0 {
            segment[self.l4 + 13] &= !FLAG_CWR;
        }
        if !place.last {
            segment[self.l4 + 13] &= !(FLAG_FIN | FLAG_PSH);
        }
    }

    /// The field holds the sum of a pseudo-header with the length of the super packet. The rest of
    /// that pseudo-header cannot be computed from here, because routing headers change it.
    fn complete_checksum(&self, segment: &mut [u8], whole: &[u8]) {
        let field = self.l4 + if self.tcp { 16 } else { 6 };
        let whole_len = low16((whole.len() - self.l4).min(0xffff));
        let part_len = low16(segment.len() - self.l4);
        let sum = checksum::add(0, &be16(whole, field).to_be_bytes());
        let sum = checksum::add(sum, &(!whole_len).to_be_bytes());
        let sum = checksum::add(sum, &part_len.to_be_bytes());
        put16(segment, field, checksum::fold(sum));
        complete(segment, self.l4, field);
    }
}
