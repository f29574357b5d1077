//! Every constant that all congestion controls share; those of `bdp` have a table of their own.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" names the document with the figures. A constant without that word was not measured
//! by itself.

use std::time::Duration;

// Jitter.

/// Weight of one observation in the mean. Larger: sooner right, noisier.
pub(super) const JITTER_WEIGHT: f64 = 0.1;
/// Rounds over which delay spikes count. More: steadier, later to forget.
pub(super) const SPIKE_ROUNDS: usize = 4;
/// Seconds of a delay spike that say nothing: acknowledgements wait for one another. Larger: small
/// spikes go unseen.
pub(super) const SPIKE_FREE: f64 = 0.005;
/// Share that chance leaves of the mean when a delay must turn twice instead of once to count.
pub(super) const TURNED_TWICE: f64 = 0.47;

// Delivery rate, round trips and what is in flight.

/// Most batches of sent packets remembered; older ones are forgotten first. More: longer fast
/// paths are measured whole, more memory.
pub(super) const RECORDS_MAX: usize = 16_384;
/// Round trips over which the largest delivery rate counts. More: steadier, later to follow a
/// fall.
pub(super) const RATE_WINDOW_RTTS: f64 = 10.0;
/// Shortest window of the delivery rate. Longer: steadier on short paths, later to follow a fall.
pub(super) const RATE_WINDOW_MIN: Duration = Duration::from_millis(100);
/// Time over which the smallest RTT counts. Longer: surer to see an empty queue, later to follow
/// a path that has become longer.
pub(super) const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// Two round trips and four variations are a usual silence, and this much more: a tunnel takes a path for silent then.
/// Longer: RTTs of short paths count that are none, fewer true ones are left out.
pub(super) const SILENCE_MARGIN: Duration = Duration::from_millis(60);
/// A record this much older than a loss would be found is forgotten. Longer: more memory, fewer
/// packets forgotten while they are still in flight.
pub(super) const FORGET_AFTER: Duration = Duration::from_millis(100);
/// A window with less than this left, bytes, is used up: the next packet may not fit. Two packets if
/// that is more.
pub(super) const WINDOW_SLACK: u64 = 3_000;

// What may wait behind a path. More: fuller paths, packets are bound to a path earlier.

/// Packets that may wait behind a blocked path. Measured in `docs/decisions/congestion-control.md`:
/// with these alone a sender that comes once a millisecond stayed at 23 Mbit/s.
pub(super) const QUEUE_PACKETS: u64 = 2;
/// Time's worth of the rate that may wait behind a path. Measured with [`QUEUE_PACKETS`]: 97 to 99 %
/// of paths of 8 to 100 Mbit/s are used.
pub(super) const QUEUE_TIME: ropewalk_types::Duration = ropewalk_types::Duration::from_millis(1);
/// Packets that may wait behind a very fast path.
pub(super) const QUEUE_PACKETS_MAX: u64 = 256;
