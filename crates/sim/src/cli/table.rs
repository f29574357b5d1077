//! A report for people.

use ropewalk_plan::{PathReport, Report, TrafficReport};
use std::io::{Result, Write};

/// Prints one run.
pub fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    let Report { plan, seed, .. } = report;
    writeln!(
        out,
        "{plan}, seed {seed}: {:.0} s counted, ceiling {:.2} Mbit/s",
        report.seconds, report.ceiling_mbit
    )?;
    for traffic in &report.traffic {
        print_traffic(out, traffic)?;
    }
    for path in &report.paths {
        print_path(out, "path", path)?;
    }
    for link in &report.links {
        print_path(out, "link", link)?;
    }
    if let Some(tunnel) = &report.tunnel {
        writeln!(
            out,
            "  tunnel: {} delivered, {} reordered, {} held, {} holds timed out, {} late, {} dropped at the entry",
            tunnel.delivered,
            tunnel.reordered,
            tunnel.held,
            tunnel.hold_timeouts,
            tunnel.late,
            tunnel.ingress_drops
        )?;
        if tunnel.buffer_drops > 0 {
            writeln!(out, "  send buffers: {} dropped", tunnel.buffer_drops)?;
        }
        writeln!(
            out,
            "  protection: {} combinations sent, {} packets recovered, {} repaired; {:.1} % of the bytes",
            tunnel.repair_symbols,
            tunnel.recovered,
            tunnel.repairs,
            tunnel.overhead * 100.0
        )?;
        writeln!(out, "  scheduler: {}", tunnel.reason)?;
    }
    for note in &report.notes {
        writeln!(out, "  note: {note}")?;
    }
    let packets = report.packets.unwrap_or(0);
    writeln!(
        out,
        "  {packets} packets in {:.2} s, trace {}",
        report.wall_seconds,
        report.trace_hash.as_deref().unwrap_or("-")
    )
}

fn print_path(out: &mut impl Write, kind: &str, path: &PathReport) -> Result<()> {
    writeln!(
        out,
        "  {kind} {:8} {:10.2} MB of {:7.2} Mbit/s, {} dropped, {} lost{}",
        path.name,
        path.delivered_bytes as f64 / 1e6,
        path.capacity_mbit,
        path.dropped,
        path.lost,
        path.management()
    )
}

fn print_traffic(out: &mut impl Write, traffic: &TrafficReport) -> Result<()> {
    write!(out, "  {:5}", traffic.kind)?;
    if !traffic.flows.is_empty() {
        let again: u64 = traffic.flows.iter().map(|flow| flow.retransmits).sum();
        write!(out, " {:8.2} Mbit/s", traffic.goodput_mbit)?;
        if let Some(ceiling) = traffic.ceiling_mbit.filter(|ceiling| *ceiling > 0.0) {
            write!(out, " ({:.0} %)", 100.0 * traffic.goodput_mbit / ceiling)?;
        }
        write!(out, ", {} flows, {again} sent again", traffic.flows.len())?;
        if traffic.delay_ms.is_some() {
            write!(out, "\n  one-way")?;
        }
    }
    if let Some(delay) = &traffic.delay_ms {
        write!(
            out,
            " mean {:.1} ms, median {:.1}, 95 % {:.1}, 99 % {:.1}, longest {:.1} of {}",
            delay.mean, delay.p50, delay.p95, delay.p99, delay.max, delay.count
        )?;
    }
    if let Some(lost) = traffic.lost {
        write!(out, ", {lost} lost")?;
    }
    if let Some(share) = traffic.in_time {
        write!(out, ", {:.1} % in time", share * 100.0)?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_links_and_marks_have_their_place() {
        let link = PathReport {
            name: "cell".into(),
            dropped_aqm: 4,
            marked: 5,
            ..PathReport::default()
        };
        let report = Report {
            links: vec![link],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("  link cell "), "{text}");
        let managed = "0 lost, 4 dropped by the queue's management, 5 marked\n";
        assert!(text.contains(managed), "{text}");
    }
}
