use super::super::inputs::{head, view};
use super::*;
use crate::estimate::PathFeedback;
use crate::path::SLOT_BYTES;
use ropewalk_types::Rate;

const NOW: Instant = Instant::from_millis(1_000);
/// A queue that began at [`NOW`] has stood long enough by then: 20 ms between the paths of
/// [`pair`] and half a round trip.
const STOOD: Instant = Instant::from_millis(1_045);

fn bulk(flow: u16) -> Head {
    Head {
        flow_backlog: 20 * SLOT_BYTES,
        backlog: 100 * SLOT_BYTES,
        ..head(flow)
    }
}

/// A fast and a slow path, 20 ms apart.
fn pair(free: [u64; 2]) -> [PathView; 2] {
    let mut paths = [view(0, 50, free[0]), view(1, 90, free[1])];
    paths[1].owd_relative = Duration::from_millis(20);
    paths
}

fn sent(auto: &mut Auto, now: Instant, head: &Head, paths: &[PathView]) -> PathId {
    match auto.pick(now, head, paths) {
        Decision::Send(set) => {
            let id = set.iter().next().unwrap();
            auto.on_sent(now, head, paths.iter().find(|path| path.id == id).unwrap());
            id
        }
        wait @ (Decision::WaitFlow(_) | Decision::WaitAll) => panic!("{wait:?}"),
    }
}

#[test]
fn a_thin_flow_waits_for_the_fast_path_while_that_is_earlier() {
    let mut auto = Auto::default();
    let mut paths = pair([0, 9]);
    paths[0].next_credit = Some(NOW + Duration::from_millis(5));
    let decision = auto.pick(NOW, &head(0), &paths);
    assert_eq!(decision, Decision::WaitFlow(paths[0].next_credit));
    paths[0].next_credit = Some(NOW + Duration::from_millis(25));
    assert_eq!(auto.pick(NOW, &head(0), &paths), send(&paths[1]));
}

#[test]
fn a_thin_flow_gives_the_fast_path_up_once_waiting_has_cost_what_it_could_gain() {
    let mut auto = Auto::default();
    let paths = pair([0, 9]); // the window is full: no credit is announced
    let Decision::WaitFlow(Some(until)) = auto.pick(NOW, &head(0), &paths) else {
        panic!("the fast path would be earlier")
    };
    assert!(until <= NOW + Duration::from_millis(20));
    assert_eq!(
        auto.pick(NOW + Duration::from_millis(20), &head(0), &paths),
        send(&paths[1])
    );
}

#[test]
fn a_lossy_path_counts_as_later() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    assert_eq!(auto.pick(NOW, &head(0), &paths), send(&paths[0]));
    paths[0].loss = 0.09;
    paths[1].owd_relative = Duration::from_millis(5);
    assert_eq!(auto.pick(NOW, &head(0), &paths), send(&paths[1]));
}

#[test]
fn a_near_tie_does_not_make_a_thin_flow_alternate() {
    let mut auto = Auto::default();
    let mut paths = [view(0, 50, 9), view(1, 50, 9)];
    assert_eq!(sent(&mut auto, NOW, &head(0), &paths), PathId(0));
    paths[0].owd_relative = Duration::from_millis(1);
    let later = NOW + Duration::from_millis(30);
    assert_eq!(sent(&mut auto, later, &head(0), &paths), PathId(0));
    paths[0].owd_relative = Duration::from_millis(9);
    let later = NOW + Duration::from_millis(60);
    assert_eq!(sent(&mut auto, later, &head(0), &paths), PathId(1));
}

#[test]
fn backlogged_flows_spread_by_rate_and_stay_at_home() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[0].rate = Rate::from_bits_per_sec(16_000_000);
    let pinned_paths: Vec<u8> = (0..6)
        .map(|flow| sent(&mut auto, NOW, &bulk(flow), &paths).0)
        .collect();
    let slow = pinned_paths
        .iter()
        .filter(|pinned_path| **pinned_path == 1)
        .count();
    assert!((1..=2).contains(&slow), "{pinned_paths:?}");
    for flow in 0..6 {
        assert_eq!(
            sent(&mut auto, NOW, &bulk(flow), &paths).0,
            pinned_paths[usize::from(flow)]
        );
    }
}

#[test]
fn the_only_flow_is_striped_when_a_queue_has_stood_at_its_full_home() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    let pinned_path = sent(&mut auto, NOW, &bulk(0), &paths);
    assert_eq!(pinned_path, PathId(0));
    paths[0].free = 0;
    let waits = |decision| matches!(decision, Decision::WaitFlow(_));
    assert!(waits(auto.pick(NOW, &bulk(0), &paths)), "a burst");
    let soon = NOW + Duration::from_millis(44);
    assert!(waits(auto.pick(soon, &bulk(0), &paths)));
    assert_eq!(auto.pick(STOOD, &bulk(0), &paths), send(&paths[1]));
    // It stays so while the queue comes and goes, for a while.
    auto.pick(STOOD, &head(0), &paths);
    let later = STOOD + Duration::from_secs(1);
    assert_eq!(auto.pick(later, &bulk(0), &paths), send(&paths[1]));
    auto.pick(later, &head(0), &paths);
    let later = STOOD + Duration::from_secs(3);
    assert!(waits(auto.pick(later, &bulk(0), &paths)));
}

#[test]
fn a_flow_is_striped_at_once_over_a_path_that_is_as_fast() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[1].owd_relative = Duration::from_millis(3);
    sent(&mut auto, NOW, &bulk(0), &paths);
    paths[0].free = 0;
    assert_eq!(auto.pick(NOW, &bulk(0), &paths), send(&paths[1]));
}

#[test]
fn of_paths_that_are_alike_the_first_is_taken() {
    let mut auto = Auto::default();
    let mut paths = [view(0, 50, 9), view(1, 50, 9)];
    paths[0].owd_relative = Duration::from_micros(400);
    assert_eq!(sent(&mut auto, NOW, &bulk(1), &paths), PathId(0));
    paths[0].owd_relative = Duration::from_millis(40);
    assert_eq!(sent(&mut auto, NOW, &bulk(2), &paths), PathId(1));
}

#[test]
fn a_path_that_has_carried_little_gets_no_more_of_a_striped_flow_than_twice_that() {
    let mut auto = Auto::default();
    let mut paths = [view(0, 50, 0), view(1, 50, 9)];
    // 5,000 bytes in a round trip: less than what any path may be tried with.
    paths[1].rate = Rate::from_bits_per_sec(800_000);
    paths[1].in_flight = UNPROVEN_BYTES;
    assert_eq!(sent(&mut auto, NOW, &bulk(1), &paths), PathId(1));
    paths[1].in_flight = UNPROVEN_BYTES + 1;
    assert!(matches!(
        auto.pick(NOW, &bulk(1), &paths),
        Decision::WaitFlow(_)
    ));
    paths[1].rate = Rate::from_bits_per_sec(8_000_000);
    assert_eq!(sent(&mut auto, NOW, &bulk(1), &paths), PathId(1));
}

#[test]
fn a_flow_is_striped_over_a_path_whose_losses_are_repaired() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[1].loss = 0.05;
    sent(&mut auto, NOW, &bulk(0), &paths);
    paths[0].free = 0;
    auto.pick(NOW, &bulk(0), &paths);
    assert_eq!(auto.pick(STOOD, &bulk(0), &paths), send(&paths[1]));
}

#[test]
fn a_short_flow_is_not_striped_over_a_much_slower_path() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    let short = Head {
        flow_backlog: 7_000,
        ..bulk(0)
    };
    sent(&mut auto, NOW, &short, &paths);
    paths[0].free = 0;
    assert!(matches!(
        auto.pick(NOW, &short, &paths),
        Decision::WaitFlow(_)
    ));
    // 7 kB take 7 ms pinned: a path 5 ms behind is worth it.
    paths[1].owd_relative = Duration::from_millis(5);
    assert_eq!(auto.pick(NOW, &short, &paths), send(&paths[1]));
}

#[test]
fn no_flow_is_striped_where_delay_would_cost_it_more() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[1].owd_relative = Duration::from_millis(151);
    sent(&mut auto, NOW, &bulk(0), &paths);
    paths[0].free = 0;
    for wait_ms in [0, 50, 500] {
        let decision = auto.pick(NOW + Duration::from_millis(wait_ms), &bulk(0), &paths);
        assert!(matches!(decision, Decision::WaitFlow(_)), "{decision:?}");
    }
}

#[test]
fn room_with_residents_is_left_to_them_first() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[1].owd_relative = Duration::ZERO;
    let pinned_paths: Vec<PathId> = (0..2)
        .map(|flow| sent(&mut auto, NOW, &bulk(flow), &paths))
        .collect();
    assert_eq!(pinned_paths, [PathId(0), PathId(1)]);
    paths[0].free = 0;
    paths[1].free = 0;
    auto.pick(NOW, &bulk(0), &paths);
    paths[1].free = SLOT_BYTES;
    let Decision::WaitFlow(Some(until)) = auto.pick(NOW, &bulk(0), &paths) else {
        panic!("flow 1 is on its pinned path there")
    };
    assert_eq!(
        until,
        NOW + Duration::from_micros(2_800),
        "two packets at 8 Mbit/s"
    );
    assert_eq!(auto.pick(until, &bulk(0), &paths), send(&paths[1]));
}

#[test]
fn a_lossy_path_is_excluded_tried_with_copies_and_taken_back() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[0].loss = 0.2;
    auto.pick(NOW, &head(0), &paths);
    let lasts = NOW + Duration::from_secs(1);
    let decision = auto.pick(lasts, &head(0), &paths);
    assert_eq!(decision, send(&paths[1]), "the fast path loses too much");
    assert!(
        auto.reason().contains("path 0 not used: loses 20 %"),
        "{}",
        auto.reason()
    );
    let later = lasts + Duration::from_secs(1);
    let both = Decision::Send(PathSet::one(PathId(0)).with(PathId(1)));
    for _ in 0..20 {
        assert_eq!(auto.pick(later, &head(0), &paths), both);
        auto.on_sent(later, &head(0), &paths[0]);
        auto.on_sent(later, &head(0), &paths[1]);
    }
    assert_eq!(
        auto.pick(later, &head(0), &paths),
        send(&paths[1]),
        "twenty copies suffice"
    );
    paths[0].loss = 0.04;
    let later = later + Duration::from_millis(500);
    assert_eq!(auto.pick(later, &head(1), &paths), send(&paths[0]));
}

#[test]
fn a_burst_of_losses_excludes_no_path() {
    let mut trust = Trust::default();
    let mut paths = pair([9, 9]);
    for tenth in 0..40 {
        // Nine tenths of a second of heavy loss, again and again.
        paths[0].loss = if tenth % 10 == 0 { 0.0 } else { 0.5 };
        trust.assess(NOW + Duration::from_millis(100) * tenth, &paths);
        assert!(trust.open(PathId(0)), "{tenth}");
    }
    paths[0].loss = 0.5;
    trust.assess(NOW + Duration::from_secs(4), &paths);
    trust.assess(NOW + Duration::from_secs(5), &paths);
    assert!(!trust.open(PathId(0)));
}

#[test]
fn a_flow_goes_home_to_the_faster_of_two_paths_of_one_rate() {
    let mut auto = Auto::default();
    let mut paths = pair([0, 9]);
    let flow = &bulk(0);
    for path in &mut paths {
        path.rate = Rate::from_bits_per_sec(50_000_000);
    }
    paths[1].owd_relative = Duration::from_millis(40);
    assert_eq!(sent(&mut auto, NOW, flow, &paths[1..]), PathId(1));
    let mut now = NOW;
    for _ in 0..1_000 {
        now += Duration::from_millis(2);
        sent(&mut auto, now, flow, &paths[1..]);
    }
    paths[0].free = 9 * SLOT_BYTES;
    assert_eq!(sent(&mut auto, now, flow, &paths), PathId(0));
}

#[test]
fn tries_of_an_excluded_path_become_rarer() {
    let mut trust = Trust::default();
    let mut paths = pair([9, 9]);
    paths[1].loss = 0.5;
    trust.assess(NOW, &paths);
    let lasts = NOW + Duration::from_secs(1);
    trust.assess(lasts, &paths);
    let tries: Vec<u64> = (0..200)
        .filter(|second| {
            let now = lasts + Duration::from_secs(*second);
            let tried = trust.wants_copy(now, PathId(1));
            for _ in 0..20 {
                trust.copy_sent(PathId(1));
            }
            tried
        })
        .collect();
    assert_eq!(tries, [1, 2, 3, 5, 9, 16, 29, 55, 107, 167]);
}

#[test]
fn when_every_path_is_bad_all_are_used() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[0].loss = 0.3; // the fast one loses, the other lags
    paths[1].owd_relative = Duration::from_millis(500);
    assert_eq!(auto.pick(NOW, &head(0), &paths[1..]), send(&paths[1]));
    assert!(matches!(
        auto.pick(NOW, &head(0), &paths),
        Decision::Send(_)
    ));
    // Alone, an excluded path is open at once.
    assert_eq!(auto.pick(NOW, &head(0), &paths[..1]), send(&paths[0]));
}

#[test]
fn striping_pauses_after_the_exit_reports_stalls() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[1].owd_relative = Duration::from_millis(5);
    sent(&mut auto, NOW, &bulk(0), &paths);
    paths[0].free = 0;
    assert_eq!(sent(&mut auto, NOW, &bulk(0), &paths), PathId(1));
    let seen = PathFeedback {
        received_packets: 200,
        ..PathFeedback::default()
    };
    let mut feedback = EgressFeedback {
        paths: vec![seen],
        hold_timeouts: 2,
        ..Default::default()
    };
    auto.on_feedback(NOW, &feedback);
    assert_eq!(
        auto.pick(NOW, &bulk(0), &paths),
        send(&paths[1]),
        "one in a hundred is fine"
    );
    feedback.hold_timeouts = 10;
    for _ in 0..4 {
        feedback.paths[0].lost_packets = 10;
        auto.on_feedback(NOW, &feedback);
        assert_eq!(
            auto.pick(NOW, &bulk(0), &paths),
            send(&paths[1]),
            "holds for lost packets are not striping's fault"
        );
    }
    feedback.paths[0].lost_packets = 0;
    for _ in 0..2 {
        auto.on_feedback(NOW, &feedback);
    }
    assert!(matches!(
        auto.pick(NOW, &bulk(0), &paths),
        Decision::WaitFlow(_)
    ));
    let reason = auto.reason();
    let paused = "each flow keeps to one path for now, as packets over several came too late";
    assert!(reason.contains(paused), "{reason}");
    let later = NOW + Duration::from_secs(1);
    assert_eq!(auto.pick(later, &bulk(0), &paths), send(&paths[1]));
    let reason = auto.reason();
    let before = "several paths for one flow were paused once, as packets came too late";
    assert!(reason.contains(before), "{reason}");
}

#[test]
fn a_path_that_loses_is_kept_while_the_other_lags_far_behind() {
    let mut auto = Auto::default();
    let mut paths = pair([9, 9]);
    paths[0].loss = 0.2;
    paths[1].owd_relative = Duration::from_millis(350);
    for n in 0..50 {
        let now = NOW + Duration::from_millis(10 * n);
        assert!(auto.trust.open(PathId(0)), "{n}");
        assert_eq!(sent(&mut auto, now, &head(0), &paths), PathId(0), "{n}");
    }
    let reason = auto.reason();
    assert!(reason.contains("paths excluded: once"), "{reason}");
}
