//! The internet checksum (RFC 1071) over whole packets and pseudo-headers.
//!
//! Sums are kept unfolded in 64 bits and in the machine's byte order, which one's complement
//! addition permits (RFC 1071 §2 (B)); only [`fold`] returns network order.

/// Sum of `bytes` as 16-bit words, added to `sum`; an odd last byte is padded with zero.
///
/// All slices but the last of one checksum must have even length.
pub(crate) fn add(sum: u64, bytes: &[u8]) -> u64 {
    // Words of 32 bits into a 64-bit sum cannot overflow below 16 GiB, and vectorise.
    let chunks = bytes.chunks_exact(4);
    let rest = chunks.remainder();
    let mut total: u64 = chunks
        .map(|c| u64::from(u32::from_ne_bytes([c[0], c[1], c[2], c[3]])))
        .sum();
    if !rest.is_empty() {
        let mut last = [0u8; 4];
        last[..rest.len()].copy_from_slice(rest);
        total += u64::from(u32::from_ne_bytes(last));
    }
    fold_wide(sum) + fold_wide(total)
}

/// The sum as 16 bits in network order, not complemented.
pub(crate) fn fold(sum: u64) -> u16 {
    let mut sum = fold_wide(sum);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::from_be(u16::try_from(sum).unwrap_or(u16::MAX))
}

/// Sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1) of the packet whose addresses are
/// `addresses` (source, then destination).
pub(crate) fn pseudo_header(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let sum = add(0, addresses);
    let sum = add(sum, &[0, protocol]);
    add(sum, &length.to_be_bytes())
}

fn fold_wide(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 §4.1, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::try_from(sum).expect("folded")
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(
            fold(add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])),
            0xddf2
        );
    }

    proptest! {
        #[test]
        fn agrees_with_the_plain_definition(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(fold(add(0, &bytes)), reference(&bytes));
        }

        #[test]
        fn parts_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..500), cut in 0usize..250) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(fold(add(add(0, a), b)), reference(&bytes));
        }
    }
}
