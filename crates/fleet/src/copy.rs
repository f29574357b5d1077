//! The copy of a fleet's state that a hub keeps: it follows etcd event by event, and can be filled anew.
//!
//! Invariant: the copy is the state of etcd at [`Copy::revision`], whatever the order of fillings and events was, and
//! whatever came twice. A filling that lacks the fleet, or has another one, changes nothing.
//! Source: etcd's guarantees of a watch: events come in order, none is missed, one may come again.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_transport::PublicKey;
use serde::{Deserialize, Serialize};

use crate::record::{
    Claim, Drain, HubLease, META, Meta, Owner, Record, Site, Unreadable, hub_key, owner_key,
    site_key,
};

/// Version of the file.
const VERSION: u32 = 1;

/// A record as the copy has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bytes in etcd.
    pub value: Vec<u8>,
    /// The revision of etcd that wrote them.
    pub revision: i64,
    /// What they say.
    pub record: Result<Record, Unreadable>,
}

impl Entry {
    /// Reads an entry.
    #[must_use]
    pub fn new(key: &str, value: Vec<u8>, revision: i64) -> Self {
        let record = Record::decode(key, &value);
        Self {
            value,
            revision,
            record,
        }
    }
}

/// One event of a watch. Keys are without the prefix of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A record was written.
    Put {
        /// Its key.
        key: String,
        /// Its value.
        value: Vec<u8>,
        /// Revision of the write.
        revision: i64,
    },
    /// A record was removed.
    Delete {
        /// Its key.
        key: String,
        /// Revision of the removal.
        revision: i64,
    },
}

/// A key whose record has changed; the copy has the new one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Key, without the prefix of the fleet.
    pub key: String,
}

/// Why a copy does not follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// An empty or a damaged etcd.
    #[error(
        "etcd has no state of this fleet: make one with `ropewalk fleet init`, or write a backup back with `ropewalk \
         fleet restore`"
    )]
    Missing,
    /// The wrong etcd or the wrong prefix.
    #[error(
        "etcd has the state of another fleet, with key {0}: check the endpoints and the name of the fleet"
    )]
    Other(PublicKey),
    /// Parts of the state are not there yet.
    #[error(
        "a backup is being written back to etcd: end `ropewalk fleet restore`, with --force if it was interrupted"
    )]
    Restoring,
}

/// The state of a fleet at one revision of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    cluster: u64,
    revision: i64,
    complete_at: u64,
    entries: BTreeMap<String, Entry>,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "each question is for one kind of record"
)]
impl Copy {
    /// Revision of etcd whose state this is; 0 before the first filling.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.revision
    }

    /// The cluster of etcd that it follows.
    #[must_use]
    pub const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// When the copy was known to be the newest state, seconds since 1970; 0 for never.
    #[must_use]
    pub const fn complete_at(&self) -> u64 {
        self.complete_at
    }

    /// Notes that the copy was the newest state at `at`, seconds since 1970.
    pub fn was_complete(&mut self, at: u64) {
        self.complete_at = self.complete_at.max(at);
    }

    /// Every entry by key.
    #[must_use]
    pub const fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Takes the whole state at a revision. What has changed.
    ///
    /// # Errors
    /// It is not the state of this fleet. The copy stays as it is.
    pub fn fill(
        &mut self,
        fleet: &PublicKey,
        cluster: u64,
        revision: i64,
        entries: BTreeMap<String, Entry>,
    ) -> Result<Vec<Change>, Foreign> {
        match entries.get(META).map(|entry| &entry.record) {
            Some(Ok(Record::Meta(meta))) if meta.fleet == *fleet && meta.restoring => {
                return Err(Foreign::Restoring);
            }
            Some(Ok(Record::Meta(meta))) if meta.fleet == *fleet => {}
            Some(Ok(Record::Meta(meta))) => return Err(Foreign::Other(meta.fleet)),
            _ => return Err(Foreign::Missing),
        }
        let differs = |key: &&String| {
            self.entries.get(*key).map(|entry| &entry.value)
                != entries.get(*key).map(|entry| &entry.value)
        };
        let keys: BTreeSet<_> = self.entries.keys().chain(entries.keys()).collect();
        let changes = keys
            .into_iter()
            .filter(differs)
            .map(|key| Change { key: key.clone() });
        let changes = changes.collect();
        (self.cluster, self.revision, self.entries) = (cluster, revision, entries);
        Ok(changes)
    }

    /// Takes events of a watch. Those that it has already do nothing. What has changed.
    ///
    /// # Errors
    /// Somebody has removed the fleet from etcd. The copy stays as it is, so that hubs serve their sites.
    pub fn apply(&mut self, events: Vec<Event>) -> Result<Vec<Change>, Foreign> {
        let ends = |event: &Event| matches!(event, Event::Delete { key, revision } if key == META && *revision > self.revision);
        if events.iter().any(ends) {
            return Err(Foreign::Missing);
        }
        let (before, mut newest) = (self.revision, self.revision);
        let mut changes = Vec::new();
        for event in events {
            let (Event::Put { revision, .. } | Event::Delete { revision, .. }) = event;
            // Events of one revision come together: those of a revision that the copy has are old.
            if revision <= before || revision < newest {
                continue;
            }
            newest = revision;
            let key = match event {
                Event::Put {
                    key,
                    value,
                    revision,
                } => {
                    let entry = Entry::new(&key, value, revision);
                    self.entries.insert(key.clone(), entry);
                    key
                }
                Event::Delete { key, .. } => {
                    self.entries.remove(&key);
                    key
                }
            };
            changes.push(Change { key });
        }
        self.revision = newest;
        Ok(changes)
    }

    fn records<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Record> {
        let range = self.entries.range(kind.to_owned()..);
        let range = range.take_while(move |(key, _)| key.starts_with(kind));
        range.filter_map(|(_, entry)| entry.record.as_ref().ok())
    }

    fn record(&self, key: &str) -> Option<&Record> {
        self.entries.get(key)?.record.as_ref().ok()
    }

    /// What the fleet has in common.
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        match self.record(META)? {
            Record::Meta(meta) => Some(meta),
            _ => None,
        }
    }

    /// Every site, by name.
    pub fn sites(&self) -> impl Iterator<Item = &Site> {
        self.records("site/").filter_map(|record| match record {
            Record::Site(site) => Some(&**site),
            _ => None,
        })
    }

    /// The site of this name.
    #[must_use]
    pub fn site(&self, name: &str) -> Option<&Site> {
        match self.record(&site_key(name))? {
            Record::Site(site) => Some(site),
            _ => None,
        }
    }

    /// The site whose key, next key or invitation this is.
    #[must_use]
    pub fn site_of(&self, key: &PublicKey) -> Option<&Site> {
        match self.record(&owner_key(key))? {
            Record::Key(_, Owner { site }) => self.site(site),
            _ => None,
        }
    }

    /// Every hub that etcd had when it was last seen.
    pub fn hubs(&self) -> impl Iterator<Item = &HubLease> {
        self.records("hub/").filter_map(|record| match record {
            Record::Hub(hub) => Some(&**hub),
            _ => None,
        })
    }

    /// The hub of this name.
    #[must_use]
    pub fn hub(&self, id: &str) -> Option<&HubLease> {
        match self.record(&hub_key(id))? {
            Record::Hub(hub) => Some(hub),
            _ => None,
        }
    }

    /// The hubs that sites shall leave.
    pub fn drains(&self) -> impl Iterator<Item = (&str, &Drain)> {
        self.records("drain/").filter_map(|record| match record {
            Record::Drain(id, drain) => Some((id.as_str(), drain)),
            _ => None,
        })
    }

    /// Which hub serves each site.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.records("claim/").filter_map(|record| match record {
            Record::Claim(claim) => Some(claim),
            _ => None,
        })
    }

    /// Slots that are taken, in order.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.records("slot/").filter_map(|record| match record {
            Record::Slot(slot, _) => Some(*slot),
            _ => None,
        })
    }

    /// Keys whose records this program cannot read, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = (&str, &Unreadable)> {
        let entries = self.entries.iter();
        entries.filter_map(|(key, entry)| Some((key.as_str(), entry.record.as_ref().err()?)))
    }

    /// The text of the copy's file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let entry = |(key, entry): (&String, &Entry)| {
            let value = String::from_utf8(entry.value.clone()).ok()?;
            Some((key.clone(), value, entry.revision))
        };
        let file = File {
            v: VERSION,
            cluster: self.cluster,
            revision: self.revision,
            complete_at: self.complete_at,
            entries: self.entries.iter().filter_map(entry).collect(),
        };
        serde_json::to_string(&file).expect("a file has text keys only")
    }

    /// Reads what [`Self::to_text`] wrote.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.v > VERSION {
            return Err(format!("format {} of a newer program", file.v));
        }
        let entries = file.entries.into_iter().map(|(key, value, revision)| {
            let entry = Entry::new(&key, value.into_bytes(), revision);
            (key, entry)
        });
        Ok(Self {
            cluster: file.cluster,
            revision: file.revision,
            complete_at: file.complete_at,
            entries: entries.collect(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    v: u32,
    cluster: u64,
    revision: i64,
    complete_at: u64,
    entries: Vec<(String, String, i64)>,
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
