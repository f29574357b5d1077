//! `ropewalk-sim chaos`: plays stories of seeds, and tells which rules they break.

use clap::Args;
use ropewalk_sim::chaos::{Outcome, Play, Story, play, shrink};
use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FAILED, Failure, SEEDS_MAX};

#[derive(Args)]
pub struct ChaosArgs {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// So many seeds: this one and those after it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// Leave out the events of these numbers
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    without: Vec<usize>,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Do not look for events that a seed that fails does without
    #[arg(long)]
    whole: bool,
    /// Stop after the first seed that fails
    #[arg(long)]
    first: bool,
    /// Tell what happens, on standard error
    #[arg(short, long)]
    verbose: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A seed and what it gave.
struct Played {
    seed: u64,
    outcome: Outcome,
    without: Vec<usize>,
}

pub fn run(args: &ChaosArgs) -> Result<(), Failure> {
    let started = std::time::Instant::now();
    let mut played = play_all(args);
    played.sort_by_key(|played| played.seed);
    let failed: Vec<&Played> = played
        .iter()
        .filter(|p| p.outcome.violation.is_some())
        .collect();
    let sum = |of: fn(&Outcome) -> u64| played.iter().map(|p| of(&p.outcome)).sum::<u64>();
    let (seconds, delivered) = (sum(|o| o.seconds), sum(|o| o.delivered));
    let mut out = std::io::stdout().lock();
    let printed = if args.json {
        let failures: Vec<_> = failed.iter().map(|p| json(p)).collect();
        let report = serde_json::json!({
            "seeds": played.len(),
            "failed": failures,
            "world_s": seconds,
            "delivered": delivered,
            "outer_packets": sum(|o| o.sent),
            "took_s": started.elapsed().as_secs_f64(),
            "digest": format!("{:016x}", sum_digest(&played)),
        });
        writeln!(out, "{report}")
    } else {
        let took = started.elapsed().as_secs_f64();
        writeln!(
            out,
            "{} seeds, {} failed: {seconds} s of the world in {took:.1} s, {delivered} packets came, digest {:016x}",
            played.len(),
            failed.len(),
            sum_digest(&played),
        )
    };
    printed.map_err(|error| Failure(FAILED, format!("cannot write the report: {error}")))?;
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure(
        FAILED,
        format!("{} of {} seeds failed", failed.len(), played.len()),
    ))
}

fn sum_digest(played: &[Played]) -> u64 {
    let digests = played.iter().map(|p| p.outcome.digest);
    digests.fold(0, |sum, digest| sum.rotate_left(7) ^ digest)
}

fn json(played: &Played) -> serde_json::Value {
    let violation = played.outcome.violation.as_ref();
    serde_json::json!({
        "seed": played.seed,
        "rule": violation.map(|v| v.rule),
        "what": violation.map(|v| v.what.clone()),
        "replay": replay(played),
    })
}

fn replay(played: &Played) -> String {
    let mut line = format!("ropewalk-sim chaos --seed {}", played.seed);
    if !played.without.is_empty() {
        let numbers: Vec<String> = played.without.iter().map(ToString::to_string).collect();
        line += &format!(" --without {}", numbers.join(","));
    }
    line
}

fn play_all(args: &ChaosArgs) -> Vec<Played> {
    let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = args.threads.unwrap_or(available).get();
    let (next, done) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let show = args.seeds > 1 && std::io::stderr().is_terminal();
    let work = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= args.seeds {
                return;
            }
            let played = play_one(args, args.seed.wrapping_add(nth));
            if args.first && played.outcome.violation.is_some() {
                next.store(args.seeds, Ordering::Relaxed);
            }
            if let Ok(mut done) = done.lock() {
                done.push(played);
                if show {
                    eprint!("\r{} of {} seeds", done.len(), args.seeds);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    done.into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn play_one(args: &ChaosArgs, seed: u64) -> Played {
    let how = Play {
        verbose: args.verbose,
        live: None,
    };
    let outcome = play(&Story::new(seed, &args.without), how);
    let mut played = Played {
        seed,
        outcome,
        without: args.without.clone(),
    };
    if played.outcome.violation.is_some() && !args.whole {
        let quiet = Play {
            verbose: false,
            ..how
        };
        played.without = shrink(seed, &args.without, quiet);
        let again = play(&Story::new(seed, &played.without), quiet);
        played.outcome.violation = again.violation.or(played.outcome.violation);
    }
    if let Some(violation) = &played.outcome.violation {
        eprintln!("\rseed {seed}: {violation}\n  {}", replay(&played));
    }
    played
}
