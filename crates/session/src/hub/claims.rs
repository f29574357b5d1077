//! Which hub serves each site, as far as this hub knows, and what follows from that.
//!
//! A site that knows several hubs signs which of them serves it. The statement with the highest epoch holds. This
//! hub learns of it from the site itself, over a connection that carries the tunnel or only waits, or from other
//! hubs by way of the driver. Once another hub serves a site, this one withdraws: it sends the site nothing more,
//! delivers for a moment what is still under way from it, and then forgets the tunnel.
//!
//! Invariants: only genuine statements are kept. The epoch that is known of a site never falls.

use std::collections::VecDeque;
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, Pace};
use ropewalk_wire::{Claim, Control};
use rustc_hash::FxHashMap;

use super::Hub;
use super::listed::Listed;
use super::tuning::{CLAIM_INTERVAL, CLAIMS, WITHDRAWN_DRAIN};
use crate::claim::Statement;
use crate::links::{LinkId, Links};
use crate::session::Event;
use crate::settings::SiteEntry;

/// What is known of all sites.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By the name of the site, which a change of its key leaves as it is.
    known: FxHashMap<String, Known>,
    /// Sites from which this hub has withdrawn, and until when it reads what they have under way, the first to end
    /// first.
    withdrawn: VecDeque<(Instant, PublicKey)>,
    /// Statements that nobody could have signed but the site, and the site has not.
    forged: u64,
}

#[derive(Debug, Default)]
struct Known {
    statement: Option<Statement>,
    /// How often statements of the site are checked.
    pace: Pace,
}

impl Claims {
    /// The newest statement of a site.
    fn of(&self, site: &str) -> Option<Statement> {
        self.known.get(site)?.statement
    }

    /// Takes a statement in if it is newer than what is known, and genuine; whether it is.
    fn note(&mut self, now: Instant, site: &str, statement: &Statement) -> bool {
        let known = self.known.entry(site.to_owned()).or_default();
        let newest = known.statement.map_or(0, |known| known.epoch);
        if statement.epoch <= newest || !known.pace.allows(now, CLAIM_INTERVAL, CLAIMS) {
            return false;
        }
        if !statement.is_genuine() {
            self.forged += 1;
            return false;
        }
        known.statement = Some(*statement);
        true
    }

    /// What is known of sites that are not listed any more is forgotten.
    pub(super) fn keep_listed(&mut self, listed: &Listed) {
        self.known.retain(|name, _| listed.has(name));
    }

    /// When the next withdrawal ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.withdrawn.front().map(|(until, _)| *until)
    }

    /// Statements with a wrong signature.
    pub(super) const fn forged(&self) -> u64 {
        self.forged
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
        let ours = self.settings.common.identity.public_key();
        if let Some(claim) = claim {
            self.learn(now, links, entry, &Statement::of(*key, claim));
        }
        let Some(known) = self.claims.of(&entry.name) else {
            // A site with one hub claims nothing. A claim that is not known by now is forged.
            return claim.is_none();
        };
        // The connection proves the site. Another key of the site signs the same epoch otherwise.
        let same = |claim: &Claim| claim.epoch == known.epoch && claim.hub == *known.hub.as_bytes();
        let current = claim.is_none_or(same);
        if known.hub == ours && current {
            return true;
        }
        links.queue_control(link, &Control::Claim(known.claim()));
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
        pending.waits = true;
        let key = pending.key;
        let entry = self.settings.sites.find(&key);
        let Some(entry) = entry.filter(|entry| entry.enabled) else {
            links.close(now, link, "this site is not enabled at the hub");
            return;
        };
        self.learn(now, links, &entry, &Statement::of(key, claim));
        if let Some(known) = self.claims.of(&entry.name) {
            links.queue_control(link, &Control::Claim(known.claim()));
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
        let forged = self.claims.forged;
        let news = self.learn(now, links, &entry, statement);
        if self.claims.forged > forged {
            return Err(format!(
                "the claim of site {} for hub {} is not signed by the site",
                entry.name, statement.hub
            ));
        }
        Ok(usize::from(news))
    }

    /// Takes a statement in and withdraws if it names another hub; whether it was news.
    fn learn(
        &mut self,
        now: Instant,
        links: &mut Links,
        entry: &Arc<SiteEntry>,
        statement: &Statement,
    ) -> bool {
        let news = self.claims.note(now, &entry.name, statement);
        if news && statement.hub != self.settings.common.identity.public_key() {
            self.withdraw(now, links, statement);
        }
        news
    }

    /// Another hub serves the site: nothing more is sent to it from here.
    fn withdraw(&mut self, now: Instant, links: &mut Links, statement: &Statement) {
        let Some(index) = self.sites.find(&statement.site) else {
            return;
        };
        let Some(site) = self.sites.get_mut(index).filter(|site| !site.withdrawn) else {
            return;
        };
        site.withdrawn = true;
        if site.lines.allow(now) {
            let (site, epoch) = (&site.entry.name, statement.epoch);
            tracing::info!(site, hub = %statement.hub, epoch, "another hub serves the site");
        }
        site.peer
            .send_control(links, &Control::Claim(statement.claim()));
        self.events.push_back(Event::Withdrawn {
            site: site.entry.name.clone(),
            addresses: addresses(&site.entry),
        });
        let until = now + WITHDRAWN_DRAIN;
        self.claims.withdrawn.push_back((until, statement.site));
        self.ready.touch(index);
    }

    /// Forgets the tunnels of sites whose last packets have had their time.
    pub(super) fn end_withdrawals(&mut self, now: Instant, links: &mut Links) {
        while let Some((until, key)) = self.claims.withdrawn.front().copied()
            && until <= now
        {
            self.claims.withdrawn.pop_front();
            if let Some(index) = self.sites.find(&key)
                && self.sites.get(index).is_some_and(|site| site.withdrawn)
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
        let statement = self.claims.of(&site.entry.name);
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

/// What packets to a site are sent to.
pub(super) fn addresses(entry: &SiteEntry) -> Vec<IpNet> {
    let own = entry.addresses.iter().copied().map(IpNet::from);
    own.chain(entry.networks.iter().copied()).collect()
}
