//! What an upgrade costs: a hub and a site of two revisions, in every order, under traffic.
//!
//! `scripts/upgrade REVISION` builds the other revision and runs this.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::Table;
use ropewalk_e2e::{Ground, Lab, two_links};
use ropewalk_testbed::TopologySpec;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeLog, ProbeSpec};
use rustix::process::Signal;
use serde::Serialize;

/// Run hub and site of two revisions, and exchange their programs under traffic.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// The program `ropewalk` of the other revision. The one of this revision is beside this program.
    #[arg(long, value_name = "FILE")]
    old: PathBuf,
}

/// Which program a gateway runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Build {
    Old,
    New,
}

/// Figures of one step.
#[derive(Debug, Serialize)]
struct Row {
    /// What was done under traffic.
    step: &'static str,
    /// Build of the hub at the end.
    hub: Build,
    /// Build of the site at the end.
    site: Build,
    /// Version of the wire in use, as the newer of both builds says.
    wire: Option<u8>,
    /// Whether packets passed both ways at the end.
    carries: bool,
    /// Packets sent in each direction: one every 10 ms.
    sent: u64,
    /// Of these, lost towards the site and from the site.
    lost: [u64; 2],
    /// Longest time without a packet, towards the site and from the site, seconds.
    silent_s: [f64; 2],
    /// TCP connections that broke, of how many.
    broken: [usize; 2],
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let old = args.old.canonicalize()?;
    ensure!(old.is_file(), "{} is no program", old.display());
    let time = if args.bench.quick { QUICK } else { USUAL };
    let mut rows = Vec::new();
    // Invited and joined across revisions.
    for (hub, site) in [(Build::Old, Build::New), (Build::New, Build::Old)] {
        let mut scene = Scene::new(&old, hub, site)?;
        rows.push(scene.step("invite, join and run", time, |_| Ok(()))?);
    }
    let mut scene = Scene::new(&old, Build::Old, Build::Old)?;
    for (step, change) in [
        ("none", None),
        ("hub upgraded", Some((End::Hub, Build::New))),
        ("hub downgraded", Some((End::Hub, Build::Old))),
        ("hub upgraded", Some((End::Hub, Build::New))),
        ("site upgraded", Some((End::Site, Build::New))),
        ("hub downgraded", Some((End::Hub, Build::Old))),
        ("hub upgraded", Some((End::Hub, Build::New))),
        (
            "hub restarted, for comparison",
            Some((End::Hub, Build::New)),
        ),
        (
            "site restarted, for comparison",
            Some((End::Site, Build::New)),
        ),
        ("site downgraded", Some((End::Site, Build::Old))),
    ] {
        rows.push(scene.step(step, time, |scene| match change {
            Some((end, build)) => scene.exchange(end, build),
            None => Ok(()),
        })?);
    }
    Ok(rows)
}

#[derive(Clone, Copy, Debug)]
enum End {
    Hub,
    Site,
}

/// A hub and a site, and which builds they run.
struct Scene<'a> {
    old: &'a Path,
    lab: Lab,
    hub: Build,
    site: Build,
}

impl<'a> Scene<'a> {
    fn new(old: &'a Path, hub: Build, site: Build) -> Result<Self> {
        let spec = |build| GatewaySpec {
            program: program(old, build).map(Path::to_owned),
            ..GatewaySpec::default()
        };
        let ground = Ground::new(&TopologySpec::new("upgrade", two_links()))?;
        let lab = ground.connect(&spec(hub), &spec(site))?;
        Ok(Self {
            old,
            lab,
            hub,
            site,
        })
    }

    /// Does `change` in the middle of streams in both directions and of downloads.
    fn step(
        &mut self,
        step: &'static str,
        time: Duration,
        change: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Row> {
        let ends = self.lab.topology.endpoints();
        let bulk = Bulk::start(&ends, &BulkSpec::download(FLOWS, 2 * time + EXCHANGE_MAX))?;
        let down = Probe::start(&ends, &ProbeSpec::fine(Direction::Download))?;
        let up = Probe::start(&ends, &ProbeSpec::fine(Direction::Upload))?;
        std::thread::sleep(time);
        change(self)?;
        self.lab.site.wait_paths(2, UP_MAX)?;
        std::thread::sleep(time);
        let (down, up) = (down.finish()?, up.finish()?);
        let bulk = bulk.stop()?;
        let (hub, site) = (self.hub, self.site);
        let (lost_down, silent_down, end_down) = figures(&down, time);
        let (lost_up, silent_up, end_up) = figures(&up, time);
        let row = Row {
            step,
            hub,
            site,
            wire: self.wire()?,
            carries: end_down && end_up,
            sent: down.sent,
            lost: [lost_down, lost_up],
            silent_s: [silent_down, silent_up],
            broken: [bulk.broken(), FLOWS],
        };
        eprintln!("{row:?}");
        Ok(row)
    }

    /// Stops a gateway as `systemctl restart` does, and starts the build of the other revision with the
    /// same files.
    fn exchange(&mut self, end: End, build: Build) -> Result<()> {
        let gateway = match end {
            End::Hub => {
                self.hub = build;
                &mut self.lab.hub
            }
            End::Site => {
                self.site = build;
                &mut self.lab.site
            }
        };
        ensure!(gateway.end(Signal::USR2, END_MAX), "it does not end");
        gateway.use_program(program(self.old, build));
        gateway.start()
    }

    /// What the end of this revision says, if there is one.
    fn wire(&self) -> Result<Option<u8>> {
        let gateway: &Gateway = match (self.hub, self.site) {
            (_, Build::New) => &self.lab.site,
            (Build::New, _) => &self.lab.hub,
            _ => return Ok(None),
        };
        let status = gateway.status()?;
        let version = status.tunnels.first().map(|tunnel| tunnel.wire_version);
        Ok(version.filter(|version| *version > 0))
    }
}

const fn program(old: &Path, build: Build) -> Option<&Path> {
    match build {
        Build::Old => Some(old),
        Build::New => None,
    }
}

/// Packets lost, the longest silence in seconds, and whether packets came in the last part of the stream.
fn figures(log: &ProbeLog, last: Duration) -> (u64, f64, bool) {
    let report = log.report();
    let silent = log.longest_gap(Duration::ZERO, log.end);
    let from = log.end.saturating_sub(last / 2);
    let carries = log.arrivals.iter().any(|arrival| arrival.sent >= from);
    (report.sent - report.received, silent.as_secs_f64(), carries)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "step",
        "hub",
        "site",
        "wire",
        "carries",
        "packets lost: down",
        "up",
        "of",
        "s without: down",
        "up",
        "TCP broken",
    ]);
    let build = |build: Build| format!("{build:?}").to_lowercase();
    for row in rows {
        table.row(&[
            row.step.to_owned(),
            build(row.hub),
            build(row.site),
            row.wire
                .map_or_else(|| "-".to_owned(), |wire| wire.to_string()),
            if row.carries { "yes" } else { "NO" }.to_owned(),
            row.lost[0].to_string(),
            row.lost[1].to_string(),
            row.sent.to_string(),
            format!("{:.2}", row.silent_s[0]),
            format!("{:.2}", row.silent_s[1]),
            format!("{} of {}", row.broken[0], row.broken[1]),
        ]);
    }
    table
}

/// Traffic before and after an exchange.
const USUAL: Duration = Duration::from_secs(8);
/// The same of a short run.
const QUICK: Duration = Duration::from_secs(3);
/// TCP connections that download all the time.
const FLOWS: usize = 2;
/// Longest time of a gateway's end.
const END_MAX: Duration = Duration::from_secs(15);
/// Longest time until the paths are up again.
const UP_MAX: Duration = Duration::from_secs(30);
/// Longest time of an exchange.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);
