//! What a site adds to the firewall table: which of the flows that its routes lead into the tunnel go
//! beside it.
//!
//! The first packet of a flow is classified; the connection's mark remembers the answer. A flow
//! beside the tunnel has the mark of its uplink. One in the tunnel has a mark that leads to no
//! uplink, so it follows the main table into the tunnel.
//!
//! Invariants: packets without the mark of an uplink do not leave by an uplink as long as the main
//! table leads them into the tunnel. Packets with a mark of the tunnel never do.

use std::fmt::Write;

use ipnet::IpNet;
use ropewalk_core::protect::Rule;
use ropewalk_types::WITH_PORTS;

use super::Balance;
use super::marks::{FROM_TUNNEL, KEY_MASK, TABLE, TUNNEL_AUTO, TUNNEL_ONLY};
use super::members::{FAMILIES, Family};
use super::terminate;
use super::text::{Chain, port_list, set};
use ropewalk_config::class::Via;
use ropewalk_config::direct::Direct;

/// The tunnel that some flows go beside.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Its interface.
    pub tun: String,
    /// Addresses of this end, with the networks of the tunnel itself; none until the hub has
    /// answered.
    pub inner: Vec<IpNet>,
    /// Which flows go which way.
    pub direct: Box<Direct>,
    /// Whether flows of classes with two ways go beside it.
    pub fallen_back: bool,
}

impl Split {
    fn address(&self, family: Family) -> Option<&IpNet> {
        let mut inner = self.inner.iter();
        inner.find(|net| Family::of(net.addr()) == family)
    }

    /// Whether this end of the tunnel has an address in a family.
    #[must_use]
    pub fn has_address(&self, family: Family) -> bool {
        self.address(family).is_some()
    }

    /// Whether new flows with two ways go beside the tunnel now.
    #[must_use]
    pub fn auto_is_direct(&self, family: Family) -> bool {
        self.fallen_back || !self.has_address(family)
    }

    /// Chains that lead to `choose` or into the tunnel; the first packet of a flow goes to
    /// `classify`.
    #[must_use]
    pub fn chains(&self) -> Vec<Chain> {
        let mark = |value: u32| format!("ct mark set ct mark and {:#x} or {value:#x}", !KEY_MASK);
        // Without an address there it could only wait until it gives up.
        let without = FAMILIES.into_iter().filter(|f| self.address(*f).is_none());
        let refused = without.map(|f| format!("meta nfproto ipv{} goto refuse", f.digit()));
        let tunnel = refused.chain([mark(TUNNEL_ONLY)]).collect();
        // The interface may be gone with a process that was killed, and its routes for a moment.
        let guard = |marks: &str, direction| {
            format!(
                "ct mark and {KEY_MASK:#x} {marks} ct direction {direction} oifname != \"{}\" drop",
                self.tun
            )
        };
        let guards = vec![
            guard(
                &format!("{{ {TUNNEL_ONLY:#x}, {TUNNEL_AUTO:#x} }}"),
                "original",
            ),
            guard(&format!("{FROM_TUNNEL:#x}"), "reply"),
        ];
        let behind_routing = "type filter hook postrouting priority filter;";
        let chain = |name: &str, hook, rules| (name.to_owned(), hook, rules);
        vec![
            chain("tunnel_auto", "", vec![mark(TUNNEL_AUTO)]),
            // Filled by `update`.
            chain("auto", "", Vec::new()),
            chain("tunnel", "", tunnel),
            chain("classify", "", self.classify()),
            chain("guard", behind_routing, guards),
        ]
    }

    /// Marks flows that come out of the tunnel: what answers them goes back into it, or nowhere.
    #[must_use]
    pub fn claim(&self) -> String {
        let mark = format!(
            "ct mark set ct mark and {:#x} or {FROM_TUNNEL:#x}",
            !KEY_MASK
        );
        format!("iifname \"{}\" {mark} return", self.tun)
    }

    /// What changes when flows fall back or return.
    pub fn update(&self, out: &mut String) {
        let _ = writeln!(out, "flush chain inet {TABLE} auto");
        for rule in self.auto() {
            let _ = writeln!(out, "add rule inet {TABLE} auto {rule}");
        }
    }

    /// Elements of the map `restore`: packets of flows in the tunnel go where the main table says.
    #[must_use]
    pub fn restore() -> [String; 3] {
        [TUNNEL_ONLY, TUNNEL_AUTO, FROM_TUNNEL].map(|mark| format!("{mark:#x} : return"))
    }

    /// Hosts behind a site that forwards for them have its address in the tunnel: the hub knows no
    /// other.
    #[must_use]
    pub fn translate(&self) -> Vec<String> {
        let tun = format!("oifname \"{}\"", self.tun);
        let mut rules = Vec::new();
        if self.direct.spread.forward {
            for net in &self.inner {
                let (ip, own) = (Family::of(net.addr()).nft(), net.addr());
                rules.push(format!("{tun} {ip} saddr != {own} snat {ip} to {own}"));
            }
        }
        rules
    }

    fn auto(&self) -> Vec<String> {
        let beside = FAMILIES
            .into_iter()
            .filter(|family| self.auto_is_direct(*family));
        let mut rules: Vec<String> = beside
            .map(|family| format!("meta nfproto ipv{} goto choose", family.digit()))
            .collect();
        rules.push("goto tunnel_auto".to_owned());
        rules
    }

    fn classify(&self) -> Vec<String> {
        // A flow that began before this table did stays as it is: no address would be translated.
        let mut rules = vec!["ct status confirmed return".to_owned()];
        for net in &self.inner {
            let (ip, net) = (Family::of(net.addr()).nft(), net.trunc());
            rules.push(format!("{ip} daddr {net} return"));
        }
        for class in &self.direct.classes {
            let target = target(class.via);
            let lines = conditions(&class.rule).into_iter();
            rules.extend(lines.map(|line| format!("{line}{target}")));
        }
        rules.push(target(self.direct.others).to_owned());
        rules
    }
}

impl Balance {
    /// What is known of the tunnel.
    pub const fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// Whether any uplink has a way out in a family.
    pub fn has_way(&self, family: Family) -> bool {
        let mut present = self.members.iter().filter(|member| member.present);
        present.any(|member| member.way(family).is_some())
    }

    /// Whether any uplink works.
    pub fn is_any_usable(&self) -> bool {
        self.usable.iter().flatten().any(|usable| *usable)
    }

    /// Whether probes cannot tell if an uplink works.
    pub fn is_blind(&self) -> bool {
        self.health.is_blind()
    }

    /// The hub gave this end of the tunnel these addresses.
    ///
    /// # Errors
    /// The firewall table cannot be changed.
    pub fn set_inner(&mut self, inner: &[IpNet]) -> anyhow::Result<()> {
        if let Some(split) = &mut self.split {
            split.inner = inner.to_vec();
        }
        self.write()
    }

    /// Sends new flows with two ways beside the tunnel, or into it again. Flows under way, but for
    /// open connections, take the new way with their next packet.
    ///
    /// # Errors
    /// The firewall table cannot be changed.
    pub fn fall_back(&mut self, fallen_back: bool) -> anyhow::Result<()> {
        if let Some(split) = &mut self.split {
            split.fallen_back = fallen_back;
        }
        self.write()?;
        if fallen_back {
            tokio::task::spawn_blocking(|| match terminate::leave_tunnel() {
                Ok(count) => tracing::info!(flows = count, "flows left the tunnel"),
                Err(error) => tracing::warn!(%error, "flows did not leave the tunnel"),
            });
        }
        Ok(())
    }
}

const fn target(via: Via) -> &'static str {
    match via {
        Via::Tunnel => "goto tunnel",
        Via::Direct => "goto choose",
        Via::Auto => "goto auto",
    }
}

/// The conditions of a class, one line per alternative, each with a space at its end.
fn conditions(rule: &Rule) -> Vec<String> {
    let numbers = |list: &mut dyn Iterator<Item = &u8>| set(list.map(ToString::to_string));
    let protocols = |list: Option<String>| {
        list.map_or_else(String::new, |list| format!("meta l4proto {list} "))
    };
    let with_ports = match port_list(&rule.ports) {
        None => vec![protocols(numbers(&mut rule.protocols.iter()))],
        Some(ports) => {
            let named = |number: &&u8| rule.protocols.is_empty() || rule.protocols.contains(number);
            let some = numbers(&mut WITH_PORTS.iter().filter(named));
            let some = some.into_iter();
            some.flat_map(|list| {
                ["dport", "sport"].map(|end| format!("meta l4proto {list} th {end} {ports} "))
            })
            .collect()
        }
    };
    let dscp = numbers(&mut rule.dscp.iter());
    if dscp.is_none() && rule.addresses.is_empty() {
        return with_ports;
    }
    let of_family = |family: Family| {
        let ip = family.nft();
        let codepoint = dscp.as_ref().map(|list| format!("{ip} dscp {list} "));
        let codepoint = codepoint.unwrap_or_default();
        let networks = rule.addresses.iter();
        let networks = networks.filter(|network| Family::of(network.address) == family);
        let networks =
            set(networks.map(|network| format!("{}/{}", network.address, network.prefix)));
        let ends = match networks {
            Some(list) => ["daddr", "saddr"]
                .map(|end| format!("{ip} {end} {list} "))
                .to_vec(),
            None if rule.addresses.is_empty() => vec![String::new()],
            None => Vec::new(),
        };
        let with_ports = with_ports.clone();
        ends.into_iter().flat_map(move |end| {
            let start = format!("{codepoint}{end}");
            with_ports
                .clone()
                .into_iter()
                .map(move |line| start.clone() + &line)
        })
    };
    FAMILIES.into_iter().flat_map(of_family).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use ropewalk_config::site;

    fn split(classes: &str, inner: &[&str]) -> Split {
        let key = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
        let hub = format!("[hub]\nkey = \"{key}\"\nendpoints = [\"h:1\"]\n{classes}");
        let config = site::parse(Path::new("site.toml"), &hub).unwrap();
        Split {
            tun: config.common.interface,
            inner: inner.iter().map(|net| net.parse().unwrap()).collect(),
            direct: config.direct.unwrap(),
            fallen_back: false,
        }
    }

    fn chain(split: &Split, name: &str) -> Vec<String> {
        let chains = split.chains();
        let found = chains.into_iter().find(|(found, _, _)| found == name);
        found.unwrap().2
    }

    const CLASSES: &str = "[[class]]\nname = \"calls\"\ndscp = [\"ef\"]\nprotect = \"duplicate\"\n\
        [[class]]\nname = \"web\"\nports = [\"443\", \"8000-8100\"]\nprotocol = [\"tcp\"]\nvia = \"direct\"\n\
        [direct]\nvia = \"auto\"\n";

    #[test]
    fn classes_become_lines_in_their_order_and_ports_count_at_either_end() {
        let split = split(CLASSES, &["10.9.0.7/20"]);
        assert_eq!(
            chain(&split, "classify"),
            [
                "ct status confirmed return",
                "ip daddr 10.9.0.0/20 return",
                "ip dscp { 46 } goto tunnel",
                "ip6 dscp { 46 } goto tunnel",
                "meta l4proto { 6 } th dport { 443, 8000-8100 } goto choose",
                "meta l4proto { 6 } th sport { 443, 8000-8100 } goto choose",
                "goto auto",
            ]
        );
    }

    #[test]
    fn addresses_count_at_either_end_in_their_family_only() {
        let class = "[[class]]\nname = \"cdn\"\nvia = \"direct\"\nports = [\"80\"]\nprotocol = [\"tcp\"]\n\
            addresses = [\"192.0.2.0/24\", \"198.51.100.1\"]\n";
        let split = split(class, &[]);
        let nets = "{ 192.0.2.0/24, 198.51.100.1/32 }";
        let mut expected = vec!["ct status confirmed return".to_owned()];
        for end in ["daddr", "saddr"] {
            for port in ["dport", "sport"] {
                expected.push(format!(
                    "ip {end} {nets} meta l4proto {{ 6 }} th {port} {{ 80 }} goto choose"
                ));
            }
        }
        expected.push("goto tunnel".to_owned());
        assert_eq!(chain(&split, "classify"), expected);
    }

    #[test]
    fn a_family_without_an_address_in_the_tunnel_is_refused_there_or_goes_direct() {
        let mut split = split(CLASSES, &["10.9.0.7/20"]);
        assert_eq!(chain(&split, "tunnel")[0], "meta nfproto ipv6 goto refuse");
        let away = "meta nfproto ipv4 goto choose";
        let lacking = "meta nfproto ipv6 goto choose";
        assert_eq!(split.auto(), [lacking, "goto tunnel_auto"]);
        split.fallen_back = true;
        assert_eq!(split.auto(), [away, lacking, "goto tunnel_auto"]);
        split.fallen_back = false;
        split.inner.clear();
        assert_eq!(split.auto(), [away, lacking, "goto tunnel_auto"]);
    }
}
