//! Somebody with a key that the hub knows, and bad intentions: wrong hellos, datagrams of another site's tunnel
//! with errors in them, and packets of another site's connections, repeated or changed.
//!
//! Invariant: the hostile site has no other way into the world than packets.

use bytes::{Bytes, BytesMut};
use ropewalk_core::tunnel::{Observer, Outgoing};
use ropewalk_testkit::packet::Body;
use ropewalk_testkit::{HUB_UDP, Packet, Tap};
use ropewalk_transport::{
    CongestionControl, ConnectionId, Endpoint, EndpointConfig, Event, Identity, PublicKey, SocketId,
};
use ropewalk_types::{Ecn, Instant, PathId, PathSnapshot, Random};
use ropewalk_wire::{Claim, Control, Hello, Versions, emit_control};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::tuning::{HOSTILE_BYTES, HOSTILE_KEPT};

/// Where it is.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 66)), 6_666);

type Kept = Arc<Mutex<VecDeque<Bytes>>>;

/// The hostile site.
pub struct Hostile {
    identity: Identity,
    endpoint: Endpoint,
    hub: PublicKey,
    connection: Option<ConnectionId>,
    is_up: bool,
    /// Whether it says of itself which hub serves it.
    claims: bool,
    random: Random,
    /// Datagrams of another site's tunnel.
    datagrams: Kept,
    /// Packets of another site's connections.
    packets: VecDeque<Packet>,
    buffer: Vec<u8>,
}

/// Listens to a tunnel.
struct Ear(Kept);

impl Observer for Ear {
    fn on_sent(&mut self, _: Instant, sent: &Outgoing, _: &PathSnapshot, _: u64) {
        keep(
            &mut self.0.lock().unwrap_or_else(PoisonError::into_inner),
            sent.datagram.clone(),
        );
    }

    fn on_received(&mut self, _: Instant, _: PathId, _: &Bytes) {}
}

fn keep<T>(kept: &mut VecDeque<T>, item: T) {
    if kept.len() >= HOSTILE_KEPT {
        kept.pop_front();
    }
    kept.push_back(item);
}

impl Hostile {
    /// A hostile site with this key that has done nothing yet.
    pub fn new(identity: Identity, hub: PublicKey, mut random: Random, claims: bool) -> Self {
        let mut config = EndpointConfig::new(identity.clone(), std::time::Instant::now());
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        config.seed = Some(seed);
        config.gso_segments_max = 1;
        Self {
            identity,
            endpoint: Endpoint::new(config).expect("a valid key"),
            hub,
            connection: None,
            is_up: false,
            claims,
            random,
            datagrams: Kept::default(),
            packets: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Listens to the tunnel of another site.
    pub fn ear(&self) -> Box<dyn Observer> {
        Box::new(Ear(Arc::clone(&self.datagrams)))
    }

    /// Sees a packet of another site that has arrived.
    pub fn see(&mut self, tap: Tap) {
        // What did not arrive would be no repetition: it could end an outage.
        if !tap.leaves && tap.packet.is_udp() {
            keep(&mut self.packets, tap.packet);
        }
    }

    /// Gets a packet of the hub.
    pub fn hear(&mut self, now: Instant, packet: Packet) {
        let (from, to) = (packet.from, packet.to);
        if let (Body::Udp(ecn, data), true) = (packet.body, to == ADDRESS) {
            let socket = SocketId::default();
            let link = self.endpoint.handle_udp(now, socket, from, None, ecn, data);
            while link.is_some_and(|link| self.endpoint.receive(link).is_some()) {}
        }
    }

    /// Does something bad; the packets that it sends, some of them to another site.
    pub fn act(&mut self, now: Instant) -> Vec<Packet> {
        self.endpoint.handle_timeout(now);
        while let Some((link, event)) = self.endpoint.poll_event() {
            if self.connection == Some(link) {
                self.is_up = matches!(event, Event::Connected { .. });
                self.connection = self.connection.filter(|_| self.is_up);
            }
        }
        match self.connection {
            None => {
                let control = CongestionControl::default();
                let link = self.endpoint.connect(now, HUB_UDP, self.hub, control);
                self.connection = link.ok();
            }
            Some(link) if self.is_up => self.speak(link),
            Some(_) => {}
        }
        let mut out = Vec::new();
        let index = below(&mut self.random, self.packets.len());
        if let Some(packet) = self.packets.get(index)
            && let Body::Udp(ecn, data) = &packet.body
        {
            let from = if self.random.chance(0.5) {
                packet.from
            } else {
                ADDRESS
            };
            let data = spoil(&mut self.random, data);
            out.push(Packet {
                from,
                to: packet.to,
                body: Body::Udp(*ecn, data),
            });
        }
        self.flush(now, &mut out);
        out
    }

    /// Says something wrong over a connection.
    fn speak(&mut self, link: ConnectionId) {
        if self.random.chance(0.1) {
            let mut bytes = Vec::new();
            emit_control(&Control::Hello(self.hello()), &mut bytes);
            let _refused = self.endpoint.send(link, bytes.into());
        }
        if self.claims && self.random.chance(0.2) {
            let mut bytes = Vec::new();
            let message = Control::Claim {
                claim: self.claim(),
                drained: false,
            };
            emit_control(&message, &mut bytes);
            let _refused = self.endpoint.send(link, bytes.into());
        }
        let kept = self
            .datagrams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for _ in 0..3 {
            let datagram = kept.get(below(&mut self.random, kept.len()));
            if let Some(datagram) = datagram {
                let data = spoil(&mut self.random, datagram);
                let _refused = self.endpoint.send(link, data.freeze());
            }
        }
        drop(kept);
        if self.random.chance(0.01) {
            self.connection = None;
            self.is_up = false;
        }
    }

    /// That some hub or none serves it, in an epoch of any size, and as a rule without its signature.
    fn claim(&mut self) -> Claim {
        let mut hub = *self.hub.as_bytes();
        if self.random.chance(0.5) {
            hub[..8].copy_from_slice(&self.random.next_u64().to_le_bytes());
        }
        let epoch = self.random.next_u64() >> (below(&mut self.random, 64) as u32);
        let mut signature = [0; 64];
        if self.random.chance(0.3) {
            let own = self.identity.public_key();
            signature = self
                .identity
                .sign(&Claim::signed(own.as_bytes(), epoch, &hub));
        }
        Claim {
            epoch,
            hub,
            signature,
        }
    }

    fn hello(&mut self) -> Hello {
        let random = &mut self.random;
        let mut byte = || (random.next_u64() & 0x1f) as u8;
        Hello {
            // One in eight speaks no version of the hub.
            versions: match byte() {
                0..4 => Versions::new(200, 201).unwrap_or(Versions::OURS),
                _ => Versions::OURS,
            },
            session: u64::from(byte()) + 1,
            path: byte() % 16,
            generation: u32::from(byte()),
            standby: byte() > 15,
            metered: byte() > 15,
            bottleneck: Some(byte()),
            scheduler: byte(),
            weight: byte().into(),
            name: "hostile".into(),
            claim: None,
        }
    }

    fn flush(&mut self, now: Instant, out: &mut Vec<Packet>) {
        while let Some(transmit) = self.endpoint.poll_stateless(&mut self.buffer) {
            out.push(packet(transmit.destination, transmit.ecn, &self.buffer));
        }
        while let Some(link) = self.endpoint.poll_dirty() {
            while let Some(transmit) = self.endpoint.poll_transmit(now, link, &mut self.buffer) {
                out.push(packet(transmit.destination, transmit.ecn, &self.buffer));
            }
        }
    }
}

fn packet(to: SocketAddr, ecn: Ecn, data: &[u8]) -> Packet {
    Packet {
        from: ADDRESS,
        to,
        body: Body::Udp(ecn, BytesMut::from(data)),
    }
}

fn below(random: &mut Random, count: usize) -> usize {
    (random.unit() * count as f64) as usize
}

/// The bytes with some errors, or without.
fn spoil(random: &mut Random, bytes: &[u8]) -> BytesMut {
    let mut data = BytesMut::from(bytes);
    if data.is_empty() || random.chance(0.2) {
        return data;
    }
    match below(random, 4) {
        0 => data.truncate(below(random, bytes.len()) + 1),
        1 if data.len() < HOSTILE_BYTES => data.extend_from_slice(&random.next_u64().to_le_bytes()),
        _ => {
            for _ in 0..=below(random, 3) {
                // Headers first: what follows them is only content.
                let reach = if random.chance(0.7) {
                    24.min(data.len())
                } else {
                    data.len()
                };
                let at = below(random, reach);
                data[at] ^= 1 << below(random, 8);
            }
        }
    }
    data
}
