//! Repair symbols of what a path carried: who is combined, and which part of the sum this is.

use crate::{DATA_HEADER, KIND_CODED, Stamp, WireError, emit_stamp, parse_stamp};

/// The sum goes on in a second datagram.
const FLAG_FRONT: u8 = 0x80;
/// This is that second datagram.
const FLAG_REST: u8 = 0x40;

/// Seeds that fit the header.
pub const CODED_SEEDS: u8 = 64;

/// Which part of a sum a datagram holds: one that covers packets of full size does not fit one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The front; the rest follows.
    Front,
    /// What did not fit the front.
    Rest,
}

/// Header of a repair symbol, [`DATA_HEADER`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedHeader {
    /// Path sequence and time of this datagram itself.
    pub stamp: Stamp,
    /// The path whose packets are combined, `0..16`.
    pub path: u8,
    /// The first number covered.
    pub first: u16,
    /// How many, at least 1.
    pub count: u8,
    /// Decides the coefficients, `0..64`.
    pub seed: u8,
    /// What of the sum follows.
    pub part: Part,
}

impl CodedHeader {
    /// Appends the header; the sum, or its part, follows.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let part = match self.part {
            Part::Whole => 0,
            Part::Front => FLAG_FRONT,
            Part::Rest => FLAG_REST,
        };
        let mut header = [0; DATA_HEADER];
        header[0] = KIND_CODED << 4 | (self.path & 15);
        emit_stamp(self.stamp, &mut header);
        header[6] = self.count;
        header[7..9].copy_from_slice(&self.first.to_be_bytes());
        header[9] = part | (self.seed % CODED_SEEDS);
        out.extend_from_slice(&header);
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() <= DATA_HEADER {
            return Err(WireError::Truncated);
        }
        let part = match bytes[9] & (FLAG_FRONT | FLAG_REST) {
            0 => Part::Whole,
            FLAG_FRONT => Part::Front,
            FLAG_REST => Part::Rest,
            _ => return Err(WireError::Invalid),
        };
        if bytes[6] == 0 {
            return Err(WireError::Invalid);
        }
        Ok(Self {
            stamp: parse_stamp(bytes)?,
            path: bytes[0] & 15,
            first: u16::from_be_bytes([bytes[7], bytes[8]]),
            count: bytes[6],
            seed: bytes[9] % CODED_SEEDS,
            part,
        })
    }
}
