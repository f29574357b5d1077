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
    let paths = report.paths.iter().map(|path| ("path", path));
    let links = report.links.iter().map(|link| ("link", link));
    for (kind, path) in paths.chain(links) {
        #[expect(clippy::cast_precision_loss, reason = "bytes of a run are below 2^53")]
        let megabytes = path.delivered_bytes as f64 / 1e6;
        let _ = writeln!(
            text,
            "  {kind} {}: {megabytes:.2} MB of {:.2} Mbit/s, {} dropped, {} lost{}",
            path.name,
            path.capacity_mbit,
            path.dropped,
            path.lost,
            path.management()
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

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_plan::PathReport;

    #[test]
    fn shared_links_and_marks_have_their_place() {
        let path = PathReport {
            name: "a".into(),
            dropped: 3,
            ..PathReport::default()
        };
        let link = PathReport {
            name: "cell".into(),
            dropped_aqm: 4,
            marked: 5,
            ..PathReport::default()
        };
        let report = Report {
            paths: vec![path],
            links: vec![link],
            ..Report::default()
        };
        let text = summary(&report);
        assert!(text.contains("3 dropped, 0 lost\n"), "{text}");
        assert!(text.contains("  link cell: 0.00 MB"), "{text}");
        let managed = "0 lost, 4 dropped by the queue's management, 5 marked\n";
        assert!(text.contains(managed), "{text}");
    }
}
