//! Outages of all paths: what is kept, what is sent afterwards, and how soon.

use super::*;
use ropewalk_core::hold::Freeze;
use ropewalk_wire::{Datagram, nack_runs};

/// Both directions of every path swallow everything, or none does.
fn cut(pair: &mut World, cut: bool) {
    for link in 0..pair.links() {
        pair.set_dead(link, Selector::Both, cut);
        if cut {
            // What is on its way is lost, and so is its acknowledgement.
            pair.lose_all(link);
        }
    }
}

/// Segments every 2 ms before, in and after an outage; when the path was back.
fn through_an_outage(pair: &mut World, outage: Duration) -> Instant {
    let pace = Duration::from_millis(2);
    for _ in 0..500 {
        pair.offer_segment(1_250);
        pair.run(pace);
    }
    cut(pair, true);
    let until = pair.now() + outage;
    // A sender stops when its window is full.
    for _ in 0..200 {
        if pair.now() < until {
            pair.offer_segment(1_250);
            pair.run(pace);
        }
    }
    let left = until.since(pair.now());
    pair.run(left);
    cut(pair, false);
    let back = pair.now();
    for _ in 0..500 {
        pair.offer_segment(1_250);
        pair.run(pace);
    }
    pair.run(Duration::from_secs(2));
    back
}

#[test]
fn after_any_outage_every_segment_has_arrived_once_in_order_and_soon() {
    for delay_ms in [1, 20, 80] {
        for outage_ms in [200, 500, 1_000, 2_000, 4_000, 10_000, 30_000] {
            let links = [PathSpec::new(16, delay_ms)];
            let mut pair = World::new(SchedulerKind::Auto, 1, &links);
            let back = through_an_outage(&mut pair, Duration::from_millis(outage_ms));
            let case = format!("RTT {} ms, outage {outage_ms} ms", 2 * delay_ms);
            let numbers = pair.numbers();
            let all: Vec<u32> = (0..pair.offered).collect();
            assert_eq!(
                numbers.len(),
                all.len(),
                "{case}: {:?}",
                pair.site.tunnel.stats()
            );
            assert_eq!(numbers, all, "{case}");
            let first = pair.hub.delivered.iter().find(|(at, _)| *at > back);
            let idle = first.expect("all arrived").0.since(back);
            let most = Duration::from_millis(2 * delay_ms + 50);
            assert!(idle <= most, "{case}: idle for {idle:?}");
        }
    }
}

#[test]
fn two_paths_that_fail_together_lose_nothing_either() {
    for outage_ms in [500, 3_000] {
        let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
        through_an_outage(&mut pair, Duration::from_millis(outage_ms));
        let mut numbers = pair.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..pair.offered).collect::<Vec<u32>>());
    }
}

/// Offers so many segments that do not fit a path of 900 bytes whole, one every 2 ms.
fn offer(pair: &mut World, count: u32) {
    for _ in 0..count {
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(2));
    }
}

#[test]
fn segments_under_way_in_pieces_outlast_an_outage_that_other_packets_do_not() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 280)]);
    offer(&mut pair, 1_000);
    // Losses in a burst make QUIC take the path for one that takes less.
    pair.site.paths[0].report.max_datagram = 900;
    offer(&mut pair, 50);
    cut(&mut pair, true);
    pair.run(Duration::from_secs(3));
    cut(&mut pair, false);
    pair.site.paths[0].report.max_datagram = 1_400;
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.site.tunnel.stats().hold.dropped_old, 0);
    assert_eq!(pair.numbers(), (0..pair.offered).collect::<Vec<u32>>());
}

#[test]
fn pieces_whose_other_half_was_lost_before_an_outage_wait_for_it() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 280)]);
    offer(&mut pair, 1_000);
    pair.site.paths[0].report.max_datagram = 900;
    pair.lose(0.3);
    offer(&mut pair, 200);
    pair.lose(0.0);
    // What was lost shows, and the questions are swallowed.
    offer(&mut pair, 50);
    pair.set_dead(0, Selector::Both, true);
    // The receiver acknowledges, so its end notices the outage.
    let now = pair.now();
    let ack = packet::tcp(0, 9, 40);
    pair.hub.tunnel.handle_inner(now, ack, false);
    offer(&mut pair, 50);
    pair.run(Duration::from_secs(3));
    pair.set_dead(0, Selector::Both, false);
    pair.site.paths[0].report.max_datagram = 1_400;
    pair.run(Duration::from_secs(4));
    let stats = pair.hub.tunnel.stats();
    assert_eq!(stats.fragments_dropped, 0);
    let mut numbers = pair.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..pair.offered).collect::<Vec<u32>>());
}

#[test]
fn over_a_satellite_pieces_wait_until_a_repair_was_repaired() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 280)]);
    pair.site.paths[0].report.max_datagram = 900;
    pair.lose(0.2);
    for _ in 0..500 {
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(4));
    }
    pair.run(Duration::from_secs(1));
    pair.lose(0.0);
    pair.run(Duration::from_secs(4));
    let mut numbers = pair.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..pair.offered).collect::<Vec<u32>>());
}

#[test]
fn what_is_no_tcp_is_kept_for_two_seconds_only() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
    pair.offer(500, 9);
    pair.run(Duration::from_millis(500));
    cut(&mut pair, true);
    let mut offered = Vec::new();
    for _ in 0..100 {
        offered.push((pair.offered, pair.now()));
        pair.offer(500, 9);
        pair.run(Duration::from_millis(50));
    }
    cut(&mut pair, false);
    let back = pair.now();
    pair.run(Duration::from_secs(1));
    let numbers = pair.numbers();
    for (number, at) in offered {
        let age = back.since(at);
        let arrived = numbers.contains(&number);
        if age < Duration::from_millis(1_800) {
            assert!(arrived, "{number}, {age:?} old");
        } else if age > Duration::from_millis(2_050) {
            assert!(!arrived, "{number}, {age:?} old");
        }
    }
    let stats = pair.site.tunnel.stats().hold;
    assert_eq!(stats.outages, 1);
    assert!(stats.dropped_old > 30 && stats.replayed > 20, "{stats:?}");
}

#[test]
fn probes_in_an_outage_cost_little() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
    pair.offer_segment(1_250);
    pair.run(Duration::from_millis(100));
    cut(&mut pair, true);
    pair.offer_segment(1_250);
    pair.run(Duration::from_secs(1));
    let before = pair.site.paths[0].datagrams;
    pair.run(Duration::from_secs(10));
    let probes = pair.site.paths[0].datagrams - before;
    assert!((620..=670).contains(&probes), "{probes} in 10 s");
}

#[test]
fn tunnels_in_an_outage_share_their_probes_and_one_in_doubt_shares_nothing() {
    // Probes while the path is in doubt, and then in 10 s of the outage.
    let probes = |tunnels: u32| {
        let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
        pair.site.tunnel.set_outages(tunnels);
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(100));
        cut(&mut pair, true);
        pair.offer_segment(1_250);
        let before = pair.site.paths[0].datagrams;
        while pair.site.tunnel.down_since().is_none() {
            pair.run(Duration::from_millis(1));
        }
        let doubt = pair.site.paths[0].datagrams - before;
        pair.run(Duration::from_secs(1));
        let before = pair.site.paths[0].datagrams;
        pair.run(Duration::from_secs(10));
        (doubt, pair.site.paths[0].datagrams - before)
    };
    let (doubt, _) = probes(1);
    assert!(doubt >= 3, "{doubt} probes before the outage");
    for (tunnels, expected) in [
        (10, 620..=670),
        (50, 195..=205),
        (200, 48..=52),
        (1_000, 9..=11),
        // Not less than one a second.
        (100_000, 9..=11),
    ] {
        let (in_doubt, shared) = probes(tunnels);
        assert_eq!(in_doubt, doubt, "{tunnels} tunnels");
        assert!(
            expected.contains(&shared),
            "{tunnels} tunnels: {shared} in 10 s"
        );
    }
}

#[test]
fn a_path_in_doubt_is_probed_eight_times_in_a_round_trip_at_most_and_a_silent_one_as_ever() {
    // A round trip of 600 ms: the doubt lasts about as long, in which 15 ms would make 40 probes.
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 300)]);
    for _ in 0..20 {
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(200));
    }
    cut(&mut pair, true);
    pair.offer_segment(1_250);
    let before = pair.site.paths[0].datagrams;
    for _ in 0..5_000 {
        if pair.site.tunnel.down_since().is_some() {
            break;
        }
        pair.run(Duration::from_millis(1));
    }
    assert!(pair.site.tunnel.down_since().is_some(), "after 5 s");
    let doubt = pair.site.paths[0].datagrams - before;
    assert!((4..=13).contains(&doubt), "{doubt} while in doubt");
    let before = pair.site.paths[0].datagrams;
    pair.run(Duration::from_secs(10));
    let silent = pair.site.paths[0].datagrams - before;
    assert!((620..=670).contains(&silent), "{silent} in 10 s");
}

#[test]
fn both_ends_leave_a_path_whose_end_is_announced_and_return_when_it_does() {
    let mut pair = World::new(SchedulerKind::LowRtt, 1, &uneven());
    let step = |pair: &mut World, count: u32| {
        let before = [pair.site.paths[0].datagrams, pair.site.paths[1].datagrams];
        for _ in 0..count {
            pair.offer_segment(1_250);
            pair.run(Duration::from_millis(5));
        }
        [
            pair.site.paths[0].datagrams - before[0],
            pair.site.paths[1].datagrams - before[1],
        ]
    };
    let quick = step(&mut pair, 100);
    assert!(quick[0] > 90, "{quick:?}");
    pair.hub.tunnel.set_leaving(PathId(0), true);
    step(&mut pair, 20);
    let left = step(&mut pair, 60);
    assert!(left[0] < 5 && left[1] > 55, "{left:?}");
    pair.hub.tunnel.set_leaving(PathId(0), false);
    // The word that it should be left is forgotten unless repeated.
    step(&mut pair, 200);
    let again = step(&mut pair, 100);
    assert!(again[0] > 80, "{again:?}");
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers().len(), pair.offered as usize);
}

#[test]
fn nothing_is_held_beyond_the_limits() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
    pair.offer_segment(1_250);
    pair.run(Duration::from_millis(200));
    cut(&mut pair, true);
    pair.offer_segment(1_250);
    pair.run(Duration::from_secs(1));
    assert!(pair.site.tunnel.down_since().is_some());
    let limits = Limits::default();
    for _ in 0..20_000 {
        pair.offer_segment(1_250);
    }
    let stats = pair.site.tunnel.stats().hold;
    assert!(
        pair.site.tunnel.held_bytes() <= limits.flow_bytes_max,
        "one flow"
    );
    assert!(stats.dropped_full > 10_000, "{stats:?}");
}

/// Offset of the window in a TCP packet over IPv4 without options.
const WINDOW_AT: usize = 34;
const WINDOW: u16 = 501;

/// Two tunnels that freeze senders when the last path is about to end.
fn freezing(scheduler: SchedulerKind, paths: &[PathSpec]) -> World {
    let freezing = TunnelConfig {
        hold: Limits {
            freeze: Freeze::Planned,
            ..Limits::default()
        },
        ..config(scheduler)
    };
    World::with([freezing.clone(), freezing], 1, paths)
}

fn window(ip: &[u8]) -> u16 {
    u16::from_be_bytes([ip[WINDOW_AT], ip[WINDOW_AT + 1]])
}

/// An acknowledgement of the receiver goes into the tunnel; the windows that come out of it there, in
/// so much time.
fn windows(pair: &mut World, acks: u32, time: Duration) -> Vec<u16> {
    let mut found = Vec::new();
    for _ in 0..acks {
        let mut ack = BytesMut::zeroed(HEADROOM + 40);
        let ip = &mut ack[HEADROOM..];
        ip[0] = 0x45;
        ip[3] = 40;
        ip[9] = 6;
        ip[32..34].copy_from_slice(&[0x50, 16]);
        ip[WINDOW_AT..WINDOW_AT + 2].copy_from_slice(&WINDOW.to_be_bytes());
        let now = pair.now();
        pair.hub.tunnel.handle_inner(now, ack, false);
        pair.run(time / acks);
        found.extend(pair.site.delivered.drain(..).map(|(_, ack)| window(&ack)));
    }
    found
}

#[test]
fn the_announced_end_of_the_last_path_freezes_senders_at_the_other_end_until_it_is_back() {
    for (delay_ms, outage_ms) in [(1, 200), (20, 200), (80, 200), (1, 3_000), (80, 3_000)] {
        let case = format!("RTT {} ms, outage {outage_ms} ms", 2 * delay_ms);
        let links = [PathSpec::new(16, delay_ms)];
        let mut pair = freezing(SchedulerKind::Auto, &links);
        for _ in 0..100 {
            pair.offer_segment(1_250);
            pair.run(Duration::from_millis(5));
        }
        let some = Duration::from_millis(400);
        let open = windows(&mut pair, 8, some);
        assert!(
            !open.is_empty() && open.iter().all(|&window| window == WINDOW),
            "{case}"
        );
        pair.hub.tunnel.set_leaving(PathId(0), true);
        pair.run(some);
        pair.site.delivered.clear();
        let shut = windows(&mut pair, 8, some);
        assert!(
            !shut.is_empty() && shut.iter().all(|&window| window == 0),
            "{case}: {shut:?}"
        );
        cut(&mut pair, true);
        pair.run(Duration::from_millis(outage_ms));
        assert!(
            pair.site.delivered.is_empty(),
            "{case}: nobody is let go yet"
        );
        cut(&mut pair, false);
        let mut idle = Duration::ZERO;
        let update = loop {
            if let Some(update) = pair.site.delivered.pop() {
                break update;
            }
            assert!(idle < Duration::from_secs(3), "{case}: nobody is let go");
            pair.run(Duration::from_millis(1));
            idle += Duration::from_millis(1);
        };
        assert_eq!(window(&update.1), WINDOW, "{case}");
        let most = Duration::from_millis(delay_ms + 50);
        assert!(idle <= most, "{case}: let go after {idle:?}");
        pair.run(Duration::from_secs(1));
        let open = windows(&mut pair, 8, some);
        assert!(
            open.iter().all(|&window| window == WINDOW),
            "{case}: {open:?}"
        );
        assert!(!pair.hub.tunnel.is_leaving(PathId(0)), "{case}");
        assert_eq!(pair.site.tunnel.stats().hold.stopped, 1, "{case}");
    }
}

#[test]
fn a_path_that_is_left_for_another_freezes_nobody() {
    let mut pair = freezing(SchedulerKind::LowRtt, &uneven());
    for _ in 0..100 {
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(5));
    }
    pair.hub.tunnel.set_leaving(PathId(0), true);
    let open = windows(&mut pair, 40, Duration::from_secs(2));
    assert!(open.len() >= 30 && open.iter().all(|&window| window == WINDOW));
}

#[test]
fn a_path_that_is_about_to_end_is_used_before_one_that_is_silent() {
    let mut pair = World::new(SchedulerKind::LowRtt, 1, &uneven());
    let offer = |pair: &mut World, count: u32| {
        for _ in 0..count {
            pair.offer_segment(1_250);
            pair.run(Duration::from_millis(10));
        }
    };
    offer(&mut pair, 100);
    pair.set_dead(0, Selector::Both, true);
    offer(&mut pair, 100);
    let silent = pair.site.tunnel.path_state(PathId(0));
    assert!(matches!(silent, Some(PathState::Suspect(_))), "{silent:?}");
    // Announced at the other end: here the other end's word stands.
    pair.hub.tunnel.set_leaving(PathId(1), true);
    offer(&mut pair, 100);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers().len(), pair.offered as usize);
    // And announced here.
    pair.site.tunnel.set_leaving(PathId(1), true);
    offer(&mut pair, 100);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers().len(), pair.offered as usize);
}

#[test]
fn what_was_repaired_long_before_an_outage_is_not_asked_for_after_it() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
    let segments = |pair: &mut World, count: u32| {
        for _ in 0..count {
            pair.offer_segment(1_250);
            pair.run(Duration::from_millis(5));
        }
    };
    segments(&mut pair, 100);
    pair.set_dead(0, Selector::One(Side::Up), true);
    segments(&mut pair, 1);
    let number = |(_, _, datagram): &(Instant, PathId, Bytes)| match Datagram::parse(datagram) {
        Ok(Datagram::Data { header, .. }) => Some(header.stamp.path_seq),
        _ => None,
    };
    let lost = pair.site.sent.iter().rev().find_map(number);
    let lost = lost.expect("a segment");
    pair.set_dead(0, Selector::One(Side::Up), false);
    segments(&mut pair, 1_000);
    let asked = times_asked(&pair, lost);
    assert!(asked > 0);
    // The hub has something to send as well, and notices the outage.
    cut(&mut pair, true);
    let now = pair.now();
    let reply = packet::tcp(0, 9, 1_250);
    pair.hub.tunnel.handle_inner(now, reply, false);
    pair.run(Duration::from_secs(2));
    assert!(pair.hub.tunnel.down_since().is_some());
    cut(&mut pair, false);
    segments(&mut pair, 100);
    pair.run(Duration::from_secs(1));
    let mut numbers = pair.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..pair.offered).collect::<Vec<u32>>());
    assert_eq!(times_asked(&pair, lost), asked);
}

/// How many NACKs of the hub name the number.
fn times_asked(pair: &World, number: u16) -> usize {
    let names = |(_, _, datagram): &&(Instant, PathId, Bytes)| match Datagram::parse(datagram) {
        Ok(Datagram::Nack { at, .. }) => nack_runs(&datagram[at..])
            .any(|run| number.wrapping_sub(run.first) < u16::from(run.count)),
        _ => false,
    };
    pair.hub.sent.iter().filter(names).count()
}

#[test]
fn what_tcp_below_a_path_has_not_acknowledged_goes_over_the_next_connection() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 20)]);
    let (start, id) = (pair.now(), PathId(0));
    let usual = PathSnapshot {
        free: 1_000_000,
        ..pair.site.paths[0].report.clone()
    };
    let tunnel = &mut pair.site.tunnel;
    let (mut now, mut out) = (start, Vec::new());
    // TCP acknowledges for three seconds, and nothing new.
    for number in 0..60 {
        now = start + Duration::from_millis(50) * number;
        let says_nothing_new = PathSnapshot {
            silent_since: Some(now),
            oldest_sent: Some(start),
            ..usual.clone()
        };
        tunnel.update_path(now, id, says_nothing_new);
        tunnel.handle_inner(now, packet::tcp(number, 9, 1_250), false);
        tunnel.poll_transmit(now, &mut out, 10);
    }
    assert_eq!(tunnel.stats().tx_packets, 60);
    tunnel.add_path(now, id, PathConfig::default());
    tunnel.update_path(now, id, usual);
    tunnel.poll_transmit(now, &mut out, 100);
    assert_eq!(tunnel.stats().repairs_sent, 60);
}

#[test]
fn a_path_that_swallows_its_first_packets_loses_none_of_them() {
    for swallowed in [10, 100, 200] {
        // The path is too slow to be suspect before it carries something.
        let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 150)]);
        pair.set_dead(0, Selector::One(Side::Up), true);
        for _ in 0..swallowed {
            pair.offer_segment(60);
            pair.run(Duration::from_millis(1));
        }
        pair.set_dead(0, Selector::One(Side::Up), false);
        for _ in 0..20 {
            pair.offer_segment(60);
            pair.run(Duration::from_millis(20));
        }
        pair.run(Duration::from_secs(2));
        let mut numbers = pair.numbers();
        numbers.sort_unstable();
        let all: Vec<u32> = (0..pair.offered).collect();
        assert_eq!(numbers, all, "{swallowed} swallowed");
        assert_eq!(pair.site.tunnel.path_stats(PathId(0)).unwrap().suspected, 0);
    }
}
