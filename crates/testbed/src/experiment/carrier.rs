//! What carries the traffic of a plan: paths themselves, tunnels, MPTCP, or another program.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_plan::{BalancePlan, Carrier, MULTIPATH_PEERS, Plan, TunnelPlan};

use super::ground::Ground;
use super::{CannotRun, Options, PlanFileError};
use crate::gateway::{self, Gateway, GatewaySpec};
use crate::nodes::HOST_INTERFACE;
use crate::peers::{self, Joined, Peer, Tools};
use crate::process::Process;
use crate::row::Row;
use crate::topology::Topology;
use crate::{Balanced, tcp_nc, turns};

/// A carrier that works; stopped when dropped.
#[derive(Debug)]
pub(super) enum Carried {
    /// The links as they are.
    Direct,
    /// Ropewalk tunnels over the hops between these gateways, that of the site first.
    Tunnels(Vec<Gateway>),
    /// The same with further sites beside the first, of hosts that have a tunnel of their own.
    Neighbours(
        Vec<Gateway>,
        #[expect(dead_code, reason = "they run until dropped")] Vec<Gateway>,
    ),
    /// TCP/NC over the hops.
    TcpNc(#[expect(dead_code, reason = "they run until dropped")] Vec<Process>),
    /// MPTCP over all links.
    Mptcp,
    /// `ropewalk balance` over all links.
    Balance(#[expect(dead_code, reason = "it runs until dropped")] Box<Balanced>),
    /// A firewall rule that takes the links in turn.
    RoundRobin,
    /// Another program over the links of the topology.
    Peer(
        &'static str,
        #[expect(dead_code, reason = "it runs until dropped")] Box<Joined>,
    ),
}

impl Carried {
    /// Starts the plan's carrier over the links of what was made for it.
    pub(super) fn start(plan: &Plan, options: &Options, ground: &Ground) -> Result<Self> {
        let topology = match (ground, &plan.carrier) {
            (Ground::Row(row), Carrier::Relay(relay)) => {
                let gateways = relay_over(row, &relay.tunnel).context("no tunnel")?;
                return Ok(Self::Tunnels(gateways));
            }
            (Ground::Row(row), Carrier::TcpNc(plan)) => {
                let programs = tcp_nc::join(row, plan).context("no TCP/NC")?;
                return Ok(Self::TcpNc(programs));
            }
            (Ground::Row(_), _) => return Ok(Self::Direct),
            (Ground::Uplinks { topology, .. }, _) => topology,
        };
        match &plan.carrier {
            Carrier::DirectFirst
            | Carrier::Path { .. }
            | Carrier::Relay(_)
            | Carrier::TcpNc(_)
            | Carrier::Chain { .. } => Ok(Self::Direct),
            Carrier::Tunnel(tunnel) => {
                let more = hold_section(tunnel)?;
                let [hub, mut site] = tunnel_sections(tunnel)?.map(|tunnel| GatewaySpec {
                    tunnel,
                    more: more.clone(),
                    ..GatewaySpec::default()
                });
                if tunnel.coupled {
                    site.more += "[[uplink]]\nmatch = \"*\"\nbottleneck = 1\n";
                }
                let gateways = gateway::connect(topology, &hub, &site);
                let (hub, running) = gateways.context("no tunnel")?;
                let near = neighbours(plan, ground, &hub, &site).context("no tunnel beside")?;
                let pair = vec![running, hub];
                Ok(if near.is_empty() {
                    Self::Tunnels(pair)
                } else {
                    Self::Neighbours(pair, near)
                })
            }
            Carrier::Mptcp => {
                if !topology.enable_mptcp()? {
                    return Err(CannotRun("this kernel has no MPTCP".into()).into());
                }
                Ok(Self::Mptcp)
            }
            Carrier::Balance(balance) => {
                Ok(Self::Balance(Box::new(balance_over(topology, balance)?)))
            }
            Carrier::RoundRobin => {
                turns::take(topology)?;
                Ok(Self::RoundRobin)
            }
            Carrier::Peer { peer } => {
                let (peer, tools) = find_peer(peer, options)?;
                let joined = peers::join(peer, topology, &tools)?;
                Ok(Self::Peer(peer.name(), Box::new(joined)))
            }
        }
    }

    /// The gateways of tunnels, that of the site first.
    pub(super) fn gateways(&self) -> &[Gateway] {
        match self {
            Self::Tunnels(gateways) | Self::Neighbours(gateways, _) => gateways,
            Self::Direct
            | Self::TcpNc(_)
            | Self::Mptcp
            | Self::Balance(_)
            | Self::RoundRobin
            | Self::Peer(..) => &[],
        }
    }

    pub(super) const fn is_mptcp(&self) -> bool {
        matches!(self, Self::Mptcp)
    }

    /// What a reader should know of it.
    pub(super) fn notes(&self) -> Vec<String> {
        let kernel = rustix::system::uname();
        let release = kernel.release().to_string_lossy();
        let mut notes = vec![format!("Linux {release}")];
        match self {
            Self::Direct
            | Self::Tunnels(_)
            | Self::Neighbours(..)
            | Self::TcpNc(_)
            | Self::Balance(_)
            | Self::RoundRobin => {}
            Self::Mptcp => {
                notes.push("only TCP is carried by MPTCP; the rest takes path one".into())
            }
            Self::Peer(name, _) if MULTIPATH_PEERS.contains(name) => {}
            Self::Peer(name, _) => {
                notes.push(format!(
                    "{name} uses the first path only; over TCP, with CUBIC where Linux has it"
                ));
            }
        }
        notes
    }
}

/// Tells the site when paths will end, as the plan says.
pub(super) fn announce(plan: &Plan, gateways: &[Gateway], begin: Instant) -> Result<()> {
    let Some(site) = gateways.first() else {
        return Ok(());
    };
    let used = plan.paths_by_hop().into_iter().flatten().enumerate();
    let times = |(uplink, path): (usize, usize)| {
        let leaving = plan.path[path].leaving.iter();
        leaving.map(move |at| (*at, uplink)).collect::<Vec<_>>()
    };
    let mut due: Vec<_> = used.flat_map(times).collect();
    due.sort_unstable();
    for (at, uplink) in due {
        std::thread::sleep((begin + at).saturating_duration_since(Instant::now()));
        let uplink = format!("up{uplink}");
        let told = site.run(&["path", "leaving", &uplink])?;
        told.success().context("ropewalk path leaving failed")?;
    }
    Ok(())
}

/// Checks that the plan's carrier can run here, before anything is made.
pub(super) fn require(plan: &Plan, options: &Options) -> Result<()> {
    match &plan.carrier {
        Carrier::Peer { peer } => find_peer(peer, options).map(drop),
        Carrier::DirectFirst
        | Carrier::Path { .. }
        | Carrier::Tunnel(_)
        | Carrier::Relay(_)
        | Carrier::Chain { .. }
        | Carrier::TcpNc(_)
        | Carrier::Balance(_)
        | Carrier::RoundRobin
        | Carrier::Mptcp => Ok(()),
    }
}

/// Longest time a path may take to come up.
const UP_LIMIT: Duration = Duration::from_secs(20);
/// The tunnel interface of a site, and of a relay towards the hub.
const ONWARD_INTERFACE: &str = "ropewalk0";

/// The sites of traffic that has tunnels of its own, running and joined to the hub.
fn neighbours(
    plan: &Plan,
    ground: &Ground,
    hub: &Gateway,
    like: &GatewaySpec,
) -> Result<Vec<Gateway>> {
    let spec = GatewaySpec {
        uplinks: format!("include = [\"{HOST_INTERFACE}\"]"),
        ..like.clone()
    };
    let mut sites = Vec::new();
    for (section, traffic) in plan.traffic.iter().enumerate() {
        let hosts = ground.hosts_beside(section);
        let Some(namespace) = hosts.filter(|_| traffic.has_own_tunnel()) else {
            continue;
        };
        let name = format!("beside{section}");
        let token = hub.invite(&name)?;
        let mut site = Gateway::site(namespace, ground.directory(), &name, &token, &spec)?;
        site.start()?;
        site.wait_paths(1, UP_LIMIT)?;
        sites.push(site);
    }
    Ok(sites)
}

/// Hub, relays and site of a row, running and joined over every link; the site comes first.
fn relay_over(row: &Row, plan: &TunnelPlan) -> Result<Vec<Gateway>> {
    let [hub_lines, site_lines] = tunnel_sections(plan)?;
    let of = |tunnel: &String, more: String| GatewaySpec {
        tunnel: tunnel.clone(),
        more,
        ..GatewaySpec::default()
    };
    let directory = row.directory();
    let (last, before) = match row.gateways() {
        [before @ .., last] if !before.is_empty() => (last, before),
        _ => bail!("a row has two gateways at least"),
    };
    let mut hub = Gateway::hub(last, directory, &of(&hub_lines, String::new()))?;
    hub.start()?;
    let mut gateways = vec![hub];
    // From the hub towards the site; each is told by the one before where to go.
    for (hop, namespace) in before.iter().enumerate().rev() {
        let next = gateways.last().context("the hub is there")?;
        let mut gateway = if hop == 0 {
            let token = next.invite("site")?;
            let spec = of(&site_lines, String::new());
            Gateway::site(namespace, directory, "site", &token, &spec)?
        } else {
            let name = format!("relay{hop}");
            let token = next.invite_relay(&name)?;
            let spec = of(&hub_lines, format!("[onward]\n{site_lines}"));
            let public = row.addresses(hop)?;
            Gateway::relay(namespace, directory, (&name, &token), &public, &spec)?
        };
        gateway.start()?;
        gateway.wait_paths(row.hops()[hop].len(), UP_LIMIT)?;
        if hop > 0 {
            // A relay lets nobody beside it into its tunnels; the hosts at its gateway are to be.
            namespace.nft("flush chain inet ropewalk_ropehub0 forward\n")?;
        }
        row.lead_hosts_into(hop, ONWARD_INTERFACE)?;
        gateways.push(gateway);
    }
    gateways.reverse();
    Ok(gateways)
}

/// `ropewalk balance` on the site, running; every link answers its probes.
fn balance_over(topology: &Topology, plan: &BalancePlan) -> Result<Balanced> {
    let mut section = "[balance]\n".to_owned();
    if let Some(mode) = &plan.mode {
        section += &format!("mode = {}\n", serde_json::to_string(mode)?);
    }
    if let Some(minutes) = plan.affinity_minutes {
        section += &format!("affinity_minutes = {minutes}\n");
    }
    if let Some(sites) = &plan.affinity_sites {
        section += &format!("affinity_sites = {}\n", serde_json::to_string(sites)?);
    }
    let mut balanced = Balanced::on_site(topology);
    balanced.configure(&section)?;
    let uplinks = topology.uplinks().len();
    balanced.start(uplinks).context("no balancing")?;
    Ok(balanced)
}

/// The peer of this name, if it can run here.
fn find_peer(name: &str, options: &Options) -> Result<(&'static dyn Peer, Tools)> {
    let tools = Tools {
        wireguard_go: options.wireguard_go.clone(),
        mqvpn: options.mqvpn.clone(),
    };
    let Some(peer) = peers::find(name) else {
        let known = peers::all().map(Peer::name).join(", ");
        let problem = format!("there is no peer `{name}`, only {known}");
        return Err(PlanFileError::setting("carrier.peer", &problem).into());
    };
    match peer.obstacle(&tools) {
        Some(obstacle) => Err(CannotRun(format!("peer {name}: {obstacle}")).into()),
        None => Ok((peer, tools)),
    }
}

/// The section `[hold]` of hub and site, if the plan says anything of it.
fn hold_section(plan: &TunnelPlan) -> Result<String> {
    let line = |freeze| {
        anyhow::Ok(format!(
            "[hold]\nfreeze = {}\n",
            serde_json::to_string(freeze)?
        ))
    };
    plan.freeze.as_ref().map_or(Ok(String::new()), line)
}

/// Lines for the `[tunnel]` sections of hub and site.
fn tunnel_sections(plan: &TunnelPlan) -> Result<[String; 2]> {
    let section = |protect: &Option<String>| -> Result<String> {
        let keys = [
            ("scheduler", &plan.scheduler),
            ("congestion", &plan.congestion),
            ("protect", protect),
            ("order", &plan.order),
        ];
        let mut section = String::new();
        for (key, value) in keys {
            if let Some(value) = value {
                section += &format!("{key} = {}\n", serde_json::to_string(value)?);
            }
        }
        let switches = [
            ("compress_headers", plan.compress_headers),
            ("accelerate", plan.accelerate),
        ];
        for (key, value) in switches {
            if let Some(value) = value {
                section += &format!("{key} = {value}\n");
            }
        }
        if let Some(packets) = plan.send_buffer {
            section += &format!("send_buffer_packets = {packets}\n");
        }
        Ok(section)
    };
    Ok([section(&plan.protect_down)?, section(&plan.protect_up)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_a_fault_of_the_plan() {
        let error = find_peer("pigeon", &Options::default()).expect_err("unknown");
        let error = error.downcast::<PlanFileError>().expect("of the plan");
        let told = error.to_string();
        assert!(
            told.starts_with("carrier.peer: there is no peer `pigeon`"),
            "{told}"
        );
    }
}
