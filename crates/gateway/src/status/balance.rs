//! How flows are spread over uplinks, by `ropewalk balance` or beside a tunnel.

use serde::{Deserialize, Serialize};

/// State of `ropewalk balance`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BalanceStatus {
    /// How new flows are shared.
    pub mode: String,
    /// Seconds that a client keeps its uplink to a site; 0 for not at all.
    pub affinity_s: u64,
    /// The uplinks.
    pub uplinks: Vec<UplinkStatus>,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<RuleStatus>,
}

/// State of an uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Interface.
    pub uplink: String,
    /// Number in marks.
    pub number: u8,
    /// Mark of its packets and connections, under the mask 0x1f000000.
    pub mark: u32,
    /// `up`, `unproven`, `dead`, `captive`, `absent` or `none` for IPv4.
    pub state_ipv4: String,
    /// The same for IPv6.
    pub state_ipv6: String,
    /// Share of new IPv4 flows, `0..=1`.
    pub share_ipv4: f64,
    /// Share of new IPv6 flows, `0..=1`.
    pub share_ipv6: f64,
    /// Why the share is what it is.
    pub reason: String,
    /// Set weight.
    pub weight: Option<u16>,
    /// What it is taken to carry, Mbit/s.
    pub capacity_mbit: f64,
    /// Whether it was seen full lately, so that this is measured and not assumed.
    pub capacity_measured: bool,
    /// Whether it was not, but probed while it was idle.
    #[serde(default)]
    pub capacity_probed: bool,
    /// What it carried in the last second, Mbit/s, in the direction that carries more.
    pub load_mbit: f64,
    /// Median round trip of the probes of the last second, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Costs by the byte.
    pub metered: bool,
    /// Only while nothing else works.
    pub standby: bool,
    /// Flows that are on it now.
    pub flows: u64,
    /// Bytes sent by the interface.
    pub tx_bytes: u64,
    /// Bytes received by the interface.
    pub rx_bytes: u64,
    /// Times it stopped working, in either family.
    pub failures: u64,
    /// Connections that were ended because it stopped working.
    pub severed: u64,
}

/// State of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub rule: String,
    /// Uplinks that its IPv4 flows take now.
    pub uplinks_ipv4: Vec<String>,
    /// Uplinks that its IPv6 flows take now.
    pub uplinks_ipv6: Vec<String>,
    /// Addresses known for its names.
    pub addresses: usize,
}

impl BalanceStatus {
    /// Whether all uplinks are taken for dead, so that they are used all the same.
    #[must_use]
    pub fn none_answers(&self) -> bool {
        let states = self.uplinks.iter().map(UplinkStatus::state);
        let mut states = states
            .filter(|state| !["absent", "none"].contains(state))
            .peekable();
        states.peek().is_some() && states.all(|state| state == "dead")
    }
}

impl UplinkStatus {
    /// Whether it carries new flows of either family.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.share_ipv4 > 0.0 || self.share_ipv6 > 0.0
    }

    /// State of the family that is in the better one.
    #[must_use]
    pub fn state(&self) -> &str {
        let order = ["up", "unproven", "captive", "dead", "absent", "none"];
        let place = |state: &str| order.iter().position(|known| *known == state);
        if place(&self.state_ipv6) < place(&self.state_ipv4) {
            &self.state_ipv6
        } else {
            &self.state_ipv4
        }
    }
}

/// What goes beside the tunnel, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectStatus {
    /// Whether flows of classes with two ways go beside the tunnel because the hub is not reached.
    pub fallen_back: bool,
    /// Times that they began to.
    pub fallbacks: u64,
    /// Flows of which classes go which way now, in the order in which they are tried; what belongs
    /// to no class comes last and is called `others`.
    pub classes: Vec<WayStatus>,
    /// How what goes beside the tunnel is spread.
    pub spread: BalanceStatus,
}

/// The way of the flows of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WayStatus {
    /// Name of the class.
    pub class: String,
    /// What the configuration says: `tunnel`, `direct` or `auto`.
    pub via: String,
    /// Where new IPv4 flows go: `tunnel`, `direct`, or `none` when neither leads anywhere.
    pub now_ipv4: String,
    /// Where new IPv6 flows go.
    pub now_ipv6: String,
}
