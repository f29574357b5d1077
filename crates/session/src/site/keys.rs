//! How a site changes its key, and follows its hub to another one, while traffic flows.
//!
//! The site has two keys for a while. It asks the hub to take the next one, makes a new connection for each
//! path with that key, and gives the old connection up once the hub has answered on the new one. Whenever the
//! hub refuses one of the two keys, the site tries the other: after a power cut nobody needs to know how far
//! both sides had come. Invariant: the old key is forgotten only after the hub has answered on a connection
//! with the new one.

use ropewalk_api::KeyRotation;
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::{Instant, Pace, PathId};
use ropewalk_wire::Control;

use super::Site;
use super::tuning::{KEY_INTERVAL, KEY_NOTES};
use crate::keys::{KeyEvent, KeyStep, OTHER_WORKER};
use crate::links::{LinkId, Links};
use crate::session::Event;

/// The keys of a site beside the present ones of both sides.
#[derive(Debug, Default)]
pub(super) struct Keys {
    change: Option<Change>,
    /// What the hub said of the last next key that it did not take.
    refused: Option<(PublicKey, String)>,
    /// Next keys that the hub did not take because of its workers, in a row.
    others: u32,
    pub(super) hub_next: Option<PublicKey>,
    hub_former: Option<PublicKey>,
    /// The key that this site had before its present one, if that has changed since the start.
    former: Option<PublicKey>,
    /// As which group the hub serves this key of the site, if the hub has said so.
    group: Option<(PublicKey, u8)>,
    /// How often the hub's words may be written down.
    notes: Pace,
}

#[derive(Debug)]
struct Change {
    old: Identity,
    next: Identity,
    /// When the hub is asked again, while it has not taken the next key.
    due: Instant,
}

impl Keys {
    /// The key by which the hub may tell its sites apart, for the attempt of this number in a row.
    pub(super) fn marked_for(&self, tries: u32) -> Option<PublicKey> {
        let other = self.hub_next.or(self.hub_former);
        other.filter(|_| tries > 0 && tries.is_multiple_of(2))
    }

    /// The group as which connections with this key of the site are made, if the hub has named it.
    pub(super) fn group(&self, own: PublicKey) -> Option<u8> {
        self.group
            .filter(|(key, _)| *key == own)
            .map(|(_, group)| group)
    }

    /// The key pair of this site with this public key, while the key changes.
    pub(super) fn identity(&self, key: &PublicKey) -> Option<&Identity> {
        let change = self.change.as_ref()?;
        let both = [&change.old, &change.next].into_iter();
        both.into_iter()
            .find(|identity| identity.public_key() == *key)
    }

    /// The keys of this site beside the present one that may have signed what hubs know.
    pub(super) fn others(&self, present: PublicKey) -> impl Iterator<Item = PublicKey> {
        let change = self.change.as_ref();
        let both = change.map(|change| [&change.old, &change.next].map(Identity::public_key));
        let all = both.into_iter().flatten().chain(self.former);
        all.filter(move |key| *key != present)
    }

    /// Another hub serves the site, with keys of its own.
    pub(super) const fn on_moved(&mut self) {
        (self.hub_next, self.hub_former, self.group) = (None, None, None);
    }

    /// Whether something is still to be said to the hub.
    pub(super) const fn is_busy(&self) -> bool {
        self.change.is_some()
    }
}

impl Site {
    pub(super) fn on_key_step(&mut self, now: Instant, links: &mut Links, step: KeyStep) {
        match step {
            KeyStep::Next(next) => {
                if next == *links.identity() {
                    return;
                }
                self.keys.refused = None;
                self.keys.change = Some(Change {
                    old: links.identity().clone(),
                    next,
                    due: now,
                });
                self.tick = now;
            }
            KeyStep::OfHub { next, former } => {
                self.keys.hub_former = former;
                self.keys.hub_next = next;
                if let Some(key) = next {
                    let key = *key.as_bytes();
                    self.peer.send_control(links, &Control::HubKey { key });
                }
            }
            KeyStep::GiveUp { key, reason } => {
                self.keys.others = 0;
                self.keys.refused = Some((key, reason));
            }
            KeyStep::Switch => {}
        }
    }

    /// Asks the hub to take the next key.
    pub(super) fn ask_for_key(&mut self, now: Instant, links: &mut Links) {
        if let Some(change) = &mut self.keys.change
            && change.due <= now
            && change.old == *links.identity()
        {
            change.due = now + KEY_INTERVAL;
            let key = *change.next.public_key().as_bytes();
            // A connection with an earlier key has another proof. The question is put again on newer ones.
            let proof = Some(change.next.prove(&change.old.public_key()));
            let question = Control::Enrol { key, proof };
            self.peer.send_control(links, &question);
        }
    }

    /// The hub's answer to that.
    pub(super) fn on_key_answer(&mut self, now: Instant, links: &mut Links, refused: String) {
        let Some(change) = self
            .keys
            .change
            .take_if(|change| !refused.is_empty() && change.old == *links.identity())
        else {
            if refused.is_empty() {
                self.take_other_key(now, links, true);
            }
            return;
        };
        let key = change.next.public_key();
        if refused == OTHER_WORKER {
            tracing::info!(%key, "the next key would take this site to another worker of the hub");
            self.keys.others += 1;
        } else {
            self.keys.others = 0;
            tracing::error!(%key, refused, "the hub does not take the next key of this site");
            self.keys.refused = Some((key, refused.clone()));
        }
        let refused = KeyEvent::Refused {
            key,
            reason: refused,
        };
        self.events.push_back(Event::Key(refused));
    }

    /// New connections have the other key from now on: the next one if `next`, else the old one.
    fn take_other_key(&mut self, now: Instant, links: &mut Links, next: bool) {
        let Some(change) = &mut self.keys.change else {
            return;
        };
        let wanted = if next { &change.next } else { &change.old };
        if wanted == links.identity() {
            return;
        }
        tracing::info!(key = %wanted.public_key(), next, "connections are made with another key of this site");
        links.set_identity(wanted);
        change.due = now + KEY_INTERVAL;
        for path in self.paths.iter_mut().flatten() {
            path.next_attempt = now;
        }
        self.tick = now;
    }

    /// The hub does not accept the key with which an attempt was made.
    pub(super) fn on_key_unknown(&mut self, now: Instant, links: &mut Links, key: PublicKey) {
        if let Some(change) = &self.keys.change
            && key == links.identity().public_key()
        {
            let next = key == change.old.public_key();
            self.take_other_key(now, links, next);
        }
    }

    /// The hub says on a connection with this key as which group it serves the key: it may have started with
    /// another key than those that the site knows.
    pub(super) fn on_group(&mut self, now: Instant, id: PathId, key: PublicKey, group: u8) {
        // A hub that names the same one again is not asked at once.
        if self.keys.group.replace((key, group)) != Some((key, group))
            && let Some(path) = &mut self.paths[id.index()]
        {
            path.next_attempt = now;
        }
    }

    /// Whether the connection of a path was made with a key that is to be given up.
    pub(super) fn is_outdated(&self, links: &Links, id: PathId) -> bool {
        let path = self.paths[id.index()].as_ref();
        path.and_then(|path| path.key)
            .is_some_and(|key| key != links.identity().public_key())
    }

    /// The hub has answered on a connection with this key.
    pub(super) fn on_key_works(&mut self, now: Instant, links: &mut Links, key: PublicKey) {
        let change = &mut self.keys.change;
        if let Some(change) = change.take_if(|change| change.next.public_key() == key) {
            tracing::info!(%key, "the hub has let this site in with its next key");
            self.keys.others = 0;
            self.keys.former = Some(change.old.public_key());
            self.settings.common.identity = change.next;
            self.events.push_back(Event::Key(KeyEvent::Confirmed(key)));
            self.renew_warm(now, links, key);
        }
    }

    /// The hub has proved this key.
    pub(super) fn on_hub_proved(&mut self, now: Instant, key: PublicKey) {
        if self.keys.hub_next == Some(key) {
            let former = std::mem::replace(&mut self.settings.hubs[self.serving].key, key);
            tracing::info!(%key, %former, "the hub has its next key");
            self.keys.hub_next = None;
            self.keys.hub_former = Some(former);
            self.peer.key = key;
            let is = KeyEvent::HubIs(key, former);
            self.events.push_back(Event::Key(is));
            self.claim_for_new_key(now);
        }
    }

    /// The hub says which key it will have.
    pub(super) fn on_hub_key(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        key: PublicKey,
    ) {
        if key == self.hub().key || self.keys.hub_next == Some(key) {
            let key = *key.as_bytes();
            links.queue_control(link, &Control::HubKey { key });
        } else if self.keys.notes.allows(now, KEY_INTERVAL, KEY_NOTES) {
            self.events.push_back(Event::Key(KeyEvent::HubNext(key)));
        }
    }

    pub(super) fn key_status(&self, links: &Links) -> Option<KeyRotation> {
        let of = |key: PublicKey, state: &str, reason: Option<String>| KeyRotation {
            next_key: key.to_string(),
            state: state.to_owned(),
            reason,
        };
        if let Some(change) = &self.keys.change {
            let moving = change.next == *links.identity();
            let state = if moving { "moving" } else { "asking" };
            let others = self.keys.others;
            let reason = (others > 0).then(|| {
                format!(
                    "{others} keys so far would have taken this site to another worker of the hub; the site tries \
                     others, about one a second"
                )
            });
            return Some(of(change.next.public_key(), state, reason));
        }
        let (key, reason) = self.keys.refused.as_ref()?;
        Some(of(*key, "refused", Some(reason.clone())))
    }
}
