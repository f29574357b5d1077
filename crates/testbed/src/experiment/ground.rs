//! The namespaces and links that a plan runs on: a site with uplinks, or gateways in a row.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use ropewalk_plan::{Carrier, Plan};

use super::file::{PlanFile, PlanFileError};
use super::paths::{self, PathLink};
use crate::link::{Link, LinkSpec};
use crate::namespace::Namespace;
use crate::nodes::NodeSpec;
use crate::row::{HostSpec, Row, RowSpec};
use crate::topology::{Topology, TopologySpec};
use crate::traffic::Endpoints;

/// Everything that is there before any program of the carrier runs.
#[derive(Debug)]
pub(super) enum Ground {
    /// A site with uplinks to a hub.
    Uplinks {
        /// What is there.
        topology: Box<Topology>,
        /// Where in it the plan's links and hosts are.
        layout: Layout,
    },
    /// Gateways in a row, a host for each section of traffic.
    Row(Row),
}

/// Where the links and hosts of a plan are in a topology.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The paths in use.
    paths: Vec<At>,
    /// The node of each shared link: they come first.
    shared: usize,
    /// The host of each section of traffic that is beside the carrier.
    hosts: Vec<Option<usize>>,
}

/// Where the link of a path is.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Between the site and the other end of the uplink of this number.
    Uplink(usize),
    /// Behind a node, since there are hosts beside the path.
    Node(usize),
}

impl Layout {
    /// Lays out these paths of a plan; what is to be built.
    fn of(
        plan: &Plan,
        links: &[PathLink],
        used: &[usize],
    ) -> Result<(Self, TopologySpec), PlanFileError> {
        let shared = plan.link.len();
        let mut layout = Self {
            shared,
            ..Self::default()
        };
        let mut spec = TopologySpec::new("lab", Vec::new());
        let next = |number: usize| plan.through(number).map(|next| next - plan.path.len());
        for (number, link) in links.iter().enumerate().skip(plan.path.len()) {
            spec.nodes.push(NodeSpec {
                link: link.spec(),
                through: next(number),
            });
        }
        let beside: Vec<Option<usize>> = plan
            .traffic
            .iter()
            .map(|traffic| traffic.beside().and_then(|name| plan.link_number(name)))
            .collect();
        let mut node_of: BTreeMap<usize, usize> = (0..shared)
            .map(|node| (plan.path.len() + node, node))
            .collect();
        for (uplink, &path) in used.iter().enumerate() {
            if !beside.contains(&Some(path)) {
                layout.paths.push(At::Uplink(uplink));
                spec.uplinks.push(links[path].spec());
                spec.through.push(next(path));
                continue;
            }
            // The path's own link comes behind a node, which the hosts can reach, too.
            let node = spec.nodes.len();
            node_of.insert(path, node);
            layout.paths.push(At::Node(node));
            spec.nodes.push(NodeSpec {
                link: links[path].spec(),
                through: next(path),
            });
            spec.uplinks.push(LinkSpec::unshaped(false));
            spec.through.push(Some(node));
        }
        for (section, link) in beside.into_iter().enumerate() {
            let node = link.map(|link| node_of.get(&link).copied());
            let node = node.map(|node| node.ok_or_else(|| not_used(section)));
            let node = node.transpose()?;
            layout.hosts.push(node.map(|_| spec.hosts.len()));
            spec.hosts.extend(node);
        }
        Ok((layout, spec))
    }
}

impl Ground {
    /// Builds what the plan's carrier needs, over the links of these paths by hop.
    pub(super) fn build(
        file: &PlanFile,
        links: &[PathLink],
        hops: &[Vec<usize>],
        seed: u64,
    ) -> Result<Self> {
        if !is_row(&file.plan) {
            let used: Vec<usize> = hops.iter().flatten().copied().collect();
            let (layout, spec) = Layout::of(&file.plan, links, &used)?;
            let topology = Box::new(Topology::build(&spec)?);
            return Ok(Self::Uplinks { topology, layout });
        }
        let specs = |hop: &Vec<usize>| hop.iter().map(|&path| links[path].spec()).collect();
        let hops: Vec<Vec<LinkSpec>> = hops.iter().map(specs).collect();
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
            Self::Uplinks { topology, layout } => {
                let nodes: Vec<&Link> = topology.shared_links().collect();
                let at = |at: &At| match *at {
                    At::Uplink(uplink) => &topology.uplinks()[uplink].link,
                    At::Node(node) => nodes[node],
                };
                layout.paths.iter().map(at).collect()
            }
            Self::Row(row) => row.hops().iter().flatten().collect(),
        }
    }

    /// The plan's shared links.
    pub(super) fn shared_links(&self) -> Vec<&Link> {
        match self {
            Self::Uplinks { topology, layout } => {
                topology.shared_links().take(layout.shared).collect()
            }
            Self::Row(_) => Vec::new(),
        }
    }

    /// Begins all links anew together, those of hosts too.
    pub(super) fn restart_links(&self) -> Result<()> {
        for link in self.links().into_iter().chain(self.shared_links()) {
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
            Self::Uplinks { topology, layout } => match layout.hosts.get(section) {
                Some(&Some(host)) => topology.endpoints_beside(host),
                Some(None) | None => topology.endpoints(),
            },
            Self::Row(row) => row.endpoints(section),
        }
    }

    /// The namespace of the hosts of a section that is beside the carrier.
    pub(super) fn hosts_beside(&self, section: usize) -> Option<&Namespace> {
        match self {
            Self::Uplinks { topology, layout } => {
                let host = layout.hosts.get(section).copied().flatten()?;
                Some(topology.host_beside(host))
            }
            Self::Row(_) => None,
        }
    }

    /// Where programs log and keep their state.
    pub(super) fn directory(&self) -> &Path {
        match self {
            Self::Uplinks { topology, .. } => topology.directory(),
            Self::Row(row) => row.directory(),
        }
    }

    /// Leaves that directory in place.
    pub(super) fn keep_directory(&mut self) {
        match self {
            Self::Uplinks { topology, .. } => topology.keep_directory(),
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

fn not_used(section: usize) -> PlanFileError {
    let problem = "name a link, or a path that the carrier uses: no other path is made";
    PlanFileError::setting(&format!("traffic[{section}].beside"), problem)
}
