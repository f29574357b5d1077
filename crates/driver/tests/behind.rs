//! A hub that gets more than it can work off: what is read, and what waits.

mod common;

use common::{hub, loopback};
use ropewalk_driver::{Owner, Ready};
use ropewalk_session::{Hub, Session, SocketId};
use ropewalk_types::Instant;

const HUB: Owner = Owner(0);
const NOW: Instant = Instant::from_millis(1_000);

/// Garbage that the hub has looked at.
fn looked_at(hub: &Session<Hub>) -> u64 {
    hub.status().drops["garbage_datagrams"]
}

#[test]
fn what_a_socket_holds_beyond_half_of_its_room_waits_for_its_turn() {
    let port = loopback();
    let listen = port.local_addr().expect("bound");
    drop(port);
    let mut sockets = common::sockets(2 << 20);
    let mut hub = hub(listen);
    sockets.of(HUB).serve_all(&mut hub).expect("a free port");
    let stranger = loopback();
    let send = |count: usize| {
        for _ in 0..count {
            stranger.send_to(&[0; 1_000], listen).expect("loopback");
        }
    };
    let mut turn = |hub: &mut Session<Hub>| {
        let ready = Ready::Udp(SocketId(0));
        sockets.of(HUB).read(NOW, ready, hub);
        let behind = hub.is_behind();
        hub.end_batch(NOW);
        behind
    };

    send(100);
    assert!(!turn(&mut hub), "a hub that keeps up");
    assert_eq!(looked_at(&hub), 100);

    // A datagram takes about 2,300 bytes of the buffer of twice 2 MiB.
    send(1_500);
    assert!(turn(&mut hub), "most of the buffer is filled");
    assert!(hub.is_behind(), "more wait than fit one turn");
    let first = looked_at(&hub);
    assert!((101..1_600).contains(&first), "{first} after one turn");
    assert_eq!(hub.poll_timeout(), Some(Instant::ZERO), "there is work");

    for _ in 0..20 {
        turn(&mut hub);
    }
    assert_eq!(looked_at(&hub), 1_600, "all had their turn");
    assert!(!hub.is_behind(), "the hub has caught up");
    assert_eq!(hub.status().drops["intake"], 0);
}
