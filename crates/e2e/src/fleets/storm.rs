//! Trial: a thousand sites of one hub lose it at once, beside sites of the other hubs.

use std::time::Duration;

use anyhow::{Context, Result};
use ropewalk_testbed::Process;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use super::swarm::{self, Swarm};
use super::{Fleet, FleetSpec, Row, want};

/// How large.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Sites of the hub that dies.
    pub sites: u32,
    /// Sites of each other hub.
    pub beside: u32,
    /// Pings of each site of the hub that dies, in a second.
    pub pings: f64,
    /// How long the sites take to join.
    pub join_over: Duration,
    /// How long the sites have to connect to their spares. A busy hub begins 50 handshakes a second.
    pub settle: Duration,
    /// How long the sites of other hubs are watched before the death.
    pub watched: Duration,
}

impl Size {
    /// So many sites that ping so often, and a twentieth of them at each other hub.
    #[must_use]
    pub fn new(sites: u32, pings: f64) -> Self {
        Self {
            sites,
            beside: (sites / 20).max(5),
            pings,
            join_over: Duration::from_millis(u64::from(sites) * 20).max(Duration::from_secs(1)),
            settle: Duration::from_millis(u64::from(sites) * 30).max(Duration::from_secs(3)),
            watched: Duration::from_secs(8),
        }
    }
}

/// Pings of the sites of the other hubs, milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pings {
    /// Answered.
    pub answered: u64,
    /// Sent.
    pub sent: u64,
    /// Median.
    pub median_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest.
    pub longest_ms: f64,
}

/// Figures of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Sites of the hub that died.
    pub sites: u32,
    /// Those that moved.
    pub moved: u64,
    /// Paths that were up at the end.
    pub paths_up: u64,
    /// Longest time without an answered ping of each of them, milliseconds: median.
    pub silence_median_ms: f64,
    /// 99th percentile.
    pub silence_p99_ms: f64,
    /// Of the last one that was served again.
    pub silence_longest_ms: f64,
    /// Sites of the other hubs before the death.
    pub beside_before: Pings,
    /// While the hub dies.
    pub beside_during: Pings,
    /// Sites of the other hubs that moved.
    pub beside_moved: u64,
}

/// Most that a site may be without a hub, milliseconds.
pub const SILENCE_MS: f64 = 5_000.0;
/// Most that the 99th percentile of the pings of others may grow, milliseconds.
pub const MORE_MS: f64 = 50.0;
/// Pings of a site of another hub, in a second.
const PINGS_BESIDE: f64 = 2.0;
/// How long the sites are watched after the death: longer than the bound.
const AFTER: Duration = Duration::from_secs(8);
/// How long all of them rest between.
const REST: Duration = Duration::from_secs(2);
/// The swarm ends by itself after this time, if nobody ends it before.
const LONGEST: Duration = Duration::from_secs(900);
/// How long programs may take beyond what they were told.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the trial.
///
/// # Errors
/// A part does not start, or sites do not connect. Bounds that do not hold are no error.
pub fn run(size: Size) -> Result<Row<Figures>> {
    let mut fleet = Fleet::new(&FleetSpec::new("storm"))?;
    let crowd = Swarm::new(&fleet, size.sites, 0, &[1, 2], size.pings);
    let beside = [(1, 2), (2, 1)]
        .map(|(home, spare)| Swarm::new(&fleet, size.beside, home, &[spare], PINGS_BESIDE));
    {
        let state = swarm::follow(&fleet, fleet.server(), "follower.json")?;
        for one in beside.iter().chain([&crowd]) {
            swarm::admit(&state, &one.members(&fleet)?)?;
        }
    }
    eprintln!("{} sites are let in", size.sites + 2 * size.beside);
    let mut crowding = crowd.start(&fleet, size.join_over, LONGEST)?;
    swarm::await_joined(&mut crowding, size.sites, size.join_over + PATIENCE)?;
    eprintln!("{} sites are connected to hub a", size.sites);
    std::thread::sleep(size.settle);
    let quiet = begin(&fleet, &beside)?;
    std::thread::sleep(size.watched);
    let (before, _) = end(quiet)?;
    let watched = begin(&fleet, &beside)?;
    std::thread::sleep(REST);
    eprintln!("hub a is killed");
    fleet.hubs[0].kill();
    std::thread::sleep(AFTER);
    let (during, beside_moved) = end(watched)?;
    crowding.signal(Signal::INT);
    let report = swarm::report(&mut crowding, PATIENCE)?;
    let hubs = &report["hubs"];
    let silence = |key: &str| hubs["silence_ms"][key].as_f64().unwrap_or(f64::INFINITY);
    let figures = Figures {
        sites: size.sites,
        moved: hubs["sites"].as_u64().unwrap_or_default(),
        paths_up: report["paths_up"].as_u64().unwrap_or_default(),
        silence_median_ms: silence("median"),
        silence_p99_ms: silence("p99"),
        silence_longest_ms: silence("most"),
        beside_before: before,
        beside_during: during,
        beside_moved,
    };
    let (broken, slow) = judge(&figures);
    Ok(Row {
        trial: format!("{} sites lose their hub", size.sites),
        figures,
        broken,
        slow,
    })
}

fn judge(figures: &Figures) -> (Vec<String>, Vec<String>) {
    let (mut broken, mut slow) = (Vec::new(), Vec::new());
    let (sites, moved) = (u64::from(figures.sites), figures.moved);
    want(&mut broken, moved == sites, || {
        format!("{moved} of {sites} sites moved")
    });
    want(&mut broken, figures.beside_moved == 0, || {
        format!("{} sites of other hubs moved", figures.beside_moved)
    });
    let longest = figures.silence_longest_ms;
    want(&mut slow, longest <= SILENCE_MS, || {
        format!("a site was without a hub for {longest:.0} ms, more than {SILENCE_MS} ms")
    });
    let more = figures.beside_during.p99_ms - figures.beside_before.p99_ms;
    want(&mut slow, more <= MORE_MS, || {
        format!(
            "the 99th percentile of the pings of other sites grew by {more:.0} ms, more than {MORE_MS} ms"
        )
    });
    (broken, slow)
}

/// Starts the sites of the other hubs.
fn begin(fleet: &Fleet, swarms: &[Swarm]) -> Result<Vec<Process>> {
    let start = |swarm: &Swarm| swarm.start(fleet, Duration::from_secs(1), LONGEST);
    let mut running = swarms.iter().map(start).collect::<Result<Vec<_>>>()?;
    for (process, swarm) in running.iter_mut().zip(swarms) {
        swarm::await_joined(process, swarm.count, PATIENCE)?;
    }
    Ok(running)
}

/// Ends them: the worse of the pings of the swarms, and sites that moved.
fn end(running: Vec<Process>) -> Result<(Pings, u64)> {
    let (mut all, mut moved) = (Pings::default(), 0);
    for mut process in running {
        process.signal(Signal::INT);
        let report = swarm::report(&mut process, PATIENCE)?;
        let one = pings(&report).with_context(|| format!("no pings in {report}"))?;
        all = Pings {
            answered: all.answered + one.answered,
            sent: all.sent + one.sent,
            median_ms: all.median_ms.max(one.median_ms),
            p99_ms: all.p99_ms.max(one.p99_ms),
            longest_ms: all.longest_ms.max(one.longest_ms),
        };
        moved += report["hubs"]["sites"].as_u64().unwrap_or_default();
    }
    Ok((all, moved))
}

fn pings(report: &Value) -> Option<Pings> {
    let pings = &report["pings"];
    let ms = |key: &str| pings["ms"][key].as_f64();
    Some(Pings {
        answered: pings["answered"].as_u64()?,
        sent: pings["sent"].as_u64()?,
        median_ms: ms("median")?,
        p99_ms: ms("p99")?,
        longest_ms: ms("most")?,
    })
}
