//! Puts inner packets together that did not fit a path whole, and takes apart what no longer fits.
//!
//! Bounded in number and time; the oldest gives way. Pieces may come in any order and twice.

use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{DataHeader, Datagram, FRAGMENT_HEADER, FragmentHeader};

/// Smallest piece worth a datagram; QUIC guarantees far more (RFC 9000 §14).
pub(super) const PIECE_MIN: usize = 512;

/// Inner packets under reassembly at once.
pub(super) const PARTIAL_MAX: usize = 64;
/// Pieces of one inner packet: 65,535 bytes in pieces of 512.
const PIECES_MAX: usize = 128;
/// How long a packet may stay incomplete.
const LIFETIME: Duration = Duration::from_secs(1);

/// Takes a packet or piece that was sent before apart into datagrams of at most `room` bytes, each with
/// the header of the whole; nothing when it is neither, fits, or the pieces would be too small.
pub(super) fn split(datagram: &Bytes, room: usize) -> Vec<Bytes> {
    let (header, first, total, at) = match Datagram::parse(datagram) {
        Ok(Datagram::Data { header, at }) => (header, 0, datagram.len() - at, at),
        Ok(Datagram::Fragment {
            header,
            fragment,
            at,
        }) => (
            header,
            usize::from(fragment.offset),
            usize::from(fragment.total),
            at,
        ),
        _ => return Vec::new(),
    };
    if room < FRAGMENT_HEADER + PIECE_MIN || datagram.len() <= room {
        return Vec::new();
    }
    let piece_max = room - FRAGMENT_HEADER;
    let pieces = datagram[at..].chunks(piece_max).enumerate();
    let written = pieces.map(|(index, piece)| {
        let fragment = FragmentHeader {
            offset: u16::try_from(first + index * piece_max).unwrap_or(u16::MAX),
            total: u16::try_from(total).unwrap_or(u16::MAX),
        };
        let mut front = [0; FRAGMENT_HEADER];
        header.emit_fragment(&fragment, &mut front);
        let mut datagram = BytesMut::with_capacity(FRAGMENT_HEADER + piece.len());
        datagram.extend_from_slice(&front);
        datagram.extend_from_slice(piece);
        datagram.freeze()
    });
    written.collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_wire::DATA_HEADER;

    #[test]
    fn what_is_split_twice_is_put_together_again() {
        let header = DataHeader {
            checksum_partial: true,
            ordered: true,
            flow: 7,
            flow_seq: 9,
            ..DataHeader::default()
        };
        let inner: Vec<u8> = (0..3_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut whole = vec![0; DATA_HEADER];
        header.emit((&mut whole[..]).try_into().expect("a header"));
        whole.extend_from_slice(&inner);
        let once = split(&whole.into(), 1_400);
        let twice: Vec<Bytes> = once.iter().flat_map(|piece| split(piece, 800)).collect();
        // The last one fits.
        assert_eq!((once.len(), twice.len()), (3, 4));
        assert!(twice.iter().all(|piece| piece.len() <= 800));
        assert!(split(&twice[0], 800).is_empty(), "it fits");
        assert!(split(&once[0], 100).is_empty(), "pieces too small");
        let mut reassembly = Reassembly::default();
        let mut complete = Vec::new();
        for piece in once[2..].iter().chain(twice.iter().rev()) {
            let Ok(Datagram::Fragment {
                header: of_piece,
                fragment,
                at,
            }) = Datagram::parse(piece)
            else {
                panic!("not a piece");
            };
            assert_eq!(of_piece, header);
            let piece = &piece[at..];
            complete.extend(reassembly.insert(Instant::ZERO, &header, fragment, piece));
        }
        assert_eq!(complete, [Bytes::from(inner)]);
    }
}
