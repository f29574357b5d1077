//! Every constant of hold and freeze: see `docs/decisions/hold.md`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! That record measures the intervals of probes together with the other rules, and
//! `docs/decisions/accelerate.md` the constants of acceleration. No other one was measured by itself.

use ropewalk_types::Duration;

// Outages.

/// How often an outage is rid of what has become too old. Longer: less work, old packets stay.
pub(super) const SWEEP: Duration = Duration::from_secs(1);
/// Up to which silence which interval of probes is used: 37 kbit/s per path and direction in the
/// first minute, 2 kbit/s in the next ones. Longer intervals: fewer bytes, later returns.
pub(super) const STEPS: [(Duration, Duration); 2] = [
    (Duration::from_secs(60), Duration::from_millis(15)),
    (Duration::from_secs(600), Duration::from_millis(250)),
];
/// The interval afterwards.
pub(super) const SLOWEST: Duration = Duration::from_secs(1);
/// Where several tunnels of a process are in an outage, the interval is at least this for each of them, and [`SLOWEST`] at
/// most. Then 15 to 1,000 tunnels of two paths make 2,000 probes a second in all. An end with one tunnel probes as ever,
/// and finds a path that is back. What the other end holds leaves half a round trip later. Longer: fewer probes, later
/// returns of many tunnels. Measured with 1,000 sites of a hub that dies: `docs/decisions/fleet.md`.
pub(super) const SHARE: Duration = Duration::from_millis(1);

// Freeze, planned.

/// Most connections that are stopped at the same time; others stop by themselves. More: memory.
pub(super) const PLANNED_FLOWS_MAX: usize = 4_096;
/// A path whose end was announced and that has not gone by then stops nobody any more. Longer: more
/// late ends are met, senders wait longer in vain.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How often a path is asked for a sign of life meanwhile: nothing else may be under way on it.
/// Longer: fewer bytes, later to notice its end or its return.
pub(super) const ASK: Duration = Duration::from_millis(15);

// TCP proxy acknowledgement.

/// Most connections that are followed; others stop by themselves. More: memory.
pub(super) const PROXY_FLOWS_MAX: usize = 1_024;
/// What a kept packet counts for besides its bytes, so that small ones are bounded, too.
pub(super) const KEPT_COST: u64 = 128;
/// Packets for which memory stays when none is kept. More: fewer allocations, memory.
pub(super) const KEPT_SPARE: usize = 64;
/// A connection that says nothing for this long makes room for another.
pub(super) const IDLE: Duration = Duration::from_secs(300);
/// How often connections are looked for whose receivers have vanished. Longer: less work, memory
/// stays taken.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How long the receiver's next acknowledgement is awaited before what it misses is sent again.
/// Longer: fewer needless copies, later repairs.
pub(super) const RESEND: Duration = Duration::from_millis(300);
/// The longest such time: it doubles while nothing comes of it, for on a slow path the copies
/// themselves may be what is waited for.
pub(super) const RESEND_WAIT_MAX: Duration = Duration::from_millis(4_800);
/// Most packets of a connection that are sent again at once. After silence without an outage it is one,
/// then twice as many each time. More: sooner done, longer bursts.
pub(super) const RESEND_MAX: usize = 256;

// Acceleration: TCP proxy acknowledgement at all times.

/// Bytes by which a window must have grown to be worth an acknowledgement of its own: two segments
/// (RFC 9293 §3.8.6.2.2). More: fewer acknowledgements, hosts that wait.
pub(super) const WINDOW_STEP: u32 = 2 * 1_448;
/// How often lost packets are looked for while the receiver tells of some. Longer: less work, later
/// repairs.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The round trip by this is what packets may overtake each other by (RFC 8985 §6.2 has a quarter).
/// Larger: earlier repairs, more needless copies.
pub(super) const REORDERING: u32 = 4;
