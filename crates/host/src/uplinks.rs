//! Which interfaces are uplinks, by what netlink says and what the configuration wants.
//!
//! Invariant: the same interfaces and rules give the same uplinks in the same order. Hot-plug,
//! renames, new addresses and lost carriers come in only through this module.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use ropewalk_api::{LEFT_OUT_MAX, LeftOut};
use ropewalk_io::netlink::{Address, Interface};
use ropewalk_types::PATHS_MAX;

use ropewalk_config::uplinks::{Pattern, UplinkRules};
use ropewalk_session::Uplink;

/// Kinds of virtual interfaces that are tunnels themselves: used only when named in `include`.
const TUNNEL_KINDS: [&str; 12] = [
    "tun",
    "wireguard",
    "ipip",
    "sit",
    "gre",
    "gretap",
    "ip6gre",
    "ip6tnl",
    "vti",
    "vti6",
    "xfrm",
    "vxlan",
];

/// The interfaces to use, by index; at most [`PATHS_MAX`].
///
/// An interface is used when three conditions hold. It is up with a carrier. It is not this
/// gateway's own `tun`. It has an address with a way to one of the hub's addresses: a default
/// route, or the same network. A pattern in `include` waives the way (the route may be a narrow
/// one) but not the address.
#[must_use]
pub fn select(
    interfaces: &[Interface],
    rules: &UplinkRules,
    tun: &str,
    hub: &[SocketAddr],
) -> Vec<Uplink> {
    let mut uplinks: Vec<Uplink> = interfaces
        .iter()
        .filter_map(|interface| uplink(interface, rules, tun, hub))
        .collect();
    uplinks.sort_by_key(|uplink| uplink.ifindex);
    uplinks.truncate(PATHS_MAX);
    uplinks
}

/// Whether the configuration lets an interface be an uplink. What looks like the inside of a tunnel has to be named.
#[must_use]
pub fn is_allowed(interface: &Interface, rules: &UplinkRules) -> bool {
    let matches = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(&interface.name));
    !matches(&rules.exclude)
        && (matches(&rules.include) || rules.include.is_empty() && !is_tunnel(interface))
}

fn uplink(
    interface: &Interface,
    rules: &UplinkRules,
    tun: &str,
    hub: &[SocketAddr],
) -> Option<Uplink> {
    let name = interface.name.as_str();
    let alive = interface.up && interface.carrier && !interface.loopback && name != tun;
    if !alive || !is_allowed(interface, rules) {
        return None;
    }
    let included = rules.include.iter().any(|pattern| pattern.matches(name));
    let addresses = source_addresses(interface, hub, included);
    if addresses.is_empty() {
        return None;
    }
    let mark = rules.marks.iter().find(|mark| mark.pattern.matches(name));
    let by_hand = rules.by_hand.get(name).copied().unwrap_or_default();
    let used_up = rules.used_up.contains(name);
    Some(Uplink {
        name: name.to_owned(),
        ifindex: interface.index,
        addresses,
        mtu: interface.mtu,
        standby: by_hand
            .standby
            .unwrap_or_else(|| used_up || mark.is_some_and(|mark| mark.standby)),
        metered: rules.is_metered(name),
        bottleneck: mark.and_then(|mark| mark.bottleneck),
        weight: mark.and_then(|mark| mark.weight),
        protection_hourly: mark.and_then(|mark| mark.protection_hourly),
        congestion: mark.and_then(|mark| mark.congestion),
    })
}

/// Whether an interface is the inside of a tunnel.
#[must_use]
pub fn is_tunnel(interface: &Interface) -> bool {
    let kind = interface.kind.as_deref().unwrap_or_default();
    TUNNEL_KINDS.contains(&kind)
}

/// Addresses to send from, preferred first: IPv4, then IPv6 privacy addresses, then stable ones.
/// Deprecated ones are taken only where a family has no other (RFC 6724 §5, rules 3 and 7).
fn source_addresses(interface: &Interface, hub: &[SocketAddr], waive_way: bool) -> Vec<IpAddr> {
    let usable = |address: &&Address| {
        !address.tentative && is_routable(address.ip) && has_way(interface, address, hub, waive_way)
    };
    let mut usable: Vec<&Address> = interface.addresses.iter().filter(usable).collect();
    for ipv4 in [true, false] {
        let current = |address: &&Address| address.ip.is_ipv4() == ipv4 && !address.deprecated;
        if usable.iter().any(current) {
            usable.retain(|address| address.ip.is_ipv4() != ipv4 || !address.deprecated);
        }
    }
    usable.sort_by_key(|address| (address.ip.is_ipv6(), !address.temporary));
    usable.iter().map(|address| address.ip).collect()
}

fn has_way(interface: &Interface, address: &Address, hub: &[SocketAddr], waive: bool) -> bool {
    let ipv4 = address.ip.is_ipv4();
    let default = if ipv4 {
        interface.default_route_v4
    } else {
        interface.default_route_v6
    };
    let network = IpNet::new(address.ip, address.prefix).ok();
    let mut reachable = hub
        .iter()
        .map(SocketAddr::ip)
        .filter(|ip| ip.is_ipv4() == ipv4);
    reachable.any(|ip| {
        waive || default || network.is_some_and(|net| net.contains(&ip) && net.addr() != ip)
    })
}

fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_loopback() && ip != Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_loopback() && !ip.is_multicast(),
    }
}

/// Patterns of `include` that match no interface: probably a misspelt name.
#[must_use]
pub fn unmatched(interfaces: &[Interface], rules: &UplinkRules) -> Vec<String> {
    let matched = |pattern: &Pattern| {
        interfaces
            .iter()
            .any(|interface| pattern.matches(&interface.name))
    };
    let unmatched = rules.include.iter().filter(|pattern| !matched(pattern));
    unmatched.map(ToString::to_string).collect()
}

/// Interfaces that would be uplinks, did they not look like the inside of a tunnel: the first [`LEFT_OUT_MAX`]. Empty
/// when `include` says which interfaces are uplinks.
#[must_use]
pub fn left_out(
    interfaces: &[Interface],
    rules: &UplinkRules,
    tun: &str,
    hub: &[SocketAddr],
) -> Vec<LeftOut> {
    let would_be = |interface: &&Interface| {
        let plain = Interface {
            kind: None,
            ..(*interface).clone()
        };
        is_tunnel(interface) && uplink(&plain, rules, tun, hub).is_some()
    };
    if !rules.include.is_empty() {
        return Vec::new();
    }
    let left_out = interfaces.iter().filter(would_be);
    let in_words = |interface: &Interface| LeftOut {
        name: interface.name.clone(),
        why: format!(
            "looks like another VPN ({})",
            interface.kind.as_deref().unwrap_or_default()
        ),
    };
    left_out.take(LEFT_OUT_MAX).map(in_words).collect()
}

/// What changed between two sets of uplinks, in words for the log; empty when nothing did.
#[must_use]
pub fn changes(before: &[Uplink], after: &[Uplink]) -> Vec<String> {
    let indices: BTreeSet<u32> = before
        .iter()
        .chain(after)
        .map(|uplink| uplink.ifindex)
        .collect();
    let find = |list: &[Uplink], index: u32| list.iter().find(|u| u.ifindex == index).cloned();
    let describe = |index| match (find(before, index), find(after, index)) {
        (None, Some(new)) => Some(format!("{} is an uplink now", new.name)),
        (Some(old), None) => Some(format!("{} is no uplink any more", old.name)),
        (Some(old), Some(new)) if old.name != new.name => {
            Some(format!("{} is called {} now", old.name, new.name))
        }
        (Some(old), Some(new)) if old.addresses != new.addresses => {
            Some(format!("{} has other addresses", new.name))
        }
        (Some(old), Some(new)) if old != new => Some(format!("{} changed", new.name)),
        _ => None,
    };
    indices.into_iter().filter_map(describe).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use ropewalk_config::site;

    const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

    fn rules(text: &str) -> UplinkRules {
        let hub = format!("[hub]\nkey = \"{KEY}\"\nendpoints = [\"h:1\"]\n{text}");
        site::parse(Path::new("site.toml"), &hub).unwrap().uplinks
    }

    fn address(text: &str) -> Address {
        // `t` temporary, `d` deprecated, `x` tentative behind the prefix.
        let (net, flags) = text.split_once(' ').unwrap_or((text, ""));
        let net: IpNet = net.parse().unwrap();
        Address {
            ip: net.addr(),
            prefix: net.prefix_len(),
            temporary: flags.contains('t'),
            deprecated: flags.contains('d'),
            tentative: flags.contains('x'),
            permanent: true,
        }
    }

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            addresses: addresses.iter().map(|text| address(text)).collect(),
            default_route_v4: true,
            default_route_v6: true,
            ..Interface::card(name, name.bytes().last().map_or(1, u32::from), &[])
        }
    }

    fn names(interfaces: &[Interface], rule_text: &str, hub: &str) -> Vec<String> {
        let hub: Vec<SocketAddr> = hub.split(' ').map(|text| text.parse().unwrap()).collect();
        let uplinks = select(interfaces, &rules(rule_text), "ropewalk0", &hub);
        uplinks.into_iter().map(|uplink| uplink.name).collect()
    }

    const HUB: &str = "198.51.100.1:4443";

    /// What is changed of a good interface, and whether it is an uplink then.
    type Case = (&'static str, fn(&mut Interface), bool);

    fn readdress(interface: &mut Interface, text: &str) {
        interface.addresses = vec![address(text)];
    }

    const CASES: &[Case] = &[
        ("plain", |_| {}, true),
        ("down", |i| i.up = false, false),
        ("no carrier", |i| i.carrier = false, false),
        ("loopback", |i| i.loopback = true, false),
        ("no route", |i| i.default_route_v4 = false, false),
        ("another VPN", |i| i.kind = Some("wireguard".into()), false),
        ("veth", |i| i.kind = Some("veth".into()), true),
        ("own interface", |i| i.name = "ropewalk0".into(), false),
        ("no address", |i| i.addresses.clear(), false),
        ("link-local", |i| readdress(i, "169.254.3.4/16"), false),
        ("other family", |i| readdress(i, "2001:db8::5/64"), false),
        ("tentative", |i| readdress(i, "192.0.2.5/24 x"), false),
        (
            "on the hub's network",
            |i| {
                readdress(i, "198.51.100.9/24");
                i.default_route_v4 = false;
            },
            true,
        ),
    ];

    #[test]
    fn only_live_interfaces_with_a_way_to_the_hub_are_uplinks() {
        for (what, change, expected) in CASES {
            let mut interface = interface("eth0", &["192.0.2.5/24"]);
            change(&mut interface);
            assert_eq!(
                !names(&[interface], "", HUB).is_empty(),
                *expected,
                "{what}"
            );
        }
    }

    #[test]
    fn marks_by_hand_are_stronger_than_configured_ones_and_leave_the_others() {
        let mut rules = rules("[[uplink]]\nmatch = \"wlan*\"\nmetered = true\nweight = 7\n");
        let marks = |rules: &UplinkRules| {
            let interfaces = [interface("wlan0", &["192.0.2.5/24"])];
            let uplinks = select(&interfaces, rules, "ropewalk0", &[HUB.parse().unwrap()]);
            (uplinks[0].standby, uplinks[0].metered, uplinks[0].weight)
        };
        assert_eq!(marks(&rules), (false, true, Some(7)));
        rules.by_hand.entry("wlan0".to_owned()).or_default().standby = Some(true);
        assert_eq!(marks(&rules), (true, true, Some(7)));
        rules.by_hand.entry("wlan0".to_owned()).or_default().metered = Some(false);
        assert_eq!(marks(&rules), (true, false, Some(7)));
    }

    #[test]
    fn what_network_manager_says_of_money_is_weaker_than_what_is_configured_and_set_by_hand() {
        let metered = |text: &str, said: Option<bool>, by_hand: Option<bool>| {
            let mut rules = rules(text);
            let name = || "wwan0".to_owned();
            rules.said_metered.extend(said.map(|said| (name(), said)));
            rules.by_hand.entry(name()).or_default().metered = by_hand;
            let interfaces = [interface("wwan0", &["192.0.2.5/24"])];
            select(&interfaces, &rules, "ropewalk0", &[HUB.parse().unwrap()])[0].metered
        };
        let mark = |metered: &str| format!("[[uplink]]\nmatch = \"wwan*\"\n{metered}\n");
        for (configured, said, by_hand, expected) in [
            ("", None, None, false),
            ("", Some(true), None, true),
            ("", Some(true), Some(false), false),
            ("metered = false", Some(true), None, false),
            ("metered = true", Some(false), None, true),
            ("metered = true", None, Some(false), false),
        ] {
            let case = format!("{configured:?} {said:?} {by_hand:?}");
            assert_eq!(
                metered(&mark(configured), said, by_hand),
                expected,
                "{case}"
            );
        }
        assert!(metered("", Some(true), None), "without any mark");
    }

    #[test]
    fn an_uplink_with_nothing_left_of_its_quota_stands_by_unless_somebody_wants_otherwise() {
        let mut rules = rules("[[uplink]]\nmatch = \"wwan*\"\nquota_gb = 3\n");
        let standby = |rules: &UplinkRules| {
            let interfaces = [interface("wwan0", &["192.0.2.5/24"])];
            select(&interfaces, rules, "ropewalk0", &[HUB.parse().unwrap()])[0].standby
        };
        assert_eq!(
            rules.quota("wwan0").map(|quota| quota.bytes),
            Some(3_000_000_000)
        );
        assert!(!standby(&rules));
        rules.used_up.insert("wwan0".to_owned());
        assert!(standby(&rules));
        rules.by_hand.entry("wwan0".to_owned()).or_default().standby = Some(false);
        assert!(!standby(&rules));
    }

    #[test]
    fn patterns_decide_and_exclude_is_stronger() {
        let unrouted = Interface {
            default_route_v4: false,
            ..interface("wg1", &["10.1.1.1/32"])
        };
        let vpn = Interface {
            kind: Some("wireguard".into()),
            ..unrouted
        };
        let all = [
            interface("eth0", &["192.0.2.5/24"]),
            vpn,
            interface("wlan2", &["192.0.2.6/24"]),
        ];
        for (text, expected) in [
            ("", vec!["eth0", "wlan2"]),
            ("[uplinks]\ninclude = [\"wg*\"]", vec!["wg1"]),
            ("[uplinks]\ninclude = [\"*\"]", vec!["eth0", "wg1", "wlan2"]),
            ("[uplinks]\nexclude = [\"wlan*\"]", vec!["eth0"]),
            (
                "[uplinks]\ninclude = [\"*\"]\nexclude = [\"?l*\", \"e*\"]",
                vec!["wg1"],
            ),
            ("[uplinks]\ninclude = [\"nope\"]", vec![]),
        ] {
            assert_eq!(names(&all, text, HUB), expected, "{text}");
        }
        assert_eq!(
            unmatched(&all, &rules("[uplinks]\ninclude = [\"nope\", \"e*\"]")),
            ["nope"]
        );
    }

    #[test]
    fn what_is_left_out_only_as_a_tunnel_is_told_and_why() {
        let tunnel = |name: &str, kind: &str| Interface {
            kind: Some(kind.to_owned()),
            ..interface(name, &["192.0.2.6/24"])
        };
        let dead = Interface {
            carrier: false,
            ..tunnel("wg2", "wireguard")
        };
        let narrow = Interface {
            default_route_v4: false,
            ..tunnel("wg3", "wireguard")
        };
        let all = [
            interface("eth0", &["192.0.2.5/24"]),
            tunnel("wlan1", "tun"),
            tunnel("ropewalk0", "tun"),
            dead,
            narrow,
        ];
        let hub: [SocketAddr; 1] = [HUB.parse().unwrap()];
        let told = |text: &str| -> Vec<String> {
            let left_out = left_out(&all, &rules(text), "ropewalk0", &hub);
            left_out.iter().map(ToString::to_string).collect()
        };
        assert_eq!(told(""), ["wlan1 looks like another VPN (tun)"]);
        for said in [
            "exclude = [\"wlan*\"]",
            "include = [\"wlan*\"]",
            "include = [\"e*\"]",
        ] {
            let text = format!("[uplinks]\n{said}");
            assert_eq!(told(&text), Vec::<String>::new(), "{said}");
        }
        let many: Vec<_> = (0..50).map(|_| tunnel("wlan1", "tun")).collect();
        assert_eq!(
            left_out(&many, &rules(""), "ropewalk0", &hub).len(),
            LEFT_OUT_MAX
        );
    }

    #[test]
    fn first_matching_mark_counts() {
        let text = "[[uplink]]\nmatch = \"wwan*\"\nmetered = true\nweight = 3\n\
                    [[uplink]]\nmatch = \"*\"\nstandby = true\ncongestion = \"cubic\"\n";
        let interfaces = [
            interface("wwan0", &["192.0.2.5/24"]),
            interface("eth1", &["192.0.2.6/24"]),
        ];
        let uplinks = select(&interfaces, &rules(text), "t", &[HUB.parse().unwrap()]);
        let marks: Vec<_> = uplinks
            .iter()
            .map(|u| (u.metered, u.standby, u.weight))
            .collect();
        assert_eq!(marks, [(true, false, Some(3)), (false, true, None)]);
        assert_eq!(uplinks[0].congestion, None);
        assert!(uplinks[1].congestion.is_some());
    }

    #[test]
    fn privacy_addresses_come_first_and_deprecated_ones_last_resort() {
        let hub: Vec<SocketAddr> = vec![
            HUB.parse().unwrap(),
            "[2001:db8:1::1]:4443".parse().unwrap(),
        ];
        for (addresses, expected) in [
            (
                vec![
                    "fe80::1/64",
                    "2001:db8::1/64",
                    "2001:db8::2/64 t",
                    "192.0.2.5/24",
                ],
                vec!["192.0.2.5", "2001:db8::2", "2001:db8::1"],
            ),
            (
                vec!["2001:db8::1/64", "2001:db8::2/64 td"],
                vec!["2001:db8::1"],
            ),
            (vec!["2001:db8::1/64 d"], vec!["2001:db8::1"]),
            (
                vec!["2001:db8::1/64 x", "2001:db8::2/64"],
                vec!["2001:db8::2"],
            ),
        ] {
            let uplinks = select(&[interface("eth0", &addresses)], &rules(""), "t", &hub);
            let found: Vec<_> = uplinks[0]
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn number_of_uplinks_is_bounded_and_order_is_by_index() {
        let mut many = Vec::new();
        for index in (1..=40).rev() {
            many.push(Interface {
                index,
                ..interface("eth0", &["192.0.2.5/24"])
            });
        }
        let uplinks = select(&many, &rules(""), "t", &[HUB.parse().unwrap()]);
        let indices: Vec<_> = uplinks.iter().map(|uplink| uplink.ifindex).collect();
        assert_eq!(indices, (1..=PATHS_MAX as u32).collect::<Vec<_>>());
    }

    #[test]
    fn changes_are_told_in_words() {
        let one = |name: &str, ip: &str| {
            let interface = Interface {
                index: 7,
                ..interface(name, &[ip])
            };
            select(&[interface], &rules(""), "t", &[HUB.parse().unwrap()])
        };
        let before = one("usb0", "192.0.2.5/24");
        assert_eq!(changes(&[], &before), ["usb0 is an uplink now"]);
        assert_eq!(changes(&before, &[]), ["usb0 is no uplink any more"]);
        assert_eq!(
            changes(&before, &one("phone", "192.0.2.5/24")),
            ["usb0 is called phone now"]
        );
        assert_eq!(
            changes(&before, &one("usb0", "192.0.2.6/24")),
            ["usb0 has other addresses"]
        );
        assert!(changes(&before, &before).is_empty());
    }
}
