//! A hub with three sites, one of whose connections panics inside the QUIC library. The crate
//! `testkit` cannot be used here: it has the library without the controller that panics.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{net::SocketAddr, sync::Arc};

use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, Ecn, Instant};

use super::{AtWork, Endpoint};
use crate::{
    CloseReason, CongestionControl, ConnectionId, EndpointConfig, Event, Identity, SocketId,
    congestion::trap::Call,
};

const HUB: u8 = 100;
/// Sites at the start, of the keys 0 to 2.
const SITES: u8 = 3;
/// Time between two exchanges.
const STEP: Duration = Duration::from_millis(5);

struct Node {
    endpoint: Endpoint,
    address: SocketAddr,
    /// Connections that are up, the oldest first.
    up: Vec<ConnectionId>,
    closed: Vec<CloseReason>,
    inbox: Vec<Bytes>,
}

/// Endpoints that hear each other at once.
struct Net {
    now: Instant,
    base: std::time::Instant,
    /// The hub, then its sites.
    nodes: Vec<Node>,
    /// How many of the hub's datagrams get lost.
    lose: usize,
}

fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).unwrap()
}

impl Net {
    /// A hub, to which `SITES` sites have connected. It panics when it checks this key.
    fn new(panics_at: Option<u8>) -> Self {
        let mut net = Self {
            now: Instant::from_millis(1_000),
            base: std::time::Instant::now(),
            nodes: Vec::new(),
            lose: 0,
        };
        let mut config = net.config(HUB);
        let bad = panics_at.map(|number| identity(number).public_key());
        config.allowed = Some(Arc::new(move |key| {
            assert!(Some(*key) != bad, "as the test wants");
            true
        }));
        net.add(HUB, config);
        for number in 0..SITES {
            net.connect(number);
        }
        net
    }

    fn config(&self, number: u8) -> EndpointConfig {
        let mut config = EndpointConfig::new(identity(number), self.base);
        config.seed = Some([number; 32]);
        config
    }

    fn add(&mut self, number: u8, config: EndpointConfig) {
        self.nodes.push(Node {
            endpoint: Endpoint::new(config).unwrap(),
            address: SocketAddr::from(([192, 0, 2, number], 1_000)),
            up: Vec::new(),
            closed: Vec::new(),
            inbox: Vec::new(),
        });
    }

    /// A new site connects.
    fn connect(&mut self, number: u8) {
        self.add(number, self.config(number));
        let (hub, key) = (self.nodes[0].address, identity(HUB).public_key());
        let site = self.nodes.last_mut().unwrap();
        site.endpoint
            .connect(self.now, hub, key, CongestionControl::default())
            .unwrap();
        self.run(20);
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += STEP;
            for from in 0..self.nodes.len() {
                self.step(from);
            }
        }
    }

    fn step(&mut self, from: usize) {
        let now = self.now;
        let node = &mut self.nodes[from];
        if node.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            node.endpoint.handle_timeout(now);
        }
        let mut datagrams = Vec::new();
        let mut buf = Vec::new();
        while let Some(id) = node.endpoint.poll_dirty() {
            while let Some(transmit) = node.endpoint.poll_transmit(now, id, &mut buf) {
                let size = transmit.segment_size.unwrap_or(transmit.size);
                let parts = buf[..transmit.size].chunks(size);
                datagrams.extend(parts.map(|part| (transmit.destination, BytesMut::from(part))));
            }
        }
        while let Some(transmit) = node.endpoint.poll_stateless(&mut buf) {
            datagrams.push((transmit.destination, BytesMut::from(&buf[..])));
        }
        let source = node.address;
        for (to, data) in datagrams {
            if from == 0 && self.lose > 0 {
                self.lose -= 1;
            } else if let Some(node) = self.nodes.iter_mut().find(|node| node.address == to) {
                node.hear(now, source, data);
            }
        }
        self.nodes[from].note();
    }

    /// All sites but this one can still talk to the hub, and the hub to them.
    fn others_go_on(&mut self, except: u8) {
        let text = |number: u8| Bytes::from(vec![number; 5]);
        let alive: Vec<u8> = (0..SITES).filter(|&number| number != except).collect();
        for node in &mut self.nodes {
            node.inbox.clear();
        }
        for &number in &alive {
            let (hub_end, site_end) = (self.hub_end(number), usize::from(number) + 1);
            self.nodes[0].endpoint.send(hub_end, text(number)).unwrap();
            let site = &mut self.nodes[site_end];
            site.endpoint.send(site.up[0], text(number)).unwrap();
        }
        self.run(20);
        assert_eq!(self.nodes[0].inbox.len(), alive.len());
        for number in alive {
            let site = &self.nodes[usize::from(number) + 1];
            assert_eq!(site.inbox, [text(number)]);
            assert!(site.closed.is_empty());
        }
    }

    /// The hub's end of the connection of a site.
    fn hub_end(&self, number: u8) -> ConnectionId {
        let address = self.nodes[usize::from(number) + 1].address;
        let hub = &self.nodes[0];
        let at = |id: &&ConnectionId| hub.endpoint.remote(**id) == Some(address);
        *hub.up.iter().find(at).unwrap()
    }
}

impl Node {
    fn hear(&mut self, now: Instant, from: SocketAddr, data: BytesMut) {
        let ecn = Ecn::NotEct;
        let heard = self
            .endpoint
            .handle_udp(now, SocketId(0), from, None, ecn, data);
        if let Some(id) = heard {
            self.inbox
                .extend(core::iter::from_fn(|| self.endpoint.receive(id)));
        }
        self.note();
    }

    fn note(&mut self) {
        while let Some((id, event)) = self.endpoint.poll_event() {
            match event {
                Event::Connected { .. } => self.up.push(id),
                Event::Closed { reason } => self.closed.push(reason),
            }
        }
    }
}

#[test]
fn a_panic_inside_the_quic_library_ends_that_connection_only() {
    for call in [Call::Sent, Call::Acknowledged, Call::Lost] {
        let mut net = Net::new(None);
        let id = net.hub_end(1);
        let hub = &mut net.nodes[0].endpoint;
        assert_eq!(hub.stats().connections, 3);
        hub.slot(id).unwrap().state.fuse.light(call);
        // The first of two at one instant gets lost, so that a timer finds the loss.
        hub.send(id, Bytes::from_static(b"first")).unwrap();
        net.lose = usize::from(call == Call::Lost);
        net.step(0);
        let sent = net.nodes[0].endpoint.send(id, Bytes::from_static(b"last"));
        assert_eq!(sent.is_err(), call == Call::Sent);
        net.step(0);
        net.run(20);

        let hub = &net.nodes[0];
        let stats = hub.endpoint.stats();
        assert_eq!(
            (stats.internal_errors, stats.connections),
            (1, 2),
            "{call:?}"
        );
        assert_eq!(hub.closed, [CloseReason::Internal], "{call:?}");
        assert_eq!(hub.endpoint.remote(id), None);
        net.others_go_on(1);

        // The site's next packet is answered with a stateless reset (RFC 9000 section 10.3).
        let site = &mut net.nodes[2];
        if site.closed.is_empty() {
            site.endpoint
                .send(site.up[0], Bytes::from_static(b"there?"))
                .unwrap();
        }
        net.run(20);
        assert_eq!(net.nodes[2].closed, [CloseReason::Reset], "{call:?}");
        // It connects again, and takes the free place of the table.
        net.connect(50);
        let hub = &net.nodes[0];
        assert_eq!((hub.up.len(), hub.endpoint.stats().connections), (4, 3));
        assert_eq!(hub.up[3].slot, id.slot);
        net.others_go_on(1);
    }
}

#[test]
fn a_panic_in_a_handshake_ends_that_handshake_only() {
    let mut net = Net::new(Some(50));
    net.connect(50);
    let hub = &net.nodes[0];
    let stats = hub.endpoint.stats();
    assert_eq!((stats.internal_errors, stats.connections), (1, 3));
    assert_eq!((stats.handshakes_open, stats.handshakes_failed), (0, 1));
    assert!(hub.closed.is_empty(), "nobody had heard of it");
    assert!(net.nodes[4].up.is_empty());
    net.others_go_on(SITES);
    net.connect(51);
    assert_eq!(net.nodes[5].up.len(), 1);
}

#[test]
fn a_connection_that_panics_before_it_is_known_leaves_nothing() {
    let mut net = Net::new(None);
    let now = net.nodes[0].endpoint.to_std(net.now);
    let hub = &mut net.nodes[0].endpoint;
    let (handle, open) = (hub.inner.next_handle(), hub.inner.open_connections());
    let at_work = AtWork::New { handle, open };
    // It had not come into the tables yet.
    hub.give_up(at_work);
    assert_eq!(hub.stats().connections, 3);
    // It had.
    let client = crate::quic::setup::client(
        &hub.config,
        identity(7).public_key(),
        &crate::ConnectOptions::default(),
        quinn_proto::TransportConfig::default(),
        1,
    )
    .unwrap();
    let remote = SocketAddr::from(([192, 0, 2, 7], 1_000));
    let (got, _) = hub.inner.connect(now, client, remote, "x").unwrap();
    assert_eq!((got, hub.stats().connections), (handle, 4));
    hub.give_up(at_work);
    assert_eq!(hub.stats().connections, 3);
    assert_eq!(hub.stats().internal_errors, 2);
    assert_eq!(hub.inner.next_handle(), handle);
    net.others_go_on(SITES);
}
