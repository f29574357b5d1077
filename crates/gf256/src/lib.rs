//! Arithmetic in GF(256) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), the field of RFC
//! 8681 §3.7.1, for single elements and for slices of them.
//!
//! Addition is exclusive or. Slices are multiplied 16 or 32 bytes at a time where the processor
//! can (AVX2, SSSE3, NEON): a product is the sum of the products of both halves of a byte, which
//! are looked up in two tables of 16 bytes within one register (Plank, Greenan and Miller,
//! "Screaming Fast Galois Field Arithmetic", FAST 2013). Everywhere else, and for what is left at
//! the end of a slice, a table of all products serves; both give the same bytes.

mod table;
mod vector;

use table::{EXP, LOG, PRODUCTS};

/// Product of two elements.
#[must_use]
pub fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// The element whose product with `a` is one; zero for zero.
#[must_use]
pub fn inverse(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// Adds `factor` times `from` to the front of `to`; what of `from` is longer than `to` is left out.
pub fn add_multiple(to: &mut [u8], factor: u8, from: &[u8]) {
    let length = to.len().min(from.len());
    let (to, from) = (&mut to[..length], &from[..length]);
    match factor {
        0 => {}
        1 => add(to, from),
        _ => vector::add_multiple(to, factor, from),
    }
}

/// Multiplies in place.
pub fn scale(bytes: &mut [u8], factor: u8) {
    let products = &PRODUCTS[usize::from(factor)];
    for byte in bytes {
        *byte = products[usize::from(*byte)];
    }
}

/// [`add_multiple`] without vectors: what the faster ways are compared with.
pub fn add_multiple_scalar(to: &mut [u8], factor: u8, from: &[u8]) {
    let products = &PRODUCTS[usize::from(factor)];
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= products[usize::from(*from)];
    }
}

/// The way slices are multiplied on this processor: `avx2`, `ssse3`, `neon` or `scalar`.
#[must_use]
pub fn implementation() -> &'static str {
    vector::implementation()
}

fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_element_but_zero_has_an_inverse_and_products_distribute() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                assert_eq!(multiply(a, b ^ 0x53), multiply(a, b) ^ multiply(a, 0x53));
            }
        }
        // 2^8 is what the polynomial leaves.
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert_eq!(inverse(0), 0);
    }

    #[test]
    fn every_factor_gives_what_the_table_says_at_every_length() {
        let from: Vec<u8> = (0..=255).cycle().take(300).collect();
        for factor in 0..=255 {
            for length in [0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 256, 300] {
                let mut fast = vec![0xa5; length];
                let mut slow = fast.clone();
                add_multiple(&mut fast, factor, &from[..length]);
                add_multiple_scalar(&mut slow, factor, &from[..length]);
                assert_eq!(fast, slow, "factor {factor}, length {length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_at_any_offset_are_multiplied_alike(
            bytes in proptest::collection::vec(any::<u8>(), 0..2_000),
            start in 0_usize..40,
            factor in any::<u8>(),
            extra in 0_usize..40,
        ) {
            let from = &bytes[start.min(bytes.len())..];
            let mut fast = vec![0x3c; from.len() + extra];
            let mut slow = fast.clone();
            add_multiple(&mut fast, factor, from);
            add_multiple_scalar(&mut slow, factor, from);
            prop_assert_eq!(&fast, &slow);
            // Twice the same is nothing.
            add_multiple(&mut fast, factor, from);
            prop_assert!(fast.iter().all(|&byte| byte == 0x3c));
            // And scaling is adding to nothing.
            let mut scaled = from.to_vec();
            scale(&mut scaled, factor);
            let mut added = vec![0; from.len()];
            add_multiple(&mut added, factor, from);
            prop_assert_eq!(scaled, added);
        }
    }
}
