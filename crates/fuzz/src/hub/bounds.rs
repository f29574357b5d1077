//! What the bytes of peers may cost a hub. As for a tunnel, every bound is a sum of parts that grow with input, output
//! or time, so that nothing can grow faster than these. The bounds of a tunnel hold for what the hub's tunnel does; here
//! are those of connections, hellos and turns in front of it.

use ropewalk_types::Duration;

/// What a hub has done since it began. Bytes of datagrams include the headers of IPv4 and UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Datagrams that came.
    pub datagrams_in: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Packets of the hub's machine for the site.
    pub entered: u64,
    /// Bytes of these.
    pub entered_bytes: u64,
    /// Datagrams that the hub sent.
    pub datagrams_out: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Turns of the hub.
    pub turns: u64,
    /// Time that has passed.
    pub time: Duration,
    /// Requests to the allocator.
    pub allocations: u64,
    /// Bytes of these.
    pub allocated: u64,
    /// Steps of loops whose length peers can influence.
    pub steps: u64,
    /// Bytes that the hub has of the allocator now, datagrams that it keeps included.
    pub retained: i64,
}

/// Bytes of answers to a byte that came: a handshake is answered with less than comes, a hello with a welcome of about
/// its length, each in a packet of its own at worst.
const ANSWERS: u64 = 4;
/// Bytes to the site for each byte from the hub's machine: packets that the site asks for again. The window of the
/// connection bounds them, not its questions.
const ANSWERS_ENTERED: u64 = 16;
/// Bytes of answers in a millisecond: reports, probes, and the search for the path's MTU.
const ANSWERS_MS: u64 = 64;
/// Requests to the allocator for each byte of datagrams in and out: messages of a few bytes share a packet, and each
/// may take five.
const ALLOCATIONS_BYTE: u64 = 1;
/// And for each datagram and turn.
const ALLOCATIONS: u64 = 32;
/// Requested bytes for each byte that came or went: as for a tunnel, and connections. Each of these takes about 20 kB
/// for handshakes of 4 kB.
const ALLOCATED: u64 = 32;
/// Bytes, requested and retained, for each packet of the hub's machine: pages of tables for its flow.
const ENTERED: u64 = 8 << 10;
/// Steps for each byte that came: the bound of a tunnel for each datagram in a packet, and places of flows.
const STEPS_BYTE: u64 = 128;
/// Steps of a turn: sites and connections to which something happened.
const STEPS_TURN: u64 = 512;
/// Steps in a millisecond: one look at flows that hold packets.
const STEPS_MS: u64 = 1_024;
/// Bytes that stay for each byte that came: connections until they time out, pages of flows.
const RETAINED: u64 = 32;
/// What a hub takes once, bytes or steps.
const ONCE: u64 = 1 << 20;

/// # Panics
/// When something cost more than it may.
pub fn check(cost: &Cost) {
    let ms = u64::try_from(cost.time.as_millis()).unwrap_or(u64::MAX) + 1;
    let handled = cost.datagrams_in + cost.datagrams_out + cost.entered;
    let bytes = cost.bytes_in + cost.bytes_out;
    let bounds = [
        (
            "bytes of answers",
            cost.bytes_out,
            8_192
                + cost.bytes_in * ANSWERS
                + cost.entered_bytes * ANSWERS_ENTERED
                + ms * ANSWERS_MS,
        ),
        (
            "allocations",
            cost.allocations,
            1_024 + bytes * ALLOCATIONS_BYTE + (handled + cost.turns) * ALLOCATIONS,
        ),
        (
            "bytes allocated",
            cost.allocated,
            ONCE + bytes * ALLOCATED + cost.entered * ENTERED,
        ),
        (
            "steps",
            cost.steps,
            ONCE + cost.bytes_in * STEPS_BYTE + cost.turns * STEPS_TURN + ms * STEPS_MS,
        ),
        (
            "bytes retained",
            u64::try_from(cost.retained).unwrap_or(0),
            ONCE + cost.bytes_in * RETAINED + cost.entered * ENTERED,
        ),
    ];
    for (what, is, most) in bounds {
        assert!(is <= most, "{is} {what}, at most {most} allowed: {cost:?}");
    }
}
