//! The default congestion control: the window follows the measured bandwidth-delay product.
//!
//! Window = rate × sojourn time × loss share + allowance. `rate` is the largest delivery rate of
//! the last rounds. `sojourn` is the mean time a packet is in flight, less the standing queue. The
//! allowance is the short standing queue that keeps the bottleneck busy and finds new capacity. The
//! standing queue is the smallest RTT of a round less the floor, the RTT of rounds after the window
//! was drained on purpose. Jitter moves both alike. By Little's law the window that fills a link is
//! its rate times the mean time in flight. So jitter, delayed acknowledgements and the longer stay
//! of lost packets are all accounted for.
//!
//! Invariants: random loss never lowers the window below the product of rate and sojourn time. Delay
//! beyond the guard makes old rates void, so that the window follows a falling capacity within two
//! rounds. Delay that stays although less is in flight, and losses of a full queue that we do not
//! fill, are the company of others: then the window is CUBIC's (`company`, `overflow`).
//!
//! Sources: BBR for rates and rounds (Cardwell et al. 2016), FAST TCP for the allowance (Wei et al.
//! 2006). Reasons and measurements: docs/decisions/congestion-control.md.

mod company;
mod overflow;
mod phases;
mod tuning;

use std::time::{Duration, Instant};

use super::FLOW_PARTS;
use super::jitter::{DelaySpikes, DelayVariation};
use company::{Company, CompanyRound, Start};
use overflow::LossRanks;
use phases::{BdpPhase, Seen};
use tuning::*;

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
    /// Most flows that had data waiting, in parts of [`FLOW_PARTS`].
    pub flows: u8,
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
    flows: u8,
    marks: u32,
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
            flows: 0,
            marks: 0,
        }
    }
}

/// The beginning of a time of delay: mean time and bytes in flight then, and how many rounds in a
/// row had clearly less in flight.
#[derive(Clone, Copy, Debug)]
struct Guarded {
    mean: f64,
    in_flight: f64,
    fewer: u8,
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
    /// From one batch of acknowledgements to the next, too: known within the first round.
    variation: DelayVariation,
    /// How far the delay spikes beyond what our own queue explains.
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
    /// Others fill the queue too.
    company: Option<Box<Company>>,
    /// How losses rank by delay: in company all, before it those while nothing of ours grows.
    losses: LossRanks,
    /// Most bytes in flight lately, mean of a round.
    reached: f64,
    /// Flows with data waiting, smoothed downwards.
    flows: f64,
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
            company: None,
            losses: LossRanks::new(now),
            reached: 0.0,
            flows: 1.0,
            wanted: false,
            idle: false,
        }
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// How many windows pacing lets through in a round trip.
    pub(super) const fn pacing_gain(&self) -> u64 {
        if matches!(self.phase, BdpPhase::Startup { .. }) && self.company.is_none() {
            STARTUP_PACING
        } else {
            1
        }
    }

    pub(super) const fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    pub(super) fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = u64::from(mtu);
        self.window = self.window.max(MIN_PACKETS * self.mtu);
        let packet = self.packets(1.0);
        if let Some(company) = &mut self.company {
            company.set_mtu(packet);
        }
    }

    /// Loss counts towards the round; a mark (no bytes lost) takes some of the allowance away. The
    /// last one of the lost packets was sent at `sent`.
    pub(super) fn on_congestion(&mut self, sent: Instant, lost_bytes: u64) {
        self.round.lost += lost_bytes;
        if lost_bytes > 0 && (self.company.is_some() || self.steady()) {
            self.losses.lost(sent);
        }
        if lost_bytes == 0 {
            self.round.marks += 1;
            self.headroom = (self.headroom * HEADROOM_CUT).max(HEADROOM_MIN);
        }
    }

    pub(super) fn on_ack(&mut self, batch: &AckBatch) {
        self.round.acked += batch.bytes;
        self.round.byte_seconds += batch.byte_seconds;
        self.round.rtt_min = self.round.rtt_min.min(batch.rtt_min.as_secs_f64());
        self.round.app_limited |= batch.app_limited;
        self.round.paced |= batch.paced;
        self.round.flows = self.round.flows.max(batch.flows);
        if !batch.app_limited {
            self.round.wanted += batch.bytes;
        }
        let rtt_min = batch.rtt_min.as_secs_f32();
        self.losses
            .acknowledged(rtt_min, batch.bytes, batch.newest_sent);
        self.variation.observe(batch.rtt_min.as_secs_f64(), 0.0);
        let rate = self.rate();
        if rate > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "estimates")]
            let busy = batch.bytes as f64 / rate;
            self.spikes.observe(batch.rtt_min.as_secs_f64(), busy);
        }
        if let BdpPhase::Startup { quiet, full, .. } = self.phase
            && self.company.is_none()
        {
            let calm = full || quiet >= STARTUP_QUIET_ROUNDS;
            self.window = self.startup_window(if self.queue_shows() {
                STARTUP_GAIN_QUEUE
            } else if calm {
                STARTUP_GAIN_CALM
            } else {
                STARTUP_GAIN
            });
        }
        let elapsed = batch.now.saturating_duration_since(self.round.start);
        let enough = self.round.acked >= ROUND_PACKETS_MIN * self.mtu || elapsed >= ROUND_MAX;
        let company = self.company.as_ref();
        let path = company.map_or(self.floor, |company| company.stay());
        let patience = ROUND_MIN.as_secs_f64() + ROUND_FLOORS * path;
        let over = batch.newest_sent >= self.round.start || elapsed.as_secs_f64() > patience;
        let steady = (ROUND_SPIKES * self.spikes.usual()).min(ROUND_MAX.as_secs_f64());
        if over && elapsed >= ROUND_MIN && elapsed.as_secs_f64() >= steady && enough {
            self.end_round(batch);
        }
    }

    /// Nothing of ours has grown for two rounds: a queue that overflows is not our doing.
    const fn steady(&self) -> bool {
        match self.phase {
            BdpPhase::Cruise(left) => self.hungry == 0 && left + 2 < CRUISE_ROUNDS,
            BdpPhase::Drain { round, .. } => round > 0,
            BdpPhase::Startup { .. } | BdpPhase::Probe | BdpPhase::Judge { .. } => false,
        }
    }

    /// Whether all of this round so far waited in a queue (HyStart++, RFC 9406 §4.2).
    fn queue_shows(&self) -> bool {
        let noise = (NOISE_JITTER * self.jitter.mean).max(self.spikes.usual());
        let most = (self.floor * STARTUP_DELAY_SHARE).max(STARTUP_DELAY_MIN) + noise;
        self.round.acked >= STARTUP_SAMPLES * self.mtu && self.round.rtt_min > self.floor + most
    }

    /// What the rates seen so far justify: short bursts may use up a window of any size and say
    /// nothing of what the path carries.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    fn startup_window(&self, gain: f64) -> u64 {
        let rate = (self.rate() * gain).max(STARTUP_RATE);
        let justified = (rate * self.sojourn).clamp(0.0, 1e12) as u64;
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
        self.remember(&round, acknowledging, rate * mean);
        if self.company.is_some() {
            self.company_round(&CompanyRound {
                now,
                mean,
                rtt_min: round.rtt_min,
                rate,
                lost: self.unexpected(acked, lost) + f64::from(round.marks),
                noise: self.allowance_share() + self.swing(),
                app_limited: round.wanted as f64 <= WANTED_SHARE * acked,
            });
            return;
        }
        let grew = rate > self.rate() * STARTUP_GROWTH;
        let queue = self.update_delay(mean, &round, obeyed, grew);
        self.update_loss(acked, lost);
        let before = self.rate();
        let guarded = queue > self.guard();
        // A sender that makes a queue has filled the path, though it could not send for a moment.
        let app_limited = round.app_limited && !guarded;
        self.update_rate(rate, app_limited);
        if guarded {
            self.calm = 0;
            self.forget_rates();
            self.check_response(now, rate, mean);
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
            // Bursts that the pacer holds back ask for more, however much the window leaves.
            app_limited: app_limited && !round.paced,
            wanted: wanted && wanted_before,
            guarded,
            clumped: mean - round.rtt_min > noise.max(CLUMP_SHARE * floor),
            bursts: mean - round.rtt_min > noise.max(BURSTS),
            queue,
            lost: lost / (acked + lost),
        });
        self.idle = app_limited;
        if lost > 0.0 {
            self.check_losses(now, rate, mean);
        }
        self.set_window();
    }

    /// What counts for company, from every round: flows, what was in flight, ranks of losses.
    fn remember(&mut self, round: &Round, took: Duration, in_flight: f64) {
        let flows = match round.flows {
            // Nobody has counted yet.
            0 => 1.0,
            parts => (f64::from(parts) / f64::from(FLOW_PARTS)).min(FLOWS_MAX),
        };
        self.flows = flows.max(self.flows + (flows - self.flows) * FLOWS_WEIGHT);
        let decay = (-took.as_secs_f64() / REACHED_SECONDS).exp();
        self.reached = (self.reached * decay).max(in_flight);
        self.losses.end_round();
        // Where packets overtake each other, late ones look lost.
        if self.spikes.usual() > OVERFLOW_SPIKE {
            self.losses.forget();
        }
    }

    /// Packets lost beyond what the path loses by itself, of these bytes. Where the queue overflows,
    /// deep drains do not tell what the path loses.
    fn unexpected(&self, acked: f64, lost: f64) -> f64 {
        let expected = if self.losses.overflow() {
            0.0
        } else {
            (acked + lost) * self.loss_drained.at_most() * LOSS_FACTOR
        };
        (lost - expected) / self.packets(1.0)
    }

    /// Losses of a full queue that we do not fill are company.
    fn check_losses(&mut self, now: Instant, rate: f64, mean: f64) {
        if self.company.is_none() && self.steady() && self.losses.overflow() {
            let start = self.start_of_company(now, rate, mean);
            let window = start.in_flight().max(self.rate() * self.sojourn);
            self.company = Some(Box::new(Company::by_losses(&start, window)));
        }
    }

    fn update_loss(&mut self, acked: f64, lost: f64) {
        let weight = ((acked + lost) / self.packets(LOSS_PACKETS)).min(0.5);
        let share = lost / (acked + lost);
        if self.calm >= CALM_ROUNDS {
            self.loss += (share - self.loss) * weight;
            if matches!(
                self.phase,
                BdpPhase::Drain {
                    deep: true,
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
        // Jitter does not make a queue.
        let noise = (NOISE_JITTER * self.jitter.mean).max(self.spikes.usual());
        let queue = (round.rtt_min - self.floor - noise).max(0.0);
        let sojourn = mean - queue;
        if self.sojourn == 0.0 {
            self.sojourn = sojourn;
        } else {
            self.sojourn += (sojourn.min(self.sojourn * SOJOURN_GROWTH) - self.sojourn) / 4.0;
        }
        // On a slow path one packet more or less in the queue does not count as jitter.
        let packet = self.packets(1.0) / self.rate().max(1.0);
        self.jitter.observe(round.rtt_min, packet);
        queue
    }

    /// Seconds of the allowance that jitter asks for.
    fn swing(&self) -> f64 {
        (ALLOWANCE_JITTER * self.jitter.mean).max(ALLOWANCE_SPIKES * self.spikes.usual())
    }

    /// Seconds of standing queue that are fine where nothing jitters.
    fn allowance_share(&self) -> f64 {
        (self.floor * ALLOWANCE_SHARE).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX)
    }

    /// Seconds of standing queue that are fine.
    fn allowance(&self) -> f64 {
        (self.allowance_share() + self.swing()) * self.headroom
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

    /// Delay that stays although less is in flight is not our queue: others keep it up, or the path
    /// has become slower or longer. The first test of company tells which.
    fn check_response(&mut self, now: Instant, rate: f64, mean: f64) {
        let in_flight = rate * mean;
        let guarded = self.guarded.get_or_insert(Guarded {
            mean,
            in_flight,
            fewer: 0,
        });
        guarded.fewer = if in_flight <= guarded.in_flight * UNRESPONSIVE_FEWER {
            guarded.fewer.saturating_add(1)
        } else {
            0
        };
        let stays = mean > guarded.mean * UNRESPONSIVE;
        if stays && guarded.fewer >= UNRESPONSIVE_ROUNDS {
            self.guarded = None;
            let start = self.start_of_company(now, rate, mean);
            let reached = self.reached.max(INITIAL_PACKETS as f64 * start.mtu);
            self.company = Some(Box::new(Company::by_delay(&start, reached)));
        }
    }

    fn start_of_company(&self, now: Instant, rate: f64, mean: f64) -> Start {
        Start {
            now,
            mtu: self.packets(1.0),
            flows: self.flows,
            rate,
            stay: mean,
            bare: self.sojourn,
        }
    }

    fn company_round(&mut self, round: &CompanyRound) {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let unused = round.rate * round.mean < IDLE_SHARE * self.window as f64;
        let idle = unused && round.rtt_min <= self.floor + self.allowance();
        self.floor = self.floor.min(round.rtt_min);
        self.spikes.end_round();
        self.update_rate(round.rate, round.app_limited);
        if let Some(company) = &mut self.company
            && (company.end_round(round, self.flows) || idle)
        {
            self.company = None;
            self.losses.forget();
            self.end_company(round);
        }
        self.set_window();
    }

    /// What is left of the delay is the path's; a deep drain shows it.
    fn end_company(&mut self, round: &CompanyRound) {
        (self.floor, self.sojourn) = (round.rtt_min, round.mean);
        self.forget_rates();
        self.calm = 0;
        self.headroom = 1.0;
        (self.hungry, self.hungry_stale) = (0, 0);
        self.deep_last = round.now;
        self.deep_due = round.now + DRAIN_DEEP_INTERVAL;
        self.phase = BdpPhase::Drain {
            deep: true,
            round: 0,
        };
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
        if let Some(company) = &self.company {
            self.window = company.window().clamp(MIN_PACKETS * self.mtu, WINDOW_MAX);
            return;
        }
        let rate = self.rate();
        let loss = self.loss.min(self.believed()).min(LOSS_MAX);
        let bare = rate * self.sojourn;
        let product = bare * (1.0 + LOST_SOJOURN * loss / (1.0 - loss));
        let allowance = rate * self.allowance();
        let allowance = allowance.max(self.packets(ALLOWANCE_PACKETS));
        let window = match self.phase {
            BdpPhase::Startup { .. } => return,
            BdpPhase::Drain { deep: false, .. } => {
                product * DRAIN_GAIN + rate * ALLOWANCE_SPIKES * self.spikes.usual()
            }
            BdpPhase::Drain { .. } => product * DRAIN_DEEP_GAIN,
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
