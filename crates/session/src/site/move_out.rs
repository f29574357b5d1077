//! A site whose hub is drained: it moves to its spare while the hub still serves it.
//!
//! The hub says that the site shall leave, and repeats that. The site asks the spare whether it is there, and whether
//! sites shall leave it, too. If all is well the site signs the next epoch for the spare, and goes on over the serving
//! hub until the spare's `Welcome`. [`former`](super::former) is what comes after it.
//!
//! Invariant: a site without a spare that answers, or whose spare is drained, stays.

use ropewalk_types::Instant;
use ropewalk_wire::Claim;

use super::Site;
use super::path::SitePath;
use super::tuning::{GATHER, WELCOME_PATIENCE, WORD_LIFETIME};
use crate::links::{LinkId, Links};

/// That the serving hub wants the site to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) since: Instant,
    /// Until when that counts, if the hub says nothing more.
    until: Instant,
    /// Since when the spare is claimed because of it.
    claimed: Option<Instant>,
}

impl Asked {
    /// Whether the spare was claimed because of it.
    pub(super) const fn is_claimed(&self) -> bool {
        self.claimed.is_some()
    }
}

impl Site {
    /// A hub tells a claim, and whether sites shall leave the hub.
    pub(super) fn on_word(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        drained: bool,
        claim: &Claim,
    ) {
        if let Some(former) = self.former.as_ref().filter(|_| self.is_of_former(link)) {
            let hub = former.hub;
            self.fleet.spares.note_drained(now, hub, drained);
            // It has not heard yet.
            if (self.fleet.claim()).is_some_and(|word| claim.epoch < word.epoch()) {
                self.tell_former_again(now, links, link);
            }
        } else if self.warm_of(link).is_some() {
            if let Some(hub) = self.fleet.warm_hub {
                self.fleet.spares.note_answer(now, hub, drained);
            }
        } else if drained && self.peer.path_of(link).is_some() {
            let since = self.fleet.asked.map_or(now, |asked| asked.since);
            let claimed = self.fleet.asked.and_then(|asked| asked.claimed);
            if self.fleet.asked.is_none() {
                tracing::info!(hub = self.hub().name, "the hub wants this site to leave");
            }
            self.fleet.asked = Some(Asked {
                since,
                until: now + WORD_LIFETIME,
                claimed,
            });
        }
    }

    /// What hubs have said counts for a while.
    pub(super) fn forget_words(&mut self, now: Instant) {
        self.fleet.asked.take_if(|asked| asked.until <= now);
        self.fleet.spares.forget(now);
    }

    /// Whether the spare is claimed because the serving hub wants that, and may still answer.
    pub(super) fn is_asked_to_move(&self, now: Instant) -> bool {
        let claimed = self.fleet.asked.and_then(|asked| asked.claimed);
        claimed.is_some_and(|at| now < at + WELCOME_PATIENCE)
    }

    /// Whether uplinks that cost or stand by connect to the spare because this site is about to leave.
    pub(super) fn leaves_by_all(&self) -> bool {
        let Some(asked) = self.fleet.asked else {
            return false;
        };
        let answered = |at: Option<Instant>| at.is_some_and(|at| at >= asked.since);
        let mut warm = self.fleet.warm.iter().flatten();
        let mut paths = self.paths.iter().flatten();
        warm.any(|warm| answered(warm.answered)) || paths.all(SitePath::is_thrifty)
    }

    /// Claims the spare if this site shall leave its hub, and the spare answers.
    pub(super) fn leave_if_asked(&mut self, now: Instant, links: &mut Links, spare: usize) {
        let Some(asked) = self.fleet.asked else {
            return;
        };
        if self.fleet.spares.is_drained(spare) || !self.peer.tunnel.any_up() {
            return;
        }
        let answered = |id: usize| {
            let warm = self.fleet.warm[id].as_ref();
            warm.and_then(|warm| warm.answered.filter(|at| *at >= asked.since))
        };
        let first = (0..self.paths.len()).filter_map(answered).min();
        let Some(first) = first else { return };
        let mut carriers = self.peer.paths.iter().enumerate();
        let all = carriers.all(|(id, carrier)| carrier.is_none() || answered(id).is_some());
        if !all && now < first + GATHER {
            self.fleet.due = Some(first + GATHER);
            return;
        }
        // One more is for the hub that goes on after all.
        let Some(epoch) = self.newer_epoch(0, 1) else {
            return;
        };
        self.fleet.signed = epoch;
        self.fleet.claiming = Some(self.word(spare));
        self.fleet.asked = Some(Asked {
            claimed: Some(now),
            ..asked
        });
        tracing::info!(
            from = self.hub().name,
            to = self.settings.hubs[spare].name,
            epoch,
            "the hub wants this site to leave, and the spare answers: moving"
        );
        self.begin_claim(now, links);
    }
}
