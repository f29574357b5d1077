//! What of a configuration is sound in itself but fits nothing on this machine now.
//!
//! Invariant: a doubt never keeps anything from running: an interface may appear later.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use ropewalk_io::netlink::Interface;
use serde::Serialize;

use ropewalk_config::BalanceConfig;
use ropewalk_config::uplinks::Pattern;
use ropewalk_host::uplinks;

/// Something that is probably not meant as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// What is odd.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.found, self.remedy)
    }
}

/// What of `config` fits none of these interfaces.
#[must_use]
pub fn doubts(interfaces: &[Interface], config: &BalanceConfig) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    for pattern in uplinks::unmatched(interfaces, &config.uplinks) {
        doubts.push(Doubt {
            found: format!("include has \"{pattern}\", which matches no interface"),
            remedy: "check `include` in [uplinks] for misspelt names".to_owned(),
        });
    }
    for rule in &config.rules {
        let is_absent = |pattern: &&Pattern| !interfaces.iter().any(|i| pattern.matches(&i.name));
        let absent: Vec<String> = rule.uplinks.iter().filter(is_absent).map(quoted).collect();
        if !absent.is_empty() {
            doubts.push(Doubt {
                found: format!(
                    "rule \"{}\" names uplinks that match no interface: {}",
                    rule.name,
                    absent.join(", ")
                ),
                remedy: "check `uplinks` of the rule for misspelt names".to_owned(),
            });
        }
    }
    for interface in interfaces {
        let extra = config.extra(&interface.name);
        let gateways = extra.map_or(&[][..], |extra| &extra.gateways);
        doubts.extend(gateways.iter().filter_map(|ip| unreachable(*ip, interface)));
    }
    doubts
}

/// Why a next hop is not reached over an interface that has addresses of its family.
fn unreachable(gateway: IpAddr, interface: &Interface) -> Option<Doubt> {
    let is_link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let networks: Vec<IpNet> = interface
        .addresses
        .iter()
        .filter(|address| address.ip.is_ipv4() == gateway.is_ipv4())
        .filter_map(|address| IpNet::new(address.ip, address.prefix).ok())
        .collect();
    let is_inside = networks.iter().any(|network| network.contains(&gateway));
    if is_link_local || networks.is_empty() || is_inside {
        return None;
    }
    let list: Vec<String> = networks.iter().map(|net| net.trunc().to_string()).collect();
    let list = list.join(", ");
    Some(Doubt {
        found: format!(
            "gateway {gateway} is outside the networks of {}: {list}",
            interface.name
        ),
        remedy: "correct `gateway` in [[uplink]]: a next hop lies within the uplink's network"
            .to_owned(),
    })
}

fn quoted(pattern: &Pattern) -> String {
    format!("\"{pattern}\"")
}

#[cfg(test)]
mod tests {
    use super::super::members::tests::{config, interface};
    use super::*;

    #[test]
    fn names_and_next_hops_that_fit_no_interface_are_told_and_others_are_not() {
        let interfaces = [
            interface("eth0", 2, "192.0.2.1"),
            interface("wwan0", 3, "192.0.2.1"),
        ];
        let wrong = config(
            "[uplinks]\ninclude = [\"dsl*\", \"eth*\"]\n\
             [[uplink]]\nmatch = \"eth0\"\ngateway = [\"198.51.100.1\"]\n\
             [[rule]]\nname = \"web\"\nuplinks = [\"wwan0\", \"lte*\"]\nports = [\"443\"]\n",
        );
        let told: Vec<String> = doubts(&interfaces, &wrong)
            .iter()
            .map(|d| d.found.clone())
            .collect();
        assert_eq!(
            told,
            [
                "include has \"dsl*\", which matches no interface",
                "rule \"web\" names uplinks that match no interface: \"lte*\"",
                "gateway 198.51.100.1 is outside the networks of eth0: 192.0.2.0/24",
            ]
        );
        let right = config(
            "[uplinks]\ninclude = [\"eth*\", \"wwan?\"]\n\
             [[uplink]]\nmatch = \"eth0\"\ngateway = [\"192.0.2.254\", \"fe80::1\"]\n\
             [[rule]]\nname = \"web\"\nuplinks = [\"wwan*\"]\nports = [\"443\"]\n",
        );
        assert_eq!(doubts(&interfaces, &right), []);
    }
}
