//! The copy of a fleet's state that a hub keeps: it follows etcd event by event, and can be filled anew.
//!
//! Invariant: the copy is the state of etcd at [`Copy::revision`], whatever the order of fillings and events was, and
//! whatever came twice. A filling or events that lack the fleet, or bring another one, change nothing.
//! A record that a newer program has written again counts as what it said before, so that no site is shut out by an
//! update of other hubs. It counts no longer for a key whose own record is gone.
//! Source: etcd's guarantees of a watch: events come in order, none is missed, one may come again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ropewalk_crypto::digest;
use ropewalk_transport::PublicKey;
use serde::{Deserialize, Serialize};

use crate::record::{
    Claim, Drain, HubLease, META, Meta, Owner, Record, Site, Unreadable, hub_key, owner_key,
    site_key, slot_key, slot_of,
};

/// Version of the file.
const VERSION: u32 = 1;
/// Most bytes of keys and values: some twice what 100,000 sites need. More is no fleet, but somebody who fills the
/// memory of every hub.
pub const BYTES_MAX: usize = 1 << 28;

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

/// A value as etcd has it, not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes in etcd.
    pub value: Vec<u8>,
    /// The revision of etcd that wrote them.
    pub revision: i64,
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
    /// The record of the fleet is damaged, or is a newer program's.
    #[error(
        "the record of the fleet in etcd cannot be read ({0}); if it is damaged, write a backup back with `ropewalk fleet restore`"
    )]
    Unreadable(Unreadable),
    /// Somebody else fills the prefix of the fleet.
    #[error(
        "etcd has more than {BYTES_MAX} bytes below the prefix of this fleet: remove what is none of its records"
    )]
    TooLarge,
    /// Somebody has made the fleet anew, without the sites that the copy has.
    #[error(
        "etcd has a new fleet of this name and key, made by `ropewalk fleet init`, and this hub keeps its copy of the former \
         one (sites there: {0})"
    )]
    Remade(usize),
    /// Parts of the state are not there yet.
    #[error(
        "a backup is being written back to etcd: end `ropewalk fleet restore`, with --force if it was interrupted"
    )]
    Restoring,
}

/// The state of a fleet at one revision of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// Name of the fleet; empty in files of older programs.
    name: String,
    cluster: u64,
    revision: i64,
    complete_at: u64,
    entries: BTreeMap<String, Entry>,
    /// What records of `entries` that cannot be read have said before.
    former: BTreeMap<String, Record>,
    /// Slots that have a record. They follow from the two above, as the next two do.
    slots: BTreeSet<u32>,
    /// Those of them that were freed, with the revision that did it: the longest free first.
    freed: BTreeSet<(i64, u32)>,
    /// Length of all keys and values.
    bytes: usize,
}

/// What a record of the fleet says of the state that it is in.
fn check_meta(fleet: &PublicKey, record: Result<&Record, &Unreadable>) -> Result<(), Foreign> {
    match record {
        Ok(Record::Meta(meta)) if meta.fleet != *fleet => Err(Foreign::Other(meta.fleet)),
        Ok(Record::Meta(meta)) if meta.restoring => Err(Foreign::Restoring),
        Ok(Record::Meta(_)) => Ok(()),
        Err(why) => Err(Foreign::Unreadable(why.clone())),
        Ok(
            Record::Site(_)
            | Record::Slot(..)
            | Record::Key(..)
            | Record::Hub(_)
            | Record::Drain(..)
            | Record::Claim(_),
        ) => Err(Foreign::Missing),
    }
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

    /// Name of the fleet whose state this is; `None` without a state, and in files of older programs.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|name| !name.is_empty())
    }

    /// Notes the name of the fleet, below whose prefix in etcd the copy was read.
    pub fn is_of(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// What to do where etcd has no state of the fleet with this name, and this copy, with its `file`, has one. `None` if it
    /// has none either.
    #[must_use]
    pub fn instead(&self, name: &str, file: &Path) -> Option<String> {
        self.meta()?;
        let file = file.display();
        if let Some(other) = self.name().filter(|other| *other != name) {
            return Some(format!(
                "etcd has no state of fleet {name}, and the copy on this hub, {file}, is one of fleet {other}: correct the \
                 name in [fleet]"
            ));
        }
        let sites = match self.sites().count() {
            0 => return None,
            1 => "1 site".to_owned(),
            count => format!("{count} sites"),
        };
        Some(format!(
            "etcd has no state of fleet {name}, but this hub has a copy with {sites}: write it back with `ropewalk fleet \
             restore {file}`"
        ))
    }

    /// Notes that the copy was the newest state at `at`, seconds since 1970. A clock that was set back counts: a time to
    /// come would make an old copy new.
    pub const fn was_complete(&mut self, at: u64) {
        self.complete_at = at;
    }

    /// Puts an entry in the place of what was there, which has said `former`.
    fn insert(&mut self, key: String, entry: Entry, former: Option<Record>) {
        // A slot is taken, whatever its record says.
        if let Some(slot) = slot_of(&key) {
            self.slots.insert(slot);
            if let Ok(Record::Slot(_, Owner { freed: true, .. })) = &entry.record {
                self.freed.insert((entry.revision, slot));
            }
        }
        self.bytes += key.len() + entry.value.len();
        if let Some(former) = former.filter(|_| entry.record.is_err()) {
            self.former.insert(key.clone(), former);
        }
        self.entries.insert(key, entry);
    }

    /// Takes an entry out. What it said, or has said before.
    fn remove(&mut self, key: &str) -> Option<Record> {
        let entry = self.entries.remove(key)?;
        if let Some(slot) = slot_of(key) {
            self.slots.remove(&slot);
            self.freed.remove(&(entry.revision, slot));
        }
        self.bytes -= key.len() + entry.value.len();
        let former = self.former.remove(key);
        entry.record.ok().or(former)
    }

    /// What is known of sites whose records cannot be read follows the records of their keys: a key that was replaced or
    /// confirmed by another hub has none any more.
    fn follow_keys(&mut self) {
        let entries = &self.entries;
        for record in self.former.values_mut() {
            if let Record::Site(site) = record {
                let is_there = |key: &PublicKey| entries.contains_key(&owner_key(key));
                site.next_key = site.next_key.filter(is_there);
                site.key = site.key.filter(is_there).or_else(|| site.next_key.take());
                site.invitation
                    .take_if(|invitation| !is_there(&invitation.key));
            }
        }
    }

    /// Refuses a fleet that was made anew while this copy has sites: hubs that followed would let all sites go.
    pub(crate) fn check_made(&self, meta: &Meta) -> Result<(), Foreign> {
        if self.meta().is_none_or(|former| !meta.is_remade(former)) {
            return Ok(());
        }
        match self.sites().count() {
            0 => Ok(()),
            sites => Err(Foreign::Remade(sites)),
        }
    }

    /// Every entry by key.
    #[must_use]
    pub const fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Takes the whole state at a revision. What has changed. Values that are as they were are not read again.
    ///
    /// # Errors
    /// It is not the state of this fleet. The copy stays as it is.
    pub fn fill(
        &mut self,
        fleet: &PublicKey,
        cluster: u64,
        revision: i64,
        stored: BTreeMap<String, Stored>,
    ) -> Result<Vec<Change>, Foreign> {
        let bytes = stored.iter().map(|(key, new)| key.len() + new.value.len());
        if bytes.sum::<usize>() > BYTES_MAX {
            return Err(Foreign::TooLarge);
        }
        let meta = stored.get(META).ok_or(Foreign::Missing)?;
        let meta = Record::decode(META, &meta.value);
        check_meta(fleet, meta.as_ref())?;
        if let Ok(Record::Meta(meta)) = &meta {
            self.check_made(meta)?;
        }
        // A panic in between leaves the copy as it was: an empty one would shut all sites out.
        let mut filled = Self {
            name: self.name.clone(),
            cluster,
            revision,
            complete_at: self.complete_at,
            ..Self::default()
        };
        let mut changes = Vec::new();
        for (key, Stored { value, revision }) in stored {
            let said = self.former.get(&key).cloned();
            let (entry, said) = match self.entries.get(&key) {
                Some(Entry {
                    value: same,
                    record,
                    ..
                }) if *same == value => {
                    let record = record.clone();
                    let entry = Entry {
                        value,
                        revision,
                        record,
                    };
                    (entry, said)
                }
                before => {
                    changes.push(Change { key: key.clone() });
                    let before = before.and_then(|before| before.record.as_ref().ok());
                    let said = before.cloned().or(said);
                    (Entry::new(&key, value, revision), said)
                }
            };
            filled.insert(key, entry, said);
        }
        filled.follow_keys();
        let gone = self.entries.keys();
        let gone = gone.filter(|key| !filled.entries.contains_key(*key));
        changes.extend(gone.map(|key| Change { key: key.clone() }));
        *self = filled;
        Ok(changes)
    }

    /// Takes events of a watch: whole revisions, in their order. Those that it has already do nothing. What has changed.
    ///
    /// # Errors
    /// Somebody has removed the fleet from etcd, writes another one in its place, or writes a backup back. The copy
    /// stays as it was before all of these events, so that hubs serve their sites. It has to be filled then.
    pub fn apply(&mut self, fleet: &PublicKey, events: Vec<Event>) -> Result<Vec<Change>, Foreign> {
        let (before, mut newest, mut bytes) = (self.revision, self.revision, self.bytes);
        for event in &events {
            match event {
                Event::Put { revision, .. } | Event::Delete { revision, .. }
                    if *revision <= before => {}
                Event::Put { key, value, .. } => {
                    bytes += key.len() + value.len();
                    if key == META {
                        let meta = Record::decode(key, value);
                        check_meta(fleet, meta.as_ref())?;
                        if let Ok(Record::Meta(meta)) = &meta {
                            self.check_made(meta)?;
                        }
                    }
                }
                Event::Delete { key, .. } if key == META => return Err(Foreign::Missing),
                Event::Delete { .. } => {}
            }
        }
        // A filling counts exactly.
        if bytes > BYTES_MAX {
            return Err(Foreign::TooLarge);
        }
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
                    let said = self.remove(&key);
                    self.insert(key.clone(), entry, said);
                    key
                }
                Event::Delete { key, .. } => {
                    self.remove(&key);
                    key
                }
            };
            changes.push(Change { key });
        }
        self.revision = newest;
        self.follow_keys();
        Ok(changes)
    }

    fn records<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Record> {
        let range = self.entries.range(kind.to_owned()..);
        let range = range.take_while(move |(key, _)| key.starts_with(kind));
        range.filter_map(move |(key, entry)| self.said(key, entry))
    }

    fn record(&self, key: &str) -> Option<&Record> {
        self.said(key, self.entries.get(key)?)
    }

    /// What an entry says, or has said before a newer program wrote it again.
    fn said<'a>(&'a self, key: &str, entry: &'a Entry) -> Option<&'a Record> {
        (entry.record.as_ref().ok()).or_else(|| self.former.get(key))
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

    /// Whether a site has nothing but the addresses and ports of its slot, and the slot and its keys are that site's.
    /// Whoever writes to etcd may write anything, and two sites with one address would get each other's packets.
    #[must_use]
    pub fn is_in_place(&self, site: &Site) -> bool {
        let pools = self.meta().map(|meta| &meta.pools);
        let blocks = pools.and_then(|pools| pools.blocks(site.slot));
        let blocks = blocks.unwrap_or_default();
        let fits = (site.ipv4.is_none() || site.ipv4 == blocks.ipv4)
            && (site.ipv6.is_none() || site.ipv6 == blocks.ipv6)
            && (site.ports.is_none() || site.ports == blocks.ports);
        let key = slot_key(site.slot);
        let is_own = self.entries.get(&key).is_some_and(|slot| {
            match self.said(&key, slot) {
                Some(Record::Slot(_, owner)) => !owner.freed && owner.site == site.name,
                // Of a slot that a newer program has written nobody knows whose it is, if two say that it is theirs.
                _ => (self.sites()).all(|other| other.slot != site.slot || other.name == site.name),
            }
        });
        let of_another = site.keys().any(|key| match self.record(&owner_key(&key)) {
            Some(Record::Key(_, owner)) => owner.site != site.name,
            _ => false,
        });
        fits && is_own && !of_another
    }

    /// Why what stands at this key is not what it should be, if so.
    #[must_use]
    pub fn fault(&self, key: &str) -> Option<String> {
        match &self.entries.get(key)?.record {
            Err(why) => Some(why.to_string()),
            Ok(Record::Site(site)) if !self.is_in_place(site) => {
                Some("the site has addresses, ports or a key that are not its own".to_owned())
            }
            Ok(_) => None,
        }
    }

    /// The site whose key, next key or invitation this is.
    #[must_use]
    pub fn site_of(&self, key: &PublicKey) -> Option<&Site> {
        match self.record(&owner_key(key))? {
            Record::Key(_, Owner { site, .. }) => self.site(site),
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

    /// Which hub serves each site, in the words of the site. A claim by a key that the site does not have now is left
    /// out: whoever can write to etcd can sign with a key of his own. So is one by the former key of a site.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.records("claim/").filter_map(|record| match record {
            Record::Claim(claim) => {
                let site = self.site(&claim.site)?;
                let own = [site.key, site.next_key];
                own.contains(&Some(claim.key)).then_some(claim)
            }
            _ => None,
        })
    }

    /// Slots that a site has, in order.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.records("slot/").filter_map(|record| match record {
            Record::Slot(slot, owner) => (!owner.freed).then_some(*slot),
            _ => None,
        })
    }

    /// Slots that have a record, in order.
    pub(crate) const fn used_slots(&self) -> &BTreeSet<u32> {
        &self.slots
    }

    /// Slots that were freed, with the revision that did it: the longest free first.
    pub(crate) const fn freed_slots(&self) -> &BTreeSet<(i64, u32)> {
        &self.freed
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
        let entries: Vec<FileEntry> = self.entries.iter().filter_map(entry).collect();
        let former = |(key, record): (&String, &Record)| {
            let value = String::from_utf8(record.encode()).ok()?;
            Some((key.clone(), value, 0))
        };
        let former: Vec<FileEntry> = self.former.iter().filter_map(former).collect();
        let file = File {
            v: VERSION,
            fleet: self.name.clone(),
            cluster: self.cluster,
            revision: self.revision,
            complete_at: self.complete_at,
            digest: digest(entries.iter().chain(&former)),
            entries,
            former,
        };
        serde_json::to_string(&file).expect("a file has text keys only")
    }

    /// Reads what [`Self::to_text`] wrote, and checks its digest.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let VersionOnly { v } = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if v > VERSION {
            return Err(format!("format {v} of a newer program"));
        }
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.digest != digest(file.entries.iter().chain(&file.former)) {
            return Err("the file is damaged: its digest is another".to_owned());
        }
        let mut copy = Self {
            name: file.fleet,
            cluster: file.cluster,
            revision: file.revision,
            complete_at: file.complete_at,
            ..Self::default()
        };
        let former = file.former.into_iter().filter_map(|(key, value, _)| {
            let record = Record::decode(&key, value.as_bytes()).ok()?;
            Some((key, record))
        });
        let mut former: BTreeMap<String, Record> = former.collect();
        for (key, value, revision) in file.entries {
            let entry = Entry::new(&key, value.into_bytes(), revision);
            let said = former.remove(&key);
            copy.insert(key, entry, said);
        }
        Ok(copy)
    }
}

type FileEntry = (String, String, i64);

/// SHA-256 of the entries, hexadecimal: a disk may give back other bytes than it took.
fn digest<'a>(entries: impl Iterator<Item = &'a FileEntry>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for (key, value, revision) in entries {
        for text in [key, value] {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        }
        context.update(&revision.to_be_bytes());
    }
    let hexadecimal = |byte: &u8| format!("{byte:02x}");
    context.finish().as_ref().iter().map(hexadecimal).collect()
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

#[derive(Serialize, Deserialize)]
struct File {
    v: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    fleet: String,
    cluster: u64,
    revision: i64,
    complete_at: u64,
    digest: String,
    entries: Vec<FileEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<FileEntry>,
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
