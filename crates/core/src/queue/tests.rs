use super::*;

fn packet(flow: u16, bytes: usize, arrived: Instant) -> Packet {
    let mut data = BytesMut::zeroed(HEADROOM + bytes);
    data[HEADROOM] = 0x45;
    Packet {
        promised: false,
        tcp: false,
        class: 0,
        in_order: false,
        data,
        flow,
        checksum_partial: false,
        ecn: Ecn::NotEct,
        dscp: 0,
        arrived,
    }
}

fn drain(queue: &mut IngressQueue, now: Instant) -> Vec<u16> {
    let mut order = Vec::new();
    while let Some(flow) = queue.turn() {
        if queue.pop(now, flow).is_some() {
            order.push(flow);
        }
    }
    order
}

#[test]
fn flows_share_by_bytes_and_a_new_flow_goes_first() {
    let mut queue = IngressQueue::new();
    for _ in 0..10 {
        queue.push(packet(1, 1_400, Instant::ZERO));
    }
    for _ in 0..4 {
        let flow = queue.turn().expect("waiting");
        queue.pop(Instant::ZERO, flow);
    }
    queue.push(packet(2, 100, Instant::ZERO));
    assert_eq!(
        drain(&mut queue, Instant::ZERO)[..2]
            .iter()
            .filter(|&&f| f == 2)
            .count(),
        1
    );
}

#[test]
fn two_backlogged_flows_get_equal_bytes() {
    let mut queue = IngressQueue::new();
    for _ in 0..60 {
        queue.push(packet(1, 1_400, Instant::ZERO));
        queue.push(packet(2, 700, Instant::ZERO));
        queue.push(packet(2, 700, Instant::ZERO));
    }
    let mut bytes = [0i64; 3];
    for _ in 0..60 {
        let flow = queue.turn().expect("waiting");
        let taken = queue.pop(Instant::ZERO, flow).expect("below target");
        bytes[usize::from(flow)] += taken.len() as i64;
    }
    assert!((bytes[1] - bytes[2]).abs() <= 2 * QUANTUM, "{bytes:?}");
}

#[test]
fn a_skipped_flow_does_not_block_others() {
    let mut queue = IngressQueue::new();
    queue.push(packet(1, 100, Instant::ZERO));
    queue.push(packet(2, 100, Instant::ZERO));
    assert_eq!(queue.turn(), Some(1));
    queue.skip();
    assert_eq!(queue.turn(), Some(2));
    queue.pop(Instant::ZERO, 2);
    queue.end_round();
    assert_eq!(drain(&mut queue, Instant::ZERO), vec![1]);
    assert_eq!((queue.bytes(), queue.packets()), (0, 0));
}

#[test]
fn a_wrong_count_keeps_no_thread_in_a_loop_and_is_set_right() {
    let now = Instant::from_millis(5);
    for held in [false, true] {
        let mut queue = IngressQueue::new();
        if held {
            queue.hold();
        }
        (queue.bytes, queue.packets) = (u64::MAX / 2, usize::MAX / 2);
        queue.push(packet(1, 100, now));
        assert_eq!((queue.bytes, queue.packets), (0, 0), "held: {held}");
        queue.push(packet(1, 100, now));
        assert_eq!(queue.packets, 1, "held: {held}");
    }
}

#[test]
fn the_fattest_flow_pays_when_full() {
    let mut queue = IngressQueue::new();
    queue.keep_dropped();
    queue.push(packet(2, 1_000, Instant::ZERO));
    for _ in 0..1_000 {
        queue.push(packet(1, 1_400, Instant::ZERO));
    }
    assert!(queue.bytes() <= LIMIT_BYTES_MIN);
    assert_eq!(queue.flow_bytes(2), 1_000);
    let stats = queue.stats();
    assert!(stats.dropped_full > 0);
    assert_eq!(stats.enqueued, stats.dropped_full + queue.packets() as u64);
    let dropped = queue.take_dropped();
    assert_eq!(dropped.len() as u64, stats.dropped_full);
    assert!(dropped.iter().all(|packet| packet.flow == 1));
    assert!(queue.take_dropped().is_empty(), "each once");
}

#[test]
fn a_standing_queue_is_dropped_from_or_marked() {
    for (ecn, marked) in [(Ecn::NotEct, false), (Ecn::Ect0, true)] {
        let mut queue = IngressQueue::new();
        queue.keep_dropped();
        // 1,400 bytes every 10 ms leave, but 200 ms of packets wait all the time.
        for ms in 0..2_000u64 {
            let now = Instant::from_millis(ms);
            if ms % 9 == 0 {
                let mut p = packet(1, 1_400, now);
                p.ecn = ecn;
                p.data[HEADROOM + 1] = ecn as u8;
                queue.push(p);
            }
            if ms > 200 && ms % 10 == 0 {
                queue.turn().and_then(|flow| queue.pop(now, flow));
            }
        }
        let stats = queue.stats();
        assert_eq!(stats.marked > 0, marked, "{stats:?}");
        assert_eq!(stats.dropped_codel > 0, !marked, "{stats:?}");
        assert_eq!(queue.take_dropped().len() as u64, stats.dropped_codel);
    }
}

#[test]
fn a_wait_behind_a_queue_of_others_is_not_dropped_for() {
    // 300 ms of others' packets wait at the bottleneck. For 400 ms our own window is a quarter
    // smaller, so 100 ms of packets wait here.
    for (queued, dropped) in [(0, true), (300, false)] {
        let mut queue = IngressQueue::new();
        let delays = Delays {
            rtt: Duration::from_millis(80),
            queued: Duration::from_millis(queued),
            srtt: Duration::from_millis(80 + queued),
            ..Delays::default()
        };
        queue.set_paths(Rate::from_bits_per_sec(10_000_000), delays);
        for ms in 0..400 {
            queue.push(packet(1, 1_000, Instant::from_millis(ms)));
            if ms >= 100 {
                let flow = queue.turn().expect("100 ms wait");
                queue.pop(Instant::from_millis(ms), flow);
            }
        }
        let stats = queue.stats();
        assert_eq!(stats.dropped_codel > 0, dropped, "{stats:?}");
    }
}

#[test]
fn a_short_burst_passes_untouched() {
    let mut queue = IngressQueue::new();
    for _ in 0..20 {
        queue.push(packet(1, 1_400, Instant::ZERO));
    }
    assert_eq!(drain(&mut queue, Instant::from_millis(50)).len(), 20);
}

#[test]
fn marking_keeps_the_ipv4_checksum_right() {
    let mut ip = [0u8; 20];
    ip[0] = 0x45;
    ip[1] = 0x02;
    ip[8] = 64;
    ip[12] = 10;
    let sum = |ip: &[u8; 20]| {
        let mut sum: u32 = ip
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    };
    let checksum = !u16::try_from(sum(&ip)).expect("folded");
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(sum(&ip), 0xffff);
    mark_ce(&mut ip);
    assert_eq!((ip[1] & 3, sum(&ip)), (3, 0xffff));
}

#[test]
fn flows_with_more_than_a_packet_waiting_are_backlogged() {
    let mut queue = IngressQueue::new();
    assert_eq!(queue.backlogged_flows(2), 0);
    for flow in 0..3 {
        queue.push(packet(flow, 1_400, Instant::ZERO));
    }
    assert_eq!(queue.backlogged_flows(2), 0);
    for flow in 0..3 {
        queue.push(packet(flow, 1_400, Instant::ZERO));
        assert_eq!(queue.backlogged_flows(2), usize::from(flow + 1).min(2));
    }
    drain(&mut queue, Instant::ZERO);
    assert_eq!(queue.backlogged_flows(2), 0);
}

/// What a test does to a queue in an outage.
#[derive(Clone, Debug)]
struct Push {
    flow: u16,
    bytes: usize,
    tcp: bool,
    wait: Duration,
}

fn pushes() -> impl proptest::strategy::Strategy<Value = Vec<Push>> {
    use proptest::prelude::*;
    let one = (0..4u16, 40..1_500usize, any::<bool>(), 0..400u64);
    let one = one.prop_map(|(flow, bytes, tcp, wait)| Push {
        flow,
        bytes,
        tcp,
        wait: Duration::from_millis(wait),
    });
    proptest::collection::vec(one, 1..300)
}

proptest::proptest! {
    #[test]
    fn whatever_an_outage_brings_bounds_and_order_are_kept(pushes in pushes()) {
        let limits = Limits {
            bytes_max: 60_000,
            flow_bytes_max: 30_000,
            packets_max: 80,
            ..Limits::default()
        };
        let mut queue = IngressQueue::new();
        queue.set_hold_limits(limits);
        queue.keep_dropped();
        queue.hold();
        let mut now = Instant::ZERO;
        for (number, push) in (0u32..).zip(&pushes) {
            now += push.wait;
            let mut packet = packet(push.flow, push.bytes, now);
            packet.tcp = push.tcp;
            packet.data[HEADROOM + 4..HEADROOM + 8].copy_from_slice(&number.to_be_bytes());
            queue.push(packet);
            proptest::prop_assert!(queue.bytes() <= limits.bytes_max);
            proptest::prop_assert!(queue.packets() <= limits.packets_max);
            proptest::prop_assert!(queue.flow_bytes(push.flow) <= limits.flow_bytes_max);
        }
        queue.replay(now);
        let (held, mut replayed) = (queue.packets() as u64, 0);
        let mut last = [None; 4];
        while let Some(flow) = queue.turn() {
            // Late: CoDel would drop most of it.
            let Some(packet) = queue.pop(now + Duration::from_millis(900), flow) else {
                continue;
            };
            replayed += 1;
            let data = &packet.data[HEADROOM + 4..HEADROOM + 8];
            let number = u32::from_be_bytes(data.try_into().expect("four bytes"));
            let before = last[usize::from(flow)].replace(number);
            proptest::prop_assert!(before < Some(number), "order of a flow");
        }
        let stats = queue.stats();
        proptest::prop_assert_eq!(stats.dropped_codel, 0);
        proptest::prop_assert_eq!(stats.dropped_full, 0);
        proptest::prop_assert_eq!(held, replayed + stats.held_old - aged(&pushes, &stats, held));
        let gone = stats.held_full + stats.held_old + stats.replayed;
        proptest::prop_assert_eq!(gone, pushes.len() as u64, "every packet is accounted for");
        let dropped = queue.take_dropped().len() as u64;
        proptest::prop_assert_eq!(dropped, stats.held_full + stats.held_old);
        proptest::prop_assert_eq!((queue.bytes(), queue.packets(), queue.held_bytes()), (0, 0, 0));
    }
}

/// Packets that were dropped for their age before the replay.
fn aged(pushes: &[Push], stats: &QueueStats, held: u64) -> u64 {
    pushes.len() as u64 - stats.held_full - held
}

#[test]
fn what_comes_behind_held_packets_is_not_dropped_for_their_wait() {
    let mut queue = IngressQueue::new();
    queue.hold();
    for _ in 0..500 {
        let mut held = packet(1, 1_400, Instant::ZERO);
        held.tcp = true;
        queue.push(held);
    }
    let mut now = Instant::from_millis(5_000);
    queue.replay(now);
    for step in 0..600 {
        if step % 5 == 0 {
            let mut next = packet(1, 1_400, now);
            next.tcp = true;
            queue.push(next);
        }
        // What was held has gone after half a second; then the wait counts from there.
        let flow = queue.turn().expect("waiting");
        assert!(queue.pop(now, flow).is_some(), "{step}");
        now += Duration::from_millis(1);
    }
    let stats = queue.stats();
    assert_eq!((stats.dropped_codel, stats.dropped_full), (0, 0));
    assert_eq!(stats.replayed, 500);
}
