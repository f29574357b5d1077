//! What the site signs of its hubs, and what hubs tell it: claims and their epochs.

use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::{Claim, Control};

use crate::claim::Statement;
use crate::links::{LinkId, Links};
use crate::site::Site;
use crate::site::tuning::{TOLD, TOLD_INTERVAL};

/// That a hub serves in an epoch, before it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::site) struct Word {
    pub(super) epoch: u64,
    pub(super) hub: PublicKey,
}

/// Which key of this site has signed a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signer {
    /// The one with which connections are made.
    Present,
    /// One that it had, or tries beside.
    Other,
}

/// A claim to be told.
pub(in crate::site) const fn told(claim: Claim) -> Control {
    Control::Claim {
        claim,
        drained: false,
    }
}

impl Word {
    pub(in crate::site) const fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Site {
    /// The serving hub serves in a new epoch.
    pub(super) fn claim_anew(&mut self, epoch: u64) {
        self.fleet.signed = self.fleet.signed.max(epoch);
        self.fleet.claim = Some(self.word(self.serving));
    }

    /// The newest epoch is for this hub.
    pub(in crate::site) fn word(&self, hub: usize) -> Word {
        Word {
            epoch: self.fleet.signed,
            hub: self.settings.hubs[hub].key,
        }
    }

    /// What this site says over the connection of a path.
    pub(in crate::site) fn sign(
        &self,
        links: &Links,
        id: PathId,
        link: LinkId,
        word: Word,
    ) -> Claim {
        let warm = self.fleet.warm[id.index()].as_ref();
        let warm = warm.filter(|warm| warm.link == link).map(|warm| warm.key);
        let path = self.paths[id.index()].as_ref();
        self.sign_as(links, warm.or_else(|| path?.key_of(link)), word)
    }

    /// The same over a connection that was made with this key.
    pub(in crate::site) fn sign_as(
        &self,
        links: &Links,
        key: Option<PublicKey>,
        word: Word,
    ) -> Claim {
        // A key that has been given up signs nothing more. Its connections say what the hub knows already.
        let identity = key.and_then(|key| self.keys.identity(&key));
        let identity = identity.unwrap_or_else(|| links.identity());
        let known = self.fleet.said.get().filter(|said| {
            (said.site, said.epoch, said.hub) == (identity.public_key(), word.epoch, word.hub)
        });
        let said = known.unwrap_or_else(|| Statement::sign(identity, word.epoch, &word.hub));
        self.fleet.said.set(Some(said));
        said.claim()
    }

    /// The epoch after all that this site has signed and `told`, if there is one, and `beyond` more after that.
    pub(in crate::site) fn newer_epoch(&mut self, told: u64, beyond: u64) -> Option<u64> {
        let epoch = told.max(self.fleet.signed).checked_add(1);
        let epoch = epoch.filter(|epoch| epoch.checked_add(beyond).is_some());
        if epoch.is_none() {
            if self.fleet.exhausted == 0 {
                tracing::error!(
                    hub = self.hub().name,
                    "there is no newer epoch to sign: this site stays with its hub until it is enrolled anew"
                );
            }
            self.fleet.exhausted += 1;
        }
        epoch
    }

    /// The serving hub has proved another key: what was said of the former one is said of this one.
    pub(in crate::site) fn claim_for_new_key(&mut self, now: Instant) {
        if self.fleet.claim.is_none() {
            return;
        }
        if let Some(epoch) = self.newer_epoch(0, 0) {
            self.claim_anew(epoch);
            self.repeat_hellos(now);
        }
    }

    /// A hub says what it knows to be the newest claim of this site.
    pub(super) fn on_told(&mut self, now: Instant, links: &mut Links, told: &Claim) {
        let mine = self.fleet.claiming.or(self.fleet.claim);
        let hub = PublicKey::from_bytes(told.hub);
        if mine.is_some_and(|mine| {
            told.epoch < mine.epoch || (told.epoch, hub) == (mine.epoch, mine.hub)
        }) {
            return;
        }
        let Some(signer) = self.signer(now, links, told) else {
            return;
        };
        let known = self.settings.hubs.iter().position(|known| known.key == hub);
        let newer = mine.is_some_and(|mine| told.epoch > mine.epoch);
        match known {
            Some(hub) if newer && self.fleet.claiming.is_none() && signer == Signer::Present => {
                self.follow(now, links, hub, told);
            }
            Some(_) | None => self.overrule(now, told),
        }
    }

    /// Whether this site has signed a claim, and with which key.
    fn signer(&mut self, now: Instant, links: &Links, told: &Claim) -> Option<Signer> {
        if !self.fleet.told.allows(now, TOLD_INTERVAL, TOLD) {
            self.fleet.unchecked += 1;
            return None;
        }
        let present = links.identity().public_key();
        if Statement::of(present, told).is_genuine() {
            return Some(Signer::Present);
        }
        let mut others = self.keys.others(present);
        if others.any(|key| Statement::of(key, told).is_genuine()) {
            return Some(Signer::Other);
        }
        drop(others);
        self.fleet.forged += 1;
        None
    }

    /// What this site says now is to hold: it signs a newer epoch, and says hello again.
    fn overrule(&mut self, now: Instant, told: &Claim) {
        let Some(epoch) = self.newer_epoch(told.epoch, 0) else {
            return;
        };
        self.fleet.signed = epoch;
        if self.fleet.claiming.is_some()
            && let Some(spare) = self.spare()
        {
            self.fleet.claiming = Some(self.word(spare));
            (self.fleet.again, self.fleet.repeats) = (now, 0);
        } else {
            self.claim_anew(epoch);
        }
        self.repeat_hellos(now);
    }

    /// This site said so before it started: that hub serves.
    fn follow(&mut self, now: Instant, links: &mut Links, hub: usize, told: &Claim) {
        self.fleet.signed = told.epoch;
        self.fleet.claim = Some(Word {
            epoch: told.epoch,
            hub: PublicKey::from_bytes(told.hub),
        });
        if hub == self.serving {
            self.repeat_hellos(now);
            return;
        }
        tracing::info!(
            hub = self.settings.hubs[hub].name,
            epoch = told.epoch,
            "another hub serves this site since before the start"
        );
        let why = "another hub serves this site";
        self.end_former(now, links, why);
        self.serve_by(now, links, hub);
        for id in self.ids() {
            self.peer.remove_path(now, links, id, why);
            self.close_warm(now, links, id, why);
        }
        self.peer.cut_replaced(now, links, why);
        self.peer.tunnel.reset_exit();
        self.hub_session = None;
        self.note_moved();
    }

    fn repeat_hellos(&mut self, now: Instant) {
        for (path, carrier) in self.paths.iter_mut().zip(&self.peer.paths) {
            if let Some(path) = path {
                path.unanswered |= carrier.is_some();
                path.hello_due = now;
            }
        }
        for warm in self.fleet.warm.iter_mut().flatten() {
            warm.due = now;
        }
        self.tick = now;
    }
}
