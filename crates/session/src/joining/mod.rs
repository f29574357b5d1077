//! The role of a machine that becomes a site: it finds a way to the hub, says which key it has made,
//! and takes the answer.
//!
//! All ways to the hub are tried at once: each interface, each address, QUIC first and TLS over TCP
//! a moment later. The first connection asks. The others wait, and ask if it ends. Invariant: the key
//! goes to a peer that has proved the pinned key, and to nobody else. Nobody on one way ends the join for the
//! others.

#[cfg(test)]
mod tests;
mod tuning;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use ropewalk_core::reorder::Inner;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_transport::{CongestionControl, ConnectOptions, SocketId, TransportError};
use ropewalk_types::Instant;
use ropewalk_wire::{Control, Datagram, emit_control};

use crate::command::Command;
use crate::io::Sockets;
use crate::links::{LinkEvent, LinkId, Links, Received, RefusedKey, any_address};
use crate::session::{Event, Role, Session, sealed};
use crate::settings::{Environment, JoinSettings};
use crate::status::SessionStatus;
use tuning::{ASK_INTERVAL, ATTEMPT_LIFETIME, FALLBACK_AFTER, RETRY_AFTER, WAYS_MAX};

/// How a join ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The hub has recorded the key.
    Enrolled,
    /// A connection is there, and nothing was to be asked.
    Found,
    /// The hub refuses, in its words.
    Refused(String),
    /// The hub does not know the invitation.
    Unknown,
    /// Whoever answers at the hub's addresses has another key than the pinned one.
    OtherKey,
}

/// One way to the hub.
#[derive(Debug)]
struct Way {
    device: Option<String>,
    /// Where to, by UDP or TCP.
    remote: SocketAddr,
    tls: bool,
    state: WayState,
    told: Told,
}

/// What came of the attempts on a way so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// There was none.
    NotTried,
    /// No answer yet, or none that decides anything.
    Nothing,
    /// Somebody said that the hub does not know the invitation. Whoever is on this way may have said so.
    Unknown,
    /// Somebody answered who has another key than the hub.
    OtherKey,
}

/// How far the connection of a way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WayState {
    /// There is none until then.
    Waiting { next: Instant },
    /// It is being made, over this socket if UDP.
    Trying {
        link: LinkId,
        socket: Option<SocketId>,
        until: Instant,
    },
    /// It is there.
    Connected {
        link: LinkId,
        socket: Option<SocketId>,
    },
}

impl Way {
    const fn link(&self) -> Option<LinkId> {
        match self.state {
            WayState::Waiting { .. } => None,
            WayState::Trying { link, .. } | WayState::Connected { link, .. } => Some(link),
        }
    }

    const fn socket(&self) -> Option<SocketId> {
        match self.state {
            WayState::Waiting { .. } => None,
            WayState::Trying { socket, .. } | WayState::Connected { socket, .. } => socket,
        }
    }

    const fn due(&self) -> Option<Instant> {
        match self.state {
            WayState::Waiting { next } => Some(next),
            WayState::Trying { until, .. } => Some(until),
            WayState::Connected { .. } => None,
        }
    }

    /// For people, such as `203.0.113.1:4443 (UDP) on eth0`.
    fn name(&self) -> String {
        let transport = if self.tls { "TCP" } else { "UDP" };
        let on = self.device.as_ref().map(|device| format!(" on {device}"));
        format!("{} ({transport}){}", self.remote, on.unwrap_or_default())
    }
}

/// The role of a machine that becomes a site.
#[derive(Debug)]
pub struct Joining {
    settings: JoinSettings,
    ways: Vec<Way>,
    /// The connection that asks, and when it asks again.
    asking: Option<(LinkId, Instant)>,
    outcome: Option<Outcome>,
    problems: BTreeMap<String, String>,
    events: VecDeque<Event>,
}

impl Session<Joining> {
    /// A machine that joins, beginning with the first [`Session::handle_timeout`]. Time counts from
    /// there.
    ///
    /// # Errors
    /// When the TLS library refuses the key.
    pub fn joining(
        settings: JoinSettings,
        environment: &Environment,
    ) -> Result<Self, TransportError> {
        let identity = settings.invitation.clone();
        let links = Links::new(identity, None, CongestionControl::default(), environment)?;
        Ok(Self::with(links, Joining::new(settings), None))
    }
}

impl Joining {
    fn new(settings: JoinSettings) -> Self {
        let way = |tls| {
            let settings = &settings;
            settings.devices.iter().flat_map(move |device| {
                settings.hub_addresses.iter().map(move |hub| Way {
                    device: device.clone(),
                    remote: if tls {
                        SocketAddr::new(hub.ip(), settings.tcp_port)
                    } else {
                        *hub
                    },
                    tls,
                    state: WayState::Waiting {
                        next: if tls {
                            Instant::ZERO + FALLBACK_AFTER
                        } else {
                            Instant::ZERO
                        },
                    },
                    told: Told::NotTried,
                })
            })
        };
        let ways = way(false).take(WAYS_MAX / 2);
        let ways = ways.chain(way(true).take(WAYS_MAX / 2)).collect();
        Self {
            ways,
            asking: None,
            outcome: None,
            problems: BTreeMap::new(),
            events: VecDeque::new(),
            settings,
        }
    }

    /// How the join ended, once it has.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether some way says that the hub does not know the invitation, though others do not.
    #[must_use]
    pub fn may_be_unknown(&self) -> bool {
        self.ways.iter().any(|way| way.told == Told::Unknown)
    }

    /// Whether somebody with another key than the hub's answers on some way, though not on all.
    #[must_use]
    pub fn may_have_other_key(&self) -> bool {
        self.ways.iter().any(|way| way.told == Told::OtherKey)
    }

    /// What went wrong last on each way, by the way's name.
    #[must_use]
    pub const fn problems(&self) -> &BTreeMap<String, String> {
        &self.problems
    }

    fn start(&mut self, now: Instant, links: &mut Links, index: usize) {
        let way = &mut self.ways[index];
        let (device, key) = (way.device.as_deref(), self.settings.hub_key);
        let (started, socket) = if way.tls {
            (
                links.connect_tls(now, device, way.remote, (key, None)),
                None,
            )
        } else {
            let socket = links.open_udp(any_address(&way.remote), device);
            let options = ConnectOptions {
                socket,
                ..ConnectOptions::default()
            };
            let started = links.connect_quic(now, way.remote, key, options);
            (started, Some(socket))
        };
        match started {
            Ok(link) => {
                if way.told == Told::NotTried {
                    way.told = Told::Nothing;
                }
                way.state = WayState::Trying {
                    link,
                    socket,
                    until: now + ATTEMPT_LIFETIME,
                };
            }
            Err(error) => {
                if let Some(socket) = socket {
                    links.close_udp(socket);
                }
                self.failed(now, links, index, error.to_string());
            }
        }
    }

    /// An answer on this way decides the join, unless another way has a better one. Whoever is on the way may have
    /// given the answer: the end of a connection proves no key, and anybody has some key. So this is the outcome only
    /// when all ways that were tried are decided.
    fn decided(&mut self, index: usize, told: Told) {
        self.ways[index].told = told;
        if self.ways.iter().all(|way| way.told != Told::Nothing) {
            let outcome = if self.may_be_unknown() {
                Outcome::Unknown
            } else {
                Outcome::OtherKey
            };
            self.outcome.get_or_insert(outcome);
        }
    }

    /// The connection of a way is over, or cannot be made.
    fn failed(&mut self, now: Instant, links: &mut Links, index: usize, reason: String) {
        let way = &mut self.ways[index];
        if let Some(socket) = way.socket() {
            links.close_udp(socket);
        }
        let was = way.link();
        way.state = WayState::Waiting {
            next: now + RETRY_AFTER,
        };
        self.problems.insert(way.name(), reason);
        if self.asking.is_some_and(|(link, _)| Some(link) == was) {
            self.asking = None;
            self.ask(now, links);
        }
    }

    /// Lets a connection ask, if there is one.
    fn ask(&mut self, now: Instant, links: &mut Links) {
        let connected = |way: &Way| match way.state {
            WayState::Connected { link, .. } => Some(link),
            WayState::Waiting { .. } | WayState::Trying { .. } => None,
        };
        let same = self.asking.map(|(link, _)| link);
        let Some(link) = same.or_else(|| self.ways.iter().find_map(connected)) else {
            return;
        };
        let Some(own) = &self.settings.identity else {
            self.outcome.get_or_insert(Outcome::Found);
            return;
        };
        self.asking = Some((link, now + ASK_INTERVAL));
        let mut bytes = Vec::new();
        let key = *own.public_key().as_bytes();
        let proof = Some(own.prove(&self.settings.invitation.public_key()));
        emit_control(&Control::Enrol { key, proof }, &mut bytes);
        links.queue(link, Bytes::from(bytes));
    }

    fn way_of(&self, link: LinkId) -> Option<usize> {
        self.ways.iter().position(|way| way.link() == Some(link))
    }
}

impl Role for Joining {}

impl sealed::Role for Joining {
    fn on_command(
        &mut self,
        _now: Instant,
        _links: &mut Links,
        _command: Command,
    ) -> Result<usize, String> {
        Err("this machine is no gateway yet".to_owned())
    }

    fn on_link(&mut self, now: Instant, links: &mut Links, link: LinkId, event: LinkEvent) {
        let Some(index) = self.way_of(link) else {
            return;
        };
        match event {
            LinkEvent::Connected { .. } => {
                let socket = self.ways[index].socket();
                self.ways[index].state = WayState::Connected { link, socket };
                if self.asking.is_none() {
                    self.ask(now, links);
                }
            }
            LinkEvent::Closed {
                reason,
                refused,
                group: _,
            } => {
                match refused {
                    Some(RefusedKey::Own) => self.decided(index, Told::Unknown),
                    Some(RefusedKey::OfPeer) => self.decided(index, Told::OtherKey),
                    None => {}
                }
                self.failed(now, links, index, reason);
            }
        }
    }

    fn on_socket_failed(
        &mut self,
        now: Instant,
        links: &mut Links,
        socket: SocketId,
        reason: String,
    ) {
        let of_socket = |way: &Way| way.socket() == Some(socket);
        if let Some(index) = self.ways.iter().position(of_socket) {
            if let Some(link) = self.ways[index].link() {
                links.close(now, link, "no socket");
            }
            self.failed(now, links, index, reason);
        }
    }

    fn on_datagram(&mut self, _now: Instant, _links: &mut Links, received: Received) {
        let parsed = Datagram::parse(&received.data);
        if let Ok(Datagram::Control(Control::Enrolled { refused })) = parsed {
            self.outcome.get_or_insert(if refused.is_empty() {
                Outcome::Enrolled
            } else {
                Outcome::Refused(refused)
            });
        }
    }

    fn on_inner(&mut self, _now: Instant, _data: BytesMut, _checksum_partial: bool) {}

    fn takes_inner(&self) -> bool {
        false
    }

    fn end_batch(&mut self, _now: Instant) {}

    fn poll_inner(&mut self) -> Option<Inner> {
        None
    }

    fn pump(&mut self, _now: Instant, _links: &mut Links, _sockets: &mut impl Sockets) {}

    fn on_timeout(&mut self, now: Instant, links: &mut Links) {
        if let Some((_, again)) = self.asking {
            if again <= now {
                self.ask(now, links);
            }
            return;
        }
        for index in 0..self.ways.len() {
            let way = &self.ways[index];
            if way.due().is_none_or(|due| due > now) {
                continue;
            }
            if let Some(link) = way.link() {
                links.close(now, link, "too slow");
                self.failed(now, links, index, "no answer".to_owned());
            } else {
                self.start(now, links, index);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.asking {
            Some((_, again)) => Some(again),
            None => self.ways.iter().filter_map(Way::due).min(),
        }
    }

    fn mtu(&self) -> Option<usize> {
        None
    }

    fn events(&mut self) -> &mut VecDeque<Event> {
        &mut self.events
    }

    fn status(&self, _links: &Links, status: &mut SessionStatus) {
        status.role = "joining";
    }

    fn tunnel_mut(&mut self, _peer: &str) -> Option<&mut Tunnel> {
        None
    }

    fn shutdown(&mut self, now: Instant, links: &mut Links, _sockets: &mut impl Sockets) {
        for link in self.ways.iter().filter_map(Way::link) {
            links.close(now, link, "joined");
        }
    }
}
