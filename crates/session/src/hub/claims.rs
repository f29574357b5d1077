//! Which hub serves each site, as far as this hub knows, and what follows from that.
//!
//! A site that knows several hubs signs which of them serves it. The statement with the highest epoch holds. This
//! hub learns of it from the site itself, over a connection that carries the tunnel or only waits, or from other
//! hubs by way of the driver. Once another hub serves a site, this one withdraws: it sends the site nothing more,
//! delivers for a moment what is still under way from it, and then forgets the tunnel.
//!
//! Invariants: only genuine statements are kept, one for each site of the list, and only of keys that the site has. The
//! epoch that is known of a key never falls. Of two statements with one epoch the one for the larger key of a hub holds,
//! so that all who have read both agree. A key that takes the place of another one begins anew: nothing that the
//! former key has signed counts any more.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, Pace, count_steps};
use ropewalk_wire::{Claim, Control};
use rustc_hash::{FxHashMap, FxHashSet};

use super::listed::Listed;
use super::tuning::{CLAIM_INTERVAL, CLAIMS, WITHDRAWN_DRAIN};
use super::{Hub, HubSite};
use crate::claim::Statement;
use crate::links::{LinkId, Links};
use crate::session::Event;
use crate::settings::{SiteDirectory, SiteEntry};

/// What is known of all sites.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By the name of the site, which a change of its key leaves as it is.
    known: FxHashMap<String, Known>,
    /// Sites from which this hub has withdrawn, and until when it reads what they have under way, the first to end
    /// first. A site that has come back meanwhile may be there again, later.
    withdrawn: VecDeque<(Instant, PublicKey)>,
    /// Keys that sites will have, and that connections which wait have been made with.
    next_keys: FxHashSet<PublicKey>,
    /// Statements that nobody could have signed but the site, and the site has not.
    forged: u64,
    /// Statements that nobody has looked at because the site or the driver had so many.
    unchecked: u64,
    /// Hellos that were not served because of a claim that this hub knows, or because of their own.
    refused: u64,
}

/// A claim to be told.
pub(super) const fn message(statement: &Statement, drained: bool) -> Control {
    Control::Claim {
        claim: statement.claim(),
        drained,
    }
}

#[derive(Debug, Default)]
struct Known {
    statement: Option<Statement>,
    /// How often statements that come from the site are checked.
    pace: Pace,
    /// How often those of the driver are: other hubs cannot use up what is for the site.
    pace_told: Pace,
}

/// Where a statement comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Site,
    Driver,
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    News,
    /// It says nothing new, or its key is none of the site any more.
    Old,
    Forged,
    Unchecked,
}

/// Whether what this key signs is said by the site: the key that the site has, or will have.
fn speaks(sites: &SiteDirectory, entry: &SiteEntry, key: &PublicKey) -> bool {
    *key == entry.key || sites.now_of(key) == Some(entry.key)
}

/// Whether a statement of the site takes the place of another one.
fn outranks(entry: &SiteEntry, statement: &Statement, known: &Statement) -> bool {
    let rank = |statement: &Statement| (statement.epoch, *statement.hub.as_bytes());
    // What the next key of a site says again stays true when the present one ends.
    let renews = known.site == entry.key && statement.site != entry.key;
    rank(statement) > rank(known) || rank(statement) == rank(known) && renews
}

impl Claims {
    /// The newest statement of a site.
    pub(super) fn of(&self, sites: &SiteDirectory, entry: &SiteEntry) -> Option<Statement> {
        let known = self.known.get(&entry.name)?.statement;
        known.filter(|known| speaks(sites, entry, &known.site))
    }

    /// Takes a statement in if it is newer than what is known, and genuine.
    fn note(
        &mut self,
        now: Instant,
        sites: &SiteDirectory,
        entry: &SiteEntry,
        statement: &Statement,
        source: Source,
    ) -> Noted {
        let newest = self.of(sites, entry);
        let is_newer = newest.map_or(statement.epoch > 0, |newest| {
            outranks(entry, statement, &newest)
        });
        if !is_newer || !speaks(sites, entry, &statement.site) {
            return Noted::Old;
        }
        let known = self.known.entry(entry.name.clone()).or_default();
        let pace = match source {
            Source::Site => &mut known.pace,
            Source::Driver => &mut known.pace_told,
        };
        if !pace.allows(now, CLAIM_INTERVAL, CLAIMS) {
            self.unchecked += 1;
            return Noted::Unchecked;
        }
        if !statement.is_genuine() {
            self.forged += 1;
            return Noted::Forged;
        }
        known.statement = Some(*statement);
        Noted::News
    }

    /// What is known of sites that are not listed any more, or that have other keys now, is forgotten.
    pub(super) fn keep_listed(&mut self, listed: &Listed, sites: &SiteDirectory) {
        self.known.retain(|name, known| {
            let Some(entry) = listed.named(name) else {
                return false;
            };
            known
                .statement
                .take_if(|known| !speaks(sites, entry, &known.site));
            true
        });
    }

    /// A site that has been withdrawn from has another key now.
    pub(super) fn follow_key(&mut self, former: &PublicKey, key: PublicKey) {
        let of = self.withdrawn.iter_mut().filter(|(_, of)| of == former);
        of.for_each(|(_, of)| *of = key);
    }

    /// When the next withdrawal ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.withdrawn.front().map(|(until, _)| *until)
    }

    /// What was counted, by name.
    pub(super) const fn counts(&self) -> [(&'static str, u64); 3] {
        [
            ("claims_forged", self.forged),
            ("claims_refused", self.refused),
            ("claims_unchecked", self.unchecked),
        ]
    }
}

impl Hub {
    /// Whether this hub serves the site that says hello with this claim, or with none. If not, the site is told who
    /// does.
    pub(super) fn serves(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        (key, entry): (&PublicKey, &Arc<SiteEntry>),
        claim: Option<&Claim>,
    ) -> bool {
        if let Some(claim) = claim {
            let statement = Statement::of(*key, claim);
            self.learn(now, links, entry, &statement, Source::Site);
        }
        let Some(known) = self.claims.of(&self.settings.sites, entry) else {
            // A site with one hub claims nothing. A claim that is not known by now is forged.
            self.claims.refused += u64::from(claim.is_some());
            return claim.is_none();
        };
        // The connection proves the site. Another key of the site signs the same epoch otherwise.
        let same = |claim: &Claim| claim.epoch == known.epoch && claim.hub == *known.hub.as_bytes();
        let current = claim.is_none_or(same);
        if self.is_ours(&known.hub) && current {
            return true;
        }
        self.claims.refused += 1;
        links.queue_control(link, &message(&known, self.drain.is_some()));
        false
    }

    /// A site says on a connection that waits which hub serves it.
    pub(super) fn on_claim(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        claim: &Claim,
    ) {
        let Some(pending) = self.pending.get_mut(&link) else {
            return;
        };
        // A site that has left says so over the connections of before.
        pending.waits = pending.site.is_none();
        let (key, site) = (pending.key, pending.site);
        // A site whose key has just changed goes on over its old connections for a while.
        let of_site = |index: usize| Some(Arc::clone(&self.sites.get(index)?.entry));
        let entry = site.and_then(of_site);
        let entry = entry.or_else(|| self.settings.sites.find(&key));
        let Some(entry) = entry.filter(|entry| entry.enabled) else {
            links.close(now, link, "this site is not enabled at the hub");
            return;
        };
        if site.is_none() && key != entry.key {
            self.claims.next_keys.insert(key);
        }
        let statement = Statement::of(key, claim);
        self.learn(now, links, &entry, &statement, Source::Site);
        if let Some(known) = self.claims.of(&self.settings.sites, &entry) {
            links.queue_control(link, &message(&known, self.drain.is_some()));
        }
    }

    /// A statement came by way of the driver; whether it was news.
    pub(super) fn on_claimed(
        &mut self,
        now: Instant,
        links: &mut Links,
        statement: &Statement,
    ) -> Result<usize, String> {
        if self.listed.worker_of(&statement.site) != self.listed.slice().index() {
            return Ok(0);
        }
        let Some(entry) = self.settings.sites.find(&statement.site) else {
            return Err(format!("no site has the key {}", statement.site));
        };
        let said = format!("the claim of site {} for hub {}", entry.name, statement.hub);
        match self.learn(now, links, &entry, statement, Source::Driver) {
            Noted::News => Ok(1),
            Noted::Old => Ok(0),
            Noted::Forged => Err(format!("{said} is not signed by the site")),
            Noted::Unchecked => Err(format!(
                "{said} is one of too many and was not looked at: tell it again in a second"
            )),
        }
    }

    /// Whether this is a key of this hub: the present one, or the one before.
    fn is_ours(&self, hub: &PublicKey) -> bool {
        *hub == self.settings.common.identity.public_key() || self.keys.former() == Some(*hub)
    }

    /// Takes a statement in and withdraws if it names another hub.
    fn learn(
        &mut self,
        now: Instant,
        links: &mut Links,
        entry: &Arc<SiteEntry>,
        statement: &Statement,
        source: Source,
    ) -> Noted {
        let sites = &self.settings.sites;
        let noted = self.claims.note(now, sites, entry, statement, source);
        if noted != Noted::News {
            return noted;
        }
        if !self.is_ours(&statement.hub) {
            if !self.lingers(now, entry) {
                self.withdraw(now, links, entry, statement);
            }
        } else if let Some(index) = self.sites.find(&entry.key)
            && (self.sites.get(index)).is_some_and(|site| site.served.is_some() && !site.withdrawn)
        {
            // The driver goes by the epoch.
            self.announce_served(index);
        }
        noted
    }

    /// Another hub serves the site: nothing more is sent to it from here.
    pub(super) fn withdraw(
        &mut self,
        now: Instant,
        links: &mut Links,
        entry: &SiteEntry,
        statement: &Statement,
    ) {
        // The next key of a site may have signed.
        let Some(index) = self.sites.find(&entry.key) else {
            return;
        };
        let Some(site) = self.sites.get_mut(index).filter(|site| !site.withdrawn) else {
            return;
        };
        site.withdrawn = true;
        site.leaving = None;
        if site.lines.allow(now) {
            let (site, epoch) = (&site.entry.name, statement.epoch);
            tracing::info!(site, hub = %statement.hub, epoch, "another hub serves the site");
        }
        site.peer
            .send_control(links, &message(statement, self.drain.is_some()));
        self.events.push_back(Event::Withdrawn {
            site: site.entry.name.clone(),
            addresses: addresses(&site.entry),
        });
        let until = now + WITHDRAWN_DRAIN;
        site.withdrawn_until = until;
        self.claims.withdrawn.push_back((until, entry.key));
        self.ready.touch(index);
    }

    /// Ends the connections that wait, or have said nothing yet, of keys that no enabled site has any more; of these
    /// keys, or of all.
    pub(super) fn close_revoked(
        &mut self,
        now: Instant,
        links: &mut Links,
        changed: Option<&[PublicKey]>,
    ) {
        let directory = Arc::clone(&self.settings.sites);
        let revoked = |key: &PublicKey| {
            let site = directory.find(key);
            !site.is_some_and(|site| site.enabled) && !directory.is_invitation(key)
        };
        let mut keys: Vec<PublicKey> = match changed {
            Some(changed) => changed.to_vec(),
            None => self.links_of.keys().copied().collect(),
        };
        // The list has no entry of the key that a site would have had.
        let links_of = &self.links_of;
        (self.claims.next_keys).retain(|key| links_of.contains_key(key));
        keys.extend(&self.claims.next_keys);
        count_steps(keys.len());
        keys.retain(revoked);
        // The order of a map by hash differs from run to run.
        keys.sort_unstable_by_key(|key| *key.as_bytes());
        for key in keys {
            let of_key = self.links_of.get(&key).into_iter().flatten().copied();
            // Those of a site that has changed its key end with the former key's grace.
            let strays = |link: &LinkId| {
                let pending = self.pending.get(link);
                pending.is_some_and(|pending| pending.site.is_none())
            };
            let over: Vec<LinkId> = of_key.filter(strays).collect();
            self.close_links(now, links, "the hub's list of sites changed", &over);
        }
    }

    /// Forgets the tunnels of sites whose last packets have had their time.
    pub(super) fn end_withdrawals(&mut self, now: Instant, links: &mut Links) {
        while let Some((until, key)) = self.claims.withdrawn.front().copied()
            && until <= now
        {
            self.claims.withdrawn.pop_front();
            // An earlier withdrawal from the same site does not end a later one.
            let is_over = |site: &HubSite| site.withdrawn && site.withdrawn_until == until;
            if let Some(index) = self.sites.find(&key)
                && self.sites.get(index).is_some_and(is_over)
            {
                self.drop_site(now, links, index, "another hub serves the site");
            }
        }
    }

    /// A site that is served here from now on, or by a newer claim: the driver is told.
    pub(super) fn announce_served(&mut self, index: usize) {
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        let statement = self.claims.of(&self.settings.sites, &site.entry);
        if site.served == Some(statement) {
            return;
        }
        site.served = Some(statement);
        self.events.push_back(Event::Served {
            site: site.entry.name.clone(),
            addresses: addresses(&site.entry),
            statement,
        });
    }
}

/// What packets to a site are sent to; a shared address comes last, which other sites have, too.
pub(super) fn addresses(entry: &SiteEntry) -> Vec<IpNet> {
    let own = entry.addresses.iter().copied().map(IpNet::from);
    let shared = entry.block.map(|block| IpAddr::V4(block.address).into());
    own.chain(entry.networks.iter().copied())
        .chain(shared)
        .collect()
}

impl Hub {
    /// The newest statement of the site of this name that this hub knows.
    #[must_use]
    pub fn statement_of(&self, site: &str) -> Option<Statement> {
        self.claims.known.get(site)?.statement
    }

    /// Whether this hub has a tunnel for the site of this name, and whether it serves the site: `None` without a
    /// tunnel, `Some(false)` once another hub serves the site.
    #[must_use]
    pub fn serves_site(&self, site: &str) -> Option<bool> {
        let mut sites = self.sites.iter();
        let site = sites.find(|of| of.entry.name == site)?;
        Some(!site.withdrawn && site.leaving.is_none())
    }

    /// Of how many sites something is kept about claims, and how many withdrawals are not over.
    #[must_use]
    pub fn claims_kept(&self) -> [usize; 2] {
        [self.claims.known.len(), self.claims.withdrawn.len()]
    }
}
