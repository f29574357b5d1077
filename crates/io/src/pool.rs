//! Memory for received packets: large blocks cut into packets, used again when all packets of a
//! block are gone.
//!
//! Invariant: the pool holds at most [`PARKED_MAX`] blocks. Memory beyond belongs to packets in use
//! and is freed with them. In steady state nothing is allocated.

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::HEADROOM;

/// Blocks kept for reuse.
const PARKED_MAX: usize = 32;

/// A source of blocks of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    current: BytesMut,
    parked: VecDeque<BytesMut>,
    block_bytes: usize,
}

impl Pool {
    pub(crate) fn new(block_bytes: usize) -> Self {
        Self {
            current: BytesMut::new(),
            parked: VecDeque::with_capacity(PARKED_MAX),
            block_bytes,
        }
    }

    /// [`HEADROOM`] bytes, then `header` and `payload`, cut from the current block.
    pub(crate) fn packet(&mut self, header: &[u8], payload: &[u8]) -> BytesMut {
        let needed = HEADROOM + header.len() + payload.len();
        debug_assert!(needed <= self.block_bytes);
        if self.current.capacity() < needed {
            let spent = std::mem::take(&mut self.current);
            self.current = self.exchange(spent);
        }
        self.current.extend_from_slice(&[0; HEADROOM]);
        self.current.extend_from_slice(header);
        self.current.extend_from_slice(payload);
        self.current.split()
    }

    /// Takes back the empty rest of a block and gives an empty one of the full size.
    pub(crate) fn exchange(&mut self, spent: BytesMut) -> BytesMut {
        debug_assert!(spent.is_empty());
        if spent.capacity() > 0 || self.parked.is_empty() {
            self.parked.push_back(spent);
        }
        // The newest first: where packets go on at once, a few blocks then do, and the processor's
        // cache holds them. Else the oldest: its packets are the likeliest to be gone.
        let count = self.parked.len();
        for index in [count.wrapping_sub(1), count.wrapping_sub(2), 0, 1] {
            let block = self.parked.get_mut(index);
            if block.is_some_and(|block| block.try_reclaim(self.block_bytes)) {
                return self.parked.remove(index).unwrap_or_default();
            }
        }
        // Others are looked at next time.
        self.parked.rotate_left(count.min(2));
        if count > PARKED_MAX {
            self.parked.pop_back();
        }
        BytesMut::with_capacity(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again_once_their_packets_are_gone() {
        let mut pool = Pool::new(4096);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let packet = pool.packet(&[1; 20], &[2; 980]);
            assert_eq!(packet.len(), HEADROOM + 1000);
            places.insert(packet.as_ptr() as usize);
        }
        assert!(places.len() <= 16, "{} places", places.len());
    }

    #[test]
    fn packets_in_use_are_never_overwritten() {
        let mut pool = Pool::new(4096);
        let kept: Vec<_> = (0..1000u32)
            .map(|i| {
                pool.packet(
                    &i.to_be_bytes(),
                    &[u8::try_from(i % 251).expect("small"); 500],
                )
            })
            .collect();
        assert!(pool.parked.len() <= PARKED_MAX);
        for (i, packet) in (0..1000u32).zip(&kept) {
            assert_eq!(packet[HEADROOM..HEADROOM + 4], i.to_be_bytes());
            assert!(
                packet[HEADROOM + 4..]
                    .iter()
                    .all(|b| u32::from(*b) == i % 251)
            );
        }
    }

    #[test]
    fn a_long_lived_packet_does_not_stop_reuse_of_the_others() {
        let mut pool = Pool::new(4096);
        let _kept = pool.packet(&[], &[0; 100]);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            places.insert(pool.packet(&[], &[0; 1000]).as_ptr() as usize);
        }
        assert!(places.len() <= 32, "{} places", places.len());
    }
}
