//! Redundancy from observed losses. The loss rate and the burstiness of what was transmitted make a
//! Gilbert model. The redundancy is the least that decodes a coding window with the wanted chance.
//!
//! The paper on the tunnel takes both from transmitted packets, and the parameters from a model of the
//! losses (§2.1). That model is Gilbert's in its source: Ha, Kumazoe and Tsuru, "TCP Network Coding
//! with Adapting Parameters for Bursty and Time-Varying Loss" (IEICE Trans. Commun. E101-B, 2018). We
//! know the abstract only; the counting below is ours.

use crate::tuning::{OBSERVED, OBSERVED_MIN, REDUNDANCY_MAX, SUCCESS_MIN, WINDOW_PACKETS};
use std::collections::VecDeque;

/// Losses as a Gilbert model: chances for each transmission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gilbert {
    /// Share of transmissions that are lost.
    pub loss: f64,
    /// Chance that the transmission after a lost one is lost, too.
    pub again: f64,
}

impl Gilbert {
    /// Losses that do not depend on each other.
    #[must_use]
    pub const fn independent(loss: f64) -> Self {
        Self { loss, again: loss }
    }

    /// Chance that at most `losses` of `transmissions` in a row are lost.
    #[must_use]
    pub fn at_most(self, losses: usize, transmissions: usize) -> f64 {
        if self.loss <= 0.0 {
            return 1.0;
        }
        if self.loss >= 1.0 {
            return if losses >= transmissions { 1.0 } else { 0.0 };
        }
        // From a received transmission to a lost one, so that the shares stay as they are.
        let begin = self.loss * (1.0 - self.again) / (1.0 - self.loss);
        // By number of losses: chance with the last one received, and lost.
        let mut chances = vec![(0.0, 0.0); losses + 1];
        chances[0].0 = 1.0 - self.loss;
        if losses > 0 {
            chances[1].1 = self.loss;
        }
        for _ in 1..transmissions {
            for lost in (0..=losses).rev() {
                let (received, bad) = chances[lost];
                let before = lost.checked_sub(1).map_or((0.0, 0.0), |n| chances[n]);
                chances[lost] = (
                    received * (1.0 - begin) + bad * (1.0 - self.again),
                    before.0 * begin + before.1 * self.again,
                );
            }
        }
        chances.iter().map(|(received, bad)| received + bad).sum()
    }

    /// Least combinations beyond `packets` (`k`) that decode them with the wanted chance, as far as
    /// the greatest redundancy factor goes.
    #[must_use]
    pub fn redundancy(self, packets: u8) -> u8 {
        let most = redundancy_max(packets);
        (0..most)
            .find(|&k| {
                self.at_most(usize::from(k), usize::from(packets) + usize::from(k)) >= SUCCESS_MIN
            })
            .unwrap_or(most)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most 127"
)]
fn redundancy_max(packets: u8) -> u8 {
    (f64::from(packets) * (REDUNDANCY_MAX - 1.0)) as u8
}

/// What became of the latest transmissions, and the redundancy that follows.
#[derive(Clone, Debug)]
pub struct Observer {
    /// Whether each was lost, the oldest first.
    fates: VecDeque<bool>,
    /// The next transmission of which nothing is known.
    next: u32,
    redundancy: u8,
    /// Fates since the redundancy was computed.
    news: usize,
}

impl Default for Observer {
    fn default() -> Self {
        Self {
            fates: VecDeque::with_capacity(OBSERVED),
            next: 0,
            redundancy: 0,
            news: 0,
        }
    }
}

impl Observer {
    /// This transmission arrived: those before it that are not known to have arrived are lost,
    /// since a link keeps the order.
    pub fn on_arrival(&mut self, transmission: u32) {
        if transmission < self.next {
            return;
        }
        let skipped = transmission - self.next;
        for _ in 0..skipped.min(u32::try_from(OBSERVED).unwrap_or(u32::MAX)) {
            self.push(true);
        }
        self.push(false);
        self.next = transmission + 1;
        // A change of one fate in a coding window changes little.
        if self.fates.len() >= OBSERVED_MIN && self.news >= usize::from(WINDOW_PACKETS) {
            self.news = 0;
            self.redundancy = self.losses().redundancy(WINDOW_PACKETS);
        }
    }

    fn push(&mut self, lost: bool) {
        if self.fates.len() == OBSERVED {
            self.fates.pop_front();
        }
        self.fates.push_back(lost);
        self.news += 1;
    }

    /// Loss rate and burstiness of what is remembered.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "at most 500")]
    pub fn losses(&self) -> Gilbert {
        let lost = self.fates.iter().filter(|lost| **lost).count();
        let pairs = self.fates.iter().zip(self.fates.iter().skip(1));
        let again = pairs.filter(|(first, second)| **first && **second).count();
        let loss = lost as f64 / self.fates.len().max(1) as f64;
        // Bursts shorter than those of independent losses are chance: do not count on them.
        let again = (again as f64 / lost.max(1) as f64).max(loss);
        Gilbert { loss, again }
    }

    /// Combinations beyond the packets of a coding window that are worth it now (`k`).
    #[must_use]
    pub const fn redundancy(&self) -> u8 {
        self.redundancy
    }
}
