//! Tells losses of a full queue from losses at random, by the delay around them.
//!
//! A queue drops packets while it is full, and then delay is longest. Radio loses packets at any
//! delay. So the delay around a lost packet is ranked among recent delays: 0 is the shortest, 1 the
//! longest. Ranks of random losses are even between 0 and 1, with a mean of 1/2. The idea is that of
//! ZigZag and Spike (Cen, Cosman and Voelker, "End-to-end differentiation of congestion and
//! wireless losses", 2003); ranks need no thresholds of delay.

use std::time::Instant;

use super::tuning::{OVERFLOW_BATCHES, OVERFLOW_DEVIATIONS, OVERFLOW_ROUNDS};

/// A batch of acknowledgements.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Latest send time among the acknowledged.
    newest_sent: Instant,
    /// The longer one of this batch's smallest RTT and that of the batch before, seconds.
    delay: f32,
    bytes: f32,
}

/// Delays of the last batches of acknowledgements, and how losses rank among them.
#[derive(Clone, Debug)]
pub(super) struct LossRanks {
    /// A ring, the oldest first from `next`.
    recent: [Batch; OVERFLOW_BATCHES],
    next: usize,
    /// Smallest RTT of the last batch, seconds.
    last: f32,
    /// Sum and number of the ranks of this round.
    round: (f32, f32),
    /// Mean rank over rounds with losses, and how many of these there were, up to
    /// [`OVERFLOW_ROUNDS`].
    mean: f32,
    rounds: f32,
}

impl LossRanks {
    pub(super) const fn new(now: Instant) -> Self {
        let none = Batch {
            newest_sent: now,
            delay: 0.0,
            bytes: 0.0,
        };
        Self {
            recent: [none; OVERFLOW_BATCHES],
            next: 0,
            last: 0.0,
            round: (0.0, 0.0),
            mean: 0.5,
            rounds: 0.0,
        }
    }

    /// Takes a batch of acknowledgements in: its smallest RTT in seconds, its bytes, and the latest
    /// send time of its packets.
    #[expect(clippy::cast_precision_loss, reason = "a weight")]
    pub(super) fn acknowledged(&mut self, rtt: f32, bytes: u64, newest_sent: Instant) {
        self.recent[self.next] = Batch {
            newest_sent,
            delay: rtt.max(self.last),
            bytes: bytes as f32,
        };
        self.next = (self.next + 1) % OVERFLOW_BATCHES;
        self.last = rtt;
    }

    /// Takes in that a packet sent at `sent` is lost.
    pub(super) fn lost(&mut self, sent: Instant) {
        let around = self.around(sent);
        let (mut shorter, mut all) = (0.0, 0.0);
        for batch in &self.recent {
            all += batch.bytes;
            if batch.delay < around {
                shorter += batch.bytes;
            } else if batch.delay <= around {
                shorter += batch.bytes / 2.0;
            }
        }
        if all > 0.0 {
            self.round.0 += shorter / all;
            self.round.1 += 1.0;
        }
    }

    /// Delay of the first batch with packets sent at `sent` or later; of the last batch if there is
    /// none.
    fn around(&self, sent: Instant) -> f32 {
        let from_newest = (1..=OVERFLOW_BATCHES)
            .map(|back| &self.recent[(self.next + OVERFLOW_BATCHES - back) % OVERFLOW_BATCHES]);
        let mut around = self.recent[(self.next + OVERFLOW_BATCHES - 1) % OVERFLOW_BATCHES].delay;
        for batch in from_newest.take_while(|batch| batch.newest_sent >= sent && batch.bytes > 0.0)
        {
            around = batch.delay;
        }
        around
    }

    /// Ends a round. Its losses count as one: a queue that overflows once drops many packets.
    pub(super) fn end_round(&mut self) {
        let (sum, count) = core::mem::take(&mut self.round);
        if count > 0.0 {
            self.rounds = (self.rounds + 1.0).min(OVERFLOW_ROUNDS);
            self.mean += (sum / count - self.mean) / self.rounds;
        }
    }

    /// Begins anew; delays stay.
    pub(super) const fn forget(&mut self) {
        (self.mean, self.rounds) = (0.5, 0.0);
    }

    /// Whether the ranks of losses are too high for chance. The variance of an even distribution
    /// from 0 to 1 is 1/12.
    pub(super) fn overflow(&self) -> bool {
        (self.mean - 0.5) * (12.0 * self.rounds).sqrt() > OVERFLOW_DEVIATIONS
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A queue that fills and empties every 32 ms, with losses at the given milliseconds of that.
    fn after_losses(at: impl Fn(u64) -> u64, rounds: u64) -> LossRanks {
        let start = Instant::now();
        let mut ranks = LossRanks::new(start);
        for round in 0..rounds {
            for ms in 0..32_u16 {
                let sent = start + Duration::from_millis(32 * round + u64::from(ms));
                let queue = f32::from(ms.min(32 - ms)) / 1e3;
                ranks.acknowledged(0.020 + queue, 10_000, sent);
                if u64::from(ms) == at(round) {
                    ranks.lost(sent);
                    ranks.lost(sent);
                }
            }
            ranks.end_round();
        }
        ranks
    }

    #[test]
    fn losses_while_the_queue_is_longest_are_an_overflow_after_six_rounds() {
        assert!(!after_losses(|_| 16, 5).overflow());
        let mut ranks = after_losses(|_| 16, 8);
        assert!(ranks.overflow(), "{}", ranks.mean);
        ranks.forget();
        assert!(!ranks.overflow());
    }

    #[test]
    fn a_weak_sign_is_enough_when_it_lasts() {
        // Three of four losses come at any delay, one while the queue is longest.
        let at = |round| if round % 4 == 0 { 16 } else { round * 7 % 32 };
        assert!(!after_losses(at, 60).overflow());
        let ranks = after_losses(at, 250);
        assert!(ranks.overflow(), "{}", ranks.mean);
    }

    #[test]
    fn losses_at_any_delay_or_at_the_shortest_are_none() {
        for at in [|round| round * 7 % 32, |_| 1_u64] {
            let ranks = after_losses(at, 1_000);
            assert!(!ranks.overflow(), "{}", ranks.mean);
            assert!(ranks.mean < 0.6, "{}", ranks.mean);
        }
    }

    #[test]
    fn a_loss_that_is_found_late_ranks_by_the_delay_when_it_was_sent() {
        let start = Instant::now();
        let mut ranks = LossRanks::new(start);
        let sent = |ms| start + Duration::from_millis(ms);
        for ms in 0..10 {
            let rtt = if ms == 4 { 0.050 } else { 0.020 };
            ranks.acknowledged(rtt, 10_000, sent(ms));
        }
        ranks.lost(sent(4));
        ranks.end_round();
        assert!(ranks.mean > 0.85, "{}", ranks.mean);
    }

    #[test]
    fn a_loss_before_any_acknowledgement_has_no_rank() {
        let start = Instant::now();
        let mut ranks = LossRanks::new(start);
        ranks.lost(start);
        ranks.end_round();
        assert!(!ranks.overflow() && ranks.rounds < 0.5);
    }
}
