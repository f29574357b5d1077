//! The processor time, traffic and memory of an idle tunnel over two paths, and its memory under
//! load.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use ropewalk_e2e::Lab;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::Table;
use ropewalk_testbed::LinkSpec;
use ropewalk_testbed::gateway::Gateway;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use serde::Serialize;

/// Measure an idle tunnel.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Length of the idle time measured.
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Row {
    gateway: &'static str,
    /// Share of one core, per cent.
    cpu_percent: f64,
    /// Outer bits per second of each path, both directions, IP packets.
    path_bits_per_second: Vec<f64>,
    idle_mb: f64,
    load_mb: f64,
    /// Throughput while the memory under load was read, Mbit/s.
    load_mbit: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let seconds = args
        .seconds
        .unwrap_or(if args.bench.quick { 5 } else { 30 });
    let lab = Lab::new(
        "idle",
        vec![LinkSpec::unshaped(true), LinkSpec::unshaped(true)],
    )?;
    std::thread::sleep(SETTLE);
    let gateways = [("site", &lab.site), ("hub", &lab.hub)];
    let cpu = || -> Result<Vec<f64>> { gateways.iter().map(|(_, g)| cpu_seconds(g)).collect() };
    let interfaces: Vec<&str> = lab
        .topology
        .uplinks()
        .iter()
        .map(|uplink| uplink.interface.as_str())
        .collect();
    let bytes = || -> Result<Vec<u64>> {
        let both = |name: &&str| {
            let (received, sent) = lab.topology.site().interface_bytes(name)?;
            Ok(received + sent)
        };
        interfaces.iter().map(both).collect()
    };
    let (begin, cpu_before, bytes_before) = (Instant::now(), cpu()?, bytes()?);
    std::thread::sleep(Duration::from_secs(seconds));
    let (cpu_after, bytes_after) = (cpu()?, bytes()?);
    let passed = begin.elapsed().as_secs_f64();
    let idle: Vec<f64> = gateways
        .iter()
        .map(|(_, gateway)| memory(gateway))
        .collect::<Result<_>>()?;
    let bulk = Bulk::start(
        &lab.topology.endpoints(),
        &BulkSpec::download(8, Duration::from_secs(5)),
    )?;
    std::thread::sleep(Duration::from_secs(4));
    let load: Vec<f64> = gateways
        .iter()
        .map(|(_, gateway)| memory(gateway))
        .collect::<Result<_>>()?;
    let load_mbit = bulk.finish()?.goodput_mbit;
    let paths: Vec<f64> = bytes_before
        .iter()
        .zip(&bytes_after)
        .map(|(before, after)| (after - before) as f64 * 8.0 / passed)
        .collect();
    Ok((0..gateways.len())
        .map(|index| Row {
            gateway: gateways[index].0,
            cpu_percent: (cpu_after[index] - cpu_before[index]) / passed * 100.0,
            path_bits_per_second: paths.clone(),
            idle_mb: idle[index],
            load_mb: load[index],
            load_mbit,
        })
        .collect())
}

fn cpu_seconds(gateway: &Gateway) -> Result<f64> {
    Ok(gateway.process().context("the gateway runs")?.cpu_seconds())
}

fn memory(gateway: &Gateway) -> Result<f64> {
    Ok(gateway
        .process()
        .context("the gateway runs")?
        .resident_bytes() as f64
        / 1e6)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "gateway",
        "CPU % of a core, idle",
        "bit/s per path, idle (Ethernet)",
        "RSS MB idle",
        "RSS MB under load",
        "load Mbit/s",
    ]);
    for row in rows {
        let paths = row
            .path_bits_per_second
            .iter()
            .map(|bits| format!("{bits:.0}"));
        table.row(&[
            row.gateway.to_owned(),
            format!("{:.2}", row.cpu_percent),
            paths.collect::<Vec<_>>().join(" / "),
            format!("{:.1}", row.idle_mb),
            format!("{:.1}", row.load_mb),
            format!("{:.0}", row.load_mbit),
        ]);
    }
    table
}

/// Time for probes of path MTU and the like to calm down.
const SETTLE: Duration = Duration::from_secs(5);
