//! Every constant of the links of a gateway.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

// QUIC.

/// Datagrams in one segmented send; more makes the first ones wait for the last.
pub(super) const GSO_SEGMENTS: usize = 32;
/// A connection that hears nothing for this long ends. It has to outlive outages: the one that was
/// there before is back within a round trip, a new one takes several. Longer: dead connections
/// hold memory for longer.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

// TLS over TCP.

/// How long a TLS handshake may take that this side has begun, that of TCP before it included. Longer:
/// slower paths connect.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(8);
/// The same for one that somebody else has begun, once TCP is connected. Longer: slower paths connect,
/// strangers hold places for longer.
pub(super) const ACCEPT_HANDSHAKE: Duration = Duration::from_secs(3);
/// How old the kernel's view of a connection may be. Longer: fewer system calls, staler windows.
pub(super) const INFO_AGE: Duration = Duration::from_millis(2);
/// A connection with bytes under way is looked at after this time at the latest: no event tells
/// when acknowledgements have made room in the window. Longer: fewer wake-ups, later sends.
pub(super) const LOOK_MAX: Duration = Duration::from_millis(20);
/// Largest datagram put on a stream, bytes: what a QUIC path of MTU 1,500 takes. Larger:
/// fewer frames, packets that a QUIC path would have to split.
pub(super) const DATAGRAM_BYTES: usize = 1_446;
/// The keys of a connection are changed after this time. Longer: fewer changes, somebody who gets the keys
/// can read more of what went before.
pub(super) const REKEY_TIME: Duration = Duration::from_secs(3_600);
/// TCP connections that a hub keeps open at once, those in the handshake included. More: more
/// sites over TCP, more memory that strangers can take.
pub(super) const STREAMS_MAX: usize = 1_024;
/// TCP connections that a hub keeps open before the peer has proved its key; then those from the
/// source with most of them give way. More: more sites connect at once, more memory that strangers can
/// take.
pub(super) const HANDSHAKES_MAX: usize = 128;
