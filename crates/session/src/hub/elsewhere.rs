//! The sites that other workers of the hub serve: packets for them go to those workers.

use std::net::IpAddr;

use ipnet::IpNet;
use ropewalk_transport::{PublicKey, Slice, group_of};
use rustc_hash::FxHashMap;

use crate::settings::{HubSettings, SiteDirectory};

/// Where the sites of other workers are. Empty where one worker serves all.
#[derive(Debug)]
pub(super) struct Others {
    slice: Slice,
    hub: PublicKey,
    by_address: FxHashMap<IpAddr, usize>,
    by_network: Vec<(IpNet, usize)>,
}

impl Others {
    /// Of the sites that are listed now.
    pub(super) fn new(slice: Slice, settings: &HubSettings) -> Self {
        let hub = settings.common.identity.public_key();
        Self::of(slice, hub, &settings.sites)
    }

    fn of(slice: Slice, hub: PublicKey, sites: &SiteDirectory) -> Self {
        let mut others = Self {
            slice,
            hub,
            by_address: FxHashMap::default(),
            by_network: Vec::new(),
        };
        if slice.count() == 1 {
            return others;
        }
        for site in sites.all() {
            let worker = others.worker_of(&site.key);
            if worker != slice.index() {
                let addresses = site.addresses.iter().map(|ip| (*ip, worker));
                others.by_address.extend(addresses);
                let networks = site.networks.iter().map(|net| (*net, worker));
                others.by_network.extend(networks);
            }
        }
        others
    }

    /// Of the sites that are listed now. The hub's key may have changed since it has told sites apart by it; they
    /// are told apart by the first one until the hub starts again.
    pub(super) fn renewed(&self, sites: &SiteDirectory) -> Self {
        Self::of(self.slice, self.hub, sites)
    }

    /// Which sites this worker serves.
    pub(super) const fn slice(&self) -> Slice {
        self.slice
    }

    /// The worker that serves this key.
    pub(super) fn worker_of(&self, key: &PublicKey) -> usize {
        if self.slice.count() == 1 {
            return 0;
        }
        self.slice.worker_of(self.group_of(key))
    }

    /// The group of the site with this key here.
    pub(super) fn group_of(&self, key: &PublicKey) -> u8 {
        group_of(&self.hub, key)
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

    #[test]
    fn each_site_is_elsewhere_for_all_workers_but_one() {
        let key = |number: u8| PublicKey::from_bytes([number; 32]);
        let entry = |number: u8| SiteEntry {
            name: number.to_string(),
            key: key(number),
            addresses: vec![IpAddr::from([10, 0, 0, number])],
            networks: vec![IpNet::new([10, 1, number, 0].into(), 24).unwrap()],
            enabled: true,
            weight: 1,
            rate: None,
        };
        let sites = SiteDirectory::new((1..100).map(entry).collect());
        for count in [1, 2, 5, GROUPS] {
            let workers: Vec<_> = (0..count)
                .filter_map(|index| Slice::new(index, count))
                .map(|slice| Others::of(slice, key(0), &sites))
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
}
