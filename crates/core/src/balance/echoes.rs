//! The probes of one way out: their numbers, round trips and losses.
//!
//! Each probe has a number. An answer counts when its number has left lately and was not answered
//! before; so forged and repeated answers say nothing.

use core::time::Duration;
use std::collections::VecDeque;

use ropewalk_types::Instant;

/// Probes over which loss is measured. More: steadier, later to follow.
const WINDOW: u32 = 100;
/// Outcomes before which the loss is unknown. More: surer, later.
const OUTCOMES_MIN: u32 = WINDOW / 10;
/// Age at which an unanswered probe counts as lost. Its answer still tells the round trip. Longer:
/// fewer answers that full queues delay count as lost, losses show later.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Probes whose time of sending is remembered: ten seconds of those of `ropewalk balance`. More:
/// longer round trips are known, memory.
const REMEMBERED: usize = 64;
/// How many probes back an answer is a sign of life: full queues delay answers by many seconds.
/// More: an uplink with longer queues stays alive, an old answer may hide that the way is dead.
const BELIEVED: u16 = 256;

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To nothing that was asked lately, or once more.
    Unknown,
    /// A sign of life; when its probe left is forgotten.
    Late,
    /// The round trip of its probe.
    RoundTrip(Duration),
}

/// The probes of one way out.
#[derive(Clone, Debug, Default)]
pub struct Echoes {
    /// Number of the last probe.
    number: u16,
    /// The last probes, up to that number.
    sent: VecDeque<Sent>,
    /// Probes that were sent and are not remembered; counts to [`BELIEVED`].
    forgotten: u16,
    /// Outcomes, a bit each, the latest lowest: 1 for an answer.
    outcomes: u128,
    /// How many of them there are.
    counted: u32,
    rtt: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    answered: bool,
    lost: bool,
}

impl Echoes {
    /// Another probe leaves; its number.
    pub fn send(&mut self, now: Instant) -> u16 {
        self.number = self.number.wrapping_add(1);
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
            self.forgotten = BELIEVED.min(self.forgotten + 1);
        }
        self.sent.push_back(Sent {
            at: now,
            answered: false,
            lost: false,
        });
        self.number
    }

    /// An answer of this number has come.
    pub fn handle_answer(&mut self, now: Instant, number: u16) -> Answer {
        let age = usize::from(self.number.wrapping_sub(number));
        let newer = age + 1;
        if newer > self.sent.len() {
            let known = self.sent.len() + usize::from(self.forgotten);
            let believed = newer <= known.min(usize::from(BELIEVED));
            return if believed {
                Answer::Late
            } else {
                Answer::Unknown
            };
        }
        let index = self.sent.len() - newer;
        let sent = &mut self.sent[index];
        if sent.answered {
            return Answer::Unknown;
        }
        sent.answered = true;
        let (rtt, lost) = (now.since(sent.at), sent.lost);
        if !lost {
            self.count(true);
        }
        self.rtt = Some(rtt);
        Answer::RoundTrip(rtt)
    }

    /// Looks at the time: old probes count as lost.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut lost = 0;
        for sent in &mut self.sent {
            if now.since(sent.at) < LOST_AFTER {
                break;
            }
            lost += u32::from(!sent.lost && !sent.answered);
            sent.lost = true;
        }
        for _ in 0..lost {
            self.count(false);
        }
    }

    /// Share of the last 100 probes that were lost, `0..=1`; `None` before ten have an outcome.
    #[must_use]
    pub fn loss(&self) -> Option<f64> {
        let answered = (self.outcomes & ((1 << WINDOW) - 1)).count_ones();
        let counted = self.counted.min(WINDOW);
        (counted >= OUTCOMES_MIN).then(|| f64::from(counted - answered) / f64::from(counted))
    }

    /// The last round trip.
    #[must_use]
    pub const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    const fn count(&mut self, answered: bool) {
        self.outcomes = self.outcomes << 1 | answered as u128;
        self.counted = self.counted.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn an_answer_tells_its_round_trip_once() {
        let mut echoes = Echoes::default();
        assert_eq!(echoes.handle_answer(at(0), 0), Answer::Unknown, "none left");
        let first = echoes.send(at(0));
        let second = echoes.send(at(100));
        let round_trip = |millis| Answer::RoundTrip(Duration::from_millis(millis));
        assert_eq!(echoes.handle_answer(at(130), second), round_trip(30));
        assert_eq!(echoes.handle_answer(at(140), first), round_trip(140));
        assert_eq!(echoes.rtt(), Some(Duration::from_millis(140)));
        assert_eq!(echoes.handle_answer(at(150), first), Answer::Unknown);
        assert_eq!(echoes.handle_answer(at(150), second), Answer::Unknown);
        assert_eq!(echoes.handle_answer(at(150), 3), Answer::Unknown, "to come");
    }

    #[test]
    fn what_is_late_is_lost_but_tells_the_round_trip_and_later_still_that_the_way_is_alive() {
        let mut echoes = Echoes::default();
        let first = echoes.send(at(0));
        for probe in 1..20 {
            let number = echoes.send(at(probe * 100));
            echoes.handle_answer(at(probe * 100 + 10), number);
        }
        assert_eq!(echoes.loss(), Some(0.0));
        echoes.handle_timeout(at(2_000));
        assert_eq!(echoes.loss(), Some(0.05));
        let Answer::RoundTrip(time) = echoes.handle_answer(at(4_000), first) else {
            panic!("it was forgotten");
        };
        assert_eq!(time, Duration::from_secs(4));
        assert_eq!(echoes.loss(), Some(0.05));
        let old = echoes.send(at(5_000));
        for probe in 0..100 {
            echoes.send(at(5_100 + probe * 100));
        }
        assert_eq!(echoes.handle_answer(at(15_100), old), Answer::Late);
        assert_eq!(
            echoes.handle_answer(at(15_100), first.wrapping_sub(9)),
            Answer::Unknown
        );
    }

    proptest! {
        #[test]
        fn loss_is_that_of_the_last_hundred(answered in prop::collection::vec(any::<bool>(), 10..400)) {
            let mut echoes = Echoes::default();
            for (probe, &answered) in (0..).zip(&answered) {
                let number = echoes.send(at(probe * 5_000));
                if answered {
                    echoes.handle_answer(at(probe * 5_000 + 1), number);
                }
                echoes.handle_timeout(at(probe * 5_000 + 2_000));
            }
            let last = &answered[answered.len().saturating_sub(100)..];
            let lost = last.iter().filter(|&&answered| !answered).count() as f64;
            let found = echoes.loss().expect("enough");
            prop_assert!((found - lost / last.len() as f64).abs() < 1e-9);
        }

        #[test]
        fn numbers_that_never_left_are_unknown(number in any::<u16>(), sent in 0_u16..300) {
            let mut echoes = Echoes::default();
            for probe in 0..sent {
                echoes.send(at(u64::from(probe)));
            }
            let left = (1..=sent).contains(&number);
            prop_assert!(left || echoes.handle_answer(at(400), number) == Answer::Unknown);
        }
    }
}
