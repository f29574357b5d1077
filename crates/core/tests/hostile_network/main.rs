//! Two tunnels, and between them a network that loses, repeats, delays and disorders packets at
//! random while paths come and go.
//!
//! The network carries datagrams of connections. A path that goes and comes again is another
//! connection, as in a gateway. Packets under way on the old one arrive as stragglers.

mod hostile;
mod ledger;

use hostile::{Step, Weather, World};
use ledger::{FLOWS, LENGTH_MIN};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use ropewalk_core::reorder::SEEN_WINDOW;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_netem::Side;
use ropewalk_types::Duration;

/// Most packets of a run in which they may come however late.
const PACKETS_MAX: usize = 1_000;
const _: () = assert!(PACKETS_MAX < SEEN_WINDOW as usize);
/// Most datagrams of both tunnels in a minute in which nothing enters: a few for each probe and
/// what answers it.
const IDLE_DATAGRAMS_MAX: usize = 200;

fn any_side() -> impl Strategy<Value = Side> {
    prop::sample::select(&Side::ALL[..])
}

fn any_weather() -> impl Strategy<Value = Weather> {
    let percent = || prop_oneof![3 => Just(0u8), 3 => 1u8..20, 1 => 20u8..=100];
    let loss = prop_oneof![3 => Just(0u8), 5 => 1u8..30, 1 => 30u8..100, 1 => Just(100u8)];
    let jitter = prop_oneof![2 => Just(0u16), 2 => 1u16..30, 1 => 30u16..600];
    (
        (loss, percent(), percent(), percent()),
        (
            1u16..300,
            jitter,
            2_000u32..200_000,
            0u16..1_000,
            300u16..1_500,
        ),
    )
        .prop_map(
            |((loss, copies, stragglers, marks), (delay, jitter, window, rate, datagram))| {
                Weather {
                    loss,
                    copies,
                    stragglers,
                    delay,
                    jitter,
                    window,
                    rate,
                    datagram,
                    marks,
                }
            },
        )
}

fn any_kind() -> impl Strategy<Value = SchedulerKind> {
    prop::sample::select(&SchedulerKind::ALL[..])
}

fn any_step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![
        2 => Just(LENGTH_MIN),
        4 => Just(1_000u16),
        2 => LENGTH_MIN..1_500,
        1 => 1_500u16..20_000,
    ];
    let enter = (any_side(), 0..FLOWS, length, 1u8..40).prop_map(|(end, flow, length, packets)| {
        Step::Enter {
            end,
            flow,
            length,
            packets,
        }
    });
    let path = || (any_side(), 0usize..4);
    prop_oneof![
        12 => enter,
        8 => prop_oneof![4 => 0u16..30, 2 => 31u16..300, 1 => 300u16..3_000].prop_map(Step::Wait),
        1 => (path(), any_weather())
            .prop_map(|((end, path), weather)| Step::Change { end, path, weather }),
        1 => path().prop_map(|(end, path)| Step::Remove { end, path }),
        2 => path().prop_map(|(end, path)| Step::Renew { end, path }),
        1 => (any_side(), any_kind()).prop_map(|(end, kind)| Step::Switch { end, kind }),
        1 => (path(), any::<bool>())
            .prop_map(|((end, path), standby)| Step::Mark { end, path, standby }),
    ]
}

/// Fewer packets than the egress recognises copies among, so that these may come however late.
fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any_step(), 0..80).prop_map(|mut steps| {
        let mut packets = 0;
        steps.retain(|step| {
            let Step::Enter { packets: more, .. } = step else {
                return true;
            };
            packets += usize::from(*more);
            packets <= PACKETS_MAX
        });
        steps
    })
}

/// Many packets, so slowly that what comes late does so within the numbers that the egress remembers.
fn any_long_run() -> impl Strategy<Value = Vec<Step>> {
    let step = (any_step(), 100u16..250).prop_map(|(step, wait)| [step, Step::Wait(wait)]);
    prop::collection::vec(step, 100..200).prop_map(|steps| {
        let hasty = |step: &Step| !matches!(step, Step::Change { .. });
        steps.into_iter().flatten().filter(hasty).collect()
    })
}

/// Weather in which nothing comes later than its path's usual delay.
fn any_steady_weather() -> impl Strategy<Value = Weather> {
    any_weather().prop_map(|weather| Weather {
        stragglers: 0,
        jitter: weather.jitter.min(60),
        delay: weather.delay.min(100),
        ..weather
    })
}

/// Does the steps, and then lets the network recover: in the end nothing waits, new packets get
/// through, and the tunnels are at rest.
fn play(
    seed: u64,
    kinds: (SchedulerKind, SchedulerKind),
    weather: &[Weather],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut world = World::new(seed, [kinds.0, kinds.1], weather);
    for step in steps {
        world.step(step);
    }
    world.heal();
    world.run(Duration::from_secs(10));
    for end in Side::ALL {
        let kept = world.tunnel(end).footprint();
        let waiting = (kept.queued, kept.retransmit, kept.held, kept.partial);
        prop_assert_eq!(waiting, (0, 0, 0, 0), "{:?}", kept);
        prop_assert_eq!(world.tunnel(end).queue_bytes(), 0);
    }
    let number = world.entered();
    for flow in 0..FLOWS {
        for end in Side::ALL {
            world.enter(end, flow, 700, 3);
        }
    }
    world.run(Duration::from_secs(3));
    prop_assert_eq!(world.left_since(number), world.entered() - number);
    let sent = world.datagrams();
    world.run(Duration::from_secs(60));
    let idle = world.datagrams() - sent;
    prop_assert!(idle < IDLE_DATAGRAMS_MAX, "{} in an idle minute", idle);
    Ok(())
}

/// A fixed seed: the same runs every time.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(4),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn no_packet_is_altered_invented_or_delivered_twice_and_the_tunnel_recovers(
        seed in any::<u64>(),
        kinds in (any_kind(), any_kind()),
        weather in prop::collection::vec(any_weather(), 1..5),
        steps in any_steps(),
    ) {
        play(seed, kinds, &weather, &steps)?;
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn neither_in_a_long_run_through_steadier_weather(
        seed in any::<u64>(),
        kinds in (any_kind(), any_kind()),
        weather in prop::collection::vec(any_steady_weather(), 1..5),
        steps in any_long_run(),
    ) {
        play(seed, kinds, &weather, &steps)?;
    }
}
