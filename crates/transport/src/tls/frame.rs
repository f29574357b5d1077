//! Frames in a byte stream: two bytes of length, big-endian, then so many bytes.
//!
//! Invariant: no more than one unfinished frame is held.

use bytes::{Buf, Bytes, BytesMut};

/// Largest datagram in a frame: with its header it fits one TLS record (RFC 8446 §5.1).
pub const DATAGRAM_MAX: usize = (1 << 14) - HEADER_BYTES;
/// Bytes before the datagram.
pub(super) const HEADER_BYTES: usize = 2;

/// Appends a frame; `datagram` is at most [`DATAGRAM_MAX`] bytes.
pub(super) fn write(out: &mut Vec<u8>, datagram: &[u8]) {
    debug_assert!(datagram.len() <= DATAGRAM_MAX);
    let length = u16::try_from(datagram.len()).unwrap_or(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&datagram[..usize::from(length)]);
}

/// Cuts a byte stream into datagrams.
#[derive(Debug, Default)]
pub(super) struct Deframer {
    buffer: BytesMut,
}

impl Deframer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole datagram, or the length of one that is too long.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, usize> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*header));
        if length > DATAGRAM_MAX {
            return Err(length);
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut stream = Vec::new();
        let datagrams: Vec<Vec<u8>> = vec![vec![], vec![1], vec![2; 300], vec![3; DATAGRAM_MAX]];
        for datagram in &datagrams {
            write(&mut stream, datagram);
        }
        for cut in [1, 2, 3, 7, 255, 4096] {
            let mut deframer = Deframer::default();
            let mut found = Vec::new();
            for part in stream.chunks(cut) {
                deframer.push(part);
                while let Some(frame) = deframer.next().unwrap() {
                    found.push(frame.to_vec());
                }
            }
            assert_eq!(found, datagrams, "cut {cut}");
        }
    }

    #[test]
    fn an_impossible_length_is_refused_at_once() {
        let mut deframer = Deframer::default();
        deframer.push(&[0xff, 0xff]);
        assert_eq!(deframer.next(), Err(0xffff));
    }
}
