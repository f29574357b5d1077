//! The sites of the hub's list, for one worker: those that it serves, and where the others are. Packets for those go
//! to their workers.
//!
//! Invariant: what this knows follows from the list as it was at the last [`Listed::follow`], whatever changes led
//! there. A change costs as much as it concerns, not as much as there is.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_transport::{PublicKey, Slice, group_of};
use ropewalk_types::{Instant, PacketInfo, count_steps};
use rustc_hash::FxHashMap;

use super::blocks::Blocks;
use crate::settings::{HubSettings, SiteDirectory, SiteEntry, SitesSince};

/// Where a packet for a listed site goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The worker that serves the site.
    pub(super) worker: usize,
    /// The site's inner IPv4 address, if the packet is for its ports of a shared address.
    pub(super) inner: Option<Ipv4Addr>,
}

/// The list of sites, as a worker of the hub sees it.
#[derive(Debug)]
pub(super) struct Listed {
    slice: Slice,
    hub: PublicKey,
    /// How many changes of the list are in this.
    seen: u64,
    /// The sites of this worker, by name.
    own: BTreeMap<String, Arc<SiteEntry>>,
    /// Where those of other workers are. Empty where one worker serves all.
    by_address: FxHashMap<IpAddr, usize>,
    by_network: Vec<(IpNet, usize)>,
    /// The workers of all blocks, this one among them.
    by_block: Blocks<Place>,
}

impl Listed {
    /// The sites that are listed now. They are told apart by the key that the hub has now, also when that has
    /// changed, until the hub starts again.
    pub(super) fn new(slice: Slice, settings: &HubSettings) -> Self {
        let hub = settings.common.identity.public_key();
        Self::of(slice, hub, &settings.sites)
    }

    fn of(slice: Slice, hub: PublicKey, sites: &SiteDirectory) -> Self {
        let mut listed = Self {
            slice,
            hub,
            seen: 0,
            own: BTreeMap::new(),
            by_address: FxHashMap::default(),
            by_network: Vec::new(),
            by_block: Blocks::default(),
        };
        listed.follow(sites);
        listed
    }

    /// Takes in how the list has changed. The keys whose entries are others now; `None` when any may be.
    pub(super) fn follow(&mut self, sites: &SiteDirectory) -> Option<Vec<PublicKey>> {
        let (since, version) = sites.since(self.seen);
        self.seen = version;
        match since {
            SitesSince::Changes(changes) => {
                // Sites may have changed places, so all go out before any comes in.
                for old in changes.iter().filter_map(|change| change.old.as_ref()) {
                    self.remove(old);
                }
                for new in changes.iter().filter_map(|change| change.new.as_ref()) {
                    self.insert(new);
                }
                Some(changes.iter().map(|change| change.key).collect())
            }
            SitesSince::All(all) => {
                self.own.clear();
                self.by_address.clear();
                self.by_network.clear();
                self.by_block = Blocks::default();
                all.values().for_each(|entry| self.insert(entry));
                None
            }
        }
    }

    fn insert(&mut self, entry: &Arc<SiteEntry>) {
        let worker = self.worker_of(&entry.key);
        if let Some(block) = entry.block {
            let inner = entry.inner_v4();
            self.by_block.insert(block, Place { worker, inner });
        }
        if worker == self.slice.index() {
            self.own.insert(entry.name.clone(), Arc::clone(entry));
            return;
        }
        let addresses = entry.addresses.iter().map(|ip| (*ip, worker));
        self.by_address.extend(addresses);
        let networks = entry.networks.iter().map(|net| (*net, worker));
        self.by_network.extend(networks);
    }

    fn remove(&mut self, entry: &SiteEntry) {
        let worker = self.worker_of(&entry.key);
        if let Some(block) = entry.block {
            let inner = entry.inner_v4();
            self.by_block.remove(block, Place { worker, inner });
        }
        if worker == self.slice.index() {
            self.own.remove(&entry.name);
            return;
        }
        for ip in &entry.addresses {
            self.by_address.remove(ip);
        }
        if !entry.networks.is_empty() {
            self.by_network
                .retain(|(net, _)| !entry.networks.contains(net));
        }
    }

    /// Which sites this worker serves.
    pub(super) const fn slice(&self) -> Slice {
        self.slice
    }

    /// The sites of this worker, by name.
    pub(super) fn own(&self) -> impl Iterator<Item = &SiteEntry> {
        self.own.values().map(|entry| &**entry)
    }

    /// The site of this name, if this worker has it.
    pub(super) fn named(&self, name: &str) -> Option<&SiteEntry> {
        self.own.get(name).map(|entry| &**entry)
    }

    /// Whether this worker has a site of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.own.contains_key(name)
    }

    /// The worker that serves this key. This computes a hash.
    pub(super) fn worker_of(&self, key: &PublicKey) -> usize {
        count_steps(1);
        if self.slice.count() == 1 {
            return 0;
        }
        self.slice.worker_of(self.group_of(key))
    }

    /// The group of the site with this key here.
    pub(super) fn group_of(&self, key: &PublicKey) -> u8 {
        group_of(&self.hub, key)
    }

    /// Where a packet goes: to another worker; or to this one, if it goes to the block of a site of this worker.
    pub(super) fn receiver(
        &mut self,
        now: Instant,
        packet: &[u8],
        info: &PacketInfo,
    ) -> Option<Place> {
        let by_address = self.find(info.destination());
        by_address
            .map(|worker| Place {
                worker,
                inner: None,
            })
            .or_else(|| self.by_block.find(now, packet, info))
    }

    /// Whether listed sites share this address.
    pub(super) fn shares(&self, ip: Ipv4Addr) -> bool {
        self.by_block.has(ip)
    }

    /// The worker that serves the site with this address, if it is another one.
    pub(super) fn find(&self, ip: IpAddr) -> Option<usize> {
        let behind = |&&(net, _): &&(IpNet, usize)| net.contains(&ip);
        self.by_address
            .get(&ip)
            .or_else(|| Some(&self.by_network.iter().find(behind)?.1))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SiteEntry;
    use ropewalk_transport::GROUPS;
    use ropewalk_types::{Random, steps};

    fn key(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    fn entry(number: u8) -> SiteEntry {
        SiteEntry {
            name: number.to_string(),
            key: key(number),
            addresses: vec![IpAddr::from([10, 0, 0, number])],
            networks: vec![IpNet::new([10, 1, number, 0].into(), 24).unwrap()],
            block: None,
            enabled: true,
            weight: 1,
            rate: None,
        }
    }

    #[test]
    fn each_site_is_elsewhere_for_all_workers_but_one() {
        let sites = SiteDirectory::new((1..100).map(entry).collect());
        for count in [1, 2, 5, GROUPS] {
            let workers: Vec<_> = (0..count)
                .filter_map(|index| Slice::new(index, count))
                .map(|slice| Listed::of(slice, key(0), &sites))
                .collect();
            for number in 1..100 {
                let serving = workers[0].worker_of(&key(number));
                for (index, worker) in workers.iter().enumerate() {
                    let elsewhere = (index != serving).then_some(serving);
                    let address = IpAddr::from([10, 0, 0, number]);
                    let behind = IpAddr::from([10, 1, number, 7]);
                    assert_eq!(worker.find(address), elsewhere);
                    assert_eq!(worker.find(behind), elsewhere);
                    assert_eq!(worker.find([10, 2, 0, 1].into()), None);
                }
            }
        }
    }

    /// What `listed` knows, in an order that does not depend on how it came to know.
    fn contents(listed: &Listed) -> impl PartialEq + std::fmt::Debug {
        let mut by_address: Vec<_> = listed.by_address.iter().map(|(ip, w)| (*ip, *w)).collect();
        by_address.sort_unstable();
        let mut by_network = listed.by_network.clone();
        by_network.sort_unstable();
        (listed.own.clone(), by_address, by_network)
    }

    #[test]
    fn changes_lead_to_what_the_whole_list_leads_to() {
        let mut random = Random::new(5);
        let directory = SiteDirectory::default();
        let Some(slice) = Slice::new(1, 3) else {
            panic!("there is such a worker")
        };
        let mut listed = Listed::of(slice, key(0), &directory);
        let mut places: Vec<u8> = (1..=60).collect();
        let mut all_again = 0;
        for round in 0..400 {
            for _ in 0..=random.next_u64() % 3 {
                // Sites change places, names and weights, come and go.
                for _ in 0..random.next_u64() % 8 {
                    let [a, b] = [0, 1].map(|_| (random.next_u64() % 60) as usize);
                    places.swap(a, b);
                }
                let count = 30 + (random.next_u64() % 30) as u8;
                let site = |number: u8| {
                    let mut site = entry(places[usize::from(number)]);
                    site.key = key(1 + number);
                    site.weight = 1 + (random.next_u64() % 20 / 19) as u32;
                    site
                };
                directory.replace((0..count).map(site).collect());
            }
            let kept = entry(200);
            if round % 50 == 0 {
                // More changes than the directory remembers.
                for _ in 0..40 {
                    directory.replace(vec![kept.clone()]);
                    directory.replace((1..=60).map(entry).collect());
                }
            }
            all_again += usize::from(listed.follow(&directory).is_none());
            let fresh = Listed::of(slice, key(0), &directory);
            assert_eq!(contents(&listed), contents(&fresh), "round {round}");
            assert_eq!(listed.follow(&directory), Some(Vec::new()));
        }
        assert_eq!(all_again, 8);
    }

    #[test]
    fn a_change_costs_what_it_concerns_and_nothing_of_it_is_left_out() {
        for count in [100, 10_000_u32] {
            let numbered = |number: u32| {
                let mut bytes = [0; 32];
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                SiteEntry {
                    name: number.to_string(),
                    key: PublicKey::from_bytes(bytes),
                    addresses: vec![IpAddr::from(number.to_be_bytes())],
                    ..entry(0)
                }
            };
            let mut sites: Vec<_> = (0..count).map(numbered).collect();
            let directory = SiteDirectory::new(sites.clone());
            let Some(slice) = Slice::new(0, 4) else {
                panic!("there is such a worker")
            };
            let mut listed = Listed::of(slice, key(0), &directory);
            sites[7].weight = 3;
            let gone = sites.swap_remove(9);
            directory.replace(sites);
            let before = steps();
            let mut changed = listed.follow(&directory).expect("two changes");
            let cost = steps() - before;
            changed.sort_unstable_by_key(|key| *key.as_bytes());
            assert_eq!(changed, [numbered(7).key, gone.key]);
            assert!(cost <= 4, "{cost} steps of {count} sites");
            let place = listed.find(gone.addresses[0]);
            assert_eq!(place, None, "no worker has it");
        }
    }
}
