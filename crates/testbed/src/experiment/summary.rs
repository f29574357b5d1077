//! A report as text for people.

use std::fmt::Write as _;

use ropewalk_plan::{Report, TrafficReport};

/// One line per traffic, path and note.
#[must_use]
pub fn summary(report: &Report) -> String {
    let mut text = format!(
        "{}, seed {}: {} s counted, ceiling {:.2} Mbit/s\n",
        report.plan, report.seed, report.seconds, report.ceiling_mbit
    );
    for traffic in &report.traffic {
        let _ = writeln!(text, "  {:5} {}", traffic.kind, figures(traffic));
    }
    for path in &report.paths {
        #[expect(clippy::cast_precision_loss, reason = "bytes of a run are below 2^53")]
        let megabytes = path.delivered_bytes as f64 / 1e6;
        let _ = writeln!(
            text,
            "  path {}: {megabytes:.2} MB of {:.2} Mbit/s, {} dropped, {} lost",
            path.name, path.capacity_mbit, path.dropped, path.lost
        );
    }
    if let Some(tunnel) = &report.tunnel {
        let _ = writeln!(
            text,
            "  tunnel: {} delivered, {} reordered, {} held, {} late, {} entry drops; {}",
            tunnel.delivered,
            tunnel.reordered,
            tunnel.held,
            tunnel.late,
            tunnel.ingress_drops,
            tunnel.reason
        );
    }
    for note in &report.notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}

fn figures(traffic: &TrafficReport) -> String {
    let mut text = String::new();
    if let Some(stall) = traffic.longest_stall_seconds {
        let _ = write!(text, "{:.2} Mbit/s", traffic.goodput_mbit);
        if let Some(ceiling) = traffic.ceiling_mbit.filter(|ceiling| *ceiling > 0.0) {
            let share = traffic.goodput_mbit / ceiling * 100.0;
            let _ = write!(text, " ({share:.1} %)");
        }
        let _ = write!(text, ", longest stall {stall:.1} s");
    }
    if let Some(delay) = &traffic.delay_ms {
        let _ = write!(
            text,
            "{:.1} ms mean, {:.1} p50, {:.1} p95, {:.1} p99 of {}",
            delay.mean, delay.p50, delay.p95, delay.p99, delay.count
        );
    }
    if let (Some(lost), Some(sent)) = (traffic.lost, traffic.sent) {
        let _ = write!(text, ", {lost} of {sent} lost");
    }
    if let Some(in_time) = traffic.in_time {
        let _ = write!(text, ", {:.2} % in time", in_time * 100.0);
    }
    text
}
