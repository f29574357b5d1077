//! Every constant of a peer; hub, site and links have tables of their own.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

/// Packets bound per round before they are handed to the sockets: enough for full segmented
/// sends, few enough that reading goes on in between.
pub(crate) const ROUND_PACKETS: usize = 64;
/// Rounds per turn. More: fewer turns, later reading.
pub(crate) const ROUNDS: usize = 4;
/// A path idle for this long sends a probe (from the site's side). Longer: fewer bytes on idle
/// paths, older round-trip times.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a replaced link is still read, for what is under way on it. Longer: more late packets
/// arrive, links stay open.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);
