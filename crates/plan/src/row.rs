//! Carriers that are several hops in a row, and where traffic enters them.

use ropewalk_netem::{DirectionPlan, LinkPlan};
use serde::{Deserialize, Serialize};

use crate::{
    Carrier, Direction, Plan, PlanError, SEED_MASK, Traffic, TunnelPlan, fail, refuse_twice,
};

/// Most hops of a relay or a chain.
pub const HOPS_MAX: usize = 8;
/// The key that names the paths of the hops.
pub(crate) const HOPS: &str = "carrier.hops";

/// Tunnels in a row, all with the same settings: every gateway between passes on what the tunnel
/// before it delivers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayPlan {
    /// Names of the paths of each tunnel, from the site to the server.
    pub hops: Vec<Vec<String>>,
    /// Settings of every tunnel, without `paths`.
    #[serde(default)]
    pub tunnel: TunnelPlan,
}

/// Sessions of TCP/NC in a row, one for each hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpNcPlan {
    /// Names of the paths, from the site to the server.
    pub hops: Vec<String>,
    /// Packets of a coding window, 1 to 200; with `k`, instead of what the losses want.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u8>,
    /// Combinations beyond them, 0 to 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<u8>,
}

impl TcpNcPlan {
    /// `n` and `k`, if both are fixed.
    #[must_use]
    pub fn fixed(&self) -> Option<(u8, u8)> {
        self.n.zip(self.k)
    }

    fn check(&self, traffic: &[Traffic]) -> Result<(), PlanError> {
        let down = |traffic: &Traffic| match traffic {
            Traffic::Tcp { direction, .. } | Traffic::Quic { direction, .. } => {
                *direction == Direction::Down
            }
            Traffic::Ping { .. } | Traffic::Call { .. } | Traffic::Web { .. } => false,
        };
        if let Some(index) = traffic.iter().position(down) {
            let problem = "use \"up\": TCP/NC carries what leaves the site, and routes the answers";
            return fail(&format!("traffic[{index}].direction"), problem.into());
        }
        if self.n.is_some() != self.k.is_some() {
            return fail("carrier.n", "write `n` and `k`, or neither".into());
        }
        if self
            .fixed()
            .is_some_and(|(n, k)| n == 0 || n > 200 || k > 50)
        {
            return fail("carrier.n", "use 1 to 200, and `k` from 0 to 50".into());
        }
        Ok(())
    }
}

impl Plan {
    /// Number of hops between site and server; 1 without any gateway between.
    #[must_use]
    pub fn hops(&self) -> usize {
        match &self.carrier {
            Carrier::Relay(relay) => relay.hops.len(),
            Carrier::Chain { hops } => hops.len(),
            Carrier::TcpNc(tcp_nc) => tcp_nc.hops.len(),
            Carrier::DirectFirst
            | Carrier::Path { .. }
            | Carrier::Tunnel(_)
            | Carrier::Mptcp
            | Carrier::Balance(_)
            | Carrier::RoundRobin
            | Carrier::Peer { .. } => 1,
        }
    }
}

impl Traffic {
    /// The gateway that the host of the site's side is at, from 1.
    #[must_use]
    pub const fn enter(&self) -> u32 {
        match self {
            Self::Tcp { enter, .. } => *enter,
            Self::Quic { .. } | Self::Ping { .. } | Self::Call { .. } | Self::Web { .. } => 1,
        }
    }

    /// Whether that host has no TCP options.
    #[must_use]
    pub const fn plain(&self) -> bool {
        match self {
            Self::Tcp { plain, .. } => *plain,
            Self::Quic { .. } | Self::Ping { .. } | Self::Call { .. } | Self::Web { .. } => false,
        }
    }

    /// The link between that host and its gateway, if it has one.
    #[must_use]
    pub fn access(&self) -> Option<&DirectionPlan> {
        match self {
            Self::Tcp { access, .. } if !access.is_empty() => Some(access),
            Self::Tcp { .. }
            | Self::Quic { .. }
            | Self::Ping { .. }
            | Self::Call { .. }
            | Self::Web { .. } => None,
        }
    }

    /// That link; its randomness follows from the plan's seed and the section's place.
    #[must_use]
    pub fn access_link(&self, seed: u64, index: usize) -> Option<LinkPlan> {
        let both = self.access()?.clone();
        let seed = (seed ^ ACCESS_SEED).wrapping_mul(16);
        Some(LinkPlan {
            seed: Some(seed.wrapping_add(index as u64) & SEED_MASK),
            both,
            ..LinkPlan::default()
        })
    }
}

/// Keeps the randomness of access links apart from that of paths.
const ACCESS_SEED: u64 = 0x6163_6365_7373;

/// Checks hops, and that traffic enters where there is a gateway.
pub(crate) fn check(plan: &Plan) -> Result<(), PlanError> {
    let hops: Vec<Vec<&str>> = match &plan.carrier {
        Carrier::Relay(relay) => {
            if relay.tunnel.paths.is_some() {
                let problem = "leave it out: `hops` names the paths".into();
                return fail("carrier.tunnel.paths", problem);
            }
            relay.tunnel.check("carrier.tunnel")?;
            let (freeze, accelerate) = (&relay.tunnel.freeze, relay.tunnel.accelerate);
            for (key, given) in [
                ("freeze", freeze.is_some()),
                ("accelerate", accelerate.is_some()),
            ] {
                if given {
                    let problem = "leave it out: only a single tunnel does so in plans".into();
                    return fail(&format!("carrier.tunnel.{key}"), problem);
                }
            }
            let hops = relay.hops.iter();
            hops.map(|hop| hop.iter().map(String::as_str).collect())
                .collect()
        }
        Carrier::Chain { hops } => hops.iter().map(|name| vec![name.as_str()]).collect(),
        Carrier::TcpNc(tcp_nc) => {
            tcp_nc.check(&plan.traffic)?;
            let hops = tcp_nc.hops.iter();
            hops.map(|name| vec![name.as_str()]).collect()
        }
        Carrier::DirectFirst
        | Carrier::Path { .. }
        | Carrier::Tunnel(_)
        | Carrier::Mptcp
        | Carrier::Balance(_)
        | Carrier::RoundRobin
        | Carrier::Peer { .. } => return check_without_hops(plan),
    };
    if hops.is_empty() || hops.len() > HOPS_MAX || hops.iter().any(Vec::is_empty) {
        let problem = format!("write 1 to {HOPS_MAX} hops, each with a path");
        return fail(HOPS, problem);
    }
    refuse_twice(HOPS, hops.iter().flatten().copied())?;
    for (index, traffic) in plan.traffic.iter().enumerate() {
        let enter = traffic.enter();
        if enter == 0 || enter as usize > hops.len() {
            let key = format!("traffic[{index}].enter");
            return fail(&key, format!("use 1 to {}, the number of hops", hops.len()));
        }
    }
    Ok(())
}

/// Other carriers have hosts only at site and server.
fn check_without_hops(plan: &Plan) -> Result<(), PlanError> {
    for (index, traffic) in plan.traffic.iter().enumerate() {
        for (key, given) in [
            ("enter", traffic.enter() != 1),
            ("access", traffic.access().is_some()),
            ("plain", traffic.plain()),
        ] {
            if given {
                let key = format!("traffic[{index}].{key}");
                return fail(
                    &key,
                    "is for the carriers `relay`, `chain` and `tcp-nc`".into(),
                );
            }
        }
    }
    Ok(())
}
