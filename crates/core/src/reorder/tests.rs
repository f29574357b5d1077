use super::tuning::BEGINNING;
use super::*;
use proptest::prelude::*;
use ropewalk_wire::Stamp;

fn header(seq: u16, sent_ms: u64, ordered: bool) -> DataHeader {
    DataHeader {
        stamp: Stamp {
            path_seq: 0,
            sent_at: Timestamp::from_instant(Instant::from_millis(sent_ms)),
        },
        ordered,
        flow: 7,
        flow_seq: seq,
        ..DataHeader::default()
    }
}

fn inner(seq: u16) -> Inner {
    Inner::whole(Bytes::copy_from_slice(&seq.to_be_bytes()), false)
}

struct Egress(Reorder);

impl Egress {
    fn arrive(&mut self, now_ms: u64, path: u8, seq: u16, sent_ms: u64) -> Vec<u16> {
        let now = Instant::from_millis(now_ms);
        let header = header(seq, sent_ms, true);
        self.0.on_path_heard(now, PathId(path), header.stamp);
        self.0.on_packet(now, &header, inner(seq));
        self.0.release_due(now);
        self.taken()
    }

    fn taken(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.0.poll())
            .map(|i| u16::from_be_bytes([i.data[0], i.data[1]]))
            .collect()
    }
}

fn new_egress() -> Egress {
    Egress(Reorder::new())
}

/// An egress that has delivered number 0.
fn egress() -> Egress {
    let mut egress = new_egress();
    egress
        .0
        .on_packet(Instant::ZERO, &header(0, 0, true), inner(0));
    assert_eq!(egress.taken(), [0]);
    egress
}

#[test]
fn a_packet_from_the_fast_path_waits_for_the_slow_one() {
    let mut egress = egress();
    assert_eq!(egress.arrive(100, 0, 1, 90), [1]);
    assert_eq!(egress.arrive(101, 1, 2, 60), [2]);
    assert_eq!(
        egress.arrive(102, 0, 4, 92),
        [0u16; 0],
        "3 is on the slow path"
    );
    assert_eq!(egress.arrive(110, 1, 3, 91), [3, 4]);
    assert_eq!(egress.0.stats().held, 1);
    assert_eq!(egress.0.stats().hold_timeouts, 0);
}

#[test]
fn a_loss_is_given_up_once_every_path_is_past_it() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    egress.arrive(101, 1, 2, 71);
    assert_eq!(egress.arrive(103, 0, 4, 93), [0u16; 0]);
    assert_eq!(
        egress.arrive(104, 0, 5, 94),
        [0u16; 0],
        "path 1 may still bring 3"
    );
    assert_eq!(
        egress.arrive(106, 1, 6, 95),
        [4, 5, 6],
        "nothing sent before 94 is under way"
    );
    assert_eq!(egress.0.stats().hold_timeouts, 0);
}

#[test]
fn a_hold_ends_by_time_when_the_other_path_is_silent() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    egress.arrive(101, 1, 2, 71);
    assert_eq!(egress.arrive(103, 0, 4, 93), [0u16; 0]);
    let at = egress.0.poll_timeout().expect("a deadline");
    assert!(at <= Instant::from_millis(103) + HOLD_MAX);
    egress.0.release_due(at);
    assert_eq!(egress.taken(), [4]);
    assert_eq!(egress.0.stats().hold_timeouts, 1);
    assert_eq!(
        egress.arrive(400, 1, 3, 92),
        [3],
        "late is better than lost"
    );
    assert_eq!(egress.0.stats().late, 1);
    assert_eq!(egress.0.poll_timeout(), None);
}

/// Ten packets are sent each millisecond. One path brings some of them later than half of all numbers take.
#[test]
fn a_path_that_lags_by_more_than_half_of_the_numbers_takes_no_place_of_others() {
    const LAG: u32 = 40_000;
    let mut egress = egress();
    let mut arrive = |at: u32, path: u8, number: u32| {
        let sent = Instant::from_nanos(u64::from(number) * 100_000);
        let now = Instant::from_nanos(u64::from(at) * 100_000) + Duration::from_millis(10);
        let stamp = Stamp {
            path_seq: 0,
            sent_at: Timestamp::from_instant(sent),
        };
        let header = DataHeader {
            stamp,
            ..header(number as u16, 0, true)
        };
        let data = Bytes::copy_from_slice(&number.to_be_bytes());
        egress.0.on_path_heard(now, PathId(path), stamp);
        egress.0.on_packet(now, &header, Inner::whole(data, false));
        egress.0.release_due(now);
        std::iter::from_fn(|| egress.0.poll())
            .map(|i| u32::from_be_bytes(i.data[..].try_into().expect("four bytes")))
            .collect::<Vec<_>>()
    };
    let mut out = Vec::new();
    for number in 1..100_000 {
        if !(1_000..1_500).contains(&number) {
            out.extend(arrive(number, 0, number));
        }
        let late = number.wrapping_sub(LAG);
        if (1_000..1_500).contains(&late) {
            out.extend(arrive(number, 1, late));
        }
    }
    assert_eq!(out.len(), 99_999, "each packet comes out once");
    let newest: Vec<u32> = out.iter().copied().filter(|n| *n >= 50_000).collect();
    assert!(newest.is_sorted(), "late ones disturb no order");
    out.sort_unstable();
    assert!(out.iter().copied().eq(1..100_000));
}

/// Every second packet is lost, in many flows.
#[test]
fn what_is_held_stays_within_its_room_and_nothing_is_lost() {
    const ROOM: u64 = 100_000;
    let mut egress = Reorder::new();
    egress.set_room(ROOM);
    let (mut came, mut most) = (0, 0);
    for step in 0..2_000_u16 {
        let now = Instant::from_millis(100 + u64::from(step / 100));
        let header = DataHeader {
            flow: step % 16,
            ..header(step / 16 * 2, 100, true)
        };
        egress.on_packet(now, &header, Inner::whole(vec![0; 1_400].into(), false));
        assert!(egress.memory() <= ROOM, "{} bytes", egress.memory());
        most = most.max(egress.memory());
        came += std::iter::from_fn(|| egress.poll()).count();
    }
    assert!(most > ROOM / 2, "{most} bytes");
    egress.release_due(Instant::from_millis(10_000));
    came += std::iter::from_fn(|| egress.poll()).count();
    egress.release_due(Instant::from_millis(20_000));
    came += std::iter::from_fn(|| egress.poll()).count();
    assert_eq!(came, 2_000);
    egress.forget_idle(Instant::from_millis(20_000));
    assert_eq!(egress.memory(), 0);
}

#[test]
fn unordered_flows_are_never_held() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let now = Instant::from_millis(101);
    egress.0.on_packet(now, &header(5, 91, false), inner(5));
    egress.0.on_packet(now, &header(3, 91, false), inner(3));
    assert_eq!(egress.taken(), [5, 3]);
}

#[test]
fn copies_are_removed_whether_delivered_or_held() {
    let mut egress = egress();
    assert_eq!(egress.arrive(100, 0, 1, 90), [1]);
    assert_eq!(egress.arrive(101, 1, 1, 90), [0u16; 0]);
    egress.arrive(102, 0, 3, 92);
    egress.arrive(103, 1, 3, 80);
    assert_eq!(egress.arrive(104, 1, 2, 91), [2, 3]);
    assert_eq!(egress.0.stats().duplicates, 2);
}

#[test]
fn a_long_run_leaves_paced_and_in_order() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    egress.arrive(101, 1, 2, 71);
    let arrive = |egress: &mut Egress, ms, seq| {
        let now = Instant::from_millis(ms);
        egress.0.on_packet(now, &header(seq, 92, true), large(seq));
        egress.0.release_due(now);
        egress.taken()
    };
    for seq in 4..204 {
        assert_eq!(arrive(&mut egress, 103, seq), [0u16; 0]);
    }
    let mut out = arrive(&mut egress, 110, 3);
    // Credit saved up and one interval's: less than the 90 packets that receivers hold by default.
    assert!((20..50).contains(&out.len()), "{} at once", out.len());
    let next = Instant::from_millis(111);
    assert_eq!(
        egress.0.poll_timeout(),
        Some(next),
        "the run goes on by time"
    );
    let before = egress.0.stats().duplicates;
    assert_eq!(arrive(&mut egress, 110, 150), [0u16; 0], "a copy");
    let first = out.last().map_or(0, |last| last + 1);
    assert_eq!(
        arrive(&mut egress, 110, first),
        [0u16; 0],
        "and so is the next"
    );
    assert_eq!(egress.0.stats().duplicates, before + 2);
    let two = arrive(&mut egress, 110, 204);
    assert_eq!(two.len(), 2, "one that arrives lets two leave");
    out.extend(two);
    let mut now = next;
    while egress.0.poll_timeout().is_some() {
        egress.0.release_due(now);
        let burst = egress.taken();
        assert!(burst.len() <= 24, "{} at once", burst.len());
        out.extend(burst);
        now += Duration::from_millis(1);
    }
    assert!(now <= Instant::from_millis(120), "{now:?}");
    assert_eq!(out, (3..205).collect::<Vec<u16>>());
    assert_eq!(egress.0.stats().hold_timeouts, 0);
}

#[test]
fn a_jump_in_the_numbers_does_not_wait_for_a_run_that_is_paced() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let now = Instant::from_millis(101);
    for seq in 3..503 {
        let inner = Inner::whole(vec![0; 1_400].into(), false);
        egress.0.on_packet(now, &header(seq, 91, true), inner);
    }
    egress.0.on_packet(now, &header(2, 91, true), inner(2));
    egress
        .0
        .on_packet(now, &header(20_000, 91, true), inner(20_000));
    assert_eq!(egress.taken().len(), 502);
    assert_eq!(egress.0.held, 0);
    assert_eq!(egress.0.stats().late, 0);
}

/// A packet of 1,400 bytes that tells its number.
fn large(seq: u16) -> Inner {
    Inner::whole(
        [seq.to_be_bytes().to_vec(), vec![0; 1_398]].concat().into(),
        false,
    )
}

#[test]
fn a_run_drains_however_much_arrives_in_one_batch() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let mut seq = 3u16;
    let mut batch = |egress: &mut Egress, ms, packets| {
        let now = Instant::from_millis(ms);
        for _ in 0..packets {
            egress.0.on_packet(now, &header(seq, 91, true), large(seq));
            seq += 1;
        }
        egress.0.release_due(now);
        egress.taken().len()
    };
    batch(&mut egress, 101, 1_000);
    egress
        .0
        .on_packet(Instant::from_millis(101), &header(2, 91, true), large(2));
    // 300 packets every two milliseconds, 1.7 Gbit/s, seen once each time.
    let mut held = Vec::new();
    for n in 1..10 {
        batch(&mut egress, 101 + 2 * n, 300);
        held.push(egress.0.held);
    }
    assert_eq!(held.last(), Some(&0), "{held:?}");
}

#[test]
fn a_run_ends_in_time_whatever_its_size() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let now = Instant::from_millis(101);
    for seq in 3..4_003 {
        let huge = Inner::whole(vec![0; 60_000].into(), false);
        egress.0.on_packet(now, &header(seq, 91, true), huge);
    }
    egress.0.on_packet(now, &header(2, 91, true), inner(2));
    let mut last = now;
    while let Some(at) = egress.0.poll_timeout() {
        last = at;
        egress.0.release_due(at);
        egress.taken();
    }
    assert!(last <= now + Duration::from_millis(52), "{last:?}");
}

#[test]
fn a_window_that_is_full_costs_the_order_of_nothing_that_is_due() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    egress.arrive(101, 1, 2, 71);
    let now = Instant::from_millis(102);
    // 3 is missing, and 3,004; all else is there, more than the window with what is due.
    for seq in (4..3_004).chain(3_005..4_098) {
        egress.0.on_packet(now, &header(seq, 91, true), large(seq));
    }
    egress.0.on_packet(now, &header(3, 91, true), large(3));
    let mut out = egress.taken();
    egress
        .0
        .on_packet(now, &header(4_200, 91, true), large(4_200));
    out.extend(egress.taken());
    assert_eq!(
        out,
        (3..3_004).collect::<Vec<u16>>(),
        "3,004 may still come"
    );
    egress
        .0
        .on_packet(now, &header(3_004, 91, true), large(3_004));
    out.extend(egress.taken());
    assert_eq!(egress.0.stats().late, 0);
}

#[test]
fn too_many_held_packets_are_released_once_each() {
    let mut egress = egress();
    let now = Instant::from_millis(100);
    let packet = |flow: u16, seq: u16| DataHeader {
        flow,
        ..header(seq, 91, true)
    };
    // Five flows hold a whole window each: more than all together may.
    for flow in 0..5 {
        egress.0.on_packet(now, &packet(flow, 0), inner(0));
    }
    for flow in 0..5 {
        for seq in (10..HOLD_WINDOW).chain(5..10) {
            egress.0.on_packet(now, &packet(flow, seq), inner(seq));
        }
    }
    assert!(egress.0.held <= HELD_MAX);
    egress.taken();
    let before = egress.0.stats().delivered;
    for flow in 0..5 {
        for seq in 3_500..HOLD_WINDOW {
            egress.0.on_packet(now, &packet(flow, seq), inner(seq));
        }
    }
    egress.taken();
    assert_eq!(
        egress.0.stats().delivered,
        before,
        "all of them were copies"
    );
}

#[test]
fn a_jump_after_silence_is_no_disorder() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let after = 1 + BEGINNING + 1;
    assert_eq!(egress.arrive(5_000, 0, after, 4_990), [after]);
    assert_eq!(egress.arrive(5_001, 0, after + 1, 4_991), [after + 1]);
}

#[test]
fn the_first_packets_are_put_in_order_and_so_are_the_first_after_a_pause() {
    let mut egress = new_egress();
    assert_eq!(egress.arrive(100, 1, 2, 60), [0u16; 0]);
    assert_eq!(egress.arrive(105, 0, 0, 60), [0]);
    assert_eq!(egress.arrive(106, 0, 1, 60), [1, 2]);
    assert_eq!(egress.arrive(5_000, 1, 4, 4_960), [0u16; 0]);
    assert_eq!(egress.arrive(5_020, 0, 3, 4_960), [3, 4]);
    assert_eq!(egress.arrive(9_000, 1, 6, 8_960), [0u16; 0]);
    assert_eq!(
        egress.0.poll_timeout(),
        Some(Instant::from_millis(9_000) + HOLD_BEGINNING),
        "5 may have been lost long ago"
    );
}

#[test]
fn numbers_wrap() {
    let mut egress = new_egress();
    assert_eq!(egress.arrive(1, 0, 0xffff, 0), [0xffff]);
    assert_eq!(egress.arrive(2, 0, 0, 1), [0]);
    assert_eq!(egress.arrive(3, 0, 0xffff, 1), [0u16; 0]);
    assert_eq!(egress.0.stats().duplicates, 1);
}

proptest! {
    /// Whatever the arrival order, every number comes out exactly once, and in the end nothing
    /// is held.
    #[test]
    fn every_packet_is_delivered_exactly_once(
        order in Just((0u16..100).collect::<Vec<_>>()).prop_shuffle(),
        copies in proptest::collection::vec(0u16..100, 0..30),
        ordered in any::<bool>(),
    ) {
        let mut egress = new_egress();
        let mut out = Vec::new();
        let mut now = Instant::ZERO;
        for seq in order.into_iter().chain(copies) {
            now += Duration::from_millis(1);
            let h = header(seq, u64::from(seq), ordered);
            egress.0.on_path_heard(now, PathId(seq as u8 % 2), h.stamp);
            egress.0.on_packet(now, &h, inner(seq));
            egress.0.release_due(now);
            out.extend(egress.taken());
        }
        egress.0.release_due(now + HOLD_MAX);
        out.extend(egress.taken());
        out.sort_unstable();
        prop_assert_eq!(out, (0..100).collect::<Vec<u16>>());
        prop_assert_eq!(egress.0.held, 0);
    }
}

#[test]
fn wide_gaps_in_many_flows_take_bounded_memory_and_lose_nothing() {
    let mut egress = Reorder::new();
    let flows = u16::try_from(FLOW_BUCKETS).unwrap();
    let mut delivered = 0;
    for seq in [1, 4_000] {
        for flow in 0..flows {
            let now = Instant::from_millis(100);
            let header = DataHeader {
                flow,
                ..header(seq, 90, true)
            };
            egress.on_path_heard(now, PathId(0), header.stamp);
            egress.on_packet(now, &header, inner(seq));
            delivered += std::iter::from_fn(|| egress.poll()).count();
        }
    }
    let places: usize = egress.flows.iter().map(flow::Flow::places).sum();
    assert_eq!(places, egress.places);
    assert!(places <= PLACES_MAX, "{places}");
    assert!(egress.held >= 32, "some are held: {}", egress.held);
    egress.release_due(Instant::from_millis(2_000));
    delivered += std::iter::from_fn(|| egress.poll()).count();
    assert_eq!(delivered, 2 * FLOW_BUCKETS);
    // Memory of flows that hold nothing any more goes to those that do.
    for flow in 0..flows {
        let now = Instant::from_millis(3_000);
        let header = DataHeader {
            flow,
            ..header(4_010, 2_990, true)
        };
        egress.on_packet(now, &header, inner(10));
    }
    let places: usize = egress.flows.iter().map(flow::Flow::places).sum();
    assert!(places == egress.places && places <= PLACES_MAX, "{places}");
}

#[test]
fn a_forgotten_flow_begins_with_whatever_comes() {
    let mut egress = new_egress();
    for seq in 0..5 {
        assert_eq!(egress.arrive(100, 0, seq, 90), [seq]);
    }
    egress.0.forget_idle(Instant::from_millis(200));
    assert!(egress.0.flows.allocated() > 0, "not idle for long");
    egress.0.forget_idle(Instant::from_millis(61_000));
    assert_eq!(egress.0.flows.allocated(), 0);
    assert_eq!(
        egress.arrive(62_000, 0, 5, 61_990),
        [5],
        "nothing to wait for"
    );
    assert_eq!(egress.arrive(62_001, 0, 6, 61_991), [6]);
}

#[test]
fn a_flow_is_listed_once_however_often_it_begins_to_hold() {
    let mut egress = egress();
    egress.arrive(100, 0, 1, 90);
    let now = Instant::from_millis(101);
    for pair in 0..50 {
        for seq in [3 + 2 * pair, 2 + 2 * pair] {
            egress.0.on_packet(now, &header(seq, 91, true), inner(seq));
        }
    }
    assert_eq!(egress.0.holding.len(), 1);
    egress.0.release_due(now);
    assert_eq!(egress.0.holding.len(), 0);
    assert_eq!(egress.taken().len(), 100);
}

#[test]
fn a_look_at_one_flow_that_has_no_steps_left_goes_on_after_a_pause() {
    let mut egress = egress();
    // Each behind a gap of its own, and sent before all that the paths miss.
    let held: Vec<u16> = (2..80).step_by(2).collect();
    for &seq in &held {
        let now = Instant::from_millis(10);
        egress.0.on_packet(now, &header(seq, 10, true), inner(seq));
    }
    let mut now = Instant::from_millis(1_000);
    for path in 0..8 {
        for path_seq in (0..3_000).step_by(2) {
            let stamp = Stamp {
                path_seq,
                sent_at: Timestamp::from_instant(Instant::from_millis(900)),
            };
            egress.0.requests.on_datagram(now, PathId(path), stamp);
        }
    }
    let mut looks = 0;
    loop {
        egress.0.release_due(now);
        looks += 1;
        let Some(due) = egress.0.poll_timeout() else {
            break;
        };
        assert!(due > now, "always due, after {looks} looks");
        now = due;
    }
    assert_eq!(egress.taken(), held);
    assert!(looks > 2, "one look had steps enough: this shows nothing");
}
