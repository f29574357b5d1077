//! The hubs of a world: which component each is, how they start and end, and where inner packets from outside go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_netem::Side;
use ropewalk_session::{
    Command, Environment, Event, Hub, HubAddresses, HubSettings, Peer, Session, SiteHub, Slice,
    Statement,
};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::Versions;

use super::{HUB_INNER, HUB_IP, HUB_TCP, HUB_UDP, World};
use crate::host::Host;
use crate::packet::{Body, Packet};

/// The hub at which sites begin.
pub const HOME: usize = 0;
/// The one that waits, if the world has it. Further hubs have the numbers after it.
pub const SPARE: usize = 1;

/// What a component is.
pub(super) enum Part {
    Site(usize),
    Hub(usize),
}

/// The outer address of a hub.
pub(super) fn hub_ip(hub: usize) -> IpAddr {
    let hub = u32::try_from(hub).unwrap_or(u32::MAX);
    Ipv4Addr::from_bits(HUB_IP.to_bits().saturating_add(hub)).into()
}

/// Connections whose first packet has reached a hub.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Who began it, and the identifier that it chose for itself.
    known: BTreeSet<(SocketAddr, Vec<u8>)>,
    times: Vec<(Instant, usize)>,
}

impl Begun {
    /// Notes a packet that has reached a hub, if it begins a connection (RFC 9000 §17.2.2).
    pub(super) fn note(&mut self, now: Instant, hub: usize, packet: &Packet) {
        const LONG_INITIAL: u8 = 0xc0;
        const VERSION_AT: usize = 1;
        let Body::Udp(_, data) = &packet.body else {
            return;
        };
        // Bit 0x40 may be zero (RFC 9287). Types of version 1: an Initial has type 0.
        if data
            .first()
            .is_none_or(|first| first & 0xb0 != LONG_INITIAL & 0xb0)
        {
            return;
        }
        let destination = VERSION_AT + 4;
        let skip = |at: usize| Some(at + 1 + usize::from(*data.get(at)?));
        let source = skip(destination).and_then(|from| data.get(from..skip(from)?));
        let Some(source) = source else { return };
        if self.known.insert((packet.from, source.to_vec())) {
            self.times.push((now, hub));
        }
    }
}

/// A routing table that follows what hubs announce: of two hubs the one with the higher epoch is used.
#[derive(Debug, Default)]
pub(super) struct InnerRoutes {
    /// How long routers take to follow, and what they do not follow yet.
    delay: Duration,
    later: VecDeque<(Instant, usize, Event)>,
    /// Single addresses: hubs that announce them, and their epochs.
    hosts: BTreeMap<IpAddr, Vec<(usize, u64)>>,
    /// Networks, hubs that announce them, and their epochs.
    networks: Vec<(IpNet, usize, u64)>,
}

impl InnerRoutes {
    /// The hub that gets packets to this address: the home if none announces it.
    pub(super) fn hub(&self, to: IpAddr) -> usize {
        self.announced(to).unwrap_or(HOME)
    }

    /// The same, if any hub announces the address.
    fn announced(&self, to: IpAddr) -> Option<usize> {
        let fits = self.networks.iter().filter(|(net, ..)| net.contains(&to));
        let fits = fits.map(|(_, hub, epoch)| (*hub, *epoch));
        let hosts = self.hosts.get(&to).into_iter().flatten().copied();
        let best = fits.chain(hosts).max_by_key(|(_, epoch)| *epoch);
        best.map(|(hub, _)| hub)
    }

    fn forget(&mut self, hub: usize) {
        self.hosts.retain(|_, routes| {
            routes.retain(|(of, _)| *of != hub);
            !routes.is_empty()
        });
        self.networks.retain(|(_, by, _)| *by != hub);
    }

    /// Follows what was announced long enough ago.
    pub(super) fn follow_until(&mut self, now: Instant) {
        let due = self.later.partition_point(|(at, ..)| *at <= now);
        for _ in 0..due {
            if let Some((_, hub, event)) = self.later.pop_front() {
                self.follow(hub, &event);
            }
        }
    }

    /// What a hub announces.
    fn note(&mut self, now: Instant, hub: usize, event: &Event) {
        if self.delay == Duration::ZERO {
            self.follow(hub, event);
        } else {
            self.later.push_back((now + self.delay, hub, event.clone()));
        }
    }

    fn follow(&mut self, hub: usize, event: &Event) {
        let (addresses, epoch) = match event {
            Event::Served {
                addresses,
                statement,
                ..
            } => (addresses, Some(statement.map_or(0, |said| said.epoch))),
            Event::Withdrawn { addresses, .. } => (addresses, None),
            Event::Assigned { .. }
            | Event::TunnelUp { .. }
            | Event::TunnelDown { .. }
            | Event::MtuChanged(_)
            | Event::Enrol { .. }
            | Event::Moved { .. }
            | Event::Key(_) => return,
        };
        for net in addresses {
            if net.prefix_len() == net.max_prefix_len() {
                let routes = self.hosts.entry(net.addr()).or_default();
                routes.retain(|(of, _)| *of != hub);
                routes.extend(epoch.map(|epoch| (hub, epoch)));
                if routes.is_empty() {
                    self.hosts.remove(&net.addr());
                }
            } else {
                self.networks.retain(|(of, by, _)| *by != hub || of != net);
                self.networks.extend(epoch.map(|epoch| (*net, hub, epoch)));
            }
        }
    }
}

impl World {
    pub(super) fn part(&self, component: usize) -> Part {
        match component.checked_sub(1) {
            None => Part::Hub(HOME),
            Some(site) if site < self.places.len() => Part::Site(site),
            Some(beyond) => Part::Hub(beyond + 1 - self.places.len()),
        }
    }

    pub(super) fn component_of(&self, hub: usize) -> usize {
        if hub == HOME {
            0
        } else {
            hub + self.places.len()
        }
    }

    /// The hub at an outer address: the home if there is none.
    pub(super) fn hub_of(&self, address: IpAddr) -> usize {
        let IpAddr::V4(address) = address else {
            return HOME;
        };
        let number = address.to_bits().checked_sub(HUB_IP.to_bits());
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.filter(|hub| *hub < self.hubs.len()).unwrap_or(HOME)
    }

    fn identity_of(&self, hub: usize) -> &Identity {
        let further = hub.checked_sub(1);
        further.map_or(&self.hub_identity, |hub| &self.further_identities[hub])
    }

    pub(super) fn hub_settings(&self, hub: usize) -> HubSettings {
        let identity = self.identity_of(hub).clone();
        let of = |address: SocketAddr| SocketAddr::new(hub_ip(hub), address.port());
        HubSettings {
            common: self.common(identity, Side::Down),
            listen: vec![of(HUB_UDP)],
            tcp_listen: vec![of(HUB_TCP)],
            addresses: vec![(IpAddr::V4(HUB_INNER)).into()],
            sites: Arc::clone(&self.directory),
            memory: self.spec.hub_memory,
            passes_on: self.spec.shared,
        }
    }

    pub(super) fn put_hub(&mut self, hub: usize, session: Session<Hub>) {
        // A hub that starts takes back what it has announced before.
        self.inner_routes.forget(hub);
        let mut host = Host::new(session, 0);
        if self.fates.is_some() {
            host.keep_released();
        }
        self.hubs[hub] = Some(host);
        self.turn(self.component_of(hub));
    }

    pub(super) fn put_out(&mut self, hub: usize) {
        self.hubs[hub] = None;
        self.turn(self.component_of(hub));
    }

    /// The hubs as a site knows them.
    pub(super) fn site_hubs(&self, site: usize) -> Vec<SiteHub> {
        let all = [HOME, SPARE];
        let usual = &all[..1 + usize::from(self.spec.spare)];
        let hubs = self.spec.hubs_of.get(site).map_or(usual, Vec::as_slice);
        let hub = |&hub: &usize| SiteHub {
            name: match hub {
                HOME => "home".into(),
                SPARE => "spare".into(),
                further => format!("hub{further}"),
            },
            key: self.identity_of(hub).public_key(),
            addresses: Arc::new(HubAddresses::new(&[SocketAddr::new(
                hub_ip(hub),
                HUB_UDP.port(),
            )])),
            tcp_port: HUB_TCP.port(),
        };
        hubs.iter().map(hub).collect()
    }

    pub(super) fn pump_hub(&mut self, hub: usize) -> Option<Instant> {
        let host = self.hubs[hub].as_mut()?;
        let before = host.events.len();
        host.pump(self.now);
        for (_, event) in &host.events[before..] {
            self.inner_routes.note(self.now, hub, event);
        }
        host.poll_timeout()
    }

    /// Starts a hub, again if it ran: it remembers nothing.
    ///
    /// # Panics
    /// When the world has no such hub, or no such number of workers.
    pub fn start_hub_at(&mut self, hub: usize) {
        let session = self.random.next_u64() | 1;
        let environment = Environment {
            slice: Slice::new(0, self.spec.workers).expect("there are so many workers"),
            ..self.environment(session)
        };
        let settings = self.hub_settings(hub);
        let mut session = Session::hub(settings, &environment).expect("a valid key");
        if let Some(versions) = self.versions[self.component_of(hub)] {
            session.speak(versions);
        }
        self.put_hub(hub, session);
    }

    /// Starts the spare, again if it ran.
    ///
    /// # Panics
    /// When the world has no spare.
    pub fn start_spare(&mut self) {
        self.start_hub_at(SPARE);
    }

    /// Kills a hub: nobody is told.
    pub fn kill_hub_at(&mut self, hub: usize) {
        self.put_out(hub);
    }

    /// Kills the spare: nobody is told.
    pub fn kill_spare(&mut self) {
        self.kill_hub_at(SPARE);
    }

    /// Stops a hub as a signal does. How many UDP sockets and TCP connections it then has open.
    pub fn stop_hub_at(&mut self, hub: usize) -> [usize; 2] {
        let mut left = [0; 2];
        if let Some(host) = &mut self.hubs[hub] {
            host.shutdown(self.now);
            left = [host.udp_sockets(), host.tcp_connections()];
        }
        self.send_out(self.component_of(hub));
        self.kill_hub_at(hub);
        left
    }

    /// Lets a hub stand still until then: [`World::suspend`].
    pub fn suspend_hub(&mut self, hub: usize, until: Instant) {
        self.suspend_component(self.component_of(hub), until);
    }

    /// From its next start on the spare speaks these versions of the wire only.
    pub fn set_spare_versions(&mut self, versions: Versions) {
        self.set_hub_versions(SPARE, versions);
    }

    /// From its next start on a hub speaks these versions only: [`World::set_versions`].
    pub fn set_hub_versions(&mut self, hub: usize, versions: Versions) {
        let component = self.component_of(hub);
        self.versions[component] = Some(versions);
    }

    /// A hub by its number, [`HOME`] or [`SPARE`], if it runs.
    #[must_use]
    pub fn hub_at(&self, hub: usize) -> Option<&Host<Hub>> {
        self.hubs.get(hub)?.as_ref()
    }

    /// The same, to do something to it; it gets its turn with [`Self::touch_hub_at`].
    pub fn hub_at_mut(&mut self, hub: usize) -> Option<&mut Host<Hub>> {
        self.hubs.get_mut(hub)?.as_mut()
    }

    /// Gives a hub its turn at the present time.
    pub fn touch_hub_at(&mut self, hub: usize) {
        self.turn(self.component_of(hub));
    }

    /// Number of hubs, those that do not run included.
    #[must_use]
    pub const fn hub_count(&self) -> usize {
        self.hubs.len()
    }

    /// The public key of a hub.
    #[must_use]
    pub fn hub_key(&self, hub: usize) -> PublicKey {
        self.identity_of(hub).public_key()
    }

    /// Lets all packets between a site and a hub vanish, or none any more.
    pub fn set_apart(&mut self, site: usize, hub: usize, apart: bool) {
        if apart {
            self.apart.insert((site, hub));
        } else {
            self.apart.remove(&(site, hub));
        }
    }

    /// The tunnel that a hub has for a site, if it has one.
    #[must_use]
    pub fn tunnel_at(&self, hub: usize, site: usize) -> Option<&Tunnel> {
        let name = format!("site{site}");
        let mut peers = self.hubs.get(hub)?.as_ref()?.session.role().peers();
        peers.find(|peer| peer.name() == name).map(Peer::tunnel)
    }

    /// Keeps when connections begin at hubs from now on, for [`Self::begun`].
    pub fn keep_begun(&mut self) {
        self.begun = Some(Begun::default());
    }

    /// When the first packet of each connection reached a hub, and which hub, in order.
    #[must_use]
    pub fn begun(&self) -> &[(Instant, usize)] {
        self.begun.as_ref().map_or(&[], |begun| &begun.times)
    }

    /// Bytes that went onto the links between a site and a hub, in both directions, IP headers included.
    #[must_use]
    pub fn bytes_between(&self, site: usize, hub: usize) -> u64 {
        self.places[site].bytes[hub]
    }

    /// The hub to which packets to the addresses of a site go, if any hub announces one of them, else the home.
    pub(super) fn route_to_any(&self, site: usize) -> usize {
        let addresses = self.spec.addresses(site);
        let routes = &self.inner_routes;
        let mut announced = addresses.into_iter().map(|to| routes.announced(to));
        announced.next().flatten().unwrap_or(HOME)
    }

    /// From now on packets to sites follow what hubs announce so much later.
    pub fn set_route_delay(&mut self, delay: Duration) {
        self.inner_routes.delay = delay;
    }

    /// Sites shall leave a hub, or may stay.
    ///
    /// # Errors
    /// What the hub says to it.
    pub fn drain_hub(&mut self, hub: usize, drained: bool) -> Result<usize, String> {
        self.command_hub(hub, Command::Drained(drained))
    }

    /// Lets all packets between a hub and sites vanish, or none any more. The hub goes on.
    pub fn set_cut(&mut self, hub: usize, cut: bool) {
        self.cut[hub] = cut;
    }

    /// The hub to which packets from outside to a site go, as the hubs announce it.
    #[must_use]
    pub fn route_to(&self, site: usize) -> usize {
        self.route_to_any(site)
    }

    /// The statement with which a hub said last that it serves a site.
    #[must_use]
    pub fn statement(&self, hub: usize, site: usize) -> Option<Statement> {
        let name = format!("site{site}");
        for (_, event) in self.hubs[hub].as_ref()?.events.iter().rev() {
            if let Event::Served {
                site, statement, ..
            } = event
                && *site == name
            {
                return *statement;
            }
        }
        None
    }

    /// A hub learns from elsewhere who serves a site.
    ///
    /// # Errors
    /// What the hub says to it.
    pub fn tell_claim(&mut self, hub: usize, statement: Statement) -> Result<usize, String> {
        self.command_hub(hub, Command::Claimed(statement))
    }

    /// The control side of a hub asks something of it.
    ///
    /// # Errors
    /// What the hub says to it.
    pub fn command_hub(&mut self, hub: usize, command: Command) -> Result<usize, String> {
        let now = self.now;
        let Some(host) = &mut self.hubs[hub] else {
            return Err("the hub does not run".into());
        };
        let told = host.session.handle_command(now, command);
        self.turn(self.component_of(hub));
        told
    }
}
