//! Every constant of rescues: see `docs/decisions/rescue.md`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! None of them was measured by itself.

use ropewalk_types::Duration;

/// How often one packet is asked for, at most. More: packets survive longer bursts, more reverse
/// traffic.
pub(super) const ASKED_MAX: u8 = 4;

// The rhythm of a flow.

/// Most flows whose rhythm is followed. The one that has been silent longest makes room. More: more
/// calls at once, memory, work per packet.
pub(super) const FLOWS_MAX: usize = 64;
/// Shortest interval of a rhythm, seconds. Faster flows show their gaps themselves soon enough.
/// Smaller: more flows are followed.
pub(super) const INTERVAL_MIN: f64 = 0.004;
/// Longest interval of a rhythm, seconds. In slower flows a packet does not belong to a stream.
/// Larger: more flows are followed.
pub(super) const INTERVAL_MAX: f64 = 0.060;
/// Packets that make a rhythm. More: fewer false rhythms, later rescues.
pub(super) const BEATS_MIN: u8 = 4;
/// How much a rhythm may stray, share of the interval. Larger: more flows have a rhythm, more
/// needless rescues.
pub(super) const STRAY_MAX: f64 = 0.35;
/// How late a packet may be before it is overdue, seconds: at least this. Larger: fewer needless
/// rescues, later ones.
pub(super) const MARGIN_MIN: f64 = 0.004;
/// The same, in multiples of what arrivals stray from the rhythm.
pub(super) const MARGIN_STRAYS: f64 = 3.0;
/// A packet is asked for again after the round trip and this. Longer: fewer needless rescues, later
/// ones.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(8);
/// Gaps of a flow that are looked after at once. More: longer bursts are rescued, memory.
pub(super) const GAPS_MAX: usize = 8;
/// A larger step in a flow's numbers is a new start.
pub(super) const STEP_MAX: u16 = 32;
/// A gap older than this is worth nothing. Longer: more rescues that come too late.
pub(super) const GAP_AGE_MAX: Duration = Duration::from_millis(150);

// Packets that may be asked for.

/// Most packets kept. More: more calls at once, memory.
pub(super) const KEPT_MAX: usize = 512;
/// How long a packet is kept: nobody waits longer for a packet of a call.
pub(super) const AGE_MAX: Duration = Duration::from_millis(400);
/// How often an asked packet is sent on each of two paths. More: surer, more bytes.
pub(super) const TIMES: u8 = 2;
/// How far apart these are. Longer: a burst of losses hits fewer of them, later arrival.
pub(super) const APART: Duration = Duration::from_millis(2);
/// Most packets that are being rescued at once.
pub(super) const UNDER_WAY_MAX: usize = 64;
/// How long a path is in doubt after it lost a packet that was rescued. Longer: more packets of a
/// burst take another path as well, more bytes.
pub const DOUBT: Duration = Duration::from_millis(60);
