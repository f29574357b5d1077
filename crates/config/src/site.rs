//! What a site is configured with.
//!
//! Invariants: name servers are reached through the tunnel, or in a network of `local`. A site has exactly one hub, with a key and at least one endpoint. Rules for uplinks
//! keep the order of the file, because the first that matches counts.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;

use super::SITE_CONFIG;
use super::common::{self, Common, RoleDefaults};
use super::direct::{self, Direct};
use super::hub::{ENDPOINTS_MAX, TCP_PORT};
use super::reader::{self, Problems, Section, read};
use super::survey::Table;
use super::uplinks::{self, RULES_MAX, UplinkRules};
use super::values::HostPort;
use super::values::patterns::{HOST_PORT, IP, NETWORK};

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
    /// The hubs to which the site moves when the hub does not answer any more, first come first.
    pub spares: Vec<Spare>,
    /// Networks that are reached through the tunnel.
    pub routes: Vec<IpNet>,
    /// Networks in which the hub may give this site addresses; `None` takes private ones.
    pub assigned: Option<Vec<IpNet>>,
    /// Whether everything that would leave beside the tunnel is refused.
    pub kill_switch: bool,
    /// Networks that are reached beside the tunnel under the kill switch; `None` takes the private
    /// networks of interfaces that are no uplinks.
    pub local: Option<Vec<IpNet>>,
    /// Name servers of this machine while the tunnel has addresses; empty leaves the present ones.
    pub dns: Vec<IpAddr>,
    /// Which interfaces become uplinks.
    pub uplinks: UplinkRules,
    /// What goes beside the tunnel, if anything does.
    pub direct: Option<Box<Direct>>,
}

/// A hub that waits for a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Its public key.
    pub key: PublicKey,
    /// Where it is reached over UDP, preferred first.
    pub endpoints: Vec<HostPort>,
}

/// Parses `text`, which was read from `path`.
///
/// # Errors
/// Every problem found.
pub fn parse(path: &Path, text: &str) -> Result<SiteConfig, Problems> {
    let config = read(path, text, |root| read_all(root, path))?;
    // `read` fails whenever a required key was missing, so this cannot be reached without a value.
    config.ok_or_else(|| Problems(Vec::new()))
}

/// What is asked of such a file.
#[must_use]
pub fn survey() -> Table {
    reader::survey(|root| read_all(root, Path::new(SITE_CONFIG)))
}

fn read_all(root: &mut Section<'_>, path: &Path) -> Option<SiteConfig> {
    let defaults = RoleDefaults {
        role: "site",
        interface: "ropewalk0",
    };
    let common = common::read(root, path, defaults);
    let hub = root.section("hub", read_hub);
    let mut keys: Vec<_> = hub.iter().map(|hub| hub.0).collect();
    let spares = root.sections("spare", SPARES_MAX, |spare| {
        let read = read_spare(spare);
        if let Some(read) = &read {
            if keys.contains(&read.key) {
                spare.reject(
                    "key",
                    "another hub of this site has this key",
                    "write the key that `ropewalk key` shows on the spare",
                );
            }
            keys.push(read.key);
        }
        read
    });
    let spares = spares.into_iter().flatten().collect();
    let network = root.section("network", read_network);
    let uplinks = uplinks::read(root);
    let direct = direct::read(root, &common, &uplinks).map(Box::new);
    let (hub_key, endpoints, tcp_port, tcp_fallback) = hub?;
    Some(SiteConfig {
        common,
        hub_key,
        endpoints,
        tcp_port,
        tcp_fallback,
        spares,
        routes: network.routes,
        assigned: network.assigned,
        kill_switch: network.kill_switch,
        local: network.local,
        dns: network.dns,
        uplinks,
        direct,
    })
}

/// Key, endpoints, TCP port, and whether to fall back to it.
pub(super) type NextHub = (PublicKey, Vec<HostPort>, u16, bool);

pub(super) fn read_hub(hub: &mut Section<'_>) -> Option<NextHub> {
    let remedy = "run `ropewalk join`, which writes this file";
    let (key, endpoints) = read_place(hub, remedy);
    let tcp_port = hub.integer("tcp_port", 1..=65_535);
    let tcp_port = tcp_port.map_or(TCP_PORT, |port| u16::try_from(port).unwrap_or(TCP_PORT));
    let fallback = hub.boolean("tcp_fallback").unwrap_or(true);
    Some((key?, endpoints?, tcp_port, fallback))
}

/// Most hubs besides its own to which a site may move. More: a site outlives more hubs, and looks more names up. A token
/// of a fleet names three hubs.
pub const SPARES_MAX: usize = 2;

fn read_spare(spare: &mut Section<'_>) -> Option<Spare> {
    let remedy = "take it from that hub: `ropewalk key`, and `public` in its configuration";
    let (key, endpoints) = read_place(spare, remedy);
    Some(Spare {
        key: key?,
        endpoints: endpoints?,
    })
}

/// Key and endpoints of a hub.
fn read_place(hub: &mut Section<'_>, remedy: &str) -> (Option<PublicKey>, Option<Vec<HostPort>>) {
    let key = hub.like(KEY).text(
        "key",
        "the 44 characters that `ropewalk key` shows on the hub",
        str::parse,
    );
    let key = hub.require("key", key, remedy);
    let endpoints = hub.like(HOST_PORT).list(
        "endpoints",
        "[\"hub.example.org:4443\"]",
        ENDPOINTS_MAX,
        str::parse::<HostPort>,
    );
    let endpoints = hub.require("endpoints", endpoints, remedy);
    hub.reject_empty(
        "endpoints",
        endpoints.as_ref(),
        "the hub needs an endpoint",
        "write [\"hub.example.org:4443\"]",
    );
    (key, endpoints)
}

/// What every public key matches, for schemas: 32 bytes in base64.
pub(super) const KEY: &str = r"^\s*[A-Za-z0-9+/]{43}=\s*$";

/// What `[network]` says.
struct Network {
    routes: Vec<IpNet>,
    assigned: Option<Vec<IpNet>>,
    kill_switch: bool,
    local: Option<Vec<IpNet>>,
    dns: Vec<IpAddr>,
}

fn read_network(network: &mut Section<'_>) -> Network {
    let example = "[\"0.0.0.0/0\", \"::/0\"]";
    let routes = network
        .like(NETWORK)
        .list("routes", example, RULES_MAX, parse_net);
    let routes = routes
        .unwrap_or_else(|| vec![IpNet::V4(Default::default()), IpNet::V6(Default::default())]);
    let example = "[\"10.201.0.0/16\"]";
    let assigned = network
        .like(NETWORK)
        .list("assigned", example, RULES_MAX, parse_net);
    let kill_switch = network.boolean("kill_switch").unwrap_or(false);
    let local = network
        .like(NETWORK)
        .list("local", "[\"192.168.0.0/16\"]", RULES_MAX, parse_net);
    let dns = network
        .like(IP)
        .list("dns", "[\"192.0.2.53\"]", NAME_SERVERS_MAX, |text| {
            text.parse::<IpAddr>()
                .map_err(|_| format!("{text:?} is not an address"))
        });
    let dns = dns.unwrap_or_default();
    if kill_switch && !tunnels_everything(&routes) {
        network.reject(
            "kill_switch",
            "the kill switch refuses everything that leaves beside the tunnel, but `routes` lead \
             only a part into the tunnel",
            "remove `routes`, or set kill_switch = false",
        );
    }
    let inside = |ip: &IpAddr| {
        let mut nets = routes.iter().chain(local.iter().flatten());
        nets.any(|net| net.contains(ip))
    };
    if let Some(outside) = dns.iter().find(|ip| !inside(ip)) {
        network.reject(
            "dns",
            &format!("{outside} is not reached through the tunnel: no network of `routes` has it"),
            "add its network to `routes`, or take another name server",
        );
    }
    Network {
        routes,
        assigned,
        kill_switch,
        local,
        dns,
    }
}

/// Most name servers: resolv.conf(5) takes no more.
const NAME_SERVERS_MAX: usize = 3;

/// Whether both families are led into the tunnel whole.
#[must_use]
pub fn tunnels_everything(routes: &[IpNet]) -> bool {
    let whole = |ipv4: bool| {
        let mut nets = routes.iter().filter(|net| net.addr().is_ipv4() == ipv4);
        nets.any(|net| net.prefix_len() == 0)
    };
    whole(true) && whole(false)
}

fn parse_net(text: &str) -> Result<IpNet, String> {
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
}
