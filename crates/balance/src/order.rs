//! The firewall table as orders, which the helper of a gateway turns into scripts for nft(8).
//!
//! An order holds what is found out while the gateway runs: uplinks, their health, addresses of names.
//! What the configuration says is not in it. The helper has the configuration of before it was made, and
//! reads the file again at a reload.
//!
//! Invariant: no text of an order comes into a script unchecked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use ipnet::IpNet;
use ropewalk_config::BalanceConfig;
use ropewalk_config::balance::Rule;
use ropewalk_io::helper::{self, Lane, Service};
use ropewalk_io::nft;
use serde::{Deserialize, Serialize};

use super::kept::{self, Affinity};
use super::members::{Member, WayId};
use super::ruleset::{self, Group, View};
use super::{Split, plan};

/// Name of the helper's service.
const SERVICE: &str = "balance";
/// Rules of reloads that the helper still knows. More: a slow reload is surer to find its own, more memory.
const VERSIONS_MAX: usize = 4;

/// What is to be done with the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Brings it up to date.
    Table {
        /// Number of the rules of the configuration, as [`check`] gave it; 0 for those of the start.
        version: u32,
        /// Made from these.
        found: Box<Found>,
        /// How much is new.
        extent: Extent,
    },
    /// Replaces the addresses of the names of a rule.
    Names {
        /// Its index.
        rule: usize,
        /// All of them.
        addresses: Vec<IpAddr>,
    },
    /// Frees the clients of these uplinks.
    LetGo(Vec<u8>),
    /// Reads the configuration again, and has nft(8) check its rules.
    Check,
}

/// How much of the table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// Elements only.
    Elements,
    /// The rules as well.
    Rules,
    /// A new table in place of one that somebody else made.
    Everything,
}

/// What was found out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// See [`View`].
    pub members: Vec<Member>,
    /// See [`View`].
    pub refused: BTreeSet<WayId>,
    /// See [`View`].
    pub groups: Vec<Group>,
    /// Of the tunnel beside which flows go: see [`Split`].
    pub inner: Vec<IpNet>,
    /// The same.
    pub fallen_back: bool,
}

/// The configuration, as the helper knows it.
struct Known {
    start: BalanceConfig,
    split: Option<Split>,
    /// By version.
    rules: BTreeMap<u32, Vec<Rule>>,
}

/// What the helper of a gateway does for its firewall table. `load` reads the configuration again.
#[must_use]
pub fn service(
    start: BalanceConfig,
    split: Option<Split>,
    load: impl Fn() -> anyhow::Result<BalanceConfig> + Send + Sync + 'static,
) -> Service {
    let known = Mutex::new(Known {
        rules: [(0, start.rules.clone())].into(),
        start,
        split,
    });
    Service::new(SERVICE, move |order: Order| {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        match order {
            Order::Check => known.check(&load()?),
            order @ (Order::Table { .. } | Order::Names { .. } | Order::LetGo(_)) => {
                nft::run_script(&known.script(&order)?)
                    .context("cannot set up the firewall table")
                    .map(|()| 0)
            }
        }
    })
}

impl Known {
    fn check(&mut self, config: &BalanceConfig) -> anyhow::Result<u32> {
        check_here(config, self.split.as_ref())?;
        let version = self.rules.keys().next_back().map_or(0, |last| last + 1);
        self.rules.insert(version, config.rules.clone());
        while self.rules.len() > VERSIONS_MAX {
            self.rules.pop_first();
        }
        Ok(version)
    }

    fn script(&self, order: &Order) -> anyhow::Result<String> {
        let Order::Table { version, found, .. } = order else {
            return script(order, None);
        };
        let rules = self.rules.get(version);
        let rules = rules.context("the configuration was read again meanwhile")?;
        found.check(rules)?;
        let split = self.split.clone().map(|split| Split {
            inner: found.inner.clone(),
            fallen_back: found.fallen_back,
            ..split
        });
        let view = View {
            members: &found.members,
            refused: &found.refused,
            rules,
            groups: found.groups.clone(),
            affinity: Affinity {
                time: self.start.affinity,
                sites: self.start.kept,
            },
            split: split.as_ref(),
        };
        script(order, Some(&view))
    }
}

impl Found {
    fn check(&self, rules: &[Rule]) -> anyhow::Result<()> {
        let is_sound =
            |member: &Member| nft::is_name(&member.name) && (1..16).contains(&member.number);
        if !self.members.iter().all(is_sound) || self.groups.len() != rules.len() + 1 {
            bail!("these are no uplinks of this gateway");
        }
        Ok(())
    }
}

/// Carries an order out. `view` is what the table is made from.
///
/// # Errors
/// `nft` is missing or refuses.
pub fn carry_out(order: &Order, view: Option<&View<'_>>) -> anyhow::Result<()> {
    let here = |order: &Order| -> anyhow::Result<u32> {
        nft::run_script(&script(order, view)?).context("cannot set up the firewall table")?;
        Ok(0)
    };
    helper::delegate(Lane::Slow, SERVICE, order, here).map(drop)
}

/// Checks what the parser cannot know: that users and control groups exist. The number is that of the
/// rules for `Order::Table`.
///
/// # Errors
/// The firewall refuses the rules.
pub fn check(config: &BalanceConfig, split: Option<&Split>) -> anyhow::Result<u32> {
    helper::delegate(Lane::Slow, SERVICE, &Order::Check, |_| {
        check_here(config, split).map(|()| 0)
    })
}

fn check_here(config: &BalanceConfig, split: Option<&Split>) -> anyhow::Result<()> {
    nft::check_script(&plan(config, split)?.firewall).context("the rules are refused")
}

fn script(order: &Order, view: Option<&View<'_>>) -> anyhow::Result<String> {
    Ok(match order {
        Order::Table { extent, .. } => {
            let view = view.context("a table is made from uplinks")?;
            let update = ruleset::update(view);
            match extent {
                Extent::Elements => update,
                Extent::Rules => ruleset::frame(view) + &update,
                Extent::Everything => ruleset::remove() + &ruleset::frame(view) + &update,
            }
        }
        Order::Names { rule, addresses } => ruleset::names_update(*rule, addresses),
        Order::LetGo(numbers) => kept::let_go(numbers),
        Order::Check => bail!("a check changes nothing"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::members::tests::config;
    use super::*;

    const RULE: &str = "[[rule]]\nname = \"r\"\nuplinks = [\"a*\"]\nports = [\"22\"]\n";

    fn known() -> Known {
        let start = config(RULE);
        Known {
            rules: [(0, start.rules.clone())].into(),
            start,
            split: None,
        }
    }

    fn table(name: &str, number: u8, groups: usize, version: u32) -> Order {
        let member = Member {
            number,
            name: name.to_owned(),
            ifindex: 2,
            present: true,
            ways: [None, None],
            held: Vec::new(),
            weight: None,
            metered: false,
            standby: false,
            rank: 0,
            dns: Vec::new(),
        };
        let found = Found {
            members: vec![member],
            refused: BTreeSet::new(),
            groups: vec![Group::default(); groups],
            inner: Vec::new(),
            fallen_back: false,
        };
        Order::Table {
            version,
            found: Box::new(found),
            extent: Extent::Everything,
        }
    }

    #[test]
    fn the_rules_of_the_table_are_those_of_the_configuration() {
        let order = table("a0", 1, 2, 0);
        // As it goes to the helper.
        let text = serde_json::to_string(&order).unwrap();
        let order = serde_json::from_str(&text).unwrap();
        let script = known().script(&order).unwrap();
        assert!(script.contains("th dport { 22 }"), "{script}");
        assert!(script.contains("delete table inet ropewalk_balance"));
    }

    #[test]
    fn an_order_brings_no_text_of_its_own_into_a_script() {
        for order in [
            table("a0\" accept; include \"/etc/shadow", 1, 2, 0),
            table("a0", 0, 2, 0),
            table("a0", 200, 2, 0),
            table("a0", 1, 7, 0),
            table("a0", 1, 2, 5),
            Order::Check,
        ] {
            known().script(&order).unwrap_err();
        }
    }
}
