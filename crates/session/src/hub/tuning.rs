//! Every constant of a hub.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

/// How long a connection may stay without a `Hello`. Longer: slower paths are introduced, mute
/// connections hold memory for longer.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How often connections without `Hello` are looked for. Longer: less work, later ends by as much.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Most sites with a live tunnel. More: larger hubs, more memory.
pub(super) const SITES_MAX: usize = 4_096;
