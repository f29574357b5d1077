//! What an egress awaits: packets of flows that keep a rhythm, once they are overdue.

use crate::{FLOW_MASK, WireError};

/// Most packets in one NACK.
pub const DEADLINE_NACKS_MAX: usize = 64;
const BYTES: usize = 4;

/// One packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineNack {
    /// Flow bucket, `0..4096`.
    pub flow: u16,
    /// Its sequence number within the bucket.
    pub flow_seq: u16,
}

pub(crate) fn emit(packets: &[DeadlineNack], out: &mut Vec<u8>) {
    for packet in packets.iter().take(DEADLINE_NACKS_MAX) {
        out.extend_from_slice(&(packet.flow & FLOW_MASK).to_be_bytes());
        out.extend_from_slice(&packet.flow_seq.to_be_bytes());
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<(), WireError> {
    let whole = bytes.len().is_multiple_of(BYTES) && bytes.len() <= DEADLINE_NACKS_MAX * BYTES;
    if whole && parse(bytes).all(|packet| packet.flow <= FLOW_MASK) {
        Ok(())
    } else {
        Err(WireError::Invalid)
    }
}

pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = DeadlineNack> {
    bytes.chunks_exact(BYTES).map(|packet| DeadlineNack {
        flow: u16::from_be_bytes([packet[0], packet[1]]),
        flow_seq: u16::from_be_bytes([packet[2], packet[3]]),
    })
}
