//! The paths of a plan: their links, which of them a carrier uses, and what they allow.

use ropewalk_netem::{DirectionPlan, LinkConfig, LinkPlan, Side};
use ropewalk_plan::{Carrier, PathReport, Plan, Report, direct_ceiling, tunnel_ceiling};

use super::file::{PlanFile, PlanFileError};
use crate::link::LinkSpec;

/// The link of one path.
#[derive(Clone, Debug)]
pub(super) struct PathLink {
    plan: LinkPlan,
    config: LinkConfig,
}

impl PathLink {
    pub(super) fn spec(&self) -> LinkSpec {
        LinkSpec::Planned(Box::new(self.plan.clone()))
    }
}

/// The links of all paths, traces found and checked.
pub(super) fn links(file: &PlanFile, seed: u64) -> Result<Vec<PathLink>, PlanFileError> {
    let make = |index: usize| {
        let path = &file.plan.path[index];
        let fail = |problem: String| PlanFileError::Link {
            path: path.name.clone(),
            problem,
        };
        let mut plan = path.link(seed, index);
        for direction in directions(&mut plan) {
            if let Some(trace) = &mut direction.trace {
                let absolute = file.directory.join(&*trace);
                *trace = absolute.to_string_lossy().into_owned();
            }
        }
        let load = |trace: &str| {
            std::fs::read_to_string(trace).map_err(|error| format!("cannot read {trace}: {error}"))
        };
        let config = plan.resolve(load).map_err(|e| fail(e.to_string()))?;
        Ok(PathLink { plan, config })
    };
    (0..file.plan.path.len()).map(make).collect()
}

fn directions(plan: &mut LinkPlan) -> impl Iterator<Item = &mut DirectionPlan> {
    let changes = plan.change.iter_mut();
    let changes = changes.flat_map(|change| [&mut change.both, &mut change.up, &mut change.down]);
    [&mut plan.both, &mut plan.up, &mut plan.down]
        .into_iter()
        .chain(changes)
}

/// Places in the plan of the paths that its carrier uses; only their links are made.
pub(super) fn used(plan: &Plan) -> Vec<usize> {
    let all = 0..plan.path.len();
    let named = |wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
        let paths = plan.path.iter().enumerate();
        let paths = paths.filter(|(_, path)| wanted(&path.name));
        paths.map(|(index, _)| index).collect()
    };
    match &plan.carrier {
        Carrier::DirectFirst | Carrier::Peer { .. } => vec![0],
        Carrier::Path { path } => named(&|name| name == path),
        Carrier::Mptcp => all.collect(),
        Carrier::Tunnel(tunnel) => match &tunnel.paths {
            None => all.collect(),
            Some(names) => named(&|name| names.iter().any(|n| n == name)),
        },
    }
}

/// Completes a report that has only the paths in use: names, capacities, ceiling.
pub(super) fn describe(
    report: &mut Report,
    plan: &Plan,
    links: &[PathLink],
    used: &[usize],
    side: Side,
) {
    let mut counted: Vec<Option<PathReport>> = vec![None; links.len()];
    for (&index, path) in used.iter().zip(std::mem::take(&mut report.paths)) {
        counted[index] = Some(path);
    }
    let mut sum = Some(0.0);
    for (index, (path, link)) in plan.path.iter().zip(links).enumerate() {
        let mean = link.config.mean_capacity(side, plan.warmup, plan.duration);
        if used.contains(&index) {
            sum = sum.zip(mean).map(|(sum, mean)| sum + mean / 1e6);
        }
        report.paths.push(PathReport {
            name: path.name.clone(),
            capacity_mbit: mean.unwrap_or(0.0) / 1e6,
            ..counted[index].take().unwrap_or_default()
        });
    }
    let ceiling = match plan.carrier {
        Carrier::Tunnel(_) => tunnel_ceiling,
        Carrier::DirectFirst | Carrier::Path { .. } | Carrier::Mptcp | Carrier::Peer { .. } => {
            direct_ceiling
        }
    };
    match sum {
        Some(sum) => report.ceiling_mbit = ceiling(sum),
        None => report
            .notes
            .push("a path in use has no rate limit: there is no ceiling".into()),
    }
}
