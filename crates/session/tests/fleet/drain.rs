//! A hub is drained: its sites move to their spares, and nobody misses a packet.

use super::*;

/// How long routers take to follow a move.
const ROUTES: Duration = SECOND;

/// Numbers that hosts at both ends of the tunnel have heard, sorted.
fn numbers(world: &World) -> [Vec<u64>; 2] {
    heard(world).map(|heard| {
        let mut numbers: Vec<u64> = heard.into_iter().map(|d| d.1).collect();
        numbers.sort_unstable();
        numbers
    })
}

/// How many of the packets up to `end` nobody has heard, in both directions.
fn lost(world: &World, end: u64) -> u64 {
    let lost = numbers(world).map(|mut numbers| {
        numbers.dedup();
        end - numbers.len() as u64
    });
    lost.into_iter().sum()
}

/// A site with a spare that waits, whose routes follow slowly.
fn slowly_routed(seed: u64) -> World {
    let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
    world.set_route_delay(ROUTES);
    world
}

#[test]
fn a_site_leaves_a_hub_that_is_drained_and_loses_nothing() {
    let mut gaps = Vec::new();
    for seed in 0..30 {
        let mut world = slowly_routed(seed);
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        assert_eq!(world.drain_hub(HOME, true), Ok(1));
        let number = call(&mut world, number, 8 * SECOND);
        assert_eq!(moves(&world), ["spare"], "seed {seed}");
        gaps.push(longest_gaps(&world, since).into_iter().max().expect("two"));
        world.run(SECOND);
        assert_eq!(lost(&world, number), 0, "seed {seed}");
        assert_eq!(copies(&world), 0, "seed {seed}");
        assert_eq!(world.route_to(0), SPARE);
        let home = world.hub_at(HOME).expect("it runs");
        assert!(is_withdrawn(&world, HOME), "{:?}", home.events);
        assert_eq!(home.session.role().peers().count(), 0, "its tunnel is gone");
        assert_eq!(home.session.links(), 2, "it waits now");
        assert_eq!(world.transports_up(0), ["quic", "quic"]);
    }
    gaps.sort_unstable();
    println!("{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap <= ms(100)), "{gaps:?}");
}

#[test]
fn a_drained_hub_goes_on_until_routers_have_followed() {
    let mut world = slowly_routed(1);
    let number = call(&mut world, 0, SECOND);
    assert_eq!(world.drain_hub(HOME, true), Ok(1));
    let moved = |w: &World| !moves(w).is_empty();
    world.run_until(SECOND, moved);
    let at = world.now();
    call(&mut world, number, 8 * SECOND);
    let home = world.hub_at(HOME).expect("it runs");
    let withdrawn = home.events.last().expect("it has withdrawn");
    assert!(matches!(withdrawn.1, Event::Withdrawn { .. }));
    let after = withdrawn.0.since(at);
    assert!(
        (3 * SECOND..5 * SECOND).contains(&after),
        "withdrawn {after:?} after the move"
    );
}

#[test]
fn a_site_whose_spare_is_dead_stays_until_the_spare_is_back() {
    let mut world = slowly_routed(2);
    world.kill_spare();
    let number = call(&mut world, 0, SECOND);
    let since = world.now();
    assert_eq!(world.drain_hub(HOME, true), Ok(1));
    let number = call(&mut world, number, 20 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    assert_eq!(world.drain_hub(HOME, true), Ok(1), "one is left");
    world.start_spare();
    let number = call(&mut world, number, 12 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.drain_hub(HOME, true), Ok(0));
    let gaps = longest_gaps(&world, since);
    assert!(gaps.iter().all(|gap| *gap <= ms(100)), "{gaps:?}");
    world.run(SECOND);
    assert_eq!((lost(&world, number), copies(&world)), (0, 0));
}

#[test]
fn nobody_moves_to_a_hub_that_is_drained_while_another_one_serves() {
    let mut world = slowly_routed(3);
    assert_eq!(world.drain_hub(SPARE, true), Ok(0));
    assert_eq!(world.drain_hub(HOME, true), Ok(1));
    let number = call(&mut world, 0, 10 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    assert_eq!(world.drain_hub(SPARE, false), Ok(0));
    let number = call(&mut world, number, 40 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    // Back only once the home is no longer drained.
    assert_eq!(world.drain_hub(SPARE, true), Ok(1));
    let number = call(&mut world, number, 40 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.drain_hub(HOME, false), Ok(0));
    let number = call(&mut world, number, 40 * SECOND);
    assert_eq!(moves(&world), ["spare", "home"]);
    world.run(SECOND);
    assert_eq!((lost(&world, number), copies(&world)), (0, 0));
}

#[test]
fn a_drained_hub_still_is_the_spare_of_sites_that_have_no_other() {
    let mut world = slowly_routed(4);
    let number = call(&mut world, 0, SECOND);
    world.drain_hub(HOME, true).expect("it runs");
    let number = call(&mut world, number, 10 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    let since = world.now();
    world.set_route_delay(Duration::ZERO);
    world.kill_spare();
    call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), ["spare", "home"]);
    let gaps = longest_gaps(&world, since);
    assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
}

#[test]
fn a_site_whose_hub_is_drained_amid_an_outage_moves_after_it() {
    for seed in 0..10 {
        let mut world = slowly_routed(seed);
        let number = call(&mut world, 0, SECOND);
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, true);
        }
        world.run(SECOND);
        world.drain_hub(HOME, true).expect("it runs");
        world.run(2 * SECOND);
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, false);
        }
        let since = world.now();
        let number = call(&mut world, number, 8 * SECOND);
        assert_eq!(moves(&world), ["spare"], "seed {seed}");
        let gaps = longest_gaps(&world, since);
        assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
        world.run(SECOND);
        assert_eq!((lost(&world, number), copies(&world)), (0, 0));
    }
}

#[test]
fn a_hub_that_is_killed_amid_its_drain_is_left_as_any_other() {
    for seed in 0..20 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        world.drain_hub(HOME, true).expect("it runs");
        let number = call(&mut world, number, ms(seed * 15));
        world.kill_hub();
        call(&mut world, number, 5 * SECOND);
        assert_eq!(moves(&world), ["spare"], "seed {seed}");
        assert_eq!(world.route_to(0), SPARE);
        let gaps = longest_gaps(&world, since);
        assert!(
            gaps.iter().all(|gap| *gap <= SECOND),
            "seed {seed}: {gaps:?}"
        );
    }
}

#[test]
fn a_spare_that_is_killed_amid_a_move_leaves_the_site_with_its_hub() {
    for seed in 0..20 {
        let mut world = with_spare(seed, ms(10 + seed % 3 * 10));
        let number = call(&mut world, 0, SECOND + ms(seed * 7 % 50));
        let since = world.now();
        world.drain_hub(HOME, true).expect("it runs");
        let number = call(&mut world, number, ms(seed * 15));
        world.kill_spare();
        call(&mut world, number, 5 * SECOND);
        assert!(moves(&world).len() != 1, "seed {seed}: {:?}", moves(&world));
        assert_eq!(world.route_to(0), HOME, "seed {seed}");
        let gaps = longest_gaps(&world, since);
        assert!(
            gaps.iter().all(|gap| *gap <= SECOND),
            "seed {seed}: {gaps:?}"
        );
    }
}

#[test]
fn the_word_of_a_hub_that_is_no_longer_drained_is_forgotten() {
    let mut world = slowly_routed(5);
    world.kill_spare();
    world.run(SECOND);
    world.drain_hub(HOME, true).expect("it runs");
    world.run(5 * SECOND);
    world.drain_hub(HOME, false).expect("it runs");
    world.run(6 * SECOND);
    world.start_spare();
    let number = call(&mut world, 0, 15 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    world.run(SECOND);
    assert_eq!(lost(&world, number), 0);
    assert_eq!(links(&world, SPARE), 2, "it waits");
}

#[test]
fn uplinks_that_cost_move_along() {
    let mut world = World::new(&Spec {
        spare: true,
        uplinks: 3,
        ..Spec::default()
    });
    world.set_standby(0, 1, true);
    world.run(3 * SECOND);
    let number = call(&mut world, 0, SECOND);
    let since = world.now();
    world.drain_hub(HOME, true).expect("it runs");
    call(&mut world, number, SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.transports_up(0), ["quic", "quic", "quic"]);
    let gaps = longest_gaps(&world, since);
    assert!(gaps.iter().all(|gap| *gap <= ms(100)), "{gaps:?}");
}

#[test]
fn sites_are_told_to_leave_at_a_bounded_rate() {
    let mut world = World::new(&Spec {
        spare: true,
        sites: 60,
        ..Spec::default()
    });
    world.run(5 * SECOND);
    assert_eq!(world.drain_hub(HOME, true), Ok(60));
    let moved = |w: &World| {
        let has_moved = |event: &Event| matches!(event, Event::Moved { .. });
        let of = |site: usize| w.site(site).events.iter().any(|(_, e)| has_moved(e));
        (0..60).filter(|site| of(*site)).count()
    };
    world.run(ms(250));
    let early = moved(&world);
    assert!((5..=30).contains(&early), "{early} in the first 0.25 s");
    world.run(2 * SECOND);
    assert_eq!(moved(&world), 60);
    world.run(6 * SECOND);
    assert_eq!(world.drain_hub(HOME, true), Ok(0));
}
