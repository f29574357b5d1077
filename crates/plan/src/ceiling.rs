//! What a set of paths allows: capacity less headers.

/// IPv4 (20) and TCP with timestamps (32) in a packet of 1,500 bytes.
pub const INNER_HEADERS: u32 = 52;
/// From an inner to an outer IPv4 packet; `docs/wire.md` has the parts.
pub const OUTER_OVERHEAD: u32 = 65;

const MTU: f64 = 1_500.0;
/// Inner MTU of a path of MTU 1,500: what remains of the longest outer packet (1,491 bytes).
const INNER_MTU: f64 = 1_426.0;

/// TCP payload in Mbit/s that plain TCP gets of `capacity_mbit` of IP packets.
#[must_use]
pub fn direct_ceiling(capacity_mbit: f64) -> f64 {
    capacity_mbit * (MTU - f64::from(INNER_HEADERS)) / MTU
}

/// TCP payload in Mbit/s that TCP in a tunnel gets of `capacity_mbit` of outer IP packets.
#[must_use]
pub fn tunnel_ceiling(capacity_mbit: f64) -> f64 {
    capacity_mbit * (INNER_MTU - f64::from(INNER_HEADERS)) / (INNER_MTU + f64::from(OUTER_OVERHEAD))
}
