//! What a hub keeps for a site: bytes that the allocator has given, counted.
//!
//! `DHAT_FILE=1 cargo test -p ropewalk-session --test memory -- --test-threads=1` writes who has
//! them, for the viewer of `dhat`.

use std::net::Ipv4Addr;

use bytes::BytesMut;
use ropewalk_netem::{DirectionConfig, Side};
use ropewalk_testkit::packet::udp;
use ropewalk_testkit::{HUB_INNER, Spec, World};
use ropewalk_types::Duration;
use ropewalk_wire::HEADROOM;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Sites of the world; what the hub has once is shared among them.
const SITES: usize = 10;
/// Most bytes that the hub may have for an idle site with two paths.
const BYTES_MAX: usize = 120_000;
/// Flows of a busy site.
const FLOWS: u16 = 600;

fn allocated() -> usize {
    dhat::HeapStats::get().curr_bytes
}

/// Bytes that the hub has, per site.
fn hub_bytes(world: &mut World) -> usize {
    // What the test's own host has noted down.
    world.hub_mut().delivered = Vec::new();
    let before = allocated();
    world.kill_hub();
    (before - allocated()) / SITES
}

fn profiler() -> dhat::Profiler {
    if std::env::var_os("DHAT_FILE").is_some() {
        dhat::Profiler::new_heap()
    } else {
        dhat::Profiler::builder().testing().build()
    }
}

fn connected() -> World {
    let mut world = World::new(&Spec {
        sites: SITES,
        link: DirectionConfig {
            delay: Duration::from_millis(10),
            ..DirectionConfig::default()
        },
        ..Spec::default()
    });
    world.run_until(Duration::from_secs(5), |w| {
        (0..SITES).all(|site| w.transports_up(site).len() == 2)
    });
    world
}

fn packet(from: Ipv4Addr, to: Ipv4Addr, port: u16, number: u32) -> BytesMut {
    let mut data = udp(number, port, 400);
    data[HEADROOM + 12..HEADROOM + 16].copy_from_slice(&from.octets());
    data[HEADROOM + 16..HEADROOM + 20].copy_from_slice(&to.octets());
    data
}

/// Ten packets of each flow in both directions.
fn browse(world: &mut World) {
    for round in 0..10_u16 {
        for port in 0..FLOWS {
            for site in 0..SITES {
                let here = World::inner_address(site);
                let (now, number) = (world.now(), u32::from(round));
                world.offer(now, site, Side::Up, packet(here, HUB_INNER, port, number));
                world.offer(now, site, Side::Down, packet(HUB_INNER, here, port, number));
            }
            if port % 20 == 0 {
                world.settle_touched();
                world.run(Duration::from_millis(20));
            }
        }
    }
}

// One test, since the allocator counts for the whole process.
#[test]
fn an_idle_site_costs_the_hub_little_and_no_more_after_traffic() {
    let profiler = profiler();
    let mut world = connected();
    world.run(Duration::from_secs(30));
    let idle = hub_bytes(&mut world);
    assert!(idle < BYTES_MAX, "{idle} bytes for each site");

    let mut world = connected();
    browse(&mut world);
    let busy = {
        let before = allocated();
        world.run(Duration::from_secs(240));
        before - allocated()
    };
    assert!(busy > SITES * 500_000, "only {busy} bytes came back");
    if std::env::var_os("DHAT_FILE").is_some() {
        // The file then shows who has memory now.
        return drop(profiler);
    }
    let after = hub_bytes(&mut world);
    assert!(after < BYTES_MAX + 20_000, "{after} bytes for each site");

    let mut world = connected();
    browse(&mut world);
    for site in 0..SITES {
        world.kill_site(site);
    }
    world.run(Duration::from_secs(1_100));
    let gone = hub_bytes(&mut world);
    eprintln!("{idle} bytes for each idle site, {after} after traffic, {gone} when it has gone");
    assert!(gone < BYTES_MAX, "{gone} bytes for each site");
}
