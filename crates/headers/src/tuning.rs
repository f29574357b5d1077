//! Every constant of header compression.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.

use ropewalk_types::Duration;

/// Packets of a flow before its headers are announced. More: flows of few packets announce
/// nothing, and the others travel in full for longer.
pub(crate) const PACKETS_BEFORE: u32 = 3;
/// Packets with a field that had to be written, or with more than [`COMPRESSED_TCP`] bytes, before a
/// newer reference is announced. More: fewer announcements, longer headers.
pub(crate) const MISSES_MAX: u32 = 16;
/// Packets since the reference after which a newer one is announced. Packets are numbered modulo 65,536,
/// and the announcement takes a round trip. More: fewer announcements; on fast and long paths segments
/// are expected to begin elsewhere, and travel in pieces.
pub(crate) const PACKETS_BEHIND: i32 = 32_768;
/// Packets since the reference after which any packet's headers do for a newer one. Until then, those of a
/// segment as long as the reference's are waited for: such a reference predicts sequence numbers.
pub(crate) const PACKETS_BEHIND_ANY: i32 = 49_152;
/// A packet may be numbered before the reference by fewer than this many packets: send buffers reorder them.
/// More: fewer packets after the reference can be told from those before.
pub(crate) const PACKETS_BEFORE_REFERENCE: u16 = 4_096;
/// Least time between two references of a flow. Longer: fewer announcements. With
/// [`REFERENCES`], it also bounds how long a packet under way can be read: 1.4 s at least.
pub(crate) const RENEW_MIN: Duration = Duration::from_millis(200);
/// The same for flows that have sent [`PACKETS_BEHIND`] packets meanwhile. Shorter: faster flows keep their
/// references, and packets under way can be read for a shorter time: 0.35 s at least.
pub(crate) const RENEW_MIN_FAST: Duration = Duration::from_millis(50);
/// How long after an announcement it is repeated, at first; doubles each time. Longer: less work
/// on long paths, full headers for longer after a loss.
pub(crate) const REPEAT_FIRST: Duration = Duration::from_millis(150);
/// How often an announcement is sent at most. More: late answers count.
pub(crate) const TRIES_MAX: u32 = 5;
/// How long a flow whose announcement nobody answered waits before the next one. Longer: less work, full
/// headers for longer.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// A flow that was silent for this long is announced again. It must be shorter than
/// [`IDLE_AT_EXPANDER`] by all that packets may be under way.
pub(crate) const FORGET: Duration = Duration::from_secs(30);
/// Announcements that nobody has answered before the peer is taken for one that knows none. More:
/// paths that lose much are not given up, older peers count more unknown datagrams.
pub(crate) const UNANSWERED_MAX: u32 = 16;
/// How long nothing is announced to a peer that answered nothing. Longer: less work with older peers, a
/// later start after long losses.
pub(crate) const QUIET: Duration = Duration::from_secs(60);
/// How long a flow must be silent before another flow of its bucket takes its place. Longer: of
/// flows that take turns, one keeps its place.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(1);
/// References kept of each bucket: the newest ones. More: memory, and packets under way for
/// longer can be read. A power of two.
pub(crate) const REFERENCES: usize = 8;
/// Flows of one tunnel and direction whose headers are compressed. More: about 1 kB each, at either end.
pub(crate) const FLOWS_MAX: usize = 1_024;
/// A flow that was silent for this long gives its place up to others at the compressor. Longer: more
/// flows travel in full while there are many.
pub(crate) const IDLE: Duration = Duration::from_secs(10);
/// The same at the expander. It must be longer by all that packets may be under way.
pub(crate) const IDLE_AT_EXPANDER: Duration = Duration::from_secs(60);
/// A flow that was silent for this long gives its memory back, at either end. It must be longer than
/// [`IDLE_AT_EXPANDER`]. Longer: memory stays for longer after many flows.
pub(crate) const GIVE_BACK: Duration = Duration::from_secs(120);
/// Places looked at for one that is free. More: work per new flow.
pub(crate) const PLACES_TRIED: usize = 8;
/// Payload whose checksum is computed at both ends instead of sent, bytes. Larger: two bytes less
/// for larger packets, for the work of reading them twice.
pub(crate) const CHECKED_MAX: usize = 128;
/// What is left of the headers of a full TCP segment as a rule, bytes. Larger: more segments with long
/// headers fit whole, all segments carry less.
pub const COMPRESSED_TCP: usize = 11;
/// What is left of the headers of a large UDP packet when they are compressed, bytes: with a checksum
/// and a number of IPv4. Larger: fewer packets leave in pieces, all are smaller.
pub const COMPRESSED_UDP: usize = 6;
