//! Keys that change while traffic flows: those of sites, and the hub's own.
//!
//! A site has two keys from the moment when the control side has recorded the next one until the site has
//! connected with it. Then the old one ends for new connections, and for those that are left a little later.
//! The hub tells its sites its next key, repeats that until they answer, and presents the key to new
//! connections when the control side says so.

use std::sync::Arc;

use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::Instant;
use ropewalk_wire::Control;
use rustc_hash::{FxHashMap, FxHashSet};

use super::enrolment::Invited;
use super::listed::Listed;
use super::tuning::{ANNOUNCE_INTERVAL, OLD_KEY_GRACE, TICK};
use super::{Hub, HubSite};
use crate::keys::{KeyEvent, KeyStep};
use crate::links::{LinkId, Links};
use crate::session::Event;
use crate::settings::SiteEntry;

/// What changes.
#[derive(Debug, Default)]
pub(super) struct Keys {
    next: Option<Identity>,
    /// The key before the present one, if that has changed since the start.
    former: Option<PublicKey>,
    /// Names of the sites that have said that they know it.
    knowing: FxHashSet<String>,
    /// When the others are told again.
    announce: Instant,
    /// Old keys of sites, and until when their connections may live on.
    old: Vec<(PublicKey, Instant)>,
    /// Sites that have asked for another key, by name.
    pub(super) asking: FxHashMap<String, Invited>,
}

impl Keys {
    /// Whether a site knows the next key, if there is one.
    pub(super) fn is_known_to(&self, site: &str) -> Option<bool> {
        self.next.as_ref().map(|_| self.knowing.contains(site))
    }

    /// Whoever is this site now has to say anew what it knows.
    pub(super) fn forget(&mut self, site: &str) {
        self.knowing.remove(site);
    }

    /// Sites that are listed no more have asked for nothing.
    pub(super) fn keep_asking(&mut self, sites: &Listed) {
        self.asking.retain(|name, _| sites.has(name));
    }

    /// The key of the hub before the present one, if that has changed since the start.
    pub(super) const fn former(&self) -> Option<PublicKey> {
        self.former
    }

    pub(super) const fn next(&self) -> Option<&Identity> {
        self.next.as_ref()
    }

    /// Whether somebody waits for [`Hub::tend_keys`].
    pub(super) const fn is_busy(&self) -> bool {
        self.next.is_some() || !self.old.is_empty()
    }
}

impl Hub {
    pub(super) fn on_key_step(&mut self, now: Instant, links: &mut Links, step: KeyStep) {
        match step {
            KeyStep::Next(next) => {
                if self.keys.next.as_ref() != Some(&next) {
                    self.keys.knowing.clear();
                    self.keys.next = Some(next);
                }
                self.keys.announce = now;
                self.tend_keys(now, links);
                self.tick = self.tick.min(now + TICK);
            }
            KeyStep::Switch => {
                if let Some(next) = self.keys.next.take() {
                    links.set_identity(&next);
                    self.keys.former = Some(self.settings.common.identity.public_key());
                    self.settings.common.identity = next;
                }
            }
            KeyStep::OfHub { .. } | KeyStep::GiveUp { .. } => {}
        }
    }

    /// Tells sites that do not know it yet the hub's next key, and ends what is left of old keys of sites.
    pub(super) fn tend_keys(&mut self, now: Instant, links: &mut Links) {
        if let Some(next) = &self.keys.next
            && self.keys.announce <= now
        {
            self.keys.announce = now + ANNOUNCE_INTERVAL;
            let key = *next.public_key().as_bytes();
            for index in self.sites.indices() {
                let unknowing = |site: &HubSite| {
                    site.session != 0 && !self.keys.knowing.contains(&site.entry.name)
                };
                if self.sites.get(index).is_some_and(unknowing) {
                    let tell = |site: &mut HubSite| {
                        site.peer.send_control(links, &Control::HubKey { key });
                    };
                    self.sites.with(index, tell);
                    self.ready.touch(index);
                }
            }
        }
        let old = std::mem::take(&mut self.keys.old);
        let (over, left): (Vec<_>, Vec<_>) = old.into_iter().partition(|(_, until)| *until <= now);
        self.keys.old = left;
        for (key, _) in over {
            let why = "the site has another key now";
            let over = self.links_of.get(&key).cloned().unwrap_or_default();
            self.close_links(now, links, why, &over);
        }
    }

    /// Tells a site that has just connected.
    pub(super) fn announce_key(&self, links: &mut Links, index: usize, link: LinkId) {
        if let (Some(next), Some(site)) = (&self.keys.next, self.sites.get(index))
            && !self.keys.knowing.contains(&site.entry.name)
        {
            let key = *next.public_key().as_bytes();
            links.queue_control(link, &Control::HubKey { key });
        }
    }

    /// A site says that it knows a key of the hub.
    pub(super) fn on_key_known(&mut self, index: usize, key: PublicKey) {
        if let (Some(next), Some(site)) = (&self.keys.next, self.sites.get(index))
            && next.public_key() == key
        {
            self.keys.knowing.insert(site.entry.name.clone());
        }
    }

    /// A site has said hello on a connection with this key.
    pub(super) fn on_key_used(&mut self, now: Instant, index: usize, key: PublicKey) {
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        if key != site.entry.key && self.settings.sites.is_next(&key) {
            site.next_key = Some(key);
            // Asked again by later greetings, should the control side have had no time.
            if site
                .moves
                .allows(now, super::tuning::MOVE_INTERVAL, super::tuning::MOVES)
            {
                self.events.push_back(Event::Key(KeyEvent::Used(key)));
            }
        }
    }

    /// The entry of a site as the directory has it now, also if its key has changed as the site wanted.
    pub(super) fn renewed(&self, index: usize) -> Option<Arc<SiteEntry>> {
        let site = self.sites.get(index)?;
        let directory = &self.settings.sites;
        let entry = directory.find(&site.entry.key);
        let entry = entry.or_else(|| directory.find(&site.next_key?));
        entry.filter(|entry| entry.enabled && entry.is_same(&site.entry))
    }

    /// A site has this entry from now on.
    pub(super) fn take_entry(&mut self, now: Instant, index: usize, entry: Arc<SiteEntry>) {
        let rate = entry.rate;
        let Some(former) = self.sites.replace(index, Arc::clone(&entry)) else {
            return;
        };
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        site.peer.set_rate(rate);
        if entry.key != former.key {
            tracing::info!(site = entry.name, key = %entry.key, "the site has its next key; the former one has ended");
            site.peer.key = entry.key;
            site.next_key = None;
            self.claims.follow_key(&former.key, entry.key);
            self.follow_key_of_lingering(&former.key, entry.key);
            self.keys.old.push((former.key, now + OLD_KEY_GRACE));
            self.tick = self.tick.min(now + TICK);
        }
    }
}
