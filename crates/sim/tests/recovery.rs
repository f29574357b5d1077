//! How soon traffic goes on after what happens to gateways and networks: real sessions in
//! virtual time.

use ropewalk_netem::{Selector, Side};
use ropewalk_testkit::{Spec, World};
use ropewalk_types::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// Packets leave in both directions of every site so far apart.
const INTERVAL: Duration = Duration::from_millis(10);
/// Numbers per run of [`talk`], so that those of different runs differ.
const NUMBERS: u64 = 1_000_000;

/// Sends in both directions of the first site while `duration` passes; numbers start at
/// `run` × [`NUMBERS`].
fn talk(world: &mut World, run: u64, duration: Duration) {
    let end = world.now() + duration;
    let mut number = run * NUMBERS;
    while world.now() < end {
        world.send_up(0, number, 1);
        world.send_down(0, number, 1);
        world.run(INTERVAL);
        number += 1;
    }
}

/// When the first packet of a run arrived, after `since`: at the hub and at the site.
fn first_arrivals(world: &World, run: u64, since: Instant) -> [Duration; 2] {
    let first = |delivered: &[(Instant, std::net::IpAddr, u64)]| {
        let news = delivered.iter().find(|d| d.2 >= run * NUMBERS);
        news.expect("traffic goes on").0.since(since)
    };
    [
        first(&world.hub().delivered),
        first(&world.site(0).delivered),
    ]
}

/// A site with so many uplinks that has talked for a second.
fn talking(uplinks: usize) -> World {
    let mut world = World::new(&Spec {
        uplinks,
        ..Spec::default()
    });
    world.run_until(SECOND, |w| w.transports_up(0).len() == uplinks);
    talk(&mut world, 0, SECOND);
    world
}

fn assert_within(recovered: [Duration; 2], bound: Duration) {
    assert!(recovered.iter().all(|took| *took < bound), "{recovered:?}");
}

#[test]
fn five_hundred_sites_carry_traffic_within_a_second_of_a_restart_of_their_hub() {
    let run = |sites: usize| {
        let mut world = World::new(&Spec {
            sites,
            uplinks: 1,
            ..Spec::default()
        });
        world.run(3 * SECOND);
        world.kill_hub();
        // Every site notices, since it has something to send.
        for round in 0..4 {
            (0..sites).for_each(|site| world.send_up(site, round, 1));
            world.run(SECOND / 2);
        }
        let restarted = world.now();
        world.start_hub();
        for round in 0..10 {
            (0..sites).for_each(|site| world.send_up(site, NUMBERS + round, 1));
            world.run(SECOND / 10);
        }
        let mut first = std::collections::BTreeMap::new();
        for &(at, from, number) in &world.hub().delivered {
            if number >= NUMBERS {
                first.entry(from).or_insert_with(|| at.since(restarted));
            }
        }
        first
    };
    let first = run(500);
    assert_eq!(first.len(), 500, "every site is heard again");
    let last = first.values().max().copied().unwrap_or_default();
    assert!(last < SECOND, "the last one after {last:?}");
    assert_eq!(run(20), run(20), "the same seed gives the same run");
}

#[test]
fn traffic_goes_on_over_tls_soon_after_udp_is_blocked() {
    let mut world = talking(1);
    let blocked = world.now();
    world.block_udp(0, 0, true);
    talk(&mut world, 1, 4 * SECOND);
    assert_eq!(world.transports_up(0), ["tls"]);
    assert_within(first_arrivals(&world, 1, blocked), 2 * SECOND);
}

#[test]
fn traffic_goes_on_within_a_second_of_the_end_of_a_short_outage_in_one_direction() {
    for side in Side::ALL {
        for outage in [1, 3, 10] {
            let mut world = talking(1);
            world.set_dead(0, 0, Selector::One(side), true);
            talk(&mut world, 1, outage * SECOND);
            let over = world.now();
            world.set_dead(0, 0, Selector::One(side), false);
            talk(&mut world, 2, 3 * SECOND);
            let took = first_arrivals(&world, 2, over);
            assert!(
                took.iter().all(|took| *took < SECOND),
                "{side:?} {outage} s: {took:?}"
            );
        }
    }
}

#[test]
fn an_interface_that_comes_back_carries_traffic_within_half_a_second() {
    let mut world = talking(1);
    world.set_present(0, 0, false);
    talk(&mut world, 1, 2 * SECOND);
    let back = world.now();
    world.set_present(0, 0, true);
    talk(&mut world, 2, 2 * SECOND);
    assert_within(first_arrivals(&world, 2, back), SECOND / 2);
}

#[test]
fn a_nat_that_forgets_its_mappings_interrupts_traffic_for_less_than_100_ms() {
    let mut world = talking(1);
    let rebound = world.now();
    world.rebind(0, 0);
    talk(&mut world, 1, SECOND);
    assert_eq!(world.transports_up(0), ["quic"]);
    assert!(world.paths(0)[0].last_error.is_none());
    assert_within(first_arrivals(&world, 1, rebound), SECOND / 10);
}
