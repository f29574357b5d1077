//! Notices that a path will end: who gave them, and how long they count.

use ropewalk_types::Instant;

/// What was said of a path's end. What the user said, another's signs do not take back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaving {
    told: Option<Instant>,
    foretold: Option<Instant>,
}

impl Leaving {
    /// The user says so; it counts until then.
    pub(super) const fn tell(&mut self, until: Instant) {
        self.told = Some(until);
    }

    /// Signs say so until then, or nothing more of it.
    pub(super) const fn foretell(&mut self, until: Option<Instant>) {
        self.foretold = until;
    }

    /// Whether anything of it still counts.
    pub(super) fn counts(&mut self, now: Instant) -> bool {
        for until in [&mut self.told, &mut self.foretold] {
            until.take_if(|until| *until <= now);
        }
        self.told.is_some() || self.foretold.is_some()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_types::Duration;

    use super::*;

    #[test]
    fn signs_neither_take_back_nor_shorten_what_the_user_said() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut leaving = Leaving::default();
        assert!(!leaving.counts(at(0)));
        leaving.tell(at(60));
        leaving.foretell(Some(at(10)));
        assert!(leaving.counts(at(30)));
        leaving.foretell(None);
        assert!(leaving.counts(at(59)) && !leaving.counts(at(60)));
        leaving.foretell(Some(at(70)));
        assert!(leaving.counts(at(69)));
        leaving.foretell(None);
        assert!(!leaving.counts(at(69)));
        leaving.tell(Instant::FAR_FUTURE);
        assert!(leaving.counts(at(1_000_000)));
    }
}
