//! What each write checks and changes: from the records that it was planned from to one transaction of etcd.
//!
//! Invariant: a transaction names every record that it was planned from, with its value or as absent. So of two writes
//! that contradict each other, on whatever hubs, one is refused by etcd and planned anew. Values are compared and no
//! revisions: an etcd that was set back gives the same revisions to other values. The one exception is how long a slot has
//! rested, which only chooses among free slots.
//! A request that comes again changes nothing and has the same answer: an answer may be lost.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_config::egress::Allowed;
use ropewalk_config::values::parse_name;
use ropewalk_transport::PublicKey;

use crate::copy::{Copy, Entry};
use crate::record::{
    Claim, Drain, Invitation, Joined, META, Meta, Owner, Record, Rest, Site, claim_key, drain_key,
    owner_key, site_key, slot_key,
};

/// Among so many free slots the second attempt chooses, and each further attempt among 4 times as many. More make
/// collisions of hubs rarer, fewer keep the addresses in use together.
const SPREAD: u64 = 16;
/// Most slots that were freed and are not given again while others are left. More keep the addresses of a revoked site
/// unused for longer, during which a hub that cannot reach etcd serves that site on. Each is a record of some 100 bytes.
pub const RESTING_MAX: usize = 1024;

/// What a hub asks for. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A site is to be there, with a key or with an invitation.
    Add {
        /// Its name.
        name: String,
        /// Its key, or an invitation.
        credential: Credential,
        /// Its rules.
        terms: Terms,
    },
    /// The holder of the key `by`, of an invitation or of a site, is to be known by `key`.
    Enrol {
        /// Key of the invitation, or present key of the site.
        by: PublicKey,
        /// The key to come.
        key: PublicKey,
        /// Whether the asker has proved to hold `key`.
        proved: bool,
        /// Now.
        now: u64,
    },
    /// A site has connected with its next key: the present one ends.
    Confirm {
        /// The next key.
        next: PublicKey,
    },
    /// The site is to be gone.
    Revoke {
        /// Its name.
        name: String,
    },
    /// A site may connect, or may not.
    Enable {
        /// Its name.
        name: String,
        /// Whether it may.
        enabled: bool,
    },
    /// Sites shall leave a hub from `since` on, or need not.
    Drain {
        /// Name of the hub.
        hub: String,
        /// Since when; `None` takes the mark away.
        since: Option<u64>,
    },
    /// A hub serves a site, as the site has signed it.
    Claim(Claim),
}

/// How a site proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// By the key that it has made.
    Key(PublicKey),
    /// By an invitation, and then by the key that it says.
    Invitation(Invitation),
}

/// What `invite` asks for beside a name and a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// A site of this name gets the new key and keeps its blocks.
    pub replace: bool,
    /// Its weight, if given.
    pub weight: Option<u32>,
    /// Its bound, Mbit/s, if given.
    pub rate_mbit: Option<u32>,
    /// What it may reach, if given.
    pub allow: Option<Vec<Allowed>>,
}

/// What a request has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The site as it is now.
    Site(Box<Site>),
    /// Nothing that has a record left.
    Nothing,
}

/// Why a request is refused. Asking again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No fleet.
    #[error("etcd has no state of this fleet: make one with `ropewalk fleet init`")]
    NoFleet,
    /// Another fleet.
    #[error(
        "etcd has the state of another fleet, with key {0}: check the endpoints and the name of the fleet"
    )]
    OtherFleet(PublicKey),
    /// A new fleet in the place of that of the copy.
    #[error(
        "etcd has a new fleet of this name and key, made by `ropewalk fleet init`, and this hub has a copy of the former one \
         with its sites: `ropewalk fleet status` says what to do"
    )]
    Remade,
    /// A backup is being written back.
    #[error(
        "a backup is being written back: repeat the command when `ropewalk fleet restore` has ended"
    )]
    Restoring,
    /// A record that this program cannot read.
    #[error("the record {0} in etcd cannot be read: {1}")]
    Unreadable(String, crate::record::Unreadable),
    /// Not a name.
    #[error("{0}")]
    Name(String),
    /// The name is taken.
    #[error(
        "there is a site {0} already; use --replace to give it a new key (its present one stops working), or choose another name"
    )]
    NameTaken(String),
    /// There is none.
    #[error("there is no site {0}; `ropewalk invite --list` shows all")]
    NoSite(String),
    /// The key is taken. Whose is for the log of the hub.
    #[error("the fleet does not take this key: every site needs a new one of its own")]
    KeyTaken(String),
    /// Every slot has a site.
    #[error("all {0} places of the fleet's pools are taken; revoke sites or enlarge a pool")]
    Full(u32),
    /// No such invitation or key.
    #[error("the hub has revoked this invitation: ask for a new one")]
    Revoked,
    /// The site is disabled.
    #[error("site {0} is disabled at the hub: ask its operator")]
    Disabled(String),
    /// By another key.
    #[error("this invitation was used by another key: ask for a new one")]
    Used(Joined),
    /// Too late.
    #[error("this invitation has ended: ask for a new one")]
    Ended(u64),
    /// A newer claim stands.
    #[error("site {site} is with another hub since epoch {epoch}")]
    Older {
        /// The site.
        site: String,
        /// The epoch that stands.
        epoch: u64,
    },
    /// Not signed by a key of the site, or not for this epoch and this hub.
    #[error("site {0} has not signed this claim with a key that it has now")]
    Forged(String),
}

impl Refusal {
    /// Whether the state as a whole is closed, or is none of this fleet's: another time the request may succeed.
    #[must_use]
    pub const fn is_of_state(&self) -> bool {
        match self {
            Self::NoFleet
            | Self::OtherFleet(_)
            | Self::Remade
            | Self::Restoring
            | Self::Unreadable(..) => true,
            Self::Name(_)
            | Self::NameTaken(_)
            | Self::NoSite(_)
            | Self::KeyTaken(_)
            | Self::Full(_)
            | Self::Revoked
            | Self::Disabled(_)
            | Self::Used(_)
            | Self::Ended(_)
            | Self::Older { .. }
            | Self::Forged(_) => false,
        }
    }
}

/// What must hold for a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key has no record.
    Absent,
    /// The record has this value.
    Is(Vec<u8>),
}

/// A change of a transaction. Keys are without the prefix of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Writes a record.
    Put(Record),
    /// Removes a record.
    Delete(String),
}

/// Changes that are made together, if all expectations hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub expect: BTreeMap<String, Expect>,
    /// What is changed; nothing if all is there already.
    pub writes: Vec<Write>,
    /// What the caller gets.
    pub done: Done,
}

/// The records that a write is planned from.
#[derive(Debug)]
pub struct View<'a> {
    /// Public key of the fleet: a state with another one is not written to.
    pub fleet: &'a PublicKey,
    /// The copy, which may be old.
    pub copy: &'a Copy,
    /// Whether the copy stands for keys that were not read. A transaction that is planned so is refused by etcd if the
    /// copy is old. A refusal that is planned so, or that nothing is to be changed, may be wrong.
    pub from_copy: bool,
    /// What etcd has for the keys that were asked for.
    pub fresh: &'a BTreeMap<String, Option<Entry>>,
    /// Slots that turned out to be taken, or that other writes of this hub ask for now.
    pub taken: &'a BTreeSet<u32>,
    /// Which attempt this is, from 0.
    pub attempt: u32,
    /// A random number.
    pub draw: u64,
}

/// Why there is no transaction yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplanned {
    /// This key has to be read first.
    Read(String),
    /// Refused.
    Refused(Refusal),
}

impl From<Refusal> for Unplanned {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn owner_of(site: &str) -> Owner {
    Owner {
        site: site.to_owned(),
        freed: false,
    }
}

/// A transaction in the making.
struct Plan<'a> {
    view: &'a View<'a>,
    expect: BTreeMap<String, Expect>,
    writes: Vec<Write>,
}

impl Request {
    /// The transaction that this request asks for.
    ///
    /// # Errors
    /// A record has to be read first, or the request is refused.
    pub fn plan(&self, view: &View<'_>) -> Result<Transaction, Unplanned> {
        let mut plan = Plan {
            view,
            expect: BTreeMap::new(),
            writes: Vec::new(),
        };
        let meta = plan.meta()?;
        let done = match self {
            Self::Add {
                name,
                credential,
                terms,
            } => plan.add(&meta, name, credential, terms)?,
            Self::Enrol {
                by,
                key,
                proved,
                now,
            } => plan.enrol(&meta, by, *key, *proved, *now)?,
            Self::Confirm { next } => plan.confirm(next)?,
            Self::Revoke { name } => plan.revoke(name)?,
            Self::Enable { name, enabled } => {
                let mut site = plan
                    .site(name)?
                    .ok_or_else(|| Refusal::NoSite(name.clone()))?;
                site.enabled = *enabled;
                plan.put_site(site)
            }
            Self::Drain { hub, since } => plan.drain(hub, *since)?,
            Self::Claim(claim) => plan.claim(claim)?,
        };
        Ok(Transaction {
            expect: plan.expect,
            writes: plan.writes,
            done,
        })
    }
}

impl Plan<'_> {
    /// The record of a key, on which the transaction then depends.
    fn get(&mut self, key: String) -> Result<Option<Record>, Unplanned> {
        let entry = match self.view.fresh.get(&key) {
            Some(entry) => entry.as_ref(),
            None if self.view.from_copy => self.view.copy.entries().get(&key),
            None => return Err(Unplanned::Read(key)),
        };
        let Some(entry) = entry else {
            self.expect.insert(key, Expect::Absent);
            return Ok(None);
        };
        let is = Expect::Is(entry.value.clone());
        self.expect.insert(key.clone(), is);
        let record = entry.record.clone();
        Ok(Some(record.map_err(|why| Refusal::Unreadable(key, why))?))
    }

    fn meta(&mut self) -> Result<Meta, Unplanned> {
        match self.get(META.to_owned())? {
            Some(Record::Meta(meta)) if meta.fleet != *self.view.fleet => {
                Err(Refusal::OtherFleet(meta.fleet).into())
            }
            Some(Record::Meta(meta)) if meta.restoring => Err(Refusal::Restoring.into()),
            Some(Record::Meta(meta)) if self.is_remade(&meta) => Err(Refusal::Remade.into()),
            Some(Record::Meta(meta)) => Ok(meta),
            _ => Err(Refusal::NoFleet.into()),
        }
    }

    /// Whether the fleet was made anew, without the sites that the copy has.
    fn is_remade(&self, meta: &Meta) -> bool {
        let former = self.view.copy.meta();
        former.is_some_and(|former| meta.is_remade(former)) && self.view.copy.sites().count() > 0
    }

    fn site(&mut self, name: &str) -> Result<Option<Site>, Unplanned> {
        parse_name(name).map_err(Refusal::Name)?;
        match self.get(site_key(name))? {
            Some(Record::Site(site)) => Ok(Some(*site)),
            _ => Ok(None),
        }
    }

    fn owner(&mut self, key: &PublicKey) -> Result<Option<String>, Unplanned> {
        match self.get(owner_key(key))? {
            Some(Record::Key(_, Owner { site, .. })) => Ok(Some(site)),
            _ => Ok(None),
        }
    }

    /// Takes a key for a site.
    fn take_key(&mut self, meta: &Meta, key: PublicKey, site: &str) -> Result<(), Unplanned> {
        if key == meta.fleet {
            return Err(Refusal::KeyTaken("the fleet".to_owned()).into());
        }
        if let Some(owner) = self.owner(&key)? {
            return Err(Refusal::KeyTaken(format!("site {owner}")).into());
        }
        self.writes
            .push(Write::Put(Record::Key(key, owner_of(site))));
        Ok(())
    }

    /// Gives a key of a site back, unless its record names another site: whoever writes to etcd may write anything.
    fn give_back(&mut self, key: &PublicKey, site: &str) -> Result<(), Unplanned> {
        let is_of_another = match self.owner(key) {
            Err(Unplanned::Refused(Refusal::Unreadable(..))) => false,
            owner => owner?.is_some_and(|owner| owner != site),
        };
        if !is_of_another {
            self.writes.push(Write::Delete(owner_key(key)));
        }
        Ok(())
    }

    /// Frees the slot of a site, unless its record names another site, or another site has the slot, too.
    fn free_slot_of(&mut self, site: &Site) -> Result<(), Unplanned> {
        let is_alone = |copy: &Copy| {
            let mut others = copy.sites().filter(|other| other.name != site.name);
            others.all(|other| other.slot != site.slot)
        };
        let owner = match self.get(slot_key(site.slot)) {
            Ok(Some(Record::Slot(_, owner))) => owner,
            // A newer program has written it, or it is damaged: it is free if nobody else has it.
            Err(Unplanned::Refused(Refusal::Unreadable(..))) if is_alone(self.view.copy) => {
                owner_of(&site.name)
            }
            Ok(_) | Err(Unplanned::Refused(Refusal::Unreadable(..))) => return Ok(()),
            Err(unread) => return Err(unread),
        };
        if owner.site == site.name {
            let freed = Owner {
                freed: true,
                ..owner
            };
            self.writes.push(Write::Put(Record::Slot(site.slot, freed)));
        }
        Ok(())
    }

    fn put_site(&mut self, site: Site) -> Done {
        self.writes
            .push(Write::Put(Record::Site(Box::new(site.clone()))));
        Done::Site(Box::new(site))
    }

    fn add(
        &mut self,
        meta: &Meta,
        name: &str,
        credential: &Credential,
        terms: &Terms,
    ) -> Result<Done, Unplanned> {
        let (key, invitation) = match credential {
            Credential::Key(key) => (Some(*key), None),
            Credential::Invitation(invitation) => (None, Some(invitation.clone())),
        };
        let new = key.or(invitation.as_ref().map(|invitation| invitation.key));
        let new = new.expect("a credential has a key");
        let former = self.site(name)?;
        if let Some(site) = &former {
            if site.keys().any(|key| key == new) {
                return Ok(Done::Site(Box::new(site.clone())));
            }
            if !terms.replace {
                return Err(Refusal::NameTaken(name.to_owned()).into());
            }
        } else if terms.replace {
            return Err(Refusal::NoSite(name.to_owned()).into());
        }
        self.take_key(meta, new, name)?;
        let mut site = match former {
            Some(site) => {
                for key in site.keys() {
                    self.give_back(&key, name)?;
                }
                // The new machine begins with epochs of its own.
                self.writes.push(Write::Delete(claim_key(name)));
                site
            }
            None => self.fresh_site(meta, name)?,
        };
        (site.key, site.next_key, site.invitation) = (key, None, invitation);
        site.enabled = true;
        site.weight = terms.weight.unwrap_or(site.weight);
        site.rate_mbit = terms.rate_mbit.or(site.rate_mbit);
        site.allow = terms.allow.clone().or(site.allow);
        Ok(self.put_site(site))
    }

    /// A site with the blocks of a free slot.
    fn fresh_site(&mut self, meta: &Meta, name: &str) -> Result<Site, Unplanned> {
        let capacity = meta.pools.capacity();
        let slot = self.free_slot(capacity).ok_or(Refusal::Full(capacity))?;
        let blocks = meta.pools.blocks(slot).ok_or(Refusal::Full(capacity))?;
        self.take_slot(slot)?;
        self.writes
            .push(Write::Put(Record::Slot(slot, owner_of(name))));
        Ok(Site {
            name: name.to_owned(),
            key: None,
            next_key: None,
            slot,
            ipv4: blocks.ipv4,
            ipv6: blocks.ipv6,
            ports: blocks.ports,
            enabled: true,
            weight: 1,
            rate_mbit: None,
            allow: None,
            invitation: None,
            rest: Rest::new(),
        })
    }

    /// Makes the transaction depend on the slot being free.
    fn take_slot(&mut self, slot: u32) -> Result<(), Unplanned> {
        let key = slot_key(slot);
        // One without a record need not be read: etcd refuses the transaction if it has one. One with a record is read,
        // whatever the copy says: a copy that is old has slots that were given and freed again since, and hubs may still
        // serve the sites that had those.
        let expected = if self.view.copy.used_slots().contains(&slot) {
            let Some(fresh) = self.view.fresh.get(&key) else {
                return Err(Unplanned::Read(key));
            };
            let known = self.view.copy.entries().get(&key);
            let revision = |entry: &Entry| entry.revision;
            if fresh.as_ref().map(revision) == known.map(revision) {
                self.get(key.clone())?
            } else {
                self.expect.insert(key, Expect::Absent);
                return Ok(());
            }
        } else {
            None
        };
        match expected {
            None | Some(Record::Slot(_, Owner { freed: true, .. })) => {}
            // Another hub has it by now: expecting no record, etcd says so, and the next attempt has another slot.
            Some(_) => {
                self.expect.insert(key, Expect::Absent);
                return Ok(());
            }
        }
        self.expect.entry(key).or_insert(Expect::Absent);
        Ok(())
    }

    /// The first free slot, and after a collision with another hub one of the first free ones by chance. Those that
    /// no site has had come first while fewer than [`RESTING_MAX`] rest, and then those that were freed, the longest
    /// free first.
    fn free_slot(&self, capacity: u32) -> Option<u32> {
        let View {
            copy,
            taken,
            attempt,
            draw,
            ..
        } = *self.view;
        let mut used = copy.used_slots().iter().peekable();
        let unused = (0..capacity).filter(|slot| {
            while used.peek().is_some_and(|used| *used < slot) {
                used.next();
            }
            used.peek() != Some(&slot) && !taken.contains(slot)
        });
        let rested = copy.freed_slots().iter().map(|(_, slot)| *slot);
        let rested = rested.filter(|slot| *slot < capacity && !taken.contains(slot));
        let unused = unused.take(if copy.freed_slots().len() < RESTING_MAX {
            usize::MAX
        } else {
            0
        });
        let among = match attempt {
            0 => 1,
            attempt => SPREAD << (2 * (attempt - 1)).min(16),
        };
        let some: Vec<u32> = unused
            .chain(rested)
            .take(usize::try_from(among).unwrap_or(usize::MAX))
            .collect();
        let index = draw.checked_rem(some.len() as u64)?;
        some.get(usize::try_from(index).ok()?).copied()
    }

    fn enrol(
        &mut self,
        meta: &Meta,
        by: &PublicKey,
        key: PublicKey,
        proved: bool,
        now: u64,
    ) -> Result<Done, Unplanned> {
        let name = self.owner(by)?.ok_or(Refusal::Revoked)?;
        let mut site = self.site(&name)?.ok_or(Refusal::Revoked)?;
        if !site.enabled {
            return Err(Refusal::Disabled(name).into());
        }
        let own = [site.key, site.next_key];
        if own.contains(&Some(*by)) {
            if own.contains(&Some(key)) {
                return Ok(Done::Site(Box::new(site)));
            }
            self.take_proved(meta, key, &name, proved)?;
            if let Some(former) = site.next_key.replace(key) {
                self.give_back(&former, &name)?;
            }
            return Ok(self.put_site(site));
        }
        let invitation = site.invitation.as_mut().filter(|own| own.key == *by);
        let invitation = invitation.ok_or(Refusal::Revoked)?;
        match &invitation.joined {
            Some(joined) if joined.key == key => return Ok(Done::Site(Box::new(site))),
            Some(joined) => return Err(Refusal::Used(joined.clone()).into()),
            None if now >= invitation.ends => return Err(Refusal::Ended(invitation.ends).into()),
            None => {}
        }
        invitation.joined = Some(Joined {
            at: now,
            key,
            rest: Rest::new(),
        });
        self.take_proved(meta, key, &name, proved)?;
        site.key = Some(key);
        Ok(self.put_site(site))
    }

    /// Takes a key whose holder may have proved to hold it. A site that has asked for the key as its next one, and has
    /// not connected with it, may have read it somewhere: that site loses it.
    fn take_proved(
        &mut self,
        meta: &Meta,
        key: PublicKey,
        name: &str,
        proved: bool,
    ) -> Result<(), Unplanned> {
        if proved
            && let Some(other) = self.owner(&key)?
            && other != name
            && let Some(mut site) = self.site(&other)?
            && site.next_key == Some(key)
        {
            site.next_key = None;
            self.put_site(site);
            self.writes
                .push(Write::Put(Record::Key(key, owner_of(name))));
            return Ok(());
        }
        self.take_key(meta, key, name)
    }

    fn confirm(&mut self, next: &PublicKey) -> Result<Done, Unplanned> {
        let name = self.owner(next)?.ok_or(Refusal::Revoked)?;
        let mut site = self.site(&name)?.ok_or(Refusal::Revoked)?;
        if site.next_key != Some(*next) {
            return Ok(Done::Site(Box::new(site)));
        }
        site.next_key = None;
        if let Some(former) = site.key.replace(*next) {
            self.give_back(&former, &name)?;
        }
        Ok(self.put_site(site))
    }

    fn revoke(&mut self, name: &str) -> Result<Done, Unplanned> {
        let site = self
            .site(name)?
            .ok_or_else(|| Refusal::NoSite(name.to_owned()))?;
        self.free_slot_of(&site)?;
        for key in site.keys() {
            self.give_back(&key, name)?;
        }
        let rest = [site_key(name), claim_key(name)];
        self.writes.extend(rest.map(Write::Delete));
        Ok(Done::Site(Box::new(site)))
    }

    fn drain(&mut self, hub: &str, since: Option<u64>) -> Result<Done, Unplanned> {
        parse_name(hub).map_err(Refusal::Name)?;
        let there = self.get(drain_key(hub))?.is_some();
        match since {
            Some(since) if !there => {
                self.writes
                    .push(Write::Put(Record::Drain(hub.to_owned(), Drain { since })));
            }
            None if there => self.writes.push(Write::Delete(drain_key(hub))),
            Some(_) | None => {}
        }
        Ok(Done::Nothing)
    }

    fn claim(&mut self, claim: &Claim) -> Result<Done, Unplanned> {
        let site = match self.site(&claim.site) {
            // Nothing of the site is written here, so what the copy knows will do.
            Err(Unplanned::Refused(Refusal::Unreadable(..))) => {
                self.view.copy.site(&claim.site).cloned()
            }
            read => read?,
        };
        let site = site.ok_or_else(|| Refusal::NoSite(claim.site.clone()))?;
        let own = |key| [site.key, site.next_key].contains(&Some(key));
        if !own(claim.key) || !claim.is_genuine() {
            return Err(Refusal::Forged(claim.site.clone()).into());
        }
        match self.get(claim_key(&claim.site))? {
            Some(Record::Claim(former)) if former == *claim => {}
            // What a key has signed that the site no longer has stands in nobody's way.
            Some(Record::Claim(former)) if own(former.key) && former.epoch >= claim.epoch => {
                let Claim { site, epoch, .. } = former;
                return Err(Refusal::Older { site, epoch }.into());
            }
            _ => self.writes.push(Write::Put(Record::Claim(claim.clone()))),
        }
        Ok(Done::Nothing)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
