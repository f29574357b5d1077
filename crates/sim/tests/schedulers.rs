//! What schedulers promise TCP connections, through a whole tunnel over emulated paths.

use ropewalk_core::schedule::SchedulerKind;
use ropewalk_plan::{Plan, Report};
use ropewalk_sim::run;

/// One path in both directions: rate in Mbit/s, round-trip time in ms, loss of data in percent.
#[derive(Clone, Copy, Debug)]
struct Wire(u32, u32, f64);

/// The three path pairs of the HTMT paper.
const PAPER: [[Wire; 2]; 3] = [
    [Wire(8, 50, 0.0), Wire(8, 50, 0.0)],
    [Wire(16, 50, 0.0), Wire(8, 70, 0.0)],
    [Wire(8, 50, 0.0), Wire(16, 70, 0.0)],
];

/// So many CUBIC connections and a ping over a tunnel, 12 s of which the first 4 do not count.
fn report(kind: SchedulerKind, wires: &[Wire], flows: u32, seed: u64) -> Report {
    let mut text = format!(
        "name = \"test\"\nduration = \"12s\"\nwarmup = \"4s\"\n[carrier]\nkind = \"tunnel\"\n\
         scheduler = \"{kind}\"\n[[traffic]]\nkind = \"tcp\"\nflows = {flows}\n\
         [[traffic]]\nkind = \"ping\"\n"
    );
    for (index, Wire(mbit, rtt, loss)) in wires.iter().enumerate() {
        let delay = f64::from(*rtt) / 2.0;
        text += &format!(
            "[[path]]\nname = \"p{index}\"\ndown.loss = \"{loss}%\"\n\
             both = {{ rate = \"{mbit}Mbit\", delay = \"{delay}ms\", queue = \"128KiB\" }}\n"
        );
    }
    run(&Plan::parse(&text).expect("a valid plan"), seed).expect("a run")
}

/// Goodput over the sum of the path rates, overhead allowed.
fn utilisation(report: &Report) -> f64 {
    report.traffic[0].goodput_mbit / report.ceiling_mbit
}

#[test]
fn auto_and_htmt_reach_the_sum_of_uneven_paths_with_five_flows() {
    for kind in [SchedulerKind::Auto, SchedulerKind::Htmt] {
        for wires in &PAPER {
            let share = utilisation(&report(kind, wires, 5, 1));
            assert!(share > 0.95, "{kind} {wires:?}: {share}");
        }
    }
}

#[test]
fn auto_and_htmt_reorder_far_less_than_low_rtt() {
    let reordered = |kind| {
        let tunnel = report(kind, &PAPER[1], 5, 1).tunnel.expect("a tunnel");
        tunnel.reordered as f64 / tunnel.delivered as f64
    };
    let low_rtt = reordered(SchedulerKind::LowRtt);
    for kind in [SchedulerKind::Auto, SchedulerKind::Htmt] {
        let share = reordered(kind);
        assert!(share < low_rtt / 2.0, "{kind}: {share} of {low_rtt}");
    }
}

#[test]
fn auto_is_never_worse_than_the_best_path() {
    let good = Wire(10, 40, 0.0);
    // Least share of the best path's rate with one connection and with five. One connection misses
    // 0.95 beside the narrow path: each packet that this path loses stalls the whole connection.
    // Over 40 seeds its mean is 0.852 ± 0.012 with CUBIC that counts in fractions of a segment, and
    // 0.851 ± 0.014 in whole segments, as the simulator counts now (95 % intervals). So both are
    // the same, and 0.85 is the mean, which five seeds meet by chance. Single seeds stray by 0.043,
    // means of five by 0.019: two standard errors below the mean are 0.81. The bound is below that.
    for (other, least) in [
        (Wire(10, 40, 15.0), [0.95, 1.1]),
        (Wire(5, 700, 0.0), [0.97, 0.97]),
        (Wire(1, 40, 2.0), [0.80, 1.05]),
    ] {
        for (flows, least) in [1, 5].into_iter().zip(least) {
            // One connection over lossy paths strays by some per cent from run to run.
            let runs = [1, 2, 3, 4, 5].map(|seed| {
                let report = report(SchedulerKind::Auto, &[other, good], flows, seed);
                utilisation(&report) * f64::from(good.0 + other.0) / f64::from(good.0)
            });
            let mean = runs.iter().sum::<f64>() / runs.len() as f64;
            assert!(mean > least, "{flows} flows beside {other:?}: {runs:?}");
        }
    }
}

#[test]
fn small_packets_keep_the_delay_of_the_fast_path_beside_bulk() {
    let report = report(SchedulerKind::Auto, &PAPER[1], 5, 1);
    let ping = report.traffic[1].delay_ms.expect("answers");
    // 50 ms on the way, 7 ms for the burst of the pacer, 7 ms for ingress and serialisation.
    assert!(ping.mean < 65.0, "{ping:?}");
}
