//! Compressed headers over paths that lose, copy and end: what goes in comes out, byte for byte.

use std::collections::BTreeMap;

use super::{World, config, uneven};
use bytes::{Bytes, BytesMut};
use ropewalk_core::reorder::Inner;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{SendOptions, TunnelConfig};
use ropewalk_types::{Duration, Ecn, PathId, checksum};
use ropewalk_wire::HEADROOM;

const PAYLOAD: usize = 900;

/// A packet of a download: TCP with timestamps, and a number in its payload.
fn segment(number: u32) -> BytesMut {
    sized_segment(number, PAYLOAD)
}

fn sized_segment(number: u32, payload: usize) -> BytesMut {
    let mut data = BytesMut::zeroed(HEADROOM + 52 + payload);
    let ip = &mut data[HEADROOM..];
    let length = (52 + payload) as u16;
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[4..6].copy_from_slice(&(number as u16).to_be_bytes());
    (ip[6], ip[8], ip[9]) = (0x40, 64, 6);
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !checksum::fold(checksum::add(0, &ip[..20]));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip[20..24].copy_from_slice(&[1, 187, 200, 0]);
    ip[24..28].copy_from_slice(&(number * payload as u32).to_be_bytes());
    ip[32..34].copy_from_slice(&[0x80, 16]);
    // An advertised window and a checksum that nobody computed: both travel.
    ip[34..38].copy_from_slice(&[1, 2, 3, number as u8]);
    ip[40..44].copy_from_slice(&[1, 1, 8, 10]);
    ip[44..48].copy_from_slice(&number.to_be_bytes());
    ip[48..52].copy_from_slice(&number.wrapping_sub(20).to_be_bytes());
    ip[52..56].copy_from_slice(&number.to_be_bytes());
    data
}

fn number(ip: &[u8]) -> u32 {
    u32::from_be_bytes([ip[52], ip[53], ip[54], ip[55]])
}

fn compressing(scheduler: SchedulerKind) -> [TunnelConfig; 2] {
    let send = SendOptions {
        compress_headers: true,
        ..SendOptions::default()
    };
    let one = TunnelConfig {
        send,
        ..config(scheduler)
    };
    [one.clone(), one]
}

/// Lets segments enter, and checks all that arrive; returns how many did, each once.
fn carry(world: &mut World, sent: &mut BTreeMap<u32, Bytes>, count: u32) -> usize {
    let first = sent.len() as u32;
    for n in first..first + count {
        let data = segment(n);
        sent.insert(n, data.clone().freeze().slice(HEADROOM..));
        world.enter(data);
        world.run(Duration::from_millis(2));
    }
    world.run(Duration::from_secs(2));
    let mut seen = BTreeMap::new();
    for (_, data) in &world.hub.delivered {
        let number = number(data);
        assert_eq!(Some(data), sent.get(&number), "segment {number} changed");
        assert!(seen.insert(number, ()).is_none(), "segment {number} twice");
    }
    seen.len()
}

#[test]
fn headers_shrink_over_paths_that_lose() {
    for kind in [
        SchedulerKind::Auto,
        SchedulerKind::Redundant,
        SchedulerKind::RoundRobin,
    ] {
        let mut world = World::with(compressing(kind), 1, &uneven());
        world.lose(0.05);
        let mut sent = BTreeMap::new();
        let arrived = carry(&mut world, &mut sent, 2_000);
        let (site, hub) = (world.site.tunnel.stats(), world.hub.tunnel.stats());
        assert!(arrived > 1_980, "{kind:?}: {arrived} of 2,000");
        assert_eq!((hub.headers_unknown, hub.malformed), (0, 0), "{kind:?}");
        let saved = site.headers_saved as f64 / 2_000.0;
        assert!(saved > 35.0, "{kind:?}: {saved} bytes of each packet");
    }
}

#[test]
fn headers_travel_in_full_where_compression_is_off() {
    let send = SendOptions {
        compress_headers: false,
        ..SendOptions::default()
    };
    let one = TunnelConfig {
        send,
        ..config(SchedulerKind::Auto)
    };
    let mut world = World::with([one.clone(), one], 1, &uneven());
    let mut sent = BTreeMap::new();
    assert_eq!(carry(&mut world, &mut sent, 100), 100);
    assert_eq!(world.site.tunnel.stats().headers_saved, 0);
}

#[test]
fn a_peer_that_starts_anew_is_told_again() {
    let mut world = World::with(compressing(SchedulerKind::Auto), 1, &uneven());
    let mut sent = BTreeMap::new();
    assert_eq!(carry(&mut world, &mut sent, 500), 500);
    let saved = world.site.tunnel.stats().headers_saved;
    // Its egress has forgotten all, and nobody has noticed: what comes is asked for again, in full.
    world.hub.tunnel.reset_exit();
    let arrived = carry(&mut world, &mut sent, 500);
    let hub = world.hub.tunnel.stats();
    assert!(hub.headers_unknown > 0, "it was told nothing");
    assert!(
        arrived > 980,
        "{arrived} of 1,000, {} unknown",
        hub.headers_unknown
    );
    let again = world.site.tunnel.stats().headers_saved - saved;
    assert!(again > 15_000, "{again} bytes saved after it started anew");
}

/// Gives a segment of so much payload to the site's tunnel, and what leaves to the hub's, marked as the
/// outer packet is.
fn cross(world: &mut World, data: BytesMut, outer: Ecn) -> Inner {
    let now = world.now();
    let report = world.site.paths[0].report.clone();
    world.site.tunnel.update_path(now, PathId(0), report);
    world.site.tunnel.handle_inner(now, data, false);
    let mut out = Vec::new();
    world.site.tunnel.poll_transmit(now, &mut out, 10);
    for sent in out {
        let (path, datagram) = (sent.path, sent.datagram);
        world.hub.tunnel.handle_datagram(now, path, outer, datagram);
    }
    world.hub.tunnel.end_batch(now);
    world.hub.tunnel.poll_inner().expect("delivered")
}

/// Large payloads are not copied when their headers are restored, and marks go to the headers alone.
#[test]
fn restored_headers_of_large_segments_are_apart_and_take_marks() {
    let mut world = World::with(compressing(SchedulerKind::Auto), 1, &uneven());
    let mut sent = BTreeMap::new();
    assert_eq!(carry(&mut world, &mut sent, 500), 500);
    for (payload, is_apart) in [(255, false), (256, true), (900, true)] {
        let mut data = sized_segment(500, payload);
        let ip = &mut data[HEADROOM..];
        ip[1] |= 2;
        ip[10..12].fill(0);
        let sum = !checksum::fold(checksum::add(0, &ip[..20]));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let given = data.clone().freeze().slice(HEADROOM..);
        let saved = world.site.tunnel.stats().headers_saved;
        let mut got = cross(&mut world, data, Ecn::Ce);
        assert!(
            world.site.tunnel.stats().headers_saved > saved,
            "compressed"
        );
        assert_eq!(got.head.is_empty(), !is_apart, "{payload} bytes of payload");
        assert_eq!(got.front()[1] & 3, 3, "marked");
        got.join();
        assert_eq!(checksum::fold(checksum::add(0, &got.data[..20])), 0xffff);
        assert_eq!(got.data[20..], given[20..]);
    }
}

/// The handshake of the server in whose direction the segments go: MSS 1,460 and timestamps.
fn handshake() -> BytesMut {
    let mut data = sized_segment(0, 4);
    let ip = &mut data[HEADROOM..];
    ip[32..34].copy_from_slice(&[0x90, 2]);
    ip[40..56].copy_from_slice(&[2, 4, 5, 0xb4, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]);
    data
}

#[test]
fn full_segments_of_a_connection_fit_a_datagram_each() {
    for compress_headers in [false, true] {
        let send = SendOptions {
            compress_headers,
            ..SendOptions::default()
        };
        let one = TunnelConfig {
            send,
            ..config(SchedulerKind::Auto)
        };
        let mut world = World::with([one.clone(), one], 1, &uneven());
        // These paths take less than most do.
        world.run(Duration::from_secs(21));
        world.enter(handshake());
        world.run(Duration::from_millis(100));
        let told = &world.hub.delivered[0].1;
        let size = usize::from(u16::from_be_bytes([told[42], told[43]]));
        let whole = world.hub.tunnel.whole_max();
        let expected = if compress_headers { 1 } else { -40_i32 };
        assert_eq!(size as i32 - whole as i32, expected);
        let before = world.site.tunnel.stats().data_bytes;
        let pieces = |world: &World| -> u64 {
            let stats = [0, 1].map(|id| world.site.tunnel.path_stats(PathId(id)));
            stats.into_iter().flatten().map(|s| s.tx_datagrams).sum()
        };
        let first = pieces(&world);
        for number in 1..=1_000 {
            world.enter(sized_segment(number, size - 12));
            world.run(Duration::from_millis(2));
        }
        world.run(Duration::from_secs(1));
        assert_eq!(world.hub.delivered.len(), 1_001);
        let (bytes, datagrams) = (
            world.site.tunnel.stats().data_bytes - before,
            pieces(&world) - first,
        );
        eprintln!(
            "saved {} whole {whole}",
            world.site.tunnel.stats().headers_saved
        );
        eprintln!("{compress_headers}: {size} bytes, {datagrams} datagrams, {bytes} bytes");
        // A few packets travel in pieces until the peer knows the headers; then there are reports and
        // announcements.
        assert!(datagrams < 1_100, "{datagrams} datagrams for 1,000 packets");
    }
}
