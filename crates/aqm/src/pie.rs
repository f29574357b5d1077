//! PIE: drops at random, with a probability that follows the delay (RFC 8033 §4 and §5).
//!
//! The delay is that of the packet that left last (RFC 8033 §4.3 allows time stamps instead of an
//! estimated departure rate). Updates that fell due since the last call are caught up with, so the
//! probability does not depend on how often the caller comes.

use crate::Verdict;
use crate::tuning::{
    PIE_ALPHA, PIE_BACKLOG_MIN, PIE_BETA, PIE_BURST, PIE_CALM_MAX, PIE_DECAY, PIE_EVEN,
    PIE_MARK_MAX, PIE_SCALES, PIE_STEP_MAX, PIE_UPDATE,
};
use ropewalk_types::{Duration, Instant};

/// State of the controller.
#[derive(Clone, Copy, Debug)]
pub struct Pie {
    probability: f64,
    /// Wait of the packet that left last; zero once nothing waits.
    delay: Duration,
    /// The same at the last update.
    delay_before: Duration,
    burst_left: Duration,
    /// Sum of the probabilities since the last drop.
    accumulated: f64,
    update: Option<Instant>,
}

impl Default for Pie {
    fn default() -> Self {
        Self {
            probability: 0.0,
            delay: Duration::ZERO,
            delay_before: Duration::ZERO,
            burst_left: PIE_BURST,
            accumulated: 0.0,
            update: None,
        }
    }
}

impl Pie {
    /// Judges a packet that arrives while `backlog` bytes wait; `chance` is a random number,
    /// `0.0..1.0`.
    pub fn judge(&mut self, now: Instant, target: Duration, backlog: u64, chance: f64) -> Verdict {
        self.catch_up(now, target);
        if self.is_calm(target) && self.probability <= 0.0 {
            self.burst_left = PIE_BURST;
        }
        let spared = !self.burst_left.is_zero()
            || (self.delay_before < target / 2 && self.probability < PIE_CALM_MAX)
            || backlog <= PIE_BACKLOG_MIN;
        if spared {
            return Verdict::Pass;
        }
        // RFC 8033 §5.4: drops are spread evenly.
        self.accumulated += self.probability;
        let [least, most] = PIE_EVEN;
        let dropped =
            self.accumulated >= most || (self.accumulated >= least && chance < self.probability);
        if !dropped {
            return Verdict::Pass;
        }
        self.accumulated = 0.0;
        if self.probability <= PIE_MARK_MAX {
            Verdict::Congested
        } else {
            Verdict::Drop
        }
    }

    /// A packet leaves after `sojourn`; `backlog` bytes still wait.
    pub fn on_departure(
        &mut self,
        now: Instant,
        target: Duration,
        sojourn: Duration,
        backlog: u64,
    ) {
        self.catch_up(now, target);
        self.delay = if backlog == 0 {
            Duration::ZERO
        } else {
            sojourn
        };
    }

    /// The probability that a packet is dropped.
    #[must_use]
    pub const fn probability(&self) -> f64 {
        self.probability
    }

    fn is_calm(&self, target: Duration) -> bool {
        self.delay < target / 2 && self.delay_before < target / 2
    }

    /// Carries out the updates that are due.
    fn catch_up(&mut self, now: Instant, target: Duration) {
        let mut at = self.update.unwrap_or(now + PIE_UPDATE);
        while at <= now {
            self.step(target);
            at += PIE_UPDATE;
            let idle = self.delay.is_zero() && self.delay_before.is_zero();
            if idle && self.probability <= 0.0 && self.burst_left.is_zero() {
                // Nothing changes any more until a packet comes.
                while at <= now {
                    let rest = now.since(at).as_nanos() / PIE_UPDATE.as_nanos() + 1;
                    at += PIE_UPDATE * u32::try_from(rest).unwrap_or(u32::MAX);
                }
            }
        }
        self.update = Some(at);
    }

    /// RFC 8033 §4.2.
    fn step(&mut self, target: Duration) {
        let (delay, before) = (self.delay.as_secs_f64(), self.delay_before.as_secs_f64());
        let mut change = PIE_ALPHA * (delay - target.as_secs_f64()) + PIE_BETA * (delay - before);
        let scale = PIE_SCALES
            .iter()
            .find(|(below, _)| self.probability < *below);
        change /= scale.map_or(1.0, |(_, by)| *by);
        if self.probability >= 0.1 {
            change = change.min(PIE_STEP_MAX);
        }
        self.probability += change;
        if self.delay.is_zero() && self.delay_before.is_zero() {
            self.probability *= PIE_DECAY;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        self.delay_before = self.delay;
        self.burst_left = self.burst_left.saturating_sub(PIE_UPDATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::PIE_TARGET;

    const BACKLOG: u64 = 100_000;

    /// The controller after `ms` milliseconds of this delay.
    fn after(pie: &mut Pie, from: u64, to: u64, delay_ms: u64) {
        for ms in from..to {
            let delay = Duration::from_millis(delay_ms);
            pie.on_departure(Instant::from_millis(ms), PIE_TARGET, delay, BACKLOG);
        }
    }

    #[test]
    fn the_probability_grows_above_the_target_stays_at_it_and_falls_below() {
        let mut pie = Pie::default();
        after(&mut pie, 0, 2_000, 40);
        let high = pie.probability();
        assert!(high > 0.01, "{high}");
        after(&mut pie, 2_000, 2_016, 15);
        let turned = pie.probability();
        assert!(turned < high, "a falling delay counts at once");
        after(&mut pie, 2_016, 4_000, 15);
        assert!(
            (pie.probability() - turned).abs() < 1e-9,
            "at the target nothing changes"
        );
        after(&mut pie, 4_000, 60_000, 5);
        assert!(pie.probability() < turned);
    }

    #[test]
    fn a_burst_after_a_quiet_time_is_spared() {
        let mut pie = Pie::default();
        let judge =
            |pie: &mut Pie, ms| pie.judge(Instant::from_millis(ms), PIE_TARGET, BACKLOG, 0.0);
        assert_eq!(judge(&mut pie, 0), Verdict::Pass);
        after(&mut pie, 0, 149, 500);
        assert!((0..200).all(|_| judge(&mut pie, 149) == Verdict::Pass));
        after(&mut pie, 149, 400, 500);
        assert!((0..2_000).any(|_| judge(&mut pie, 400) != Verdict::Pass));
    }

    #[test]
    fn how_often_the_caller_comes_does_not_matter() {
        let (mut often, mut seldom) = (Pie::default(), Pie::default());
        after(&mut often, 0, 1_000, 30);
        after(&mut seldom, 0, 1, 30);
        after(&mut seldom, 999, 1_000, 30);
        assert!((often.probability() - seldom.probability()).abs() < 1e-12);
        // An hour of silence is caught up with at once.
        for pie in [&mut often, &mut seldom] {
            let now = Instant::from_millis(1_000);
            pie.on_departure(now, PIE_TARGET, Duration::ZERO, 0);
            let later = Instant::from_millis(3_600_000);
            assert_eq!(pie.judge(later, PIE_TARGET, BACKLOG, 0.0), Verdict::Pass);
            assert!(pie.probability() <= 0.0);
        }
    }

    #[test]
    fn drops_come_at_their_probability_and_a_high_one_drops_what_could_be_marked() {
        for (probability, verdict) in [(0.05, Verdict::Congested), (0.3, Verdict::Drop)] {
            let mut pie = Pie {
                probability,
                delay: PIE_TARGET,
                delay_before: PIE_TARGET,
                burst_left: Duration::ZERO,
                ..Pie::default()
            };
            let mut random = ropewalk_types::Random::new(3);
            let verdicts: Vec<_> = (0..20_000)
                .map(|_| pie.judge(Instant::ZERO, PIE_TARGET, BACKLOG, random.unit()))
                .collect();
            assert!(
                verdicts
                    .iter()
                    .all(|v| *v == Verdict::Pass || *v == verdict)
            );
            let dropped = verdicts.iter().filter(|v| **v != Verdict::Pass).count();
            let share = dropped as f64 / 20_000.0;
            // Nothing is dropped until the sum is 0.85; from then on each packet with the chance.
            let wanted = 1.0 / ((0.85 / probability).ceil() - 1.0 + 1.0 / probability);
            assert!(
                (share / wanted - 1.0).abs() < 0.15,
                "{share} for {probability}"
            );
        }
    }
}
