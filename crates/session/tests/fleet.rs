//! A site with two hubs: it moves when its hub is gone, and only then.

use ropewalk_netem::{DirectionConfig, Selector};
use ropewalk_session::{Event, Statement};
use ropewalk_testkit::{HOME, SPARE, Spec, World};
use ropewalk_transport::Identity;
use ropewalk_types::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// Packets of a call leave in both directions so far apart.
const INTERVAL: Duration = Duration::from_millis(20);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A site with two uplinks of this delay in each direction, and a spare that waits.
fn with_spare(seed: u64, delay: Duration) -> World {
    let mut world = World::new(&Spec {
        seed,
        spare: true,
        link: DirectionConfig {
            delay,
            ..DirectionConfig::default()
        },
        ..Spec::default()
    });
    world.run_until(SECOND, |w| w.transports_up(0).len() == 2);
    world.run(SECOND);
    world
}

/// A call in both directions for some time; `first` is the number of its first packet. The number after its last.
fn call(world: &mut World, first: u64, duration: Duration) -> u64 {
    let end = world.now() + duration;
    let mut number = first;
    while world.now() < end {
        world.send_up(0, number, 1);
        world.send_down(0, number, 1);
        world.run(INTERVAL);
        number += 1;
    }
    number
}

/// When packets came to hosts: those of the site, and those behind the hubs.
fn heard(world: &World) -> [Vec<(Instant, u64)>; 2] {
    let hubs = [HOME, SPARE].map(|hub| world.hub_at(hub));
    let up = hubs.into_iter().flatten().flat_map(|hub| &hub.delivered);
    let mut up: Vec<_> = up.map(|d| (d.0, d.2)).collect();
    up.sort_unstable();
    let down = world.site(0).delivered.iter();
    [up, down.map(|d| (d.0, d.2)).collect()]
}

/// The longest time without a packet since then, in both directions.
fn longest_gaps(world: &World, since: Instant) -> [Duration; 2] {
    heard(world).map(|heard| {
        let times = heard.iter().map(|d| d.0).filter(|at| *at >= since);
        let times: Vec<_> = [since].into_iter().chain(times).collect();
        let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]));
        gaps.chain([world.now().since(*times.last().expect("one"))])
            .max()
            .expect("one")
    })
}

/// Names of the hubs that the site has moved to.
fn moves(world: &World) -> Vec<String> {
    let events = world.site(0).events.iter();
    events
        .filter_map(|(_, event)| {
            let Event::Moved { hub, .. } = event else {
                return None;
            };
            Some(hub.clone())
        })
        .collect()
}

#[test]
fn the_spare_waits_without_a_tunnel() {
    let world = with_spare(1, ms(10));
    let spare = world.hub_at(SPARE).expect("it runs");
    assert_eq!(spare.session.links(), 2, "a connection per uplink");
    assert_eq!(spare.session.role().peers().count(), 0, "no tunnel");
    assert!(spare.events.is_empty(), "{:?}", spare.events);
    assert_eq!(world.route_to(0), HOME);
}

#[test]
fn a_site_moves_within_a_second_of_the_death_of_its_hub() {
    let mut gaps = Vec::new();
    for seed in 0..40 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        world.kill_hub();
        call(&mut world, number, 3 * SECOND);
        assert_eq!(moves(&world), ["spare"], "seed {seed}");
        assert_eq!(world.route_to(0), SPARE);
        gaps.push(longest_gaps(&world, since).into_iter().max().expect("two"));
    }
    gaps.sort_unstable();
    println!("{gaps:?}");
    assert!(gaps[gaps.len() * 95 / 100] <= SECOND, "{gaps:?}");
}

/// How often the hosts got a packet beyond the first time.
fn copies(world: &World) -> usize {
    let twice = heard(world).map(|heard| {
        let mut numbers: Vec<_> = heard.iter().map(|d| d.1).collect();
        numbers.sort_unstable();
        let all = numbers.len();
        numbers.dedup();
        all - numbers.len()
    });
    twice.into_iter().sum()
}

#[test]
fn a_hub_that_was_unreachable_withdraws_when_it_hears_of_the_move() {
    for seed in 0..20 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        world.set_cut(HOME, true);
        let number = call(&mut world, number, 5 * SECOND);
        assert_eq!(moves(&world), ["spare"], "seed {seed}");
        let gaps = longest_gaps(&world, since);
        assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
        // The site tells it. Nobody else does here.
        world.set_cut(HOME, false);
        let back = world.now();
        let withdrawn = |w: &World| {
            let events = &w.hub_at(HOME).expect("it runs").events;
            let is =
                |event: &Event| matches!(event, Event::Withdrawn { site, .. } if site == "site0");
            events.iter().any(|(_, event)| is(event))
        };
        let number = call(&mut world, number, 10 * SECOND);
        assert!(withdrawn(&world), "seed {seed}");
        let home = world.hub_at(HOME).expect("it runs");
        assert_eq!(home.session.role().peers().count(), 0, "its tunnel is gone");
        assert_eq!(home.session.links(), 2, "it waits now");
        assert_eq!(moves(&world), ["spare"], "nobody moves back");
        let gaps = longest_gaps(&world, back);
        assert!(gaps.iter().all(|gap| *gap <= ms(120)), "{gaps:?}");
        assert!(copies(&world) <= 2, "seed {seed}: {}", copies(&world));
        // It is the spare now.
        world.kill_spare();
        let since = world.now();
        call(&mut world, number, 3 * SECOND);
        assert_eq!(moves(&world), ["spare", "home"], "seed {seed}");
        let gaps = longest_gaps(&world, since);
        assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
        assert_eq!(world.route_to(0), HOME);
    }
}

#[test]
fn a_hub_withdraws_when_another_hub_says_so_and_delivers_what_is_under_way() {
    let mut world = with_spare(1, ms(30));
    call(&mut world, 0, SECOND);
    // The site moves, and the home hears of it from elsewhere while packets to it are under way.
    world.set_cut(HOME, true);
    call(&mut world, 1_000, 2 * SECOND);
    let statement = world.statement(SPARE, 0).expect("it serves");
    assert!(
        statement.is_genuine() && statement.epoch == 2,
        "{statement:?}"
    );
    assert_eq!(world.tell_claim(HOME, statement), Ok(1));
    assert_eq!(world.tell_claim(HOME, statement), Ok(0), "no news");
    let home = world.hub_at(HOME).expect("it runs");
    assert!(matches!(
        home.events.last(),
        Some((_, Event::Withdrawn { .. }))
    ));
    assert_eq!(home.session.role().peers().count(), 1, "still read");
    world.run(3 * SECOND);
    let home = world.hub_at(HOME).expect("it runs");
    assert_eq!(home.session.role().peers().count(), 0);
}

#[test]
fn a_hub_refuses_statements_that_the_site_has_not_signed() {
    let mut world = with_spare(1, ms(10));
    let spare = world.hub_at(SPARE).expect("it runs").session.status();
    let spare = spare.public_key.parse().expect("a key");
    let site = world.identity(0).public_key();
    let stranger = Identity::from_seed([7; 32]).expect("a key");
    let mut forged = Statement::sign(&stranger, 9, &spare);
    let refused = world.tell_claim(HOME, forged).expect_err("nobody's key");
    assert!(refused.contains("no site has the key"), "{refused}");
    forged.site = site;
    let refused = world
        .tell_claim(HOME, forged)
        .expect_err("a stranger signed");
    assert!(refused.contains("not signed by the site"), "{refused}");
    // A genuine one for another epoch or hub.
    let genuine = Statement::sign(world.identity(0), 2, &spare);
    for (epoch, hub) in [(3, spare), (2, site)] {
        let changed = Statement {
            epoch,
            hub,
            ..genuine
        };
        assert!(world.tell_claim(HOME, changed).is_err());
    }
    world.run(SECOND);
    assert_eq!(world.route_to(0), HOME);
    assert_eq!(moves(&world), [""; 0]);
}

#[test]
fn a_site_that_starts_again_with_an_older_epoch_is_told_the_newer_one_and_follows_it() {
    let mut world = with_spare(3, ms(10));
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    let number = call(&mut world, number, 2 * SECOND);
    assert_eq!(world.route_to(0), SPARE);
    world.kill_site(0);
    // The home runs again and has forgotten everything: it serves the first epoch until the site learns more.
    world.start_hub();
    world.start_site(0);
    world.run(2 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    let epoch = world.statement(SPARE, 0).expect("it serves").epoch;
    assert_eq!(epoch, 2);
    let since = world.now();
    call(&mut world, number, SECOND);
    let gaps = longest_gaps(&world, since);
    assert!(gaps.iter().all(|gap| *gap <= ms(120)), "{gaps:?}");
    let home = world.hub_at(HOME).expect("it runs");
    assert!(matches!(
        home.events.last(),
        Some((_, Event::Withdrawn { .. }))
    ));
    // A home that knows refuses.
    world.kill_site(0);
    world.run(3 * SECOND);
    let served = |w: &World| {
        let events = &w.hub_at(HOME).expect("it runs").events;
        let served = |(_, event): &&(Instant, Event)| matches!(event, Event::Served { .. });
        events.iter().filter(served).count()
    };
    let before = served(&world);
    world.start_site(0);
    world.run(2 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(served(&world), before, "the home has not served it");
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
}

#[test]
fn a_site_whose_uplinks_are_all_dead_claims_nothing() {
    for seed in 0..30 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, true);
        }
        let number = call(&mut world, number, 3 * SECOND);
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, false);
        }
        let since = world.now();
        call(&mut world, number, 3 * SECOND);
        assert_eq!(moves(&world), [""; 0], "seed {seed}");
        assert_eq!(world.route_to(0), HOME);
        let spare = world.hub_at(SPARE).expect("it runs");
        assert!(spare.events.is_empty(), "seed {seed}: {:?}", spare.events);
        let gaps = longest_gaps(&world, since);
        assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
    }
}

#[test]
fn a_site_with_one_uplink_that_works_claims_nothing() {
    for seed in 0..20 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let uplink = usize::from(seed % 2 == 0);
        world.set_dead(0, uplink, Selector::Both, true);
        call(&mut world, number, 5 * SECOND);
        assert_eq!(moves(&world), [""; 0], "seed {seed}");
        let spare = world.hub_at(SPARE).expect("it runs");
        assert!(spare.events.is_empty(), "seed {seed}: {:?}", spare.events);
    }
}

#[test]
fn a_site_without_traffic_moves_too() {
    for seed in 0..10 {
        let mut world = with_spare(seed, ms(20));
        world.run(20 * SECOND + ms(seed * 310));
        world.kill_hub();
        let took = world.run_until(20 * SECOND, |w| w.route_to(0) == SPARE);
        assert!(took < 4 * SECOND, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_site_that_only_receives_moves_within_a_second() {
    let mut gaps = Vec::new();
    for seed in 0..20 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let mut number = 0;
        let mut receive = |world: &mut World, duration| {
            let end = world.now() + duration;
            while world.now() < end {
                world.send_down(0, number, 1);
                world.run(INTERVAL);
                number += 1;
            }
        };
        receive(&mut world, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        world.kill_hub();
        receive(&mut world, 4 * SECOND);
        gaps.push(longest_gaps(&world, since)[1]);
    }
    gaps.sort_unstable();
    println!("{gaps:?}");
    assert!(gaps[gaps.len() * 95 / 100] <= SECOND, "{gaps:?}");
}

#[test]
fn a_connection_that_waits_is_cheap_and_stays() {
    let mut world = with_spare(1, ms(10));
    let links = |w: &World| w.hub_at(SPARE).expect("it runs").session.links();
    world.run(30 * SECOND);
    let (mut bytes, start) = (0, world.now());
    world.keep_taps();
    world.run(200 * SECOND);
    let spare = std::net::IpAddr::from([203, 0, 113, 2]);
    for tap in world
        .take_taps()
        .filter(|tap| tap.leaves && tap.uplink == 0)
    {
        if [tap.packet.from.ip(), tap.packet.to.ip()].contains(&spare) {
            bytes += tap.packet.ip_bytes();
        }
    }
    assert_eq!(links(&world), 2);
    let rate = bytes as f64 * 8.0 / world.now().since(start).as_secs_f64();
    println!("{rate} bit/s");
    assert!(
        (50.0..300.0).contains(&rate),
        "{rate} bit/s in both directions"
    );
}

#[test]
fn uplinks_that_cost_or_stand_by_keep_no_connection_to_the_spare() {
    let mut world = World::new(&Spec {
        spare: true,
        uplinks: 3,
        ..Spec::default()
    });
    world.set_standby(0, 1, true);
    world.run(3 * SECOND);
    let links = |w: &World| w.hub_at(SPARE).expect("it runs").session.links();
    assert_eq!(links(&world), 2);
    // They take part in a move.
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    call(&mut world, number, 5 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.transports_up(0), ["quic", "quic", "quic"]);
}
