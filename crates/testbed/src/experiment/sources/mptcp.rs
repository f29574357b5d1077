//! Bulk TCP by the testbed's own connections: over in-kernel MPTCP, which `iperf3` does not have, and
//! where every byte and every pause counts.

use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_plan::{Direction, FlowReport, Pause};

use super::tcp::{Load, kernel_name};
use super::{Outcome, Source, Stage, sleep_until};
use crate::traffic;
use crate::traffic::bulk::{self, Amount, BulkSpec};

use super::super::series::{AllSeries, Series};

/// Connections to be made.
#[derive(Debug)]
pub(super) struct Connections {
    stage: Stage,
    load: Load,
}

impl Connections {
    pub(super) fn prepare(stage: &Stage, load: Load) -> Self {
        Self {
            stage: stage.clone(),
            load,
        }
    }
}

impl Source for Connections {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let Self { stage, load } = *self;
        sleep_until(begin, load.start);
        let left = load.until.saturating_sub(begin.elapsed());
        let spec = BulkSpec {
            flows: load.flows as usize,
            direction: match load.direction {
                Direction::Down => traffic::Direction::Download,
                Direction::Up => traffic::Direction::Upload,
            },
            both_ways: false,
            congestion: kernel_name(load.congestion).into(),
            mptcp: stage.mptcp,
            window: load.window,
            amount: Amount::Time(left),
            sample: STEP,
        };
        let report = bulk::run(&stage.ends, &spec)?;
        let begun = report.begin.unwrap_or(begin);
        let series = report.flows.iter().map(|flow| Series {
            begin: begun.saturating_duration_since(begin),
            step: STEP,
            bytes: flow.samples.clone(),
        });
        let mut flows: Vec<FlowReport> = report
            .flows
            .iter()
            .map(|flow| FlowReport {
                broken: flow.broken.is_some(),
                pauses: if load.window.is_some() {
                    pauses(flow, begun.saturating_duration_since(begin))
                } else {
                    Vec::new()
                },
                ..FlowReport::default()
            })
            .collect();
        // The kernel counts all connections of the namespace together.
        let count = flows.len() as u64;
        for (index, flow) in (0..).zip(&mut flows) {
            let rest = u64::from(index < report.retransmits % count.max(1));
            flow.retransmits = report.retransmits / count.max(1) + rest;
        }
        let mut notes = vec![format!(
            "tcp: {}{}, {} segments sent again (all flows, shared out evenly)",
            kernel_name(load.congestion),
            if stage.mptcp { " over MPTCP" } else { "" },
            report.retransmits
        )];
        notes.extend(
            report
                .reasons()
                .iter()
                .map(|reason| format!("tcp: {reason}")),
        );
        let series = AllSeries(series.collect());
        Ok(Outcome {
            report: series.report("tcp", load.active(), stage.window, flows),
            notes,
        })
    }
}

/// Pauses of a connection whose clock begins `after` the plan's; none where the plan does not ask.
fn pauses(flow: &bulk::FlowReport, after: Duration) -> Vec<Pause> {
    let seconds = |at: &Duration| (*at + after).as_secs_f64();
    let pauses = flow.pauses.iter();
    pauses
        .map(|(from, to)| Pause {
            begin: seconds(from),
            end: seconds(to),
        })
        .collect()
}

const STEP: Duration = Duration::from_millis(100);
