//! The endpoint: routes datagrams to connections, bounds what strangers cost, merges timers.
//!
//! Invariants: a slot of the table belongs to the connection that `quinn-proto` knows under the
//! same index. The timer set holds each slot at most once and never later than its next timeout.

mod guard;

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectError, ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointEvent, Incoming, VarInt,
};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot};

use self::guard::{AtWork, caught};
use super::{
    ConnectOptions, ConnectionCounters, ConnectionId, EndpointConfig, EndpointStats, Event,
    SocketId, Transmit,
    connection::{Phase, Slot, close_reason, is_end_by_peer},
    handshakes::{Admission, Handshakes, Source},
    mark::{Clear, LONG_HEADER, Marks},
    setup::{self, Clock},
    tuning::{CONNECTIONS_MAX, HANDSHAKE_TIME_MAX, REASON_MAX, RETRY_ABOVE, STATELESS_MAX},
    waiting::Waiting,
};
use crate::{
    CloseReason, CongestionControl, Identity, PublicKey, SendError, TransportError,
    congestion::PathState,
    credentials::{SERVER_NAME, key_of_spki},
};

/// All QUIC connections of a gateway, over any number of UDP sockets.
pub struct Endpoint {
    config: EndpointConfig,
    inner: quinn_proto::Endpoint,
    server: Option<quinn_proto::ServerConfig>,
    clock: Arc<Clock>,
    /// What first packets to this side must have while it is busy.
    marks: Vec<Marks>,
    slots: Vec<Option<Slot>>,
    generation: u32,
    attempts: u64,
    dirty: VecDeque<ConnectionId>,
    events: VecDeque<(ConnectionId, Event)>,
    stateless: VecDeque<(Transmit, Vec<u8>)>,
    timers: BTreeSet<(Instant, u32)>,
    /// Handshakes that this side has begun, and when they have taken too long.
    deadlines: VecDeque<(Instant, ConnectionId)>,
    /// Those that others have begun.
    handshakes: Handshakes,
    /// Those that are not begun yet, and the socket that each came to.
    waiting: Waiting<(SocketId, Incoming)>,
    stats: EndpointStats,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The library warns of those that nobody has answered.
        while let Some((_, incoming)) = self.waiting.pop() {
            self.inner.ignore(incoming);
        }
    }
}

impl Endpoint {
    /// An endpoint without connections.
    ///
    /// # Errors
    /// When a value of `config` is out of range or TLS refuses the key.
    pub fn new(config: EndpointConfig) -> Result<Self, TransportError> {
        let clock = Arc::new(Clock::default());
        let endpoint_config = Arc::new(setup::endpoint(&config)?);
        let server = setup::server(&config, clock.clone())?;
        let inner =
            quinn_proto::Endpoint::new(endpoint_config, server.clone().map(Arc::new), true, None);
        Ok(Self {
            marks: vec![Marks::new(&config.identity.public_key())],
            config,
            inner,
            server,
            clock,
            slots: Vec::new(),
            generation: 0,
            attempts: 0,
            dirty: VecDeque::new(),
            events: VecDeque::new(),
            stateless: VecDeque::new(),
            timers: BTreeSet::new(),
            deadlines: VecDeque::new(),
            handshakes: Handshakes::default(),
            waiting: Waiting::default(),
            stats: EndpointStats::default(),
        })
    }

    /// Connections that begin from now on have this key; the others go on with theirs. First packets may have
    /// the mark of this key, and of the one before: peers see the new one only when they connect.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn set_identity(&mut self, identity: Identity) -> Result<(), TransportError> {
        if let (Some(server), Some(allowed)) = (&mut self.server, &self.config.allowed) {
            // The rest stays, so that tokens of before are still good.
            server.crypto = setup::server_crypto(&identity, allowed.clone())?;
            self.marks.drain(..self.marks.len().saturating_sub(1));
            self.marks.push(Marks::new(&identity.public_key()));
        }
        self.config.identity = identity;
        Ok(())
    }

    /// Starts a connection to `remote`, whose key must be `peer_key`.
    ///
    /// # Errors
    /// When the address is unusable or the number of connections is at its limit.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        peer_key: PublicKey,
        congestion: CongestionControl,
    ) -> Result<ConnectionId, TransportError> {
        let options = ConnectOptions {
            congestion,
            ..ConnectOptions::default()
        };
        self.connect_with(now, remote, peer_key, options)
    }

    /// [`Self::connect`] with more to choose.
    ///
    /// # Errors
    /// As [`Self::connect`], and when the MTU bound is not `1200..=65_000`.
    pub fn connect_with(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        peer_key: PublicKey,
        options: ConnectOptions,
    ) -> Result<ConnectionId, TransportError> {
        if self.inner.open_connections() >= CONNECTIONS_MAX {
            return Err(TransportError::ConnectionsMax(CONNECTIONS_MAX));
        }
        let mtu_max = options.mtu_max.unwrap_or(self.config.mtu_max);
        if !(1_200..=65_000).contains(&mtu_max) {
            return Err(TransportError::Config(
                "mtu_max must be 1200 to 65000 bytes".into(),
            ));
        }
        let state = Arc::new(PathState::new(self.config.base));
        let transport = setup::transport(
            &self.config,
            options.congestion,
            mtu_max,
            options.assumed_rtt,
            state.clone(),
        );
        self.attempts += 1;
        let client = setup::client(&self.config, peer_key, &options, transport, self.attempts)?;
        let (handle, conn) = self
            .inner
            .connect(self.to_std(now), client, remote, SERVER_NAME)
            .map_err(|error| match error {
                ConnectError::InvalidRemoteAddress(address) => {
                    TransportError::RemoteAddress(address)
                }
                ConnectError::EndpointStopping
                | ConnectError::CidsExhausted
                | ConnectError::InvalidServerName(_)
                | ConnectError::NoDefaultClientConfig
                | ConnectError::UnsupportedVersion => TransportError::Tls(error.to_string()),
            })?;
        let id = self.insert(handle, Slot::new(conn, state, options.socket));
        self.deadlines.push_back((now + HANDSHAKE_TIME_MAX, id));
        self.guarded(id, |this| this.process(id));
        Ok(id)
    }

    /// The connection that a UDP datagram names, without any work on the datagram; `None` for
    /// packets of handshakes and for unknown identifiers.
    #[must_use]
    pub fn connection_of(&self, data: &[u8]) -> Option<ConnectionId> {
        let handle = self.inner.connection_of(data)?;
        let slot = self.slots.get(handle.0)?.as_ref()?;
        Some(ConnectionId {
            slot: index(handle),
            generation: slot.generation,
        })
    }

    /// Takes one UDP datagram in that arrived at `socket`; answers the connection it belonged to. Drain
    /// [`Self::receive`] of that connection before the next call, so that arrival time and
    /// outer ECN belong to the right inner packets.
    pub fn handle_udp(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Ecn,
        data: BytesMut,
    ) -> Option<ConnectionId> {
        self.clock.set(now);
        let mut at_work = AtWork::Tables;
        let took = caught(|| self.take_in(now, socket, remote, local_ip, ecn, data, &mut at_work));
        took.unwrap_or_else(|| {
            self.give_up(at_work);
            None
        })
    }

    #[expect(clippy::too_many_arguments, reason = "those of `handle_udp`, and one")]
    fn take_in(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Ecn,
        data: BytesMut,
        at_work: &mut AtWork,
    ) -> Option<ConnectionId> {
        let at = self.to_std(now);
        let ecn = match ecn {
            Ecn::NotEct => None,
            Ecn::Ect0 => Some(EcnCodepoint::Ect0),
            Ecn::Ect1 => Some(EcnCodepoint::Ect1),
            Ecn::Ce => Some(EcnCodepoint::Ce),
        };
        // Handshake packets that come late or twice are ignored and do not count as garbage.
        let handshake = data.first().is_some_and(|first| first & LONG_HEADER != 0);
        if handshake && self.is_unwelcome(now, &remote, &data) {
            return None;
        }
        let mut answer = Vec::new();
        match self
            .inner
            .handle(at, remote, local_ip, ecn, data, &mut answer)
        {
            None => {
                self.stats.garbage_datagrams += 1;
                None
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.push_stateless(socket, &transmit, answer);
                None
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.waiting.worked_for_first_packet();
                self.accept(now, socket, incoming, at_work)
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let slot = self.slots.get_mut(handle.0)?.as_mut()?;
                let id = ConnectionId {
                    slot: index(handle),
                    generation: slot.generation,
                };
                *at_work = AtWork::Known(id);
                self.waiting
                    .worked_for_sites(u32::from(slot.phase == Phase::Up));
                slot.conn.handle_event(event);
                if self.process(id) {
                    return Some(id);
                }
                // Nothing delivered: an acknowledgement, or a packet that counts for nothing.
                if let Some(slot) = self.slot_mut(id) {
                    let nothing = slot.phase == Phase::Up && !slot.received_something();
                    let garbage = nothing && !handshake;
                    self.stats.garbage_datagrams += u64::from(garbage);
                }
                Some(id)
            }
        }
    }

    /// Whether a packet of a handshake is dropped before any key is derived for it, and is counted. Those of
    /// handshakes that are begun go on.
    fn is_unwelcome(&mut self, now: Instant, remote: &SocketAddr, data: &[u8]) -> bool {
        let enough = self.waiting.has_enough_of(remote);
        if self.server.is_none() || !(enough || self.is_busy(now)) {
            return false;
        }
        let clear = Clear::of(data).filter(Clear::may_be_first);
        let Some(clear) = clear.filter(|_| !self.inner.knows_initial(data)) else {
            return false;
        };
        if enough {
            self.stats.handshakes_refused += 1;
            return true;
        }
        if !clear.may_know(&self.marks) {
            self.stats.strangers_ignored += 1;
            return true;
        }
        // A Retry for whom there is no room makes work for both ends, and the token comes back to a full queue.
        let refused = !clear.may_answer_retry() && !self.waiting.has_room_for(*remote);
        self.stats.handshakes_refused += u64::from(refused);
        refused
    }

    /// Whether addresses must be proved first, and strangers get no answer.
    fn is_busy(&self, now: Instant) -> bool {
        self.waits(now) || self.handshakes.unproved() >= RETRY_ABOVE
    }

    /// Whether a handshake has to wait for its turn.
    fn waits(&self, now: Instant) -> bool {
        !self.waiting.is_empty() || !self.waiting.has_turn(now)
    }

    /// The machine had nothing to do for this time. From the first call on a busy machine begins few handshakes, and
    /// lets the others wait for their turn; whoever never calls this method begins all at once.
    pub fn rested(&mut self, rest: Duration) {
        self.waiting.rested(rest);
    }

    /// The machine worked for sites beside this endpoint, as much as for so many datagrams: it has less time for handshakes.
    pub fn worked_for_sites(&mut self, datagrams: u32) {
        self.waiting.worked_for_sites(datagrams);
    }

    /// A first packet: answers it, lets it wait, or begins the handshake.
    fn accept(
        &mut self,
        now: Instant,
        socket: SocketId,
        incoming: Incoming,
        at_work: &mut AtWork,
    ) -> Option<ConnectionId> {
        if self.server.is_none() {
            self.inner.ignore(incoming);
            return None;
        }
        // While the sockets of a hub's workers are being opened, a packet may come to the wrong one. The site
        // repeats the packet.
        let first = incoming.orig_dst_cid().first().copied();
        if !first.is_some_and(|byte| self.config.slice.serves(byte)) {
            self.stats.handshakes_misrouted += 1;
            self.inner.ignore(incoming);
            return None;
        }
        let validated = incoming.remote_address_validated();
        let mut answer = Vec::new();
        // Forged addresses get no further, and cost nobody a place or a turn.
        if !validated && self.is_busy(now) {
            // That of a packet whose token is not ours.
            let id = incoming.orig_dst_cid();
            if !self.marks.iter().any(|marks| marks.has_mark(id)) {
                self.stats.strangers_ignored += 1;
                self.inner.ignore(incoming);
                return None;
            }
            if let Ok(transmit) = self.inner.retry(incoming, &mut answer) {
                self.stats.retries_sent += 1;
                self.push_stateless(socket, &transmit, answer);
            }
            return None;
        }
        if self.waits(now) {
            let from = incoming.remote_address();
            if let Some((_, last)) = self.waiting.push(now, from, (socket, incoming)) {
                self.stats.handshakes_refused += 1;
                self.inner.ignore(last);
            }
            return None;
        }
        self.begin(now, socket, incoming, at_work)
    }

    /// Begins handshakes that waited for their turn, as many as there is time for.
    fn begin_waiting(&mut self, now: Instant) {
        while let Some((_, late)) = self.waiting.take_overdue(now) {
            self.stats.handshakes_refused += 1;
            self.inner.ignore(late);
        }
        while self.waiting.has_turn(now)
            && let Some((socket, incoming)) = self.waiting.pop()
        {
            let mut at_work = AtWork::Tables;
            if caught(|| self.begin(now, socket, incoming, &mut at_work)).is_none() {
                self.give_up(at_work);
            }
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        socket: SocketId,
        incoming: Incoming,
        at_work: &mut AtWork,
    ) -> Option<ConnectionId> {
        let Some(server) = &self.server else {
            self.inner.ignore(incoming);
            return None;
        };
        self.waiting.begun(now);
        let validated = incoming.remote_address_validated();
        let mut answer = Vec::new();
        let source = Source::of(incoming.remote_address().ip());
        let full = self.inner.open_connections() >= CONNECTIONS_MAX;
        let admission = self.handshakes.admit(source);
        if admission == Admission::Refused || full {
            self.stats.handshakes_refused += 1;
            self.inner.ignore(incoming);
            return None;
        }
        let mut server = server.clone();
        let state = Arc::new(PathState::new(self.config.base));
        let transport = setup::transport(
            &self.config,
            self.config.congestion,
            self.config.mtu_max,
            None,
            state.clone(),
        );
        server.transport_config(Arc::new(transport));
        let at = self.to_std(now);
        *at_work = self.at_new();
        match self
            .inner
            .accept(incoming, at, &mut answer, Some(Arc::new(server)))
        {
            Ok((handle, conn)) => {
                if let Admission::Instead(other) = admission {
                    self.give_up_handshake(other);
                }
                let id = self.insert(handle, Slot::new(conn, state, socket));
                *at_work = AtWork::Known(id);
                let ticket = self.handshakes.begin(now, id, source, validated);
                if let Some(slot) = self.slot_mut(id) {
                    (slot.accepted, slot.ticket) = (true, Some(ticket));
                }
                self.process(id);
                Some(id)
            }
            Err(error) => {
                self.stats.handshakes_failed += 1;
                if let Some(transmit) = error.response {
                    self.push_stateless(socket, &transmit, answer);
                }
                None
            }
        }
    }

    /// The next packet that belongs to no connection (Retry, version negotiation, reset,
    /// refusal), put into `buf`, which is cleared first.
    pub fn poll_stateless(&mut self, buf: &mut Vec<u8>) -> Option<Transmit> {
        let (transmit, bytes) = self.stateless.pop_front()?;
        buf.clear();
        buf.extend_from_slice(&bytes);
        Some(transmit)
    }

    /// The next event of any connection.
    #[inline]
    pub fn poll_event(&mut self) -> Option<(ConnectionId, Event)> {
        self.events.pop_front()
    }

    /// Queues a datagram. Never drops an older one for it.
    ///
    /// # Errors
    /// When the datagram is too large, the queue is full, or the connection is not up.
    pub fn send(&mut self, id: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        let slot = self.slot_mut(id).ok_or(SendError::NotConnected)?;
        slot.send(datagram)?;
        self.mark_dirty(id);
        Ok(())
    }

    /// [`Self::send`] for a small datagram that has to leave although the window is full, such as
    /// a probe of a path that has fallen silent.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_urgent(&mut self, id: ConnectionId, datagram: Bytes) -> Result<(), SendError> {
        let slot = self.slot_mut(id).ok_or(SendError::NotConnected)?;
        slot.send_urgent(datagram)?;
        self.mark_dirty(id);
        Ok(())
    }

    /// Takes everything in flight for lost, so that it leaves the window. The connection finds the
    /// losses itself later, as acknowledgements come.
    pub fn declare_lost(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.state.declare_lost();
        }
    }

    /// The next datagram received on `id`.
    #[inline]
    pub fn receive(&mut self, id: ConnectionId) -> Option<Bytes> {
        self.slot_mut(id)?.conn.datagrams().recv()
    }

    /// The next UDP datagrams of `id`, put into `buf`, which is cleared first. Call until `None`.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        id: ConnectionId,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.guarded(id, |this| this.transmit(now, id, buf))
            .flatten()
    }

    fn transmit(&mut self, now: Instant, id: ConnectionId, buf: &mut Vec<u8>) -> Option<Transmit> {
        buf.clear();
        let at = self.to_std(now);
        let segments_max = self.config.gso_segments_max;
        let base = self.config.base;
        let slot = self.slot_mut(id)?;
        if let Some(transmit) = slot.poll_transmit(at, segments_max, buf) {
            let (socket, dscp) = (slot.socket, slot.dscp);
            if slot.phase == Phase::Up {
                let segments = transmit
                    .segment_size
                    .map_or(1, |size| transmit.size.div_ceil(size));
                let segments = u32::try_from(segments).unwrap_or(u32::MAX);
                self.waiting.worked_for_sites(segments);
            }
            return Some(convert(&transmit, socket, dscp));
        }
        slot.note_block(|at| from_std(base, at));
        slot.dirty = false;
        // Sending can use up identifiers; the answer to that must be sent as well.
        if self.drain(id).answered {
            self.mark_dirty(id);
        }
        self.update_timer(id);
        None
    }

    /// How many flows have data waiting for the path, in parts of [`FLOW_PARTS`]: beside others the
    /// path stands for as many.
    ///
    /// [`FLOW_PARTS`]: crate::FLOW_PARTS
    pub fn set_waiting_flows(&self, id: ConnectionId, flows: u8) {
        if let Some(slot) = self.slot(id) {
            slot.state.set_waiting_flows(flows);
        }
    }

    /// The state of the path, for the scheduler; `None` unless connected.
    #[must_use]
    pub fn snapshot(&self, _now: Instant, id: ConnectionId) -> Option<PathSnapshot> {
        let slot = self.slot(id)?;
        (slot.phase == Phase::Up).then(|| slot.snapshot())
    }

    /// When [`Self::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let base = self.config.base;
        while self
            .deadlines
            .front()
            .is_some_and(|&(_, id)| !self.is_handshaking(id))
        {
            self.deadlines.pop_front();
        }
        let deadline = self.deadlines.front().map(|&(at, _)| at);
        let deadline = deadline.into_iter().chain(self.handshakes.deadline()).min();
        // Timers mostly move later, which only the head of the set needs to know.
        while let Some(&(at, index)) = self.timers.first() {
            let slot = self.slots.get_mut(index as usize).and_then(Option::as_mut);
            let actual = slot.and_then(|slot| {
                let actual = slot.conn.poll_timeout().map(|at| from_std(base, at));
                slot.timer = actual;
                actual
            });
            if actual == Some(at) {
                break;
            }
            self.timers.pop_first();
            if let Some(actual) = actual {
                self.timers.insert((actual, index));
            }
        }
        let timer = self.timers.first().map(|&(at, _)| at);
        let turn = self.waiting.due(self.clock.get());
        timer.into_iter().chain(deadline).chain(turn).min()
    }

    /// Lets the timers of all connections that are due at `now` run, and begins handshakes that waited.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock.set(now);
        self.begin_waiting(now);
        let at = self.to_std(now);
        // A timer set again to a past instant waits for the next call: this loop ends.
        let mut due = core::mem::take(&mut self.timers);
        self.timers = due.split_off(&(now, u32::MAX));
        for (_, index) in due {
            let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else {
                continue;
            };
            slot.timer = None;
            let id = ConnectionId {
                slot: index,
                generation: slot.generation,
            };
            self.guarded(id, |this| {
                if let Some(slot) = this.slot_mut(id) {
                    slot.conn.handle_timeout(at);
                }
                this.process(id);
            });
        }
        while let Some(&(deadline, id)) = self.deadlines.front() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            self.give_up_handshake(id);
        }
        while let Some(id) = self.handshakes.take_overdue(now) {
            self.give_up_handshake(id);
        }
    }

    fn is_handshaking(&self, id: ConnectionId) -> bool {
        self.slot(id)
            .is_some_and(|slot| matches!(slot.phase, Phase::Handshaking | Phase::Unconfirmed))
    }

    fn give_up_handshake(&mut self, id: ConnectionId) {
        let handshaking = self.is_handshaking(id);
        if handshaking {
            self.closed(id, CloseReason::TimedOut);
        }
        // One that was refused keeps its place until its last packets are gone.
        if handshaking || self.slot(id).is_some_and(|slot| slot.ticket.is_some()) {
            self.inner
                .handle_event(ConnectionHandle(id.slot as usize), EndpointEvent::drained());
            self.remove(id);
        }
    }

    /// The next connection that may have something to transmit after input, a timeout, a send
    /// or a close. Each is named once; call [`Self::poll_transmit`] for it until `None`.
    pub fn poll_dirty(&mut self) -> Option<ConnectionId> {
        while let Some(id) = self.dirty.pop_front() {
            if let Some(slot) = self.slot_mut(id) {
                slot.listed = false;
                if core::mem::take(&mut slot.dirty) {
                    return Some(id);
                }
            }
        }
        None
    }

    /// The connections that [`Self::poll_dirty`] may name next, in no particular order.
    pub fn dirty(&self) -> impl Iterator<Item = ConnectionId> {
        self.dirty.iter().copied()
    }

    /// Codepoint of the packets that a connection sends now; 0 for an unknown connection.
    #[inline]
    #[must_use]
    pub fn dscp(&self, id: ConnectionId) -> u8 {
        self.slot(id).map_or(0, |slot| slot.dscp)
    }

    /// Sends what follows with this codepoint, 6 bits. Call [`Self::poll_transmit`] until `None`
    /// before: what is queued leaves with the new one.
    pub fn set_dscp(&mut self, id: ConnectionId, dscp: u8) {
        if let Some(slot) = self.slot_mut(id) {
            slot.dscp = dscp;
        }
    }

    /// The socket through which a connection sends.
    #[must_use]
    pub fn socket(&self, id: ConnectionId) -> Option<SocketId> {
        self.slot(id).map(|slot| slot.socket)
    }

    /// Sends an ack-eliciting packet soon, to measure or to keep the path open.
    pub fn ping(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slot_mut(id).filter(|slot| slot.phase == Phase::Up) {
            slot.conn.ping();
            self.mark_dirty(id);
        }
    }

    /// Closes with a reason the peer sees, at most 100 bytes of it.
    pub fn close(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        let at = self.to_std(now);
        let cut = (0..=REASON_MAX.min(reason.len()))
            .rev()
            .find(|&at| reason.is_char_boundary(at));
        let reason = Bytes::copy_from_slice(&reason.as_bytes()[..cut.unwrap_or(0)]);
        self.guarded(id, |this| {
            let open = this.slot_mut(id).filter(|slot| slot.phase != Phase::Closed);
            if let Some(slot) = open {
                slot.conn.close(at, VarInt::from_u32(0), reason);
                this.closed(id, CloseReason::Local);
                this.process(id);
            }
        });
    }

    /// Says that this side's address changed, so that the path is used from there at once.
    pub fn address_changed(&mut self, id: ConnectionId) {
        self.guarded(id, |this| {
            if let Some(slot) = this.slot_mut(id).filter(|slot| slot.phase == Phase::Up) {
                slot.conn.local_address_changed();
                this.process(id);
            }
        });
    }

    /// The present address of the peer.
    #[must_use]
    pub fn remote(&self, id: ConnectionId) -> Option<SocketAddr> {
        self.slot(id).map(Slot::remote)
    }

    /// UDP payload bytes the path takes now; 1200 before discovery or for an unknown connection.
    #[must_use]
    pub fn mtu(&self, id: ConnectionId) -> usize {
        self.slot(id)
            .map_or(1_200, |slot| usize::from(slot.conn.current_mtu()))
    }

    /// Counters of the endpoint.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        EndpointStats {
            connections: self.inner.open_connections() as u64,
            handshakes_open: self.handshakes.len() as u64,
            ..self.stats
        }
    }

    /// Counters of a connection.
    #[must_use]
    pub fn counters(&self, id: ConnectionId) -> Option<ConnectionCounters> {
        self.slot(id).map(Slot::counters)
    }

    fn to_std(&self, now: Instant) -> std::time::Instant {
        self.config.base + Duration::from_nanos(now.as_nanos())
    }

    #[inline]
    fn slot(&self, id: ConnectionId) -> Option<&Slot> {
        let slot = self.slots.get(id.slot as usize)?.as_ref()?;
        (slot.generation == id.generation).then_some(slot)
    }

    #[inline]
    fn slot_mut(&mut self, id: ConnectionId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?.as_mut()?;
        (slot.generation == id.generation).then_some(slot)
    }

    fn insert(&mut self, handle: ConnectionHandle, mut slot: Slot) -> ConnectionId {
        self.generation = self.generation.wrapping_add(1);
        let id = ConnectionId {
            slot: index(handle),
            generation: self.generation,
        };
        if self.slots.len() <= handle.0 {
            self.slots.resize_with(handle.0 + 1, || None);
        }
        slot.generation = self.generation;
        self.slots[handle.0] = Some(slot);
        id
    }

    fn remove(&mut self, id: ConnectionId) {
        let Some(place) = self.slots.get_mut(id.slot as usize) else {
            return;
        };
        let Some(slot) = place.take() else {
            return;
        };
        if let Some(timer) = slot.timer {
            self.timers.remove(&(timer, id.slot));
        }
        if let Some(ticket) = slot.ticket {
            self.handshakes.end(ticket);
        }
    }

    fn mark_dirty(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.dirty = true;
            if !core::mem::replace(&mut slot.listed, true) {
                self.dirty.push_back(id);
            }
        }
    }

    /// Works off what the machine reports after input; answers whether datagrams came in.
    fn process(&mut self, id: ConnectionId) -> bool {
        let delivered = self.drain(id).delivered;
        if self
            .slot(id)
            .is_some_and(|slot| slot.phase == Phase::Unconfirmed && slot.confirmed())
        {
            self.up(id);
        }
        self.update_timer(id);
        self.mark_dirty(id);
        delivered
    }

    fn drain(&mut self, id: ConnectionId) -> Drained {
        let mut drained = Drained::default();
        loop {
            let Some(slot) = self.slot_mut(id) else {
                return drained;
            };
            // What the connection says comes first: its last report to the endpoint removes it.
            match slot.conn.poll() {
                Some(quinn_proto::Event::DatagramReceived) => drained.delivered = true,
                Some(quinn_proto::Event::Connected) => self.authenticated(id),
                Some(quinn_proto::Event::ConnectionLost { reason }) => {
                    let connecting = !slot.accepted;
                    let ticket = slot.ticket;
                    let by_peer = is_end_by_peer(&reason);
                    self.closed(id, close_reason(reason, connecting));
                    if by_peer && ticket.is_some_and(|ticket| self.handshakes.is_proved(ticket)) {
                        // There is nothing to say to a peer that ended its attempt, and others wait
                        // for the place. Who forges addresses keeps it: that is why others have to
                        // prove theirs.
                        self.give_up_handshake(id);
                        return drained;
                    }
                }
                Some(
                    quinn_proto::Event::HandshakeDataReady
                    | quinn_proto::Event::Stream(_)
                    | quinn_proto::Event::DatagramsUnblocked,
                ) => {}
                None => match slot.conn.poll_endpoint_events() {
                    Some(event) => drained.answered |= self.report(id, event),
                    None => return drained,
                },
            }
        }
    }

    /// Tells the endpoint what a connection reports; whether it answered.
    fn report(&mut self, id: ConnectionId, event: EndpointEvent) -> bool {
        let last = event.is_drained();
        let answer = self
            .inner
            .handle_event(ConnectionHandle(id.slot as usize), event);
        if last {
            self.remove(id);
        }
        let (Some(answer), Some(slot)) = (answer, self.slot_mut(id)) else {
            return false;
        };
        slot.conn.handle_event(answer);
        true
    }

    /// This side has verified the peer.
    fn authenticated(&mut self, id: ConnectionId) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let identity = slot.conn.crypto_session().peer_identity();
        let certificates = identity.and_then(|any| {
            any.downcast::<Vec<rustls::pki_types::CertificateDer>>()
                .ok()
        });
        slot.peer = certificates.and_then(|keys| key_of_spki(keys.first()?.as_ref()));
        slot.learn_overhead();
        if slot.accepted {
            self.up(id);
        } else {
            // A client is done before the server has looked at its key (RFC 8446 §2).
            slot.phase = Phase::Unconfirmed;
        }
    }

    /// Both sides have verified each other.
    fn up(&mut self, id: ConnectionId) {
        self.end_handshake(id);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.phase = Phase::Up;
        if let Some(peer) = slot.peer {
            self.events.push_back((id, Event::Connected { peer }));
        }
    }

    fn end_handshake(&mut self, id: ConnectionId) {
        let ticket = self.slot_mut(id).and_then(|slot| slot.ticket.take());
        if let Some(ticket) = ticket {
            self.handshakes.end(ticket);
        }
    }

    fn closed(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(slot) = self.slot_mut(id).filter(|slot| slot.phase != Phase::Closed) else {
            return;
        };
        let was = core::mem::replace(&mut slot.phase, Phase::Closed);
        // A stranger's failed attempt is counted; nobody knows its identifier.
        if slot.accepted && was == Phase::Handshaking {
            match reason {
                CloseReason::KeyRejected(_) | CloseReason::KeyUnknown => {
                    self.stats.keys_refused += 1
                }
                CloseReason::Local => {}
                CloseReason::TimedOut
                | CloseReason::Reset
                | CloseReason::PeerClosed(_)
                | CloseReason::Internal
                | CloseReason::Transport(_) => self.stats.handshakes_failed += 1,
            }
            return;
        }
        self.events.push_back((id, Event::Closed { reason }));
    }

    /// Moves the slot's place in the timer set when its timeout became earlier.
    fn update_timer(&mut self, id: ConnectionId) {
        let base = self.config.base;
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let Some(at) = slot.conn.poll_timeout().map(|at| from_std(base, at)) else {
            return;
        };
        let old = slot.timer;
        if old.is_some_and(|old| old <= at) {
            return;
        }
        slot.timer = Some(at);
        if let Some(old) = old {
            self.timers.remove(&(old, id.slot));
        }
        self.timers.insert((at, id.slot));
    }

    fn push_stateless(
        &mut self,
        socket: SocketId,
        transmit: &quinn_proto::Transmit,
        bytes: Vec<u8>,
    ) {
        if self.stateless.len() < STATELESS_MAX {
            self.stateless
                .push_back((convert(transmit, socket, 0), bytes));
        }
    }
}

/// What working off a connection's reports brought.
#[derive(Clone, Copy, Debug, Default)]
struct Drained {
    /// Datagrams came in.
    delivered: bool,
    /// The endpoint gave the connection something to tell its peer.
    answered: bool,
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn index(handle: ConnectionHandle) -> u32 {
    u32::try_from(handle.0).expect("the number of connections is bounded")
}

fn from_std(base: std::time::Instant, at: std::time::Instant) -> Instant {
    let since = at.saturating_duration_since(base);
    Instant::ZERO + since
}

fn convert(transmit: &quinn_proto::Transmit, socket: SocketId, dscp: u8) -> Transmit {
    Transmit {
        socket,
        dscp,
        destination: transmit.destination,
        source_ip: transmit.src_ip,
        ecn: transmit
            .ecn
            .map_or(Ecn::NotEct, |ecn| Ecn::from_bits(ecn as u8)),
        size: transmit.size,
        segment_size: transmit.segment_size,
    }
}
