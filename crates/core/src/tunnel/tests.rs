//! Two tunnels joined by toy links in virtual time: rate, delay, an outage switch, and a window
//! of twice the bandwidth-delay product.

use super::*;
use crate::protect::Protection;
use bytes::BytesMut;
use ropewalk_types::{Ecn, Rate};
use ropewalk_wire::HEADROOM;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

mod hold;

struct Link {
    rate: Rate,
    delay: Duration,
    max_datagram: usize,
    cut: bool,
    /// Every so many datagrams are lost; none at zero.
    loses_every: u32,
    sent: u32,
    lost: u32,
    busy_until: Instant,
    under_way: VecDeque<(Instant, Bytes)>,
    /// When each packet will be acknowledged, and its bytes.
    unacknowledged: VecDeque<(Instant, u64)>,
    silent_since: Option<Instant>,
}

impl Link {
    fn new(mbit: u64, delay_ms: u64) -> Self {
        Self {
            rate: Rate::from_bits_per_sec(mbit * 1_000_000),
            delay: Duration::from_millis(delay_ms),
            max_datagram: 1_400,
            cut: false,
            loses_every: 0,
            sent: 0,
            lost: 0,
            busy_until: Instant::ZERO,
            under_way: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            silent_since: None,
        }
    }

    fn send(&mut self, now: Instant, datagram: Bytes) {
        self.busy_until = self.busy_until.max(now) + self.rate.time_for(datagram.len() as u64);
        let arrives = self.busy_until + self.delay;
        let acknowledged = if self.cut {
            Instant::FAR_FUTURE
        } else {
            arrives + self.delay
        };
        self.unacknowledged
            .push_back((acknowledged, datagram.len() as u64));
        self.silent_since.get_or_insert(now);
        self.sent += 1;
        if self.loses_every > 0 && self.sent.is_multiple_of(self.loses_every) {
            self.lost += 1;
        } else if !self.cut {
            self.under_way.push_back((arrives, datagram));
        }
    }

    fn snapshot(&mut self, now: Instant) -> PathSnapshot {
        // What was sent before an acknowledged packet is acknowledged or lost.
        let settled = self.unacknowledged.iter().rposition(|&(at, _)| at <= now);
        if let Some(last) = settled {
            self.unacknowledged.drain(..=last);
            self.silent_since = (!self.unacknowledged.is_empty()).then_some(now);
        }
        let in_flight = self.unacknowledged.iter().map(|&(_, bytes)| bytes).sum();
        let cwnd = 2 * self.rate.bytes_in(2 * self.delay) + 4_000;
        PathSnapshot {
            srtt: 2 * self.delay,
            rttvar: self.delay / 8,
            min_rtt: 2 * self.delay,
            cwnd,
            in_flight,
            free: cwnd.saturating_sub(in_flight),
            rate: self.rate,
            max_datagram: self.max_datagram,
            silent_since: self.silent_since,
            ..PathSnapshot::default()
        }
    }
}

struct Pair {
    now: Instant,
    a: Tunnel,
    b: Tunnel,
    links: Vec<Link>,
    back: Vec<Link>,
    delivered: Vec<(Instant, Bytes)>,
    trace: DefaultHasher,
    sent: u32,
}

impl Pair {
    fn new(scheduler: SchedulerKind, seed: u64, links: Vec<Link>) -> Self {
        Self::holding(Limits::default(), scheduler, seed, links)
    }

    fn holding(hold: Limits, scheduler: SchedulerKind, seed: u64, links: Vec<Link>) -> Self {
        let config = TunnelConfig {
            scheduler,
            probe_interval: None,
            classes: Default::default(),
            hold,
        };
        let mut pair = Self {
            now: Instant::from_millis(1),
            a: Tunnel::new(config.clone(), seed),
            b: Tunnel::new(config, seed + 1),
            back: links
                .iter()
                .map(|l| Link {
                    max_datagram: 1_400,
                    ..Link::new(100, l.delay.as_millis() as u64)
                })
                .collect(),
            links,
            delivered: Vec::new(),
            trace: DefaultHasher::new(),
            sent: 0,
        };
        for id in 0..pair.links.len() {
            pair.a
                .add_path(pair.now, PathId(id as u8), PathConfig::default());
            pair.b
                .add_path(pair.now, PathId(id as u8), PathConfig::default());
        }
        pair
    }

    /// A UDP packet of `bytes` with a running number behind the header.
    fn packet(&mut self, bytes: usize, port: u16) -> BytesMut {
        let mut data = BytesMut::zeroed(HEADROOM + bytes);
        let ip = &mut data[HEADROOM..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
        ip[9] = 17;
        ip[20..22].copy_from_slice(&port.to_be_bytes());
        ip[28..32].copy_from_slice(&self.sent.to_be_bytes());
        self.sent += 1;
        data
    }

    fn offer(&mut self, bytes: usize, port: u16) {
        let data = self.packet(bytes, port);
        self.a.handle_inner(self.now, data, false);
    }

    fn step(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.a.handle_timeout(now);
        self.b.handle_timeout(now);
        for id in 0..self.links.len() {
            let path = PathId(id as u8);
            self.a.update_path(now, path, self.links[id].snapshot(now));
            self.b.update_path(now, path, self.back[id].snapshot(now));
        }
        let mut out = Vec::new();
        let ends = [
            (&mut self.a, &mut self.links),
            (&mut self.b, &mut self.back),
        ];
        for (tunnel, links) in ends {
            while let Some(id) = tunnel.poll_declared_lost() {
                let link = &mut links[id.index()];
                link.unacknowledged
                    .retain(|&(at, _)| at != Instant::FAR_FUTURE);
                tunnel.update_path(now, id, link.snapshot(now));
            }
        }
        self.a.poll_transmit(now, &mut out, 1_000);
        for o in out.drain(..) {
            (now.as_nanos(), o.path.0, &o.datagram[..]).hash(&mut self.trace);
            self.links[o.path.index()].send(now, o.datagram);
        }
        self.b.poll_transmit(now, &mut out, 1_000);
        for o in out.drain(..) {
            self.back[o.path.index()].send(now, o.datagram);
        }
        for id in 0..self.links.len() {
            let path = PathId(id as u8);
            while self.links[id]
                .under_way
                .front()
                .is_some_and(|&(at, _)| at <= now)
            {
                let (_, data) = self.links[id].under_way.pop_front().expect("just seen");
                self.b.handle_datagram(now, path, Ecn::NotEct, data);
            }
            while self.back[id]
                .under_way
                .front()
                .is_some_and(|&(at, _)| at <= now)
            {
                let (_, data) = self.back[id].under_way.pop_front().expect("just seen");
                self.a.handle_datagram(now, path, Ecn::NotEct, data);
            }
        }
        self.a.end_batch(now);
        self.b.end_batch(now);
        while let Some(inner) = self.b.poll_inner() {
            inner.data.hash(&mut self.trace);
            self.delivered.push((now, inner.data));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step(Duration::from_micros(500));
        }
    }

    fn numbers(&self) -> Vec<u32> {
        let number = |b: &Bytes| u32::from_be_bytes([b[28], b[29], b[30], b[31]]);
        self.delivered.iter().map(|(_, b)| number(b)).collect()
    }
}

/// A TCP segment with data behind the running number of [`Pair::packet`].
fn offer_segment(pair: &mut Pair) {
    let mut data = pair.packet(1_250, 9);
    let ip = &mut data[HEADROOM..];
    ip[9] = 6;
    ip[32] = 0x50; // a header of 20 bytes
    pair.a.handle_inner(pair.now, data, false);
}

#[test]
fn losses_are_repaired_in_order_though_questions_and_repairs_are_lost_too() {
    for kind in [SchedulerKind::Auto, SchedulerKind::LowRtt] {
        let mut pair = Pair::new(kind, 1, uneven());
        for link in pair.links.iter_mut().chain(&mut pair.back) {
            link.loses_every = 20;
        }
        for _ in 0..2_000 {
            offer_segment(&mut pair);
            pair.step(Duration::from_micros(1_500));
        }
        pair.run(Duration::from_secs(1));
        let numbers = pair.numbers();
        assert!(numbers.is_sorted(), "{kind}");
        assert_eq!(numbers.len(), 2_000, "{kind}");
        let lost: u32 = pair.links.iter().map(|link| link.lost).sum();
        let repairs = pair.a.stats().repairs_sent;
        let recovered = pair.b.stats().recovered;
        // Some are probes, reports and repair symbols: nobody misses those.
        assert!(
            lost > 90 && recovered + repairs > 90,
            "{kind}: {lost} lost, {recovered} recovered, {repairs} sent again"
        );
        assert!(
            repairs <= u64::from(lost),
            "{kind}: {lost} lost, {repairs} sent again"
        );
    }
}

#[test]
fn what_was_lost_is_sent_again_in_pieces_where_it_no_longer_fits() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, vec![Link::new(16, 25)]);
    pair.links[0].loses_every = 20;
    for packet in 0..1_000 {
        // A path that loses may be taken for one that takes less, for a while.
        pair.links[0].max_datagram = if packet % 100 < 50 { 1_400 } else { 700 };
        offer_segment(&mut pair);
        pair.step(Duration::from_micros(1_500));
    }
    pair.links[0].max_datagram = 1_400;
    pair.run(Duration::from_secs(1));
    let numbers = pair.numbers();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.len(), 1_000);
    assert_eq!(pair.a.stats().repairs_dropped, 0);
}

#[test]
fn what_a_cut_path_swallowed_is_sent_over_the_other() {
    let mut pair = Pair::new(SchedulerKind::LowRtt, 1, uneven());
    for packet in 0..1_000 {
        pair.links[0].cut = packet >= 500;
        offer_segment(&mut pair);
        pair.step(Duration::from_millis(2));
    }
    pair.run(Duration::from_secs(2));
    let numbers = pair.numbers();
    assert!(numbers.is_sorted());
    assert_eq!(numbers.len(), 1_000);
}

#[test]
fn what_was_sent_long_ago_is_not_sent_again() {
    for (age, repairs) in [(Duration::from_millis(900), 1), (Duration::from_secs(3), 0)] {
        let mut pair = Pair::new(SchedulerKind::LowRtt, 1, vec![Link::new(16, 25)]);
        pair.links[0].cut = true;
        offer_segment(&mut pair);
        pair.step(Duration::from_millis(1));
        pair.now += age;
        let run = ropewalk_wire::NackRun {
            path: 0,
            first: 0,
            count: 1,
        };
        let mut nack = Vec::new();
        ropewalk_wire::emit_nack(ropewalk_wire::Stamp::default(), &[run], &mut nack);
        let (now, id) = (pair.now, PathId(0));
        pair.a.handle_datagram(now, id, Ecn::NotEct, nack.into());
        let snapshot = PathSnapshot {
            max_datagram: 1_400,
            ..PathSnapshot::default()
        };
        pair.a.update_path(now, id, snapshot);
        pair.a.poll_transmit(now, &mut Vec::new(), 10);
        assert_eq!(pair.a.stats().repairs_sent, repairs, "{age:?}");
    }
}

#[test]
fn a_tunnel_that_has_just_lost_its_last_path_wants_nothing() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, vec![Link::new(16, 25)]);
    pair.offer(100, 9);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.delivered.len(), 1);
    pair.b.remove_path(pair.now, PathId(0));
    // It owes a report, and nobody could carry it.
    assert_eq!(pair.b.poll_timeout(), None);
    pair.run(Duration::from_millis(200));
    pair.b.add_path(pair.now, PathId(0), PathConfig::default());
    assert!(pair.b.poll_timeout().is_some_and(|at| at <= pair.now));
    let mut out = Vec::new();
    assert_eq!(pair.b.poll_transmit(pair.now, &mut out, 1), 1);
}

#[test]
fn while_no_path_is_up_repair_symbols_are_left_out_and_not_sent_empty() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, vec![Link::new(16, 25)]);
    let silent_since = Some(pair.now);
    pair.now += Duration::from_secs(1);
    let (now, id) = (pair.now, PathId(0));
    let snapshot = PathSnapshot {
        silent_since,
        max_datagram: 1_400,
        ..pair.links[0].snapshot(now)
    };
    for _ in 0..50 {
        offer_segment(&mut pair);
        pair.a.update_path(now, id, snapshot.clone());
        let mut out = Vec::new();
        pair.a.poll_transmit(now, &mut out, 10);
        for Outgoing { datagram, .. } in out {
            let parsed = ropewalk_wire::Datagram::parse(&datagram);
            assert!(parsed.is_ok(), "{parsed:?} {datagram:x?}");
        }
    }
    // They wait for a path that is up.
    assert_eq!(pair.a.stats().tx_packets, 0);
}

#[test]
fn bare_acknowledgements_wait_for_nothing() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, vec![Link::new(16, 25)]);
    pair.links[0].loses_every = 10;
    for _ in 0..100 {
        let mut data = pair.packet(40, 9);
        let ip = &mut data[HEADROOM..];
        (ip[9], ip[32]) = (6, 0x50);
        pair.a.handle_inner(pair.now, data, false);
        pair.step(Duration::from_millis(2));
    }
    pair.run(Duration::from_secs(1));
    let delays = pair.delivered.len();
    assert_eq!(delays, 100, "repaired, all the same");
    assert_eq!(pair.b.stats().reorder.held, 0);
}

fn uneven() -> Vec<Link> {
    vec![Link::new(16, 25), Link::new(8, 35)]
}

/// Offers one flow at 20 of 24 Mbit/s for a second.
fn load(pair: &mut Pair) {
    for _ in 0..2_000 {
        pair.offer(1_250, 9);
        pair.step(Duration::from_micros(500));
    }
    pair.run(Duration::from_secs(1));
}

#[test]
fn every_scheduler_delivers_everything_once_and_in_order() {
    for kind in SchedulerKind::ALL {
        let mut pair = Pair::new(kind, 1, uneven());
        for _ in 0..1_000 {
            pair.offer(1_250, 9);
            pair.step(Duration::from_millis(2)); // 5 Mbit/s: every path alone is enough
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
        let mut pair = Pair::new(kind, 1, uneven());
        load(&mut pair);
        let stats = pair.a.stats();
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
    let mut pair = Pair::new(SchedulerKind::Auto, 1, uneven());
    for round in 0..2_000 {
        if round % 50 == 0 {
            let kind = SchedulerKind::ALL[round / 50 % SchedulerKind::ALL.len()];
            if kind != SchedulerKind::Redundant {
                pair.a.set_scheduler(kind);
            }
        }
        pair.offer(625, 9);
        pair.step(Duration::from_micros(500));
    }
    pair.a.set_scheduler(SchedulerKind::Auto);
    pair.run(Duration::from_secs(1));
    let mut numbers = pair.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
}

#[test]
fn a_silent_path_is_left_and_used_again_when_it_returns() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, uneven());
    let offer = |pair: &mut Pair, ms: u64| {
        for _ in 0..ms / 10 {
            pair.offer(200, 9);
            pair.run(Duration::from_millis(10));
        }
    };
    offer(&mut pair, 500);
    pair.links[0].cut = true;
    let cut = pair.now;
    offer(&mut pair, 500);
    let gap = pair
        .delivered
        .windows(2)
        .map(|w| w[1].0.since(w[0].0))
        .max();
    assert!(gap < Some(Duration::from_millis(300)), "{gap:?}");
    assert!(
        matches!(pair.a.path_state(PathId(0)), Some(PathState::Suspect(at)) if at >= cut - Duration::from_millis(60))
    );
    assert!(pair.a.any_up());

    // The transport gets an answer again.
    pair.links[0].cut = false;
    pair.links[0].unacknowledged.clear();
    pair.links[0].silent_since = None;
    let before = pair.a.path_stats(PathId(0)).expect("known").tx_datagrams;
    offer(&mut pair, 500);
    assert_eq!(pair.a.path_state(PathId(0)), Some(PathState::Up));
    let after = pair.a.path_stats(PathId(0)).expect("known").tx_datagrams;
    assert!(after > before + 10, "{before} {after}");
}

#[test]
fn a_call_does_not_wait_behind_what_a_dead_path_carried() {
    const CALL: usize = 160;
    let mut pair = Pair::new(
        SchedulerKind::Auto,
        1,
        vec![Link::new(40, 20), Link::new(4, 25)],
    );
    let offer = |pair: &mut Pair, ms: u64| {
        for _ in 0..ms / 20 {
            pair.offer(CALL, 10);
            for _ in 0..40 {
                pair.offer(1_250, 9);
                pair.run(Duration::from_micros(500));
            }
        }
    };
    offer(&mut pair, 1_000);
    pair.links[0].cut = true;
    let cut = pair.now;
    offer(&mut pair, 1_500);
    assert!(pair.a.stats().repairs_sent > 100, "{:?}", pair.a.stats());
    let call = |(at, packet): &(Instant, Bytes)| (packet.len() == CALL).then_some(*at);
    let times: Vec<_> = pair.delivered.iter().filter_map(call).collect();
    let gap = times.windows(2).map(|w| w[1].since(w[0])).max();
    assert!(gap < Some(Duration::from_millis(250)), "{gap:?}");
    assert!(
        times
            .last()
            .is_some_and(|&at| at > cut + Duration::from_millis(1_400))
    );
}

#[test]
fn a_packet_larger_than_the_path_is_fragmented_and_rejoined() {
    let mut links = vec![Link::new(16, 25)];
    links[0].max_datagram = 1_200;
    let mut pair = Pair::new(SchedulerKind::Auto, 1, links);
    for _ in 0..20 {
        pair.offer(9_000, 9);
        pair.run(Duration::from_millis(20));
    }
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers(), (0..20).collect::<Vec<_>>());
    assert!(pair.delivered.iter().all(|(_, b)| b.len() == 9_000));
    assert_eq!(pair.b.stats().fragments_dropped, 0);
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| {
        let mut pair = Pair::new(SchedulerKind::Auto, seed, uneven());
        for round in 0..1_500u16 {
            pair.offer(1_250, round % 5);
            pair.step(Duration::from_micros(500));
        }
        pair.run(Duration::from_secs(1));
        pair.trace.finish()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn garbage_and_foreign_packets_are_counted_not_fatal() {
    let mut pair = Pair::new(SchedulerKind::Auto, 1, uneven());
    let now = pair.now;
    for bytes in [&[][..], &[0xff; 40], &[0x10; 3], &[0x20; 14], &[0x30; 9]] {
        assert_eq!(
            pair.b
                .handle_datagram(now, PathId(0), Ecn::NotEct, Bytes::copy_from_slice(bytes)),
            None
        );
    }
    assert_eq!(pair.b.stats().malformed, 5);
    pair.a.handle_inner(now, BytesMut::zeroed(3), false);
    pair.a
        .handle_inner(now, BytesMut::zeroed(HEADROOM + 60), false);
    assert_eq!(pair.a.stats().invalid_inner, 2);
}

#[test]
fn an_outer_mark_reaches_a_capable_inner_packet() {
    for (inner, expected) in [(2u8, 3u8), (1, 3), (3, 3), (0, 0)] {
        let mut pair = Pair::new(SchedulerKind::Auto, 1, uneven());
        let mut data = pair.packet(100, 9);
        data[HEADROOM + 1] |= inner;
        let now = pair.now;
        pair.a
            .update_path(now, PathId(0), pair.links[0].snapshot(now));
        pair.a.handle_inner(now, data, false);
        let mut out = Vec::new();
        pair.a.poll_transmit(now, &mut out, 10);
        let sent = out.pop().expect("room");
        pair.b
            .handle_datagram(now, sent.path, Ecn::Ce, sent.datagram);
        pair.b.end_batch(now);
        let got = pair.b.poll_inner().expect("delivered");
        assert_eq!(got.data[1] & 3, expected);
    }
}

/// A call over two paths of which the first loses everything while packets `cut` are sent; how late each
/// packet came.
fn call(classes: Classes, cut: std::ops::Range<u32>) -> (Pair, Vec<Option<Duration>>) {
    let even = vec![Link::new(10, 15), Link::new(10, 16)];
    let mut pair = Pair::new(SchedulerKind::Auto, 1, even);
    pair.a = Tunnel::new(
        TunnelConfig {
            scheduler: SchedulerKind::Auto,
            probe_interval: None,
            classes: classes.into(),
            hold: Default::default(),
        },
        1,
    );
    for id in 0..2 {
        pair.a.add_path(pair.now, PathId(id), PathConfig::default());
    }
    let start = pair.now;
    for n in 0..100 {
        pair.links[0].loses_every = u32::from(cut.contains(&n));
        pair.offer(160, 5);
        pair.run(Duration::from_millis(20));
    }
    pair.links[0].loses_every = 0;
    pair.run(Duration::from_millis(300));
    let mut late = vec![None; 100];
    for ((at, _), number) in pair.delivered.iter().zip(pair.numbers()) {
        let sent = start + Duration::from_millis(20) * number;
        assert!(late[number as usize].replace(at.since(sent)).is_none());
    }
    (pair, late)
}

#[test]
fn what_a_call_loses_in_a_burst_is_there_in_time() {
    let (pair, late) = call(Classes::default(), 50..54);
    assert!(
        pair.links[0].lost >= 2,
        "the burst was on the path of the call"
    );
    for (n, late) in late.iter().enumerate() {
        let late = late.unwrap_or(Duration::from_secs(9));
        assert!(
            late <= Duration::from_millis(15 + 50),
            "packet {n}: {late:?}"
        );
    }
    let stats = pair.a.stats();
    assert!((1..=8).contains(&stats.rescued), "{stats:?}");
    // The pause after the call is asked about in vain, a few times.
    let asked = pair.b.stats().rescues_asked;
    assert!(asked <= stats.rescued + 8, "{asked}: {stats:?}");
}

#[test]
fn nothing_is_spent_on_a_call_while_nothing_is_lost() {
    let (pair, late) = call(Classes::default(), 0..0);
    assert!(late.iter().all(Option::is_some));
    let stats = pair.a.stats();
    assert_eq!((stats.rescued, stats.repairs_sent), (0, 0));
}

#[test]
fn unprotected_packets_are_lost_and_duplicated_ones_come_once() {
    let (pair, late) = call(Classes::all(Protection::None), 50..54);
    let missing = late.iter().filter(|late| late.is_none()).count();
    assert!((2..=4).contains(&missing), "{missing}");
    assert_eq!(pair.a.stats().protection_bytes, 0);

    let (pair, late) = call(Classes::all(Protection::Duplicate), 50..54);
    assert!(
        late.iter()
            .all(|late| late.is_some_and(|late| late < Duration::from_millis(20)))
    );
    let stats = pair.a.stats();
    assert_eq!(stats.protection_bytes, stats.data_bytes);
    assert_eq!(stats.repairs_sent, 0, "the copies arrived");
    assert!(pair.b.stats().reorder.duplicates >= 95);
}

#[test]
fn copies_on_a_metered_path_keep_to_their_budget() {
    let mut pair = Pair::new(
        SchedulerKind::Auto,
        1,
        vec![Link::new(10, 15), Link::new(10, 16)],
    );
    let config = TunnelConfig {
        scheduler: SchedulerKind::Auto,
        probe_interval: None,
        classes: Classes::all(Protection::Duplicate).into(),
        hold: Default::default(),
    };
    pair.a = Tunnel::new(config, 1);
    let budget = PathConfig {
        metered: true,
        protection_hourly: Some(60_000),
        ..PathConfig::default()
    };
    pair.a.add_path(pair.now, PathId(0), PathConfig::default());
    pair.a.add_path(pair.now, PathId(1), budget);
    for _ in 0..200 {
        pair.offer(990, 5);
        pair.run(Duration::from_millis(10));
    }
    // Ten minutes' worth at once, and what two seconds bring.
    let spent = pair.a.stats().protection_bytes;
    assert!((9_000..=11_100).contains(&spent), "{spent}");
}

#[test]
fn a_query_over_paths_that_lose_goes_over_both() {
    let mut pair = Pair::new(
        SchedulerKind::Auto,
        1,
        vec![Link::new(10, 15), Link::new(10, 16)],
    );
    let bulk = |pair: &mut Pair| {
        for _ in 0..1_500 {
            pair.offer(1_000, 6);
            pair.run(Duration::from_millis(2));
        }
        pair.run(Duration::from_secs(1));
    };
    // While nothing is lost nothing is copied.
    bulk(&mut pair);
    let before = pair.a.stats().protection_bytes;
    for _ in 0..10 {
        pair.offer(100, 5);
        pair.run(Duration::from_millis(1_200));
    }
    assert_eq!(pair.a.stats().protection_bytes, before);
    for link in &mut pair.links {
        link.loses_every = 20;
    }
    bulk(&mut pair);
    let copies = |pair: &Pair| pair.a.stats().protection_bytes;
    let before = copies(&pair);
    let start = pair.now;
    pair.delivered.clear();
    for _ in 0..50 {
        pair.offer(100, 5);
        pair.run(Duration::from_millis(1_200));
    }
    assert_eq!(pair.delivered.len(), 50);
    for (n, (at, _)) in (0..).zip(&pair.delivered) {
        let late = at.since(start + Duration::from_millis(1_200) * n);
        assert!(late < Duration::from_millis(20), "query {n}: {late:?}");
    }
    // A copy each, and repair symbols at the pauses.
    let spent = copies(&pair) - before;
    let least = 50 * (100 + ropewalk_wire::DATA_HEADER as u64);
    assert!((least..3 * least).contains(&spent), "{spent}");
}

#[test]
fn a_packet_with_three_copies_is_answered_for_when_the_last_is_missed() {
    use super::paths::Paths;
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let now = Instant::from_millis(5);
        let mut paths = Paths::new(None, None);
        let id = PathId(1);
        paths.add(now, id, PathConfig::default());
        let copies = [7u8, 7, 7].map(|byte| {
            let path = paths.get_mut(id).unwrap();
            let number = path.stamp(now, 40).path_seq;
            path.remember_lost(now, &Bytes::from(vec![byte; 40]), 0, 3);
            number
        });
        paths.link_copy((id, copies[0]), (id, copies[1]));
        paths.link_copy((id, copies[1]), (id, copies[2]));
        let answered = order.map(|n| {
            let number = copies[n];
            let sent = paths.get_mut(id).unwrap().sent_log.take(number).unwrap();
            let arrives = |copy| paths.unlink_copy((id, number), copy);
            !sent.copy.is_some_and(arrives)
        });
        assert_eq!(answered, [false, false, true], "{order:?}");
    }
}
