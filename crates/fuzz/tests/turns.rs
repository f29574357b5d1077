//! What a turn of a hub costs while many sites wait for theirs: steps of loops, counted.

use std::sync::Arc;

use ropewalk_core::schedule::SchedulerKind;
use ropewalk_netem::Side;
use ropewalk_session::{
    CommonSettings, Environment, HubSettings, Session, SiteDirectory, SiteEntry, Slice,
};
use ropewalk_testkit::packet::inner;
use ropewalk_testkit::{HUB_INNER, Spec, World};
use ropewalk_transport::{CongestionControl, Identity, PublicKey};
use ropewalk_types::{Duration, steps};

/// Sites of the small world; the large one has four times as many.
const SITES: usize = 100;

/// A hub whose sites have one path each.
fn connected(sites: usize) -> World {
    let mut world = World::new(&Spec {
        sites,
        uplinks: 1,
        scheduler: SchedulerKind::RoundRobin,
        ..Spec::default()
    });
    world.run_until(Duration::from_secs(5), |w| {
        (0..sites).all(|site| w.transports_up(site).len() == 1)
    });
    world.run(Duration::from_secs(1));
    world
}

/// Steps of each of so many turns of the hub, one after the other at the same instant.
fn turns(world: &mut World, count: usize) -> Vec<u64> {
    let turn = |_| {
        let before = steps();
        world.touch_hub();
        steps() - before
    };
    (0..count).map(turn).collect()
}

/// Steps of turns of a hub that has packets for all of its sites.
fn sending(sites: usize) -> Vec<u64> {
    let mut world = connected(sites);
    for site in 0..sites {
        for number in 0..20 {
            let packet = inner(HUB_INNER, World::inner_address(site), number, 500);
            let now = world.now();
            world.offer(now, site, Side::Down, packet);
        }
    }
    // The packets of all sites come in the first one.
    let first = turns(&mut world, 1)[0];
    assert!(first > 100, "the meter works");
    let costs = turns(&mut world, 2);
    let sent = world.hub().session.role().peers();
    let sent = sent.filter(|peer| peer.tunnel().stats().tx_packets > 0);
    let sent = sent.count();
    assert!(sent < SITES, "{sent} sites had their turn: that is all");
    costs
}

/// Steps of turns of a hub that holds packets of all of its sites back behind their rates.
fn receiving(sites: usize) -> Vec<u64> {
    let mut world = connected(sites);
    for site in 0..sites {
        world.set_share(site, 1, Some(100_000));
    }
    for site in 0..sites {
        for number in 0..20 {
            let packet = inner(World::inner_address(site), HUB_INNER, number, 500);
            let now = world.now();
            world.offer(now, site, Side::Up, packet);
        }
    }
    world.settle_touched();
    world.run(Duration::from_millis(11));
    let costs = turns(&mut world, 3);
    let got = world.hub().delivered.len();
    assert!(got < 10 * sites, "{got}: most packets wait");
    costs
}

#[test]
fn a_turn_costs_its_work_however_many_sites_wait() {
    for (what, costs) in [
        ("sending", [SITES, 4 * SITES].map(sending)),
        ("receiving", [SITES, 4 * SITES].map(receiving)),
    ] {
        eprintln!("{what}: {costs:?} steps");
        let [few, many] = costs.map(|costs| costs.into_iter().max().unwrap_or(0));
        assert!(
            many <= few + few / 2 + 10,
            "{what}: {few} steps in a turn beside {SITES} sites, {many} beside {}",
            4 * SITES
        );
    }
}

/// Steps that this takes a hub with so many sites.
fn work(sites: usize, work: impl FnOnce(&mut World)) -> u64 {
    let mut world = connected(sites);
    let before = steps();
    work(&mut world);
    steps() - before
}

#[test]
fn a_change_of_one_site_costs_as_much_beside_many_others() {
    let share = |world: &mut World| world.set_share(3, 2, None);
    let shut_out = |world: &mut World| world.set_enabled(3, false);
    for (what, change) in [
        ("another weight", &share as &dyn Fn(&mut World)),
        ("shut out", &shut_out),
    ] {
        let costs = [SITES, 4 * SITES].map(|sites| work(sites, change));
        eprintln!("{what}: {costs:?} steps");
        let [few, many] = costs;
        assert!(few > 2, "{what}: the meter works");
        assert!(many <= few + 10, "{what}: {costs:?} steps");
    }
}

#[test]
fn a_status_costs_a_step_or_two_for_each_site() {
    for sites in [SITES, 4 * SITES] {
        let cost = work(sites, |world| {
            let status = world.hub().session.status();
            assert_eq!(status.tunnels.len(), sites);
        });
        eprintln!("status of {sites}: {cost} steps");
        let sites = sites as u64;
        assert!((sites..=2 * sites).contains(&cost), "{cost} steps");
    }
}

#[test]
fn the_status_of_one_worker_looks_at_no_site_of_others() {
    let sites = (0..4_000_u32).map(|number| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        SiteEntry {
            name: number.to_string(),
            key: PublicKey::from_bytes(key),
            addresses: Vec::new(),
            networks: Vec::new(),
            block: None,
            enabled: true,
            weight: 1,
            rate: None,
        }
    });
    let directory = Arc::new(SiteDirectory::new(sites.collect()));
    let mut all = 0;
    for worker in 0..4 {
        let settings = HubSettings {
            common: CommonSettings {
                identity: Identity::from_seed([1; 32]).expect("a key"),
                scheduler_send: SchedulerKind::Auto,
                scheduler_receive: SchedulerKind::Auto,
                classes: Arc::default(),
                hold: Default::default(),
                send: Default::default(),
                congestion: CongestionControl::default(),
                mtu: None,
            },
            listen: Vec::new(),
            tcp_listen: Vec::new(),
            addresses: Vec::new(),
            sites: Arc::clone(&directory),
            memory: 1 << 20,
            passes_on: false,
        };
        let environment = Environment {
            base: std::time::Instant::now(),
            segmentation: false,
            udp_payload_max: 1_472,
            session: 1,
            tunnels: 1,
            transport: Some([1; 32]),
            slice: Slice::new(worker, 4).expect("there is such a worker"),
        };
        let hub = Session::hub(settings, &environment).expect("a hub");
        let before = steps();
        let listed = hub.status().tunnels.len();
        let cost = steps() - before;
        assert!((500..1_500).contains(&listed), "{listed} sites");
        assert_eq!(cost, listed as u64, "one look at each of its own");
        all += listed;
    }
    assert_eq!(all, 4_000);
}
