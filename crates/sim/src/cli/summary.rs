//! Several seeds of one plan: means and their 95 % intervals, by Student's t.

use ropewalk_plan::Report;
use std::io::{Result, Write};

/// Runs, at least, for an interval: two runs say next to nothing of how far they stray.
const RUNS_MIN: usize = 3;

/// Prints a summary after the runs of each plan that ran more than once. `reports` are in the
/// order of their plans.
pub fn print(out: &mut impl Write, reports: &[Report]) -> Result<()> {
    for runs in reports.chunk_by(|a, b| a.plan == b.plan && a.traffic.len() == b.traffic.len()) {
        if let [first, .., last] = runs {
            writeln!(
                out,
                "{}, seeds {} to {}: means of {} runs{}",
                first.plan,
                first.seed,
                last.seed,
                runs.len(),
                if runs.len() < RUNS_MIN {
                    ", too few for an interval"
                } else {
                    " and their 95 % intervals"
                }
            )?;
            for section in 0..first.traffic.len() {
                print_section(out, runs, section)?;
            }
        }
    }
    Ok(())
}

fn print_section(out: &mut impl Write, runs: &[Report], section: usize) -> Result<()> {
    let traffic = || runs.iter().map(|run| &run.traffic[section]);
    write!(out, "  {:5}", runs[0].traffic[section].kind)?;
    if traffic().any(|report| !report.flows.is_empty()) {
        let mbit: Vec<f64> = traffic().map(|report| report.goodput_mbit).collect();
        write!(out, " {} Mbit/s", mean(&mbit))?;
    }
    let delays: Vec<_> = traffic()
        .filter_map(|report| report.delay_ms.as_ref())
        .collect();
    if !delays.is_empty() {
        let means: Vec<f64> = delays.iter().map(|delay| delay.mean).collect();
        let high: Vec<f64> = delays.iter().map(|delay| delay.p95).collect();
        write!(out, " mean {} ms, 95 % {}", mean(&means), mean(&high))?;
    }
    let in_time: Vec<f64> = traffic().filter_map(|report| report.in_time).collect();
    if !in_time.is_empty() {
        let percent: Vec<f64> = in_time.iter().map(|share| 100.0 * share).collect();
        write!(out, ", {} % in time", mean(&percent))?;
    }
    writeln!(out)
}

/// `36.34 (36.30 to 36.38)`.
fn mean(values: &[f64]) -> String {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < RUNS_MIN {
        return format!("{mean:.2}");
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let half = t_quantile(values.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    format!("{mean:.2} ({:.2} to {:.2})", mean - half, mean + half)
}

/// The 97.5 % quantile of Student's t. Between the rows of the table the larger value holds.
fn t_quantile(freedom: usize) -> f64 {
    let row = T975.iter().rev().find(|&&(from, _)| freedom >= from);
    row.map_or(f64::INFINITY, |&(_, quantile)| quantile)
}

const T975: [(usize, f64); 18] = [
    (2, 4.303),
    (3, 3.182),
    (4, 2.776),
    (5, 2.571),
    (6, 2.447),
    (7, 2.365),
    (8, 2.306),
    (9, 2.262),
    (10, 2.228),
    (12, 2.179),
    (14, 2.145),
    (16, 2.120),
    (19, 2.093),
    (24, 2.064),
    (29, 2.045),
    (40, 2.021),
    (60, 2.000),
    (120, 1.980),
];

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_plan::TrafficReport;

    fn run(plan: &str, seed: u64, goodput_mbit: f64) -> Report {
        let traffic = TrafficReport {
            kind: "tcp".into(),
            goodput_mbit,
            flows: vec![ropewalk_plan::FlowReport::default()],
            ..TrafficReport::default()
        };
        Report {
            plan: plan.into(),
            seed,
            traffic: vec![traffic],
            ..Report::default()
        }
    }

    #[test]
    fn each_plan_gets_the_mean_of_its_seeds_and_students_interval() {
        let mut reports: Vec<Report> = (1..=5).map(|n| run("a", n, n as f64)).collect();
        reports.extend([run("b", 1, 2.0), run("b", 2, 4.0), run("c", 1, 7.0)]);
        let mut out = Vec::new();
        print(&mut out, &reports).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a, seeds 1 to 5: means of 5 runs and their 95 % intervals\n  \
             tcp   3.00 (1.04 to 4.96) Mbit/s\n\
             b, seeds 1 to 2: means of 2 runs, too few for an interval\n  \
             tcp   3.00 Mbit/s\n"
        );
    }
}
