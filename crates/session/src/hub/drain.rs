//! Sites that shall leave this hub, because somebody wants to stop it.
//!
//! A hub that is drained tells its sites so, some at a time, and again while they stay. A site with a spare that works
//! signs the next epoch for the spare, and tells this hub once the spare has taken it over. Until routers have heard of
//! that, packets to the site still come here, and so does what the site has sent already. So the hub goes on as before
//! for a while, announces the addresses of the site meanwhile, and withdraws then.
//!
//! Invariants: a drained hub serves whoever stays, and whoever comes. A site that was not told to leave is withdrawn from
//! at once when another hub serves it.

use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, count_steps};

use super::claims::message;
use super::tuning::{
    LINGER_IDLE, LINGER_LOOK, LINGER_MAX, LINGER_MIN, TELL_AGAIN, TELL_INTERVAL, TOLD,
};
use super::{Hub, HubSite};
use crate::links::{LinkId, Links};
use crate::settings::SiteEntry;

/// Who is told to leave next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// The slot of the next site, and when it is its turn.
    next: usize,
    due: Instant,
    /// When the first site had its turn.
    began: Instant,
}

/// A site that has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    since: Instant,
    /// When something came last for the site.
    pub(super) last: Instant,
}

impl Leaving {
    /// When the service may end, as far as is known.
    fn due(&self) -> Instant {
        let idle = (self.last + LINGER_IDLE).max(self.since + LINGER_MIN);
        idle.min(self.since + LINGER_MAX)
    }
}

impl Hub {
    /// Sites shall leave this hub, or may stay. How many are served here.
    pub(super) fn set_drained(&mut self, now: Instant, drained: bool) -> usize {
        if drained && self.drain.is_none() {
            self.drain = Some(Drain {
                next: 0,
                due: now,
                began: now,
            });
        } else if !drained {
            self.drain = None;
            for index in self.sites.indices() {
                if let Some(site) = self.sites.get_mut(index) {
                    site.told = false;
                }
            }
        }
        let served = |site: &&HubSite| site.served.is_some() && !site.withdrawn;
        self.sites.iter().filter(served).count()
    }

    /// When the next sites are told.
    pub(super) fn drain_due(&self) -> Option<Instant> {
        self.drain.map(|drain| drain.due)
    }

    /// Tells the next sites to leave.
    pub(super) fn tell_drained(&mut self, now: Instant, links: &mut Links) {
        let Some(mut drain) = self.drain.filter(|drain| drain.due <= now) else {
            return;
        };
        drain.due = now + TELL_INTERVAL;
        let end = self.sites.indices().end;
        let mut told = 0;
        while told < TOLD && drain.next < end {
            count_steps(1);
            told += usize::from(self.tell_to_leave(links, drain.next));
            drain.next += 1;
        }
        if drain.next >= end {
            drain.due = drain.due.max(drain.began + TELL_AGAIN);
            (drain.next, drain.began) = (0, drain.due);
        }
        self.drain = Some(drain);
    }

    /// Tells one site, if it is served here and knows another hub.
    fn tell_to_leave(&mut self, links: &mut Links, index: usize) -> bool {
        let stays = |site: &&mut HubSite| {
            site.session != 0 && !site.withdrawn && site.leaving.is_none() && site.served.is_some()
        };
        let Some(site) = self.sites.get_mut(index).filter(stays) else {
            return false;
        };
        // A site that knows one hub only claims nothing.
        let Some(known) = self.claims.of(&self.settings.sites, &site.entry) else {
            return false;
        };
        site.told = true;
        site.peer.send_control(links, &message(&known, true));
        self.ready.touch(index);
        true
    }

    /// Another hub serves the site. Whether this one goes on for a while: the site has left because it was told to,
    /// and still listens here.
    pub(super) fn lingers(&mut self, now: Instant, entry: &SiteEntry) -> bool {
        let Some(index) = self.sites.find(&entry.key) else {
            return false;
        };
        let listens = |site: &&mut HubSite| {
            site.told && !site.withdrawn && site.served.is_some() && site.peer.tunnel().any_up()
        };
        let Some(site) = self.sites.get_mut(index).filter(listens) else {
            return false;
        };
        if site.leaving.is_none() {
            let leaving = Leaving {
                since: now,
                last: now,
            };
            site.leaving = Some(leaving);
            self.lingering.retain(|(_, key)| *key != entry.key);
            self.lingering.push_back((now + LINGER_LOOK, entry.key));
            if site.lines.allow(now) {
                tracing::info!(site = site.entry.name, "the site has left this hub");
            }
        }
        true
    }

    /// Whether a site that says hello over this link, with a claim that this hub serves it, has been served by another
    /// hub meanwhile. One that goes on over a connection of before has never left: it has given the move up.
    pub(super) fn has_come_back(&mut self, index: usize, link: LinkId) -> bool {
        let Some(site) = self.sites.get_mut(index) else {
            return false;
        };
        if site.leaving.is_some() && site.links.contains(&link) {
            (site.leaving, site.told) = (None, false);
            return false;
        }
        site.withdrawn || site.leaving.is_some()
    }

    /// When the next site that has left is looked at.
    pub(super) fn lingering_due(&self) -> Option<Instant> {
        self.lingering.front().map(|(at, _)| *at)
    }

    /// Withdraws from the sites that have left and for which nothing comes any more.
    pub(super) fn end_lingering(&mut self, now: Instant, links: &mut Links) {
        while let Some((at, key)) = self.lingering.front().copied()
            && at <= now
        {
            count_steps(1);
            self.lingering.pop_front();
            let index = self.sites.find(&key);
            let Some(site) = index.and_then(|index| self.sites.get_mut(index)) else {
                continue;
            };
            let Some(leaving) = &mut site.leaving else {
                continue;
            };
            if site.peer.tunnel().queue_bytes() > 0 {
                leaving.last = now;
            }
            // Nothing is delivered any more where no path works: another hub can.
            if leaving.due() > now && site.peer.tunnel().any_up() {
                // Nobody is looked at later than this one.
                self.lingering.push_back((now + LINGER_LOOK, key));
                continue;
            }
            let entry = std::sync::Arc::clone(&site.entry);
            match (self.claims.of(&self.settings.sites, &entry), index) {
                (Some(known), _) => self.withdraw(now, links, &entry, &known),
                // The key that has signed is none of the site any more.
                (None, Some(index)) => {
                    self.drop_site(now, links, index, "another hub serves the site");
                }
                (None, None) => {}
            }
        }
    }

    /// A site that has left has another key now.
    pub(super) fn follow_key_of_lingering(&mut self, former: &PublicKey, key: PublicKey) {
        let of = self.lingering.iter_mut().filter(|(_, of)| of == former);
        of.for_each(|(_, of)| *of = key);
    }
}
