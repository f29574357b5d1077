//! QUIC sub-tunnels between two endpoints in virtual time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_netem::{Change, LossModel, Selector, Side};
use ropewalk_testkit::Pair;
use ropewalk_testkit::endpoints::{
    EndpointEnd, UDP_HEADERS, config, direction, hub_config, identity,
};
use ropewalk_transport::{
    CloseReason, CongestionControl, ConnectOptions, Ecn, Endpoint, Event, SendError, Slice,
    SocketId,
};
use ropewalk_types::{Duration, Instant};

type World = Pair<EndpointEnd>;

const BDP: CongestionControl = CongestionControl::Bdp;

fn world() -> World {
    World::simple(10.0, Duration::from_millis(50))
}

#[test]
fn connects_and_carries_datagrams_both_ways() {
    let mut world = world();
    world.up(BDP);
    (world.site.inbox, world.hub.inbox) = (Some(Vec::new()), Some(Vec::new()));
    world.site.send(b"up");
    world.hub.send(b"down");
    world.run(Duration::from_millis(100));
    assert_eq!(world.hub.inbox, Some(vec![Bytes::from_static(b"up")]));
    assert_eq!(world.site.inbox, Some(vec![Bytes::from_static(b"down")]));
    let peers = [(&world.site, 2), (&world.hub, 1)];
    for (side, peer) in peers {
        let expected = Event::Connected {
            peer: identity(peer).public_key(),
        };
        assert_eq!(side.events[0].2, expected);
    }
}

#[test]
fn the_same_seed_gives_the_same_packets() {
    let run = || {
        let mut world = world();
        world.change_up(&Change {
            loss: Some(LossModel::Bernoulli(0.02)),
            ..Change::default()
        });
        world.up(BDP);
        world.site.saturate = 1_200;
        world.run(Duration::from_secs(2));
        (world.counters(0, Side::Up), world.hub.received)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_hub_with_another_key_is_refused_by_the_site() {
    let mut world = world();
    let wrong = identity(9).public_key();
    let id = world
        .site
        .endpoint
        .connect(world.now(), world.hub.address, wrong, BDP)
        .unwrap();
    world.run(Duration::from_secs(2));
    let closed = |event: &Event| {
        matches!(
            event,
            Event::Closed {
                reason: CloseReason::KeyRejected(_)
            }
        )
    };
    assert!(
        world
            .site
            .events
            .iter()
            .any(|(_, of, event)| *of == id && closed(event))
    );
    assert!(!world.site.connected && !world.hub.connected);
    assert!(world.hub.events.is_empty(), "{:?}", world.hub.events);
}

#[test]
fn a_site_that_is_not_on_the_list_is_refused_and_counted() {
    let mut hub = hub_config();
    hub.allowed = Some(Arc::new(|key| *key != identity(1).public_key()));
    let mut world = World::endpoints(config(1), hub, &direction(10.0, Duration::from_millis(25)));
    world.connect(BDP);
    world.run(Duration::from_secs(2));
    // The site must not believe for a moment that it is connected.
    assert_eq!(world.site.events.len(), 1, "{:?}", world.site.events);
    let refused = Event::Closed {
        reason: CloseReason::KeyUnknown,
    };
    assert_eq!(world.site.events[0].2, refused);
    let stats = world.hub.endpoint.stats();
    assert_eq!((stats.keys_refused, stats.handshakes_open), (1, 0));
    assert!(world.hub.events.is_empty());
}

#[test]
fn keys_change_by_time_and_no_packet_is_lost_though_they_overtake_each_other() {
    let mut world = world();
    world.change_up(&Change {
        jitter: Some(Duration::from_millis(40)),
        reorder: Some(true),
        ..Change::default()
    });
    world.up(BDP);
    world.hub.inbox = Some(Vec::new());
    let mut sent = 0_u64;
    let hours = 3;
    for _ in 0..hours * 3_600 {
        for _ in 0..10 {
            world.site.send(&sent.to_be_bytes());
            sent += 1;
            world.run(Duration::from_millis(2));
        }
        world.run(Duration::from_millis(980));
    }
    world.run(Duration::from_secs(1));
    let inbox = world.hub.inbox.take().unwrap();
    assert!(!inbox.is_sorted(), "nothing has overtaken anything");
    let heard: BTreeSet<_> = inbox.into_iter().collect();
    assert_eq!(heard.len() as u64, sent);
    for side in [&world.site, &world.hub] {
        let counters = side.endpoint.counters(side.id.unwrap()).unwrap();
        assert!((2..=3).contains(&counters.key_updates), "{counters:?}");
    }
}

#[test]
fn garbage_and_replayed_datagrams_are_dropped_and_counted() {
    let mut world = world();
    world.up(BDP);
    let garbage = [
        &[0u8; 1][..],
        &[0x40; 30],
        &[0xc0; 1_200],
        &[0xff; 20],
        &[0x80; 600],
    ];
    let before = world.hub.endpoint.stats().garbage_datagrams;
    for data in garbage {
        let from = "203.0.113.9:9".parse().unwrap();
        let id = world.hub.endpoint.handle_udp(
            world.now(),
            SocketId::default(),
            from,
            None,
            Ecn::NotEct,
            data.into(),
        );
        assert_eq!(id, None);
    }
    let counted = world.hub.endpoint.stats().garbage_datagrams - before;
    assert!(counted >= 3, "{counted} of {}", garbage.len());

    // A whole packet of the site, delivered again and again.
    let id = world.site.id.unwrap();
    world
        .site
        .endpoint
        .send(id, Bytes::from_static(&[1; 500]))
        .unwrap();
    let mut packet = Vec::new();
    world
        .site
        .endpoint
        .poll_transmit(world.now(), id, &mut packet)
        .unwrap();
    for _ in 0..10 {
        let (now, from) = (world.now(), world.site.address);
        world.hub.hear(now, from, Ecn::NotEct, packet[..].into());
    }
    assert_eq!(world.hub.received, 1);
    // The first one after a delivery cannot be told from it without a cost for every packet.
    assert!(world.hub.endpoint.stats().garbage_datagrams - before - counted >= 8);
    let counted = world.hub.endpoint.stats().garbage_datagrams;
    // And with a bit turned.
    let last = packet.len() - 1;
    packet[last] ^= 1;
    let (now, from) = (world.now(), world.site.address);
    world.hub.hear(now, from, Ecn::NotEct, packet[..].into());
    assert_eq!(world.hub.endpoint.stats().garbage_datagrams, counted + 1);
    world.run(Duration::from_millis(200));
    assert!(world.site.connected && world.hub.connected);
}

#[test]
fn none_of_the_packets_of_a_fresh_connection_is_garbage() {
    let mut world = world();
    world.up(BDP);
    world.run(Duration::from_secs(30));
    for side in [&world.site, &world.hub] {
        assert_eq!(side.endpoint.stats().garbage_datagrams, 0);
    }
}

/// First packets of `count` sites, each from its own address, never answered. The sites take `hub_key`
/// for the key of the hub.
fn flood(hub: &mut Endpoint, now: Instant, count: u16, hub_key: u8) {
    for port in 1..=count {
        let mut site = Endpoint::new(config((port % 200 + 10) as u8)).unwrap();
        let key = identity(hub_key).public_key();
        let id = site
            .connect(now, "198.51.100.1:443".parse().unwrap(), key, BDP)
            .unwrap();
        let mut packet = Vec::new();
        site.poll_transmit(now, id, &mut packet).unwrap();
        let from = format!("203.0.113.7:{port}").parse().unwrap();
        hub.handle_udp(
            now,
            SocketId::default(),
            from,
            None,
            Ecn::NotEct,
            BytesMut::from(&packet[..]),
        );
    }
}

#[test]
fn a_flood_of_handshakes_is_answered_with_retry_and_a_site_still_gets_in() {
    let mut world = world();
    let now = world.now();
    flood(&mut world.hub.endpoint, now, 100, 2);
    let stats = world.hub.endpoint.stats();
    assert!(stats.handshakes_open <= 8, "{stats:?}");
    assert!(stats.retries_sent >= 90, "{stats:?}");
    world.up(BDP);
    assert!(world.hub.endpoint.stats().retries_sent > stats.retries_sent);
    // What the flood left is given up after three seconds.
    world.run(Duration::from_secs(4));
    let stats = world.hub.endpoint.stats();
    assert_eq!(
        (stats.handshakes_open, stats.connections),
        (0, 1),
        "{stats:?}"
    );
}

/// A client that knows the hub's key answers the Retry, and says nothing more: its address is proved.
fn stall(hub: &mut Endpoint, now: Instant, number: u16, from: SocketAddr) {
    let mut client = Endpoint::new(config((number % 200 + 10) as u8)).unwrap();
    let there: SocketAddr = "198.51.100.1:443".parse().unwrap();
    let key = identity(2).public_key();
    let id = client.connect(now, there, key, BDP).unwrap();
    let (mut packet, socket) = (Vec::new(), SocketId::default());
    for _ in 0..2 {
        if client.poll_transmit(now, id, &mut packet).is_none() {
            return;
        }
        let data = BytesMut::from(&packet[..]);
        hub.handle_udp(now, socket, from, None, Ecn::NotEct, data);
        let mut retry = Vec::new();
        while hub.poll_stateless(&mut retry).is_some() {
            let data = BytesMut::from(&retry[..]);
            client.handle_udp(now, socket, there, None, Ecn::NotEct, data);
        }
    }
}

#[test]
fn who_answers_every_retry_from_one_network_locks_no_site_out() {
    let one_network =
        |n: u16| SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 9, n).into(), 443);
    let one_address = |n: u16| SocketAddr::new(Ipv4Addr::new(203, 0, 113, 7).into(), n);
    for (name, from) in [
        ("one /64", one_network as fn(u16) -> SocketAddr),
        ("one IPv4 address", one_address),
    ] {
        let mut world = world();
        let mut number = 0;
        let mut more = |world: &mut World, count: u16| {
            let now = world.now();
            for _ in 0..count {
                number += 1;
                stall(&mut world.hub.endpoint, now, number, from(number));
            }
        };
        more(&mut world, 1_100);
        let before = world.hub.endpoint.stats();
        assert_eq!(
            before.handshakes_open, 1_024,
            "{name}: places are left: {before:?}"
        );
        let begin = world.now();
        world.connect(BDP);
        while !(world.site.connected && world.hub.connected) {
            // They go on, 2,000 in a second.
            more(&mut world, 20);
            world.run(Duration::from_millis(10));
            let took = world.now().since(begin);
            assert!(
                took < Duration::from_secs(2),
                "{name}: {:?}",
                world.site.events
            );
        }
        println!(
            "{name}: {:?}, {:?}",
            world.now().since(begin),
            world.hub.endpoint.stats()
        );
    }
}

#[test]
fn an_attempt_that_its_site_ends_frees_its_place_at_once_if_the_address_is_proved() {
    let now = Instant::from_millis(1);
    let mut hub = Endpoint::new(hub_config()).unwrap();
    // From now on addresses have to be proved.
    flood(&mut hub, now, 8, 2);
    let mut site = Endpoint::new(config(1)).unwrap();
    let key = identity(2).public_key();
    let id = site
        .connect(now, "198.51.100.1:443".parse().unwrap(), key, BDP)
        .unwrap();
    let carry = |site: &mut Endpoint, hub: &mut Endpoint| {
        let (mut packet, mut retry, socket) = (Vec::new(), Vec::new(), SocketId::default());
        while site.poll_transmit(now, id, &mut packet).is_some() {
            let from = "203.0.113.9:1".parse().unwrap();
            let bytes = BytesMut::from(&packet[..]);
            hub.handle_udp(now, socket, from, None, Ecn::NotEct, bytes);
            while hub.poll_stateless(&mut retry).is_some() {
                let hub = "198.51.100.1:443".parse().unwrap();
                let bytes = BytesMut::from(&retry[..]);
                site.handle_udp(now, socket, hub, None, Ecn::NotEct, bytes);
            }
        }
    };
    carry(&mut site, &mut hub);
    let stats = hub.stats();
    assert_eq!((stats.handshakes_open, stats.retries_sent), (9, 1));
    site.close(now, id, "the hub answers an older attempt");
    carry(&mut site, &mut hub);
    let stats = hub.stats();
    assert_eq!((stats.handshakes_open, stats.connections), (8, 8));
    assert_eq!((stats.handshakes_failed, stats.garbage_datagrams), (1, 0));
}

#[test]
fn an_attempt_that_its_site_has_ended_says_nothing_to_a_hub_that_does_not_know_it() {
    let now = Instant::from_millis(1);
    let (there, from) = ([198, 51, 100, 1], [203, 0, 113, 9]);
    let (there, from) = (SocketAddr::from((there, 443)), SocketAddr::from((from, 1)));
    let (key, socket) = (identity(2).public_key(), SocketId::default());
    // A hub that asks for proof of the address does not know the attempt. One that has time does.
    for (strangers, known) in [(8, false), (0, true)] {
        let mut hub = Endpoint::new(hub_config()).unwrap();
        flood(&mut hub, now, strangers, 2);
        let mut site = Endpoint::new(config(1)).unwrap();
        let id = site.connect(now, there, key, BDP).unwrap();
        let mut packet = Vec::new();
        site.poll_transmit(now, id, &mut packet).unwrap();
        let first = BytesMut::from(&packet[..]);
        site.close(now, id, "not needed any more");
        assert!(
            site.poll_transmit(now, id, &mut packet).is_none(),
            "nothing has come yet"
        );
        // The network doubles the packet.
        for _ in 0..2 {
            hub.handle_udp(now, socket, from, None, Ecn::NotEct, first.clone());
        }
        let (mut answer, mut sent) = (Vec::new(), 0);
        let before = hub.stats().handshakes_open;
        for _ in 0..100 {
            let mut answers = Vec::new();
            while hub.poll_stateless(&mut answer).is_some() {
                answers.push(BytesMut::from(&answer[..]));
            }
            while let Some(id) = hub.poll_dirty() {
                while hub.poll_transmit(now, id, &mut answer).is_some() {
                    answers.push(BytesMut::from(&answer[..]));
                }
            }
            for answer in answers {
                site.handle_udp(now, socket, there, None, Ecn::NotEct, answer);
            }
            while site.poll_transmit(now, id, &mut packet).is_some() {
                sent += 1;
                let bytes = BytesMut::from(&packet[..]);
                hub.handle_udp(now, socket, from, None, Ecn::NotEct, bytes);
            }
        }
        let stats = hub.stats();
        if known {
            assert_eq!(before, 1, "{stats:?}");
            assert!((1..10).contains(&sent), "{sent} packets");
        } else {
            assert_eq!((sent, stats.retries_sent), (0, 2), "{stats:?}");
        }
    }
}

#[test]
fn a_machine_without_rest_begins_few_handshakes_and_lets_a_site_in_beside_a_flood() {
    let one_socket = |_| SocketAddr::from(([203, 0, 113, 7], 5_000));
    let one_address = |number: u16| SocketAddr::from(([203, 0, 113, 7], number));
    let (none, some) = (Duration::ZERO, Duration::from_millis(1));
    // Datagrams of sites in 10 ms. The flood is 20 first packets.
    for (name, rest, of_sites, most, from) in [
        (
            "busy, one socket",
            none,
            1_500,
            80,
            one_socket as fn(u16) -> SocketAddr,
        ),
        ("busy, many sockets", none, 1_500, 80, one_address),
        ("without sites, many sockets", none, 0, 1_024, one_address),
        ("at rest, one socket", some, 1_500, 1_024, one_socket),
        ("at rest, many sockets", some, 1_500, 1_024, one_address),
    ] {
        let mut world = world();
        world.hub.endpoint.rested(Duration::ZERO);
        let mut number = 0;
        let mut flood = |world: &mut World| {
            let now = world.now();
            for _ in 0..20 {
                number += 1;
                stall(&mut world.hub.endpoint, now, number, from(number));
            }
            world.hub.endpoint.worked_for_sites(of_sites);
            world.hub.endpoint.rested(rest);
            world.run(Duration::from_millis(10));
        };
        (0..100).for_each(|_| flood(&mut world));
        // For a second there were 2,000.
        let open = world.hub.endpoint.stats().handshakes_open;
        assert!(open <= most && open * 2 > most, "{name}: {open}");
        let begin = world.now();
        world.connect(BDP);
        while !(world.site.connected && world.hub.connected) {
            flood(&mut world);
            let took = world.now().since(begin);
            assert!(took < Duration::from_secs(2), "{name}: {took:?}");
        }
        let joined = world.now().since(begin);
        world.hub.endpoint.rested(Duration::from_secs(10));
        world.run(Duration::from_secs(5));
        let stats = world.hub.endpoint.stats();
        assert_eq!(
            (stats.handshakes_open, stats.connections),
            (0, 1),
            "{name}: {stats:?}"
        );
        println!("{name}: {open} begun, joined after {joined:?}, {stats:?}");
    }
}

/// Handshakes that a machine without rest begins in half a second beside a site that is connected. So many datagrams of
/// that site come in 10 ms, and so many go there.
fn begun_beside(up: usize, down: usize) -> u64 {
    let mut world = World::simple(1_000.0, Duration::from_millis(5));
    world.up(BDP);
    world.hub.endpoint.rested(Duration::ZERO);
    let mut number = 0;
    let mut most = 0;
    for _ in 0..50 {
        let now = world.now();
        (0..up).for_each(|_| world.site.send(&[1; 100]));
        (0..down).for_each(|_| world.hub.send(&[2; 100]));
        for _ in 0..4 {
            number += 1;
            let from = SocketAddr::from(([203, 0, 113, 7], number));
            stall(&mut world.hub.endpoint, now, number, from);
        }
        world.hub.endpoint.rested(Duration::ZERO);
        world.run(Duration::from_millis(10));
        most = most.max(world.hub.endpoint.stats().handshakes_open);
    }
    most
}

#[test]
fn datagrams_from_a_site_and_to_it_leave_fewer_handshakes_to_strangers() {
    let [idle, from_site, to_site] =
        [(0, 0), (400, 0), (0, 400)].map(|(up, down)| begun_beside(up, down));
    assert!(idle > 150, "{idle} of 200");
    assert!(from_site < 80, "{from_site} of 200");
    assert!(to_site < 80, "{to_site} of 200");
}

#[test]
fn a_handshake_that_is_begun_goes_on_while_others_of_its_socket_wait() {
    let now = Instant::from_millis(1);
    let mut hub = Endpoint::new(hub_config()).unwrap();
    hub.rested(Duration::ZERO);
    hub.worked_for_sites(60_000);
    let from: SocketAddr = "203.0.113.9:1".parse().unwrap();
    let there: SocketAddr = "198.51.100.1:443".parse().unwrap();
    let socket = SocketId::default();
    let mut site = Endpoint::new(config(1)).unwrap();
    let key = identity(2).public_key();
    let id = site.connect(now, there, key, BDP).unwrap();
    let mut packet = Vec::new();
    site.poll_transmit(now, id, &mut packet).unwrap();
    let bytes = BytesMut::from(&packet[..]);
    hub.handle_udp(now, socket, from, None, Ecn::NotEct, bytes);
    // A machine that did not rest begins no others.
    (0..20).for_each(|number| stall(&mut hub, now, number, from));
    let begun = hub.stats().handshakes_open;
    assert!(
        begun < 20 && hub.stats().handshakes_refused > 0,
        "{:?}",
        hub.stats()
    );
    let mut up = false;
    for _ in 0..10 {
        while let Some(id) = hub.poll_dirty() {
            while hub.poll_transmit(now, id, &mut packet).is_some() {
                let bytes = BytesMut::from(&packet[..]);
                site.handle_udp(now, socket, there, None, Ecn::NotEct, bytes);
            }
        }
        while site.poll_transmit(now, id, &mut packet).is_some() {
            let bytes = BytesMut::from(&packet[..]);
            hub.handle_udp(now, socket, from, None, Ecn::NotEct, bytes);
        }
        let connected = |(_, event)| matches!(event, Event::Connected { .. });
        up |= std::iter::from_fn(|| hub.poll_event()).any(connected);
    }
    assert!(up, "{:?}", hub.stats());
}

#[test]
fn a_busy_hub_does_not_answer_who_does_not_know_its_key() {
    let mut world = world();
    let now = world.now();
    flood(&mut world.hub.endpoint, now, 100, 3);
    let stats = world.hub.endpoint.stats();
    assert_eq!(stats.handshakes_open, 8, "{stats:?}");
    assert_eq!((stats.strangers_ignored, stats.retries_sent), (92, 0));
    world.up(BDP);
    assert!(world.hub.endpoint.stats().retries_sent > 0);
}

/// A packet of a stranger with a long header, 1,200 bytes, and a destination identifier of so many bytes.
fn of_stranger(version: u32, identifier: u8, random: u8) -> Vec<u8> {
    let mut packet = vec![0xc0];
    packet.extend_from_slice(&version.to_be_bytes());
    packet.push(identifier);
    packet.resize(6 + usize::from(identifier), random);
    // No identifier of its own, no token, and a length of 1,000 bytes.
    packet.extend_from_slice(&[0, 0, 0x43, 0xe8]);
    packet.resize(1_200, random);
    packet
}

#[test]
fn a_busy_hub_derives_no_keys_for_strangers_and_names_them_no_versions() {
    let now = Instant::from_millis(1);
    let from: SocketAddr = "203.0.113.9:1".parse().unwrap();
    for (name, version, identifier) in [
        ("an identifier that is too short", 1, 4),
        ("an unknown version", 0x0a0a_0a0a, 8),
        ("a version before 1", 0xff00_001d, 8),
        ("bytes by chance", 1, 8),
    ] {
        for busy in [false, true] {
            let mut hub = Endpoint::new(hub_config()).unwrap();
            let mut answer = Vec::new();
            if busy {
                flood(&mut hub, now, 8, 3);
            }
            let before = hub.stats();
            for random in 1..=50 {
                let data = of_stranger(version, identifier, random);
                let data = BytesMut::from(&data[..]);
                hub.handle_udp(now, SocketId::default(), from, None, Ecn::NotEct, data);
            }
            let stats = hub.stats();
            let ignored = stats.strangers_ignored - before.strangers_ignored;
            let garbage = stats.garbage_datagrams - before.garbage_datagrams;
            let answered = hub.poll_stateless(&mut answer).is_some();
            if busy {
                // Packets whose keys were derived count as garbage here.
                assert_eq!((answered, ignored, garbage), (false, 50, 0), "{name}");
            } else {
                let noticed = answered || garbage > 0 || stats.handshakes_failed > 0;
                assert!(noticed && ignored == 0, "{name}: {stats:?}");
            }
        }
    }
}

#[test]
fn a_site_at_another_worker_is_no_stranger() {
    let now = Instant::from_millis(1);
    let mut config_of_hub = hub_config();
    config_of_hub.slice = Slice::new(0, 2).unwrap();
    for (group, misrouted, open) in [(3, 1, 0), (4, 0, 1)] {
        let mut hub = Endpoint::new(config_of_hub.clone()).unwrap();
        let mut site = Endpoint::new(config(1)).unwrap();
        let options = ConnectOptions {
            group: Some(group),
            ..ConnectOptions::default()
        };
        let there = "198.51.100.1:443".parse().unwrap();
        let key = identity(2).public_key();
        let id = site.connect_with(now, there, key, options).unwrap();
        let mut packet = Vec::new();
        site.poll_transmit(now, id, &mut packet).unwrap();
        let (from, data) = (
            "203.0.113.9:1".parse().unwrap(),
            BytesMut::from(&packet[..]),
        );
        hub.handle_udp(now, SocketId::default(), from, None, Ecn::NotEct, data);
        let stats = hub.stats();
        let counted = (stats.handshakes_misrouted, stats.handshakes_open);
        assert_eq!((counted, stats.strangers_ignored), ((misrouted, open), 0));
    }
}

#[test]
fn data_keeps_flowing_through_a_nat_rebinding() {
    let mut world = world();
    world.up(BDP);
    world.site.saturate = 1_200;
    world.hub.saturate = 1_200;
    world.run(Duration::from_secs(2));
    world.site.address = "192.0.2.1:2000".parse().unwrap();
    world.run(Duration::from_millis(300));
    let before = (world.hub.received, world.site.received);
    world.run(Duration::from_secs(1));
    let id = world.hub.id.unwrap();
    assert_eq!(world.hub.endpoint.remote(id), Some(world.site.address));
    let (up, down) = (
        world.hub.received - before.0,
        world.site.received - before.1,
    );
    assert!(up > 500 && down > 500, "up {up}, down {down}");
    let closed = |event: &Event| matches!(event, Event::Closed { .. });
    assert!(!world.site.events.iter().any(|(_, _, event)| closed(event)));
}

#[test]
fn a_new_local_address_is_used_at_once() {
    let mut world = world();
    world.up(BDP);
    world.site.address = "192.0.2.77:1000".parse().unwrap();
    world.site.endpoint.address_changed(world.site.id.unwrap());
    world.run(Duration::from_millis(200));
    assert_eq!(
        world.hub.endpoint.remote(world.hub.id.unwrap()),
        Some(world.site.address)
    );
}

#[test]
fn finds_an_ethernet_mtu_and_survives_a_black_hole() {
    let mut world = world();
    world.up(BDP);
    world.run(Duration::from_secs(2));
    let id = world.site.id.unwrap();
    assert!(
        world.site.endpoint.mtu(id) >= 1_460,
        "{}",
        world.site.endpoint.mtu(id)
    );
    world.site.saturate = 65_000;
    world.run(Duration::from_secs(1));
    world.change_up(&Change {
        mtu: Some(Some((1_300 + UDP_HEADERS) as u64)),
        ..Change::default()
    });
    world.run(Duration::from_secs(4));
    let mtu = world.site.endpoint.mtu(id);
    assert!((1_200..=1_300).contains(&mtu), "{mtu}");
    let before = world.hub.received;
    world.run(Duration::from_secs(1));
    assert!(world.hub.received > before + 500);
    assert!(world.site.endpoint.counters(id).unwrap().black_holes >= 1);
}

/// The MTU of the path falls for a while, and discovery finds the old one within about that time again.
#[test]
fn finds_a_larger_mtu_as_soon_after_a_black_hole_as_the_hole_lasted() {
    for lasts in [10, 40, 150] {
        let mut world = World::simple(2.0, Duration::from_millis(50));
        world.up(BDP);
        world.site.saturate = 65_000;
        world.run(Duration::from_secs(2));
        let id = world.site.id.unwrap();
        let mtu = |world: &World| world.site.endpoint.mtu(id);
        let limit = |world: &mut World, payload: usize| {
            world.change_up(&Change {
                mtu: Some(Some((payload + UDP_HEADERS) as u64)),
                ..Change::default()
            });
        };
        let full = mtu(&world);
        limit(&mut world, 1_232);
        world.run(Duration::from_secs(lasts));
        assert!((1_200..=1_232).contains(&mtu(&world)), "{}", mtu(&world));
        limit(&mut world, 1_472);
        world.run(Duration::from_secs(15 + lasts));
        assert_eq!(mtu(&world), full, "after {lasts} s");
    }
}

#[test]
fn finds_a_jumbo_mtu_when_both_sides_allow_it() {
    let (mut site, mut hub) = (config(1), hub_config());
    (site.mtu_max, hub.mtu_max) = (8_972, 8_972);
    let mut both = direction(10.0, Duration::from_millis(25));
    both.mtu = Some((8_972 + UDP_HEADERS) as u64);
    let mut world = World::endpoints(site, hub, &both);
    world.up(BDP);
    world.run(Duration::from_secs(3));
    let id = world.site.id.unwrap();
    assert!(
        world.site.endpoint.mtu(id) >= 8_900,
        "{}",
        world.site.endpoint.mtu(id)
    );
    // A connection can be told that its uplink takes less.
    let id = world.connect_with(ConnectOptions {
        congestion: BDP,
        mtu_max: Some(1_400),
        ..ConnectOptions::default()
    });
    world.run(Duration::from_secs(3));
    assert!((1_380..=1_400).contains(&world.site.endpoint.mtu(id)));
}

#[test]
fn a_full_packet_costs_less_than_seventy_bytes() {
    let mut world = world();
    world.up(BDP);
    world.run(Duration::from_secs(2));
    world.site.saturate = 65_000;
    world.run(Duration::from_secs(2));
    let before = world.counters(0, Side::Up);
    let (received, payload) = (world.hub.received, world.hub.received_bytes);
    world.run(Duration::from_secs(4));
    let after = world.counters(0, Side::Up);
    let packets = after.sent_packets - before.sent_packets;
    let outer = (after.sent_bytes - before.sent_bytes) as f64 / packets as f64;
    let inner =
        (world.hub.received_bytes - payload) as f64 / (world.hub.received - received) as f64;
    // Ten bytes of the datagram are the tunnel's own header.
    let overhead = outer - (inner - 10.0);
    assert!(overhead <= 70.0, "{overhead}");
}

#[test]
fn an_idle_path_costs_less_than_a_kilobit_per_second() {
    let mut world = world();
    world.up(BDP);
    world.run(Duration::from_secs(5));
    let mut sent = || {
        world.run(Duration::from_secs(30));
        Side::ALL.map(|side| world.counters(0, side).sent_bytes)
    };
    let [before, after] = [sent(), sent()].map(|sides| sides.iter().sum::<u64>());
    let bits = (after - before) * 8 / 30;
    assert!(bits > 0 && bits <= 1_000, "{bits} bit/s");
    assert!(world.site.connected && world.hub.connected);
}

#[test]
fn on_a_quiet_path_the_delay_of_acknowledgements_is_no_round_trip_time() {
    // A handshake computes: its round trips are longer than the path's.
    let mut world = World::simple(1_000.0, Duration::from_micros(300));
    world.up(BDP);
    let delay = |delay| Change {
        delay: Some(delay),
        ..Change::default()
    };
    world.change_both(&delay(Duration::from_micros(50)));
    let id = world.site.id.unwrap();
    for _ in 0..60 {
        world.site.send(b"lone");
        world.run(Duration::from_secs(1));
    }
    let snapshot = world.site.endpoint.snapshot(world.now(), id).unwrap();
    assert!(snapshot.srtt < Duration::from_micros(400), "{snapshot:?}");
    assert!(
        snapshot.min_rtt < Duration::from_micros(400),
        "{snapshot:?}"
    );
    // A path that really is longer now shows it, but for the delay that it may be.
    world.change_both(&delay(Duration::from_millis(15)));
    for _ in 0..60 {
        world.site.send(b"lone");
        world.run(Duration::from_secs(1));
    }
    let snapshot = world.site.endpoint.snapshot(world.now(), id).unwrap();
    let expected = Duration::from_millis(29)..Duration::from_millis(36);
    assert!(expected.contains(&snapshot.srtt), "{snapshot:?}");
}

#[test]
fn a_dead_peer_is_noticed_by_silence_and_by_time() {
    let mut world = world();
    world.up(BDP);
    let id = world.site.id.unwrap();
    world.run(Duration::from_secs(1));
    let quiet = world.site.endpoint.snapshot(world.now(), id).unwrap();
    assert_eq!(quiet.silent_since, None);
    world.cut(true);
    let cut = world.now();
    world.site.send(b"anyone there?");
    world.run(Duration::from_millis(400));
    let snapshot = world.site.endpoint.snapshot(world.now(), id).unwrap();
    assert_eq!(snapshot.silent_since, Some(cut));
    world.run(Duration::from_secs(40));
    let (_, _, last) = world.site.events.last().unwrap();
    assert_eq!(
        *last,
        Event::Closed {
            reason: CloseReason::TimedOut
        }
    );
}

#[test]
fn urgent_packets_find_a_path_again_and_packets_declared_lost_take_no_window() {
    for kind in CongestionControl::ALL {
        let mut world = world();
        world.up(kind);
        world.site.saturate = 1_200;
        world.run(Duration::from_secs(1));
        world.cut(true);
        world.run(Duration::from_secs(10));
        world.site.saturate = 0;
        let id = world.site.id.unwrap();
        let full = world.site.endpoint.snapshot(world.now(), id).unwrap();
        assert!(full.free < 1_200, "{kind}: {full:?}");
        assert!(full.oldest_sent.is_some() && full.oldest_sent <= full.silent_since);
        world.cut(false);
        let received = world.hub.received;
        let probe = bytes::Bytes::from_static(b"anyone there?");
        world.site.endpoint.send_urgent(id, probe).unwrap();
        world.run(Duration::from_millis(60));
        // QUIC's own timer has doubled up to seconds by now.
        assert!(
            world.hub.received > received,
            "{kind}: the probe did not leave"
        );
        world.cut(true);
        world.site.saturate = 1_200;
        world.run(Duration::from_secs(2));
        let full = world.site.endpoint.snapshot(world.now(), id).unwrap();
        assert!(full.in_flight > 0 && full.free < 1_200, "{kind}: {full:?}");
        world.site.endpoint.declare_lost(id);
        let empty = world.site.endpoint.snapshot(world.now(), id).unwrap();
        assert_eq!(empty.in_flight, 0, "{kind}");
        assert_eq!(empty.cwnd, full.cwnd, "{kind}: the window itself stays");
    }
}

#[test]
fn an_outage_that_an_acknowledgement_ends_is_no_round_trip_for_the_pacer() {
    let mut world = world();
    world.up(BDP);
    world.site.saturate = 1_200;
    world.run(Duration::from_secs(2));
    // The hub has got the last packets. That it has is lost.
    world.set_dead(0, Selector::One(Side::Down), true);
    world.run(Duration::from_millis(100));
    world.site.saturate = 0;
    world.cut(true);
    world.run(Duration::from_secs(20));
    world.cut(false);
    world.hub.send(b"with the acknowledgement of that time");
    world.run(Duration::from_millis(60));
    world.site.saturate = 1_200;
    let rate = world.goodput_up(Duration::from_secs(1));
    assert!(rate.bits_per_sec() > 8_000_000, "{rate:?}");
}

#[test]
fn a_restarted_hub_says_that_it_forgot_the_connection() {
    let mut world = world();
    world.up(BDP);
    world.hub.endpoint = Endpoint::new(hub_config()).unwrap();
    world.site.send(&[1; 300]);
    world.run(Duration::from_millis(300));
    let (_, _, last) = world.site.events.last().unwrap();
    assert_eq!(
        *last,
        Event::Closed {
            reason: CloseReason::Reset
        }
    );
}

#[test]
fn closing_tells_the_peer_why_and_frees_the_connection() {
    let mut world = world();
    world.up(BDP);
    let id = world.site.id.unwrap();
    world.site.endpoint.close(world.now(), id, "going home");
    world.run(Duration::from_secs(3));
    let (_, _, last) = world.hub.events.last().unwrap();
    let reason = CloseReason::PeerClosed("going home".to_owned());
    assert_eq!(*last, Event::Closed { reason });
    assert_eq!(world.site.endpoint.stats().connections, 0);
    assert_eq!(world.hub.endpoint.stats().connections, 0);
    assert_eq!(
        world.site.endpoint.send(id, Bytes::new()),
        Err(SendError::NotConnected)
    );
    assert_eq!(world.site.endpoint.poll_timeout(), None);
}

#[test]
fn sending_is_refused_when_too_large_or_too_much() {
    let mut world = world();
    world.up(BDP);
    let id = world.site.id.unwrap();
    let max = world
        .site
        .endpoint
        .snapshot(world.now(), id)
        .unwrap()
        .max_datagram;
    let too_large = world.site.endpoint.send(id, Bytes::from(vec![0; max + 1]));
    assert_eq!(too_large, Err(SendError::TooLarge(max)));
    let mut sent = 0u64;
    while world
        .site
        .endpoint
        .send(id, Bytes::from(vec![0; max]))
        .is_ok()
    {
        sent += 1;
        assert!(sent < 10_000);
    }
    assert_eq!(
        world.site.endpoint.snapshot(world.now(), id).unwrap().free,
        0
    );
    // Nothing that was taken is dropped on the way out.
    world.set_rate_up(1_000.0);
    world.change_up(&Change {
        queue_bytes_max: Some(Some(4 << 20)),
        ..Change::default()
    });
    world.run(Duration::from_secs(20));
    assert_eq!(world.hub.received, sent);
}

#[test]
fn only_a_little_waits_behind_a_saturated_path() {
    let mut world = world();
    world.up(BDP);
    world.site.saturate = 1_400;
    let id = world.site.id.unwrap();
    world.run(Duration::from_secs(2));
    for _ in 0..200 {
        world.run(Duration::from_millis(7));
        let snapshot = world.site.endpoint.snapshot(world.now(), id).unwrap();
        assert!(snapshot.queued > 0, "idle although saturated: {snapshot:?}");
        assert!(snapshot.queued <= 3 * 1_500, "{snapshot:?}");
    }
}

#[test]
fn in_flight_is_zero_when_all_is_acknowledged() {
    for kind in CongestionControl::ALL {
        let mut world = world();
        world.up(kind);
        world.site.saturate = 1_200;
        world.run(Duration::from_secs(1));
        world.site.saturate = 0;
        world.run(Duration::from_secs(2));
        let id = world.site.id.unwrap();
        let snapshot = world.site.endpoint.snapshot(world.now(), id).unwrap();
        assert_eq!(
            (snapshot.in_flight, snapshot.queued, snapshot.silent_since),
            (0, 0, None),
            "{kind}"
        );
        assert!(
            snapshot.rate.bits_per_sec() > 5_000_000,
            "{kind}: {:?}",
            snapshot.rate
        );
        // The receiving side sends acknowledgements only, which are never in flight.
        let id = world.hub.id.unwrap();
        assert_eq!(
            world
                .hub
                .endpoint
                .snapshot(world.now(), id)
                .unwrap()
                .in_flight,
            0
        );
    }
}

/// When a client sends first packets within `until`, ms, if nobody answers; it hears a Retry at `retry`, ms.
fn first_packets(options: ConnectOptions, retry: Option<u64>, until: u64) -> Vec<u64> {
    let there: SocketAddr = "198.51.100.1:443".parse().unwrap();
    let from: SocketAddr = "203.0.113.9:1".parse().unwrap();
    let socket = SocketId::default();
    let mut hub = Endpoint::new(hub_config()).unwrap();
    flood(&mut hub, Instant::from_millis(0), 8, 2);
    let mut site = Endpoint::new(config(1)).unwrap();
    let key = identity(2).public_key();
    let id = site
        .connect_with(Instant::from_millis(0), there, key, options)
        .unwrap();
    let (mut packet, mut answer, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = Vec::new();
    for ms in 0..until {
        let now = Instant::from_millis(ms);
        site.handle_timeout(now);
        while site.poll_transmit(now, id, &mut packet).is_some() {
            sent.push(ms);
            last.clone_from(&packet);
        }
        if retry == Some(ms) {
            let bytes = BytesMut::from(&last[..]);
            hub.handle_udp(now, socket, from, None, Ecn::NotEct, bytes);
            assert!(
                hub.poll_stateless(&mut answer).is_some(),
                "{:?}",
                hub.stats()
            );
            let bytes = BytesMut::from(&answer[..]);
            site.handle_udp(now, socket, there, None, Ecn::NotEct, bytes);
        }
    }
    sent
}

#[test]
fn a_first_packet_is_repeated_once_each_time_less_and_less_often_and_anew_after_a_retry() {
    let usual = first_packets(ConnectOptions::default(), None, 5_000);
    assert_eq!(usual, [0, 450, 1_350, 3_150]);
    let told = first_packets(ConnectOptions::default(), Some(1_400), 5_000);
    assert_eq!(told, [0, 450, 1_350, 1_401, 1_851, 2_751, 4_551]);
    let rtt = Some(core::time::Duration::from_millis(333));
    let slow = ConnectOptions {
        assumed_rtt: rtt,
        ..ConnectOptions::default()
    };
    assert_eq!(first_packets(slow, None, 5_000), [0, 999, 2_997]);
}

#[test]
fn a_first_packet_gets_no_retry_while_others_of_its_network_take_all_the_room() {
    let now = Instant::from_millis(1);
    let mut hub = Endpoint::new(hub_config()).unwrap();
    hub.rested(Duration::ZERO);
    hub.worked_for_sites(60_000);
    let host = |network: u8, host: u16| SocketAddr::from(([203, network, 113, 7], host));
    // All the room there is, and what is begun before.
    (1..=120).for_each(|number| stall(&mut hub, now, number, host(0, number)));
    let full = hub.stats();
    assert!(full.handshakes_refused > 0, "{full:?}");
    stall(&mut hub, now, 121, host(0, 121));
    let stats = hub.stats();
    assert_eq!(stats.retries_sent, full.retries_sent, "the same network");
    assert_eq!(stats.handshakes_refused, full.handshakes_refused + 1);
    stall(&mut hub, now, 122, host(9, 1));
    assert_eq!(
        hub.stats().retries_sent,
        full.retries_sent + 1,
        "another network"
    );
}
