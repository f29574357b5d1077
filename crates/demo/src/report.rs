//! What the demo found: one JSON object, or a table and a chart for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use ropewalk_testbed::statistics::Summary;
use serde::Serialize;

use super::chart::{self, Row};
use super::phases::Outcome;

/// Everything measured.
pub(super) struct Report {
    pub(super) capacity_mbit: [f64; 2],
    pub(super) uplink_a: Outcome,
    pub(super) uplink_b: Outcome,
    pub(super) mptcp: Option<Outcome>,
    pub(super) ropewalk: Outcome,
    pub(super) cut: Outcome,
    pub(super) cut_between: (Duration, Duration),
    pub(super) sample: Duration,
}

/// The JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Summarized {
    goodput_mbit: Goodput,
    capacity_mbit: CapacityOfUplinks,
    ping_ms: BTreeMap<&'static str, Option<PingTimes>>,
    /// Longest silence of the call through Ropewalk, with and without the cut.
    longest_gap_ms: f64,
    /// Share of the call's packets that arrived through Ropewalk, with and without the cut.
    call_delivered_ratio: f64,
    /// Connections through Ropewalk that broke, with and without the cut.
    broken_connections: usize,
    /// Whether Ropewalk was at least as good as the better uplink and no connection broke.
    pub(super) ok: bool,
}

#[derive(Debug, Serialize)]
struct Goodput {
    uplink_a: f64,
    uplink_b: f64,
    mptcp: Option<f64>,
    ropewalk: f64,
}

#[derive(Debug, Serialize)]
struct CapacityOfUplinks {
    uplink_a: f64,
    uplink_b: f64,
}

#[derive(Debug, Serialize)]
struct PingTimes {
    mean: f64,
    p95: f64,
}

impl Report {
    /// The figures of the JSON object.
    #[expect(clippy::cast_precision_loss, reason = "packet counts of a call")]
    pub(super) fn summary(&self) -> Summarized {
        let goodput_mbit = Goodput {
            uplink_a: self.uplink_a.bulk.goodput_mbit,
            uplink_b: self.uplink_b.bulk.goodput_mbit,
            mptcp: self.mptcp.as_ref().map(|outcome| outcome.bulk.goodput_mbit),
            ropewalk: self.ropewalk.bulk.goodput_mbit,
        };
        let calls = [&self.ropewalk, &self.cut];
        let calls = calls.map(|o| {
            o.call
                .as_ref()
                .map(|call| call.report())
                .unwrap_or_default()
        });
        let sent: u64 = calls.iter().map(|call| call.sent).sum();
        let received: u64 = calls.iter().map(|call| call.received).sum();
        let broken_connections = self.ropewalk.bulk.broken() + self.cut.bulk.broken();
        let better = goodput_mbit.uplink_a.max(goodput_mbit.uplink_b);
        Summarized {
            ok: goodput_mbit.ropewalk >= better && broken_connections == 0,
            goodput_mbit,
            capacity_mbit: CapacityOfUplinks {
                uplink_a: self.capacity_mbit[0],
                uplink_b: self.capacity_mbit[1],
            },
            ping_ms: self
                .rows()
                .map(|(key, _, outcome)| (key, outcome.and_then(ping_times)))
                .into(),
            longest_gap_ms: calls
                .iter()
                .map(|call| call.longest_gap_ms)
                .fold(0.0, f64::max),
            call_delivered_ratio: received as f64 / (sent as f64).max(1.0),
            broken_connections,
        }
    }

    fn rows(&self) -> [(&'static str, &'static str, Option<&Outcome>); 4] {
        [
            ("uplink_a", "uplink A (Wi-Fi-like)", Some(&self.uplink_a)),
            ("uplink_b", "uplink B (LTE-like)", Some(&self.uplink_b)),
            ("mptcp", "both, Multipath TCP", self.mptcp.as_ref()),
            ("ropewalk", "both, Ropewalk", Some(&self.ropewalk)),
        ]
    }

    /// Table, chart and verdict.
    pub(super) fn render(&self, colour: bool) -> String {
        let mut text = self.table(colour);
        text += &self.chart(colour);
        text += &self.verdict(colour);
        text
    }

    fn table(&self, colour: bool) -> String {
        let paint = chart::painter(colour);
        let mut text = String::from("\n");
        let head = format!(
            "{:<24}{:>10}{:>11}{:>16}{:>14}{:>10}\n",
            "", "goodput", "of the sum", "ping mean/p95", "call in time", "call gap"
        );
        text += &paint("1", &head);
        let sum: f64 = self.capacity_mbit.iter().sum();
        let cut = ("cut", "Ropewalk, A cut and back", Some(&self.cut));
        for (key, name, outcome) in self.rows().into_iter().chain([cut]) {
            let Some(outcome) = outcome else {
                let _ = writeln!(text, "{name:<24}{:>10}", "not here");
                continue;
            };
            let goodput = outcome.bulk.goodput_mbit;
            let mut line = format!(
                "{name:<24}{goodput:>5.1} Mb/s{:>9.0} %",
                100.0 * goodput / sum
            );
            line += &ping_text(outcome);
            line += &call_text(outcome);
            text += &if key == "ropewalk" {
                paint("1;32", &line)
            } else {
                line
            };
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "\nThe uplinks could carry {:.1} and {:.1} Mbit/s on average, headers included.",
            self.capacity_mbit[0], self.capacity_mbit[1]
        );
        text
    }

    fn chart(&self, colour: bool) -> String {
        let [a, b] = &self.cut.per_uplink_mbit;
        let rows = [
            Row {
                name: "uplink A",
                samples: a,
                colour: "36",
            },
            Row {
                name: "uplink B",
                samples: b,
                colour: "35",
            },
            Row {
                name: "Ropewalk",
                samples: &self.cut.bulk.samples_mbit,
                colour: "32",
            },
        ];
        chart::draw(&rows, self.sample, self.cut_between, colour)
    }

    fn verdict(&self, colour: bool) -> String {
        let paint = chart::painter(colour);
        let found = self.summary();
        let better = found.goodput_mbit.uplink_a.max(found.goodput_mbit.uplink_b);
        let mut text = format!(
            "\nRopewalk: {:.2} times the better uplink{}, {} broken connections, longest silence of \
             the call {:.0} ms, {:.2} % of its packets delivered.\n",
            found.goodput_mbit.ropewalk / better.max(f64::MIN_POSITIVE),
            found
                .goodput_mbit
                .mptcp
                .map_or_else(String::new, |mptcp| format!(
                    " (Multipath TCP: {:.2})",
                    mptcp / better.max(f64::MIN_POSITIVE)
                )),
            found.broken_connections,
            found.longest_gap_ms,
            found.call_delivered_ratio * 100.0,
        );
        for outcome in [&self.ropewalk, &self.cut] {
            for reason in outcome.bulk.reasons() {
                let _ = writeln!(text, "broken: {reason}");
            }
        }
        text += &if found.ok {
            paint("1;32", "ok\n")
        } else {
            paint("1;31", "not ok\n")
        };
        text
    }
}

fn ping_times(outcome: &Outcome) -> Option<PingTimes> {
    let Summary { mean, p95, .. } = outcome.ping.as_ref()?.rtt_ms;
    Some(PingTimes { mean, p95 })
}

fn ping_text(outcome: &Outcome) -> String {
    match ping_times(outcome) {
        Some(PingTimes { mean, p95 }) => format!("{:>16}", format!("{mean:.0} / {p95:.0} ms")),
        None => format!("{:>16}", "-"),
    }
}

fn call_text(outcome: &Outcome) -> String {
    let Some(call) = &outcome.call else {
        return format!("{:>14}{:>10}", "-", "-");
    };
    let report = call.report();
    let in_time = format!("{:.1} %", report.in_time_ratio * 100.0);
    format!(
        "{in_time:>14}{:>10}",
        format!("{:.0} ms", report.longest_gap_ms)
    )
}
