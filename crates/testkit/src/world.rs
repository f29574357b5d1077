//! Hubs, their sites and the links between them. One hub unless asked otherwise.

mod hubs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_api::PathStatus;
use ropewalk_core::hold::Limits;
use ropewalk_core::protect::Classes;
use ropewalk_core::protect::Protection;
use ropewalk_core::schedule::Policy;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Observer, SendOptions, Tunnel};
use ropewalk_netem::{
    Carried, Change, Counters, DirectionConfig, DropReason, Link, LinkConfig, Network, Refused,
    Selector, Side,
};
use ropewalk_session::{
    Command, CommonSettings, Environment, Hub, JoinSettings, Joining, Session, Site, SiteDirectory,
    SiteEntry, SiteSettings, Slice, Uplink,
};
use ropewalk_transport::{CongestionControl, Identity, PublicKey};
use ropewalk_types::{Duration, Ecn, Instant, PortBlock, Random, destination_of};
use ropewalk_wire::{HEADROOM, Versions};

use self::hubs::{Begun, InnerRoutes, Part, hub_ip};
pub use self::hubs::{HOME, SPARE};
use crate::host::{Host, Outgoing};
use crate::joint::Joint;
use crate::packet::{Packet, inner};

/// Where the hub listens for UDP.
pub const HUB_UDP: SocketAddr = SocketAddr::new(IpAddr::V4(HUB_IP), 4_443);
/// Where the hub listens for TCP.
pub const HUB_TCP: SocketAddr = SocketAddr::new(IpAddr::V4(HUB_IP), 443);
const HUB_IP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The hub's inner address.
pub const HUB_INNER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// The network of the first site's hosts, if it has any.
pub const SITE_HOSTS: &str = "10.254.0.0/16";
/// Ports that a NAT mapping adds; one mapping never meets another.
const NAT_STEP: u16 = 4_000;
/// Tells the chance of copies from that of all else, so that a world without copies is as it was.
const COPYING: u64 = 0x636f_7079;
/// First port of a site's own sockets.
const SITE_PORT: u16 = 10_000;

/// What a world consists of.
#[derive(Clone, Debug)]
pub struct Spec {
    /// All randomness follows from it.
    pub seed: u64,
    /// Number of sites.
    pub sites: usize,
    /// Number of uplinks of each site, 1 to 200.
    pub uplinks: usize,
    /// Every uplink in either direction.
    pub link: DirectionConfig,
    /// Scheduler of all gateways.
    pub scheduler: SchedulerKind,
    /// Congestion control of all paths.
    pub congestion: CongestionControl,
    /// What sites and the hub protect, and how; the default classes unless given.
    pub protection: Option<[Protection; 2]>,
    /// What published systems do otherwise when sending, at all gateways.
    pub send: SendOptions,
    /// All uplinks of a site share a bottleneck, as sites are told.
    pub coupled: bool,
    /// The first site has hosts behind it, in [`SITE_HOSTS`].
    pub hosts: bool,
    /// Memory of the hub for packets, bytes.
    pub hub_memory: u64,
    /// What all gateways hold while there is no path.
    pub hold: Limits,
    /// There is a second hub with the same sites: their spare.
    pub spare: bool,
    /// The hubs of each site by their numbers, the home first; there are as many hubs as this names. Sites beyond the
    /// end have the home and the spare, if there is one.
    pub hubs_of: Vec<Vec<usize>>,
    /// The sites share an address, each with [`World::block`], and hubs pass packets for it on to each other.
    pub shared: bool,
    /// Sites rest until [`World::start_site`].
    pub rests: bool,
    /// Number of workers of each hub, 1 to 64. The world has the first of them only, and sites of others get no tunnel.
    pub workers: u8,
    /// Further sites, numbered after the others.
    pub neighbours: Vec<Neighbour>,
}

/// A site with addresses of its own choice.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// The addresses of its hosts.
    pub addresses: Vec<IpAddr>,
    /// Number of its uplinks, up to 200.
    pub uplinks: usize,
}

/// What became of an outer packet on a link of the first site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// When that was noticed, in the time of the world.
    pub at: Instant,
    /// Number of the uplink.
    pub uplink: usize,
    /// Which way the packet went.
    pub side: Side,
    /// Number of the packet on this link in its direction, and its length in bytes.
    pub digest: u64,
    /// What became of it.
    pub end: End,
}

/// How a packet's way ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It left the link at the other end.
    Delivered,
    /// The link refused it.
    Refused(DropReason),
    /// It was lost on the way.
    Lost,
}

/// An outer packet at an end of a link of the site that is tapped.
#[derive(Clone, Debug)]
pub struct Tap {
    /// Number of the uplink.
    pub uplink: usize,
    /// Which way the packet goes.
    pub side: Side,
    /// Whether it is at the sender's end.
    pub leaves: bool,
    /// The packet.
    pub packet: Packet,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            seed: 1,
            sites: 1,
            uplinks: 2,
            link: DirectionConfig {
                delay: Duration::from_millis(10),
                ..DirectionConfig::default()
            },
            scheduler: SchedulerKind::default(),
            congestion: CongestionControl::default(),
            protection: None,
            send: SendOptions::default(),
            coupled: false,
            hosts: false,
            hub_memory: 1 << 30,
            hold: Limits::default(),
            spare: false,
            hubs_of: Vec::new(),
            shared: false,
            rests: false,
            workers: 1,
            neighbours: Vec::new(),
        }
    }
}

impl Spec {
    /// Number of uplinks of each site.
    fn uplinks(&self) -> impl Iterator<Item = usize> {
        let sites = std::iter::repeat_n(self.uplinks, self.sites);
        sites.chain(self.neighbours.iter().map(|near| near.uplinks))
    }

    /// Number of hubs.
    fn hubs(&self) -> usize {
        let named = self.hubs_of.iter().flatten().max();
        let named = named.map_or(1, |most| most + 1);
        named.max(1 + usize::from(self.spare))
    }

    /// Inner addresses of a site.
    fn addresses(&self, site: usize) -> Vec<IpAddr> {
        match site.checked_sub(self.sites) {
            None => vec![World::inner_address(site).into()],
            Some(neighbour) => self.neighbours[neighbour].addresses.clone(),
        }
    }
}

/// An uplink of a site and the link behind it.
#[derive(Debug)]
struct Way {
    uplink: Uplink,
    link: Link<Numbered>,
    /// When the link started.
    epoch: Instant,
    /// Packets that entered, in both directions.
    sent: [u32; 2],
    /// How often the NAT on it has forgotten its mappings.
    mappings: u16,
    udp_blocked: bool,
    present: bool,
    /// Share of packets that arrive twice, in both directions.
    copies: f64,
}

/// A packet with its digest.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) packet: Packet,
    pub(crate) digest: u64,
}

impl Carried for Numbered {
    fn flow(&self) -> u64 {
        self.packet.flow()
    }

    fn ecn(&self) -> Ecn {
        self.packet.ecn()
    }

    fn mark_ce(&mut self) {
        self.packet.mark_ce();
    }
}

/// Who got something.
struct Ready {
    /// The component whose links and timers were looked at.
    itself: bool,
    /// A bit for each hub.
    hubs: u64,
}

/// A site and its uplinks.
#[derive(Debug)]
struct Place {
    host: Option<Host<Site>>,
    /// The machine while it becomes a site.
    joining: Option<Host<Joining>>,
    identity: Identity,
    starts: u64,
    ways: Vec<Way>,
    /// Bytes that went onto the links between the site and each hub, in both directions, IP headers included.
    bytes: Vec<u64>,
}

/// A hub and its sites.
#[derive(Debug)]
pub struct World {
    now: Instant,
    base: std::time::Instant,
    random: Random,
    /// The home of all sites, their spare, and further ones.
    hubs: Vec<Option<Host<Hub>>>,
    hub_identity: Identity,
    /// Those of all hubs but the home.
    further_identities: Vec<Identity>,
    /// Whether packets between each hub and sites vanish.
    cut: Vec<bool>,
    /// Sites and hubs between which packets vanish.
    apart: BTreeSet<(usize, usize)>,
    /// When each connection began whose first packet reached a hub, and which hub, if that is kept.
    begun: Option<Begun>,
    /// Where inner packets from outside go.
    inner_routes: InnerRoutes,
    directory: Arc<SiteDirectory>,
    places: Vec<Place>,
    /// When each component has something to do: 0 is the home, then the sites in their order, and then all other hubs.
    due: BTreeSet<(Instant, usize)>,
    due_at: Vec<Instant>,
    /// When each session wants its timers looked at, as of its last turn.
    timers: Vec<Instant>,
    /// Where packets to an address of a site go: its number and that of the uplink.
    routes: BTreeMap<IpAddr, (usize, usize)>,
    spec: Spec,
    /// Components that got input and had no turn yet, each once.
    touched: Vec<usize>,
    /// What became of packets, if that is recorded.
    fates: Option<Vec<Fate>>,
    /// Packets at the ends of links, if they are kept.
    taps: Option<Vec<Tap>>,
    tapped: usize,
    /// What is in place of the links of the first site's uplinks, if they share some.
    joint: Option<Joint>,
    /// Until when each component stands still.
    asleep: Vec<Instant>,
    /// What each component speaks from its next start on, if not all that this program does.
    versions: Vec<Option<Versions>>,
    /// Decides which packets arrive twice.
    copying: Random,
    /// Packets to addresses of nobody, if they are kept.
    strays: Option<Vec<Packet>>,
    sent: u64,
    turns: u64,
    out: Vec<Outgoing>,
}

impl World {
    /// A world at rest in which every gateway runs, and every site has its uplinks.
    ///
    /// # Panics
    /// Never with a valid `spec`: the keys follow from the seed.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let mut random = Random::new(spec.seed);
        let hubs = spec.hubs();
        let hub_identity = identity(&mut random);
        let places: Vec<Place> = (0..)
            .zip(spec.uplinks())
            .map(|(site, uplinks)| Place {
                host: None,
                joining: None,
                identity: identity(&mut random),
                starts: 0,
                ways: (0..uplinks)
                    .map(|uplink| Way::new(spec, site, uplink, random.next_u64()))
                    .collect(),
                bytes: vec![0; hubs],
            })
            .collect();
        let entries = places.iter().enumerate().map(|(site, place)| SiteEntry {
            name: format!("site{site}"),
            key: place.identity.public_key(),
            addresses: spec.addresses(site),
            block: spec.shared.then(|| Self::block(site)),
            networks: (spec.hosts && site == 0)
                .then(|| SITE_HOSTS.parse().expect("a network"))
                .into_iter()
                .collect(),
            enabled: true,
            weight: 1,
            rate: None,
        });
        let further_identities: Vec<_> = (1..hubs).map(|_| identity(&mut random)).collect();
        let count = places.len() + hubs - 1;
        let mut world = Self {
            now: Instant::ZERO,
            base: std::time::Instant::now(),
            hubs: (0..hubs).map(|_| None).collect(),
            hub_identity,
            further_identities,
            cut: vec![false; hubs],
            apart: BTreeSet::new(),
            begun: None,
            inner_routes: InnerRoutes::default(),
            directory: Arc::new(SiteDirectory::new(entries.collect())),
            due: BTreeSet::new(),
            due_at: vec![Instant::FAR_FUTURE; 1 + count],
            timers: vec![Instant::FAR_FUTURE; 1 + count],
            routes: routes(&places),
            places,
            random,
            spec: spec.clone(),
            touched: Vec::new(),
            fates: None,
            taps: None,
            tapped: 0,
            joint: None,
            asleep: vec![Instant::ZERO; 1 + count],
            versions: vec![None; 1 + count],
            copying: Random::new(spec.seed ^ COPYING),
            strays: None,
            sent: 0,
            turns: 0,
            out: Vec::new(),
        };
        for hub in 0..hubs {
            world.start_hub_at(hub);
        }
        if !spec.rests {
            (0..world.places.len()).for_each(|site| world.start_site(site));
        }
        world
    }

    /// Time in the world.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The inner address of a site, which none of the hosts in [`SITE_HOSTS`] has.
    #[must_use]
    pub fn inner_address(site: usize) -> Ipv4Addr {
        let [high, low] = u16::try_from(site + 2).unwrap_or(u16::MAX).to_be_bytes();
        Ipv4Addr::new(10, 253, high, low)
    }

    /// The ports of a site of the first 64, where sites share an address.
    #[must_use]
    pub fn block(site: usize) -> PortBlock {
        let first = u16::try_from(site).map_or(u16::MAX - 999, |site| 1_000 * (1 + site));
        PortBlock {
            address: Ipv4Addr::new(203, 0, 113, 7),
            first,
            last: first + 999,
        }
    }

    fn environment(&mut self, session: u64) -> Environment {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.random.next_u64().to_le_bytes());
        Environment {
            base: self.base,
            segmentation: false,
            udp_payload_max: 1_472,
            session,
            tunnels: self.random.next_u64(),
            transport: Some(seed),
            slice: Slice::WHOLE,
        }
    }

    fn common(&self, identity: Identity, side: Side) -> CommonSettings {
        let classes = self
            .spec
            .protection
            .map(|both| Classes::all(both[side as usize]));
        CommonSettings {
            identity,
            scheduler_send: self.spec.scheduler,
            scheduler_receive: self.spec.scheduler,
            classes: Arc::new(classes.unwrap_or_default()),
            hold: self.spec.hold,
            send: self.spec.send,
            congestion: self.spec.congestion,
            mtu: None,
        }
    }

    /// Starts the hub, again if it ran: a new start of the same gateway.
    ///
    /// # Panics
    /// Never: its key and settings are valid.
    pub fn start_hub(&mut self) {
        self.start_hub_at(HOME);
    }

    /// From its next start on site `site`, or the hub, speaks these versions of the wire only, as a program of
    /// another time.
    pub fn set_versions(&mut self, site: Option<usize>, versions: Versions) {
        self.versions[site.map_or(0, |site| 1 + site)] = Some(versions);
    }

    /// Kills the hub: nobody is told.
    pub fn kill_hub(&mut self) {
        self.kill_hub_at(HOME);
    }

    /// Starts a site, again if it ran. It gets its uplinks.
    ///
    /// # Panics
    /// Never: its key and settings are valid.
    pub fn start_site(&mut self, site: usize) {
        let session = self.random.next_u64() | 1;
        let environment = self.environment(session);
        let common = self.common(self.places[site].identity.clone(), Side::Up);
        let settings = SiteSettings {
            common,
            hubs: self.site_hubs(site),
            udp_blocked_fallback: true,
            ipv6: true,
        };
        let mut session = Session::site(settings, &environment).expect("a valid key");
        if let Some(versions) = self.versions[1 + site] {
            session.speak(versions);
        }
        let mut host = Host::new(session, SITE_PORT);
        if self.fates.is_some() {
            host.keep_released();
        }
        let place = &mut self.places[site];
        place.starts += 1;
        place.joining = None;
        place.host = Some(host);
        self.tell_uplinks(site);
    }

    /// Lets a machine become the site: it proves the key of the site, which is to be that of an invitation
    /// ([`Self::only_invite`]), and says that the site has this one. Without a key it only looks for the hub.
    ///
    /// # Panics
    /// Never: the key is valid.
    pub fn start_joining(&mut self, site: usize, identity: Option<Identity>) {
        let environment = self.environment(1);
        let place = &mut self.places[site];
        let devices = place.ways.iter().map(|way| Some(way.uplink.name.clone()));
        let settings = JoinSettings {
            invitation: place.identity.clone(),
            hub_key: self.hub_identity.public_key(),
            identity,
            hub_addresses: vec![HUB_UDP],
            tcp_port: HUB_TCP.port(),
            devices: devices.collect(),
        };
        let session = Session::joining(settings, &environment).expect("a valid key");
        place.host = None;
        place.joining = Some(Host::new(session, SITE_PORT));
        self.timers[1 + site] = self.now;
        self.turn(1 + site);
    }

    /// The machine that becomes a site, if one does.
    #[must_use]
    pub fn joining(&self, site: usize) -> Option<&Host<Joining>> {
        self.places[site].joining.as_ref()
    }

    /// Kills a site: nobody is told.
    pub fn kill_site(&mut self, site: usize) {
        self.places[site].host = None;
        self.places[site].joining = None;
        self.turn(1 + site);
    }

    /// Stops a site as a signal does: it says goodbye. How many UDP sockets and TCP connections it then has
    /// open.
    pub fn stop_site(&mut self, site: usize) -> [usize; 2] {
        let mut left = [0; 2];
        if let Some(host) = &mut self.places[site].host {
            host.shutdown(self.now);
            left = [host.udp_sockets(), host.tcp_connections()];
        }
        self.send_out(1 + site);
        self.kill_site(site);
        left
    }

    /// Stops the hub in the same way.
    pub fn stop_hub(&mut self) -> [usize; 2] {
        self.stop_hub_at(HOME)
    }

    /// Whether a site runs.
    #[must_use]
    pub fn site_runs(&self, site: usize) -> bool {
        self.places[site].host.is_some()
    }

    /// Whether the hub runs.
    #[must_use]
    pub fn hub_runs(&self) -> bool {
        self.hubs[HOME].is_some()
    }

    /// Lets a gateway stand still until then, as a suspended machine: of site `site`, or the hub. What comes
    /// meanwhile is lost, and its timers are late. Its clock goes on.
    pub fn suspend(&mut self, site: Option<usize>, until: Instant) {
        self.suspend_component(site.map_or(0, |site| 1 + site), until);
    }

    fn suspend_component(&mut self, component: usize, until: Instant) {
        self.asleep[component] = until.max(self.asleep[component]);
        self.note_due(component);
    }

    fn sleeps(&self, component: usize) -> bool {
        self.asleep[component] > self.now
    }

    /// The hub.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn hub(&self) -> &Host<Hub> {
        self.hubs[HOME].as_ref().expect("the hub runs")
    }

    /// The hub, to do something to it; call [`Self::touch_hub`] afterwards.
    ///
    /// # Panics
    /// When it does not run.
    pub fn hub_mut(&mut self) -> &mut Host<Hub> {
        self.hubs[HOME].as_mut().expect("the hub runs")
    }

    /// A site.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn site(&self, site: usize) -> &Host<Site> {
        self.places[site].host.as_ref().expect("the site runs")
    }

    /// A site, to do something to it; call [`Self::touch_site`] afterwards.
    ///
    /// # Panics
    /// When it does not run.
    pub fn site_mut(&mut self, site: usize) -> &mut Host<Site> {
        self.places[site].host.as_mut().expect("the site runs")
    }

    /// Gives the hub its turn at the present time.
    pub fn touch_hub(&mut self) {
        self.turn(0);
    }

    /// Gives a site its turn at the present time.
    pub fn touch_site(&mut self, site: usize) {
        self.turn(1 + site);
    }

    /// The paths of a site, as its status says.
    #[must_use]
    pub fn paths(&self, site: usize) -> Vec<PathStatus> {
        let status = self.site(site).session.status();
        status.tunnels.into_iter().flat_map(|t| t.paths).collect()
    }

    /// The transports of the paths of a site that are up, in the order of its paths.
    #[must_use]
    pub fn transports_up(&self, site: usize) -> Vec<String> {
        let up = self.paths(site).into_iter().filter(|p| p.state == "up");
        up.map(|p| p.transport).collect()
    }

    /// Gives a site another share of the hub, which reads its list of sites anew.
    pub fn set_share(&mut self, site: usize, weight: u32, rate: Option<u64>) {
        self.change_entry(site, |entry| (entry.weight, entry.rate) = (weight, rate));
    }

    fn change_entry(&mut self, site: usize, change: impl Fn(&mut SiteEntry)) {
        let mut entries = self.directory.all();
        for entry in &mut entries {
            if entry.name == format!("site{site}") {
                change(Arc::make_mut(entry));
            }
        }
        let entries = entries.into_iter().map(Arc::unwrap_or_clone);
        self.directory.replace(entries.collect());
        self.reload_sites();
    }

    fn reload_sites(&mut self) {
        let now = self.now;
        for hub in 0..self.hubs.len() {
            if let Some(host) = &mut self.hubs[hub] {
                let reload = ropewalk_session::Command::ReloadSites;
                host.session.handle_command(now, reload).ok();
            }
            if hub == HOME || self.hubs[hub].is_some() {
                self.turn(self.component_of(hub));
            }
        }
    }

    /// Lets a site in, or shuts it out, at the hub, which reads its list of sites anew.
    pub fn set_enabled(&mut self, site: usize, enabled: bool) {
        self.change_entry(site, |entry| entry.enabled = enabled);
    }

    /// The hubs know a site by this key from now on. They read their lists of sites anew.
    pub fn set_key(&mut self, site: usize, key: PublicKey) {
        self.change_entry(site, |entry| entry.key = key);
    }

    /// Makes the key of a site one of an invitation: the hub knows no such site any more.
    pub fn only_invite(&mut self, site: usize) {
        let key = self.places[site].identity.public_key();
        let entries = self.directory.all().into_iter();
        let others = entries.filter(|entry| entry.key != key);
        self.directory
            .replace(others.map(Arc::unwrap_or_clone).collect());
        self.directory.set_invitations([key]);
        self.reload_sites();
    }

    /// Tells the hub that more waits at its sockets than it can work off.
    pub fn let_hub_fall_behind(&mut self) {
        if let Some(hub) = &mut self.hubs[HOME] {
            hub.session.handle_backlog(1.0);
        }
    }

    /// Sends inner packets from a site to the hub's inner address, with numbers from `first` on.
    pub fn send_up(&mut self, site: usize, first: u64, count: u64) {
        let now = self.now;
        let source = Self::inner_address(site);
        for number in first..first + count {
            let packet = inner(source, HUB_INNER, number, 500);
            self.site_mut(site).session.handle_inner(now, packet, false);
        }
        self.turn(1 + site);
    }

    /// The same to a site from the hub that serves it; nothing while that hub is down.
    pub fn send_down(&mut self, site: usize, first: u64, count: u64) {
        let now = self.now;
        let destination = Self::inner_address(site);
        self.inner_routes.follow_until(now);
        let to = self.inner_routes.hub(destination.into());
        for number in first..first + count {
            let packet = inner(HUB_INNER, destination, number, 500);
            if let Some(hub) = &mut self.hubs[to] {
                hub.session.handle_inner(now, packet, false);
            }
        }
        self.turn(self.component_of(to));
    }

    /// Changes both directions of an uplink's link, or one of them.
    pub fn change_link(&mut self, site: usize, uplink: usize, sides: Selector, change: &Change) {
        let way = &mut self.places[site].ways[uplink];
        let now = way.time(self.now);
        way.link.apply(now, sides, change);
        self.turn(1 + site);
    }

    /// Lets everything vanish on an uplink, or nothing any more.
    pub fn set_dead(&mut self, site: usize, uplink: usize, sides: Selector, dead: bool) {
        let change = Change {
            blackhole: Some(dead),
            ..Change::default()
        };
        self.change_link(site, uplink, sides, &change);
    }

    /// Blocks UDP on an uplink, or lets it through again.
    pub fn block_udp(&mut self, site: usize, uplink: usize, blocked: bool) {
        self.places[site].ways[uplink].udp_blocked = blocked;
    }

    /// Lets this share of the packets on an uplink arrive twice.
    pub fn set_copies(&mut self, site: usize, uplink: usize, share: f64) {
        self.places[site].ways[uplink].copies = share;
    }

    /// The key pair of a site.
    #[must_use]
    pub fn identity(&self, site: usize) -> &Identity {
        &self.places[site].identity
    }

    /// A site has another key pair when it starts next.
    pub fn set_identity(&mut self, site: usize, identity: Identity) {
        self.places[site].identity = identity;
    }

    /// The sites as the hub knows them.
    #[must_use]
    pub fn directory(&self) -> Arc<SiteDirectory> {
        Arc::clone(&self.directory)
    }

    /// The key pair of the hub.
    #[must_use]
    pub const fn hub_identity(&self) -> &Identity {
        &self.hub_identity
    }

    /// Somebody beside the sites sends a packet to the hub.
    pub fn inject(&mut self, packet: Packet) {
        if self.receive_at_hub(packet) {
            self.serve(0);
        }
    }

    /// Somebody sends a packet to an uplink of a site.
    pub fn inject_at_site(&mut self, site: usize, uplink: usize, packet: Packet) {
        if self.receive_at_site(site, uplink, packet) {
            self.serve(1 + site);
        }
    }

    /// Keeps packets of the hub to addresses that no site has, for [`Self::take_strays`].
    pub fn keep_strays(&mut self) {
        self.strays = Some(Vec::new());
    }

    /// These packets since the last call, in order.
    pub fn take_strays(&mut self) -> impl Iterator<Item = Packet> {
        self.strays.iter_mut().flat_map(|strays| strays.drain(..))
    }

    /// A NAT on the uplink forgets its mappings: packets leave from other ports from now on, and
    /// those to the old ports get lost.
    pub fn rebind(&mut self, site: usize, uplink: usize) {
        self.places[site].ways[uplink].mappings += 1;
    }

    /// The uplink gets another address, and the site learns of it.
    pub fn readdress(&mut self, site: usize, uplink: usize, address: Ipv4Addr) {
        self.places[site].ways[uplink].uplink.addresses = vec![address.into()];
        self.routes = routes(&self.places);
        self.tell_uplinks(site);
    }

    /// The uplink stands by from now on, or no longer, and the site learns of it.
    pub fn set_standby(&mut self, site: usize, uplink: usize, standby: bool) {
        self.places[site].ways[uplink].uplink.standby = standby;
        self.tell_uplinks(site);
    }

    /// The uplink goes, or comes back, and the site learns of it.
    pub fn set_present(&mut self, site: usize, uplink: usize, present: bool) {
        self.places[site].ways[uplink].present = present;
        self.tell_uplinks(site);
    }

    fn tell_uplinks(&mut self, site: usize) {
        let ways = self.places[site].ways.iter().filter(|way| way.present);
        let uplinks = ways.map(|way| way.uplink.clone()).collect();
        // A site that does not run is told when it starts.
        let Some(host) = &mut self.places[site].host else {
            return;
        };
        let told = host
            .session
            .handle_command(self.now, Command::Uplinks(uplinks));
        debug_assert!(told.is_ok());
        self.turn(1 + site);
    }

    /// Lets time pass.
    pub fn run(&mut self, duration: Duration) {
        self.run_to(self.now + duration);
    }

    /// Lets time pass until `end`.
    pub fn run_to(&mut self, end: Instant) {
        while let Some(&(at, component)) = self.due.first().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.work(component);
        }
        self.now = end.max(self.now);
    }

    /// Lets time pass until `done` says so, `longest` at most; the time it took.
    ///
    /// # Panics
    /// When it does not come to that.
    pub fn run_until(&mut self, longest: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        const STEP: Duration = Duration::from_millis(1);
        let start = self.now;
        while !done(self) {
            assert!(
                self.now.since(start) < longest,
                "not within {longest:?}: {:#?}",
                (0..self.places.len().min(3))
                    .filter(|&site| self.places[site].host.is_some())
                    .map(|site| self.paths(site))
                    .collect::<Vec<_>>()
            );
            self.run(STEP);
        }
        self.now.since(start)
    }

    /// For a simulator that drives the world: inner packets are kept as they are, and what
    /// becomes of the outer packets of the first site is recorded.
    pub fn keep_packets(&mut self) {
        self.fates = Some(Vec::new());
        self.keep_inner();
    }

    /// From now on inner packets are kept as they are at gateways that run, for [`Self::take_released`].
    pub fn keep_inner(&mut self) {
        for hub in self.hubs.iter_mut().flatten() {
            hub.keep_released();
        }
        for place in &mut self.places {
            if let Some(host) = &mut place.host {
                host.keep_released();
            }
        }
    }

    /// Puts other links in place of those of a site's uplinks. The time of the new links starts
    /// now. What was under way is lost.
    pub fn replace_links(&mut self, site: usize, links: impl IntoIterator<Item = LinkConfig>) {
        for (way, link) in self.places[site].ways.iter_mut().zip(links) {
            (way.link, way.epoch) = (Link::new(link), self.now);
        }
        self.turn(1 + site);
    }

    /// Puts links that the uplinks of all sites share in place of their own. `entries` has the first
    /// link of each uplink, site by site, then those of hosts beside the tunnels. The time of the
    /// links starts now. What was under way is lost. See [`Network::new`].
    pub fn join_links(
        &mut self,
        links: Vec<LinkConfig>,
        through: &[Option<usize>],
        entries: &[usize],
    ) {
        let places = self.places.iter().enumerate();
        let ends =
            places.flat_map(|(site, place)| (0..place.ways.len()).map(move |way| (site, way)));
        let network = Network::new(links, through, entries);
        self.joint = Some(Joint::new(network, ends.collect(), self.now));
        self.turn(1);
    }

    /// Sends a packet of a host that is beside the tunnel over a route of [`Self::join_links`].
    pub fn send_beside(&mut self, now: Instant, route: usize, side: Side, data: BytesMut) {
        self.now = now.max(self.now);
        if let Some(joint) = &mut self.joint {
            joint.send(self.now, route, side, Packet::plain(data));
        }
        self.note_due(1);
    }

    /// Packets of such hosts that have come to the end of their way since the last call.
    pub fn take_beside(&mut self, mut take: impl FnMut(Side, &[u8])) {
        for (side, data) in self.joint.iter_mut().flat_map(Joint::take_beside) {
            take(side, &data);
        }
    }

    /// Counters of one of the links of [`Self::join_links`] as of `now`.
    pub fn joint_counters(&mut self, now: Instant, link: usize, side: Side) -> Counters {
        let joint = self.joint.as_mut();
        joint.map_or_else(Counters::default, |joint| joint.counters(now, link, side))
    }

    /// Whether nothing is under way on the links of a site.
    #[must_use]
    pub fn links_idle(&self, site: usize) -> bool {
        let mut ways = self.places[site].ways.iter();
        ways.all(|way| way.link.poll_timeout().is_none())
    }

    /// Counters of an uplink's link as of `now`.
    pub fn counters(&mut self, now: Instant, site: usize, uplink: usize, side: Side) -> Counters {
        let way = &mut self.places[site].ways[uplink];
        way.link.advance(way.time(now));
        way.link.counters(side)
    }

    /// Outer packets that gateways sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Turns that gateways had.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// What became of outer packets since the last call, in order.
    pub fn take_fates(&mut self) -> impl Iterator<Item = Fate> {
        self.fates.iter_mut().flat_map(|fates| fates.drain(..))
    }

    /// Keeps the outer packets of the first site from now on, for [`Self::take_taps`].
    pub fn keep_taps(&mut self) {
        self.keep_taps_of(0);
    }

    /// The same of this site, and of no other.
    pub fn keep_taps_of(&mut self, site: usize) {
        self.tapped = site;
        self.taps = Some(Vec::new());
    }

    /// Outer packets at the ends of links since the last call, in order.
    pub fn take_taps(&mut self) -> impl Iterator<Item = Tap> {
        self.taps.iter_mut().flat_map(|taps| taps.drain(..))
    }

    /// Tells an observer of all datagrams of a gateway: of the site that sends up, or of the hub.
    pub fn observe(&mut self, site: usize, side: Side, observer: Box<dyn Observer>) {
        match side {
            Side::Up => self.site_mut(site).session.observe("hub", observer),
            Side::Down => {
                let name = format!("site{site}");
                self.hub_mut().session.observe(&name, observer);
            }
        }
    }

    /// A policy of the caller's schedules what a site sends to the hub, or gets from it.
    pub fn set_policy(&mut self, site: usize, side: Side, policy: Box<dyn Policy>) {
        match side {
            Side::Up => self.site_mut(site).session.set_policy("hub", policy),
            Side::Down => {
                let name = format!("site{site}");
                self.hub_mut().session.set_policy(&name, policy);
            }
        }
    }

    /// Hands an inner packet of a host to the gateway of a site, or to the hub. The gateway gets
    /// its turn with [`Self::settle_touched`]. A gateway that does not run,
    /// or stands still, loses the packet.
    pub fn offer(&mut self, now: Instant, site: usize, side: Side, data: BytesMut) {
        self.now = now.max(self.now);
        self.inner_routes.follow_until(self.now);
        let component = match side {
            Side::Up => 1 + site,
            Side::Down => {
                let to = data.get(HEADROOM..).and_then(destination_of);
                self.component_of(to.map_or(HOME, |to| self.inner_routes.hub(to)))
            }
        };
        if self.sleeps(component) {
            return;
        }
        match self.part(component) {
            Part::Site(site) => {
                if let Some(host) = &mut self.places[site].host {
                    host.session.handle_inner(self.now, data, false);
                }
            }
            Part::Hub(hub) => match &mut self.hubs[hub] {
                Some(hub) => hub.session.handle_inner(self.now, data, false),
                None => return,
            },
        }
        self.touch(component);
    }

    /// Gives those a turn who were offered packets.
    pub fn settle_touched(&mut self) {
        while let Some(component) = self.touched.pop() {
            self.settle(component);
        }
    }

    /// When there is something to do.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|due| due.0)
    }

    /// Inner packets that the gateway at the end of `side` let through since the last call: the
    /// hub for those that go up.
    pub fn take_released(&mut self, site: usize, side: Side, take: impl FnMut(Bytes)) {
        match side {
            Side::Up => {
                let hubs = self.hubs.iter_mut().flatten();
                hubs.flat_map(Host::take_released).for_each(take);
            }
            Side::Down => {
                if let Some(host) = &mut self.places[site].host {
                    host.take_released().for_each(take);
                }
            }
        }
    }

    /// Whether [`Self::take_released`] has something in either direction.
    #[must_use]
    pub fn has_released(&self, site: usize) -> bool {
        let host = self.places[site].host.as_ref();
        self.hubs.iter().flatten().any(Host::has_released)
            || host.is_some_and(Host::has_released)
            || self.joint.as_ref().is_some_and(Joint::has_beside)
    }

    /// The tunnels of a site and, if the site has said hello since the hub started, of the hub. Of several hubs it is
    /// the one to which packets to the site go.
    #[must_use]
    pub fn tunnels(&self, site: usize) -> [Option<&Tunnel>; 2] {
        let host = self.places[site].host.as_ref();
        [
            host.map(|host| host.session.role().peer().tunnel()),
            self.tunnel_at(self.route_to_any(site), site),
        ]
    }

    /// Delivers what has arrived at the links of a component, and gives a turn to those who got
    /// something or whose timers are due.
    fn work(&mut self, component: usize) {
        let now = self.now;
        self.inner_routes.follow_until(now);
        let mut ready = Ready {
            itself: self.timers[component] <= now && !self.sleeps(component),
            hubs: 0,
        };
        if component == 1 {
            for other in self.empty_joint(&mut ready) {
                self.serve(other);
            }
        }
        if let Part::Site(site) = self.part(component) {
            for index in 0..self.places[site].ways.len() {
                ready.hubs |= self.deliver_up(site, index);
                ready.itself |= self.deliver_down(site, index);
            }
        }
        if ready.itself {
            self.serve(component);
        }
        for hub in (0..self.hubs.len()).filter(|hub| ready.hubs >> hub & 1 > 0) {
            self.serve(self.component_of(hub));
        }
        self.note_due(component);
    }

    /// Gives a component that got something, or whose timers are due, its turn.
    fn serve(&mut self, component: usize) {
        self.take_in(component);
        // Whoever drives the world answers first: one turn serves input and answers.
        if self.fates.is_some() {
            self.touch(component);
        } else {
            self.settle(component);
        }
    }

    /// Hands the hubs what has arrived over an uplink; a bit for each hub that got something.
    fn deliver_up(&mut self, site: usize, uplink: usize) -> u64 {
        let mut any = 0;
        while let Some(packet) = self.arrived(site, uplink, Side::Up) {
            let to = self.hub_of(packet.to.ip());
            if !self.apart.contains(&(site, to)) && self.receive_at_hub(packet) {
                any |= 1 << to;
            }
        }
        any
    }

    fn receive_at_hub(&mut self, packet: Packet) -> bool {
        let to = self.hub_of(packet.to.ip());
        let lost = self.cut[to] || self.sleeps(self.component_of(to));
        let Some(hub) = self.hubs[to].as_mut().filter(|_| !lost) else {
            return false;
        };
        if let Some(begun) = &mut self.begun {
            begun.note(self.now, to, &packet);
        }
        let port = packet.to.port();
        hub.receive(self.now, packet, port, None);
        true
    }

    /// Hands on what has come over links that uplinks share: whether the first site and the hub got
    /// something, and which other sites did.
    fn empty_joint(&mut self, ready: &mut Ready) -> BTreeSet<usize> {
        let mut others = BTreeSet::new();
        while let Some(event) = self.joint.as_mut().and_then(|joint| joint.poll(self.now)) {
            if let Some(fates) = &mut self.fates {
                fates.push(event.fate);
            }
            match event.arrived {
                Some((Side::Up, packet)) => {
                    ready.hubs |= u64::from(self.receive_at_hub(packet)) << HOME;
                }
                Some((Side::Down, packet)) => {
                    let joint = self.joint.as_ref();
                    let Some((site, uplink)) = joint.and_then(|j| j.end(event.fate.uplink)) else {
                        continue;
                    };
                    let got = self.receive_at_site(site, uplink, packet);
                    if site == 0 {
                        ready.itself |= got;
                    } else if got {
                        others.insert(1 + site);
                    }
                }
                None => {}
            }
        }
        others
    }

    /// The same for a site, if the packet is for an address and a port that it has now.
    fn deliver_down(&mut self, site: usize, uplink: usize) -> bool {
        let mut any = false;
        while let Some(packet) = self.arrived(site, uplink, Side::Down) {
            any |= self.receive_at_site(site, uplink, packet);
        }
        any
    }

    fn receive_at_site(&mut self, site: usize, uplink: usize, packet: Packet) -> bool {
        if self.sleeps(1 + site) {
            return false;
        }
        let place = &mut self.places[site];
        let way = &place.ways[uplink];
        let mapped = way.mappings * NAT_STEP;
        let here = way.uplink.addresses.contains(&packet.to.ip()) && way.present;
        let port = packet.to.port().checked_sub(mapped);
        let port = port.filter(|port| (SITE_PORT..SITE_PORT + NAT_STEP).contains(port));
        let (true, Some(port)) = (here, port) else {
            return false;
        };
        let device = Some(way.uplink.name.as_str());
        if let Some(host) = &mut place.host {
            host.receive(self.now, packet, port, device);
        } else if let Some(joining) = &mut place.joining {
            joining.receive(self.now, packet, port, device);
        } else {
            return false;
        }
        true
    }

    fn touch(&mut self, component: usize) {
        if !self.touched.contains(&component) {
            self.touched.push(component);
        }
    }

    /// The next packet that has arrived over an uplink in this direction.
    fn arrived(&mut self, site: usize, uplink: usize, side: Side) -> Option<Packet> {
        let way = &mut self.places[site].ways[uplink];
        let item = way.link.poll(way.time(self.now), side);
        if site == 0
            && let Some(fates) = &mut self.fates
        {
            let mut note = |digest, end| {
                fates.push(Fate {
                    at: self.now,
                    uplink,
                    side,
                    digest,
                    end,
                });
            };
            while let Some(lost) = way.link.poll_lost(side) {
                note(lost.digest, End::Lost);
            }
            if let Some(item) = &item {
                note(item.digest, End::Delivered);
            }
        }
        let packet = item.map(|item| item.packet);
        self.tap(site, uplink, side, false, packet.as_ref());
        packet
    }

    fn tap(
        &mut self,
        site: usize,
        uplink: usize,
        side: Side,
        leaves: bool,
        packet: Option<&Packet>,
    ) {
        if let (Some(taps), Some(packet)) =
            (self.taps.as_mut().filter(|_| site == self.tapped), packet)
        {
            taps.push(Tap {
                uplink,
                side,
                leaves,
                packet: packet.clone(),
            });
        }
    }

    /// A whole turn of a component.
    fn turn(&mut self, component: usize) {
        self.take_in(component);
        self.settle(component);
    }

    /// All input of a component's turn is in.
    fn take_in(&mut self, component: usize) {
        if self.sleeps(component) {
            return;
        }
        let (now, due) = (self.now, self.timers[component] <= self.now);
        match self.part(component) {
            Part::Site(site) => {
                let place = &mut self.places[site];
                if let Some(host) = &mut place.host {
                    host.take_in(now, due);
                } else if let Some(joining) = &mut place.joining {
                    joining.take_in(now, due);
                }
            }
            Part::Hub(hub) => {
                if let Some(hub) = &mut self.hubs[hub] {
                    hub.take_in(now, due);
                }
            }
        }
    }

    /// The rest of a component's turn, and what follows from it.
    fn settle(&mut self, component: usize) {
        if self.sleeps(component) {
            return;
        }
        self.turns += 1;
        let now = self.now;
        let timer = match self.part(component) {
            Part::Site(site) => self.places[site].pump(now),
            Part::Hub(hub) => self.pump_hub(hub),
        };
        self.timers[component] = timer.unwrap_or(Instant::FAR_FUTURE);
        self.send_out(component);
        self.note_due(component);
    }

    /// Puts what a component sent onto the links.
    fn send_out(&mut self, component: usize) {
        let mut out = std::mem::take(&mut self.out);
        match self.part(component) {
            Part::Site(site) => {
                let place = &mut self.places[site];
                if let Some(host) = &mut place.host {
                    host.swap_out(&mut out);
                } else if let Some(joining) = &mut place.joining {
                    joining.swap_out(&mut out);
                }
                for outgoing in out.drain(..) {
                    self.send_from_site(site, outgoing);
                }
            }
            Part::Hub(from) => {
                if let Some(hub) = &mut self.hubs[from] {
                    hub.swap_out(&mut out);
                }
                let mut touched = BTreeSet::new();
                for outgoing in out.drain(..) {
                    touched.extend(self.send_from_hub(from, outgoing));
                }
                for site in touched {
                    self.note_due(1 + site);
                }
            }
        }
        self.out = out;
    }

    fn send_from_site(&mut self, site: usize, outgoing: Outgoing) {
        let place = &self.places[site];
        let device = outgoing.device.as_deref();
        let mut ways = place.ways.iter();
        let Some(index) = ways.position(|way| Some(way.uplink.name.as_str()) == device) else {
            return;
        };
        let way = &place.ways[index];
        let Some(&ip) = way.uplink.addresses.first().filter(|_| way.present) else {
            return;
        };
        let packet = Packet {
            from: SocketAddr::new(ip, outgoing.port + way.mappings * NAT_STEP),
            to: outgoing.to,
            body: outgoing.body,
        };
        self.enqueue(site, index, Side::Up, packet);
    }

    /// The site to whose link a packet of the hub went.
    fn send_from_hub(&mut self, hub: usize, outgoing: Outgoing) -> Option<usize> {
        if self.cut[hub] {
            return None;
        }
        let packet = Packet {
            from: SocketAddr::new(hub_ip(hub), outgoing.port),
            to: outgoing.to,
            body: outgoing.body,
        };
        let Some(&(site, uplink)) = self.routes.get(&packet.to.ip()) else {
            self.strays
                .iter_mut()
                .for_each(|kept| kept.push(packet.clone()));
            return None;
        };
        if self.apart.contains(&(site, hub)) {
            return None;
        }
        self.enqueue(site, uplink, Side::Down, packet);
        Some(site)
    }

    fn enqueue(&mut self, site: usize, uplink: usize, side: Side, packet: Packet) {
        if self.places[site].ways[uplink].udp_blocked && packet.is_udp() {
            return;
        }
        self.tap(site, uplink, side, true, Some(&packet));
        let copies = self.places[site].ways[uplink].copies;
        if self.copying.chance(copies) {
            self.put(site, uplink, side, packet.clone());
        }
        self.put(site, uplink, side, packet);
    }

    fn put(&mut self, site: usize, uplink: usize, side: Side, packet: Packet) {
        let hub = self.hub_of(match side {
            Side::Up => packet.to.ip(),
            Side::Down => packet.from.ip(),
        });
        self.places[site].bytes[hub] += packet.ip_bytes() as u64;
        let way = &mut self.places[site].ways[uplink];
        self.sent += 1;
        if let Some(joint) = &mut self.joint {
            joint.send_from((site, uplink), self.now, side, packet);
            if site > 0 {
                self.note_due(1);
            }
            return;
        }
        let bytes = packet.ip_bytes();
        let number = &mut way.sent[side as usize];
        *number = number.wrapping_add(1);
        let digest = u64::from(*number) << 32 | bytes as u64;
        let item = Numbered { packet, digest };
        // A packet that the link refuses is lost.
        if let Err(Refused { reason, .. }) = way.link.enqueue(way.time(self.now), side, bytes, item)
            && let Some(fates) = self.fates.as_mut().filter(|_| site == 0)
        {
            fates.push(Fate {
                at: self.now,
                uplink,
                side,
                digest,
                end: End::Refused(reason),
            });
        }
    }

    fn note_due(&mut self, component: usize) {
        let ways = match self.part(component) {
            Part::Site(site) => Some(&self.places[site].ways),
            Part::Hub(_) => None,
        };
        let links = ways.into_iter().flatten().filter_map(Way::poll_timeout);
        let joint = self.joint.as_ref().filter(|_| component == 1);
        let joint = joint.and_then(Joint::poll_timeout);
        let timer = self.timers[component].max(self.asleep[component]);
        let at = links.chain([timer]).chain(joint).min();
        // What is due now was just looked at: the next look comes a little later.
        let soonest = self.now + Duration::from_nanos(1);
        let at = at.map_or(Instant::FAR_FUTURE, |at| at.max(soonest));
        let before = std::mem::replace(&mut self.due_at[component], at);
        if before == at {
            return;
        }
        self.due.remove(&(before, component));
        if at != Instant::FAR_FUTURE {
            self.due.insert((at, component));
        }
    }
}

impl Place {
    /// The rest of the turn of whoever runs here; when the next one is wanted.
    fn pump(&mut self, now: Instant) -> Option<Instant> {
        if let Some(host) = &mut self.host {
            host.pump(now);
            host.poll_timeout()
        } else {
            let joining = self.joining.as_mut()?;
            joining.pump(now);
            joining.poll_timeout()
        }
    }
}

impl Way {
    fn new(spec: &Spec, site: usize, uplink: usize, seed: u64) -> Self {
        let ifindex = u32::try_from(uplink + 1).unwrap_or(u32::MAX);
        let [high, low] = u16::try_from(site).unwrap_or(u16::MAX).to_be_bytes();
        let last = u8::try_from(uplink + 1).unwrap_or(u8::MAX);
        Self {
            uplink: Uplink {
                name: format!("up{uplink}"),
                ifindex,
                addresses: vec![Ipv4Addr::new(100, high, low, last).into()],
                mtu: 1_500,
                standby: false,
                metered: false,
                bottleneck: spec.coupled.then_some(1),
                weight: None,
                protection_hourly: None,
                congestion: None,
            },
            link: Link::new(LinkConfig {
                seed,
                up: spec.link.clone(),
                down: spec.link.clone(),
                changes: Vec::new(),
            }),
            epoch: Instant::ZERO,
            sent: [0; 2],
            mappings: 0,
            udp_blocked: false,
            present: true,
            copies: 0.0,
        }
    }

    /// The world's time as the link's.
    fn time(&self, now: Instant) -> Instant {
        Instant::ZERO + now.since(self.epoch)
    }

    /// When the link has something to do, in the time of the world.
    fn poll_timeout(&self) -> Option<Instant> {
        let at = self.link.poll_timeout()?;
        Some(self.epoch + at.since(Instant::ZERO))
    }
}

/// Where packets to the addresses of sites go.
fn routes(places: &[Place]) -> BTreeMap<IpAddr, (usize, usize)> {
    let mut routes = BTreeMap::new();
    for (site, place) in places.iter().enumerate() {
        for (index, way) in place.ways.iter().enumerate() {
            let addresses = way.uplink.addresses.iter();
            routes.extend(addresses.map(|address| (*address, (site, index))));
        }
    }
    routes
}

fn identity(random: &mut Random) -> Identity {
    let mut seed = [0; 32];
    for part in seed.chunks_mut(8) {
        part.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    Identity::from_seed(seed).expect("every seed is a key")
}
