//! Every constant of the QUIC connections that could be another.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. The reasons are in
//! `docs/decisions/transport.md`, and those of handshakes that wait in `docs/decisions/hub.md`. A constant without the word
//! "measured" was not measured by itself.

use ropewalk_types::Duration;

// Connections and what strangers cost.

/// Most connections of an endpoint: those of 10,000 sites with a few paths each, and old ones that are
/// not closed yet. More: larger hubs, more memory that many keys can take.
pub(super) const CONNECTIONS_MAX: usize = 65_536;
/// Most handshakes in progress on the accepting side; then those from the source with most of them
/// give way. More: a hub that starts again has its sites sooner, a flood costs more memory.
pub(super) const HANDSHAKES_MAX: usize = 1_024;
/// With this many handshakes of unproved addresses in progress, further ones must prove theirs
/// with a Retry token first. More: fewer round trips in a rush, more work for forged addresses.
pub(super) const RETRY_ABOVE: usize = 8;
/// A handshake that somebody else has begun is given up after this time. Longer: slower paths connect, a
/// flood holds places for longer.
pub(super) const ACCEPT_TIME_MAX: Duration = Duration::from_secs(3);
/// The same for one that this side has begun. Longer: slower paths connect.
pub(super) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Answers without a connection that may wait to be sent; more are dropped. More: fewer strangers
/// repeat themselves, more memory.
pub(super) const STATELESS_MAX: usize = 64;
/// Longest reason in a close frame, bytes. Longer: more words, a larger last packet.
pub(super) const REASON_MAX: usize = 100;
/// Bytes of a connection identifier. Every datagram carries one, so it is short. With four bytes a
/// stranger could collect the reset tokens of all identifiers by provoking resets. With six bytes
/// that would take ten thousand years at the highest rate (by calculation). Several workers are named in up to six of
/// the 48 bits: 64 workers make that 160 years.
pub(super) const CONNECTION_ID_BYTES: usize = 6;
/// Resets are limited to one per this time. Shorter: lost connections are found sooner, reset
/// tokens are collected faster.
pub(super) const RESET_INTERVAL: std::time::Duration = std::time::Duration::from_millis(2);
/// A machine that does not rest, and that is busy with its sites alone, begins one handshake in this time. A handshake
/// takes 0.3 to 0.5 ms of a processor. Shorter: sites that come back join a busy hub sooner, strangers cost its sites
/// more.
pub(super) const BUSY_HANDSHAKE_INTERVAL: Duration = Duration::from_millis(20);
/// The same while no site has anything to say, as after a restart. Measured: `docs/decisions/hub.md`. Longer: sites come
/// back later. Shorter than a handshake: nothing more.
pub(super) const HANDSHAKE_INTERVAL_MIN: Duration = Duration::from_micros(500);
/// Work for a first packet that is looked into, in datagrams of sites: keys are derived for it. More: sites that come back join
/// a busy hub sooner, a flood gets more handshakes.
pub(super) const FIRST_PACKET_WORK: u32 = 4;
/// Most datagrams of sites that are remembered for the interval, while no handshake begins: those of about half a second
/// of a busy hub. With each handshake half of them are forgotten. More: a hub whose sites fall silent begins more
/// handshakes later.
pub(super) const WORK_REMEMBERED: u32 = 1 << 16;
/// How often time counts in which the machine rests. More: a hub that starts again has its sites sooner; short rests of
/// a busy hub cost its sites more, as a handshake is longer than such a rest.
pub(super) const REST_WORTH: u32 = 100;
/// Shortest rest that is asked for while handshakes wait. Longer: fewer turns, handshakes begin later.
pub(super) const REST_MIN: Duration = Duration::from_micros(50);
/// Handshakes begun in a row after a rest. More: fewer of a few at a time wait, packets of sites wait for longer.
pub(super) const HANDSHAKES_IN_A_ROW: u32 = 8;
/// With this many of one socket waiting, further first packets from there are dropped unread. A site has a socket for
/// each uplink. More: more of those that share a socket get in, a flood costs more work.
pub(super) const WAITING_OF_SOCKET_MAX: u32 = 4;
/// Handshakes that wait meanwhile; then the last in turn gives way. A machine that is busy with its sites alone begins a
/// tenth more in [`WAITING_TIME_MAX`]. More: some wait in vain.
pub(super) const WAITING_MAX: usize = 90;
/// And for how long. A site begins its next attempt earlier. Longer: old attempts take the turns of newer ones.
pub(super) const WAITING_TIME_MAX: Duration = Duration::from_secs(2);
/// Handshakes not begun yet: those that wait, and one on its way there. More are refused by the library.
pub(super) const INCOMING_MAX: usize = WAITING_MAX + 2;
/// Bytes held for one of them. More: fewer packets are repeated, more memory.
pub(super) const INCOMING_BUFFER_BYTES: u64 = 8 << 10;
/// Bytes held for all of them. The same.
pub(super) const INCOMING_BYTES: u64 = 128 << 10;
/// Lifetime of a Retry token. Longer: slower paths prove their address, old tokens stay of use.
pub(super) const RETRY_LIFETIME: std::time::Duration = std::time::Duration::from_secs(15);

// Keys of a connection.

/// Keys that protect packets are changed after this time. Longer: fewer changes, somebody who gets the keys
/// of a connection can read more of what went before.
pub(super) const REKEY_TIME: std::time::Duration = std::time::Duration::from_secs(3_600);
/// And after so many datagrams sent: half of what RFC 9001 §6.6 allows under one key of AES-GCM. More: fewer
/// changes, less room for the change before that bound ends the connection.
pub(super) const REKEY_DATAGRAMS: u64 = 1 << 22;

// Buffers.

/// Bytes queued for sending at most; the scheduler keeps it at two packets or a millisecond.
pub(super) const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Bytes received and not read yet at most. More: a slow reader loses less, more memory.
pub(super) const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Bytes that the connection may count in flight and this side does not, such as probes of the MTU
/// that an outage swallowed, and a packet besides. Less: what is urgent may have to wait.
pub(super) const URGENT_SLACK: u64 = 64 << 10;

// Loss and acknowledgements.

/// Assumed before the first sample. Less than half of the RFC's 333 ms: a handshake whose first
/// packet is lost takes half a second instead of one. Shorter: needless repetitions on long paths.
pub(super) const INITIAL_RTT: std::time::Duration = std::time::Duration::from_millis(150);
/// The peer acknowledges after this many packets. More: fewer bytes on the way back, later news.
pub(super) const ACK_PACKETS: u32 = 15;
/// The peer acknowledges after this time at the latest. Longer: fewer bytes on the way back, later
/// news of loss.
pub(crate) const ACK_DELAY: std::time::Duration = std::time::Duration::from_millis(5);
/// Loss is found by time only: jitter reorders, and nothing is retransmitted anyway. Fewer packets
/// would find loss sooner and take reordering for loss.
pub(super) const PACKET_THRESHOLD: u32 = 4_096;
/// Round trips after which a packet counts as lost. RFC 9002 §6.1.2 recommends 9/8 and allows more
/// where packets are reordered: jitter does that. Larger: loss is found later.
pub(super) const TIME_THRESHOLD: f32 = 1.5;

// Path MTU.

/// Path MTU discovery stops when the next step is smaller, bytes. Larger: fewer probes, packets
/// that are less full.
pub(super) const MTU_STEP_MIN: u16 = 10;
/// Discovery starts again this long after large packets vanished. The time is short, because random
/// loss and a full queue can look like a black hole. A real one costs a probe each time.
pub(super) const BLACK_HOLE_COOLDOWN: std::time::Duration = std::time::Duration::from_millis(250);
