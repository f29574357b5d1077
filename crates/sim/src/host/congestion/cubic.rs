//! CUBIC with HyStart (RFC 9438; Ha and Rhee 2011), with the constants and the order of Linux.

use super::{AckSample, MIN_WINDOW, Window};
use crate::host::MS;

/// Growth, segments per cubic second (RFC 9438 §4.1).
const C: f64 = 0.4;
/// What a loss leaves of the window; Linux counts in 1/1024.
const BETA: f64 = 717.0 / 1_024.0;
/// Windows below this do not end slow start early.
const HYSTART_WINDOW: u32 = 16;
/// Samples of a round before its delay is believed.
const HYSTART_SAMPLES: u32 = 8;
/// Bounds of the delay that ends slow start.
const HYSTART_DELAY_MIN_NS: u64 = 4 * MS;
const HYSTART_DELAY_MAX_NS: u64 = 16 * MS;
/// Acknowledgements this close are of one train.
const HYSTART_SPACING_NS: u64 = 2 * MS;
/// Acknowledgements per segment of growth at most.
const GROWTH_MAX: f64 = 2.0;
/// A growth that was computed holds so long while the window stays (Linux `bictcp_update`: HZ/32).
const GROWTH_HOLDS_NS: u64 = 1_000 * MS / 32;

/// State beside the window.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    /// Window before the last reduction, segments; zero before the first.
    window_max: f64,
    /// Start of the present growth; zero for none.
    epoch_ns: u64,
    /// Window at the plateau, and seconds until there.
    origin: f64,
    plateau: f64,
    /// What NewReno would have (RFC 9438 §4.3), and acknowledgements counted towards it.
    friendly: f64,
    acked: f64,
    /// Growth as computed last: for which window, when, and acknowledgements per segment.
    last_cwnd: f64,
    last_ns: u64,
    last_per: u32,
    /// Smallest round trip, nanoseconds; zero for none.
    delay_min_ns: u64,
    round: Round,
}

/// One round trip of slow start.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// It ends when so much is delivered.
    end_delivered: u64,
    start_ns: u64,
    last_ack_ns: u64,
    samples: u32,
    rtt_min_ns: u64,
    found: bool,
}

impl Cubic {
    /// Watches delays; may end slow start.
    pub fn on_rtt(&mut self, window: &mut Window, sample: &AckSample) {
        let Some(rtt_ns) = sample.rtt_ns else { return };
        if self.delay_min_ns == 0 || rtt_ns < self.delay_min_ns {
            self.delay_min_ns = rtt_ns;
        }
        if window.slow_start() && window.cwnd >= HYSTART_WINDOW && !self.round.found {
            self.watch_round(window, sample, rtt_ns);
        }
    }

    fn watch_round(&mut self, window: &mut Window, sample: &AckSample, rtt_ns: u64) {
        let now = sample.now_ns;
        let round = &mut self.round;
        if sample.delivered >= round.end_delivered {
            *round = Round {
                end_delivered: sample.delivered + u64::from(sample.in_flight),
                start_ns: now,
                last_ack_ns: now,
                rtt_min_ns: u64::MAX,
                ..Round::default()
            };
        }
        if now.saturating_sub(round.last_ack_ns) <= HYSTART_SPACING_NS {
            round.last_ack_ns = now;
            // Linux halves it where nothing paces; it allows for a batch of acknowledgements.
            if now - round.start_ns > self.delay_min_ns / 2 {
                round.found = true;
            }
        }
        round.rtt_min_ns = round.rtt_min_ns.min(rtt_ns);
        if round.samples < HYSTART_SAMPLES {
            round.samples += 1;
        } else {
            let allowed = (self.delay_min_ns / 8).clamp(HYSTART_DELAY_MIN_NS, HYSTART_DELAY_MAX_NS);
            round.found |= round.rtt_min_ns > self.delay_min_ns + allowed;
        }
        if round.found {
            window.ssthresh = window.cwnd;
        }
    }

    /// Grows the window.
    pub fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        if !sample.window_limited {
            return;
        }
        let mut acked = sample.acked;
        if window.slow_start() {
            acked = window.grow_slow_start(acked);
        }
        if acked > 0 && !window.slow_start() {
            let per = self.acks_per_segment(sample.now_ns, f64::from(window.cwnd), acked);
            window.grow_one_per(per, acked);
        }
    }

    /// Acknowledgements per segment of growth (RFC 9438 §4.2 to §4.5).
    fn acks_per_segment(&mut self, now_ns: u64, cwnd: f64, acked: u32) -> u32 {
        self.acked += f64::from(acked);
        let same = (cwnd - self.last_cwnd).abs() < 0.5;
        if same && now_ns - self.last_ns <= GROWTH_HOLDS_NS {
            return self.last_per;
        }
        (self.last_cwnd, self.last_ns) = (cwnd, now_ns);
        if self.epoch_ns == 0 {
            self.epoch_ns = now_ns;
            self.acked = f64::from(acked);
            self.friendly = cwnd;
            if self.window_max <= cwnd {
                (self.plateau, self.origin) = (0.0, cwnd);
            } else {
                self.plateau = ((self.window_max - cwnd) / C).cbrt();
                self.origin = self.window_max;
            }
        }
        // Several pauses in one round trip may have moved the epoch ahead of the clock (Linux: `cubictcp_cwnd_event`).
        let since = now_ns.saturating_sub(self.epoch_ns);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let time = (since + self.delay_min_ns) as f64 / 1e9 - self.plateau;
        // Whole segments, as Linux: small windows grow sooner. Fractions gave 0.95 of the kernel's
        // goodput over 12 lossy links, and whole segments 0.97 (docs/measurements.md).
        let target = self.origin + (C * time * time * time).trunc();
        let mut per = if target > cwnd {
            cwnd / (target - cwnd)
        } else {
            100.0 * cwnd
        };
        if self.window_max == 0.0 {
            // The first plateau is unknown: at least five percent a round trip.
            per = per.min(20.0);
        }
        let friendly_per = cwnd * (1.0 + BETA) / (3.0 * (1.0 - BETA));
        if self.acked > friendly_per {
            let grown = (self.acked / friendly_per).floor();
            self.friendly += grown;
            self.acked -= grown * friendly_per;
        }
        if self.friendly > cwnd {
            per = per.min(cwnd / (self.friendly - cwnd));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least two, and a window's multiple"
        )]
        let per = per.max(GROWTH_MAX) as u32;
        self.last_per = per;
        per
    }

    /// The threshold after a loss (RFC 9438 §4.6, §4.7).
    pub fn on_loss(&mut self, window: &Window) -> u32 {
        let cwnd = f64::from(window.cwnd);
        self.epoch_ns = 0;
        self.window_max = if cwnd < self.window_max {
            cwnd * (1.0 + BETA) / 2.0
        } else {
            cwnd
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of the window"
        )]
        let reduced = (cwnd * BETA) as u32;
        reduced.max(MIN_WINDOW)
    }

    /// A timeout: nothing learnt before it counts any more.
    pub fn on_timeout(&mut self) {
        let delay_min_ns = self.delay_min_ns;
        *self = Self {
            delay_min_ns,
            ..Self::default()
        };
    }

    /// A pause of the application is no time to grow in.
    pub fn on_restart(&mut self, idle_ns: u64) {
        if self.epoch_ns > 0 {
            self.epoch_ns += idle_ns;
        }
    }
}
