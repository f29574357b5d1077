//! What a hub knows of its fleet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fleet as one of its hubs knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetStatus {
    /// Name of the fleet.
    pub name: String,
    /// Public key of the fleet, base64.
    pub key: String,
    /// Name of this hub in the fleet.
    pub hub: String,
    /// Whether etcd answers.
    pub etcd: EtcdStatus,
    /// Revision of etcd that the copy on this hub has; 0 without a copy.
    pub revision: i64,
    /// Seconds since the copy was known to be the newest state; none without a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
    /// Sites of the fleet, those that have not joined yet included.
    pub sites: usize,
    /// Claims of sites that wait for etcd.
    pub claims_waiting: usize,
    /// Other changes that wait for etcd.
    pub writes_waiting: usize,
    /// What is wrong, and what to do; empty when all is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The hubs, by name.
    pub hubs: Vec<FleetHub>,
}

/// Whether etcd answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EtcdStatus {
    /// `there`, `away`, `denied` where etcd refuses the user of this hub or the role of the user, `foreign` where etcd has no
    /// state of this fleet, or `ended` where nobody asks it any more.
    pub state: String,
    /// Since when it is not there, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Why it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl EtcdStatus {
    /// Whether it answers.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.state == "there"
    }
}

/// A hub of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetHub {
    /// Its name.
    pub name: String,
    /// Whether etcd knows that it runs. A hub that is gone is in the list while it is drained only.
    pub runs: bool,
    /// Its public key, base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Where sites reach it, `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Where it is, in the operator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Version of its program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Sites that it serves.
    pub sites: u32,
    /// Since when sites shall leave it, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_since: Option<u64>,
}
