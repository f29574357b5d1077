//! The uplinks that flows are spread over, by what netlink says and what the configuration wants.
//!
//! Invariant: an interface keeps its number while this program runs, also while it is away, because
//! the marks of its connections hold it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ropewalk_core::balance::UPLINKS_MAX;
use ropewalk_io::netlink::{DefaultRoute, Interface, TABLE_MAIN};
use ropewalk_io::nft;
use serde::{Deserialize, Serialize};

use super::marks;
use ropewalk_config::BalanceConfig;
use ropewalk_host::uplinks;
use ropewalk_session::Uplink;

/// Address families, as indices of what there is one of per family.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Which way out: number of the uplink and family.
pub type WayId = (u8, Family);

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// As in nft(8).
    #[must_use]
    pub const fn nft(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// Digit in names.
    #[must_use]
    pub const fn digit(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    /// The address of a default route.
    #[must_use]
    pub const fn any(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// An uplink's way out in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Source address of what leaves here.
    pub address: IpAddr,
    /// Next hop, if not on the link.
    pub gateway: Option<IpAddr>,
}

/// One uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Number in marks, `1..=15`.
    pub number: u8,
    /// Interface name.
    pub name: String,
    /// Kernel interface index.
    pub ifindex: u32,
    /// Whether the interface is there, up, and configured.
    pub present: bool,
    /// Ways out by [`Family`]; those of an absent interface are the last known.
    pub ways: [Option<Way>; 2],
    /// Every address of the interface, those for no new connections included: open ones keep theirs.
    pub held: Vec<IpAddr>,
    /// Set share.
    pub weight: Option<u16>,
    /// Costs by the byte.
    pub metered: bool,
    /// Only while nothing else works.
    pub standby: bool,
    /// Order for failover: place of its mark in the configuration, else metric of its default route.
    pub rank: u32,
    /// Resolvers for what goes out here.
    pub dns: Vec<IpAddr>,
}

impl Member {
    /// Addresses in a family that connections over this uplink may have.
    #[must_use]
    pub fn held(&self, family: Family) -> Vec<IpAddr> {
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        self.held.iter().filter(of_family).copied().collect()
    }

    /// The way out in a family.
    #[must_use]
    pub const fn way(&self, family: Family) -> Option<Way> {
        self.ways[family as usize]
    }
}

/// The ways that the machine's own routes do not lead out by; none in a family without a route.
#[must_use]
pub fn stranded(interfaces: &[Interface], members: &[Member]) -> BTreeSet<WayId> {
    let mut found = BTreeSet::new();
    for family in FAMILIES {
        let is_main = |route: &&DefaultRoute| {
            route.table == TABLE_MAIN && route.ipv6 == (family == Family::V6)
        };
        let main = interfaces
            .iter()
            .filter_map(|i| Some((i.default_routes.iter().find(is_main)?, i.index)))
            .min_by_key(|(route, _)| route.metric);
        let Some((_, main)) = main else { continue };
        let others = members.iter().filter(|member| member.ifindex != main);
        let with_way = others.filter(|member| member.present && member.way(family).is_some());
        found.extend(with_way.map(|member| (member.number, family)));
    }
    found
}

/// Somewhere on the internet: an interface with a default route has a way to it.
const ANYWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
];

/// All uplinks now, those of `known` that are away included, in the order of their numbers.
#[must_use]
pub fn follow(interfaces: &[Interface], config: &BalanceConfig, known: &[Member]) -> Vec<Member> {
    let interfaces: Vec<Interface> = interfaces.iter().cloned().map(without_own).collect();
    let tun = &config.common.interface;
    let found = uplinks::select(&interfaces, &config.uplinks, tun, &ANYWHERE);
    let mut members: Vec<Member> = known.to_vec();
    for member in &mut members {
        member.present = false;
    }
    for uplink in found.iter().filter(|uplink| nft::is_name(&uplink.name)) {
        let interface = interfaces.iter().find(|i| i.index == uplink.ifindex);
        let Some(interface) = interface else { continue };
        let Some(number) = number_for(&uplink.name, &found, &members) else {
            tracing::warn!(
                uplink = uplink.name,
                max = UPLINKS_MAX,
                "too many uplinks; left out"
            );
            continue;
        };
        let member = member(number, uplink, interface, config);
        if member.ways == [None, None] {
            continue;
        }
        members.retain(|old| old.number != number);
        members.push(member);
    }
    members.sort_by_key(|member| member.number);
    members
}

/// Its own number, else a free one, else that of an uplink that is away.
fn number_for(name: &str, found: &[Uplink], members: &[Member]) -> Option<u8> {
    if let Some(own) = members.iter().find(|member| member.name == name) {
        return Some(own.number);
    }
    let taken = |number: &u8| members.iter().any(|member| member.number == *number);
    let away = |number: &u8| {
        let holder = members.iter().find(|member| member.number == *number);
        holder.is_some_and(|m| !m.present && !found.iter().any(|uplink| uplink.name == m.name))
    };
    let all = || 1..=u8::try_from(UPLINKS_MAX).unwrap_or(u8::MAX);
    all()
        .find(|number| !taken(number))
        .or_else(|| all().find(away))
}

/// What would be there without the routes of this role.
fn without_own(mut interface: Interface) -> Interface {
    let routes = &mut interface.default_routes;
    routes.retain(|route| !marks::is_own_table(route.table));
    interface.default_route_v4 = routes.iter().any(|route| !route.ipv6);
    interface.default_route_v6 = routes.iter().any(|route| route.ipv6);
    interface
}

fn member(number: u8, uplink: &Uplink, interface: &Interface, config: &BalanceConfig) -> Member {
    let extra = config.extra(&uplink.name).cloned().unwrap_or_default();
    let way = |family: Family| {
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        let address = uplink.addresses.iter().find(of_family).copied()?;
        let set = extra.gateways.iter().find(of_family).copied();
        let routes = interface.default_routes.iter();
        let best = routes
            .filter(|route| route.ipv6 == (family == Family::V6))
            .min_by_key(|route| (route.metric, route.table));
        if set.is_none() && best.is_none() {
            return None;
        }
        let gateway = set.or_else(|| best.and_then(|route| route.gateway));
        Some(Way { address, gateway })
    };
    let metric = interface
        .default_routes
        .iter()
        .map(|route| route.metric)
        .min();
    // What the configuration orders comes before what it does not mention.
    let rank = match config.rank(&uplink.name) {
        Some(place) => u32::try_from(place).unwrap_or(u32::MAX),
        None => metric.unwrap_or(0).saturating_add(UNMARKED),
    };
    Member {
        number,
        name: uplink.name.clone(),
        ifindex: uplink.ifindex,
        present: true,
        ways: FAMILIES.map(way),
        held: interface.addresses.iter().map(|a| a.ip).collect(),
        weight: uplink.weight,
        metered: uplink.metered,
        standby: uplink.standby,
        rank,
        dns: extra.dns,
    }
}

/// Rank of the first uplink that no mark mentions.
const UNMARKED: u32 = 1_000;

/// What tells one line from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    name: String,
    /// Index of the interface and ways out. None where bytes cost: a modem that dials again and again is
    /// not to be probed anew each time.
    rest: Option<(u32, [Option<Way>; 2])>,
}

impl Line {
    /// The line that an uplink is now.
    #[must_use]
    pub fn of(member: &Member) -> Self {
        Self {
            name: member.name.clone(),
            rest: (!member.metered).then_some((member.ifindex, member.ways)),
        }
    }

    /// Whether its bytes cost.
    #[must_use]
    pub const fn is_metered(&self) -> bool {
        self.rest.is_none()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ropewalk_config::balance;
    use ropewalk_io::netlink::{Address, DefaultRoute};
    use std::path::Path;

    pub fn config(text: &str) -> BalanceConfig {
        let section = if text.contains("[balance]") {
            ""
        } else {
            "\n[balance]\n"
        };
        balance::parse(Path::new("balance.toml"), &format!("{text}{section}")).unwrap()
    }

    pub fn interface(name: &str, index: u32, gateway: &str) -> Interface {
        let address = |ip: IpAddr, prefix| Address {
            ip,
            prefix,
            temporary: false,
            deprecated: false,
            tentative: false,
            permanent: true,
        };
        let last = u8::try_from(index).unwrap();
        Interface {
            name: name.to_owned(),
            index,
            mtu: 1_500,
            up: true,
            carrier: true,
            loopback: false,
            kind: None,
            addresses: vec![address(IpAddr::from([192, 0, 2, last]), 24)],
            default_route_v4: true,
            default_route_v6: false,
            default_routes: vec![DefaultRoute {
                table: 254,
                metric: 100,
                ipv6: false,
                gateway: Some(gateway.parse().unwrap()),
            }],
        }
    }

    fn numbers(members: &[Member]) -> Vec<(&str, u8, bool)> {
        let all = members.iter();
        all.map(|m| (m.name.as_str(), m.number, m.present))
            .collect()
    }

    #[test]
    fn uplinks_keep_their_numbers_while_others_come_and_go() {
        let config = config("");
        let [a, b, c] = [("a", 2), ("b", 3), ("c", 4)].map(|(n, i)| interface(n, i, "192.0.2.1"));
        let two = follow(&[a.clone(), b.clone()], &config, &[]);
        assert_eq!(numbers(&two), [("a", 1, true), ("b", 2, true)]);
        let gone = follow(&[b.clone(), c.clone()], &config, &two);
        assert_eq!(
            numbers(&gone),
            [("a", 1, false), ("b", 2, true), ("c", 3, true)]
        );
        let back = follow(&[a, b, c], &config, &gone);
        assert!(back.iter().all(|member| member.present));
        assert_eq!(back[0].number, 1);
    }

    #[test]
    fn own_routes_make_no_uplink_and_gateways_can_be_set() {
        let config = config("[[uplink]]\nmatch = \"b\"\ngateway = [\"192.0.2.99\"]");
        let mut a = interface("a", 2, "192.0.2.1");
        a.default_routes[0].table = marks::routes(1);
        let b = interface("b", 3, "192.0.2.1");
        let members = follow(&[a, b], &config, &[]);
        assert_eq!(numbers(&members), [("b", 1, true)]);
        let way = members[0].way(Family::V4).unwrap();
        assert_eq!(way.gateway, Some("192.0.2.99".parse().unwrap()));
        assert_eq!(members[0].way(Family::V6), None);
        assert_eq!(members[0].rank, 0);
    }

    #[test]
    fn more_uplinks_than_numbers_leave_the_last_out() {
        let many: Vec<Interface> = (1..=16)
            .map(|index| interface(&format!("u{index}"), index, "192.0.2.1"))
            .collect();
        let members = follow(&many, &config(""), &[]);
        assert_eq!(members.len(), UPLINKS_MAX);
    }
}
