//! What becomes of connections when an uplink of `ropewalk balance` dies: how soon those that hang on it
//! are ended, whether others are, and how long new ones take.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::Ground;
use ropewalk_e2e::bench::{self, milliseconds};
use ropewalk_e2e::cuts::{self, CutArgs, RETURN_LIMIT};
use ropewalk_e2e::table::Table;
use ropewalk_testbed::balanced::PORT;
use ropewalk_testbed::statistics::Summary;
use ropewalk_testbed::topology::{Cut, SERVER};
use ropewalk_testbed::{Balanced, LinkSpec, Namespace, TopologySpec};
use serde::Serialize;

/// Cut uplinks under waiting connections and measure what becomes of them.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    cuts: CutArgs,
}

/// Figures of one kind of cut, seen from one place.
#[derive(Debug, Serialize)]
struct Row {
    cut: &'static str,
    from: &'static str,
    /// From the cut until a waiting connection over the dead uplink ended, milliseconds.
    ended_ms: Summary,
    /// Connections over the dead uplink that did not end within [`WATCH`].
    left: usize,
    /// Connections over others that ended.
    others_ended: usize,
    /// Time to open of connections begun within 0.8 s after the cut, milliseconds.
    opened_during_ms: Summary,
    /// The same of those begun later.
    opened_after_ms: Summary,
    /// Connections that could not be opened.
    failed: usize,
    /// From giving the uplink back until it carried a new connection, milliseconds.
    return_ms: Summary,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.cuts.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let count = args.cuts.count(10, 2);
    let mut rows = Vec::new();
    for cut in args.cuts.kinds() {
        let links = vec![LinkSpec::unshaped(true); 3];
        let ground = Ground::new(&TopologySpec::new("baldead", links))?;
        let mut balanced = Balanced::new(&ground.topology)?;
        balanced.configure("[balance]\naffinity_minutes = 0\n")?;
        balanced.start(3)?;
        for (from, namespace) in [
            ("a host behind", balanced.client()),
            ("the machine", ground.topology.site()),
        ] {
            rows.push(row(&ground, &balanced, (from, namespace), cut, count)?);
            eprintln!("{}: {count} cuts seen from {from}", cut.name());
        }
    }
    Ok(rows)
}

fn row(
    ground: &Ground,
    balanced: &Balanced,
    (from, namespace): (&'static str, &Namespace),
    cut: Cut,
    count: usize,
) -> Result<Row> {
    let uplinks = ground.topology.uplinks();
    let (mut ended, mut during, mut after, mut returns) = (vec![], vec![], vec![], vec![]);
    let (mut left, mut others_ended, mut failed) = (0, 0, 0);
    let open = |_| Balanced::connect(namespace, SERVER.into(), PORT);
    cuts::in_turn(
        &ground.topology,
        cut,
        count,
        |_| {
            let waiting = (0..WAITING).map(open).collect::<Result<Vec<_>>>()?;
            Ok((waiting, Instant::now()))
        },
        |dead, (waiting, cut_at)| {
            let opened = open_while(namespace, cut_at, || {
                let own = uplinks[dead].addresses[0];
                let (own, others): (Vec<_>, Vec<_>) =
                    waiting.into_iter().partition(|(_, from)| *from == own);
                let ends = own.iter().map(|(stream, _)| end_of(stream, cut_at));
                let ends: Vec<Option<Duration>> = ends.collect();
                left += ends.iter().filter(|end| end.is_none()).count();
                ended.extend(ends.into_iter().flatten());
                std::thread::sleep(WATCH.saturating_sub(cut_at.elapsed()));
                others_ended += others
                    .iter()
                    .filter(|(stream, _)| has_ended(stream))
                    .count();
            })?;
            for (begun, took) in opened {
                match took {
                    None => failed += 1,
                    Some(took) if begun < FOUND => during.push(took),
                    Some(took) => after.push(took),
                }
            }
            Ok(())
        },
        |dead| {
            returns.push(return_of(namespace, uplinks[dead].addresses[0])?);
            balanced.wait_for("uplinks that answer", |all| {
                all.iter().all(|uplink| uplink.state_ipv4 == "up")
            })
        },
    )?;
    Ok(Row {
        cut: cut.name(),
        from,
        ended_ms: milliseconds(&ended),
        left,
        others_ended,
        opened_during_ms: milliseconds(&during),
        opened_after_ms: milliseconds(&after),
        failed,
        return_ms: milliseconds(&returns),
    })
}

/// When a connection was begun after the cut, and how long it took if it could be opened.
type Opened = (Duration, Option<Duration>);

/// Opens a connection every [`OPEN_INTERVAL`] while `work` runs.
fn open_while(from: &Namespace, cut_at: Instant, work: impl FnOnce()) -> Result<Vec<Opened>> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let mut threads = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                threads.push(scope.spawn(move || {
                    let begun = Instant::now();
                    let opened = Balanced::connect(from, SERVER.into(), PORT);
                    let took = opened.ok().map(|_| begun.elapsed());
                    (begun.saturating_duration_since(cut_at), took)
                }));
                std::thread::sleep(OPEN_INTERVAL);
            }
            let ends = threads.into_iter().filter_map(|thread| thread.join().ok());
            ends.collect::<Vec<_>>()
        });
        work();
        stop.store(true, Ordering::Relaxed);
        opener
            .join()
            .map_err(|_| anyhow::anyhow!("a thread that opens connections panicked"))
    })
}

/// When a connection on which nothing is sent ended.
fn end_of(stream: &TcpStream, cut_at: Instant) -> Option<Duration> {
    let rest = WATCH.saturating_sub(cut_at.elapsed()).max(MOMENT);
    let _ = stream.set_read_timeout(Some(rest));
    ended(stream).then(|| cut_at.elapsed())
}

fn has_ended(stream: &TcpStream) -> bool {
    let _ = stream.set_read_timeout(Some(MOMENT));
    ended(stream)
}

fn ended(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Time until a new connection comes from `address`.
fn return_of(from: &Namespace, address: IpAddr) -> Result<Duration> {
    let begin = Instant::now();
    while begin.elapsed() < RETURN_LIMIT {
        let (_, came_from) = Balanced::connect(from, SERVER.into(), PORT)?;
        if came_from == address {
            return Ok(begin.elapsed());
        }
        std::thread::sleep(OPEN_INTERVAL);
    }
    anyhow::bail!("the uplink did not return within {RETURN_LIMIT:?}")
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "cut",
        "seen from",
        "ended ms: median",
        "max",
        "not ended",
        "others ended",
        "opened in the first 0.8 s, ms: median",
        "max",
        "opened later, ms: max",
        "failed",
        "return ms: median",
        "max",
    ]);
    let ms = |value: f64| format!("{value:.0}");
    for row in rows {
        table.row(&[
            row.cut.to_owned(),
            row.from.to_owned(),
            ms(row.ended_ms.median),
            ms(row.ended_ms.max),
            format!("{} of {}", row.left, row.left + row.ended_ms.count),
            row.others_ended.to_string(),
            ms(row.opened_during_ms.median),
            ms(row.opened_during_ms.max),
            ms(row.opened_after_ms.max),
            row.failed.to_string(),
            ms(row.return_ms.median),
            ms(row.return_ms.max),
        ]);
    }
    table
}

/// Connections that wait for data at each cut.
const WAITING: usize = 12;
/// How long after a cut they are watched.
const WATCH: Duration = Duration::from_secs(4);
/// When the cut is found at the latest.
const FOUND: Duration = Duration::from_millis(800);
const OPEN_INTERVAL: Duration = Duration::from_millis(20);
const MOMENT: Duration = Duration::from_millis(1);
