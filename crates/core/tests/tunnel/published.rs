//! What a tunnel does as published systems do it: without order at the egress, and with send buffers.

use super::{World, config, uneven};
use ropewalk_core::protect::{Classes, Protection};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Order, SendOptions, TunnelConfig};
use ropewalk_testkit::tunnels::PathSpec;
use ropewalk_types::Duration;

fn sending(scheduler: SchedulerKind, send: SendOptions) -> [TunnelConfig; 2] {
    let one = TunnelConfig {
        classes: Classes::all(Protection::None).into(),
        send,
        ..config(scheduler)
    };
    [one.clone(), one]
}

const UNORDERED: SendOptions = SendOptions {
    order: Order::Off,
    inner_mtu: None,
    buffer_packets: None,
    compress_headers: false,
    accelerate: false,
};

/// A hundred TCP segments over both paths in turn; their numbers as they came.
fn alternate(send: SendOptions) -> (World, Vec<u32>) {
    let configs = sending(SchedulerKind::RoundRobin, send);
    let mut pair = World::with(configs, 1, &uneven());
    for _ in 0..100 {
        pair.offer_segment(1_000);
        pair.run(Duration::from_millis(2));
    }
    pair.run(Duration::from_secs(1));
    let numbers = pair.numbers();
    (pair, numbers)
}

#[test]
fn order_off_delivers_every_packet_when_it_comes() {
    let (ordered, numbers) = alternate(SendOptions::default());
    assert!(numbers.is_sorted() && numbers.len() == 100);
    assert!(ordered.hub.tunnel.stats().reorder.held > 20);
    let (unordered, numbers) = alternate(UNORDERED);
    assert!(!numbers.is_sorted() && numbers.len() == 100);
    let stats = unordered.hub.tunnel.stats().reorder;
    assert_eq!(stats.held, 0);
    // Nothing waits: each packet arrives after half the round trip of its path, 25 or 35 ms.
    for (at, data) in &unordered.hub.delivered {
        let sent = u64::from(ropewalk_testkit::packet::number(data)) * 2;
        let waited = at.as_nanos() / 1_000_000 - sent;
        assert!((24..=38).contains(&waited), "{waited} ms");
    }
}

#[test]
fn order_off_still_removes_copies() {
    let configs = sending(SchedulerKind::Redundant, UNORDERED);
    let mut pair = World::with(configs, 1, &uneven());
    for _ in 0..100 {
        pair.offer_segment(1_000);
        pair.run(Duration::from_millis(5));
    }
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.numbers().len(), 100);
    assert!(pair.hub.tunnel.stats().reorder.duplicates >= 95);
}

/// What one burst of `packets` leads to with send buffers of five packets on two paths whose windows
/// take ten packets each: packets delivered, dropped by send buffers, and dropped before.
fn burst(scheduler: SchedulerKind, packets: u32) -> (usize, u64, u64) {
    let send = SendOptions {
        order: Order::Off,
        buffer_packets: Some(5),
        ..SendOptions::default()
    };
    let mut paths = [PathSpec::new(8, 25), PathSpec::new(8, 35)];
    for path in &mut paths {
        path.reports[0].cwnd = 14_000;
    }
    let mut pair = World::with(sending(scheduler, send), 1, &paths);
    for _ in 0..packets {
        pair.offer_segment(1_300);
    }
    pair.run(Duration::from_secs(3));
    let stats = pair.site.tunnel.stats();
    assert_eq!(pair.site.tunnel.queue_bytes(), 0);
    let drops = (stats.buffer_drops, stats.queue.dropped_full);
    (pair.numbers().len(), drops.0, drops.1)
}

#[test]
fn a_send_buffer_overflows_where_the_scheduler_fills_it() {
    // OTIAS takes the faster path only: the buffer never holds a window, for which it would wait a
    // round trip. AFMT takes the other one while this one has anything to send.
    for (kind, most) in [
        (SchedulerKind::Otias, 15..=16),
        (SchedulerKind::Afmt, 20..=32),
    ] {
        let (delivered, buffers, arrivals) = burst(kind, 60);
        assert_eq!(arrivals, 0, "{kind}");
        assert!(most.contains(&delivered), "{kind}: {delivered}");
        assert_eq!(delivered as u64 + buffers, 60, "{kind}");
    }
}

#[test]
fn a_scheduler_that_waits_for_slots_fills_no_send_buffer() {
    for kind in [
        SchedulerKind::LowRtt,
        SchedulerKind::HtmtPaper,
        SchedulerKind::HtmtPrototype,
    ] {
        assert_eq!(burst(kind, 60), (60, 0, 0), "{kind}");
    }
}

#[test]
fn the_queue_of_arrivals_is_bounded() {
    let (delivered, buffers, arrivals) = burst(SchedulerKind::LowRtt, 700);
    assert_eq!(delivered as u64 + arrivals, 700);
    assert!(
        buffers == 0 && (150..=200).contains(&arrivals),
        "{arrivals}"
    );
}
