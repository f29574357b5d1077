//! The datagram format inside a sub-tunnel: parse and emit, nothing else. See `docs/wire.md`.
//!
//! Every datagram opens with a kind; all but control messages then carry the path's own sequence
//! number and the sender's clock, from which the egress measures loss, burstiness and relative
//! one-way delay per path. All integers are big-endian. Parsing never panics and never allocates.

#![forbid(unsafe_code)]

mod coded;
mod control;
mod deadline_nack;
mod headers;
mod nack;
mod report;
mod version;

pub use coded::{CODED_SEEDS, CodedHeader, Part};
pub use control::{Claim, Control, Hello, PathSends, REASON_MAX, Welcome};
pub use deadline_nack::{DEADLINE_NACKS_MAX, DeadlineNack};
pub use headers::{HEADER_NOTICES_MAX, HeaderNotice, Headers};
pub use nack::{NACK_RUNS_MAX, NackRun};
pub use report::{PathReport, Report};
pub use version::{NoCommonVersion, VERSIONS, Version, Versions, agree};

use ropewalk_types::Instant;
use thiserror::Error;

/// Bytes of the header in front of a whole inner packet.
pub const DATA_HEADER: usize = 10;
/// Bytes of the header in front of a fragment of an inner packet.
pub const FRAGMENT_HEADER: usize = 14;
/// Bytes that senders of inner packets leave free in front, enough for either header.
pub const HEADROOM: usize = 16;

const KIND_DATA: u8 = 1;
const KIND_FRAGMENT: u8 = 2;
const KIND_REPORT: u8 = 3;
const KIND_PROBE: u8 = 4;
const KIND_CONTROL: u8 = 5;
const KIND_NACK: u8 = 6;
const KIND_CODED: u8 = 7;
const KIND_DEADLINE_NACK: u8 = 8;
const KIND_COMPRESSED: u8 = 9;
const KIND_HEADERS: u8 = 10;
const KIND_HEADER_NOTICES: u8 = 11;

const FLAG_CHECKSUM_PARTIAL: u8 = 1;
const FLAG_ORDERED: u8 = 2;
const FLAG_COPY: u8 = 4;
const FLAG_PROMPT: u8 = 8;

/// Whether a datagram is a control message, told from its first byte. Such a datagram may be
/// malformed behind that byte.
#[must_use]
pub const fn is_control(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(&first) if first >> 4 == KIND_CONTROL)
}

const FLOW_MASK: u16 = 0x0fff;

/// Why a datagram was refused. The sender is at fault: count it, drop it, go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Shorter than its header.
    #[error("truncated datagram")]
    Truncated,
    /// A kind this version does not know.
    #[error("unknown datagram kind")]
    UnknownKind,
    /// A field is outside its range.
    #[error("invalid field")]
    Invalid,
}

/// The sender's clock in 16 µs units, modulo 2^24 (268 s).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp(u32);

/// One unit of a [`Timestamp`], in nanoseconds.
pub const TIMESTAMP_UNIT_NANOS: u64 = 16_000;

impl Timestamp {
    /// The timestamp of `now`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^24 is the format")]
    pub const fn from_instant(now: Instant) -> Self {
        Self((now.as_nanos() / TIMESTAMP_UNIT_NANOS) as u32 & 0x00ff_ffff)
    }

    /// The 24 bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Signed distance from `earlier` in units, in `-2^23..2^23`.
    #[must_use]
    pub const fn distance(self, earlier: Self) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }
}

/// What every measured datagram carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Sequence number of the path in this direction.
    pub path_seq: u16,
    /// When the ingress bound it to the path.
    pub sent_at: Timestamp,
}

/// Header of an inner packet or fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataHeader {
    /// Path sequence and time.
    pub stamp: Stamp,
    /// The TCP or UDP checksum field holds only the pseudo-header sum: the egress completes it.
    pub checksum_partial: bool,
    /// The egress restores the order within the flow.
    pub ordered: bool,
    /// Copies of this packet travel on other paths: the egress removes all but the first.
    pub copy: bool,
    /// The egress asks for packets of this flow as soon as they are overdue.
    pub prompt: bool,
    /// The headers of the inner packet are compressed. Never of a fragment.
    pub compressed: bool,
    /// Flow bucket, `0..4096`.
    pub flow: u16,
    /// Service class, `0..16`.
    pub class: u8,
    /// Sequence number within the flow bucket.
    pub flow_seq: u16,
}

/// Where a fragment belongs in its inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// First byte of this piece in the inner packet.
    pub offset: u16,
    /// Length of the whole inner packet, which its flow and flow sequence number identify.
    pub total: u16,
}

/// A parsed datagram; `at` is where the payload starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Datagram {
    /// A whole inner packet follows at `at`.
    Data {
        /// Its header.
        header: DataHeader,
        /// Payload offset.
        at: usize,
    },
    /// A piece of an inner packet follows at `at`.
    Fragment {
        /// Header of the inner packet.
        header: DataHeader,
        /// Place of the piece.
        fragment: FragmentHeader,
        /// Payload offset.
        at: usize,
    },
    /// What the egress saw.
    Report {
        /// Path sequence and time.
        stamp: Stamp,
        /// The report.
        report: Report,
    },
    /// Keeps an idle path known, and finds one again that has fallen silent.
    Probe {
        /// Path sequence and time.
        stamp: Stamp,
        /// Newest number that its sender has received on this path, if it says.
        newest: Option<u16>,
    },
    /// A message between gateways.
    Control(Control),
    /// Numbers that the egress misses and asks for; see [`nack_runs`].
    Nack {
        /// Path sequence and time.
        stamp: Stamp,
        /// Where the runs start.
        at: usize,
    },
    /// Packets of flows that are overdue; see [`deadline_nacks`].
    DeadlineNack {
        /// Path sequence and time.
        stamp: Stamp,
        /// Where they start.
        at: usize,
    },
    /// Headers of a flow for the egress to know, see [`Headers`].
    Headers {
        /// Path sequence and time.
        stamp: Stamp,
        /// Flow and numbers.
        headers: Headers,
        /// Where the headers start.
        at: usize,
    },
    /// What the egress knows of such headers; see [`header_notices`].
    HeaderNotices {
        /// Path sequence and time.
        stamp: Stamp,
        /// Where they start.
        at: usize,
    },
    /// A repair symbol of packets, or a part of one, follows at `at`.
    Coded {
        /// Its header.
        header: CodedHeader,
        /// Where the sum starts.
        at: usize,
    },
}

impl DataHeader {
    /// Writes the header of a whole packet.
    pub fn emit(&self, out: &mut [u8; DATA_HEADER]) {
        let kind = if self.compressed {
            KIND_COMPRESSED
        } else {
            KIND_DATA
        };
        self.emit_kind(kind, out);
    }

    /// Writes the header of a fragment.
    pub fn emit_fragment(&self, fragment: &FragmentHeader, out: &mut [u8; FRAGMENT_HEADER]) {
        let mut front = [0; DATA_HEADER];
        self.emit_kind(KIND_FRAGMENT, &mut front);
        out[..DATA_HEADER].copy_from_slice(&front);
        out[10..12].copy_from_slice(&fragment.offset.to_be_bytes());
        out[12..14].copy_from_slice(&fragment.total.to_be_bytes());
    }

    fn emit_kind(&self, kind: u8, out: &mut [u8; DATA_HEADER]) {
        let flags = (u8::from(self.checksum_partial) * FLAG_CHECKSUM_PARTIAL)
            | (u8::from(self.ordered) * FLAG_ORDERED)
            | (u8::from(self.copy) * FLAG_COPY)
            | (u8::from(self.prompt) * FLAG_PROMPT);
        out[0] = kind << 4 | flags;
        emit_stamp(self.stamp, out);
        let flow = (u16::from(self.class) << 12) | (self.flow & FLOW_MASK);
        out[6..8].copy_from_slice(&flow.to_be_bytes());
        out[8..10].copy_from_slice(&self.flow_seq.to_be_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < DATA_HEADER {
            return Err(WireError::Truncated);
        }
        let flags = bytes[0] & 15;
        let flow = u16::from_be_bytes([bytes[6], bytes[7]]);
        Ok(Self {
            stamp: parse_stamp(bytes)?,
            checksum_partial: flags & FLAG_CHECKSUM_PARTIAL != 0,
            ordered: flags & FLAG_ORDERED != 0,
            copy: flags & FLAG_COPY != 0,
            prompt: flags & FLAG_PROMPT != 0,
            compressed: bytes[0] >> 4 == KIND_COMPRESSED,
            flow: flow & FLOW_MASK,
            class: (flow >> 12) as u8,
            flow_seq: u16::from_be_bytes([bytes[8], bytes[9]]),
        })
    }
}

/// Bytes of kind and stamp.
const STAMP: usize = 6;

fn emit_stamp(stamp: Stamp, out: &mut [u8]) {
    out[1..3].copy_from_slice(&stamp.path_seq.to_be_bytes());
    out[3..6].copy_from_slice(&stamp.sent_at.bits().to_be_bytes()[1..]);
}

fn parse_stamp(bytes: &[u8]) -> Result<Stamp, WireError> {
    let b = bytes.get(..STAMP).ok_or(WireError::Truncated)?;
    Ok(Stamp {
        path_seq: u16::from_be_bytes([b[1], b[2]]),
        sent_at: Timestamp(u32::from_be_bytes([0, b[3], b[4], b[5]])),
    })
}

/// Appends a probe; `newest` is the newest number received on its path.
pub fn emit_probe(stamp: Stamp, newest: Option<u16>, out: &mut Vec<u8>) {
    emit_stamped(KIND_PROBE, stamp, out);
    if let Some(newest) = newest {
        out.extend_from_slice(&newest.to_be_bytes());
    }
}

/// Appends a report.
pub fn emit_report(stamp: Stamp, report: &Report, out: &mut Vec<u8>) {
    emit_stamped(KIND_REPORT, stamp, out);
    report.emit(out);
}

/// Appends a NACK for missing numbers, at most [`NACK_RUNS_MAX`] runs.
pub fn emit_nack(stamp: Stamp, runs: &[NackRun], out: &mut Vec<u8>) {
    emit_stamped(KIND_NACK, stamp, out);
    nack::emit(runs, out);
}

/// The runs that the payload of a [`Datagram::Nack`] names.
pub fn nack_runs(payload: &[u8]) -> impl Iterator<Item = NackRun> {
    nack::parse(payload)
}

/// Appends a NACK for overdue packets of flows, at most [`DEADLINE_NACKS_MAX`].
pub fn emit_deadline_nack(stamp: Stamp, packets: &[DeadlineNack], out: &mut Vec<u8>) {
    emit_stamped(KIND_DEADLINE_NACK, stamp, out);
    deadline_nack::emit(packets, out);
}

/// The packets that the payload of a [`Datagram::DeadlineNack`] names.
pub fn deadline_nacks(payload: &[u8]) -> impl Iterator<Item = DeadlineNack> {
    deadline_nack::parse(payload)
}

/// Appends headers of a flow for the egress to know.
pub fn emit_headers(stamp: Stamp, headers: &Headers, inner: &[u8], out: &mut Vec<u8>) {
    emit_stamped(KIND_HEADERS, stamp, out);
    headers.emit(out);
    out.extend_from_slice(inner);
}

/// Appends what the egress knows of headers, at most [`HEADER_NOTICES_MAX`].
pub fn emit_header_notices(stamp: Stamp, notices: &[HeaderNotice], out: &mut Vec<u8>) {
    emit_stamped(KIND_HEADER_NOTICES, stamp, out);
    headers::emit_notices(notices, out);
}

/// What the payload of a [`Datagram::HeaderNotices`] says.
pub fn header_notices(payload: &[u8]) -> impl Iterator<Item = HeaderNotice> {
    headers::parse_notices(payload)
}

/// Makes `datagram`, a packet or fragment sent before or a repair symbol of them, ready to be sent: new
/// number and time, and `copy` where the first sending may have arrived.
///
/// # Errors
/// When it is none of these.
pub fn restamp(datagram: &mut [u8], stamp: Stamp, copy: bool) -> Result<(), WireError> {
    let kind = datagram.first().map_or(0, |first| first >> 4);
    if datagram.len() < DATA_HEADER
        || !matches!(
            kind,
            KIND_DATA | KIND_COMPRESSED | KIND_FRAGMENT | KIND_CODED
        )
    {
        return Err(WireError::Invalid);
    }
    emit_stamp(stamp, datagram);
    if copy && kind != KIND_CODED {
        datagram[0] |= FLAG_COPY;
    }
    Ok(())
}

/// Appends a control message.
pub fn emit_control(control: &Control, out: &mut Vec<u8>) {
    out.push(KIND_CONTROL << 4);
    control.emit(out);
}

fn emit_stamped(kind: u8, stamp: Stamp, out: &mut Vec<u8>) {
    let mut header = [kind << 4, 0, 0, 0, 0, 0];
    emit_stamp(stamp, &mut header);
    out.extend_from_slice(&header);
}

impl Datagram {
    /// Number on its path and time of sending, of the kinds that carry them.
    #[must_use]
    pub const fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Data { header, .. } | Self::Fragment { header, .. } => Some(header.stamp),
            Self::Report { stamp, .. }
            | Self::Probe { stamp, .. }
            | Self::Nack { stamp, .. }
            | Self::DeadlineNack { stamp, .. }
            | Self::Headers { stamp, .. }
            | Self::HeaderNotices { stamp, .. } => Some(*stamp),
            Self::Coded { header, .. } => Some(header.stamp),
            Self::Control(_) => None,
        }
    }

    /// Parses one datagram.
    ///
    /// # Errors
    /// When it is truncated, of an unknown kind, or a field is out of range.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let first = *bytes.first().ok_or(WireError::Truncated)?;
        match first >> 4 {
            KIND_DATA | KIND_COMPRESSED => Ok(Self::Data {
                header: DataHeader::parse(bytes)?,
                at: DATA_HEADER,
            }),
            KIND_FRAGMENT => parse_fragment(bytes),
            KIND_REPORT => Ok(Self::Report {
                stamp: parse_stamp(bytes)?,
                report: Report::parse(&bytes[STAMP..])?,
            }),
            KIND_PROBE => Ok(Self::Probe {
                stamp: parse_stamp(bytes)?,
                // Absent where nothing has been received, and from peers that do not say.
                newest: bytes
                    .get(STAMP..STAMP + 2)
                    .map(|b| u16::from_be_bytes([b[0], b[1]])),
            }),
            KIND_CONTROL => Ok(Self::Control(Control::parse(&bytes[1..])?)),
            KIND_NACK => {
                let stamp = parse_stamp(bytes)?;
                nack::check(&bytes[STAMP..])?;
                Ok(Self::Nack { stamp, at: STAMP })
            }
            KIND_DEADLINE_NACK => {
                let stamp = parse_stamp(bytes)?;
                deadline_nack::check(&bytes[STAMP..])?;
                Ok(Self::DeadlineNack { stamp, at: STAMP })
            }
            KIND_HEADERS => {
                let stamp = parse_stamp(bytes)?;
                let (headers, length) = Headers::parse(&bytes[STAMP..])?;
                let at = STAMP + length;
                Ok(Self::Headers { stamp, headers, at })
            }
            KIND_HEADER_NOTICES => {
                let stamp = parse_stamp(bytes)?;
                headers::check_notices(&bytes[STAMP..])?;
                Ok(Self::HeaderNotices { stamp, at: STAMP })
            }
            KIND_CODED => Ok(Self::Coded {
                header: CodedHeader::parse(bytes)?,
                at: DATA_HEADER,
            }),
            _ => Err(WireError::UnknownKind),
        }
    }
}

fn parse_fragment(bytes: &[u8]) -> Result<Datagram, WireError> {
    let header = DataHeader::parse(bytes)?;
    let b = bytes.get(..FRAGMENT_HEADER).ok_or(WireError::Truncated)?;
    let fragment = FragmentHeader {
        offset: u16::from_be_bytes([b[10], b[11]]),
        total: u16::from_be_bytes([b[12], b[13]]),
    };
    let piece = bytes.len() - FRAGMENT_HEADER;
    if piece == 0 || usize::from(fragment.offset) + piece > usize::from(fragment.total) {
        return Err(WireError::Invalid);
    }
    Ok(Datagram::Fragment {
        header,
        fragment,
        at: FRAGMENT_HEADER,
    })
}

/// Takes big-endian fields off the front of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (front, rest) = self.0.split_at_checked(n).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.bytes(N)?.try_into().map_err(|_| WireError::Truncated)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests;
