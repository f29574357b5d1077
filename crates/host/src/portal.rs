//! Passing a captive portal past the kill switch: pages and names of this machine go over one uplink
//! for some minutes.
//!
//! The firewall marks the packets while an element of a set lives, and the kernel ends its life, even if
//! every program of ours is gone. Marked packets look in a routing table of their own, because the main
//! one leads into the tunnel. Rule and tables stay when the time is over, and mean nothing then: nothing
//! is marked any more. The next portal, its end by hand, and `ropewalk down` take them away.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_config::uplinks::UplinkRules;
use ropewalk_io::netlink::{self, DefaultRoute, Interface, RouteSpec, RuleSpec};

use crate::kill_switch::{self, PORTAL_MARK};
use crate::uplinks;

/// Place of the rule: before those of the main table, behind that of local addresses.
const PRIORITY: u32 = 5_100;
/// Number of the routing table: "RP".
const TABLE: u32 = 0x5250;

/// What a portal is passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The uplink.
    pub uplink: String,
    /// Its index.
    pub ifindex: u32,
    /// Its best default route of each family that has one, IPv4 first.
    pub routes: Vec<DefaultRoute>,
}

impl Way {
    /// The router, IPv4 preferred.
    #[must_use]
    pub fn router(&self) -> Option<IpAddr> {
        self.routes.iter().find_map(|route| route.gateway)
    }
}

/// The interface of this name, or of those that the configuration allows as uplinks the one with the best default route.
#[must_use]
pub fn choose(
    interfaces: &[Interface],
    tun: &str,
    name: Option<&str>,
    rules: &UplinkRules,
) -> Option<Way> {
    let fits = |interface: &&Interface| {
        interface.up
            && interface.name != tun
            && !interface.loopback
            && name.map_or_else(
                || uplinks::is_allowed(interface, rules),
                |name| name == interface.name,
            )
    };
    let best = |interface: &Interface, ipv6: bool| {
        let of_family = interface.default_routes.iter().filter(|r| r.ipv6 == ipv6);
        of_family.min_by_key(|route| route.metric).copied()
    };
    let ways = interfaces.iter().filter(fits).filter_map(|interface| {
        let routes: Vec<_> = [false, true]
            .into_iter()
            .filter_map(|ipv6| best(interface, ipv6))
            .collect();
        let way = Way {
            uplink: interface.name.clone(),
            ifindex: interface.index,
            routes,
        };
        (!way.routes.is_empty()).then_some(way)
    });
    // An uplink with IPv4 first: portals seldom speak anything else.
    ways.min_by_key(|way| (way.routes[0].ipv6, way.routes[0].metric, way.ifindex))
}

/// Lets pages and names of this machine go over `way` for `time`; queries go to `resolver`.
///
/// # Errors
/// The kill switch of `tun` is not set, or not permitted.
pub fn open(tun: &str, way: &Way, time: Duration, resolver: Option<IpAddr>) -> anyhow::Result<()> {
    if kill_switch::state(tun)?.is_none() {
        bail!("the kill switch is not set, so nothing keeps this machine from the portal");
    }
    close(tun)?;
    for route in &way.routes {
        let destination = if route.ipv6 {
            IpAddr::from(Ipv6Addr::UNSPECIFIED)
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let spec = RouteSpec {
            destination,
            prefix: 0,
            ifindex: way.ifindex,
            gateway: route.gateway,
            table: Some(TABLE),
            metric: None,
            mtu: None,
        };
        netlink::add_route(&spec)
            .with_context(|| format!("cannot route pages of the portal over {}", way.uplink))?;
        netlink::add_rule(&rule(route.ipv6)).context("cannot add a routing rule")?;
    }
    kill_switch::open_portal(tun, &way.uplink, time, resolver)
}

/// Ends it at once, and takes away what is left of an earlier time.
///
/// # Errors
/// Not permitted.
pub fn close(tun: &str) -> anyhow::Result<()> {
    kill_switch::close_portal(tun)?;
    clear()
}

/// Takes rule and routing table away.
///
/// # Errors
/// Not permitted.
pub fn clear() -> anyhow::Result<()> {
    for ipv6 in [false, true] {
        // A kernel without IPv6 has no such rule.
        if let Err(error) = netlink::delete_rule(&rule(ipv6))
            && !ipv6
        {
            return Err(error).context("cannot remove the routing rule of the portal");
        }
    }
    netlink::flush_table(TABLE).context("cannot empty the routing table of the portal")
}

const fn rule(ipv6: bool) -> RuleSpec {
    RuleSpec {
        ipv6,
        priority: PRIORITY,
        fwmark: Some(PORTAL_MARK),
        fwmask: Some(PORTAL_MARK),
        source: None,
        suppress_prefix: None,
        suppress_group: None,
        table: TABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, routes: &[(bool, u32)]) -> Interface {
        let route = |(ipv6, metric): &(bool, u32)| DefaultRoute {
            table: netlink::TABLE_MAIN,
            metric: *metric,
            ipv6: *ipv6,
            gateway: None,
        };
        Interface {
            default_route_v4: true,
            default_route_v6: true,
            default_routes: routes.iter().map(route).collect(),
            ..Interface::card(name, index, &[])
        }
    }

    #[test]
    fn the_best_default_route_is_taken_unless_an_uplink_is_named() {
        let mut vpn = interface("wg0", 9, &[(false, 1)]);
        vpn.kind = Some("wireguard".to_owned());
        let interfaces = [
            interface("lan", 2, &[]),
            interface("eth0", 3, &[(true, 50), (false, 200), (false, 100)]),
            interface("wlan0", 4, &[(false, 600)]),
            interface("six", 5, &[(true, 10)]),
            interface("ropewalk0", 6, &[(false, 0)]),
            vpn,
        ];
        let mut rules = UplinkRules::default();
        let way = choose(&interfaces, "ropewalk0", None, &rules).unwrap();
        assert_eq!((way.uplink.as_str(), way.routes.len()), ("eth0", 2));
        assert_eq!(way.routes[0].metric, 100);
        let named =
            |name| choose(&interfaces, "ropewalk0", Some(name), &rules).map(|way| way.uplink);
        assert_eq!(named("wlan0").unwrap(), "wlan0");
        assert_eq!(named("wg0").unwrap(), "wg0", "a VPN only by its name");
        assert_eq!(named("lan"), None);
        rules.include.push("wg*".parse().unwrap());
        let way = choose(&interfaces, "ropewalk0", None, &rules).unwrap();
        assert_eq!(way.uplink, "wg0", "the configuration calls it an uplink");
    }
}
