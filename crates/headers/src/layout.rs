//! Where the headers of an inner packet are, for the packets whose headers can be compressed.

use ropewalk_types::checksum;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Bytes of the headers.
pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
const TCP_FIXED: usize = 20;
const UDP_HEADER: usize = 8;
const ECHO_HEADER: usize = 8;
pub(crate) const RTP_HEADER: usize = 12;

/// Bytes of TCP's options where they are nothing but timestamps behind two paddings, as all
/// common systems send them (RFC 7323, appendix A).
const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];
/// Bytes of these options.
pub(crate) const TIMESTAMP_OPTIONS: usize = 12;

/// Longest headers: IPv6 and TCP with 40 bytes of options.
pub(crate) const HEADERS_MAX: usize = IPV6 + 60;

/// Flags of a TCP header.
const SYN: u8 = 2;
const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
const URG: u8 = 32;
/// Flags of segments that are never compressed.
pub(crate) const RARE_FLAGS: u8 = SYN | RST | URG;

/// The protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    Tcp,
    Udp,
    /// Request or reply of ping, ICMP or ICMPv6.
    Echo,
}

/// Where the headers of one packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub v6: bool,
    pub upper: Upper,
    /// Offset of the header above IP.
    pub l4: usize,
    /// Length of all headers: offset of the payload.
    pub len: usize,
    /// TCP's options are timestamps and nothing else.
    pub timestamps: bool,
}

impl Layout {
    /// The layout of a whole packet; `None` when its headers cannot be compressed: they are not
    /// TCP, UDP or an echo, say something rare, or do not agree with the packet's length.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let layout = Self::of_headers(packet)?;
        let lengths_agree = if layout.v6 {
            usize::from(be16(packet, 4)) + IPV6 == packet.len()
        } else {
            usize::from(be16(packet, 2)) == packet.len()
                && be16(packet, 10) == ipv4_checksum(&packet[..IPV4])
        };
        let udp_agrees = layout.upper != Upper::Udp
            || usize::from(be16(packet, layout.l4 + 4)) == packet.len() - layout.l4;
        (lengths_agree && udp_agrees).then_some(layout)
    }

    /// The layout of headers, whatever their lengths and sums say.
    pub fn of_headers(bytes: &[u8]) -> Option<Self> {
        let (v6, l4, protocol) = match bytes.first()? {
            // All fragment bits but "don't fragment" are zero.
            0x45 if bytes.len() >= IPV4 && be16(bytes, 6) & 0xbfff == 0 => (false, IPV4, bytes[9]),
            0x60..=0x6f if bytes.len() >= IPV6 => (true, IPV6, bytes[6]),
            _ => return None,
        };
        let above = &bytes[l4..];
        let (upper, above_len) = match protocol {
            TCP if above.len() >= TCP_FIXED => {
                let rare = above[13] & RARE_FLAGS != 0 || be16(above, 18) != 0;
                let len = usize::from(above[12] >> 4) * 4;
                if rare || len < TCP_FIXED {
                    return None;
                }
                (Upper::Tcp, len)
            }
            UDP if above.len() >= UDP_HEADER => (Upper::Udp, UDP_HEADER),
            ICMP if !v6 && above.len() >= ECHO_HEADER && matches!(above[..2], [0 | 8, 0]) => {
                (Upper::Echo, ECHO_HEADER)
            }
            ICMP_V6 if v6 && above.len() >= ECHO_HEADER && matches!(above[..2], [128 | 129, 0]) => {
                (Upper::Echo, ECHO_HEADER)
            }
            _ => return None,
        };
        let options = above.get(..above_len)?.get(TCP_FIXED..);
        let timestamps = upper == Upper::Tcp
            && options.is_some_and(|o| o.len() == TIMESTAMP_OPTIONS && o.starts_with(&TIMESTAMPS));
        Some(Self {
            v6,
            upper,
            l4,
            len: l4 + above_len,
            timestamps,
        })
    }

    /// Offset of the checksum field of the header above IP.
    pub const fn checksum_at(&self) -> usize {
        let within = match self.upper {
            Upper::Tcp => 16,
            Upper::Udp => 6,
            Upper::Echo => 2,
        };
        self.l4 + within
    }

    /// Offset of TCP's options.
    pub const fn options_at(&self) -> usize {
        self.l4 + TCP_FIXED
    }

    /// Sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1) of a packet of `total` bytes. The echo
    /// of ICMP has none.
    fn pseudo_header(&self, headers: &[u8], total: usize) -> u32 {
        let length = u32::try_from(total - self.l4).unwrap_or(u32::MAX);
        let (addresses, protocol) = match (self.v6, self.upper) {
            (false, Upper::Echo) => return 0,
            (true, Upper::Echo) => (8..40, ICMP_V6),
            (true, _) => (8..40, headers[6]),
            (false, _) => (12..20, headers[9]),
        };
        let sum = checksum::add(u32::from(protocol), &headers[addresses]);
        sum + (length >> 16) + (length & 0xffff)
    }

    /// The checksum that `headers` and the two parts of the payload ought to have: complete, or of the
    /// pseudo-header alone as kernels expect it of packets whose checksum they are to complete. The first part
    /// has an even length, unless it is all.
    pub fn checksum(&self, headers: &[u8], payload: [&[u8]; 2], partial: bool) -> u16 {
        let [first, second] = payload;
        let total = headers.len() + first.len() + second.len();
        let pseudo = self.pseudo_header(headers, total);
        if partial {
            return checksum::fold(pseudo);
        }
        let at = self.checksum_at();
        let sum = checksum::add(pseudo, &headers[self.l4..at]);
        let sum = checksum::add(sum, &headers[at + 2..]);
        let sum = checksum::add(checksum::add(sum, first), second);
        let sum = !checksum::fold(sum);
        // RFC 768: a computed checksum of zero is sent as all ones.
        if sum == 0 && self.upper == Upper::Udp {
            0xffff
        } else {
            sum
        }
    }
}

/// The checksum that an IPv4 header ought to have.
pub(crate) fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum = checksum::add(0, &header[..10]);
    !checksum::fold(checksum::add(sum, &header[12..IPV4]))
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

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
