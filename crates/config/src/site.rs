//! What a site is configured with.
//!
//! Invariant: a site has exactly one hub, with a key and at least one endpoint. Rules for uplinks
//! keep the order of the file, because the first that matches counts.

use std::path::Path;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;

use super::common::{self, Common, RoleDefaults};
use super::direct::{self, Direct};
use super::hub::{ENDPOINTS_MAX, TCP_PORT};
use super::reader::{Problems, Section, read};
use super::uplinks::{self, RULES_MAX, UplinkRules};
use super::values::HostPort;

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
        let uplinks = uplinks::read(root);
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

/// Key, endpoints, TCP port, and whether to fall back to it.
pub(super) type NextHub = (PublicKey, Vec<HostPort>, u16, bool);

pub(super) fn read_hub(hub: &mut Section<'_>) -> Option<NextHub> {
    let remedy = "run `ropewalk join`, which writes this file";
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
