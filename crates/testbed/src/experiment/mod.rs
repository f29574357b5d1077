//! One experiment plan on the real kernel: namespaces, links, carrier, traffic and the report.
//!
//! Everything is set up first. Then all links begin anew together and the traffic starts. That
//! instant is time zero of the plan for timed changes, traces, warm-up and series.

mod carrier;
mod counting;
mod file;
mod ground;
mod paths;
mod series;
mod set_up;
mod sources;
mod summary;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ropewalk_plan::{Plan, Report};

use crate::{programs, serial};
use carrier::Carried;
use counting::Counts;
pub use file::{PlanFile, PlanFileError};
use ground::Ground;
pub use set_up::set_up;
use sources::{Outcome, Stage};
pub use summary::summary;

/// What of a run does not come from its plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Instead of the plan's seed.
    pub seed: Option<u64>,
    /// Where to keep configurations, output and logs of all programs.
    pub keep_logs: Option<PathBuf>,
    /// The `wireguard-go` program; found in PATH unless given.
    pub wireguard_go: Option<PathBuf>,
    /// The `mqvpn` program; found in PATH unless given.
    pub mqvpn: Option<PathBuf>,
}

/// This machine lacks what the plan needs; nothing is wrong with the plan.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot run here: {0}")]
pub struct CannotRun(pub String);

/// Runs a plan once.
///
/// Waits first while a test or a benchmark measures on this machine; other runs may go on beside
/// it.
///
/// # Errors
/// [`CannotRun`] if the machine lacks something; otherwise what failed, and where the logs are.
pub fn run(file: &PlanFile, options: &Options) -> Result<Report> {
    require_programs()?;
    let plan = &file.plan;
    sources::require(plan)?;
    carrier::require(plan, options)?;
    let seed = options.seed.unwrap_or(plan.seed);
    let links = paths::links(file, seed)?;
    let hops = plan.paths_by_hop();
    let _shared = serial::shared()?;
    let began = Instant::now();
    let mut ground = Ground::build(file, &links, &hops, seed)?;
    let mut report = match measure(plan, options, &ground) {
        Ok(report) => report,
        Err(error) if error.is::<CannotRun>() => return Err(error),
        Err(error) => {
            let kept = keep(&mut ground, options);
            return Err(error.context(format!("logs are in {}", kept.display())));
        }
    };
    if options.keep_logs.is_some() {
        keep(&mut ground, options);
    }
    paths::describe(&mut report, plan, &links, &hops, plan.sides()[0]);
    report.seed = seed;
    drop(ground);
    report.wall_seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// Checks for what every plan needs.
fn require_programs() -> Result<()> {
    let needed = [programs::IP, programs::NFT, programs::ETHTOOL];
    programs::require(&needed).map_err(|error| CannotRun(error.to_string()).into())
}

/// Sets up what carries the traffic, sends it, and counts. Only paths in use are reported here.
fn measure(plan: &Plan, options: &Options, ground: &Ground) -> Result<Report> {
    let carried = Carried::start(plan, options, ground)?;
    let window = Window::of(plan);
    let prepared = plan.traffic.iter().enumerate();
    let prepared = prepared
        .map(|(index, traffic)| {
            let what = format!("traffic[{index}] ({})", traffic.kind());
            let stage = Stage {
                ends: ground.endpoints(index),
                directory: ground.directory().to_owned(),
                window,
                mptcp: carried.is_mptcp() && traffic.beside().is_none(),
                seed: options.seed.unwrap_or(plan.seed),
            };
            sources::prepare(&stage, index, traffic).context(what)
        })
        .collect::<Result<Vec<_>>>()?;
    ground.restart_links()?;
    let begin = Instant::now();
    let (outcomes, counts) = std::thread::scope(|scope| {
        let running: Vec<_> = prepared
            .into_iter()
            .map(|source| scope.spawn(move || source.run(begin)))
            .collect();
        let announcing = scope.spawn(|| carrier::announce(plan, carried.gateways(), begin));
        let counts = Counts::collect(&carried, ground, begin, window);
        let outcomes: Result<Vec<Outcome>> = running
            .into_iter()
            .enumerate()
            .map(|(index, thread)| {
                let result = thread.join();
                let result = result.map_err(|_| anyhow!("its thread panicked"))?;
                let kind = plan.traffic[index].kind();
                result.with_context(|| format!("traffic[{index}] ({kind})"))
            })
            .collect();
        let announced = announcing.join();
        let announced = announced.map_err(|_| anyhow!("the announcing thread panicked"));
        (outcomes, announced.flatten().and(counts))
    });
    let (outcomes, counts) = (outcomes?, counts?);
    let mut report = Report {
        plan: plan.name.clone(),
        runner: "kernel".into(),
        seconds: window.counted().as_secs_f64(),
        notes: carried.notes(),
        ..Report::default()
    };
    counts.describe(&mut report, plan.sides()[0]);
    for outcome in outcomes {
        report.traffic.push(outcome.report);
        report.notes.extend(outcome.notes);
    }
    Ok(report)
}

/// The part of a run that is counted, after its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// When counting begins.
    from: Duration,
    /// When it ends, and the traffic with it.
    to: Duration,
}

impl Window {
    fn of(plan: &Plan) -> Self {
        Self {
            from: plan.warmup,
            to: plan.duration,
        }
    }

    fn counted(self) -> Duration {
        self.to.saturating_sub(self.from)
    }

    fn contains(self, at: Duration) -> bool {
        self.from <= at && at < self.to
    }
}

/// Keeps the logs where the user wants them, or where they are; says where.
fn keep(ground: &mut Ground, options: &Options) -> PathBuf {
    let here = ground.directory().to_owned();
    if let Some(wanted) = &options.keep_logs {
        match copy_files(&here, wanted) {
            Ok(()) => return wanted.clone(),
            Err(error) => eprintln!("cannot keep the logs in {}: {error}", wanted.display()),
        }
    }
    ground.keep_directory();
    here
}

/// Copies plain files, subdirectories included; sockets stay.
fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
