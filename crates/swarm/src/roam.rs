//! Sites that move their paths: when, how, and what their pings show of a move.

use ropewalk_types::{Duration, Instant, Random};
use serde::Serialize;

use crate::chance;
use crate::tuning::MOVE_WATCHED;

/// How a path moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Move {
    /// A NAT gives the path another port. Only the hub can notice.
    Nat,
    /// The uplink has another address. The site notices, and its connection goes on.
    Address,
    /// The uplink goes and another one comes: the path needs a new connection.
    Uplink,
}

impl Move {
    pub(crate) const ALL: [Self; 3] = [Self::Nat, Self::Address, Self::Uplink];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Address => "address",
            Self::Uplink => "uplink",
        }
    }
}

/// What became of a site's pings at a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) how: Move,
    /// From the move until a ping that was sent after it was answered.
    pub(crate) answered: Option<Duration>,
    /// Longest time without an answer, from the last answer before the move on.
    pub(crate) gap: Duration,
    /// Times the tunnel went down.
    pub(crate) downs: u32,
}

/// When a site moves a path, and a move that is watched.
#[derive(Clone, Debug)]
pub(crate) struct Roam {
    every: Option<Duration>,
    random: Random,
    next: Option<Instant>,
    last_answer: Option<Instant>,
    watched: Option<(Instant, Moved)>,
}

impl Roam {
    /// A move every so often on average, once there is a tunnel; never if `None`.
    pub(crate) const fn new(every: Option<Duration>, random: Random) -> Self {
        Self {
            every,
            random,
            next: None,
            last_answer: None,
            watched: None,
        }
    }

    /// The tunnel is there.
    pub(crate) fn start(&mut self, now: Instant) {
        if self.next.is_none() {
            self.plan(now);
        }
    }

    /// The site is gone: what was watched has no end.
    pub(crate) fn stop(&mut self) {
        (self.next, self.last_answer, self.watched) = (None, None, None);
    }

    /// How a path moves now, and which of so many, if one does. None moves after `last`, so that all moves
    /// can be watched.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        paths: usize,
        last: Instant,
    ) -> Option<(Move, usize)> {
        if self.next? > now || self.watched.is_some() {
            return None;
        }
        if now > last {
            self.next = None;
            return None;
        }
        self.plan(now);
        let how = Move::ALL[chance::one_of(Move::ALL.len(), &mut self.random)];
        Some((how, chance::one_of(paths, &mut self.random)))
    }

    /// A path has moved: its pings are watched from now on.
    pub(crate) fn watch(&mut self, now: Instant, how: Move) {
        let moved = Moved {
            how,
            answered: None,
            gap: Duration::ZERO,
            downs: 0,
        };
        self.watched = Some((now, moved));
    }

    /// A ping that was sent then is answered.
    pub(crate) fn on_answer(&mut self, now: Instant, sent: Instant) {
        let last = self.last_answer.replace(now);
        if let Some((at, moved)) = &mut self.watched {
            moved.gap = moved.gap.max(now.since(last.unwrap_or(*at)));
            if sent >= *at && moved.answered.is_none() {
                moved.answered = Some(now.since(*at));
            }
        }
    }

    /// The tunnel went down.
    pub(crate) const fn on_down(&mut self) {
        if let Some((_, moved)) = &mut self.watched {
            moved.downs += 1;
        }
    }

    /// What became of a move, once that has been watched long enough and a ping was answered.
    pub(crate) fn take_moved(&mut self, now: Instant) -> Option<Moved> {
        let over =
            |(at, moved): &(Instant, Moved)| moved.answered.is_some() && *at + MOVE_WATCHED <= now;
        self.watched.as_ref().is_some_and(over).then_some(())?;
        self.end(now)
    }

    /// What became of a move so far.
    pub(crate) fn end(&mut self, now: Instant) -> Option<Moved> {
        let (at, mut moved) = self.watched.take()?;
        moved.gap = moved.gap.max(now.since(self.last_answer.unwrap_or(at)));
        Some(moved)
    }

    /// When something is to be done.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.watched {
            // Answers end it as well.
            Some((at, moved)) => moved.answered.map(|_| *at + MOVE_WATCHED),
            None => self.next,
        }
    }

    fn plan(&mut self, now: Instant) {
        self.next = self
            .every
            .map(|every| now + chance::around(every, &mut self.random));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Instant = Instant::FAR_FUTURE;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn moves_follow_from_the_seed_and_come_as_often_as_asked() {
        let moves = |seed| {
            let mut roam = Roam::new(Some(Duration::from_secs(2)), Random::new(seed));
            assert_eq!(roam.take(at(9_000), 2, NEVER), None, "there is no tunnel");
            roam.start(at(0));
            let moves = (0..200_000).filter_map(|ms| Some((ms, roam.take(at(ms), 2, NEVER)?)));
            moves.collect::<Vec<_>>()
        };
        let some = moves(1);
        assert!((80..=120).contains(&some.len()), "{}", some.len());
        assert_eq!(some, moves(1));
        assert_ne!(some, moves(2));
        for how in Move::ALL {
            assert!(some.iter().any(|(_, (one, _))| *one == how), "{how:?}");
        }
        let mut late = Roam::new(Some(Duration::from_secs(2)), Random::new(1));
        late.start(at(0));
        assert_eq!(late.take(at(90_000), 2, at(80_000)), None);
        assert_eq!(late.poll_timeout(), None, "no more moves");
        let mut never = Roam::new(None, Random::new(1));
        never.start(at(0));
        assert_eq!(
            (never.poll_timeout(), never.take(at(9), 2, NEVER)),
            (None, None)
        );
    }

    #[test]
    fn a_move_shows_as_a_gap_and_ends_with_a_ping_that_was_sent_after_it() {
        let mut roam = Roam::new(Some(Duration::from_secs(1)), Random::new(1));
        roam.start(at(0));
        roam.on_answer(at(90), at(89));
        roam.watch(at(100), Move::Nat);
        assert_eq!(roam.take(at(60_000), 2, NEVER), None, "one at a time");
        roam.on_answer(at(101), at(99));
        roam.on_down();
        roam.on_answer(at(350), at(340));
        assert_eq!(roam.take_moved(at(2_000)), None, "watched for longer");
        roam.on_answer(at(400), at(399));
        let over = roam.poll_timeout().expect("an end");
        roam.on_answer(over, over);
        let expected = Moved {
            how: Move::Nat,
            answered: Some(Duration::from_millis(250)),
            gap: over.since(at(400)),
            downs: 1,
        };
        assert_eq!(roam.take_moved(over), Some(expected));
        roam.watch(at(9_000), Move::Uplink);
        assert_eq!(roam.poll_timeout(), None, "nothing was answered");
        let never = roam.end(at(9_500)).expect("watched");
        assert_eq!(never.answered, None);
    }
}
