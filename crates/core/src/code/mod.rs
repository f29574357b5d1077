//! Redundancy ahead of loss: a path that loses packets by itself gets coded datagrams. From these
//! the egress recovers lost packets without asking, in a few milliseconds instead of a round trip.
//!
//! The code is systematic and slides: packets travel as they are. Every now and then a linear
//! repair symbol over GF(256) of the last packets of the path follows, by preference on another
//! path. (Random linear codes with a sliding window as in RFC 8681, without its fixed sizes.)
//! Packets that the code cannot recover are repaired on request as before ([`crate::repair`]).
//!
//! Invariants: nothing waits for a coded datagram longer than a few of their intervals. A wrong
//! packet is never passed on: a recovered one must parse, end where it says and fit its check.

mod block;
mod coefficient;
mod decoder;
mod encoder;
mod sizing;
mod symbol;
mod tuning;

pub use decoder::Decoder;

pub use block::BlockEncoder;
pub use encoder::{Coded, Encoder};
pub use sizing::{block_combinations, redundancy};
pub(crate) use tuning::{BLOCK_PACKETS, WINDOW_PACKETS};
pub use tuning::{EQUATIONS_MAX, REDUNDANCY_MAX, ROW_MAX};
