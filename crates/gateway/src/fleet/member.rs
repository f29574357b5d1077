//! The part of a running hub in its fleet: sites from the copy, writes for sites that join, the lease, and claims.
//!
//! Invariants: nothing here waits for etcd longer than 2 s. What has changed in the copy is noted until somebody
//! has taken it over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ropewalk_api::FleetStatus;
use ropewalk_config::token::FLEET_ENDPOINTS_MAX;
use ropewalk_config::{FleetConfig, HubConfig};
use ropewalk_fleet::record::Signature;
use ropewalk_fleet::store::now;
use ropewalk_fleet::{
    Change, Claim, Copy, Done, EtcdState, Fleet, HubLease, Record, Request, WriteError,
};
use ropewalk_session::Statement;
use ropewalk_transport::PublicKey;

use crate::endpoints;
use crate::sites::{Refusal, Sites, Time};

/// Patience with etcd for a site that joins or changes its key. Longer: surer while etcd elects a leader. Shorter: other
/// work of the thread that lets sites in waits less, such as the next revocation.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most claims that are told to the session in one turn of the thread that lets sites in. More: many claims are told sooner,
/// and sites that join meanwhile wait longer. Each costs the session a signature check of some 50 µs if it is news.
const CLAIMS_AT_ONCE: usize = 512;

/// What has changed in the copy and is not taken over yet.
#[derive(Debug, Default)]
struct News {
    /// Anything that the list of sites follows from.
    sites: bool,
    /// Sites with a claim that may be new.
    claims: BTreeSet<String>,
    /// The mark that sites shall leave a hub: this one or another.
    drains: bool,
}

/// A hub in its fleet.
#[derive(Debug)]
pub struct Member {
    fleet: Fleet,
    hub: HubConfig,
    config: FleetConfig,
    /// Its present key.
    key: Mutex<PublicKey>,
    /// Sites that it serves, as last counted.
    sites: AtomicU32,
    news: Arc<Mutex<News>>,
    wake: Wake,
}

/// Says that there is something to take over.
struct Wake(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Wake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wake")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of a site that asked to join, or for another key.
#[derive(Debug)]
pub struct Decided {
    /// Its name.
    pub site: String,
    /// Whether it has the key now, and not only next.
    pub joined: bool,
}

impl Member {
    /// Begins to follow the fleet of this hub, if it has one. `wake` is called when the copy has changed; it must not
    /// wait.
    ///
    /// # Errors
    /// The file of the password cannot be read, or the thread that follows etcd cannot be started.
    pub fn begin(
        hub: &HubConfig,
        key: PublicKey,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> anyhow::Result<Option<Self>> {
        let Some(config) = hub.fleet.as_deref() else {
            return Ok(None);
        };
        let news = Arc::<Mutex<News>>::default();
        let noted = Arc::clone(&news);
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(wake);
        let woken = Arc::clone(&wake);
        let tell = move |changes: &[Change]| {
            note(&mut lock(&noted), changes);
            woken();
        };
        let fleet = Fleet::open(super::options(hub, config, false)?, Box::new(tell))
            .context("the fleet of this hub")?;
        let member = Self {
            fleet,
            hub: hub.clone(),
            config: config.clone(),
            key: Mutex::new(key),
            sites: AtomicU32::new(0),
            news,
            wake: Wake(wake),
        };
        // The copy of the disk was there before anybody could be told.
        member.put_sites_back();
        lock(&member.news).drains = true;
        member.look_at_all_claims();
        Ok(Some(member))
    }

    /// This hub has another key now.
    pub fn has_key(&self, key: PublicKey) {
        *lock(&self.key) = key;
    }

    /// The sites that this hub serves.
    ///
    /// # Errors
    /// The hub has other pools than the fleet.
    pub fn sites(&self) -> anyhow::Result<Sites> {
        self.fleet.read(|copy| super::sites(copy, &self.hub))
    }

    /// The sites of the copy, whether or not this hub can serve them.
    pub fn known_sites(&self) -> Sites {
        self.fleet.read(super::known)
    }

    /// Whether the list of sites may have changed since it was taken last.
    pub fn has_sites(&self) -> bool {
        lock(&self.news).sites
    }

    /// The list of sites is about to be taken over.
    pub fn take_sites(&self) {
        lock(&self.news).sites = false;
    }

    /// The list was not taken over: it has to be tried again.
    pub fn put_sites_back(&self) {
        lock(&self.news).sites = true;
    }

    /// Whether something was not taken over.
    pub fn has_news(&self) -> bool {
        let news = lock(&self.news);
        news.sites || news.drains || !news.claims.is_empty()
    }

    /// Whether sites shall leave this hub, if that may have changed since this was asked last.
    pub fn take_drained(&self) -> Option<bool> {
        std::mem::take(&mut lock(&self.news).drains).then(|| {
            let own = &self.hub.common.name;
            let is_drained = |copy: &Copy| copy.drains().any(|(hub, _)| hub == own);
            self.fleet.read(is_drained)
        })
    }

    /// Claims of these sites may be told again: their hub knew no such site when they came.
    pub fn look_at_claims_of<'a>(&self, sites: impl Iterator<Item = &'a String>) {
        lock(&self.news).claims.extend(sites.cloned());
    }

    /// All claims may be told again.
    pub fn look_at_all_claims(&self) {
        let all = |copy: &Copy| copy.claims().map(|claim| claim.site.clone()).collect();
        let all: BTreeSet<String> = self.fleet.read(all);
        lock(&self.news).claims.extend(all);
    }

    /// Some of the claims that may be news to the session, each as its site has signed it. Where more are left, whoever
    /// takes news over is woken again.
    pub fn take_claims(&self) -> Vec<Statement> {
        let (names, more) = some(&mut lock(&self.news).claims);
        if more {
            (self.wake.0)();
        }
        let of = |copy: &Copy| {
            let claims = names.iter().filter_map(|name| claim_of(copy, name));
            claims.collect()
        };
        self.fleet.read(of)
    }

    /// Gives the holder of an invitation, or of a key, this key. `Err` says that nothing is decided: the site asks again.
    ///
    /// # Errors
    /// Etcd does not answer, or the fleet takes no changes now.
    pub fn enrol(
        &self,
        by: PublicKey,
        key: PublicKey,
        proved: bool,
    ) -> anyhow::Result<Result<Decided, Refusal>> {
        let request = Request::Enrol {
            by,
            key,
            proved,
            now: now(),
        };
        match self.write(request)? {
            Ok(Done::Site(site)) => Ok(Ok(Decided {
                joined: site.key == Some(key),
                site: site.name,
            })),
            Ok(Done::Nothing) => {
                anyhow::bail!("the fleet gave no answer; this is a fault of the program")
            }
            Err(refusal) => refused(refusal).map(Err),
        }
    }

    /// Whether this very enrolment is known to be done already, so that its answer was lost.
    pub fn is_enrolled(&self, by: &PublicKey, key: &PublicKey) -> bool {
        self.fleet.read(|copy| {
            let site = copy.site_of(by);
            site.is_some_and(|site| [site.key, site.next_key].contains(&Some(*key)))
        })
    }

    /// A site has connected with its next key: the former one ends. The name of the site, if it had another key.
    ///
    /// # Errors
    /// Etcd does not answer, or refuses.
    pub fn confirm(&self, next: PublicKey) -> anyhow::Result<Option<String>> {
        let had_another = self.fleet.read(|copy| {
            copy.site_of(&next)
                .is_some_and(|site| site.next_key == Some(next))
        });
        if !had_another {
            return Ok(None);
        }
        match self.write(Request::Confirm { next })? {
            Ok(Done::Site(site)) => Ok(Some(site.name)),
            Ok(Done::Nothing) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// A write, at once refused while etcd is known to be away: whoever waits here keeps others waiting.
    fn write(&self, request: Request) -> anyhow::Result<Result<Done, ropewalk_fleet::Refusal>> {
        let etcd = self.fleet.status().etcd;
        if !matches!(etcd, EtcdState::There) {
            let etcd = super::etcd(etcd);
            anyhow::bail!(
                "etcd {} ({}); known sites go on",
                super::matter(&etcd),
                etcd.why.unwrap_or_default()
            );
        }
        match self.fleet.write(request, PATIENCE) {
            Ok(done) => Ok(Ok(done)),
            Err(WriteError::Refused(refusal)) if !refusal.is_of_state() => Ok(Err(refusal)),
            Err(error) => Err(error.into()),
        }
    }

    /// This hub serves a site, as the site has signed.
    pub fn serves(&self, site: &str, statement: &Statement) {
        let claim = Claim {
            site: site.to_owned(),
            key: statement.site,
            epoch: statement.epoch,
            hub: statement.hub,
            signature: Signature(statement.signature),
        };
        if let Err(why) = self.fleet.queue_claim(claim) {
            tracing::debug!(site, %why, "a claim does not wait for etcd");
        }
    }

    /// Says to the fleet that this hub is there, and how many sites it serves.
    pub fn keep_lease(&self, sites: usize) {
        let count = u32::try_from(sites).unwrap_or(u32::MAX);
        self.sites.store(count, Ordering::Relaxed);
        self.fleet.set_lease(Some(self.lease(sites)));
    }

    /// The record of this hub.
    fn lease(&self, sites: usize) -> HubLease {
        let endpoints = match endpoints::of(&self.hub) {
            Ok(found) => found.endpoints,
            Err(error) => {
                tracing::debug!(%error, "this hub has no endpoint for tokens");
                Vec::new()
            }
        };
        HubLease {
            id: self.hub.common.name.clone(),
            key: *lock(&self.key),
            endpoints: endpoints.into_iter().take(FLEET_ENDPOINTS_MAX).collect(),
            tcp_port: self.hub.tcp_port(),
            region: self.config.region.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            certificate: None,
            sites: u32::try_from(sites).unwrap_or(u32::MAX),
        }
    }

    /// Says to the fleet that this hub is gone. Does not wait.
    pub fn leave(&self) {
        self.fleet.set_lease(None);
    }

    /// What this hub knows of its fleet.
    #[must_use]
    pub fn status(&self) -> FleetStatus {
        let mut status = super::status(&self.fleet, &self.hub, &self.config);
        // While etcd is away its record of this hub is older than what this hub knows.
        let mut hubs = status.hubs.iter_mut();
        if let Some(own) = hubs.find(|hub| hub.runs && hub.name == self.hub.common.name) {
            own.sites = self.sites.load(Ordering::Relaxed);
        }
        status
    }
}

/// Takes the first names, [`CLAIMS_AT_ONCE`] at most, and says whether more are left.
fn some(names: &mut BTreeSet<String>) -> (BTreeSet<String>, bool) {
    let rest = names.iter().nth(CLAIMS_AT_ONCE).cloned();
    let rest = rest.map_or_else(BTreeSet::new, |first| names.split_off(&first));
    let some = std::mem::replace(names, rest);
    (some, !names.is_empty())
}

/// Notes what changes of the copy concern.
fn note(news: &mut News, changes: &[Change]) {
    for change in changes {
        match change.key.split_once('/') {
            Some(("claim", site)) => {
                news.claims.insert(site.to_owned());
            }
            Some(("drain", _)) => news.drains = true,
            Some(("hub" | "slot", _)) => {}
            Some(_) => news.sites = true,
            // The record of the fleet: it is told with all others, and what is gone is not told then.
            None => (news.sites, news.drains) = (true, true),
        }
    }
}

/// The claim of a site, if a key that the site has now has signed it.
fn claim_of(copy: &Copy, site: &str) -> Option<Statement> {
    let entry = copy.entries().get(&format!("claim/{site}"))?;
    let Ok(Record::Claim(claim)) = &entry.record else {
        return None;
    };
    let site = copy.site(site)?;
    let own = [site.key, site.next_key].contains(&Some(claim.key));
    own.then_some(Statement {
        site: claim.key,
        epoch: claim.epoch,
        hub: claim.hub,
        signature: claim.signature.0,
    })
}

/// Why the fleet refuses, in the words of a single hub.
///
/// # Errors
/// What is nothing for a site to hear.
fn refused(refusal: ropewalk_fleet::Refusal) -> anyhow::Result<Refusal> {
    use ropewalk_fleet::Refusal as Fleets;
    Ok(match refusal {
        Fleets::Revoked => Refusal::Revoked,
        Fleets::Disabled(site) => Refusal::Disabled(site),
        Fleets::Used(joined) => Refusal::Used {
            at: Time::from_unix(joined.at),
            key: joined.key,
        },
        Fleets::Ended(at) => Refusal::Ended(Time::from_unix(at)),
        Fleets::KeyTaken(owner) => Refusal::KeyTaken(owner),
        other @ (Fleets::NoFleet
        | Fleets::OtherFleet(_)
        | Fleets::Remade
        | Fleets::Restoring
        | Fleets::Unreadable(..)
        | Fleets::Name(_)
        | Fleets::NameTaken(_)
        | Fleets::NoSite(_)
        | Fleets::Full(_)
        | Fleets::Older { .. }
        | Fleets::Forged(_)) => return Err(other.into()),
    })
}

/// A hub in a fleet whose etcd nobody reaches, with its files in `directory`.
#[cfg(test)]
pub(crate) fn without_etcd(directory: &std::path::Path, fleet: PublicKey) -> HubConfig {
    let text = format!(
        "name = \"a\"\nstate_dir = \"{}\"\n[listen]\npublic = [\"a.example:4443\"]\n[pool]\nipv4 = \
         \"10.9.0.0/16\"\n[network]\nmasquerade = false\n[fleet]\nname = \"north\"\nkey = \"{fleet}\"\n\
         endpoints = [\"http://127.0.0.1:1\"]\n",
        directory.display()
    );
    ropewalk_config::hub::parse(&directory.join("hub.toml"), &text).expect("a configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_claims_are_told_in_parts_and_each_once() {
        let all: BTreeSet<String> = (0..1_200).map(|n| format!("s{n}")).collect();
        let (mut left, mut told) = (all.clone(), BTreeSet::new());
        for (count, more) in [(512, true), (512, true), (176, false), (0, false)] {
            let (part, is_more) = some(&mut left);
            assert_eq!((part.len(), is_more), (count, more));
            told.extend(part);
        }
        assert_eq!(told, all);
    }

    #[test]
    fn the_record_of_a_hub_has_the_key_that_the_hub_has_now() {
        let directory = tempfile::tempdir().unwrap();
        let [fleet, first, second] = [1, 2, 3].map(|number| PublicKey::from_bytes([number; 32]));
        let hub = without_etcd(directory.path(), fleet);
        let member = Member::begin(&hub, first, || {}).unwrap().unwrap();
        assert_eq!(member.lease(3).key, first);
        member.has_key(second);
        assert_eq!(member.lease(3).key, second);
    }

    #[test]
    fn the_status_has_this_hubs_own_count_of_its_sites_while_etcd_is_away() {
        let directory = tempfile::tempdir().unwrap();
        let [fleet, key] = [1, 2].map(|number| PublicKey::from_bytes([number; 32]));
        let hub = without_etcd(directory.path(), fleet);
        let member = Member::begin(&hub, key, || {}).unwrap().unwrap();
        let meta = Record::Meta(ropewalk_fleet::Meta {
            fleet,
            pools: super::super::pools(&hub),
            restoring: false,
            made: None,
            replaces: None,
            rest: ropewalk_fleet::record::Rest::new(),
        });
        let records = [meta, Record::Hub(Box::new(member.lease(7)))];
        drop(member);
        let stored = records.iter().map(|record| {
            let (value, revision) = (record.encode(), 1);
            (
                record.key(),
                ropewalk_fleet::copy::Stored { value, revision },
            )
        });
        let mut copy = Copy::default();
        copy.fill(&fleet, 1, 1, stored.collect()).unwrap();
        std::fs::write(super::super::copy_file(&hub), copy.to_text()).unwrap();
        let member = Member::begin(&hub, key, || {}).unwrap().unwrap();
        member.keep_lease(3);
        assert_eq!(member.status().hubs[0].sites, 3);
    }

    #[test]
    fn only_what_the_list_of_sites_follows_from_asks_for_a_new_list() {
        let change = |key: &str| Change {
            key: key.to_owned(),
        };
        let mut news = News::default();
        note(
            &mut news,
            &["hub/a", "drain/a", "slot/00000001", "claim/boat"].map(change),
        );
        assert!(!news.sites && news.drains);
        assert_eq!(news.claims, ["boat".to_owned()].into());
        for key in ["meta", "site/boat", "key/AAAA"] {
            let mut news = News::default();
            note(&mut news, &[change(key)]);
            assert!(news.sites, "{key}");
        }
    }
}
