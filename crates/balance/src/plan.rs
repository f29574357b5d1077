//! What would be changed on this machine, without changing anything.

use std::collections::BTreeSet;

use serde::Serialize;

use super::doubts::{Doubt, doubts};
use super::gauge::Reading;
use super::kept::Affinity;
use super::ruleset::{self, View};
use super::setup::{self, Setup};
use super::{Split, marks, members, shares};
use ropewalk_config::BalanceConfig;
use ropewalk_io::netlink;

/// Every change, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Uplinks that would be used.
    pub uplinks: Vec<String>,
    /// Settings of the kernel.
    pub settings: Vec<String>,
    /// Routing rules and routes.
    pub routing: Vec<String>,
    /// Name of the firewall table.
    pub table: String,
    /// The script that makes it.
    pub firewall: String,
    /// What of the configuration fits nothing on this machine now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<Doubt>,
}

/// What starting now would change, as far as flows are spread: all of them, or those beside a
/// tunnel.
///
/// # Errors
/// The interfaces cannot be read.
pub fn plan(config: &BalanceConfig, split: Option<&Split>) -> anyhow::Result<Plan> {
    let interfaces = netlink::snapshot()?;
    let members = members::follow(&interfaces, config, &[]);
    let usable = vec![[true; 2]; members.len()];
    let readings = vec![Reading::default(); members.len()];
    let view = View {
        groups: shares::groups(config, &members, &usable, &readings),
        refused: &BTreeSet::new(),
        members: &members,
        rules: &config.rules,
        affinity: Affinity {
            time: config.affinity,
            sites: config.kept,
        },
        split,
    };
    Ok(Plan {
        uplinks: members.iter().map(|member| member.name.clone()).collect(),
        settings: setup::settings_lines(config, &members),
        routing: Setup::new(&members, setup::has_ipv6(), split.is_some()).lines(&members),
        table: format!("inet {}", marks::TABLE),
        firewall: ruleset::frame(&view) + &ruleset::update(&view),
        doubts: doubts(&interfaces, config),
    })
}
