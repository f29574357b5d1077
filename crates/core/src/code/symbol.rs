//! The bytes that are combined: the check of a datagram, then the datagram as it was sent. Its
//! length takes the place of its number, which the decoder knows.
//!
//! The check tells whether an answer is what was sent. Numbers of a path start anew with each
//! connection, and a repair symbol does not name its connection. A late symbol of the former
//! connection with packets of the next one would give an answer that looks right wherever all these
//! packets agree, for example in their length.

use ropewalk_gf256::add_multiple;
use ropewalk_wire::DATA_HEADER;

const CHECK: usize = size_of::<Check>();
/// Where a datagram carries its number on the path.
const NUMBER: core::ops::Range<usize> = 1..3;
const BLOCK: usize = 16;
/// Odd numbers without pattern.
const START: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// The check of a datagram.
pub type Check = [u8; 4];

/// Bytes of the symbol of `datagram`; 0 of one that is empty and counts as zero.
pub const fn bytes(datagram: &[u8]) -> usize {
    if datagram.is_empty() {
        0
    } else {
        CHECK + datagram.len()
    }
}

/// Adds `factor` times the symbol of `datagram`, which has a whole header, to `to`.
pub fn add(to: &mut Vec<u8>, factor: u8, datagram: &[u8], check: Check) {
    if to.len() < CHECK + datagram.len() {
        to.resize(CHECK + datagram.len(), 0);
    }
    let length = u16::try_from(datagram.len()).unwrap_or(0).to_be_bytes();
    let (front, to) = to.split_at_mut(CHECK);
    add_multiple(front, factor, &check);
    add_multiple(to, factor, &datagram[..NUMBER.start]);
    add_multiple(&mut to[NUMBER], factor, &length);
    add_multiple(&mut to[NUMBER.end..], factor, &datagram[NUMBER.end..]);
}

/// The datagram of a symbol, and its check. `None` for bytes that are not a datagram: some packet
/// was not what it seemed.
pub fn datagram(mut symbol: Vec<u8>, number: u16) -> Option<(Vec<u8>, Check)> {
    let length = symbol.get(CHECK..)?.get(NUMBER)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let rest = symbol.get(CHECK + length..)?;
    if length < DATA_HEADER || rest.iter().any(|&byte| byte != 0) {
        return None;
    }
    symbol.truncate(CHECK + length);
    let sent: Check = symbol[..CHECK].try_into().ok()?;
    symbol.drain(..CHECK);
    symbol[NUMBER].copy_from_slice(&number.to_be_bytes());
    (sent == check(&symbol)).then_some((symbol, sent))
}

/// A hash of the whole datagram, its number included. It is not linear: what a sum of wrong
/// packets gives does not fit the sum of their checks, but for one in 2^32.
pub fn check(datagram: &[u8]) -> Check {
    let mut lanes = [fold(datagram.len() as u64), !START];
    let mut blocks = datagram.chunks_exact(BLOCK);
    for block in &mut blocks {
        mix(&mut lanes, block);
    }
    let mut last = [0; BLOCK];
    let rest = blocks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    mix(&mut lanes, &last);
    let all = fold(lanes[0] ^ lanes[1].rotate_left(32));
    let [.., a, b, c, d] = (all ^ (all >> 32)).to_be_bytes();
    [a, b, c, d]
}

/// Takes in a block, half of it in each lane: neither waits for the other.
fn mix(lanes: &mut [u64; 2], block: &[u8]) {
    for (lane, half) in lanes.iter_mut().zip(block.chunks_exact(BLOCK / 2)) {
        let word = half
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte));
        *lane = fold(*lane ^ word);
    }
}

/// Both halves of a product of 128 bits, one upon the other.
fn fold(word: u64) -> u64 {
    let wide = u128::from(word ^ START) * u128::from(FACTOR);
    #[expect(clippy::cast_possible_truncation, reason = "folding both halves")]
    let folded = (wide >> 64) as u64 ^ wide as u64;
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_is_that_of_the_format() {
        let datagram: Vec<u8> = (0..40).collect();
        assert_eq!(check(&datagram), [0x2b, 0x1d, 0xf1, 0xb4]);
    }

    #[test]
    fn every_bit_and_the_length_change_the_check() {
        let mut datagram = vec![0; 100];
        let mut seen = std::collections::BTreeSet::from([check(&datagram)]);
        for bit in 0..800 {
            datagram[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(check(&datagram)), "bit {bit}");
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        for length in DATA_HEADER..100 {
            assert!(seen.insert(check(&datagram[..length])), "{length} bytes");
        }
    }
}
