//! What carries the traffic of a plan: a path itself, a tunnel, MPTCP, or another program.

use anyhow::{Context, Result};
use ropewalk_plan::{Carrier, Plan, TransportPlan, TunnelPlan};

use super::{CannotRun, Options};
use crate::gateway::{self, Gateway, GatewaySpec};
use crate::peers::{self, Joined, Peer, Tools};
use crate::topology::Topology;
use crate::traffic::Endpoints;

/// A carrier that works; stopped when dropped.
#[derive(Debug)]
pub(super) enum Carried {
    /// The only link of the topology.
    Direct,
    /// A Ropewalk tunnel.
    Tunnel(Box<(Gateway, Gateway)>),
    /// MPTCP over all links.
    Mptcp,
    /// Another program over the only link of the topology.
    Peer(
        &'static str,
        #[expect(dead_code, reason = "it runs until dropped")] Box<Joined>,
    ),
}

impl Carried {
    /// Starts the plan's carrier over the links of a topology made for it.
    pub(super) fn start(plan: &Plan, options: &Options, topology: &Topology) -> Result<Self> {
        match &plan.carrier {
            Carrier::DirectFirst | Carrier::Path { .. } => Ok(Self::Direct),
            Carrier::Tunnel(tunnel) => {
                let [hub, site] = tunnel_sections(tunnel)?.map(|tunnel| GatewaySpec {
                    tunnel,
                    ..GatewaySpec::default()
                });
                let gateways = gateway::connect(topology, &hub, &site);
                Ok(Self::Tunnel(Box::new(gateways.context("no tunnel")?)))
            }
            Carrier::Mptcp => {
                if !topology.enable_mptcp()? {
                    return Err(CannotRun("this kernel has no MPTCP".into()).into());
                }
                Ok(Self::Mptcp)
            }
            Carrier::Peer { peer } => {
                let (peer, tools) = find_peer(peer, options)?;
                let joined = peers::join(peer, topology, &tools)?;
                Ok(Self::Peer(peer.name(), Box::new(joined)))
            }
        }
    }

    /// Hub and site, if this is a tunnel.
    pub(super) fn gateways(&self) -> Option<(&Gateway, &Gateway)> {
        match self {
            Self::Tunnel(gateways) => Some((&gateways.0, &gateways.1)),
            Self::Direct | Self::Mptcp | Self::Peer(..) => None,
        }
    }

    pub(super) const fn is_mptcp(&self) -> bool {
        matches!(self, Self::Mptcp)
    }

    /// Between which namespaces and addresses the traffic goes.
    pub(super) fn ends(&self, topology: &Topology) -> Endpoints {
        topology.endpoints()
    }

    /// What a reader should know of it.
    pub(super) fn notes(&self) -> Vec<String> {
        let kernel = rustix::system::uname();
        let release = kernel.release().to_string_lossy();
        let mut notes = vec![format!("Linux {release}")];
        match self {
            Self::Direct | Self::Tunnel(_) => {}
            Self::Mptcp => {
                notes.push("only TCP is carried by MPTCP; the rest takes path one".into())
            }
            Self::Peer(name, _) => {
                let own = "/proc/sys/net/ipv4/tcp_congestion_control";
                let own = std::fs::read_to_string(own).unwrap_or_default();
                notes.push(format!(
                    "{name} uses the first path only; over TCP, with this machine's {}",
                    own.trim()
                ));
            }
        }
        notes
    }
}

/// Checks that the plan's carrier can run here, before anything is made.
pub(super) fn require(plan: &Plan, options: &Options) -> Result<()> {
    match &plan.carrier {
        Carrier::Peer { peer } => find_peer(peer, options).map(drop),
        Carrier::DirectFirst | Carrier::Path { .. } | Carrier::Tunnel(_) | Carrier::Mptcp => Ok(()),
    }
}

/// The peer of this name, if it can run here.
fn find_peer(name: &str, options: &Options) -> Result<(&'static dyn Peer, Tools)> {
    let tools = Tools {
        wireguard_go: options.wireguard_go.clone(),
    };
    let Some(peer) = peers::find(name) else {
        let known = peers::all().map(Peer::name).join(", ");
        return Err(CannotRun(format!("there is no peer `{name}`, only {known}")).into());
    };
    match peer.obstacle(&tools) {
        Some(obstacle) => Err(CannotRun(format!("peer {name}: {obstacle}")).into()),
        None => Ok((peer, tools)),
    }
}

/// Lines for the `[tunnel]` sections of hub and site.
fn tunnel_sections(plan: &TunnelPlan) -> Result<[String; 2]> {
    if plan.transport != TransportPlan::Model {
        // The kernel always runs the real transport; the key is for the simulator.
        eprintln!("carrier.transport is for the simulator: ignored");
    }
    let section = |protect: &Option<String>| -> Result<String> {
        let keys = [
            ("scheduler", &plan.scheduler),
            ("congestion", &plan.congestion),
            ("protect", protect),
        ];
        let mut section = String::new();
        for (key, value) in keys {
            if let Some(value) = value {
                section += &format!("{key} = {}\n", serde_json::to_string(value)?);
            }
        }
        Ok(section)
    };
    Ok([section(&plan.protect_down)?, section(&plan.protect_up)?])
}
