//! What each stage of a direction promises, singly and under arbitrary input.

use std::sync::Arc;

use proptest::prelude::*;
use ropewalk_types::Rate;

use super::*;
use crate::loss::GilbertElliott;
use crate::queue::{Aqm, Carried};
use crate::trace::CapacityTrace;

fn us(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn fixed(mbit: u64) -> Capacity {
    Capacity::Fixed(Rate::from_bits_per_sec(mbit * 1_000_000))
}

fn config() -> DirectionConfig {
    DirectionConfig {
        queue_packets_max: None,
        ..DirectionConfig::default()
    }
}

/// Polls at every timeout until nothing is left; arrivals with their times.
fn drain<T: Carried>(direction: &mut Direction<T>) -> Vec<(Instant, T)> {
    let mut arrivals = Vec::new();
    while let Some(at) = direction
        .poll_timeout()
        .filter(|at| *at < Instant::FAR_FUTURE)
    {
        while let Some(item) = direction.poll(at) {
            arrivals.push((at, item));
        }
    }
    arrivals
}

#[test]
fn a_lone_packet_takes_serialisation_and_delay() {
    let delay = Duration::from_millis(25);
    let mut direction = Direction::new(
        DirectionConfig {
            capacity: fixed(12),
            delay,
            ..config()
        },
        1,
    );
    assert!(direction.enqueue(ms(7), 1_500, ()).is_ok());
    assert_eq!(direction.poll_timeout(), Some(ms(7 + 1 + 25)));
    assert!(direction.poll(us(32_999)).is_none());
    assert!(direction.poll(ms(33)).is_some());
    assert_eq!(direction.poll_timeout(), None);
}

#[test]
fn packets_are_serialised_one_after_the_other_however_late_the_poll() {
    let mut direction = Direction::new(
        DirectionConfig {
            capacity: fixed(12),
            ..config()
        },
        1,
    );
    for i in 0..5 {
        assert!(direction.enqueue(ms(0), 1_500, i).is_ok());
    }
    // By 3.5 ms exactly three have left; a caller that comes only then gets these three.
    let mut early = Vec::new();
    while let Some(item) = direction.poll(us(3_500)) {
        early.push(item);
    }
    assert_eq!(early, [0, 1, 2]);
    assert_eq!(drain(&mut direction), [(ms(4), 3), (ms(5), 4)]);
}

#[test]
fn a_full_queue_drops_the_newcomer_by_bytes_and_by_packets() {
    let by_bytes = DirectionConfig {
        capacity: fixed(1),
        queue_bytes_max: Some(3_000),
        ..config()
    };
    let by_packets = DirectionConfig {
        capacity: fixed(1),
        queue_packets_max: Some(2),
        ..config()
    };
    for config in [by_bytes, by_packets] {
        let mut direction = Direction::new(config, 1);
        // One in service and two waiting fit.
        for i in 0..3 {
            assert!(direction.enqueue(ms(0), 1_500, i).is_ok());
        }
        let refused = direction.enqueue(ms(0), 1_500, 3).expect_err("full");
        assert_eq!((refused.reason, refused.item), (DropReason::Queue, 3));
        assert_eq!(direction.counters().dropped_queue, 1);
        assert_eq!(direction.counters().queued_bytes, 4_500);
        assert_eq!(direction.counters().queued_bytes_peak, 3_000);
        assert_eq!(drain(&mut direction).len(), 3);
    }
}

#[test]
fn packets_above_the_mtu_are_dropped_and_counted() {
    let mut direction = Direction::new(
        DirectionConfig {
            mtu: Some(1_280),
            ..config()
        },
        1,
    );
    assert!(direction.enqueue(ms(0), 1_280, ()).is_ok());
    let refused = direction.enqueue(ms(0), 1_281, ()).expect_err("too big");
    assert_eq!(refused.reason, DropReason::Mtu);
    assert_eq!(direction.counters().dropped_mtu, 1);
}

#[test]
fn a_blackhole_swallows_what_leaves_and_spares_what_is_on_its_way() {
    let delay = Duration::from_millis(10);
    let mut direction = Direction::new(DirectionConfig { delay, ..config() }, 1);
    let blackhole = |on| Change {
        blackhole: Some(on),
        ..Change::default()
    };
    assert!(direction.enqueue(ms(0), 100, 'a').is_ok());
    direction.apply(ms(1), &blackhole(true));
    assert!(direction.enqueue(ms(2), 100, 'b').is_ok());
    direction.apply(ms(3), &blackhole(false));
    assert!(direction.enqueue(ms(4), 100, 'c').is_ok());
    assert_eq!(drain(&mut direction), [(ms(10), 'a'), (ms(14), 'c')]);
    assert_eq!(direction.counters().dropped_blackhole, 1);
    assert_eq!(direction.poll_lost(), Some('b'));
}

#[test]
fn a_shorter_delay_does_not_let_packets_overtake() {
    let delay = Duration::from_millis(100);
    let mut direction = Direction::new(DirectionConfig { delay, ..config() }, 1);
    assert!(direction.enqueue(ms(0), 100, 'a').is_ok());
    let change = Change {
        delay: Some(Duration::from_millis(1)),
        ..Change::default()
    };
    direction.apply(ms(10), &change);
    assert!(direction.enqueue(ms(10), 100, 'b').is_ok());
    assert_eq!(drain(&mut direction), [(ms(100), 'a'), (ms(100), 'b')]);
}

#[test]
fn rate_zero_holds_packets_until_the_rate_returns() {
    let closed = DirectionConfig {
        capacity: Capacity::Fixed(Rate::ZERO),
        ..config()
    };
    let mut direction = Direction::new(closed, 1);
    assert!(direction.enqueue(ms(0), 1_500, ()).is_ok());
    assert!(direction.poll(ms(1_000_000)).is_none());
    let change = Change {
        capacity: Some(fixed(12)),
        ..Change::default()
    };
    direction.apply(ms(1_000_000), &change);
    assert_eq!(drain(&mut direction), [(ms(1_000_001), ())]);
}

#[test]
fn trace_capacity_is_the_throughput_of_a_saturated_link() {
    let csv = CapacityTrace::parse("t", "1,1250000\n2,250000\n").expect("valid");
    let opportunities = CapacityTrace::parse("t", "1\n3\n3\n10\n").expect("valid");
    for (trace, packet) in [(csv, 1_500), (opportunities, 1_504)] {
        let expected = trace.mean_rate();
        let capacity = Capacity::Trace(Arc::new(trace));
        let mut direction = Direction::new(
            DirectionConfig {
                capacity,
                ..config()
            },
            1,
        );
        let enough = expected.bytes_per_sec() * 12 / packet as u64;
        for _ in 0..enough {
            assert!(direction.enqueue(ms(0), packet, ()).is_ok());
        }
        while direction.poll(ms(10_000)).is_some() {}
        let bytes = direction.counters().delivered_bytes;
        let measured = Rate::from_transfer(bytes, Duration::from_secs(10)).bits_per_sec();
        let ratio = measured as f64 / expected.bits_per_sec() as f64;
        assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
    }
}

#[test]
fn jitter_has_its_mean_and_deviation_when_packets_are_far_apart() {
    let (delay, jitter) = (Duration::from_millis(50), Duration::from_millis(8));
    for reorder in [false, true] {
        let settings = DirectionConfig {
            delay,
            jitter,
            reorder,
            ..config()
        };
        let mut direction = Direction::new(settings, 3);
        let (n, mut sum, mut squares) = (20_000u32, 0.0, 0.0);
        for i in 0..u64::from(n) {
            // 200 ms apart: no deviate of 8 ms reaches the next packet.
            let sent = ms(i * 200);
            assert!(direction.enqueue(sent, 100, ()).is_ok());
            for (arrival, ()) in drain(&mut direction) {
                let seconds = arrival.since(sent).as_secs_f64();
                sum += seconds;
                squares += seconds * seconds;
            }
        }
        let mean = sum / f64::from(n);
        let deviation = (squares / f64::from(n) - mean * mean).sqrt();
        assert!((mean - 0.050).abs() < 0.0003, "mean {mean}");
        assert!(
            (deviation / 0.008 - 1.0).abs() < 0.03,
            "deviation {deviation}"
        );
    }
}

#[test]
fn reordering_happens_only_when_allowed() {
    let order = |reorder| {
        let settings = DirectionConfig {
            delay: Duration::from_millis(50),
            jitter: Duration::from_millis(8),
            reorder,
            ..config()
        };
        let mut direction = Direction::new(settings, 3);
        for i in 0..1_000u64 {
            assert!(direction.enqueue(us(i * 100), 100, i).is_ok());
        }
        let items: Vec<u64> = drain(&mut direction)
            .into_iter()
            .map(|(_, item)| item)
            .collect();
        assert_eq!(items.len(), 1_000);
        items.is_sorted()
    };
    assert!(order(false));
    assert!(!order(true));
}

#[test]
fn a_direction_counts_its_loss_bursts() {
    let chain = GilbertElliott::from_mean(0.05, 4.0).expect("feasible");
    let loss = LossModel::GilbertElliott(chain);
    let mut direction = Direction::new(DirectionConfig { loss, ..config() }, 11);
    for i in 0..400_000 {
        assert!(direction.enqueue(us(i), 100, ()).is_ok());
        let _ = direction.poll(us(i));
    }
    let counters = direction.counters();
    let loss = counters.dropped_loss as f64 / counters.sent_packets as f64;
    let burst = counters.dropped_loss as f64 / counters.loss_bursts as f64;
    assert!((loss / 0.05 - 1.0).abs() < 0.08, "loss {loss}");
    assert!((burst / 4.0 - 1.0).abs() < 0.06, "burst {burst}");
}

/// One thing done to a direction after a pause.
#[derive(Clone, Debug)]
enum Step {
    Enqueue(usize),
    Poll,
    Change(Change),
}

fn any_capacity() -> impl Strategy<Value = Capacity> {
    let trace = |text| {
        Capacity::Trace(Arc::new(
            CapacityTrace::parse("t", text).expect("a valid trace"),
        ))
    };
    prop_oneof![
        Just(Capacity::Unlimited),
        (0u64..50_000_000).prop_map(|bits| Capacity::Fixed(Rate::from_bits_per_sec(bits))),
        Just(trace("1,100000\n2,0\n3,5000000\n")),
        Just(trace("2\n2\n9\n40\n")),
    ]
}

fn any_loss() -> impl Strategy<Value = LossModel> {
    prop_oneof![
        Just(LossModel::None),
        (0.0..=1.0).prop_map(LossModel::Bernoulli),
        (0.01..0.5, 1.0..8.0f64).prop_map(|(loss, burst): (f64, f64)| {
            GilbertElliott::from_mean(loss, burst)
                .map_or(LossModel::None, LossModel::GilbertElliott)
        }),
    ]
}

/// Settings of queue management; with `fair` also a queue for each flow.
fn any_management(fair: bool) -> impl Strategy<Value = Change> {
    let kinds = if fair { 4_usize } else { 3 };
    let single = [Aqm::None, Aqm::CoDel, Aqm::Pie, Aqm::FqCoDel];
    let millis = || proptest::option::of((1u64..100).prop_map(Duration::from_millis));
    let kind = (0..kinds).prop_map(move |index| single[index]);
    (
        proptest::option::of(kind),
        proptest::option::of(any::<bool>()),
        proptest::option::of(millis()),
        proptest::option::of(millis()),
        proptest::option::of(millis()),
    )
        .prop_map(|(aqm, ecn, target, interval, threshold)| Change {
            aqm,
            ecn,
            aqm_target: target,
            aqm_interval: interval,
            ce_threshold: threshold,
            ..Change::default()
        })
}

fn any_change(reorder: bool, fair: bool) -> impl Strategy<Value = Change> {
    let limit = || proptest::option::of(proptest::option::of(0u64..20_000));
    let millis = || proptest::option::of((0u64..200).prop_map(Duration::from_millis));
    (
        proptest::option::of(any_capacity()),
        (millis(), millis()),
        proptest::option::of(any_loss()),
        (
            limit(),
            limit(),
            proptest::option::of(proptest::option::of(100u64..9_000)),
        ),
        proptest::option::of(any::<bool>()),
        proptest::option::of(any::<bool>()),
        any_management(fair),
    )
        .prop_map(
            move |(capacity, (delay, jitter), loss, limits, blackhole, reordering, aqm)| Change {
                capacity,
                delay,
                jitter,
                reorder: reordering.filter(|_| reorder),
                loss,
                queue_bytes_max: limits.0,
                queue_packets_max: limits.1,
                mtu: limits.2,
                blackhole,
                ..aqm
            },
        )
}

fn any_steps(reorder: bool, fair: bool) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        6 => (0usize..9_100).prop_map(Step::Enqueue),
        4 => Just(Step::Poll),
        1 => any_change(reorder, fair).prop_map(Step::Change),
    ];
    proptest::collection::vec((0u64..20_000, step), 0..200)
}

/// Carries out the steps; arrivals with their times, and the final counters.
fn run(steps: &[(u64, Step)], seed: u64) -> (Vec<(Instant, u64)>, Counters) {
    let mut direction = Direction::new(config(), seed);
    let (mut now, mut arrivals, mut number) = (0, Vec::new(), 0);
    for (pause, step) in steps {
        now += pause;
        match step {
            Step::Enqueue(bytes) => {
                let _refused = direction.enqueue(us(now), *bytes, number);
                number += 1;
            }
            Step::Poll => {
                let due = direction.poll_timeout().is_some_and(|at| at <= us(now));
                while let Some(item) = direction.poll(us(now)) {
                    assert!(due, "something arrived before the timeout said so");
                    arrivals.push((us(now), item));
                }
            }
            Step::Change(change) => direction.apply(us(now), change),
        }
        let c = direction.counters();
        assert_eq!(
            c.sent_packets,
            c.delivered_packets + c.dropped() + c.queued_packets + c.in_flight_packets
        );
    }
    (arrivals, direction.counters())
}

proptest! {
    #[test]
    fn every_packet_is_delivered_dropped_or_inside(steps in any_steps(true, true), seed: u64) {
        let (arrivals, counters) = run(&steps, seed);
        prop_assert_eq!(arrivals.len() as u64, counters.delivered_packets);
    }

    #[test]
    fn order_is_kept_whatever_changes(steps in any_steps(false, false), seed: u64) {
        let (arrivals, _) = run(&steps, seed);
        prop_assert!(arrivals.is_sorted());
        prop_assert!(arrivals.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn order_within_a_flow_is_kept_whatever_the_management(
        steps in any_steps(false, true), seed: u64,
    ) {
        let (arrivals, _) = run(&steps, seed);
        for flow in 0..5 {
            let mut numbers = arrivals.iter().map(|(_, number)| *number);
            prop_assert!(numbers.by_ref().filter(|n| n % 5 == flow).is_sorted());
        }
    }

    #[test]
    fn same_seed_and_steps_give_the_same_result(steps in any_steps(true, true), seed: u64) {
        prop_assert_eq!(run(&steps, seed), run(&steps, seed));
    }

    #[test]
    fn results_do_not_depend_on_how_often_the_caller_polls(
        steps in any_steps(false, true), seed: u64,
    ) {
        let mut often = Vec::new();
        for (pause, step) in &steps {
            often.extend([(pause / 2, Step::Poll), (pause - pause / 2, step.clone())]);
        }
        let never: Vec<_> = steps
            .iter()
            .map(|(pause, step)| match step {
                Step::Poll => (*pause, Step::Change(Change::default())),
                Step::Enqueue(_) | Step::Change(_) => (*pause, step.clone()),
            })
            .collect();
        let (a, b) = (run(&often, seed).1, run(&never, seed).1);
        let outcome = |c: Counters| {
            let left = c.delivered_packets + c.in_flight_packets;
            (
                (c.sent_bytes, left, c.dropped_queue, c.dropped_loss, c.queued_bytes),
                (c.dropped_aqm, c.marked),
            )
        };
        prop_assert_eq!(outcome(a), outcome(b));
    }
}
