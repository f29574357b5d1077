//! Every constant of a peer; hub, site and links have tables of their own.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

/// Datagrams that are worked off in a turn while datagrams wait. More: fewer turns, later packets in the other
/// direction.
pub(crate) const WORK_DATAGRAMS: usize = 256;
/// Datagrams of a site of weight 1 that are worked off in a row beside other sites. More: less work for each, as
/// packets of one flow stay together; later turns of the others.
pub(crate) const QUANTUM: u32 = 16;
/// Work that a datagram of a stranger counts for, in datagrams of a site: most are handshakes, with signatures.
/// More: sites suffer less from strangers, new sites wait longer beside strangers.
pub(crate) const STRANGER_WORK: u32 = 16;
/// Datagrams that a key may have in the queue of those who wait for a tunnel: a turn of the queue. More: a key that floods
/// the queue costs the others more turns; fewer: a site with many paths loses datagrams.
pub(crate) const WAITING_OF_KEY: u8 = 16;
/// For how long a first packet waits for its turn. Sites repeat theirs after 450 ms or 1 s, and begin a further attempt
/// after 250 ms or 1 s. Longer: fewer are dropped in a burst, more answers to attempts that are given up.
pub(crate) const FIRST_PACKET_PATIENCE: Duration = Duration::from_millis(200);
/// Bytes that may be read from a TCP connection in a turn of its sender, beside other senders. More: less work per
/// byte, later turns of the others.
pub(crate) const STREAM_BYTES: usize = 16 * 1024;
/// The same while no other sender waits.
pub(crate) const STREAM_BYTES_ALONE: usize = 64 * 1024;
/// Bytes of a TCP connection that are as much work as a datagram: those of a full one. More: sites over TCP get more
/// of a busy hub.
pub(crate) const STREAM_BYTES_WORK: usize = 1_400;
/// Bytes of all datagrams that wait for their turn. More: fewer losses in a burst, older datagrams.
pub(crate) const INTAKE_BYTES: usize = 4 * 1024 * 1024;
/// What a datagram that waits takes of them besides its own bytes.
pub(crate) const INTAKE_ITEM_BYTES: usize = 128;
/// Part of a receive buffer that is filled when a gateway counts as behind. More: the sites of a busy hub have
/// their turns later; less: bursts count. The kernel gives room back in lumps of up to a quarter.
pub(crate) const BEHIND: f64 = 0.5;
/// A turn of the driver, with waits for a processor within it, is long beyond this time. After a long turn a hub with
/// several keys connected is behind if more waits than a turn reads. Longer: sites wait longer behind the datagrams of
/// others. Shorter: a hub that keeps up copies datagrams. 5 and 15 ms were tried: `docs/decisions/fleet.md`.
pub(crate) const TURN_LONG: Duration = Duration::from_millis(15);
/// How much longer than at once the bytes of a site may take that wait behind its rate. Longer: fewer losses of
/// senders that fill queues, later packets of the others.
pub(crate) const RATE_DELAY: Duration = Duration::from_millis(100);
/// Bytes that may wait behind a rate however small: 16 full packets. More: slow sites lose less of a burst, and
/// wait longer behind one.
pub(crate) const RATE_BYTES_MIN: usize = 16 * 1_500;
/// Bytes that may wait behind a rate however large. More: fewer losses of fast sites, less room for the others.
pub(crate) const RATE_BYTES_MAX: usize = INTAKE_BYTES / 4;
/// How much a site may send in a row after a pause, in time at its rate. Longer: larger batches, and bursts that
/// exceed the rate.
pub(crate) const RATE_BURST: Duration = Duration::from_millis(4);

/// Packets bound per round before they are handed to the sockets: enough for full segmented
/// sends, few enough that reading goes on in between.
pub(crate) const ROUND_PACKETS: usize = 64;
/// Rounds per turn, of all sites together. More: fewer turns, later reading.
pub(crate) const ROUNDS: usize = 4;
/// A path idle for this long sends a probe (from the site's side). Longer: fewer bytes on idle
/// paths, older round-trip times.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a replaced link is still read, for what is under way on it. Longer: more late packets
/// arrive, links stay open.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);
/// How often the peer is told how busy paths fare. Less often: fewer bytes, people see it later.
pub(crate) const SENDS_INTERVAL: Duration = Duration::from_secs(2);
/// Datagrams of a path in that time from which the path counts as busy: more than probes. More: less is known of paths
/// that carry little.
pub(crate) const SENDS_DATAGRAMS: u64 = 10;
/// How long is known what a path carried when it was full. Longer: known between two loads, older.
pub(crate) const FULL_FOR: Duration = Duration::from_secs(60);
/// How long the loss counts that the peer told last: three of its messages. Longer: losses of a load that is over are
/// told for longer.
pub(crate) const LOST_FOR: Duration = Duration::from_secs(6);
