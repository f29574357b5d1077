//! Loss and burstiness of a path, from what the exit counted.
//!
//! Exponentially forgotten counts of packets, losses and runs: old reports fade with
//! [`MEMORY`], so that a second of heavy loss shows at once and is gone after ten. The mean run
//! is `1/r` of the Gilbert model (Gilbert 1960); with few runs it is drawn towards a prior of 2.

use super::PathFeedback;
use ropewalk_types::{Duration, Instant};

/// Time constant of forgetting.
const MEMORY: Duration = Duration::from_secs(3);
/// Packets needed before a ratio means anything.
const PACKETS_MIN: f64 = 20.0;
/// Weight of the prior, in runs, and its mean run (r = 0.5).
const PRIOR_RUNS: f64 = 10.0;
const PRIOR_BURST: f64 = 2.0;

/// Loss of one path in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossEstimator {
    packets: f64,
    lost: f64,
    runs: f64,
    last: Option<Instant>,
}

impl LossEstimator {
    /// Nothing is known: no loss is assumed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a report of this path in.
    pub fn on_feedback(&mut self, now: Instant, seen: &PathFeedback) {
        if let Some(last) = self.last {
            let keep = (-now.since(last).as_secs_f64() / MEMORY.as_secs_f64()).exp();
            self.packets *= keep;
            self.lost *= keep;
            self.runs *= keep;
        }
        self.last = Some(now);
        self.packets += f64::from(seen.received_packets) + f64::from(seen.lost_packets);
        self.lost += f64::from(seen.lost_packets);
        self.runs += f64::from(seen.loss_runs);
    }

    /// Share of packets lost, `0.0..=1.0`.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.packets < PACKETS_MIN {
            0.0
        } else {
            (self.lost / self.packets).clamp(0.0, 1.0)
        }
    }

    /// Mean length of a run of losses, packets, at least 1.
    #[must_use]
    pub fn mean_burst(&self) -> f64 {
        let runs = self.runs + PRIOR_RUNS;
        ((self.lost + PRIOR_RUNS * PRIOR_BURST) / runs).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(received: u32, lost: u32, runs: u32) -> PathFeedback {
        PathFeedback {
            received_packets: received,
            lost_packets: lost,
            loss_runs: runs,
            ..PathFeedback::default()
        }
    }

    #[test]
    fn loss_and_burst_follow_the_counts() {
        let mut loss = LossEstimator::new();
        for i in 0..100 {
            loss.on_feedback(Instant::from_millis(i * 100), &report(950, 50, 10));
        }
        assert!((loss.loss() - 0.05).abs() < 0.002);
        assert!(
            (loss.mean_burst() - 5.0).abs() < 0.3,
            "{}",
            loss.mean_burst()
        );
    }

    #[test]
    fn a_handful_of_packets_proves_nothing() {
        let mut loss = LossEstimator::new();
        loss.on_feedback(Instant::ZERO, &report(1, 3, 1));
        assert!(loss.loss() == 0.0);
    }

    #[test]
    fn old_loss_is_forgotten() {
        let mut loss = LossEstimator::new();
        loss.on_feedback(Instant::ZERO, &report(500, 500, 100));
        for i in 1..100 {
            loss.on_feedback(Instant::from_millis(i * 100), &report(100, 0, 0));
        }
        assert!(loss.loss() < 0.02, "{}", loss.loss());
    }
}
