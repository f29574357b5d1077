//! TCP as Linux sends and receives it: selective acknowledgements, RACK, tail loss probes,
//! proportional rate reduction, and undoing what reordering caused.
//!
//! Sequence numbers count segments, not bytes. Sources are named where the rules are.

mod receiver;
mod recovery;
mod scoreboard;
mod sender;

pub use receiver::Receiver;
pub use sender::{LossDetection, Sender, Settings};
