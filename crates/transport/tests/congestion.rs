//! Congestion control on an emulated link: loose versions of the measured claims.

use ropewalk_netem::{Change, LossModel, Side};
use ropewalk_testkit::Pair;
use ropewalk_testkit::endpoints::EndpointEnd;
use ropewalk_transport::CongestionControl::{self, Bdp, Cubic, NewReno};
use ropewalk_types::{Duration, Random, Rate};

type World = Pair<EndpointEnd>;

/// Milliseconds that a full packet takes on a link of this rate.
fn packet_ms(mbit: f64) -> f64 {
    1_456.0 * 8.0 / mbit / 1e3
}

fn loss(share: f64) -> Change {
    Change {
        loss: Some(LossModel::Bernoulli(share)),
        ..Change::default()
    }
}

fn queue(bytes: u64) -> Change {
    Change {
        queue_bytes_max: Some(Some(bytes)),
        ..Change::default()
    }
}

/// A sender like the gateway. Once a millisecond it hands over as much as the path takes, from a
/// source that has data most of the time.
struct LateBound {
    random: Random,
    /// Mean time with data, milliseconds.
    busy_ms: u64,
    /// Mean time without; zero means always data.
    idle_ms: u64,
    left_ms: u64,
    busy: bool,
}

impl LateBound {
    fn new(busy_ms: u64, idle_ms: u64) -> Self {
        Self {
            random: Random::new(3),
            busy_ms,
            idle_ms,
            left_ms: 0,
            busy: false,
        }
    }

    /// Runs the world for `time`; answers the mean of window over `product` bytes.
    fn run(&mut self, world: &mut World, time: Duration, product: f64) -> f64 {
        let (mut sum, steps) = (0.0, time.as_millis().max(1));
        for _ in 0..steps {
            if self.left_ms == 0 {
                self.busy = !self.busy || self.idle_ms == 0;
                let mean = if self.busy {
                    self.busy_ms
                } else {
                    self.idle_ms
                };
                self.left_ms = 1 + (self.random.unit() * 2.0 * mean as f64) as u64;
            }
            self.left_ms -= 1;
            if self.busy {
                world.site.saturate = 1_400;
                world.site.offer(world.now());
                world.site.saturate = 0;
            }
            world.run(Duration::from_millis(1));
            sum += world.site.snapshot(world.now()).cwnd as f64 / product;
        }
        sum / steps as f64
    }
}

/// Share of the capacity a saturating sender gets through, and mean wait in the queue in ms.
fn steady(kind: CongestionControl, mbit: f64, rtt_ms: u64, set: impl Fn(&mut World)) -> (f64, f64) {
    let mut world = World::simple(mbit, Duration::from_millis(rtt_ms));
    world.up(kind);
    set(&mut world);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(4));
    let (way, before) = (world.hub.way, world.counters(0, Side::Up));
    let rate = world.goodput_up(Duration::from_secs(8));
    let after = world.counters(0, Side::Up);
    let lost = (after.dropped_loss - before.dropped_loss) as f64;
    let arrived = 1.0 - lost / (after.sent_packets - before.sent_packets) as f64;
    let ceiling = mbit * 1e6 * arrived * 1_400.0 / 1_456.0;
    let queue_ms = world.hub.way.late_mean_s(&way) * 1e3 - packet_ms(mbit);
    (rate.bits_per_sec() as f64 / ceiling, queue_ms)
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
    for share in [0.05, 0.20] {
        let lossy = |world: &mut World| world.change_up(&loss(share));
        let (bdp, queue_ms) = steady(Bdp, 10.0, 50, lossy);
        assert!(
            bdp > 0.93 && queue_ms < 40.0,
            "loss {share}: {bdp:.3}, {queue_ms:.1} ms"
        );
        for kind in [NewReno, Cubic] {
            let (other, _) = steady(kind, 10.0, 50, lossy);
            assert!(other < bdp / 2.0, "{kind} at loss {share}: {other:.3}");
        }
    }
}

#[test]
fn bdp_copes_with_jitter() {
    const RUNS: u64 = 8;
    for reorder in [false, true] {
        // The queue differs by half from one draw of the delays to the next.
        let mut queue_ms = 0.0;
        for run in 0..RUNS {
            let (share, waited_ms) = steady(Bdp, 20.0, 50, |world| {
                world.change_both(&Change {
                    jitter: Some(Duration::from_millis(7)),
                    reorder: Some(reorder),
                    ..queue(256 << 10)
                });
                for _ in 0..run {
                    world.site.send(b"shifts the draws");
                }
            });
            assert!(share > 0.85, "reordering {reorder}: {share:.3}");
            queue_ms += waited_ms / RUNS as f64;
        }
        assert!(queue_ms < 55.0, "reordering {reorder}: {queue_ms:.1} ms");
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
        world.change_both(&Change {
            jitter: Some(Duration::from_millis(jitter_ms)),
            ..queue(512 << 10)
        });
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
    world.change_up(&queue(256 << 10));
    world.up(Bdp);
    world.site.saturate = 1_400;
    for mbit in [30.0, 3.0, 30.0, 3.0, 30.0] {
        world.set_rate_up(mbit);
        // Two seconds to adapt, of which the queue at the moment of the change is a part.
        world.run(Duration::from_secs(2));
        let way = world.hub.way;
        let rate = world.goodput_up(Duration::from_secs(2));
        let share = rate.bits_per_sec() as f64 / (mbit * 1e6);
        assert!(share > 0.75, "{mbit} Mbit/s: {share:.2}");
        let mean = world.hub.way.late_mean_s(&way) * 1e3 - packet_ms(mbit);
        assert!(mean < 60.0, "{mbit} Mbit/s: {mean:.1} ms");
    }
}

#[test]
fn bdp_comes_back_after_a_blackout() {
    let mut world = World::simple(20.0, Duration::from_millis(40));
    world.up(Bdp);
    world.site.saturate = 1_400;
    world.run(Duration::from_secs(3));
    world.cut(true);
    world.run(Duration::from_secs(3));
    world.cut(false);
    world.run(Duration::from_secs(5));
    let rate = world.goodput_up(Duration::from_secs(2));
    assert!(rate > Rate::from_bits_per_sec(14_000_000), "{rate:?}");
}

#[test]
fn bdp_accepts_that_a_path_became_longer() {
    // How long that takes hangs on where the path is between two drains just then.
    let seconds = (0..8).map(|moment| {
        let mut world = World::simple(20.0, Duration::from_millis(40));
        world.up(Bdp);
        world.site.saturate = 1_400;
        world.run(Duration::from_millis(3_000 + 250 * moment));
        world.change_both(&Change {
            delay: Some(Duration::from_millis(50)),
            ..Change::default()
        });
        let full = Rate::from_bits_per_sec(15_000_000);
        let quarters = (1..40).find(|_| world.goodput_up(Duration::from_millis(250)) > full);
        f64::from(quarters.unwrap()) / 4.0
    });
    let seconds: Vec<f64> = seconds.collect();
    let mean = seconds.iter().sum::<f64>() / 8.0;
    assert!(mean <= 4.25, "{seconds:?}");
}

#[test]
fn bdp_reaches_gigabits_over_a_tenth_of_a_millisecond() {
    let mut world = World::simple(4_000.0, Duration::from_micros(100));
    world.change_both(&queue(4 << 20));
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
        world.hub.way.mark_above = mark;
        world.site.saturate = 1_400;
        world.run(Duration::from_secs(3));
        let way = world.hub.way;
        world.run(Duration::from_secs(4));
        let id = world.site.id.expect("a connection");
        let counters = world.site.endpoint.counters(id).expect("a connection");
        let mean = world.hub.way.late_mean_s(&way);
        (counters.congestion_events, mean)
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
    let rate = |world: &World| world.site.snapshot(world.now()).rate;
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
fn a_window_grows_when_the_sender_fills_it_and_queues_nothing_behind() {
    let product = 10.0 * 1e6 / 8.0 * 0.05;
    for kind in [NewReno, Cubic] {
        let window = |fills: bool| {
            let mut world = World::simple(10.0, Duration::from_millis(50));
            world.up(kind);
            for _ in 0..4_000 {
                let now = world.now();
                let path = world.site.snapshot(now);
                let room = path.cwnd.saturating_sub(path.in_flight + path.queued);
                let bytes = path.max_datagram;
                let packets = if fills {
                    room / (bytes as u64 + 56)
                } else {
                    u64::from(path.in_flight == 0)
                };
                for _ in 0..packets {
                    world.site.send(&vec![7; bytes]);
                }
                world.run(Duration::from_millis(1));
            }
            let now = world.now();
            world.site.snapshot(now).cwnd as f64 / product
        };
        let (filled, idle) = (window(true), window(false));
        assert!(filled > 1.0, "{kind:?}: {filled:.2} of what the link holds");
        assert!(idle < 0.25, "{kind:?}: {idle:.2} though never used up");
    }
}

#[test]
fn bdp_serves_a_late_bound_sender_with_pauses() {
    for (mbit, rtt_ms) in [(16.0, 50), (8.0, 70), (100.0, 20)] {
        for (busy_ms, idle_ms) in [(100, 0), (200, 10)] {
            let mut world = World::simple(mbit, Duration::from_millis(rtt_ms));
            world.change_up(&queue(256 << 10));
            world.up(Bdp);
            let product = mbit * 1e6 / 8.0 * rtt_ms as f64 / 1e3;
            let mut feed = LateBound::new(busy_ms, idle_ms);
            feed.run(&mut world, Duration::from_secs(4), product);
            let way = world.hub.way;
            let received = world.hub.received_bytes;
            let window = feed.run(&mut world, Duration::from_secs(8), product);
            let received = (world.hub.received_bytes - received) as f64;
            let share = received / (mbit * 1e6 * 1_400.0 / 1_456.0);
            let queue_ms = world.hub.way.late_mean_s(&way) * 1e3 - packet_ms(mbit);
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
