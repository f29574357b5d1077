//! Addresses of the names in rules: looked up again and again, and put into sets of the firewall
//! table.
//!
//! A flow belongs to a name when its destination is an address that the name had when this machine
//! looked it up. Names that have other addresses elsewhere, and patterns, are not covered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::order::{self, Order};
use ropewalk_config::balance::Rule;

/// How often names are looked up. Longer: fewer queries, later to follow names that move.
const INTERVAL: Duration = Duration::from_secs(30);
/// How soon again while a name of the rule was not found. Longer: fewer queries, rules work later.
const RETRY: Duration = Duration::from_secs(3);
/// How long an address counts that is gone from the answers: clients keep it too. Longer: more
/// flows of the name are covered, and more flows of others that have the address now.
const KEPT: Duration = Duration::from_secs(3_600);
/// Looked-up rules that may wait. More: memory.
const FOUND_MAX: usize = 32;

/// Addresses that were found for a rule.
#[derive(Clone, Debug)]
pub struct Found {
    rule: usize,
    addresses: BTreeSet<IpAddr>,
}

/// Keeps the sets of all rules up to date.
#[derive(Debug)]
pub struct Names {
    domains: Vec<Vec<String>>,
    /// When each address was among the answers last, by rule.
    known: Vec<BTreeMap<IpAddr, Instant>>,
    found: mpsc::Receiver<Found>,
    sender: mpsc::Sender<Found>,
    tasks: Vec<JoinHandle<()>>,
}

impl Names {
    /// Nothing is looked up yet.
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        let (sender, found) = mpsc::channel(FOUND_MAX);
        Self {
            domains: rules.iter().map(|rule| rule.domains.clone()).collect(),
            known: vec![BTreeMap::new(); rules.len()],
            found,
            sender,
            tasks: Vec::new(),
        }
    }

    /// Begins to look up; the table with its sets is there. What they had of other rules goes.
    pub fn fill(&mut self) {
        for rule in 0..self.domains.len() {
            self.write(rule);
        }
        let rules = self.domains.iter().enumerate();
        for (rule, domains) in rules.filter(|(_, domains)| !domains.is_empty()) {
            let task = look_up(rule, domains.clone(), self.sender.clone());
            self.tasks.push(tokio::spawn(task));
        }
    }

    /// What was found next.
    pub async fn next(&mut self) -> Option<Found> {
        self.found.recv().await
    }

    /// Takes it over into the table. Addresses that are gone from the answers, or of a name that is not
    /// found any more, stay for an hour.
    pub fn take(&mut self, found: Found) {
        let Some(known) = self.known.get_mut(found.rule) else {
            return;
        };
        let now = Instant::now();
        known.extend(found.addresses.iter().map(|address| (*address, now)));
        known.retain(|_, seen| now.duration_since(*seen) < KEPT);
        self.write(found.rule);
    }

    fn write(&self, rule: usize) {
        if self.domains[rule].is_empty() {
            return;
        }
        let addresses: Vec<IpAddr> = self.known[rule].keys().copied().collect();
        let order = Order::Names { rule, addresses };
        if let Err(error) = order::carry_out(&order, None) {
            tracing::warn!(
                error = format!("{error:#}"),
                "addresses of names are not in the rules"
            );
        }
    }

    /// Addresses known for a rule.
    #[must_use]
    pub fn count(&self, rule: usize) -> usize {
        self.known.get(rule).map_or(0, BTreeMap::len)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn look_up(rule: usize, domains: Vec<String>, sender: mpsc::Sender<Found>) {
    loop {
        let mut addresses = BTreeSet::new();
        let mut all = true;
        for domain in &domains {
            match tokio::net::lookup_host((domain.as_str(), 0)).await {
                Ok(found) => addresses.extend(found.map(|address| address.ip())),
                Err(error) => {
                    all = false;
                    tracing::debug!(domain, %error, "a name of a rule was not found");
                }
            }
        }
        if !addresses.is_empty() && sender.send(Found { rule, addresses }).await.is_err() {
            return;
        }
        tokio::time::sleep(if all { INTERVAL } else { RETRY }).await;
    }
}
