//! The hub's role: one tunnel per site, told apart by key. Inner addresses say which tunnel a
//! packet takes.
//!
//! A connection carries nothing until its site has introduced it with `Hello`. A site that has
//! started anew shows by its session number: its tunnel begins afresh. What a site sends must
//! come from its own inner addresses, so that sites cannot speak for each other. A relay also has
//! the networks of its sites: packets to them go to it, and may come from it.

mod addresses;
mod blocks;
mod claims;
mod drain;
mod enrolment;
#[cfg(debug_assertions)]
mod fault;
mod hello;
mod keys;
mod listed;
mod passing;
mod sites;
#[cfg(test)]
mod tests;
mod tuning;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::BytesMut;
use ropewalk_api::{Direction, KeyRotation, PassedStatus, TunnelStatus};
use ropewalk_core::reorder::Inner;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_transport::{KeyCheck, PublicKey, SocketId, TransportError};
use ropewalk_types::{Instant, Lines, Pace, PacketInfo, PathId, Random, count_steps, source_of};
use ropewalk_wire::{Control, Datagram, HEADROOM, Versions};
use rustc_hash::FxHashMap;

use crate::claim::Statement;
use crate::command::Command;
use crate::intake::{Sender, Share};
use crate::io::Sockets;
use crate::keys::elsewhere;
use crate::links::{LinkEvent, LinkId, Links, Received};
use crate::peer::Peer;
use crate::ready::ReadySet;
use crate::session::{Elsewhere, Event, Role, Session, sealed};
use crate::settings::{Environment, HubSettings, SiteEntry};
use crate::status::SessionStatus;
use crate::tuning::{ROUND_PACKETS, ROUNDS};
use addresses::is_link_local;
use blocks::Fragments;
use claims::Claims;
use drain::{Drain, Leaving};
use enrolment::Invited;
#[cfg(debug_assertions)]
pub use fault::plant_fault;
use keys::Keys;
use listed::Listed;
use passing::Passing;
use sites::{Sites, guarded};
pub use tuning::SITES_MAX;
use tuning::{DUE_AGAIN, HELLO_WAIT, LINKS_PER_KEY, SCHEDULER_INTERVAL, SCHEDULERS, TICK};

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
    lines: Lines,
    /// Scheduler fixed by the operator of the hub; the site's wish does not count then.
    fixed_scheduler: bool,
    spoofed: u64,
    /// Packets in fragments that it has sent from its block of ports.
    fragments: Fragments<()>,
    /// Memory of its packets when it was looked at last, bytes.
    memory: u64,
    /// Whether all its paths were silent then.
    out: bool,
    /// The key that it will have, once it has connected with that.
    next_key: Option<PublicKey>,
    /// Whether another hub serves it: nothing is sent to it.
    withdrawn: bool,
    /// Until when what it has under way is read then.
    withdrawn_until: Instant,
    /// Whether it was told to leave this hub.
    told: bool,
    /// That it has left on that word, while what still comes for it here is delivered.
    leaving: Option<Leaving>,
    /// With which statement the driver was told that it is served here, if it was.
    served: Option<Option<Statement>>,
    /// The connections that have said hello for it.
    links: Vec<LinkId>,
}

impl HubSite {
    /// Whether the site may have sent the inner packet that begins like this.
    #[inline]
    fn sends(&mut self, now: Instant, front: &[u8]) -> bool {
        let sends = self.entry.sends(front);
        let Some(block) = self.entry.block else {
            return sends;
        };
        if sends {
            self.fragments.note(now, front, block, ());
            return true;
        }
        source_of(front) == Some(IpAddr::V4(block.address))
            && self.fragments.owner(now, front).is_some()
    }

    /// To which inner address of the site a packet of this summary is passed on: one for its ports of a shared address,
    /// and no other.
    fn passed_to(&self, info: &PacketInfo) -> Option<Ipv4Addr> {
        let block = self.entry.block?;
        let shared = info.destination() == IpAddr::V4(block.address);
        self.entry.inner_v4().filter(|_| shared)
    }

    /// Whether this scheduler may be used on the wish of the site: one that is in use already always may.
    fn may_schedule(&mut self, now: Instant, kind: SchedulerKind) -> bool {
        kind == self.peer.tunnel.scheduler()
            || self.schedulers.allows(now, SCHEDULER_INTERVAL, SCHEDULERS)
    }

    /// Writes down that its tunnel is up or down.
    fn log_event(&mut self, now: Instant, event: &Event) {
        let up = matches!(event, Event::TunnelUp { .. });
        if self.lines.allow(now) {
            let site = &self.entry.name;
            tracing::info!(site, "tunnel is {}", if up { "up" } else { "down" });
        }
    }
}

/// A connection of a known key, and the site that it has said hello for.
#[derive(Debug)]
struct Pending {
    key: PublicKey,
    since: Instant,
    site: Option<usize>,
    /// Whether it carries no path on purpose: another hub serves its site.
    waits: bool,
    /// Whether it was told that there is no common version.
    refused: bool,
    /// The key that it wants to enrol, while the control side decides, and since when.
    enrolling: Option<(PublicKey, Instant)>,
}

/// What a site did in its turn to send.
struct Pumped {
    /// Packets that it sent.
    sent: usize,
    /// Whether it may have more.
    more: bool,
    /// When its timers want to be looked at.
    due: Option<Instant>,
    /// Largest inner packet that its paths take whole, bytes.
    mtu: Option<usize>,
    /// Memory of its packets now, bytes.
    memory: u64,
    /// Whether all its paths are silent.
    out: bool,
    /// Whether its tunnel has just gone up or down.
    event: Option<Event>,
}

/// The role of a hub.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    versions: Versions,
    session: u64,
    random: Random,
    sites: Sites,
    /// The sites that may connect.
    listed: Listed,
    /// Packets for sites of other workers.
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
    /// Sites whose paths are all silent.
    outages: u32,
    /// Sites that are gone, for what waits of them.
    gone: Vec<usize>,
    /// Keys that change.
    keys: Keys,
    /// Which hub serves each site.
    claims: Claims,
    /// While sites shall leave this hub: who is told next.
    drain: Option<Drain>,
    /// Sites that have left, and when each is looked at, the first to be looked at first.
    lingering: VecDeque<(Instant, PublicKey)>,
    events: VecDeque<Event>,
    starts: u64,
    /// How often a site was let in that the hub did not know.
    admissions: u64,
    /// How often the work for a site has panicked.
    panics: u64,
    /// How often that may cause lines in the log: of any of the sites.
    panic_lines: Lines,
    /// How often sites that were dropped may cause lines once they are back, by name.
    lines_of_dropped: FxHashMap<String, Lines>,
    /// Connections of sites that speak no version of the hub.
    versions_refused: u64,
    /// How often they may cause lines in the log: any of the sites.
    version_lines: Lines,
    unroutable: u64,
    /// Packets to sites that are not served here: another hub serves them, or none does.
    withdrawn: u64,
    /// Packets for shared addresses that go to other hubs, or come from them.
    passing: Passing,
    /// Packets from the interface that are not whole IP packets.
    invalid_inner: u64,
    /// Packets that kernels send to their own link: router solicitations, multicast reports.
    link_local: u64,
    tick: Instant,
    /// When something came last, or a timer was due: packets of sites go on after that.
    now: Instant,
}

impl Session<Hub> {
    /// Lets the hub speak these versions of the wire only, for tests of others than this program's.
    pub const fn speak(&mut self, versions: Versions) {
        self.role_mut().versions = versions;
    }

    /// Memory that packets of all sites take together as the hub counts it, bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.role().memory
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
            sites: Sites::default(),
            listed: Listed::new(environment.slice, &settings),
            elsewhere: VecDeque::new(),
            pending: FxHashMap::default(),
            links_of: FxHashMap::default(),
            enrolments: Pace::default(),
            invited: FxHashMap::default(),
            invited_lines_left_out: 0,
            ready: ReadySet::default(),
            memory: 0,
            outages: 0,
            gone: Vec::new(),
            keys: Keys::default(),
            claims: Claims::default(),
            drain: None,
            lingering: VecDeque::new(),
            events: VecDeque::new(),
            starts: 0,
            admissions: 0,
            panics: 0,
            panic_lines: Lines::default(),
            lines_of_dropped: FxHashMap::default(),
            versions_refused: 0,
            version_lines: Lines::default(),
            unroutable: 0,
            withdrawn: 0,
            passing: Passing::default(),
            invalid_inner: 0,
            link_local: 0,
            tick: Instant::ZERO,
            now: Instant::ZERO,
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
        self.sites.iter().map(|site| &site.peer)
    }

    fn drop_site(&mut self, now: Instant, links: &mut Links, index: usize, why: &str) {
        let Some(mut site) = self.sites.remove(index) else {
            return;
        };
        self.keys.forget(&site.entry.name);
        self.ready.settle(index, None, None);
        self.gone.push(index);
        self.memory -= site.memory;
        self.outages -= u32::from(site.out);
        if site.served.is_some() && !site.withdrawn {
            self.events.push_back(Event::Withdrawn {
                site: site.entry.name.clone(),
                addresses: claims::addresses(&site.entry),
            });
        }
        let name = site.entry.name.clone();
        self.lines_of_dropped.insert(name, site.lines);
        let of_site = std::mem::take(&mut site.links);
        // The site may be here because of a panic, so its state may be anything.
        guarded(|| {
            site.peer.close_all(now, links, why);
            drop(site);
        });
        self.close_links(now, links, why, &of_site);
    }

    /// Gives a packet to the tunnel of a site, unless another hub serves that by now.
    fn deliver(
        &mut self,
        now: Instant,
        index: usize,
        data: BytesMut,
        checksum_partial: bool,
        info: &PacketInfo,
    ) {
        self.ready.touch(index);
        let (settings, memory) = (&self.settings, self.memory);
        let left = self.sites.with(index, |site| {
            if site.withdrawn {
                return Some((data, site.passed_to(info)));
            }
            if let Some(leaving) = &mut site.leaving {
                leaving.last = now;
            }
            let tunnel = &mut site.peer.tunnel;
            tunnel.set_room(room(settings, memory, &site.entry));
            tunnel.handle_parsed(now, data, checksum_partial, info);
            None
        });
        if let Some((data, site)) = left.flatten() {
            self.pass_on(data, checksum_partial, info, site);
        }
    }

    /// Drops the sites whose work has panicked. They connect again.
    fn drop_failed(&mut self, now: Instant, links: &mut Links) {
        while let Some(index) = self.sites.next_failed() {
            if let Some(site) = self.sites.get(index) {
                self.panics += 1;
                if self.panic_lines.allow(now) {
                    tracing::error!(
                        site = site.entry.name,
                        "the program failed in the work for this site, which is dropped; please report the panic above"
                    );
                }
                self.drop_site(now, links, index, "internal error");
            }
        }
    }

    /// Closes these connections.
    fn close_links(&mut self, now: Instant, links: &mut Links, why: &str, over: &[LinkId]) {
        count_steps(over.len());
        for &link in over {
            links.close(now, link, why);
            self.forget_link(link);
        }
    }

    /// A connection is over; what was known of it.
    fn forget_link(&mut self, link: LinkId) -> Option<Pending> {
        let pending = self.pending.remove(&link)?;
        if let Some(site) = pending.site.and_then(|index| self.sites.get_mut(index)) {
            site.links.retain(|one| *one != link);
        }
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
            let site = site.and_then(|index| self.sites.get(index));
            let path = site.and_then(|site| site.peer.path_of(link));
            path.is_some_and(|(_, current)| current)
        };
        let oldest = of_key.iter().copied().find(|link| !carries(*link));
        if let Some(link) = oldest {
            links.close(now, link, "too many connections of this key");
            self.on_link_closed(now, link);
        }
    }

    /// A connection is over, and with it its path if it has carried one: then the site.
    fn on_link_closed(&mut self, now: Instant, link: LinkId) -> Option<&mut HubSite> {
        let index = self.forget_link(link)?.site?;
        self.ready.touch(index);
        let close = |site: &mut HubSite| site.peer.on_link_closed(now, link);
        self.sites.with(index, close).flatten()?;
        self.sites.get_mut(index)
    }

    /// Takes in what has changed in the list of sites; how many it has.
    fn reload(&mut self, now: Instant, links: &mut Links) -> usize {
        let directory = Arc::clone(&self.settings.sites);
        self.invited.retain(|key, _| directory.is_invitation(key));
        let changed = self.listed.follow(&directory);
        let concerned: BTreeSet<usize> = match &changed {
            Some(keys) => (keys.iter())
                .filter_map(|key| self.sites.find(key))
                .collect(),
            None => self.sites.indices().collect(),
        };
        self.keys.keep_asking(&self.listed);
        count_steps(concerned.len());
        for index in concerned {
            match self.renewed(index) {
                Some(entry) => {
                    // A hello with the new key of the site may have come before the news of that key.
                    let other = self.sites.find(&entry.key).filter(|other| *other != index);
                    if let Some(other) = other {
                        let why = "the site is known by its former key";
                        self.drop_site(now, links, other, why);
                    }
                    self.take_entry(now, index, entry);
                }
                None => {
                    let why = "the hub's list of sites changed";
                    if let Some(site) = self.sites.get(index) {
                        tracing::info!(site = site.entry.name, why, "site dropped");
                    }
                    self.drop_site(now, links, index, why);
                }
            }
        }
        let listed = &self.listed;
        self.lines_of_dropped.retain(|name, _| listed.has(name));
        self.claims.keep_listed(listed, &directory);
        self.close_revoked(now, links, changed.as_deref());
        directory.count()
    }

    fn set_scheduler(
        &mut self,
        links: &mut Links,
        direction: Direction,
        kind: SchedulerKind,
        name: Option<&str>,
    ) -> Result<usize, String> {
        let mut changed = 0;
        for index in self.sites.indices() {
            let Some(site) = self.sites.get(index) else {
                continue;
            };
            if name.is_some_and(|name| name != site.entry.name) {
                continue;
            }
            self.ready.touch(index);
            changed += 1;
            self.sites.with(index, |site| {
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
            });
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
        let Some(site) = self.sites.get_mut(index) else {
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
                if site.lines.allow(now) {
                    tracing::info!(site = site.entry.name, "site says goodbye");
                }
            }
            Control::Release { name } => {
                tracing::debug!(site = site.entry.name, release = name, "the site's program");
                let name = env!("CARGO_PKG_VERSION").to_owned();
                links.queue_control(link, &Control::Release { name });
            }
            Control::HubKey { key } => self.on_key_known(index, PublicKey::from_bytes(key)),
            Control::PathSends(sends) => site.peer.on_sends(now, link, sends),
            Control::Hello(_)
            | Control::Welcome(_)
            | Control::Claim { .. }
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
                Ok(Datagram::Control(Control::Claim { claim, .. })) => {
                    self.on_claim(now, links, link, &claim);
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
        let Some(site) = self.sites.get_mut(index) else {
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

/// The first eight bytes of a key, as a number.
fn first_bytes(key: &PublicKey) -> u64 {
    u64::from_le_bytes(key.as_bytes().first_chunk().copied().unwrap_or_default())
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
            Command::ReloadSites => Ok(self.reload(now, links)),
            Command::Enrolled {
                invitation,
                key,
                refused,
                owner,
            } => {
                self.note_refusal(now, &invitation, &key, refused.as_deref(), owner);
                Ok(self.enrolled(links, &invitation, key, refused))
            }
            Command::Claimed(statement) => self.on_claimed(now, links, &statement),
            Command::Drained(drained) => Ok(self.set_drained(now, drained)),
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
                let worker = self.listed.worker_of(&peer);
                if worker != self.listed.slice().index() {
                    match link {
                        LinkId::Tls(stream) => links.move_stream(stream, peer, worker),
                        // Its first identifier named another group than that of its key.
                        LinkId::Quic(_) => {
                            let group = self.listed.group_of(&peer);
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
                        waits: false,
                        refused: false,
                        enrolling: None,
                    },
                );
                self.tick = self.tick.min(now + TICK);
            }
            LinkEvent::Closed { reason, .. } => {
                if let Some(site) = self.on_link_closed(now, link)
                    && site.lines.allow(now)
                {
                    tracing::info!(site = site.entry.name, reason, "path down");
                }
            }
        }
        self.drop_failed(now, links);
    }

    fn share(&self, link: Option<LinkId>) -> Share {
        let proved = link.and_then(|link| self.pending.get(&link));
        // A connection of a served site that has not said hello yet is the site's as well.
        let site = proved.and_then(|waits| waits.site.or_else(|| self.sites.find(&waits.key)));
        let site = site.and_then(|index| Some((index, self.sites.get(index)?)));
        site.map_or(
            Share {
                sender: proved.map_or(Sender::Stranger, |_| Sender::Waiting),
                key: proved.map_or(0, |waits| first_bytes(&waits.key)),
                weight: 1,
                rate: None,
            },
            |(index, site)| Share {
                sender: Sender::Site(index),
                key: 0,
                weight: site.entry.weight,
                rate: site.entry.rate,
            },
        )
    }

    fn is_paced(&self) -> bool {
        self.sites.any_rated()
    }

    fn has_several(&self) -> bool {
        self.links_of.len() > 1
    }

    fn poll_gone(&mut self) -> Option<Sender> {
        self.gone.pop().map(Sender::Site)
    }

    fn on_datagram(&mut self, now: Instant, links: &mut Links, received: Received) {
        let link = received.link;
        self.now = now;
        if guarded(|| self.take_datagram(now, links, received)).is_none() {
            let site = self.pending.get(&link).and_then(|pending| pending.site);
            match site {
                Some(index) => self.sites.fail(index),
                // It belongs to no site yet, and its state may be anything.
                None => {
                    self.panics += 1;
                    self.close_links(now, links, "internal error", &[link]);
                }
            }
            self.drop_failed(now, links);
        }
    }

    fn on_inner(&mut self, now: Instant, data: BytesMut, checksum_partial: bool) {
        let Some(info) = data.get(HEADROOM..).and_then(PacketInfo::parse) else {
            self.invalid_inner += 1;
            return;
        };
        let packet = &data[HEADROOM..];
        if self.is_wrapped(packet, &info) {
            self.on_wrapped(now, data, &info);
            return;
        }
        match self.sites.receiver(now, packet, &info) {
            Some(index) => self.deliver(now, index, data, checksum_partial, &info),
            None if data.get(HEADROOM..).is_some_and(is_link_local) => self.link_local += 1,
            None => match self.listed.receiver(now, packet, &info) {
                Some(place) if place.worker == self.listed.slice().index() => {
                    self.pass_on(data, checksum_partial, &info, place.inner);
                }
                Some(place) => self.elsewhere.push_back(Elsewhere {
                    worker: place.worker,
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
            self.sites
                .with(index, |site| site.peer.tunnel.end_batch(now));
        }
    }

    fn poll_inner(&mut self) -> Option<Inner> {
        if let Some(wrapped) = self.passing.poll() {
            return Some(wrapped);
        }
        while let Some(index) = self.ready.first_inbound() {
            let (now, link_local) = (self.now, &mut self.link_local);
            let inner = self.sites.with(index, |site| {
                loop {
                    let inner = site.peer.tunnel.poll_inner()?;
                    #[cfg(debug_assertions)]
                    fault::meet(&site.entry.name);
                    if site.sends(now, inner.front()) {
                        return Some(inner);
                    } else if is_link_local(inner.front()) {
                        *link_local += 1;
                    } else {
                        site.spoofed += 1;
                    }
                }
            });
            if let Some(inner) = inner.flatten() {
                return Some(inner);
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
            // Those of the other workers are about as many.
            let workers = u32::try_from(self.listed.slice().count()).unwrap_or(u32::MAX);
            let outages = self.outages.saturating_mul(workers);
            let done = self.sites.with(index, |site| {
                // A site has all rounds of a turn if no other has anything to do.
                let rounds = if alone {
                    ROUNDS
                } else {
                    site.entry.weight as usize
                };
                let rounds = rounds.min(left.div_ceil(ROUND_PACKETS));
                // What waits for a site that another hub serves is not sent.
                let rounds = if site.withdrawn { 0 } else { rounds };
                let peer = &mut site.peer;
                peer.tunnel.set_outages(outages);
                let (sent, more) = peer.pump(now, links, sockets, rounds);
                Pumped {
                    sent,
                    more,
                    due: peer.poll_timeout().map(|at| {
                        // What such a tunnel would like to send stays due.
                        let soon = now + DUE_AGAIN;
                        if site.withdrawn { at.max(soon) } else { at }
                    }),
                    mtu: peer.whole_max(),
                    memory: peer.tunnel.memory(),
                    out: peer.is_out(),
                    event: peer.up_or_down(),
                }
            });
            let Some(done) = done else {
                self.drop_failed(now, links);
                continue;
            };
            left = left.saturating_sub(done.sent);
            self.ready.settle(index, done.due, done.mtu);
            if let Some(site) = self.sites.get_mut(index) {
                self.memory = self.memory - site.memory + done.memory;
                site.memory = done.memory;
                self.outages = self.outages - u32::from(site.out) + u32::from(done.out);
                site.out = done.out;
                if let Some(event) = &done.event {
                    site.log_event(now, event);
                }
            }
            self.events.extend(done.event);
            if done.more {
                self.ready.touch_outbound(index);
            }
        }
    }

    fn on_timeout(&mut self, now: Instant, links: &mut Links) {
        self.now = now;
        while let Some(index) = self.ready.next_due(now) {
            let due = self.sites.with(index, |site| {
                site.peer.tunnel.handle_timeout(now);
                site.peer.close_drained(now, links);
                site.peer.poll_timeout()
            });
            let Some(due) = due else {
                continue;
            };
            // What is still due is to be sent, and the site may have to wait for its turn to send.
            self.ready
                .set_due(index, due.map(|at| at.max(now + DUE_AGAIN)));
        }
        self.drop_failed(now, links);
        self.end_lingering(now, links);
        self.end_withdrawals(now, links);
        self.tell_drained(now, links);
        if self.tick > now {
            return;
        }
        count_steps(self.pending.len());
        let mute = |g: &Pending| g.site.is_none() && !g.waits && now.since(g.since) > HELLO_WAIT;
        let over = self.pending.iter().filter(|(_, pending)| mute(pending));
        let over: Vec<LinkId> = over.map(|(link, _)| *link).collect();
        self.close_links(now, links, "no hello", &over);
        self.tend_keys(now, links);
        let waiting =
            (self.pending.values()).any(|pending| pending.site.is_none() && !pending.waits);
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
        let drain = [self.drain_due(), self.lingering_due()];
        [now, self.ready.due(), Some(self.tick), self.claims.due()]
            .into_iter()
            .chain(drain)
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
        let mut lines_left_out = self.panic_lines.left_out()
            + self.invited_lines_left_out
            + self.version_lines.left_out();
        for site in self.sites.iter() {
            count_steps(1);
            // Who only asks must not end the hub.
            let tunnel = guarded(|| {
                status.add_tunnel_drops(&site.peer.tunnel);
                site.peer.status(links)
            });
            let mut tunnel = tunnel.unwrap_or_else(|| TunnelStatus {
                peer: site.entry.name.clone(),
                peer_key: site.entry.key.to_string(),
                ..Default::default()
            });
            tunnel.peer_addresses = site.entry.places();
            tunnel.knows_next_key = self.keys.is_known_to(&site.entry.name);
            spoofed += site.spoofed;
            lines_left_out += site.lines.left_out();
            status.tunnels.push(tunnel);
        }
        // Sites that have not connected yet are listed too.
        for entry in self.listed.own() {
            count_steps(1);
            if self.sites.find(&entry.key).is_none() {
                status.tunnels.push(TunnelStatus {
                    peer: entry.name.clone(),
                    peer_key: entry.key.to_string(),
                    peer_addresses: entry.places(),
                    knows_next_key: self.keys.is_known_to(&entry.name),
                    ..Default::default()
                });
            }
        }
        let of_dropped = self.lines_of_dropped.values().map(Lines::left_out);
        lines_left_out += of_dropped.sum::<u64>();
        *status.drops.entry("invalid_inner".into()).or_default() += self.invalid_inner;
        *status.drops.entry("internal_errors".into()).or_default() += self.panics;
        status.drops.insert("log_lines".into(), lines_left_out);
        let refused = self.versions_refused;
        status.drops.insert("versions_refused".into(), refused);
        status.drops.insert("unroutable".into(), self.unroutable);
        status.drops.insert("withdrawn".into(), self.withdrawn);
        let counts = self.claims.counts().into_iter().chain(self.passing.drops());
        status
            .drops
            .extend(counts.map(|(name, n)| (name.to_owned(), n)));
        status.passed = self.settings.passes_on.then_some(PassedStatus {
            passed_on: self.passing.passed_on,
            unwrapped: self.passing.unwrapped,
        });
        status.drops.insert("link_local".into(), self.link_local);
        status.drops.insert("spoofed_source".into(), spoofed);
    }

    fn events(&mut self) -> &mut VecDeque<Event> {
        &mut self.events
    }

    fn tunnel_mut(&mut self, peer: &str) -> Option<&mut Tunnel> {
        let named = |site: &HubSite| site.peer.name == peer;
        let index = (self.sites.indices()).find(|index| self.sites.get(*index).is_some_and(named));
        Some(&mut self.sites.get_mut(index?)?.peer.tunnel)
    }

    fn shutdown(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        for index in self.sites.indices() {
            let told = self.sites.with(index, |site| {
                site.peer.tunnel.abandon(now);
                site.peer.send_control(links, &Control::Goodbye);
            });
            if told.is_some() {
                self.ready.touch(index);
            }
        }
        // A closed connection sends nothing but its close.
        links.flush_all(now, sockets);
        for index in self.sites.indices() {
            let close = |site: &mut HubSite| site.peer.close_all(now, links, "the hub stops");
            self.sites.with(index, close);
        }
    }
}
