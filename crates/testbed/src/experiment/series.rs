//! Bytes delivered over time, one series per connection, and the figures that follow.

use std::time::Duration;

use ropewalk_plan::{FlowReport, TrafficReport};

use super::Window;

/// Bytes that one connection delivered, in equal steps from a time on.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// When the first step begins, after the start of the plan.
    pub(super) begin: Duration,
    /// Length of a step.
    pub(super) step: Duration,
    /// Bytes of each step.
    pub(super) bytes: Vec<u64>,
}

/// The series of all connections of one kind of traffic.
#[derive(Clone, Debug, Default)]
pub(super) struct AllSeries(pub(super) Vec<Series>);

impl Series {
    /// Mbit/s between two times; a step partly inside counts in part.
    fn mbit(&self, from: Duration, to: Duration) -> f64 {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let (step, mut at) = (self.step.as_secs_f64(), self.begin.as_secs_f64());
        let mut bytes = 0.0;
        for &carried in &self.bytes {
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

    /// Begin and end of the steps in which something came.
    fn busy(&self) -> impl Iterator<Item = (Duration, Duration)> {
        let begins = (0..).map(|index| self.begin + self.step * index);
        let steps = begins.zip(&self.bytes).filter(|(_, bytes)| **bytes > 0);
        steps.map(|(begin, _)| (begin, begin + self.step))
    }
}

impl AllSeries {
    /// Longest time within the window in which no connection delivered anything, to a step.
    fn longest_stall(&self, window: Window) -> Duration {
        let mut busy: Vec<_> = self.0.iter().flat_map(Series::busy).collect();
        busy.retain(|&(begin, end)| end > window.from && begin < window.to);
        busy.sort_unstable();
        let (mut last, mut longest) = (window.from, Duration::ZERO);
        for (begin, end) in busy {
            longest = longest.max(begin.saturating_sub(last));
            last = last.max(end);
        }
        longest.max(window.to.saturating_sub(last))
    }

    /// The report of bulk traffic that goes on in the time `active`; `flows` brings what is known
    /// of each connection otherwise.
    pub(super) fn report(
        &self,
        kind: &str,
        active: Window,
        window: Window,
        mut flows: Vec<FlowReport>,
    ) -> TrafficReport {
        flows.resize_with(flows.len().max(self.0.len()), FlowReport::default);
        for (report, series) in flows.iter_mut().zip(&self.0) {
            report.goodput_mbit = series.mbit(window.from, window.to);
        }
        let second = Duration::from_secs(1);
        let seconds = u32::try_from(window.to.as_secs()).unwrap_or(u32::MAX);
        let series_mbit = (0..seconds).map(|index| {
            let from = second * index;
            let flows = self.0.iter();
            flows.map(|flow| flow.mbit(from, from + second)).sum()
        });
        let counted = Window {
            from: window.from.max(active.from),
            to: window.to.min(active.to),
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

    fn series(begin: u64, step: u64, bytes: &[u64]) -> Series {
        Series {
            begin: ms(begin),
            step: ms(step),
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn steps_partly_inside_count_in_part_and_the_rest_is_cut() {
        // Steps of the first flow: 250..750, 750..1250, 1250..1750, 1750..2250.
        let all = AllSeries(vec![
            series(250, 500, &[62_500, 125_000, 0, 125_000]),
            series(250, 500, &[0, 62_500, 0, 0]),
        ]);
        let report = all.report("tcp", window(0, 2_000), window(1_000, 2_000), Vec::new());
        assert!((report.flows[0].goodput_mbit - 1.0).abs() < 1e-9);
        assert!((report.flows[1].goodput_mbit - 0.25).abs() < 1e-9);
        assert!((report.goodput_mbit - 1.25).abs() < 1e-9);
        assert_eq!(report.series_mbit.len(), 2);
        assert!((report.series_mbit[0] - 1.25).abs() < 1e-9);
        assert_eq!(report.longest_stall_seconds, Some(0.5));
    }

    #[test]
    fn a_stall_reaches_over_the_edges_of_the_window_and_ends_with_any_flow() {
        let mut bytes = vec![9; 50];
        bytes[8..25].fill(0);
        bytes[40..].fill(0);
        let mut all = AllSeries(vec![series(0, 100, &bytes)]);
        assert_eq!(all.longest_stall(window(0, 5_000)), ms(1_700));
        assert_eq!(all.longest_stall(window(1_000, 4_000)), ms(1_500));
        assert_eq!(all.longest_stall(window(3_000, 6_000)), ms(2_000));
        all.0.push(series(2_000, 50, &[0, 1]));
        assert_eq!(all.longest_stall(window(0, 4_000)), ms(1_250));
        let nothing = AllSeries::default();
        assert_eq!(nothing.longest_stall(window(0, 1_000)), ms(1_000));
    }
}
