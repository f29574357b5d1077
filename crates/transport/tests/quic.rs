//! QUIC sub-tunnels between two endpoints in virtual time.

mod support;

use ropewalk_transport::CongestionControl;
use ropewalk_types::Duration;
use support::World;

#[test]
fn connects_and_carries_datagrams_both_ways() {
    let mut world = World::simple(10.0, Duration::from_millis(50));
    world.up(CongestionControl::Bdp);
    (world.site.keep_inbox, world.hub.keep_inbox) = (true, true);
    world.site.send(b"up");
    world.hub.send(b"down");
    world.run(Duration::from_millis(100));
    assert_eq!(world.hub.inbox.pop_front().as_deref(), Some(&b"up"[..]));
    assert_eq!(world.site.inbox.pop_front().as_deref(), Some(&b"down"[..]));
}

#[test]
fn a_saturating_sender_fills_the_link() {
    for congestion in CongestionControl::ALL {
        let mut world = World::simple(10.0, Duration::from_millis(50));
        world.up(congestion);
        world.site.saturate = 1_400;
        world.run(Duration::from_secs(3));
        let goodput = world.goodput_up(Duration::from_secs(5));
        println!("{congestion}: {goodput:?}");
        assert!(
            goodput.bits_per_sec() > 8_000_000,
            "{congestion}: {goodput:?}"
        );
    }
}
