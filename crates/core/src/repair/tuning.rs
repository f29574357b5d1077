//! Every constant of repairs on request: see `docs/decisions/repair.md`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::{Duration, Rate};

/// The egress asks for the first numbers of a gap, so many at most, and misses so many at a time on a path. More: more of
/// what a fast path loses at once is repaired, memory and time for each gap.
pub(crate) const GAP_MAX: u16 = 1_024;
/// NACKs that name a number. More: a path that loses a fifth of its packets loses as many NACKs,
/// and a number never heard of is a packet lost for good. Fewer: less reverse traffic.
pub(super) const NAMINGS: u8 = 4;
/// Most that a path is believed to disorder its packets by. Longer: fewer needless repairs, later
/// repairs.
pub(super) const ALLOWANCE_MAX: Duration = Duration::from_millis(60);
/// The allowance for disorder halves when it was not needed for this long.
pub(super) const ALLOWANCE_HALF_LIFE: Duration = Duration::from_secs(5);
/// Most datagrams remembered per path. More: repairs on faster and longer paths, memory.
pub(crate) const PACKETS_MAX: usize = 8_192;
/// How long a datagram is remembered that may be acknowledged, in round trips of its path: longer than a question about
/// the datagram takes to come. Longer: the same. With 3 s for every path a hub took half as much memory
/// again; with 1 s packets of paths with 300 ms were lost (`docs/chaos.md`).
pub(super) const AGE_ROUND_TRIPS: u32 = 8;
/// Shortest and longest such time.
pub(super) const AGE_MIN: Duration = Duration::from_secs(1);
pub(super) const AGE_MAX: Duration = Duration::from_secs(3);
/// How long a datagram is remembered that is known not to be acknowledged: as long as TCP segments are held in an
/// outage. TCP below a path may wait for seconds after an outage before it sends again. Longer: memory of a path whose
/// connection is not acknowledged and not replaced.
pub(super) const AGE_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);
/// How long a path that needed a repair is expected to need others.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(60);
/// Above this rate a path that has lost nothing lately remembers nothing: memory would be read
/// and written for every packet in vain. Larger: the first losses of a fast path are repaired.
pub(super) const CLEAN_RATE_MAX: Rate = Rate::from_bits_per_sec(400_000_000);
