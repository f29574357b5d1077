//! Tests and benchmarks of the real programs in network namespaces.
//!
//! `make test` builds the programs before it runs these tests. To do so by hand:
//!
//! ```text
//! cargo build --release -p ropewalk-gateway -p ropewalk-linkem -p ropewalk-swarm
//! cargo test --release -p ropewalk-e2e -- --test-threads=1
//! ```
//!
//! They need root. One test or benchmark runs at a time on a machine: a [`Lab`] holds a lock.
//! Times are measured by the benchmarks and never asserted by the tests.

pub mod bench;
pub mod chain;
pub mod cuts;
pub mod fleets;
pub mod leaks;
pub mod outages;
pub mod packet;
pub mod pushed;
pub mod recovery;
pub mod routers;
pub mod table;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ropewalk_testbed::gateway::{self, Gateway, GatewaySpec};
use ropewalk_testbed::process::Process;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{self, Amount, BulkReport, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{
    LinkSpec, Namespace, Serial, Topology, TopologySpec, programs, remove_leftovers, serial,
};

/// Longest time of a command that only reads.
const COMMAND: Duration = Duration::from_secs(20);

/// A site and a hub, joined over every uplink, with a server behind the hub. It holds the lock
/// that keeps other tests away.
#[derive(Debug)]
pub struct Lab {
    /// The site's gateway.
    pub site: Gateway,
    /// The hub's gateway.
    pub hub: Gateway,
    /// Namespaces and links.
    pub topology: Topology,
    _serial: Arc<Serial>,
}

/// Namespaces and links without gateways, for tests that start them by hand.
#[derive(Debug)]
pub struct Ground {
    /// Namespaces and links.
    pub topology: Topology,
    _serial: Arc<Serial>,
}

impl Ground {
    /// Waits for the lock and builds the topology.
    ///
    /// # Errors
    /// If a program is missing or a part does not start.
    pub fn new(spec: &TopologySpec) -> Result<Self> {
        let serial = serial()?;
        remove_leftovers();
        Self::beside(Arc::new(serial), spec)
    }

    /// Builds the topology beside others under the same lock.
    ///
    /// # Errors
    /// As [`Ground::new`].
    pub fn beside(serial: Arc<Serial>, spec: &TopologySpec) -> Result<Self> {
        Ok(Self {
            topology: Topology::build(spec)?,
            _serial: serial,
        })
    }

    /// Adds hub and site with these settings.
    ///
    /// # Errors
    /// If a gateway does not start or a path does not come up.
    pub fn connect(self, hub: &GatewaySpec, site: &GatewaySpec) -> Result<Lab> {
        let (hub, site) = gateway::connect(&self.topology, hub, site)?;
        Ok(Lab {
            site,
            hub,
            topology: self.topology,
            _serial: self._serial,
        })
    }
}

impl Lab {
    /// Default gateways over these links.
    ///
    /// # Errors
    /// If a program is missing or a part does not start.
    pub fn new(purpose: &str, links: Vec<LinkSpec>) -> Result<Self> {
        let spec = GatewaySpec::default();
        Ground::new(&TopologySpec::new(purpose, links))?.connect(&spec, &spec)
    }

    /// Transfers `bytes` over each of `flows` connections and wants every byte to arrive.
    ///
    /// # Errors
    /// If a connection breaks, delivers something else, or does not end within `limit`.
    pub fn transfer(
        &self,
        direction: Direction,
        flows: usize,
        bytes: u64,
        limit: Duration,
    ) -> Result<BulkReport> {
        let ends = self.topology.endpoints();
        let amount = Amount::Bytes { bytes, limit };
        let spec = BulkSpec {
            amount,
            direction,
            ..BulkSpec::download(flows, limit)
        };
        whole(bulk::run(&ends, &spec)?)
    }

    /// What both gateways say of themselves, for the message of a failed test.
    #[must_use]
    pub fn explain(&self) -> String {
        [&self.hub, &self.site]
            .map(|gateway| {
                let log = gateway.process().map(Process::log_tail);
                format!("{:#?}\n{}\n", gateway.status(), log.unwrap_or_default())
            })
            .concat()
    }

    /// Proves that packets pass both ways.
    ///
    /// # Errors
    /// If nothing passes.
    pub fn passes(&self) -> Result<()> {
        for direction in [Direction::Upload, Direction::Download] {
            let probe = Probe::start(&self.topology.endpoints(), &ProbeSpec::fine(direction))?;
            std::thread::sleep(Duration::from_millis(300));
            let report = probe.finish()?.report();
            if report.received == 0 {
                bail!("no packet passes: {report:?}");
            }
        }
        Ok(())
    }
}

/// The report, if no connection broke.
///
/// # Errors
/// What broke.
pub fn whole(report: BulkReport) -> Result<BulkReport> {
    if report.broken() > 0 {
        bail!(
            "{} of {} broke: {:?}",
            report.broken(),
            report.flows.len(),
            report.reasons()
        );
    }
    Ok(report)
}

/// What the programs could change of a machine: firewall, rules, routes, settings.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn machine_state(site: &Namespace) -> String {
    let mut out = String::new();
    for words in [
        ["nft", "list", "ruleset"].as_slice(),
        &["ip", "rule"],
        &["ip", "-6", "rule"],
        &["ip", "route", "show", "table", "all"],
        &["ip", "-6", "route", "show", "table", "all"],
        &[
            "sysctl",
            "-a",
            "--pattern",
            "forward|rp_filter|accept_ra|src_valid",
        ],
    ] {
        let program = site.program(words[0]).args(&words[1..]);
        // A command that fails would print the same nothing before and after.
        let text = program.success(COMMAND).expect("a command that reads");
        out += &format!("{words:?}\n{text}");
    }
    out
}

/// Whether tests can run here; says why not.
#[must_use]
pub fn ready() -> bool {
    let wanted = [
        programs::IP,
        programs::PING,
        programs::NFT,
        programs::ETHTOOL,
    ];
    match programs::require(&wanted) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Two links of 40 Mbit/s, 10 and 20 ms: what most tests run over.
#[must_use]
pub fn two_links() -> Vec<LinkSpec> {
    vec![
        LinkSpec::steady(40.0, Duration::from_millis(10)),
        LinkSpec::steady(40.0, Duration::from_millis(20)).with_seed(2),
    ]
}
