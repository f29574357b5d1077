//! A hub that gets more than it can work off: what is read, and what waits.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use ropewalk_driver::{Owner, Ready, SocketOptions, Sockets};
use ropewalk_session::{CommonSettings, Environment, Hub, HubSettings, Session, Slice, SocketId};
use ropewalk_transport::{CongestionControl, Identity};
use ropewalk_types::Instant;
use rustix::event::epoll;

const HUB: Owner = Owner(0);
const NOW: Instant = Instant::from_millis(1_000);

fn hub(listen: SocketAddr) -> Session<Hub> {
    let settings = HubSettings {
        common: CommonSettings {
            identity: Identity::generate().expect("random numbers"),
            scheduler_send: Default::default(),
            scheduler_receive: Default::default(),
            classes: Arc::default(),
            hold: Default::default(),
            send: Default::default(),
            congestion: CongestionControl::default(),
            mtu: None,
        },
        listen: vec![listen],
        tcp_listen: Vec::new(),
        addresses: Vec::new(),
        sites: Arc::default(),
        memory: 1 << 20,
    };
    let environment = Environment {
        base: std::time::Instant::now(),
        segmentation: true,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: None,
        slice: Slice::WHOLE,
    };
    Session::hub(settings, &environment).expect("a key")
}

/// Garbage that the hub has looked at.
fn looked_at(hub: &Session<Hub>) -> u64 {
    hub.status().drops["garbage_datagrams"]
}

#[test]
fn what_a_socket_holds_beyond_half_of_its_room_waits_for_its_turn() {
    let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    let listen = port.local_addr().expect("bound");
    drop(port);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let options = SocketOptions {
        buffer_bytes: 2 << 20,
        devices: false,
        mark: None,
        slice: Slice::WHOLE,
    };
    let mut sockets = Sockets::new(epoll, options);
    let mut hub = hub(listen);
    sockets.of(HUB).serve_all(&mut hub).expect("a free port");
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
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
