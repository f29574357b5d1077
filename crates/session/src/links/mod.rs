//! The fabric of links: QUIC connections over UDP sockets and TLS connections over TCP, behind
//! one handle, so that roles and tunnels need not care.
//!
//! Invariant: a [`LinkId`] names one connection for its whole life and is never reused; after
//! [`LinkEvent::Closed`] every call with it is a no-op.

mod tls;
mod udp;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_io::udp::RecvMeta;
use ropewalk_transport::{
    CongestionControl, ConnectOptions, ConnectionId, Endpoint, EndpointConfig, EndpointStats,
    Event, Identity, KeyCheck, PublicKey,
};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};

pub use udp::SocketId;

use tls::{Listener, Stream};
use udp::Socket;

/// Datagrams in one segmented send; more makes the first ones wait for the last.
const GSO_SEGMENTS: usize = 32;
/// Bounds of the UDP payload that path MTU discovery tries.
pub const MTU_MIN: u16 = 1_200;
/// Upper bound.
pub const MTU_MAX: u16 = 8_972;
/// Bytes of one segmented send at most.
const TRANSMIT_BYTES: usize = 65_507;

/// Names a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    slot: u32,
    serial: u32,
}

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The peer proved its key.
    Connected {
        /// Its key.
        peer: PublicKey,
    },
    /// The link is gone.
    Closed {
        /// Why, in words.
        reason: String,
    },
}

/// A datagram that came in.
#[derive(Debug)]
pub struct Received {
    /// Over which link.
    pub link: LinkId,
    /// ECN field of the outer header.
    pub ecn: Ecn,
    /// The datagram.
    pub data: Bytes,
}

#[derive(Debug)]
enum Kind {
    Quic {
        connection: ConnectionId,
        socket: SocketId,
    },
    Tls(Box<Stream>),
}

#[derive(Debug)]
struct Link {
    serial: u32,
    kind: Kind,
    dscp: u8,
    dirty: bool,
}

/// What epoll says is ready; encoded in the event's user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The TUN interface.
    Tun,
    /// The control side woke the loop.
    Wake,
    /// A UDP socket.
    Udp(u32),
    /// A TCP connection: slot of the link.
    Stream(u32),
    /// A listening TCP socket.
    Listener(u32),
}

impl Ready {
    /// As epoll user data.
    #[must_use]
    pub const fn encode(self) -> u64 {
        match self {
            Self::Tun => 0,
            Self::Wake => 1,
            Self::Udp(i) => 2 << 32 | i as u64,
            Self::Stream(i) => 3 << 32 | i as u64,
            Self::Listener(i) => 4 << 32 | i as u64,
        }
    }

    /// From epoll user data.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    pub const fn decode(data: u64) -> Self {
        match data >> 32 {
            2 => Self::Udp(data as u32),
            3 => Self::Stream(data as u32),
            4 => Self::Listener(data as u32),
            _ if data == 0 => Self::Tun,
            _ => Self::Wake,
        }
    }
}

/// Counted drops of the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricDrops {
    /// Datagrams the socket had no room for.
    pub socket_full: u64,
    /// Datagrams the network stack refused (no route, address gone).
    pub unreachable: u64,
    /// Datagrams a link refused: closed, or larger than it takes now.
    pub link_refused: u64,
    /// TCP connections refused because too many were open.
    pub streams_refused: u64,
}

/// All sockets and links of a gateway.
pub struct Fabric {
    epoll: Arc<OwnedFd>,
    identity: Identity,
    allowed: Option<KeyCheck>,
    endpoint: Endpoint,
    sockets: Vec<Option<Socket>>,
    listeners: Vec<Listener>,
    links: Vec<Option<Link>>,
    by_connection: FxHashMap<ConnectionId, LinkId>,
    last: Option<(ConnectionId, LinkId)>,
    serial: u32,
    dirty: VecDeque<LinkId>,
    events: VecDeque<(LinkId, LinkEvent)>,
    buffer: Vec<u8>,
    arrivals: Vec<(RecvMeta, BytesMut)>,
    socket_buffer_bytes: usize,
    drops: FabricDrops,
    sweep_due: Instant,
}

/// How to make a [`Fabric`].
pub struct FabricConfig {
    /// Key pair of this gateway.
    pub identity: Identity,
    /// Keys that may connect; `None` accepts nobody.
    pub allowed: Option<KeyCheck>,
    /// Congestion control of accepted connections.
    pub congestion: CongestionControl,
    /// The system's instant that is zero here.
    pub base: std::time::Instant,
    /// Whether segmentation offload may be used.
    pub offload: bool,
    /// Requested size of each UDP socket's buffers.
    pub socket_buffer_bytes: usize,
    /// Largest UDP payload that path MTU discovery tries on accepted connections.
    pub mtu_max: u16,
    /// The event queue sockets are registered with.
    pub epoll: Arc<OwnedFd>,
}

impl Fabric {
    /// A fabric without sockets.
    ///
    /// # Errors
    /// When the TLS library refuses the key.
    pub fn new(config: FabricConfig) -> anyhow::Result<Self> {
        let mut endpoint = EndpointConfig::new(config.identity.clone(), config.base);
        endpoint.allowed.clone_from(&config.allowed);
        endpoint.congestion = config.congestion;
        endpoint.gso_segments_max = if config.offload { GSO_SEGMENTS } else { 1 };
        endpoint.keep_alive = None;
        endpoint.idle_timeout = IDLE_TIMEOUT;
        endpoint.mtu_max = config.mtu_max.clamp(MTU_MIN, MTU_MAX);
        Ok(Self {
            epoll: config.epoll,
            identity: config.identity,
            allowed: config.allowed,
            endpoint: Endpoint::new(endpoint)?,
            sockets: Vec::new(),
            listeners: Vec::new(),
            links: Vec::new(),
            by_connection: FxHashMap::default(),
            last: None,
            serial: 0,
            dirty: VecDeque::new(),
            events: VecDeque::new(),
            buffer: Vec::with_capacity(TRANSMIT_BYTES),
            arrivals: Vec::new(),
            socket_buffer_bytes: config.socket_buffer_bytes,
            drops: FabricDrops::default(),
            sweep_due: Instant::ZERO,
        })
    }

    fn register(
        &self,
        fd: impl AsFd,
        ready: Ready,
        flags: epoll::EventFlags,
    ) -> anyhow::Result<()> {
        let data = epoll::EventData::new_u64(ready.encode());
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    fn insert(&mut self, kind: Kind) -> LinkId {
        self.serial = self.serial.wrapping_add(1);
        let slot = self
            .links
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.links.push(None);
                self.links.len() - 1
            });
        let serial = self.serial;
        self.links[slot] = Some(Link {
            serial,
            kind,
            dscp: 0,
            dirty: false,
        });
        LinkId {
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            serial,
        }
    }

    fn link(&self, id: LinkId) -> Option<&Link> {
        self.links
            .get(id.slot as usize)?
            .as_ref()
            .filter(|l| l.serial == id.serial)
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links
            .get_mut(id.slot as usize)?
            .as_mut()
            .filter(|l| l.serial == id.serial)
    }

    /// Starts a QUIC connection from `socket`.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn connect_quic(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        key: &PublicKey,
        options: ConnectOptions,
    ) -> anyhow::Result<LinkId> {
        let connection = self.endpoint.connect_with(now, remote, *key, options)?;
        let link = self.insert(Kind::Quic { connection, socket });
        self.by_connection.insert(connection, link);
        self.mark_dirty(link);
        Ok(link)
    }

    /// Sends a datagram when the next [`Fabric::flush`] comes. Refusals are counted.
    pub fn send(&mut self, now: Instant, id: LinkId, datagram: Bytes, dscp: u8) {
        let Some(link) = self
            .links
            .get_mut(id.slot as usize)
            .and_then(Option::as_mut)
        else {
            self.drops.link_refused += 1;
            return;
        };
        if link.serial != id.serial {
            self.drops.link_refused += 1;
            return;
        }
        // One outer packet carries several inner ones: a change of codepoint starts a new one.
        if link.dscp != dscp && link.dirty {
            self.flush(now, id);
        }
        let Some(link) = self.links[id.slot as usize].as_mut() else {
            return;
        };
        link.dscp = dscp;
        let sent = match &mut link.kind {
            Kind::Quic { connection, .. } => self.endpoint.send(*connection, datagram),
            Kind::Tls(stream) => stream.tls.send(datagram),
        };
        if sent.is_err() {
            self.drops.link_refused += 1;
        }
        self.mark_dirty(id);
    }

    /// [`Self::send`] for a small datagram that has to leave although the window is full. Over
    /// TCP it waits like any other.
    pub fn send_urgent(&mut self, id: LinkId, datagram: Bytes) {
        let Some(link) = self.link_mut(id) else {
            self.drops.link_refused += 1;
            return;
        };
        let connection = match &mut link.kind {
            Kind::Quic { connection, .. } => Some(*connection),
            Kind::Tls(stream) => {
                self.drops.link_refused += u64::from(stream.tls.send(datagram.clone()).is_err());
                None
            }
        };
        if let Some(connection) = connection {
            let sent = self.endpoint.send_urgent(connection, datagram);
            self.drops.link_refused += u64::from(sent.is_err());
        }
        self.mark_dirty(id);
    }

    /// Takes everything in flight on a link for lost. TCP finds its losses itself.
    pub fn declare_lost(&mut self, id: LinkId) {
        if let Some(&Link {
            kind: Kind::Quic { connection, .. },
            ..
        }) = self.link(id)
        {
            self.endpoint.declare_lost(connection);
        }
    }

    fn mark_dirty(&mut self, id: LinkId) {
        if let Some(link) = self.link_mut(id)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Hands what a link has to send to its socket.
    pub fn flush(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        link.dirty = false;
        let dscp = link.dscp;
        match &mut link.kind {
            Kind::Quic { connection, socket } => {
                let (connection, socket) = (*connection, *socket);
                self.flush_quic(now, connection, socket, dscp);
            }
            Kind::Tls(stream) => {
                if let Err(reason) = stream.write() {
                    self.fail(id, reason);
                }
            }
        }
    }

    fn flush_quic(&mut self, now: Instant, connection: ConnectionId, socket: SocketId, dscp: u8) {
        loop {
            self.buffer.clear();
            let transmit = self
                .endpoint
                .poll_transmit(now, connection, &mut self.buffer);
            let Some(transmit) = transmit else { break };
            self.transmit(&transmit, socket, dscp);
        }
    }

    fn collect_dirty(&mut self) {
        while let Some(connection) = self.endpoint.poll_dirty() {
            if let Some(&id) = self.by_connection.get(&connection) {
                self.mark_dirty(id);
            }
        }
    }

    /// The links to which something happened since everything was last flushed: input, a timer,
    /// something to send.
    pub fn active_links(&mut self) -> impl Iterator<Item = LinkId> {
        self.collect_dirty();
        self.dirty.iter().copied()
    }

    /// Flushes every link that has something to send, and what belongs to none.
    pub fn flush_all(&mut self, now: Instant) {
        self.collect_dirty();
        while let Some(id) = self.dirty.pop_front() {
            self.flush(now, id);
        }
        self.flush_stateless();
    }

    /// The transport's report on a link.
    #[must_use]
    pub fn snapshot(&mut self, now: Instant, id: LinkId) -> Option<PathSnapshot> {
        let link = self.links.get_mut(id.slot as usize)?.as_mut();
        match &mut link.filter(|l| l.serial == id.serial)?.kind {
            Kind::Quic { connection, .. } => self.endpoint.snapshot(now, *connection),
            Kind::Tls(stream) => stream.snapshot(now),
        }
    }

    /// The next event of any link.
    pub fn poll_event(&mut self) -> Option<(LinkId, LinkEvent)> {
        while let Some((connection, event)) = self.endpoint.poll_event() {
            match event {
                Event::Connected { peer } => {
                    if let Some(&id) = self.by_connection.get(&connection) {
                        self.events.push_back((id, LinkEvent::Connected { peer }));
                    }
                }
                Event::Closed { reason } => {
                    if let Some(id) = self.by_connection.remove(&connection) {
                        self.last = None;
                        self.links[id.slot as usize] = None;
                        let reason = reason.to_string();
                        self.events.push_back((id, LinkEvent::Closed { reason }));
                    }
                }
            }
        }
        self.events.pop_front()
    }

    /// Drops a link whose stream failed.
    fn fail(&mut self, id: LinkId, reason: String) {
        if self.link(id).is_some() {
            self.links[id.slot as usize] = None;
            self.events.push_back((id, LinkEvent::Closed { reason }));
        }
    }

    /// Closes a link; no event follows for a stream, one may for a connection.
    pub fn close(&mut self, now: Instant, id: LinkId, reason: &str) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match &mut link.kind {
            Kind::Quic { connection, .. } => {
                let connection = *connection;
                self.endpoint.close(now, connection, reason);
                // At once: the link may be forgotten before the next flush.
                self.flush(now, id);
            }
            Kind::Tls(stream) => {
                stream.tls.close();
                // Best effort: a full socket loses the farewell, the peer notices the close.
                stream.write().unwrap_or_default();
                self.links[id.slot as usize] = None;
            }
        }
    }

    /// The local address or route of a link changed under it.
    pub fn address_changed(&mut self, id: LinkId) {
        if let Some(&Link {
            kind: Kind::Quic { connection, .. },
            ..
        }) = self.link(id)
        {
            self.endpoint.address_changed(connection);
            self.mark_dirty(id);
        }
    }

    /// Address of the peer.
    #[must_use]
    pub fn remote(&self, id: LinkId) -> Option<SocketAddr> {
        match &self.link(id)?.kind {
            Kind::Quic { connection, .. } => self.endpoint.remote(*connection),
            Kind::Tls(stream) => Some(stream.remote),
        }
    }

    /// `quic` or `tls`.
    #[must_use]
    pub fn transport(&self, id: LinkId) -> &'static str {
        match self.link(id).map(|l| &l.kind) {
            Some(Kind::Quic { .. }) => "quic",
            Some(Kind::Tls(_)) => "tls",
            None => "",
        }
    }

    /// Local address of the socket below a link.
    #[must_use]
    pub fn local(&self, id: LinkId) -> Option<SocketAddr> {
        match &self.link(id)?.kind {
            Kind::Quic { socket, .. } => self.socket_address(*socket),
            Kind::Tls(stream) => stream.local(),
        }
    }

    /// Largest UDP payload, and outer bytes sent and received.
    #[must_use]
    pub fn outer_counters(&self, id: LinkId) -> (usize, u64, u64) {
        match self.link(id).map(|l| &l.kind) {
            Some(Kind::Quic { connection, .. }) => {
                let counters = self.endpoint.counters(*connection).unwrap_or_default();
                let mtu = self.endpoint.mtu(*connection);
                (mtu, counters.sent_bytes, counters.received_bytes)
            }
            Some(Kind::Tls(stream)) => (0, stream.sent_bytes, stream.received_bytes),
            None => (0, 0, 0),
        }
    }

    /// When [`Fabric::handle_timeout`] is wanted.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let streams = self.links.iter().flatten().filter_map(|l| match &l.kind {
            Kind::Tls(stream) => stream.poll_timeout(),
            Kind::Quic { .. } => None,
        });
        let streams = streams.min();
        let sweep = (!self.by_connection.is_empty()).then_some(self.sweep_due);
        [self.endpoint.poll_timeout(), streams, sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets timers of connections and streams go off.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.stream_timers(now);
        if self.sweep_due <= now {
            self.sweep_due = now + SWEEP_INTERVAL;
            self.sweep();
        }
    }

    /// Forgets links whose connection the endpoint has let go without a word: refused or
    /// abandoned handshakes, and what a closed connection still received while it drained.
    fn sweep(&mut self) {
        for slot in 0..self.links.len() {
            let Some(Link {
                serial,
                kind: Kind::Quic { connection, .. },
                ..
            }) = &self.links[slot]
            else {
                continue;
            };
            let (connection, serial) = (*connection, *serial);
            if self.endpoint.remote(connection).is_none() {
                self.links[slot] = None;
                self.by_connection.remove(&connection);
                self.last = None;
                let id = LinkId {
                    slot: u32::try_from(slot).unwrap_or(u32::MAX),
                    serial,
                };
                let reason = "the connection ended".to_owned();
                self.events.push_back((id, LinkEvent::Closed { reason }));
            }
        }
    }

    /// Counters of the QUIC endpoint.
    #[must_use]
    pub fn endpoint_stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }

    /// Counted drops.
    #[must_use]
    pub const fn drops(&self) -> FabricDrops {
        self.drops
    }
}

/// An unspecified address of the same family as `like`.
#[must_use]
pub fn any_address(like: &SocketAddr, port: u16) -> SocketAddr {
    let ip = if like.is_ipv4() {
        IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
    };
    SocketAddr::new(ip, port)
}

/// How often links without a connection are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// A connection that hears nothing for so long ends. It has to outlive outages: the one that was
/// there before is back within a round trip, a new one takes several.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(8);
