//! Two endpoints joined by a toy link in virtual time: rate, delay, queue, jitter, loss, MTU.
//!
//! Invariant: time only moves forward, to the next arrival or timer; the same seed gives the same
//! run as far as the endpoints allow.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "support of several tests"
)]

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use ropewalk_transport::{
    CongestionControl, ConnectOptions, ConnectionId, Ecn, Endpoint, EndpointConfig, Event,
    Identity, KeyCheck, SocketId,
};
use ropewalk_types::{Duration, Instant, Random, Rate};

/// One direction of a link.
pub struct Link {
    pub rate: Rate,
    pub delay: Duration,
    /// Standard deviation of the delay.
    pub jitter: Duration,
    /// Whether jitter may reorder.
    pub reorder: bool,
    pub loss: f64,
    pub queue_max: u64,
    /// Largest UDP payload.
    pub mtu: usize,
    /// Marks CE when a packet waits longer.
    pub mark_above: Option<Duration>,
    pub cut: bool,
    random: Random,
    queue: VecDeque<Packet>,
    queue_bytes: u64,
    /// When the head of the queue will have been serialised.
    head_done: Instant,
    last_arrival: Instant,
    in_flight: BTreeMap<(Instant, u64), Packet>,
    sequence: u64,
    pub packets: u64,
    pub bytes: u64,
    pub dropped: u64,
    /// Sum of waiting times in the queue over the packets it took.
    pub waited: Duration,
    pub waited_max: Duration,
}

impl Link {
    pub fn new(rate_mbit: f64, delay: Duration, seed: u64) -> Self {
        Self {
            rate: Rate::from_bits_per_sec((rate_mbit * 1e6) as u64),
            delay,
            jitter: Duration::ZERO,
            reorder: false,
            loss: 0.0,
            queue_max: 64 << 10,
            mtu: 1_472,
            mark_above: None,
            cut: false,
            random: Random::new(seed),
            queue: VecDeque::new(),
            queue_bytes: 0,
            head_done: Instant::ZERO,
            last_arrival: Instant::ZERO,
            in_flight: BTreeMap::new(),
            sequence: 0,
            packets: 0,
            bytes: 0,
            dropped: 0,
            waited: Duration::ZERO,
            waited_max: Duration::ZERO,
        }
    }

    /// A new rate for what is not serialised yet.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        let left = self.rate.bytes_in(self.head_done.since(now));
        self.rate = rate;
        self.head_done = now + rate.time_for(left);
    }

    fn send(&mut self, now: Instant, from: SocketAddr, to: SocketAddr, ecn: Ecn, data: &[u8]) {
        let wire = data.len() as u64 + 28;
        self.packets += 1;
        self.bytes += wire;
        if self.cut || data.len() > self.mtu || self.queue_bytes + wire > self.queue_max {
            self.dropped += 1;
            return;
        }
        if self.queue.is_empty() {
            self.head_done = now + self.rate.time_for(wire);
        }
        self.queue_bytes += wire;
        let data = data.to_vec();
        self.queue.push_back(Packet {
            since: now,
            from,
            to,
            ecn,
            data,
        });
    }

    /// Next time something happens in here.
    fn next(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|&(at, _)| at);
        let served = (!self.queue.is_empty()).then_some(self.head_done);
        arrival.into_iter().chain(served).min()
    }

    /// Serves the queue up to `now`.
    fn serve(&mut self, now: Instant) {
        while self.head_done <= now
            && let Some(mut packet) = self.queue.pop_front()
        {
            let (done, wire) = (self.head_done, packet.data.len() as u64 + 28);
            self.queue_bytes -= wire;
            let wait = (done - self.rate.time_for(wire)).since(packet.since);
            self.waited += wait;
            self.waited_max = self.waited_max.max(wait);
            if let Some(next) = self.queue.front() {
                self.head_done = done + self.rate.time_for(next.data.len() as u64 + 28);
            }
            if self.random.chance(self.loss) {
                self.dropped += 1;
                continue;
            }
            let shake = self.random.normal() * self.jitter.as_secs_f64();
            let delay = (self.delay.as_secs_f64() + shake).max(0.0);
            let mut arrival = done + Duration::from_secs_f64(delay);
            if !self.reorder {
                arrival = arrival.max(self.last_arrival);
            }
            self.last_arrival = arrival;
            if packet.ecn != Ecn::NotEct && self.mark_above.is_some_and(|limit| wait > limit) {
                packet.ecn = Ecn::Ce;
            }
            self.sequence += 1;
            self.in_flight.insert((arrival, self.sequence), packet);
        }
    }
}

/// A UDP datagram on its way.
struct Packet {
    since: Instant,
    from: SocketAddr,
    to: SocketAddr,
    ecn: Ecn,
    data: Vec<u8>,
}

/// One side: an endpoint, its address and what it is to send.
pub struct Side {
    pub endpoint: Endpoint,
    pub address: SocketAddr,
    pub id: Option<ConnectionId>,
    pub connected: bool,
    pub events: Vec<(Instant, ConnectionId, Event)>,
    /// Size of the datagrams sent as fast as the path takes them; 0 sends none.
    pub saturate: usize,
    /// Datagrams received, and their bytes.
    pub received: u64,
    pub received_bytes: u64,
    pub inbox: VecDeque<Bytes>,
    pub keep_inbox: bool,
}

/// Two sides and the link between them.
pub struct World {
    pub now: Instant,
    pub site: Side,
    pub hub: Side,
    pub up: Link,
    pub down: Link,
}

pub fn identity(byte: u8) -> Identity {
    Identity::from_seed([byte; 32]).unwrap()
}

pub fn allow_all() -> KeyCheck {
    Arc::new(|_| true)
}

pub fn config(byte: u8) -> EndpointConfig {
    let mut config = EndpointConfig::new(identity(byte), std::time::Instant::now());
    config.seed = Some([byte; 32]);
    config
}

pub fn hub_config() -> EndpointConfig {
    let mut config = config(2);
    config.allowed = Some(allow_all());
    config
}

fn side(endpoint: Endpoint, address: &str) -> Side {
    Side {
        endpoint,
        address: address.parse().unwrap(),
        id: None,
        connected: false,
        events: Vec::new(),
        saturate: 0,
        received: 0,
        received_bytes: 0,
        inbox: VecDeque::new(),
        keep_inbox: false,
    }
}

impl World {
    pub fn new(site: EndpointConfig, hub: EndpointConfig, up: Link, down: Link) -> Self {
        Self {
            now: Instant::from_millis(1_000),
            site: side(Endpoint::new(site).unwrap(), "192.0.2.1:1000"),
            hub: side(Endpoint::new(hub).unwrap(), "198.51.100.1:443"),
            up,
            down,
        }
    }

    /// Both ways the same link, default configuration on both sides.
    pub fn simple(rate_mbit: f64, rtt: Duration) -> Self {
        let (up, down) = (
            Link::new(rate_mbit, rtt / 2, 1),
            Link::new(rate_mbit, rtt / 2, 2),
        );
        Self::new(config(1), hub_config(), up, down)
    }

    pub fn connect(&mut self, congestion: CongestionControl) -> ConnectionId {
        self.connect_with(ConnectOptions {
            congestion,
            ..ConnectOptions::default()
        })
    }

    pub fn connect_with(&mut self, options: ConnectOptions) -> ConnectionId {
        let key = identity(2).public_key();
        let remote = self.hub.address;
        let id = self
            .site
            .endpoint
            .connect_with(self.now, remote, key, options)
            .unwrap();
        self.site.id = Some(id);
        id
    }

    /// Connects and runs until both sides are up.
    pub fn up(&mut self, congestion: CongestionControl) {
        self.connect(congestion);
        let until = self.now + Duration::from_secs(5);
        while !(self.site.connected && self.hub.connected) && self.now < until {
            self.run(Duration::from_millis(10));
        }
        assert!(
            self.site.connected && self.hub.connected,
            "{:?}",
            self.site.events
        );
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        self.pump();
        loop {
            let next = [
                self.up.next(),
                self.down.next(),
                self.site.endpoint.poll_timeout(),
                self.hub.endpoint.poll_timeout(),
            ];
            let Some(next) = next.into_iter().flatten().min().filter(|&at| at <= until) else {
                break;
            };
            self.now = self.now.max(next);
            self.deliver();
            self.site.endpoint.handle_timeout(self.now);
            self.hub.endpoint.handle_timeout(self.now);
            self.pump();
        }
        self.now = until;
        self.pump();
    }

    fn deliver(&mut self) {
        let now = self.now;
        for (link, side) in [
            (&mut self.up, &mut self.hub),
            (&mut self.down, &mut self.site),
        ] {
            link.serve(now);
            while let Some((&(at, sequence), _)) = link.in_flight.iter().next()
                && at <= now
            {
                let packet = link.in_flight.remove(&(at, sequence)).unwrap();
                if packet.to == side.address {
                    side.arrive(now, packet.from, packet.ecn, &packet.data);
                }
            }
        }
    }

    pub fn pump(&mut self) {
        self.site.pump(self.now, &mut self.up);
        self.hub.pump(self.now, &mut self.down);
    }

    /// Share of the rate of the way up that arrived as datagrams during `time`.
    pub fn goodput_up(&mut self, time: Duration) -> Rate {
        let before = self.hub.received_bytes;
        self.run(time);
        Rate::from_transfer(self.hub.received_bytes - before, time)
    }
}

impl Side {
    pub fn arrive(&mut self, now: Instant, from: SocketAddr, ecn: Ecn, data: &[u8]) {
        let id = self.endpoint.handle_udp(
            now,
            SocketId::default(),
            from,
            None,
            ecn,
            BytesMut::from(data),
        );
        if let Some(id) = id {
            while let Some(datagram) = self.endpoint.receive(id) {
                self.received += 1;
                self.received_bytes += datagram.len() as u64;
                if self.keep_inbox {
                    self.inbox.push_back(datagram);
                }
            }
        }
    }

    pub fn pump(&mut self, now: Instant, link: &mut Link) {
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
        let mut buf = Vec::new();
        while let Some(transmit) = self.endpoint.poll_stateless(&mut buf) {
            link.send(now, self.address, transmit.destination, transmit.ecn, &buf);
        }
        // As the event loop does: transmit, then offer what the path takes, until it is blocked.
        loop {
            let mut any = false;
            while let Some(id) = self.endpoint.poll_dirty() {
                while let Some(transmit) = self.endpoint.poll_transmit(now, id, &mut buf) {
                    any = true;
                    assert_eq!(transmit.size, buf.len());
                    for data in buf.chunks(transmit.segment_size.unwrap_or(buf.len())) {
                        link.send(now, self.address, transmit.destination, transmit.ecn, data);
                    }
                }
            }
            any |= self.offer(now);
            if !any {
                break;
            }
        }
    }

    fn offer(&mut self, now: Instant) -> bool {
        let Some(id) = self.id.filter(|_| self.saturate > 0 && self.connected) else {
            return false;
        };
        let Some(snapshot) = self.endpoint.snapshot(now, id) else {
            return false;
        };
        let size = self.saturate.min(snapshot.max_datagram);
        let mut left = snapshot.free;
        let mut any = false;
        while left >= size as u64 {
            if self.endpoint.send(id, Bytes::from(vec![7; size])).is_err() {
                break;
            }
            left -= size as u64;
            any = true;
        }
        any
    }

    pub fn send(&mut self, datagram: &[u8]) {
        let id = self.id.unwrap();
        self.endpoint
            .send(id, Bytes::copy_from_slice(datagram))
            .unwrap();
    }
}

/// A sender as the gateway is one: once a millisecond it hands over what the path says it takes,
/// from a source that has data most of the time.
pub struct LateBound {
    random: Random,
    /// Mean time with data and without, milliseconds; zero without means always data.
    pub busy_ms: u64,
    pub idle_ms: u64,
    left_ms: u64,
    busy: bool,
    /// Milliseconds with data so far.
    pub busy_total: u64,
}

impl LateBound {
    pub fn new(busy_ms: u64, idle_ms: u64) -> Self {
        Self {
            random: Random::new(3),
            busy_ms,
            idle_ms,
            left_ms: 0,
            busy: false,
            busy_total: 0,
        }
    }

    /// Runs the world for `time`; answers the mean of window over `product` bytes.
    pub fn run(&mut self, world: &mut World, time: Duration, product: f64) -> f64 {
        let (mut sum, steps) = (0.0, time.as_millis().max(1));
        for _ in 0..steps {
            if self.left_ms == 0 {
                self.busy = !self.busy || self.idle_ms == 0;
                let mean = if self.busy {
                    self.busy_ms
                } else {
                    self.idle_ms
                };
                self.left_ms = 1 + (self.random.unit() * 2.0 * mean as f64) as u64;
            }
            self.left_ms -= 1;
            if self.busy {
                self.busy_total += 1;
                world.site.saturate = 1_400;
                world.site.offer(world.now);
                world.site.saturate = 0;
            }
            world.run(Duration::from_millis(1));
            let id = world.site.id.unwrap();
            sum += world.site.endpoint.snapshot(world.now, id).unwrap().cwnd as f64 / product;
        }
        sum / steps as f64
    }
}
