//! Whether an uplink leads anywhere, by the answers to its probes and by what arrives.
//!
//! Silence counts, not the loss or delay of single probes. A full uplink delays answers, but they
//! still come at the pace of the probes. Traffic that arrives is a sign of life too.
//!
//! Invariant: a dead uplink comes back after [`ANSWERS_TO_RETURN`] answers, each soon after the one
//! before. Other traffic does not bring it back.

use core::time::Duration;

use ropewalk_types::Instant;

/// Time between probes of an uplink. Targets are asked in turn, so with three of them two may be
/// silent without harm. Longer: fewer bytes, later to see that an uplink is dead or back.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// Silence after which an uplink of `ropewalk balance` is dead. With the time to act, new
/// connections wait for less than 1 s. Longer: fewer false alarms, connections hang for longer.
/// `docs/decisions/balance.md` has the times that clients see.
pub const SILENCE_MAX: Duration = Duration::from_millis(700);
/// How long traffic alone shows that an uplink works: a full uplink may lose several probes.
/// Longer: fewer false alarms under load, traffic of one address family hides for longer that the
/// other one is dead.
pub const TRAFFIC_TRUST: Duration = Duration::from_millis(1_500);
/// Answers in a row that bring a dead uplink back. More: fewer flows take an uplink that comes and
/// goes, later return.
pub const ANSWERS_TO_RETURN: u32 = 3;
/// Longest time between two looks at the time; in more time the observer was held up. It is longer
/// than two looks of each caller, which looks every 50 ms. Longer: short stalls count as silence.
const LOOK_MAX: Duration = Duration::from_millis(120);

/// What is known of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New: used, but no answer has come yet.
    Unproven,
    /// Answers come.
    Alive,
    /// No answers for too long.
    Dead {
        /// Answers that have come in a row since.
        answers: u32,
    },
}

/// Watches one uplink in one address family.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    state: State,
    /// When a sign of life came last, or watching began.
    heard: Instant,
    /// When an answer came last, or watching began.
    answered: Instant,
    /// When the time was last looked at, or watching began.
    looked: Instant,
    /// Silence after which the uplink is dead.
    silence: Duration,
}

impl Liveness {
    /// Begins to watch an uplink that is dead after so much silence.
    #[must_use]
    pub const fn new(now: Instant, silence: Duration) -> Self {
        Self {
            state: State::Unproven,
            heard: now,
            answered: now,
            looked: now,
            silence,
        }
    }

    /// What is known.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether new flows may use the uplink.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        !matches!(self.state, State::Dead { .. })
    }

    /// A probe was answered; true when that brought the uplink back.
    pub fn handle_answer(&mut self, now: Instant) -> bool {
        let next = match self.state {
            State::Unproven | State::Alive => State::Alive,
            State::Dead { answers } => {
                let answers = if now.since(self.heard) > self.silence {
                    1
                } else {
                    answers + 1
                };
                if answers >= ANSWERS_TO_RETURN {
                    State::Alive
                } else {
                    State::Dead { answers }
                }
            }
        };
        self.heard = now;
        self.answered = now;
        let returned = !self.is_usable() && next == State::Alive;
        self.state = next;
        returned
    }

    /// Clearly more arrived than broadcasts of neighbours. It may be of the other address family,
    /// so it stands in for answers for [`TRAFFIC_TRUST`] only.
    pub fn handle_traffic(&mut self, now: Instant) {
        if self.is_usable() && now.since(self.answered) <= TRAFFIC_TRUST {
            self.heard = now;
        }
    }

    /// Looks at the time, every 50 ms or so; true when the uplink has died by it. An
    /// observer that was held up could not hear anything: that time is no silence.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let stall = now.since(self.looked).saturating_sub(LOOK_MAX);
        self.looked = now;
        self.heard = (self.heard + stall).min(now);
        if self.is_usable() && now.since(self.heard) > self.silence {
            self.state = State::Dead { answers: 0 };
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Looks every 50 ms, up to and at `until`; true when the uplink died by that.
    fn looked(uplink: &mut Liveness, from: u64, until: u64) -> bool {
        let looks = (from..until).step_by(50).chain([until]);
        looks.fold(false, |died, millis| {
            died | uplink.handle_timeout(at(millis))
        })
    }

    fn watched() -> Liveness {
        Liveness::new(at(0), SILENCE_MAX)
    }

    #[test]
    fn silence_kills_and_only_a_row_of_answers_revives() {
        let mut uplink = watched();
        assert!(uplink.is_usable(), "a new uplink is used at once");
        assert!(!looked(&mut uplink, 0, 700));
        uplink.handle_answer(at(700));
        assert!(!looked(&mut uplink, 700, 1_300));
        uplink.handle_traffic(at(1_300));
        assert!(
            !looked(&mut uplink, 1_300, 2_000),
            "traffic is a sign of life"
        );
        assert!(looked(&mut uplink, 2_000, 2_001));
        assert!(!looked(&mut uplink, 2_001, 3_000), "told once");
        uplink.handle_traffic(at(3_000));
        assert_eq!(uplink.state(), State::Dead { answers: 0 });
        assert!(!uplink.handle_answer(at(4_000)));
        assert!(
            !uplink.handle_answer(at(5_000)),
            "too far apart to be a row"
        );
        assert_eq!(uplink.state(), State::Dead { answers: 1 });
        assert!(!uplink.handle_answer(at(5_200)));
        assert!(uplink.handle_answer(at(5_400)));
        assert_eq!(uplink.state(), State::Alive);
    }

    #[test]
    fn an_observer_that_was_held_up_takes_nobody_for_dead() {
        let mut uplink = watched();
        let stall = 2_000;
        assert!(!looked(&mut uplink, 0, 100));
        assert!(!looked(&mut uplink, 100 + stall, 100 + stall + 400));
        assert!(looked(&mut uplink, 100 + stall + 400, 100 + stall + 700));
    }

    #[test]
    fn traffic_without_answers_is_trusted_for_a_while_only() {
        let mut uplink = watched();
        let died = (0..100).find(|step| {
            let now = at(step * 50);
            uplink.handle_traffic(now);
            uplink.handle_timeout(now)
        });
        let limit = (TRAFFIC_TRUST + SILENCE_MAX).as_millis() as u64;
        assert_eq!(died, Some(limit / 50 + 1));
    }

    #[test]
    fn answers_that_are_late_by_seconds_keep_an_uplink_alive() {
        let mut uplink = watched();
        uplink.handle_answer(at(100));
        // A queue that grows by two seconds while as many pass spreads the answers twice as far.
        for probe in 0..40 {
            let arrives = 100 + probe * 300;
            assert!(!looked(&mut uplink, arrives.max(300) - 300, arrives));
            uplink.handle_answer(at(arrives));
        }
        assert_eq!(uplink.state(), State::Alive);
    }

    proptest! {
        #[test]
        fn an_uplink_is_never_dead_within_the_limit_of_a_sign_of_life(
            gaps in prop::collection::vec(0_u64..700, 1..100),
        ) {
            let mut uplink = watched();
            let mut now = 0;
            for gap in gaps {
                prop_assert!(!looked(&mut uplink, now, now + gap));
                now += gap;
                uplink.handle_answer(at(now));
            }
            prop_assert!(looked(&mut uplink, now, now + 701));
        }
    }
}
