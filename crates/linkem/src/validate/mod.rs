//! `ropewalk-linkem validate`: what is set against what programs on both sides measure.
//!
//! Tolerances are those the emulator promises (docs/linkem.md) on a machine with processor time
//! to spare; statistical ones are several standard errors wide for the number of packets sent.

mod bench;

use std::time::Duration;

use anyhow::{Result, bail};
use ropewalk_netem::{Change, DirectionPlan};
use serde::Serialize;

use bench::{Arrival, Bench, IpVersion, Stream};

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    set: f64,
    measured: f64,
    /// Largest allowed difference, in `unit`.
    tolerance: f64,
    /// Share of one core that the link took; deliveries include the receiver's network stack.
    cpu_percent: Option<f64>,
    ok: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
    ok: bool,
}

/// Measures everything and prints it.
pub(crate) fn validate(quick: bool, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    let mut add = |row: Result<Vec<Row>>| -> Result<()> {
        for row in row? {
            if !json {
                print_row(&row);
            }
            rows.push(row);
        }
        Ok(())
    };
    if !json {
        println!(
            "{:<44} {:>8} {:>10} {:>10} {:>10} {:>6}",
            "", "unit", "set", "measured", "tolerance", "cpu"
        );
    }
    for mbit in if quick {
        &[10.0][..]
    } else {
        &[1.0, 10.0, 100.0, 400.0]
    } {
        add(udp_rate(*mbit, 1_500, IpVersion::V4))?;
        add(tcp_rate(*mbit, 1_500, IpVersion::V4))?;
    }
    if !quick {
        add(tcp_rate(400.0, 9_000, IpVersion::V6))?;
    }
    add(trace_rate())?;
    for millis in if quick {
        &[25.0][..]
    } else {
        &[1.0, 25.0, 300.0]
    } {
        add(delay(*millis))?;
    }
    add(jitter(50.0, 5.0))?;
    add(bernoulli(0.05))?;
    for burst in if quick { &[4.0][..] } else { &[2.0, 4.0, 10.0] } {
        add(gilbert(0.05, *burst))?;
    }
    add(queue_limit())?;
    let ok = rows.iter().all(|row| row.ok);
    if json {
        println!("{}", serde_json::to_string(&Report { rows, ok })?);
    }
    if !ok {
        bail!("beyond tolerance; on a busy machine, measure again when it is idle");
    }
    Ok(())
}

fn udp_rate(mbit: f64, mtu: usize, ip: IpVersion) -> Result<Vec<Row>> {
    let seconds = if mbit < 5.0 { 4.0 } else { 2.0 };
    // A tenth more than passes, and a queue that holds it: the link always has work.
    let offered = mbit * 1e6 * 1.1 / 8.0;
    let (rate, queue) = (format!("{mbit}Mbit"), format!("{:.0}", offered * seconds));
    let bench = start(&[("rate", &rate), ("queue", &queue)], mtu, ip)?;
    let packets_per_second = offered / mtu as f64;
    let packets = whole(packets_per_second * seconds);
    let before = std::time::Instant::now();
    let arrivals = bench.send(Stream {
        packets,
        ip_bytes: mtu,
        packets_per_second,
    })?;
    let elapsed = before.elapsed();
    let cpu = bench.finish()? / elapsed.as_secs_f64();
    // While the sender fills the queue; the first tenth builds it up.
    let start = Duration::from_secs_f64(seconds * 0.1);
    let measured = arrival_rate(&arrivals, start, Duration::from_secs_f64(seconds), mtu);
    Ok(vec![rate_row(
        format!("UDP rate, {mtu}-byte packets"),
        mbit,
        measured,
        cpu,
    )])
}

fn tcp_rate(mbit: f64, mtu: usize, ip: IpVersion) -> Result<Vec<Row>> {
    let time = Duration::from_secs(if mbit < 5.0 { 6 } else { 4 });
    let queue = format!("{:.0}", (mbit * 1e6 / 8.0 * 0.05).max(64_000.0));
    let rate = format!("{mbit}Mbit");
    let bench = start(
        &[("rate", &rate), ("queue", &queue), ("delay", "5ms")],
        mtu,
        ip,
    )?;
    let measured = bench.tcp_rate(time, time / 4)? / 1e6;
    let cpu = bench.finish()? / time.as_secs_f64();
    Ok(vec![rate_row(
        format!("TCP rate, {ip:?}, MTU {mtu}"),
        mbit,
        measured,
        cpu,
    )])
}

/// One 1,504-byte opportunity a millisecond, and none for the last tenth of each 100 ms.
fn trace_rate() -> Result<Vec<Row>> {
    let lines: Vec<String> = (1..=90)
        .chain([100])
        .map(|ms: u32| ms.to_string())
        .collect();
    let text = lines.join("\n");
    let mut plan = DirectionPlan::default();
    plan.set("trace", "opportunities")?;
    plan.set("queue", "unlimited")?;
    let change = plan.resolve("up", &mut |_| Ok(text.clone()))?;
    let bench = Bench::start(change, 1_504, IpVersion::V4)?;
    let stream = Stream {
        packets: 2_000,
        ip_bytes: 1_504,
        packets_per_second: 1_000.0,
    };
    let arrivals = bench.send(stream)?;
    bench.finish()?;
    let (start, end) = (Duration::from_millis(200), Duration::from_millis(2_000));
    let measured = arrival_rate(&arrivals, start, end, 1_504);
    let set = lines.len() as f64 * 1_504.0 * 8.0 / 0.1 / 1e6;
    Ok(vec![Row {
        cpu_percent: None,
        ..rate_row("trace of opportunities".into(), set, measured, 0.0)
    }])
}

fn delay(millis: f64) -> Result<Vec<Row>> {
    let bench = start(&[("delay", &format!("{millis}ms"))], 1_500, IpVersion::V4)?;
    let arrivals = bench.send(PROBES)?;
    bench.finish()?;
    let delays = sorted_delays_ms(&arrivals);
    let median = delays[delays.len() / 2];
    Ok(vec![row(
        "one-way delay, median",
        "ms",
        millis,
        median,
        0.3,
    )])
}

fn jitter(mean: f64, deviation: f64) -> Result<Vec<Row>> {
    let (delay, jitter) = (format!("{mean}ms"), format!("{deviation}ms"));
    let settings = [("delay", &*delay), ("jitter", &jitter), ("reorder", "on")];
    let bench = start(&settings, 1_500, IpVersion::V4)?;
    let arrivals = bench.send(PROBES)?;
    bench.finish()?;
    let delays = sorted_delays_ms(&arrivals);
    let n = delays.len() as f64;
    let average = delays.iter().sum::<f64>() / n;
    let variance = delays.iter().map(|d| (d - average).powi(2)).sum::<f64>() / n;
    Ok(vec![
        row("delay with jitter, mean", "ms", mean, average, 0.8),
        row(
            "jitter, standard deviation",
            "ms",
            deviation,
            variance.sqrt(),
            deviation * 0.1,
        ),
    ])
}

fn bernoulli(share: f64) -> Result<Vec<Row>> {
    let bench = start(&[("loss", &share.to_string())], 1_500, IpVersion::V4)?;
    let arrivals = bench.send(LOSS_STREAM)?;
    bench.finish()?;
    let (loss, burst) = losses(&arrivals);
    Ok(vec![
        row("Bernoulli loss", "%", share * 100.0, loss * 100.0, 0.25),
        row(
            "  its mean burst",
            "packets",
            1.0 / (1.0 - share),
            burst,
            0.03,
        ),
    ])
}

fn gilbert(share: f64, mean_burst: f64) -> Result<Vec<Row>> {
    let settings = [
        ("loss", &*share.to_string()),
        ("loss_burst", &mean_burst.to_string()),
    ];
    let bench = start(&settings, 1_500, IpVersion::V4)?;
    let arrivals = bench.send(LOSS_STREAM)?;
    bench.finish()?;
    let (loss, burst) = losses(&arrivals);
    // Runs of losses are geometric: relative standard errors for the expected number of losses.
    let expected_losses = f64::from(LOSS_STREAM.packets) * share;
    let spread_burst = ((mean_burst - 1.0) / expected_losses).sqrt();
    let spread_loss = (2.0 * mean_burst / expected_losses).sqrt();
    Ok(vec![
        row(
            "Gilbert loss",
            "%",
            share * 100.0,
            loss * 100.0,
            share * 300.0 * spread_loss,
        ),
        row(
            "  its mean burst",
            "packets",
            mean_burst,
            burst,
            mean_burst * 3.0 * spread_burst,
        ),
    ])
}

/// A burst into a slow link: one packet is sent at once, the queue holds its bytes, no more.
fn queue_limit() -> Result<Vec<Row>> {
    let settings = [("rate", "1Mbit"), ("queue", "60000")];
    let bench = start(&settings, 1_500, IpVersion::V4)?;
    let burst = Stream {
        packets: 100,
        ip_bytes: 1_500,
        packets_per_second: 1e6,
    };
    let arrivals = bench.send(burst)?;
    bench.finish()?;
    // A packet more if the burst took as long as sending one.
    Ok(vec![row(
        "60,000-byte queue, delivered of 100",
        "packets",
        41.0,
        arrivals.len() as f64,
        1.0,
    )])
}

const PROBES: Stream = Stream {
    packets: 1_000,
    ip_bytes: 100,
    packets_per_second: 500.0,
};
const LOSS_STREAM: Stream = Stream {
    packets: 100_000,
    ip_bytes: 100,
    packets_per_second: 40_000.0,
};

fn start(settings: &[(&str, &str)], mtu: usize, ip: IpVersion) -> Result<Bench> {
    let mut plan = DirectionPlan::default();
    for (key, value) in settings {
        plan.set(key, value)?;
    }
    let mut change: Change = plan.resolve("up", &mut |file| Err(format!("no file {file}")))?;
    change.queue_packets_max = Some(None);
    Bench::start(change, mtu, ip)
}

/// Mbit/s between two times, from arrivals of `ip_bytes` each.
fn arrival_rate(arrivals: &[Arrival], from: Duration, to: Duration, ip_bytes: usize) -> f64 {
    let times = arrivals
        .iter()
        .map(|a| a.received)
        .filter(|at| (from..to).contains(at));
    let times: Vec<Duration> = times.collect();
    match (times.first(), times.last()) {
        (Some(first), Some(last)) if last > first => {
            let bits = ((times.len() - 1) * ip_bytes * 8) as f64;
            bits / (*last - *first).as_secs_f64() / 1e6
        }
        _ => 0.0,
    }
}

/// One-way delays, ascending; never empty.
fn sorted_delays_ms(arrivals: &[Arrival]) -> Vec<f64> {
    let delay = |a: &Arrival| a.received.saturating_sub(a.sent).as_secs_f64() * 1e3;
    let mut delays: Vec<f64> = arrivals.iter().map(delay).collect();
    delays.sort_by(f64::total_cmp);
    if delays.is_empty() {
        delays.push(f64::NAN);
    }
    delays
}

/// Share of packets lost and mean run of losses, between the first and the last arrival.
fn losses(arrivals: &[Arrival]) -> (f64, f64) {
    let (mut lost, mut bursts, mut sent) = (0u32, 0u32, 1u32);
    for pair in arrivals.windows(2) {
        let gap = pair[1].sequence.saturating_sub(pair[0].sequence);
        sent += gap;
        lost += gap.saturating_sub(1);
        bursts += u32::from(gap > 1);
    }
    (
        f64::from(lost) / f64::from(sent),
        f64::from(lost) / f64::from(bursts.max(1)),
    )
}

fn rate_row(what: String, set: f64, measured: f64, cpu: f64) -> Row {
    let row = row(&what, "Mbit/s", set, measured, set * 0.03);
    Row {
        cpu_percent: Some(cpu * 100.0),
        ..row
    }
}

fn row(what: &str, unit: &'static str, set: f64, measured: f64, tolerance: f64) -> Row {
    // A measurement that failed is not a number, and not within any tolerance.
    let ok = (measured - set).abs() <= tolerance;
    Row {
        what: what.into(),
        unit,
        set,
        measured,
        tolerance,
        cpu_percent: None,
        ok,
    }
}

fn print_row(row: &Row) {
    let cpu = row
        .cpu_percent
        .map_or_else(String::new, |cpu| format!("{cpu:.1}%"));
    println!(
        "{:<44} {:>8} {:>10.3} {:>10.3} {:>10} {:>6}{}",
        row.what,
        row.unit,
        row.set,
        row.measured,
        format!("±{:.3}", row.tolerance),
        cpu,
        if row.ok { "" } else { "  BEYOND TOLERANCE" }
    );
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "packet counts of measurements are small and positive"
)]
fn whole(value: f64) -> u32 {
    value.round() as u32
}
