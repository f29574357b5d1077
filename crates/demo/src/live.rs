//! `ropewalk demo --dashboard`: the same links and traffic, for as long as somebody watches.
//!
//! In each round one uplink falls silent for a third of the time, first A, then B. The download and its connections
//! go on through all rounds; each round has a call of its own.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ropewalk_testbed::statistics::mbit_per_second;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::wait_if_interrupted;

use super::phases::Stage;
use super::{DemoArgs, SAMPLE};

/// Serves the dashboard of the gateway with this configuration, until the sender of the channel is gone. Runs on a
/// thread inside the site's namespace, so that the commands behind the buttons run where the gateway does.
pub type Serve = fn(TcpListener, &Path, Receiver<Infallible>) -> Result<()>;

/// Runs until the time is over or Ctrl-C. The exit code is 1 when a connection broke.
pub(super) fn run(args: &DemoArgs, stage: &Stage, serve: Serve) -> Result<ExitCode> {
    // The page is reached in the namespace of whoever looks.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; choose another --port, or none"))?;
    eprintln!("Ropewalk demo: a site with two uplinks, a hub and a server in network namespaces.");
    let tunnel = stage.tunnel()?;
    let topology = &tunnel.topology;
    let config: PathBuf = tunnel.site.config().to_owned();
    let (going_on, stop) = channel();
    let page = topology
        .site()
        .spawn("dashboard", move || serve(listener, &config, stop))?;
    let ends = topology.endpoints();
    let whole = Duration::from_secs(args.minutes * 60);
    let download = BulkSpec {
        sample: SAMPLE,
        ..BulkSpec::download(stage.flows, whole)
    };
    let begin = Instant::now();
    let bulk = Bulk::start(&ends, &download)?;
    eprintln!(
        "A download of {} connections and a call go on for {} min. Ctrl-C ends the demo and removes all of it.",
        stage.flows, args.minutes
    );
    for (round, &name) in (0..).zip(["A", "B"].iter().cycle()) {
        let at = begin.elapsed();
        if at + stage.length > whole {
            break;
        }
        if page.is_finished() {
            break;
        }
        let link = &topology.uplinks()[round % 2].link;
        let call = Probe::start(&ends, &ProbeSpec::call()).context("the call did not start")?;
        let part = stage.length / 3;
        let before = carried(&bulk, part);
        link.set_blackhole(true)?;
        eprintln!("{}  uplink {name} falls silent", clock(begin));
        let silent = carried(&bulk, part);
        link.set_blackhole(false)?;
        let call = call.finish()?.report();
        eprintln!(
            "{}  uplink {name} is back. The download had {silent:.1} Mbit/s meanwhile and {before:.1} before. The \
             longest silence of the call was {:.0} ms",
            clock(begin),
            call.longest_gap_ms
        );
        std::thread::sleep(part);
    }
    wait_if_interrupted();
    // A page that cannot be served is told at once.
    let report = if page.is_finished() {
        bulk.stop()?
    } else {
        bulk.finish()?
    };
    // The thread keeps the namespace.
    drop(going_on);
    let served = page.join();
    served.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    println!(
        "{:.1} Mbit/s in {} min, {} of {} connections broke",
        report.goodput_mbit,
        args.minutes,
        report.broken(),
        stage.flows
    );
    Ok(if report.broken() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Waits for `time`; what the download got in it, Mbit/s.
fn carried(bulk: &Bulk, time: Duration) -> f64 {
    let before = bulk.received();
    std::thread::sleep(time);
    wait_if_interrupted();
    mbit_per_second(bulk.received() - before, time)
}

fn clock(begin: Instant) -> String {
    let seconds = begin.elapsed().as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}
