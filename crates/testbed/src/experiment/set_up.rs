//! A plan's paths and carrier without traffic, for a program that makes its own.
//!
//! It learns the namespaces from one line of JSON and then says with a line each when the plan's time
//! begins and when it wants the counters. The end of its input takes everything down.

use std::io::{BufRead, Write};

use anyhow::{Result, bail};
use ropewalk_netem::Counters;
use ropewalk_plan::{Carrier, PathReport, Plan};
use serde::Serialize;

use super::carrier::{self, Carried};
use super::counting::path;
use super::ground::Ground;
use super::{Options, PlanFile, PlanFileError, keep, paths, require_programs};
use crate::link::Link;
use crate::serial;
use crate::topology::SERVER;

/// What is there: the first line that is written.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    /// The namespace in which the uplinks are.
    site: &'a str,
    /// The namespace of the server.
    server: &'a str,
    /// The server's own address.
    address: String,
    /// All addresses of this network are the server's, too.
    network: &'static str,
    /// Where files of the run may be; it is removed at the end.
    directory: &'a std::path::Path,
    /// Whether connections have to be made as MPTCP connections to use every path.
    mptcp: bool,
    /// What a reader of results should know.
    notes: Vec<String>,
}

/// Sets a plan up, obeys `input` a line at a time, and takes it down when `input` ends.
///
/// `begin` begins all links anew and answers `{}`; `counters` answers with what each path in use
/// carried towards the site since then.
///
/// # Errors
/// [`super::CannotRun`] if the machine lacks something. [`PlanFileError`] for gateways in a row and
/// for traffic. An unknown command is an error. All other errors say what failed, and where the
/// logs are.
pub fn set_up(
    file: &PlanFile,
    options: &Options,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<()> {
    require_programs()?;
    let plan = &file.plan;
    carrier::require(plan, options)?;
    check(plan)?;
    let seed = options.seed.unwrap_or(plan.seed);
    let links = paths::links(file, seed)?;
    let _shared = serial::shared()?;
    let mut ground = Ground::build(file, &links, &plan.paths_by_hop(), seed)?;
    let result = obey(file, options, &ground, input, &mut output);
    if options.keep_logs.is_some() {
        keep(&mut ground, options);
    }
    result
}

/// Checks what only `run` can do.
fn check(plan: &Plan) -> Result<(), PlanFileError> {
    if !plan.traffic.is_empty() {
        let problem = "leave it out: whoever sets the plan up makes the traffic";
        return Err(PlanFileError::setting("traffic", problem));
    }
    if matches!(
        plan.carrier,
        Carrier::Relay(_) | Carrier::Chain { .. } | Carrier::TcpNc(_)
    ) {
        return Err(in_a_row());
    }
    Ok(())
}

fn obey(
    file: &PlanFile,
    options: &Options,
    ground: &Ground,
    input: impl BufRead,
    output: &mut impl Write,
) -> Result<()> {
    let Ground::Uplinks { topology, .. } = ground else {
        return Err(in_a_row().into());
    };
    topology.give_server(NETWORK)?;
    let carried = Carried::start(&file.plan, options, ground)?;
    let ready = Ready {
        site: topology.site().name(),
        server: topology.server().name(),
        address: SERVER.to_string(),
        network: NETWORK,
        directory: topology.directory(),
        mptcp: carried.is_mptcp(),
        notes: carried.notes(),
    };
    answer(output, &ready)?;
    for line in input.lines() {
        match line?.trim() {
            "begin" => {
                ground.restart_links()?;
                answer(output, &serde_json::json!({}))?;
            }
            "counters" => answer(output, &counters(&file.plan, ground)?)?,
            other => bail!("`{other}` is no command: write begin or counters"),
        }
    }
    Ok(())
}

/// What the paths in use carried towards the site since the plan's time began.
fn counters(plan: &Plan, ground: &Ground) -> Result<Vec<PathReport>> {
    let used = plan.paths_by_hop().into_iter().flatten();
    let report = |(index, link): (usize, &Link)| {
        Ok(PathReport {
            name: plan.path[index].name.clone(),
            ..path(&Counters::default(), &link.counters()?.down)
        })
    };
    used.zip(ground.links()).map(report).collect()
}

fn answer(output: &mut impl Write, value: &impl Serialize) -> Result<()> {
    writeln!(output, "{}", serde_json::to_string(value)?)?;
    Ok(output.flush()?)
}

fn in_a_row() -> PlanFileError {
    let problem = "gateways in a row have hosts for their traffic only: use `run`";
    PlanFileError::setting("carrier.kind", problem)
}

/// Where many servers are that are one (RFC 2544: for benchmarks).
const NETWORK: &str = "198.18.0.0/15";
