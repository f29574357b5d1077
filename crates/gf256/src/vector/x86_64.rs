//! AVX2, 32 bytes at a time, or SSSE3, 16.

use crate::table::{HALVES, Halves};
use std::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_shuffle_epi8,
    _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

/// Adds to as much of the front as whole vectors cover; how much that was.
pub fn add_multiple(to: &mut [u8], factor: u8, from: &[u8]) -> usize {
    let halves = &HALVES[usize::from(factor)];
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { add_multiple_avx2(to, halves, from) }
    } else if is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has SSSE3.
        unsafe { add_multiple_ssse3(to, halves, from) }
    } else {
        0
    }
}

pub fn implementation() -> &'static str {
    if is_x86_feature_detected!("avx2") {
        "avx2"
    } else if is_x86_feature_detected!("ssse3") {
        "ssse3"
    } else {
        "scalar"
    }
}

#[target_feature(enable = "avx2")]
fn add_multiple_avx2(to: &mut [u8], halves: &Halves, from: &[u8]) -> usize {
    let low = _mm256_broadcastsi128_si256(load16(&halves.low));
    let high = _mm256_broadcastsi128_si256(load16(&halves.high));
    let mask = _mm256_set1_epi8(0x0f);
    let (to, _) = to.as_chunks_mut::<32>();
    let (from, _) = from.as_chunks::<32>();
    for (to, from) in to.iter_mut().zip(from) {
        let bytes = load32(from);
        let below = _mm256_and_si256(bytes, mask);
        let above = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask);
        let product = _mm256_xor_si256(
            _mm256_shuffle_epi8(low, below),
            _mm256_shuffle_epi8(high, above),
        );
        store32(to, _mm256_xor_si256(load32(to), product));
    }
    to.len() * 32
}

#[target_feature(enable = "ssse3")]
fn add_multiple_ssse3(to: &mut [u8], halves: &Halves, from: &[u8]) -> usize {
    let (low, high) = (load16(&halves.low), load16(&halves.high));
    let mask = _mm_set1_epi8(0x0f);
    let (to, _) = to.as_chunks_mut::<16>();
    let (from, _) = from.as_chunks::<16>();
    for (to, from) in to.iter_mut().zip(from) {
        let bytes = load16(from);
        let below = _mm_and_si128(bytes, mask);
        let above = _mm_and_si128(_mm_srli_epi64::<4>(bytes), mask);
        let product = _mm_xor_si128(_mm_shuffle_epi8(low, below), _mm_shuffle_epi8(high, above));
        store16(to, _mm_xor_si128(load16(to), product));
    }
    to.len() * 16
}

#[target_feature(enable = "avx2")]
fn load32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes may be read, at any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store32(bytes: &mut [u8; 32], value: __m256i) {
    // SAFETY: 32 bytes may be written, at any alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "sse2")]
fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes may be read, at any alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "sse2")]
fn store16(bytes: &mut [u8; 16], value: __m128i) {
    // SAFETY: 16 bytes may be written, at any alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::add_multiple_scalar;

    /// [`add_multiple`] takes the widest way only: this one has its own test.
    #[test]
    fn vectors_of_16_bytes_give_what_the_table_says() {
        if !is_x86_feature_detected!("ssse3") {
            eprintln!("no SSSE3 here: nothing compared");
            return;
        }
        let from: Vec<u8> = (0..=255).cycle().take(300).collect();
        for (factor, halves) in (0..=255).zip(&HALVES) {
            let mut fast = vec![0xa5; from.len()];
            let mut slow = fast.clone();
            // SAFETY: the processor has SSSE3.
            let done = unsafe { add_multiple_ssse3(&mut fast, halves, &from) };
            add_multiple_scalar(&mut slow[..done], factor, &from[..done]);
            assert_eq!((done, fast), (288, slow), "factor {factor}");
        }
    }
}
