//! How soon traffic goes on after a fault: the kernel beside the simulator. The faults are a
//! restart of the hub, a block of UDP, an outage in one direction and an interface that comes back.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs, milliseconds};
use ropewalk_e2e::recovery::Event;
use ropewalk_e2e::table::Table;
use ropewalk_testbed::statistics::Summary;
use serde::Serialize;

/// Let things happen to a tunnel over one link and measure how soon a packet arrives again, on the
/// kernel and in the simulator.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Runs of each kind.
    #[arg(long)]
    repeat: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Row {
    event: Event,
    kernel_ms: Summary,
    simulator_ms: Summary,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let repeat = args.repeat.unwrap_or(if args.bench.quick { 1 } else { 5 });
    let mut rows = Vec::new();
    for event in Event::ALL {
        eprintln!("{}", event.name());
        // Timers of the gateways stand elsewhere in each run.
        let after = |run: u32| Duration::from_millis(u64::from(1_000 + run * 137));
        let kernel: Vec<Duration> = (0..repeat)
            .map(|run| event.on_kernel(after(run)))
            .collect::<Result<_>>()?;
        let simulator: Vec<Duration> = (0..repeat)
            .map(|run| event.in_simulator(after(run), u64::from(run)))
            .collect();
        rows.push(Row {
            event,
            kernel_ms: milliseconds(&kernel),
            simulator_ms: milliseconds(&simulator),
        });
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "event",
        "runs",
        "kernel ms",
        "simulator ms",
        "difference ms",
    ]);
    for row in rows {
        let span = |s: &Summary| format!("{:.0} ({:.0} to {:.0})", s.median, s.min, s.max);
        table.row(&[
            row.event.name().to_owned(),
            row.kernel_ms.count.to_string(),
            span(&row.kernel_ms),
            span(&row.simulator_ms),
            format!("{:.0}", row.kernel_ms.median - row.simulator_ms.median),
        ]);
    }
    table
}
