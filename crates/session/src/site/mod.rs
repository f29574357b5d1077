//! The site's role: one path per uplink, each kept connected to the hub over QUIC or TLS.
//!
//! A path tries QUIC first. When that does not come up soon, TLS over TCP is tried beside it,
//! and QUIC again from time to time while TLS carries the path. A path that has gone silent gets
//! a new connection beside the old one. The one that answers first carries on. Every connection is
//! introduced with `Hello`, repeated until the hub's `Welcome`.

mod attempts;
mod fleet;
mod former;
mod keys;
mod leaving;
mod move_out;
mod path;
mod spares;
mod tuning;
mod uplinks;
mod versions;

use std::collections::VecDeque;
use std::net::IpAddr;
use tuning::{HELLO_INTERVAL, INGRESS_FULL_BYTES, TICK, TICK_IDLE};

use bytes::BytesMut;
use ipnet::IpNet;
use ropewalk_api::{Direction, PathStatus};
use ropewalk_core::reorder::Inner;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{PathState, Tunnel};
use ropewalk_transport::{PublicKey, SocketId, TransportError};
use ropewalk_types::{Instant, PATHS_MAX, PathId, PortBlock, Random};
use ropewalk_wire::{Control, Datagram, Versions, Welcome, agree};

use crate::command::Command;
use crate::io::Sockets;
use crate::links::{LinkEvent, LinkId, Links, Received, RefusedKey};
use crate::peer::Peer;
use crate::session::{Event, Role, Session, sealed};
use crate::settings::{CommonSettings, Environment, SiteHub, SiteSettings};
use crate::status::SessionStatus;
use crate::tuning::{PROBE_INTERVAL, ROUNDS};
use fleet::Fleet;
use former::Former;
use keys::Keys;
use path::SitePath;

/// The role of a site.
#[derive(Debug)]
pub struct Site {
    settings: SiteSettings,
    peer: Peer,
    /// The hub that has told the site to leave, and still delivers.
    former: Option<Former>,
    paths: [Option<SitePath>; PATHS_MAX],
    /// The last generation of the path that had each number before.
    generations: [u32; PATHS_MAX],
    /// Which of the hubs serves the site.
    serving: usize,
    versions: Versions,
    session: u64,
    random: Random,
    hub_session: Option<u64>,
    /// The tunnel at a hub that has answered with its release.
    release_told: Option<u64>,
    assigned: Option<(Vec<IpNet>, Vec<IpAddr>, Option<PortBlock>)>,
    /// Scheduler asked of the hub and not confirmed.
    scheduler_wanted: Option<SchedulerKind>,
    scheduler_due: Instant,
    tick: Instant,
    disabled: Vec<String>,
    keys: Keys,
    fleet: Fleet,
    events: VecDeque<Event>,
}

impl Session<Site> {
    /// Lets the site speak these versions of the wire only, for tests of others than this program's.
    pub const fn speak(&mut self, versions: Versions) {
        self.role_mut().versions = versions;
    }

    /// Says how many sites of this process are in an outage. These sites share their probes. A gateway has one site.
    pub fn set_outages(&mut self, sites: u32) {
        self.role_mut().peer.tunnel.set_outages(sites);
    }

    /// A site without uplinks: they arrive with [`Command::Uplinks`].
    ///
    /// # Errors
    /// When the TLS library refuses the key.
    pub fn site(settings: SiteSettings, environment: &Environment) -> Result<Self, TransportError> {
        let common = &settings.common;
        let identity = common.identity.clone();
        let links = Links::new(identity, None, common.congestion, environment)?;
        let mtu = common.mtu;
        Ok(Self::with(links, Site::new(settings, environment), mtu))
    }
}

impl Site {
    fn new(settings: SiteSettings, environment: &Environment) -> Self {
        let common = &settings.common;
        let (key, kind) = (settings.hubs[0].key, common.scheduler_send);
        let mut peer = Self::peer_of(common, key, kind, environment.tunnels);
        peer.scheduler_receive = common.scheduler_receive;
        let mut site = Self {
            peer,
            former: None,
            paths: Default::default(),
            generations: [0; PATHS_MAX],
            serving: 0,
            versions: Versions::OURS,
            session: environment.session,
            random: Random::new(environment.tunnels ^ environment.session),
            hub_session: None,
            release_told: None,
            assigned: None,
            scheduler_wanted: None,
            scheduler_due: Instant::ZERO,
            tick: Instant::ZERO,
            disabled: Vec::new(),
            keys: Keys::default(),
            fleet: Fleet::new(settings.hubs.len()),
            events: VecDeque::new(),
            settings,
        };
        site.begin_fleet();
        site
    }

    /// A hub, as the peer of a tunnel.
    fn peer_of(common: &CommonSettings, key: PublicKey, kind: SchedulerKind, seed: u64) -> Peer {
        Peer::new("hub".into(), key, kind, common, Some(PROBE_INTERVAL), seed)
    }

    /// The hub that serves the site.
    fn hub(&self) -> &SiteHub {
        &self.settings.hubs[self.serving]
    }

    /// The hub.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The UDP socket of the path over this uplink, if it has one.
    #[must_use]
    pub fn socket(&self, uplink: &str) -> Option<SocketId> {
        let mut paths = self.paths.iter().flatten();
        let path = paths.find(|path| path.uplink.name == uplink)?;
        path.sockets.iter().flatten().next().copied()
    }

    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    fn ids(&self) -> Vec<PathId> {
        let used = self.paths.iter().enumerate().filter(|(_, p)| p.is_some());
        used.map(|(index, _)| PathId(index as u8)).collect()
    }

    fn on_welcome(&mut self, link: LinkId, welcome: &Welcome) {
        if welcome.session != self.session {
            return;
        }
        let before = self.hub_session.replace(welcome.hub_session);
        if before.is_some_and(|before| before != welcome.hub_session) {
            // A hub that has started anew counts its packets from zero again. Packets that overtook its first
            // welcome are known, so that their copies are.
            self.peer.tunnel.reset_exit();
            // Its other connections are gone as well: better to be told so now.
            self.peer.tunnel.ask_all_paths();
        }
        if let Ok(version) = agree(welcome.versions, self.versions) {
            self.peer.wire_version = version;
        }
        if let Some(kind) = SchedulerKind::from_code(welcome.scheduler)
            && self.scheduler_wanted.is_none()
        {
            self.peer.scheduler_receive = kind;
        }
        for (carrier, path) in self.peer.paths.iter().zip(&mut self.paths) {
            if let (Some(carrier), Some(path)) = (carrier, path)
                && carrier.link == link
                && carrier.generation == welcome.generation
            {
                path.unanswered = false;
            }
        }
        let nets = welcome
            .addresses
            .iter()
            .filter_map(|&(ip, len)| IpNet::new(ip, len).ok());
        let usable = |ip: IpAddr| self.settings.ipv6 || ip.is_ipv4();
        let hub = welcome.hub_addresses.iter().copied();
        let assigned = (
            nets.filter(|net| usable(net.addr())).collect::<Vec<_>>(),
            hub.filter(|ip| usable(*ip)).collect::<Vec<_>>(),
            welcome.block,
        );
        if self.assigned.as_ref() != Some(&assigned) {
            let (addresses, hub_addresses, block) = assigned.clone();
            self.events.push_back(Event::Assigned {
                addresses,
                hub_addresses,
                block,
            });
            self.assigned = Some(assigned);
        }
    }

    fn on_control(&mut self, now: Instant, links: &mut Links, link: LinkId, control: Control) {
        match control {
            Control::Welcome(welcome) => {
                self.on_welcome(link, &welcome);
                if self.release_told != self.hub_session {
                    let name = env!("CARGO_PKG_VERSION").to_owned();
                    self.peer.send_control(links, &Control::Release { name });
                }
            }
            Control::Release { name } => {
                self.release_told = self.hub_session;
                tracing::debug!(release = name, "the hub's program");
            }
            Control::SchedulerIs { kind } => {
                if let Some(kind) = SchedulerKind::from_code(kind) {
                    self.peer.scheduler_receive = kind;
                    if self.scheduler_wanted == Some(kind) {
                        self.scheduler_wanted = None;
                    }
                }
            }
            Control::Goodbye => tracing::info!("the hub says goodbye"),
            Control::Enrolled { refused } => self.on_key_answer(now, links, refused),
            Control::HubKey { key } => {
                self.on_hub_key(now, links, link, PublicKey::from_bytes(key))
            }
            Control::PathSends(sends) => self.peer.on_sends(now, link, sends),
            Control::Hello(_)
            | Control::PathGone { .. }
            | Control::Scheduler { .. }
            | Control::Claim { .. }
            | Control::Enrol { .. } => {}
        }
    }

    fn set_scheduler(&mut self, now: Instant, direction: Direction, kind: SchedulerKind) {
        if direction != Direction::Receive {
            self.peer.tunnel.set_scheduler(kind);
        }
        if direction != Direction::Send {
            self.scheduler_wanted = Some(kind);
            self.scheduler_due = now;
            self.tick = now;
        }
    }

    fn path_status(path: &SitePath, id: PathId) -> PathStatus {
        let state = match (path.enabled, path.attempts.is_empty()) {
            (false, _) => "disabled",
            (true, false) => "connecting",
            (true, true) => "down",
        };
        PathStatus {
            id: id.0,
            uplink: path.uplink.name.clone(),
            state: state.into(),
            standby: path.uplink.standby,
            metered: path.uplink.metered,
            last_error: path.last_error.clone(),
            failures: path.failures,
            ..PathStatus::default()
        }
    }
}

impl Role for Site {}

impl sealed::Role for Site {
    fn on_command(
        &mut self,
        now: Instant,
        links: &mut Links,
        command: Command,
    ) -> Result<usize, String> {
        match command {
            Command::Uplinks(uplinks) => {
                let count = uplinks.len();
                self.set_uplinks(now, links, uplinks);
                Ok(count)
            }
            Command::SetScheduler {
                peer: Some(name), ..
            } => Err(format!("this is a site: only a hub has a site {name:?}")),
            Command::SetScheduler {
                direction, kind, ..
            } => {
                self.set_scheduler(now, direction, kind);
                Ok(1)
            }
            Command::SetPath { uplink, wanted } => {
                self.set_path(now, links, &uplink, wanted)?;
                Ok(1)
            }
            Command::Key(step) => {
                self.on_key_step(now, links, step);
                Ok(1)
            }
            Command::ReloadSites
            | Command::Enrolled { .. }
            | Command::Claimed(_)
            | Command::Drained(_)
            | Command::MtuFloor(_) => Err("a site has no sites".into()),
        }
    }

    fn on_socket_failed(
        &mut self,
        now: Instant,
        links: &mut Links,
        socket: SocketId,
        reason: String,
    ) {
        let Some(id) = self.ids().into_iter().find(|id| {
            let path = self.paths[id.index()].as_ref();
            path.is_some_and(|path| path.sockets.contains(&Some(socket)))
        }) else {
            return;
        };
        if let Some(path) = &mut self.paths[id.index()] {
            for place in &mut path.sockets {
                place.take_if(|open| *open == socket);
            }
            path.attempts.retain(|attempt| {
                let over = links.socket(attempt.link) == Some(socket);
                if over {
                    links.close(now, attempt.link, &reason);
                }
                !over
            });
        }
        self.note_error(id, reason);
    }

    fn on_link(&mut self, now: Instant, links: &mut Links, link: LinkId, event: LinkEvent) {
        if self.on_warm_link(now, link, &event) || self.on_former_link(now, link, &event) {
            return;
        }
        match event {
            LinkEvent::Connected { peer } => {
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                self.on_hub_proved(now, peer);
                // The connection that was there before may have come back meanwhile: it knows the
                // path, and a new one would have to find everything out again.
                let carrier = self.peer.paths[id.index()].as_ref().map(|p| p.link);
                let well = self.peer.tunnel.path_state(id) == Some(PathState::Up)
                    && matches!(carrier, Some(LinkId::Quic(_)))
                    && !self.is_outdated(links, id);
                let Some(path) = &mut self.paths[id.index()] else {
                    return;
                };
                if well {
                    let attempt = path.attempts.remove(index);
                    links.close(now, attempt.link, "not needed any more");
                    return;
                }
                path.attempts[index].note_connected(now);
                tracing::debug!(uplink = path.uplink.name, "connected, saying hello");
                let generation = path.attempts[index].generation;
                path.hello_due = now + HELLO_INTERVAL;
                self.hello(links, id, link, generation);
            }
            LinkEvent::Closed {
                reason,
                refused,
                group,
            } => {
                // The last suspicion was of this very failure.
                let suspected = self.peer.path_of(link);
                let suspected = suspected.and_then(|(id, _)| self.peer.tunnel.path_stats(id));
                let failures = suspected.map_or(1, |stats| stats.suspected.max(1));
                if let Some((id, index)) = self.attempt_of(link) {
                    let path = self.paths[id.index()].as_mut();
                    let attempt = path.map(|path| path.attempts.remove(index));
                    if attempt.as_ref().is_some_and(|attempt| attempt.connected) {
                        self.outrank(now, id);
                    }
                    if let Some(attempt) = attempt {
                        if let Some(group) = group {
                            self.on_group(now, id, attempt.key, group);
                        }
                        if refused == Some(RefusedKey::Own) {
                            self.on_key_unknown(now, links, attempt.key);
                        }
                    }
                    self.note_error(id, reason);
                } else if let Some(id) = self.peer.on_link_closed(now, link)
                    && let Some(path) = &mut self.paths[id.index()]
                {
                    tracing::info!(uplink = path.uplink.name, reason, "path down");
                    path.failures += failures;
                    path.last_error = Some(reason);
                    (path.next_attempt, path.tries) = (now, 0);
                }
            }
        }
        self.tick = self.tick.min(now + TICK);
    }

    fn on_datagram(&mut self, now: Instant, links: &mut Links, received: Received) {
        let link = received.link;
        if self.is_refused(now, links, &received) || self.on_fleet_datagram(now, links, &received) {
            return;
        }
        let Some(received) = self.on_former_datagram(now, received) else {
            return;
        };
        let (id, current) = match self.peer.path_of(link) {
            Some(carried) => carried,
            None => {
                // Every message of the hub on an attempt counts as the answer.
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                if let Ok(Datagram::Control(Control::Goodbye)) = Datagram::parse(&received.data) {
                    return;
                }
                self.promote(now, links, id, index);
                (id, true)
            }
        };
        let tunnel = &mut self.peer.tunnel;
        let control = if current {
            tunnel.handle_datagram(now, id, received.ecn, received.data)
        } else {
            tunnel.handle_straggler(now, id, received.ecn, received.data)
        };
        if let Some(control) = control {
            self.on_control(now, links, link, control);
        }
    }

    fn on_inner(&mut self, now: Instant, data: BytesMut, checksum_partial: bool) {
        self.peer.tunnel.handle_inner(now, data, checksum_partial);
    }

    fn takes_inner(&self) -> bool {
        let tunnel = &self.peer.tunnel;
        // What an outage left has bounds of its own.
        tunnel.queue_bytes() - tunnel.held_bytes() < INGRESS_FULL_BYTES
    }

    fn end_batch(&mut self, now: Instant) {
        self.peer.tunnel.end_batch(now);
        if let Some(former) = &mut self.former {
            former.peer.tunnel.end_batch(now);
        }
    }

    fn poll_inner(&mut self) -> Option<Inner> {
        let tunnel = &mut self.peer.tunnel;
        let former = self.former.as_mut();
        let earlier = former.and_then(|former| tunnel.poll_inner_of(&mut former.peer.tunnel));
        earlier.or_else(|| tunnel.poll_inner())
    }

    fn pump(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        if let Some(former) = &mut self.former {
            former.peer.pump(now, links, sockets, ROUNDS);
        }
        self.peer.pump(now, links, sockets, ROUNDS);
        if self.peer.any_suspect() {
            self.tick = self.tick.min(now + TICK);
        }
        if self.is_spare_wanted(now) {
            self.tick = now;
        }
        self.events.extend(self.peer.up_or_down());
    }

    fn on_timeout(&mut self, now: Instant, links: &mut Links) {
        self.peer.tunnel.handle_timeout(now);
        self.peer.close_drained(now, links);
        self.tend_former(now, links);
        if self.tick > now {
            return;
        }
        for id in self.ids() {
            let path = self.paths[id.index()].as_mut();
            if self.peer.tunnel.is_leaving(id) && path.is_some_and(|path| !path.leaving.counts(now))
            {
                self.peer.tunnel.set_leaving(id, false);
            }
            self.tend(now, links, id);
        }
        self.tend_fleet(now, links);
        self.ask_for_key(now, links);
        if let Some(kind) = self.scheduler_wanted
            && self.scheduler_due <= now
        {
            self.scheduler_due = now + HELLO_INTERVAL;
            let control = Control::Scheduler { kind: kind.code() };
            self.peer.send_control(links, &control);
        }
        let busy = self.scheduler_wanted.is_some()
            || self.keys.is_busy()
            || self.is_fleet_busy(now)
            || self.ids().iter().any(|id| {
                let up = self.peer.tunnel.path_state(*id) == Some(PathState::Up);
                let path = self.paths[id.index()].as_ref();
                path.is_some_and(|p| p.enabled && (!up || p.unanswered || !p.attempts.is_empty()))
            });
        self.tick = now + if busy { TICK } else { TICK_IDLE };
        let sooner = self.fleet.due.take().filter(|at| *at > now);
        self.tick = self.tick.min(sooner.unwrap_or(self.tick));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let former = self.former.as_ref().and_then(Former::poll_timeout);
        [Some(self.tick), self.peer.poll_timeout(), former]
            .into_iter()
            .flatten()
            .min()
    }

    fn mtu(&self) -> Option<usize> {
        self.peer.whole_max()
    }

    fn status(&self, links: &Links, status: &mut SessionStatus) {
        status.role = "site";
        status.rotation = self.key_status(links);
        let mut tunnel = self.peer.status(links);
        if let Some((addresses, hub_addresses, _)) = &self.assigned {
            status.addresses = addresses.iter().map(ToString::to_string).collect();
            tunnel.peer_addresses = hub_addresses.iter().map(ToString::to_string).collect();
        }
        for id in self.ids() {
            let Some(path) = &self.paths[id.index()] else {
                continue;
            };
            if let Some(listed) = tunnel.paths.iter_mut().find(|p| p.id == id.0) {
                listed.failures += path.failures;
                listed.last_error.clone_from(&path.last_error);
            } else {
                tunnel.paths.push(Self::path_status(path, id));
            }
        }
        tunnel.paths.sort_by_key(|p| p.id);
        status.add_tunnel_drops(&self.peer.tunnel);
        status.tunnels.push(tunnel);
        self.fleet_status(status);
    }

    fn events(&mut self) -> &mut VecDeque<Event> {
        &mut self.events
    }

    fn tunnel_mut(&mut self, peer: &str) -> Option<&mut Tunnel> {
        (self.peer.name == peer).then_some(&mut self.peer.tunnel)
    }

    fn shutdown(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        self.peer.tunnel.abandon(now);
        self.peer.send_control(links, &Control::Goodbye);
        if let Some(former) = &self.former {
            former.peer.send_control(links, &Control::Goodbye);
        }
        // A closed connection sends nothing but its close.
        links.flush_all(now, sockets);
        for path in self.paths.iter_mut().flatten() {
            for attempt in path.attempts.drain(..) {
                links.close(now, attempt.link, "the site stops");
            }
        }
        for id in self.ids() {
            self.close_warm(now, links, id, "the site stops");
        }
        self.end_former(now, links, "the site stops");
        self.peer.close_all(now, links, "the site stops");
    }
}
