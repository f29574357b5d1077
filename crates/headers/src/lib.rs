//! Compression of inner headers, and the size of TCP's segments that follows from it.
//!
//! A *reference* is the headers of one packet of a flow, which the egress has confirmed to know.
//! Packets of that flow travel as differences from it. A packet can be read however many others
//! were lost, copied or overtaken, because the reference is all that is needed, and both ends
//! have it. Until the egress has confirmed, packets travel in full. So a peer that knows nothing
//! of references loses nothing.
//!
//! [`Compressor`] is the ingress's side, [`Expander`] the egress's. Neither does I/O; time comes in.
//! What comes out of the expander is what went into the compressor, byte for byte. Packets whose
//! lengths or sums do not fit, fragments, and rare options of IP are never compressed.

#![forbid(unsafe_code)]

mod compressor;
mod expander;
mod layout;
mod places;
mod reference;
mod segments;
mod tuning;

pub use compressor::Compressor;
pub use expander::Expander;
pub use segments::{PacketSizes, limit_segments};
pub use tuning::{COMPRESSED_TCP, COMPRESSED_UDP};

use thiserror::Error;

/// Longest headers that a packet may have after it was expanded, bytes.
pub const HEADERS_MAX: usize = layout::HEADERS_MAX;

/// Why a packet could not be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExpandError {
    /// The reference is not known (any more); the peer is told.
    #[error("unknown reference")]
    Unknown,
    /// What the peer sent is malformed.
    #[error("malformed headers")]
    Invalid,
}

#[cfg(test)]
mod tests;
