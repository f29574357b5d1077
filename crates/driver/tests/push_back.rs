//! A hub that reads TCP connections late, or less of them than comes: the rest stays with the sender.

mod common;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use common::loopback;
use ropewalk_driver::{Event, Owner, Sockets};
use ropewalk_session::{
    Command, Hub, HubAddresses, HubSettings, Role, Session, Site, SiteDirectory, SiteEntry,
    SiteHub, SiteSettings,
};
use ropewalk_testkit::packet::inner;
use ropewalk_types::{Duration, Instant};
use rustix::event::Timespec;
use rustix::event::epoll;

const US: Owner = Owner(0);
const STEP: Duration = Duration::from_millis(5);
const HUB_INNER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
const SITE_INNER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 2);
/// Bits per second that the site may send.
const RATE: u64 = 2_000_000;
/// Bytes of an inner packet.
const BYTES: usize = 1_000;

/// A gateway on sockets of the kernel, in the time of the test.
struct Gateway<R: Role> {
    session: Session<R>,
    sockets: Sockets,
    /// Inner packets that came out.
    delivered: u64,
    /// Whether UDP gets nowhere.
    deaf: bool,
}

impl<R: Role> Gateway<R> {
    fn new(session: Session<R>) -> Self {
        Self {
            session,
            sockets: common::sockets(64 << 10),
            delivered: 0,
            deaf: false,
        }
    }

    /// A turn, as the head of `ropewalk_session` describes.
    fn turn(&mut self, now: Instant) {
        let mut events = Vec::with_capacity(16);
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(self.sockets.epoll(), spare, Some(&at_once)).expect("epoll");
        let mut sockets = self.sockets.of(US);
        for event in &events {
            let ready = Event::decode(event.data.u64()).ready;
            if !(self.deaf && matches!(ready, ropewalk_driver::Ready::Udp(_))) {
                sockets.read(now, ready, &mut self.session);
            }
        }
        sockets.end_input(now, &mut self.session);
        self.session.end_batch(now);
        while self.session.poll_inner().is_some() {
            self.delivered += 1;
        }
        sockets.serve(now, &mut self.session);
        self.session.pump(now, &mut sockets);
        sockets.serve(now, &mut self.session);
        while self.session.poll_event().is_some() {}
    }
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    listener.local_addr().expect("bound")
}

/// A hub that hears nothing over UDP, and a site with a rate there.
fn pair() -> (Gateway<Hub>, Gateway<Site>) {
    let (hub_key, site_key) = (common::identity(), common::identity());
    let udp = loopback().local_addr().expect("bound");
    let tcp = free_port();
    let entry = SiteEntry {
        name: "farm".into(),
        key: site_key.public_key(),
        addresses: vec![SITE_INNER.into()],
        networks: Vec::new(),
        block: None,
        enabled: true,
        weight: 1,
        rate: Some(RATE),
    };
    let settings = HubSettings {
        common: common::common(hub_key.clone()),
        listen: vec![udp],
        tcp_listen: vec![tcp],
        addresses: vec![(std::net::IpAddr::V4(HUB_INNER)).into()],
        sites: Arc::new(SiteDirectory::new(vec![entry])),
        memory: 1 << 20,
        passes_on: false,
    };
    let session = Session::hub(settings, &common::environment()).expect("a key");
    let mut hub = Gateway::new(session);
    hub.deaf = true;
    let settings = SiteSettings {
        common: common::common(site_key),
        hubs: vec![SiteHub {
            name: "hub".into(),
            key: hub_key.public_key(),
            addresses: Arc::new(HubAddresses::new(&[udp])),
            tcp_port: tcp.port(),
        }],
        udp_blocked_fallback: true,
        ipv6: false,
    };
    let session = Session::site(settings, &common::environment()).expect("a key");
    let mut site = Gateway::new(session);
    let uplinks = Command::Uplinks(vec![common::uplink()]);
    site.session
        .handle_command(Instant::ZERO, uplinks)
        .expect("a site has uplinks");
    (hub, site)
}

#[test]
fn what_came_in_while_a_hub_stood_still_counts_before_its_timers() {
    // A handshake over TLS may take 3 s once TCP is connected.
    const STALL: Duration = Duration::from_secs(4);
    let (mut hub, mut site) = pair();
    let mut now = Instant::from_millis(1_000);
    while hub.session.links() == 0 {
        assert!(now < Instant::from_millis(20_000), "no connection over TCP");
        now += STEP;
        site.turn(now);
        hub.turn(now);
    }
    // The hub answers the first bytes. Then the last ones of the handshake lie in its kernel.
    now += STEP;
    site.turn(now);
    hub.turn(now);
    for _ in 0..4 {
        now += STEP;
        site.turn(now);
    }
    now += STALL;
    hub.turn(now);
    let drops = &hub.session.status().drops;
    assert_eq!(hub.session.links(), 1, "the handshake goes on: {drops:?}");
    for _ in 0..20 {
        now += STEP;
        site.turn(now);
        hub.turn(now);
    }
    assert!(hub.session.status().tunnels[0].up, "the site is there");
}

#[test]
fn a_rate_pushes_back_on_a_site_over_tcp() {
    let (mut hub, mut site) = pair();
    let mut now = Instant::from_millis(1_000);
    let is_up = |hub: &Gateway<_>| hub.session.status().tunnels[0].up;
    while !is_up(&hub) {
        assert!(now < Instant::from_millis(20_000), "no path over TLS");
        now += STEP;
        site.turn(now);
        hub.turn(now);
    }
    // 8 Mbit/s for a while.
    let mut number = 0;
    let mut offer = |site: &mut Gateway<_>, hub: &mut Gateway<_>, time: Duration| {
        let end = now + time;
        while now < end {
            now += STEP;
            for _ in 0..5 {
                let packet = inner(SITE_INNER, HUB_INNER, number, BYTES);
                site.session.handle_inner(now, packet, false);
                number += 1;
            }
            site.turn(now);
            hub.turn(now);
        }
        let sent = site.session.status().tunnels[0].tx_packets;
        (sent, hub.delivered)
    };
    let second = Duration::from_secs(1);
    let (_, before) = offer(&mut site, &mut hub, 20 * second);
    let (sent, got) = offer(&mut site, &mut hub, 20 * second);
    let bound = RATE * 20 / 8 / BYTES as u64;
    let of = got - before;
    assert!((bound / 2..=bound).contains(&of), "{of} of at most {bound}");
    let on_the_way = (sent - got) * BYTES as u64;
    // 30 MB more came than the rate lets through. The kernel lets its buffers grow to some megabytes.
    eprintln!("{of} packets in 20 s, {on_the_way} bytes in the kernel");
    assert!(
        on_the_way < 8 << 20,
        "{on_the_way} bytes wait in the kernel"
    );
    let drops = &hub.session.status().drops;
    assert_eq!((drops["intake"], drops["internal_errors"]), (0, 0));
    assert!(
        site.session.status().tunnels[0].queue_drops > 0,
        "the site learns of it"
    );
}
