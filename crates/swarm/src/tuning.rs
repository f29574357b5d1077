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
/// How often progress is shown. Longer: fewer lines.
pub(crate) const PROGRESS: Duration = Duration::from_secs(1);
/// Connections that a hostile host has at most. More: more memory here.
pub(crate) const HOSTILE_CONNECTIONS_MAX: usize = 2_000;
/// How often a hostile host repeats a hello that nobody answered.
pub(crate) const HELLO_INTERVAL: Duration = Duration::from_millis(150);
/// Bytes of a packet of a flood, with its IP header: what fits every path.
pub(crate) const FLOOD_BYTES: u16 = 1_100;
/// Bytes of each packet that a hostile host combines, with its IP header: a symbol of them fits every path.
pub(crate) const COMBINED_BYTES: u16 = 1_000;
/// How often a hostile host looks at its socket. Longer: fewer turns, burstier packets.
pub(crate) const HOSTILE_PAUSE: Duration = Duration::from_millis(1);
/// How long after the hostile hosts the last site begins.
pub(crate) const LATE: Duration = Duration::from_secs(2);
/// Least time with hostile hosts: the late site needs some of the second half.
pub(crate) const HOSTILE_LEAST: Duration = Duration::from_secs(6);
/// Descriptors besides the sockets.
pub(crate) const OTHER_FILES: u64 = 64;
/// Memory that the pings of all sites share until it is used up, bytes. More: fewer allocations, and
/// more memory that one packet under way keeps.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;

// Traffic.

/// Bytes of a full packet, with its IP header. More: more payload for the same number of packets, but
/// from about 1,440 on a packet does not fit a path of 1,500 bytes whole.
pub(crate) const FULL_BYTES: u16 = 1_400;
/// Bytes of a packet of a call, with its IP header: 20 ms of a codec at 12.8 kbit/s.
pub(crate) const VOICE_BYTES: u16 = 60;
/// Time between two packets of a call. Longer: less load.
pub(crate) const VOICE_INTERVAL: Duration = Duration::from_millis(20);
/// Packets of a page: 100 kB. More: longer bursts.
pub(crate) const WEB_PACKETS: u32 = 72;
/// Time between two pages of a site on average. Longer: less load.
pub(crate) const WEB_PAUSE: Duration = Duration::from_secs(3);
/// Mbit/s that may be asked of a site.
pub(crate) const RATE: core::ops::RangeInclusive<f64> = 0.01..=10_000.0;
/// Packets under way of a new window, as RFC 6928, and the fewest, as RFC 5681.
pub(crate) const WINDOW_FIRST: f64 = 10.0;
pub(crate) const WINDOW_LEAST: f64 = 2.0;
/// Packets that may be under way at most: what may be asked for, and unless asked. More: faster over long
/// round trips. Where the sites saturate the hub: longer queues, and more time until they share alike.
/// Measured with 50 sites that saturate a hub over loopback, one run of 8 s each: Jain's index was 1.00
/// with 32 packets, 0.94 with 64, 0.80 with 128 and 0.67 with 256.
pub(crate) const WINDOW: core::ops::RangeInclusive<i64> = 2..=16_384;
pub(crate) const WINDOW_USUAL: u16 = 64;
/// A packet is lost when one that was sent so much later is answered. Longer: losses are noticed
/// later, two paths may differ by more.
pub(crate) const WINDOW_REORDERING: Duration = Duration::from_millis(20);
/// A packet is lost after this time. Longer than any round trip; longer: later again after silence.
pub(crate) const WINDOW_PATIENCE: Duration = Duration::from_secs(1);
/// Traffic of a fixed rate looks for packets that are due this often at most. Longer: fewer turns,
/// bursts.
pub(crate) const PACE: Duration = Duration::from_millis(1);
/// For how long a lagging process makes up. Longer: the rate is kept through longer lags, larger bursts.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(20);
/// Packets of one site in a turn. More: larger batches, later turns of the others.
pub(crate) const TURN_PACKETS: usize = 64;
/// Goodput counts from this long after the last site has begun, or a quarter of `--seconds` if that is
/// shorter. Longer: less of the beginning is in the figures, and less time is left for them.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

// Moves and absences.

/// How long the pings of a site are watched after a move. Longer: later gaps count, moves are rarer.
pub(crate) const MOVE_WATCHED: Duration = Duration::from_secs(2);
/// How long a site is gone, at least and at most. At least: a hub lets a site start anew once a
/// second. Longer at most: more sites of which the hub has noticed it.
pub(crate) const AWAY_LEAST: Duration = Duration::from_secs(1);
pub(crate) const AWAY_MOST: Duration = Duration::from_secs(4);
/// At the end nobody vanishes for this long, so that all can come back: [`AWAY_MOST`] and time to
/// connect. Longer: more time to connect, fewer absences.
pub(crate) const ALL_PRESENT: Duration = Duration::from_secs(6);
