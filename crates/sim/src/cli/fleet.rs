//! `ropewalk-sim fleet`: many sites, several hubs, and one hub that dies.

use clap::Args;
use ropewalk_sim::fleet::{Amount, Queue, Report, Settings, Spread, play};
use ropewalk_types::Duration;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::IsTerminal;

use super::{FAILED, Failure, write_out};

#[derive(Args)]
pub struct FleetArgs {
    /// Number of sites
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(2..=10_000))]
    sites: u16,
    /// Number of hubs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=64))]
    hubs: u8,
    /// Number of uplinks of each site
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    uplinks: u8,
    /// So many sites have a call; all others are idle
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    calls: u16,
    /// Sites start one after the other in this time, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    join: u32,
    /// The dead hub starts again after this time, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(12..=3_600))]
    away: u32,
    /// All chance follows from this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &FleetArgs) -> Result<(), Failure> {
    let settings = Settings {
        seed: args.seed,
        sites: args.sites.into(),
        hubs: args.hubs.into(),
        uplinks: args.uplinks.into(),
        calls: args.calls.min(args.sites).into(),
        join: Duration::from_secs(args.join.into()),
        away: Duration::from_secs(args.away.into()),
    };
    let started = std::time::Instant::now();
    let shows = std::io::stderr().is_terminal();
    let report = play(&settings, |part| {
        if shows {
            eprintln!("{:6.1} s  {part}", started.elapsed().as_secs_f64());
        }
    });
    let took = started.elapsed().as_secs_f64();
    let memory = memory_max_mb();
    let text = if args.json {
        let mut value = as_json(&report);
        value["took_s"] = json!(took);
        value["memory_mb"] = json!(memory);
        format!("{value}\n")
    } else {
        let mut text = as_text(&report);
        let memory = memory.map_or("unknown".into(), |mb| format!("{mb} MB"));
        let _infallible = writeln!(
            text,
            "{} s of the world in {took:.1} s, {} outer packets, most memory of this program {memory}",
            report.seconds, report.outer_packets
        );
        text
    };
    write_out(&text)?;
    if report.never > 0 || report.others_moved > 0 {
        let problem = format!(
            "{} sites of the dead hub were not served again, {} sites of other hubs moved",
            report.never, report.others_moved
        );
        return Err(Failure(FAILED, problem));
    }
    Ok(())
}

/// The most memory that this process has had, MB.
fn memory_max_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024 / 1_000_000)
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn spread(spread: &Spread) -> Value {
    json!({
        "count": spread.count,
        "median_ms": ms(spread.median),
        "p90_ms": ms(spread.p90),
        "p99_ms": ms(spread.p99),
        "last_ms": ms(spread.last),
    })
}

fn amount(amount: &Amount) -> Value {
    json!({
        "count": amount.count,
        "peak_per_s": amount.peak_second,
        "peak_per_100_ms": amount.peak_tenth,
    })
}

fn queue(queue: &Queue) -> Value {
    json!({
        "each_ms": ms(queue.each),
        "wait_max_ms": ms(queue.wait_max),
        "busy_max_ms": ms(queue.busy_max),
        "time_ms": ms(queue.time),
    })
}

fn as_json(report: &Report) -> Value {
    let amounts = |of: &[Amount]| of.iter().map(amount).collect::<Vec<_>>();
    json!({
        "seed": report.seed,
        "sites": report.sites,
        "hubs": report.hubs,
        "uplinks": report.uplinks,
        "homes": report.homes,
        "spares": report.spares,
        "connections": report.links,
        "idle_home_bit_s": report.idle_bits[0],
        "idle_spare_bit_s": report.idle_bits[1],
        "served_before": report.served_before,
        "served_after": report.served_after,
        "served_again_with_call": spread(&report.again_with_call),
        "served_again_idle": spread(&report.again_idle),
        "never_served_again": report.never,
        "others_moved": report.others_moved,
        "call_gap": spread(&report.gaps),
        "call_gap_of_others": spread(&report.gaps_others),
        "claims_join": amount(&report.claims_join),
        "claims_takeover": amount(&report.claims_takeover),
        "handshakes_join": amounts(&report.handshakes_join),
        "handshakes_away": amounts(&report.handshakes_away),
        "handshakes_back": amounts(&report.handshakes_back),
        "queue_join": report.queue_join.iter().map(queue).collect::<Vec<_>>(),
        "queue_back": report.queue_back.iter().map(queue).collect::<Vec<_>>(),
        "outer_packets": report.outer_packets,
        "world_s": report.seconds,
    })
}

fn spread_line(name: &str, spread: &Spread) -> String {
    format!(
        "  {name:30}{:6} sites: median {:.0} ms, 90 % {:.0}, 99 % {:.0}, last {:.0} ms\n",
        spread.count,
        ms(spread.median),
        ms(spread.p90),
        ms(spread.p99),
        ms(spread.last)
    )
}

fn amount_line(name: &str, amounts: &[Amount]) -> String {
    let each = amounts
        .iter()
        .map(|of| format!("{} ({}/s)", of.count, of.peak_second));
    format!("  {name:30}{}\n", each.collect::<Vec<_>>().join("  "))
}

fn queue_line(name: &str, queues: &[Queue; 2]) -> String {
    let each = queues.map(|queue| {
        format!(
            "{:.1} ms each: waits {:.0} ms at most",
            ms(queue.each),
            ms(queue.wait_max)
        )
    });
    format!("  {name:30}{}\n", each.join(", "))
}

fn as_text(report: &Report) -> String {
    let count = |name: &str, of: &[usize]| format!("  {name:30}{of:?}\n");
    let mut text = format!(
        "{} sites with {} uplinks, {} hubs, seed {}; the first hub dies\n",
        report.sites, report.uplinks, report.hubs, report.seed
    );
    text += "sites by hub\n";
    text += &count("home", &report.homes);
    text += &count("spare", &report.spares);
    text += &count("served before", &report.served_before);
    text += &count("served while it is away", &report.served_after);
    text += "served again after its death\n";
    text += &spread_line("with a call", &report.again_with_call);
    text += &spread_line("idle", &report.again_idle);
    text += &count(
        "never, and others that moved",
        &[report.never, report.others_moved],
    );
    text += "longest time without a packet in a call\n";
    text += &spread_line("sites of the dead hub", &report.gaps);
    text += &spread_line("other sites", &report.gaps_others);
    text += "claims to write, all hubs (most in one second)\n";
    text += &amount_line("while sites start", &[report.claims_join]);
    text += &amount_line("after the death", &[report.claims_takeover]);
    text += "first packets of connections by hub (most in one second)\n";
    text += &amount_line("while sites start", &report.handshakes_join);
    text += &amount_line("while the hub is away", &report.handshakes_away);
    text += &amount_line("after its return", &report.handshakes_back);
    text += "what these cost one processor of the first hub\n";
    text += &queue_line("while sites start", &report.queue_join);
    text += &queue_line("after its return", &report.queue_back);
    let [home, spare] = report.idle_bits;
    let connections = report.links;
    let _infallible = writeln!(
        text,
        "an idle site: {home:.0} bit/s with its home, {spare:.0} bit/s with its spare; {connections} connections at all hubs"
    );
    text
}
