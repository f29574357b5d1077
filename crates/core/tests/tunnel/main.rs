//! Two tunnels over emulated links: what they promise while paths lose, end and come back.

mod headers;
mod outages;
mod published;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut, Range};

use bytes::{Bytes, BytesMut};
use ropewalk_core::hold::Limits;
use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::{Classes, Protection};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Outgoing, PathState, TunnelConfig};
use ropewalk_netem::{Change, LossModel, Selector, Side};
use ropewalk_testkit::tunnels::{PathSpec, TunnelEnd};
use ropewalk_testkit::{Pair, packet};
use ropewalk_types::{Duration, Ecn, Instant, PathId, PathSnapshot};
use ropewalk_wire::HEADROOM;

/// Two tunnels, and how many packets have entered at the site.
struct World {
    pair: Pair<TunnelEnd>,
    offered: u32,
}

impl Deref for World {
    type Target = Pair<TunnelEnd>;

    fn deref(&self) -> &Self::Target {
        &self.pair
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.pair
    }
}

fn config(scheduler: SchedulerKind) -> TunnelConfig {
    TunnelConfig {
        scheduler,
        probe_interval: None,
        classes: Default::default(),
        hold: Limits::default(),
        send: Default::default(),
    }
}

impl World {
    fn new(scheduler: SchedulerKind, seed: u64, paths: &[PathSpec]) -> Self {
        let config = config(scheduler);
        Self::with([config.clone(), config], seed, paths)
    }

    fn with(configs: [TunnelConfig; 2], seed: u64, paths: &[PathSpec]) -> Self {
        Self {
            pair: Pair::tunnels(configs, seed, paths),
            offered: 0,
        }
    }

    /// The next packet of a flow enters at the site.
    fn offer(&mut self, bytes: usize, port: u16) {
        self.enter(packet::udp(self.offered, port, bytes));
    }

    /// The same with a TCP segment.
    fn offer_segment(&mut self, bytes: usize) {
        self.enter(packet::tcp(self.offered, 9, bytes));
    }

    fn enter(&mut self, data: BytesMut) {
        self.offered += 1;
        let now = self.now();
        self.site.tunnel.handle_inner(now, data, false);
    }

    /// Every link loses this share of packets in both directions.
    fn lose(&mut self, share: f64) {
        for link in 0..self.links() {
            let loss = Some(LossModel::Bernoulli(share));
            let change = Change {
                loss,
                ..Change::default()
            };
            self.change(link, Selector::Both, &change);
        }
    }

    /// Packets that links lost on the way up.
    fn lost_up(&mut self) -> u64 {
        (0..self.links())
            .map(|link| self.counters(link, Side::Up).dropped_loss)
            .sum()
    }

    /// Numbers of the packets that the hub has let through.
    fn numbers(&self) -> Vec<u32> {
        let delivered = self.hub.delivered.iter();
        delivered.map(|(_, data)| packet::number(data)).collect()
    }
}

#[test]
fn losses_are_repaired_in_order_though_nacks_and_repairs_are_lost_too() {
    for kind in [SchedulerKind::Auto, SchedulerKind::LowRtt] {
        let mut pair = World::new(kind, 1, &uneven());
        pair.lose(0.05);
        for _ in 0..2_000 {
            pair.offer_segment(1_250);
            pair.run(Duration::from_micros(1_500));
        }
        pair.run(Duration::from_secs(1));
        let numbers = pair.numbers();
        assert!(numbers.is_sorted(), "{kind}");
        assert_eq!(numbers.len(), 2_000, "{kind}");
        let lost = pair.lost_up();
        let repairs = pair.site.tunnel.stats().repairs_sent;
        let recovered = pair.hub.tunnel.stats().recovered;
        // Some are probes, reports and repair symbols: nobody misses those.
        assert!(
            lost > 90 && recovered + repairs > 90,
            "{kind}: {lost} lost, {recovered} recovered, {repairs} sent again"
        );
        assert!(repairs <= lost, "{kind}: {lost} lost, {repairs} sent again");
    }
}

#[test]
fn what_was_lost_is_sent_again_in_pieces_where_it_no_longer_fits() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    pair.lose(0.05);
    for packet in 0..1_000 {
        // A path that loses may be taken for one that takes less, for a while.
        pair.site.paths[0].report.max_datagram = if packet % 100 < 50 { 1_400 } else { 700 };
        pair.offer_segment(1_250);
        pair.run(Duration::from_micros(1_500));
    }
    pair.site.paths[0].report.max_datagram = 1_400;
    pair.run(Duration::from_secs(1));
    let numbers = pair.numbers();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.len(), 1_000);
    assert_eq!(pair.site.tunnel.stats().repairs_dropped, 0);
}

#[test]
fn what_a_cut_path_swallowed_is_sent_over_the_other() {
    let mut pair = World::new(SchedulerKind::LowRtt, 1, &uneven());
    for packet in 0..1_000 {
        pair.set_dead(0, Selector::Both, packet >= 500);
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(2));
    }
    pair.run(Duration::from_secs(2));
    let numbers = pair.numbers();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.len(), 1_000);
}

#[test]
fn what_was_sent_long_ago_is_not_sent_again() {
    for (age, repairs) in [(Duration::from_millis(900), 1), (Duration::from_secs(3), 0)] {
        let mut pair = World::new(SchedulerKind::LowRtt, 1, &[PathSpec::new(16, 25)]);
        pair.set_dead(0, Selector::Both, true);
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(1));
        let now = pair.now() + age;
        let run = ropewalk_wire::NackRun {
            path: 0,
            first: 0,
            count: 1,
        };
        let mut nack = Vec::new();
        ropewalk_wire::emit_nack(ropewalk_wire::Stamp::default(), &[run], &mut nack);
        let id = PathId(0);
        // Nothing sent waits for an acknowledgement any more.
        let snapshot = PathSnapshot {
            max_datagram: 1_400,
            ..PathSnapshot::default()
        };
        pair.site.tunnel.update_path(now, id, snapshot);
        pair.site
            .tunnel
            .handle_datagram(now, id, Ecn::NotEct, nack.into());
        pair.site.tunnel.poll_transmit(now, &mut Vec::new(), 10);
        assert_eq!(pair.site.tunnel.stats().repairs_sent, repairs, "{age:?}");
    }
}

#[test]
fn nothing_that_came_is_asked_for_when_a_connection_takes_its_path_back() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    for _ in 0..500 {
        pair.offer_segment(1_250);
        pair.run(Duration::from_millis(2));
    }
    pair.run(Duration::from_millis(200));
    // The site tried a newer connection, gave it up, and says so.
    let now = pair.now();
    pair.hub.connect(now, 0, 2);
    pair.hub.take_back(now, 0);
    pair.offer_segment(1_250);
    pair.run(Duration::from_millis(500));
    assert_eq!(pair.hub.delivered.len(), 501);
    assert_eq!(pair.hub.tunnel.stats().repairs_asked, 0);
    assert_eq!(pair.site.tunnel.stats().repairs_sent, 0);
    // What is lost afterwards is asked for.
    pair.set_dead(0, Selector::One(Side::Up), true);
    pair.offer_segment(1_250);
    pair.run(Duration::from_millis(1));
    pair.set_dead(0, Selector::One(Side::Up), false);
    pair.offer_segment(1_250);
    pair.run(Duration::from_millis(500));
    assert_eq!(pair.hub.delivered.len(), 503);
    assert_eq!(pair.hub.tunnel.stats().repairs_asked, 1);
}

#[test]
fn a_tunnel_that_has_just_lost_its_last_path_wants_nothing() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    pair.offer(100, 9);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.hub.delivered.len(), 1);
    let now = pair.now();
    pair.hub.disconnect(now, 0);
    // It owes a report, and nobody could carry it.
    assert_eq!(pair.hub.tunnel.poll_timeout(), None);
    pair.run(Duration::from_millis(200));
    let now = pair.now();
    pair.hub.connect(now, 0, 2);
    assert!(
        pair.hub
            .tunnel
            .poll_timeout()
            .is_some_and(|at| at <= pair.now())
    );
    let mut out = Vec::new();
    assert_eq!(pair.hub.tunnel.poll_transmit(now, &mut out, 1), 1);
}

#[test]
fn while_no_path_is_up_repair_symbols_are_left_out_and_not_sent_empty() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    let silent_since = Some(pair.now());
    pair.run(Duration::from_secs(1));
    let (now, id) = (pair.now(), PathId(0));
    let snapshot = PathSnapshot {
        silent_since,
        max_datagram: 1_400,
        ..pair.site.paths[0].report.clone()
    };
    for _ in 0..50 {
        pair.offer_segment(1_250);
        pair.site.tunnel.update_path(now, id, snapshot.clone());
        let mut out = Vec::new();
        pair.site.tunnel.poll_transmit(now, &mut out, 10);
        for Outgoing { datagram, .. } in out {
            let parsed = ropewalk_wire::Datagram::parse(&datagram);
            assert!(parsed.is_ok(), "{parsed:?} {datagram:x?}");
        }
    }
    // They wait for a path that is up.
    assert_eq!(pair.site.tunnel.stats().tx_packets, 0);
}

#[test]
fn bare_acknowledgements_wait_for_nothing() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    pair.lose(0.1);
    for _ in 0..100 {
        pair.offer_segment(40);
        pair.run(Duration::from_millis(2));
    }
    pair.run(Duration::from_secs(1));
    let delays = pair.hub.delivered.len();
    assert_eq!(delays, 100, "repaired, all the same");
    assert_eq!(pair.hub.tunnel.stats().reorder.held, 0);
}

fn uneven() -> [PathSpec; 2] {
    [PathSpec::new(16, 25), PathSpec::new(8, 35)]
}

fn even() -> [PathSpec; 2] {
    [PathSpec::new(10, 15), PathSpec::new(10, 16)]
}

/// Offers one flow at 20 of 24 Mbit/s for a second.
fn load(pair: &mut World) {
    for _ in 0..2_000 {
        pair.offer(1_250, 9);
        pair.run(Duration::from_micros(500));
    }
    pair.run(Duration::from_secs(1));
}

#[test]
fn every_scheduler_delivers_everything_once_and_in_order() {
    for kind in SchedulerKind::ALL {
        let mut pair = World::new(kind, 1, &uneven());
        for _ in 0..1_000 {
            pair.offer(1_250, 9);
            pair.run(Duration::from_millis(2)); // 5 Mbit/s: every path alone is enough
        }
        pair.run(Duration::from_secs(1));
        let numbers = pair.numbers();
        assert!(numbers.is_sorted(), "{kind}: {:?}", &numbers[..40]);
        assert_eq!(numbers.len(), 1_000, "{kind}");
    }
}

#[test]
fn one_flow_above_either_path_uses_both() {
    for kind in [
        SchedulerKind::Htmt,
        SchedulerKind::Auto,
        SchedulerKind::LowRtt,
    ] {
        let mut pair = World::new(kind, 1, &uneven());
        load(&mut pair);
        let stats = pair.site.tunnel.stats();
        let delivered = pair.numbers().len() as u64;
        assert_eq!(
            stats.tx_packets, delivered,
            "{kind}: nothing is lost between the ends"
        );
        assert!(
            delivered > 1_900,
            "{kind}: {delivered} of 2000, {:?}",
            stats.queue
        );
    }
}

#[test]
fn switching_schedulers_under_load_loses_nothing() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
    for round in 0..2_000 {
        if round % 50 == 0 {
            let kind = SchedulerKind::ALL[round / 50 % SchedulerKind::ALL.len()];
            if kind != SchedulerKind::Redundant {
                pair.site.tunnel.set_scheduler(kind);
            }
        }
        pair.offer(625, 9);
        pair.run(Duration::from_micros(500));
    }
    pair.site.tunnel.set_scheduler(SchedulerKind::Auto);
    pair.run(Duration::from_secs(1));
    let mut numbers = pair.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
}

#[test]
fn a_silent_path_is_left_and_used_again_when_it_returns() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
    let offer = |pair: &mut World, ms: u64| {
        for _ in 0..ms / 10 {
            pair.offer(200, 9);
            pair.run(Duration::from_millis(10));
        }
    };
    offer(&mut pair, 500);
    pair.set_dead(0, Selector::Both, true);
    let cut = pair.now();
    offer(&mut pair, 500);
    let gap = pair
        .hub
        .delivered
        .windows(2)
        .map(|w| w[1].0.since(w[0].0))
        .max();
    assert!(gap < Some(Duration::from_millis(300)), "{gap:?}");
    assert!(
        matches!(pair.site.tunnel.path_state(PathId(0)), Some(PathState::Suspect(at)) if at >= cut - Duration::from_millis(60))
    );
    assert!(pair.site.tunnel.any_up());

    pair.set_dead(0, Selector::Both, false);
    offer(&mut pair, 300);
    let before = pair
        .site
        .tunnel
        .path_stats(PathId(0))
        .expect("known")
        .tx_datagrams;
    offer(&mut pair, 500);
    assert_eq!(pair.site.tunnel.path_state(PathId(0)), Some(PathState::Up));
    let after = pair
        .site
        .tunnel
        .path_stats(PathId(0))
        .expect("known")
        .tx_datagrams;
    assert!(after > before + 10, "{before} {after}");
}

/// Nothing else shows that the path is dead: one packet a second goes out, and no answer comes.
#[test]
fn one_packet_a_second_is_not_held_up_by_a_path_that_died() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
    for second in 0..20 {
        if second == 10 {
            pair.set_dead(0, Selector::Both, true);
        }
        let (number, offered) = (pair.offered, pair.now());
        pair.offer(200, 9);
        pair.run(Duration::from_secs(1));
        let mut delivered = pair.hub.delivered.iter();
        let came = delivered.find(|(_, data)| packet::number(data) == number);
        let took = came.map(|(at, _)| at.since(offered)).expect("delivered");
        // 25 ms over the first path, 208 ms for what that path swallowed, 35 ms over the second path.
        let most = Duration::from_millis(if second == 10 { 300 } else { 40 });
        assert!(took < most, "packet {number}: {took:?}");
    }
}

#[test]
fn a_call_does_not_wait_behind_what_a_dead_path_carried() {
    const CALL: usize = 160;
    let mut pair = World::new(
        SchedulerKind::Auto,
        1,
        &[PathSpec::new(40, 20), PathSpec::new(4, 25)],
    );
    let offer = |pair: &mut World, ms: u64| {
        for _ in 0..ms / 20 {
            pair.offer(CALL, 10);
            for _ in 0..40 {
                pair.offer(1_250, 9);
                pair.run(Duration::from_micros(500));
            }
        }
    };
    offer(&mut pair, 1_000);
    pair.set_dead(0, Selector::Both, true);
    let cut = pair.now();
    offer(&mut pair, 1_500);
    assert!(
        pair.site.tunnel.stats().repairs_sent > 100,
        "{:?}",
        pair.site.tunnel.stats()
    );
    let call = |(at, packet): &(Instant, Bytes)| (packet.len() == CALL).then_some(*at);
    let times: Vec<_> = pair.hub.delivered.iter().filter_map(call).collect();
    let gap = times.windows(2).map(|w| w[1].since(w[0])).max();
    assert!(gap < Some(Duration::from_millis(250)), "{gap:?}");
    assert!(
        times
            .last()
            .is_some_and(|&at| at > cut + Duration::from_millis(1_400))
    );
}

#[test]
fn a_gap_in_one_flow_holds_up_no_other_flow() {
    const GAPS: u64 = 10;
    let mut pair = World::new(SchedulerKind::Auto, 1, &[PathSpec::new(16, 25)]);
    let mut offered = Vec::new();
    for round in 0..50 * GAPS {
        for port in [9, 10] {
            let lost = port == 9 && round % 50 == 25;
            pair.set_dead(0, Selector::One(Side::Up), lost);
            offered.push(pair.now());
            let segment = packet::tcp(pair.offered, port, 1_000);
            pair.enter(segment);
            pair.run(Duration::from_millis(1));
        }
    }
    pair.run(Duration::from_secs(1));
    // A few repair symbols are lost, too.
    let lost = pair.counters(0, Side::Up).dropped_blackhole;
    assert!((GAPS..GAPS + 5).contains(&lost), "{lost}");
    let late = |flow: u32| -> Vec<Duration> {
        let numbers: Vec<_> = pair.numbers();
        let arrivals = pair.hub.delivered.iter().zip(&numbers);
        let of_flow: Vec<_> = arrivals.filter(|(_, n)| *n % 2 == flow).collect();
        assert!(of_flow.is_sorted_by_key(|(_, n)| **n), "flow {flow}");
        let took = |((at, _), n): (&(Instant, Bytes), &u32)| at.since(offered[*n as usize]);
        of_flow.into_iter().map(took).collect()
    };
    let [with_gaps, other] = [late(0), late(1)];
    assert_eq!([with_gaps.len(), other.len()], [500, 500]);
    // The flow with gaps waits for what is missing.
    let most = Duration::from_millis(30);
    let waited = with_gaps.iter().filter(|late| **late > most).count();
    assert!(waited > 30, "{waited}");
    // 25 ms on the way, and 1 ms for the packets before it.
    let most = Duration::from_millis(26);
    assert!(
        other.iter().all(|late| *late < most),
        "{:?}",
        other.iter().max()
    );
}

#[test]
fn a_metered_path_carries_with_cost_aware_only_what_the_others_cannot() {
    let mut pair = World::new(SchedulerKind::CostAware, 1, &even());
    let metered = PathConfig {
        metered: true,
        ..PathConfig::default()
    };
    pair.site.tunnel.set_path_config(PathId(1), metered);
    // Bytes that the metered path carries of so many packets, one each `pause`.
    let carried = |pair: &mut World, packets: u32, pause: Duration| {
        let bytes = |pair: &World| {
            pair.site
                .tunnel
                .path_stats(PathId(1))
                .expect("known")
                .tx_bytes
        };
        let before = bytes(pair);
        for _ in 0..packets {
            pair.offer(1_250, 9);
            pair.run(pause);
        }
        bytes(pair) - before
    };
    // 5 Mbit/s, of which the other path can carry 10.
    let spent = carried(&mut pair, 2_000, Duration::from_millis(2));
    // Some repair symbols of the first second, and no data.
    assert_eq!(spent, pair.site.tunnel.stats().protection_bytes);
    assert!(spent < 40_000, "{spent}");
    // 15 Mbit/s for 2 s: 5 Mbit/s are 1.25 MB.
    let spent = carried(&mut pair, 3_000, Duration::from_micros(667));
    assert!((1_100_000..1_600_000).contains(&spent), "{spent}");
    // And everything once the other path is dead.
    pair.run(Duration::from_secs(1));
    pair.set_dead(0, Selector::Both, true);
    carried(&mut pair, 1_000, Duration::from_millis(2));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers().len(), 6_000);
}

/// Paths of different families have room for different sizes, so the copies of a packet are cut at
/// different places.
#[test]
fn copies_in_different_pieces_over_paths_that_lose_all_arrive() {
    let mut specs = even();
    for (spec, room) in specs.iter_mut().zip([1_440, 1_400]) {
        for report in &mut spec.reports {
            report.max_datagram = room;
        }
    }
    let mut pair = World::new(SchedulerKind::Redundant, 1, &specs);
    pair.lose(0.08);
    for _ in 0..1_000 {
        pair.offer_segment(1_477);
        pair.run(Duration::from_millis(5));
    }
    pair.run(Duration::from_secs(2));
    let mut got = pair.numbers();
    got.sort_unstable();
    got.dedup();
    assert!(got.len() >= 998, "{} of 1,000", got.len());
}

#[test]
fn a_packet_larger_than_the_path_is_fragmented_and_rejoined() {
    let mut path = PathSpec::new(16, 25);
    path.reports[0].max_datagram = 1_200;
    let mut pair = World::new(SchedulerKind::Auto, 1, &[path]);
    for _ in 0..20 {
        pair.offer(9_000, 9);
        pair.run(Duration::from_millis(20));
    }
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers(), (0..20).collect::<Vec<_>>());
    assert!(pair.hub.delivered.iter().all(|(_, b)| b.len() == 9_000));
    assert_eq!(pair.hub.tunnel.stats().fragments_dropped, 0);
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| {
        let mut pair = World::new(SchedulerKind::Auto, seed, &uneven());
        for round in 0..1_500u16 {
            pair.offer(1_250, round % 5);
            pair.run(Duration::from_micros(500));
        }
        pair.run(Duration::from_secs(1));
        let mut trace = DefaultHasher::new();
        for (at, path, datagram) in &pair.site.sent {
            (at.as_nanos(), path.0, &datagram[..]).hash(&mut trace);
        }
        for (at, data) in &pair.hub.delivered {
            (at.as_nanos(), &data[..]).hash(&mut trace);
        }
        trace.finish()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn garbage_and_foreign_packets_are_counted_not_fatal() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
    let now = pair.now();
    for bytes in [&[][..], &[0xff; 40], &[0x10; 3], &[0x20; 14], &[0x30; 9]] {
        assert_eq!(
            pair.hub.tunnel.handle_datagram(
                now,
                PathId(0),
                Ecn::NotEct,
                Bytes::copy_from_slice(bytes)
            ),
            None
        );
    }
    assert_eq!(pair.hub.tunnel.stats().malformed, 5);
    pair.site
        .tunnel
        .handle_inner(now, BytesMut::zeroed(3), false);
    pair.site
        .tunnel
        .handle_inner(now, BytesMut::zeroed(HEADROOM + 60), false);
    assert_eq!(pair.site.tunnel.stats().invalid_inner, 2);
}

#[test]
fn an_outer_mark_reaches_a_capable_inner_packet() {
    for (inner, expected) in [(2u8, 3u8), (1, 3), (3, 3), (0, 0)] {
        let mut pair = World::new(SchedulerKind::Auto, 1, &uneven());
        let mut data = packet::udp(0, 9, 100);
        data[HEADROOM + 1] |= inner;
        let now = pair.now();
        let report = pair.site.paths[0].report.clone();
        pair.site.tunnel.update_path(now, PathId(0), report);
        pair.site.tunnel.handle_inner(now, data, false);
        let mut out = Vec::new();
        pair.site.tunnel.poll_transmit(now, &mut out, 10);
        let sent = out.pop().expect("room");
        pair.hub
            .tunnel
            .handle_datagram(now, sent.path, Ecn::Ce, sent.datagram);
        pair.hub.tunnel.end_batch(now);
        let got = pair.hub.tunnel.poll_inner().expect("delivered");
        assert_eq!(got.data[1] & 3, expected);
    }
}

/// A call over two paths of which the first loses everything while packets `cut` are sent; how late each
/// packet came.
fn call(classes: Classes, cut: Range<u32>) -> (World, Vec<Option<Duration>>) {
    let protected = TunnelConfig {
        classes: classes.into(),
        ..config(SchedulerKind::Auto)
    };
    let configs = [protected, config(SchedulerKind::Auto)];
    let mut pair = World::with(configs, 1, &even());
    let start = pair.now();
    for n in 0..100 {
        pair.set_dead(0, Selector::One(Side::Up), cut.contains(&n));
        pair.offer(160, 5);
        pair.run(Duration::from_millis(20));
    }
    pair.set_dead(0, Selector::One(Side::Up), false);
    pair.run(Duration::from_millis(300));
    let mut late = vec![None; 100];
    for ((at, _), number) in pair.hub.delivered.iter().zip(pair.numbers()) {
        let sent = start + Duration::from_millis(20) * number;
        assert!(late[number as usize].replace(at.since(sent)).is_none());
    }
    (pair, late)
}

#[test]
fn what_a_call_loses_in_a_burst_is_there_in_time() {
    let (mut pair, late) = call(Classes::default(), 50..54);
    assert!(
        pair.counters(0, Side::Up).dropped_blackhole >= 2,
        "the burst was on the path of the call"
    );
    for (n, late) in late.iter().enumerate() {
        let late = late.unwrap_or(Duration::from_secs(9));
        assert!(
            late <= Duration::from_millis(15 + 50),
            "packet {n}: {late:?}"
        );
    }
    let stats = pair.site.tunnel.stats();
    assert!((1..=8).contains(&stats.rescued), "{stats:?}");
    // The pause after the call is asked about in vain, a few times.
    let asked = pair.hub.tunnel.stats().rescues_asked;
    assert!(asked <= stats.rescued + 8, "{asked}: {stats:?}");
}

#[test]
fn nothing_is_spent_on_a_call_while_nothing_is_lost() {
    let (pair, late) = call(Classes::default(), 0..0);
    assert!(late.iter().all(Option::is_some));
    let stats = pair.site.tunnel.stats();
    assert_eq!((stats.rescued, stats.repairs_sent), (0, 0));
}

#[test]
fn unprotected_packets_are_lost_and_duplicated_ones_come_once() {
    let (pair, late) = call(Classes::all(Protection::None), 50..54);
    let missing = late.iter().filter(|late| late.is_none()).count();
    assert!((2..=4).contains(&missing), "{missing}");
    assert_eq!(pair.site.tunnel.stats().protection_bytes, 0);

    let (pair, late) = call(Classes::all(Protection::Duplicate), 50..54);
    assert!(
        late.iter()
            .all(|late| late.is_some_and(|late| late < Duration::from_millis(20)))
    );
    let stats = pair.site.tunnel.stats();
    assert_eq!(stats.protection_bytes, stats.data_bytes);
    assert_eq!(stats.repairs_sent, 0, "the copies arrived");
    assert!(pair.hub.tunnel.stats().reorder.duplicates >= 95);
}

#[test]
fn copies_on_a_metered_path_keep_to_their_budget() {
    let copies = TunnelConfig {
        classes: Classes::all(Protection::Duplicate).into(),
        ..config(SchedulerKind::Auto)
    };
    let configs = [copies, config(SchedulerKind::Auto)];
    let mut pair = World::with(configs, 1, &even());
    let budget = PathConfig {
        metered: true,
        protection_hourly: Some(60_000),
        ..PathConfig::default()
    };
    pair.site.tunnel.set_path_config(PathId(1), budget);
    for _ in 0..200 {
        pair.offer(990, 5);
        pair.run(Duration::from_millis(10));
    }
    // Ten minutes' worth at once, and what two seconds bring.
    let spent = pair.site.tunnel.stats().protection_bytes;
    assert!((9_000..=11_100).contains(&spent), "{spent}");
}

#[test]
fn a_query_over_paths_that_lose_goes_over_both() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &even());
    let bulk = |pair: &mut World| {
        for _ in 0..1_500 {
            pair.offer(1_000, 6);
            pair.run(Duration::from_millis(2));
        }
        pair.run(Duration::from_secs(1));
    };
    // While nothing is lost nothing is copied.
    bulk(&mut pair);
    let before = pair.site.tunnel.stats().protection_bytes;
    for _ in 0..10 {
        pair.offer(100, 5);
        pair.run(Duration::from_millis(1_200));
    }
    assert_eq!(pair.site.tunnel.stats().protection_bytes, before);
    pair.lose(0.05);
    bulk(&mut pair);
    let copies = |pair: &World| pair.site.tunnel.stats().protection_bytes;
    let before = copies(&pair);
    let start = pair.now();
    pair.hub.delivered.clear();
    for _ in 0..50 {
        pair.offer(100, 5);
        pair.run(Duration::from_millis(1_200));
    }
    assert_eq!(pair.hub.delivered.len(), 50);
    for (n, (at, _)) in (0..).zip(&pair.hub.delivered) {
        let late = at.since(start + Duration::from_millis(1_200) * n);
        assert!(late < Duration::from_millis(20), "query {n}: {late:?}");
    }
    // A copy each, and repair symbols at the pauses.
    let spent = copies(&pair) - before;
    let least = 50 * (100 + ropewalk_wire::DATA_HEADER as u64);
    assert!((least..3 * least).contains(&spent), "{spent}");
}

#[test]
fn queries_wait_neither_long_for_downloads_nor_for_a_path_that_died() {
    let mut pair = World::new(SchedulerKind::Auto, 1, &even());
    let mut queries = Vec::new();
    for query in 0..50 {
        pair.set_dead(0, Selector::Both, query >= 25);
        queries.push((query, pair.offered, pair.now()));
        pair.offer(100, 1_000 + query);
        // 24 Mbit/s in four flows over paths of 20 Mbit/s together.
        for packet in 0..600 {
            pair.offer(1_000, packet % 4);
            pair.run(Duration::from_micros(333));
        }
    }
    pair.run(Duration::from_secs(1));
    let came: BTreeMap<_, _> = pair
        .hub
        .delivered
        .iter()
        .map(|(at, data)| (packet::number(data), *at))
        .collect();
    for (query, number, offered) in queries {
        let took = came.get(&number).expect("delivered").since(offered);
        // 16 ms on the way, 33 ms behind the window of a download that fills the queue of the link;
        // for the first after the cut, and what the dead path swallowed, 300 ms.
        let most = Duration::from_millis(if query == 25 { 300 } else { 60 });
        assert!(took < most, "query {query}: {took:?}");
    }
}
