//! Headers of flows that both ends are to know, and what the egress says of them.

use crate::{FLOW_MASK, Reader, WireError};

/// Most notices in one datagram.
pub const HEADER_NOTICES_MAX: usize = 64;
const NOTICE_BYTES: usize = 3;
/// The reference is not known.
const UNKNOWN: u16 = 1 << 15;
/// The headers of RTP follow those of UDP, and the step of its time is there.
const FLAG_RTP: u8 = 1;

/// Which headers follow. They are those of one inner packet of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Flow bucket, `0..4096`.
    pub flow: u16,
    /// Number in the bucket of the packet that had them.
    pub flow_seq: u16,
    /// Number of the reference in the bucket.
    pub id: u8,
    /// Of RTP: by how much its time grows with each packet.
    pub rtp_step: Option<u32>,
}

impl Headers {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.flow & FLOW_MASK).to_be_bytes());
        out.extend_from_slice(&self.flow_seq.to_be_bytes());
        out.push(self.id);
        out.push(self.rtp_step.map_or(0, |_| FLAG_RTP));
        if let Some(step) = self.rtp_step {
            out.extend_from_slice(&step.to_be_bytes());
        }
    }

    /// The fields, and how many bytes they have.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, usize), WireError> {
        let mut reader = Reader(bytes);
        let (flow, flow_seq) = (reader.u16()?, reader.u16()?);
        let (id, flags) = (reader.u8()?, reader.u8()?);
        if flow > FLOW_MASK || flags > FLAG_RTP {
            return Err(WireError::Invalid);
        }
        let rtp_step = if flags == FLAG_RTP {
            Some(reader.u32()?)
        } else {
            None
        };
        let headers = Self {
            flow,
            flow_seq,
            id,
            rtp_step,
        };
        Ok((headers, bytes.len() - reader.0.len()))
    }
}

/// Whether headers are known at the egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderNotice {
    /// Flow bucket, `0..4096`.
    pub flow: u16,
    /// Number of the reference in the bucket.
    pub id: u8,
    /// Known, or not (any more).
    pub known: bool,
}

pub(crate) fn emit_notices(notices: &[HeaderNotice], out: &mut Vec<u8>) {
    for notice in notices.iter().take(HEADER_NOTICES_MAX) {
        let unknown = if notice.known { 0 } else { UNKNOWN };
        out.extend_from_slice(&(notice.flow & FLOW_MASK | unknown).to_be_bytes());
        out.push(notice.id);
    }
}

pub(crate) fn check_notices(bytes: &[u8]) -> Result<(), WireError> {
    let whole = bytes.len().is_multiple_of(NOTICE_BYTES)
        && bytes.len() <= HEADER_NOTICES_MAX * NOTICE_BYTES;
    if whole && parse_notices(bytes).all(|notice| notice.flow <= FLOW_MASK) {
        Ok(())
    } else {
        Err(WireError::Invalid)
    }
}

pub(crate) fn parse_notices(bytes: &[u8]) -> impl Iterator<Item = HeaderNotice> {
    bytes.chunks_exact(NOTICE_BYTES).map(|notice| {
        let flow = u16::from_be_bytes([notice[0], notice[1]]);
        HeaderNotice {
            flow: flow & !UNKNOWN,
            id: notice[2],
            known: flow & UNKNOWN == 0,
        }
    })
}
