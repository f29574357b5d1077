//! From the command line to a running link and its end.

use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ropewalk_netem::{LinkConfig, LinkPlan};
use ropewalk_types::Instant;

use crate::args::{Address, Args, EndName, load_trace};
use crate::control::{Control, Verdict};
use crate::end::End;
use crate::engine::Engine;
use crate::report::{Ready, Stats};

/// Runs a link until it is told to stop.
pub(crate) fn run(args: &Args) -> Result<()> {
    let config = configuration(args)?;
    let mut control = Control::new(args.control.as_deref(), args.exit_with_parent)?;
    let end = |name: &Option<EndName>, addresses: &[Address]| {
        let name = name.as_ref().context("both ends are needed: --a and --b")?;
        End::create(name, args.mtu, addresses)
    };
    let a = end(&args.a, &args.address_a)?;
    let b = end(&args.b, &args.address_b)?;
    prefer_punctuality();
    let seed = config.seed;
    let mut engine = Engine::new(a, b, config, args.wait);
    let [end_a, end_b] = engine.ends();
    print_line(&Ready {
        ready: true,
        pid: std::process::id(),
        a: end_a.report(),
        b: end_b.report(),
        mtu: args.mtu,
        seed,
        control: args.control.as_deref(),
    })?;
    let deadline = args
        .run_for
        .map_or(Instant::FAR_FUTURE, |time| Instant::ZERO + time);
    while engine.carry(control.as_fd(), deadline)? {
        if control.handle(&mut engine)? == Verdict::Stop {
            break;
        }
    }
    let now = engine.now();
    let stats = Stats::collect(&mut engine, now);
    if let Some(path) = &args.stats {
        std::fs::write(path, serde_json::to_string(&stats)? + "\n")
            .with_context(|| format!("cannot write the counters to {}", path.display()))?;
    }
    print_line(&stats)
}

/// The plan with the settings of the command line over it.
fn configuration(args: &Args) -> Result<LinkConfig> {
    let mut plan = LinkPlan::default();
    let mut directory = PathBuf::new();
    if let Some(path) = &args.plan {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the plan {}", path.display()))?;
        plan = LinkPlan::parse(&text).with_context(|| format!("in {}", path.display()))?;
        directory = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    }
    let mut config = plan
        .resolve(|file| load_trace(&directory, file))
        .with_context(|| {
            args.plan
                .as_ref()
                .map_or_else(String::new, |path| format!("in {}", path.display()))
        })?;
    let resolve = |section: &str, plan: &ropewalk_netem::DirectionPlan| {
        plan.resolve(section, &mut |file| load_trace(Path::new(""), file))
    };
    let settings = &args.settings;
    let both = resolve("both", &settings.both)?;
    config.up = config.up.with(&both).with(&resolve("up", &settings.up)?);
    config.down = config
        .down
        .with(&both)
        .with(&resolve("down", &settings.down)?);
    config.up.check("up")?;
    config.down.check("down")?;
    config.seed = args.seed.unwrap_or(config.seed);
    Ok(config)
}

/// Asks for wake-ups on time, and for the processor before ordinary programs: the link stands for
/// hardware that would not wait for them. Either may be refused; the link is then less exact.
pub(crate) fn prefer_punctuality() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Niceness of the thread that carries the link: the least that Linux has.
const NICE: i32 = -20;

fn print_line(value: &impl serde::Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    let mut out = std::io::stdout();
    // The reader may have gone; the link does not depend on it.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    Ok(())
}
