//! What an uplink may carry in a month, and how much of that is left.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an uplink may carry in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes in both directions.
    pub bytes: u64,
    /// Day of the month on which the count begins anew, `1..=28`, at midnight UTC.
    pub day: u8,
}

/// A quota and its use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaStatus {
    /// Bytes allowed in this month.
    pub bytes: u64,
    /// Bytes used of them: outer bytes of the paths over this uplink, in both directions.
    pub used: u64,
    /// Seconds until the count begins anew.
    pub ends_in_s: u64,
}

impl QuotaStatus {
    /// Whether nothing is left.
    #[must_use]
    pub const fn is_used_up(&self) -> bool {
        self.used >= self.bytes
    }
}
