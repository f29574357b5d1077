//! BBR version 1 (Cardwell et al. 2016), with the constants of Linux `tcp_bbr.c`.
//!
//! Not modelled: the detection of token-bucket policers (`lt_bw`).

use super::{AckSample, INITIAL_WINDOW, Window};
use crate::host::MS;
use ropewalk_types::Random;

/// Gain that doubles the rate each round: 2/ln 2.
const HIGH_GAIN: f64 = 2_885.0 / 1_000.0;
const DRAIN_GAIN: f64 = 1_000.0 / 2_885.0;
/// Window in bandwidth-delay products.
const CWND_GAIN: f64 = 2.0;
/// Pacing gains of the eight phases in which bandwidth is probed.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Rounds over which the largest rate counts.
const BANDWIDTH_ROUNDS: u64 = 10;
/// Time over which the smallest round trip counts, and how long its probe lasts.
const MIN_RTT_WINDOW_NS: u64 = 10_000 * MS;
const PROBE_RTT_NS: u64 = 200 * MS;
/// Window while the round trip is probed, and smallest window.
const CWND_MIN: u32 = 4;
/// Growth of the rate that says the pipe is not full, and rounds without it that say it is.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Pacing stays below the estimate by this share, so that the queue drains.
const PACING_MARGIN: f64 = 0.99;
/// Round trip before the first sample.
const RTT_GUESS_NS: u64 = MS;
/// Longest time's worth of aggregated acknowledgements.
const EXTRA_MAX_NS: u64 = 100 * MS;
/// Rounds of each of the two halves of the window over which aggregation counts.
const EXTRA_ROUNDS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth {
        phase: usize,
        since_ns: u64,
    },
    ProbeRtt {
        done_ns: Option<u64>,
        round_done: bool,
    },
}

/// State of one connection; rates in segments per second.
#[derive(Clone, Debug)]
pub struct Bbr {
    mode: Mode,
    random: Random,
    /// Largest rates with their rounds, descending (Kathleen Nichols' filter, exact here).
    rates: std::collections::VecDeque<(u64, f64)>,
    round: u64,
    round_start: bool,
    next_round_delivered: u64,
    min_rtt_ns: u64,
    min_rtt_at_ns: u64,
    full_rate: f64,
    full_rounds: u32,
    full: bool,
    pacing: f64,
    prior_cwnd: u32,
    conserving: bool,
    was_recovering: bool,
    idle_restart: bool,
    aggregation: Aggregation,
}

/// How far acknowledgements come in lumps.
#[derive(Clone, Copy, Debug, Default)]
struct Aggregation {
    epoch_ns: u64,
    acked: f64,
    extra: [f64; 2],
    rounds: u32,
    index: usize,
}

impl Bbr {
    /// State at the start.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self {
            mode: Mode::Startup,
            random,
            rates: std::collections::VecDeque::new(),
            round: 0,
            round_start: false,
            next_round_delivered: 0,
            min_rtt_ns: 0,
            min_rtt_at_ns: 0,
            full_rate: 0.0,
            full_rounds: 0,
            full: false,
            pacing: HIGH_GAIN * f64::from(INITIAL_WINDOW) * 1e9 / RTT_GUESS_NS as f64,
            prior_cwnd: 0,
            conserving: false,
            was_recovering: false,
            idle_restart: false,
            aggregation: Aggregation::default(),
        }
    }

    /// Segments per second at which to send.
    #[must_use]
    pub const fn pacing_per_sec(&self) -> f64 {
        self.pacing
    }

    /// Remembers the window before losses are repaired.
    pub fn save_window(&mut self, window: &Window) {
        self.prior_cwnd = if self.was_recovering || matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.prior_cwnd.max(window.cwnd)
        } else {
            window.cwnd
        };
    }

    /// The losses were none.
    pub fn on_undo(&mut self, window: &mut Window) {
        (self.full_rate, self.full_rounds) = (0.0, 0);
        window.cwnd = window.cwnd.max(self.prior_cwnd);
    }

    /// The application has something to send again.
    pub fn on_restart(&mut self) {
        self.idle_restart = true;
        if let Some(bandwidth) = self.bandwidth()
            && matches!(self.mode, Mode::ProbeBandwidth { .. })
        {
            self.pacing = bandwidth * PACING_MARGIN;
        }
    }

    /// Updates the model and sets window and pacing.
    pub fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        self.update_bandwidth(sample);
        self.update_aggregation(window, sample);
        self.update_cycle(sample);
        self.check_full(sample);
        self.check_drain(sample);
        self.update_min_rtt(window, sample);
        self.set_pacing();
        self.set_window(window, sample);
    }

    fn bandwidth(&self) -> Option<f64> {
        self.rates.front().map(|&(_, rate)| rate)
    }

    /// Segments in `gain` bandwidth-delay products.
    fn product(&self, gain: f64) -> f64 {
        match self.bandwidth() {
            Some(rate) if self.min_rtt_ns > 0 => gain * rate * self.min_rtt_ns as f64 / 1e9,
            _ => f64::from(INITIAL_WINDOW),
        }
    }

    /// Segments Linux sends at once at the present rate: a millisecond's worth, two at least.
    fn burst(&self) -> f64 {
        (self.pacing / 1_024.0).clamp(2.0, 44.0)
    }

    /// The product in whole segments, with what batching at either end needs on top.
    fn target(&self, gain: f64) -> u32 {
        let segments = self.product(gain).ceil() + 3.0 * self.burst().floor();
        let probing = matches!(self.mode, Mode::ProbeBandwidth { phase: 0, .. });
        let even = ((to_count(segments) + 1) & !1) + if probing { 2 } else { 0 };
        even.max(CWND_MIN)
    }

    fn update_bandwidth(&mut self, sample: &AckSample) {
        self.round_start = false;
        let Some(rate) = sample.rate else { return };
        if rate.prior_delivered >= self.next_round_delivered {
            self.next_round_delivered = sample.delivered;
            self.round += 1;
            self.round_start = true;
            self.conserving = false;
        }
        if rate.interval_ns == 0 {
            return;
        }
        let measured = rate.delivered as f64 * 1e9 / rate.interval_ns as f64;
        if rate.app_limited && self.bandwidth().is_some_and(|best| measured < best) {
            return;
        }
        while self.rates.back().is_some_and(|&(_, old)| old <= measured) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, measured));
        while self
            .rates
            .front()
            .is_some_and(|&(round, _)| round + BANDWIDTH_ROUNDS < self.round)
        {
            self.rates.pop_front();
        }
    }

    fn update_aggregation(&mut self, window: &Window, sample: &AckSample) {
        let Some(bandwidth) = self.bandwidth() else {
            return;
        };
        let state = &mut self.aggregation;
        if self.round_start {
            state.rounds += 1;
            if state.rounds >= EXTRA_ROUNDS {
                state.rounds = 0;
                state.index ^= 1;
                state.extra[state.index] = 0.0;
            }
        }
        let elapsed = sample.now_ns.saturating_sub(state.epoch_ns) as f64 / 1e9;
        let mut expected = bandwidth * elapsed;
        if state.acked <= expected {
            (state.epoch_ns, state.acked, expected) = (sample.now_ns, 0.0, 0.0);
        }
        state.acked += f64::from(sample.acked);
        let extra = (state.acked - expected).min(f64::from(window.cwnd));
        let best = &mut state.extra[state.index];
        *best = best.max(extra);
    }

    fn update_cycle(&mut self, sample: &AckSample) {
        let Mode::ProbeBandwidth { phase, since_ns } = self.mode else {
            return;
        };
        let gain = CYCLE[phase];
        let full_length = sample.now_ns.saturating_sub(since_ns) > self.min_rtt_ns;
        let prior = sample.prior_in_flight;
        let next = if gain > 1.0 {
            full_length && (sample.lost > 0 || prior >= self.target(gain))
        } else if gain < 1.0 {
            full_length || prior <= self.target(1.0)
        } else {
            full_length
        };
        if next {
            self.mode = Mode::ProbeBandwidth {
                phase: (phase + 1) % CYCLE.len(),
                since_ns: sample.now_ns,
            };
        }
    }

    fn check_full(&mut self, sample: &AckSample) {
        let limited = sample.rate.is_none_or(|rate| rate.app_limited);
        let Some(bandwidth) = self.bandwidth() else {
            return;
        };
        if self.full || !self.round_start || limited {
            return;
        }
        if bandwidth >= self.full_rate * FULL_GROWTH {
            (self.full_rate, self.full_rounds) = (bandwidth, 0);
            return;
        }
        self.full_rounds += 1;
        self.full = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, sample: &AckSample) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && sample.in_flight <= self.target(1.0) {
            self.enter_probing(sample.now_ns);
        }
    }

    fn enter_probing(&mut self, now_ns: u64) {
        // Any phase but the one that drains.
        let phase = match self.random.next_u64() % 7 {
            0 => 0,
            n => usize::try_from(n + 1).unwrap_or(2),
        };
        self.mode = Mode::ProbeBandwidth {
            phase,
            since_ns: now_ns,
        };
    }

    fn update_min_rtt(&mut self, window: &mut Window, sample: &AckSample) {
        let now = sample.now_ns;
        let expired = self.min_rtt_ns > 0 && now > self.min_rtt_at_ns + MIN_RTT_WINDOW_NS;
        if let Some(rtt_ns) = sample.rtt_ns
            && (self.min_rtt_ns == 0 || rtt_ns <= self.min_rtt_ns || expired)
        {
            (self.min_rtt_ns, self.min_rtt_at_ns) = (rtt_ns, now);
        }
        let probing = matches!(self.mode, Mode::ProbeRtt { .. });
        if expired && !self.idle_restart && !probing {
            self.save_window(window);
            self.mode = Mode::ProbeRtt {
                done_ns: None,
                round_done: false,
            };
        }
        if let Mode::ProbeRtt {
            done_ns,
            round_done,
        } = self.mode
        {
            match done_ns {
                None if sample.in_flight <= CWND_MIN => {
                    self.next_round_delivered = sample.delivered;
                    self.mode = Mode::ProbeRtt {
                        done_ns: Some(now + PROBE_RTT_NS),
                        round_done: false,
                    };
                }
                None => {}
                Some(done) => {
                    let round_done = round_done || self.round_start;
                    self.mode = Mode::ProbeRtt {
                        done_ns,
                        round_done,
                    };
                    if round_done && now > done {
                        self.min_rtt_at_ns = now;
                        window.cwnd = window.cwnd.max(self.prior_cwnd);
                        if self.full {
                            self.enter_probing(now);
                        } else {
                            self.mode = Mode::Startup;
                        }
                    }
                }
            }
        }
        if sample.acked > 0 {
            self.idle_restart = false;
        }
    }

    fn set_pacing(&mut self) {
        let gain = match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeBandwidth { phase, .. } => CYCLE[phase],
            Mode::ProbeRtt { .. } => 1.0,
        };
        let base = match self.bandwidth() {
            Some(bandwidth) => bandwidth,
            None if self.min_rtt_ns > 0 => f64::from(INITIAL_WINDOW) * 1e9 / self.min_rtt_ns as f64,
            None => return,
        };
        let rate = gain * base * PACING_MARGIN;
        if self.full || rate > self.pacing || self.rates.len() <= 1 && self.round <= 1 {
            self.pacing = rate;
        }
    }

    fn set_window(&mut self, window: &mut Window, sample: &AckSample) {
        let mut cwnd = window.cwnd;
        let entered = sample.recovering && !self.was_recovering;
        let left = !sample.recovering && self.was_recovering;
        self.was_recovering = sample.recovering;
        if sample.lost > 0 {
            cwnd = cwnd.saturating_sub(sample.lost).max(1);
        }
        if entered {
            self.conserving = true;
            self.next_round_delivered = sample.delivered;
            cwnd = sample.in_flight + sample.acked;
        } else if left {
            cwnd = cwnd.max(self.prior_cwnd);
            self.conserving = false;
        }
        if self.conserving {
            cwnd = cwnd.max(sample.in_flight + sample.acked);
        } else {
            let gain = match self.mode {
                Mode::Startup | Mode::Drain => HIGH_GAIN,
                Mode::ProbeBandwidth { .. } => CWND_GAIN,
                Mode::ProbeRtt { .. } => 1.0,
            };
            let mut target = self.target(gain);
            if self.full {
                let extra = self.aggregation.extra[0].max(self.aggregation.extra[1]);
                let most = self.bandwidth().unwrap_or(0.0) * EXTRA_MAX_NS as f64 / 1e9;
                target += to_count(extra.min(most));
            }
            if self.full {
                cwnd = (cwnd + sample.acked).min(target);
            } else if cwnd < target || sample.delivered < u64::from(INITIAL_WINDOW) {
                cwnd += sample.acked;
            }
            cwnd = cwnd.max(CWND_MIN);
        }
        if matches!(self.mode, Mode::ProbeRtt { .. }) {
            cwnd = cwnd.min(CWND_MIN);
        }
        window.cwnd = cwnd;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and windows are small"
)]
fn to_count(segments: f64) -> u32 {
    segments.max(0.0) as u32
}
