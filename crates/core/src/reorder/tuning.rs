//! Every constant of the egress.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" names the document with the figures. A constant without that word was not measured
//! by itself. Longer holds: less disorder, later packets behind a gap.

use ropewalk_types::Duration;

// How long a packet is held.

/// Longest time a packet is held, whatever the paths look like.
pub const HOLD_MAX: Duration = Duration::from_millis(400);
/// Added to the measured spread of one-way delays. A packet that is not known to be lost is under
/// way. Its path stalls at most this much longer than usual before the path counts as suspect.
/// Measured: `docs/decisions/exit-order.md`.
pub(super) const HOLD_MARGIN: Duration = Duration::from_millis(100);
/// Hold while fewer than two paths have delivered: their spread is not known yet. Measured:
/// `docs/decisions/auto.md`.
pub(super) const HOLD_UNKNOWN: Duration = Duration::from_millis(300);
/// A path counts as active while it has delivered within this time. Longer: a silent path holds up
/// packets for longer.
pub(super) const ACTIVE: Duration = Duration::from_millis(300);
/// After this silence of a flow a jump in its numbers means losses long past, not disorder. Longer:
/// the first packet after a pause waits more often.
pub(super) const IDLE: Duration = Duration::from_millis(500);

/// A flow that was silent for this long gives its memory back. What comes then begins anew, so packets
/// of before must not be under way any more. Longer: memory stays for longer after many flows.
pub(super) const FORGOTTEN: Duration = Duration::from_secs(60);

/// A jump by fewer numbers is disorder all the same: the first packets of a transfer may take several
/// paths, and a sender that sees them out of order starts slowly. Larger: when the last packets
/// before a pause were lost, more flows wait after the pause. Measured: `docs/decisions/exit-order.md`.
pub(super) const BEGINNING: u16 = 64;
/// Longest hold of the first packet after a pause. Shorter: the first packets over uneven paths come out of
/// order.
pub(super) const HOLD_BEGINNING: Duration = Duration::from_millis(100);

// What is remembered.

/// Numbers behind the newest within which copies are recognised. More: later copies are removed,
/// memory.
pub const SEEN_WINDOW: u16 = 1_024;
/// Numbers ahead of the next one that may be held. More: faster and longer paths keep order, memory.
pub const HOLD_WINDOW: u16 = 4_096;
/// Most packets held in all flows together.
pub(crate) const HELD_MAX: usize = 16_384;
/// Most places for them, kept or missing, in all flows together: a peer that leaves wide gaps in
/// many flows costs some 23 MB.
pub(crate) const PLACES_MAX: usize = 1 << 18;

// Work, because a peer decides how many flows hold packets and how many numbers are missing.

/// Steps of one look at the flows that hold packets: a flow counts [`LOOK_FLOW`], a missing number 1. A look
/// that needs more goes on [`LOOK_INTERVAL`] later. More: flows behind many others are released sooner, a
/// look takes longer.
pub(super) const LOOK_STEPS: usize = 1 << 14;
/// Steps that a flow counts: its state is in several places of memory.
pub(super) const LOOK_FLOW: usize = 16;
/// So many holding flows are asked each time when the next one is due. While there are more, they are looked
/// at every [`LOOK_INTERVAL`]. More: exact times, more work for each question.
pub(super) const EXACT_FLOWS: usize = 512;
/// How often flows are looked at that are too many for one look, and how often memory is looked for that
/// flows do not need any more. Longer: less work, later releases and fewer places.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

// How a run of packets leaves when a gap closes.

/// Bytes of a run that leave in each [`PACE_INTERVAL`] (and, with what was saved up, twice that at
/// most at once). Receivers of UDP on Linux buffer 208 KiB unless they ask for more
/// (`net.core.rmem_default`), some 90 packets: a longer run would be lost there.
pub(super) const BURST: usize = 32 * 1024;
/// What a packet counts at least, bytes: small ones take as much of such a buffer.
pub(super) const PACKET_MIN: usize = 768;
/// While a run is paced, every byte that arrives lets this many leave. More: the run ends sooner,
/// longer bursts.
pub(super) const PACE: usize = 2;
/// How often a part of a run leaves.
pub(super) const PACE_INTERVAL: Duration = Duration::from_millis(1);
/// Most intervals that are made up for when nobody looked in time. More: longer bursts.
pub(super) const PACE_BEHIND_MAX: usize = 8;
/// A run that lasts this long leaves whatever its pace.
pub(super) const RUN_MAX: Duration = Duration::from_millis(50);
