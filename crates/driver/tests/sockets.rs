//! A site's sockets on the kernel: what its peer sees of them.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use common::{UPLINK, environment, identity, loopback};
use ropewalk_driver::{Owner, Sockets};
use ropewalk_session::{Command, HubAddresses, Session, Site, SiteHub, SiteSettings};
use ropewalk_types::Instant;

/// A site with one uplink that looks for its hub at this address.
fn site(hub: SocketAddr) -> Session<Site> {
    let settings = SiteSettings {
        common: common::common(identity()),
        hubs: vec![SiteHub {
            name: "hub".into(),
            key: identity().public_key(),
            addresses: Arc::new(HubAddresses::new(&[hub])),
            tcp_port: 0,
        }],
        udp_blocked_fallback: false,
        ipv6: false,
    };
    let mut site = Session::site(settings, &environment()).expect("a key");
    let command = Command::Uplinks(vec![common::uplink()]);
    site.handle_command(Instant::ZERO, command)
        .expect("a site has uplinks");
    site
}

/// Lets the site do what is due, and returns the port from which the hub hears it.
fn heard(site: &mut Session<Site>, now: Instant, sockets: &mut Sockets, hub: &UdpSocket) -> u16 {
    let mut sockets = sockets.of(Owner(0));
    sockets.end_input(now, site);
    site.end_batch(now);
    sockets.serve(now, site);
    site.pump(now, &mut sockets);
    sockets.serve(now, site);
    let mut port = 0;
    let mut bytes = [0; 2_000];
    while let Ok((_, from)) = hub.recv_from(&mut bytes) {
        port = from.port();
    }
    port
}

#[test]
fn a_socket_that_is_bound_anew_is_another_port_to_the_hub_and_the_same_to_the_site() {
    let hub = loopback();
    hub.set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a socket");
    let mut sockets = common::sockets(64 << 10);
    let mut site = site(hub.local_addr().expect("bound"));
    assert_eq!(
        site.role().socket(UPLINK),
        None,
        "nothing was asked for yet"
    );
    let before = heard(&mut site, Instant::ZERO, &mut sockets, &hub);
    let socket = site.role().socket(UPLINK).expect("one socket per path");
    assert_eq!(site.role().socket("wlan0"), None);
    let mut ours = sockets.of(Owner(0));
    let local = ours.rebind(socket, None, &mut site).expect("a free port");
    assert_ne!(local.port(), before);
    // The first packet is repeated, as nobody answers.
    let later = Instant::from_millis(3_000);
    assert_eq!(heard(&mut site, later, &mut sockets, &hub), local.port());
    assert_eq!(site.role().socket(UPLINK), Some(socket));
    assert_eq!(sockets.open(), 1, "the old one is closed");
    let mut others = sockets.of(Owner(1));
    assert!(others.rebind(socket, None, &mut site).is_err());
    others.close_all();
    assert_eq!(sockets.open(), 1, "those of others stay");
    sockets.of(Owner(0)).close_all();
    assert_eq!(sockets.open(), 0);
}
