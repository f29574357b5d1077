//! The state of a gateway as Prometheus metrics.
//!
//! Invariant: every metric has HELP and TYPE once, base units (seconds, bytes, ratio), and
//! counters end in `_total`. Source: Prometheus text format 0.0.4 and naming conventions.

use std::fmt::Write;

use crate::{
    BalanceStatus, DirectStatus, KillSwitchStatus, PassedStatus, PathStatus, Status, TunnelStatus,
    UplinkStatus, WorkerStatus,
};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    if let Some(passed) = &status.passed {
        pass(&mut out, passed);
    }
    workers(&mut out, &status.workers);
    match &status.balance {
        Some(balance) => uplinks(&mut out, balance),
        None => {
            tunnels(&mut out, &status.tunnels);
            paths(&mut out, &status.tunnels);
        }
    }
    if let Some(switch) = &status.kill_switch {
        kill_switch(&mut out, switch);
    }
    if let Some(beside) = &status.direct {
        direct(&mut out, beside);
        uplinks(&mut out, &beside.spread);
    }
    out
}

fn pass(out: &mut String, passed: &PassedStatus) {
    let name = "ropewalk_passed_on_total";
    let help = "Packets for ports of shared addresses that went on to the hub of the site.";
    head(out, name, help);
    sample(out, name, &[], passed.passed_on as f64);
    let name = "ropewalk_unwrapped_total";
    head(out, name, "Packets of this kind that came from other hubs.");
    sample(out, name, &[], passed.unwrapped as f64);
}

fn workers(out: &mut String, workers: &[WorkerStatus]) {
    type Value = fn(&WorkerStatus) -> f64;
    let metrics: [(&str, &str, Value); 5] = [
        ("sites", "Listed sites that a worker serves.", |w| {
            w.sites as f64
        }),
        ("paths_up", "Paths of these sites that are up.", |w| {
            w.paths_up as f64
        }),
        ("cpu_seconds_total", "Processor time of a worker.", |w| {
            w.cpu_s
        }),
        (
            "handed_over_total",
            "Inner packets that went to the worker that serves their site.",
            |w| w.handed_over as f64,
        ),
        (
            "handover_drops_total",
            "Inner packets lost on this way.",
            |w| w.handover_drops as f64,
        ),
    ];
    for (name, help, value) in metrics.iter().filter(|_| !workers.is_empty()) {
        let name = format!("ropewalk_worker_{name}");
        head(out, &name, help);
        for worker in workers {
            let number = worker.worker.to_string();
            sample(out, &name, &[("worker", &number)], value(worker));
        }
    }
}

fn kill_switch(out: &mut String, switch: &KillSwitchStatus) {
    let name = "ropewalk_kill_switch_set";
    let help = "Whether what would leave beside the tunnel is refused.";
    head(out, name, help);
    sample(out, name, &[], f64::from(u8::from(switch.is_set)));
    let name = "ropewalk_kill_switch_refused_total";
    head(out, name, "Packets refused since the rules were set.");
    sample(out, name, &[], switch.refused as f64);
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

fn uplinks(out: &mut String, balance: &BalanceStatus) {
    for metric in UplinkStatus::METRICS {
        let name = format!("ropewalk_uplink_{}", metric.name);
        head(out, &name, metric.help);
        for uplink in &balance.uplinks {
            if let Some(value) = (metric.value)(uplink) {
                sample(out, &name, &[("uplink", &uplink.uplink)], value);
            }
        }
    }
}

fn tunnels(out: &mut String, tunnels: &[TunnelStatus]) {
    for metric in TunnelStatus::METRICS {
        let name = format!("ropewalk_tunnel_{}", metric.name);
        head(out, &name, metric.help);
        for tunnel in tunnels {
            if let Some(value) = (metric.value)(tunnel) {
                sample(out, &name, &[("peer", &tunnel.peer)], value);
            }
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
    for metric in PathStatus::METRICS {
        let name = format!("ropewalk_path_{}", metric.name);
        head(out, &name, metric.help);
        for tunnel in tunnels {
            for path in &tunnel.paths {
                let id = path.id.to_string();
                let labels = [
                    ("peer", tunnel.peer.as_str()),
                    ("path", id.as_str()),
                    ("uplink", path.uplink.as_str()),
                    ("transport", path.transport.as_str()),
                ];
                if let Some(value) = (metric.value)(path) {
                    sample(out, &name, &labels, value);
                }
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
    use crate::WayStatus;

    #[test]
    fn workers_have_metrics_where_there_are_several() {
        let worker = WorkerStatus {
            worker: 3,
            sites: 5,
            cpu_s: 1.5,
            ..WorkerStatus::default()
        };
        let mut status = Status {
            workers: vec![worker],
            ..Status::default()
        };
        let text = render(&status);
        for sample in [
            "# TYPE ropewalk_worker_cpu_seconds_total counter\n",
            "ropewalk_worker_cpu_seconds_total{worker=\"3\"} 1.5\n",
            "# TYPE ropewalk_worker_sites gauge\n",
            "ropewalk_worker_sites{worker=\"3\"} 5\n",
        ] {
            assert!(text.contains(sample), "{sample} is not in\n{text}");
        }
        status.workers.clear();
        assert!(!render(&status).contains("ropewalk_worker"));
    }

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
