//! Every constant with its unit, what a larger value costs, and its source.
//!
//! "The tunnel paper" is Nguyen Viet Ha and Masato Tsuru, "On the characteristics of TCP/NC
//! tunneling in heterogeneous environments". "Assumed" marks what no public source gives.

use ropewalk_types::Duration;

/// Inner packets that wait or are unacknowledged, at most. More delays the hosts' packets longer.
/// The tunnel paper, §3.1.
pub const SEND_BUFFER_PACKETS: usize = 163;
/// Largest window, segments: 64 KiB of segments of 1,040 bytes, since the window is not scaled.
/// More fills the link's buffer. The tunnel paper, §2.2.
pub const WINDOW_MAX: u32 = 63;
/// First window, segments. More is a burst at the start only. ns-3 of 2018 has 1.
pub const INITIAL_WINDOW: u32 = 1;
/// Duplicate acknowledgements that mean a loss. More waits longer. RFC 5681 §3.2.
pub const DUPLICATES: u32 = 3;
/// Retransmission timeout: before the first sample, least and most. A larger least waits longer
/// after a lost tail. RFC 6298 §2.
pub const RTO_INITIAL: Duration = Duration::from_secs(1);
/// See [`RTO_INITIAL`].
pub const RTO_MIN: Duration = Duration::from_secs(1);
/// See [`RTO_INITIAL`].
pub const RTO_MAX: Duration = Duration::from_secs(60);

/// Packets of a coding window (`n`). More needs less redundancy for an equal chance, and waits
/// longer for the end of a window with losses. Assumed: with [`SUCCESS_MIN`] it gives the paper's
/// greatest redundancy factor of about 1.5 at a loss of 20 %.
pub const WINDOW_PACKETS: u8 = 20;
/// Greatest redundancy factor (`R = (n + k) / n`). More fills the link with redundancy. The tunnel
/// paper, §2.2: about 1.5.
pub const REDUNDANCY_MAX: f64 = 1.5;
/// Chance that a coding window is decoded without retransmission. More costs redundancy, less
/// costs halved windows. Assumed; the authors compute such a chance, but publish no value that we
/// found.
pub const SUCCESS_MIN: f64 = 0.97;
/// Combinations that the estimate of the loss looks back on. More is steadier and slower: 500 are
/// 2 s at 2 Mbit/s. Assumed.
pub const OBSERVED: usize = 500;
/// Combinations before the first estimate. Assumed.
pub const OBSERVED_MIN: usize = 20;
/// A coding window that TCP does not fill in this time ends with its share of redundancy. More
/// leaves the last packets before a pause unprotected for longer. Assumed: a round trip of a hop.
pub const FLUSH: Duration = Duration::from_millis(20);

/// Most bytes of an inner packet; more does not fit into a datagram of 1,500 bytes.
pub const PACKET_MAX: usize = 1_500 - crate::wire::OUTER_HEADERS - crate::wire::LENGTH_BYTES;
