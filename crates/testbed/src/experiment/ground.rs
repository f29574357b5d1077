//! The namespaces and links that a plan runs on: a site with uplinks, or gateways in a row.

use std::path::Path;

use anyhow::Result;
use ropewalk_plan::{Carrier, Plan};

use super::file::PlanFile;
use super::paths::{self, PathLink};
use crate::link::{Link, LinkSpec};
use crate::row::{HostSpec, Row, RowSpec};
use crate::topology::{Topology, TopologySpec};
use crate::traffic::Endpoints;

/// Everything that is there before any program of the carrier runs.
#[derive(Debug)]
pub(super) enum Ground {
    /// A site with uplinks to a hub.
    Uplinks(Topology),
    /// Gateways in a row, a host for each section of traffic.
    Row(Row),
}

impl Ground {
    /// Builds what the plan's carrier needs, over the links of these paths by hop.
    pub(super) fn build(
        file: &PlanFile,
        links: &[PathLink],
        hops: &[Vec<usize>],
        seed: u64,
    ) -> Result<Self> {
        let specs = |hop: &Vec<usize>| hop.iter().map(|&path| links[path].spec()).collect();
        let mut hops: Vec<Vec<LinkSpec>> = hops.iter().map(specs).collect();
        if !is_row(&file.plan) {
            let spec = TopologySpec::new("lab", hops.pop().unwrap_or_default());
            return Ok(Self::Uplinks(Topology::build(&spec)?));
        }
        let mut hosts = Vec::new();
        for (index, traffic) in file.plan.traffic.iter().enumerate() {
            hosts.push(HostSpec {
                gateway: traffic.enter() as usize - 1,
                access: paths::access(file, index, seed)?,
                plain: traffic.plain(),
            });
        }
        let purpose = "lab".into();
        let spec = RowSpec {
            purpose,
            hops,
            hosts,
        };
        Ok(Self::Row(Row::build(&spec)?))
    }

    /// The links of the paths in use, hop by hop.
    pub(super) fn links(&self) -> Vec<&Link> {
        match self {
            Self::Uplinks(topology) => topology.uplinks().iter().map(|u| &u.link).collect(),
            Self::Row(row) => row.hops().iter().flatten().collect(),
        }
    }

    /// Begins all links anew together, those of hosts too.
    pub(super) fn restart_links(&self) -> Result<()> {
        for link in self.links() {
            link.restart()?;
        }
        if let Self::Row(row) = self {
            for link in row.access() {
                link.restart()?;
            }
        }
        Ok(())
    }

    /// Between which namespaces and addresses the traffic of a section goes.
    pub(super) fn endpoints(&self, section: usize) -> Endpoints {
        match self {
            Self::Uplinks(topology) => topology.endpoints(),
            Self::Row(row) => row.endpoints(section),
        }
    }

    /// Where programs log and keep their state.
    pub(super) fn directory(&self) -> &Path {
        match self {
            Self::Uplinks(topology) => topology.directory(),
            Self::Row(row) => row.directory(),
        }
    }

    /// Leaves that directory in place.
    pub(super) fn keep_directory(&mut self) {
        match self {
            Self::Uplinks(topology) => topology.keep_directory(),
            Self::Row(row) => row.keep_directory(),
        }
    }
}

const fn is_row(plan: &Plan) -> bool {
    matches!(
        plan.carrier,
        Carrier::Relay(_) | Carrier::Chain { .. } | Carrier::TcpNc(_)
    )
}
