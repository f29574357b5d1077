use super::*;
use bytes::{Bytes, BytesMut};
use ropewalk_types::Ecn;
use ropewalk_wire::{DATA_HEADER, DataHeader, Datagram, HEADROOM, Stamp};

#[test]
fn a_packet_with_three_copies_is_answered_for_when_the_last_is_missed() {
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
            path.remember_lost(now, &Bytes::from(vec![byte; 40]), (0, true), 3);
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

#[test]
fn what_waits_for_a_path_and_what_waits_for_order_share_one_room() {
    const ROOM: u64 = 200_000;
    let config = TunnelConfig {
        scheduler: Default::default(),
        probe_interval: None,
        classes: Default::default(),
        hold: Default::default(),
        send: Default::default(),
    };
    let (now, id) = (Instant::from_millis(1_000), PathId(0));
    let mut tunnel = Tunnel::new(config, 1);
    tunnel.add_path(now, id, PathConfig::default());
    let mut ip = vec![0; 1_000];
    ip[..4].copy_from_slice(&[0x45, 0, 3, 232]);
    (ip[8], ip[9]) = (64, 253);
    let mut most = [0, 0];
    for step in 0..1_000_u16 {
        // Every second packet of each flow is missing, and the path takes nothing.
        let header = DataHeader {
            stamp: Stamp {
                path_seq: step,
                ..Stamp::default()
            },
            ordered: true,
            flow: step % 16,
            flow_seq: step / 16 * 2,
            ..DataHeader::default()
        };
        let mut front = [0; DATA_HEADER];
        header.emit(&mut front);
        tunnel.set_room(ROOM);
        let datagram = Bytes::from([&front[..], &ip].concat());
        tunnel.handle_datagram(now, id, Ecn::NotEct, datagram);
        tunnel.set_room(ROOM);
        let data = [&[0; HEADROOM][..], &ip].concat();
        tunnel.handle_inner(now, BytesMut::from(&data[..]), false);
        tunnel.end_batch(now);
        while tunnel.poll_inner().is_some() {}
        let kinds = [
            tunnel.ingress.queue.memory(),
            tunnel.egress.reorder.memory(),
        ];
        for (most, kind) in most.iter_mut().zip(kinds) {
            *most = kind.max(*most);
        }
        let all = tunnel.memory();
        assert!(all <= ROOM + 4_096, "{all} bytes: {kinds:?}");
    }
    let least = most.iter().min();
    assert!(least > Some(&(ROOM / 5)), "both wait: {most:?}");
}

#[test]
fn a_tunnel_takes_over_what_waits_and_leaves_what_was_sent_to_the_former_one() {
    const PACKETS: u64 = 20;
    let config = TunnelConfig {
        scheduler: Default::default(),
        probe_interval: None,
        classes: Default::default(),
        hold: Default::default(),
        send: Default::default(),
    };
    let (now, id) = (Instant::from_millis(1_000), PathId(0));
    let open = PathSnapshot {
        cwnd: 5_000,
        free: 5_000,
        srtt: Duration::from_millis(20),
        max_datagram: 1_400,
        ..PathSnapshot::default()
    };
    let mut former = Tunnel::new(config.clone(), 1);
    former.add_path(now, id, PathConfig::default());
    former.update_path(now, id, open.clone());
    let mut ip = vec![0; 1_000];
    ip[..4].copy_from_slice(&[0x45, 0, 3, 232]);
    (ip[8], ip[9]) = (64, 253);
    for _ in 0..PACKETS {
        let data = [&[0; HEADROOM][..], &ip].concat();
        former.handle_inner(now, BytesMut::from(&data[..]), false);
    }
    let mut out = Vec::new();
    former.poll_transmit(now, &mut out, 64);
    let sent = former.stats().tx_packets;
    assert!(sent > 0 && sent < PACKETS, "{sent} sent");
    let mut next = Tunnel::new(config, 2);
    next.take_over(now, &mut former);
    assert_eq!(former.queue_bytes(), 0);
    assert_eq!(next.queue_bytes(), (PACKETS - sent) * 1_000);
    next.add_path(now, id, PathConfig::default());
    let wide = PathSnapshot {
        cwnd: 1_000_000,
        free: 1_000_000,
        ..open
    };
    next.update_path(now, id, wide);
    out.clear();
    next.poll_transmit(now, &mut out, 64);
    assert_eq!(next.stats().tx_packets, PACKETS, "counted on");
    let first = out
        .iter()
        .find_map(|sent| match Datagram::parse(&sent.datagram) {
            Ok(Datagram::Data { header, .. }) => Some(header.flow_seq),
            _ => None,
        });
    assert_eq!(first, Some(0), "its numbers begin anew");
    // The former one gives what it gets to the new one's hosts.
    let header = DataHeader::default();
    let mut front = [0; DATA_HEADER];
    header.emit(&mut front);
    former.handle_datagram(
        now,
        id,
        Ecn::NotEct,
        Bytes::from([&front[..], &ip].concat()),
    );
    former.end_batch(now);
    assert!(next.poll_inner_of(&mut former).is_some());
    assert_eq!(next.stats().rx_packets, 1);
}
