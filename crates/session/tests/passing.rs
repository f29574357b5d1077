//! Sites of one shared address at different hubs: what comes to one hub reaches the site at the other one.

use bytes::{Bytes, BytesMut};
use ropewalk_netem::Side;
use ropewalk_testkit::{Spec, World};
use ropewalk_types::{Duration, PacketInfo, checksum, wrapping};
use ropewalk_wire::HEADROOM;

const SECOND: Duration = Duration::from_secs(1);
const SERVER: [u8; 4] = [192, 0, 2, 1];
const UDP: u8 = 17;
const ICMP: u8 = 1;
const IP_IN_IP: u8 = 4;
/// A site that never connects.
const AWAY: usize = 2;

/// Two hubs; the first two sites are at one of them each.
fn world() -> World {
    let mut world = World::new(&Spec {
        sites: 3,
        uplinks: 1,
        hubs_of: vec![vec![0, 1], vec![1, 0], vec![0, 1]],
        shared: true,
        rests: true,
        ..Spec::default()
    });
    for site in 0..AWAY {
        world.start_site(site);
        world.run_until(5 * SECOND, |w| w.transports_up(site).len() == 1);
        world.run(SECOND);
        assert_eq!(world.route_to(site), site);
    }
    world.keep_inner();
    world
}

/// An IPv4 packet to the shared address with these bytes after its header.
fn packet(protocol: u8, contents: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 20];
    let length = u16::try_from(20 + contents.len()).expect("short");
    (ip[0], ip[8], ip[9]) = (0x45, 60, protocol);
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[12..16].copy_from_slice(&SERVER);
    ip[16..20].copy_from_slice(&World::block(0).address.octets());
    ip.extend_from_slice(contents);
    ip
}

/// A datagram to a port of the shared address.
fn datagram(port: u16) -> Vec<u8> {
    let mut udp = vec![7; 108];
    udp[..2].copy_from_slice(&443_u16.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    udp[4..6].copy_from_slice(&108_u16.to_be_bytes());
    packet(UDP, &udp)
}

fn first_port(site: usize) -> u16 {
    World::block(site).first
}

fn wrapped_for(site: usize, packet: &[u8]) -> Vec<u8> {
    let info = PacketInfo::parse(packet).expect("whole");
    let header = wrapping(packet, &info, World::inner_address(site)).expect("short");
    [&header[..], packet].concat()
}

fn in_memory(packet: &[u8]) -> BytesMut {
    let mut data = BytesMut::zeroed(HEADROOM);
    data.extend_from_slice(packet);
    data
}

/// A packet comes to a hub, whose kernel has left the checksum to others if `partial`.
fn come(world: &mut World, hub: usize, packet: &[u8], partial: bool) {
    let now = world.now();
    let host = world.hub_at_mut(hub).expect("it runs");
    host.session.handle_inner(now, in_memory(packet), partial);
    world.touch_hub_at(hub);
}

/// Carries what hubs pass on, as routes to inner addresses lead. All packets that were carried.
fn carry(world: &mut World) -> Vec<Bytes> {
    let mut carried = Vec::new();
    loop {
        let mut out = Vec::new();
        world.take_released(0, Side::Up, |packet| out.push(packet));
        if out.is_empty() {
            world.run(SECOND / 5);
            return carried;
        }
        for packet in out {
            let now = world.now();
            world.offer(now, 0, Side::Down, in_memory(&packet));
            carried.push(packet);
        }
        world.settle_touched();
        assert!(carried.len() < 100, "packets go around in a circle");
    }
}

/// What has come out of the tunnel at a site.
fn got(world: &mut World, site: usize) -> Vec<Bytes> {
    let mut got = Vec::new();
    world.take_released(site, Side::Down, |packet| got.push(packet));
    got
}

fn drops(world: &World, hub: usize, reason: &str) -> u64 {
    let drops = world.hub_at(hub).expect("it runs").session.status().drops;
    drops.get(reason).copied().unwrap_or_default()
}

fn passed(world: &World, hub: usize) -> (u64, u64) {
    let status = world.hub_at(hub).expect("it runs").session.status();
    let passed = status.passed.expect("it passes packets on");
    (passed.passed_on, passed.unwrapped)
}

#[test]
fn a_packet_for_a_shared_address_reaches_the_site_from_any_hub() {
    let mut world = world();
    for hub in 0..2 {
        for site in 0..2 {
            let packet = datagram(first_port(site) + 5);
            come(&mut world, hub, &packet, false);
            let carried = carry(&mut world);
            assert_eq!(carried.len(), usize::from(hub != site));
            for wrapped in carried {
                assert_eq!(wrapped[..], wrapped_for(site, &packet));
            }
            assert_eq!(got(&mut world, site), [packet], "{site} from {hub}");
            assert!(got(&mut world, 1 - site).is_empty());
        }
        assert_eq!(passed(&world, hub), (1, if hub == 0 { 0 } else { 1 }));
    }
    assert_eq!(passed(&world, 0), (1, 1));
    for reason in [
        "withdrawn",
        "unroutable",
        "wrapped_invalid",
        "wrapped_not_here",
    ] {
        assert_eq!(drops(&world, 0, reason) + drops(&world, 1, reason), 0);
    }
}

#[test]
fn fragments_and_icmp_errors_are_passed_on_too() {
    let mut world = world();
    let mut first = datagram(first_port(1));
    (first[4], first[5], first[6]) = (1, 2, 0x20);
    let mut later = packet(UDP, &[9; 64]);
    (later[4], later[5], later[7]) = (1, 2, 108 / 8);
    // The server says that a packet of the site did not arrive.
    let mut quoted = datagram(443);
    quoted[12..20].rotate_left(4);
    quoted[20..22].copy_from_slice(&first_port(1).to_be_bytes());
    let error = packet(ICMP, &[&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat());
    for packet in [first, later, error] {
        come(&mut world, 0, &packet, false);
        assert_eq!(carry(&mut world).len(), 1);
        assert_eq!(got(&mut world, 1), [packet]);
    }
}

#[test]
fn a_checksum_that_is_left_to_others_is_complete_before_a_packet_is_wrapped() {
    let mut world = world();
    let mut packet = datagram(first_port(1));
    let pseudo = [&packet[12..20], &[0, UDP, 0, 108]].concat();
    // The kernel leaves something there that says nothing of this packet, if it was part of a larger one.
    packet[26..28].fill(0x55);
    // What follows a packet in the buffer is no part of it.
    let followed = [&packet[..], &[0xff; 3]].concat();
    come(&mut world, 0, &followed, true);
    let carried = carry(&mut world);
    let whole = [&pseudo[..], &carried[0][40..]].concat();
    assert_eq!(checksum::fold(checksum::add(0, &whole)), 0xffff);
    let [got] = &got(&mut world, 1)[..] else {
        panic!("one packet")
    };
    assert_eq!(got[..26], packet[..26]);
    assert_eq!(got.len(), packet.len());
}

#[test]
fn a_packet_for_a_site_that_no_hub_serves_is_wrapped_once_and_dropped() {
    let mut world = world();
    let packet = datagram(first_port(AWAY));
    // The routes lead to the first hub, where its inner address is as if the site were there.
    for (hub, dropped) in [(1, 1), (0, 2)] {
        come(&mut world, hub, &packet, false);
        assert_eq!(carry(&mut world).len(), 1, "not wrapped again");
        assert_eq!(drops(&world, 0, "wrapped_not_here"), dropped);
    }
    // Another hub may have wrapped it, and wraps it again and again.
    for _ in 0..3 {
        come(
            &mut world,
            1,
            &wrapped_for(0, &datagram(first_port(0))),
            false,
        );
        assert!(carry(&mut world).is_empty());
    }
    assert_eq!(drops(&world, 1, "wrapped_not_here"), 3);
    assert!(got(&mut world, 0).is_empty());
    // Packets to inner addresses are never passed on.
    let mut inner = packet;
    inner[16..20].copy_from_slice(&World::inner_address(0).octets());
    come(&mut world, 1, &inner, false);
    assert!(carry(&mut world).is_empty());
}

/// Changes something in a wrapped packet for the first site.
type Spoil = fn(&mut Vec<u8>);

#[test]
fn only_packets_for_the_block_of_the_site_are_unwrapped() {
    let mut world = world();
    let own = datagram(first_port(0));
    let bad: [(&str, Spoil); 11] = [
        ("a port of another site", |p| {
            p[42..44].copy_from_slice(&first_port(1).to_be_bytes());
        }),
        ("a port of no site", |p| p[42] = 0xff),
        ("a protocol without ports", |p| p[29] = 50),
        ("wrapped twice", |p| p[29] = IP_IN_IP),
        ("a later fragment of nothing", |p| p[27] = 1),
        ("options", |p| p[0] = 0x46),
        ("an outer fragment", |p| p[6] = 0x20),
        ("another length", |p| p[23] -= 1),
        ("from a site of the hub", |p| {
            p[32..36].copy_from_slice(&World::inner_address(0).octets());
        }),
        ("from the hub", |p| {
            p[32..36].copy_from_slice(&ropewalk_testkit::HUB_INNER.octets());
        }),
        ("from nobody", |p| p[32..36].fill(127)),
    ];
    for (count, (what, spoil)) in (1..).zip(bad) {
        let mut packet = wrapped_for(0, &own);
        spoil(&mut packet);
        come(&mut world, 0, &packet, false);
        assert!(carry(&mut world).is_empty(), "{what}");
        assert!(got(&mut world, 0).is_empty(), "{what} reached the site");
        assert!(got(&mut world, 1).is_empty(), "{what}");
        assert_eq!(drops(&world, 0, "wrapped_invalid"), count, "{what}");
    }
    // As a whole it passes, and what others send to the inner address stays as it is.
    come(&mut world, 0, &wrapped_for(0, &own), false);
    carry(&mut world);
    assert_eq!(got(&mut world, 0), std::slice::from_ref(&own));
    let mut foreign = wrapped_for(0, &own);
    foreign[12..16].copy_from_slice(&SERVER);
    come(&mut world, 0, &foreign, false);
    carry(&mut world);
    assert_eq!(got(&mut world, 0), [foreign]);
}

#[test]
fn no_site_sends_what_a_hub_would_unwrap() {
    let mut world = world();
    let good = wrapped_for(1, &datagram(first_port(1)));
    let mut fragment = good.clone();
    fragment[6] = 0x20;
    let mut later = good.clone();
    later[7] = 1;
    for packet in [good, fragment, later] {
        let now = world.now();
        let site = world.site_mut(0);
        site.session.handle_inner(now, in_memory(&packet), false);
        world.touch_site(0);
        world.run(SECOND / 5);
        assert!(carry(&mut world).is_empty());
        assert!(got(&mut world, 1).is_empty());
    }
    assert_eq!(drops(&world, 0, "spoofed_source"), 3);
}
