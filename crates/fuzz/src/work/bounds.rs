//! What the peer's bytes may cost. Every bound is a sum of parts that grow with input, output or time, so that
//! nothing can grow faster than these.
//!
//! Packets that the peer asks for again have no bound here. Each takes a part of the window that the peer's
//! acknowledgements open, on the peer's own links, and the transport keeps to that.

use ropewalk_types::Duration;

/// What a tunnel has done since it began. Bytes of datagrams include those of the layers below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Datagrams of the peer.
    pub datagrams_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Packets of the host.
    pub entered: u64,
    /// Bytes of these.
    pub entered_bytes: u64,
    /// Packets for the host.
    pub delivered: u64,
    /// Datagrams to the peer.
    pub datagrams_out: u64,
    /// Bytes of those that carry packets of the host, or repair symbols of them.
    pub data_out: u64,
    /// Bytes of all others: questions, reports, announcements, probes.
    pub answers_out: u64,
    /// Turns of the gateway.
    pub turns: u64,
    /// Time that has passed.
    pub time: Duration,
    /// Requests to the allocator.
    pub allocations: u64,
    /// Bytes of these.
    pub allocated: u64,
    /// Steps of loops whose length the peer can influence.
    pub steps: u64,
    /// Bytes that the tunnel has of the allocator now.
    pub retained: i64,
    /// Places for held packets that were made: each took memory.
    pub places_made: u64,
    /// Places there are now.
    pub places: u64,
}

/// Bytes of answers to a byte of the peer. A gap costs the peer one datagram of 65 bytes. Four NACKs on two paths each
/// name it, with others.
const ANSWERS: u64 = 8;
/// Bytes of answers to a packet of the host: its headers may be announced five times.
const ANSWERS_ENTERED: u64 = 5 * 160;
/// Bytes of answers in a millisecond: reports, and probes of paths that are silent.
const ANSWERS_MS: u64 = 64;
/// Requests to the allocator for each datagram, packet and turn: the datagram itself, notes of it, an answer.
/// A flow that is new needs a page in each of several tables.
const ALLOCATIONS: u64 = 24;
/// Requested bytes for each byte of the peer. A new flow needs pages of 16 flows in several tables: some 4 kB for
/// a datagram of 69 bytes.
const ALLOCATED: u64 = 96;
/// Requested bytes for each byte from the host or to the peer: copies, and tables that double.
const ALLOCATED_DATA: u64 = 8;
/// Bytes, requested and retained, for each packet of the host: a new flow needs the same pages at the ingress.
const ENTERED: u64 = 8 << 10;
/// Requested bytes for a place: 88, and as much again when the table grows.
const PLACE_BYTES: u64 = 2 * 88;
/// Places that a datagram may make: as many as its number may be ahead.
const PLACES: u64 = 4_096;
/// Bytes that stay for each byte of the peer: the same pages.
const RETAINED: u64 = 80;
/// Steps for each datagram: the places before a packet that is far ahead are made, gone through and given up; or the
/// lists of missing numbers are searched, which have 3,072 each.
const STEPS: u64 = 3 * 4_096;
/// Steps for each byte of the peer: a byte of a repair symbol names eight packets.
const STEPS_BYTE: u64 = 64;
/// Steps of a turn: what is missing on four paths is gone through, and the flows that hold packets as long as they
/// are few.
const STEPS_TURN: u64 = 16 * 1_024;
/// Steps in a millisecond: one look at flows that hold packets, and one through all flows for memory, which count
/// 16 each.
const STEPS_MS: u64 = 16 * 1_024 + 16 * 4_096;
/// What a tunnel takes once, bytes or steps: mostly the lists of missing numbers of four paths.
const ONCE: u64 = 512 << 10;
/// The most that stays whatever the peer sends, bytes: places for held packets 24 MB, packets remembered, held or
/// waiting 48 MB with those of the host, packets in pieces 8 MB.
const RETAINED_MAX: i64 = 96 << 20;

/// # Panics
/// When something cost more than it may.
pub fn check(cost: &Cost) {
    let ms = u64::try_from(cost.time.as_millis()).unwrap_or(u64::MAX) + 1;
    let handled = cost.datagrams_in + cost.datagrams_out + cost.entered + cost.delivered;
    let data = cost.entered_bytes + cost.data_out + cost.answers_out;
    let bounds = [
        (
            "bytes of answers",
            cost.answers_out,
            4_096 + cost.bytes_in * ANSWERS + cost.entered * ANSWERS_ENTERED + ms * ANSWERS_MS,
        ),
        (
            "allocations",
            cost.allocations,
            1_024 + (handled + cost.turns) * ALLOCATIONS,
        ),
        (
            "bytes allocated",
            cost.allocated,
            ONCE + cost.bytes_in * ALLOCATED
                + data * ALLOCATED_DATA
                + cost.entered * ENTERED
                + cost.places_made * PLACE_BYTES,
        ),
        ("places made", cost.places_made, cost.datagrams_in * PLACES),
        (
            "steps",
            cost.steps,
            ONCE + cost.datagrams_in * STEPS
                + cost.bytes_in * STEPS_BYTE
                + cost.turns * STEPS_TURN
                + ms * STEPS_MS,
        ),
        (
            "bytes retained",
            u64::try_from(cost.retained).unwrap_or(0),
            ONCE + cost.bytes_in * RETAINED
                + data * ALLOCATED_DATA
                + cost.entered * ENTERED
                + cost.places * PLACE_BYTES,
        ),
    ];
    for (what, is, most) in bounds {
        assert!(is <= most, "{is} {what}, at most {most} allowed: {cost:?}");
    }
    assert!(cost.retained <= RETAINED_MAX, "{cost:?}");
}
