//! How long a 10 ms stream is silent when one of two live uplinks goes away, and how soon an
//! uplink that returns carries traffic again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::bench::{self, milliseconds};
use ropewalk_e2e::cuts::{self, CutArgs, RETURN_LIMIT};
use ropewalk_e2e::table::Table;
use ropewalk_e2e::{Lab, two_links};
use ropewalk_testbed::statistics::Summary;
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use serde::Serialize;

/// Cut uplinks under a steady stream and measure the silence.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    cuts: CutArgs,
    /// Returns of each kind under a download.
    #[arg(long)]
    returns: Option<usize>,
}

/// Figures of one kind of cut.
#[derive(Debug, Serialize)]
struct Row {
    cut: &'static str,
    /// Longest silence of the stream towards the site after each cut, milliseconds.
    down_gap_ms: Summary,
    /// The same of the stream from the site.
    up_gap_ms: Summary,
    /// Every silence towards the site in order; the paths take turns.
    down_gaps_ms: Vec<f64>,
    /// Every silence from the site in order.
    up_gaps_ms: Vec<f64>,
    /// Longest pause of the senders themselves: the machine's share, milliseconds.
    sender_gap_ms: f64,
    /// From giving the uplink back until [`CARRIED_BYTES`] came over it, milliseconds.
    return_ms: Summary,
    /// Returns that took longer than [`RETURN_LIMIT`].
    returns_missed: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.cuts.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let cuts = args.cuts.count(20, 4);
    let quick = args.cuts.bench.quick;
    let returns = args.returns.unwrap_or(if quick { 2 } else { 10 });
    let kinds = args.cuts.kinds();
    kinds.map(|cut| row(cut, cuts, returns)).collect()
}

fn row(cut: Cut, cuts: usize, returns: usize) -> Result<Row> {
    let lab = Lab::new("failover", two_links())?;
    let (down, up, sender_gap) = silences(&lab, cut, cuts)?;
    let times = (0..returns).map(|index| return_time(&lab, index % 2, cut));
    let times: Vec<Option<Duration>> = times.collect::<Result<_>>()?;
    let found: Vec<Duration> = times.iter().flatten().copied().collect();
    eprintln!("{}: {} cuts, {} returns", cut.name(), cuts, returns);
    Ok(Row {
        cut: cut.name(),
        down_gap_ms: milliseconds(&down),
        up_gap_ms: milliseconds(&up),
        down_gaps_ms: down.iter().map(|gap| gap.as_secs_f64() * 1e3).collect(),
        up_gaps_ms: up.iter().map(|gap| gap.as_secs_f64() * 1e3).collect(),
        sender_gap_ms: sender_gap.as_secs_f64() * 1e3,
        return_ms: milliseconds(&found),
        returns_missed: times.len() - found.len(),
    })
}

/// Longest silence after each cut in both directions, and that of the senders themselves.
fn silences(lab: &Lab, cut: Cut, cuts: usize) -> Result<(Vec<Duration>, Vec<Duration>, Duration)> {
    let ends = lab.topology.endpoints();
    let down = Probe::start(&ends, &ProbeSpec::fine(Direction::Download))?;
    let up = Probe::start(&ends, &ProbeSpec::fine(Direction::Upload))?;
    let now = || (down.elapsed(), up.elapsed());
    let moments = cuts::in_turn(
        &lab.topology,
        cut,
        cuts,
        |_| {
            std::thread::sleep(SETTLE);
            Ok(now())
        },
        |_, before| {
            std::thread::sleep(CUT);
            Ok((before, now()))
        },
        |_| lab.site.wait_paths(2, RETURN_LIMIT).map(drop),
    )?;
    let (down, up) = (down.finish()?, up.finish()?);
    let gaps = moments
        .iter()
        .map(|(from, to)| (down.longest_gap(from.0, to.0), up.longest_gap(from.1, to.1)));
    let (down_gaps, up_gaps) = gaps.unzip();
    Ok((down_gaps, up_gaps, down.sender_gap.max(up.sender_gap)))
}

/// Time until a returning uplink carries a share of a running download.
fn return_time(lab: &Lab, uplink: usize, cut: Cut) -> Result<Option<Duration>> {
    let time = 2 * SETTLE + CUT + RETURN_LIMIT;
    let bulk = Bulk::start(&lab.topology.endpoints(), &BulkSpec::download(4, time))?;
    std::thread::sleep(SETTLE);
    lab.topology.cut(uplink, cut)?;
    std::thread::sleep(CUT);
    let name = &lab.topology.uplinks()[uplink].interface;
    let carried = || {
        lab.topology
            .site()
            .interface_bytes(name)
            .map_or(0, |(rx, _)| rx)
    };
    let before = carried();
    let begin = Instant::now();
    lab.topology.restore(uplink, cut)?;
    let mut found = None;
    while found.is_none() && begin.elapsed() < RETURN_LIMIT {
        std::thread::sleep(Duration::from_millis(2));
        found = (carried() >= before + CARRIED_BYTES).then(|| begin.elapsed());
    }
    drop(bulk);
    lab.site.wait_paths(2, RETURN_LIMIT)?;
    Ok(found)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "cut",
        "cuts",
        "down gap ms: median",
        "p95",
        "max",
        "up gap ms: median",
        "p95",
        "max",
        "sender's own gap",
        "return ms: median",
        "max",
        "missed",
    ]);
    let ms = |value: f64| format!("{value:.0}");
    for row in rows {
        table.row(&[
            row.cut.to_owned(),
            row.down_gap_ms.count.to_string(),
            ms(row.down_gap_ms.median),
            ms(row.down_gap_ms.p95),
            ms(row.down_gap_ms.max),
            ms(row.up_gap_ms.median),
            ms(row.up_gap_ms.p95),
            ms(row.up_gap_ms.max),
            ms(row.sender_gap_ms),
            ms(row.return_ms.median),
            ms(row.return_ms.max),
            row.returns_missed.to_string(),
        ]);
    }
    table
}

/// Time for both paths to carry traffic before a cut.
const SETTLE: Duration = Duration::from_secs(1);
/// Time an uplink stays away.
const CUT: Duration = Duration::from_secs(2);
/// Far more than handshakes and probes need.
const CARRIED_BYTES: u64 = 100_000;
