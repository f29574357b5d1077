//! Random loss: independent (Bernoulli) or in bursts (Gilbert 1960, Elliott 1963).
//!
//! One decision per packet and one random stream per direction, so that the pattern depends on
//! the seed and the number of packets only, not on their timing.

use ropewalk_types::Random;

/// How packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossModel {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet is lost with this probability, independently.
    Bernoulli(f64),
    /// A two-state Markov chain, stepped once per packet.
    GilbertElliott(GilbertElliott),
}

/// Parameters of the Gilbert-Elliott model; all are probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// From the good to the bad state, per packet.
    pub good_to_bad: f64,
    /// From the bad to the good state, per packet.
    pub bad_to_good: f64,
    /// Loss in the good state; zero in Gilbert's model.
    pub loss_good: f64,
    /// Loss in the bad state; one in the simple Gilbert model.
    pub loss_bad: f64,
}

impl LossModel {
    /// Share of packets lost in the long run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Bernoulli(loss) => *loss,
            Self::GilbertElliott(chain) => chain.mean_loss(),
        }
    }
}

impl GilbertElliott {
    /// The simple Gilbert model (everything lost in the bad state, nothing in the good one)
    /// with this mean loss and this mean number of consecutive losses.
    ///
    /// `None` when no such chain exists: a burst below one packet, a loss of 100 %, or a loss so
    /// high with bursts so short that gaps of less than one packet would be needed.
    #[must_use]
    pub fn from_mean(loss: f64, burst_packets: f64) -> Option<Self> {
        if !(0.0..1.0).contains(&loss) || burst_packets < 1.0 || !burst_packets.is_finite() {
            return None;
        }
        // Stationary share of the bad state is p / (p + r); mean stay in it is 1 / r.
        let bad_to_good = 1.0 / burst_packets;
        let good_to_bad = bad_to_good * loss / (1.0 - loss);
        (good_to_bad <= 1.0).then_some(Self {
            good_to_bad,
            bad_to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        })
    }

    /// Share of packets lost in the long run.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        let both = self.good_to_bad + self.bad_to_good;
        // A chain that never moves stays in the good state, where it starts.
        let bad = if both > 0.0 {
            self.good_to_bad / both
        } else {
            0.0
        };
        self.loss_good * (1.0 - bad) + self.loss_bad * bad
    }
}

/// The state of a loss process.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    random: Random,
    bad: bool,
}

impl LossProcess {
    pub(crate) fn new(random: Random) -> Self {
        Self { random, bad: false }
    }

    /// Whether the next packet is lost.
    pub(crate) fn next_is_lost(&mut self, model: &LossModel) -> bool {
        match model {
            LossModel::None => false,
            LossModel::Bernoulli(p) => self.random.chance(*p),
            LossModel::GilbertElliott(chain) => {
                let leave = if self.bad {
                    chain.bad_to_good
                } else {
                    chain.good_to_bad
                };
                if self.random.chance(leave) {
                    self.bad = !self.bad;
                }
                let loss = if self.bad {
                    chain.loss_bad
                } else {
                    chain.loss_good
                };
                self.random.chance(loss)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loss share and mean burst over `n` packets.
    fn measure(model: &LossModel, n: u32) -> (f64, f64) {
        let mut process = LossProcess::new(Random::new(42));
        let (mut lost, mut bursts, mut before) = (0u32, 0u32, false);
        for _ in 0..n {
            let now = process.next_is_lost(model);
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        (
            f64::from(lost) / f64::from(n),
            f64::from(lost) / f64::from(bursts.max(1)),
        )
    }

    #[test]
    fn bernoulli_loses_its_share_in_bursts_of_chance() {
        for p in [0.01, 0.05, 0.3] {
            let (loss, burst) = measure(&LossModel::Bernoulli(p), 400_000);
            assert!((loss / p - 1.0).abs() < 0.04, "loss {loss} for {p}");
            assert!(
                (burst * (1.0 - p) - 1.0).abs() < 0.03,
                "burst {burst} for {p}"
            );
        }
    }

    #[test]
    fn gilbert_by_mean_reaches_loss_and_burst() {
        for (p, b) in [(0.01, 4.0), (0.05, 2.0), (0.2, 8.0)] {
            let chain = GilbertElliott::from_mean(p, b).expect("feasible");
            assert!((chain.mean_loss() - p).abs() < 1e-12);
            let (loss, burst) = measure(&LossModel::GilbertElliott(chain), 1_000_000);
            assert!((loss / p - 1.0).abs() < 0.06, "loss {loss} for {p}");
            assert!((burst / b - 1.0).abs() < 0.05, "burst {burst} for {b}");
        }
    }

    #[test]
    fn elliott_loses_in_both_states() {
        let chain = GilbertElliott {
            good_to_bad: 0.02,
            bad_to_good: 0.1,
            loss_good: 0.01,
            loss_bad: 0.5,
        };
        let (loss, _) = measure(&LossModel::GilbertElliott(chain), 1_000_000);
        assert!((loss / chain.mean_loss() - 1.0).abs() < 0.05, "{loss}");
    }

    #[test]
    fn impossible_chains_are_refused() {
        assert_eq!(GilbertElliott::from_mean(0.1, 0.5), None);
        assert_eq!(GilbertElliott::from_mean(1.0, 4.0), None);
        assert_eq!(GilbertElliott::from_mean(0.9, 1.0), None);
    }
}
