//! `ropewalk demo`: the main job on one machine without any set-up.
//!
//! A site with two uplinks that behave like Wi-Fi and LTE on a walk, a hub and a server, all in
//! network namespaces. Real downloads, a call-like stream and pings run over each uplink alone,
//! over Multipath TCP and over Ropewalk. Then one uplink is cut in the middle of a download and
//! comes back. Every phase plays the same part of the same traces: it begins when the links have
//! reached the same age. Nothing of it stays behind, also after Ctrl-C.

mod chart;
mod live;
mod phases;
pub mod replay;
mod report;
#[cfg(test)]
mod walk;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ropewalk_testbed::{ProcessorTime, programs, remove_leftovers};

pub use live::Serve;

use phases::Stage;
use report::Report;

/// Show Ropewalk at work on this machine: two bad uplinks, one good connection.
///
/// Takes two minutes, needs root, and removes everything it made, also after Ctrl-C. The result is
/// "ok", and the exit code 0, when Ropewalk carried at least as much as the better uplink alone and
/// broke no connection; else the exit code is 1.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Print one JSON object instead of table and chart; progress goes to standard error.
    #[arg(long)]
    pub json: bool,
    /// Capacity traces of the two uplinks: CSV (second, bytes per second) or Mahimahi format.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub traces: Option<Vec<PathBuf>>,
    /// Length of each download in seconds.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(6..=600))]
    pub seconds: u64,
    /// Parallel TCP connections of each download.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub flows: u64,
    /// Show the demo live in the browser instead: prints a link, and lets uplinks fail and return again and again
    #[arg(long, conflicts_with_all = ["json", "keep"])]
    pub dashboard: bool,
    /// With --dashboard: how long, minutes. In each round of --seconds one uplink falls silent for a third of the time
    #[arg(long, requires = "dashboard", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=240))]
    pub minutes: u64,
    /// With --dashboard: TCP port on 127.0.0.1 [default: a free one]
    #[arg(
        long,
        requires = "dashboard",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub port: u16,
    /// Leave logs and configurations in place until the next demo, and say where.
    #[arg(long)]
    pub keep: bool,
}

/// Runs the demo; `serve` shows it with `--dashboard`. The exit code is 1 when Ropewalk was worse than the better uplink or a
/// connection broke.
///
/// # Errors
/// Without root, without the programs it needs, or if a part does not start.
pub fn run(args: DemoArgs, serve: Serve) -> Result<ExitCode> {
    programs::require(&[
        programs::IP,
        programs::PING,
        programs::NFT,
        programs::ETHTOOL,
    ])?;
    programs::own("ropewalk-linkem")?;
    remove_leftovers();
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let stage = Stage::new(&args, scratch.path())?;
    if args.dashboard {
        return live::run(&args, &stage, serve);
    }
    let before = ProcessorTime::now();
    let report = measure(&stage)?;
    let processors = ProcessorTime::now().since(before);
    if processors.is_busy() {
        // Links and programs that wait for processors are slow, whatever carries the traffic.
        eprintln!("{}; run the demo on an idle machine", processors.note());
    }
    if args.json {
        println!("{}", serde_json::to_string(&report.summary())?);
    } else {
        let colour = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        print!("{}", report.render(colour));
    }
    Ok(if report.summary().ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The four phases, one after another.
fn measure(stage: &Stage) -> Result<Report> {
    let length = stage.length.as_secs();
    eprintln!(
        "Ropewalk demo: a site with two uplinks, a hub and a server in network namespaces; about \
         {} s.",
        4 * (length + START_ALLOWANCE.as_secs())
    );
    eprintln!("1/4  each uplink alone, {length} s");
    let (uplink_a, uplink_b) = stage.alone()?;
    eprintln!("     {} | {}", uplink_a.line(), uplink_b.line());
    eprintln!("2/4  both uplinks with Multipath TCP in the kernel, {length} s");
    let mptcp = stage.mptcp()?;
    match &mptcp {
        Some(outcome) => eprintln!("     {}", outcome.line()),
        None => eprintln!("     this kernel has no Multipath TCP"),
    }
    eprintln!("3/4  both uplinks with Ropewalk, {length} s");
    let ropewalk = stage.ropewalk(None)?;
    eprintln!("     {}", ropewalk.line());
    let (from, to) = (stage.length / 3, stage.length * 2 / 3);
    eprintln!(
        "4/4  Ropewalk again; uplink A falls silent from {} s to {} s",
        from.as_secs(),
        to.as_secs()
    );
    let cut = stage.ropewalk(Some((from, to)))?;
    eprintln!("     {}", cut.line());
    Ok(Report {
        capacity_mbit: stage.capacity_mbit,
        uplink_a,
        uplink_b,
        mptcp,
        ropewalk,
        cut,
        cut_between: (from, to),
        sample: SAMPLE,
    })
}

/// Age of the links at which every phase begins to measure: enough for everything to be up.
const START_ALLOWANCE: Duration = Duration::from_secs(5);
/// Time between points of the chart.
const SAMPLE: Duration = Duration::from_millis(250);
