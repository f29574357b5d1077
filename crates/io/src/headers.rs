//! Header fields of plain TCP and UDP packets, as splitting and coalescing need them.
//!
//! A packet is *plain* when TCP or UDP follows its fixed IP header at once, it is whole, and every
//! length in it agrees with its size. Only plain packets are coalesced and may travel with a
//! partial checksum. All others pass as they are.
//!
//! `PacketInfo` of `types` reads every packet and computes its flow. Offloads need neither: they
//! refuse most packets after a few bytes, and want the place and the sum of headers instead.

use crate::{InnerPacket, checksum};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

pub(crate) const FLAG_FIN: u8 = 0x01;
pub(crate) const FLAG_PSH: u8 = 0x08;
pub(crate) const FLAG_ACK: u8 = 0x10;
pub(crate) const FLAG_ECE: u8 = 0x40;
pub(crate) const FLAG_CWR: u8 = 0x80;

/// Longest header of a plain packet: IPv6 and TCP with 40 bytes of options.
pub(crate) const PLAIN_HEADER_MAX: usize = 40 + 60;

/// Where the headers of a plain packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) v6: bool,
    pub(crate) tcp: bool,
    /// Offset of the TCP or UDP header.
    pub(crate) l4: usize,
    /// Length of all headers: offset of the payload.
    pub(crate) header_len: usize,
}

impl Plain {
    /// `None` when the packet of `total` bytes that begins with `front` is not plain, or its headers go
    /// beyond `front`.
    pub(crate) fn parse(front: &[u8], total: usize) -> Option<Self> {
        let (v6, l4, protocol) = match front.first()? {
            0x45 if front.len() >= 20 => {
                let fragment = be16(front, 6) & 0x3fff != 0;
                if fragment || usize::from(be16(front, 2)) != total {
                    return None;
                }
                (false, 20, front[9])
            }
            0x60..=0x6f if front.len() >= 40 => {
                if usize::from(be16(front, 4)) + 40 != total {
                    return None;
                }
                (true, 40, front[6])
            }
            _ => return None,
        };
        let rest = front.len() - l4;
        let header_len = match protocol {
            TCP if rest >= 20 => l4 + usize::from(front[l4 + 12] >> 4) * 4,
            UDP if rest >= 8 && usize::from(be16(front, l4 + 4)) == total - l4 => l4 + 8,
            _ => return None,
        };
        let sound = header_len <= front.len() && (protocol == UDP || header_len >= l4 + 20);
        sound.then_some(Self {
            v6,
            tcp: protocol == TCP,
            l4,
            header_len,
        })
    }

    /// Source and destination address and port: what a flow of one protocol is told apart by.
    pub(crate) fn flow<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        if self.v6 {
            &packet[8..44]
        } else {
            &packet[12..24]
        }
    }

    fn addresses<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        if self.v6 {
            &packet[8..40]
        } else {
            &packet[12..20]
        }
    }

    fn protocol(&self) -> u8 {
        if self.tcp { TCP } else { UDP }
    }

    /// Offset of the checksum field from the TCP or UDP header.
    pub(crate) fn checksum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    /// Writes the sum of the pseudo-header of a packet of `total` bytes into the checksum field,
    /// as the kernel expects it of packets whose checksum it is to complete.
    pub(crate) fn set_pseudo_checksum(&self, header: &mut [u8], total: usize) {
        let sum = checksum::pseudo_header(self.addresses(header), self.protocol(), total - self.l4);
        put16(
            header,
            self.l4 + self.checksum_offset(),
            checksum::fold(sum),
        );
    }

    /// Computes the checksum of the packet that `header` and `payload` make together.
    pub(crate) fn set_full_checksum(&self, header: &mut [u8], payload: &[u8]) {
        let at = self.l4 + self.checksum_offset();
        put16(header, at, 0);
        let sum = !checksum::fold(self.sum(header, payload));
        // RFC 768: a computed checksum of zero is sent as all ones.
        put16(header, at, if sum == 0 && !self.tcp { 0xffff } else { sum });
    }

    /// Whether the checksum in the packet is right. A UDP packet without one is not.
    pub(crate) fn checksum_ok(&self, packet: &InnerPacket) -> bool {
        let (front, payload) = (packet.front(), packet.payload(self.header_len));
        let absent = !self.tcp && be16(front, self.l4 + 6) == 0;
        !absent && checksum::fold(self.sum(&front[..self.header_len], payload)) == 0xffff
    }

    /// Sum over pseudo-header, TCP or UDP header and payload. Header lengths are even.
    fn sum(&self, header: &[u8], payload: &[u8]) -> u64 {
        let length = header.len() - self.l4 + payload.len();
        let sum = checksum::pseudo_header(self.addresses(header), self.protocol(), length);
        checksum::add(checksum::add(sum, &header[self.l4..]), payload)
    }

    /// Makes every length in `header` say that the packet has `total` bytes.
    pub(crate) fn set_length(&self, header: &mut [u8], total: usize) {
        set_ip_length(header, self.v6, total);
        if !self.tcp {
            put16(header, self.l4 + 4, low16(total - self.l4));
        }
    }
}

/// Sets total or payload length, and the header checksum of IPv4.
pub(crate) fn set_ip_length(header: &mut [u8], v6: bool, total: usize) {
    if v6 {
        put16(header, 4, low16(total - 40));
    } else {
        put16(header, 2, low16(total));
        let ip = usize::from(header[0] & 15) * 4;
        put16(header, 10, 0);
        let sum = !checksum::fold(checksum::add(0, &header[..ip]));
        put16(header, 10, sum);
    }
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The value, which callers keep below 65,536; larger ones saturate.
pub(crate) fn low16(value: usize) -> u16 {
    debug_assert!(value <= 0xffff);
    u16::try_from(value).unwrap_or(u16::MAX)
}
