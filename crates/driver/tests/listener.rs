//! A hub that has too many open files to accept a TCP connection. Alone in its program: the limit is that of the
//! process.

mod common;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use common::{environment, loopback};
use ropewalk_driver::{Event, Owner, Ready, Sockets};
use ropewalk_session::{Hub, HubSettings, Session};
use ropewalk_types::{Duration, Instant};
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const HUB: Owner = Owner(0);

/// A turn of a driver that does not wait; how many listening sockets were ready.
fn turn(now: Instant, sockets: &mut Sockets, hub: &mut Session<Hub>) -> usize {
    let mut events = Vec::with_capacity(8);
    let at_once = Timespec::default();
    let room = rustix::buffer::spare_capacity(&mut events);
    epoll::wait(sockets.epoll(), room, Some(&at_once)).expect("an event queue");
    let mut ready = 0;
    for event in &events {
        let data = event.data;
        let event = Event::decode(data.u64());
        ready += usize::from(matches!(event.ready, Ready::Listener(_)));
        sockets.of(HUB).read(now, event.ready, hub);
    }
    sockets.of(HUB).end_input(now, hub);
    ready
}

#[test]
fn a_hub_with_too_many_open_files_rests_and_accepts_again_when_it_has_fewer() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    let address = free.local_addr().expect("bound");
    drop(free);
    let settings = HubSettings {
        common: common::common(common::identity()),
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        tcp_listen: vec![address],
        addresses: Vec::new(),
        sites: std::sync::Arc::default(),
        memory: 1 << 20,
        passes_on: false,
    };
    let mut hub = Session::hub(settings, &environment()).expect("a key");
    let mut sockets = common::sockets(64 << 10);
    sockets.of(HUB).serve_all(&mut hub).expect("free ports");
    let site = TcpStream::connect(address).expect("a hub");
    let open = sockets.open();

    let limit = getrlimit(Resource::Nofile);
    let next = loopback().as_raw_fd();
    let tight = Rlimit {
        current: u64::try_from(next).ok(),
        ..limit
    };
    setrlimit(Resource::Nofile, tight).expect("a lower limit");
    let now = Instant::from_millis(1);
    let ready: Vec<_> = (0..100)
        .map(|_| turn(now, &mut sockets, &mut hub))
        .collect();
    setrlimit(Resource::Nofile, limit).expect("the limit of before");
    assert_eq!(
        ready.iter().sum::<usize>(),
        1,
        "it tries again at once: {ready:?}"
    );
    assert_eq!(sockets.open(), open);

    let due = sockets.poll_timeout().expect("the hub tries again");
    assert_eq!(due.since(now), Duration::from_millis(100));
    assert_eq!(
        turn(due, &mut sockets, &mut hub),
        0,
        "it listens from now on"
    );
    assert_eq!(sockets.poll_timeout(), None);
    assert_eq!(turn(due, &mut sockets, &mut hub), 1);
    assert_eq!(sockets.open(), open + 1);
    drop(site);
}
