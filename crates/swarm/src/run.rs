//! The command `run`: what is asked for, and how it ended.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::Run;
use crate::enemy::{Ends, Enemy};
use crate::fleet::Fleet;
use crate::load::Profile;
use crate::process::usage;
use crate::report::Report;
use crate::tuning::{ALL_PRESENT, HOSTILE_LEAST, OTHER_FILES};

/// Exit code when some site did not connect.
const NOT_ALL: u8 = 3;

/// Connects the sites, keeps them busy, and reports.
///
/// # Errors
/// The secret is not there, the sockets cannot be opened, or the hub's process is not there.
pub(crate) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    check(args)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    allow_files(u64::from(args.common.count) * u64::from(args.paths) + OTHER_FILES)?;
    let mut fleet = Fleet::new(args)?;
    let hub = args.hub_pid.map(usage).transpose()?;
    let enemy = Enemy::new(args, &fleet.secret)?;
    let misbehaved = std::thread::scope(|scope| {
        let hostile = enemy.as_ref().map(|enemy| scope.spawn(|| enemy.run()));
        let ends = enemy.as_ref().map(Ends);
        let result = fleet.run(args, &stop, enemy.as_ref());
        drop(ends);
        let hostile = hostile.map(std::thread::ScopedJoinHandle::join);
        result?;
        match hostile {
            Some(Ok(count)) => count.map(Some),
            Some(Err(_)) => bail!("the hostile host panicked"),
            None => Ok(None),
        }
    })?;
    let report = fleet.report(args, hub, misbehaved);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    let all = report.joined == fleet.sites.len() && !fleet.sites.is_empty();
    Ok(judge(args, &report, all))
}

/// What the options mean only together.
fn check(args: &Run) -> anyhow::Result<()> {
    if args.hostile.is_some() && (args.common.count < 2 || args.seconds < HOSTILE_LEAST) {
        bail!(
            "--hostile needs --count 2 and --seconds {} at least: the last site comes late",
            HOSTILE_LEAST.as_secs()
        );
    }
    if args.spare.len() != args.spare_key.len() {
        bail!(
            "{} times --spare and {} times --spare-key: give each spare its key, in the same order",
            args.spare.len(),
            args.spare_key.len()
        );
    }
    if args.spare_key.contains(&args.hub_key) {
        bail!("a --spare-key is the --hub-key: a spare is another hub, with a key of its own");
    }
    if args.rate.is_some() && args.traffic != Profile::Bulk {
        bail!("--rate is the rate of --traffic bulk, which is not asked for");
    }
    if args.roam.is_some() && args.pings == 0.0 {
        bail!("--roam needs --pings, such as --pings 20: what a move costs shows in the pings");
    }
    if args.vanish.is_some() && args.seconds <= ALL_PRESENT {
        bail!(
            "--vanish needs --seconds of more than {}: nobody vanishes in the last {} s",
            ALL_PRESENT.as_secs(),
            ALL_PRESENT.as_secs()
        );
    }
    Ok(())
}

/// The exit code, with what may be wrong.
fn judge(args: &Run, report: &Report, all: bool) -> ExitCode {
    let idle = report.hostile.as_ref().is_some_and(|one| one.times == 0);
    let away = report.vanish.as_ref().map_or(0, |one| one.not_back());
    if report.joined == 0 {
        eprintln!(
            "ropewalk-swarm: no site connected. Does a hub listen on UDP {}? Is --hub-key its key \
             (`ropewalk key show`)? Has the hub read the list of `ropewalk-swarm sites`, made with this \
             secret (`kill -HUP`)?",
            args.hub
        );
    } else if idle {
        eprintln!(
            "ropewalk-swarm: the hub never let the hostile host in: make the list with --count {}, \
             and let the hub read it (`kill -HUP`)",
            args.common.count + 1
        );
    } else if away > 0 {
        eprintln!("ropewalk-swarm: {away} sites that vanished are not connected again");
    }
    if all && !idle && away == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_ALL)
    }
}

/// Lets the process have so many files.
fn allow_files(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum.map(|maximum| maximum.max(wanted)),
    };
    setrlimit(Resource::Nofile, raised).with_context(|| {
        format!("{wanted} files are needed, one for each path: raise the limit with `ulimit -n {wanted}`")
    })
}
