//! Long trials of a fleet: hubs and etcd die, networks are cut, and what users notice is measured. The exit code is 1 if a
//! bound does not hold.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use ropewalk_e2e::bench::BenchArgs;
use ropewalk_e2e::fleets::{self, Row, faults, history, kills, partitions, random, storm};
use ropewalk_e2e::table::Table;
use serde::Serialize;

/// Break the parts of a fleet of three hubs on three members of etcd, and measure what its sites notice.
#[derive(Debug, Parser)]
struct Args {
    /// What to try; everything unless given.
    #[arg(value_enum)]
    trials: Vec<Trial>,
    #[command(flatten)]
    bench: BenchArgs,
    /// Times that the site loses its hub in each trial of `kills`: 20 unless given, 2 with --quick.
    #[arg(long)]
    kills: Option<usize>,
    /// Sites of the hub that dies in `storm`: 1000 unless given, 60 with --quick.
    #[arg(long)]
    sites: Option<u32>,
    /// Pings of each of these sites in a second.
    #[arg(long, default_value_t = 1.0)]
    pings: f64,
    /// For how long `chance` breaks things, minutes: 30 unless given, a third of one with --quick.
    #[arg(long)]
    minutes: Option<f64>,
    /// Seed of `chance`.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the history of `chance`; in the directory for temporary files unless given.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Only judges a history that `chance` has written.
    #[arg(long, value_name = "FILE", conflicts_with = "trials")]
    check: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Trial {
    /// The hub of a site is killed or unreachable, again and again, amid a call and downloads.
    Kills,
    /// All sites of a hub lose it at once.
    Storm,
    /// Commands at all hubs while things break by chance; a checker judges the history.
    Chance,
    /// Trouble of etcd amid a call and downloads.
    Etcd,
    /// A hub is cut off from some or all others.
    Partitions,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Results {
    /// How the program was built.
    build: &'static str,
    /// Load of the machine before the first trial, over 1, 5 and 15 minutes.
    load: String,
    kills: Vec<Row<kills::Figures>>,
    storm: Vec<Row<storm::Figures>>,
    chance: Vec<Row<random::Figures>>,
    etcd: Vec<Row<faults::Figures>>,
    partitions: Vec<Row<partitions::Figures>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(file) = &args.check {
        return judge(file);
    }
    let mut results = Results {
        build: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
        load: load(),
        ..Results::default()
    };
    let failed = measure(&args, &mut results).err();
    // What was measured before is shown as well.
    match (args.bench.json, serde_json::to_string(&results)) {
        (true, Ok(text)) => println!("{text}"),
        (true, Err(error)) => eprintln!("{error}"),
        (false, _) => print!("{}", results.text()),
    }
    let broken = results.broken();
    for words in &broken {
        eprintln!("BROKEN {words}");
    }
    if let Some(error) = &failed {
        eprintln!("{error:#}");
    }
    if broken.is_empty() && failed.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    words.join(" ")
}

fn judge(file: &Path) -> ExitCode {
    let broken = match random::read(file) {
        Ok(events) => history::check(&events),
        Err(error) => vec![format!("{error:#}")],
    };
    for words in &broken {
        println!("{words}");
    }
    if broken.is_empty() {
        println!("nothing that no run may have");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn measure(args: &Args, results: &mut Results) -> Result<()> {
    fleets::ready()?;
    let quick = args.bench.quick;
    let trials = if args.trials.is_empty() {
        Trial::value_variants()
    } else {
        &args.trials[..]
    };
    for trial in trials {
        match trial {
            Trial::Kills => {
                let count = args.kills.unwrap_or(if quick { 2 } else { 20 });
                for (loss, reached) in kills::ALL {
                    results.kills.push(told(kills::run(loss, reached, count)?));
                }
            }
            Trial::Storm => {
                let size = storm::Size::new(
                    args.sites.unwrap_or(if quick { 60 } else { 1_000 }),
                    args.pings,
                );
                results.storm.push(told(storm::run(size)?));
            }
            Trial::Chance => results.chance.push(told(random::run(&chance(args))?)),
            Trial::Etcd => {
                let lengths = if quick {
                    faults::Lengths::SHORT
                } else {
                    faults::Lengths::LONG
                };
                let rows = faults::run(&faults::ALL, lengths)?;
                results.etcd.extend(rows.into_iter().map(told));
            }
            Trial::Partitions => results
                .partitions
                .extend(partitions::run(&partitions::ALL)?),
        }
    }
    Ok(())
}

/// Tells a row at once: a run that is interrupted has shown it.
fn told<F: Serialize>(row: Row<F>) -> Row<F> {
    if let Ok(text) = serde_json::to_string(&row) {
        eprintln!("{text}");
    }
    row
}

fn chance(args: &Args) -> random::RandomSpec {
    let minutes = args
        .minutes
        .unwrap_or(if args.bench.quick { 1.0 / 3.0 } else { 30.0 });
    let file = format!("ropewalk-fleet-{}.jsonl", args.seed);
    random::RandomSpec {
        time: Duration::from_secs_f64(60.0 * minutes.clamp(0.0, 24.0 * 60.0)),
        seed: args.seed,
        sites: 40,
        history: args
            .history
            .clone()
            .unwrap_or_else(|| std::env::temp_dir().join(file)),
    }
}

impl Results {
    fn broken(&self) -> Vec<String> {
        fn of<F>(rows: &[Row<F>]) -> impl Iterator<Item = String> {
            rows.iter().flat_map(|row| {
                let words = row.broken.iter().chain(&row.slow);
                words.map(|words| format!("{}: {words}", row.trial))
            })
        }
        of(&self.kills)
            .chain(of(&self.storm))
            .chain(of(&self.chance))
            .chain(of(&self.etcd))
            .chain(of(&self.partitions))
            .collect()
    }

    fn text(&self) -> String {
        let tables = [
            (self.kills.len(), kills_table(&self.kills)),
            (self.storm.len(), storm_table(&self.storm)),
            (self.chance.len(), chance_table(&self.chance)),
            (self.etcd.len(), etcd_table(&self.etcd)),
            (self.partitions.len(), partitions_table(&self.partitions)),
        ];
        let tables = tables.into_iter().filter(|(rows, _)| *rows > 0);
        let tables: Vec<_> = tables.map(|(_, table)| table.markdown()).collect();
        let (build, load) = (self.build, &self.load);
        format!(
            "{build} build, load {load} at the start\n\n{}",
            tables.join("\n")
        )
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// A row a trial: its name, the cells, and how many bounds do not hold.
fn table<F>(columns: &[&str], rows: &[Row<F>], cells: impl Fn(&F) -> Vec<String>) -> Table {
    let columns: Vec<&str> = [&["trial"], columns, &["bounds broken"]].concat();
    let mut table = Table::new(&columns);
    for row in rows {
        let mut line = vec![row.trial.clone()];
        line.extend(cells(&row.figures));
        line.push((row.broken.len() + row.slow.len()).to_string());
        table.row(&line);
    }
    table
}

fn kills_table(rows: &[Row<kills::Figures>]) -> Table {
    let columns = [
        "n",
        "gap ms: median",
        "p95",
        "max",
        "sender's own gap",
        "connections broken",
        "downloads Mbit/s",
    ];
    table(&columns, rows, |figures| {
        let gap = figures.silences.gap_ms;
        vec![
            figures.losses.to_string(),
            whole(gap.median),
            whole(gap.p95),
            whole(gap.max),
            whole(figures.silences.sender_gap_ms),
            figures.connections_broken.len().to_string(),
            whole(figures.goodput_mbit),
        ]
    })
}

fn storm_table(rows: &[Row<storm::Figures>]) -> Table {
    let columns = [
        "moved",
        "paths up at the end",
        "without answer ms: median",
        "p99",
        "last",
        "pings of other sites before: p99",
        "longest",
        "during: p99",
        "longest",
    ];
    table(&columns, rows, |figures| {
        let (before, during) = (figures.beside_before, figures.beside_during);
        let ms = |value: f64| format!("{value:.1}");
        vec![
            figures.moved.to_string(),
            figures.paths_up.to_string(),
            whole(figures.silence_median_ms),
            whole(figures.silence_p99_ms),
            whole(figures.silence_longest_ms),
            ms(before.p99_ms),
            ms(before.longest_ms),
            ms(during.p99_ms),
            ms(during.longest_ms),
        ]
    })
}

fn chance_table(rows: &[Row<random::Figures>]) -> Table {
    let columns = [
        "minutes",
        "faults",
        "commands",
        "looks at hubs",
        "lists",
        "served after revocation, longest ms",
        "history",
    ];
    table(&columns, rows, |figures| {
        let late = figures.longest_after_revocation_ms;
        let commands = figures.commands.iter();
        vec![
            format!("{:.1}", figures.seconds / 60.0),
            figures.faults.values().sum::<usize>().to_string(),
            commands
                .map(|(what, count)| format!("{count} {what}"))
                .collect::<Vec<_>>()
                .join(", "),
            figures.looks.to_string(),
            figures.lists.to_string(),
            late.map_or("-".to_owned(), |late| late.to_string()),
            figures.history.display().to_string(),
        ]
    })
}

fn etcd_table(rows: &[Row<faults::Figures>]) -> Table {
    let columns = ["seconds", "gap ms", "invitation s", "invited", "slow calls"];
    table(&columns, rows, |figures| {
        vec![
            whole(figures.seconds),
            whole(figures.gap_ms),
            format!("{:.2}", figures.invitation_s),
            if figures.invited { "yes" } else { "no" }.to_owned(),
            figures.slow_calls.to_string(),
        ]
    })
}

fn partitions_table(rows: &[Row<partitions::Figures>]) -> Table {
    let columns = [
        "moved",
        "gap ms",
        "rerouted after ms",
        "two hubs deliver ms",
        "two announce ms",
        "of that after the cut",
    ];
    table(&columns, rows, |figures| {
        vec![
            if figures.moved { "yes" } else { "no" }.to_owned(),
            whole(figures.gap_ms),
            figures.rerouted_ms.map_or("-".to_owned(), whole),
            whole(figures.both_deliver_ms),
            whole(figures.both_announce_ms),
            whole(figures.both_announce_after_ms),
        ]
    })
}
