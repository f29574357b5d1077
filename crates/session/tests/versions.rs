//! Hubs and sites that speak several versions of the wire, in virtual time.

use ropewalk_api::TunnelStatus;
use ropewalk_testkit::{Spec, World};
use ropewalk_types::Duration;
use ropewalk_wire::Versions;

const SECOND: Duration = Duration::from_secs(1);
/// Longest time after which a site tries a hub again that spoke no version of it.
const RETRY_MAX: Duration = Duration::from_secs(76);

fn range(oldest: u8, newest: u8) -> Versions {
    Versions::new(oldest, newest).expect("a range")
}

/// A site with two uplinks that starts together with its hub, each with these versions.
fn world(hub: Versions, site: Versions) -> World {
    let mut world = World::new(&Spec::default());
    world.kill_site(0);
    world.set_versions(None, hub);
    world.set_versions(Some(0), site);
    world.start_hub();
    world.start_site(0);
    world
}

fn up(world: &World) -> bool {
    world.transports_up(0).len() == 2
}

/// The tunnel as the site and the hub tell of it.
fn tunnels(world: &World) -> [TunnelStatus; 2] {
    let site = world.site(0).session.status();
    let hub = world.hub().session.status();
    [site, hub].map(|mut status| status.tunnels.remove(0))
}

/// Sends packets with these numbers in both directions, 10 ms apart, and counts those that came within a second.
fn carried(world: &mut World, numbers: std::ops::Range<u64>) -> [usize; 2] {
    for number in numbers.clone() {
        world.send_up(0, number, 1);
        world.send_down(0, number, 1);
        world.run(Duration::from_millis(10));
    }
    world.run(SECOND);
    [&world.hub().delivered, &world.site(0).delivered]
        .map(|delivered| delivered.iter().filter(|d| numbers.contains(&d.2)).count())
}

fn refused_at_hub(world: &World) -> u64 {
    world.hub().session.status().drops["versions_refused"]
}

/// What the site's status says of each path that is not up.
fn words(world: &World) -> Vec<String> {
    let paths = world.paths(0).into_iter();
    let down = paths.filter(|path| path.state != "up");
    down.filter_map(|path| path.last_error).collect()
}

#[test]
fn ends_of_neighbouring_versions_carry_traffic_in_the_newest_common_one() {
    for (hub, site, common) in [
        (range(4, 4), range(4, 5), 4),
        (range(4, 5), range(4, 4), 4),
        (range(4, 5), range(5, 6), 5),
        (range(5, 6), range(4, 5), 5),
        (Versions::OURS, Versions::OURS, Versions::OURS.newest()),
    ] {
        let mut world = world(hub, site);
        world.run_until(SECOND, up);
        assert_eq!(carried(&mut world, 0..100), [100; 2], "{hub} and {site}");
        let used = tunnels(&world).map(|tunnel| tunnel.wire_version);
        assert_eq!(used, [common; 2], "{hub} and {site}");
        assert_eq!(refused_at_hub(&world), 0);
    }
}

#[test]
fn a_hub_that_is_upgraded_and_downgraded_under_its_site_goes_on_in_the_newest_common_version() {
    let mut world = world(range(4, 4), range(4, 5));
    world.run_until(SECOND, up);
    for (round, hub, common) in [
        (1, range(4, 5), 5),
        (2, range(4, 4), 4),
        (3, range(5, 6), 5),
    ] {
        world.stop_hub();
        world.set_versions(None, hub);
        world.start_hub();
        world.run(SECOND * 3);
        assert!(up(&world), "{hub}");
        let first = round * 1_000;
        let carried = carried(&mut world, first..first + 100);
        assert_eq!(carried, [100; 2], "{hub}");
        let used = tunnels(&world).map(|tunnel| tunnel.wire_version);
        assert_eq!(used, [common; 2], "{hub}");
    }
}

#[test]
fn without_a_common_version_both_ends_say_so_and_the_site_tries_again_rarely() {
    let newer_site =
        "the hub speaks version 4 of the wire, the site versions 5 to 6: upgrade the hub";
    let newer_hub =
        "the hub speaks versions 6 to 7 of the wire, the site versions 4 to 5: upgrade the site";
    for (hub, site, expected) in [
        (range(4, 4), range(5, 6), newer_site),
        (range(6, 7), range(4, 5), newer_hub),
    ] {
        for udp_blocked in [false, true] {
            let mut world = world(hub, site);
            for uplink in 0..2 {
                world.block_udp(0, uplink, udp_blocked);
            }
            world.run(SECOND * 10);
            assert_eq!(words(&world), [expected; 2]);
            assert_eq!(tunnels(&world).map(|tunnel| tunnel.up), [false; 2]);
            assert_eq!(refused_at_hub(&world), 2, "one connection of each path");
            let sent = world.sent();
            world.run(SECOND * 290);
            let again = refused_at_hub(&world) - 2;
            assert!((2 * 3..=2 * 7).contains(&again), "{again} in 290 s");
            // A handshake of each path every minute, and what follows it.
            let sent = world.sent() - sent;
            assert!(sent < 1_000, "{sent} packets in 290 s");
        }
    }
}

#[test]
fn a_site_that_was_refused_comes_back_by_itself_after_the_upgrade_of_its_hub() {
    let mut world = world(range(4, 4), range(5, 6));
    world.run(SECOND * 5);
    assert_eq!(words(&world).len(), 2);
    world.stop_hub();
    world.set_versions(None, range(4, 5));
    world.start_hub();
    world.run_until(RETRY_MAX, up);
    assert_eq!(carried(&mut world, 0..100), [100; 2]);
    assert_eq!(world.paths(0)[0].last_error, None);
    assert_eq!(tunnels(&world).map(|tunnel| tunnel.wire_version), [5; 2]);
}

/// It would take a welcome for a tunnel.
#[test]
fn a_site_that_knows_no_ranges_is_told_by_the_end_of_its_connections() {
    let mut world = world(range(5, 6), range(4, 4));
    for number in 0..600 {
        world.send_down(0, number, 1);
        world.run(SECOND / 10);
        assert_eq!(world.transports_up(0), [""; 0]);
    }
    let said = "the hub speaks versions 5 to 6 of the wire, the site version 4: upgrade the site";
    let words = words(&world);
    assert!(
        words.len() == 2 && words.iter().all(|w| w.contains(said)),
        "{words:?}"
    );
    // Those sites do not know that they had better wait.
    let refused = refused_at_hub(&world);
    assert!((40..=400).contains(&refused), "{refused} in 60 s");
    let left_out = world.hub().session.status().drops["log_lines"];
    assert!(refused - left_out <= 40 + 61, "{left_out} of {refused}");
    world.stop_site(0);
    world.set_versions(Some(0), range(4, 5));
    world.start_site(0);
    world.run_until(SECOND, up);
    assert_eq!(carried(&mut world, 0..100), [100; 2]);
}
