//! The paths of a plan: their links, which of them a carrier uses, and what they allow.

use std::path::Path;

use ropewalk_netem::{DirectionPlan, LinkConfig, LinkPlan, Side};
use ropewalk_plan::{NO_CEILING, PathReport, Plan, Report, describe_ceilings};

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

/// The links of all paths and those that they share, traces found and checked.
pub(super) fn links(file: &PlanFile, seed: u64) -> Result<Vec<PathLink>, PlanFileError> {
    let plan = &file.plan;
    let make = |number: usize| {
        resolve(file, plan.link_plan(number, seed)).map_err(|problem| {
            match number.checked_sub(plan.path.len()) {
                None => PlanFileError::Link {
                    path: plan.path[number].name.clone(),
                    problem,
                },
                Some(shared) => PlanFileError::SharedLink {
                    link: plan.link[shared].name.clone(),
                    problem,
                },
            }
        })
    };
    (0..plan.link_count()).map(make).collect()
}

/// The own link of a section's host, if it has one.
pub(super) fn access(
    file: &PlanFile,
    section: usize,
    seed: u64,
) -> Result<Option<LinkSpec>, PlanFileError> {
    let link = file.plan.traffic[section].access_link(seed, section);
    let resolved = link.map(|link| resolve(file, link)).transpose();
    let resolved = resolved.map_err(|problem| PlanFileError::Access {
        section,
        problem: problem.strip_prefix("both.").unwrap_or(&problem).to_owned(),
    })?;
    Ok(resolved.map(|link| link.spec()))
}

/// A link with its traces found and checked, or what is wrong with it.
fn resolve(file: &PlanFile, mut plan: LinkPlan) -> Result<PathLink, String> {
    for direction in directions(&mut plan) {
        if let Some(trace) = &mut direction.trace {
            let absolute = file.directory.join(&*trace);
            *trace = absolute.to_string_lossy().into_owned();
        }
    }
    let load = |trace: &str| ropewalk_plan::read_trace(Path::new(trace));
    let config = plan.resolve(load).map_err(|error| error.to_string())?;
    Ok(PathLink { plan, config })
}

fn directions(plan: &mut LinkPlan) -> impl Iterator<Item = &mut DirectionPlan> {
    let changes = plan.change.iter_mut();
    let changes = changes.flat_map(|change| [&mut change.both, &mut change.up, &mut change.down]);
    [&mut plan.both, &mut plan.up, &mut plan.down]
        .into_iter()
        .chain(changes)
}

/// Completes a report that has only the paths in use: names, capacities, ceiling.
pub(super) fn describe(
    report: &mut Report,
    plan: &Plan,
    links: &[PathLink],
    hops: &[Vec<usize>],
    side: Side,
) {
    let mean = |number: usize| {
        let config: &LinkConfig = &links[number].config;
        config.mean_capacity(side, plan.warmup, plan.duration)
    };
    let mut counted: Vec<Option<PathReport>> = vec![None; plan.path.len()];
    for (&index, path) in hops.iter().flatten().zip(std::mem::take(&mut report.paths)) {
        counted[index] = Some(path);
    }
    for (index, path) in plan.path.iter().enumerate() {
        report.paths.push(PathReport {
            name: path.name.clone(),
            capacity_mbit: mean(index).unwrap_or(0.0) / 1e6,
            ..counted[index].take().unwrap_or_default()
        });
    }
    for ((number, link), shared) in (plan.path.len()..).zip(&plan.link).zip(&mut report.links) {
        shared.name.clone_from(&link.name);
        shared.capacity_mbit = mean(number).unwrap_or(0.0) / 1e6;
    }
    let links: Vec<&LinkConfig> = links.iter().map(|link| &link.config).collect();
    let ceiling = describe_ceilings(plan, &links, &mut report.traffic);
    report.ceiling_mbit = ceiling.unwrap_or_default();
    report
        .notes
        .extend(ceiling.is_none().then(|| NO_CEILING.into()));
    report.notes.extend(plan.warnings());
}
