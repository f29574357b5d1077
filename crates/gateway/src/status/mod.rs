//! What a running gateway tells of itself: `ropewalk status`, the API and the metrics show this.

pub mod balance;

pub use balance::{BalanceStatus, DirectStatus};
pub use ropewalk_session::status::{PathStatus, TunnelStatus};
use serde::{Deserialize, Serialize};

/// State of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `site`, `hub` or `relay`.
    pub role: String,
    /// Program version.
    pub version: String,
    /// Public key of this gateway, base64.
    pub public_key: String,
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
    /// One entry per peer: the hub of a site, the known sites of a hub, both of a relay.
    pub tunnels: Vec<TunnelStatus>,
    /// Counted drops and refusals by reason, over all tunnels and the sockets.
    pub drops: std::collections::BTreeMap<String, u64>,
}

/// A relay's side towards the next hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
