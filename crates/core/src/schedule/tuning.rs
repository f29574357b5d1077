//! Every constant of the schedulers but `auto`, which has a table of its own.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! Constants from a paper have the paper's value. No other one was measured by itself.

use ropewalk_types::Duration;

// All schedulers.

/// Flow buckets of a tunnel: flows are hashed into them, as in FQ-CoDel (RFC 8290 §4.1.2). More:
/// fewer flows share a bucket, memory.
pub const FLOW_BUCKETS: usize = 4096;
/// Shortest wait a decision names: an earlier instant would only be asked about again and again.
pub(super) const WAIT_MIN: Duration = Duration::from_micros(100);
/// Predictions of arrival closer than this may come out the other way round. Larger: less
/// disorder, fewer paths at once.
pub(super) const CROSSING_MARGIN_MIN: Duration = Duration::from_millis(1);
/// Least time left to a path's own flows to use its room before another flow takes it.
pub(super) const GRACE_MIN: Duration = Duration::from_micros(500);
/// Most of it. Longer: a path's own flows keep it, room stays unused.
pub(super) const GRACE_MAX: Duration = Duration::from_millis(5);

// `active-backup`.

/// How long an earlier path must have been usable before it takes over again. Longer: fewer changes
/// of path, a worse path for longer.
pub(super) const REVERT_AFTER: Duration = Duration::from_secs(5);

// `blest`: the paper's values.

/// Factor of the bytes that the fast path is predicted to send, at the start.
pub(super) const LAMBDA_START: f64 = 1.2;
/// Smallest factor.
pub(super) const LAMBDA_MIN: f64 = 1.0;
/// Largest factor. Larger: the slow path is used less often.
pub(super) const LAMBDA_MAX: f64 = 1.3;
/// How much the factor grows when packets waited for order.
pub(super) const LAMBDA_UP: f64 = 0.04;
/// How much the factor shrinks when none did.
pub(super) const LAMBDA_DOWN: f64 = 0.01;

// `cost-aware`.

/// Waiting time at the ingress that is worth money. Longer: metered paths cost less, more delay.
pub(super) const SPILL_DELAY: Duration = Duration::from_millis(20);

// `ecf`: the paper's value.

/// Hysteresis of waiting for the fast path. Larger: fewer changes between waiting and sending.
pub(super) const BETA: f64 = 0.25;

// `weighted-round-robin`.

/// Largest debt or credit of a path, bytes: about 45 full packets. Larger: shares hold over longer
/// pauses of a path, longer bursts afterwards.
pub(super) const BALANCE_MAX: f64 = 64_000.0;
/// A weight counts as this many bits per second where other paths follow their measured rate.
pub(super) const BITS_PER_SEC_PER_WEIGHT: f64 = 1e6;
