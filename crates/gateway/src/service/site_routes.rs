//! Routes to the sites that this hub serves, in a table that a routing daemon reads.
//!
//! The daemon tells other routers, so that packets to a site come to the hub that serves it. A hub that is gone
//! cannot take its routes back, and other routers keep them for a while. So the metric falls with the epoch of the
//! site's statement, and the newest statement wins at once. The kernel takes the routes out with the interface.
//!
//! Invariant: the table has one route for each network of a site that is served, and its metric is that of the newest
//! statement. Sites that share an address have one route for it, with the metric of the newest statement of them all.

use std::collections::BTreeMap;

use ipnet::IpNet;
use ropewalk_io::netlink::{self, RouteSpec};

use super::network::Tun;

/// Metric of a site with one hub. Higher metrics are no metrics of OSPF, which has 24 bits for them (RFC 2328 §A.4.5).
const METRIC_MAX: u32 = 16_000_000;

/// The routes to the sites of a hub.
pub(super) struct SiteRoutes {
    tun: Tun,
    /// Nothing is announced without.
    table: Option<u32>,
    announced: Announced,
}

/// The metrics that each site asks for, by network and by the name of the site: a site may have no address of its own.
#[derive(Debug, Default)]
struct Announced(BTreeMap<IpNet, BTreeMap<String, u32>>);

/// What is to become of a route: its metric before, and the one that it is to have.
type Step = (IpNet, Option<u32>, Option<u32>);

impl Announced {
    /// A site with these addresses asks for this metric, or is gone. The routes that are others now.
    fn set(&mut self, site: &str, addresses: &[IpNet], metric: Option<u32>) -> Vec<Step> {
        let step = |net: &IpNet| {
            let metrics = self.0.entry(*net).or_default();
            let before = metrics.values().min().copied();
            match metric {
                Some(metric) => metrics.insert(site.to_owned(), metric),
                None => metrics.remove(site),
            };
            let after = metrics.values().min().copied();
            if metrics.is_empty() {
                self.0.remove(net);
            }
            (before != after).then_some((*net, before, after))
        };
        addresses.iter().filter_map(step).collect()
    }
}

impl SiteRoutes {
    pub(super) fn new(tun: Tun, table: Option<u32>) -> Self {
        Self {
            tun,
            table,
            announced: Announced::default(),
        }
    }

    /// This hub serves a site with these addresses, as the site has signed in this epoch.
    pub(super) fn serve(&mut self, site: &str, addresses: &[IpNet], epoch: u64) {
        self.take(site, addresses, Some(metric(epoch)));
    }

    /// This hub does not serve the site with these addresses any more.
    pub(super) fn withdraw(&mut self, site: &str, addresses: &[IpNet]) {
        self.take(site, addresses, None);
    }

    fn take(&mut self, site: &str, addresses: &[IpNet], metric: Option<u32>) {
        for (net, before, after) in self.announced.set(site, addresses, metric) {
            // The new one first, so that there is always one.
            if let Some(metric) = after {
                self.change(&net, metric, netlink::add_route);
            }
            if let Some(metric) = before {
                self.change(&net, metric, netlink::delete_route);
            }
        }
    }

    fn change<E: std::fmt::Display>(
        &self,
        net: &IpNet,
        metric: u32,
        change: impl FnOnce(&RouteSpec) -> Result<(), E>,
    ) {
        let Some(table) = self.table else { return };
        if net.addr().is_ipv6() && !self.tun.has_ipv6() {
            return;
        }
        let spec = RouteSpec {
            destination: net.network(),
            prefix: net.prefix_len(),
            ifindex: self.tun.ifindex,
            gateway: None,
            table: Some(table),
            metric: Some(metric),
            mtu: None,
        };
        if let Err(error) = change(&spec) {
            let interface = &self.tun.name;
            tracing::error!(%error, %net, metric, table, interface, "the route to a site is not as it should be");
        }
    }
}

/// The metric of an epoch: lower for a newer one, never 0.
fn metric(epoch: u64) -> u32 {
    let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
    METRIC_MAX.saturating_sub(epoch).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_epoch_has_a_lower_metric_and_no_epoch_has_none() {
        let metrics = [0, 1, 2, 15_999_999, u64::MAX].map(metric);
        assert_eq!(metrics, [16_000_000, 15_999_999, 15_999_998, 1, 1]);
    }

    #[test]
    fn a_shared_address_has_the_metric_of_the_newest_statement_until_its_last_site_is_gone() {
        let nets =
            |texts: [&str; 2]| -> [IpNet; 2] { texts.map(|text| text.parse().expect("a network")) };
        let shared = "203.0.113.7/32";
        let (boat, van) = (nets(["10.9.0.2/32", shared]), nets(["10.9.0.3/32", shared]));
        let mut announced = Announced::default();
        let names = BTreeMap::from([(boat[0], "boat"), (van[0], "van")]);
        let mut set =
            |addresses: &[IpNet], metric| announced.set(names[&addresses[0]], addresses, metric);
        let (own, both) = (boat[0], boat[1]);
        assert_eq!(
            set(&boat, Some(7)),
            [(own, None, Some(7)), (both, None, Some(7))]
        );
        assert_eq!(set(&van, Some(9)), [(van[0], None, Some(9))]);
        assert_eq!(set(&van, Some(9)), [], "nothing new");
        assert_eq!(
            set(&van, Some(5)),
            [(van[0], Some(9), Some(5)), (both, Some(7), Some(5))]
        );
        assert_eq!(
            set(&van, None),
            [(van[0], Some(5), None), (both, Some(5), Some(7))]
        );
        assert_eq!(
            set(&boat, None),
            [(own, Some(7), None), (both, Some(7), None)]
        );
        assert_eq!(set(&boat, None), []);
        assert!(announced.0.is_empty());
    }

    #[test]
    fn sites_without_inner_addresses_do_not_take_each_others_shared_route() {
        let shared = ["203.0.113.7/32".parse().expect("a network")];
        let mut announced = Announced::default();
        announced.set("boat", &shared, Some(7));
        assert_eq!(announced.set("van", &shared, Some(9)), []);
        assert_eq!(
            announced.set("boat", &shared, None),
            [(shared[0], Some(7), Some(9))],
            "the van is there still"
        );
    }
}
