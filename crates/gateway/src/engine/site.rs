//! The site's role: one path per uplink, each kept connected to the hub by whatever works.
//!
//! A path tries QUIC first. When that does not come up soon, TLS over TCP is tried beside it,
//! and QUIC again from time to time while TLS carries the path. A path that has gone silent gets
//! a new connection beside the old one: whichever answers first carries on. Every connection is
//! introduced with `Hello`, repeated until the hub's `Welcome`.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use ropewalk_core::path::PathConfig;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::PathState;
use ropewalk_io::{InnerPacket, TunPacket};
use ropewalk_transport::ConnectOptions;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};
use ropewalk_wire::{Control, Datagram, Hello, VERSION, Welcome, emit_control};

use super::control::{Command, Direction, PathStatus, Status, Uplink};
use super::event_loop::{ENTRY_FULL_BYTES, Role};
use super::fabric::{Fabric, LinkEvent, LinkId, Received, SocketId, any_address};
use super::peer::{Peer, PeerPath};
use super::settings::{EngineEvent, SiteSettings};
use super::{random_u64, scheduler_from_number, scheduler_number};

/// How often silence, attempts and unanswered messages are looked at.
const TICK: Duration = Duration::from_millis(100);
/// The same while every path is up and nothing is outstanding.
const TICK_IDLE: Duration = Duration::from_secs(1);
/// A path silent for this long gets a new connection beside the old one.
const RECONNECT_AFTER: Duration = Duration::from_millis(400);
/// Time between connection attempts of one path.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(250);
/// An attempt that has not succeeded by then is given up.
const ATTEMPT_LIFETIME: Duration = Duration::from_secs(4);
/// QUIC attempts of one path under way at once.
const ATTEMPTS_MAX: usize = 4;
/// How long QUIC may fail before TLS over TCP is tried.
const FALLBACK_AFTER: Duration = Duration::from_millis(1_000);
/// While TLS carries a path: how often QUIC is tried.
const RETURN_INTERVAL: Duration = Duration::from_secs(10);
/// How often an unanswered `Hello` is repeated.
const HELLO_INTERVAL: Duration = Duration::from_millis(150);

/// A connection on its way to carrying a path.
#[derive(Debug)]
struct Attempt {
    link: LinkId,
    generation: u32,
    started: Instant,
    connected: bool,
    tls: bool,
}

#[derive(Debug)]
struct SitePath {
    uplink: Uplink,
    enabled: bool,
    socket: Option<(SocketId, bool)>,
    attempts: Vec<Attempt>,
    generation: u32,
    /// Link in use whose `Hello` is unanswered, if any.
    unanswered: bool,
    hello_due: Instant,
    next_attempt: Instant,
    /// Since when QUIC has been wanted and not had.
    quic_wanted: Option<Instant>,
    /// Which of the hub's addresses to try.
    address: usize,
    last_error: Option<String>,
    failures: u64,
}

/// The role.
pub struct Site {
    settings: SiteSettings,
    peer: Peer,
    paths: [Option<SitePath>; PATHS_MAX],
    session: u64,
    hub_session: Option<u64>,
    assigned: Option<(Vec<IpNet>, Vec<IpAddr>)>,
    /// Scheduler asked of the hub and not confirmed.
    scheduler_wanted: Option<SchedulerKind>,
    scheduler_due: Instant,
    tick: Instant,
    disabled: Vec<String>,
}

impl Site {
    /// A site without uplinks: they arrive as a command.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn new(settings: SiteSettings, _fabric: &mut Fabric) -> anyhow::Result<Self> {
        let peer = Peer::new(
            "hub".into(),
            settings.hub_key.clone(),
            settings.common.scheduler_send,
            true,
            random_u64()?,
        );
        let mut site = Self {
            peer,
            paths: Default::default(),
            session: random_u64()?,
            hub_session: None,
            assigned: None,
            scheduler_wanted: None,
            scheduler_due: Instant::ZERO,
            tick: Instant::ZERO,
            disabled: Vec::new(),
            settings,
        };
        site.peer.scheduler_receive = site.settings.common.scheduler_receive;
        Ok(site)
    }

    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    fn ids(&self) -> Vec<PathId> {
        let used = self.paths.iter().enumerate().filter(|(_, p)| p.is_some());
        used.map(|(index, _)| PathId(index as u8)).collect()
    }

    /// Follows the uplinks: new ones get a path, changed ones keep theirs, gone ones lose it.
    fn set_uplinks(&mut self, now: Instant, fabric: &mut Fabric, uplinks: Vec<Uplink>) {
        for id in self.ids() {
            let Some(path) = &self.paths[id.index()] else {
                continue;
            };
            // The index outlives a rename; an interface plugged in again has a new one.
            if !uplinks.iter().any(|u| u.ifindex == path.uplink.ifindex) {
                self.drop_path(now, fabric, id, "the uplink is gone");
            }
        }
        for uplink in uplinks {
            let same = |p: &Option<SitePath>| {
                p.as_ref()
                    .is_some_and(|p| p.uplink.ifindex == uplink.ifindex)
            };
            if let Some(index) = self.paths.iter().position(same) {
                #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
                self.change_path(now, fabric, PathId(index as u8), uplink);
            } else if let Some(index) = self.paths.iter().position(Option::is_none) {
                tracing::info!(uplink = uplink.name, "uplink found");
                let enabled = !self.disabled.contains(&uplink.name);
                self.paths[index] = Some(SitePath::new(now, uplink, enabled));
            } else {
                tracing::warn!(
                    uplink = uplink.name,
                    max = PATHS_MAX,
                    "too many uplinks: not used"
                );
            }
        }
        self.tick = now;
    }

    fn change_path(&mut self, now: Instant, fabric: &mut Fabric, id: PathId, uplink: Uplink) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.uplink == uplink {
            return;
        }
        let old = std::mem::replace(&mut path.uplink, uplink);
        if old.name != path.uplink.name {
            // The socket is bound to the device by index; only the name people see changes.
            tracing::info!(from = old.name, to = path.uplink.name, "uplink renamed");
        }
        let lost = old
            .addresses
            .iter()
            .any(|a| !path.uplink.addresses.contains(a));
        let marks = |u: &Uplink| (u.standby, u.metered, u.weight, u.name.clone());
        let renewed = marks(&old) != marks(&path.uplink);
        path.next_attempt = now;
        if renewed {
            path.unanswered = true;
            path.hello_due = now;
        }
        let config = path.config();
        if let Some(carrier) = &mut self.peer.paths[id.index()] {
            carrier.name.clone_from(&path.uplink.name);
            if renewed {
                carrier.config = config.clone();
                self.peer.tunnel.set_path_config(id, config);
            }
            if lost {
                // The same connection from another address: the hub validates the new one.
                fabric.address_changed(carrier.link);
            }
        }
    }

    fn drop_path(&mut self, now: Instant, fabric: &mut Fabric, id: PathId, why: &str) {
        let Some(path) = self.paths[id.index()].take() else {
            return;
        };
        tracing::info!(uplink = path.uplink.name, why, "path dropped");
        for attempt in &path.attempts {
            fabric.close(now, attempt.link, why);
        }
        self.peer.remove_path(now, fabric, id, why);
        fabric.flush_all(now);
        if let Some((socket, _)) = path.socket {
            fabric.close_udp(socket);
        }
        let gone = Control::PathGone {
            path: id.0,
            generation: path.generation,
        };
        self.peer.send_control(now, fabric, &gone);
    }

    /// Looks after one path: starts and ends attempts, repeats `Hello`.
    fn tend(&mut self, now: Instant, fabric: &mut Fabric, id: PathId) {
        let silent = match self.peer.tunnel.path_state(id) {
            Some(PathState::Suspect(since)) => now.since(since) > RECONNECT_AFTER,
            Some(PathState::Up) => false,
            None => true,
        };
        let carrier = self.peer.paths[id.index()].as_ref().map(|p| p.link);
        let on_tls = carrier.is_some_and(|link| fabric.transport(link) == "tls");
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if !path.enabled {
            return;
        }
        path.attempts.retain(|attempt| {
            let keep = now.since(attempt.started) < ATTEMPT_LIFETIME && (silent || on_tls);
            if !keep {
                fabric.close(now, attempt.link, "not needed any more");
            }
            keep
        });
        if silent && !on_tls {
            path.quic_wanted.get_or_insert(now);
        } else if !silent {
            path.quic_wanted = None;
        }
        if (silent || on_tls) && path.next_attempt <= now {
            path.next_attempt = now
                + if silent {
                    ATTEMPT_INTERVAL
                } else {
                    RETURN_INTERVAL
                };
            self.attempt_quic(now, fabric, id);
        }
        let fallback = self.settings.udp_blocked_fallback;
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let overdue = path
            .quic_wanted
            .is_some_and(|at| now.since(at) > FALLBACK_AFTER);
        let lost_tls = silent && on_tls;
        if fallback && (overdue || lost_tls) && !path.attempts.iter().any(|a| a.tls) {
            self.attempt_tls(now, fabric, id);
        }
        self.repeat_hello(now, fabric, id);
    }

    fn hub_address(&self, path: &SitePath) -> Option<SocketAddr> {
        let addresses = self.settings.hub_addresses.load();
        let fits = |hub: &&SocketAddr| {
            path.uplink
                .addresses
                .iter()
                .any(|a| a.is_ipv4() == hub.is_ipv4())
        };
        let usable: Vec<_> = addresses.iter().filter(fits).collect();
        (!usable.is_empty()).then(|| *usable[path.address % usable.len()])
    }

    fn attempt_quic(&mut self, now: Instant, fabric: &mut Fabric, id: PathId) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let Some(remote) = self.hub_address(path) else {
            self.note_error(
                id,
                "no address of the hub's address family on this uplink".into(),
            );
            return;
        };
        let congestion = path
            .uplink
            .congestion
            .unwrap_or(self.settings.common.congestion);
        let mtu_max = super::udp_payload_max(path.uplink.mtu, &remote);
        let options = ConnectOptions {
            congestion,
            mtu_max: Some(mtu_max),
        };
        let key = self.settings.hub_key.clone();
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let quic = path.attempts.iter().filter(|a| !a.tls).count();
        if quic >= ATTEMPTS_MAX {
            let oldest = path.attempts.iter().position(|a| !a.tls).unwrap_or(0);
            let attempt = path.attempts.remove(oldest);
            fabric.close(now, attempt.link, "replaced by a newer attempt");
            path.address = path.address.wrapping_add(1);
        }
        let started = path
            .open_socket(fabric, &remote)
            .and_then(|socket| fabric.connect_quic(now, socket, remote, &key, options));
        match started {
            Ok(link) => path.add_attempt(now, link, false),
            Err(error) => self.note_error(id, format!("{error:#}")),
        }
    }

    fn attempt_tls(&mut self, now: Instant, fabric: &mut Fabric, id: PathId) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let Some(remote) = self.hub_address(path) else {
            return;
        };
        let remote = SocketAddr::new(remote.ip(), self.settings.tcp_port);
        let started = fabric.connect_tls(now, &path.uplink.name, remote, &self.settings.hub_key);
        match (started, &mut self.paths[id.index()]) {
            (Ok(link), Some(path)) => path.add_attempt(now, link, true),
            (Err(error), _) => self.note_error(id, format!("{error:#}")),
            (Ok(link), None) => fabric.close(now, link, "the path is gone"),
        }
    }

    fn note_error(&mut self, id: PathId, error: String) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.last_error.as_ref() != Some(&error) {
            tracing::info!(
                uplink = path.uplink.name,
                error,
                "no connection to the hub yet"
            );
            path.last_error = Some(error);
        }
    }

    fn repeat_hello(&mut self, now: Instant, fabric: &mut Fabric, id: PathId) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.hello_due > now {
            return;
        }
        path.hello_due = now + HELLO_INTERVAL;
        let mut due: Vec<(LinkId, u32)> = path
            .attempts
            .iter()
            .filter(|a| a.connected)
            .map(|a| (a.link, a.generation))
            .collect();
        if path.unanswered
            && let Some(carrier) = &self.peer.paths[id.index()]
        {
            due.push((carrier.link, carrier.generation));
        }
        for (link, generation) in due {
            self.hello(now, fabric, id, link, generation);
        }
    }

    fn hello(&self, now: Instant, fabric: &mut Fabric, id: PathId, link: LinkId, generation: u32) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let hello = Hello {
            version: VERSION,
            session: self.session,
            path: id.0,
            generation,
            standby: path.uplink.standby,
            metered: path.uplink.metered,
            scheduler: scheduler_number(self.peer.scheduler_receive),
            weight: path.uplink.weight.unwrap_or(0),
            name: path.uplink.name.clone(),
        };
        let mut bytes = Vec::new();
        emit_control(&Control::Hello(hello), &mut bytes);
        fabric.send(now, link, bytes.into(), 0);
    }

    /// The attempt that carries `link`, and its path.
    fn attempt_of(&mut self, link: LinkId) -> Option<(PathId, usize)> {
        self.ids().into_iter().find_map(|id| {
            let path = self.paths[id.index()].as_ref()?;
            let index = path.attempts.iter().position(|a| a.link == link)?;
            Some((id, index))
        })
    }

    /// The hub has answered on an attempt: it carries the path from now on.
    fn promote(&mut self, now: Instant, fabric: &mut Fabric, id: PathId, index: usize) {
        let default_congestion = self.settings.common.congestion;
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let attempt = path.attempts.remove(index);
        if let Some(carrier) = &self.peer.paths[id.index()]
            && carrier.generation > attempt.generation
        {
            fabric.close(now, attempt.link, "a newer connection carries the path");
            return;
        }
        let (keep_tls, mut rest) = (attempt.tls, std::mem::take(&mut path.attempts));
        rest.retain(|other| {
            // While TLS carries the path, QUIC may still come up.
            let keep = keep_tls && !other.tls;
            if !keep {
                fabric.close(now, other.link, "another connection carries the path");
            }
            keep
        });
        path.attempts = rest;
        path.quic_wanted = None;
        path.last_error = None;
        path.unanswered = true;
        path.next_attempt = now + RETURN_INTERVAL;
        let carrier = PeerPath {
            link: attempt.link,
            generation: attempt.generation,
            name: path.uplink.name.clone(),
            config: path.config(),
            congestion: path.uplink.congestion.unwrap_or(default_congestion),
        };
        tracing::info!(
            uplink = carrier.name,
            transport = fabric.transport(attempt.link),
            "path up"
        );
        self.peer.set_path(now, id, carrier);
    }

    fn on_welcome(&mut self, now: Instant, link: LinkId, welcome: &Welcome) {
        if welcome.session != self.session {
            return;
        }
        if self.hub_session.replace(welcome.hub_session) != Some(welcome.hub_session) {
            // A hub that has started anew counts its packets from zero again.
            self.peer.tunnel.reset_exit();
        }
        if welcome.version != VERSION {
            tracing::warn!(
                hub = welcome.version,
                site = VERSION,
                "the hub speaks another version: update both"
            );
        }
        if let Some(kind) = scheduler_from_number(welcome.scheduler)
            && self.scheduler_wanted.is_none()
        {
            self.peer.scheduler_receive = kind;
        }
        for (carrier, path) in self.peer.paths.iter().zip(&mut self.paths) {
            if let (Some(carrier), Some(path)) = (carrier, path)
                && carrier.link == link
            {
                path.unanswered = false;
            }
        }
        let nets = welcome
            .addresses
            .iter()
            .filter_map(|&(ip, len)| IpNet::new(ip, len).ok());
        let assigned = (nets.collect::<Vec<_>>(), welcome.hub_addresses.clone());
        if self.assigned.as_ref() != Some(&assigned) {
            let (addresses, hub_addresses) = assigned.clone();
            self.settings.events.send(EngineEvent::Assigned {
                addresses,
                hub_addresses,
            });
            self.assigned = Some(assigned);
        }
        let _ = now;
    }

    fn on_control(&mut self, now: Instant, link: LinkId, control: Control) {
        match control {
            Control::Welcome(welcome) => self.on_welcome(now, link, &welcome),
            Control::SchedulerIs { kind } => {
                if let Some(kind) = scheduler_from_number(kind) {
                    self.peer.scheduler_receive = kind;
                    if self.scheduler_wanted == Some(kind) {
                        self.scheduler_wanted = None;
                    }
                }
            }
            Control::Goodbye => tracing::info!("the hub says goodbye"),
            Control::Hello(_) | Control::PathGone { .. } | Control::Scheduler { .. } => {}
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

    fn set_path(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        uplink: &str,
        enabled: bool,
    ) -> Result<(), String> {
        let named = |p: &Option<SitePath>| p.as_ref().is_some_and(|p| p.uplink.name == uplink);
        let Some(index) = self.paths.iter().position(named) else {
            let known: Vec<_> = self
                .paths
                .iter()
                .flatten()
                .map(|p| p.uplink.name.as_str())
                .collect();
            return Err(format!(
                "no uplink {uplink:?}; uplinks: {}",
                known.join(", ")
            ));
        };
        #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
        let id = PathId(index as u8);
        self.disabled.retain(|name| name != uplink);
        if enabled {
            if let Some(path) = &mut self.paths[index] {
                path.enabled = true;
                path.next_attempt = now;
            }
        } else {
            self.disabled.push(uplink.to_owned());
            let Some(path) = &self.paths[index] else {
                return Ok(());
            };
            let (uplink, generation) = (path.uplink.clone(), path.generation);
            self.drop_path(now, fabric, id, "disabled");
            let mut path = SitePath::new(now, uplink, false);
            path.generation = generation;
            self.paths[index] = Some(path);
        }
        self.tick = now;
        Ok(())
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

impl SitePath {
    fn new(now: Instant, uplink: Uplink, enabled: bool) -> Self {
        Self {
            uplink,
            enabled,
            socket: None,
            attempts: Vec::new(),
            generation: 0,
            unanswered: false,
            hello_due: now,
            next_attempt: now,
            quic_wanted: None,
            address: 0,
            last_error: None,
            failures: 0,
        }
    }

    fn config(&self) -> PathConfig {
        PathConfig {
            standby: self.uplink.standby,
            metered: self.uplink.metered,
            weight: self.uplink.weight,
        }
    }

    /// The path's UDP socket, opened or changed to the family of `remote`.
    fn open_socket(
        &mut self,
        fabric: &mut Fabric,
        remote: &SocketAddr,
    ) -> anyhow::Result<SocketId> {
        if let Some((socket, v4)) = self.socket {
            if v4 == remote.is_ipv4() {
                return Ok(socket);
            }
            fabric.close_udp(socket);
            self.socket = None;
        }
        let socket = fabric.open_udp(any_address(remote, 0), Some(&self.uplink.name))?;
        self.socket = Some((socket, remote.is_ipv4()));
        Ok(socket)
    }

    fn add_attempt(&mut self, now: Instant, link: LinkId, tls: bool) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        self.attempts.push(Attempt {
            link,
            generation,
            started: now,
            connected: false,
            tls,
        });
    }
}

impl Role for Site {
    fn on_command(&mut self, now: Instant, fabric: &mut Fabric, command: Command) {
        match command {
            Command::Uplinks(uplinks) => self.set_uplinks(now, fabric, uplinks),
            Command::SetScheduler {
                direction,
                kind,
                peer: _,
                reply,
            } => {
                self.set_scheduler(now, direction, kind);
                reply.try_send(Ok(1)).ok();
            }
            Command::SetPath {
                uplink,
                enabled,
                reply,
            } => {
                let result = self.set_path(now, fabric, &uplink, enabled);
                reply.try_send(result).ok();
            }
            Command::ReloadSites | Command::Status(_) | Command::Shutdown => {}
        }
    }

    fn on_link(&mut self, now: Instant, fabric: &mut Fabric, link: LinkId, event: LinkEvent) {
        match event {
            LinkEvent::Connected { .. } => {
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                let Some(path) = &mut self.paths[id.index()] else {
                    return;
                };
                path.attempts[index].connected = true;
                let generation = path.attempts[index].generation;
                path.hello_due = now + HELLO_INTERVAL;
                self.hello(now, fabric, id, link, generation);
            }
            LinkEvent::Closed { reason } => {
                if let Some((id, index)) = self.attempt_of(link) {
                    if let Some(path) = &mut self.paths[id.index()] {
                        path.attempts.remove(index);
                    }
                    self.note_error(id, reason);
                } else if let Some(id) = self.peer.on_link_closed(now, link)
                    && let Some(path) = &mut self.paths[id.index()]
                {
                    tracing::info!(uplink = path.uplink.name, reason, "path down");
                    path.failures += 1;
                    path.last_error = Some(reason);
                    path.next_attempt = now;
                }
            }
        }
        self.tick = self.tick.min(now + TICK);
    }

    fn on_datagram(&mut self, now: Instant, fabric: &mut Fabric, received: Received) {
        let link = received.link;
        let id = match self.peer.path_of(link) {
            Some(id) => id,
            None => {
                // The hub speaks on an attempt: that is the answer, whatever it says.
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                if let Ok(Datagram::Control(Control::Goodbye)) = Datagram::parse(&received.data) {
                    return;
                }
                self.promote(now, fabric, id, index);
                id
            }
        };
        let control = self
            .peer
            .tunnel
            .handle_datagram(now, id, received.ecn, received.data);
        if let Some(control) = control {
            self.on_control(now, link, control);
        }
    }

    fn on_inner(&mut self, now: Instant, packet: TunPacket) {
        self.peer
            .tunnel
            .handle_inner(now, packet.data, packet.checksum_partial);
    }

    fn takes_inner(&self) -> bool {
        self.peer.tunnel.queue_bytes() < ENTRY_FULL_BYTES
    }

    fn end_batch(&mut self, now: Instant, out: &mut Vec<InnerPacket>) {
        self.peer.tunnel.end_batch(now);
        while let Some(inner) = self.peer.tunnel.poll_inner() {
            out.push(InnerPacket {
                data: inner.data,
                checksum_partial: inner.checksum_partial,
            });
        }
    }

    fn pump(&mut self, now: Instant, fabric: &mut Fabric) {
        self.peer.pump(now, fabric);
        if self.peer.any_suspect() {
            self.tick = self.tick.min(now + TICK);
        }
        if let Some(up) = self.peer.up_changed() {
            let peer = self.peer.name.clone();
            self.settings.events.send(if up {
                EngineEvent::TunnelUp { peer }
            } else {
                EngineEvent::TunnelDown { peer }
            });
        }
    }

    fn on_timeout(&mut self, now: Instant, fabric: &mut Fabric) {
        self.peer.tunnel.handle_timeout(now);
        self.peer.close_drained(now, fabric);
        if self.tick > now {
            return;
        }
        for id in self.ids() {
            self.tend(now, fabric, id);
        }
        if let Some(kind) = self.scheduler_wanted
            && self.scheduler_due <= now
        {
            self.scheduler_due = now + HELLO_INTERVAL;
            let control = Control::Scheduler {
                kind: scheduler_number(kind),
            };
            self.peer.send_control(now, fabric, &control);
        }
        let busy = self.scheduler_wanted.is_some()
            || self.ids().iter().any(|id| {
                let up = self.peer.tunnel.path_state(*id) == Some(PathState::Up);
                let path = self.paths[id.index()].as_ref();
                path.is_some_and(|p| p.enabled && (!up || p.unanswered || !p.attempts.is_empty()))
            });
        self.tick = now + if busy { TICK } else { TICK_IDLE };
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [Some(self.tick), self.peer.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn mtu(&self) -> Option<usize> {
        self.peer.tunnel.payload_max()
    }

    fn status(&self, fabric: &Fabric, status: &mut Status) {
        status.role = "site".into();
        let mut tunnel = self.peer.status(fabric);
        if let Some((addresses, hub_addresses)) = &self.assigned {
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
        super::add_tunnel_drops(&self.peer.tunnel, status);
        status.tunnels.push(tunnel);
    }

    fn shutdown(&mut self, now: Instant, fabric: &mut Fabric) {
        self.peer.send_control(now, fabric, &Control::Goodbye);
        fabric.flush_all(now);
        for path in self.paths.iter_mut().flatten() {
            for attempt in path.attempts.drain(..) {
                fabric.close(now, attempt.link, "the site stops");
            }
        }
        self.peer.close_all(now, fabric, "the site stops");
    }

    fn emit(&self, event: EngineEvent) {
        self.settings.events.send(event);
    }
}
