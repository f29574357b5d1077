//! `[[class]]`: which packets are protected against loss, and how.

use std::sync::Arc;

use ropewalk_core::code::REDUNDANCY_MAX;
use ropewalk_core::protect::{CLASSES_MAX, Class, Classes, Network, Protection, Rule};
use ropewalk_types::WITH_PORTS;

use super::reader::Section;
use super::values::patterns::{DSCP, NAME, NET, PORTS, PROTOCOL};
use super::values::{parse_dscp, parse_name, parse_net, parse_ports, parse_protocol};

/// How to write a protection.
pub const PROTECTION_EXAMPLE: &str = "\"adaptive\", \"duplicate\", \"code\", \"block\" or \"none\"";
/// Entries of a list in a rule.
const LIST_MAX: usize = 64;
/// Most paths that copies of a packet may take, the first included.
const COPIES_MAX: u64 = 16;
/// Most combinations per hundred packets.
const REDUNDANCY_PERCENT_MAX: u64 = (REDUNDANCY_MAX * 100.0) as u64;
/// Largest inner packet.
const PACKET_BYTES_MAX: u64 = 65_535;

/// How to write a way.
pub const VIA_EXAMPLE: &str = "\"tunnel\", \"direct\" or \"auto\"";

/// Which way flows go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Through the tunnel, or not at all.
    #[default]
    Tunnel,
    /// Flows go beside the tunnel, each over one uplink.
    Direct,
    /// Through the tunnel; new flows beside it while the hub is not reached though uplinks work.
    Auto,
}

impl Via {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Tunnel, Self::Direct, Self::Auto];

    /// The name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Direct => "direct",
            Self::Auto => "auto",
        }
    }
}

impl std::str::FromStr for Via {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|via| via.name() == text);
        named.ok_or_else(|| {
            format!("unknown way {text:?}, there are \"tunnel\", \"direct\" and \"auto\"")
        })
    }
}

/// How the section of a tunnel says that what no rule matches is protected.
#[derive(Clone, Copy, Debug)]
pub struct Default {
    protection: Option<Protection>,
    redundancy: Option<f64>,
}

/// Reads it.
pub fn read_default(tunnel: &mut Section<'_>) -> Default {
    let protection = read_protection(tunnel);
    let percent = tunnel.integer("redundancy_percent", 1..=REDUNDANCY_PERCENT_MAX);
    Default {
        protection,
        redundancy: percent.map(|percent| percent as f64 / 100.0),
    }
}

fn read_protection(section: &mut Section<'_>) -> Option<Protection> {
    let all = Protection::ALL.map(Protection::name);
    section.choice("protect", PROTECTION_EXAMPLE, all, str::parse)
}

/// Reads all classes and the way of each but the first, which is the default: what no rule matches
/// is protected by `default`. Only a site's flows have ways to choose from.
pub fn read(root: &mut Section<'_>, default: Default, is_site: bool) -> (Arc<Classes>, Vec<Via>) {
    let mut sized = None;
    let rules = root.sections("class", CLASSES_MAX - 1, |section| {
        let via = read_via(section, is_site, sized.as_deref());
        let class = read_class(section, via)?;
        if class.rule.packet_bytes_max > 0 {
            sized = Some(class.name.clone());
        }
        Some((class, via?))
    });
    let (rules, vias): (Vec<Class>, Vec<Via>) = rules.into_iter().flatten().unzip();
    let class = Class {
        protection: default.protection.unwrap_or_default(),
        ..Class::default()
    };
    let mut classes = Classes::new(class, rules);
    classes.redundancy = default.redundancy;
    (Arc::new(classes), vias)
}

/// The way of the flows of a class, `None` if it is reported as wrong, where `sized` is a class before it that goes by size.
fn read_via(class: &mut Section<'_>, is_site: bool, sized: Option<&str>) -> Option<Via> {
    // Where only one is right a schema names only that one.
    let ways = if is_site {
        &Via::ALL[..]
    } else {
        &[Via::Tunnel]
    };
    let names = ways.iter().map(|via| via.name());
    let via = class.choice("via", VIA_EXAMPLE, names, str::parse);
    if via.is_none() && class.has("via") {
        return None;
    }
    let via: Via = via.unwrap_or_default();
    if via == Via::Tunnel {
        return Some(via);
    }
    if !is_site {
        let remedy = "remove it here, and write it in the configuration of the site";
        class.reject(
            "via",
            "only a site sends anything beside its tunnel",
            remedy,
        );
    }
    if class.has("packet_bytes_max") {
        class.reject(
            "packet_bytes_max",
            "a way is chosen once for all packets of a flow, whatever their sizes",
            "remove it, or write via = \"tunnel\"",
        );
    }
    if let Some(name) = sized {
        class.reject(
            "via",
            &format!(
                "class {name:?} before it goes by packet_bytes_max, but a way is chosen once for all \
                 packets of a flow"
            ),
            &format!("put this class before {name:?}"),
        );
    }
    Some(via)
}

/// The same classes where `default` says nothing else.
#[must_use]
pub fn with_default(classes: &Classes, default: Default) -> Arc<Classes> {
    let class = classes.get(0).clone();
    let class = Class {
        protection: default.protection.unwrap_or(class.protection),
        ..class
    };
    // The first is the default.
    let mut changed = Classes::new(class, classes.iter().skip(1).cloned());
    changed.redundancy = default.redundancy.or(classes.redundancy);
    Arc::new(changed)
}

fn read_class(class: &mut Section<'_>, via: Option<Via>) -> Option<Class> {
    let name = class.like(NAME).text("name", "\"calls\"", parse_name);
    let name = class.require("name", name, "write name = \"calls\"");
    let protection = read_protection(class);
    // Direct: never in the tunnel, but for want of an uplink. `None`: it is not known.
    let needed = matches!(via, Some(Via::Tunnel | Via::Auto));
    let remedy = format!("write protect = \"adaptive\", or another of {PROTECTION_EXAMPLE}");
    let direct = ("via", Via::Direct.name());
    let protection = class.require_unless(direct, needed, "protect", protection, &remedy);
    let protection = protection.or((!needed).then(Protection::default));
    let dscp = class
        .like(DSCP)
        .list("dscp", "[\"ef\", \"cs5\", \"34\"]", LIST_MAX, parse_dscp);
    let protocols =
        class
            .like(PROTOCOL)
            .list("protocol", "[\"udp\", \"icmp\"]", LIST_MAX, parse_protocol);
    let ports = class
        .like(PORTS)
        .list("ports", "[\"53\", \"16384-32767\"]", LIST_MAX, parse_ports);
    let networks = "[\"192.0.2.0/24\", \"2001:db8::/32\"]";
    let addresses = class
        .like(NET)
        .list("addresses", networks, LIST_MAX, parse_net);
    let addresses = addresses.unwrap_or_default().into_iter();
    let (protocols, ports) = (protocols.unwrap_or_default(), ports.unwrap_or_default());
    if !ports.is_empty() && !protocols.is_empty() && !protocols.iter().any(has_ports) {
        let remedy =
            "remove it, or name one that has ports in protocol: \"tcp\", \"udp\", \"sctp\"";
        class.reject("ports", "none of these protocols has ports", remedy);
    }
    let bytes = class.integer("packet_bytes_max", 1..=PACKET_BYTES_MAX);
    let copies = class.integer("copies", 2..=COPIES_MAX);
    let loss = class.integer("loss_permille_above", 0..=1_000);
    Some(Class {
        name: name?,
        rule: Rule {
            dscp: dscp.unwrap_or_default(),
            protocols,
            ports,
            addresses: addresses
                .map(|net| Network {
                    address: net.network(),
                    prefix: net.prefix_len(),
                })
                .collect(),
            packet_bytes_max: bytes.map_or(0, |bytes| bytes as usize),
        },
        protection: protection?,
        copies: copies.map_or(2, |copies| copies as usize),
        loss_above: loss.map_or(0.0, |permille| permille as f64 / 1_000.0),
    })
}

fn has_ports(protocol: &u8) -> bool {
    WITH_PORTS.contains(protocol)
}
