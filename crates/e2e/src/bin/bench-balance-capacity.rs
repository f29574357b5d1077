//! How well `ropewalk balance` finds what idle uplinks carry: by trains of packets, and by packets of
//! several sizes, over the same links. Both measure with echoes, so no better than the slower direction.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::Ground;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_testbed::{Balanced, LinkSpec, Shape, TopologySpec};
use serde::Serialize;

/// Measure the estimates of idle uplinks.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Times that each method starts anew.
    #[arg(long)]
    rounds: Option<usize>,
}

/// One link by one method, over all rounds.
#[derive(Debug, Serialize)]
struct Row {
    method: &'static str,
    down_mbit: f64,
    up_mbit: f64,
    /// Mbit/s, one each round.
    estimates_mbit: Vec<f64>,
    /// From the start of the program until the estimates of all links were there, seconds.
    time_s: Vec<f64>,
    /// Bytes sent over the link until then, with the probes of life.
    sent: Vec<f64>,
}

/// Mbit/s down and up, all 10 ms one way.
const LINKS: [(f64, f64); 4] = [(5.0, 5.0), (20.0, 20.0), (100.0, 100.0), (100.0, 20.0)];

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let rounds = args.rounds.unwrap_or(if args.bench.quick { 1 } else { 5 });
    let links = LINKS.map(|(down, up)| {
        let shape = |mbit| Shape::steady(mbit, Duration::from_millis(10));
        LinkSpec::Emulated {
            down: shape(down),
            up: shape(up),
            mtu: 1_500,
            seed: 1,
        }
    });
    let ground = Ground::new(&TopologySpec::new("balcap", links.to_vec()))?;
    let mut balanced = Balanced::new(&ground.topology)?;
    let mut rows = Vec::new();
    for method in ["train", "vps"] {
        let row = |(down_mbit, up_mbit)| Row {
            method,
            down_mbit,
            up_mbit,
            estimates_mbit: Vec::new(),
            time_s: Vec::new(),
            sent: Vec::new(),
        };
        let mut some: Vec<Row> = LINKS.into_iter().map(row).collect();
        balanced.configure_probe(&format!("capacity = \"{method}\"\n[balance]\n"))?;
        for round in 0..rounds {
            take(&ground, &mut balanced, &mut some)?;
            eprintln!("{method}, round {round}");
        }
        rows.append(&mut some);
    }
    Ok(rows)
}

/// Starts the program, and adds what it finds to the rows.
fn take(ground: &Ground, balanced: &mut Balanced, rows: &mut [Row]) -> Result<()> {
    let site = ground.topology.site();
    let names = ground.topology.uplinks().iter().map(|u| &u.interface);
    let sent = || -> Result<Vec<u64>> {
        let bytes = names.clone().map(|name| site.interface_bytes(name));
        bytes.map(|bytes| Ok(bytes?.1)).collect()
    };
    let before = sent()?;
    let begin = Instant::now();
    balanced.start(LINKS.len())?;
    balanced.wait_for("estimates", |all| all.iter().all(|u| u.capacity_probed))?;
    let time = begin.elapsed().as_secs_f64();
    let (status, after) = (balanced.status()?, sent()?);
    balanced.process().stop();
    for (index, row) in rows.iter_mut().enumerate() {
        row.estimates_mbit.push(status[index].capacity_mbit);
        row.time_s.push(time);
        row.sent.push((after[index] - before[index]) as f64);
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "method",
        "down Mbit/s",
        "up Mbit/s",
        "estimate Mbit/s",
        "after s",
        "bytes sent",
    ]);
    for row in rows {
        table.row(&[
            row.method.to_owned(),
            format!("{:.0}", row.down_mbit),
            format!("{:.0}", row.up_mbit),
            range(&row.estimates_mbit, 1),
            range(&row.time_s, 1),
            range(&row.sent, 0),
        ]);
    }
    table
}
