//! Every scheduler, and in-kernel MPTCP, over the three path pairs of the HTMT paper: five CUBIC
//! downloads, goodput against the ceiling, ping under load, reordering at the exit.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_e2e::{Ground, plain_ceiling, tunnel_ceiling};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::bulk::{self, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{Ping, PingReport, PingSpec};
use ropewalk_testbed::{LinkSpec, Serial, TopologySpec, remove_leftovers, serial};
use serde::Serialize;

/// Compare all schedulers and MPTCP over the path pairs of the HTMT paper.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Length of each run; the paper's is 70 s.
    #[arg(long)]
    seconds: Option<u64>,
    /// Runs per row.
    #[arg(long, default_value_t = 1)]
    repeat: u64,
    /// Run the path pairs at the same time, for a machine with power to spare.
    #[arg(long)]
    together: bool,
    /// Path pairs to run, 1 to 3.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    pairs: Vec<usize>,
    /// Rows to run: scheduler names, `mptcp`, `single-a`, `single-b`.
    #[arg(long, value_delimiter = ',')]
    rows: Option<Vec<String>>,
    /// Lines for the `[tunnel]` section of both gateways, such as `congestion = "bbr"`.
    #[arg(long, default_value = "")]
    tunnel: String,
    /// Parallel connections.
    #[arg(long, default_value_t = 5)]
    flows: usize,
}

/// Rate in Mbit/s and RTT in milliseconds of both paths, from the paper's section on results.
const PAIRS: [[(f64, u64); 2]; 3] = [
    [(8.0, 50), (8.0, 50)],
    [(16.0, 50), (8.0, 70)],
    [(8.0, 50), (16.0, 70)],
];

const ROWS: [&str; 16] = [
    "single-a",
    "single-b",
    "mptcp",
    "auto",
    "htmt",
    "htmt-as-published",
    "low-rtt",
    "otias",
    "afmt",
    "round-robin",
    "weighted-round-robin",
    "blest",
    "ecf",
    "redundant",
    "active-backup",
    "cost-aware",
];

/// One row: one scheduler over one pair.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    pair: String,
    row: String,
    goodput_mbit: Vec<f64>,
    /// What the paths allow, tunnel headers taken off where there is a tunnel.
    ceiling_mbit: f64,
    ping_mean_ms: Vec<f64>,
    ping_p95_ms: Vec<f64>,
    retransmits: Vec<f64>,
    /// Packets per thousand that came out of order to the exit.
    reordered_per_mille: Vec<f64>,
    /// Packets per thousand that the exit held.
    held_per_mille: Vec<f64>,
    hold_timeouts: Vec<f64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let time = args
        .seconds
        .unwrap_or(if args.bench.quick { 10 } else { 70 });
    let time = Duration::from_secs(time);
    let wanted: Vec<String> = args
        .rows
        .clone()
        .unwrap_or_else(|| ROWS.map(str::to_owned).to_vec());
    let serial = Arc::new(serial()?);
    remove_leftovers();
    let measure_pair = |number: usize| -> Result<Vec<Row>> {
        let pair = number.checked_sub(1).and_then(|index| PAIRS.get(index));
        let pair = pair.with_context(|| format!("there is no path pair {number}, only 1 to 3"))?;
        let rows = wanted.iter().map(|name| {
            let mut row = Row {
                pair: pair_name(pair),
                row: name.clone(),
                ..Row::default()
            };
            for round in 0..args.repeat {
                let seed = 10 * round;
                run(args, &serial, pair, time, seed, &mut row)?;
            }
            let goodput = range(&row.goodput_mbit, 2);
            eprintln!("{} {name}: {goodput} Mbit/s", row.pair);
            Ok(row)
        });
        rows.collect()
    };
    let numbers = args.pairs.iter().copied();
    let pairs: Vec<Result<Vec<Row>>> = if args.together {
        std::thread::scope(|scope| {
            let threads: Vec<_> = numbers
                .map(|number| scope.spawn(move || measure_pair(number)))
                .collect();
            let join = |thread: ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(rows) => rows,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    } else {
        numbers.map(measure_pair).collect()
    };
    Ok(pairs.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// One run; its figures are added to the row.
fn run(
    args: &Args,
    serial: &Arc<Serial>,
    pair: &[(f64, u64); 2],
    time: Duration,
    seed_base: u64,
    row: &mut Row,
) -> Result<()> {
    let links = pair.iter().zip(1..).map(|(&(rate, rtt_ms), seed)| {
        LinkSpec::steady(rate, Duration::from_micros(rtt_ms * 500)).with_seed(seed + seed_base)
    });
    let topology = TopologySpec::new("sched", links.collect());
    let ground = Ground::beside(Arc::clone(serial), &topology)?;
    let spec = BulkSpec::download(args.flows, time);
    let sum = pair[0].0 + pair[1].0;
    match row.row.clone().as_str() {
        "single-a" | "single-b" => {
            let index = usize::from(row.row == "single-b");
            let uplink = ground.topology.uplinks()[index].interface.clone();
            row.ceiling_mbit = plain_ceiling(pair[index].0);
            let ping = ping(&ground, Some(&uplink))?;
            let report = bulk::run(&ground.topology.endpoints().through(&uplink), &spec)?;
            row.goodput_mbit.push(report.goodput_mbit);
            row.retransmits.push(report.retransmits as f64);
            row.add_ping(&ping.finish()?);
        }
        "mptcp" => {
            row.ceiling_mbit = plain_ceiling(sum);
            if ground.topology.enable_mptcp()? {
                let report = bulk::run(&ground.topology.endpoints(), &spec.over_mptcp())?;
                row.goodput_mbit.push(report.goodput_mbit);
                row.retransmits.push(report.retransmits as f64);
            }
        }
        scheduler => {
            row.ceiling_mbit = tunnel_ceiling(sum);
            let tunnel = format!("scheduler = \"{scheduler}\"\n{}", args.tunnel);
            let gateway = GatewaySpec {
                tunnel,
                ..GatewaySpec::default()
            };
            let lab = ground.connect(&gateway, &gateway)?;
            let before = lab.site.status()?;
            let spec_ping = PingSpec::new(SERVER.into());
            let site = lab.topology.site();
            let ping = Ping::start(site, &spec_ping, lab.topology.directory(), "ping")?;
            let report = Bulk::start(&lab.topology.endpoints(), &spec)?.finish()?;
            row.add_ping(&ping.finish()?);
            row.goodput_mbit.push(report.goodput_mbit);
            row.retransmits.push(report.retransmits as f64);
            let after = lab.site.status()?;
            if let [old, new] = [&before, &after].map(|status| status.tunnels.first())
                && let (Some(old), Some(new)) = (old, new)
            {
                let packets = (new.rx_packets - old.rx_packets).max(1) as f64;
                let share = |count: u64| count as f64 * 1_000.0 / packets;
                row.reordered_per_mille
                    .push(share(new.reordered - old.reordered));
                row.held_per_mille.push(share(new.held - old.held));
                row.hold_timeouts
                    .push((new.hold_timeouts - old.hold_timeouts) as f64);
            }
        }
    }
    Ok(())
}

fn ping(ground: &Ground, device: Option<&str>) -> Result<Ping> {
    let device = device.map(str::to_owned);
    let spec = PingSpec {
        device,
        ..PingSpec::new(SERVER.into())
    };
    Ping::start(
        ground.topology.site(),
        &spec,
        ground.topology.directory(),
        "ping",
    )
}

impl Row {
    fn add_ping(&mut self, report: &PingReport) {
        self.ping_mean_ms.push(report.rtt_ms.mean);
        self.ping_p95_ms.push(report.rtt_ms.p95);
    }
}

fn pair_name(pair: &[(f64, u64); 2]) -> String {
    let name = |(rate, rtt): (f64, u64)| format!("{rtt} ms {rate:.0} Mbit");
    format!("{} + {}", name(pair[0]), name(pair[1]))
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "paths",
        "scheduler",
        "goodput Mbit/s",
        "of ceiling",
        "ping mean ms",
        "ping p95 ms",
        "retransmits",
        "reordered ‰",
        "held ‰",
        "hold timeouts",
    ]);
    for row in rows {
        let ratios: Vec<f64> = row
            .goodput_mbit
            .iter()
            .map(|g| g / row.ceiling_mbit)
            .collect();
        let cell = |values: &[f64], digits| {
            if values.is_empty() {
                "-".to_owned()
            } else {
                range(values, digits)
            }
        };
        table.row(&[
            row.pair.clone(),
            row.row.clone(),
            cell(&row.goodput_mbit, 2),
            cell(&ratios, 3),
            cell(&row.ping_mean_ms, 0),
            cell(&row.ping_p95_ms, 0),
            cell(&row.retransmits, 0),
            cell(&row.reordered_per_mille, 1),
            cell(&row.held_per_mille, 1),
            cell(&row.hold_timeouts, 0),
        ]);
    }
    table
}
