//! Sites that vanish without a goodbye and start anew: when.

use ropewalk_types::{Duration, Instant, Random};

use crate::chance;
use crate::tuning::{AWAY_LEAST, AWAY_MOST};

/// When a site vanishes, and when it comes back.
#[derive(Clone, Debug)]
pub(crate) struct Absence {
    every: Option<Duration>,
    random: Random,
    next: Option<Instant>,
    back: Option<Instant>,
}

impl Absence {
    /// A site that vanishes every so often on average, once it is connected; never if `None`.
    pub(crate) const fn new(every: Option<Duration>, random: Random) -> Self {
        Self {
            every,
            random,
            next: None,
            back: None,
        }
    }

    /// All paths are up.
    pub(crate) fn start(&mut self, now: Instant) {
        let random = &mut self.random;
        self.next = self.every.map(|every| now + chance::around(every, random));
    }

    /// Whether the site vanishes now. Nobody vanishes after `last`, so that all can come back.
    pub(crate) fn vanishes(&mut self, now: Instant, last: Instant) -> bool {
        if self.next.take_if(|next| *next <= now).is_none() || now > last {
            return false;
        }
        self.back = Some(now + chance::between(AWAY_LEAST, AWAY_MOST, &mut self.random));
        true
    }

    /// Whether the site comes back now.
    pub(crate) fn returns(&mut self, now: Instant) -> bool {
        self.back.take_if(|back| *back <= now).is_some()
    }

    /// When something is to be done.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.next.or(self.back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_vanishes_once_and_comes_back_in_time() {
        let mut absence = Absence::new(Some(Duration::from_secs(5)), Random::new(1));
        assert_eq!(absence.poll_timeout(), None, "not connected yet");
        absence.start(Instant::ZERO);
        let gone = absence.poll_timeout().expect("soon");
        let before = gone - Duration::from_millis(1);
        assert!(!absence.vanishes(before, Instant::FAR_FUTURE));
        assert!(absence.vanishes(gone, Instant::FAR_FUTURE));
        let back = absence.poll_timeout().expect("a return");
        assert!((AWAY_LEAST..AWAY_MOST).contains(&back.since(gone)));
        assert!(!absence.vanishes(back, Instant::FAR_FUTURE));
        assert!(absence.returns(back) && !absence.returns(back));
        absence.start(back);
        let late = absence.poll_timeout().expect("again");
        assert!(!absence.vanishes(late, back), "too late to come back");
        assert_eq!(absence.poll_timeout(), None);
    }
}
