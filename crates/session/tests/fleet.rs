//! A site with two hubs: it moves when its hub is gone, and only then.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ropewalk_netem::{DirectionConfig, Selector};
use ropewalk_session::{Command, Event, KeyEvent, KeyStep, Statement};
use ropewalk_testkit::{HOME, SPARE, Spec, Tap, World};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::Versions;

#[path = "fleet/drain.rs"]
mod drain;
#[path = "fleet/silence.rs"]
mod silence;

const SECOND: Duration = Duration::from_secs(1);
/// A hub beside [`HOME`] and [`SPARE`].
const THIRD: usize = 2;
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
    let hubs = [HOME, SPARE, THIRD].map(|hub| world.hub_at(hub));
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

/// A site with two uplinks that may be at any of three hubs.
fn with_two_spares(seed: u64, delay: Duration) -> World {
    let mut world = World::new(&Spec {
        seed,
        hubs_of: vec![vec![HOME, SPARE, THIRD]],
        link: DirectionConfig {
            delay,
            ..DirectionConfig::default()
        },
        ..Spec::default()
    });
    world.run_until(5 * SECOND, |w| w.transports_up(0).len() == 2);
    world.run(2 * SECOND);
    world
}

#[test]
fn a_site_outlives_one_hub_after_the_other_and_comes_back_to_one_that_has_returned() {
    let mut world = with_two_spares(1, ms(10));
    assert_eq!(links(&world, SPARE), 2);
    assert_eq!(links(&world, THIRD), 0, "one spare waits at a time");
    let mut number = 0;
    let mut at = HOME;
    for (next, name) in [(SPARE, "spare"), (THIRD, "hub2"), (HOME, "home")] {
        let since = world.now();
        world.kill_hub_at(at);
        number = call(&mut world, number, 3 * SECOND);
        assert_eq!(moves(&world).last().map(String::as_str), Some(name));
        let gap = longest_gaps(&world, since).into_iter().max().expect("two");
        assert!(gap <= SECOND, "{gap:?} on the way to {name}");
        // The home starts again once the third hub serves, and is found after the spare, which is dead.
        if next == THIRD {
            world.start_hub_at(HOME);
        }
        number = call(&mut world, number, 20 * SECOND);
        at = next;
    }
    assert_eq!(moves(&world).len(), 3);
}

#[test]
fn a_site_whose_hub_and_spare_die_together_moves_to_the_third() {
    for seed in 0..8 {
        let mut world = with_two_spares(seed, ms(10));
        let number = call(&mut world, 0, SECOND);
        let since = world.now();
        world.kill_hub();
        world.kill_spare();
        call(&mut world, number, 10 * SECOND);
        assert_eq!(moves(&world), ["hub2"], "seed {seed}");
        let gap = longest_gaps(&world, since).into_iter().max().expect("two");
        assert!(
            gap <= 6 * SECOND,
            "{gap:?}: 4 s until the spare is given up"
        );
        assert_eq!(world.route_to(0), THIRD);
    }
}

#[test]
fn the_third_hub_is_found_by_uplinks_that_are_out_of_step() {
    for seed in 0..8 {
        let mut world = with_two_spares(seed, ms(10));
        // One uplink has no connectivity, and its attempts at the spare have another rhythm.
        world.set_dead(0, 1, Selector::Both, true);
        world.run(30 * SECOND + ms(seed * 550));
        world.kill_hub();
        world.kill_spare();
        call(&mut world, 0, 8 * SECOND);
        assert_eq!(moves(&world), ["hub2"], "seed {seed}");
    }
}

/// A site that has lost its hub amid a call, and whose spare dies so long after that.
fn spare_dies(after: Duration) -> World {
    let mut world = with_two_spares(5, ms(10));
    call(&mut world, 0, SECOND);
    world.kill_hub();
    world.run(after);
    world.kill_spare();
    world
}

#[test]
fn a_spare_that_dies_while_it_is_claimed_is_given_up_for_the_third_hub() {
    let never = spare_dies(Duration::ZERO).now();
    let mut moved = with_two_spares(5, ms(10));
    call(&mut moved, 0, SECOND);
    moved.kill_hub();
    while moves(&moved).is_empty() {
        moved.run(ms(1));
    }
    // The claim reaches the spare 10 ms after it was made, and the answer takes as long.
    let moved = moved.now().since(never);
    for before in [3, 8, 12, 18, 25, 40] {
        let mut world = spare_dies(moved.saturating_sub(ms(before)));
        world.run(20 * SECOND);
        let last = moves(&world).pop();
        assert_eq!(last.as_deref(), Some("hub2"), "{before} ms before the move");
        assert_eq!(world.transports_up(0).len(), 2, "{before} ms");
    }
}

#[test]
fn an_uplink_that_does_not_reach_the_spare_is_no_reason_to_leave_the_spare() {
    let mut world = with_two_spares(7, ms(200));
    world.set_dead(0, 1, Selector::Both, true);
    for _ in 0..120 {
        world.run(SECOND);
        assert_eq!(links(&world, THIRD), 0);
    }
    assert_eq!(links(&world, SPARE), 1);
}

#[test]
fn two_spares_without_a_common_version_are_left_alone_for_a_minute() {
    let mut world = with_two_spares(6, ms(10));
    let newer = Versions::OURS.newest() + 1;
    for hub in [SPARE, THIRD] {
        world.kill_hub_at(hub);
        world.set_hub_versions(hub, Versions::new(newer, newer).expect("a range"));
        world.start_hub_at(hub);
    }
    world.run(40 * SECOND);
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    call(&mut world, number, 20 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    for hub in [SPARE, THIRD] {
        let refused = drops(&world, hub, "versions_refused");
        assert!((1..=2).contains(&refused), "{refused} at {hub}");
    }
}

#[test]
fn a_spare_that_goes_is_replaced_and_its_return_changes_nothing() {
    let mut world = with_two_spares(3, ms(10));
    world.kill_spare();
    // An idle spare is asked every 25 s, and is given up 15 s later.
    world.run(50 * SECOND);
    assert_eq!(links(&world, THIRD), 2);
    world.start_spare();
    world.run(60 * SECOND);
    assert_eq!(links(&world, THIRD), 2);
    assert_eq!(links(&world, SPARE), 0);
    assert!(moves(&world).is_empty());
}

/// Seconds for which no spare has answered, as the site says.
fn no_spare(world: &World) -> Option<f64> {
    world.site(0).session.status().tunnels[0].no_spare_s
}

#[test]
fn a_site_says_for_how_long_no_spare_has_answered() {
    let mut world = with_two_spares(9, ms(10));
    world.kill_spare();
    world.run(60 * SECOND);
    assert_eq!(no_spare(&world), None, "the third hub answers");
    world.kill_hub_at(THIRD);
    // The spare is asked every 25 s.
    world.run(120 * SECOND);
    let told = no_spare(&world).expect("none answers");
    assert!((90.0..=120.0).contains(&told), "{told}");
    // In an outage of all uplinks nobody is to answer, and what was before is forgotten.
    for dead in [true, false] {
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, dead);
        }
        world.run(20 * SECOND);
        let told = no_spare(&world).unwrap_or_default();
        assert!(if dead { told == 0.0 } else { told < 20.0 }, "{told}");
    }
    world.start_spare();
    world.run(30 * SECOND);
    assert_eq!(no_spare(&world), None);
    assert!(moves(&world).is_empty());
}

#[test]
fn a_site_left_with_an_uplink_that_stands_by_misses_no_spare() {
    let mut world = with_two_spares(10, ms(10));
    world.set_standby(0, 1, true);
    world.set_dead(0, 0, Selector::Both, true);
    for _ in 0..120 {
        world.run(SECOND);
        let told = no_spare(&world).unwrap_or_default();
        assert!(told < 5.0, "over this uplink no spare is asked: {told}");
    }
}

#[test]
fn an_outage_of_all_uplinks_leaves_a_site_with_its_hub_and_with_a_spare() {
    let mut world = with_two_spares(4, ms(10));
    for dead in [true, false] {
        for uplink in 0..2 {
            world.set_dead(0, uplink, Selector::Both, dead);
        }
        world.run(30 * SECOND);
    }
    assert!(moves(&world).is_empty());
    assert_eq!(world.transports_up(0).len(), 2);
    // Hubs forget connections of which they have heard no end.
    world.run(120 * SECOND);
    let waits = [SPARE, THIRD].map(|hub| links(&world, hub));
    assert_eq!(waits, [2, 0], "the outage was no reason to leave the spare");
}

#[test]
fn a_hub_that_dies_just_after_the_move_to_it_is_left_for_the_third_at_once() {
    let mut world = with_two_spares(8, ms(10));
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    let number = call(&mut world, number, SECOND);
    assert_eq!(moves(&world), ["spare"]);
    let since = world.now();
    world.kill_spare();
    call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), ["spare", "hub2"]);
    // The connection to the third hub has to be made first.
    let gap = longest_gaps(&world, since).into_iter().max().expect("two");
    assert!(gap <= SECOND, "{gap:?}");
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
    let spare = IpAddr::from([203, 0, 113, 2]);
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

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32]).expect("every seed is a key")
}

fn hub_key(world: &World, hub: usize) -> PublicKey {
    let hub = world.hub_at(hub).expect("it runs").session.status();
    hub.public_key.parse().expect("a key")
}

fn drops(world: &World, hub: usize, name: &str) -> u64 {
    world.hub_at(hub).expect("it runs").session.status().drops[name]
}

fn links(world: &World, hub: usize) -> usize {
    world.hub_at(hub).expect("it runs").session.links()
}

fn is_withdrawn(world: &World, hub: usize) -> bool {
    let events = &world.hub_at(hub).expect("it runs").events;
    matches!(events.last(), Some((_, Event::Withdrawn { .. })))
}

/// A command of the control side of the site.
fn tell_site(world: &mut World, step: KeyStep) {
    let (now, command) = (world.now(), Command::Key(step));
    let told = world.site_mut(0).session.handle_command(now, command);
    told.expect("the site takes it");
    world.touch_site(0);
}

/// The site changes its key at its home, whose control side records that.
fn rotate(world: &mut World, next: &Identity) {
    use_next(world, next);
    world.set_identity(0, next.clone());
    world.set_key(0, next.public_key());
    world.directory().set_next_keys([]);
    world.run(SECOND);
}

/// The site has connected to its home with its next key, and nobody has recorded that yet.
fn use_next(world: &mut World, next: &Identity) {
    let old = world.identity(0).public_key();
    let key = next.public_key();
    tell_site(world, KeyStep::Next(next.clone()));
    let asked = |w: &World| {
        let events = &w.hub_at(HOME).expect("it runs").events;
        let asks = |event: &Event| matches!(event, Event::Enrol { key: of, .. } if *of == key);
        events.iter().any(|(_, event)| asks(event))
    };
    world.run_until(SECOND, asked);
    world.directory().set_next_keys([(key, old)]);
    let enrolled = Command::Enrolled {
        invitation: old,
        key,
        refused: None,
        owner: None,
    };
    let told = world.command_hub(HOME, enrolled);
    told.expect("the hub takes it");
    let used = |w: &World| {
        let events = &w.hub_at(HOME).expect("it runs").events;
        let used =
            |event: &Event| matches!(event, Event::Key(KeyEvent::Used(used)) if *used == key);
        events.iter().any(|(_, event)| used(event))
    };
    world.run_until(2 * SECOND, used);
    assert!(used(world), "the site has connected with its next key");
}

#[test]
fn a_new_machine_of_the_name_of_a_site_that_has_moved_begins_anew() {
    let mut world = with_spare(5, ms(10));
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    let number = call(&mut world, number, 2 * SECOND);
    world.start_hub();
    world.run(6 * SECOND);
    assert_eq!(world.route_to(0), SPARE, "the home knows of the move");
    let former = world.statement(SPARE, 0).expect("it serves");
    world.kill_site(0);
    world.set_identity(0, identity(9));
    world.set_key(0, identity(9).public_key());
    world.start_site(0);
    world.run(2 * SECOND);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
    assert_eq!(moves(&world), [""; 0], "it is not sent away");
    assert_eq!(world.route_to(0), HOME);
    // What the former machine has signed counts no more.
    let refused = world.tell_claim(HOME, former).expect_err("a former key");
    assert!(refused.contains("no site has the key"), "{refused}");
    call(&mut world, number, SECOND);
    assert_eq!(world.route_to(0), HOME);
    assert_eq!(
        world.statement(HOME, 0).map(|said| (said.epoch, said.site)),
        Some((1, identity(9).public_key()))
    );
}

#[test]
fn a_site_whose_key_has_changed_is_served_by_a_hub_that_has_forgotten_it() {
    let mut world = with_spare(6, ms(10));
    rotate(&mut world, &identity(9));
    let said = world.statement(HOME, 0).expect("it serves");
    assert_eq!(said.site, identity(9).public_key(), "by the new key");
    assert!(said.is_genuine(), "{said:?}");
    world.kill_spare();
    world.kill_hub();
    world.start_hub();
    world.run(5 * SECOND);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
    assert_eq!(drops(&world, HOME, "claims_forged"), 0);
}

#[test]
fn a_site_whose_key_has_changed_moves_with_the_new_key() {
    let mut world = with_spare(7, ms(10));
    rotate(&mut world, &identity(9));
    world.run(6 * SECOND);
    assert_eq!(links(&world, SPARE), 2, "it waits with the new key");
    let number = call(&mut world, 0, SECOND);
    let since = world.now();
    world.kill_hub();
    call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    let gaps = longest_gaps(&world, since);
    assert!(gaps.iter().all(|gap| *gap <= SECOND), "{gaps:?}");
    assert_eq!(drops(&world, SPARE, "claims_forged"), 0);
}

#[test]
fn a_claim_of_the_next_key_of_a_site_counts_and_one_of_its_former_key_does_not() {
    let mut world = with_spare(8, ms(10));
    let (old, next) = (world.identity(0).clone(), identity(9));
    let spare = hub_key(&world, SPARE);
    let pair = (next.public_key(), old.public_key());
    world.directory().set_next_keys([pair]);
    let statement = Statement::sign(&next, 2, &spare);
    assert_eq!(world.tell_claim(HOME, statement), Ok(1));
    assert!(is_withdrawn(&world, HOME), "it serves the site no more");
    world.kill_site(0);
    world.set_key(0, next.public_key());
    world.directory().set_next_keys([]);
    let replayed = Statement::sign(&old, 3, &hub_key(&world, HOME));
    assert!(world.tell_claim(HOME, replayed).is_err());
    let older = Statement::sign(&next, 1, &hub_key(&world, HOME));
    assert_eq!(world.tell_claim(HOME, older), Ok(0), "it is known still");
}

#[test]
fn a_hub_that_changes_its_key_goes_on_serving_sites_with_a_spare() {
    let mut world = with_spare(9, ms(10));
    let next = identity(8);
    let key = next.public_key();
    let step = Command::Key(KeyStep::Next(next));
    world.command_hub(HOME, step).expect("it takes it");
    let next = Some(key);
    let of_hub = KeyStep::OfHub { next, former: None };
    tell_site(&mut world, of_hub);
    world.run(SECOND);
    let step = Command::Key(KeyStep::Switch);
    world.command_hub(HOME, step).expect("it takes it");
    // Connections of before live on. New ones are made where an uplink has failed.
    let number = call(&mut world, 0, SECOND);
    world.set_dead(0, 0, Selector::Both, true);
    let number = call(&mut world, number, 3 * SECOND);
    world.set_dead(0, 0, Selector::Both, false);
    let number = call(&mut world, number, 5 * SECOND);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
    let said = world.statement(HOME, 0).expect("it serves");
    assert_eq!((said.epoch, said.hub), (2, key));
    assert_eq!(moves(&world), [""; 0]);
    world.set_dead(0, 1, Selector::Both, true);
    call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), [""; 0], "the new connection carries it");
}

#[test]
fn a_site_without_a_newer_epoch_stays_with_its_hub_and_says_so() {
    let mut world = with_spare(10, ms(10));
    let spare = hub_key(&world, SPARE);
    let last = Statement::sign(world.identity(0), u64::MAX - 1, &spare);
    assert_eq!(world.tell_claim(HOME, last), Ok(1));
    world.run(2 * SECOND);
    assert_eq!(moves(&world), ["spare"], "it follows what it has signed");
    let number = call(&mut world, 0, SECOND);
    world.kill_spare();
    let number = call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), ["spare"], "no epoch is left for a move");
    let exhausted = world.site(0).session.status().drops["epochs_exhausted"];
    assert!(exhausted > 0);
    world.start_spare();
    call(&mut world, number, 3 * SECOND);
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
    // The last epoch of all is the site's word, too.
    let home = hub_key(&world, HOME);
    let last = Statement::sign(world.identity(0), u64::MAX, &home);
    assert_eq!(world.tell_claim(SPARE, last), Ok(1));
    world.run(2 * SECOND);
    assert_eq!(moves(&world), ["spare", "home"]);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
}

/// The fewest connections that the spare has at one time in the next 2 s. An attempt that it refuses counts until the
/// refusal has been acknowledged.
fn fewest_links(world: &mut World) -> usize {
    let count = |_| {
        world.run(ms(20));
        links(world, SPARE)
    };
    (0..100).map(count).min().unwrap_or_default()
}

/// Shuts the site out. Over which uplinks the spare says something to it in that moment: without a goodbye the site would
/// ask there a round trip later, because its home has ended, and be refused then.
fn goodbyes(world: &mut World) -> BTreeSet<usize> {
    world.keep_taps();
    world.set_enabled(0, false);
    let by_spare = |tap: &Tap| tap.leaves && tap.packet.from.ip() == IpAddr::from([203, 0, 113, 2]);
    let taps = world.take_taps().filter(by_spare);
    taps.map(|tap| tap.uplink).collect()
}

#[test]
fn connections_that_wait_end_with_their_key() {
    let mut world = with_spare(11, ms(10));
    assert_eq!(links(&world, SPARE), 2);
    assert_eq!(goodbyes(&mut world), [0, 1].into(), "at once");
    assert_eq!(fewest_links(&mut world), 0);
    world.run(10 * SECOND);
    // It asks again, and is refused again.
    assert_eq!(fewest_links(&mut world), 0);
    world.set_enabled(0, true);
    world.run(10 * SECOND);
    assert_eq!(links(&world, SPARE), 2);
    // A site with another key is another machine.
    world.set_key(0, identity(9).public_key());
    assert_eq!(fewest_links(&mut world), 0);
}

#[test]
fn a_connection_that_waits_with_the_next_key_of_a_site_ends_with_the_site() {
    let mut world = with_spare(16, ms(10));
    use_next(&mut world, &identity(9));
    // What waits was connected with the present key. What comes after it is connected with the next one.
    world.kill_spare();
    world.start_spare();
    world.run(20 * SECOND);
    assert_eq!(links(&world, SPARE), 2);
    assert_eq!(goodbyes(&mut world), [0, 1].into(), "at once");
    assert_eq!(fewest_links(&mut world), 0);
}

#[test]
fn of_two_claims_with_one_epoch_one_holds_for_everybody() {
    let mut seen = [false; 2];
    for seed in 0..12 {
        let mut world = with_spare(seed, ms(10));
        let (home, spare) = (hub_key(&world, HOME), hub_key(&world, SPARE));
        // The site has lost its memory at times when it reached one hub only.
        let other = Statement::sign(world.identity(0), 1, &spare);
        let holds = spare.as_bytes() > home.as_bytes();
        seen[usize::from(holds)] = true;
        let told = [HOME, SPARE].map(|hub| world.tell_claim(hub, other));
        let news = usize::from(holds);
        assert_eq!(told, [Ok(news), Ok(news)], "seed {seed}");
        // The site sees to it that its present hub serves.
        world.run(2 * SECOND);
        assert_eq!(moves(&world), [""; 0], "seed {seed}");
        assert_eq!(world.route_to(0), HOME, "seed {seed}");
        assert_eq!(world.transports_up(0), ["quic", "quic"]);
        let epoch = world.statement(HOME, 0).expect("it serves").epoch;
        assert_eq!(epoch, 1 + u64::from(holds));
        let before = world.hub_at(HOME).expect("it runs").events.len();
        world.run(60 * SECOND);
        let after = world.hub_at(HOME).expect("it runs").events.len();
        assert_eq!(before, after, "all is quiet");
    }
    assert_eq!(seen, [true; 2], "both cases were tried");
}

#[test]
fn forged_claims_from_other_hubs_cost_little_and_keep_no_site_away() {
    let mut world = with_spare(12, ms(10));
    let number = call(&mut world, 0, SECOND);
    let mut forged = Statement::sign(&identity(9), 7, &hub_key(&world, HOME));
    forged.site = world.identity(0).public_key();
    world.kill_hub();
    let mut number = number;
    for _ in 0..50 {
        for _ in 0..20 {
            world.tell_claim(SPARE, forged).expect_err("it is forged");
        }
        number = call(&mut world, number, INTERVAL);
    }
    assert_eq!(moves(&world), ["spare"]);
    assert_eq!(world.route_to(0), SPARE);
    let [checked, unchecked] =
        ["claims_forged", "claims_unchecked"].map(|name| drops(&world, SPARE, name));
    assert_eq!(checked + unchecked, 1_000);
    assert!((1..=25).contains(&checked), "{checked} signatures in 1 s");
}

#[test]
fn a_hub_that_hears_from_elsewhere_of_a_newer_claim_for_itself_announces_that() {
    let mut world = with_spare(15, ms(10));
    let home = hub_key(&world, HOME);
    let newer = Statement::sign(world.identity(0), 5, &home);
    assert_eq!(world.tell_claim(HOME, newer), Ok(1));
    assert_eq!(world.statement(HOME, 0), Some(newer));
    call(&mut world, 0, 2 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
}

#[test]
fn an_earlier_withdrawal_does_not_end_a_later_one() {
    let mut world = with_spare(13, ms(10));
    let spare = hub_key(&world, SPARE);
    let begin = world.now();
    let first = Statement::sign(world.identity(0), 2, &spare);
    assert_eq!(world.tell_claim(HOME, first), Ok(1));
    world.run(ms(300));
    assert_eq!(moves(&world), ["spare"]);
    world.kill_spare();
    call(&mut world, 0, ms(1_400));
    assert_eq!(moves(&world), ["spare", "home"]);
    let second = Statement::sign(world.identity(0), 4, &spare);
    assert_eq!(world.tell_claim(HOME, second), Ok(1));
    world.kill_site(0);
    world.run(ms(800));
    assert!(world.now().since(begin) > 2 * SECOND);
    let home = world.hub_at(HOME).expect("it runs");
    assert_eq!(home.session.role().peers().count(), 1, "still read");
    world.run(3 * SECOND);
    let home = world.hub_at(HOME).expect("it runs");
    assert_eq!(home.session.role().peers().count(), 0);
}

#[test]
fn a_site_says_which_hub_serves_it_and_hubs_count_what_they_refuse() {
    let mut world = with_spare(14, ms(10));
    let serving = |w: &World| {
        let tunnel = w.site(0).session.status().tunnels.remove(0);
        (tunnel.serving_hub, tunnel.serving_hub_addresses)
    };
    let at = |hub: &str, address: &str| (Some(hub.to_owned()), vec![address.to_owned()]);
    assert_eq!(serving(&world), at("home", "203.0.113.1:4443"));
    let number = call(&mut world, 0, SECOND);
    world.set_cut(HOME, true);
    call(&mut world, number, 3 * SECOND);
    assert_eq!(serving(&world), at("spare", "203.0.113.2:4443"));
    let statement = world.statement(SPARE, 0).expect("it serves");
    assert_eq!(world.tell_claim(HOME, statement), Ok(1));
    world.set_cut(HOME, false);
    // Started anew the site asks its home first, which knows better.
    world.kill_site(0);
    world.run(3 * SECOND);
    world.start_site(0);
    world.run(2 * SECOND);
    assert_eq!(serving(&world), at("spare", "203.0.113.2:4443"));
    assert!(drops(&world, HOME, "claims_refused") > 0);
    let alone = World::new(&Spec::default());
    assert_eq!(serving(&alone), (None, Vec::new()));
}

#[test]
fn a_spare_without_a_common_version_is_left_alone_for_a_minute() {
    let mut world = with_spare(16, ms(10));
    world.kill_spare();
    let newer = Versions::OURS.newest() + 1;
    world.set_spare_versions(Versions::new(newer, newer).expect("a range"));
    world.start_spare();
    world.run(40 * SECOND);
    assert_eq!(links(&world, SPARE), 2);
    let number = call(&mut world, 0, SECOND);
    world.kill_hub();
    let number = call(&mut world, number, 10 * SECOND);
    assert_eq!(moves(&world), [""; 0]);
    assert_eq!(links(&world, SPARE), 0, "nothing is asked of it");
    assert!((1..=2).contains(&drops(&world, SPARE, "versions_refused")));
    world.start_hub();
    call(&mut world, number, 5 * SECOND);
    assert_eq!(world.route_to(0), HOME);
    assert_eq!(world.transports_up(0), ["quic", "quic"]);
}
