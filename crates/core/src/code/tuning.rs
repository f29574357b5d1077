//! Every constant of coding ahead of losses.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! `docs/decisions/coding-ahead.md` has the figures of the method as a whole. None of these
//! constants was measured by itself, unless its comment says so. Bounds on memory follow from what
//! a hostile peer may cost.

use ropewalk_types::Duration;

// What repair symbols cover.

/// Most packets that one repair symbol covers. More: longer bursts are made good, later.
pub(crate) const WINDOW_PACKETS: usize = 128;
/// How long a packet stays in the window: by then it has been repaired on request.
pub(super) const WINDOW_TIME: Duration = Duration::from_millis(250);
/// Fewest packets in the window: a burst of losses and those around it.
pub(super) const WINDOW_MIN: f64 = 32.0;
/// Numbers from the first to the last packet covered are fewer than this: the format's bound.
pub(super) const SPAN_MAX: u16 = u8::MAX as u16;
/// Repair symbols that cover each packet: what is still missing then has been asked for. More:
/// longer bursts are made good, time for every packet of a fast path.
pub(super) const COVERINGS: f64 = 8.0;
/// Repair symbols are clearly sooner than repairs when so many come in a round trip. Larger:
/// fewer repair symbols, more NACKs.
pub(super) const SOONER: f64 = 2.5;
/// Longest time between two packets that says anything of the next ones.
pub(super) const INTERVAL_MAX: Duration = Duration::from_millis(100);
/// Repair symbols that may be due at once: many packets are bound to a path in one go.
pub(super) const DUE_MAX: usize = 64;
/// Repair symbols that a flow of single packets may have in advance of its share. More: sooner
/// for calls, more bytes.
pub(super) const DEBT_MAX: f64 = 2.0;
/// Packets of a block. With a fifth lost a block takes 19 repair symbols: nearly the factor of 1.5
/// that the buffers of the TCP/NC tunnel are laid out for (Ha and Tsuru, §2.2).
pub const BLOCK_PACKETS: usize = 40;

// How many repair symbols.

/// Loss from which packets get repair symbols, share. Smaller: bytes for losses that repairs make
/// good unnoticed.
pub(super) const LOSS_MIN: f64 = 0.001;
/// Share of windows that may stay incomplete until they are repaired. Smaller: fewer waits, more
/// bytes.
pub(super) const RESIDUAL: f64 = 0.001;
/// The same of blocks.
pub(super) const RESIDUAL_BLOCK: f64 = 0.01;
/// Most repair symbols per packet. Larger: heavier losses are made good, less goodput.
pub const REDUNDANCY_MAX: f64 = 0.5;
/// Most packets looked at together. More: exacter, slower.
pub(super) const PACKETS_MAX: f64 = 96.0;
/// Most repair symbols considered. More: the same.
pub(super) const REPAIR_SYMBOLS_MAX: usize = 96;

// The decoder.

/// Packets remembered: longer than any repair symbol, and than the paths' delays differ.
pub(super) const REMEMBERED: usize = 1_024;
/// Most equations under way. More: more is recovered, memory and time.
pub const EQUATIONS_MAX: usize = 32;
/// Most unknowns in a new equation. More: the same.
pub(super) const UNKNOWNS_MAX: usize = 24;
/// Most unknowns of an equation that elimination has made longer.
pub const ROW_MAX: usize = 128;
/// Time without repair symbols after which nothing is remembered.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// Intervals between repair symbols that a gap waits before it is asked for. More: fewer needless
/// repairs, later repairs.
pub(super) const PATIENCE_INTERVALS: f64 = 2.0;
/// Least such wait.
pub(super) const PATIENCE_MIN: Duration = Duration::from_millis(2);
/// Longest such wait.
pub(super) const PATIENCE_MAX: Duration = Duration::from_millis(25);
/// Intervals after a repair symbol until which another one is expected.
pub(super) const EXPECTED_INTERVALS: u32 = 4;
