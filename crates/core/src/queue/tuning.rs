//! Every constant of the ingress queue: see `docs/decisions/late-binding-and-codel.md`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! That record measures target and interval together, and the allowance for repairs. No other
//! constant was measured by itself.

use ropewalk_types::Duration;

// What the queue may hold.

/// Fewest bytes, whatever the rate: a full super packet per direction fits. Larger: more bursts
/// survive, slow paths may hold more.
pub(super) const LIMIT_BYTES_MIN: u64 = 256 * 1024;
/// Most bytes. Larger: faster paths stay full, memory.
pub(super) const LIMIT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Time's worth of the sum of path rates that may wait, before `CoDel` is even asked. Longer: more
/// bursts survive, longer waits.
pub(super) const LIMIT_TIME: Duration = Duration::from_millis(250);
/// Most packets. More: memory.
pub(crate) const LIMIT_PACKETS: usize = 65_536;
/// What a packet takes besides its bytes: the free bytes in front, its entry, and what the allocator rounds up.
pub(super) const PACKET_CHARGE: u64 = 128;
/// Least room that a tunnel has however little memory is left, bytes: about 20 full packets. More: tunnels beside
/// those that fill the memory stay faster, many of them take more than there is.
pub(super) const ROOM_MIN: u64 = 32 * 1024;
/// Packets dropped per look for the fattest flow. More: less work, more of one flow at once.
pub(super) const DROP_BATCH: usize = 64;
/// The same of what is held in an outage.
pub(super) const HELD_DROP_BATCH: usize = 16;

// The turns of flows: those of `ropewalk-aqm`.

/// How much may wait of senders that are acknowledged here, in time at the rate of all paths, shared
/// by the flows that wait. Longer: paths stay full when they become faster, a longer wait for what
/// a connection sends next.
pub(super) const ACCELERATE_TIME: Duration = Duration::from_millis(100);
/// The least of that, bytes: while rates are unknown. More: faster first round trips, longer waits
/// on slow paths.
pub(super) const ACCELERATE_BYTES_MIN: u64 = 64 * 1024;
/// The least share of a flow, bytes: five full segments. More: steadier flows, longer waits.
pub(super) const SHARE_BYTES_MIN: u64 = 8 * 1024;
/// Most flows among which what may wait is shared, where senders are acknowledged here. More:
/// shorter waits beside many flows, more to count.
pub(super) const SHARES_MAX: usize = 16;
/// A flow with more bytes than these is backlogged: more than one full packet waits.
pub(super) const BACKLOG_BYTES: u64 = 1_514;

// CoDel. Larger targets and intervals: fuller paths under loss-based senders, longer waits behind a
// flow's own packets.

/// Smallest acceptable standing delay. RFC 8289 §4.3 asks for 5 to 10 % of a round trip, which
/// suits many flows that share one queue. Here each flow has its own queue, and sparse flows
/// overtake. A lone loss-based flow backs off to 0.7 (RFC 9438 §4.6). It needs 0.4 of its round
/// trip queued to keep paths full then.
pub(super) const TARGET_MIN: Duration = Duration::from_millis(15);
/// Largest target, for long paths and very slow ones.
pub(super) const TARGET_MAX: Duration = Duration::from_millis(60);
/// Least time the delay must exceed the target before the first drop (RFC 8289 §4.2: a round trip
/// of the flows), the tunnel's own included.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(150);
/// Longest standing queue of a path that target and interval allow for. Longer: flows that compete in
/// deeper queues keep their share, longer waits behind a flow's own packets.
pub(super) const QUEUED_MAX: Duration = Duration::from_secs(1);
/// What the target allows for clumps, in variations of the round trip.
pub(super) const CLUMP_RTTVARS: u32 = 3;
/// What target and interval allow for repairs, in times that a repair adds to a round trip. Lost
/// packets are waited for again and again. So the round trip of a sender is often several times
/// that of the path. A queue that suits the path alone makes loss-based senders leave a tenth of the
/// path unused.
pub(super) const REPAIRS: u32 = 16;
/// Most that they allow for repairs.
pub(super) const REPAIRS_MAX: Duration = Duration::from_millis(250);
