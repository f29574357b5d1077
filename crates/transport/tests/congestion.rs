//! Congestion control on a toy link in virtual time: loose versions of the measured claims.

mod support;

use ropewalk_transport::CongestionControl::{self, Bdp, Cubic, NewReno};
use ropewalk_types::{Duration, Rate};
use support::{LateBound, World};

/// Share of the capacity a saturating sender gets through, and mean wait in the queue in ms.
fn steady(kind: CongestionControl, mbit: f64, rtt_ms: u64, set: impl Fn(&mut World)) -> (f64, f64) {
    let mut world = World::simple(mbit, Duration::from_millis(rtt_ms));
    world.up(kind);
    set(&mut world);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(4));
    let (packets, waited) = (world.up.packets, world.up.waited);
    let rate = world.goodput_up(Duration::from_secs(8));
    let mean = (world.up.waited - waited).as_secs_f64() / (world.up.packets - packets) as f64;
    let ceiling = mbit * 1e6 * (1.0 - world.up.loss) * 1_400.0 / 1_456.0;
    (rate.bits_per_sec() as f64 / ceiling, mean * 1e3)
}

#[test]
fn bdp_fills_a_link_without_a_long_queue() {
    for (mbit, rtt) in [(2.0, 20), (2.0, 100), (10.0, 50), (50.0, 20), (50.0, 100)] {
        let (share, queue_ms) = steady(Bdp, mbit, rtt, |_| ());
        assert!(share > 0.95, "{mbit} Mbit/s, {rtt} ms: {share:.3}");
        // On 2 Mbit/s one packet alone takes 6 ms.
        let queue_max = if mbit < 5.0 { 45.0 } else { 18.0 };
        assert!(
            queue_ms < queue_max,
            "{mbit} Mbit/s, {rtt} ms: {queue_ms:.1} ms"
        );
    }
}

#[test]
fn bdp_rides_random_loss_that_newreno_and_cubic_collapse_at() {
    for loss in [0.05, 0.20] {
        let lossy = |world: &mut World| world.up.loss = loss;
        let (bdp, queue_ms) = steady(Bdp, 10.0, 50, lossy);
        assert!(
            bdp > 0.93 && queue_ms < 40.0,
            "loss {loss}: {bdp:.3}, {queue_ms:.1} ms"
        );
        for kind in [NewReno, Cubic] {
            let (share, _) = steady(kind, 10.0, 50, lossy);
            assert!(share < bdp / 2.0, "{kind} at loss {loss}: {share:.3}");
        }
    }
}

#[test]
fn bdp_copes_with_jitter() {
    for reorder in [false, true] {
        let (share, queue_ms) = steady(Bdp, 20.0, 50, |world| {
            for link in [&mut world.up, &mut world.down] {
                (link.jitter, link.reorder) = (Duration::from_millis(7), reorder);
                link.queue_max = 256 << 10;
            }
        });
        assert!(share > 0.85, "reordering {reorder}: {share:.3}");
        assert!(queue_ms < 50.0, "reordering {reorder}: {queue_ms:.1} ms");
    }
}

#[test]
fn bdp_starts_fast() {
    let mut world = World::simple(50.0, Duration::from_millis(50));
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_millis(700));
    let rate = world.goodput_up(Duration::from_millis(200));
    assert!(rate > Rate::from_bits_per_sec(38_000_000), "{rate:?}");
}

#[test]
fn bdp_starts_fast_over_a_link_with_delay_spikes() {
    for jitter_ms in [10, 15, 20, 25, 30] {
        let mut world = World::simple(50.0, Duration::from_millis(80));
        for link in [&mut world.up, &mut world.down] {
            link.jitter = Duration::from_millis(jitter_ms);
            link.queue_max = 512 << 10;
        }
        world.up(Bdp);
        world.site.saturate = 1_400;
        world.run(Duration::from_secs(3));
        let rate = world.goodput_up(Duration::from_secs(2));
        let share = rate.bits_per_sec() as f64 / 50e6;
        assert!(share > 0.75, "{jitter_ms} ms: {share:.2}");
    }
}

#[test]
fn bdp_follows_capacity_down_and_up() {
    let mut world = World::simple(30.0, Duration::from_millis(50));
    world.up.queue_max = 256 << 10;
    world.up(Bdp);
    world.site.saturate = 1_400;
    let mut packets = (0, Duration::ZERO);
    for mbit in [30, 3, 30, 3, 30] {
        world
            .up
            .set_rate(world.now, Rate::from_bits_per_sec(mbit * 1_000_000));
        // Two seconds to adapt, of which the queue at the moment of the change is a part.
        world.run(Duration::from_secs(2));
        packets = (world.up.packets, world.up.waited);
        let rate = world.goodput_up(Duration::from_secs(2));
        let share = rate.bits_per_sec() as f64 / (mbit as f64 * 1e6);
        assert!(share > 0.75, "{mbit} Mbit/s: {share:.2}");
        let waited = (world.up.waited - packets.1).as_secs_f64() * 1e3;
        let mean = waited / (world.up.packets - packets.0) as f64;
        assert!(mean < 60.0, "{mbit} Mbit/s: {mean:.1} ms");
    }
    assert!(packets.0 > 0);
}

#[test]
fn bdp_comes_back_after_a_blackout() {
    let mut world = World::simple(20.0, Duration::from_millis(40));
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(3));
    (world.up.cut, world.down.cut) = (true, true);
    world.run(Duration::from_secs(3));
    (world.up.cut, world.down.cut) = (false, false);
    world.run(Duration::from_secs(5));
    let rate = world.goodput_up(Duration::from_secs(2));
    assert!(rate > Rate::from_bits_per_sec(14_000_000), "{rate:?}");
}

#[test]
fn bdp_accepts_that_a_path_became_longer() {
    let mut world = World::simple(20.0, Duration::from_millis(40));
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(3));
    world.up.delay += Duration::from_millis(30);
    world.down.delay += Duration::from_millis(30);
    world.run(Duration::from_secs(4));
    let rate = world.goodput_up(Duration::from_secs(3));
    assert!(rate > Rate::from_bits_per_sec(16_000_000), "{rate:?}");
}

#[test]
fn bdp_reaches_gigabits_over_a_tenth_of_a_millisecond() {
    let mut world = World::simple(4_000.0, Duration::from_micros(100));
    for link in [&mut world.up, &mut world.down] {
        link.queue_max = 4 << 20;
    }
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_millis(300));
    let rate = world.goodput_up(Duration::from_millis(200));
    assert!(rate > Rate::from_bits_per_sec(3_300_000_000), "{rate:?}");
}

#[test]
fn congestion_marks_are_seen_and_answered() {
    let run = |mark: Option<Duration>| {
        let mut world = World::simple(20.0, Duration::from_millis(40));
        world.up(Bdp);
        world.up.mark_above = mark;
        world.site.saturate = 1_400;
        world.run(Duration::from_secs(3));
        let (packets, waited) = (world.up.packets, world.up.waited);
        world.run(Duration::from_secs(4));
        let mean = (world.up.waited - waited).as_secs_f64() / (world.up.packets - packets) as f64;
        (
            world
                .site
                .endpoint
                .counters(world.site.id.unwrap())
                .unwrap()
                .congestion_events,
            mean,
        )
    };
    let (unmarked, marked) = (run(None), run(Some(Duration::from_millis(2))));
    assert!(marked.0 > unmarked.0 + 10, "{unmarked:?} {marked:?}");
    assert!(marked.1 < unmarked.1, "{unmarked:?} {marked:?}");
}

#[test]
fn an_application_that_sends_little_does_not_spoil_the_estimate() {
    let mut world = World::simple(20.0, Duration::from_millis(40));
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(3));
    let id = world.site.id.unwrap();
    let rate = |world: &World| world.site.endpoint.snapshot(world.now, id).unwrap().rate;
    let busy = rate(&world);
    world.site.saturate = 0;
    for _ in 0..200 {
        world.site.send(&[1; 200]);
        world.run(Duration::from_millis(20));
    }
    let idle = rate(&world);
    assert!(busy > Rate::from_bits_per_sec(18_000_000), "{busy:?}");
    assert!(
        idle.bits_per_sec() * 10 > busy.bits_per_sec() * 9,
        "{busy:?} {idle:?}"
    );
}

#[test]
fn bdp_serves_a_late_bound_sender_with_pauses() {
    for (mbit, rtt_ms) in [(16.0, 50), (8.0, 70), (100.0, 20)] {
        for (busy_ms, idle_ms) in [(100, 0), (200, 10)] {
            let mut world = World::simple(mbit, Duration::from_millis(rtt_ms));
            world.up.queue_max = 256 << 10;
            world.up(Bdp);
            let product = mbit * 1e6 / 8.0 * rtt_ms as f64 / 1e3;
            let mut feed = LateBound::new(busy_ms, idle_ms);
            feed.run(&mut world, Duration::from_secs(4), product);
            let (packets, waited) = (world.up.packets, world.up.waited);
            let received = world.hub.received_bytes;
            let window = feed.run(&mut world, Duration::from_secs(8), product);
            let received = (world.hub.received_bytes - received) as f64;
            let share = received / (mbit * 1e6 * 1_400.0 / 1_456.0);
            let waited = (world.up.waited - waited).as_secs_f64() * 1e3;
            let queue_ms = waited / (world.up.packets - packets) as f64;
            let case = format!(
                "{mbit} Mbit/s, {rtt_ms} ms, idle {idle_ms} ms: {share:.3}, {queue_ms:.1} ms"
            );
            assert!(
                share > 0.93 && queue_ms < 25.0 && window < 1.7,
                "{case}, window {window:.2}"
            );
        }
    }
}
