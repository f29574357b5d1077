//! Every constant of the estimators.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! None of them was measured by itself.

use ropewalk_types::Duration;

// What the egress counts as lost.

/// How far behind the highest number a packet may come without being called lost, packets. Larger:
/// more disorder is borne, losses are told later.
pub(super) const REORDER_WINDOW: u16 = 64;
/// A larger step of the numbers, forwards or backwards, is a new start. Larger: longer gaps count
/// as losses.
pub(super) const JUMP_MAX: u16 = 8_192;
/// This many numbers in a row from behind the window, none from ahead, are a new start as well: the
/// peer counts from the beginning. More: fewer false starts, later reports of a peer that began
/// anew.
pub const RESTART_AFTER: u8 = 8;
/// A number missing for this long is called lost at the next report. Longer: fewer late packets are
/// called lost, losses are told later.
pub(super) const SETTLE_AFTER: Duration = Duration::from_millis(50);
/// More numbers than these missing in a row, with nothing received for [`OUTAGE_SILENCE`], are an
/// outage instead of losses. More: short outages count as losses.
pub(super) const OUTAGE_PACKETS: u16 = 8;
/// The silence of an outage. Longer: the same.
pub(super) const OUTAGE_SILENCE: Duration = Duration::from_millis(150);

// Loss.

/// Seconds that the loss ratio covers. More: steadier, later to follow.
pub(super) const LOSS_WINDOW_SECS: u64 = 10;
/// Packets that the loss ratio rests on at least, as far as the history has as many. More: steadier
/// on slow paths, later to follow.
pub(super) const PACKETS_MIN: u64 = 1_000;
/// Seconds of history. More: burstiness rests on more runs, memory.
pub(super) const HISTORY_SECS: u64 = 60;
/// Runs of losses from which burstiness is taken as measured. More: surer, later.
pub(super) const RUNS_MIN: u64 = 30;
/// Seconds that `LossEstimator::loss_lately` looks back. More: steadier, later to follow.
pub(super) const LATELY_SECS: u64 = 4;
/// Packets without loss that `LossEstimator::loss_lately` adds. More: single losses count for less.
pub(super) const LATELY_PRIOR: u64 = 100;
/// Seconds that `LossEstimator::loss_steady` judges. More: fewer bursts are taken for steady loss.
pub(super) const STEADY_SECS: usize = 3;
/// Packets that make one of these seconds count. More: slow paths are judged later.
pub(super) const STEADY_PACKETS: u64 = 50;
/// Chance that a run of losses ends, before anything is known. Larger: shorter runs are expected.
pub(super) const END_PRIOR: f64 = 0.5;
/// Longest mean run believed, packets. Larger: protection prepares for longer runs.
pub(super) const BURST_MAX: f64 = 1_000.0;

// One-way delay.

/// Seconds over which the smallest one-way delay is kept. More: surer to see an empty queue, later
/// to follow a path that has become longer.
pub(super) const DELAY_WINDOW_SECS: u64 = 10;
/// A mean older than this says nothing of the queue any more. Longer: idle paths look as they were.
pub(super) const CURRENT_MAX_AGE: Duration = Duration::from_secs(1);
/// How long a path is believed to share its queue with others, after a drain that emptied nothing.
/// Longer: fewer drains in vain, later to notice that the others have gone.
pub(super) const FOREIGN_FOR: Duration = Duration::from_secs(10);
/// A delay further than this from the last one is a clock that jumped: all history is void.
/// Larger: longer queues are believed, smaller jumps of a clock go unseen.
pub(super) const DELAY_JUMP_US: i64 = 5_000_000;

// What a full path carries.

/// A peak of the rate counts for two of these periods at most. Longer: a peak is told for longer after it is over.
pub(super) const FULL_PERIOD: Duration = Duration::from_secs(10);
/// How long a path has to be full until its rate counts. Longer: fewer bursts count, less is known of short loads.
pub(super) const FULL_LASTS: Duration = Duration::from_secs(1);
/// A path that is not seen full for so long is not full any more. Longer: bursts in a row count.
pub(super) const FULL_GAP: Duration = Duration::from_secs(2);
