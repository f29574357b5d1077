//! How a delay varies by itself: what our own queue cannot have made.
//!
//! A queue of ours grows byte by byte and turns once, at its longest. [`DelayVariation`] counts
//! delay that goes up and down and up again. [`DelaySpikes`] counts delay that rises faster than
//! bytes can queue. A link that delays packets at random but keeps their order shows delay spikes
//! without delay variation. One late packet holds up all behind it. They come together, each a
//! little less late than the one before.

use super::tuning::{JITTER_WEIGHT, SPIKE_FREE, SPIKE_ROUNDS, TURNED_TWICE};

/// Mean of how much a delay goes up and down, in seconds. A queue that comes and goes turns once at
/// its longest, so that only what turns twice in a row counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelayVariation {
    pub(super) mean: f64,
    seen: f64,
    last: Option<f64>,
    /// The last two changes, the latest first.
    changes: [f64; 2],
}

impl DelayVariation {
    /// Takes in a delay in seconds; changes up to `grain` count as none.
    pub(super) fn observe(&mut self, delay: f64, grain: f64) {
        let Some(last) = self.last.replace(delay) else {
            return;
        };
        let change = delay - last;
        let [last, before] = self.changes;
        let moved = if change * last < 0.0 && last * before < 0.0 {
            change.abs().min(last.abs()).min(before.abs()) / TURNED_TWICE
        } else {
            0.0
        };
        self.changes = [change, last];
        self.seen += 1.0;
        let weight = JITTER_WEIGHT.max(1.0 / self.seen);
        self.mean += ((moved - grain).max(0.0) - self.mean) * weight;
    }
}

/// Largest rise of the delay from one batch of acknowledgements to the next beyond what the bytes
/// in between can have queued, round by round, in seconds. Our own queue grows byte by byte; what
/// rises at once is jitter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelaySpikes {
    last: Option<f64>,
    /// Largest of this round, and of the last ones, the latest first.
    round: f64,
    rounds: [f64; SPIKE_ROUNDS],
    largest: f64,
    usual: f64,
}

impl DelaySpikes {
    /// Takes in the delay of a batch, and how long its bytes occupy the path.
    pub(super) fn observe(&mut self, delay: f64, busy: f64) {
        if let Some(last) = self.last.replace(delay) {
            self.round = self.round.max(delay - last - busy - SPIKE_FREE);
        }
    }

    /// A round is over.
    pub(super) fn end_round(&mut self) {
        self.rounds.rotate_right(1);
        self.rounds[0] = core::mem::take(&mut self.round);
        let mut sorted = self.rounds;
        sorted.sort_by(|a, b| b.total_cmp(a));
        [self.largest, self.usual] = [sorted[0], sorted[1]];
    }

    /// By how much the delay often spikes, the second largest: one delay spike alone is an outage.
    pub(super) const fn usual(&self) -> f64 {
        self.usual
    }

    /// Largest of the last rounds.
    pub(super) const fn largest(&self) -> f64 {
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that a packet of 1,400 bytes occupies 10 Mbit/s.
    const PACKET: f64 = 0.001_12;

    #[test]
    fn a_growing_queue_does_not_leap() {
        let mut spikes = DelaySpikes::default();
        for round in 0..4 {
            for packet in 0..40 {
                spikes.observe(0.020 + f64::from(round * 40 + packet) * PACKET, PACKET);
            }
            spikes.end_round();
        }
        assert!(spikes.largest() < 1e-9, "{spikes:?}");
    }

    #[test]
    fn packets_held_up_by_a_late_one_leap_every_round() {
        let mut spikes = DelaySpikes::default();
        for _ in 0..4 {
            // One packet 30 ms late; those behind it arrive with it.
            for packet in 0..30 {
                spikes.observe(0.050 - f64::from(packet) * 0.001, PACKET);
            }
            spikes.observe(0.020, PACKET);
            spikes.end_round();
        }
        assert!((0.020..0.030).contains(&spikes.usual()), "{spikes:?}");
    }

    #[test]
    fn one_outage_is_not_usual() {
        let mut spikes = DelaySpikes::default();
        for round in 0..4 {
            for packet in 0..10 {
                let outage = round == 2 && packet == 5;
                spikes.observe(if outage { 0.5 } else { 0.020 }, PACKET);
            }
            spikes.end_round();
        }
        assert!(spikes.largest() > 0.4, "{spikes:?}");
        assert!(spikes.usual() < 1e-9, "{spikes:?}");
    }
}
