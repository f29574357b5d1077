//! The sites of a hub that have said hello: their slots, and how packets, keys and connections find them.
//!
//! Invariants: a panic in the work for one site is noted, and reaches no other site. So work that goes into a tunnel
//! is done in [`Sites::with`] or in [`guarded`]. Keys, addresses and networks lead to slots in use only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, PacketInfo};
use rustc_hash::FxHashMap;

use super::HubSite;
use super::blocks::Blocks;
use crate::settings::SiteEntry;

/// Does work for one site; `None` when it panicked. The caller then gives up everything that the work may have left
/// half done: the tunnel and the connections of that site.
#[inline]
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// All sites that have said hello, by the index of their slots.
#[derive(Debug, Default)]
pub(super) struct Sites {
    slots: Vec<Option<HubSite>>,
    /// Slots that are not in use. The lowest is used first.
    free: BTreeSet<usize>,
    by_key: FxHashMap<PublicKey, usize>,
    by_address: FxHashMap<IpAddr, usize>,
    /// Networks behind relays. They are few, and searched only for addresses that no site has.
    by_network: Vec<(IpNet, usize)>,
    by_block: Blocks<usize>,
    /// How many have a rate.
    rated: usize,
    /// Sites whose work has panicked, to be dropped at the next opportunity.
    failed: Vec<usize>,
}

impl Sites {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.by_key.len()
    }

    /// Whether the rate of any of them is bounded.
    pub(super) const fn any_rated(&self) -> bool {
        self.rated > 0
    }

    /// The slots that may be in use.
    pub(super) fn indices(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// All of them, by slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HubSite> {
        self.slots.iter().flatten()
    }

    /// The site in a slot.
    pub(super) fn get(&self, index: usize) -> Option<&HubSite> {
        self.slots.get(index)?.as_ref()
    }

    /// The same, for what cannot panic, and for work that is guarded as a whole.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut HubSite> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// Does work for the site in a slot. `None` when there is none, or the work panicked: then the site counts as
    /// failed.
    #[inline]
    pub(super) fn with<T>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut HubSite) -> T,
    ) -> Option<T> {
        let site = self.slots.get_mut(index)?.as_mut()?;
        let done = guarded(|| work(site));
        if done.is_none() {
            self.failed.push(index);
        }
        done
    }

    /// The work for the site in a slot has panicked elsewhere.
    pub(super) fn fail(&mut self, index: usize) {
        self.failed.push(index);
    }

    /// The next site whose work has panicked.
    pub(super) fn next_failed(&mut self) -> Option<usize> {
        self.failed.pop()
    }

    /// The site with this key.
    pub(super) fn find(&self, key: &PublicKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The site that a packet to this address goes to.
    #[inline]
    pub(super) fn at(&self, ip: IpAddr) -> Option<usize> {
        let behind = |&&(net, _): &&(IpNet, usize)| net.contains(&ip);
        self.by_address
            .get(&ip)
            .or_else(|| Some(&self.by_network.iter().find(behind)?.1))
            .copied()
    }

    /// The site that a packet goes to, of which `info` is the summary.
    #[inline]
    pub(super) fn receiver(
        &mut self,
        now: Instant,
        packet: &[u8],
        info: &PacketInfo,
    ) -> Option<usize> {
        self.at(info.destination())
            .or_else(|| self.by_block.find(now, packet, info))
    }

    /// Puts a site in a slot.
    pub(super) fn insert(&mut self, site: HubSite) -> usize {
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let entry = &site.entry;
        self.rated += usize::from(entry.rate.is_some());
        self.by_key.insert(entry.key, index);
        let addresses = entry.addresses.iter().map(|ip| (*ip, index));
        self.by_address.extend(addresses);
        let networks = entry.networks.iter().map(|net| (*net, index));
        self.by_network.extend(networks);
        if let Some(block) = entry.block {
            self.by_block.insert(block, index);
        }
        self.slots[index] = Some(site);
        index
    }

    /// Takes a site out of its slot.
    pub(super) fn remove(&mut self, index: usize) -> Option<HubSite> {
        let site = self.slots.get_mut(index)?.take()?;
        self.free.insert(index);
        self.rated -= usize::from(site.entry.rate.is_some());
        if self.by_key.get(&site.entry.key) == Some(&index) {
            self.by_key.remove(&site.entry.key);
        }
        for ip in &site.entry.addresses {
            if self.by_address.get(ip) == Some(&index) {
                self.by_address.remove(ip);
            }
        }
        if !site.entry.networks.is_empty() {
            self.by_network.retain(|&(_, i)| i != index);
        }
        if let Some(block) = site.entry.block {
            self.by_block.remove(block, index);
        }
        Some(site)
    }

    /// A site has this entry from now on: another key or share at the same place. The former entry.
    pub(super) fn replace(
        &mut self,
        index: usize,
        entry: Arc<SiteEntry>,
    ) -> Option<Arc<SiteEntry>> {
        let site = self.slots.get_mut(index)?.as_mut()?;
        if entry.key != site.entry.key {
            self.by_key.remove(&site.entry.key);
            self.by_key.insert(entry.key, index);
            // A slot that the site had by its new key for a moment has taken the addresses along.
            let addresses = entry.addresses.iter().map(|ip| (*ip, index));
            self.by_address.extend(addresses);
            if let Some(block) = entry.block {
                self.by_block.insert(block, index);
            }
        }
        self.rated += usize::from(entry.rate.is_some());
        self.rated -= usize::from(site.entry.rate.is_some());
        Some(std::mem::replace(&mut site.entry, entry))
    }
}
