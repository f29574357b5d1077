//! NEON, 16 bytes at a time.

use crate::table::{HALVES, Halves};
use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};
use std::arch::is_aarch64_feature_detected;

/// Adds to as much of the front as whole vectors cover; how much that was.
pub fn add_multiple(to: &mut [u8], factor: u8, from: &[u8]) -> usize {
    if !is_aarch64_feature_detected!("neon") {
        return 0;
    }
    // SAFETY: the processor has NEON.
    unsafe { add_multiple_neon(to, &HALVES[usize::from(factor)], from) }
}

pub fn implementation() -> &'static str {
    if is_aarch64_feature_detected!("neon") {
        "neon"
    } else {
        "scalar"
    }
}

#[target_feature(enable = "neon")]
fn add_multiple_neon(to: &mut [u8], halves: &Halves, from: &[u8]) -> usize {
    let (low, high) = (load(&halves.low), load(&halves.high));
    let mask = vdupq_n_u8(0x0f);
    let (to, _) = to.as_chunks_mut::<16>();
    let (from, _) = from.as_chunks::<16>();
    for (to, from) in to.iter_mut().zip(from) {
        let bytes = load(from);
        let below = vqtbl1q_u8(low, vandq_u8(bytes, mask));
        let above = vqtbl1q_u8(high, vshrq_n_u8::<4>(bytes));
        store(to, veorq_u8(load(to), veorq_u8(below, above)));
    }
    to.len() * 16
}

#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes may be read, at any alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[target_feature(enable = "neon")]
fn store(bytes: &mut [u8; 16], value: uint8x16_t) {
    // SAFETY: 16 bytes may be written, at any alignment.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), value) }
}
