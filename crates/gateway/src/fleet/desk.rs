//! What commands do with a fleet: they follow etcd for a moment, and write.
//!
//! Invariant: every wait is bounded. Where etcd does not answer the error says since when, what goes on all the same, and
//! whether something may have been changed.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use ropewalk_api::{FleetHub, FleetStatus};
use ropewalk_config::token::{FLEET_ENDPOINTS_MAX, HUBS_MAX, Place};
use ropewalk_config::{FleetConfig, HubConfig};
use ropewalk_fleet::backup::Difference;
use ropewalk_fleet::plan::Credential as Proof;
use ropewalk_fleet::record::Rest;
use ropewalk_fleet::{
    Copy, Done, EtcdState, Fleet, Invitation, Refusal, Request, WriteError, backup,
};
use ropewalk_host::files;
use ropewalk_transport::PublicKey;

use crate::client::Client;
use crate::exit::NotRunning;
use crate::sites::{Credential, Site, Sites, Terms};

/// How long a command waits for etcd's state before it takes that of the disk. Longer: surer while etcd elects a leader.
const LOOK: Duration = Duration::from_secs(4);
/// How often it looks meanwhile.
const INTERVAL: Duration = Duration::from_millis(20);
/// Patience of a command with a write. Longer: surer while etcd elects a leader, later words where etcd is away.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a command looks whether a hub has fewer sites. Longer: less work, later words.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A hub says every 5 s how many sites it serves: what it has said before this time may be older than the mark.
const COUNTED: Duration = Duration::from_secs(6);
/// Largest copy that is read, bytes; as the fleet itself has it.
const FILE_BYTES_MAX: u64 = 1 << 29;

/// A fleet, as a command has it.
#[derive(Debug)]
pub struct Desk<'a> {
    fleet: Fleet,
    hub: &'a HubConfig,
    config: &'a FleetConfig,
    /// Socket of the hub that may run here.
    socket: &'a Path,
}

impl<'a> Desk<'a> {
    /// Follows the fleet of this hub, and waits for nothing. `socket` is that of the running hub.
    ///
    /// # Errors
    /// The file of the password cannot be read, or the thread cannot be started.
    pub fn open(
        hub: &'a HubConfig,
        config: &'a FleetConfig,
        socket: &'a Path,
    ) -> anyhow::Result<Self> {
        let options = super::options(hub, config, true)?;
        let fleet = Fleet::open(options, Box::new(|_| {})).context("the fleet of this hub")?;
        Ok(Self {
            fleet,
            hub,
            config,
            socket,
        })
    }

    /// Waits a moment for etcd: the copy is the newest state then, or the one of the disk.
    pub fn look(&self) {
        let begun = Instant::now();
        let decided = |state: &EtcdState| {
            matches!(
                state,
                EtcdState::There | EtcdState::Denied { .. } | EtcdState::Foreign { .. }
            )
        };
        while !decided(&self.fleet.status().etcd) && begun.elapsed() < LOOK {
            std::thread::sleep(INTERVAL);
        }
    }

    /// Public key of the fleet.
    #[must_use]
    pub const fn key(&self) -> PublicKey {
        self.config.key
    }

    /// What is known of the fleet.
    #[must_use]
    pub fn status(&self) -> FleetStatus {
        super::status(&self.fleet, self.hub, self.config)
    }

    /// The sites of the fleet.
    ///
    /// # Errors
    /// The hub has other pools than the fleet.
    pub fn sites(&self) -> anyhow::Result<Sites> {
        self.fleet.read(|copy| super::sites(copy, self.hub))
    }

    /// Adds a site, or gives it another key.
    ///
    /// # Errors
    /// The fleet refuses, or etcd does not answer.
    pub fn add(&self, name: &str, credential: Credential, terms: Terms) -> anyhow::Result<Site> {
        let credential = match credential {
            Credential::Key(key) => Proof::Key(key),
            Credential::Invitation(invitation) => Proof::Invitation(Invitation {
                key: invitation.key,
                ends: invitation.ends.unix(),
                joined: None,
                rest: Rest::new(),
            }),
        };
        let request = Request::Add {
            name: name.to_owned(),
            credential,
            terms: ropewalk_fleet::Terms {
                replace: terms.replace,
                weight: terms.weight,
                rate_mbit: terms.rate_mbit,
                allow: terms.allow,
            },
        };
        match self.write(request)? {
            Done::Site(site) => Ok(super::site(&site)),
            Done::Nothing => {
                anyhow::bail!("the fleet gave no answer; this is a fault of the program")
            }
        }
    }

    /// Removes a site.
    ///
    /// # Errors
    /// There is none, or etcd does not answer.
    pub fn revoke(&self, name: &str) -> anyhow::Result<()> {
        let name = name.to_owned();
        self.write(Request::Revoke { name }).map(drop)
    }

    /// Marks a hub as one that sites shall leave, or takes the mark away.
    ///
    /// # Errors
    /// There is no such hub, or etcd does not answer.
    pub fn drain(&self, hub: &str, drained: bool) -> anyhow::Result<()> {
        self.look();
        let is_known = self.status().hubs.iter().any(|known| known.name == hub);
        if !is_known {
            let etcd = self.status().etcd;
            anyhow::ensure!(
                etcd.is_there(),
                "etcd {} ({}), and the copy here knows no hub {hub:?}; it knows {}",
                super::matter(&etcd),
                etcd.why.as_deref().unwrap_or_default(),
                self.names()
            );
            let names = self.names();
            anyhow::bail!(
                "the fleet knows no hub {hub:?} that runs or is drained; it knows {names}"
            );
        }
        let since = drained.then(ropewalk_fleet::store::now);
        let hub = hub.to_owned();
        self.write(Request::Drain { hub, since }).map(drop)
    }

    /// Waits until a hub serves no site any more, or does not run, so long at most. How many it serves at the end; `tell`
    /// hears of each change.
    pub fn await_drained(&self, hub: &str, longest: Duration, tell: impl Fn(u32)) -> u32 {
        let begun = Instant::now();
        let mut told = None;
        loop {
            let hubs = self.status().hubs;
            let hub = hubs.iter().find(|known| known.name == hub && known.runs);
            let Some(sites) = hub.map(|hub| hub.sites) else {
                return 0;
            };
            if told.replace(sites) != Some(sites) {
                tell(sites);
            }
            let waited = begun.elapsed();
            if has_waited(sites, waited, longest) {
                return sites;
            }
            std::thread::sleep(LOOK_AGAIN.min(longest.saturating_sub(waited).max(INTERVAL)));
        }
    }

    /// Why sites stay at a hub that is drained, in words.
    #[must_use]
    pub fn why_sites_stay(&self, hub: &str) -> String {
        why_sites_stay(hub, &self.status().hubs)
    }

    /// Names of the hubs that the fleet knows, in words.
    #[must_use]
    pub fn names(&self) -> String {
        let hubs = self.status().hubs;
        let names: Vec<_> = hubs.iter().map(|hub| hub.name.as_str()).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }

    /// The hubs for the token of a new site: this one first, then those with the fewest sites, and one of another
    /// region among them if there is one. `own` is where this hub is reached. Hubs that do not run and hubs that are
    /// drained are left out, unless there is no other.
    #[must_use]
    pub fn places(&self, own: Place) -> Vec<Place> {
        self.fleet
            .read(|copy| places(copy, &self.hub.common.name, &self.config.region, own))
    }

    fn write(&self, request: Request) -> anyhow::Result<Done> {
        self.fleet.write(request, PATIENCE).map_err(|error| {
            if error == WriteError::Refused(Refusal::NoFleet) {
                let file = super::copy_file(self.hub);
                let instead = |copy: &Copy| copy.instead(&self.config.name, &file);
                if let Some(words) = self.fleet.read(instead) {
                    return anyhow::anyhow!(words);
                }
            }
            let away = matches!(error, WriteError::Away { .. });
            if !away {
                return error.into();
            }
            // Whoever runs all the time knows since when.
            let running = Client::new(self.socket).status().ok();
            let etcd = running
                .and_then(|status| status.fleet)
                .map(|fleet| fleet.etcd);
            let since = etcd.filter(|etcd| !etcd.is_there());
            let since = since.map_or_else(String::new, |etcd| {
                format!("for the running hub etcd {}; ", super::matter(&etcd))
            });
            NotRunning(format!("{since}{error}")).into()
        })
    }
}

/// Whether the wait for a drained hub ends. That there are no sites is believed from [`COUNTED`] on only.
fn has_waited(sites: u32, waited: Duration, longest: Duration) -> bool {
    waited >= if sites == 0 { COUNTED } else { longest }
}

/// See [`Desk::why_sites_stay`]. Which hubs are the spares of a site only the site knows.
fn why_sites_stay(hub: &str, hubs: &[FleetHub]) -> String {
    let others = hubs.iter().filter(|other| other.runs && other.name != hub);
    let (drained, open): (Vec<_>, Vec<_>) = others.partition(|other| other.drained_since.is_some());
    let drained: Vec<_> = drained.iter().map(|other| other.name.as_str()).collect();
    match (drained.join(", "), open.is_empty()) {
        (names, _) if names.is_empty() => "which have no spare that answers".to_owned(),
        (names, true) => format!(
            "because their spares are drained, too: no other hub runs that is not ({names}); `ropewalk fleet drain {} --end` \
             takes a mark away",
            drained[0]
        ),
        (names, false) => {
            format!("which have no spare that answers, or whose spares are drained, too ({names})")
        }
    }
}

/// See [`Desk::places`].
fn places(copy: &Copy, name: &str, region: &str, own: Place) -> Vec<Place> {
    let is_drained = |id: &str| copy.drains().any(|(drained, _)| drained == id);
    let mut others: Vec<_> = copy
        .hubs()
        .filter(|hub| hub.id != name && !hub.endpoints.is_empty() && !is_drained(&hub.id))
        .collect();
    others.sort_by(|a, b| (a.sites, &a.id).cmp(&(b.sites, &b.id)));
    let others = others.into_iter().map(|hub| {
        let place = Place {
            key: hub.key,
            tcp_port: hub.tcp_port,
            region: 0,
            endpoints: hub.endpoints.clone(),
        };
        (hub.region.as_str(), place)
    });
    let own = (region, own);
    let serves = copy.hub(name).is_some() && !is_drained(name);
    let mut places: Vec<_> = if serves {
        std::iter::once(own).chain(others).collect()
    } else {
        let mut places: Vec<_> = others.collect();
        if places.is_empty() {
            places.push(own);
        }
        places
    };
    // As many as a token holds are said, too.
    for (_, place) in &mut places {
        place.endpoints.truncate(FLEET_ENDPOINTS_MAX);
    }
    // A hub that was renamed has two names for a while.
    let mut keys = HashSet::new();
    places.retain(|(_, place)| keys.insert(place.key));
    // A region may be lost as a whole.
    let elsewhere = places
        .iter()
        .position(|(region, _)| {
            let home = places[0].0;
            *region != home && !region.is_empty() && !home.is_empty()
        })
        .filter(|elsewhere| *elsewhere >= HUBS_MAX);
    if let Some(elsewhere) = elsewhere {
        places.swap(elsewhere, HUBS_MAX - 1);
    }
    places.truncate(HUBS_MAX);
    let regions: Vec<_> = places.iter().map(|(region, _)| *region).collect();
    let number = |region: &str| {
        let first = regions.iter().position(|other| *other == region);
        let first = first.filter(|_| !region.is_empty());
        first.map_or(0, |first| u8::try_from(first + 1).unwrap_or(0))
    };
    let numbered = places.into_iter().map(|(region, place)| Place {
        region: number(region),
        ..place
    });
    numbered.collect()
}

/// Makes the fleet of this hub, or enlarges its pools to those of this hub.
///
/// # Errors
/// Another fleet is there, or etcd does not answer.
pub fn init(hub: &HubConfig, config: &FleetConfig) -> anyhow::Result<()> {
    backup::init(&super::options(hub, config, true)?, &super::pools(hub))
}

/// Whether [`init`] may have made the fleet although it failed.
#[must_use]
pub fn may_have_made(error: &anyhow::Error) -> bool {
    error.downcast_ref::<backup::MaybeMade>().is_some()
}

/// Writes the state of the fleet to a new file; how many records it has.
///
/// # Errors
/// Etcd does not answer, or the file cannot be written.
pub fn save(hub: &HubConfig, config: &FleetConfig, file: &Path) -> anyhow::Result<usize> {
    backup::backup(&super::options(hub, config, true)?, file)
}

/// Writes a backup back to etcd; what has changed there.
///
/// # Errors
/// The file is no backup of this fleet, etcd has another state, or does not answer.
pub fn restore(
    hub: &HubConfig,
    config: &FleetConfig,
    file: &Path,
    force: bool,
) -> anyhow::Result<Difference> {
    backup::restore(&super::options(hub, config, true)?, file, force)
}

/// The sites that a hub has on its disk, without a word to etcd.
///
/// # Errors
/// The copy is not there or is damaged, or the hub has other pools than the fleet.
pub fn sites_on_disk(hub: &HubConfig) -> anyhow::Result<Sites> {
    let file = super::copy_file(hub);
    let text = files::read_state(&file, FILE_BYTES_MAX)?.with_context(|| {
        format!(
            "there is no copy of the fleet's state yet, {}: start the hub while etcd answers",
            file.display()
        )
    })?;
    let copy = Copy::from_text(&text).map_err(anyhow::Error::msg);
    let copy = copy.with_context(|| format!("{} is damaged; remove it", file.display()))?;
    super::sites(&copy, hub)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use ropewalk_fleet::copy::Stored;
    use ropewalk_fleet::{Drain, HubLease, Meta, Pools, Record};

    fn key(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    /// Hubs with the number of their sites. What follows a dash in their names is their region.
    fn copy(hubs: &[(&str, u32)], drained: &[&str]) -> Copy {
        let hub = |(number, (id, sites)): (usize, &(&str, u32))| {
            Record::Hub(Box::new(HubLease {
                id: (*id).to_owned(),
                key: key(u8::try_from(number).unwrap()),
                endpoints: vec![format!("{id}.example:4443").parse().unwrap()],
                tcp_port: 443,
                region: region(id).to_owned(),
                version: "1".to_owned(),
                certificate: None,
                sites: *sites,
            }))
        };
        let drain = |id: &&str| Record::Drain((*id).to_owned(), Drain { since: 1 });
        let meta = Record::Meta(Meta {
            fleet: key(99),
            pools: Pools {
                ipv4: Some("10.9.0.0/16".parse().unwrap()),
                ipv4_block: 32,
                ..Pools::default()
            },
            restoring: false,
            made: None,
            replaces: None,
            rest: Rest::new(),
        });
        let records = hubs.iter().enumerate().map(hub);
        let records = records.chain(drained.iter().map(drain)).chain([meta]);
        let stored = records.map(|record| {
            let value = record.encode();
            (record.key(), Stored { value, revision: 1 })
        });
        let mut copy = Copy::default();
        copy.fill(&key(99), 1, 1, stored.collect::<BTreeMap<_, _>>())
            .unwrap();
        copy
    }

    fn region(id: &str) -> &str {
        id.split_once('-').map_or("", |(_, region)| region)
    }

    fn all(copy: &Copy, name: &str) -> Vec<Place> {
        let own = Place {
            key: key(50),
            tcp_port: 443,
            region: 0,
            endpoints: vec!["own.example:4443".parse().unwrap()],
        };
        places(copy, name, region(name), own)
    }

    fn hosts(copy: &Copy, name: &str) -> Vec<String> {
        all(copy, name)
            .iter()
            .map(|place| place.endpoints[0].host.clone())
            .collect()
    }

    #[test]
    fn a_hub_with_many_endpoints_is_said_and_told_with_as_many_as_a_token_holds() {
        let endpoint = "own.example:4443".parse().unwrap();
        let own = Place {
            key: key(50),
            tcp_port: 443,
            region: 0,
            endpoints: vec![endpoint; FLEET_ENDPOINTS_MAX + 3],
        };
        let places = places(&copy(&[], &[]), "a", "", own);
        assert_eq!(places[0].endpoints.len(), FLEET_ENDPOINTS_MAX);
    }

    #[test]
    fn a_token_names_this_hub_and_then_those_with_the_fewest_sites_that_run() {
        let hubs = [("a", 9), ("b", 2), ("c", 5), ("d", 1)];
        assert_eq!(
            hosts(&copy(&hubs, &[]), "a"),
            ["own.example", "d.example", "b.example"]
        );
        assert_eq!(
            hosts(&copy(&hubs, &["d"]), "a"),
            ["own.example", "b.example", "c.example"]
        );
        // Whoever invites at a hub that sites shall leave, or that does not run, gets another home.
        assert_eq!(hosts(&copy(&hubs, &["a"]), "a")[0], "d.example");
        assert_eq!(hosts(&copy(&hubs[1..], &[]), "a")[0], "d.example");
        assert_eq!(hosts(&copy(&[], &[]), "a"), ["own.example"]);
        assert_eq!(hosts(&copy(&hubs[..1], &["a"]), "a"), ["own.example"]);
    }

    #[test]
    fn a_wait_ends_in_its_time_and_no_sites_are_believed_after_a_new_count_only() {
        let seconds = Duration::from_secs;
        for (sites, waited, longest, ends) in [
            (2, 2, 3, false),
            (2, 3, 3, true),
            (0, 3, 3, false),
            (0, 6, 3, true),
            (0, 6, 60, true),
            (2, 6, 60, false),
        ] {
            assert_eq!(
                has_waited(sites, seconds(waited), seconds(longest)),
                ends,
                "{sites} sites after {waited} s of {longest} s"
            );
        }
    }

    #[test]
    fn sites_stay_where_every_other_hub_is_drained_and_the_words_say_so() {
        let hub = |name: &str, drained: bool| FleetHub {
            name: name.to_owned(),
            runs: true,
            drained_since: drained.then_some(1),
            ..FleetHub::default()
        };
        let words = |hubs: &[FleetHub]| why_sites_stay("a", hubs);
        let own = hub("a", true);
        let none = words(&[own.clone(), hub("b", false)]);
        assert_eq!(none, "which have no spare that answers");
        let all = words(&[own.clone(), hub("b", true)]);
        assert!(
            all.contains("their spares are drained") && all.contains("drain b --end"),
            "{all}"
        );
        let some = words(&[own, hub("b", true), hub("c", false)]);
        assert!(
            some.contains("or whose spares are drained, too (b)"),
            "{some}"
        );
    }

    #[test]
    fn a_token_names_a_hub_of_another_region_too() {
        let hubs = [("a-n", 9), ("b-n", 1), ("c-n", 2), ("d-s", 7), ("e-s", 8)];
        let places = all(&copy(&hubs, &[]), "a-n");
        let named: Vec<_> = places
            .iter()
            .map(|place| (place.endpoints[0].host.as_str(), place.region))
            .collect();
        let expected = [("own.example", 1), ("b-n.example", 1), ("d-s.example", 3)];
        assert_eq!(named, expected);
        let places = all(&copy(&[("a", 1), ("b", 1)], &[]), "a");
        assert!(places.iter().all(|place| place.region == 0));
    }
}
