//! Reports: what this egress saw goes to the peer's ingress, what the peer's egress saw comes here.

use super::egress::Reported;
use super::tuning::REPORT_BYTES;
use super::{Outgoing, Tunnel};
use crate::estimate::{DelaySample, EgressFeedback, PathFeedback};
use bytes::Bytes;
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{PathReport, Report, emit_report};

impl Tunnel {
    /// Appends a report when one is due, or at once when a path's state has changed.
    pub(super) fn poll_report(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let due = self.egress.report_due().is_some_and(|at| at <= now);
        if !due && !self.paths.state_changed {
            return;
        }
        let Some(carrier) = self.paths.for_report() else {
            return;
        };
        self.forget_idle_decoders(now);
        let start = self.egress.period_start.take().unwrap_or(now);
        let state_changed = std::mem::take(&mut self.paths.state_changed);
        let mut report = self.report(now.since(start));
        if !state_changed {
            report
                .paths
                .retain(|p| p.received > 0 || p.lost > 0 || p.suspect);
        }
        let mut bytes = Vec::with_capacity(256);
        let Some(path) = self.paths.get_mut(carrier) else {
            return;
        };
        emit_report(path.stamp(now, REPORT_BYTES), &report, &mut bytes);
        out.push(Outgoing {
            path: carrier,
            datagram: Bytes::from(bytes),
            dscp: 0,
            urgent: false,
        });
    }

    fn report(&mut self, period: Duration) -> Report {
        let stats = self.egress.reorder.stats();
        let last = std::mem::replace(
            &mut self.egress.reported,
            Reported {
                held: stats.held,
                hold_timeouts: stats.hold_timeouts,
            },
        );
        let paths = self.paths.iter_mut().map(|(id, path)| {
            let seen = path.arrivals.take(id);
            let delay = seen.delay.unwrap_or_default();
            PathReport {
                path: id.0,
                suspect: path.unwanted(),
                received: seen.received_packets,
                lost: seen.lost_packets,
                loss_runs: seen.loss_runs,
                delay_min_us: wrap(delay.min_us),
                delay_mean_us: wrap(delay.mean_us),
                late: std::mem::take(&mut path.late),
            }
        });
        Report {
            period_ms: saturate(u64::try_from(period.as_millis()).unwrap_or(u64::MAX)),
            held: saturate(stats.held - last.held),
            hold_timeouts: saturate(stats.hold_timeouts - last.hold_timeouts),
            paths: paths.collect(),
        }
    }

    pub(super) fn handle_report(&mut self, now: Instant, report: &Report) {
        let mut feedback = EgressFeedback {
            period: Duration::from_millis(u64::from(report.period_ms)),
            paths: Vec::with_capacity(report.paths.len()),
            held: u32::from(report.held),
            hold_timeouts: u32::from(report.hold_timeouts),
        };
        for seen in &report.paths {
            let id = PathId(seen.path);
            self.paths.peer_says(now, id, seen.suspect);
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            let delay = (seen.received > 0).then(|| DelaySample {
                min_us: i64::from(seen.delay_min_us),
                mean_us: i64::from(seen.delay_mean_us),
            });
            let feedback_of_path = PathFeedback {
                path: id,
                received_packets: seen.received,
                received_bytes: 0,
                lost_packets: seen.lost,
                loss_runs: seen.loss_runs,
                delay,
                late_packets: u32::from(seen.late),
            };
            let calm = path.is_calm(now);
            path.loss.on_feedback(now, &feedback_of_path, calm);
            path.protect(now);
            feedback.paths.push(feedback_of_path);
        }
        self.paths.owd.on_feedback(now, &feedback);
        self.ingress.scheduler.on_feedback(now, &feedback);
    }
}

/// Delays are known modulo 268 s: they fit 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "modulo 2^28 µs fits 32 bits"
)]
const fn wrap(us: i64) -> i32 {
    us as i32
}

fn saturate(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
