//! Every constant of a machine that joins.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

/// How long QUIC may fail before TLS over TCP is tried beside it. Longer: fewer connections that
/// nobody needs, later joins where UDP is blocked.
pub(super) const FALLBACK_AFTER: Duration = Duration::from_secs(2);
/// Time between the end of an attempt and the next one the same way. Longer: fewer attempts, later
/// joins on links that lose packets.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long an attempt may take. Longer: surer on long paths, later second attempts.
pub(super) const ATTEMPT_LIFETIME: Duration = Duration::from_secs(6);
/// Time after which a question without answer is put again. Longer: fewer repetitions, later answers
/// where packets are lost.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Most ways to the hub: interfaces, times addresses, times transports. More: more ways tried, more
/// connections at once.
pub(super) const WAYS_MAX: usize = 64;
