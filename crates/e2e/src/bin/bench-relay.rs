//! What a relay costs: throughput over bare links with and without it, and how long a stream falls
//! silent when the relay that carries it is killed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs, milliseconds};
use ropewalk_e2e::chain::Chain;
use ropewalk_e2e::table::{Table, range};
use ropewalk_e2e::whole;
use ropewalk_testbed::LinkSpec;
use ropewalk_testbed::branch::DIRECT;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::statistics::Summary;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{self, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use serde::Serialize;

/// Measure what a relay costs, and what its death costs.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Rounds; in each, the way past the relay and the way over it take turns
    #[arg(long)]
    rounds: Option<usize>,
    /// How often the relay is killed
    #[arg(long)]
    kills: Option<usize>,
}

#[derive(Debug, Default, Serialize)]
struct Rates {
    /// Mbit/s of one TCP stream over the relay, in each round.
    relay: Vec<f64>,
    /// The same past the relay.
    direct: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Results {
    download: Rates,
    upload: Rates,
    /// Longest silence of a 10 ms stream after the relay was killed, milliseconds.
    silence_ms: Summary,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), table)
}

fn measure(args: &Args) -> Result<Results> {
    let few =
        |chosen: Option<usize>, usual| chosen.unwrap_or(if args.bench.quick { 1 } else { usual });
    let (mut download, mut upload) = (Rates::default(), Rates::default());
    for _ in 0..few(args.rounds, 3) {
        for over_relay in [true, false] {
            let [down, up] = throughput(over_relay)?;
            for (rates, rate) in [(&mut download, down), (&mut upload, up)] {
                if over_relay {
                    rates.relay.push(rate);
                } else {
                    rates.direct.push(rate);
                }
            }
        }
    }
    let silences: Vec<Duration> = (0..few(args.kills, 5))
        .map(|_| silence())
        .collect::<Result<_>>()?;
    Ok(Results {
        download,
        upload,
        silence_ms: milliseconds(&silences),
    })
}

/// Mbit/s down and up.
fn throughput(over_relay: bool) -> Result<[f64; 2]> {
    let bare = || LinkSpec::unshaped(true);
    let chain = Chain::new("relayspeed", [vec![bare()], vec![bare()]], Some(&bare()))?;
    let _site = if over_relay {
        chain.plain_site()?
    } else {
        let spec = GatewaySpec {
            uplinks: format!("include = [\"{DIRECT}\"]"),
            ..GatewaySpec::default()
        };
        let token = chain.hub.invite("boat")?;
        chain.site("boat", &token, &spec, 1)?
    };
    let rate = |direction| -> Result<f64> {
        let spec = BulkSpec {
            direction,
            ..BulkSpec::download(1, Duration::from_secs(4))
        };
        Ok(whole(bulk::run(&chain.to_server(), &spec)?)?.goodput_mbit)
    };
    Ok([rate(Direction::Download)?, rate(Direction::Upload)?])
}

fn silence() -> Result<Duration> {
    let (mut chain, _inner, _site) = Chain::nested("relaysilence")?;
    std::thread::sleep(Duration::from_secs(1));
    let probe = Probe::start(&chain.to_server(), &ProbeSpec::fine(Direction::Download))?;
    std::thread::sleep(Duration::from_secs(2));
    let from = probe.elapsed();
    chain.relay.kill();
    std::thread::sleep(Duration::from_secs(2));
    let to = probe.elapsed();
    Ok(probe.finish()?.longest_gap(from, to))
}

fn table(results: &Results) -> Table {
    let mut table = Table::new(&["what", "over the relay", "past it"]);
    for (what, rates) in [
        ("download, Mbit/s", &results.download),
        ("upload, Mbit/s", &results.upload),
    ] {
        table.row(&[
            what.to_owned(),
            range(&rates.relay, 0),
            range(&rates.direct, 0),
        ]);
    }
    let silence = &results.silence_ms;
    table.row(&[
        format!("silence when it is killed, ms, {} times", silence.count),
        format!(
            "{:.0} ({:.0}–{:.0})",
            silence.median, silence.min, silence.max
        ),
        "-".to_owned(),
    ]);
    table
}
