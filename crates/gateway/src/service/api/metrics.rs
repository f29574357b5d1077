//! The state of a gateway as Prometheus metrics.
//!
//! Invariant: every metric has HELP and TYPE once, base units (seconds, bytes, ratio), and
//! counters end in `_total`. Source: Prometheus text format 0.0.4 and naming conventions.

use std::fmt::Write;

use crate::status::DirectStatus;
use crate::status::balance::{BalanceStatus, UplinkStatus};
use crate::status::{PathStatus, Status, TunnelStatus};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Name, help and value of a metric of a tunnel.
type TunnelMetric = (&'static str, &'static str, fn(&TunnelStatus) -> f64);
/// Name, help and value of a metric of a path.
type PathMetric = (&'static str, &'static str, fn(&PathStatus) -> f64);

const TUNNEL: [TunnelMetric; 33] = [
    ("up", "Whether any path works.", |t| {
        f64::from(u8::from(t.up))
    }),
    ("transmit_packets_total", "Inner packets sent.", |t| {
        t.tx_packets as f64
    }),
    ("transmit_bytes_total", "Inner bytes sent.", |t| {
        t.tx_bytes as f64
    }),
    ("receive_packets_total", "Inner packets received.", |t| {
        t.rx_packets as f64
    }),
    ("receive_bytes_total", "Inner bytes received.", |t| {
        t.rx_bytes as f64
    }),
    ("queue_bytes", "Bytes waiting at the entry.", |t| {
        t.queue_bytes as f64
    }),
    ("queue_drops_total", "Packets dropped at the entry.", |t| {
        t.queue_drops as f64
    }),
    (
        "queue_marks_total",
        "Packets marked CE at the entry.",
        |t| t.queue_marks as f64,
    ),
    (
        "reordered_packets_total",
        "Packets that reached the exit out of order.",
        |t| t.reordered as f64,
    ),
    (
        "held_packets_total",
        "Packets the exit held for order.",
        |t| t.held as f64,
    ),
    ("hold_timeouts_total", "Holds that ended by time.", |t| {
        t.hold_timeouts as f64
    }),
    (
        "duplicate_packets_total",
        "Copies removed at the exit.",
        |t| t.duplicates as f64,
    ),
    (
        "late_packets_total",
        "Packets passed on after they were given up.",
        |t| t.late as f64,
    ),
    (
        "rescues_asked_total",
        "Overdue packets that the peer was asked for.",
        |t| t.rescues_asked as f64,
    ),
    (
        "rescued_packets_total",
        "Packets sent again at once because the peer awaited them.",
        |t| t.rescued as f64,
    ),
    (
        "data_bytes_total",
        "Bytes of datagrams that carried packets for the first time.",
        |t| t.data_bytes as f64,
    ),
    (
        "protection_bytes_total",
        "Bytes that protection added: copies, combinations, repairs.",
        |t| t.protection_bytes as f64,
    ),
    (
        "repairs_asked_total",
        "Lost datagrams that the peer was asked for.",
        |t| t.repairs_asked as f64,
    ),
    (
        "repairs_sent_total",
        "Datagrams sent again because they were or may have been lost.",
        |t| t.repairs_sent as f64,
    ),
    (
        "repairs_dropped_total",
        "Datagrams that should have been sent again and were not.",
        |t| t.repairs_dropped as f64,
    ),
    (
        "coded_sent_total",
        "Combinations sent ahead of losses.",
        |t| t.coded_sent as f64,
    ),
    (
        "recovered_total",
        "Lost datagrams recovered from combinations, without asking.",
        |t| t.recovered as f64,
    ),
    ("outages_total", "Times that every path was down.", |t| {
        t.outages as f64
    }),
    (
        "outage_seconds_total",
        "Time that every path was down.",
        |t| t.outage_s,
    ),
    (
        "hold_bytes",
        "Bytes held in an outage, or left by one and waiting.",
        |t| t.hold_bytes as f64,
    ),
    (
        "hold_replayed_packets_total",
        "Packets held in outages that left after them.",
        |t| t.replayed as f64,
    ),
    (
        "hold_dropped_full_total",
        "Packets dropped in outages because too much was held.",
        |t| t.hold_dropped_full as f64,
    ),
    (
        "hold_dropped_old_total",
        "Packets dropped after outages because they were too old.",
        |t| t.hold_dropped_old as f64,
    ),
    (
        "freeze_stopped_total",
        "Times that the sender of a TCP connection was told to stop.",
        |t| t.freeze_stopped as f64,
    ),
    (
        "freeze_bytes",
        "Bytes kept that were acknowledged for receivers, or may be.",
        |t| t.freeze_bytes as f64,
    ),
    (
        "freeze_resets_total",
        "TCP connections reset because acknowledged bytes were not delivered in time.",
        |t| t.freeze_resets as f64,
    ),
    ("paths", "Paths of the tunnel.", |t| t.paths.len() as f64),
    ("paths_up", "Paths that work.", |t| {
        t.paths.iter().filter(|path| path.state == "up").count() as f64
    }),
];

const PATH: [PathMetric; 13] = [
    ("up", "Whether the path works.", |p| {
        f64::from(u8::from(p.state == "up"))
    }),
    ("rtt_seconds", "Smoothed round-trip time.", |p| {
        p.rtt_ms / 1e3
    }),
    ("rtt_min_seconds", "Smallest round-trip time.", |p| {
        p.rtt_min_ms / 1e3
    }),
    (
        "owd_relative_seconds",
        "One-way delay beyond the fastest path.",
        |p| p.owd_relative_ms / 1e3,
    ),
    (
        "delivery_rate_bytes_per_second",
        "Estimated delivery rate.",
        |p| p.rate_mbit * 1e6 / 8.0,
    ),
    ("loss_ratio", "Share of packets lost lately.", |p| p.loss),
    (
        "loss_burst_packets",
        "Mean length of a run of losses.",
        |p| p.loss_burst,
    ),
    ("congestion_window_bytes", "Congestion window.", |p| {
        p.cwnd as f64
    }),
    ("in_flight_bytes", "Bytes in flight.", |p| {
        p.in_flight as f64
    }),
    ("mtu_bytes", "Largest UDP payload.", |p| p.mtu as f64),
    ("transmit_bytes_total", "Outer bytes sent.", |p| {
        p.tx_bytes as f64
    }),
    ("receive_bytes_total", "Outer bytes received.", |p| {
        p.rx_bytes as f64
    }),
    ("failures_total", "Times the path stopped working.", |p| {
        p.failures as f64
    }),
];

/// The metrics of `status`.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut out = String::new();
    head(
        &mut out,
        "ropewalk_info",
        "Version and role of this gateway.",
    );
    let labels = [("version", status.version.as_str()), ("role", &status.role)];
    sample(&mut out, "ropewalk_info", &labels, 1.0);
    head(
        &mut out,
        "ropewalk_uptime_seconds",
        "Time since the gateway started.",
    );
    sample(&mut out, "ropewalk_uptime_seconds", &[], status.uptime_s);
    head(&mut out, "ropewalk_mtu_bytes", "MTU of the TUN interface.");
    sample(&mut out, "ropewalk_mtu_bytes", &[], status.mtu as f64);
    if let Some(onward) = &status.onward {
        let labels = [("side", "onward")];
        sample(&mut out, "ropewalk_mtu_bytes", &labels, onward.mtu as f64);
    }
    head(
        &mut out,
        "ropewalk_drops_total",
        "Packets dropped or refused, by reason.",
    );
    for (reason, count) in &status.drops {
        sample(
            &mut out,
            "ropewalk_drops_total",
            &[("reason", reason)],
            *count as f64,
        );
    }
    match &status.balance {
        Some(balance) => uplinks(&mut out, balance),
        None => {
            tunnels(&mut out, &status.tunnels);
            paths(&mut out, &status.tunnels);
        }
    }
    if let Some(beside) = &status.direct {
        direct(&mut out, beside);
        uplinks(&mut out, &beside.spread);
    }
    out
}

fn direct(out: &mut String, direct: &DirectStatus) {
    let name = "ropewalk_direct_fallen_back";
    head(
        out,
        name,
        "Whether flows with two ways go beside the tunnel because the hub is not reached.",
    );
    sample(out, name, &[], f64::from(u8::from(direct.fallen_back)));
    let name = "ropewalk_direct_fallbacks_total";
    head(out, name, "Times that they began to.");
    sample(out, name, &[], direct.fallbacks as f64);
    let name = "ropewalk_direct_class";
    head(
        out,
        name,
        "Whether new flows of a class go beside the tunnel, by family.",
    );
    for class in &direct.classes {
        for (family, now) in [("ipv4", &class.now_ipv4), ("ipv6", &class.now_ipv6)] {
            let labels = [
                ("class", class.class.as_str()),
                ("via", class.via.as_str()),
                ("family", family),
            ];
            sample(out, name, &labels, f64::from(u8::from(now == "direct")));
        }
    }
}

/// Name, help and value of a metric of an uplink.
type UplinkMetric = (&'static str, &'static str, fn(&UplinkStatus) -> f64);

const UPLINK: [UplinkMetric; 10] = [
    ("up", "Whether new flows may take the uplink.", |u| {
        f64::from(u8::from(matches!(u.state(), "up" | "unproven")))
    }),
    ("share_ipv4_ratio", "Share of new IPv4 flows.", |u| {
        u.share_ipv4
    }),
    ("share_ipv6_ratio", "Share of new IPv6 flows.", |u| {
        u.share_ipv6
    }),
    ("flows", "Flows on the uplink.", |u| u.flows as f64),
    (
        "capacity_bytes_per_second",
        "What the uplink is taken to carry.",
        |u| u.capacity_mbit * 1e6 / 8.0,
    ),
    (
        "load_bytes_per_second",
        "What it carried in the last second, in the direction that carries more.",
        |u| u.load_mbit * 1e6 / 8.0,
    ),
    (
        "transmit_bytes_total",
        "Bytes sent by the interface.",
        |u| u.tx_bytes as f64,
    ),
    (
        "receive_bytes_total",
        "Bytes received by the interface.",
        |u| u.rx_bytes as f64,
    ),
    ("failures_total", "Times the uplink stopped working.", |u| {
        u.failures as f64
    }),
    (
        "severed_total",
        "Connections ended because the uplink stopped working.",
        |u| u.severed as f64,
    ),
];

fn uplinks(out: &mut String, balance: &BalanceStatus) {
    for (suffix, help, value) in UPLINK {
        let name = format!("ropewalk_uplink_{suffix}");
        head(out, &name, help);
        for uplink in &balance.uplinks {
            sample(out, &name, &[("uplink", &uplink.uplink)], value(uplink));
        }
    }
    let name = "ropewalk_uplink_rtt_seconds";
    head(out, name, "Median round trip of the probes.");
    for uplink in &balance.uplinks {
        if let Some(rtt) = uplink.rtt_ms {
            sample(out, name, &[("uplink", &uplink.uplink)], rtt / 1e3);
        }
    }
}

fn tunnels(out: &mut String, tunnels: &[TunnelStatus]) {
    for (suffix, help, value) in TUNNEL {
        let name = format!("ropewalk_tunnel_{suffix}");
        head(out, &name, help);
        for tunnel in tunnels {
            sample(out, &name, &[("peer", &tunnel.peer)], value(tunnel));
        }
    }
    let name = "ropewalk_tunnel_scheduler";
    head(out, name, "Scheduler in use, by direction.");
    for tunnel in tunnels {
        let both = [
            ("send", tunnel.scheduler_send),
            ("receive", tunnel.scheduler_receive),
        ];
        for (direction, kind) in both {
            let scheduler = kind.name();
            let labels = [
                ("peer", tunnel.peer.as_str()),
                ("direction", direction),
                ("scheduler", scheduler),
            ];
            sample(out, name, &labels, 1.0);
        }
    }
}

fn paths(out: &mut String, tunnels: &[TunnelStatus]) {
    for (suffix, help, value) in PATH {
        let name = format!("ropewalk_path_{suffix}");
        head(out, &name, help);
        for tunnel in tunnels {
            for path in &tunnel.paths {
                let id = path.id.to_string();
                let labels = [
                    ("peer", tunnel.peer.as_str()),
                    ("path", id.as_str()),
                    ("uplink", path.uplink.as_str()),
                    ("transport", path.transport.as_str()),
                ];
                sample(out, &name, &labels, value(path));
            }
        }
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") {
        "counter"
    } else {
        "gauge"
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    out.push_str(name);
    if !labels.is_empty() {
        let labels = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", escape(value)));
        let _ = write!(out, "{{{}}}", labels.collect::<Vec<_>>().join(","));
    }
    let _ = writeln!(out, " {value}");
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::balance::WayStatus;

    #[test]
    fn every_sample_has_help_and_type_and_base_units() {
        let path = PathStatus {
            uplink: "w\"0\\".to_owned(),
            state: "up".to_owned(),
            rtt_ms: 25.0,
            rate_mbit: 8.0,
            ..PathStatus::default()
        };
        let status = Status {
            role: "site".to_owned(),
            drops: [("garbage".to_owned(), 4)].into(),
            tunnels: vec![TunnelStatus {
                peer: "hub".to_owned(),
                paths: vec![path],
                ..TunnelStatus::default()
            }],
            direct: Some(DirectStatus {
                fallen_back: true,
                classes: vec![WayStatus {
                    class: "mail".to_owned(),
                    via: "auto".to_owned(),
                    now_ipv4: "direct".to_owned(),
                    now_ipv6: "tunnel".to_owned(),
                }],
                spread: BalanceStatus {
                    uplinks: vec![UplinkStatus::default()],
                    ..BalanceStatus::default()
                },
                ..DirectStatus::default()
            }),
            ..Status::default()
        };
        let text = render(&status);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let kind = if name.ends_with("_total") {
                "counter"
            } else {
                "gauge"
            };
            assert_eq!(
                text.matches(&format!("# TYPE {name} {kind}\n")).count(),
                1,
                "{line}"
            );
            assert!(
                line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(),
                "{line}"
            );
        }
        for sample in [
            "ropewalk_drops_total{reason=\"garbage\"} 4\n",
            "uplink=\"w\\\"0\\\\\",transport=\"\"} 0.025\n",
            "ropewalk_path_delivery_rate_bytes_per_second{peer=\"hub\"",
            "ropewalk_tunnel_paths_up{peer=\"hub\"} 1\n",
            "ropewalk_direct_fallen_back 1\n",
            "ropewalk_direct_class{class=\"mail\",via=\"auto\",family=\"ipv4\"} 1\n",
            "ropewalk_direct_class{class=\"mail\",via=\"auto\",family=\"ipv6\"} 0\n",
            "ropewalk_uplink_flows{uplink=\"\"} 0\n",
            "direction=\"send\",scheduler=\"auto\"} 1\n",
        ] {
            assert!(text.contains(sample), "{sample} is not in\n{text}");
        }
        assert!(
            text.contains(" 1000000\n"),
            "8 Mbit/s are 1,000,000 bytes/s"
        );
    }
}
