//! Routes to the sites that this hub serves, in a table that a routing daemon reads.
//!
//! The daemon tells other routers, so that packets to a site come to the hub that serves it. A hub that is gone
//! cannot take its routes back, and other routers keep them for a while. So the metric falls with the epoch of the
//! site's statement, and the newest statement wins at once. The kernel takes the routes out with the interface.
//!
//! Invariant: the table has one route for each network of a site that is served, and its metric is that of the newest
//! statement.

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
    /// What is in the table, with the metrics.
    announced: BTreeMap<IpNet, u32>,
}

impl SiteRoutes {
    pub(super) const fn new(tun: Tun, table: Option<u32>) -> Self {
        Self {
            tun,
            table,
            announced: BTreeMap::new(),
        }
    }

    /// This hub serves a site with these addresses, as the site has signed in this epoch.
    pub(super) fn serve(&mut self, addresses: &[IpNet], epoch: u64) {
        let metric = metric(epoch);
        for net in addresses {
            if self.announced.get(net) == Some(&metric) {
                continue;
            }
            self.change(net, metric, netlink::add_route);
            if let Some(former) = self.announced.insert(*net, metric) {
                self.change(net, former, netlink::delete_route);
            }
        }
    }

    /// This hub does not serve the site with these addresses any more.
    pub(super) fn withdraw(&mut self, addresses: &[IpNet]) {
        for net in addresses {
            if let Some(metric) = self.announced.remove(net) {
                self.change(net, metric, netlink::delete_route);
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
}
