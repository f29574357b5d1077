//! What the fuzzers in `fuzz/` do with one input: a function each, that panics where a claim of the
//! code does not hold. The test `corpora` does the same with every input that is kept.

#![forbid(unsafe_code)]

mod decoder;
mod dns;
mod feedback;
mod headers;
pub mod hub;
mod input;
mod strangers;
mod tcpnc;
mod texts;
mod wire;
pub mod work;

pub use decoder::decoder;
pub use dns::dns;
pub use feedback::feedback;
pub use headers::headers;
pub use hub::hub;
pub use strangers::{quic, tls};
pub use tcpnc::tcpnc;
pub use texts::{api, config, token, trace};
pub use wire::wire;
pub use work::work;
