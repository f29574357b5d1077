//! The default congestion control: the window follows the measured bandwidth-delay product.
//!
//! Window = rate × (base × loss share + allowance). `rate` is the largest of the delivery rates of
//! the last rounds, `base` the smallest mean time in flight of a round in the last ten seconds,
//! and the allowance the standing queue that keeps the bottleneck busy and finds new capacity.
//! By Little's law the window that fills a link is the rate times the mean time in flight, so
//! jitter, delayed acknowledgements and the longer stay of lost packets are all accounted for.
//!
//! Invariant: loss alone never lowers the window below the product of rate and base; delay beyond
//! the guard makes old rates count no more, so that the window follows a falling capacity within
//! two rounds. Source: BBR (Cardwell et al. 2016) for rate and rounds, FAST TCP (Wei et al. 2006)
//! for the allowance; docs/decisions/congestion-control.md has measurements.

use std::time::{Duration, Instant};

use super::{filter::WindowedMin, monitor::AckBatch};

/// Packets in the first window (RFC 9002 §7.2 recommends ten).
const INITIAL_PACKETS: u64 = 16;
/// Smallest window in packets.
const MIN_PACKETS: u64 = 4;
/// Largest window in bytes: 20 Gbit/s over 100 ms.
const WINDOW_MAX: u64 = 256 << 20;
/// Rounds over which the largest delivery rate counts.
const RATE_ROUNDS: usize = 10;
/// Rounds that count while there is more delay than the guard allows.
const RATE_ROUNDS_GUARDED: usize = 2;
/// Time over which the smallest mean time in flight counts.
const BASE_WINDOW: Duration = Duration::from_secs(10);
/// A round lasts at least this long,
const ROUND_MIN: Duration = Duration::from_millis(5);
/// and until this many packets are acknowledged,
const ROUND_PACKETS_MIN: u64 = 16;
/// but no longer than this on a slow path.
const ROUND_MAX: Duration = Duration::from_millis(200);
/// Allowance as share of base, with bounds in seconds and a floor in packets.
const ALLOWANCE_SHARE: f64 = 0.25;
const ALLOWANCE_MIN: f64 = 0.001;
const ALLOWANCE_MAX: f64 = 0.006;
const ALLOWANCE_PACKETS: f64 = 3.0;
/// Delay beyond base, in seconds, that counts as a queue of ours.
const GUARD_MIN: f64 = 0.010;
/// Growth of the rate that shows that the path was not full.
const STARTUP_GROWTH: f64 = 1.25;
const PROBE_GROWTH: f64 = 1.10;
/// Rounds without such growth that end the start.
const STARTUP_STALE_ROUNDS: u8 = 2;
/// Share of the product in flight while probing and while draining.
const PROBE_GAIN: f64 = 1.25;
const DRAIN_GAIN: f64 = 0.85;
/// Rounds between two probes.
const CRUISE_ROUNDS: u8 = 6;
/// Highest loss that is answered with a larger window.
const LOSS_MAX: f64 = 0.30;
/// Packets over which loss is averaged.
const LOSS_PACKETS: f64 = 256.0;
/// How much longer than an acknowledged packet a lost one counts as in flight.
const LOST_STAY: f64 = 1.3;

/// What the window is doing; one round each unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubles every round trip until the rate stops growing or delay shows.
    Startup { best: f64, stale: u8 },
    /// Lets the queue run empty so that base is seen.
    Drain,
    /// Stays, for the given number of rounds.
    Cruise(u8),
    /// Sends more; counts the successes in a row.
    Probe(u8),
    /// Waits for what the probe shows, compared with the rate before it.
    Judge { before: f64, successes: u8 },
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
        }
    }
}

/// State of one path.
#[derive(Clone, Debug)]
pub(super) struct Bdp {
    mtu: u64,
    window: u64,
    phase: Phase,
    round: Round,
    rates: [f64; RATE_ROUNDS],
    next_rate: usize,
    base: Option<WindowedMin>,
    rtt_min: f64,
    /// Mean of the last round and how much that changes from round to round, seconds.
    mean: f64,
    mean_change: f64,
    loss: f64,
    /// Share of the allowance in use, lowered by congestion marks.
    headroom: f64,
    /// Mean and window when delay first went beyond the guard.
    guarded: Option<(f64, u64)>,
}

impl Bdp {
    pub(super) fn new(now: Instant, mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            phase: Phase::Startup {
                best: 0.0,
                stale: 0,
            },
            round: Round::new(now, now),
            rates: [0.0; RATE_ROUNDS],
            next_rate: 0,
            base: None,
            rtt_min: f64::INFINITY,
            mean: 0.0,
            mean_change: 0.0,
            loss: 0.0,
            headroom: 1.0,
            guarded: None,
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
    pub(super) fn on_congestion(&mut self, _now: Instant, lost_bytes: u64) {
        self.round.lost += lost_bytes;
        if lost_bytes == 0 {
            self.headroom = (self.headroom * 0.7).max(0.05);
        }
    }

    pub(super) fn on_ack(&mut self, batch: &AckBatch) {
        self.round.acked += batch.bytes;
        self.round.byte_seconds += batch.byte_seconds;
        let rtt = batch.rtt_min.as_secs_f64();
        self.round.rtt_min = self.round.rtt_min.min(rtt);
        self.rtt_min = self.rtt_min.min(rtt);
        self.round.app_limited |= batch.app_limited;
        if matches!(self.phase, Phase::Startup { .. }) && !batch.app_limited {
            self.window = (self.window + batch.bytes).min(WINDOW_MAX);
        }
        let elapsed = batch.now.saturating_duration_since(self.round.start);
        let enough = self.round.acked >= ROUND_PACKETS_MIN * self.mtu || elapsed >= ROUND_MAX;
        if batch.newest_sent >= self.round.start && elapsed >= ROUND_MIN && enough {
            self.end_round(batch.now, batch.newest_sent);
        }
    }

    fn end_round(&mut self, now: Instant, newest_sent: Instant) {
        let round = core::mem::replace(&mut self.round, Round::new(now, newest_sent));
        let acknowledging = now.saturating_duration_since(round.start);
        let sending = newest_sent.saturating_duration_since(round.newest_sent);
        #[expect(clippy::cast_precision_loss, reason = "estimates")]
        let (acked, lost) = (round.acked as f64, round.lost as f64);
        let rate = acked / acknowledging.max(sending).as_secs_f64();
        let mean = round.byte_seconds / acked;
        self.update_loss(acked, lost);
        self.update_mean(now, mean);
        let base = self.base.map_or(mean, |filter| filter.get());
        let queue = mean - base;
        self.update_rate(rate, round.app_limited);
        self.headroom = (self.headroom + 0.05).min(1.0);
        let guard = (2.0 * self.allowance(base)).max(GUARD_MIN) + 2.0 * self.mean_change;
        if queue > guard {
            self.forget_rates();
            self.check_response(now, mean);
        } else {
            self.guarded = None;
        }
        let startup_delay = round.rtt_min - self.rtt_min > guard;
        self.next_phase(rate, round.app_limited, startup_delay, queue > guard);
        self.set_window();
    }

    fn update_loss(&mut self, acked: f64, lost: f64) {
        #[expect(clippy::cast_precision_loss, reason = "an MTU is small")]
        let packets = (acked + lost) / self.mtu as f64;
        let weight = (packets / LOSS_PACKETS).min(0.5);
        self.loss += (lost / (acked + lost) - self.loss) * weight;
    }

    fn update_mean(&mut self, now: Instant, mean: f64) {
        match &mut self.base {
            Some(filter) => filter.update(now, mean, BASE_WINDOW),
            None => {
                self.base = Some(WindowedMin::new(now, mean));
                self.mean = mean;
            }
        }
        self.mean_change += ((mean - self.mean).abs() - self.mean_change) / 8.0;
        self.mean = mean;
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
    fn check_response(&mut self, now: Instant, mean: f64) {
        let (mean_then, window_then) = *self.guarded.get_or_insert((mean, self.window));
        if self.window * 2 <= window_then && mean > mean_then * 0.85 {
            self.guarded = None;
            if let Some(base) = &mut self.base {
                base.reset(now, mean);
            }
            self.rtt_min = self.rtt_min.max(mean);
        }
    }

    fn next_phase(&mut self, rate: f64, app_limited: bool, startup_delay: bool, guarded: bool) {
        self.phase = match self.phase {
            Phase::Startup { best, stale } if app_limited => Phase::Startup { best, stale },
            Phase::Startup { .. } if startup_delay => Phase::Drain,
            Phase::Startup { best, .. } if rate > best * STARTUP_GROWTH => Phase::Startup {
                best: rate,
                stale: 0,
            },
            Phase::Startup { best, stale } if stale + 1 < STARTUP_STALE_ROUNDS => Phase::Startup {
                best,
                stale: stale + 1,
            },
            Phase::Startup { .. } => Phase::Drain,
            Phase::Drain => Phase::Cruise(CRUISE_ROUNDS),
            Phase::Cruise(0) if !guarded && !app_limited => Phase::Probe(0),
            Phase::Cruise(left) => Phase::Cruise(left.saturating_sub(1)),
            Phase::Probe(successes) => Phase::Judge {
                before: self.rate(),
                successes,
            },
            Phase::Judge { before, successes } if rate > before * PROBE_GROWTH && !guarded => {
                if successes >= 1 {
                    Phase::Startup {
                        best: rate,
                        stale: 0,
                    }
                } else {
                    Phase::Probe(successes + 1)
                }
            }
            Phase::Judge { .. } => Phase::Drain,
        };
    }

    fn allowance(&self, base: f64) -> f64 {
        (base * ALLOWANCE_SHARE).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX)
    }

    fn set_window(&mut self) {
        let Some(base) = self.base.map(|filter| filter.get()) else {
            return;
        };
        let rate = self.rate();
        let loss = self.loss.min(LOSS_MAX);
        let product = rate * base * (1.0 + LOST_STAY * loss / (1.0 - loss));
        #[expect(clippy::cast_precision_loss, reason = "an MTU is small")]
        let packets = ALLOWANCE_PACKETS * self.mtu as f64;
        let allowance = (rate * self.allowance(base) * self.headroom).max(packets);
        let window = match self.phase {
            Phase::Startup { .. } => return,
            Phase::Drain => product * DRAIN_GAIN,
            Phase::Cruise(_) | Phase::Judge { .. } => product + allowance,
            Phase::Probe(_) => product * PROBE_GAIN + allowance,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let window = window.clamp(0.0, 1e12) as u64;
        self.window = window.clamp(MIN_PACKETS * self.mtu, WINDOW_MAX);
    }
}
