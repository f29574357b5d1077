//! What of a plan is used: paths by hop, directions of the data, and what has no effect.

use ropewalk_netem::{ChangePlan, DirectionPlan, Side};

use crate::{Carrier, Direction, PathPlan, Plan, TcpNcPlan, Traffic};

/// Peers that use all paths; the others use the first.
pub const MULTIPATH_PEERS: [&str; 5] = [
    "mqvpn",
    "mqvpn-minrtt",
    "mqvpn-reorder",
    "mqvpn-minrtt-reorder",
    "mqvpn-hybrid",
];

impl Plan {
    /// Places in the plan of the paths that its carrier uses, by hop from the site to the server.
    #[must_use]
    pub fn paths_by_hop(&self) -> Vec<Vec<usize>> {
        let named = |wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
            let paths = self.path.iter().enumerate();
            let paths = paths.filter(|(_, path)| wanted(&path.name));
            paths.map(|(index, _)| index).collect()
        };
        let any_of = |names: &[String]| named(&|name| names.iter().any(|n| n == name));
        match &self.carrier {
            Carrier::Peer { peer } if MULTIPATH_PEERS.contains(&peer.as_str()) => {
                vec![(0..self.path.len()).collect()]
            }
            Carrier::DirectFirst | Carrier::Peer { .. } => vec![vec![0]],
            Carrier::Path { path } => vec![named(&|name| name == path)],
            Carrier::Mptcp | Carrier::Balance(_) | Carrier::RoundRobin => {
                vec![(0..self.path.len()).collect()]
            }
            Carrier::Tunnel(tunnel) => vec![match &tunnel.paths {
                None => (0..self.path.len()).collect(),
                Some(names) => any_of(names),
            }],
            Carrier::Relay(relay) => relay.hops.iter().map(|hop| any_of(hop)).collect(),
            Carrier::Chain { hops } | Carrier::TcpNc(TcpNcPlan { hops, .. }) => {
                let each = hops.iter();
                each.map(|hop| named(&|name| name == hop)).collect()
            }
        }
    }

    /// Directions of the bulk traffic behind the carrier, each once; that of the first section comes first. Towards
    /// the site in a plan without bulk traffic.
    #[must_use]
    pub fn sides(&self) -> Vec<Side> {
        let mut sides = Vec::new();
        let behind = self.traffic.iter().filter(|t| t.beside().is_none());
        for side in behind.filter_map(Traffic::bulk_side) {
            if !sides.contains(&side) {
                sides.push(side);
            }
        }
        if sides.is_empty() {
            sides.push(Side::Down);
        }
        sides
    }

    /// What a runner does that the author of the plan may not expect, in words; for notes.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.traffic.is_empty() {
            found.push("traffic: the plan sends nothing; add a [[traffic]] section".into());
        }
        let used = self.paths_by_hop().concat();
        for (index, path) in self.path.iter().enumerate() {
            for (nth, change) in path.change.iter().enumerate() {
                if change.at >= self.duration {
                    found.push(format!(
                        "path[{index}].change[{nth}].at: after the end of the plan, without effect"
                    ));
                }
            }
            let (path, key) = (&self.path[index], format!("path[{index}]"));
            if reorders_in_vain([&path.both, &path.up, &path.down], &path.change) {
                found.push(format!("{key}: {IN_VAIN}"));
            }
            if let Some(sides) = path
                .unlimited()
                .filter(|_| used.contains(&index) && path.through.is_none())
            {
                found.push(format!(
                    "{key}: no `rate` or `trace` {sides}: `{}` is without limit there",
                    path.name
                ));
            }
        }
        for (index, link) in self.link.iter().enumerate() {
            if reorders_in_vain([&link.both, &link.up, &link.down], &link.change) {
                found.push(format!("link[{index}]: {IN_VAIN}"));
            }
        }
        found
    }
}

const IN_VAIN: &str =
    "`reorder` without `jitter` has no effect: packets of one delay keep their order";

/// Whether a link lets packets overtake each other, but none is ever delayed less than one before.
fn reorders_in_vain(settings: [&DirectionPlan; 3], changes: &[ChangePlan]) -> bool {
    let later = changes.iter();
    let later = later.flat_map(|change| [&change.both, &change.up, &change.down]);
    let mut all = settings.into_iter().chain(later);
    let jitters = |plan: &DirectionPlan| plan.jitter.is_some_and(|jitter| !jitter.is_zero());
    let reorders = all.clone().any(|plan| plan.reorder == Some(true));
    let delays = changes.iter();
    let mut delays = delays.flat_map(|change| [&change.both, &change.up, &change.down]);
    reorders && !all.any(jitters) && delays.all(|change| change.delay.is_none())
}

impl Traffic {
    /// The direction of the data of bulk traffic.
    #[must_use]
    pub const fn bulk_side(&self) -> Option<Side> {
        match self {
            Self::Tcp { direction, .. } | Self::Quic { direction, .. } => Some(match direction {
                Direction::Up => Side::Up,
                Direction::Down => Side::Down,
            }),
            Self::Ping { .. } | Self::Call { .. } | Self::Web { .. } => None,
        }
    }
}

impl PathPlan {
    /// In which directions nobody has said how much the path carries, in words. `unlimited` says so.
    const fn unlimited(&self) -> Option<&'static str> {
        let told = [&self.both, &self.up, &self.down];
        let [both, up, down] = [
            told[0].rate.is_some() || told[0].trace.is_some(),
            told[1].rate.is_some() || told[1].trace.is_some(),
            told[2].rate.is_some() || told[2].trace.is_some(),
        ];
        match (both || up, both || down) {
            (true, true) => None,
            (false, true) => Some("up"),
            (true, false) => Some("down"),
            (false, false) => Some("in either direction"),
        }
    }
}
