//! What all benchmarks have in common: options, progress, and how results are printed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use ropewalk_testbed::statistics::{Summary, summarize};
use serde::Serialize;

use crate::table::Table;

/// Options of every benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Short runs, to see that everything works.
    #[arg(long)]
    pub quick: bool,
}

/// Runs a benchmark: table or JSON on standard output, errors as exit code.
///
/// The figures never make the exit code: a benchmark reports, it does not judge.
pub fn main<R: Serialize>(
    args: &BenchArgs,
    measure: impl FnOnce() -> Result<R>,
    table: impl FnOnce(&R) -> Table,
) -> ExitCode {
    let result = match measure() {
        Ok(result) => result,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        match serde_json::to_string(&result) {
            Ok(text) => println!("{text}"),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    } else {
        print!("{}", table(&result).markdown());
    }
    ExitCode::SUCCESS
}

/// Figures of durations, in milliseconds.
#[must_use]
pub fn milliseconds(times: &[Duration]) -> Summary {
    summarize(times.iter().map(|time| time.as_secs_f64() * 1e3))
}
