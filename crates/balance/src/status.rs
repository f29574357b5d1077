//! Counts and names for what the running program tells of itself.

use std::collections::BTreeMap;

use ropewalk_io::conntrack;

use super::marks::{self, BALANCED};
use super::members::Family;
use ropewalk_api::BalanceStatus;

/// Counts the flows that are on each uplink now.
pub fn count_flows(status: &mut BalanceStatus) {
    let mut counts: BTreeMap<u8, u64> = BTreeMap::new();
    let counted = conntrack::for_each(BALANCED, BALANCED, |connection| {
        if let Some(number) = marks::number(connection.mark) {
            *counts.entry(number).or_default() += 1;
        }
    });
    if let Err(error) = counted {
        tracing::debug!(%error, "flows could not be counted");
    }
    for uplink in &mut status.uplinks {
        uplink.flows = counts.get(&uplink.number).copied().unwrap_or(0);
    }
}

/// In words, the state of an uplink in a family.
#[must_use]
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}
