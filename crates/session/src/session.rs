//! One gateway: its links, its role, and the order in which they work.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use ipnet::IpNet;
use ropewalk_core::reorder::Inner;
use ropewalk_core::schedule::Policy;
use ropewalk_core::tunnel::Observer;
use ropewalk_transport::{PublicKey, SocketId};
use ropewalk_types::{Duration, Ecn, Instant, PortBlock};

use crate::claim::Statement;
use crate::command::Command;
use crate::intake::{Arrival, Intake, Sender, Share, Work, stream_work};
use crate::io::{Request, Sockets, StreamId};
use crate::keys::KeyEvent;
use crate::links::{LinkEvent, LinkId, Links, Moved, Received};
use crate::mtu::InnerMtu;
use crate::status::SessionStatus;
use crate::tuning::{BEHIND, TURN_LONG, WORK_DATAGRAMS};

/// What a session tells the control side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hub told this site its inner addresses (site only). Comes again only when they change.
    Assigned {
        /// This site's addresses, with the prefix of the hub's pool.
        addresses: Vec<IpNet>,
        /// The hub's inner addresses.
        hub_addresses: Vec<IpAddr>,
        /// Ports of a shared IPv4 address from which this site may send.
        block: Option<PortBlock>,
    },
    /// The first path to a peer works.
    TunnelUp {
        /// Name of the peer.
        peer: String,
    },
    /// No path to a peer works any more.
    TunnelDown {
        /// Name of the peer.
        peer: String,
    },
    /// The interface with the inner packets should have this MTU, bytes.
    MtuChanged(usize),
    /// The holder of an invitation wants to be the invited site, or a site wants to have another key (hub only).
    /// [`Command::Enrolled`] is the answer.
    Enrol {
        /// Key of the invitation or of the site, which the holder has proved to have.
        invitation: PublicKey,
        /// Key that the site made.
        key: PublicKey,
        /// Whether the holder has proved to have that key, too. Earlier versions do not.
        proved: bool,
    },
    /// This hub serves a site from now on: packets to these addresses come here (hub only). Comes again when the
    /// site has claimed this hub anew.
    Served {
        /// Name of the site.
        site: String,
        /// Its addresses, and the networks behind it.
        addresses: Vec<IpNet>,
        /// What the site signed, for the other hubs. Of two hubs that announce the addresses, the one with the higher
        /// epoch is right. `None` of a site that knows one hub only.
        statement: Option<Statement>,
    },
    /// This hub no longer serves a site: packets to these addresses are to go elsewhere (hub only).
    Withdrawn {
        /// Name of the site.
        site: String,
        /// Its addresses, and the networks behind it.
        addresses: Vec<IpNet>,
    },
    /// Another hub serves this site from now on (site only).
    Moved {
        /// Name of the hub.
        hub: String,
        /// What this site has signed.
        epoch: u64,
    },
    /// Keys change.
    Key(KeyEvent),
}

/// An inner packet for a site that another worker of this hub serves.
#[derive(Debug)]
pub struct Elsewhere {
    /// Index of the worker.
    pub worker: usize,
    /// As [`Session::handle_inner`] got it.
    pub data: BytesMut,
    /// The same.
    pub checksum_partial: bool,
}

/// What gateways do differently. Implemented by [`Site`](crate::Site), [`Hub`](crate::Hub) and
/// [`Joining`](crate::Joining) only.
pub trait Role: sealed::Role {}

pub(crate) mod sealed {
    use super::{
        Command, Elsewhere, Event, Inner, Instant, LinkEvent, LinkId, Links, Received, Sender,
        SessionStatus, Share, SocketId, Sockets, VecDeque,
    };
    use bytes::BytesMut;
    use ropewalk_core::tunnel::Tunnel;

    /// The parts of a role that only a session calls.
    pub trait Role {
        /// A command; [`Command::MtuFloor`] is the session's own.
        fn on_command(
            &mut self,
            now: Instant,
            links: &mut Links,
            command: Command,
        ) -> Result<usize, String>;
        /// Something happened to a link.
        fn on_link(&mut self, now: Instant, links: &mut Links, link: LinkId, event: LinkEvent);
        /// A socket could not be opened.
        fn on_socket_failed(
            &mut self,
            now: Instant,
            links: &mut Links,
            socket: SocketId,
            reason: String,
        );
        /// Whose datagrams come over a link, and what share of the work is theirs.
        fn share(&self, _link: Option<LinkId>) -> Share {
            Share {
                sender: Sender::Site(0),
                key: 0,
                weight: 1,
                rate: None,
            }
        }
        /// Whether the rate of any sender is bounded.
        fn is_paced(&self) -> bool {
            false
        }
        /// Whether there are several senders, who may delay one another.
        fn has_several(&self) -> bool {
            false
        }
        /// The next sender that is gone.
        fn poll_gone(&mut self) -> Option<Sender> {
            None
        }
        /// A datagram came in.
        fn on_datagram(&mut self, now: Instant, links: &mut Links, received: Received);
        /// An inner packet came in.
        fn on_inner(&mut self, now: Instant, data: BytesMut, checksum_partial: bool);
        /// The next inner packet for another worker.
        fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
            None
        }
        /// Whether more inner packets are welcome.
        fn takes_inner(&self) -> bool;
        /// All of a batch is in.
        fn end_batch(&mut self, now: Instant);
        /// The next inner packet that may leave.
        fn poll_inner(&mut self) -> Option<Inner>;
        /// Moves packets to links.
        fn pump(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets);
        /// Timers.
        fn on_timeout(&mut self, now: Instant, links: &mut Links);
        /// When [`Role::on_timeout`] is wanted.
        fn poll_timeout(&self) -> Option<Instant>;
        /// Inner MTU that suits the paths now, bytes, if any works.
        fn mtu(&self) -> Option<usize>;
        /// Events for the control side.
        fn events(&mut self) -> &mut VecDeque<Event>;
        /// Fills role, tunnels and drops in.
        fn status(&self, links: &Links, status: &mut SessionStatus);
        /// The tunnel to the peer of this name.
        fn tunnel_mut(&mut self, peer: &str) -> Option<&mut Tunnel>;
        /// Says goodbye.
        fn shutdown(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets);
    }
}

/// One gateway.
#[derive(Debug)]
pub struct Session<R> {
    links: Links,
    role: R,
    mtu: InnerMtu,
    intake: Intake,
    /// Whether more waits at the sockets than can be worked off in a turn.
    behind: bool,
    /// What may still be worked off in this turn, in datagrams.
    work_left: usize,
    /// When this turn of the driver began, and whether the one before was long.
    turn_began: Instant,
    last_turn_long: bool,
    /// The TCP connection to be read now, and how many bytes at most. Nothing is worked off before: what was read
    /// counts first.
    readable: Option<(StreamId, usize)>,
}

impl<R: Role> Session<R> {
    pub(crate) fn with(links: Links, role: R, mtu: Option<usize>) -> Self {
        Self {
            links,
            role,
            mtu: InnerMtu::new(mtu),
            intake: Intake::default(),
            behind: false,
            work_left: WORK_DATAGRAMS,
            turn_began: Instant::ZERO,
            last_turn_long: false,
            readable: None,
        }
    }

    /// What the role knows.
    #[must_use]
    pub const fn role(&self) -> &R {
        &self.role
    }

    pub(crate) const fn role_mut(&mut self) -> &mut R {
        &mut self.role
    }

    #[cfg(test)]
    pub(crate) const fn parts_mut(&mut self) -> (&mut Links, &mut R) {
        (&mut self.links, &mut self.role)
    }

    /// A UDP socket is open, at this local address. Only the status needs it.
    pub fn handle_socket_opened(&mut self, socket: SocketId, local: SocketAddr) {
        self.links.set_local(socket, local);
    }

    /// A UDP socket could not be opened, or the driver cannot listen for TCP, for this reason.
    pub fn handle_socket_failed(&mut self, now: Instant, socket: SocketId, reason: String) {
        self.role
            .on_socket_failed(now, &mut self.links, socket, reason);
    }

    /// Takes one UDP datagram in. `remote` sent it, to `local_ip` of this machine if that is
    /// known; `ecn` is the field of its IP header. Anything at all may be in it.
    pub fn handle_udp(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Ecn,
        data: BytesMut,
    ) {
        let arrival = Arrival {
            socket,
            remote,
            local_ip,
            ecn,
            data,
        };
        if !self.behind && !self.role.is_paced() && self.intake.is_empty() {
            self.take(now, arrival);
            return;
        }
        self.forget_gone();
        let share = self.role.share(self.links.link_of(&arrival.data));
        if self.behind {
            self.intake.push(now, share, arrival);
        } else if let Some(arrival) = self.intake.pass(now, share, arrival) {
            self.take(now, arrival);
        }
    }

    /// Says which part of the receive buffer of a socket is filled, 0 to 1, while more waits there than the driver
    /// reads in a turn. The gateway is behind from a bound on, and also where several send and the last turn was long. While
    /// it is behind, datagrams wait here and each sender has its turn, until all have been worked off. The driver may read
    /// more datagrams in a turn meanwhile.
    pub fn handle_backlog(&mut self, filled: f64) {
        self.behind |= filled > BEHIND || self.last_turn_long && self.role.has_several();
    }

    /// Whether datagrams wait for the turn of their sender.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.behind
    }

    /// A turn of the driver begins, and it had nothing to do for this time since the last one began. From the first call
    /// on a hub whose machine is busy begins few handshakes at a time, and is behind after a long turn. A driver that
    /// never calls this method has all handshakes begun at once.
    pub fn handle_rest(&mut self, now: Instant, rest: Duration) {
        let worked = now.since(self.turn_began).saturating_sub(rest);
        self.last_turn_long = worked > TURN_LONG;
        self.turn_began = now;
        self.links.rested(rest);
    }

    fn take(&mut self, now: Instant, arrival: Arrival) {
        let Arrival {
            socket,
            remote,
            local_ip,
            ecn,
            data,
        } = arrival;
        let link = self
            .links
            .handle_udp(now, socket, remote, local_ip, ecn, data);
        self.link_events(now);
        if let Some(link) = link {
            self.receive(now, link, ecn);
        }
    }

    /// Works off what waits, up to a bound.
    fn work(&mut self, now: Instant) {
        self.forget_gone();
        while self.work_left > 0
            && self.readable.is_none()
            && let Some(work) = self.intake.next(now)
        {
            self.work_left -= 1;
            match work {
                Work::Datagram(arrival) => self.take(now, arrival),
                Work::Stream(stream, bytes) => self.readable = Some((stream, bytes)),
            }
        }
        self.behind &= self.intake.has_turns();
    }

    fn forget_gone(&mut self) {
        while let Some(sender) = self.role.poll_gone() {
            self.intake.forget(sender);
        }
    }

    /// Somebody at `remote` has connected by TCP. The name of the connection; `None` when the
    /// driver has to close it at once.
    pub fn handle_accepted(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Option<StreamId> {
        self.links.accept(now, remote, local)
    }

    /// A TCP connection that was asked for goes from this local address. Only the status needs it.
    pub fn handle_stream_opened(&mut self, stream: StreamId, local: SocketAddr) {
        self.links.set_stream_local(stream, local);
    }

    /// A TCP connection is up, or takes bytes again.
    pub fn handle_stream_writable(&mut self, stream: StreamId) {
        self.links.handle_stream_writable(stream);
    }

    /// A TCP connection may have bytes to be read. The driver leaves them in the kernel, where they push back on the
    /// sender, until [`Self::poll_stream`] names the connection.
    pub fn handle_stream_readable(&mut self, now: Instant, stream: StreamId) {
        if self.links.await_turn(stream) {
            self.forget_gone();
            let share = self.role.share(Some(LinkId::Tls(stream)));
            self.intake.push_stream(now, share, stream);
        }
    }

    /// The next TCP connection whose turn it is, and how many bytes of it may be read, at most 64 KiB. Where that many
    /// are there, [`Self::handle_stream_readable`] follows. Call until `None`, after all other input. The next call
    /// comes after [`Self::handle_stream_data`] with what was read.
    pub fn poll_stream(&mut self, now: Instant) -> Option<(StreamId, usize)> {
        loop {
            self.work(now);
            let (stream, bytes) = self.readable.take()?;
            if self.links.has_turn(stream) {
                return Some((stream, bytes));
            }
        }
    }

    /// Takes bytes in that were read from a TCP connection. Anything at all may be in them.
    pub fn handle_stream_data(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        let share = self.role.share(Some(LinkId::Tls(stream)));
        self.intake.charge(now, share.sender, bytes.len());
        if let Sender::Site(_) = share.sender {
            self.links.worked_for_sites(1 + stream_work(bytes.len()));
        }
        self.work_left = self.work_left.saturating_sub(stream_work(bytes.len()));
        self.links.handle_stream_data(stream, bytes);
        self.link_events(now);
        self.receive(now, LinkId::Tls(stream), Ecn::NotEct);
    }

    /// A TCP connection could not be made or is over, for this reason.
    pub fn handle_stream_closed(&mut self, now: Instant, stream: StreamId, reason: String) {
        self.links.handle_stream_closed(stream, reason);
        self.link_events(now);
    }

    /// Takes an inner packet in: [`ropewalk_wire::HEADROOM`] free bytes, then one IP packet.
    /// `checksum_partial` says that its transport checksum is still to be computed.
    pub fn handle_inner(&mut self, now: Instant, data: BytesMut, checksum_partial: bool) {
        self.role.on_inner(now, data, checksum_partial);
    }

    /// The next inner packet of those that came in for sites of other workers. Call until `None`
    /// after [`Self::handle_inner`], at the latest at the end of a batch.
    pub fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
        self.role.poll_elsewhere()
    }

    /// What goes to the other worker with a TCP connection that is to be moved.
    pub fn take_moved(&mut self, stream: StreamId) -> Option<Moved> {
        self.links.take_moved(stream)
    }

    /// Takes over a TCP connection from another worker. Its name from now on; `None` when the
    /// driver has to close it.
    pub fn handle_moved(&mut self, now: Instant, moved: Moved) -> Option<StreamId> {
        let stream = self.links.adopt(moved)?;
        self.link_events(now);
        self.receive(now, LinkId::Tls(stream), Ecn::NotEct);
        Some(stream)
    }

    /// Does what the control side asks; the number of tunnels or paths that it concerned.
    ///
    /// # Errors
    /// Why it cannot be done, in words.
    pub fn handle_command(&mut self, now: Instant, command: Command) -> Result<usize, String> {
        if let Command::MtuFloor(bytes) = command {
            self.mtu.set_floor(bytes);
            return Ok(1);
        }
        self.role.on_command(now, &mut self.links, command)
    }

    /// A scheduler of the caller's decides which path packets to this peer take; its name is
    /// [`Peer::name`](crate::Peer::name). An unknown peer changes nothing.
    pub fn set_policy(&mut self, peer: &str, policy: Box<dyn Policy>) {
        if let Some(tunnel) = self.role.tunnel_mut(peer) {
            tunnel.set_policy(policy);
        }
    }

    /// Tells `observer` of every datagram between this gateway and a peer. An unknown peer changes
    /// nothing.
    pub fn observe(&mut self, peer: &str, observer: Box<dyn Observer>) {
        if let Some(tunnel) = self.role.tunnel_mut(peer) {
            tunnel.observe(observer);
        }
    }

    /// Lets timers go off that are due. [`Self::poll_stream`] has to have given `None` before, at the same time: an
    /// acknowledgement that lies unread must not count as missing.
    pub fn handle_timeout(&mut self, now: Instant) {
        // The same goes for what waits here.
        self.work(now);
        debug_assert!(
            self.readable.is_none(),
            "the driver reads TCP connections before timers go off"
        );
        if self.links.poll_timeout().is_some_and(|at| at <= now) {
            self.links.handle_timeout(now);
            self.link_events(now);
        }
        if self.role.poll_timeout().is_some_and(|at| at <= now) {
            self.role.on_timeout(now, &mut self.links);
        }
    }

    /// All input of a turn is in: lets packets through that wait for nothing else.
    pub fn end_batch(&mut self, now: Instant) {
        self.work(now);
        self.work_left = WORK_DATAGRAMS;
        self.role.end_batch(now);
    }

    /// Whether more inner packets are welcome. While they are not, the driver leaves them where
    /// they are, so that they push back on their senders.
    #[must_use]
    pub fn takes_inner(&self) -> bool {
        self.role.takes_inner()
    }

    /// The next inner packet for this machine or the networks behind it. Call until `None` after
    /// [`Self::end_batch`].
    pub fn poll_inner(&mut self) -> Option<Inner> {
        self.role.poll_inner()
    }

    /// The next thing the driver has to do.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.links.poll_request()
    }

    /// Moves packets to the links, and bytes of the links to the sockets.
    pub fn pump(&mut self, now: Instant, sockets: &mut impl Sockets) {
        self.role.pump(now, &mut self.links, sockets);
        self.links.flush_all(now, sockets);
        // A write can find out that a connection is over.
        self.link_events(now);
        if let Some(mtu) = self.mtu.follow(self.role.mtu()) {
            tracing::debug!(mtu, "inner MTU follows the paths");
            self.role.events().push_back(Event::MtuChanged(mtu));
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.role.events().pop_front()
    }

    /// When [`Self::handle_timeout`] is wanted, if no input comes before.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let links = self.links.poll_timeout();
        let readable = self.readable.map(|_| Instant::ZERO);
        let others = [self.role.poll_timeout(), self.intake.due(), readable];
        links.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// MTU of the interface with the inner packets, bytes.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu.current()
    }

    /// State for people and programs.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        let mut status = SessionStatus::default();
        let drops = self.links.drops();
        status
            .drops
            .extend(drops.map(|(name, count)| (name.to_owned(), count)));
        let (intake, over_rate) = (self.intake.dropped(), self.intake.over_rate());
        status.drops.insert("intake".into(), intake);
        status.drops.insert("over_rate".into(), over_rate);
        status.public_key = self.links.identity().public_key().to_string();
        self.role.status(&self.links, &mut status);
        status
    }

    /// Connections over QUIC and TCP there is state for, those that are ending included.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.count()
    }

    /// Says goodbye to peers and closes every link. [`Self::end_batch`] and [`Self::poll_inner`] afterwards
    /// give what hosts are to be told.
    pub fn shutdown(&mut self, now: Instant, sockets: &mut impl Sockets) {
        self.role.shutdown(now, &mut self.links, sockets);
        self.links.flush_all(now, sockets);
    }

    fn link_events(&mut self, now: Instant) {
        while let Some((link, event)) = self.links.poll_event() {
            self.role.on_link(now, &mut self.links, link, event);
        }
    }

    fn receive(&mut self, now: Instant, link: LinkId, ecn: Ecn) {
        while let Some(data) = self.links.receive(link) {
            let received = Received { link, ecn, data };
            self.role.on_datagram(now, &mut self.links, received);
        }
    }
}
