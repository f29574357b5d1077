//! Bytes delivered over time, one series per connection, and the figures that follow.

use std::time::Duration;

use ropewalk_plan::{FlowReport, TrafficReport};

use super::Window;

/// Bytes that each connection delivered in equal steps from a time on.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// When the first step begins, after the start of the plan.
    pub(super) begin: Duration,
    /// Length of a step.
    pub(super) step: Duration,
    /// Bytes per step, for each connection.
    pub(super) flows: Vec<Vec<u64>>,
}

impl Series {
    /// Mbit/s of one connection between two times; a step partly inside counts in part.
    fn mbit(&self, flow: &[u64], from: Duration, to: Duration) -> f64 {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let (step, mut at) = (self.step.as_secs_f64(), self.begin.as_secs_f64());
        let mut bytes = 0.0;
        for &carried in flow {
            let inside = (at + step).min(to) - at.max(from);
            if inside > 0.0 {
                #[expect(clippy::cast_precision_loss, reason = "bytes of a step are below 2^53")]
                let carried = carried as f64;
                bytes += carried * inside / step;
            }
            at += step;
        }
        if to > from {
            bytes * 8.0 / 1e6 / (to - from)
        } else {
            0.0
        }
    }

    /// Longest time within the window in which no connection delivered anything, to a step.
    fn longest_stall(&self, window: Window) -> Duration {
        let steps = self.flows.iter().map(Vec::len).max().unwrap_or(0);
        let mut last = window.from;
        let mut longest = Duration::ZERO;
        let mut at = self.begin;
        for step in 0..steps {
            let carried = self
                .flows
                .iter()
                .any(|f| f.get(step).is_some_and(|&b| b > 0));
            if carried && at + self.step > window.from && at < window.to {
                longest = longest.max(at.saturating_sub(last));
                last = last.max(at + self.step);
            }
            at += self.step;
        }
        longest.max(window.to.saturating_sub(last))
    }

    /// The report of bulk traffic; `flows` brings what is known of each connection otherwise.
    pub(super) fn report(
        &self,
        kind: &str,
        start: Duration,
        window: Window,
        mut flows: Vec<FlowReport>,
    ) -> TrafficReport {
        flows.resize_with(flows.len().max(self.flows.len()), FlowReport::default);
        for (report, bytes) in flows.iter_mut().zip(&self.flows) {
            report.goodput_mbit = self.mbit(bytes, window.from, window.to);
        }
        let second = Duration::from_secs(1);
        let seconds = u32::try_from(window.to.as_secs()).unwrap_or(u32::MAX);
        let series_mbit = (0..seconds).map(|index| {
            let from = second * index;
            let flows = self.flows.iter();
            flows.map(|flow| self.mbit(flow, from, from + second)).sum()
        });
        let counted = Window {
            from: window.from.max(start),
            to: window.to,
        };
        TrafficReport {
            kind: kind.into(),
            goodput_mbit: flows.iter().map(|flow| flow.goodput_mbit).sum(),
            series_mbit: series_mbit.collect(),
            longest_stall_seconds: Some(self.longest_stall(counted).as_secs_f64()),
            flows,
            ..TrafficReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn window(from: u64, to: u64) -> Window {
        Window {
            from: ms(from),
            to: ms(to),
        }
    }

    #[test]
    fn steps_partly_inside_count_in_part_and_the_rest_is_cut() {
        let series = Series {
            begin: ms(250),
            step: ms(500),
            flows: vec![vec![62_500, 125_000, 0, 125_000], vec![0, 62_500, 0, 0]],
        };
        let report = series.report("tcp", ms(0), window(1_000, 2_000), Vec::new());
        // Steps of the first flow: 250..750, 750..1250, 1250..1750, 1750..2250.
        assert!((report.flows[0].goodput_mbit - 1.0).abs() < 1e-9);
        assert!((report.flows[1].goodput_mbit - 0.25).abs() < 1e-9);
        assert!((report.goodput_mbit - 1.25).abs() < 1e-9);
        assert_eq!(report.series_mbit.len(), 2);
        assert!((report.series_mbit[0] - 1.25).abs() < 1e-9);
        assert_eq!(report.longest_stall_seconds, Some(0.5));
    }

    #[test]
    fn a_stall_reaches_over_the_edges_of_the_window_and_ends_with_any_flow() {
        let mut series = Series {
            begin: ms(0),
            step: ms(100),
            flows: vec![vec![9; 50], vec![0; 50]],
        };
        series.flows[0][8..25].fill(0);
        series.flows[0][40..].fill(0);
        assert_eq!(series.longest_stall(window(0, 5_000)), ms(1_700));
        assert_eq!(series.longest_stall(window(1_000, 4_000)), ms(1_500));
        assert_eq!(series.longest_stall(window(3_000, 6_000)), ms(2_000));
        series.flows[1][20] = 1;
        assert_eq!(series.longest_stall(window(0, 4_000)), ms(1_200));
        let nothing = Series::default();
        assert_eq!(nothing.longest_stall(window(0, 1_000)), ms(1_000));
    }
}
