//! Sub-tunnels of the real transport: QUIC with its handshake, path MTU discovery, encryption and
//! any of its congestion controls, in virtual time.
//!
//! The handshake and the search for the MTU happen before the run, over an idle path that only
//! delays, so that the endpoints' clock is ahead of the run's by `prelude`. Keys are random, so the
//! bytes of packets differ from run to run; their number, sizes and times do not, and only those
//! count for the trace hash. A path that falls silent keeps its connection, where a gateway would
//! build a new one: after a cut, probes find the path again, later the longer it lasted.

use super::{IP_UDP, LinkItem, Settings, SubTunnel};
use crate::engine::NEVER;
use crate::run::SimError;
use bytes::{Bytes, BytesMut};
use ropewalk_transport::{
    ConnectOptions, ConnectionId, Ecn, Endpoint, EndpointConfig, Identity, SocketId, TransportError,
};
use ropewalk_types::{Duration, Instant, PathSnapshot, Random};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Round trips and time that handshake and MTU discovery get.
const PRELUDE_ROUND_TRIPS: u32 = 16;
const PRELUDE_MIN: Duration = Duration::from_secs(1);
/// No simulated silence ends a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Addresses of site and hub; nothing routes by them.
const PORTS: [u16; 2] = [1, 2];

/// A UDP datagram on the link.
#[derive(Debug)]
pub struct Datagram {
    number: u32,
    data: BytesMut,
}

impl LinkItem for Datagram {
    fn ip_bytes(&self) -> u64 {
        self.data.len() as u64 + IP_UDP
    }

    fn digest(&self) -> u64 {
        u64::from(self.number) << 32 | self.data.len() as u64
    }
}

/// One end of one path.
pub struct QuicTunnel {
    endpoint: Endpoint,
    id: ConnectionId,
    peer: SocketAddr,
    prelude: Duration,
    buffer: Vec<u8>,
    sent: u32,
    news: bool,
}

impl core::fmt::Debug for QuicTunnel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QuicTunnel")
            .field("id", &self.id)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl QuicTunnel {
    /// The run's time as the endpoint's.
    fn ahead(&self, now: Instant) -> Instant {
        now + self.prelude
    }

    /// The endpoint's time as the run's.
    fn back(&self, at: Instant) -> Instant {
        Instant::ZERO + at.since(Instant::ZERO + self.prelude)
    }
}

impl SubTunnel for QuicTunnel {
    type Packet = Datagram;

    fn pair(settings: &Settings, seed: u64) -> Result<[Self; 2], SimError> {
        let failed = |problem: String| SimError::setting("carrier.transport", problem);
        let mut prelude =
            Prelude::new(settings, seed).map_err(|error| failed(error.to_string()))?;
        let ids = prelude.run().map_err(failed)?;
        let spent = prelude.now.since(Instant::ZERO);
        let mut ends = prelude.endpoints.into_iter().zip(ids).enumerate();
        let mut end = || {
            let (index, (endpoint, id)) = ends.next()?;
            Some(Self {
                endpoint,
                id,
                peer: address(1 - index),
                prelude: spent,
                buffer: Vec::new(),
                sent: 0,
                news: true,
            })
        };
        match [end(), end()] {
            [Some(site), Some(hub)] => Ok([site, hub]),
            _ => Err(failed("a tunnel has two ends".into())),
        }
    }

    fn take_news(&mut self) -> Option<PathSnapshot> {
        if !core::mem::take(&mut self.news) {
            return None;
        }
        let now = Instant::ZERO + self.prelude;
        let mut snapshot = self.endpoint.snapshot(now, self.id)?;
        snapshot.next_credit = snapshot.next_credit.map(|at| self.back(at));
        snapshot.silent_since = snapshot.silent_since.map(|at| self.back(at));
        snapshot.oldest_sent = snapshot.oldest_sent.map(|at| self.back(at));
        Some(snapshot)
    }

    fn due_ns(&mut self) -> u64 {
        let due = self.endpoint.poll_timeout();
        due.map_or(NEVER, |at| self.back(at).as_nanos())
    }

    fn push(&mut self, datagram: Bytes) {
        self.news = true;
        // Refused only where the scheduler disregards window and MTU; then it is lost, as there.
        let _refused = self.endpoint.send(self.id, datagram);
    }

    fn push_urgent(&mut self, datagram: Bytes) {
        self.news = true;
        // Refused only where the connection is gone, as there.
        let _refused = self.endpoint.send_urgent(self.id, datagram);
    }

    fn declare_lost(&mut self) {
        self.news = true;
        self.endpoint.declare_lost(self.id);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Datagram> {
        let at = self.ahead(now);
        let transmit = self.endpoint.poll_transmit(at, self.id, &mut self.buffer)?;
        self.news = true;
        self.sent = self.sent.wrapping_add(1);
        Some(Datagram {
            number: self.sent,
            data: BytesMut::from(&self.buffer[..transmit.size]),
        })
    }

    fn on_packet(&mut self, now: Instant, packet: Datagram, mut take: impl FnMut(Bytes)) -> bool {
        let at = self.ahead(now);
        self.endpoint.handle_udp(
            at,
            SocketId::default(),
            self.peer,
            None,
            Ecn::NotEct,
            packet.data,
        );
        while let Some(datagram) = self.endpoint.receive(self.id) {
            take(datagram);
        }
        self.news = true;
        while self.endpoint.poll_dirty().is_some() {}
        true
    }

    fn on_timer(&mut self, now: Instant) {
        let at = self.ahead(now);
        self.endpoint.handle_timeout(at);
        self.news = true;
    }
}

/// Both endpoints before the run, over a path that only delays.
struct Prelude {
    now: Instant,
    endpoints: [Endpoint; 2],
    delays: [Duration; 2],
    /// Under way to each end.
    wires: [VecDeque<(Instant, BytesMut)>; 2],
}

impl Prelude {
    fn new(settings: &Settings, seed: u64) -> Result<Self, TransportError> {
        let mut random = Random::new(seed);
        let mut bytes = || -> [u8; 32] {
            let mut bytes = [0; 32];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next_u64().to_le_bytes());
            }
            bytes
        };
        let base = std::time::Instant::now();
        let mut configs = Vec::new();
        for _ in 0..2 {
            let identity = Identity::from_seed(bytes())
                .map_err(|error| TransportError::Config(error.to_string()))?;
            let mut config = EndpointConfig::new(identity, base);
            config.congestion = settings.congestion;
            config.gso_segments_max = 1;
            config.seed = Some(bytes());
            config.idle_timeout = IDLE_TIMEOUT;
            config.keep_alive = None;
            configs.push(config);
        }
        let [site, mut hub] = <[EndpointConfig; 2]>::try_from(configs)
            .map_err(|_| TransportError::Config("two ends".into()))?;
        let (site_key, hub_key) = (site.identity.public_key(), hub.identity.public_key());
        hub.allowed = Some(Arc::new(move |key| *key == site_key));
        let mut endpoints = [Endpoint::new(site)?, Endpoint::new(hub)?];
        let options = ConnectOptions {
            congestion: settings.congestion,
            ..ConnectOptions::default()
        };
        endpoints[0].connect_with(Instant::ZERO, address(1), hub_key, options)?;
        Ok(Self {
            now: Instant::ZERO,
            endpoints,
            delays: settings.delays,
            wires: [VecDeque::new(), VecDeque::new()],
        })
    }

    /// Lets time pass until both are connected, know their MTU and nothing is under way.
    fn run(&mut self) -> Result<[ConnectionId; 2], String> {
        let mut ids = [None, None];
        let round_trip = self.delays[0] + self.delays[1];
        let enough = Instant::ZERO + PRELUDE_MIN + round_trip * PRELUDE_ROUND_TRIPS;
        loop {
            self.transmit();
            for (end, endpoint) in self.endpoints.iter_mut().enumerate() {
                while let Some((id, event)) = endpoint.poll_event() {
                    match event {
                        ropewalk_transport::Event::Connected { .. } => ids[end] = Some(id),
                        ropewalk_transport::Event::Closed { reason } => {
                            return Err(format!("the handshake failed: {reason}"));
                        }
                    }
                }
            }
            let arrivals = self.wires.iter().filter_map(|wire| Some(wire.front()?.0));
            let arrival = arrivals.min();
            if let ([Some(site), Some(hub)], None) = (ids, arrival)
                && self.now >= enough
            {
                return Ok([site, hub]);
            }
            let timers = self.endpoints.iter_mut().filter_map(Endpoint::poll_timeout);
            let next = timers.chain(arrival).min().unwrap_or(enough);
            // Whoever has nothing to wait for waits for the end.
            let next = if arrival.is_none() && next > enough && self.now < enough {
                enough
            } else {
                next
            };
            if next.since(enough) > PRELUDE_MIN {
                return Err("the handshake does not end".into());
            }
            self.now = next.max(self.now);
            for (end, endpoint) in self.endpoints.iter_mut().enumerate() {
                let wire = &mut self.wires[end];
                while wire.front().is_some_and(|(at, _)| *at <= self.now) {
                    let Some((_, data)) = wire.pop_front() else {
                        break;
                    };
                    let socket = SocketId::default();
                    endpoint.handle_udp(
                        self.now,
                        socket,
                        address(1 - end),
                        None,
                        Ecn::NotEct,
                        data,
                    );
                }
                endpoint.handle_timeout(self.now);
            }
        }
    }

    fn transmit(&mut self) {
        let mut buffer = Vec::new();
        for (end, endpoint) in self.endpoints.iter_mut().enumerate() {
            while let Some(id) = endpoint.poll_dirty() {
                while let Some(transmit) = endpoint.poll_transmit(self.now, id, &mut buffer) {
                    let at = self.now + self.delays[end];
                    let data = BytesMut::from(&buffer[..transmit.size]);
                    self.wires[1 - end].push_back((at, data));
                }
            }
        }
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, PORTS[end]))
}
