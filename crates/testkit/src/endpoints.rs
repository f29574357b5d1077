//! Two QUIC endpoints over one link: what transports promise, without a tunnel above them.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_netem::{Capacity, Carried, Change, DirectionConfig, LinkConfig, Selector, Side};
use ropewalk_transport::{
    CongestionControl, ConnectOptions, ConnectionId, Endpoint, EndpointConfig, Event, Identity,
    SocketId,
};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot, Rate};

use crate::pair::{Machine, Outbound, Pair};

/// Bytes of an IPv4 and a UDP header.
pub const UDP_HEADERS: usize = 28;
/// Largest UDP payload over Ethernet.
const ETHERNET: u64 = 1_472;
/// Queue of a link unless a test says otherwise, bytes.
const QUEUE_BYTES: u64 = 64 << 10;

/// A UDP datagram on its way.
#[derive(Clone, Debug)]
pub struct UdpDatagram {
    sent: Instant,
    from: SocketAddr,
    to: SocketAddr,
    ecn: Ecn,
    data: BytesMut,
}

impl Carried for UdpDatagram {
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

/// An endpoint, its address, and what it is to send.
pub struct EndpointEnd {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its address; datagrams to another one get lost.
    pub address: SocketAddr,
    /// The connection that is up, or was last asked for.
    pub id: Option<ConnectionId>,
    /// Whether that connection is up.
    pub connected: bool,
    /// What the endpoint said of its connections.
    pub events: Vec<(Instant, ConnectionId, Event)>,
    /// Size of the datagrams that it sends as fast as the path takes them; 0 sends none.
    pub saturate: usize,
    /// Datagrams received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// The datagrams themselves, if they are kept.
    pub inbox: Option<Vec<Bytes>>,
    /// The way to this end.
    pub way: Way,
}

/// The way to an end, as packets show it that arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Propagation delay of the link.
    pub delay: Duration,
    /// Packets that wait longer in the queue, their own serialisation included, get a congestion
    /// mark.
    pub mark_above: Option<Duration>,
    /// Packets that arrived.
    pub packets: u64,
    /// Time beyond the propagation delay that they took together, seconds.
    pub late_s: f64,
    /// The most that one of them took, seconds.
    pub late_max_s: f64,
}

impl Way {
    /// Mean time beyond the propagation delay of the packets since `before`, seconds.
    #[must_use]
    pub fn late_mean_s(&self, before: &Self) -> f64 {
        (self.late_s - before.late_s) / (self.packets - before.packets) as f64
    }

    fn arrive(&mut self, now: Instant, packet: &mut UdpDatagram) {
        let late = now.since(packet.sent).as_secs_f64() - self.delay.as_secs_f64();
        self.packets += 1;
        self.late_s += late;
        self.late_max_s = self.late_max_s.max(late);
        let marked = self.mark_above.is_some_and(|at| late > at.as_secs_f64());
        if marked && packet.ecn != Ecn::NotEct {
            packet.ecn = Ecn::Ce;
        }
    }
}

/// The key of an end of this number.
///
/// # Panics
/// Never: every seed is a key.
#[must_use]
pub fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).expect("every seed is a key")
}

/// The configuration of a site with the key of this number.
#[must_use]
pub fn config(number: u8) -> EndpointConfig {
    let mut config = EndpointConfig::new(identity(number), std::time::Instant::now());
    config.seed = Some([number; 32]);
    config
}

/// The configuration of a hub that lets everybody in.
#[must_use]
pub fn hub_config() -> EndpointConfig {
    let mut config = config(2);
    config.allowed = Some(Arc::new(|_| true));
    config
}

/// One direction of a link over Ethernet.
#[must_use]
pub fn direction(mbit: f64, delay: Duration) -> DirectionConfig {
    DirectionConfig {
        capacity: Capacity::Fixed(Rate::from_bits_per_sec((mbit * 1e6) as u64)),
        delay,
        queue_bytes_max: Some(QUEUE_BYTES),
        queue_packets_max: None,
        mtu: Some(ETHERNET + UDP_HEADERS as u64),
        ..DirectionConfig::default()
    }
}

impl Pair<EndpointEnd> {
    /// Two endpoints with these configurations over such a link in both directions.
    ///
    /// # Panics
    /// When a configuration is invalid.
    #[must_use]
    pub fn endpoints(site: EndpointConfig, hub: EndpointConfig, both: &DirectionConfig) -> Self {
        let end = |config, address: &str| {
            let mut end = EndpointEnd::new(config, address.parse().expect("an address"));
            end.way.delay = both.delay;
            end
        };
        let link = LinkConfig {
            seed: 1,
            up: both.clone(),
            down: both.clone(),
            changes: Vec::new(),
        };
        let site = end(site, "192.0.2.1:1000");
        let hub = end(hub, "198.51.100.1:443");
        Self::new(Instant::from_millis(1_000), site, hub, [link])
    }

    /// The usual configurations over a link of this rate and round-trip time.
    #[must_use]
    pub fn simple(mbit: f64, rtt: Duration) -> Self {
        Self::endpoints(config(1), hub_config(), &direction(mbit, rtt / 2))
    }

    /// The site connects to the hub.
    pub fn connect(&mut self, congestion: CongestionControl) -> ConnectionId {
        self.connect_with(ConnectOptions {
            congestion,
            ..ConnectOptions::default()
        })
    }

    /// The site connects to the hub.
    ///
    /// # Panics
    /// When the endpoint refuses.
    pub fn connect_with(&mut self, options: ConnectOptions) -> ConnectionId {
        let (now, remote) = (self.now(), self.hub.address);
        let key = identity(2).public_key();
        let connected = self.site.endpoint.connect_with(now, remote, key, options);
        let id = connected.expect("a connection");
        self.site.id = Some(id);
        id
    }

    /// Connects, and runs until both sides are up.
    ///
    /// # Panics
    /// When that takes more than five seconds.
    pub fn up(&mut self, congestion: CongestionControl) {
        self.connect(congestion);
        let until = self.now() + Duration::from_secs(5);
        while !(self.site.connected && self.hub.connected) {
            assert!(self.now() < until, "{:?}", self.site.events);
            self.run(Duration::from_millis(10));
        }
    }

    /// Changes both directions.
    pub fn change_both(&mut self, change: &Change) {
        self.change(0, Selector::Both, change);
        if let Some(delay) = change.delay {
            (self.site.way.delay, self.hub.way.delay) = (delay, delay);
        }
    }

    /// Changes the way up; its delay stays.
    pub fn change_up(&mut self, change: &Change) {
        debug_assert!(change.delay.is_none());
        self.change(0, Selector::One(Side::Up), change);
    }

    /// Gives the way up another rate.
    pub fn set_rate_up(&mut self, mbit: f64) {
        self.change_up(&Change {
            capacity: direction(mbit, Duration::ZERO).capacity.into(),
            ..Change::default()
        });
    }

    /// Lets everything vanish in both directions, or nothing any more.
    pub fn cut(&mut self, cut: bool) {
        self.set_dead(0, Selector::Both, cut);
    }

    /// Rate at which the hub received datagrams during `time`.
    pub fn goodput_up(&mut self, time: Duration) -> Rate {
        let before = self.hub.received_bytes;
        self.run(time);
        Rate::from_transfer(self.hub.received_bytes - before, time)
    }
}

impl EndpointEnd {
    fn new(config: EndpointConfig, address: SocketAddr) -> Self {
        Self {
            endpoint: Endpoint::new(config).expect("a valid configuration"),
            address,
            id: None,
            connected: false,
            events: Vec::new(),
            saturate: 0,
            received: 0,
            received_bytes: 0,
            inbox: None,
            way: Way::default(),
        }
    }

    /// What the endpoint says of its connection.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> PathSnapshot {
        let id = self.id.expect("a connection");
        self.endpoint.snapshot(now, id).expect("a connection")
    }

    /// Sends a datagram.
    ///
    /// # Panics
    /// When the endpoint refuses.
    pub fn send(&mut self, datagram: &[u8]) {
        let id = self.id.expect("a connection");
        let sent = self.endpoint.send(id, Bytes::copy_from_slice(datagram));
        sent.expect("a datagram that fits");
    }

    /// A UDP datagram has come to this end.
    pub fn hear(&mut self, now: Instant, from: SocketAddr, ecn: Ecn, data: BytesMut) {
        let socket = SocketId::default();
        let id = self.endpoint.handle_udp(now, socket, from, None, ecn, data);
        let Some(id) = id else { return };
        while let Some(datagram) = self.endpoint.receive(id) {
            self.received += 1;
            self.received_bytes += datagram.len() as u64;
            if let Some(inbox) = &mut self.inbox {
                inbox.push(datagram);
            }
        }
    }

    fn note_events(&mut self, now: Instant) {
        while let Some((id, event)) = self.endpoint.poll_event() {
            match event {
                Event::Connected { .. } => {
                    self.connected = true;
                    self.id = Some(id);
                }
                Event::Closed { .. } if self.id == Some(id) => self.connected = false,
                Event::Closed { .. } => {}
            }
            self.events.push((now, id, event));
        }
    }

    /// Hands over datagrams of [`Self::saturate`] bytes, as many as the path takes now; whether
    /// it took any.
    pub fn offer(&mut self, now: Instant) -> bool {
        let Some(id) = self.id.filter(|_| self.saturate > 0 && self.connected) else {
            return false;
        };
        let Some(snapshot) = self.endpoint.snapshot(now, id) else {
            return false;
        };
        let size = self.saturate.min(snapshot.max_datagram);
        let (mut left, mut any) = (snapshot.free, false);
        while left >= size as u64 {
            if self.endpoint.send(id, Bytes::from(vec![7; size])).is_err() {
                break;
            }
            left -= size as u64;
            any = true;
        }
        any
    }

    fn outbound(
        &self,
        now: Instant,
        to: SocketAddr,
        ecn: Ecn,
        data: &[u8],
    ) -> Outbound<UdpDatagram> {
        Outbound {
            link: 0,
            bytes: data.len() + UDP_HEADERS,
            packet: UdpDatagram {
                sent: now,
                from: self.address,
                to,
                ecn,
                data: BytesMut::from(data),
            },
        }
    }
}

impl Machine for EndpointEnd {
    type Packet = UdpDatagram;

    fn receive(&mut self, now: Instant, _link: usize, mut packet: UdpDatagram) {
        self.way.arrive(now, &mut packet);
        if packet.to == self.address {
            self.hear(now, packet.from, packet.ecn, packet.data);
        }
    }

    /// As the event loop of a gateway does: transmit, then offer what the path takes, until it is
    /// blocked.
    fn turn(&mut self, now: Instant, out: &mut Vec<Outbound<UdpDatagram>>) {
        self.endpoint.handle_timeout(now);
        self.note_events(now);
        let mut buf = Vec::new();
        while let Some(transmit) = self.endpoint.poll_stateless(&mut buf) {
            out.push(self.outbound(now, transmit.destination, transmit.ecn, &buf));
        }
        loop {
            let mut any = false;
            while let Some(id) = self.endpoint.poll_dirty() {
                while let Some(transmit) = self.endpoint.poll_transmit(now, id, &mut buf) {
                    any = true;
                    assert_eq!(transmit.size, buf.len(), "a transmit as long as it says");
                    for data in buf.chunks(transmit.segment_size.unwrap_or(buf.len())) {
                        out.push(self.outbound(now, transmit.destination, transmit.ecn, data));
                    }
                }
            }
            any |= self.offer(now);
            if !any {
                return;
            }
        }
    }

    fn poll_timeout(&mut self) -> Option<Instant> {
        self.endpoint.poll_timeout()
    }
}
