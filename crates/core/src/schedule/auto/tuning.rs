//! Every constant of `auto`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" names a row of the table in `docs/decisions/auto.md`. A constant without that word
//! was not measured by itself.

use ropewalk_types::Duration;

// Which flows are backlogged, and which are striped.

/// Waiting bytes that make a flow backlogged. Larger: more flows keep the delay of the fast path,
/// bulk flows are noticed later.
pub(super) const BACKLOG_BYTES: u64 = 6_000;
/// How long a flow stays backlogged without reaching [`BACKLOG_BYTES`] again. Longer: steadier.
pub(super) const BACKLOG_HOLD: Duration = Duration::from_millis(300);
/// Bytes from which a flow is worth striping however long its queue is.
pub(super) const ELEPHANT_BYTES: u64 = 128 * 1024;
/// Largest difference of one-way delays over which a flow is striped. Larger: more goodput over
/// uneven paths, longer waits for order.
pub(super) const SPREAD_MAX: Duration = Duration::from_millis(150);
/// Difference of one-way delays that costs a flow nothing worth mentioning.
pub(super) const SPREAD_SMALL: Duration = Duration::from_millis(5);
/// Loss that repairs make good without anyone noticing, share.
pub(super) const LOSS_SMALL: f64 = 0.001;
/// Part of a round trip, one in so many, that the queue of a flow below [`ELEPHANT_BYTES`] must take to
/// drain before the flow is striped. Measured: "young flows stripe only behind a queue".
pub(super) const YOUNG_QUEUE_SHARE: u32 = 8;
/// Part of the difference of delays, one in so many, that a standing queue must take to drain before its
/// pinned path counts as full. Measured: "a queue must take half of the difference".
pub(super) const DRAINS_SHARE: u32 = 2;
/// How many times what a path has carried in a round trip may be under way there before it gets more of a
/// striped flow. Measured: "at most twice what a path has carried".
pub(super) const PROVEN: u64 = 2;
/// What may be under way on a path that has carried nothing yet, bytes, before more of a striped flow
/// goes there. Larger: a second path helps sooner, a thin one makes the flow wait.
pub(super) const UNPROVEN_BYTES: u64 = 16_000;
/// How long a pinned path counts as full after a queue stood there. Measured: "striping when a
/// queue has stood".
pub(super) const FULL_HOLD: Duration = Duration::from_secs(2);
/// Head start of the flow that is striped already over any other. Longer: fewer striped flows at
/// once, less fairness.
pub(super) const STRIPER_LEAD: Duration = Duration::from_millis(3);
/// How long a flow counts as striped after its last packet away from its pinned path.
pub(super) const STRIPER_FOR: Duration = Duration::from_millis(200);
/// Round trips that a lost packet of a sparse flow costs until it is made good. Larger: sparse
/// flows avoid paths with loss at the price of delay.
pub(super) const LOSS_ROUND_TRIPS: f64 = 3.0;
/// Most that a sparse flow's last path is preferred, so that near ties do not make it alternate.
/// Measured: "up to 50 instead of 5 ms of its variation".
pub(super) const TIE_MAX: Duration = Duration::from_millis(50);

// What striping must bring.

/// Part of a flow's bytes, one in so many, that the other paths must carry. Measured: "striping
/// weighed by its share".
pub(super) const WORTH_ONE_IN: u64 = 8;
/// A path of at least one part in so many of the pinned path's rate may yet bring more.
pub(super) const MAY_BRING_MORE: u64 = 4;
/// How long the share is watched, beside [`WATCH_ROUND_TRIPS`]. Measured: 0.3 s gained 1 %.
pub(super) const WATCH: Duration = Duration::from_secs(1);
/// Round trips of the path that it is watched for: it may have to find its rate first.
pub(super) const WATCH_ROUND_TRIPS: u32 = 12;
/// How long a flow stays pinned at first. Measured: a first pause of 1 s gave 240 Mbit/s where 5 s
/// gave 255 to 274, for the trials.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Striping that paid for this long ends the back-off of pauses.
pub(super) const PAUSE_FORGIVEN_AFTER: Duration = Duration::from_secs(30);
/// While nothing went away for this long, or one and a half round trips, the watch rests: it says
/// nothing of the other path.
pub(super) const REST: Duration = Duration::from_millis(200);

// Where flows are pinned.

/// Flows of a pinned path are those counted in the last whole epoch. Longer: steadier, slower.
pub(super) const EPOCH: Duration = Duration::from_millis(200);
/// Weight of one epoch in what the flows of a pinned path send.
pub(super) const DEMAND_WEIGHT: f64 = 0.25;
/// Part of a path's rate that is too much for it.
pub(super) const OVERFLOW: f64 = 1.05;
/// Least time between two moves of any flows. Longer: fewer flows follow each other to a path.
pub(super) const MOVE_INTERVAL: Duration = Duration::from_millis(100);
/// Least time between two moves of one flow. Longer: less reordering, worse balance.
pub(super) const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// Costs that differ by less than this factor are alike. Larger: the first of several paths is taken more
/// often than the best.
pub(super) const ALIKE: f64 = 1.1;
/// A move must make the cost smaller by this factor. Larger: the same.
pub(super) const MOVE_GAIN: f64 = 1.3;
/// Most bytes the future of a flow is credited with. Larger: rates count more than delays.
pub(super) const HORIZON_BYTES_MAX: u64 = 1_000_000;
/// One-way delays that a flow's future is charged with: acknowledgements, and whatever else it
/// waits for. Measured: "weigh two one-way delays instead of one".
pub(super) const CHARGED_DELAYS: f64 = 2.0;

// Which paths are excluded, and when striping pauses.

/// A path that loses more than this share is excluded while another loses less than
/// [`LOSS_FINE`].
pub(super) const LOSS_HIGH: f64 = 0.10;
/// Loss must last this long to exclude a path: a window that was tried too large loses as much.
/// Measured: "only when that lasts for a second".
pub(super) const LOSS_LASTS: Duration = Duration::from_secs(1);
/// Loss at which an excluded path is open again, share.
pub(super) const LOSS_FINE: f64 = 0.05;
/// A path this much later than the fastest is excluded. Measured: "no path is ever left because
/// it lags".
pub(super) const LAG_HIGH: Duration = Duration::from_millis(300);
/// It is open again when it is no later than this.
pub(super) const LAG_FINE: Duration = Duration::from_millis(200);
/// Time between two looks at the paths. Longer: less work, later verdicts.
pub(super) const ASSESS_INTERVAL: Duration = Duration::from_millis(20);
/// Copies sent over an excluded path each time its loss is tried. More: surer, more bytes.
pub(super) const COPIES_FOR_LOSS: u8 = 20;
/// The same for its delay. Few, for copies queue like anything else.
pub(super) const COPIES_FOR_LAG: u8 = 4;
/// First time between two tries, and between two attempts at striping. Short: the queue of a
/// cellular link whose rate fell is often gone at once. Measured: "after 0.2 s, forgotten after
/// 2 s".
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest such time.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Striping, or a path that lagged, that went well for this long ends the back-off. Measured with
/// [`BACKOFF_MIN`].
pub(super) const FORGIVE_AFTER: Duration = Duration::from_secs(2);
/// The same for a path that lost packets: seconds pass until loss shows again.
pub(super) const FORGIVE_LOSS_AFTER: Duration = Duration::from_secs(30);
/// Share of packets late, or held until time ran out, that makes striping pause. Larger: more
/// goodput, more disorder.
pub(super) const STALL_SHARE: f64 = 0.02;
/// Packets on which that share rests. More: surer, later.
pub(super) const STALL_PACKETS: u32 = 400;
