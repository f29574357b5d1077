//! Loss ratio and burstiness of one path, from what the egress counted.
//!
//! The loss ratio covers the last [`LOSS_WINDOW_SECS`] seconds, or further back until it rests on
//! [`PACKETS_MIN`] packets. Burstiness follows the Gilbert model. `p` is the chance that a loss run
//! begins at a packet after a received one. `r` is the chance that a run ends at a packet, so the
//! mean run is `1 / r`. Both are counted over up to [`HISTORY_SECS`] seconds; with fewer than
//! [`RUNS_MIN`] runs `r` is drawn towards the prior of one half, in proportion to what is missing.
//!
//! Invariant: `loss`, `p` and `r` are within `0..=1` and `r` is above zero. Source: Gilbert,
//! "Capacity of a burst-noise channel" (Bell System Technical Journal 39, 1960). Transitions are
//! counted as usual for the case without hidden states.

use super::feedback::PathFeedback;
use super::tuning::{
    BURST_MAX, END_PRIOR, HISTORY_SECS, LATELY_PRIOR, LATELY_SECS, LOSS_WINDOW_SECS, PACKETS_MIN,
    RUNS_MIN, STEADY_PACKETS, STEADY_SECS,
};
use ropewalk_types::Instant;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    received: u64,
    lost: u64,
    runs: u64,
}

impl Counts {
    const fn add(&mut self, other: Self) {
        self.received += other.received;
        self.lost += other.lost;
        self.runs += other.runs;
    }

    const fn packets(self) -> u64 {
        self.received + self.lost
    }
}

/// Parameters of the Gilbert model per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gilbert {
    /// Chance that a packet after a received one is lost.
    pub p: f64,
    /// Chance that a packet after a lost one is received.
    pub r: f64,
}

/// What was counted in a second.
#[derive(Clone, Copy, Debug)]
struct Second {
    number: u64,
    all: Counts,
    /// The part of it that crossed the path while no queue stood there.
    calm: Counts,
}

impl Second {
    const fn new(number: u64) -> Self {
        let empty = Counts {
            received: 0,
            lost: 0,
            runs: 0,
        };
        Self {
            number,
            all: empty,
            calm: empty,
        }
    }

    /// What tells of the path itself: what a full queue drops does not, unless a queue always stands.
    const fn telling(&self) -> Counts {
        if self.calm.packets() >= STEADY_PACKETS {
            self.calm
        } else {
            self.all
        }
    }
}

/// Loss of one path in one direction.
#[derive(Clone, Debug)]
pub struct LossEstimator {
    /// Counts per second, with the second they belong to.
    seconds: [Second; HISTORY_SECS as usize],
    loss: f64,
    gilbert: Gilbert,
    /// Answers that hold within a second, while nothing new is reported: schedulers ask often.
    known: Known,
}

/// What was lost lately, as of a second.
#[derive(Clone, Copy, Debug)]
struct Known {
    second: u64,
    lately: f64,
    steady: Option<f64>,
}

impl Default for LossEstimator {
    fn default() -> Self {
        Self::new()
    }
}

impl LossEstimator {
    /// Nothing lost yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            seconds: [Second::new(0); HISTORY_SECS as usize],
            loss: 0.0,
            gilbert: Gilbert {
                p: 0.0,
                r: END_PRIOR,
            },
            known: Known {
                second: 0,
                lately: 0.0,
                steady: None,
            },
        }
    }

    /// Takes the egress's counts of one period in. `calm` says that no queue stood on the path then.
    pub fn on_feedback(&mut self, now: Instant, feedback: &PathFeedback, calm: bool) {
        let second = now.as_nanos() / 1_000_000_000;
        let slot = &mut self.seconds[slot_of(second)];
        if slot.number != second {
            *slot = Second::new(second);
        }
        let counts = Counts {
            received: u64::from(feedback.received_packets),
            lost: u64::from(feedback.lost_packets),
            runs: u64::from(feedback.loss_runs.min(feedback.lost_packets)),
        };
        slot.all.add(counts);
        if calm {
            slot.calm.add(counts);
        }
        self.recount(second);
        self.known = self.know(second);
    }

    /// Share lost in the last `LATELY_SECS` but the worst of these seconds, drawn towards zero
    /// while few packets tell, and no more than [`Self::loss_steady`]: for choosing paths. A path
    /// that is hardly used needs another chance. The loss of a full queue at the start of a
    /// transfer must not count against it.
    #[must_use]
    pub fn loss_lately(&self, now: Instant) -> f64 {
        self.known_at(now).lately
    }

    /// Loss that stays: what is lost in most of the last `STEADY_SECS` seconds with enough packets.
    /// A queue that overflows once, at the start of a transfer say, is none of it. `None` while
    /// there are not two such seconds.
    #[must_use]
    pub fn loss_steady(&self, now: Instant) -> Option<f64> {
        self.known_at(now).steady
    }

    fn known_at(&self, now: Instant) -> Known {
        let second = now.as_nanos() / 1_000_000_000;
        if second == self.known.second {
            self.known
        } else {
            self.know(second)
        }
    }

    fn know(&self, second: u64) -> Known {
        let steady = self.steady(second);
        Known {
            second,
            lately: self.lately(second).min(steady.unwrap_or(1.0)),
            steady,
        }
    }

    fn lately(&self, second: u64) -> f64 {
        let mut lately = Counts::default();
        let mut worst = Counts::default();
        for age in 0..LATELY_SECS.min(second + 1) {
            let counts = self.at(second - age).telling();
            lately.add(counts);
            if counts.lost > worst.lost {
                worst = counts;
            }
        }
        // A path with a single second has no other to be judged by.
        if worst.packets() < lately.packets() {
            lately.received -= worst.received;
            lately.lost -= worst.lost;
        }
        ratio(lately.lost, lately.packets() + LATELY_PRIOR)
    }

    fn steady(&self, second: u64) -> Option<f64> {
        let ages = 0..HISTORY_SECS.min(second + 1);
        let counts = ages.map(|age| self.at(second - age).telling());
        let enough = counts.filter(|counts| counts.packets() >= STEADY_PACKETS);
        let mut losses = [0.0; STEADY_SECS];
        let mut known = 0;
        for (loss, counts) in losses.iter_mut().zip(enough) {
            *loss = ratio(counts.lost, counts.packets());
            known += 1;
        }
        if known < 2 {
            return None;
        }
        let losses = &mut losses[..known];
        losses.sort_by(f64::total_cmp);
        Some(losses[(known - 1) / 2])
    }

    /// What was counted in that second; nothing, if its slot has been taken by another.
    fn at(&self, second: u64) -> Second {
        let kept = self.seconds[slot_of(second)];
        if kept.number == second {
            kept
        } else {
            Second::new(second)
        }
    }

    fn recount(&mut self, second: u64) {
        let (mut recent, mut all) = (Counts::default(), Counts::default());
        for age in 0..HISTORY_SECS.min(second + 1) {
            let counts = self.at(second - age).all;
            if age < LOSS_WINDOW_SECS || recent.packets() < PACKETS_MIN {
                recent.add(counts);
            }
            if age < LOSS_WINDOW_SECS || all.runs < RUNS_MIN {
                all.add(counts);
            }
        }
        self.loss = ratio(recent.lost, recent.packets());
        let known = as_f64(all.runs.min(RUNS_MIN)) / as_f64(RUNS_MIN);
        let measured = if all.lost == 0 {
            END_PRIOR
        } else {
            ratio(all.runs, all.lost)
        };
        self.gilbert = Gilbert {
            p: ratio(all.runs, all.received).min(1.0),
            r: (known * measured + (1.0 - known) * END_PRIOR).max(1.0 / BURST_MAX),
        };
    }

    /// Share of packets lost lately, `0.0..=1.0`.
    #[must_use]
    pub const fn loss(&self) -> f64 {
        self.loss
    }

    /// The Gilbert model of the path.
    #[must_use]
    pub const fn gilbert(&self) -> Gilbert {
        self.gilbert
    }

    /// A Gilbert model that loses this share, `0.0..1.0`, in runs as long as the path's.
    #[must_use]
    pub fn gilbert_with(&self, loss: f64) -> Gilbert {
        let r = self.gilbert.r;
        let p = (r * loss / (1.0 - loss).max(f64::MIN_POSITIVE)).min(1.0);
        Gilbert { p, r }
    }

    /// Mean length of a loss run in packets, `1.0..=1000.0`; two before anything is known.
    #[must_use]
    pub fn mean_burst(&self) -> f64 {
        1.0 / self.gilbert.r
    }
}

/// Where the counts of a second are kept.
fn slot_of(second: u64) -> usize {
    usize::try_from(second % HISTORY_SECS).unwrap_or(0)
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        as_f64(part) / as_f64(whole)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "packet counts are far below 2^53"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::PathArrivals;
    use super::*;
    use ropewalk_types::{Duration, PathId, Random};

    /// Sends packets every millisecond through a Gilbert-Elliott channel with losses in the bad
    /// state only, reports every 100 ms.
    fn channel(p: f64, r: f64, packets: u32, seed: u64) -> LossEstimator {
        let mut random = Random::new(seed);
        let mut egress = PathArrivals::new();
        let mut estimator = LossEstimator::new();
        let mut bad = false;
        for number in 0..packets {
            let now = Instant::from_millis(u64::from(number));
            bad = if bad {
                !random.chance(r)
            } else {
                random.chance(p)
            };
            if !bad {
                let seq = u16::try_from(number & 0xffff).unwrap();
                egress.on_packet(now, seq, number * 62, 1_000);
            }
            if number % 100 == 99 {
                estimator.on_feedback(now, &egress.take(PathId(0)), true);
            }
        }
        estimator
    }

    #[test]
    fn ratio_and_burst_of_synthetic_channels_are_found() {
        // Mean burst 1 / r, loss p / (p + r).
        for (p, r) in [
            (0.01, 0.99),
            (0.05, 0.5),
            (0.02, 0.25),
            (0.1, 0.4),
            (0.002, 0.1),
        ] {
            let (mut loss, mut burst) = (0.0, 0.0);
            for seed in 0..10 {
                let estimator = channel(p, r, 60_000, seed);
                loss += estimator.loss() / 10.0;
                burst += estimator.mean_burst() / 10.0;
            }
            let expected = p / (p + r);
            assert!(
                (loss / expected - 1.0).abs() < 0.15,
                "{p} {r}: loss {loss} of {expected}"
            );
            let expected = 1.0 / r;
            assert!(
                (burst / expected - 1.0).abs() < 0.15,
                "{p} {r}: burst {burst} of {expected}"
            );
        }
    }

    fn counted(received: u32, lost: u32, runs: u32) -> PathFeedback {
        PathFeedback {
            received_packets: received,
            lost_packets: lost,
            loss_runs: runs,
            ..PathFeedback::default()
        }
    }

    #[test]
    fn few_runs_stay_near_the_prior() {
        let mut estimator = LossEstimator::new();
        assert!((estimator.mean_burst() - 2.0).abs() < 1e-9);
        estimator.on_feedback(Instant::ZERO, &counted(1_000, 12, 3), true);
        // 3 of 30 runs: a tenth of 0.25, nine tenths of 0.5.
        assert!(
            (estimator.gilbert().r - 0.475).abs() < 1e-9,
            "{:?}",
            estimator.gilbert()
        );
        assert!((estimator.gilbert().p - 0.003).abs() < 1e-9);
    }

    #[test]
    fn old_losses_are_forgotten_once_newer_packets_suffice() {
        let mut estimator = LossEstimator::new();
        let mut now = Instant::ZERO;
        estimator.on_feedback(now, &counted(500, 500, 100), true);
        assert!((estimator.loss() - 0.5).abs() < 1e-9);
        for _ in 0..11 {
            now += Duration::from_secs(1);
            estimator.on_feedback(now, &counted(50, 0, 0), true);
        }
        assert!(estimator.loss() > 0.2, "550 packets are too few to forget");
        for _ in 0..10 {
            now += Duration::from_secs(1);
            estimator.on_feedback(now, &counted(1_000, 0, 0), true);
        }
        assert!(estimator.loss() == 0.0, "{}", estimator.loss());
    }

    #[test]
    fn senseless_counts_stay_within_range() {
        let mut estimator = LossEstimator::new();
        estimator.on_feedback(Instant::FAR_FUTURE, &counted(0, 5, 900), true);
        let Gilbert { p, r } = estimator.gilbert();
        assert!((0.0..=1.0).contains(&p) && r > 0.0 && r <= 1.0, "{p} {r}");
        assert!((estimator.loss() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn an_unused_path_is_soon_given_another_chance() {
        let mut loss = LossEstimator::new();
        let report = PathFeedback {
            received_packets: 900,
            lost_packets: 100,
            loss_runs: 50,
            ..PathFeedback::default()
        };
        loss.on_feedback(Instant::from_millis(500), &report, true);
        let lately = |ms| loss.loss_lately(Instant::from_millis(ms));
        assert!((0.08..0.11).contains(&lately(1_000)), "{}", lately(1_000));
        assert!(lately(6_000) == 0.0, "{}", lately(6_000));
    }

    #[test]
    fn what_a_full_queue_drops_does_not_count_against_a_path_unless_a_queue_always_stands() {
        let report = |lost_packets| PathFeedback {
            received_packets: 100 - lost_packets,
            lost_packets,
            loss_runs: lost_packets.min(1),
            ..PathFeedback::default()
        };
        let mut sometimes = LossEstimator::new();
        let mut always = LossEstimator::new();
        for tenth in 0..30 {
            let now = Instant::from_millis(tenth * 100);
            let full = tenth % 3 > 0;
            sometimes.on_feedback(now, &report(if full { 20 } else { 1 }), !full);
            always.on_feedback(now, &report(20), false);
        }
        let lately = sometimes.loss_lately(Instant::from_millis(2_900));
        assert!(lately < 0.011, "{lately}");
        let lately = always.loss_lately(Instant::from_millis(2_900));
        assert!((0.18..=0.2).contains(&lately), "{lately}");
        assert!(sometimes.loss() > 0.1, "protection counts every loss");
    }

    #[test]
    fn a_burst_at_the_start_is_not_held_against_a_path_but_lasting_loss_is() {
        let mut burst = LossEstimator::new();
        let mut lasting = LossEstimator::new();
        for tenth in 0..30 {
            let now = Instant::from_millis(tenth * 100);
            let report = |lost_packets| PathFeedback {
                received_packets: 100,
                lost_packets,
                loss_runs: lost_packets.min(1),
                ..PathFeedback::default()
            };
            burst.on_feedback(
                now,
                &report(if (10..15).contains(&tenth) { 80 } else { 0 }),
                true,
            );
            lasting.on_feedback(now, &report(25), true);
        }
        let now = Instant::from_millis(2_900);
        assert!(burst.loss_lately(now) < 0.01, "{}", burst.loss_lately(now));
        let lately = lasting.loss_lately(now);
        assert!((0.15..0.21).contains(&lately), "{lately}");
    }
}
