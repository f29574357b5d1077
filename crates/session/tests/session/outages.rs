//! Many tunnels of one hub are in an outage: they share what the hub probes.

use ropewalk_session::Slice;
use ropewalk_transport::{Identity, group_of};

use super::*;

/// So many that the hub probes each of them every 40 ms, in place of every 15 ms.
const SITES: usize = 40;
/// Probes a second of a path that shares them with nobody.
const ALONE: std::ops::RangeInclusive<usize> = 60..=80;
/// The same of the hub for one of [`SITES`], with what QUIC adds.
const SHARED: std::ops::RangeInclusive<usize> = 22..=32;

/// Lets everything vanish on the links of these sites, or nothing any more.
fn set_dead(world: &mut World, sites: impl IntoIterator<Item = usize>, dead: bool) {
    for site in sites {
        world.set_dead(site, 0, Selector::Both, dead);
        if dead {
            // Silence begins with what nobody acknowledges.
            world.send_up(site, 0, 1);
            world.send_down(site, 0, 1);
        }
    }
}

/// A hub whose sites, with one uplink each, have been in an outage for a while.
fn all_out() -> World {
    let mut world = World::new(&Spec {
        sites: SITES,
        uplinks: 1,
        ..Spec::default()
    });
    let is_up = |world: &World, site: usize| !world.transports_up(site).is_empty();
    world.run_until(SECOND, |w| (0..SITES).all(|site| is_up(w, site)));
    world.keep_taps();
    set_dead(&mut world, 0..SITES, true);
    world.run(ms(500));
    world
}

/// Packets a second of the first site to the hub, and of the hub to the first site.
fn rates(world: &mut World) -> [usize; 2] {
    world.take_taps().for_each(drop);
    world.run(ms(500));
    let mut sent = [0; 2];
    for tap in world.take_taps().filter(|tap| tap.leaves) {
        sent[tap.side as usize] += 2;
    }
    sent
}

#[test]
fn a_hub_probes_each_of_many_lost_sites_less_often_until_they_are_back() {
    let mut world = all_out();
    let [site, hub] = rates(&mut world);
    assert!(ALONE.contains(&site), "a site has one tunnel: {site}");
    assert!(SHARED.contains(&hub), "the hub has many: {hub}");
    set_dead(&mut world, 1..SITES, false);
    world.run(ms(200));
    let [site, hub] = rates(&mut world);
    assert!(
        ALONE.contains(&site) && ALONE.contains(&hub),
        "{site}, {hub}"
    );
}

#[test]
fn a_hub_shares_no_probes_with_sites_that_have_gone() {
    let mut world = all_out();
    for site in 1..SITES {
        world.set_enabled(site, false);
    }
    world.run(ms(100));
    let [site, hub] = rates(&mut world);
    assert!(
        ALONE.contains(&site) && ALONE.contains(&hub),
        "{site}, {hub}"
    );
}

#[test]
fn workers_of_a_hub_count_the_lost_sites_of_the_others_too() {
    const WORKERS: u8 = 64;
    let mut world = World::new(&Spec {
        uplinks: 1,
        rests: true,
        workers: WORKERS,
        ..Spec::default()
    });
    let slice = Slice::new(0, WORKERS).expect("so many are possible");
    let hub = world.hub_identity().public_key();
    let identity = |number: u8| Identity::from_seed([number; 32]).expect("every seed is a key");
    let is_own = |site: &Identity| slice.serves(group_of(&hub, &site.public_key()));
    let identity = (0..=u8::MAX).map(identity).find(is_own).expect("one of 64");
    world.set_key(0, identity.public_key());
    world.set_identity(0, identity);
    world.start_site(0);
    world.run_until(SECOND, |w| !w.transports_up(0).is_empty());
    world.keep_taps();
    set_dead(&mut world, [0], true);
    world.run(ms(500));
    let [site, hub] = rates(&mut world);
    assert!(ALONE.contains(&site), "{site}");
    assert!((13..=22).contains(&hub), "every 64 ms: {hub}");
}

/// First packets of connections, in QUIC (RFC 9000 §17.2.2), that this site sends within a time.
fn first_packets(world: &mut World, time: Duration) -> usize {
    world.take_taps().for_each(drop);
    world.run(time);
    let of_site = world
        .take_taps()
        .filter(|tap| tap.leaves && tap.side == Side::Up);
    of_site
        .filter(|tap| matches!(&tap.packet.body, Body::Udp(_, bytes) if bytes[0] & 0xf0 == 0xc0))
        .count()
}

#[test]
fn in_a_long_outage_a_site_sends_about_two_first_packets_a_second() {
    let mut world = World::new(&Spec {
        uplinks: 1,
        ..Spec::default()
    });
    world.run_until(SECOND, |w| !w.transports_up(0).is_empty());
    world.keep_taps();
    set_dead(&mut world, [0], true);
    // The quick attempts are over, and so are those that begin at growing intervals.
    world.run(8 * SECOND);
    let sent = first_packets(&mut world, 20 * SECOND);
    // With four attempts at once it would send 55.
    assert!((34..=46).contains(&sent), "{sent} in 20 s");
}
