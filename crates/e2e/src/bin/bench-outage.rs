//! How soon streams go on after an outage in which one end hears nothing, or both.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::outages::{Outage, Recovery};
use ropewalk_e2e::table::Table;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::{remove_leftovers, serial};
use serde::Serialize;

/// Make one end deaf, or both, on one of two links or on both, and measure how long after the
/// return the streams have received a byte, and a megabit.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// How long the outages last, seconds; 1, 3, 8, 25 and 60 unless given.
    #[arg(long, value_delimiter = ',')]
    seconds: Vec<u64>,
    /// Runs of each kind.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Parallel connections of each run.
    #[arg(long, default_value_t = 2)]
    flows: usize,
    /// Capacity of each link, Mbit/s.
    #[arg(long, default_value_t = 10.0)]
    mbps: f64,
}

/// One run.
#[derive(Debug, Serialize)]
struct Row {
    outage: &'static str,
    links: usize,
    direction: Direction,
    seconds: u64,
    #[serde(flatten)]
    recovery: Recovery,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), table)
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let serial = Arc::new(serial()?);
    remove_leftovers();
    let lengths = match (&args.seconds[..], args.bench.quick) {
        ([], true) => &[3],
        ([], false) => &[1, 3, 8, 25, 60][..],
        (given, _) => given,
    };
    let mut rows = Vec::new();
    for &seconds in lengths
        .iter()
        .flat_map(|s| std::iter::repeat_n(s, args.repeat))
    {
        eprintln!("outages of {seconds} s");
        // They mostly wait: all kinds at once.
        let runs: Vec<_> = Outage::kinds(Duration::from_secs(seconds), args.flows, args.mbps)
            .map(|outage| {
                let serial = serial.clone();
                (outage, std::thread::spawn(move || outage.run(serial)))
            })
            .collect();
        for (outage, run) in runs {
            rows.push(Row {
                outage: outage.cut.name(),
                links: outage.links,
                direction: outage.direction,
                seconds,
                recovery: run.join().map_err(|_| anyhow!("a run panicked"))??,
            });
        }
    }
    Ok(rows)
}

fn table(rows: &Vec<Row>) -> Table {
    let mut table = Table::new(&[
        "outage",
        "links",
        "streams",
        "s",
        "to a byte ms",
        "to a megabit ms",
        "longest pause ms",
    ]);
    let time = |ms: Option<f64>| ms.map_or("never".into(), |ms| format!("{ms:.0}"));
    for row in rows {
        table.row(&[
            row.outage.into(),
            row.links.to_string(),
            format!("{:?}", row.direction).to_lowercase(),
            row.seconds.to_string(),
            time(row.recovery.byte_ms),
            time(row.recovery.megabit_ms),
            format!("{:.0}", row.recovery.pause_ms),
        ]);
    }
    table
}
