//! Repair symbols of disjoint blocks of packets, for comparison with the window that slides.
//! TCP/NC codes disjoint blocks, too, and sends combinations only (Ha and Tsuru, "On the
//! characteristics of TCP/NC tunneling in heterogeneous environments", §2.1). Here the packets
//! themselves are sent as well, so that a loss delays only what is behind it.

use super::encoder::{Coded, Covered, combine};
use super::tuning::{BLOCK_PACKETS, SPAN_MAX};
use bytes::Bytes;
use ropewalk_types::Instant;
use ropewalk_wire::{CODED_SEEDS, DATA_HEADER};

/// The block of one path that is being filled.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    block: Vec<Covered>,
    repair_symbols: usize,
    /// Repair symbols of blocks that are complete, last first.
    ready: Vec<Coded>,
    seed: u8,
    used: bool,
}

impl BlockEncoder {
    /// Sets how many repair symbols follow a whole block.
    pub const fn set_repair_symbols(&mut self, repair_symbols: usize) {
        self.repair_symbols = repair_symbols;
    }

    /// Whether any packets were to be combined in blocks.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// The path carries `datagram`, with its whole header, under this number; numbers must not go
    /// back.
    pub fn on_sent(&mut self, now: Instant, number: u16, datagram: &Bytes) {
        self.used = true;
        if self.repair_symbols == 0 || datagram.len() < DATA_HEADER {
            self.block.clear();
            return;
        }
        let spans = |first: &Covered| number.wrapping_sub(first.number) < SPAN_MAX;
        if !self.block.first().is_none_or(spans) {
            self.block.clear();
        }
        self.block.push(Covered::new(now, number, datagram));
        if self.block.len() == BLOCK_PACKETS {
            self.complete(self.repair_symbols);
        }
    }

    /// The peer asked for `count` numbers from `first` on: it gets these packets by themselves.
    pub fn on_repair(&mut self, first: u16, count: u16) {
        self.block
            .retain(|covered| covered.number.wrapping_sub(first) >= count);
    }

    /// Nothing followed the last packets: the block ends here.
    pub fn on_pause(&mut self) {
        let share = self.repair_symbols * self.block.len();
        self.complete(share.div_ceil(BLOCK_PACKETS));
    }

    /// Combines the block and begins the next one. What has not been sent of the one before is worth
    /// less.
    fn complete(&mut self, repair_symbols: usize) {
        if self.block.is_empty() {
            return;
        }
        self.ready.clear();
        for _ in 0..repair_symbols {
            self.seed = (self.seed + 1) % CODED_SEEDS;
            self.ready.push(combine(&mut self.block, self.seed));
        }
        self.block.clear();
    }

    /// Whether a repair symbol is due.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        !self.ready.is_empty()
    }

    /// How many packets the next repair symbol would cover.
    pub(crate) fn len(&self) -> usize {
        self.block.len()
    }

    /// The next repair symbol that is due, if one is.
    pub fn poll(&mut self) -> Option<Coded> {
        self.ready.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    fn packet(number: u16) -> Bytes {
        let mut bytes = vec![0x12; 60 + usize::from(number % 7)];
        bytes[1..3].copy_from_slice(&number.to_be_bytes());
        bytes[40] = number.to_le_bytes()[0];
        bytes.into()
    }

    /// Sends whole blocks, loses the numbers that `lost` says, and returns the recovered ones.
    fn recovered(blocks: u16, repair_symbols: usize, lost: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut encoder = BlockEncoder::default();
        encoder.set_repair_symbols(repair_symbols);
        let mut decoder = Decoder::new(Instant::ZERO);
        let mut found = Vec::new();
        for number in 0..blocks * BLOCK_PACKETS as u16 {
            let datagram = packet(number);
            encoder.on_sent(Instant::ZERO, number, &datagram);
            if !lost(number) {
                decoder.on_datagram(number, Some(&datagram));
            }
            while let Some(coded) = encoder.poll() {
                decoder.on_coded(Instant::ZERO, coded);
            }
            while let Some((number, bytes)) = decoder.poll() {
                assert_eq!(bytes, packet(number));
                found.push(number);
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn a_block_makes_up_for_as_many_losses_as_it_has_combinations_and_no_more() {
        let lost = |number: u16| number % 10 == 3;
        let all: Vec<u16> = (0..120).filter(|n| lost(*n)).collect();
        assert_eq!(recovered(3, 4, lost), all);
        assert_eq!(recovered(3, 3, lost), []);
    }

    #[test]
    fn the_end_of_what_is_sent_ends_the_block() {
        let mut encoder = BlockEncoder::default();
        encoder.set_repair_symbols(8);
        for number in 0..10 {
            encoder.on_sent(Instant::ZERO, number, &packet(number));
        }
        assert!(encoder.poll().is_none());
        encoder.on_pause();
        assert_eq!(core::iter::from_fn(|| encoder.poll()).count(), 2);
        assert_eq!(encoder.len(), 0);
    }
}
