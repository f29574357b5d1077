//! Which inner addresses a site takes from its hub.
//!
//! Invariant: no word of the hub leads addresses of this machine's own networks into the tunnel, or more than the
//! user allows. The network of an address counts as well, because the kernel routes all of it.

use std::net::IpAddr;

use ipnet::IpNet;
use ropewalk_io::netlink::Interface;
use ropewalk_types::PortBlock;

/// Where hubs give addresses unless the configuration says otherwise: private, shared and unique local networks
/// (RFC 1918, RFC 6598, RFC 4193).
const USUAL: [&str; 5] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
];

/// Why a site does not take an address of its hub; `None` if it does. `allowed` is what the configuration says,
/// `uplinks` are the networks of this machine's uplinks with the names of these.
pub(super) fn refusal(
    assigned: &IpNet,
    allowed: Option<&[IpNet]>,
    uplinks: &[(String, IpNet)],
) -> Option<String> {
    let ip = assigned.addr();
    if let Some(what) = never(ip) {
        return Some(format!("the hub assigns {assigned}, which is {what}"));
    }
    let usual = USUAL.iter().filter_map(|net| net.parse().ok());
    let nets = allowed.map_or_else(|| usual.collect::<Vec<IpNet>>(), <[_]>::to_vec);
    if !nets.iter().any(|net| net.contains(assigned)) {
        let of_family = nets
            .iter()
            .filter(|net| net.addr().is_ipv4() == ip.is_ipv4());
        let list: Vec<_> = of_family.map(ToString::to_string).collect();
        let list = if list.is_empty() {
            "no network of this family".to_owned()
        } else {
            list.join(", ")
        };
        return Some(format!(
            "the hub assigns {assigned}, but this site takes addresses of {list} only; add the \
             network to `assigned` in [network] if the hub may give such addresses"
        ));
    }
    // A user who names the network knows it.
    if allowed.is_none()
        && let Some((name, net)) = uplinks.iter().find(|(_, net)| net.contains(&ip))
    {
        return Some(format!(
            "the hub assigns {assigned}, which is in the network {net} of the uplink {name}; give the \
             hub another pool, or name the network of the hub in `assigned` in [network]"
        ));
    }
    None
}

/// Why a site does not send from ports that its hub assigns; `None` if it does. `interfaces` are those of this machine.
pub(super) fn refusal_of_block(block: &PortBlock, interfaces: &[Interface]) -> Option<String> {
    let ip = IpAddr::V4(block.address);
    if let Some(what) = never(ip) {
        return Some(format!("the hub assigns ports of {ip}, which is {what}"));
    }
    let has = |interface: &&Interface| interface.addresses.iter().any(|own| own.ip == ip);
    let taken = interfaces.iter().find(has)?;
    let name = &taken.name;
    Some(format!(
        "the hub assigns ports of {ip}, which this machine has on {name}; take the address from the interface, \
         or ask for another one at the hub"
    ))
}

/// What an address is that no interface but the loopback one has.
fn never(ip: IpAddr) -> Option<&'static str> {
    let of_a_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let kinds = [
        (ip.is_loopback(), "a loopback address"),
        (ip.is_multicast(), "a multicast address"),
        (ip.is_unspecified(), "no address"),
        (of_a_link, "an address of a single link"),
    ];
    kinds.iter().find(|(is, _)| *is).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_hub_gives_private_addresses_and_what_the_user_allows_and_no_others() {
        let uplinks = [("wlan0".to_owned(), net("192.168.1.0/24"))];
        let usual = |text: &str| refusal(&net(text), None, &uplinks);
        for good in [
            "10.201.0.2/16",
            "100.64.3.4/32",
            "172.31.0.1/24",
            "192.168.7.2/16",
            "fd12::2/64",
        ] {
            assert_eq!(usual(good), None, "{good}");
        }
        for (bad, part) in [
            (
                "8.8.8.8/32",
                "8.8.8.8/32, but this site takes addresses of 10.0.0.0/8",
            ),
            ("10.0.0.2/7", "10.0.0.2/7, but"),
            ("192.168.1.1/32", "192.168.1.0/24 of the uplink wlan0"),
            ("192.168.1.7/16", "192.168.1.0/24 of the uplink wlan0"),
            ("2001:db8::2/64", "takes addresses of fc00::/7 only"),
            ("127.0.0.2/8", "loopback"),
            ("224.0.0.2/4", "multicast"),
            ("ff02::2/16", "multicast"),
            ("::1/128", "loopback"),
            ("0.0.0.0/0", "no address"),
            ("169.254.3.4/16", "single link"),
            ("fe80::2/64", "single link"),
        ] {
            let words = usual(bad).unwrap_or_else(|| panic!("{bad} is taken"));
            assert!(words.contains(part), "{words}");
        }
        let allowed = [
            net("2001:db8::/32"),
            net("192.168.0.0/16"),
            net("0.0.0.0/0"),
        ];
        let named = |text: &str| refusal(&net(text), Some(&allowed), &uplinks);
        assert_eq!(named("2001:db8::2/64"), None);
        assert_eq!(named("192.168.1.9/24"), None, "the user says so");
        assert!(named("fd12::2/64").unwrap().contains("2001:db8::/32"));
        assert!(named("127.0.0.1/32").is_some(), "never");
    }

    #[test]
    fn ports_of_an_address_of_this_machine_or_of_no_interface_are_not_taken() {
        let uplink = Interface::card("wlan0", 2, &[("192.168.1.7".parse().unwrap(), 24)]);
        let refused =
            |text: &str| refusal_of_block(&text.parse().unwrap(), std::slice::from_ref(&uplink));
        assert_eq!(refused("203.0.113.7:1024-2031"), None);
        for (block, part) in [
            ("192.168.1.7:1024-2031", "has on wlan0"),
            ("127.0.0.1:1024-2031", "loopback"),
            ("224.0.0.1:1024-2031", "multicast"),
        ] {
            let words = refused(block).unwrap_or_else(|| panic!("{block} is taken"));
            assert!(words.contains(part), "{words}");
        }
    }
}
