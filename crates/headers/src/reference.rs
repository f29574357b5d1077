//! The headers that both ends know, and a packet's headers as differences from them.
//!
//! Every difference is from the reference, never from another packet: loss, reordering and copies
//! change nothing for the packets that arrive. RFC 1144 and RFC 5795 have the ideas; their chains
//! of differences are left out on purpose.

use crate::ExpandError;
use crate::layout::{
    HEADERS_MAX, IPV4, IPV6, Layout, PSH, RARE_FLAGS, RTP_HEADER, TIMESTAMP_OPTIONS, Upper, be16,
    be32, ipv4_checksum, put16, put32,
};
use crate::tuning::{CHECKED_MAX, PACKETS_BEFORE_REFERENCE, PACKETS_BEHIND, PACKETS_BEHIND_ANY};
use bytes::{BufMut, BytesMut};

/// Longest headers of a reference: IPv6 and TCP with timestamps. UDP and RTP are shorter.
pub(crate) const REFERENCE_MAX: usize = IPV6 + 20 + TIMESTAMP_OPTIONS;

/// Longest encoding of one packet's headers: the reference's number, both masks and every field written out, with 40 bytes
/// of options.
pub(crate) const ENCODED_MAX: usize = 1 + 2 + 1 + 2 + 2 + 4 + 4 + 1 + 2 + 1 + 40;

/// References are numbered modulo this.
pub(crate) const IDS: u8 = 128;
/// Beside the reference's number: of UDP or an echo, no mask follows, since nothing differs and the checksum
/// is right.
const AS_EXPECTED: u8 = 128;
/// First mask: the number of an IPv4 packet.
const ID: u8 = 0b11;
const ID_EXPECTED: u8 = 0;
const ID_OTHERWISE: u8 = 1;
const ID_WRITTEN: u8 = 2;
/// First mask: the checksum above IP is what it ought to be, and left out.
const SUM_RIGHT: u8 = 1 << 2;
/// First mask: the traffic class differs, and is written.
const CLASS: u8 = 1 << 3;
/// First mask, UDP: fields of RTP that do not count on.
const RTP_SEQ: u8 = 1 << 4;
const RTP_TIME: u8 = 1 << 5;
const RTP_MARK: u8 = 1 << 6;
/// First mask, echo: the sequence number does not count on.
const ECHO_SEQ: u8 = 1 << 4;
/// First mask, TCP: how sequence number and acknowledgement are written.
const SEQ_AT: u8 = 4;
const ACK_AT: u8 = 6;
/// Second mask, TCP.
const FLAGS_AT: u8 = 0;
const FLAGS_SAME: u8 = 0;
const FLAGS_PSH: u8 = 1;
const FLAGS_WRITTEN: u8 = 2;
const TIME_AT: u8 = 2;
const ECHOED_AT: u8 = 4;
const WINDOW: u8 = 1 << 6;
const OPTIONS: u8 = 1 << 7;

/// How a number of 32 bits is written.
const SAME: u8 = 0;
const WRITTEN: u8 = 3;
/// Sequence numbers: their distance from what is expected in 2 or 3 bytes.
const FAR_2: u8 = 1;
const FAR_3: u8 = 2;
/// Timestamps: their distance in 1 or 2 bytes.
const NEAR_1: u8 = 1;
const NEAR_2: u8 = 2;

/// The number of IPv4 that is expected of a packet, and the next best guess. The number counts packets, or
/// stays: at 0 if fragments are forbidden (RFC 6864 §4.1), so that is expected where the reference has 0.
const fn ids(before: u16, since: u16) -> [u16; 2] {
    let counted = before.wrapping_add(since);
    if before == 0 {
        [before, counted]
    } else {
        [counted, before]
    }
}

/// The number of the reference that a compressed packet needs.
pub(crate) fn id_of(compressed: &[u8]) -> Option<u8> {
    Some(compressed.first()? % IDS)
}

/// Headers of one packet of a flow that both ends know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub layout: Layout,
    headers: [u8; REFERENCE_MAX],
    /// Number in the flow bucket of the packet that had them.
    flow_seq: u16,
    /// Of RTP (RFC 3550): by how much its time grows with each packet.
    rtp_step: Option<u32>,
}

/// What is left of a packet's headers.
#[derive(Debug)]
pub(crate) struct Encoded {
    bytes: [u8; ENCODED_MAX],
    len: usize,
    /// Length of the headers for which it stands.
    pub headers: usize,
    /// A field that should follow from the reference had to be written.
    pub missed: bool,
}

impl Encoded {
    const fn new(headers: usize) -> Self {
        Self {
            bytes: [0; ENCODED_MAX],
            len: 0,
            headers,
            missed: false,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Writes the low `count` bytes of `value`.
    fn put_low(&mut self, value: u32, count: usize) {
        self.put(&value.to_be_bytes()[4 - count..]);
    }

    /// A sequence number or acknowledgement; returns how it is written.
    fn put_far(&mut self, value: u32, expected: Expected) -> u8 {
        match expected.distance(value) {
            0 => SAME,
            far @ 1..=0xffff => {
                self.put_low(far, 2);
                FAR_2
            }
            far @ 0x1_0000..=0xff_ffff => {
                self.put_low(far, 3);
                FAR_3
            }
            _ => {
                self.put_low(value, 4);
                self.missed = true;
                WRITTEN
            }
        }
    }
}

/// What a sequence number or acknowledgement is expected to be.
#[derive(Clone, Copy, Debug)]
struct Expected {
    value: u32,
    /// Whether it may be less as well as more.
    either_way: bool,
}

impl Expected {
    /// How far a number is from it: 0 if it is the same, and as small as its distance, either way, makes
    /// possible.
    const fn distance(self, value: u32) -> u32 {
        let ahead = value.wrapping_sub(self.value);
        if self.either_way {
            // The lowest bit says which way: 1 ahead is 2, 1 behind is 1.
            (ahead << 1) ^ if ahead >> 31 == 0 { 0 } else { u32::MAX }
        } else {
            ahead
        }
    }

    /// The number at this distance.
    const fn at(self, distance: u32) -> u32 {
        let ahead = if self.either_way {
            (distance >> 1) ^ if distance & 1 == 0 { 0 } else { u32::MAX }
        } else {
            distance
        };
        self.value.wrapping_add(ahead)
    }
}

impl Reference {
    /// The reference of these headers, of the packet with this number in its flow bucket; `None` when they
    /// are too long or rare for that. With `rtp_step`, headers of RTP follow those of UDP.
    pub fn new(headers: &[u8], flow_seq: u16, rtp_step: Option<u32>) -> Option<Self> {
        let layout = Layout::of_headers(headers)?;
        let length = layout.len + if rtp_step.is_some() { RTP_HEADER } else { 0 };
        let sound = headers.len() == length
            && length <= REFERENCE_MAX
            && (rtp_step.is_none() || layout.upper == Upper::Udp);
        if !sound {
            return None;
        }
        let mut known = [0; REFERENCE_MAX];
        known[..length].copy_from_slice(headers);
        Some(Self {
            layout,
            headers: known,
            flow_seq,
            rtp_step,
        })
    }

    /// The headers.
    pub fn headers(&self) -> &[u8] {
        let rtp = if self.rtp_step.is_some() {
            RTP_HEADER
        } else {
            0
        };
        &self.headers[..self.layout.len + rtp]
    }

    pub const fn flow_seq(&self) -> u16 {
        self.flow_seq
    }

    pub const fn rtp_step(&self) -> Option<u32> {
        self.rtp_step
    }

    /// Bytes of payload of the packet that had the headers, as their length field says.
    fn payload(&self) -> usize {
        let total = if self.layout.v6 {
            usize::from(be16(&self.headers, 4)) + IPV6
        } else {
            usize::from(be16(&self.headers, 2))
        };
        total.saturating_sub(self.layout.len)
    }

    /// How many packets of its bucket after the reference's a packet comes, or before if negative.
    fn packets_since(&self, flow_seq: u16) -> i32 {
        let since = flow_seq.wrapping_sub(self.flow_seq);
        let before = since.wrapping_neg();
        if (1..PACKETS_BEFORE_REFERENCE).contains(&before) {
            -i32::from(before)
        } else {
            i32::from(since)
        }
    }

    /// Whether a packet comes so long after the reference's that its headers had better be the next
    /// reference.
    pub fn is_old(&self, layout: &Layout, packet: &[u8], flow_seq: u16) -> bool {
        let since = self.packets_since(flow_seq);
        let is_alike = || packet.len() - layout.len == self.payload();
        since >= PACKETS_BEHIND_ANY || since >= PACKETS_BEHIND && is_alike()
    }

    /// The sequence number that is expected of a packet with so many bytes of payload. A transfer sends segments
    /// of one length, and each packet goes on where the last one ended.
    fn expected_seq(&self, flow_seq: u16, payload: usize) -> Expected {
        let either_way = payload > 0 && payload == self.payload();
        let grown = if either_way {
            let payload = i32::try_from(payload).unwrap_or(0);
            self.packets_since(flow_seq).wrapping_mul(payload)
        } else {
            0
        };
        Expected {
            value: be32(&self.headers, self.layout.l4 + 4).wrapping_add_signed(grown),
            either_way,
        }
    }

    /// The acknowledgement that is expected of a packet.
    fn expected_ack(&self) -> Expected {
        Expected {
            value: be32(&self.headers, self.layout.l4 + 8),
            either_way: false,
        }
    }

    /// Whether a packet is of the same flow, and what the reference takes for constant is so.
    pub fn matches(&self, packet: &[u8], layout: &Layout) -> bool {
        let known = &self.headers;
        let ip = if layout.v6 {
            // Without traffic class and length.
            known[0] >> 4 == packet[0] >> 4
                && be16(known, 1) & 0x0fff == be16(packet, 1) & 0x0fff
                && known[3] == packet[3]
                && known[6..IPV6] == packet[6..IPV6]
        } else {
            known[6..10] == packet[6..10] && known[12..IPV4] == packet[12..IPV4]
        };
        let l4 = layout.l4;
        ip && self.layout.v6 == layout.v6
            && self.layout.upper == layout.upper
            && match layout.upper {
                // The length of TCP's header may differ, its four reserved bits may not.
                Upper::Tcp => {
                    known[l4..l4 + 4] == packet[l4..l4 + 4]
                        && known[l4 + 12] & 15 == packet[l4 + 12] & 15
                }
                Upper::Udp => known[l4..l4 + 4] == packet[l4..l4 + 4],
                // Type, code and identifier.
                Upper::Echo => {
                    known[l4..l4 + 2] == packet[l4..l4 + 2]
                        && known[l4 + 4..l4 + 6] == packet[l4 + 4..l4 + 6]
                }
            }
            && self.rtp_step.is_none_or(|_| {
                is_rtp(&packet[layout.len..]) && {
                    let (known, packet) = (&known[layout.len..], &packet[layout.len..]);
                    known[1] & 0x7f == packet[1] & 0x7f && known[8..12] == packet[8..12]
                }
            })
    }

    /// The headers of a packet that [`Self::matches`], as differences from the reference. `partial`
    /// says that its checksum is that of the pseudo-header.
    ///
    /// `id` is the number of this reference.
    pub fn encode(
        &self,
        id: u8,
        packet: &[u8],
        layout: &Layout,
        flow_seq: u16,
        partial: bool,
    ) -> Encoded {
        let known = &self.headers;
        let since = flow_seq.wrapping_sub(self.flow_seq);
        let rtp = self.rtp_step.map_or(0, |_| RTP_HEADER);
        let mut out = Encoded::new(layout.len + rtp);
        let masks = if layout.upper == Upper::Tcp { 2 } else { 1 };
        let (mut first, mut second) = (0, 0);
        out.len = 1 + masks;
        if traffic_class(known) != traffic_class(packet) {
            first |= CLASS;
            out.put(&[traffic_class(packet)]);
        }
        if !layout.v6 {
            let id = be16(packet, 4);
            let [expected, otherwise] = ids(be16(known, 4), since);
            if id == expected {
                first |= ID_EXPECTED;
            } else if id == otherwise {
                first |= ID_OTHERWISE;
            } else {
                first |= ID_WRITTEN;
                out.put(&id.to_be_bytes());
                out.missed = true;
            }
        }
        let (headers, payload) = packet.split_at(layout.len);
        let sum = be16(packet, layout.checksum_at());
        let checked = partial || payload.len() <= CHECKED_MAX;
        if checked && sum == layout.checksum(headers, [payload, &[]], partial) {
            first |= SUM_RIGHT;
        } else {
            out.put(&sum.to_be_bytes());
        }
        let l4 = layout.l4;
        match layout.upper {
            Upper::Tcp => {
                let (seq, ack) = (be32(packet, l4 + 4), be32(packet, l4 + 8));
                first |= out.put_far(seq, self.expected_seq(flow_seq, payload.len())) << SEQ_AT;
                first |= out.put_far(ack, self.expected_ack()) << ACK_AT;
                second = self.encode_tcp(packet, layout, &mut out);
            }
            Upper::Udp => {
                if let Some(step) = self.rtp_step {
                    first |= self.encode_rtp(&packet[layout.len..], since, step, &mut out);
                }
            }
            Upper::Echo => {
                let seq = be16(packet, l4 + 6);
                if seq != be16(known, l4 + 6).wrapping_add(since) {
                    first |= ECHO_SEQ;
                    out.put(&seq.to_be_bytes());
                    out.missed = true;
                }
            }
        }
        out.bytes[0] = id;
        out.bytes[1] = first;
        if masks == 2 {
            out.bytes[2] = second;
        } else if first == SUM_RIGHT && out.len == 2 {
            out.bytes[0] |= AS_EXPECTED;
            out.len = 1;
        }
        out
    }

    /// Flags, window and options of TCP; returns the second mask.
    fn encode_tcp(&self, packet: &[u8], layout: &Layout, out: &mut Encoded) -> u8 {
        let (known, l4) = (&self.headers, layout.l4);
        let mut mask = 0;
        let flags = packet[l4 + 13];
        if flags != known[l4 + 13] {
            if flags == known[l4 + 13] ^ PSH {
                mask |= FLAGS_PSH << FLAGS_AT;
            } else {
                mask |= FLAGS_WRITTEN << FLAGS_AT;
                out.put(&[flags]);
            }
        }
        let window = be16(packet, l4 + 14);
        if window != be16(known, l4 + 14) {
            mask |= WINDOW;
            out.put(&window.to_be_bytes());
        }
        let options = &packet[layout.options_at()..layout.len];
        if layout.timestamps && self.layout.timestamps {
            let at = layout.options_at();
            let (time, before) = (be32(packet, at + 4), be32(known, at + 4));
            let grown = time.wrapping_sub(before);
            let how = match grown {
                0 => SAME,
                1..=0xff => {
                    out.put_low(grown, 1);
                    NEAR_1
                }
                0x100..=0xffff => {
                    out.put_low(grown, 2);
                    NEAR_2
                }
                _ => {
                    out.put_low(time, 4);
                    out.missed = true;
                    WRITTEN
                }
            };
            mask |= how << TIME_AT;
            let (echoed, before) = (be32(packet, at + 8), be32(known, at + 8));
            let echoed_grown = echoed.wrapping_sub(before);
            // Both clocks run alike: what differs is the change of the round trip.
            let drift = echoed_grown.wrapping_sub(grown);
            let near = drift.wrapping_add(0x80);
            let how = if echoed_grown == 0 {
                SAME
            } else if near <= 0xff {
                out.put_low(near, 1);
                NEAR_1
            } else if echoed_grown <= 0xffff {
                out.put_low(echoed_grown, 2);
                NEAR_2
            } else {
                out.put_low(echoed, 4);
                out.missed = true;
                WRITTEN
            };
            mask |= how << ECHOED_AT;
        } else if options.len() + self.layout.len - self.layout.options_at() > 0 {
            mask |= OPTIONS;
            #[expect(clippy::cast_possible_truncation, reason = "at most 40 bytes")]
            out.put(&[options.len() as u8 / 4]);
            out.put(options);
        }
        mask
    }

    /// The fields of RTP; returns bits of the first mask.
    fn encode_rtp(&self, rtp: &[u8], since: u16, step: u32, out: &mut Encoded) -> u8 {
        let known = &self.headers[self.layout.len..];
        let mut mask = 0;
        if rtp[1] != known[1] {
            mask |= RTP_MARK;
        }
        let seq = be16(rtp, 2);
        if seq != be16(known, 2).wrapping_add(since) {
            mask |= RTP_SEQ;
            out.put(&seq.to_be_bytes());
            out.missed = true;
        }
        // The time belongs to the number of RTP: silence leaves numbers out of neither.
        let packets = u32::from(seq.wrapping_sub(be16(known, 2)));
        let time = be32(rtp, 4);
        if time != be32(known, 4).wrapping_add(packets.wrapping_mul(step)) {
            mask |= RTP_TIME;
            out.put_low(time, 4);
            out.missed = true;
        }
        mask
    }

    /// Appends the headers that were [`Self::encode`]d to `out`. Returns where in `compressed` the payload
    /// begins. On an error nothing is appended.
    pub fn decode(
        &self,
        compressed: &[u8],
        flow_seq: u16,
        partial: bool,
        out: &mut BytesMut,
    ) -> Result<usize, ExpandError> {
        let mut left = Fields(compressed);
        let as_expected = left.byte()? & AS_EXPECTED != 0;
        let since = flow_seq.wrapping_sub(self.flow_seq);
        let mut headers = [0; HEADERS_MAX];
        let known = self.headers();
        headers[..known.len()].copy_from_slice(known);
        let mut layout = self.layout;
        let first = if as_expected { SUM_RIGHT } else { left.byte()? };
        let second = match (layout.upper, as_expected) {
            (Upper::Tcp, true) => return Err(ExpandError::Invalid),
            (Upper::Tcp, false) => left.byte()?,
            _ => 0,
        };
        self.decode_ip(first, since, &mut headers, &mut left)?;
        let sum = if first & SUM_RIGHT == 0 {
            Some(left.u16()?)
        } else {
            None
        };
        let l4 = layout.l4;
        let mut rtp = 0;
        match layout.upper {
            Upper::Tcp => {
                let seq = left.far(first >> SEQ_AT & 3)?;
                let ack = left.far(first >> ACK_AT & 3)?;
                put32(&mut headers, l4 + 8, ack.of(self.expected_ack()));
                layout = self.decode_tcp(second, &mut headers, &mut left)?;
                let expected = self.expected_seq(flow_seq, left.0.len());
                put32(&mut headers, l4 + 4, seq.of(expected));
            }
            Upper::Udp => match self.rtp_step {
                None if first & (RTP_SEQ | RTP_TIME | RTP_MARK | 0x80) == 0 => {}
                Some(step) if first & 0x80 == 0 => {
                    rtp = RTP_HEADER;
                    let rtp = &mut headers[layout.len..];
                    Self::decode_rtp(first, rtp, since, step, &mut left)?;
                }
                _ => return Err(ExpandError::Invalid),
            },
            Upper::Echo => {
                let seq = if first & ECHO_SEQ == 0 {
                    be16(known, l4 + 6).wrapping_add(since)
                } else {
                    left.u16()?
                };
                if first & 0xe0 != 0 {
                    return Err(ExpandError::Invalid);
                }
                put16(&mut headers, l4 + 6, seq);
            }
        }
        append(&mut headers, &layout, rtp, sum, partial, left.0, out)?;
        Ok(compressed.len() - left.0.len())
    }

    /// Traffic class and, of IPv4, the number.
    fn decode_ip(
        &self,
        mask: u8,
        since: u16,
        headers: &mut [u8; HEADERS_MAX],
        left: &mut Fields<'_>,
    ) -> Result<(), ExpandError> {
        if mask & CLASS != 0 {
            set_traffic_class(headers, left.byte()?);
        }
        if self.layout.v6 {
            return if mask & ID == 0 {
                Ok(())
            } else {
                Err(ExpandError::Invalid)
            };
        }
        let [expected, otherwise] = ids(be16(&self.headers, 4), since);
        let id = match mask & ID {
            ID_EXPECTED => expected,
            ID_OTHERWISE => otherwise,
            ID_WRITTEN => left.u16()?,
            _ => return Err(ExpandError::Invalid),
        };
        put16(headers, 4, id);
        Ok(())
    }

    fn decode_tcp(
        &self,
        mask: u8,
        headers: &mut [u8; HEADERS_MAX],
        left: &mut Fields<'_>,
    ) -> Result<Layout, ExpandError> {
        let mut layout = self.layout;
        let (known, l4) = (&self.headers, layout.l4);
        headers[l4 + 13] = match mask & 3 {
            FLAGS_SAME => known[l4 + 13],
            FLAGS_PSH => known[l4 + 13] ^ PSH,
            FLAGS_WRITTEN => left.byte()?,
            _ => return Err(ExpandError::Invalid),
        };
        // Such segments are never compressed ([`Layout::of_headers`]).
        if headers[l4 + 13] & RARE_FLAGS != 0 {
            return Err(ExpandError::Invalid);
        }
        if mask & WINDOW != 0 {
            let window = left.u16()?;
            put16(headers, l4 + 14, window);
        }
        let at = layout.options_at();
        if mask & OPTIONS != 0 {
            let words = left.byte()?;
            let options = left.take(usize::from(words) * 4)?;
            if options.len() > 40 {
                return Err(ExpandError::Invalid);
            }
            headers[at..at + options.len()].copy_from_slice(options);
            layout.len = at + options.len();
            #[expect(clippy::cast_possible_truncation, reason = "at most 60 bytes")]
            let words = ((layout.len - l4) / 4) as u8;
            headers[l4 + 12] = words << 4 | headers[l4 + 12] & 15;
        } else if layout.timestamps {
            let before = be32(known, at + 4);
            let time = match mask >> TIME_AT & 3 {
                SAME => before,
                NEAR_1 => before.wrapping_add(left.low(1)?),
                NEAR_2 => before.wrapping_add(left.low(2)?),
                _ => left.low(4)?,
            };
            put32(headers, at + 4, time);
            let (grown, before) = (time.wrapping_sub(before), be32(known, at + 8));
            let echoed = match mask >> ECHOED_AT & 3 {
                SAME => before,
                NEAR_1 => before
                    .wrapping_add(grown)
                    .wrapping_add(left.low(1)?)
                    .wrapping_sub(0x80),
                NEAR_2 => before.wrapping_add(left.low(2)?),
                _ => left.low(4)?,
            };
            put32(headers, at + 8, echoed);
            return Ok(layout);
        } else if layout.len != at {
            // The reference has other options: they are written in each packet.
            return Err(ExpandError::Invalid);
        }
        if mask >> TIME_AT & 15 != 0 {
            return Err(ExpandError::Invalid);
        }
        Ok(layout)
    }

    fn decode_rtp(
        mask: u8,
        rtp: &mut [u8],
        since: u16,
        step: u32,
        left: &mut Fields<'_>,
    ) -> Result<(), ExpandError> {
        if mask & RTP_MARK != 0 {
            rtp[1] ^= 0x80;
        }
        let before = be16(rtp, 2);
        let seq = if mask & RTP_SEQ == 0 {
            before.wrapping_add(since)
        } else {
            left.u16()?
        };
        put16(rtp, 2, seq);
        let packets = u32::from(seq.wrapping_sub(before));
        let time = if mask & RTP_TIME == 0 {
            be32(rtp, 4).wrapping_add(packets.wrapping_mul(step))
        } else {
            left.low(4)?
        };
        put32(rtp, 4, time);
        Ok(())
    }
}

/// Appends the headers of a packet with this payload, `rtp` bytes of RTP among them, and makes lengths and sums
/// right. The checksum above IP is `sum`, or what it ought to be.
fn append(
    headers: &mut [u8; HEADERS_MAX],
    layout: &Layout,
    rtp: usize,
    sum: Option<u16>,
    partial: bool,
    payload: &[u8],
    out: &mut BytesMut,
) -> Result<(), ExpandError> {
    let total = layout.len + rtp + payload.len();
    if sum.is_none() && !partial && total - layout.len > CHECKED_MAX {
        return Err(ExpandError::Invalid);
    }
    set_lengths(headers, layout, total)?;
    let sum = sum.unwrap_or_else(|| {
        let (headers, rtp) = headers[..layout.len + rtp].split_at(layout.len);
        layout.checksum(headers, [rtp, payload], partial)
    });
    put16(headers, layout.checksum_at(), sum);
    out.put_slice(&headers[..layout.len + rtp]);
    Ok(())
}

/// The fields of an encoding that have not been read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ExpandError> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(ExpandError::Invalid)?;
        self.0 = rest;
        Ok(front)
    }

    fn byte(&mut self) -> Result<u8, ExpandError> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, ExpandError> {
        Ok(be16(self.take(2)?, 0))
    }

    /// A number of `count` bytes.
    fn low(&mut self, count: usize) -> Result<u32, ExpandError> {
        let bytes = self.take(count)?.iter();
        Ok(bytes.fold(0, |value, &byte| value << 8 | u32::from(byte)))
    }

    /// A sequence number or acknowledgement.
    fn far(&mut self, how: u8) -> Result<Far, ExpandError> {
        Ok(match how {
            SAME => Far::At(0),
            FAR_2 => Far::At(self.low(2)?),
            FAR_3 => Far::At(self.low(3)?),
            _ => Far::Written(self.low(4)?),
        })
    }
}

/// A sequence number or acknowledgement: its distance from what is expected, or itself.
enum Far {
    At(u32),
    Written(u32),
}

impl Far {
    const fn of(self, expected: Expected) -> u32 {
        match self {
            Self::At(distance) => expected.at(distance),
            Self::Written(value) => value,
        }
    }
}

const fn traffic_class(headers: &[u8]) -> u8 {
    if headers[0] >> 4 == 6 {
        headers[0] << 4 | headers[1] >> 4
    } else {
        headers[1]
    }
}

fn set_traffic_class(headers: &mut [u8], class: u8) {
    if headers[0] >> 4 == 6 {
        headers[0] = headers[0] & 0xf0 | class >> 4;
        headers[1] = headers[1] & 0x0f | class << 4;
    } else {
        headers[1] = class;
    }
}

/// Makes every length in the headers say that the packet has `total` bytes, and sets the checksum
/// of IPv4.
fn set_lengths(headers: &mut [u8], layout: &Layout, total: usize) -> Result<(), ExpandError> {
    let counted = if layout.v6 { total - IPV6 } else { total };
    let counted = u16::try_from(counted).map_err(|_| ExpandError::Invalid)?;
    if layout.v6 {
        put16(headers, 4, counted);
    } else {
        put16(headers, 2, counted);
        let sum = ipv4_checksum(&headers[..IPV4]);
        put16(headers, 10, sum);
    }
    if layout.upper == Upper::Udp {
        let length = u16::try_from(total - layout.l4).map_err(|_| ExpandError::Invalid)?;
        put16(headers, layout.l4 + 4, length);
    }
    Ok(())
}

/// Whether the payload of UDP looks like RTP without extension, padding and sources (RFC 3550 §5.1).
pub(crate) fn is_rtp(payload: &[u8]) -> bool {
    payload.len() >= RTP_HEADER && payload[0] == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_found_by_its_distance(value: u32, expected: u32, either_way: bool) {
            let expected = Expected { value: expected, either_way };
            prop_assert_eq!(expected.at(expected.distance(value)), value);
        }

        #[test]
        fn near_numbers_have_small_distances(ahead in -0x8000_i32..0x8000, expected: u32) {
            let near = Expected { value: expected, either_way: true };
            prop_assert!(near.distance(expected.wrapping_add_signed(ahead)) <= 0xffff);
        }
    }
}
