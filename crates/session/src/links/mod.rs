//! The links of a gateway: QUIC connections and TLS connections over TCP behind one name, so that
//! roles and tunnels need not care which it is.
//!
//! Invariants: a [`LinkId`] names one connection for its whole life and is never reused. After
//! [`LinkEvent::Closed`], and after [`Links::close`], every call with it does nothing.

mod census;
mod stream;
mod streams;
mod tuning;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};
use ropewalk_transport::{
    CloseReason, CongestionControl, ConnectOptions, ConnectionId, Endpoint, EndpointConfig, Event,
    Identity, KeyCheck, PublicKey, SocketId, TransportError,
};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot};
use ropewalk_wire::{Control, emit_control};

use crate::io::{Request, Sockets, StreamId};
use crate::keys::group_named;
use crate::settings::{Environment, UDP_PAYLOAD_MAX, UDP_PAYLOAD_MIN};
use census::Census;
use stream::Stream;
use streams::Accepting;
pub use streams::Moved;
use tuning::{GSO_SEGMENTS, IDLE_TIMEOUT};

/// Bytes of one segmented send at most.
const TRANSMIT_BYTES: usize = 65_507;

/// Names a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkId {
    /// A QUIC connection.
    Quic(ConnectionId),
    /// A TLS connection over TCP.
    Tls(StreamId),
}

impl LinkId {
    /// `quic` or `tls`.
    #[must_use]
    pub const fn transport(self) -> &'static str {
        match self {
            Self::Quic(_) => "quic",
            Self::Tls(_) => "tls",
        }
    }
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
        /// Whose key was refused, if that is why.
        refused: Option<RefusedKey>,
        /// As which group the peer wants this side to connect.
        group: Option<u8>,
    },
}

/// Whose key was refused at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKey {
    /// The peer does not know the key of this side.
    Own,
    /// The peer has proved another key than the one that this side expects, or none that this side lists.
    OfPeer,
}

impl RefusedKey {
    const fn of(reason: &CloseReason) -> Option<Self> {
        match reason {
            CloseReason::KeyUnknown => Some(Self::Own),
            CloseReason::KeyRejected(_) => Some(Self::OfPeer),
            CloseReason::TimedOut
            | CloseReason::Reset
            | CloseReason::PeerClosed(_)
            | CloseReason::Local
            | CloseReason::Transport(_)
            | CloseReason::Internal => None,
        }
    }
}

impl LinkEvent {
    /// The end of a link for a reason that has to do with no key.
    fn closed(reason: impl Into<String>) -> Self {
        Self::Closed {
            reason: reason.into(),
            refused: None,
            group: None,
        }
    }
}

impl From<Event> for LinkEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Connected { peer } => Self::Connected { peer },
            Event::Closed { reason } => Self::Closed {
                reason: reason.to_string(),
                refused: RefusedKey::of(&reason),
                group: group_named(&reason),
            },
        }
    }
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

/// What a UDP socket or link reports of its outer packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OuterCounters {
    /// Largest UDP payload, bytes; 0 over TCP.
    pub mtu: usize,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// All links of a gateway, and the names of their sockets.
pub struct Links {
    identity: Identity,
    /// What accepts TCP connections; `None` accepts nobody.
    tls: Option<Accepting>,
    endpoint: Endpoint,
    streams: BTreeMap<StreamId, Box<Stream>>,
    /// Those of `streams` that are not over.
    census: Census,
    /// Timers of streams, each once at most and never later than it is.
    timers: BTreeSet<(Instant, StreamId)>,
    /// On their way to another worker.
    moving: BTreeMap<StreamId, Moved>,
    /// Streams to be flushed, each once.
    dirty: VecDeque<StreamId>,
    /// Events of streams; those of connections wait in the endpoint.
    events: VecDeque<(LinkId, LinkEvent)>,
    requests: VecDeque<Request>,
    /// Sockets to be closed after what is queued has left.
    closing: Vec<SocketId>,
    /// Local addresses of the sockets, as far as the driver has said.
    local: BTreeMap<SocketId, SocketAddr>,
    next_socket: u32,
    next_stream: u32,
    buffer: Vec<u8>,
    refused: u64,
    streams_refused: u64,
}

impl Links {
    /// No links yet. Peers with `allowed` keys may connect; `None` accepts nobody.
    ///
    /// # Errors
    /// When the TLS library refuses the key.
    pub(crate) fn new(
        identity: Identity,
        allowed: Option<KeyCheck>,
        congestion: CongestionControl,
        environment: &Environment,
    ) -> Result<Self, TransportError> {
        let mut config = EndpointConfig::new(identity.clone(), environment.base);
        config.slice = environment.slice;
        config.allowed.clone_from(&allowed);
        config.congestion = congestion;
        config.gso_segments_max = if environment.segmentation {
            GSO_SEGMENTS
        } else {
            1
        };
        config.keep_alive = None;
        config.idle_timeout = IDLE_TIMEOUT;
        config.seed = environment.transport;
        let payload = environment.udp_payload_max;
        config.mtu_max = payload.clamp(UDP_PAYLOAD_MIN, UDP_PAYLOAD_MAX);
        let tls = allowed.map(|allowed| Accepting::new(&identity, allowed));
        Ok(Self {
            tls: tls.transpose()?,
            identity,
            endpoint: Endpoint::new(config)?,
            streams: BTreeMap::new(),
            census: Census::default(),
            timers: BTreeSet::new(),
            moving: BTreeMap::new(),
            dirty: VecDeque::new(),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            closing: Vec::new(),
            local: BTreeMap::new(),
            next_socket: 0,
            next_stream: 0,
            buffer: Vec::with_capacity(TRANSMIT_BYTES),
            refused: 0,
            streams_refused: 0,
        })
    }

    /// The key that new links have.
    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// New links have this key from now on.
    pub(crate) fn set_identity(&mut self, identity: &Identity) {
        let tls = self.tls.as_ref().map(|tls| tls.with(identity)).transpose();
        let set = tls.and_then(|tls| {
            self.endpoint.set_identity(identity.clone())?;
            (self.tls, self.identity) = (tls, identity.clone());
            Ok(())
        });
        if let Err(error) = set {
            tracing::error!(%error, "the key cannot be used");
        }
    }

    /// Asks for a UDP socket, bound to `device` if given.
    pub(crate) fn open_udp(&mut self, bind: SocketAddr, device: Option<&str>) -> SocketId {
        let socket = SocketId(self.next_socket);
        self.next_socket = self.next_socket.wrapping_add(1);
        self.requests.push_back(Request::OpenUdp {
            socket,
            bind,
            device: device.map(str::to_owned),
        });
        socket
    }

    /// Closes a UDP socket once what is queued has left; links over it go silent.
    pub(crate) fn close_udp(&mut self, socket: SocketId) {
        self.local.remove(&socket);
        self.closing.push(socket);
    }

    /// Asks to listen for TLS connections.
    pub(crate) fn listen_tls(&mut self, address: SocketAddr) {
        self.requests.push_back(Request::ListenTcp { address });
    }

    /// The driver says what a socket is bound to.
    pub(crate) fn set_local(&mut self, socket: SocketId, local: SocketAddr) {
        self.local.insert(socket, local);
    }

    /// The next request to the driver.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Starts a QUIC connection through `options.socket`.
    ///
    /// # Errors
    /// When the address cannot be used, or too many connections are open.
    pub(crate) fn connect_quic(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        key: PublicKey,
        options: ConnectOptions,
    ) -> Result<LinkId, TransportError> {
        let connection = self.endpoint.connect_with(now, remote, key, options)?;
        Ok(LinkId::Quic(connection))
    }

    /// The link that a UDP datagram names, without any work on the datagram.
    pub(crate) fn link_of(&self, data: &[u8]) -> Option<LinkId> {
        self.endpoint.connection_of(data).map(LinkId::Quic)
    }

    /// Takes one UDP datagram in; the link it belonged to. Drain [`Self::receive`] of that link
    /// before the next call, so that the ECN mark belongs to the right inner packets.
    #[inline]
    pub(crate) fn handle_udp(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Ecn,
        data: BytesMut,
    ) -> Option<LinkId> {
        self.endpoint
            .handle_udp(now, socket, remote, local_ip, ecn, data)
            .map(LinkId::Quic)
    }

    /// The next datagram that came in over a link.
    #[inline]
    pub(crate) fn receive(&mut self, id: LinkId) -> Option<Bytes> {
        match id {
            LinkId::Quic(connection) => self.endpoint.receive(connection),
            LinkId::Tls(stream) => self.stream_mut(stream)?.receive(),
        }
    }

    /// Sends a datagram with this codepoint when the next [`Self::flush`] comes. Refusals are
    /// counted.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: Instant,
        id: LinkId,
        datagram: Bytes,
        dscp: u8,
        sockets: &mut impl Sockets,
    ) {
        if let LinkId::Quic(connection) = id
            && self.endpoint.dscp(connection) != dscp
        {
            // One outer packet carries several inner ones: a change of codepoint starts a new one.
            self.flush(now, id, sockets);
            self.endpoint.set_dscp(connection, dscp);
        }
        self.queue(id, datagram);
    }

    /// Sends a datagram when the next [`Self::flush`] comes, with the codepoint that the link sends
    /// with now. Refusals are counted.
    #[inline]
    pub(crate) fn queue(&mut self, id: LinkId, datagram: Bytes) {
        let sent = match id {
            LinkId::Quic(connection) => self.endpoint.send(connection, datagram).is_ok(),
            LinkId::Tls(stream) => self.queue_on_stream(stream, datagram),
        };
        self.refused += u64::from(!sent);
    }

    /// [`Self::queue`] for a message between gateways.
    pub(crate) fn queue_control(&mut self, id: LinkId, control: &Control) {
        let mut bytes = Vec::new();
        emit_control(control, &mut bytes);
        self.queue(id, Bytes::from(bytes));
    }

    /// [`Self::queue`] for a small datagram that has to leave although the window is full. Over
    /// TCP it waits like any other.
    pub(crate) fn queue_urgent(&mut self, id: LinkId, datagram: Bytes) {
        let sent = match id {
            LinkId::Quic(connection) => self.endpoint.send_urgent(connection, datagram).is_ok(),
            LinkId::Tls(stream) => self.queue_on_stream(stream, datagram),
        };
        self.refused += u64::from(!sent);
    }

    /// Takes everything in flight on a link for lost. TCP finds its losses itself.
    pub(crate) fn declare_lost(&mut self, id: LinkId) {
        if let LinkId::Quic(connection) = id {
            self.endpoint.declare_lost(connection);
        }
    }

    /// Hands what a link has to send to its socket.
    pub(crate) fn flush(&mut self, now: Instant, id: LinkId, sockets: &mut impl Sockets) {
        match id {
            LinkId::Quic(connection) => {
                let buffer = &mut self.buffer;
                while let Some(transmit) = self.endpoint.poll_transmit(now, connection, buffer) {
                    sockets.send_udp(&transmit, &buffer[..transmit.size]);
                }
            }
            LinkId::Tls(id) => self.flush_stream(id, sockets),
        }
    }

    /// The links to which something happened since everything was last flushed: input, a timer,
    /// something to send.
    pub(crate) fn active(&self) -> impl Iterator<Item = LinkId> {
        let connections = self.endpoint.dirty().map(LinkId::Quic);
        connections.chain(self.dirty.iter().copied().map(LinkId::Tls))
    }

    /// Flushes every link that has something to send, and what belongs to none; then closes the
    /// sockets that were to be closed.
    pub(crate) fn flush_all(&mut self, now: Instant, sockets: &mut impl Sockets) {
        while let Some(connection) = self.endpoint.poll_dirty() {
            self.flush(now, LinkId::Quic(connection), sockets);
        }
        while let Some(id) = self.dirty.pop_front() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.dirty = false;
            }
            self.flush_stream(id, sockets);
        }
        while let Some(transmit) = self.endpoint.poll_stateless(&mut self.buffer) {
            sockets.send_udp(&transmit, &self.buffer[..transmit.size]);
        }
        for socket in self.closing.drain(..) {
            self.requests.push_back(Request::CloseUdp { socket });
        }
    }

    /// Tells a link how many flows have data waiting for it, in parts. TLS shares by TCP's own rules.
    #[inline]
    pub(crate) fn set_waiting_flows(&mut self, id: LinkId, flows: u8) {
        if let LinkId::Quic(connection) = id {
            self.endpoint.set_waiting_flows(connection, flows);
        }
    }

    /// The transport's report on a link.
    #[inline]
    pub(crate) fn snapshot(
        &mut self,
        now: Instant,
        id: LinkId,
        sockets: &mut impl Sockets,
    ) -> Option<PathSnapshot> {
        match id {
            LinkId::Quic(connection) => self.endpoint.snapshot(now, connection),
            LinkId::Tls(id) => {
                let snapshot = self.stream_mut(id)?.snapshot(now, id, sockets);
                self.note_timer(id);
                snapshot
            }
        }
    }

    /// The next event of any link.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<(LinkId, LinkEvent)> {
        let Some((connection, event)) = self.endpoint.poll_event() else {
            return self.events.pop_front();
        };
        Some((LinkId::Quic(connection), event.into()))
    }

    /// Closes a link. The goodbye leaves with the next flush.
    pub(crate) fn close(&mut self, now: Instant, id: LinkId, reason: &str) {
        match id {
            LinkId::Quic(connection) => self.endpoint.close(now, connection, reason),
            LinkId::Tls(id) => {
                if let Some(stream) = self.stream_mut(id) {
                    stream.close();
                    self.census.leave(id);
                    self.mark_dirty(id);
                    let event = LinkEvent::closed(reason);
                    self.events.push_back((LinkId::Tls(id), event));
                }
            }
        }
    }

    /// How many there are, those that are ending included.
    pub(crate) fn count(&self) -> usize {
        let connections = usize::try_from(self.endpoint.stats().connections);
        connections.unwrap_or(usize::MAX) + self.streams.len()
    }

    /// The local address or route of a link changed under it.
    pub(crate) fn address_changed(&mut self, id: LinkId) {
        if let LinkId::Quic(connection) = id {
            self.endpoint.address_changed(connection);
        }
    }

    /// The socket that a link sends through.
    pub(crate) fn socket(&self, id: LinkId) -> Option<SocketId> {
        match id {
            LinkId::Quic(connection) => self.endpoint.socket(connection),
            LinkId::Tls(_) => None,
        }
    }

    /// Address of the peer.
    pub(crate) fn remote(&self, id: LinkId) -> Option<SocketAddr> {
        match id {
            LinkId::Quic(connection) => self.endpoint.remote(connection),
            LinkId::Tls(id) => self.stream(id).map(|stream| stream.remote),
        }
    }

    /// Local address of the socket below a link.
    pub(crate) fn local(&self, id: LinkId) -> Option<SocketAddr> {
        match id {
            LinkId::Quic(_) => self.local.get(&self.socket(id)?).copied(),
            LinkId::Tls(id) => self.stream(id)?.local,
        }
    }

    /// Counters of a link's outer packets.
    pub(crate) fn outer_counters(&self, id: LinkId) -> OuterCounters {
        match id {
            LinkId::Quic(connection) => {
                let counters = self.endpoint.counters(connection).unwrap_or_default();
                OuterCounters {
                    mtu: self.endpoint.mtu(connection),
                    sent_bytes: counters.sent_bytes,
                    received_bytes: counters.received_bytes,
                }
            }
            LinkId::Tls(id) => self
                .stream(id)
                .map_or_else(OuterCounters::default, |stream| OuterCounters {
                    mtu: 0,
                    sent_bytes: stream.sent_bytes,
                    received_bytes: stream.received_bytes,
                }),
        }
    }

    /// The machine had nothing to do for this time.
    pub(crate) fn rested(&mut self, rest: Duration) {
        self.endpoint.rested(rest);
    }

    /// Bytes came from sites or went to them over TCP, as much work as so many datagrams.
    pub(crate) fn worked_for_sites(&mut self, datagrams: usize) {
        self.endpoint
            .worked_for_sites(u32::try_from(datagrams).unwrap_or(u32::MAX));
    }

    /// When [`Self::handle_timeout`] is wanted.
    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        let streams = self.streams_due();
        self.endpoint
            .poll_timeout()
            .into_iter()
            .chain(streams)
            .min()
    }

    /// Lets timers of connections and streams go off.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.handle_streams_timeout(now);
    }

    /// Counted drops and refusals, by reason.
    pub(crate) fn drops(&self) -> [(&'static str, u64); 10] {
        let endpoint = self.endpoint.stats();
        [
            ("link_refused", self.refused),
            ("streams_refused", self.streams_refused),
            ("garbage_datagrams", endpoint.garbage_datagrams),
            ("keys_refused", endpoint.keys_refused),
            ("strangers_ignored", endpoint.strangers_ignored),
            ("handshakes_misrouted", endpoint.handshakes_misrouted),
            ("retries_sent", endpoint.retries_sent),
            ("handshakes_refused", endpoint.handshakes_refused),
            ("handshakes_failed", endpoint.handshakes_failed),
            ("internal_errors", endpoint.internal_errors),
        ]
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links")
            .field("endpoint", &self.endpoint)
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

/// An unspecified address of the same family as `like`, with any port.
pub(crate) fn any_address(like: &SocketAddr) -> SocketAddr {
    let ip = if like.is_ipv4() {
        IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
    };
    SocketAddr::new(ip, 0)
}
