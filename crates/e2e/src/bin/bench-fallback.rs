//! How soon traffic flows over TLS on TCP where UDP is blocked: from the start, and when the
//! block begins while traffic flows.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs, milliseconds};
use ropewalk_e2e::table::Table;
use ropewalk_e2e::{Ground, Lab, two_links};
use ropewalk_testbed::TopologySpec;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::statistics::Summary;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use serde::Serialize;

/// Block UDP on every uplink and measure how long nothing flows.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Runs of each kind.
    #[arg(long)]
    repeat: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Results {
    /// From the start of the site to the first answer through the tunnel, milliseconds.
    blocked_at_start_ms: Summary,
    /// The same with UDP allowed, for comparison.
    open_at_start_ms: Summary,
    /// Longest silence of a 10 ms stream after the block, milliseconds.
    blocked_in_flight_ms: Summary,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), table)
}

fn measure(args: &Args) -> Result<Results> {
    let repeat = args.repeat.unwrap_or(if args.bench.quick { 1 } else { 5 });
    let times = |what: &dyn Fn() -> Result<Duration>| -> Result<Summary> {
        let all: Vec<Duration> = (0..repeat).map(|_| what()).collect::<Result<_>>()?;
        Ok(milliseconds(&all))
    };
    Ok(Results {
        blocked_at_start_ms: times(&|| from_start(true))?,
        open_at_start_ms: times(&|| from_start(false))?,
        blocked_in_flight_ms: times(&in_flight)?,
    })
}

fn from_start(blocked: bool) -> Result<Duration> {
    let ground = Ground::new(&TopologySpec::new("start", two_links()))?;
    let (topology, spec) = (&ground.topology, GatewaySpec::default());
    if blocked {
        topology.block_udp(true)?;
    }
    let mut hub = Gateway::hub(topology.hub(), topology.directory(), &spec)?;
    hub.start()?;
    let token = hub.invite("site")?;
    let mut site = Gateway::site(topology.site(), topology.directory(), "site", &token, &spec)?;
    let hub_address = hub.status()?.address(false);
    let Some(hub_address) = hub_address else {
        bail!("the hub has no inner address")
    };
    let begin = Instant::now();
    site.start()?;
    // Through the tunnel only: the hub would answer for its inner address on an uplink as well.
    let interface = site.status()?.interface;
    while begin.elapsed() < LIMIT {
        let one = topology
            .site()
            .program("ping")
            .args(["-n", "-c", "1", "-W", "0.2", "-I", &interface])
            .arg(hub_address.to_string());
        if one.run(Duration::from_secs(5))?.status.success() {
            return Ok(begin.elapsed());
        }
    }
    let report = ping::run(
        topology.site(),
        &PingSpec {
            count: 3,
            ..PingSpec::new(hub_address)
        },
    )?;
    bail!("nothing flowed within {LIMIT:?}: {report:?}")
}

fn in_flight() -> Result<Duration> {
    let lab = Lab::new("flight", two_links())?;
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Download),
    )?;
    std::thread::sleep(Duration::from_secs(2));
    let from = probe.elapsed();
    lab.topology.block_udp(true)?;
    std::thread::sleep(LIMIT.min(Duration::from_secs(10)));
    let to = probe.elapsed();
    Ok(probe.finish()?.longest_gap(from, to))
}

fn table(results: &Results) -> Table {
    let mut table = Table::new(&["UDP", "runs", "median s", "min s", "max s"]);
    for (name, times) in [
        (
            "blocked at start: to the first answer",
            &results.blocked_at_start_ms,
        ),
        (
            "open at start: to the first answer",
            &results.open_at_start_ms,
        ),
        ("blocked in flight: silence", &results.blocked_in_flight_ms),
    ] {
        let seconds = |ms: f64| format!("{:.2}", ms / 1e3);
        table.row(&[
            name.to_owned(),
            times.count.to_string(),
            seconds(times.median),
            seconds(times.min),
            seconds(times.max),
        ]);
    }
    table
}

const LIMIT: Duration = Duration::from_secs(30);
