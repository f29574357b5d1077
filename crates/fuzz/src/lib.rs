//! What the fuzzers in `fuzz/` do with one input: a function each, that panics where a claim of the
//! code does not hold. The test `corpora` does the same with every input that is kept.

#![forbid(unsafe_code)]

mod decoder;
mod feedback;
pub mod hub;
mod input;
mod wire;
pub mod work;

pub use decoder::decoder;
pub use feedback::feedback;
pub use hub::hub;
pub use wire::wire;
pub use work::work;
