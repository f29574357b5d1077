//! Every constant of the swarm.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.

use ropewalk_types::Duration;

/// Sites of a swarm. More: more ports than one address has.
pub(crate) const SITES: core::ops::RangeInclusive<i64> = 1..=20_000;
/// Paths of a site.
pub(crate) const PATHS: core::ops::RangeInclusive<i64> = 1..=16;
/// Bytes of a ping: IP and ICMP headers and what tells one from another; and the usual inner MTU.
pub(crate) const PACKET_MIN: i64 = 48;
pub(crate) const PACKET_MAX: i64 = 1_500;
/// Send and receive buffer of each socket, bytes. More: fewer losses in this process, more memory
/// of the kernel.
pub(crate) const SOCKET_BYTES: usize = 256 << 10;
/// Events worked off before timers have their turn.
pub(crate) const EVENTS: usize = 256;
/// Connections that a hostile host has at most. More: more memory here.
pub(crate) const HOSTILE_CONNECTIONS_MAX: usize = 2_000;
/// How often a hostile host repeats a hello that nobody answered.
pub(crate) const HELLO_INTERVAL: Duration = Duration::from_millis(150);
/// How often a hostile host looks at its socket. Longer: fewer turns, burstier packets.
pub(crate) const HOSTILE_PAUSE: Duration = Duration::from_millis(1);
/// How long after the hostile hosts the last site begins.
pub(crate) const LATE: Duration = Duration::from_secs(2);
/// Least time with hostile hosts: the late site needs some of the second half.
pub(crate) const HOSTILE_LEAST: Duration = Duration::from_secs(6);
/// Descriptors besides the sockets.
pub(crate) const OTHER_FILES: u64 = 64;
