use super::*;
use bytes::{Bytes, BytesMut};
use ropewalk_types::Ecn;
use ropewalk_wire::{DATA_HEADER, DataHeader, HEADROOM, Stamp};

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
