//! Whether an uplink leads anywhere, by the answers to its probes and by what arrives.
//!
//! What counts is silence, not the loss or delay of single probes: answers that come late because
//! the uplink is full still come at the pace of the probes. Traffic that arrives is a sign of life too.
//!
//! Invariant: a dead uplink needs [`ANSWERS_TO_RETURN`] answers, each soon after the one before,
//! to come back; whatever else arrives does not bring it back.

use core::time::Duration;

use ropewalk_types::Instant;

/// Time between probes of an uplink. Targets are asked in turn, so with three of them two may be
/// silent without harm.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// Silence after which an uplink is dead; with the time to act on it, new connections wait for less than 1 s.
pub const SILENCE_MAX: Duration = Duration::from_millis(700);
/// Answers in a row that bring a dead uplink back.
pub const ANSWERS_TO_RETURN: u32 = 3;

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
}

impl Liveness {
    /// Begins to watch.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            state: State::Unproven,
            heard: now,
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
                let answers = if now.since(self.heard) > SILENCE_MAX {
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
        let returned = !self.is_usable() && next == State::Alive;
        self.state = next;
        returned
    }

    /// Clearly more arrived than broadcasts of neighbours.
    pub fn handle_traffic(&mut self, now: Instant) {
        if self.is_usable() {
            self.heard = now;
        }
    }

    /// Looks at the time; true when the uplink has died by it.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.is_usable() && now.since(self.heard) > SILENCE_MAX {
            self.state = State::Dead { answers: 0 };
            return true;
        }
        false
    }

    /// Something other than silence shows that the uplink leads nowhere; true if that is news.
    pub fn condemn(&mut self) -> bool {
        let news = self.is_usable();
        self.state = State::Dead { answers: 0 };
        news
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
    fn silence_kills_and_only_a_row_of_answers_revives() {
        let mut uplink = Liveness::new(at(0));
        assert!(uplink.is_usable(), "a new uplink is used at once");
        assert!(!uplink.handle_timeout(at(700)));
        uplink.handle_answer(at(700));
        uplink.handle_traffic(at(1_300));
        assert!(!uplink.handle_timeout(at(2_000)));
        assert!(uplink.handle_timeout(at(2_001)));
        assert!(!uplink.handle_timeout(at(3_000)), "told once");
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
        assert!(uplink.condemn() && !uplink.condemn());
    }

    #[test]
    fn answers_that_are_late_by_seconds_keep_an_uplink_alive() {
        let mut uplink = Liveness::new(at(0));
        uplink.handle_answer(at(100));
        for probe in 0..100 {
            let arrives = at(3_100 + probe * 150);
            uplink.handle_traffic(at(100 + probe * 30));
            assert!(!uplink.handle_timeout(at(100 + probe * 30)));
            if probe == 99 {
                uplink.handle_answer(arrives);
            }
        }
    }

    proptest! {
        #[test]
        fn an_uplink_is_never_dead_within_the_limit_of_a_sign_of_life(
            gaps in prop::collection::vec(0_u64..700, 1..100),
        ) {
            let mut uplink = Liveness::new(at(0));
            let mut now = 0;
            for gap in gaps {
                now += gap;
                prop_assert!(!uplink.handle_timeout(at(now)));
                uplink.handle_answer(at(now));
            }
            prop_assert!(uplink.handle_timeout(at(now + 701)));
        }
    }
}
