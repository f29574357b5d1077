//! Prints how each congestion control does on an emulated link in virtual time.
//!
//! `cargo run --release -p ropewalk-transport --example congestion_table [--quick]`

use ropewalk_netem::{Change, LossModel};
use ropewalk_testkit::Pair;
use ropewalk_testkit::endpoints::{EndpointEnd, Way};
use ropewalk_transport::CongestionControl;
use ropewalk_types::{Duration, Rate};

type World = Pair<EndpointEnd>;

/// Share of what the link can deliver, mean time in its queue and serialiser in ms, and seconds
/// until four fifths of the link are used.
fn measure(
    kind: CongestionControl,
    mbit: f64,
    rtt_ms: u64,
    loss: f64,
    seconds: u64,
) -> (f64, f64, f64) {
    let mut world = World::simple(mbit, Duration::from_millis(rtt_ms));
    world.up(kind);
    world.change_up(&Change {
        loss: Some(LossModel::Bernoulli(loss)),
        ..Change::default()
    });
    world.site.saturate = 1_400;
    let started = world.now();
    let mut ramp = f64::NAN;
    let ceiling = mbit * 1e6 * (1.0 - loss) * 1_400.0 / 1_456.0;
    for _ in 0..20 {
        let rate = world.goodput_up(Duration::from_millis(100));
        if ramp.is_nan() && rate.bits_per_sec() as f64 > 0.8 * ceiling {
            ramp = world.now().since(started).as_secs_f64();
        }
    }
    world.run(Duration::from_secs(3));
    let way = world.hub.way;
    let rate: Rate = world.goodput_up(Duration::from_secs(seconds));
    let mean = world.hub.way.late_mean_s(&way);
    (rate.bits_per_sec() as f64 / ceiling, mean * 1e3, ramp)
}

/// Share of the capacity used, and mean and largest time in queue and serialiser in ms, on a link
/// that changes.
fn changing(kind: CongestionControl, scene: &Scene) -> (f64, f64, f64) {
    let mut world = World::simple(20.0, Duration::from_millis(scene.rtt_ms));
    world.up(kind);
    world.change_both(&Change {
        jitter: Some(Duration::from_millis(scene.jitter_ms)),
        reorder: Some(scene.reorder),
        queue_bytes_max: Some(Some(256 << 10)),
        ..Change::default()
    });
    world.change_up(&Change {
        loss: Some(LossModel::Bernoulli(scene.loss)),
        ..Change::default()
    });
    world.site.saturate = 1_400;
    let mut random = ropewalk_types::Random::new(scene.seed);
    let mut capacity = 0.0;
    let mut delivered = 0;
    for step in 0..60 {
        let mbit = if scene.low < scene.high {
            let share = random.unit();
            if random.chance(0.05) {
                0.1
            } else {
                scene.low + share * share * (scene.high - scene.low)
            }
        } else {
            scene.high
        };
        world.set_rate_up(mbit);
        if step == 30 {
            let delay = Duration::from_millis((scene.rtt_ms + scene.longer_ms) / 2);
            world.change_both(&Change {
                delay: Some(delay),
                ..Change::default()
            });
        }
        let before = world.hub.received_bytes;
        world.run(Duration::from_secs(1));
        if step >= 5 {
            capacity += mbit * 1e6 / 8.0 * (1.0 - scene.loss) * 1_400.0 / 1_456.0;
            delivered += world.hub.received_bytes - before;
        }
    }
    let way = world.hub.way;
    (
        delivered as f64 / capacity,
        way.late_mean_s(&Way::default()) * 1e3,
        way.late_max_s * 1e3,
    )
}

/// A link that changes every second.
struct Scene {
    name: &'static str,
    rtt_ms: u64,
    jitter_ms: u64,
    reorder: bool,
    loss: f64,
    low: f64,
    high: f64,
    longer_ms: u64,
    seed: u64,
}

const STEADY: Scene = Scene {
    name: "steady 20 Mbit/s, 50 ms",
    rtt_ms: 50,
    jitter_ms: 0,
    reorder: false,
    loss: 0.0,
    low: 20.0,
    high: 20.0,
    longer_ms: 0,
    seed: 1,
};

const SCENES: [Scene; 9] = [
    STEADY,
    Scene {
        name: "jitter 10 ms (sigma) in order",
        jitter_ms: 7,
        ..STEADY
    },
    Scene {
        name: "jitter 20 ms (sigma) in order",
        jitter_ms: 14,
        ..STEADY
    },
    Scene {
        name: "jitter 10 ms (sigma) reordering",
        jitter_ms: 7,
        reorder: true,
        ..STEADY
    },
    Scene {
        name: "RTT 50 -> 110 ms after 30 s",
        longer_ms: 60,
        ..STEADY
    },
    Scene {
        name: "1..40 Mbit/s each second",
        low: 1.0,
        high: 40.0,
        ..STEADY
    },
    Scene {
        name: "1..40 Mbit/s, other seed, RTT 20",
        low: 1.0,
        high: 40.0,
        rtt_ms: 20,
        seed: 7,
        ..STEADY
    },
    Scene {
        name: "1..40 Mbit/s, 5 % loss, RTT 100",
        low: 1.0,
        high: 40.0,
        rtt_ms: 100,
        loss: 0.05,
        seed: 3,
        ..STEADY
    },
    Scene {
        name: "0.5..8 Mbit/s, jitter 10 ms, 2 % loss",
        low: 0.5,
        high: 8.0,
        jitter_ms: 7,
        loss: 0.02,
        seed: 5,
        ..STEADY
    },
];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let kinds: &[CongestionControl] = if quick {
        &[CongestionControl::Bdp]
    } else {
        &CongestionControl::ALL
    };
    println!("changing links: utilisation % / mean / largest ms in the queue");
    for scene in &SCENES {
        print!("{:40}", scene.name);
        for &kind in kinds {
            let (share, mean, largest) = changing(kind, scene);
            print!(" {kind} {:5.1}/{mean:5.1}/{largest:5.0}", share * 100.0);
        }
        println!();
    }
    for &kind in kinds {
        println!("\n{kind}: utilisation % / mean ms in the queue / seconds to 80 %");
        println!(
            "  Mbit  RTT |     0 %              1 %              5 %             10 %             20 % loss"
        );
        for mbit in [2.0, 10.0, 50.0, 100.0] {
            for rtt in [20, 50, 100] {
                print!("{mbit:6} {rtt:4} |");
                for loss in [0.0, 0.01, 0.05, 0.1, 0.2] {
                    let seconds = if mbit > 20.0 { 8 } else { 20 };
                    let (share, queue, ramp) = measure(kind, mbit, rtt, loss, seconds);
                    print!(" {:5.1}/{queue:4.1}/{ramp:3.1}  ", share * 100.0);
                }
                println!();
            }
        }
    }
}
