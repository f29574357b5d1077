//! Links that several paths pass, and traffic that goes beside the carrier.
//!
//! Links are numbered: the paths first, then the `[[link]]` sections. A path that names a link in
//! `through` goes on over it towards the hub, and so may that link. So all links are a forest
//! whose roots end at the hub.

use std::collections::BTreeSet;

use ropewalk_netem::{ChangePlan, DirectionPlan, LinkPlan};
use serde::{Deserialize, Serialize};

use crate::{Carrier, PATHS_MAX, Plan, PlanError, SEED_MASK, Traffic, fail};

/// Most `[[link]]` sections: the seeds of links are numbered below 16.
pub const LINKS_MAX: usize = 7;

/// A link between paths and the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedLink {
    /// Name, unique among links and paths.
    pub name: String,
    /// Settings of both directions.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub both: DirectionPlan,
    /// Settings from the site; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub up: DirectionPlan,
    /// Settings towards the site; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub down: DirectionPlan,
    /// New settings at times after the start of the traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<ChangePlan>,
    /// Name of the link that comes next towards the hub, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
}

impl Traffic {
    /// The path or link that the section's hosts are at, if they are not behind the carrier.
    #[must_use]
    pub fn beside(&self) -> Option<&str> {
        match self {
            Self::Tcp { beside, .. } => beside.as_deref(),
            Self::Quic { .. } | Self::Ping { .. } | Self::Call { .. } | Self::Web { .. } => None,
        }
    }

    /// Whether these hosts beside the carrier have a tunnel of their own.
    #[must_use]
    pub const fn has_own_tunnel(&self) -> bool {
        matches!(self, Self::Tcp { tunnel: true, .. })
    }
}

impl Plan {
    /// How many links there are: paths and shared ones.
    #[must_use]
    pub const fn link_count(&self) -> usize {
        self.path.len() + self.link.len()
    }

    /// The number of the path or link of this name.
    #[must_use]
    pub fn link_number(&self, name: &str) -> Option<usize> {
        let paths = self.path.iter().map(|path| path.name.as_str());
        let links = self.link.iter().map(|link| link.name.as_str());
        paths.chain(links).position(|known| known == name)
    }

    /// The settings of a link; its randomness follows from `seed` and its number.
    #[must_use]
    pub fn link_plan(&self, number: usize, seed: u64) -> LinkPlan {
        let Some(shared) = number.checked_sub(self.path.len()) else {
            return self.path[number].link(seed, number);
        };
        let link = &self.link[shared];
        let place = (PATHS_MAX + 1 + shared) as u64;
        LinkPlan {
            seed: Some(seed.wrapping_mul(16).wrapping_add(place) & SEED_MASK),
            both: link.both.clone(),
            up: link.up.clone(),
            down: link.down.clone(),
            change: link.change.clone(),
        }
    }

    /// The number of the link that comes after this one towards the hub.
    #[must_use]
    pub fn through(&self, number: usize) -> Option<usize> {
        let name = match number.checked_sub(self.path.len()) {
            None => self.path[number].through.as_deref(),
            Some(shared) => self.link[shared].through.as_deref(),
        };
        name.and_then(|name| self.link_number(name))
    }

    /// What these links carry together to the hub, if each carries `capacity` of its number: the
    /// least along the way, the sum where they come together. `None` if nothing limits it.
    #[must_use]
    pub fn carried(&self, used: &[usize], capacity: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let mut sums: Vec<Option<f64>> = vec![Some(0.0); self.link_count()];
        let mut total = Some(0.0);
        let mut waiting: BTreeSet<(usize, usize)> = BTreeSet::new();
        for &number in used {
            sums[number] = None;
            waiting.insert((usize::MAX - self.depth(number), number));
        }
        // The farthest from the hub come first, so that a sum is complete when it is limited.
        while let Some((_, number)) = waiting.pop_first() {
            let flow = match (sums[number], capacity(number)) {
                (Some(sum), Some(most)) => Some(sum.min(most)),
                (sum, most) => sum.or(most),
            };
            let slot = match self.through(number) {
                Some(next) => {
                    waiting.insert((usize::MAX - self.depth(next), next));
                    &mut sums[next]
                }
                None => &mut total,
            };
            *slot = slot.zip(flow).map(|(sum, flow)| sum + flow);
        }
        total
    }

    /// Links between this one and the hub.
    fn depth(&self, number: usize) -> usize {
        std::iter::successors(self.through(number), |next| self.through(*next)).count()
    }
}

/// Checks names, that every way ends at the hub, and that traffic beside the carrier has a place.
pub(crate) fn check(plan: &Plan) -> Result<(), PlanError> {
    if plan.link.len() > LINKS_MAX {
        return fail(
            "link",
            format!("write at most {LINKS_MAX} [[link]] sections"),
        );
    }
    let mut names: BTreeSet<&str> = plan.path.iter().map(|path| path.name.as_str()).collect();
    for (index, link) in plan.link.iter().enumerate() {
        if link.name.is_empty() || !names.insert(&link.name) {
            let key = format!("link[{index}].name");
            return fail(
                &key,
                "give every link a name that no path and no other link has".into(),
            );
        }
    }
    let paths = plan.path.iter().map(|path| &path.through).enumerate();
    let links = plan.link.iter().map(|link| &link.through).enumerate();
    let keys = paths
        .map(|(index, through)| (format!("path[{index}].through"), through))
        .chain(links.map(|(index, through)| (format!("link[{index}].through"), through)));
    for (key, through) in keys {
        if let Some(name) = through
            && !plan.link.iter().any(|link| link.name == *name)
        {
            let problem = format!("there is no link `{name}`{}", known(plan));
            return fail(&key, problem);
        }
    }
    check_ways(plan)?;
    check_beside(plan)
}

fn known(plan: &Plan) -> String {
    let names: Vec<&str> = plan.link.iter().map(|link| link.name.as_str()).collect();
    if names.is_empty() {
        "; write a [[link]] section of that name".into()
    } else {
        format!(", only {}", names.join(", "))
    }
}

/// Every way ends, and something passes every link.
fn check_ways(plan: &Plan) -> Result<(), PlanError> {
    for (index, link) in plan.link.iter().enumerate() {
        let number = plan.path.len() + index;
        let way = std::iter::successors(Some(number), |next| plan.through(*next));
        if way.take(LINKS_MAX + 1).count() > LINKS_MAX {
            let key = format!("link[{index}].through");
            let problem = format!(
                "`{}` leads in a circle; every way ends at the hub",
                link.name
            );
            return fail(&key, problem);
        }
        let through = (0..plan.link_count()).any(|other| plan.through(other) == Some(number));
        let beside = plan
            .traffic
            .iter()
            .any(|traffic| traffic.beside() == Some(&link.name));
        if !through && !beside {
            let key = format!("link[{index}]");
            let problem = format!(
                "nothing passes `{}`; name it in a `through` or leave it out",
                link.name
            );
            return fail(&key, problem);
        }
    }
    Ok(())
}

fn check_beside(plan: &Plan) -> Result<(), PlanError> {
    for (index, traffic) in plan.traffic.iter().enumerate() {
        if let Some(name) = traffic.beside()
            && plan.link_number(name).is_none()
        {
            let problem = format!("there is no path or link `{name}`");
            return fail(&format!("traffic[{index}].beside"), problem);
        }
    }
    let alone = |traffic: &Traffic| {
        traffic.has_own_tunnel()
            && (traffic.beside().is_none() || !matches!(plan.carrier, Carrier::Tunnel(_)))
    };
    if let Some(index) = plan.traffic.iter().position(alone) {
        let problem = "only with `beside` and the carrier `tunnel`: hosts at a link get a site of \
                       their own, whose hub is the carrier's";
        return fail(&format!("traffic[{index}].tunnel"), problem.into());
    }
    let in_a_row = matches!(
        plan.carrier,
        Carrier::Relay(_) | Carrier::Chain { .. } | Carrier::TcpNc(_)
    );
    if !in_a_row {
        return Ok(());
    }
    let used = [
        ("link", !plan.link.is_empty()),
        (
            "traffic.beside",
            plan.traffic.iter().any(|t| t.beside().is_some()),
        ),
    ];
    let found = used.into_iter().find(|(_, used)| *used);
    let problem =
        "not for the carriers `relay`, `chain` and `tcp-nc`: their paths are in a row already";
    found.map_or(Ok(()), |(key, _)| fail(key, problem.into()))
}
