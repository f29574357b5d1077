//! Transport protocols of hosts: senders, receivers, congestion control.
//!
//! Times inside are nanoseconds of virtual time in plain words, since they are touched several
//! times per packet; every name says so. Windows are counted in segments, as Linux does.

pub mod congestion;
pub mod pacing;
pub mod plain;
pub mod quic;
pub mod ranges;
pub mod rtt;
pub mod tcp;

/// Receive window in bytes: the largest buffer Linux gives a connection by default.
pub const RECEIVE_WINDOW_BYTES: u64 = 6 << 20;

/// Milliseconds in nanoseconds.
pub const MS: u64 = 1_000_000;

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Segments or packets sent, all together.
    pub sent: u64,
    /// Of them, content sent before.
    pub retransmits: u64,
    /// Losses that were none: a copy arrived, or a packet after it had been given up.
    pub spurious: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}
