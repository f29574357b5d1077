//! Packets that leave a site beside its tunnel, situation by situation, with and without the kill switch.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::leaks::{self, Case};
use ropewalk_e2e::table::Table;
use serde::Serialize;

/// Try everything in every situation, and count what comes out of the uplinks.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Without the kill switch.
    #[arg(long)]
    off: bool,
}

#[derive(Debug, Serialize)]
struct Results {
    kill_switch: bool,
    cases: Vec<Case>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(!args.off), table)
}

fn measure(kill_switch: bool) -> Result<Results> {
    let cases = leaks::matrix(kill_switch)?;
    Ok(Results { kill_switch, cases })
}

fn table(results: &Results) -> Table {
    leaks::table(&results.cases)
}
