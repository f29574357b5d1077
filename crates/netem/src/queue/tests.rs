//! What managed queues promise: turns of flows, marks, drops, and the parameters of the RFCs.

use super::*;
use crate::capacity::Capacity;
use crate::direction::{Change, Direction};
use ropewalk_types::Rate;

/// Packets of tests: flow, number, and whether it can be marked or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    flow: u64,
    ecn: Ecn,
}

impl Carried for Packet {
    fn flow(&self) -> u64 {
        self.flow
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

impl Carried for char {}
impl Carried for i32 {}

/// Every third number can be marked, and there are five flows.
impl Carried for u64 {
    fn flow(&self) -> u64 {
        self % 5
    }

    fn ecn(&self) -> Ecn {
        if self.is_multiple_of(3) {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        }
    }
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// 12 Mbit/s: one full packet in a millisecond.
fn config(aqm: Aqm) -> DirectionConfig {
    DirectionConfig {
        capacity: Capacity::Fixed(Rate::from_bits_per_sec(12_000_000)),
        queue_packets_max: Some(1_000),
        aqm,
        ..DirectionConfig::default()
    }
}

fn packet(flow: u64, ecn: Ecn) -> Packet {
    Packet { flow, ecn }
}

/// Sends `per_ms` full packets of each of these flows in every millisecond; what arrived, by flow,
/// and how much of it was marked.
fn overload(
    direction: &mut Direction<Packet>,
    flows: &[(u64, Ecn, u64)],
    until_ms: u64,
) -> Vec<(u64, u64)> {
    let mut arrived = vec![(0, 0); flows.len()];
    for at in 0..until_ms {
        for &(flow, ecn, per_ms) in flows {
            for _ in 0..per_ms {
                let _refused = direction.enqueue(ms(at), 1_500, packet(flow, ecn));
            }
        }
        while let Some(packet) = direction.poll(ms(at)) {
            let place = flows.iter().position(|(flow, ..)| *flow == packet.flow);
            let (count, marked) = &mut arrived[place.unwrap()];
            *count += 1;
            *marked += u64::from(packet.ecn == Ecn::Ce);
        }
    }
    arrived
}

#[test]
fn each_management_drops_from_a_standing_queue_what_cannot_be_marked_and_marks_the_rest() {
    for aqm in [Aqm::CoDel, Aqm::FqCoDel, Aqm::Pie] {
        for (ecn, can) in [(false, Ecn::Ect0), (true, Ecn::NotEct), (true, Ecn::Ect1)] {
            let settings = DirectionConfig { ecn, ..config(aqm) };
            let mut direction = Direction::new(settings, 1);
            let sent = |at: u64| 1 + u64::from(at.is_multiple_of(20));
            let mut marked = 0;
            for at in 0..1_500 {
                for _ in 0..sent(at) {
                    let _refused = direction.enqueue(ms(at), 1_500, packet(1, can));
                }
                while let Some(packet) = direction.poll(ms(at)) {
                    marked += u64::from(packet.ecn == Ecn::Ce);
                }
            }
            let counters = direction.counters();
            let marks = ecn && can != Ecn::NotEct;
            assert_eq!(counters.marked > 0, marks, "{aqm:?} {counters:?}");
            // PIE drops beyond a tenth, whatever could be marked.
            let drops = counters.dropped_aqm > 0;
            assert!(drops != marks || aqm == Aqm::Pie, "{aqm:?} {counters:?}");
            assert!(marked <= counters.marked);
        }
    }
}

#[test]
fn flows_with_a_queue_each_share_evenly_whatever_they_send_and_a_sparse_one_does_not_wait() {
    let mut direction = Direction::new(config(Aqm::FqCoDel), 1);
    let flows = [(1, Ecn::NotEct, 8), (2, Ecn::NotEct, 2)];
    let arrived = overload(&mut direction, &flows, 4_000);
    let share = arrived[0].0 as f64 / (arrived[0].0 + arrived[1].0) as f64;
    assert!((share - 0.5).abs() < 0.02, "{arrived:?}");
    // One packet being sent and one turn of each of the two are ahead.
    assert!(
        direction
            .enqueue(ms(4_000), 100, packet(3, Ecn::NotEct))
            .is_ok()
    );
    while let Some(packet) = direction.poll(ms(4_003)) {
        if packet.flow == 3 {
            return;
        }
    }
    panic!("the sparse flow waits");
}

#[test]
fn the_fattest_flow_pays_when_all_queues_are_full_together() {
    let settings = DirectionConfig {
        queue_packets_max: Some(50),
        ..config(Aqm::FqCoDel)
    };
    let mut direction = Direction::new(settings, 1);
    assert!(
        direction
            .enqueue(ms(0), 1_500, packet(1, Ecn::NotEct))
            .is_ok()
    );
    for _ in 0..10 {
        assert!(
            direction
                .enqueue(ms(0), 1_500, packet(2, Ecn::NotEct))
                .is_ok()
        );
    }
    for _ in 0..500 {
        assert!(
            direction
                .enqueue(ms(0), 1_500, packet(1, Ecn::NotEct))
                .is_ok()
        );
    }
    let counters = direction.counters();
    assert_eq!((counters.queued_packets, counters.dropped_queue), (51, 460));
    let mut second = 0;
    while let Some(packet) = direction.poll(ms(60)) {
        second += u64::from(packet.flow == 2);
    }
    assert_eq!(second, 10, "the small flow lost nothing");
}

#[test]
fn a_step_threshold_marks_what_waited_longer_also_without_management() {
    let settings = DirectionConfig {
        ce_threshold: Some(Duration::from_millis(3)),
        ..config(Aqm::None)
    };
    let mut direction = Direction::new(settings, 1);
    for _ in 0..10 {
        assert!(
            direction
                .enqueue(ms(0), 1_500, packet(1, Ecn::Ect0))
                .is_ok()
        );
    }
    let marks: Vec<bool> = std::iter::from_fn(|| direction.poll(ms(50)))
        .map(|packet| packet.ecn == Ecn::Ce)
        .collect();
    // The first does not wait; the fourth that waits does so for 4 ms.
    assert_eq!(
        marks.iter().position(|marked| *marked),
        Some(4),
        "{marks:?}"
    );
    assert!(marks[4..].iter().all(|marked| *marked));
    assert_eq!(direction.counters().marked, 6);
}

#[test]
fn pie_keeps_the_delay_of_an_unanswering_overload_bounded_and_codel_does_not() {
    // 1.25 times the capacity that never slows down: PIE's probability settles at a fifth.
    let waits = |aqm| {
        let mut direction = Direction::new(config(aqm), 1);
        for at in 0..60_000 {
            for _ in 0..=u64::from(at % 4 == 0) {
                let _refused = direction.enqueue(ms(at), 1_500, packet(1, Ecn::NotEct));
            }
            while direction.poll(ms(at)).is_some() {}
        }
        direction.counters().queued_packets
    };
    assert!(waits(Aqm::Pie) < 60, "{} ms", waits(Aqm::Pie));
    assert!(waits(Aqm::None) >= 999);
}

#[test]
fn a_change_of_management_keeps_what_waits_in_its_order() {
    let mut direction = Direction::new(config(Aqm::FqCoDel), 1);
    for flow in [1, 2, 2, 1, 3, 2] {
        assert!(
            direction
                .enqueue(ms(0), 1_500, packet(flow, Ecn::NotEct))
                .is_ok()
        );
    }
    let change = Change {
        aqm: Some(Aqm::None),
        ..Change::default()
    };
    direction.apply(ms(0), &change);
    let mut order: Vec<u64> = std::iter::from_fn(|| direction.poll(ms(20)))
        .map(|packet| packet.flow)
        .collect();
    order.sort_unstable();
    assert_eq!(order, [1, 1, 2, 2, 2, 3]);
}
