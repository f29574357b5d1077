//! TCP segments as freezing reads, changes and writes them (RFC 9293 §3.1, RFC 7323).

use ropewalk_types::checksum;
use ropewalk_types::{FlowKey, PacketInfo};

/// Flags of a TCP header.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;
pub(super) const URG: u8 = 32;

const HEADER: usize = 20;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;
/// Options that bind a segment to what its sender wrote: the signatures of RFC 2385 and RFC 5925,
/// and Multipath TCP (RFC 8684), which acknowledges in an option.
const OPTIONS_BOUND: [u8; 3] = [19, 29, 30];
/// Largest shift of windows that counts (RFC 7323 §2.3).
const SHIFT_MAX: u8 = 14;
/// Hop limit of what is written here.
const HOPS: u8 = 64;

/// Where the parts of a TCP segment are in its packet, and its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub flow: FlowKey,
    v6: bool,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Offset of the TCP header.
    tcp: usize,
    /// Offset of the data.
    data: usize,
    /// Offset of the end of the packet.
    end: usize,
}

impl Segment {
    /// Reads a packet; `None` when it is no whole TCP segment.
    pub fn parse(ip: &[u8]) -> Option<Self> {
        Self::read(ip, &PacketInfo::parse(ip)?)
    }

    /// [`Self::parse`] of a packet whose IP header was read already.
    pub fn read(ip: &[u8], info: &PacketInfo) -> Option<Self> {
        if !info.is_tcp() || info.fragment {
            return None;
        }
        let (tcp, end) = (info.transport_offset, info.length);
        let header = ip.get(tcp..end).filter(|rest| rest.len() >= HEADER)?;
        let data = tcp + usize::from(header[12] >> 4) * 4;
        if data < tcp + HEADER || data > end {
            return None;
        }
        Some(Self {
            flow: info.flow,
            v6: info.v6,
            seq: be32(header, 4),
            ack: be32(header, 8),
            flags: header[13],
            window: u16::from_be_bytes([header[14], header[15]]),
            tcp,
            data,
            end,
        })
    }

    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Bytes of data.
    pub const fn len(&self) -> usize {
        self.end - self.data
    }

    /// The sequence number after its data; SYN and FIN are not counted.
    #[expect(clippy::cast_possible_truncation, reason = "a packet is below 64 KiB")]
    pub const fn seq_end(&self) -> u32 {
        self.seq.wrapping_add(self.len() as u32)
    }

    /// What another segment of the same sender begins with.
    pub fn template(&self, ip: &[u8]) -> Template {
        let fixed = if self.v6 { 40 } else { 20 };
        let mut ports = [0; 4];
        ports.copy_from_slice(&ip[self.tcp..self.tcp + 4]);
        Template {
            ip: ip[..fixed].to_vec(),
            ports,
        }
    }

    /// Shift of the windows that its sender advertises from now on, if this SYN says one.
    pub fn window_shift(&self, ip: &[u8]) -> Option<u8> {
        let at = self.option(ip, OPTION_WINDOW_SCALE, 3)?;
        Some(ip[at + 2].min(SHIFT_MAX))
    }

    /// Whether nobody may acknowledge in the name of its sender.
    pub fn is_bound(&self, ip: &[u8]) -> bool {
        let bound = |option: &u8| self.option(ip, *option, 2).is_some();
        OPTIONS_BOUND.iter().any(bound)
    }

    /// The sequence number after everything in it, SYN and FIN included.
    pub const fn all_end(&self) -> u32 {
        let flags = self.has(SYN) as u32 + self.has(FIN) as u32;
        self.seq_end().wrapping_add(flags)
    }

    /// Timestamp value and echo.
    pub fn timestamps(&self, ip: &[u8]) -> Option<(u32, u32)> {
        let at = self.option(ip, OPTION_TIMESTAMPS, 10)?;
        Some((be32(ip, at + 2), be32(ip, at + 6)))
    }

    /// Blocks that its sender has got beyond its acknowledgement: from and to (RFC 2018 §3).
    pub fn blocks(&self, ip: &[u8]) -> impl Iterator<Item = (u32, u32)> {
        let at = self.option(ip, OPTION_SACK, 10);
        let blocks = at.map_or(&[][..], |at| &ip[at + 2..at + usize::from(ip[at + 1])]);
        let blocks = blocks.chunks_exact(8);
        blocks.map(|block| (be32(block, 0), be32(block, 4)))
    }

    /// Changes the window; `partial` when the checksum is only that of the pseudo-header.
    pub fn set_window(&self, ip: &mut [u8], window: u16, partial: bool) {
        self.set_word(ip, self.tcp + 14, window, partial);
    }

    /// Changes the acknowledgement, and takes selective ones out: they are of other numbers.
    pub fn set_ack(&self, ip: &mut [u8], ack: u32, partial: bool) {
        let [a, b, c, d] = ack.to_be_bytes();
        self.set_word(ip, self.tcp + 8, u16::from_be_bytes([a, b]), partial);
        self.set_word(ip, self.tcp + 10, u16::from_be_bytes([c, d]), partial);
        let Some(at) = self.option(ip, OPTION_SACK, 2) else {
            return;
        };
        let length = usize::from(ip[at + 1]).min(self.data - at);
        for offset in at..at + length {
            self.set_byte(ip, offset, OPTION_NOP, partial);
        }
    }

    /// Changes timestamp value and echo, if there are any.
    pub fn set_timestamps(&self, ip: &mut [u8], (value, echo): (u32, u32), partial: bool) {
        if let Some(at) = self.option(ip, OPTION_TIMESTAMPS, 10) {
            let bytes = value.to_be_bytes().into_iter().chain(echo.to_be_bytes());
            for (offset, byte) in (at + 2..).zip(bytes) {
                self.set_byte(ip, offset, byte, partial);
            }
        }
    }

    /// Options need not begin at an even offset, the words of the checksum do.
    fn set_byte(&self, ip: &mut [u8], at: usize, byte: u8, partial: bool) {
        let word = at - (at - self.tcp) % 2;
        let mut pair = [ip[word], ip[word + 1]];
        pair[at - word] = byte;
        self.set_word(ip, word, u16::from_be_bytes(pair), partial);
    }

    fn set_word(&self, ip: &mut [u8], at: usize, new: u16, partial: bool) {
        let old = u16::from_be_bytes([ip[at], ip[at + 1]]);
        ip[at..at + 2].copy_from_slice(&new.to_be_bytes());
        if !partial {
            checksum::update(&mut ip[self.tcp + 16..self.tcp + 18], old, new);
        }
    }

    /// Offset of an option of at least `length` bytes.
    fn option(&self, ip: &[u8], wanted: u8, length: usize) -> Option<usize> {
        let mut at = self.tcp + HEADER;
        while at < self.data {
            let size = match ip[at] {
                OPTION_END => return None,
                OPTION_NOP => 1,
                kind => {
                    let size = usize::from(*ip.get(at + 1)?);
                    if size < 2 || at + size > self.data {
                        return None;
                    }
                    if kind == wanted && size >= length {
                        return Some(at);
                    }
                    size
                }
            };
            at += size;
        }
        None
    }
}

/// What a segment without data says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    /// Besides ACK.
    pub flags: u8,
    /// Timestamp value and echo, on connections that have them.
    pub timestamps: Option<(u32, u32)>,
}

/// What the segments of one sender begin with.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// The IP header without options.
    ip: Vec<u8>,
    ports: [u8; 4],
}

/// Writes a segment without data from the sender of `template`.
pub(super) fn write(template: &Template, bare: Bare) -> Vec<u8> {
    let mut packet = template.ip.clone();
    let (v4, tcp) = (packet[0] >> 4 == 4, packet.len());
    packet.extend_from_slice(&template.ports);
    packet.extend_from_slice(&bare.seq.to_be_bytes());
    packet.extend_from_slice(&bare.ack.to_be_bytes());
    let words: u8 = if bare.timestamps.is_some() { 8 } else { 5 };
    packet.extend_from_slice(&[words << 4, bare.flags | ACK]);
    packet.extend_from_slice(&bare.window.to_be_bytes());
    packet.extend_from_slice(&[0; 4]);
    if let Some((value, echo)) = bare.timestamps {
        packet.extend_from_slice(&[OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, 10]);
        packet.extend_from_slice(&value.to_be_bytes());
        packet.extend_from_slice(&echo.to_be_bytes());
    }
    let length = u16::try_from(packet.len() - tcp).unwrap_or(u16::MAX);
    let addresses = if v4 {
        packet[0] = 0x45;
        packet[1] &= 0xfc;
        packet[2..4].copy_from_slice(&(length + 20).to_be_bytes());
        // Never cut, so its identification has no meaning (RFC 6864 §4.1).
        packet[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
        packet[8] = HOPS;
        packet[10..12].fill(0);
        let sum = checksum::fold(checksum::add(0, &packet[..tcp]));
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
        &packet[12..20]
    } else {
        packet[1] &= 0xcf;
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        packet[6] = 6;
        packet[7] = HOPS;
        &packet[8..40]
    };
    let sum = checksum::add(6 + u32::from(length), addresses);
    let sum = checksum::fold(checksum::add(sum, &packet[tcp..]));
    packet[tcp + 16..tcp + 18].copy_from_slice(&(!sum).to_be_bytes());
    packet
}

/// Whether sequence number `a` is before `b` (RFC 9293 §3.4).
pub(super) const fn before(a: u32, b: u32) -> bool {
    b.wrapping_sub(a).cast_signed() > 0
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
