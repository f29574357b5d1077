//! What happened to a fleet, and whether it may have happened: a checker without a clock, as those of Jepsen.
//!
//! Hubs invite and revoke sites at the same time, while hubs and members of etcd die and networks are cut. Everything
//! that commands answered and hubs said is an [`Event`]. [`check`] finds what no run may have:
//!
//! - an address, or a port of a shared address, that two sites have: in one list, by two answers, or at two hubs;
//! - a site that a hub serves later than [`SHUT_OUT_MS`] after its revocation, though the hub has seen etcd for as long;
//! - an invitation or a revocation that was confirmed, and is not there at the end.
//!
//! An operation takes effect at some time between its begin and its end, if it does. One whose outcome is unknown may
//! take effect for a while after its end, too: a member of etcd that comes back may have it in its log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How long after a revocation a hub that sees etcd may still serve the site, milliseconds.
pub const SHUT_OUT_MS: u64 = 5_000;
/// Two hubs say at the same time what they say within this time, milliseconds.
const SAME_MS: u64 = 1_000;
/// Longest time between two looks at a hub, milliseconds: what it said between is unknown otherwise.
const LOOKS_MS: u64 = 2_500;

/// For how long an operation of unknown outcome may still take effect, milliseconds: longer than any fault lasts.
pub const UNKNOWN_MS: u64 = 60_000;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The change was made.
    Done,
    /// Nothing was changed.
    Refused,
    /// The site to be revoked was not there. An earlier attempt of the command, whose answer was lost, may have revoked it.
    Absent,
    /// The change may have been made, or will be within [`UNKNOWN_MS`], or not.
    Unknown,
}

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A site is to be there.
    Invite,
    /// A site is to be gone.
    Revoke,
}

/// A command and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Where it was asked for.
    pub hub: String,
    /// What.
    pub change: Change,
    /// The site.
    pub site: String,
    /// When the command began and ended, milliseconds.
    pub begin_ms: u64,
    /// The end.
    pub end_ms: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The site's addresses, of an invitation that was made.
    pub blocks: Vec<String>,
}

impl Operation {
    /// Until when it may take effect.
    const fn effect_ends_ms(&self) -> u64 {
        match self.outcome {
            Outcome::Unknown => self.end_ms.saturating_add(UNKNOWN_MS),
            Outcome::Done | Outcome::Refused | Outcome::Absent => self.end_ms,
        }
    }
}

/// A site and its addresses: `10.86.0.17`, `fd86:1::11`, `203.0.113.7:1024-2031`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub site: String,
    /// Its addresses.
    pub blocks: Vec<String>,
}

/// What a running hub said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// The hub.
    pub hub: String,
    /// When, milliseconds.
    pub at_ms: u64,
    /// Whether it runs and sees etcd.
    pub sees_etcd: bool,
    /// The sites that it serves.
    pub served: Vec<Entry>,
}

/// A list of all sites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Where it was asked for.
    pub hub: String,
    /// When the answer came, milliseconds.
    pub at_ms: u64,
    /// Whether everything had ended and was mended before it was asked for.
    pub last: bool,
    /// The sites.
    pub sites: Vec<Entry>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A command.
    Operation(Operation),
    /// A look at a hub.
    Sight(Sight),
    /// A list.
    List(List),
    /// Something was broken or mended on purpose, for whoever reads the history.
    Fault {
        /// When, milliseconds.
        at_ms: u64,
        /// What.
        what: String,
    },
}

/// What no run may have, in words; empty if all is well.
#[must_use]
pub fn check(events: &[Event]) -> Vec<String> {
    let history = History::new(events);
    let mut broken = Vec::new();
    history.lists(&mut broken);
    history.answers(&mut broken);
    history.hubs(&mut broken);
    history.revoked(&mut broken);
    history.ends(&mut broken);
    broken
}

/// The longest time after its revocation for which a hub that sees etcd was seen to serve a site, milliseconds.
#[must_use]
pub fn longest_after_revocation(events: &[Event]) -> Option<u64> {
    let history = History::new(events);
    let late = history.served_after_revocation(0);
    late.iter().map(|late| late.after_ms).max()
}

/// Events by kind.
struct History<'a> {
    operations: Vec<&'a Operation>,
    /// By hub, in order of time.
    sights: BTreeMap<&'a str, Vec<&'a Sight>>,
    lists: Vec<&'a List>,
}

/// A site that is served though it was revoked.
struct Late<'a> {
    revocation: &'a Operation,
    sight: &'a Sight,
    after_ms: u64,
}

impl<'a> History<'a> {
    fn new(events: &'a [Event]) -> Self {
        let mut history = Self {
            operations: Vec::new(),
            sights: BTreeMap::new(),
            lists: Vec::new(),
        };
        for event in events {
            match event {
                Event::Operation(operation) => history.operations.push(operation),
                Event::Sight(sight) => history.sights.entry(&sight.hub).or_default().push(sight),
                Event::List(list) => history.lists.push(list),
                Event::Fault { .. } => {}
            }
        }
        for sights in history.sights.values_mut() {
            sights.sort_by_key(|sight| sight.at_ms);
        }
        history
    }

    /// Operations on a site that have, or may have, changed something.
    fn changes<'b>(&'b self, site: &'b str, change: Change) -> impl Iterator<Item = &'a Operation> {
        let all = self.operations.iter().copied();
        all.filter(move |one| {
            one.site == site && one.change == change && one.outcome != Outcome::Refused
        })
    }

    /// In one list no two sites have an address.
    fn lists(&self, broken: &mut Vec<String>) {
        for list in &self.lists {
            for (address, one, other) in twice(list.sites.iter()) {
                broken.push(format!(
                    "the list at hub {} at {} ms gives {address} to {one} and to {other}",
                    list.hub, list.at_ms
                ));
            }
        }
    }

    /// What was given to a site is given to nobody else before somebody asks for its revocation.
    fn answers(&self, broken: &mut Vec<String>) {
        let held: Vec<_> = self.held().collect();
        let mut by_place: BTreeMap<IpAddr, Vec<(Block, &Held<'_>)>> = BTreeMap::new();
        for one in &held {
            for block in one
                .operation
                .blocks
                .iter()
                .filter_map(|text| Block::read(text))
            {
                by_place
                    .entry(block.address)
                    .or_default()
                    .push((block, one));
            }
        }
        for given in by_place.values() {
            for (index, (block, one)) in given.iter().enumerate() {
                for (other_block, other) in &given[index + 1..] {
                    let sites = (&one.operation.site, &other.operation.site);
                    let together = one.from_ms < other.to_ms && other.from_ms < one.to_ms;
                    if sites.0 != sites.1 && together && block.meets(other_block) {
                        broken.push(format!(
                            "{} was given to {} at {} ms and to {} at {} ms",
                            block.address, sites.0, one.from_ms, sites.1, other.from_ms
                        ));
                    }
                }
            }
        }
    }

    /// From when to when a site certainly had what it was given.
    fn held(&self) -> impl Iterator<Item = Held<'a>> {
        let given = self.operations.iter().copied().filter(|one| {
            one.change == Change::Invite && one.outcome == Outcome::Done && !one.blocks.is_empty()
        });
        given.map(|operation| {
            let gone = self.changes(&operation.site, Change::Revoke);
            let gone = gone.filter(|gone| gone.effect_ends_ms() > operation.begin_ms);
            Held {
                operation,
                from_ms: operation.end_ms,
                to_ms: gone.map(|gone| gone.begin_ms).min().unwrap_or(u64::MAX),
            }
        })
    }

    /// No two sites have an address at one hub, or at two hubs at the same time.
    fn hubs(&self, broken: &mut Vec<String>) {
        let mut said = BTreeSet::new();
        for (hub, sights) in &self.sights {
            for sight in sights {
                let others = self.sights.iter().filter(|(other, _)| *other != hub);
                let others = others.filter_map(|(_, sights)| latest(sights, sight.at_ms));
                let all = sight
                    .served
                    .iter()
                    .chain(others.flat_map(|other| &other.served));
                for (address, one, other) in twice(all) {
                    if said.insert((address, one, other)) {
                        broken.push(format!(
                            "at {} ms {address} is served for {one} and for {other}; hub {hub} is one of the hubs",
                            sight.at_ms
                        ));
                    }
                }
            }
        }
    }

    /// No revoked site is served for long.
    fn revoked(&self, broken: &mut Vec<String>) {
        let mut said = BTreeSet::new();
        for late in self.served_after_revocation(SHUT_OUT_MS) {
            let (site, hub) = (&late.revocation.site, &late.sight.hub);
            if said.insert((site, hub, late.revocation.end_ms)) {
                broken.push(format!(
                    "hub {hub} serves {site} at {} ms, {} ms after its revocation at hub {}",
                    late.sight.at_ms, late.after_ms, late.revocation.hub
                ));
            }
        }
    }

    /// Sites that are served more than so long after their revocation, by hubs that have seen etcd for
    /// [`SHUT_OUT_MS`].
    fn served_after_revocation(&self, after_ms: u64) -> Vec<Late<'a>> {
        let mut found = Vec::new();
        for revocation in self.operations.iter().copied() {
            if (revocation.change, revocation.outcome) != (Change::Revoke, Outcome::Done) {
                continue;
            }
            // Who may have been invited since is no revoked site.
            let again = self.changes(&revocation.site, Change::Invite);
            let again = again.filter(|again| again.effect_ends_ms() > revocation.begin_ms);
            let until = again.map(|again| again.begin_ms).min().unwrap_or(u64::MAX);
            for sights in self.sights.values() {
                let late =
                    sights.partition_point(|sight| sight.at_ms <= revocation.end_ms + after_ms);
                for index in late..sights.len() {
                    let sight = sights[index];
                    if sight.at_ms >= until {
                        break;
                    }
                    let served = sight.served.iter().any(|one| one.site == revocation.site);
                    if served && has_seen_etcd(&sights[..=index]) {
                        found.push(Late {
                            revocation,
                            sight,
                            after_ms: sight.at_ms - revocation.end_ms,
                        });
                    }
                }
            }
        }
        found
    }

    /// What was confirmed is there at the end.
    fn ends(&self, broken: &mut Vec<String>) {
        for list in self.lists.iter().filter(|list| list.last) {
            let there: BTreeMap<_, _> = list.sites.iter().map(|one| (&one.site, one)).collect();
            for operation in &self.operations {
                if operation.outcome != Outcome::Done || self.may_be_undone(operation) {
                    continue;
                }
                let entry = there.get(&operation.site);
                let lacks =
                    |block: &&String| entry.is_none_or(|entry| !entry.blocks.contains(block));
                match operation.change {
                    Change::Invite if entry.is_none() => broken.push(format!(
                        "{} was invited at hub {} at {} ms, and the last list at hub {} lacks it",
                        operation.site, operation.hub, operation.end_ms, list.hub
                    )),
                    Change::Invite => broken.extend(operation.blocks.iter().find(lacks).map(|block| {
                        format!(
                            "{} was given {block} at {} ms, and has another address in the last list at hub {}",
                            operation.site, operation.end_ms, list.hub
                        )
                    })),
                    Change::Revoke if entry.is_some() => broken.push(format!(
                        "{} was revoked at hub {} at {} ms, and is in the last list at hub {}",
                        operation.site, operation.hub, operation.end_ms, list.hub
                    )),
                    Change::Revoke => {}
                }
            }
        }
    }

    /// Whether what was done may have been undone since.
    fn may_be_undone(&self, operation: &Operation) -> bool {
        let opposite = match operation.change {
            Change::Invite => Change::Revoke,
            Change::Revoke => Change::Invite,
        };
        let mut others = self.changes(&operation.site, opposite);
        others.any(|other| other.effect_ends_ms() > operation.begin_ms)
    }
}

/// From when to when a site certainly has what an answer gave it.
struct Held<'a> {
    operation: &'a Operation,
    from_ms: u64,
    to_ms: u64,
}

/// What this hub said last at a time, if that was then.
fn latest<'a>(sights: &[&'a Sight], at_ms: u64) -> Option<&'a Sight> {
    let after = sights.partition_point(|sight| sight.at_ms <= at_ms);
    let last = sights.get(after.checked_sub(1)?)?;
    (at_ms - last.at_ms <= SAME_MS).then_some(*last)
}

/// Whether a hub has said all the time for [`SHUT_OUT_MS`], at the last of these looks and before, that it sees etcd.
fn has_seen_etcd(sights: &[&Sight]) -> bool {
    let Some(last) = sights.last() else {
        return false;
    };
    let mut next_ms = last.at_ms;
    for sight in sights.iter().rev() {
        if !sight.sees_etcd || next_ms - sight.at_ms > LOOKS_MS {
            return false;
        }
        if last.at_ms - sight.at_ms >= SHUT_OUT_MS {
            return true;
        }
        next_ms = sight.at_ms;
    }
    false
}

/// An address that two of these sites have, and the two.
fn twice<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeSet<(IpAddr, &'a str, &'a str)> {
    let mut places: BTreeMap<IpAddr, Vec<(Block, &str)>> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for entry in entries {
        for block in entry.blocks.iter().filter_map(|text| Block::read(text)) {
            let there = places.entry(block.address).or_default();
            for (other, site) in there.iter() {
                if *site != entry.site && block.meets(other) {
                    let (one, other) =
                        (entry.site.as_str().min(site), entry.site.as_str().max(site));
                    found.insert((block.address, one, other));
                }
            }
            there.push((block, &entry.site));
        }
    }
    found
}

/// An address with its ports; a whole one has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    address: IpAddr,
    first: u16,
    last: u16,
}

impl Block {
    /// `10.86.0.17`, `10.86.0.17/20`, `fd86:1::11` or `203.0.113.7:1024-2031`.
    fn read(text: &str) -> Option<Self> {
        let (plain, _) = text.split_once('/').unwrap_or((text, ""));
        if let Ok(address) = plain.parse() {
            return Some(Self {
                address,
                first: 0,
                last: u16::MAX,
            });
        }
        let (address, ports) = plain.rsplit_once(':')?;
        let (first, last) = ports.split_once('-')?;
        Some(Self {
            address: address.parse().ok()?,
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        })
    }

    const fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

#[cfg(test)]
mod tests;
