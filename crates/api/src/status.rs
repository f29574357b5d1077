//! State of a gateway.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::Words;
use crate::{BalanceStatus, DirectStatus, FleetStatus, PathStatus, SiteStatus, TunnelStatus};

/// State of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// `site`, `hub`, `relay` or `balance`.
    pub role: String,
    /// Name in the configuration, as its logs have it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Program version.
    pub version: String,
    /// Public key of this gateway, base64.
    pub public_key: String,
    /// The change of that key, if one is under way or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<KeyRotation>,
    /// TUN interface name.
    pub interface: String,
    /// MTU of the TUN interface in bytes.
    pub mtu: usize,
    /// Inner addresses of this gateway with prefix length.
    pub addresses: Vec<String>,
    /// Seconds since the gateway started.
    pub uptime_s: f64,
    /// Offloads in use, and those given up with the reason.
    pub offloads: Vec<String>,
    /// Of a relay: what it is towards the next hub, while the fields above are towards its sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onward: Option<OnwardStatus>,
    /// Of `ropewalk balance`, which has neither interface nor tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceStatus>,
    /// Of a site that sends some flows beside its tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectStatus>,
    /// Of a site that leads everything into its tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_switch: Option<KillSwitchStatus>,
    /// The threads of a hub that has several; each serves a part of the sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerStatus>,
    /// Of a hub that belongs to a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// Of a hub that passes packets for shared addresses on to the hubs that serve the sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<PassedStatus>,
    /// One entry per peer: the hub of a site, the known sites of a hub, both of a relay.
    pub tunnels: Vec<TunnelStatus>,
    /// Of a hub or relay that was asked for little: the known sites, in place of their tunnels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteStatus>,
    /// Of a site: interfaces that would be uplinks but are not used, at most [`LEFT_OUT_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// What is to be said of the whole gateway; empty when all is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Words>,
    /// Counted drops and refusals by reason, over all tunnels and the sockets.
    pub drops: BTreeMap<String, u64>,
}

/// Most interfaces that are said to be left out. More: longer statuses.
pub const LEFT_OUT_MAX: usize = 16;

/// An interface that would be an uplink but is not used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Why, in words that go on after the name.
    pub why: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.why)
    }
}

/// What a site refuses to send beside its tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KillSwitchStatus {
    /// Whether the configuration has it on.
    pub on: bool,
    /// Whether the rules are in force.
    pub is_set: bool,
    /// Packets refused since the rules were set.
    pub refused: u64,
    /// Seconds for which a portal may still be passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portal_s: Option<u64>,
    /// Families that the tunnel carries: `ipv4`, `ipv6`. The others are refused.
    pub families: Vec<String>,
    /// Whether the machine had no IPv6 when the site started: the tunnel carries none then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_ipv6: bool,
    /// Networks that are reached beside the tunnel.
    pub local: Vec<String>,
}

/// Packets for ports of shared addresses that came to another hub than that of the site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PassedStatus {
    /// Packets that this hub has wrapped for another one.
    pub passed_on: u64,
    /// Packets of other hubs that this one has unwrapped for its sites.
    pub unwrapped: u64,
}

/// A gateway that changes its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRotation {
    /// The public key that it will have, base64.
    pub next_key: String,
    /// Of a site: `asking` before the hub has taken the key, then `moving`, or `refused`. Of a hub: `announced`.
    pub state: String,
    /// Why the hub has refused the key, or keys before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A thread of a hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub worker: usize,
    /// Listed sites that it serves.
    pub sites: usize,
    /// Paths of them that are up.
    pub paths_up: usize,
    /// Processor time since the start, seconds.
    pub cpu_s: f64,
    /// Inner packets that came in here and went to the worker that serves their site.
    pub handed_over: u64,
    /// Inner packets that were lost on this way: the other worker was busy.
    pub handover_drops: u64,
}

/// A relay's side towards the next hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OnwardStatus {
    /// Public key there, base64.
    pub public_key: String,
    /// TUN interface name.
    pub interface: String,
    /// Its MTU in bytes.
    pub mtu: usize,
    /// Inner addresses there, with prefix length.
    pub addresses: Vec<String>,
}

impl Status {
    /// Of a hub or relay: its sites in place of their tunnels. A site keeps its tunnel.
    #[must_use]
    pub fn in_short(mut self) -> Self {
        if self.role != "site" {
            let sites = self.tunnels.drain(..).map(SiteStatus::of);
            self.sites.extend(sites);
        }
        self
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &PathStatus> {
        self.tunnels.iter().flat_map(|tunnel| &tunnel.paths)
    }

    /// Number of paths of all tunnels that are up.
    #[must_use]
    pub fn paths_up(&self) -> usize {
        self.paths().filter(|path| path.is_up()).count()
    }

    /// The gateway's own inner address of a family.
    #[must_use]
    pub fn address(&self, v6: bool) -> Option<IpAddr> {
        let plain = |text: &String| text.split('/').next()?.parse::<IpAddr>().ok();
        self.addresses
            .iter()
            .filter_map(plain)
            .find(|address| address.is_ipv6() == v6)
    }
}
