//! The command line: plans in, tables or JSON out.

mod chaos;
mod fleet;
mod replay;
mod summary;
mod table;

use clap::{Args, CommandFactory, Parser, Subcommand};
use ropewalk_plan::{Plan, Report};
use ropewalk_sim::LogFile;
use ropewalk_sim::run::{Options, SimError, run_with};
use ropewalk_sim::sweep::{Job, sweep};
use std::io::{BufWriter, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes besides 0.
const FAILED: u8 = 1;
const PLAN_UNUSABLE: u8 = 2;

/// Most seeds of one call.
const SEEDS_MAX: u64 = 100_000;

#[derive(Parser)]
#[command(
    name = "ropewalk-sim",
    version,
    about = "Runs experiment plans in virtual time, with the real tunnel core",
    after_help = "A plan describes paths, what joins them, and traffic; plans/experiments has examples.\n\
        The same plan and seed give the same result on every machine.\n\n\
        Exit code 0: done, 1: failed, 2: a plan cannot be used (standard error names the key)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs plans and reports
    #[command(after_help = "Examples:\n  \
        ropewalk-sim run plans/experiments/htmt-even.toml\n  \
        ropewalk-sim run plans/experiments/*.toml --seeds 20      twenty seeds each, on all cores\n  \
        ropewalk-sim run PLAN --json | jq .[0].traffic[0].goodput_mbit\n  \
        ropewalk-sim run PLAN --events events.jsonl               every packet, as JSON lines\n  \
        ropewalk-sim run PLAN --pcap packets                      for tcpdump -r packets/host-site.pcap")]
    Run(RunArgs),
    /// Plays what happens to a hub and its sites by chance, and looks whether rules hold
    #[command(after_help = "Examples:\n  \
        ropewalk-sim chaos --seeds 1000              a thousand stories, on all cores\n  \
        ropewalk-sim chaos --seed 7 --verbose        one story, told")]
    Chaos(chaos::ChaosArgs),
    /// Plays many sites with several hubs, one of which dies and comes back
    #[command(after_help = "Examples:\n  \
        ropewalk-sim fleet                                          300 sites, 3 hubs, some seconds\n  \
        ropewalk-sim fleet --sites 10000 --calls 300 --seed 2       minutes and gigabytes\n  \
        ropewalk-sim fleet --json | jq .served_again_with_call\n\n\
        Sites start, are idle, and then some have a call. The first hub dies: when is each of its sites served\n\
        again, how does their load spread, and what do the sites of the other hubs notice? Later it starts again.\n\
        Processor time costs nothing in virtual time. The report says how long the handshakes that came would\n\
        have waited for one processor, at 0.3 and at 0.5 ms each.\n\n\
        Exit code 0: each site was served again and no other one moved, 1: not so.")]
    Fleet(fleet::FleetArgs),
    /// Plays recorded uplinks: what would they carry alone, and what together through Ropewalk?
    #[command(after_help = "Examples:\n  \
        ropewalk-sim replay wifi.csv lte.csv --svg gain.svg\n  \
        ropewalk-sim replay a.up b.up --delay 10ms,40ms --loss 1%,0% --seconds 120\n\n\
        A CSV file has lines of a second and bytes per second; Mahimahi's files have a line for each packet of\n\
        1,500 bytes that could leave, in milliseconds. The uplinks get their rates in both directions.")]
    Replay(replay::ReplayArgs),
}

#[derive(Args)]
struct RunArgs {
    /// Plans (TOML)
    #[arg(required = true, value_name = "PLAN")]
    plans: Vec<PathBuf>,
    /// Seed instead of the plan's
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// So many seeds for each plan: the plan's and those after it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: Option<u64>,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print a JSON array with a report for each run
    #[arg(long)]
    json: bool,
    /// Add the delays of each bulk flow to the report, as histograms
    #[arg(long, requires = "json")]
    histograms: bool,
    /// Write what happens to each packet to this file, as JSON lines; one run only
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Write the packets of each interface to files in this directory, for tcpdump; one run only
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
}

/// What ended the program early, and its exit code.
struct Failure(u8, String);

impl Failure {
    fn of_run(plan: &str, error: &SimError) -> Self {
        if let SimError::Output(problem) = error {
            Self(FAILED, problem.clone())
        } else {
            Self(PLAN_UNUSABLE, format!("{plan}: {error}"))
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    if let Some(code) = ropewalk_manual::asked(Cli::command) {
        return code;
    }
    let done = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Replay(args) => replay::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, problem)) => {
            eprintln!("ropewalk-sim: {problem}");
            ExitCode::from(code)
        }
    }
}

fn run(args: &RunArgs) -> Result<(), Failure> {
    let mut jobs = Vec::new();
    let mut names = Vec::new();
    for file in &args.plans {
        let plan = read_plan(file)?;
        let first = args.seed.unwrap_or(plan.seed);
        for nth in 0..args.seeds.unwrap_or(1) {
            names.push(file.display().to_string());
            jobs.push(Job {
                plan: plan.clone(),
                seed: first.wrapping_add(nth),
                folder: file.parent().map(Path::to_owned),
                histograms: args.histograms,
            });
        }
    }
    let results = if args.events.is_some() || args.pcap.is_some() {
        vec![run_logged(&jobs, args)?]
    } else {
        run_all(&jobs, args.threads)
    };
    let mut reports = Vec::new();
    let mut first_failure = None;
    for (name, result) in names.iter().zip(results) {
        match result {
            Ok(report) => reports.push(report),
            Err(error) => {
                first_failure.get_or_insert_with(|| Failure::of_run(name, &error));
            }
        }
    }
    print(&reports, args.json)
        .map_err(|error| Failure(FAILED, format!("cannot write the reports: {error}")))?;
    first_failure.map_or(Ok(()), Err)
}

/// Writes to standard output.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure(FAILED, format!("cannot write the result: {error}")))
}

fn read_plan(file: &Path) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure(
            PLAN_UNUSABLE,
            format!("cannot read {}: {error}", file.display()),
        )
    })?;
    Plan::parse(&text)
        .map_err(|error| Failure(PLAN_UNUSABLE, format!("{}: {error}", file.display())))
}

fn run_all(jobs: &[Job], threads: Option<NonZeroUsize>) -> Vec<Result<Report, SimError>> {
    let show = jobs.len() > 1 && std::io::stderr().is_terminal();
    let results = sweep(jobs, threads, |done| {
        if show {
            eprint!("\r{done} of {} runs", jobs.len());
        }
    });
    if show {
        eprintln!();
    }
    results
}

fn run_logged(jobs: &[Job], args: &RunArgs) -> Result<Result<Report, SimError>, Failure> {
    let [job] = jobs else {
        let problem = "--events and --pcap take one plan and one seed";
        return Err(Failure(PLAN_UNUSABLE, problem.into()));
    };
    let events = args.events.clone().map(LogFile::new);
    let options = Options {
        folder: job.folder.clone(),
        histograms: job.histograms,
        events: events.map(|file| Box::new(file) as Box<dyn Write + Send>),
        pcap: args.pcap.clone(),
        ..Options::default()
    };
    Ok(run_with(&job.plan, job.seed, options))
}

fn print(reports: &[Report], json: bool) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    if json {
        serde_json::to_writer(&mut out, reports)?;
        writeln!(out)?;
    } else {
        for report in reports {
            table::print(&mut out, report)?;
        }
        summary::print(&mut out, reports)?;
    }
    out.flush()
}
