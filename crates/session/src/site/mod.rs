//! The site's role: one path per uplink, each kept connected to the hub by whatever works.
//!
//! A path tries QUIC first. When that does not come up soon, TLS over TCP is tried beside it,
//! and QUIC again from time to time while TLS carries the path. A path that has gone silent gets
//! a new connection beside the old one: whichever answers first carries on. Every connection is
//! introduced with `Hello`, repeated until the hub's `Welcome`.

mod attempts;
mod leaving;
mod path;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::PathState;
use ropewalk_io::{InnerPacket, TunPacket};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};
use ropewalk_wire::{Control, Datagram, VERSION, Welcome};

use crate::engine::control::{Command, Direction, PathUse, Uplink};
use crate::engine::event_loop::{ENTRY_FULL_BYTES, Role};
use crate::engine::fabric::{Fabric, LinkEvent, LinkId, Received};
use crate::engine::peer::Peer;
use crate::engine::settings::{EngineEvent, SiteSettings};
use crate::engine::{random_u64, scheduler_from_number, scheduler_number};
use crate::status::{PathStatus, Status};
use leaving::Leaving;
use path::SitePath;

/// How often silence, attempts and unanswered messages are looked at.
const TICK: Duration = Duration::from_millis(100);
/// The same while every path is up and nothing is outstanding.
const TICK_IDLE: Duration = Duration::from_secs(1);
/// How often an unanswered `Hello` is repeated.
const HELLO_INTERVAL: Duration = Duration::from_millis(150);

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
            settings.hub_key,
            (
                settings.common.scheduler_send,
                Arc::clone(&settings.common.classes),
                settings.common.hold,
            ),
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
        let marks = |u: &Uplink| {
            (
                u.standby,
                u.metered,
                u.weight,
                u.protection_hourly,
                u.name.clone(),
            )
        };
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
        for socket in path.sockets.into_iter().flatten() {
            fabric.close_udp(socket);
        }
        let gone = Control::PathGone {
            path: id.0,
            generation: path.generation,
        };
        self.peer.send_control(now, fabric, &gone);
    }

    fn on_welcome(&mut self, link: LinkId, welcome: &Welcome) {
        if welcome.session != self.session {
            return;
        }
        if self.hub_session.replace(welcome.hub_session) != Some(welcome.hub_session) {
            // A hub that has started anew counts its packets from zero again.
            self.peer.tunnel.reset_exit();
            // Its other connections are gone as well: better to be told so now.
            self.peer.tunnel.ask_all_paths();
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
                && carrier.generation == welcome.generation
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
    }

    fn on_control(&mut self, link: LinkId, control: Control) {
        match control {
            Control::Welcome(welcome) => self.on_welcome(link, &welcome),
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
        wanted: PathUse,
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
        let ends = matches!(wanted, PathUse::Leaving(_) | PathUse::Foretold(Some(_)));
        if ends && self.peer.tunnel.path_state(id) != Some(PathState::Up) {
            return Err(format!(
                "the path over {uplink} is not up: there is nothing to leave"
            ));
        }
        if let Some(path) = &mut self.paths[index] {
            // Nothing that was said counts any more once it has gone and come back.
            if !self.peer.tunnel.is_leaving(id) {
                path.leaving = Leaving::default();
            }
            match wanted {
                PathUse::Leaving(longest) => {
                    let until = longest.map_or(Instant::FAR_FUTURE, |longest| now + longest);
                    path.leaving.tell(until);
                }
                PathUse::Foretold(longest) => {
                    path.leaving.foretell(longest.map(|longest| now + longest));
                }
                PathUse::Returning | PathUse::Enabled | PathUse::Disabled => {
                    path.leaving = Leaving::default();
                }
            }
            self.peer.tunnel.set_leaving(id, path.leaving.counts(now));
        }
        if !matches!(wanted, PathUse::Enabled | PathUse::Disabled) {
            return Ok(());
        }
        self.disabled.retain(|name| name != uplink);
        if wanted == PathUse::Enabled {
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

impl Role for Site {
    fn on_command(&mut self, now: Instant, fabric: &mut Fabric, command: Command) {
        match command {
            Command::Uplinks(uplinks) => self.set_uplinks(now, fabric, uplinks),
            Command::SetScheduler {
                direction,
                kind,
                peer,
                reply,
            } => {
                let result = match peer {
                    Some(name) => Err(format!("this is a site: only a hub has a site {name:?}")),
                    None => {
                        self.set_scheduler(now, direction, kind);
                        Ok(1)
                    }
                };
                reply.try_send(result).ok();
            }
            Command::SetPath {
                uplink,
                wanted,
                reply,
            } => {
                let result = self.set_path(now, fabric, &uplink, wanted);
                reply.try_send(result).ok();
            }
            Command::ReloadSites
            | Command::MtuFloor(_)
            | Command::Status(_)
            | Command::Shutdown => {}
        }
    }

    fn on_link(&mut self, now: Instant, fabric: &mut Fabric, link: LinkId, event: LinkEvent) {
        match event {
            LinkEvent::Connected { .. } => {
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                // The connection that was there before may have come back meanwhile: it knows the
                // path, and a new one would have to find everything out again.
                let carrier = self.peer.paths[id.index()].as_ref().map(|p| p.link);
                let well = self.peer.tunnel.path_state(id) == Some(PathState::Up)
                    && carrier.is_some_and(|link| fabric.transport(link) == "quic");
                let Some(path) = &mut self.paths[id.index()] else {
                    return;
                };
                if well {
                    let attempt = path.attempts.remove(index);
                    fabric.close(now, attempt.link, "not needed any more");
                    return;
                }
                path.attempts[index].connected = true;
                tracing::debug!(uplink = path.uplink.name, "connected, saying hello");
                let generation = path.attempts[index].generation;
                path.hello_due = now + HELLO_INTERVAL;
                self.hello(now, fabric, id, link, generation);
            }
            LinkEvent::Closed { reason } => {
                if let Some((id, index)) = self.attempt_of(link) {
                    let path = self.paths[id.index()].as_mut();
                    if path.is_some_and(|path| path.attempts.remove(index).connected) {
                        self.outrank(now, id);
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
        let (id, current) = match self.peer.path_of(link) {
            Some(carried) => carried,
            None => {
                // The hub speaks on an attempt: that is the answer, whatever it says.
                let Some((id, index)) = self.attempt_of(link) else {
                    return;
                };
                if let Ok(Datagram::Control(Control::Goodbye)) = Datagram::parse(&received.data) {
                    return;
                }
                self.promote(now, fabric, id, index);
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
            self.on_control(link, control);
        }
    }

    fn on_inner(&mut self, now: Instant, packet: TunPacket) {
        self.peer
            .tunnel
            .handle_inner(now, packet.data, packet.checksum_partial);
    }

    fn takes_inner(&self) -> bool {
        let tunnel = &self.peer.tunnel;
        // What an outage left has bounds of its own.
        tunnel.queue_bytes() - tunnel.held_bytes() < ENTRY_FULL_BYTES
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
            let path = self.paths[id.index()].as_mut();
            if self.peer.tunnel.is_leaving(id) && path.is_some_and(|path| !path.leaving.counts(now))
            {
                self.peer.tunnel.set_leaving(id, false);
            }
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
        self.peer.tunnel.abandon(now);
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
