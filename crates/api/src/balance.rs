//! How flows are spread over uplinks, by `ropewalk balance` or beside a tunnel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::status;

/// State of `ropewalk balance`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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

status! {
    /// State of an uplink.
    UplinkStatus {
        /// Interface.
        uplink: String;
        /// Number in marks.
        number: u8;
        /// Mark of its packets and connections, under the mask 0x1f000000.
        mark: u32;
        /// `up`, `unproven`, `dead`, `captive`, `absent` or `none` for IPv4.
        state_ipv4: String;
        /// The same for IPv6.
        state_ipv6: String;
        /// `0..=1`.
        share_ipv4: f64 => "share_ipv4_ratio", "Share of new IPv4 flows.";
        /// `0..=1`.
        share_ipv6: f64 => "share_ipv6_ratio", "Share of new IPv6 flows.";
        /// Why the share is what it is.
        reason: String;
        /// Set weight.
        weight: Option<u16>;
        /// Mbit/s.
        capacity_mbit: f64 => "capacity_bytes_per_second", "What the uplink is taken to carry.", |mbit| mbit * 1e6 / 8.0;
        /// Whether it was seen full lately, so that this is measured and not assumed.
        capacity_measured: bool;
        /// Whether it was not, but probed while it was idle.
        #[serde(default)]
        capacity_probed: bool;
        /// Mbit/s.
        load_mbit: f64 => "load_bytes_per_second", "What it carried in the last second, in the direction that carries more.", |mbit| mbit * 1e6 / 8.0;
        /// Probes of the last second, milliseconds.
        rtt_ms: Option<f64> => "rtt_seconds", "Median round trip of the probes.", |ms| ms / 1e3;
        /// Costs by the byte.
        metered: bool;
        /// Only while nothing else works.
        standby: bool;
        flows: u64 => "flows", "Flows on the uplink.";
        tx_bytes: u64 => "transmit_bytes_total", "Bytes sent by the interface.";
        rx_bytes: u64 => "receive_bytes_total", "Bytes received by the interface.";
        /// In either family.
        failures: u64 => "failures_total", "Times the uplink stopped working.";
        severed: u64 => "severed_total", "Connections ended because the uplink stopped working.";
    }
    computed {
        "up", "Whether new flows may take the uplink.", |uplink| f64::from(u8::from(matches!(uplink.state(), "up" | "unproven")));
    }
}

/// State of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
