//! Every scheduler, and in-kernel MPTCP, over the three path pairs of the HTMT paper: five CUBIC
//! downloads, goodput against the ceiling, ping under load, reordering at the egress.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use ropewalk_e2e::Ground;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_plan::{direct_ceiling, tunnel_ceiling};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::bulk::{self, Bulk, BulkSpec};
use ropewalk_testbed::traffic::ping::{Ping, PingReport, PingSpec};
use ropewalk_testbed::{LinkSpec, Serial, TopologySpec, remove_leftovers, serial};
use ropewalk_types::SchedulerKind;
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
    /// Links like walking Wi-Fi and LTE with these capacity traces, instead of the path pairs.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    traces: Option<Vec<PathBuf>>,
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

/// Rate in Mbit/s and RTT in milliseconds of both paths, from the paper's section V. That its delays
/// are round trips is in the authors' scripts only.
const PAIRS: [[(f64, u64); 2]; 3] = [
    [(8.0, 50), (8.0, 50)],
    [(16.0, 50), (8.0, 70)],
    [(8.0, 50), (16.0, 70)],
];

/// Rows beside those of the schedulers: each path alone, and MPTCP over both.
const OTHERS: [&str; 3] = ["single-a", "single-b", "mptcp"];

/// The names of all rows.
fn rows() -> impl Iterator<Item = &'static str> {
    OTHERS
        .into_iter()
        .chain(SchedulerKind::ALL.map(SchedulerKind::name))
}

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
    /// Packets per thousand that came out of order to the egress.
    reordered_per_mille: Vec<f64>,
    /// Packets per thousand that the egress held.
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
        .unwrap_or_else(|| rows().map(str::to_owned).collect());
    let serial = Arc::new(serial()?);
    remove_leftovers();
    let measure_pair = |pair: &Pair| -> Result<Vec<Row>> {
        let rows = wanted.iter().map(|name| {
            let mut row = Row {
                pair: pair.name.clone(),
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
    let pairs: Vec<Pair> = match args.traces.as_deref() {
        Some([a, b]) => vec![Pair::of_traces(a, b, time)?],
        _ => args
            .pairs
            .iter()
            .map(|&number| Pair::of_paper(number))
            .collect::<Result<_>>()?,
    };
    let results: Vec<Result<Vec<Row>>> = if args.together {
        std::thread::scope(|scope| {
            let threads: Vec<_> = pairs
                .iter()
                .map(|pair| scope.spawn(move || measure_pair(pair)))
                .collect();
            let join = |thread: ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(rows) => rows,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    } else {
        pairs.iter().map(measure_pair).collect()
    };
    Ok(results.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// One run; its figures are added to the row.
fn run(
    args: &Args,
    serial: &Arc<Serial>,
    pair: &Pair,
    time: Duration,
    seed_base: u64,
    row: &mut Row,
) -> Result<()> {
    let links = pair.links.iter().zip(1..);
    let links = links.map(|(link, seed)| link.clone().with_seed(seed + seed_base));
    let topology = TopologySpec::new("sched", links.collect());
    let built = Instant::now();
    let ground = Ground::beside(Arc::clone(serial), &topology)?;
    let spec = BulkSpec::download(args.flows, time);
    let sum = pair.capacity_mbit[0] + pair.capacity_mbit[1];
    // Every row meets the same part of a trace.
    let wait = || {
        if args.traces.is_some() {
            std::thread::sleep(START_ALLOWANCE.saturating_sub(built.elapsed()));
        }
    };
    match row.row.clone().as_str() {
        "single-a" | "single-b" => {
            let index = usize::from(row.row == "single-b");
            let uplink = ground.topology.uplinks()[index].interface.clone();
            row.ceiling_mbit = direct_ceiling(pair.capacity_mbit[index]);
            wait();
            let ping = ping(&ground, Some(&uplink))?;
            let report = bulk::run(&ground.topology.endpoints().through(&uplink), &spec)?;
            row.goodput_mbit.push(report.goodput_mbit);
            row.retransmits.push(report.retransmits as f64);
            row.add_ping(&ping.finish()?);
        }
        "mptcp" => {
            row.ceiling_mbit = direct_ceiling(sum);
            if ground.topology.enable_mptcp()? {
                wait();
                let report = bulk::run(&ground.topology.endpoints(), &spec.over_mptcp())?;
                row.goodput_mbit.push(report.goodput_mbit);
                row.retransmits.push(report.retransmits as f64);
            }
        }
        scheduler => {
            row.ceiling_mbit = tunnel_ceiling(sum, true);
            let tunnel = format!("scheduler = \"{scheduler}\"\n{}", args.tunnel);
            let gateway = GatewaySpec {
                tunnel,
                ..GatewaySpec::default()
            };
            let lab = ground.connect(&gateway, &gateway)?;
            wait();
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

/// Two links and what they carry.
struct Pair {
    name: String,
    links: [LinkSpec; 2],
    capacity_mbit: [f64; 2],
}

impl Pair {
    fn of_paper(number: usize) -> Result<Self> {
        let pair = number.checked_sub(1).and_then(|index| PAIRS.get(index));
        let pair = pair.with_context(|| format!("there is no path pair {number}, only 1 to 3"))?;
        let name = |(rate, rtt): (f64, u64)| format!("{rtt} ms {rate:.0} Mbit");
        Ok(Self {
            name: format!("{} + {}", name(pair[0]), name(pair[1])),
            links: pair
                .map(|(rate, rtt_ms)| LinkSpec::steady(rate, Duration::from_micros(rtt_ms * 500))),
            capacity_mbit: pair.map(|(rate, _)| rate),
        })
    }

    fn of_traces(a: &Path, b: &Path, time: Duration) -> Result<Self> {
        let links = [
            LinkSpec::wifi_like(a.canonicalize()?),
            LinkSpec::lte_like(b.canonicalize()?),
        ];
        let capacity =
            |link: &LinkSpec| link.capacity_mbit(START_ALLOWANCE, START_ALLOWANCE + time);
        let capacity_mbit = [capacity(&links[0])?, capacity(&links[1])?];
        Ok(Self {
            name: format!("{:.1} + {:.1} Mbit", capacity_mbit[0], capacity_mbit[1]),
            links,
            capacity_mbit,
        })
    }
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

/// Age of the links when the downloads begin, if that matters.
const START_ALLOWANCE: Duration = Duration::from_secs(8);
