//! What a site is configured with.
//!
//! Invariant: a site has exactly one hub with a key and at least one endpoint; rules for uplinks
//! are kept in the order of the file, because the first that matches counts.

use std::path::Path;

use ipnet::IpNet;
use ropewalk_transport::{CongestionControl, PublicKey};

use super::common::{self, Common, HostPort, INTERFACE_NAME_MAX, RoleDefaults};
use super::direct::{self, Direct};
use super::hub::{ENDPOINTS_MAX, TCP_PORT};
use super::reader::{Problems, Section, read};

/// Most uplink rules, patterns and routes.
pub(super) const RULES_MAX: usize = 64;

/// Configuration of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteConfig {
    /// What both roles have in common.
    pub common: Common,
    /// The hub's public key.
    pub hub_key: PublicKey,
    /// Where the hub is reached, preferred first.
    pub endpoints: Vec<HostPort>,
    /// The hub's TCP port for TLS.
    pub tcp_port: u16,
    /// Whether to fall back to TLS over TCP where UDP is blocked.
    pub tcp_fallback: bool,
    /// Networks that are reached through the tunnel.
    pub routes: Vec<IpNet>,
    /// Which interfaces become uplinks.
    pub uplinks: UplinkRules,
    /// What goes beside the tunnel, if anything does.
    pub direct: Option<Box<Direct>>,
}

/// Which interfaces become uplinks, and how they are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkRules {
    /// Patterns of interfaces to use; empty means every interface with a way to the hub.
    pub include: Vec<Pattern>,
    /// Patterns of interfaces never to use; stronger than `include`.
    pub exclude: Vec<Pattern>,
    /// Marks; the first rule that matches counts.
    pub marks: Vec<UplinkMark>,
}

/// Marks of the uplinks whose name matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkMark {
    /// Pattern of interface names.
    pub pattern: Pattern,
    /// Used only while no other path works.
    pub standby: bool,
    /// Costs money by the byte.
    pub metered: bool,
    /// Fixed share under weighted round robin.
    pub weight: Option<u16>,
    /// Congestion control.
    pub congestion: Option<CongestionControl>,
    /// Bytes per hour that protection may cost.
    pub protection_hourly: Option<u64>,
}

/// A pattern of interface names: `*` stands for any text, `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Whether `name` matches. Time is the product of both lengths, which are bounded.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        // One row of the table "the first p bytes of the pattern match the first n of the name".
        let mut row = vec![false; name.len() + 1];
        row[0] = true;
        for pattern in self.0.bytes() {
            let mut diagonal = row[0];
            row[0] = row[0] && pattern == b'*';
            for (index, byte) in name.bytes().enumerate() {
                let above = row[index + 1];
                row[index + 1] = match pattern {
                    b'*' => above || row[index],
                    b'?' => diagonal,
                    literal => diagonal && literal == byte,
                };
                diagonal = above;
            }
        }
        row[name.len()]
    }
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 2 * INTERFACE_NAME_MAX {
            return Err(format!("{text:?} is no pattern of interface names"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses `text`, which was read from `path`.
///
/// # Errors
/// Every problem found.
pub fn parse(path: &Path, text: &str) -> Result<SiteConfig, Problems> {
    let config = read(path, text, |root| {
        let defaults = RoleDefaults {
            role: "site",
            interface: "ropewalk0",
        };
        let common = common::read(root, path, defaults);
        let hub = root.section("hub", read_hub);
        let routes = root.section("network", read_routes);
        let uplinks = read_uplinks(root);
        let direct = direct::read(root, &common, &uplinks).map(Box::new);
        let (hub_key, endpoints, tcp_port, tcp_fallback) = hub?;
        Some(SiteConfig {
            common,
            hub_key,
            endpoints,
            tcp_port,
            tcp_fallback,
            routes,
            uplinks,
            direct,
        })
    })?;
    // `read` fails whenever a required key was missing, so this cannot be reached without a value.
    config.ok_or_else(|| Problems(Vec::new()))
}

/// The rules for uplinks: `[uplinks]` and every `[[uplink]]`.
pub(super) fn read_uplinks(root: &mut Section<'_>) -> UplinkRules {
    let uplinks = root.section("uplinks", read_patterns);
    let marks = root.sections("uplink", RULES_MAX, read_mark);
    UplinkRules {
        marks: marks.into_iter().flatten().collect(),
        ..uplinks
    }
}

/// Key, endpoints, TCP port, and whether to fall back to it.
pub(super) type NextHub = (PublicKey, Vec<HostPort>, u16, bool);

pub(super) fn read_hub(hub: &mut Section<'_>) -> Option<NextHub> {
    let remedy = "run `ropewalk join TOKEN`, which writes this file";
    let key = hub.text(
        "key",
        "the 44 characters that `ropewalk key` shows on the hub",
        str::parse,
    );
    let key = hub.require("key", key, remedy);
    let endpoints = hub.list(
        "endpoints",
        "[\"hub.example.org:4443\"]",
        ENDPOINTS_MAX,
        str::parse::<HostPort>,
    );
    let endpoints = hub.require("endpoints", endpoints, remedy);
    if endpoints.as_ref().is_some_and(Vec::is_empty) {
        hub.reject(
            "endpoints",
            "the hub needs an endpoint",
            "write [\"hub.example.org:4443\"]",
        );
    }
    let tcp_port = hub.integer("tcp_port", 1..=65_535);
    let tcp_port = tcp_port.map_or(TCP_PORT, |port| u16::try_from(port).unwrap_or(TCP_PORT));
    let fallback = hub.boolean("tcp_fallback").unwrap_or(true);
    Some((key?, endpoints?, tcp_port, fallback))
}

fn read_routes(network: &mut Section<'_>) -> Vec<IpNet> {
    let routes = network.list("routes", "[\"0.0.0.0/0\", \"::/0\"]", RULES_MAX, |text| {
        let net: IpNet = text
            .parse()
            .map_err(|_| format!("{text:?} is not a network"))?;
        if net.addr() != net.network() {
            return Err(format!(
                "{text} has bits beyond its prefix, the network is {}",
                net.trunc()
            ));
        }
        Ok(net)
    });
    routes.unwrap_or_else(|| vec![IpNet::V4(Default::default()), IpNet::V6(Default::default())])
}

pub(super) fn read_patterns(uplinks: &mut Section<'_>) -> UplinkRules {
    let include = uplinks.list("include", "[\"eth*\", \"wlan0\"]", RULES_MAX, str::parse);
    let exclude = uplinks.list("exclude", "[\"docker*\"]", RULES_MAX, str::parse);
    UplinkRules {
        include: include.unwrap_or_default(),
        exclude: exclude.unwrap_or_default(),
        marks: Vec::new(),
    }
}

/// Most that may be configured, MiB per hour.
const PROTECT_MIB_MAX: u64 = 1 << 30;

fn read_mark(uplink: &mut Section<'_>) -> Option<UplinkMark> {
    let pattern = uplink.text("match", "\"wwan*\"", str::parse);
    let pattern = uplink.require("match", pattern, "write match = \"wwan*\"");
    let weight = uplink.integer("weight", 1..=1_000);
    let mark = UplinkMark {
        pattern: pattern.clone().unwrap_or_else(|| Pattern("*".to_owned())),
        standby: uplink.boolean("standby").unwrap_or(false),
        metered: uplink.boolean("metered").unwrap_or(false),
        weight: weight.and_then(|weight| u16::try_from(weight).ok()),
        congestion: uplink.text("congestion", "\"bdp\"", str::parse),
        protection_hourly: uplink
            .integer("protect_mib_per_hour", 0..=PROTECT_MIB_MAX)
            .map(|mib| mib << 20),
    };
    pattern.map(|_| mark)
}
