//! The hub's role: one tunnel per site, told apart by key. Inner addresses say which tunnel a
//! packet takes.
//!
//! A connection carries nothing until its site has introduced it with `Hello`. A site that has
//! started anew shows by its session number: its tunnel begins afresh. What a site sends must
//! come from its own inner addresses, so that sites cannot speak for each other. A relay also has
//! the networks of its sites: packets to them go to it, and may come from it.

mod addresses;
mod elsewhere;
mod enrolment;
#[cfg(debug_assertions)]
mod fault;
mod guard;
mod hello;
mod keys;
#[cfg(test)]
mod tests;
mod tuning;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::BytesMut;
use ipnet::IpNet;
use ropewalk_api::{Direction, KeyRotation, TunnelStatus};
use ropewalk_core::reorder::Inner;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_transport::{KeyCheck, PublicKey, SocketId, TransportError};
use ropewalk_types::{Instant, PacketInfo, PathId, Random, count_steps, source_of};
use ropewalk_wire::{Control, Datagram, HEADROOM, Versions};
use rustc_hash::FxHashMap;

use crate::command::Command;
use crate::intake::{Sender, Share};
use crate::io::Sockets;
use crate::keys::elsewhere;
use crate::links::{LinkEvent, LinkId, Links, Received};
use crate::pace::Pace;
use crate::peer::Peer;
use crate::ready::ReadySet;
use crate::session::{Elsewhere, Event, Role, Session, sealed};
use crate::settings::{Environment, HubSettings, SiteEntry};
use crate::status::SessionStatus;
use crate::tuning::{ROUND_PACKETS, ROUNDS};
use addresses::is_link_local;
use elsewhere::Others;
use enrolment::Invited;
#[cfg(debug_assertions)]
pub use fault::plant_fault;
use guard::guarded;
use keys::Keys;
pub use tuning::SITES_MAX;
use tuning::{
    DUE_AGAIN, HELLO_WAIT, LINE_INTERVAL, LINES, LINKS_PER_KEY, SCHEDULER_INTERVAL, SCHEDULERS,
    TICK,
};

/// A site that has said hello.
#[derive(Debug)]
struct HubSite {
    entry: Arc<SiteEntry>,
    peer: Peer,
    /// The site's number of this start; 0 after its goodbye.
    session: u64,
    /// What the site is told as the number of this start of the hub. A site that was dropped gets another one
    /// when it comes back, since the numbers of its packets begin anew.
    hub_session: u64,
    /// How often it may start anew.
    restarts: Pace,
    /// How often its paths may move to other connections.
    moves: Pace,
    /// How often its wish may change how the hub schedules what goes to it.
    schedulers: Pace,
    /// How often it may cause lines in the log.
    lines: Pace,
    /// Lines that it would have caused beyond that.
    lines_left_out: u64,
    /// Scheduler fixed by the operator of the hub; the site's wish does not count then.
    fixed_scheduler: bool,
    spoofed: u64,
    /// Memory of its packets when it was looked at last, bytes.
    memory: u64,
    /// The key that it will have, once it has connected with that.
    next_key: Option<PublicKey>,
}

impl HubSite {
    /// Whether this scheduler may be used on the wish of the site: one that is in use already always may.
    fn may_schedule(&mut self, now: Instant, kind: SchedulerKind) -> bool {
        kind == self.peer.tunnel.scheduler()
            || self.schedulers.allows(now, SCHEDULER_INTERVAL, SCHEDULERS)
    }

    /// Whether it may cause another line in the log.
    fn may_log(&mut self, now: Instant) -> bool {
        let may = self.lines.allows(now, LINE_INTERVAL, LINES);
        self.lines_left_out += u64::from(!may);
        may
    }
}

/// A connection of a known key, and the site that it has said hello for.
#[derive(Debug)]
struct Pending {
    key: PublicKey,
    since: Instant,
    site: Option<usize>,
    /// Whether it was told that there is no common version.
    refused: bool,
    /// The key that it wants to enrol, while the control side decides, and since when.
    enrolling: Option<(PublicKey, Instant)>,
}

/// The role of a hub.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    versions: Versions,
    session: u64,
    random: Random,
    sites: Vec<Option<HubSite>>,
    by_key: FxHashMap<PublicKey, usize>,
    by_address: FxHashMap<IpAddr, usize>,
    /// Networks behind relays. They are few, and searched only for addresses that no site has.
    by_network: Vec<(IpNet, usize)>,
    /// The sites of other workers, and packets for them.
    others: Others,
    elsewhere: VecDeque<Elsewhere>,
    pending: FxHashMap<LinkId, Pending>,
    /// The connections of each key that has any, the oldest first; at most [`LINKS_PER_KEY`], and one
    /// more for a moment.
    links_of: FxHashMap<PublicKey, Vec<LinkId>>,
    /// How often somebody may enrol, and what goes for each invitation by which somebody tried.
    enrolments: Pace,
    invited: FxHashMap<PublicKey, Invited>,
    /// Lines of invitations that were left out of the log.
    invited_lines_left_out: u64,
    ready: ReadySet,
    /// Sum of the memory of all sites, bytes.
    memory: u64,
    /// Sites that are gone, for what waits of them.
    gone: Vec<usize>,
    /// Keys that change.
    keys: Keys,
    /// Whether the rate of any site is bounded.
    paced: bool,
    events: VecDeque<Event>,
    starts: u64,
    /// How often a site was let in that the hub did not know.
    admissions: u64,
    /// Sites whose work panicked, to be dropped at the next opportunity.
    failed: Vec<usize>,
    /// How often that happened.
    panics: u64,
    /// How often that may cause lines in the log: a site that is dropped and comes back begins its own count anew.
    panic_lines: Pace,
    /// Lines that were left out because of that.
    panic_lines_left_out: u64,
    /// Connections of sites that speak no version of the hub.
    versions_refused: u64,
    /// How often they may cause lines in the log: any of the sites.
    version_lines: Pace,
    /// Lines that were left out because of that.
    version_lines_left_out: u64,
    unroutable: u64,
    /// Packets from the interface that are not whole IP packets.
    invalid_inner: u64,
    /// Packets that kernels send to their own link: router solicitations, multicast reports.
    link_local: u64,
    tick: Instant,
}

impl Session<Hub> {
    /// Lets the hub speak these versions of the wire only, for tests of others than this program's.
    pub const fn speak(&mut self, versions: Versions) {
        self.role_mut().versions = versions;
    }

    /// A hub that asks for the sockets it listens on.
    ///
    /// # Errors
    /// When the TLS library refuses the key.
    pub fn hub(settings: HubSettings, environment: &Environment) -> Result<Self, TransportError> {
        let sites = Arc::clone(&settings.sites);
        let allowed: KeyCheck = Arc::new(move |key| {
            sites.find(key).is_some_and(|site| site.enabled) || sites.is_invitation(key)
        });
        let common = &settings.common;
        let identity = common.identity.clone();
        let mut links = Links::new(identity, Some(allowed), common.congestion, environment)?;
        for &address in &settings.listen {
            links.open_udp(address, None);
        }
        // One worker accepts for all.
        if environment.slice.index() == 0 {
            for &address in &settings.tcp_listen {
                links.listen_tls(address);
            }
        }
        let mtu = common.mtu;
        Ok(Self::with(links, Hub::new(settings, environment), mtu))
    }
}

impl Hub {
    fn new(settings: HubSettings, environment: &Environment) -> Self {
        Self {
            versions: Versions::OURS,
            session: environment.session,
            random: Random::new(environment.tunnels),
            sites: Vec::new(),
            by_key: FxHashMap::default(),
            by_address: FxHashMap::default(),
            by_network: Vec::new(),
            others: Others::new(environment.slice, &settings),
            elsewhere: VecDeque::new(),
            pending: FxHashMap::default(),
            links_of: FxHashMap::default(),
            enrolments: Pace::default(),
            invited: FxHashMap::default(),
            invited_lines_left_out: 0,
            ready: ReadySet::default(),
            memory: 0,
            gone: Vec::new(),
            keys: Keys::default(),
            paced: false,
            events: VecDeque::new(),
            starts: 0,
            admissions: 0,
            failed: Vec::new(),
            panics: 0,
            panic_lines: Pace::default(),
            panic_lines_left_out: 0,
            versions_refused: 0,
            version_lines: Pace::default(),
            version_lines_left_out: 0,
            unroutable: 0,
            invalid_inner: 0,
            link_local: 0,
            tick: Instant::ZERO,
            settings,
        }
    }

    /// How often a site has begun a tunnel anew since the hub started.
    #[must_use]
    pub const fn starts(&self) -> u64 {
        self.starts
    }

    /// The sites that have said hello since the hub started.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.sites.iter().flatten().map(|site| &site.peer)
    }

    /// The site that a packet to this address goes to.
    fn site_of(&self, ip: IpAddr) -> Option<usize> {
        let behind = |&&(net, _): &&(IpNet, usize)| net.contains(&ip);
        self.by_address
            .get(&ip)
            .or_else(|| Some(&self.by_network.iter().find(behind)?.1))
            .copied()
    }

    fn drop_site(&mut self, now: Instant, links: &mut Links, index: usize, why: &str) {
        let Some(mut site) = self.sites[index].take() else {
            return;
        };
        tracing::info!(site = site.entry.name, why, "site dropped");
        self.keys.forget(&site.entry.name);
        self.ready.settle(index, None, None);
        self.gone.push(index);
        self.memory -= site.memory;
        self.by_key.remove(&site.entry.key);
        self.by_address.retain(|_, &mut i| i != index);
        self.by_network.retain(|&(_, i)| i != index);
        // The site may be here because of a panic, so its state may be anything.
        guarded(|| {
            site.peer.close_all(now, links, why);
            drop(site);
        });
        self.close_pending(now, links, why, |pending| pending.site == Some(index));
    }

    /// Drops the sites whose work has panicked. They connect again.
    fn drop_failed(&mut self, now: Instant, links: &mut Links) {
        while let Some(index) = self.failed.pop() {
            if let Some(site) = &self.sites[index] {
                self.panics += 1;
                if self.panic_lines.allows(now, LINE_INTERVAL, LINES) {
                    tracing::error!(
                        site = site.entry.name,
                        "the program failed in the work for this site; please report the panic above"
                    );
                } else {
                    self.panic_lines_left_out += 1;
                }
                self.drop_site(now, links, index, "internal error");
            }
        }
    }

    /// Closes the connections that `over` says.
    fn close_pending(
        &mut self,
        now: Instant,
        links: &mut Links,
        why: &str,
        over: impl Fn(&Pending) -> bool,
    ) {
        count_steps(self.pending.len());
        let over = self.pending.iter().filter(|(_, pending)| over(pending));
        let over: Vec<LinkId> = over.map(|(link, _)| *link).collect();
        for link in over {
            links.close(now, link, why);
            self.forget_link(link);
        }
    }

    /// A connection is over; what was known of it.
    fn forget_link(&mut self, link: LinkId) -> Option<Pending> {
        let pending = self.pending.remove(&link)?;
        if let Some(links) = self.links_of.get_mut(&pending.key) {
            links.retain(|one| *one != link);
            if links.is_empty() {
                self.links_of.remove(&pending.key);
            }
        }
        Some(pending)
    }

    /// Closes the oldest connection of a key that carries no path, if the key has as many as it may.
    fn make_room(&mut self, now: Instant, links: &mut Links, key: &PublicKey) {
        let Some(of_key) = self
            .links_of
            .get(key)
            .filter(|of| of.len() >= LINKS_PER_KEY)
        else {
            return;
        };
        count_steps(of_key.len());
        let carries = |link: LinkId| {
            let site = self.pending.get(&link).and_then(|pending| pending.site);
            let site = site.and_then(|index| self.sites[index].as_ref());
            let path = site.and_then(|site| site.peer.path_of(link));
            path.is_some_and(|(_, current)| current)
        };
        let oldest = of_key.iter().copied().find(|link| !carries(*link));
        if let Some(link) = oldest {
            links.close(now, link, "too many connections of this key");
            if let Some(index) = self.forget_link(link).and_then(|pending| pending.site)
                && let Some(site) = &mut self.sites[index]
            {
                site.peer.on_link_closed(now, link);
            }
        }
    }

    fn reload(&mut self, now: Instant, links: &mut Links) {
        self.others = self.others.renewed(&self.settings.sites);
        let directory = &self.settings.sites;
        self.invited.retain(|key, _| directory.is_invitation(key));
        let sites = directory.all();
        self.keys.keep_asking(&sites);
        self.paced = sites.iter().any(|site| site.rate.is_some());
        for index in 0..self.sites.len() {
            match self.renewed(index) {
                Some(entry) => self.take_entry(now, index, entry),
                None => self.drop_site(now, links, index, "the hub's list of sites changed"),
            }
        }
    }

    fn set_scheduler(
        &mut self,
        links: &mut Links,
        direction: Direction,
        kind: SchedulerKind,
        name: Option<&str>,
    ) -> Result<usize, String> {
        let mut changed = 0;
        for (index, site) in self.sites.iter_mut().enumerate() {
            let Some(site) = site else { continue };
            if name.is_some_and(|name| name != site.entry.name) {
                continue;
            }
            self.ready.touch(index);
            changed += 1;
            if direction != Direction::Receive {
                site.peer.tunnel.set_scheduler(kind);
                site.fixed_scheduler = true;
                let control = Control::SchedulerIs { kind: kind.code() };
                site.peer.send_control(links, &control);
            }
            if direction != Direction::Send {
                let control = Control::Scheduler { kind: kind.code() };
                site.peer.send_control(links, &control);
            }
        }
        match name {
            Some(name) if changed == 0 => Err(format!("no site {name:?} is connected")),
            _ => Ok(changed),
        }
    }

    /// A message of a site that came over a link. The answer goes over the same link: one over each would be many for
    /// one.
    fn on_control(
        &mut self,
        now: Instant,
        links: &mut Links,
        index: usize,
        link: LinkId,
        control: Control,
    ) {
        let Some(site) = self.sites[index].as_mut() else {
            return;
        };
        match control {
            Control::PathGone { path, generation } => {
                let id = PathId(path);
                let current = site.peer.paths[id.index()].as_ref();
                if current.is_some_and(|p| p.generation <= generation) {
                    site.peer
                        .remove_path(now, links, id, "the site lost the uplink");
                }
            }
            Control::Scheduler { kind } => {
                if let Some(kind) = SchedulerKind::from_code(kind) {
                    if !site.may_schedule(now, kind) {
                        // The site says it again if it means it.
                        return;
                    }
                    site.peer.tunnel.set_scheduler(kind);
                    site.fixed_scheduler = false;
                }
                let kind = site.peer.tunnel.scheduler().code();
                links.queue_control(link, &Control::SchedulerIs { kind });
            }
            Control::SchedulerIs { kind } => {
                if let Some(kind) = SchedulerKind::from_code(kind) {
                    site.peer.scheduler_receive = kind;
                }
            }
            Control::Goodbye => {
                site.peer.close_all(now, links, "goodbye");
                site.session = 0;
                if site.may_log(now) {
                    tracing::info!(site = site.entry.name, "site says goodbye");
                }
            }
            Control::Release { name } => {
                tracing::debug!(site = site.entry.name, release = name, "the site's program");
                let name = env!("CARGO_PKG_VERSION").to_owned();
                links.queue_control(link, &Control::Release { name });
            }
            Control::HubKey { key } => self.on_key_known(index, PublicKey::from_bytes(key)),
            Control::Hello(_)
            | Control::Welcome(_)
            | Control::Enrol { .. }
            | Control::Enrolled { .. } => {}
        }
    }

    fn take_datagram(&mut self, now: Instant, links: &mut Links, received: Received) {
        let link = received.link;
        let Some(pending) = self.pending.get(&link) else {
            return;
        };
        let site = pending.site;
        if ropewalk_wire::is_control(&received.data) {
            match Datagram::parse(&received.data) {
                Ok(Datagram::Control(Control::Hello(hello))) => {
                    self.on_hello(now, links, link, &hello);
                    return;
                }
                Ok(Datagram::Control(Control::Enrol { key, proof })) => {
                    self.on_enrol(now, links, link, PublicKey::from_bytes(key), proof);
                    return;
                }
                _ => {}
            }
        }
        let Some(index) = site else { return };
        self.ready.touch(index);
        let Some(site) = self.sites[index].as_mut() else {
            return;
        };
        let Some((id, current)) = site.peer.path_of(link) else {
            return;
        };
        let tunnel = &mut site.peer.tunnel;
        tunnel.set_room(room(&self.settings, self.memory, &site.entry));
        let control = if current {
            tunnel.handle_datagram(now, id, received.ecn, received.data)
        } else {
            tunnel.handle_straggler(now, id, received.ecn, received.data)
        };
        if let Some(control) = control {
            self.on_control(now, links, index, link, control);
        }
    }
}

/// What the packets of a site may take while those of all take `memory`, bytes. As in Choudhury and Hahne,
/// "Dynamic Queue Length Thresholds", 1998: the bound of all falls as memory fills, and some is always left for a
/// site that had none.
fn room(settings: &HubSettings, memory: u64, entry: &SiteEntry) -> u64 {
    let left = settings.memory.saturating_sub(memory);
    left.saturating_mul(entry.weight.into())
}

impl Role for Hub {}

impl sealed::Role for Hub {
    fn on_command(
        &mut self,
        now: Instant,
        links: &mut Links,
        command: Command,
    ) -> Result<usize, String> {
        match command {
            Command::SetScheduler {
                direction,
                kind,
                peer,
            } => self.set_scheduler(links, direction, kind, peer.as_deref()),
            Command::ReloadSites => {
                self.reload(now, links);
                Ok(self.settings.sites.all().len())
            }
            Command::Enrolled {
                invitation,
                key,
                refused,
                owner,
            } => {
                self.note_refusal(now, &invitation, &key, refused.as_deref(), owner);
                Ok(self.enrolled(links, &invitation, key, refused))
            }
            Command::Key(step) => {
                self.on_key_step(now, links, step);
                Ok(1)
            }
            Command::SetPath { .. } | Command::Uplinks(_) | Command::MtuFloor(_) => {
                Err("a hub has no uplinks of its own: do this at the site".into())
            }
        }
    }

    fn on_socket_failed(
        &mut self,
        _now: Instant,
        _links: &mut Links,
        _socket: SocketId,
        reason: String,
    ) {
        tracing::error!(reason, "the hub does not listen on one of its addresses");
    }

    fn on_link(&mut self, now: Instant, links: &mut Links, link: LinkId, event: LinkEvent) {
        match event {
            LinkEvent::Connected { peer } => {
                let worker = self.others.worker_of(&peer);
                if worker != self.others.slice().index() {
                    match link {
                        LinkId::Tls(stream) => links.move_stream(stream, peer, worker),
                        // Its first identifier named another group than that of its key.
                        LinkId::Quic(_) => {
                            let group = self.others.group_of(&peer);
                            links.close(now, link, &elsewhere(group));
                        }
                    }
                    return;
                }
                self.make_room(now, links, &peer);
                self.links_of.entry(peer).or_default().push(link);
                self.pending.insert(
                    link,
                    Pending {
                        key: peer,
                        since: now,
                        site: None,
                        refused: false,
                        enrolling: None,
                    },
                );
                self.tick = self.tick.min(now + TICK);
            }
            LinkEvent::Closed { reason, .. } => {
                let index = self.forget_link(link).and_then(|pending| pending.site);
                let Some(index) = index else { return };
                self.ready.touch(index);
                if let Some(site) = &mut self.sites[index]
                    && site.peer.on_link_closed(now, link).is_some()
                    && site.may_log(now)
                {
                    tracing::info!(site = site.entry.name, reason, "path down");
                }
            }
        }
    }

    fn share(&self, link: Option<LinkId>) -> Share {
        let site = link.and_then(|link| self.pending.get(&link)?.site);
        let site = site.and_then(|index| Some((index, self.sites[index].as_ref()?)));
        site.map_or(
            Share {
                sender: Sender::Stranger,
                weight: 1,
                rate: None,
            },
            |(index, site)| Share {
                sender: Sender::Site(index),
                weight: site.entry.weight,
                rate: site.entry.rate,
            },
        )
    }

    fn is_paced(&self) -> bool {
        self.paced
    }

    fn poll_gone(&mut self) -> Option<Sender> {
        self.gone.pop().map(Sender::Site)
    }

    fn on_datagram(&mut self, now: Instant, links: &mut Links, received: Received) {
        let link = received.link;
        if guarded(|| self.take_datagram(now, links, received)).is_none() {
            let site = self.pending.get(&link).and_then(|pending| pending.site);
            self.failed.extend(site);
            self.drop_failed(now, links);
        }
    }

    fn on_inner(&mut self, now: Instant, data: BytesMut, checksum_partial: bool) {
        let Some(info) = data.get(HEADROOM..).and_then(PacketInfo::parse) else {
            self.invalid_inner += 1;
            return;
        };
        let index = self.site_of(info.destination());
        match index.and_then(|index| Some((index, self.sites[index].as_mut()?))) {
            Some((index, site)) => {
                self.ready.touch(index);
                let tunnel = &mut site.peer.tunnel;
                tunnel.set_room(room(&self.settings, self.memory, &site.entry));
                if guarded(|| tunnel.handle_parsed(now, data, checksum_partial, &info)).is_none() {
                    self.failed.push(index);
                }
            }
            None if data.get(HEADROOM..).is_some_and(is_link_local) => self.link_local += 1,
            None => match self.others.find(info.destination()) {
                Some(worker) => self.elsewhere.push_back(Elsewhere {
                    worker,
                    data,
                    checksum_partial,
                }),
                None => self.unroutable += 1,
            },
        }
    }

    fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
        self.elsewhere.pop_front()
    }

    fn takes_inner(&self) -> bool {
        // One site's full queue must not stop the others: its own queue drops.
        true
    }

    fn end_batch(&mut self, now: Instant) {
        for index in self.ready.inbound() {
            if let Some(site) = &mut self.sites[index]
                && guarded(|| site.peer.tunnel.end_batch(now)).is_none()
            {
                self.failed.push(index);
            }
        }
    }

    fn poll_inner(&mut self) -> Option<Inner> {
        while let Some(index) = self.ready.first_inbound() {
            if let Some(site) = &mut self.sites[index] {
                loop {
                    let Some(next) = guarded(|| {
                        let next = site.peer.tunnel.poll_inner();
                        #[cfg(debug_assertions)]
                        if next.is_some() {
                            fault::meet(&site.entry.name);
                        }
                        next
                    }) else {
                        self.failed.push(index);
                        break;
                    };
                    let Some(inner) = next else { break };
                    if source_of(inner.front()).is_some_and(|ip| site.entry.owns(&ip)) {
                        return Some(inner);
                    } else if is_link_local(inner.front()) {
                        self.link_local += 1;
                    } else {
                        site.spoofed += 1;
                    }
                }
            }
            self.ready.end_inbound();
        }
        None
    }

    fn pump(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        // An acknowledgement, too, makes room for more.
        for link in links.active() {
            if let Some(index) = self.pending.get(&link).and_then(|pending| pending.site) {
                self.ready.touch_outbound(index);
            }
        }
        self.drop_failed(now, links);
        let mut left = ROUNDS * ROUND_PACKETS;
        while left > 0
            && let Some(index) = self.ready.next_outbound()
        {
            let alone = !self.ready.has_outbound();
            let Some(site) = &mut self.sites[index] else {
                continue;
            };
            // A site has all rounds of a turn if no other has anything to do.
            let rounds = if alone {
                ROUNDS
            } else {
                site.entry.weight as usize
            };
            let rounds = rounds.min(left.div_ceil(ROUND_PACKETS));
            let pumped = guarded(|| site.peer.pump(now, links, sockets, rounds));
            let Some((sent, more)) = pumped else {
                self.failed.push(index);
                self.drop_failed(now, links);
                continue;
            };
            left = left.saturating_sub(sent);
            let (due, mtu) = (site.peer.poll_timeout(), site.peer.whole_max());
            self.ready.settle(index, due, mtu);
            let memory = site.peer.tunnel.memory();
            self.memory = self.memory - site.memory + memory;
            site.memory = memory;
            self.events.extend(site.peer.up_or_down());
            if more {
                self.ready.touch_outbound(index);
            }
        }
    }

    fn on_timeout(&mut self, now: Instant, links: &mut Links) {
        while let Some(index) = self.ready.next_due(now) {
            let Some(site) = &mut self.sites[index] else {
                continue;
            };
            let due = guarded(|| {
                site.peer.tunnel.handle_timeout(now);
                site.peer.close_drained(now, links);
                site.peer.poll_timeout()
            });
            let Some(due) = due else {
                self.failed.push(index);
                continue;
            };
            // What is still due is to be sent, and the site may have to wait for its turn to send.
            self.ready
                .set_due(index, due.map(|at| at.max(now + DUE_AGAIN)));
        }
        self.drop_failed(now, links);
        if self.tick > now {
            return;
        }
        let mute = |g: &Pending| g.site.is_none() && now.since(g.since) > HELLO_WAIT;
        self.close_pending(now, links, "no hello", mute);
        self.tend_keys(now, links);
        let waiting = self.pending.values().any(|pending| pending.site.is_none());
        let waiting = waiting || self.keys.is_busy();
        self.tick = if waiting {
            now + TICK
        } else {
            Instant::FAR_FUTURE
        };
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // Sites whose turn has not come.
        let now = self.ready.has_outbound().then_some(Instant::ZERO);
        [now, self.ready.due(), Some(self.tick)]
            .into_iter()
            .flatten()
            .min()
    }

    fn mtu(&self) -> Option<usize> {
        // The largest any site takes: for the others the tunnel splits what does not fit.
        self.ready.mtu()
    }

    fn status(&self, links: &Links, status: &mut SessionStatus) {
        status.role = "hub";
        status.rotation = self.keys.next().map(|next| KeyRotation {
            next_key: next.public_key().to_string(),
            state: "announced".to_owned(),
            reason: None,
        });
        status.addresses = self
            .settings
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut spoofed = 0;
        let mut lines_left_out =
            self.panic_lines_left_out + self.invited_lines_left_out + self.version_lines_left_out;
        for site in self.sites.iter().flatten() {
            let mut tunnel = site.peer.status(links);
            tunnel.peer_addresses = site.entry.places();
            tunnel.knows_next_key = self.keys.is_known_to(&site.entry.name);
            status.add_tunnel_drops(&site.peer.tunnel);
            spoofed += site.spoofed;
            lines_left_out += site.lines_left_out;
            status.tunnels.push(tunnel);
        }
        // Sites that have not connected yet are listed too.
        for entry in self.settings.sites.all() {
            let mine = self.others.worker_of(&entry.key) == self.others.slice().index();
            if mine && !self.by_key.contains_key(&entry.key) {
                status.tunnels.push(TunnelStatus {
                    peer: entry.name.clone(),
                    peer_key: entry.key.to_string(),
                    peer_addresses: entry.places(),
                    knows_next_key: self.keys.is_known_to(&entry.name),
                    ..Default::default()
                });
            }
        }
        *status.drops.entry("invalid_inner".into()).or_default() += self.invalid_inner;
        *status.drops.entry("internal_errors".into()).or_default() += self.panics;
        status.drops.insert("log_lines".into(), lines_left_out);
        let refused = self.versions_refused;
        status.drops.insert("versions_refused".into(), refused);
        status.drops.insert("unroutable".into(), self.unroutable);
        status.drops.insert("link_local".into(), self.link_local);
        status.drops.insert("spoofed_source".into(), spoofed);
    }

    fn events(&mut self) -> &mut VecDeque<Event> {
        &mut self.events
    }

    fn tunnel_mut(&mut self, peer: &str) -> Option<&mut Tunnel> {
        let mut sites = self.sites.iter_mut().flatten();
        let site = sites.find(|site| site.peer.name == peer)?;
        Some(&mut site.peer.tunnel)
    }

    fn shutdown(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        for (index, site) in self.sites.iter_mut().enumerate() {
            let Some(site) = site else { continue };
            site.peer.tunnel.abandon(now);
            self.ready.touch(index);
            site.peer.send_control(links, &Control::Goodbye);
        }
        // A closed connection sends nothing but its close.
        links.flush_all(now, sockets);
        for site in self.sites.iter_mut().flatten() {
            site.peer.close_all(now, links, "the hub stops");
        }
    }
}
