//! The widest vectors this processor has, found when the program runs.

use crate::add_multiple_scalar;

#[cfg(target_arch = "x86_64")]
#[path = "vector/x86_64.rs"]
mod processor;

#[cfg(target_arch = "aarch64")]
#[path = "vector/aarch64.rs"]
mod processor;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod processor {
    pub fn add_multiple(_to: &mut [u8], _factor: u8, _from: &[u8]) -> usize {
        0
    }
    pub fn implementation() -> &'static str {
        "scalar"
    }
}

pub use processor::implementation;

/// Adds `factor` times `from` to `to`, both of one length.
pub fn add_multiple(to: &mut [u8], factor: u8, from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    let done = processor::add_multiple(to, factor, from);
    add_multiple_scalar(&mut to[done..], factor, &from[done..]);
}
