//! `ropewalk-sim replay`: recorded uplinks, each alone and all together through the tunnel, as a table, a picture
//! and a page.

mod page;
mod picture;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use ropewalk_netem::{CapacityTrace, DirectionPlan, TRACE_BYTES_MAX, trace_text, units};
use ropewalk_plan::{Carrier, PATHS_MAX, PathPlan, Plan, Report, Traffic, TunnelPlan};
use ropewalk_sim::sweep::{Job, sweep};
use ropewalk_types::Duration;
use serde_json::json;

use super::{FAILED, Failure, PLAN_UNUSABLE};

/// Shortest and longest replay, seconds.
const SECONDS: std::ops::RangeInclusive<u64> = 10..=3_600;
/// What is not counted at the beginning, seconds: connections begin.
const WARMUP_S: u64 = 3;
/// Bytes of an uplink's queue unless told otherwise: what home routers and modems have.
const QUEUE: &str = "256KiB";
/// Propagation delay of an uplink unless told otherwise.
const DELAY: &str = "20ms";
/// What a call lacks at most where it counts as good, share of its packets.
const CALL_GOOD: f64 = 0.99;

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// Recordings of capacity, one for each uplink: CSV (second, bytes per second) or Mahimahi format
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// One-way delay of each uplink, or of all [default: 20ms]
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    delay: Vec<String>,
    /// Loss of each uplink, or of all, such as 1%
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    loss: Vec<String>,
    /// Queue of each uplink, or of all [default: 256KiB]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    queue: Vec<String>,
    /// How much of the recordings is played; shorter ones repeat
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS))]
    seconds: u64,
    /// TCP connections of the download
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    flows: u16,
    /// Scheduler of the tunnel [default: auto]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Seed of losses and delays
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw the downloads into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write picture, tables and words into this file, a page for a browser that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print a JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// What one way of sending got.
struct Outcome {
    name: String,
    report: Report,
}

impl Outcome {
    fn goodput(&self) -> f64 {
        self.report
            .traffic
            .first()
            .map_or(0.0, |bulk| bulk.goodput_mbit)
    }

    /// Mbit/s of each second.
    fn series(&self) -> &[f64] {
        self.report
            .traffic
            .first()
            .map_or(&[], |bulk| &bulk.series_mbit)
    }

    /// Longest time without a byte, seconds.
    fn stall(&self) -> f64 {
        let bulk = self.report.traffic.first();
        bulk.and_then(|bulk| bulk.longest_stall_seconds)
            .unwrap_or(0.0)
    }

    /// Share of the call's packets that were in time.
    fn in_time(&self) -> f64 {
        self.report
            .traffic
            .get(1)
            .and_then(|call| call.in_time)
            .unwrap_or(0.0)
    }
}

pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let paths = paths(args)?;
    let names: Vec<String> = paths.iter().map(|path| path.name.clone()).collect();
    let mut carriers: Vec<(String, Carrier)> = names
        .iter()
        .map(|name| (name.clone(), Carrier::Path { path: name.clone() }))
        .collect();
    let tunnel = TunnelPlan {
        scheduler: args.scheduler.clone(),
        ..TunnelPlan::default()
    };
    carriers.push(("Ropewalk".to_owned(), Carrier::Tunnel(tunnel)));
    let mut jobs = Vec::new();
    for (name, carrier) in &carriers {
        let plan = plan(args, &paths, carrier.clone());
        plan.check()
            .map_err(|error| Failure(PLAN_UNUSABLE, format!("{name}: {error}")))?;
        jobs.push(Job {
            plan,
            seed: args.seed,
            folder: None,
            histograms: false,
        });
    }
    let mut outcomes = Vec::new();
    for ((name, _), result) in carriers.into_iter().zip(sweep(&jobs, None, |_| ())) {
        let report = result.map_err(|error| Failure::of_run(&name, &error))?;
        outcomes.push(Outcome { name, report });
    }
    if let Some(file) = &args.svg {
        write(file, &picture::draw(&outcomes))?;
    }
    if let Some(file) = &args.html {
        write(file, &page::of(&outcomes, args))?;
    }
    let text = if args.json {
        format!("{}\n", in_json(&outcomes))
    } else {
        table(&outcomes, args.seconds)
    };
    super::write_out(&text)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text)
        .map_err(|error| Failure(FAILED, format!("cannot write {}: {error}", file.display())))
}

/// The uplinks, under the names of their files.
fn paths(args: &ReplayArgs) -> Result<Vec<PathPlan>, Failure> {
    let count = args.files.len();
    if !(2..=PATHS_MAX).contains(&count) {
        let problem = format!("{count} recordings; name those of 2 to {PATHS_MAX} uplinks");
        return Err(Failure(PLAN_UNUSABLE, problem));
    }
    let unusable = |key: &str, problem: String| Failure(PLAN_UNUSABLE, format!("{key}: {problem}"));
    let of = |key: &str, given: &[String], default: Option<&str>| match given.len() {
        0 => Ok(vec![default.map(str::to_owned); count]),
        1 => Ok(vec![Some(given[0].clone()); count]),
        n if n == count => Ok(given.iter().cloned().map(Some).collect()),
        n => Err(unusable(
            key,
            format!("{n} values for {count} uplinks; give one, or one for each"),
        )),
    };
    let delays = of("--delay", &args.delay, Some(DELAY))?;
    let losses = of("--loss", &args.loss, None)?;
    let queues = of("--queue", &args.queue, Some(QUEUE))?;
    let mut names = BTreeSet::new();
    let mut paths = Vec::new();
    for (index, file) in args.files.iter().enumerate() {
        readable(file)?;
        let stem = file
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let mut name = stem.unwrap_or_default();
        if name.is_empty() || name == "Ropewalk" || !names.insert(name.clone()) {
            name = format!("{name} ({})", index + 1);
            names.insert(name.clone());
        }
        let read = |key: &str, problem: String| unusable(key, problem);
        let delay = delays[index]
            .as_deref()
            .map(units::parse_duration)
            .transpose();
        let loss = losses[index]
            .as_deref()
            .map(units::parse_probability)
            .transpose();
        let queue = queues[index].as_deref().map(units::parse_bytes).transpose();
        let both = DirectionPlan {
            trace: Some(absolute(file)?),
            delay: delay.map_err(|problem| read("--delay", problem.to_string()))?,
            loss: loss.map_err(|problem| read("--loss", problem.to_string()))?,
            queue: queue.map_err(|problem| read("--queue", problem.to_string()))?,
            ..DirectionPlan::default()
        };
        paths.push(PathPlan {
            name,
            both,
            ..PathPlan::default()
        });
    }
    Ok(paths)
}

/// Reads a recording once, so that what is wrong with it is said of that file.
fn readable(file: &Path) -> Result<(), Failure> {
    let shown = file.display();
    let unusable = |problem: String| Failure(PLAN_UNUSABLE, problem);
    let refused = |error: std::io::Error| unusable(format!("cannot read {shown}: {error}"));
    let of = std::fs::metadata(file).map_err(refused)?;
    if !of.is_file() {
        return Err(unusable(format!(
            "{shown} is no file; what comes from a pipe cannot be played twice"
        )));
    }
    if of.len() > TRACE_BYTES_MAX {
        return Err(unusable(format!(
            "{shown}: longer than {TRACE_BYTES_MAX} bytes"
        )));
    }
    let bytes = std::fs::read(file).map_err(refused)?;
    let text = trace_text(bytes).map_err(|problem| unusable(format!("{shown}: {problem}")))?;
    let parsed = CapacityTrace::parse(&shown.to_string(), &text);
    parsed
        .map(drop)
        .map_err(|error| unusable(error.to_string()))
}

fn absolute(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let path = file
        .canonicalize()
        .map_err(|error| Failure(PLAN_UNUSABLE, format!("cannot read {shown}: {error}")))?;
    let text = path.into_os_string().into_string();
    text.map_err(|_| Failure(PLAN_UNUSABLE, format!("{shown}: the path is no UTF-8")))
}

fn plan(args: &ReplayArgs, paths: &[PathPlan], carrier: Carrier) -> Plan {
    Plan {
        name: "replay".to_owned(),
        seed: args.seed,
        duration: Duration::from_secs(args.seconds + WARMUP_S),
        warmup: Duration::from_secs(WARMUP_S),
        path: paths.to_vec(),
        link: Vec::new(),
        carrier,
        traffic: traffic(args.flows),
    }
}

/// A download, and a call beside it.
fn traffic(flows: u16) -> Vec<Traffic> {
    let all = json!([{"kind": "tcp", "flows": flows}, {"kind": "call"}]);
    serde_json::from_value(all).expect("both are traffic of a plan")
}

/// The uplink that is best by itself.
fn best(outcomes: &[Outcome]) -> Option<(&Outcome, &Outcome)> {
    let (tunnel, alone) = outcomes.split_last()?;
    let best = alone
        .iter()
        .max_by(|a, b| a.goodput().total_cmp(&b.goodput()))?;
    Some((tunnel, best))
}

fn table(outcomes: &[Outcome], seconds: u64) -> String {
    let width = outcomes
        .iter()
        .map(|one| one.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(8);
    let mut text = format!(
        "{:width$}  download, Mbit/s  longest stall, s  call in time\n",
        format!("{seconds} s")
    );
    for one in outcomes {
        text += &format!(
            "{:width$}  {:16.1}  {:16.1}  {:10.1} %\n",
            one.name,
            one.goodput(),
            one.stall(),
            one.in_time() * 100.0
        );
    }
    text + &verdict(outcomes) + "\n"
}

/// What all uplinks together gain, in words.
fn verdict(outcomes: &[Outcome]) -> String {
    let Some((tunnel, best)) = best(outcomes) else {
        return String::new();
    };
    let gain = tunnel.goodput() / best.goodput().max(1e-9);
    let calls = |share: f64| {
        if share >= CALL_GOOD {
            "good"
        } else {
            "not good"
        }
    };
    let alone = outcomes[..outcomes.len() - 1]
        .iter()
        .map(Outcome::in_time)
        .fold(0.0, f64::max);
    format!(
        "All uplinks together carry {gain:.2} times what {} carries, the best of them. The call is {} ({} over the best \
         uplink for it).",
        best.name,
        calls(tunnel.in_time()),
        calls(alone)
    )
}

fn in_json(outcomes: &[Outcome]) -> serde_json::Value {
    let each = |one: &Outcome| {
        json!({
            "name": one.name,
            "download_mbit": one.goodput(),
            "series_mbit": one.series(),
            "longest_stall_s": one.stall(),
            "call_in_time": one.in_time(),
        })
    };
    let gain = best(outcomes).map(|(tunnel, best)| tunnel.goodput() / best.goodput().max(1e-9));
    let (tunnel, alone) = outcomes
        .split_last()
        .map_or((None, outcomes), |(last, rest)| (Some(last), rest));
    json!({
        "uplinks": alone.iter().map(each).collect::<Vec<_>>(),
        "ropewalk": tunnel.map(each),
        "gain": gain,
    })
}
