//! Puts inner packets together that did not fit a path whole.
//!
//! Bounded in number and time; the oldest gives way. Pieces may come in any order and twice.

use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{DataHeader, FragmentHeader};

/// Inner packets under reassembly at once.
pub(super) const PARTIAL_MAX: usize = 64;
/// Pieces of one inner packet: 65,535 bytes in pieces of 512.
const PIECES_MAX: usize = 128;
/// How long a packet may stay incomplete.
const LIFETIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Partial {
    flow: u16,
    flow_seq: u16,
    data: BytesMut,
    /// Start and length of each piece that came.
    pieces: Vec<(u16, u16)>,
    deadline: Instant,
}

/// Incomplete packets, oldest first.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partial: Vec<Partial>,
    dropped: u64,
}

impl Reassembly {
    /// Takes a piece in; the packet when it is complete. Contradictory pieces are dropped.
    pub fn insert(
        &mut self,
        now: Instant,
        header: &DataHeader,
        fragment: FragmentHeader,
        piece: &[u8],
    ) -> Option<Bytes> {
        let total = usize::from(fragment.total);
        let same = |p: &Partial| p.flow == header.flow && p.flow_seq == header.flow_seq;
        let index = if let Some(index) = self.partial.iter().position(same) {
            index
        } else {
            if self.partial.len() == PARTIAL_MAX {
                self.partial.remove(0);
                self.dropped += 1;
            }
            self.partial.push(Partial {
                flow: header.flow,
                flow_seq: header.flow_seq,
                data: BytesMut::zeroed(total),
                pieces: Vec::new(),
                deadline: now + LIFETIME,
            });
            self.partial.len() - 1
        };
        let partial = &mut self.partial[index];
        let start = usize::from(fragment.offset);
        let end = start + piece.len();
        let length = u16::try_from(piece.len()).ok()?;
        let overlaps = |&(at, len): &(u16, u16)| {
            start < usize::from(at) + usize::from(len) && usize::from(at) < end
        };
        if partial.data.len() != total || end > total || partial.pieces.len() == PIECES_MAX {
            self.dropped += 1;
            return None;
        }
        if partial.pieces.iter().any(overlaps) {
            return None;
        }
        partial.data[start..end].copy_from_slice(piece);
        partial.pieces.push((fragment.offset, length));
        let have: usize = partial
            .pieces
            .iter()
            .map(|&(_, len)| usize::from(len))
            .sum();
        (have == total).then(|| self.partial.remove(index).data.freeze())
    }

    /// How many packets are incomplete.
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.partial.first().map(|p| p.deadline)
    }

    /// Gives up what is too old; returns how many packets or pieces were dropped since the last
    /// call.
    pub fn expire(&mut self, now: Instant) -> u64 {
        let before = self.partial.len();
        self.partial.retain(|p| p.deadline > now);
        let expired = (before - self.partial.len()) as u64;
        expired + std::mem::take(&mut self.dropped)
    }
}
