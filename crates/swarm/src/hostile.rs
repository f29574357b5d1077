//! Hosts that misbehave beside the sites: what a hub has to bear from strangers, and from a site
//! that it knows.
//!
//! Each behaviour runs on a thread of its own, so that it takes no time from the sites. It speaks
//! through the transport of the sites, but sends what no site would.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use clap::ValueEnum;
use ropewalk_io::clock::Clock;
use ropewalk_transport::{
    ConnectOptions, ConnectionId, Endpoint, EndpointConfig, Event, Identity, PublicKey, SocketId,
};
use ropewalk_types::{Ecn, Instant};
use ropewalk_wire::{
    CODED_SEEDS, CodedHeader, Control, DATA_HEADER, DataHeader, Datagram, FRAGMENT_HEADER,
    FragmentHeader, HEADROOM, Hello, NACK_RUNS_MAX, NackRun, Part, Stamp, Timestamp, Versions,
    emit_control, emit_nack,
};

use crate::ping::{Ends, Kind, Requests};
use crate::roster;
use crate::tuning::{
    COMBINED_BYTES, FLOOD_BYTES, HELLO_INTERVAL, HOSTILE_CONNECTIONS_MAX, HOSTILE_PAUSE,
};

/// Bytes of the check in front of a combined packet.
const SYMBOL_CHECK: usize = 4;

/// How a host misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Behaviour {
    /// A stranger that begins handshakes, proves its address, and then falls silent.
    Mute,
    /// A site that says hello with a new number each time.
    Hellos,
    /// A site that opens connections and keeps them all.
    Connections,
    /// A site that asks for thousands of packets to be sent again, again and again.
    Questions,
    /// A site whose packets leave gaps in all 4,096 flow buckets.
    Gaps,
    /// A site whose repair symbols combine 128 packets that the hub knows.
    Combinations,
    /// A site that sends first pieces of large packets, and no others.
    Pieces,
    /// A site that sends one full packet again and again, whatever the path carries.
    Flood,
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.to_possible_value()
                .as_ref()
                .map_or("", |v| v.get_name()),
        )
    }
}

/// What a hostile host needs.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) hub: SocketAddr,
    pub(crate) hub_key: PublicKey,
    /// The key of a site that the hub knows. Strangers do not use it.
    pub(crate) identity: Identity,
    /// Times in a second that it misbehaves.
    pub(crate) rate: f64,
    /// Sockets, of ports of their own, that its connections take in turn: 1 at least.
    pub(crate) sockets: u32,
}

/// Misbehaves until told to stop, and counts how often.
///
/// # Errors
/// The socket cannot be used.
pub(crate) fn run(
    behaviour: Behaviour,
    target: &Target,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> anyhow::Result<()> {
    let mut host = Host::new(behaviour, target)?;
    let started = host.clock.now();
    let mut done: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = host.clock.now();
        host.hear(now)?;
        let due = now.since(started).as_secs_f64() * target.rate;
        // A host that may not misbehave yet does not make up for it.
        while (done as f64) < due {
            done += 1;
            if host.misbehave(now, done)? {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        host.flush(now);
        std::thread::sleep(HOSTILE_PAUSE);
    }
    Ok(())
}

struct Host<'a> {
    behaviour: Behaviour,
    target: &'a Target,
    clock: Clock,
    /// By [`SocketId`].
    sockets: Vec<UdpSocket>,
    endpoint: Endpoint,
    connections: Vec<ConnectionId>,
    /// Of the next connection.
    next_socket: u32,
    /// The first connection is up and has said hello.
    up: Option<ConnectionId>,
    /// The hub has answered the hello.
    welcome: bool,
    /// This start, and when the hello is repeated.
    session: u64,
    hello_due: Instant,
    /// Inner address of the site, as the hub says.
    address: Ipv4Addr,
    /// And of the hub.
    hub: Ipv4Addr,
    path_seq: u16,
    requests: Requests,
    buffer: Vec<u8>,
    /// The sealed packet of a flood.
    sealed: Vec<u8>,
}

impl<'a> Host<'a> {
    fn new(behaviour: Behaviour, target: &'a Target) -> anyhow::Result<Self> {
        let clock = Clock::new();
        let any = if target.hub.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = |_| {
            let socket = UdpSocket::bind(any).context("a hostile host has no socket")?;
            socket.set_nonblocking(true)?;
            anyhow::Ok(socket)
        };
        let sockets = (0..target.sockets).map(socket).collect::<Result<_, _>>()?;
        let identity = match behaviour {
            Behaviour::Mute => Identity::generate()?,
            Behaviour::Hellos
            | Behaviour::Connections
            | Behaviour::Questions
            | Behaviour::Gaps
            | Behaviour::Combinations
            | Behaviour::Pieces
            | Behaviour::Flood => target.identity.clone(),
        };
        let mut config = EndpointConfig::new(identity, clock.to_std(Instant::ZERO));
        config.gso_segments_max = 1;
        let mut host = Self {
            behaviour,
            target,
            sockets,
            next_socket: 0,
            endpoint: Endpoint::new(config)?,
            connections: Vec::new(),
            up: None,
            welcome: false,
            session: roster::start_number()?.max(1),
            hello_due: Instant::ZERO,
            address: Ipv4Addr::UNSPECIFIED,
            hub: Ipv4Addr::UNSPECIFIED,
            path_seq: 0,
            requests: Requests::new(),
            buffer: Vec::new(),
            sealed: Vec::new(),
            clock,
        };
        if behaviour != Behaviour::Mute {
            host.connect(Instant::ZERO)?;
        }
        Ok(host)
    }

    fn connect(&mut self, now: Instant) -> anyhow::Result<()> {
        let Target { hub, hub_key, .. } = *self.target;
        let options = ConnectOptions {
            socket: SocketId(self.next_socket),
            ..ConnectOptions::default()
        };
        self.next_socket = (self.next_socket + 1) % self.target.sockets;
        let connection = self.endpoint.connect_with(now, hub, hub_key, options)?;
        self.connections.push(connection);
        Ok(())
    }

    /// Takes in what has come to a socket.
    fn hear_at(&mut self, now: Instant, socket: SocketId) {
        let mut bytes = [0; 2_048];
        let index = socket.0 as usize;
        while let Some(Ok((length, from))) =
            self.sockets.get(index).map(|s| s.recv_from(&mut bytes))
        {
            // Of a Retry packet (RFC 9000 §17.2.5) all bits above the lowest four are known.
            let is_retry = bytes[0] & 0xf0 == 0xf0;
            if self.behaviour == Behaviour::Mute && !is_retry {
                continue;
            }
            let data = BytesMut::from(&bytes[..length]);
            let on = self
                .endpoint
                .handle_udp(now, socket, from, None, Ecn::NotEct, data);
            while let Some(data) = on.and_then(|id| self.endpoint.receive(id)) {
                if let Ok(Datagram::Control(Control::Welcome(welcome))) = Datagram::parse(&data) {
                    let v4 = |ip: IpAddr| match ip {
                        IpAddr::V4(address) => Some(address),
                        IpAddr::V6(_) => None,
                    };
                    let ours = welcome.addresses.iter().find_map(|(ip, _)| v4(*ip));
                    let hub = welcome.hub_addresses.iter().find_map(|ip| v4(*ip));
                    self.address = ours.unwrap_or(self.address);
                    self.hub = hub.unwrap_or(self.hub);
                    self.welcome = true;
                }
            }
        }
    }

    fn hear(&mut self, now: Instant) -> anyhow::Result<()> {
        for socket in 0..self.target.sockets {
            self.hear_at(now, SocketId(socket));
        }
        self.endpoint.handle_timeout(now);
        while let Some((id, event)) = self.endpoint.poll_event() {
            match event {
                Event::Connected { .. } if self.up.is_none() => {
                    self.up = Some(id);
                    self.welcome = false;
                }
                Event::Connected { .. } => {}
                Event::Closed { .. } => {
                    self.connections.retain(|one| *one != id);
                    if self.up == Some(id) {
                        self.up = None;
                    }
                }
            }
        }
        if self.up.is_some() && !self.welcome && self.hello_due <= now {
            self.hello_due = now + HELLO_INTERVAL;
            self.hello(self.session);
        }
        // What closes it does not end it.
        if self.connections.is_empty() && self.behaviour != Behaviour::Mute {
            self.connect(now)?;
        }
        Ok(())
    }

    fn hello(&mut self, session: u64) {
        let mut bytes = Vec::new();
        let hello = Hello {
            versions: Versions::OURS,
            session,
            path: 0,
            generation: generation(),
            standby: false,
            metered: false,
            bottleneck: None,
            scheduler: 0,
            weight: 0,
            name: "path0".into(),
            claim: None,
        };
        emit_control(&Control::Hello(hello), &mut bytes);
        self.send(bytes);
    }

    fn send(&mut self, bytes: Vec<u8>) -> bool {
        let up = self.up;
        up.is_some_and(|id| self.endpoint.send(id, Bytes::from(bytes)).is_ok())
    }

    fn stamp(&mut self, now: Instant, step: u16) -> Stamp {
        self.path_seq = self.path_seq.wrapping_add(step);
        Stamp {
            path_seq: self.path_seq,
            sent_at: Timestamp::from_instant(now),
        }
    }

    /// Does it once; whether that was possible.
    fn misbehave(&mut self, now: Instant, number: u64) -> anyhow::Result<bool> {
        let low = (number & 0xffff) as u16;
        let stranger = matches!(self.behaviour, Behaviour::Mute | Behaviour::Connections);
        if !stranger && !self.welcome {
            return Ok(false);
        }
        match self.behaviour {
            Behaviour::Mute => {
                // What hangs is this host's own concern: it forgets the oldest.
                if self.connections.len() >= HOSTILE_CONNECTIONS_MAX {
                    let oldest = self.connections.remove(0);
                    self.endpoint.close(now, oldest, "");
                }
                self.connect(now)?;
                Ok(true)
            }
            Behaviour::Connections => {
                if self.connections.len() >= HOSTILE_CONNECTIONS_MAX {
                    return Ok(false);
                }
                self.connect(now)?;
                Ok(true)
            }
            Behaviour::Hellos => {
                let up = self.up.is_some();
                self.hello(1 + number);
                Ok(up)
            }
            Behaviour::Questions => Ok(self.ask(now, low)),
            Behaviour::Gaps => {
                let header = DataHeader {
                    stamp: self.stamp(now, 2),
                    ordered: true,
                    flow: low % 4_096,
                    flow_seq: ((number / 4_096) as u16).wrapping_mul(2),
                    ..DataHeader::default()
                };
                let bytes = data(self.address, &header, 28);
                Ok(self.send(bytes))
            }
            Behaviour::Combinations => Ok(self.combine(now, low)),
            Behaviour::Pieces => {
                let header = DataHeader {
                    stamp: self.stamp(now, 1),
                    flow: low % 4_096,
                    flow_seq: low,
                    ..DataHeader::default()
                };
                let mut front = [0; FRAGMENT_HEADER];
                let piece = FragmentHeader {
                    offset: 0,
                    total: 65_535,
                };
                header.emit_fragment(&piece, &mut front);
                Ok(self.send([&front[..], &[0; 1_000]].concat()))
            }
            Behaviour::Flood => Ok(self.flood(now)),
        }
    }

    /// Pings the hub, and asks for all of its answers again.
    fn ask(&mut self, now: Instant, low: u16) -> bool {
        // The answers to pings are what there is to ask for.
        let ends = Ends {
            from: self.address,
            to: self.hub,
        };
        let ping = self.requests.make(now, Kind::Ping, ends, low, 1_200);
        let header = DataHeader {
            stamp: self.stamp(now, 1),
            flow_seq: low,
            ..DataHeader::default()
        };
        let mut front = [0; DATA_HEADER];
        header.emit(&mut front);
        let sent = self.send([&front[..], &ping[HEADROOM..]].concat());
        let runs: Vec<NackRun> = (0..NACK_RUNS_MAX as u16)
            .map(|run| NackRun {
                path: 0,
                first: low.wrapping_sub(255 * (run % 4)),
                count: 255,
            })
            .collect();
        let mut bytes = Vec::new();
        emit_nack(self.stamp(now, 1), &runs, &mut bytes);
        self.send(bytes) && sent
    }

    /// A large packet and a symbol of packets before it.
    fn combine(&mut self, now: Instant, low: u16) -> bool {
        let stamps = [self.stamp(now, 1), self.stamp(now, 1)];
        let [packet, symbol] = combination(self.address, stamps, low);
        let sent = self.send(packet);
        self.send(symbol) && sent
    }

    /// Sends a sealed packet once more. The hub decrypts it to see that it has come before.
    fn flood(&mut self, now: Instant) -> bool {
        if self.sealed.is_empty() {
            let header = DataHeader {
                stamp: self.stamp(now, 1),
                ..DataHeader::default()
            };
            let bytes = data(self.address, &header, FLOOD_BYTES);
            self.send(bytes);
            self.flush(now);
            return false;
        }
        let socket = self.up.and_then(|id| self.endpoint.socket(id));
        self.send_at(socket.unwrap_or_default(), &self.sealed)
    }

    fn send_at(&self, socket: SocketId, bytes: &[u8]) -> bool {
        let socket = self.sockets.get(socket.0 as usize);
        socket.is_some_and(|socket| socket.send_to(bytes, self.target.hub).is_ok())
    }

    fn flush(&mut self, now: Instant) {
        while let Some(id) = self.endpoint.poll_dirty() {
            while let Some(transmit) = self.endpoint.poll_transmit(now, id, &mut self.buffer) {
                if self.buffer.len() >= usize::from(FLOOD_BYTES) {
                    self.sealed.clone_from(&self.buffer);
                }
                // What does not fit is lost, as on the way.
                self.send_at(transmit.socket, &self.buffer);
            }
        }
    }
}

/// An inner packet of the site at `address` that goes nowhere.
fn data(address: Ipv4Addr, header: &DataHeader, length: u16) -> Vec<u8> {
    let mut front = [0; DATA_HEADER];
    header.emit(&mut front);
    let mut ip = vec![0; usize::from(length)];
    (ip[0], ip[8], ip[9]) = (0x45, 1, 253);
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[12..16].copy_from_slice(&address.octets());
    ip[16..20].copy_from_slice(&[192, 0, 2, 1]);
    [&front[..], &ip].concat()
}

/// A packet, and a symbol of the 255 datagrams before the latest 255. Half of those were such packets, and the hub
/// takes each out of the symbol.
fn combination(address: Ipv4Addr, stamps: [Stamp; 2], number: u16) -> [Vec<u8>; 2] {
    let [stamp, symbol_stamp] = stamps;
    let header = DataHeader {
        stamp,
        flow_seq: number,
        ..DataHeader::default()
    };
    let packet = data(address, &header, COMBINED_BYTES);
    let coded = CodedHeader {
        stamp: symbol_stamp,
        path: 0,
        first: symbol_stamp.path_seq.wrapping_sub(510),
        count: u8::MAX,
        seed: (number % u16::from(CODED_SEEDS)) as u8,
        part: Part::Whole,
    };
    let mut symbol = Vec::new();
    coded.emit(&mut symbol);
    symbol.extend_from_slice(&[0xff; 32]);
    // A hub takes no packet out of a symbol that is shorter.
    symbol.resize(symbol.len() + SYMBOL_CHECK + packet.len(), 0);
    [packet, symbol]
}

/// Newer than that of any host before: the seconds of the clock.
fn generation() -> u32 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The rate at which a behaviour is tried unless another is given, times in a second.
pub(crate) const fn usual_rate(behaviour: Behaviour) -> f64 {
    match behaviour {
        Behaviour::Mute => 200.0,
        Behaviour::Connections => 100.0,
        Behaviour::Hellos | Behaviour::Questions => 1_000.0,
        Behaviour::Gaps | Behaviour::Combinations | Behaviour::Pieces => 2_000.0,
        Behaviour::Flood => 50_000.0,
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_core::path::PathConfig;
    use ropewalk_core::tunnel::{Tunnel, TunnelConfig};
    use ropewalk_types::{Duration, PathId, steps};

    use super::*;

    #[test]
    fn combinations_make_the_hub_take_128_packets_out_of_each_symbol() {
        let config = TunnelConfig {
            scheduler: Default::default(),
            probe_interval: None,
            classes: Default::default(),
            hold: Default::default(),
            send: Default::default(),
        };
        let (mut tunnel, mut now) = (Tunnel::new(config, 1), Instant::from_millis(1_000));
        tunnel.add_path(now, PathId(0), PathConfig::default());
        let mut costs = Vec::new();
        for round in 0..1_000 {
            now += Duration::from_micros(500);
            let stamps = [0, 1].map(|half| Stamp {
                path_seq: 2 * round + half,
                sent_at: Timestamp::from_instant(now),
            });
            let [packet, symbol] = combination(Ipv4Addr::LOCALHOST, stamps, round);
            assert!(symbol.len() < 1_100, "it fits every path");
            tunnel.handle_datagram(now, PathId(0), Ecn::NotEct, packet.into());
            let before = steps();
            tunnel.handle_datagram(now, PathId(0), Ecn::NotEct, symbol.into());
            costs.push(steps() - before);
            tunnel.end_batch(now);
            while tunnel.poll_inner().is_some() {}
        }
        // 16 bytes in a step. Other builds count none.
        let least = 127 * u64::from(COMBINED_BYTES) / 16;
        let last = &costs[900..];
        let dear = last.iter().all(|cost| *cost > least);
        assert!(!cfg!(debug_assertions) || dear, "{last:?} steps");
    }
}
