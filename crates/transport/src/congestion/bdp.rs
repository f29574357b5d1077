//! The default congestion control: the window follows the measured bandwidth-delay product.
//!
//! Window = rate × sojourn time × loss share + allowance. `rate` is the largest delivery rate of the last
//! rounds; `sojourn` the mean time a packet is in flight, less the standing queue; the allowance the
//! short standing queue that keeps the bottleneck busy and finds new capacity. The standing queue
//! is the smallest RTT of a round less the floor, which is what rounds show after the window was
//! drained on purpose: jitter moves both alike. By Little's law the window that fills a link is
//! its rate times the mean time in flight, so jitter, delayed acknowledgements and the longer
//! stay of lost packets are all accounted for.
//!
//! Invariant: loss alone never lowers the window below the product of rate and stay; delay beyond
//! the guard makes old rates count no more, so that the window follows a falling capacity within
//! two rounds. Source: rates and rounds after BBR (Cardwell et al. 2016), the allowance after
//! FAST TCP (Wei et al. 2006); docs/decisions/congestion-control.md has reasons and measurements.

use std::time::{Duration, Instant};

use super::jitter::{DelaySpikes, DelayVariation};

/// Packets in the first window (RFC 9002 §7.2 recommends ten).
const INITIAL_PACKETS: u64 = 16;
/// Smallest window in packets.
const MIN_PACKETS: u64 = 4;
/// Largest window in bytes: 20 Gbit/s over 100 ms.
const WINDOW_MAX: u64 = 256 << 20;
/// Rounds over which the largest delivery rate counts: a whole cycle of phases.
const RATE_ROUNDS: usize = 12;
/// Rounds that count while there is more delay than the guard allows.
const RATE_ROUNDS_GUARDED: usize = 2;
/// Weight of a drained round in the floor when it is below, and above.
const FLOOR_DOWN: f64 = 0.5;
const FLOOR_UP: f64 = 0.25;
/// A round lasts at least this long,
const ROUND_MIN: Duration = Duration::from_millis(5);
/// and until this many packets are acknowledged,
const ROUND_PACKETS_MIN: u64 = 16;
/// but no longer than this on a slow path.
const ROUND_MAX: Duration = Duration::from_millis(200);
/// A round that lasts this many floors is over even when nothing sent in it was acknowledged.
const ROUND_FLOORS: f64 = 1.5;
/// A round lasts at least so many usual delay spikes of the delay: in less, jitter makes the rate.
const ROUND_SPIKES: f64 = 5.0;
/// Allowance as share of the floor, with bounds in seconds and a minimum in packets.
const ALLOWANCE_SHARE: f64 = 0.25;
const ALLOWANCE_MIN: f64 = 0.001;
const ALLOWANCE_MAX: f64 = 0.006;
const ALLOWANCE_PACKETS: f64 = 2.0;
/// Parts of allowance and guard that jitter adds, in units of the mean change of the smallest RTT
/// from round to round.
const ALLOWANCE_JITTER: f64 = 3.0;
/// The same in units of the usual delay spike, which the window allows for even while it drains: a delay spike
/// holds acknowledgements up, and a window without room for that stands still.
const ALLOWANCE_SPIKES: f64 = 0.5;
const GUARD_JITTER: f64 = 3.0;
/// What of a round's smallest RTT may be chance, in the same units.
const NOISE_JITTER: f64 = 2.5;
/// A round raises the sojourn time by this factor at most: a queue that grows is no longer path.
const SOJOURN_GROWTH: f64 = 1.2;
/// Standing queue, in seconds, that makes old rates count no more.
const GUARD_MIN: f64 = 0.010;
/// Most jitter in seconds that the guard allows for: what changes more is our own queue.
const JITTER_MAX: f64 = 0.030;
/// The same for its delay spikes.
const SPIKES_MAX: f64 = 0.060;
/// Growth of the rate that shows that the start is not over.
const STARTUP_GROWTH: f64 = 1.25;
/// Rounds without such growth that end the start, if there was more to send.
const STARTUP_STALE_ROUNDS: u8 = 3;
/// The same where the delay delay spikes by more than this, in seconds: there the rate of one round says
/// little.
const STARTUP_STALE_ROUNDS_LEAPING: u8 = 6;
const STARTUP_SPIKE: f64 = 0.010;
/// Rounds without growth and without more to send after which the window expects no more than twice
/// the rate.
const STARTUP_QUIET_ROUNDS: u8 = 3;
/// Most window of the start, in products of rate and stay: twice for the doubling, and some.
const STARTUP_GAIN: f64 = 4.0;
/// Least rate it allows for, in bytes per second: over a long path the first windows of a flow would
/// be spread over the whole round trip otherwise, and slow start takes that for a full path (RFC
/// 9406 §4.2).
const STARTUP_RATE: f64 = 500_000.0;
/// The same after a round with a queue, and while nobody asks for more.
const STARTUP_GAIN_CALM: f64 = 2.0;
/// Longest stay that counts for it, in floors.
const STARTUP_SOJOURN: f64 = 4.0;
/// Standing queue, as share of the floor, that ends the start as soon as the rate does not grow, and
/// how many times the delay's delay variation within rounds, and its largest delay spike, it must be.
const STARTUP_QUEUE: f64 = 0.5;
const STARTUP_VARIATION: f64 = 4.0;
const STARTUP_SPIKES: f64 = 2.0;
/// What a probe sends beyond the window: a share of the product, but in seconds at most.
const PROBE_SHARE: f64 = 0.25;
const PROBE_MAX: f64 = 0.010;
/// Share of the product in flight while draining, normally and to look for a smaller floor.
const DRAIN_GAIN: f64 = 0.95;
const DRAIN_DEEP_GAIN: f64 = 0.7;
/// The most of the product without its share for loss that a deep drain leaves in flight, so that
/// no loss is of our making then.
const DRAIN_BARE_GAIN: f64 = 0.9;
/// Deep drains in a row at most, while each finds a smaller floor.
const DRAIN_DEEP_MAX: u8 = 4;
/// A floor smaller by this factor makes another deep drain worthwhile.
const DRAIN_FOUND: f64 = 0.97;
/// Rounds of a drain and of a deep one: the window falls in the first, the floor shows from the
/// second on, and losses of the first are found in the second.
const DRAIN_ROUNDS: u8 = 2;
const DRAIN_DEEP_ROUNDS: u8 = 3;
/// Time between deep drains, normally and while there is loss that no deep drain has shown.
const DRAIN_DEEP_INTERVAL: Duration = Duration::from_secs(8);
const DRAIN_DOUBT_INTERVAL: Duration = Duration::from_secs(3);
/// A rate that grows by this share, and by more than chance lets it, without much of a queue says
/// that there is capacity to spare; the window then grows by the next of these factors.
const HUNGRY_GROWTH: f64 = 0.03;
const HUNGRY_GAINS: [f64; 5] = [1.0, 1.15, 1.35, 1.6, 2.0];
/// What growth a successful probe stands for, as index into the gains.
const HUNGRY_PROBED: usize = 2;
/// The same for the end of a long queue: what took the capacity away may have passed.
const HUNGRY_RECOVERED: usize = 3;
/// Rounds without growth that end the hunger: a larger window shows after one round trip.
const HUNGRY_STALE: u8 = 2;
/// A mean time in flight that is above the smallest RTT by this share of the floor, and by so many
/// times what the delay varies, shows that bursts queue.
const CLUMP_SHARE: f64 = 0.125;
const CLUMP_VARIATION: f64 = 8.0;
/// The same in seconds, where the floor is longer than this, for what only keeps the start from
/// allowing for more than the doubling.
const BURSTS: f64 = 0.010;
const LONG_PATH: f64 = 0.080;
/// Share of a round's bytes sent while more waited that makes it one whose rate means something.
const WANTED_SHARE: f64 = 0.5;
/// Rounds between a drain and the next probe.
const CRUISE_ROUNDS: u8 = 8;
/// Highest loss that is answered with a larger window; loss of drained rounds is believed in any
/// case, beyond it only a little, since a window that is too large for a short queue loses too.
const LOSS_MAX: f64 = 0.30;
const LOSS_BELIEF: f64 = 0.02;
/// Rounds after a long queue in which loss says nothing of the path.
const CALM_ROUNDS: u8 = 2;
/// Packets over which loss is averaged, in all rounds and in deeply drained ones.
const LOSS_PACKETS: f64 = 256.0;
const LOSS_PACKETS_DRAINED: f64 = 128.0;
/// So many drained packets say something.
const LOSS_PACKETS_KNOWN: f64 = 64.0;
/// Loss is taken for ours when it exceeds that of drained rounds by this factor and share.
const LOSS_FACTOR: f64 = 1.5;
const LOSS_EXCESS: f64 = 0.003;
/// Deviations that chance is allowed.
const LOSS_CHANCE: f64 = 2.0;
/// How much longer than an acknowledged packet a lost one counts as in flight.
const LOST_SOJOURN: f64 = 1.55;
/// What a congestion mark or loss of ours leaves of the allowance, what a round gives back, and
/// the least that stays.
const HEADROOM_CUT: f64 = 0.8;
const HEADROOM_BACK: f64 = 0.02;
const HEADROOM_MIN: f64 = 0.05;
/// A window halved since delay began, and really that little in flight for this many rounds,
/// without this much of the delay going: the delay is no queue of ours.
const UNRESPONSIVE: f64 = 0.85;
const UNRESPONSIVE_ROUNDS: u8 = 2;

/// What one batch of acknowledgements says, handed to our own algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckBatch {
    pub now: Instant,
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Sum over the bytes acknowledged of the time each was in flight, in byte seconds.
    pub byte_seconds: f64,
    /// Smallest RTT of the batch.
    pub rtt_min: Duration,
    /// Latest send time among the acknowledged.
    pub newest_sent: Instant,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// The application had nothing more to send.
    pub app_limited: bool,
    /// The pacer held something back at some moment.
    pub paced: bool,
}

/// What the window is doing; one round each unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BdpPhase {
    /// Doubles every round trip until the rate stops growing or delay shows.
    Startup {
        best: f64,
        stale: u8,
        /// Rounds without growth in which the application had no more to send: they say nothing.
        quiet: u8,
        /// The last round showed a queue, standing or of bursts: only the doubling is allowed for.
        full: bool,
    },
    /// Lets the queue run empty so that the floor is seen; a deep one also shows the loss that
    /// stays when less is sent. `deep` counts the deep drains in a row, `round` the rounds of this
    /// one, `before` is the floor at the beginning.
    Drain { deep: u8, round: u8, before: f64 },
    /// Stays, for the given number of rounds.
    Cruise(u8),
    /// Sends more.
    Probe,
    /// Waits for what the probe shows, compared with the rate before it.
    Judge { before: f64 },
}

/// Sums over the current round.
#[derive(Clone, Copy, Debug)]
struct Round {
    start: Instant,
    newest_sent: Instant,
    acked: u64,
    lost: u64,
    byte_seconds: f64,
    rtt_min: f64,
    app_limited: bool,
    /// Bytes acknowledged while the window was used up or something waited.
    wanted: u64,
    paced: bool,
}

impl Round {
    const fn new(start: Instant, newest_sent: Instant) -> Self {
        Self {
            start,
            newest_sent,
            acked: 0,
            lost: 0,
            byte_seconds: 0.0,
            rtt_min: f64::INFINITY,
            app_limited: false,
            wanted: 0,
            paced: false,
        }
    }
}

/// What the round that just ended showed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    now: Instant,
    rate: f64,
    floor: f64,
    app_limited: bool,
    /// Most of it was sent while more waited.
    wanted: bool,
    guarded: bool,
    /// What was sent queued behind itself: its bursts were faster than the path.
    clumped: bool,
    /// Its bursts queued, if not for long: the path is not much faster than what they come to.
    bursts: bool,
    /// Standing queue in seconds.
    queue: f64,
}

/// The beginning of a time of delay: smallest RTT and window then, and rounds since with no more
/// in flight than the window.
#[derive(Clone, Copy, Debug)]
struct Guarded {
    rtt_min: f64,
    window: u64,
    obeyed: u8,
}

/// Share of packets lost while the window was drained deeply, over the last packets of such rounds.
#[derive(Clone, Copy, Debug, Default)]
struct DrainedLoss {
    share: f64,
    packets: f64,
}

impl DrainedLoss {
    fn observe(&mut self, share: f64, packets: f64) {
        self.packets = (self.packets + packets).min(LOSS_PACKETS_DRAINED.max(packets));
        self.share += (share - self.share) * packets / self.packets;
    }

    /// What it may be besides chance, which few packets leave much of; zero before the first.
    fn at_most(&self) -> f64 {
        if self.packets < 1.0 {
            return 0.0;
        }
        self.share + LOSS_CHANCE * (self.share / self.packets).sqrt()
    }
}

/// State of one path.
#[derive(Clone, Debug)]
pub(super) struct Bdp {
    mtu: u64,
    window: u64,
    phase: BdpPhase,
    round: Round,
    rates: [f64; RATE_ROUNDS],
    next_rate: usize,
    /// Smallest RTT of a round without a queue of ours, seconds; infinite before the first.
    floor: f64,
    /// Mean time in flight without the standing queue, seconds; zero before the first round.
    sojourn: f64,
    /// How much the smallest RTT goes up and down from round to round.
    jitter: DelayVariation,
    /// The same from one batch of acknowledgements to the next: known within the first round.
    variation: DelayVariation,
    /// How far the delay delay spikes beyond what our own queue explains.
    spikes: DelaySpikes,
    /// Share of packets lost, in all rounds and in deeply drained ones.
    loss: f64,
    loss_drained: DrainedLoss,
    /// Share of the allowance in use, lowered by congestion marks and loss of our making.
    headroom: f64,
    /// Rounds since delay was last beyond the guard.
    calm: u8,
    /// How much capacity there seems to spare, as index into the gains, and rounds without growth.
    hungry: usize,
    hungry_stale: u8,
    /// When the last deep drain began, and when the next one is due.
    deep_last: Instant,
    deep_due: Instant,
    /// Since when delay is beyond the guard.
    guarded: Option<Guarded>,
    /// The last round was limited by what there was to send, and showed no queue.
    idle: bool,
    /// Most of the last round was sent while more waited.
    wanted: bool,
}

impl Bdp {
    pub(super) fn new(now: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            phase: BdpPhase::Startup {
                best: 0.0,
                stale: 0,
                quiet: 0,
                full: false,
            },
            round: Round::new(now, now),
            rates: [0.0; RATE_ROUNDS],
            next_rate: 0,
            floor: f64::INFINITY,
            sojourn: 0.0,
            jitter: DelayVariation::default(),
            variation: DelayVariation::default(),
            spikes: DelaySpikes::default(),
            loss: 0.0,
            loss_drained: DrainedLoss::default(),
            headroom: 1.0,
            calm: 0,
            hungry: 0,
            hungry_stale: 0,
            deep_last: now,
            deep_due: now,
            guarded: None,
            wanted: false,
            idle: false,
        }
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    pub(super) fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = u64::from(mtu);
        self.window = self.window.max(MIN_PACKETS * self.mtu);
    }

    /// Loss counts towards the round; a mark (no bytes lost) takes some of the allowance away.
    pub(super) fn on_congestion(&mut self, lost_bytes: u64) {
        self.round.lost += lost_bytes;
        if lost_bytes == 0 {
            self.headroom = (self.headroom * HEADROOM_CUT).max(HEADROOM_MIN);
        }
    }

    pub(super) fn on_ack(&mut self, batch: &AckBatch) {
        self.round.acked += batch.bytes;
        self.round.byte_seconds += batch.byte_seconds;
        self.round.rtt_min = self.round.rtt_min.min(batch.rtt_min.as_secs_f64());
        self.round.app_limited |= batch.app_limited;
        self.round.paced |= batch.paced;
        if !batch.app_limited {
            self.round.wanted += batch.bytes;
        }
        self.variation.observe(batch.rtt_min.as_secs_f64(), 0.0);
        let rate = self.rate();
        if rate > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "estimates")]
            let busy = batch.bytes as f64 / rate;
            self.spikes.observe(batch.rtt_min.as_secs_f64(), busy);
        }
        if let BdpPhase::Startup { quiet, full, .. } = self.phase {
            let calm = full || quiet >= STARTUP_QUIET_ROUNDS;
            self.window = self.startup_window(if calm {
                STARTUP_GAIN_CALM
            } else {
                STARTUP_GAIN
            });
        }
        let elapsed = batch.now.saturating_duration_since(self.round.start);
        let enough = self.round.acked >= ROUND_PACKETS_MIN * self.mtu || elapsed >= ROUND_MAX;
        let patience = ROUND_MIN.as_secs_f64() + ROUND_FLOORS * self.floor;
        let over = batch.newest_sent >= self.round.start || elapsed.as_secs_f64() > patience;
        let steady = (ROUND_SPIKES * self.spikes.usual()).min(ROUND_MAX.as_secs_f64());
        if over && elapsed >= ROUND_MIN && elapsed.as_secs_f64() >= steady && enough {
            self.end_round(batch);
        }
    }

    /// What the rates seen so far justify: short bursts may use up a window of any size and say
    /// nothing of what the path carries.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    fn startup_window(&self, gain: f64) -> u64 {
        // Bursts queue behind each other: their stay says less than the smallest one.
        let sojourn = self.sojourn.min(STARTUP_SOJOURN * self.floor);
        let rate = (self.rate() * gain).max(STARTUP_RATE);
        let justified = (rate * sojourn).clamp(0.0, 1e12) as u64;
        justified.clamp(2 * self.initial_window(), WINDOW_MAX)
    }

    fn end_round(&mut self, batch: &AckBatch) {
        let AckBatch {
            now, newest_sent, ..
        } = *batch;
        let round = core::mem::replace(&mut self.round, Round::new(now, newest_sent));
        let acknowledging = now.saturating_duration_since(round.start);
        let sending = newest_sent.saturating_duration_since(round.newest_sent);
        #[expect(clippy::cast_precision_loss, reason = "estimates")]
        let (acked, lost) = (round.acked as f64, round.lost as f64);
        let rate = acked / acknowledging.max(sending).as_secs_f64();
        let mean = round.byte_seconds / acked;
        let obeyed = batch.in_flight <= self.window;
        let grew = rate > self.rate() * STARTUP_GROWTH;
        let queue = self.update_delay(mean, &round, obeyed, grew);
        self.update_loss(acked, lost);
        let before = self.rate();
        let guarded = queue > self.guard();
        // Whoever makes a queue has filled the path, whatever it could not send for a moment.
        let app_limited = round.app_limited && !guarded;
        self.update_rate(rate, app_limited);
        if guarded {
            self.calm = 0;
            self.forget_rates();
            self.check_response(round.rtt_min, obeyed);
        } else {
            self.calm = self.calm.saturating_add(1);
            self.guarded = None;
        }
        // How far the rate of so many packets strays by itself, twice over.
        let packets = (acked / self.packets(1.0)).max(1.0);
        let chance = 1.0 / packets + 2.0 * (self.loss / packets).sqrt();
        self.update_hunger(!guarded && rate > before * (1.0 + HUNGRY_GROWTH + chance));
        if self.calm == 1 && matches!(self.phase, BdpPhase::Cruise(_)) {
            (self.hungry, self.hungry_stale) = (HUNGRY_RECOVERED, 0);
        }
        let wanted = round.wanted as f64 > WANTED_SHARE * acked;
        let wanted_before = core::mem::replace(&mut self.wanted, wanted);
        let floor = self.floor;
        self.spikes.end_round();
        let noise = (CLUMP_VARIATION * self.variation.mean).max(self.spikes.largest());
        self.next_phase(&Seen {
            now,
            rate,
            floor,
            // Bursts that the pacer holds back ask for more, whatever the window leaves.
            app_limited: app_limited && !round.paced,
            wanted: wanted && wanted_before,
            guarded,
            clumped: mean - round.rtt_min > noise.max(CLUMP_SHARE * floor),
            bursts: mean - round.rtt_min > noise.max(BURSTS),
            queue,
        });
        self.idle = app_limited;
        self.set_window();
    }

    fn update_loss(&mut self, acked: f64, lost: f64) {
        let weight = ((acked + lost) / self.packets(LOSS_PACKETS)).min(0.5);
        let share = lost / (acked + lost);
        if self.calm >= CALM_ROUNDS {
            self.loss += (share - self.loss) * weight;
            if matches!(
                self.phase,
                BdpPhase::Drain {
                    deep: 1..,
                    round: 2..,
                    ..
                }
            ) {
                let packets = (acked + lost) / self.packets(1.0);
                self.loss_drained.observe(share, packets);
            }
        }
        let ours =
            lost > 0.0 && self.loss > self.loss_drained.at_most() * LOSS_FACTOR + LOSS_EXCESS;
        let headroom = if ours {
            self.headroom * HEADROOM_CUT
        } else {
            self.headroom + HEADROOM_BACK
        };
        self.headroom = headroom.clamp(HEADROOM_MIN, 1.0);
    }

    /// Growth makes for more of it, until it stays away.
    fn update_hunger(&mut self, grew: bool) {
        if !matches!(self.phase, BdpPhase::Cruise(_)) {
            return;
        }
        if grew {
            self.hungry = (self.hungry + 1).min(HUNGRY_GAINS.len() - 1);
            self.hungry_stale = 0;
        } else if self.calm == 0 || self.hungry_stale + 1 >= HUNGRY_STALE {
            self.hungry = 0;
        } else {
            self.hungry_stale += 1;
        }
    }

    /// Takes the delays of a round in; answers the standing queue in seconds. `obeyed` says that
    /// no more was in flight than the window allows.
    fn update_delay(&mut self, mean: f64, round: &Round, obeyed: bool, grew: bool) -> f64 {
        let drained = matches!(self.phase, BdpPhase::Drain { round: 1.., .. }) && obeyed;
        let above = round.rtt_min - self.floor;
        if self.floor.is_infinite() {
            self.floor = round.rtt_min;
        } else if drained || matches!(self.phase, BdpPhase::Startup { .. }) && grew {
            // Within the noise both ways count alike, or the floor would be the noise's lower end.
            let noisy = above.abs() < NOISE_JITTER * self.jitter.mean;
            let down = above < 0.0 && !noisy;
            self.floor += above * if down { FLOOR_DOWN } else { FLOOR_UP };
        } else if above < -NOISE_JITTER * self.jitter.mean {
            self.floor += above * FLOOR_UP;
        }
        // What jitter moves is no queue.
        let noise = (NOISE_JITTER * self.jitter.mean).max(self.spikes.usual());
        let queue = (round.rtt_min - self.floor - noise).max(0.0);
        let sojourn = mean - queue;
        if self.sojourn == 0.0 {
            self.sojourn = sojourn;
        } else {
            self.sojourn += (sojourn.min(self.sojourn * SOJOURN_GROWTH) - self.sojourn) / 4.0;
        }
        // On a slow path one packet more or less in the queue is no jitter.
        let packet = self.packets(1.0) / self.rate().max(1.0);
        self.jitter.observe(round.rtt_min, packet);
        queue
    }

    /// Seconds of the allowance that jitter asks for.
    fn swing(&self) -> f64 {
        (ALLOWANCE_JITTER * self.jitter.mean).max(ALLOWANCE_SPIKES * self.spikes.usual())
    }

    /// Seconds of standing queue that are fine.
    fn allowance(&self) -> f64 {
        let share = (self.floor * ALLOWANCE_SHARE).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX);
        (share + self.swing()) * self.headroom
    }

    /// Seconds of standing queue that are too much.
    fn guard(&self) -> f64 {
        let jitter = GUARD_JITTER * self.jitter.mean.min(JITTER_MAX);
        let spikes = self.spikes.usual().min(SPIKES_MAX);
        (2.0 * self.allowance()).max(GUARD_MIN) + jitter.max(spikes)
    }

    /// A rate the application limited counts only if it is the highest.
    fn update_rate(&mut self, rate: f64, app_limited: bool) {
        if !app_limited || rate > self.rate() {
            self.next_rate = (self.next_rate + 1) % RATE_ROUNDS;
            self.rates[self.next_rate] = rate;
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Keeps the rates of the last rounds only.
    fn forget_rates(&mut self) {
        for age in RATE_ROUNDS_GUARDED..RATE_ROUNDS {
            self.rates[(self.next_rate + RATE_ROUNDS - age) % RATE_ROUNDS] = 0.0;
        }
    }

    /// Delay that does not shrink with the window is not our queue: the path has become longer.
    fn check_response(&mut self, rtt_min: f64, obeyed: bool) {
        let window = self.window;
        let begun = Guarded {
            rtt_min,
            window,
            obeyed: 0,
        };
        let guarded = self.guarded.get_or_insert(begun);
        guarded.obeyed = if obeyed { guarded.obeyed + 1 } else { 0 };
        let small = window * 2 <= guarded.window && guarded.obeyed >= UNRESPONSIVE_ROUNDS;
        if small && rtt_min > guarded.rtt_min * UNRESPONSIVE {
            self.guarded = None;
            self.floor = rtt_min;
        }
    }

    fn next_phase(&mut self, seen: &Seen) {
        self.phase = match self.phase {
            BdpPhase::Startup {
                best, stale, quiet, ..
            } => self.after_startup(seen, best, stale, quiet),
            BdpPhase::Drain {
                deep,
                round,
                before,
            } if round + 1 < drain_rounds(deep) => BdpPhase::Drain {
                deep,
                round: round + 1,
                before,
            },
            BdpPhase::Drain { deep, before, .. }
                if (1..DRAIN_DEEP_MAX).contains(&deep)
                    && seen.floor < before * DRAIN_FOUND - self.jitter.mean =>
            {
                BdpPhase::Drain {
                    deep: deep + 1,
                    round: 0,
                    before: seen.floor,
                }
            }
            BdpPhase::Drain { .. } => BdpPhase::Cruise(CRUISE_ROUNDS),
            BdpPhase::Cruise(left) if self.hungry > 0 => BdpPhase::Cruise(left),
            BdpPhase::Cruise(0) if !seen.guarded && !seen.app_limited => BdpPhase::Probe,
            BdpPhase::Cruise(0) => self.drain(seen),
            BdpPhase::Cruise(left) => BdpPhase::Cruise(left - 1),
            BdpPhase::Probe => BdpPhase::Judge {
                before: self.rate(),
            },
            BdpPhase::Judge { before } => self.after_probe(seen, before),
        };
    }

    fn after_startup(&mut self, seen: &Seen, best: f64, stale: u8, quiet: u8) -> BdpPhase {
        // Jitter looks like a queue, but lets the rate grow.
        let spike = self.spikes.largest();
        let noise = (STARTUP_VARIATION * self.variation.mean).max(STARTUP_SPIKES * spike);
        let full = seen.guarded && seen.queue > (seen.floor * STARTUP_QUEUE).max(noise);
        let stale_max = if spike > STARTUP_SPIKE {
            STARTUP_STALE_ROUNDS_LEAPING
        } else {
            STARTUP_STALE_ROUNDS
        };
        let grew = seen.rate > best * STARTUP_GROWTH;
        let (stale, quiet) = match (grew, seen.wanted || seen.guarded || seen.clumped) {
            (true, _) => (0, 0),
            (false, true) => (stale + 1, quiet),
            (false, false) => (stale, quiet.saturating_add(1)),
        };
        if (full && !grew && self.spikes.known()) || stale >= stale_max {
            self.deep_due = seen.now;
            return self.drain(seen);
        }
        let best = if grew { seen.rate } else { best };
        BdpPhase::Startup {
            best,
            stale,
            quiet,
            full: full || (seen.bursts && seen.floor > LONG_PATH),
        }
    }

    fn after_probe(&mut self, seen: &Seen, before: f64) -> BdpPhase {
        let expected = self.probe_extra(before) / (before * self.sojourn);
        if seen.guarded || seen.rate < before * (1.0 + expected / 2.0) {
            self.drain(seen)
        } else {
            (self.hungry, self.hungry_stale) = (HUNGRY_PROBED, 0);
            BdpPhase::Cruise(CRUISE_ROUNDS)
        }
    }

    fn drain(&mut self, seen: &Seen) -> BdpPhase {
        let since = seen.now.saturating_duration_since(self.deep_last);
        let known = self.loss_drained.packets >= LOSS_PACKETS_KNOWN;
        let doubt = self.loss > self.believed() && (!known || since >= DRAIN_DOUBT_INTERVAL);
        let deep = u8::from(doubt || seen.now >= self.deep_due);
        if deep == 1 {
            self.deep_last = seen.now;
            self.deep_due = seen.now + DRAIN_DEEP_INTERVAL;
        }
        BdpPhase::Drain {
            deep,
            round: 0,
            before: seen.floor,
        }
    }

    /// Loss up to this is the path's.
    fn believed(&self) -> f64 {
        self.loss_drained.at_most() * LOSS_FACTOR + LOSS_BELIEF
    }

    /// Bytes a probe sends beyond the window.
    fn probe_extra(&self, rate: f64) -> f64 {
        let seconds = (self.sojourn * PROBE_SHARE).clamp(ALLOWANCE_MIN, PROBE_MAX);
        (rate * seconds * self.headroom).max(self.packets(2.0))
    }

    #[expect(clippy::cast_precision_loss, reason = "an MTU is small")]
    fn packets(&self, number: f64) -> f64 {
        number * self.mtu as f64
    }

    fn set_window(&mut self) {
        let rate = self.rate();
        let loss = self.loss.min(self.believed()).min(LOSS_MAX);
        let bare = rate * self.sojourn;
        let product = bare * (1.0 + LOST_SOJOURN * loss / (1.0 - loss));
        let allowance = rate * self.allowance();
        let allowance = allowance.max(self.packets(ALLOWANCE_PACKETS));
        let window = match self.phase {
            BdpPhase::Startup { .. } => return,
            BdpPhase::Drain { deep: 0, .. } => {
                product * DRAIN_GAIN + rate * ALLOWANCE_SPIKES * self.spikes.usual()
            }
            BdpPhase::Drain { .. } => (product * DRAIN_DEEP_GAIN).min(bare * DRAIN_BARE_GAIN),
            BdpPhase::Cruise(_) => product * HUNGRY_GAINS[self.hungry] + allowance,
            BdpPhase::Judge { .. } => product + allowance,
            BdpPhase::Probe => product + allowance + self.probe_extra(rate),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let window = window.clamp(0.0, 1e12) as u64;
        // What nobody asked for proves nothing: an idle path keeps its first window, or it would
        // look too thin to be given work again.
        let floor = if self.idle {
            INITIAL_PACKETS
        } else {
            MIN_PACKETS
        };
        // One packet more, since the connection stops that much short of the window.
        self.window = (window + self.mtu).clamp(floor * self.mtu, WINDOW_MAX);
    }
}

/// Rounds of a drain.
const fn drain_rounds(deep: u8) -> u8 {
    if deep > 0 {
        DRAIN_DEEP_ROUNDS
    } else {
        DRAIN_ROUNDS
    }
}
