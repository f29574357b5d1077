//! `ropewalk-testbed`: experiment plans on the real kernel.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ropewalk_testbed::experiment::{self, CannotRun, Options, PlanFile, PlanFileError};
use ropewalk_testbed::{remove_leftovers, wait_if_interrupted};

/// Runs experiment plans on the real kernel, in network namespaces (as root).
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one plan once and reports. Several may run at the same time.
    ///
    /// Exit codes: 0 for done, 1 for failed, 2 for a plan that cannot be used, 3 when this machine
    /// lacks something that the plan needs (standard error says what).
    Run {
        /// The plan (TOML).
        plan: PathBuf,
        /// Seed instead of the plan's.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Print the report as one JSON object.
        #[arg(long)]
        json: bool,
        /// Keep configurations, output and logs of all programs in this directory.
        #[arg(long, value_name = "DIR")]
        keep_logs: Option<PathBuf>,
        /// The wireguard-go program, for plans with that peer; found in PATH otherwise.
        #[arg(long, value_name = "PATH", env = "ROPEWALK_WIREGUARD_GO")]
        wireguard_go: Option<PathBuf>,
        /// The mqvpn program, for plans with that peer; found in PATH otherwise.
        #[arg(long, value_name = "PATH", env = "ROPEWALK_MQVPN")]
        mqvpn: Option<PathBuf>,
    },
    /// Sets a plan up for a program that makes the traffic itself.
    ///
    /// Writes one line of JSON that names the namespaces, then obeys standard input, a line at a
    /// time: `begin` begins all links anew, `counters` tells what the paths have carried. When the
    /// input ends everything is taken down. The plan has no traffic. Exit codes are those of `run`.
    SetUp {
        /// The plan (TOML).
        plan: PathBuf,
        /// Seed instead of the plan's.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Keep configurations, output and logs of all programs in this directory.
        #[arg(long, value_name = "DIR")]
        keep_logs: Option<PathBuf>,
    },
    /// Removes namespaces and logs of runs that were killed.
    Clean,
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Clean => {
            println!("removed {} namespaces and directories", remove_leftovers());
            ExitCode::SUCCESS
        }
        Command::Run {
            plan,
            seed,
            json,
            keep_logs,
            wireguard_go,
            mqvpn,
        } => {
            let options = Options {
                seed,
                keep_logs,
                wireguard_go,
                mqvpn,
            };
            end(run(&plan, &options, json))
        }
        Command::SetUp {
            plan,
            seed,
            keep_logs,
        } => {
            let options = Options {
                seed,
                keep_logs,
                ..Options::default()
            };
            end(set_up(&plan, &options))
        }
    }
}

fn end(result: anyhow::Result<()>) -> ExitCode {
    wait_if_interrupted();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk-testbed: {error:#}");
            exit_code(&error)
        }
    }
}

fn set_up(plan: &Path, options: &Options) -> anyhow::Result<()> {
    let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
    experiment::set_up(&PlanFile::read(plan)?, options, input, output)
        .map_err(|error| in_file(plan, error))
}

fn run(plan: &Path, options: &Options, json: bool) -> anyhow::Result<()> {
    let report = experiment::run(&PlanFile::read(plan)?, options);
    let report = report.map_err(|error| in_file(plan, error))?;
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", experiment::summary(&report));
    }
    Ok(())
}

/// The error with the file, if it is one of the plan and does not name the file yet.
fn in_file(plan: &Path, error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<PlanFileError>() {
        Some(fault) if !fault.names_file() => error.context(plan.display().to_string()),
        Some(_) | None => error,
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<PlanFileError>() {
        ExitCode::from(2)
    } else if error.is::<CannotRun>() {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_plan_names_the_file_once_and_stays_one() {
        let plan = Path::new("p.toml");
        let fault = PlanFileError::Link {
            path: "a".into(),
            problem: "both.trace: none".into(),
        };
        let error = in_file(plan, fault.into());
        assert_eq!(format!("{error:#}"), "p.toml: path `a`: both.trace: none");
        assert_eq!(exit_code(&error), ExitCode::from(2));
        let unreadable = PlanFileError::Unreadable {
            file: plan.into(),
            error: std::io::ErrorKind::NotFound.into(),
        };
        let told = format!("{:#}", in_file(plan, unreadable.into()));
        assert_eq!(told.matches("p.toml").count(), 1, "{told}");
    }
}
