//! Every constant of a tunnel.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" names the document with the figures. A constant without that word was not measured
//! by itself. Bounds on memory follow from what a hostile peer may cost.

use ropewalk_types::{Duration, Rate};

// When a path is suspect: see `docs/decisions/path-liveness.md`.

/// Shortest silence that makes a path suspect. Longer: fewer false alarms, later failover.
pub(super) const SUSPECT_MIN: Duration = Duration::from_millis(80);
/// Allowance for the peer's delayed acknowledgements and a busy machine. Longer: the same.
pub(super) const SUSPECT_MARGIN: Duration = Duration::from_millis(60);
/// The same for the probe that asks before. Longer: fewer probes, later answers.
pub(super) const DOUBT_MARGIN: Duration = Duration::from_millis(30);
/// Probes in a round trip at most, after the first one, of a path that is in doubt and not suspect yet. They matter for
/// round trips above 120 ms. More: a path that is back is found sooner, a peer that has been late for a while because it is
/// busy has more to answer. Measured: `docs/decisions/fleet.md`.
pub(super) const DOUBT_PROBES: u32 = 8;
/// How long a peer's word that a path is suspect holds without being repeated: several reports.
/// Longer: a path that came back stays unused.
pub(super) const PEER_SUSPECT: Duration = Duration::from_millis(600);
/// The judgement is "longer than": the timer goes off this much later.
pub(super) const ROUNDING: Duration = Duration::from_micros(10);
/// How long after its return a path still has what it carried before.
pub(super) const EXCUSED_FOR: Duration = Duration::from_secs(1);
/// A path that loses packets is probed after carrying nothing for this long, so that the egress
/// sees whether the newest packet was lost. Longer: fewer probes, later repairs.
pub(super) const TAIL: Duration = Duration::from_millis(5);
/// Probes of an idle tunnel per probe interval, over one path after the other. More: a hub that
/// started anew is noticed sooner, idle links cost more. Measured: `docs/decisions/path-liveness.md`.
pub(super) const IDLE_TURNS: u32 = 4;

// Outages: see `docs/decisions/hold.md`.

/// A sign of life after hearing nothing for this long means that a path that was silent both ways
/// is back. In an outage both ends probe several times in that. Longer: a short outage is missed.
pub(super) const HEARD_SILENCE: Duration = Duration::from_millis(150);
/// The same while the path's end is awaited: both ends send something every 15 ms.
pub(super) const AWAITED_SILENCE: Duration = Duration::from_millis(100);

// Binding packets to paths.

/// Least window with which any path may be tried, bytes. Larger: more copies of trials.
pub(super) const SMALL_WINDOW: u64 = 16_000;
/// A queue stands on a path while the smoothed round trip exceeds the smallest one by this time and by
/// [`QUEUE_STANDS_SHARE`]. Losses are the queue's then. Larger: overflowing queues count as lossy paths.
pub(super) const QUEUE_STANDS: Duration = Duration::from_millis(10);
/// Part of the smallest round trip, one in so many.
pub(super) const QUEUE_STANDS_SHARE: u32 = 4;
/// Packets must wait this long without a break before the paths are full. Longer: repair symbols
/// compete with packets for longer.
pub(super) const FULL_AFTER: Duration = Duration::from_millis(100);
/// How long the paths count as full. One flow of loss-based TCP takes again what it left unused
/// after it backed off; repair symbols would only make it back off sooner.
pub(super) const FULL_FOR: Duration = Duration::from_secs(2);
/// How often the queue's limits follow the paths' rates. Longer: less work, later limits.
pub(super) const RATE_INTERVAL: Duration = Duration::from_millis(10);
/// What sparse flows may send before what a dead path carried, bytes: four full packets. Larger:
/// calls recover sooner, the other flows later. Measured: `docs/decisions/path-liveness.md`.
pub(super) const SPARSE_CREDIT_MAX: u64 = 6_000;

// Memory.

/// How often memory is given back while there is traffic, and how long after it. It must be longer than
/// a packet is under way. Longer: less work, memory stays for longer after traffic.
pub(super) const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(30);

/// After an outage of this length memory is given back all the same: the peer may never come back. It must
/// be longer than anything can be held. Longer: sites that left keep memory of the hub for longer.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(900);
/// A look at idle memory that comes so late follows a standstill of this machine: a pause of a process or of a
/// virtual machine. Longer: after shorter pauses copies may pass for new packets; shorter: a busy hub keeps
/// memory for longer.
pub(super) const STANDSTILL: Duration = Duration::from_secs(1);
/// Looks after the last traffic: by then even headers of idle flows are forgotten.
pub(super) const GIVE_BACK_LOOKS: u8 = 5;

// Sizes of inner packets.

/// Largest inner packet that a path of MTU 1,500 takes whole, bytes (`docs/wire.md`): assumed until the paths
/// are known.
pub(super) const WHOLE_USUAL: usize = 1_436;
/// Inner MTU unless one is configured or the paths take more, bytes: that of Ethernet, which hosts expect.
pub const INNER_MTU_USUAL: usize = 1_500;

/// How long the paths must take smaller packets only, or larger ones than hosts expect, before new connections
/// are told. A satellite path needs seconds to find its MTU. Burst losses hide an MTU for that long. A path of small
/// packets may be away for as long. Longer: after a real change, new connections have packets in
/// pieces, or smaller ones than they could, for longer.
pub(super) const SIZE_LASTS: Duration = Duration::from_secs(20);
/// Smallest MTU that is told to a host, bytes: each link of IPv6 has it (RFC 8200 §5), and QUIC's first packets fit
/// it (RFC 9000 §14).
pub(super) const MTU_TOLD_MIN: usize = 1_280;
/// Packets of a flow that are refused before the rest passes in pieces: a sender that finds its packet size has
/// needed fewer. More: senders that ignore answers lose more.
pub(super) const REFUSALS_MAX: u8 = 16;
/// A flow that sent no such packet for this long is refused anew. Longer: fewer losses of senders that ignore answers;
/// QUIC looks for a larger size every 10 minutes, and would find pieces.
pub(super) const REFUSALS_FORGOTTEN: Duration = Duration::from_secs(60);
/// Flows whose refusals are counted. Beyond that the counts begin anew.
pub(super) const REFUSED_FLOWS_MAX: usize = 256;
/// Least time between two answers to packets that are too big. Longer: fewer packets in a flood, later
/// answers to some of many hosts.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_millis(10);
/// Answers that wait to be delivered.
pub(super) const ANSWERS_MAX: usize = 16;

// Header compression.

/// Payload that stays where it arrived when its headers are restored, bytes: a guess between acknowledgements
/// and full segments. Smaller: less is copied, and small packets go through two pieces of memory. A packet
/// that waits keeps what arrived with it in memory, as a packet with full headers does.
pub(super) const APART_MIN: usize = 256;
/// Memory that packets with full headers share, bytes. Larger: fewer allocations, and a packet that waits
/// keeps more memory.
pub(super) const EXPANDED_CHUNK: usize = 64 << 10;
/// What an announcement of headers, or an answer, has at most as a rule, bytes.
pub(super) const HEADERS_BYTES: usize = 96;

// Send buffers, for experiments with published schedulers.

/// Largest send buffer of a path that may be asked for, packets. More: longer queues.
pub const SEND_BUFFER_MAX: usize = 1_000;
/// Most packets that wait before a send buffer, as in the queue of a TUN interface of Linux
/// (`TUN_READQ_SIZE`). More: longer delays, fewer drops.
pub(super) const ENTRY_PACKETS_MAX: usize = 500;

// How much a flow sends.

/// Window in which a flow's bytes are counted, nanoseconds. Longer: steadier, slower.
pub(super) const LOAD_WINDOW_NANOS: u64 = 500_000_000;
/// Bytes in a window that make a flow heavy, 2.4 Mbit/s: above calls and most video conferences, below
/// downloads. Larger: more flows pass without waiting for order, and downloads over QUIC that
/// lose packets stay below it, since each repair comes out of order. Measured:
/// `docs/decisions/exit-order.md`.
pub(super) const HEAVY_BYTES: u32 = 150_000;
/// Bytes in a window below which a flow is sparse, 1 Mbit/s: calls and games. Larger: more
/// deadline NACKs.
pub(super) const SPARSE_BYTES: u32 = 62_500;
/// Bytes that open a connection, with its first request: two full packets.
pub(super) const OPENING_BYTES: u32 = 3_000;

// Reports.

/// How often the ingress hears what the egress saw, while anything arrives. Longer: less reverse
/// traffic, slower estimates.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(100);
const _: () = assert!(REPORT_INTERVAL.as_millis() >= 10, "reports must stay rare");

// Repair: see `docs/decisions/repair.md`.

/// Most datagrams that wait for being sent again; beyond that the oldest is given up.
pub(super) const RETRANSMIT_MAX: usize = 4_096;
/// Most copies of what was lost. More: packets with a deadline arrive more surely, more bytes.
pub(super) const COPIES_MAX: u8 = 3;
/// Losses of a packet that call for no second copy.
pub(super) const SINGLE_LOSSES: u8 = 1;
/// The same while other flows use what a waiting one leaves.
pub(super) const SINGLE_LOSSES_SHARED: u8 = 3;
/// How much later a repair may arrive for taking another path. Longer: more repairs avoid the
/// path that lost, and they come later.
pub(super) const ELSEWHERE: Duration = Duration::from_millis(10);
/// Longest that the egress waits for a repair. Longer: fewer gaps, later packets behind them.
pub(super) const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Most round trips that the egress waits for a repair, which may be lost, too.
pub(super) const PATIENCE_ROUND_TRIPS: u32 = 3;
/// Added to that wait, for delayed answers and a busy machine.
pub(super) const PATIENCE_MARGIN: Duration = Duration::from_millis(10);
/// A further copy on the same path follows one part in so many of its round trip later: losses
/// come in bursts. Larger: copies sooner, and lost together.
pub(super) const COPY_SPACING_SHARE: u32 = 4;
/// Least spacing of copies.
pub(super) const COPY_SPACING_MIN: Duration = Duration::from_millis(2);
/// Largest spacing of copies.
pub(super) const COPY_SPACING_MAX: Duration = Duration::from_millis(10);

// Repair symbols: see `docs/decisions/coding-ahead.md`.

/// Age at which a repair symbol that waits is worth nothing any more.
pub(super) const CODED_AGE_MAX: Duration = Duration::from_millis(100);
/// Halves of repair symbols kept whose other half has not come yet.
pub(super) const HALVES_MAX: usize = 64;
/// Share of all capacity that the repair symbols of one path may cost in any case. Larger: more
/// losses are made good at once, less goodput.
pub(super) const CHEAP: f64 = 0.01;
/// Repair symbols per packet of a path whose loss is not known yet. Larger: the first losses are
/// made good, clean paths pay for it.
pub(super) const UNKNOWN_REDUNDANCY: f64 = 0.05;
/// Rate up to which such a path gets repair symbols.
pub(super) const UNKNOWN_RATE_MAX: Rate = Rate::from_bits_per_sec(200_000_000);
/// How long redundancy stays as it is, a little less than the interval of reports.
pub(super) const SIZED_FOR: Duration = Duration::from_millis(80);

// Copies of openings.

/// Loss from which isolated packets are copied, share. Smaller: shorter waits for queries, more
/// bytes on good paths.
pub(super) const OPENINGS_LOSS: f64 = 0.005;
/// What these copies may cost, share of all bytes.
pub(super) const OPENINGS_SHARE: f64 = 0.02;
/// What they may cost in any case, bytes per second.
pub(super) const OPENINGS_PER_SECOND: f64 = 8_000.0;
/// What they may cost at once, bytes.
pub(super) const OPENINGS_CREDIT_MAX: f64 = 64_000.0;

// Rescue: see `docs/decisions/rescue.md`.

/// A deadline NACK travels on two paths. A second one within this time, plus the difference of
/// the paths' delays, is the same NACK. Longer: a new NACK may be overlooked.
pub(super) const SAME_NACK: Duration = Duration::from_millis(6);
/// Round trip assumed while no path has shown one.
pub(super) const RTT_UNKNOWN: Duration = Duration::from_millis(50);

// Fragments.

/// Smallest piece worth a datagram, bytes; QUIC guarantees far more (RFC 9000 §14).
pub(super) const PIECE_MIN: usize = 512;
/// Inner packets under reassembly at once: what a fast path that loses takes in pieces within a
/// round trip or two.
pub(super) const PARTIAL_MAX: usize = 1_024;
/// Their bytes, complete.
pub(super) const PARTIAL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Pieces of one inner packet: 65,535 bytes in pieces of 1,400, each taken apart once more.
pub(super) const PIECES_MAX: usize = 256;
/// Memory for a piece and those that follow it, in multiples of the piece. More: fewer allocations where many
/// pieces follow, more memory for a packet that says it is longer than it is.
pub(super) const AHEAD: usize = 4;

// Sizes that count against paths. The exact sizes hardly matter.

/// Bytes of a sub-tunnel packet besides the datagram: QUIC header, frame header and tag.
pub(super) const SUBTUNNEL_OVERHEAD: u64 = 30;
/// Bytes of a datagram of the usual size.
pub(super) const USUAL_BYTES: u64 = 1_400;
/// Bytes of a probe.
pub(super) const PROBE_BYTES: usize = 8;
/// Bytes of a report.
pub(super) const REPORT_BYTES: usize = 60;
/// Bytes of a NACK of average length.
pub(super) const NACK_BYTES: usize = 30;
/// Bytes of a deadline NACK of average length.
pub(super) const DEADLINE_NACK_BYTES: usize = 14;
/// Flows that are looked at to see how many wait. More: many thin flows hide fewer of those that
/// wait, each round costs more.
pub(super) const FLOWS_COUNTED: usize = 16;
