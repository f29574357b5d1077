//! What this role sets on the machine: the same list is shown by `--plan` and carried out.
//!
//! Invariant: every change is recorded in [`Changes`] first, in an order that undoes forwarding
//! before the firewall.

use std::net::IpAddr;

use ropewalk_io::netlink::{self, RouteSpec, TABLE_MAIN};
use ropewalk_io::sysctl;

use super::marks::{self, BALANCED, KEY_MASK};
use super::members::{FAMILIES, Family, Member};
use ropewalk_config::BalanceConfig;
use ropewalk_host::{Changes, Policy, settings};

/// What is to be set for these uplinks, but for the firewall table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Routing rules.
    pub policies: Vec<Policy>,
    /// Default routes, each in the table of its uplink.
    pub routes: Vec<RouteSpec>,
}

impl Setup {
    /// For these uplinks; `beside_tunnel` when a tunnel's routes are not to count.
    #[must_use]
    pub fn new(members: &[Member], ipv6: bool, beside_tunnel: bool) -> Self {
        let mut setup = Self::default();
        for family in families(ipv6) {
            setup.policies.push(Policy {
                ipv6: family == Family::V6,
                priority: marks::PRIORITY_MAIN,
                mark: BALANCED,
                mask: BALANCED,
                table: TABLE_MAIN,
                without_default: true,
                without_group: beside_tunnel.then_some(marks::TUNNEL_GROUP),
            });
            for member in members {
                setup.policies.push(Policy {
                    ipv6: family == Family::V6,
                    priority: marks::PRIORITY_UPLINK,
                    mark: marks::key(member.number),
                    mask: KEY_MASK,
                    table: marks::routes(member.number),
                    without_default: false,
                    without_group: None,
                });
                let way = member.way(family).filter(|_| member.present);
                setup.routes.extend(way.map(|way| RouteSpec {
                    destination: family.any(),
                    prefix: 0,
                    ifindex: member.ifindex,
                    gateway: way.gateway,
                    table: Some(marks::routes(member.number)),
                    metric: None,
                    mtu: None,
                }));
            }
        }
        setup
    }

    /// Makes the machine as wanted, where `former` is what it was made before.
    ///
    /// # Errors
    /// Not permitted, or the list of changes cannot be written. A route that the kernel refuses is
    /// told in the log: its interface may just be going.
    pub fn apply(&self, former: &Self, changes: &mut Changes) -> anyhow::Result<()> {
        for gone in former.routes.iter().filter(|route| !self.has(route)) {
            if let Err(error) = netlink::delete_route(gone) {
                tracing::debug!(%error, "a route was gone already");
            }
        }
        for route in &self.routes {
            changes.routes(route.table.unwrap_or(TABLE_MAIN))?;
            // Also those that were there before: with its interface the kernel takes a route away.
            if let Err(error) = netlink::add_route(route) {
                tracing::warn!(%error, route = route_text(route, &route.ifindex.to_string()), "the kernel refuses a route");
            }
        }
        let new = |policy: &&Policy| !former.policies.contains(policy);
        for policy in self.policies.iter().filter(new) {
            changes.policy(*policy)?;
        }
        Ok(())
    }

    /// Sets routing rules again that another program took away; how many those were.
    ///
    /// # Errors
    /// Not permitted, or the list of changes cannot be written.
    pub fn keep(&self, changes: &mut Changes) -> anyhow::Result<usize> {
        let mut missing = 0;
        for policy in &self.policies {
            missing += usize::from(changes.policy(*policy)?);
        }
        Ok(missing)
    }

    /// Whether a route to the same place over the same interface is wanted.
    fn has(&self, route: &RouteSpec) -> bool {
        let same = |other: &RouteSpec| {
            (other.table, other.ifindex, other.destination)
                == (route.table, route.ifindex, route.destination)
        };
        self.routes.iter().any(same)
    }

    /// In words, one change per line.
    #[must_use]
    pub fn lines(&self, members: &[Member]) -> Vec<String> {
        let policies = self.policies.iter().map(ToString::to_string);
        let routes = self.routes.iter().map(|route| {
            let of = |member: &&Member| member.ifindex == route.ifindex;
            let name = members.iter().find(of).map(|member| member.name.as_str());
            route_text(route, name.unwrap_or_default())
        });
        policies.chain(routes).collect()
    }
}

/// The address families of this machine.
fn families(ipv6: bool) -> impl Iterator<Item = Family> {
    FAMILIES
        .into_iter()
        .filter(move |family| ipv6 || *family == Family::V4)
}

/// Whether the kernel has IPv6.
#[must_use]
pub fn has_ipv6() -> bool {
    settings::kernel_has_ipv6()
}

fn route_text(route: &RouteSpec, interface: &str) -> String {
    let family = match route.destination {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    };
    let via = route
        .gateway
        .map(|ip| format!(" via {ip}"))
        .unwrap_or_default();
    let table = route.table.unwrap_or(TABLE_MAIN);
    format!("{family} default route in table {table}{via} over interface {interface}")
}

/// Settings of the kernel: forwarding, and answers that come in over another interface than the
/// main route's.
///
/// # Errors
/// Not permitted, or the list of changes cannot be written.
pub fn settings(
    config: &BalanceConfig,
    members: &[Member],
    changes: &mut Changes,
) -> anyhow::Result<()> {
    for member in members.iter().filter(|member| member.present) {
        settings::loosen_reverse_path(changes, &member.name);
    }
    if config.forward {
        changes.sysctl(FORWARD_IPV4, "1")?;
        if has_ipv6() {
            settings::forward_ipv6(changes)?;
        }
    }
    Ok(())
}

const FORWARD_IPV4: &str = "net.ipv4.ip_forward";

/// What [`settings()`] would change, in words.
#[must_use]
pub fn settings_lines(config: &BalanceConfig, members: &[Member]) -> Vec<String> {
    let mut wanted: Vec<(String, &str)> = Vec::new();
    for member in members.iter().filter(|member| member.present) {
        if settings::is_reverse_path_strict(&member.name) {
            wanted.push((settings::reverse_path_key(&member.name), "2"));
        }
    }
    if config.forward {
        wanted.push((FORWARD_IPV4.to_owned(), "1"));
        if has_ipv6() {
            let keys = settings::router_advertisement_keys();
            wanted.extend(keys.into_iter().map(|key| (key, "2")));
            wanted.push((settings::FORWARD_IPV6.to_owned(), "1"));
        }
    }
    let changed = wanted.into_iter().filter_map(|(key, value)| {
        let former = sysctl::read(&key).ok()?;
        (former != value).then(|| format!("{key} = {value}, before {former}"))
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::super::members::Way;
    use super::*;

    #[test]
    fn the_plan_names_tables_and_interfaces_as_ip_does() {
        let way = Way {
            address: [192, 0, 2, 7].into(),
            gateway: Some([192, 0, 2, 1].into()),
        };
        let member = Member {
            number: 1,
            name: "wwan0".to_owned(),
            ifindex: 2,
            present: true,
            ways: [Some(way), None],
            held: Vec::new(),
            weight: None,
            metered: false,
            standby: false,
            rank: 0,
            dns: Vec::new(),
        };
        let members = [member];
        let lines = Setup::new(&members, false, false).lines(&members);
        assert!(lines[0].contains(" lookup main "), "{lines:?}");
        assert!(lines[2].ends_with(" over interface wwan0"), "{lines:?}");
    }
}
