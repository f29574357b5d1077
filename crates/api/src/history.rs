//! What a gateway remembers of the last minutes, hour and day.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/history`: points at equal distances, oldest first. A point that is not known is absent
/// (`null`). All lists have the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// Seconds between points.
    pub step_s: u32,
    /// Time of the newest point, seconds since 1970.
    pub end_s: u64,
    /// What is asked to be sent, inner bit/s: sent, dropped at the ingress, and added to what waits there.
    pub offered: Vec<Option<f32>>,
    /// Tunnels that are up.
    pub up: Vec<Option<f32>>,
    /// One entry for each uplink; on a hub one for all sites together, without round trip and loss.
    pub uplinks: Vec<UplinkHistory>,
}

/// The points of an uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkHistory {
    /// Its name.
    pub name: String,
    /// Outer bit/s sent.
    pub sent: Vec<Option<f32>>,
    /// Outer bit/s received.
    pub received: Vec<Option<f32>>,
    /// Round trip, milliseconds.
    pub rtt_ms: Vec<Option<f32>>,
    /// Share of packets lost, `0..=1`.
    pub loss: Vec<Option<f32>>,
}

/// Something that happened to a gateway, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Happened {
    /// When, seconds since 1970.
    pub at_s: u64,
    /// What.
    pub what: String,
    /// Of a hub: the site that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}
