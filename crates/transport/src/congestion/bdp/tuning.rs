//! Every constant of `bdp`.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" points to the table of rules in `docs/decisions/congestion-control.md`. A constant
//! without that word was not measured alone: the tables there measured all of them together.

use std::time::Duration;

// Windows.

/// First window, packets. Larger: a faster first round trip, a longer burst into short queues.
/// RFC 9002 §7.2 recommends ten. An idle path keeps this window.
pub(super) const INITIAL_PACKETS: u64 = 16;
/// Smallest window, packets. Larger: acknowledgements keep coming, a longer queue on slow paths.
pub(super) const MIN_PACKETS: u64 = 4;
/// Largest window, bytes: 20 Gbit/s over 100 ms. It bounds what a wrong estimate can cost.
pub(super) const WINDOW_MAX: u64 = 256 << 20;

// Rounds.

/// Rounds over which the largest delivery rate counts, nearly a whole cycle of phases. Larger: steadier
/// under jitter, slower when capacity falls.
pub(super) const RATE_ROUNDS: usize = 12;
/// While delay is beyond the guard. Larger: longer queues after capacity fell.
pub(super) const RATE_ROUNDS_GUARDED: usize = 2;
/// Least length of a round. Longer: a steadier rate, slower reactions on short paths.
pub(super) const ROUND_MIN: Duration = Duration::from_millis(5);
/// Packets acknowledged in a round at least. More: a steadier rate, slower reactions.
pub(super) const ROUND_PACKETS_MIN: u64 = 16;
/// A round on a slow path is over after this time, however few packets it has. Longer: the same.
pub(super) const ROUND_MAX: Duration = Duration::from_millis(200);
/// A round is over after this many floors even when nothing sent in it was acknowledged.
pub(super) const ROUND_FLOORS: f64 = 1.5;
/// Least length of a round, usual delay spikes. Less: jitter makes the rate. Measured: "rounds of
/// five spikes".
pub(super) const ROUND_SPIKES: f64 = 5.0;

// The floor and the sojourn time.

/// Weight of a drained round in the floor when it is below. Larger: sooner right after a wrong
/// floor, more of the noise. Measured: "floor from drained rounds".
pub(super) const FLOOR_DOWN: f64 = 0.5;
/// Weight of a drained round in the floor when it is above. Larger: a queue of others soon counts
/// as path. Measured with [`FLOOR_DOWN`].
pub(super) const FLOOR_UP: f64 = 0.25;
/// What of a round's smallest RTT may be chance, mean jitters. Larger: longer unseen queues.
/// Smaller: jitter counts as queue.
pub(super) const NOISE_JITTER: f64 = 2.5;
/// Most by which one round raises the sojourn time, a factor. Larger: a queue that grows counts
/// as path.
pub(super) const SOJOURN_GROWTH: f64 = 1.2;

// The allowance: standing queue that is wanted.

/// Allowance, share of the floor. Larger: capacity is found sooner, calls wait longer.
pub(super) const ALLOWANCE_SHARE: f64 = 0.25;
/// Least allowance, seconds. It also bounds what a probe sends.
pub(super) const ALLOWANCE_MIN: f64 = 0.001;
/// Largest allowance without jitter, seconds.
pub(super) const ALLOWANCE_MAX: f64 = 0.006;
/// Least allowance, packets: on slow paths the time alone would be less than one.
pub(super) const ALLOWANCE_PACKETS: f64 = 2.0;
/// What jitter adds, mean changes of the smallest RTT from round to round. Larger: fuller paths
/// under jitter, longer queues.
pub(super) const ALLOWANCE_JITTER: f64 = 3.0;
/// What delay spikes add, usual spikes; the window allows for them even while it drains, or it
/// would stand still behind a spike. Measured: the whole spike gave 0.56 and 0.44 where half of
/// it gave 0.62 and 0.48.
pub(super) const ALLOWANCE_SPIKES: f64 = 0.5;
/// What one congestion mark, or a round with loss of ours, leaves of the allowance, a factor.
pub(super) const HEADROOM_CUT: f64 = 0.8;
/// What a round gives back of it, share.
pub(super) const HEADROOM_BACK: f64 = 0.02;
/// The least that stays of it, share.
pub(super) const HEADROOM_MIN: f64 = 0.05;

// The guard: standing queue that is too much.

/// Least guard, seconds. Larger: longer queues before old rates stop to count.
pub(super) const GUARD_MIN: f64 = 0.010;
/// What jitter adds to the guard, mean changes as above.
pub(super) const GUARD_JITTER: f64 = 3.0;
/// Most jitter that the guard allows for, seconds: what changes more is our own queue.
pub(super) const JITTER_MAX: f64 = 0.030;
/// Largest usual delay spike that the guard allows for, seconds.
pub(super) const SPIKES_MAX: f64 = 0.060;
/// Delay of which this share stays although less is in flight does not answer to us. Larger: a path
/// that has become slower less often counts as company.
pub(super) const UNRESPONSIVE: f64 = 0.85;
/// Share of the bytes in flight that counts as less. Larger: company is noticed before it has taken
/// much, and slower paths are tested more often. Measured: "less in flight".
pub(super) const UNRESPONSIVE_FEWER: f64 = 0.85;
/// Rounds in a row with really that little in flight before delay counts as not answering.
pub(super) const UNRESPONSIVE_ROUNDS: u8 = 2;
/// Rounds after a long queue in which loss says nothing of the path.
pub(super) const CALM_ROUNDS: u8 = 2;

// The start. Measured: the rows "start under spikes" and "kernel, 2 seeds".

/// Growth of the rate, a factor, that shows that the start is not over.
pub(super) const STARTUP_GROWTH: f64 = 1.25;
/// Rounds without such growth, though there was more to send, that end the start. More: the path
/// is filled more surely, with a longer queue.
pub(super) const STARTUP_STALE_ROUNDS: u8 = 3;
/// Where the delay rises by more than [`STARTUP_SPIKE`]: there the rate of one round says little.
pub(super) const STARTUP_STALE_ROUNDS_SPIKES: u8 = 6;
/// A delay spike of this length makes the start patient, seconds.
pub(super) const STARTUP_SPIKE: f64 = 0.010;
/// Rounds without growth and without more to send after which the gain is the calm one.
pub(super) const STARTUP_QUIET_ROUNDS: u8 = 3;
/// Most window, products of rate and sojourn time: the doubling, twice. Less ends slow starts of
/// flows early, more fills queues.
pub(super) const STARTUP_GAIN: f64 = 4.0;
/// After a round with a queue, and while nobody asks for more: the doubling alone. Measured in
/// `docs/decisions/auto.md`: "once bursts queue for 10 ms on a long path".
pub(super) const STARTUP_GAIN_CALM: f64 = 2.0;
/// Loss that ends the start together with a queue, share. Smaller: paths that lose by themselves find
/// their rate later.
pub(super) const STARTUP_LOSS: f64 = 0.1;
/// Windows that pacing lets through in a round trip at the start. The transfers inside begin with bursts
/// of their own, and take what spreads these for a queue. Larger: longer bursts into short queues.
pub(super) const STARTUP_PACING: u64 = 8;
/// While all of a round so far waited in a queue.
pub(super) const STARTUP_GAIN_QUEUE: f64 = 1.5;
/// Such a queue, share of the floor, and seconds at least. Larger: longer queues at the start. As
/// RFC 9406 §4.3 has them, without its upper bound of 16 ms.
pub(super) const STARTUP_DELAY_SHARE: f64 = 0.125;
pub(super) const STARTUP_DELAY_MIN: f64 = 0.004;
/// Packets that tell of it (RFC 9406 §4.3).
pub(super) const STARTUP_SAMPLES: u64 = 8;
/// Least rate that the window allows for, bytes per second. Less would spread the first windows
/// of a flow over a long round trip, which slow start takes for a full path (RFC 9406 §4.2).
pub(super) const STARTUP_RATE: f64 = 500_000.0;
/// Standing queue that ends the start as soon as the rate does not grow, share of the floor.
pub(super) const STARTUP_QUEUE: f64 = 0.5;
/// That queue must also exceed so many delay variations within rounds,
pub(super) const STARTUP_VARIATION: f64 = 4.0;
/// and so many times the largest delay spike.
pub(super) const STARTUP_SPIKES: f64 = 2.0;
/// Bursts that wait this long keep the start from more than the doubling, seconds,
pub(super) const BURSTS: f64 = 0.010;
/// where the floor is longer than this, seconds.
pub(super) const LONG_PATH: f64 = 0.080;
/// Mean time in flight above the smallest RTT that shows bursts in a queue, share of the floor,
pub(super) const CLUMP_SHARE: f64 = 0.125;
/// and delay variations.
pub(super) const CLUMP_VARIATION: f64 = 8.0;

// The cycle of probe, drain and cruise.

/// What a probe sends beyond the window, share of the product. Larger: capacity is found sooner,
/// pings beside it wait longer.
pub(super) const PROBE_SHARE: f64 = 0.25;
/// Most that a probe sends beyond the window, seconds.
pub(super) const PROBE_MAX: f64 = 0.010;
/// Rounds between a drain and the next probe. More: less disturbance, slower growth.
pub(super) const CRUISE_ROUNDS: u8 = 9;
/// Share of the product in flight in a usual drain. Less: the floor shows better, goodput falls.
pub(super) const DRAIN_GAIN: f64 = 0.95;
/// In a deep drain.
pub(super) const DRAIN_DEEP_GAIN: f64 = 0.7;
/// Rounds of a usual drain: the window falls in the first, the floor shows in the second.
pub(super) const DRAIN_ROUNDS: u8 = 2;
/// Rounds of a deep drain: losses of the first are found in the second.
pub(super) const DRAIN_DEEP_ROUNDS: u8 = 3;
/// Time between deep drains. Longer: less goodput lost, a wrong floor lasts.
pub(super) const DRAIN_DEEP_INTERVAL: Duration = Duration::from_secs(8);
/// While there is loss that a deep drain has not shown.
pub(super) const DRAIN_DOUBT_INTERVAL: Duration = Duration::from_secs(3);

// Hunger: capacity to spare.

/// Growth of the rate, share, that chance does not explain and that makes the window grow.
pub(super) const HUNGRY_GROWTH: f64 = 0.03;
/// Factors of the window, one step per round of growth. Larger: capacity that came back is used
/// sooner, with a longer queue when the growth ends.
pub(super) const HUNGRY_GAINS: [f64; 5] = [1.0, 1.15, 1.35, 1.6, 2.0];
/// Step after a successful probe, index into the gains.
pub(super) const HUNGRY_PROBED: usize = 2;
/// Step after a long queue: what took the capacity away may have passed. Index into the gains.
pub(super) const HUNGRY_RECOVERED: usize = 3;
/// Rounds without growth that end the hunger: a larger window shows after one round trip.
pub(super) const HUNGRY_STALE: u8 = 2;
/// Share of a round's bytes sent while more waited that makes its rate mean something.
pub(super) const WANTED_SHARE: f64 = 0.5;

// Loss.

/// Highest loss that is answered with a larger window, share.
pub(super) const LOSS_MAX: f64 = 0.30;
/// Loss beyond that of drained rounds that is believed, share: a window too large for a short
/// queue loses as well.
pub(super) const LOSS_BELIEF: f64 = 0.02;
/// Packets over which loss is averaged. More: steadier, slower.
pub(super) const LOSS_PACKETS: f64 = 256.0;
/// In deeply drained rounds.
pub(super) const LOSS_PACKETS_DRAINED: f64 = 128.0;
/// Drained packets that say something. Measured: "deep drains until 64 packets".
pub(super) const LOSS_PACKETS_KNOWN: f64 = 64.0;
/// Loss is ours when it exceeds that of drained rounds by this factor,
pub(super) const LOSS_FACTOR: f64 = 1.5;
/// and by this share.
pub(super) const LOSS_EXCESS: f64 = 0.003;
/// Deviations that chance is allowed in the loss of drained rounds.
pub(super) const LOSS_CHANCE: f64 = 2.0;
/// How much longer than an acknowledged packet a lost one counts as in flight, a factor.
/// Measured: "factor 1.55 measured per path" gave 1.5.
pub(super) const LOST_SOJOURN: f64 = 1.55;

// Company: others keep up a queue.

/// CUBIC's C, packets per second³ (RFC 9438 §5).
pub(super) const CUBIC_C: f64 = 0.4;
/// What CUBIC leaves of the window after a loss, share (RFC 9438 §4.6).
pub(super) const CUBIC_BETA: f64 = 0.7;
/// Most growth of the window in a round trip, a factor (RFC 9438 §4.4).
pub(super) const CUBIC_GROWTH: f64 = 1.5;
/// Rounds between two tests of our share of the queue. More: less goodput lost, those who left are
/// noticed later.
pub(super) const TEST_ROUNDS: u8 = 8;
/// Share of the window, or of what was in flight, that is used in a test. Less: a clearer answer, more goodput lost.
pub(super) const TEST_GAIN: f64 = 0.75;
/// Least decrease of what is in flight for a test to mean something, share.
pub(super) const TEST_LEAST: f64 = 0.1;
/// Share of the queue above which it is ours alone.
pub(super) const ALONE_SHARE: f64 = 0.85;
/// Tests in a row that must say so.
pub(super) const TEST_ALONE: u8 = 2;
/// With less than this share of the window in flight, and no queue, there is no company to compete
/// with. Larger: who gives way to others for a moment takes them for gone.
pub(super) const IDLE_SHARE: f64 = 0.25;
/// Most connections that a path stands for. More: a fairer share for many flows, others suffer from
/// a wrong count.
pub(super) const FLOWS_MAX: f64 = 8.0;
/// Weight of a round with fewer flows waiting: a flow that just gave way still counts.
pub(super) const FLOWS_WEIGHT: f64 = 0.05;
/// Tests in a row that must say so where losses, not delay, told of company: our share of a short
/// queue is hard to see. More: those who left are noticed later. Measured: "three tests".
pub(super) const TEST_ALONE_LOSSES: u8 = 3;
/// How long what was in flight counts as what we had before the others came, seconds. Larger: more
/// of it comes back at once.
pub(super) const REACHED_SECONDS: f64 = 10.0;
/// Batches of acknowledgements whose delays count as recent, 5 ms each at least. More: a slower swing
/// of a queue is seen whole, more memory.
pub(super) const OVERFLOW_BATCHES: usize = 64;
/// Rounds with losses over which ranks are averaged. More: a weaker sign is enough, a change of
/// the path shows later.
pub(super) const OVERFLOW_ROUNDS: f32 = 256.0;
/// Deviations of chance by which ranks must exceed their middle. Smaller: company at short queues is
/// noticed sooner, and more bursts of our own count as company. Measured: "three deviations".
pub(super) const OVERFLOW_DEVIATIONS: f32 = 4.0;
/// Usual delay spike up to which ranks say something, seconds. Larger: packets that come late by
/// reordering count as losses of a full queue. Measured: "losses where delay spikes".
pub(super) const OVERFLOW_SPIKE: f64 = 0.002;
/// Leap of the rate, a factor, after which the others may have left. Smaller: tests that cost the
/// senders inside some of their share come for less.
pub(super) const LEFT_GROWTH: f64 = 1.25;
/// Weight of a round in the rate that the leap is measured against.
pub(super) const LEFT_WEIGHT: f64 = 0.0625;
