//! The hubs of a world: which component each is, how they start and end, and where inner packets from outside go.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_netem::Side;
use ropewalk_session::{
    Command, Event, Hub, HubAddresses, HubSettings, Session, SiteHub, Statement,
};
use ropewalk_types::Instant;
use ropewalk_wire::Versions;

use super::{HUB_INNER, HUB_TCP, HUB_UDP, SPARE_IP, World};
use crate::host::Host;

/// The hub at which sites begin.
pub const HOME: usize = 0;
/// The one that waits, if the world has it.
pub const SPARE: usize = 1;

/// What a component is.
pub(super) enum Part {
    Site(usize),
    Hub(usize),
}

/// A routing table that follows what hubs announce: of two hubs the one with the higher epoch is used.
#[derive(Debug, Default)]
pub(super) struct InnerRoutes {
    /// Networks, hubs that announce them, and their epochs.
    routes: Vec<(IpNet, usize, u64)>,
}

impl InnerRoutes {
    /// The hub that gets packets to this address: the home if none announces it.
    pub(super) fn hub(&self, to: IpAddr) -> usize {
        let fits = self.routes.iter().filter(|(net, ..)| net.contains(&to));
        let best = fits.max_by_key(|(_, _, epoch)| *epoch);
        best.map_or(HOME, |(_, hub, _)| *hub)
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
        self.routes
            .retain(|(net, of, _)| *of != hub || !addresses.contains(net));
        if let Some(epoch) = epoch {
            let routes = addresses.iter().map(|net| (*net, hub, epoch));
            self.routes.extend(routes);
        }
    }
}

impl World {
    pub(super) fn part(&self, component: usize) -> Part {
        match component.checked_sub(1) {
            None => Part::Hub(HOME),
            Some(site) if site < self.places.len() => Part::Site(site),
            Some(_) => Part::Hub(SPARE),
        }
    }

    pub(super) fn component_of(&self, hub: usize) -> usize {
        if hub == HOME {
            0
        } else {
            1 + self.places.len()
        }
    }

    pub(super) fn hub_settings(&self, hub: usize) -> HubSettings {
        let spare = self.spare_identity.as_ref().filter(|_| hub == SPARE);
        let identity = spare.unwrap_or(&self.hub_identity).clone();
        let of = |address: SocketAddr| match spare {
            Some(_) => SocketAddr::new(SPARE_IP.into(), address.port()),
            None => address,
        };
        HubSettings {
            common: self.common(identity, Side::Down),
            listen: vec![of(HUB_UDP)],
            tcp_listen: vec![of(HUB_TCP)],
            addresses: vec![(IpAddr::V4(HUB_INNER)).into()],
            sites: Arc::clone(&self.directory),
            memory: self.spec.hub_memory,
        }
    }

    pub(super) fn put_hub(&mut self, hub: usize, session: Session<Hub>) {
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

    /// The hubs as sites know them.
    pub(super) fn site_hubs(&self) -> Vec<SiteHub> {
        let hub = |name: &str, key, address| SiteHub {
            name: name.into(),
            key,
            addresses: Arc::new(HubAddresses::new(&[address])),
            tcp_port: HUB_TCP.port(),
        };
        let home = hub("home", self.hub_identity.public_key(), HUB_UDP);
        let spare = self.spare_identity.as_ref().map(|identity| {
            let address = SocketAddr::new(SPARE_IP.into(), HUB_UDP.port());
            hub("spare", identity.public_key(), address)
        });
        [Some(home), spare].into_iter().flatten().collect()
    }

    pub(super) fn pump_hub(&mut self, hub: usize) -> Option<Instant> {
        let host = self.hubs[hub].as_mut()?;
        let before = host.events.len();
        host.pump(self.now);
        for (_, event) in &host.events[before..] {
            self.inner_routes.follow(hub, event);
        }
        host.poll_timeout()
    }

    /// Starts the spare, again if it ran.
    ///
    /// # Panics
    /// When the world has no spare.
    pub fn start_spare(&mut self) {
        assert!(self.spare_identity.is_some(), "the world has a spare");
        let session = self.random.next_u64() | 1;
        let environment = self.environment(session);
        let session = Session::hub(self.hub_settings(SPARE), &environment);
        let mut session = session.expect("a valid key");
        if let Some(versions) = self.versions[self.component_of(SPARE)] {
            session.speak(versions);
        }
        self.put_hub(SPARE, session);
    }

    /// From its next start on the spare speaks these versions of the wire only.
    pub fn set_spare_versions(&mut self, versions: Versions) {
        let component = self.component_of(SPARE);
        self.versions[component] = Some(versions);
    }

    /// Kills the spare: nobody is told.
    pub fn kill_spare(&mut self) {
        self.put_out(SPARE);
    }

    /// A hub by its number, [`HOME`] or [`SPARE`], if it runs.
    #[must_use]
    pub const fn hub_at(&self, hub: usize) -> Option<&Host<Hub>> {
        self.hubs[hub].as_ref()
    }

    /// Lets all packets between a hub and sites vanish, or none any more. The hub goes on.
    pub const fn set_cut(&mut self, hub: usize, cut: bool) {
        self.cut[hub] = cut;
    }

    /// The hub to which packets from outside to a site go, as the hubs announce it.
    #[must_use]
    pub fn route_to(&self, site: usize) -> usize {
        self.inner_routes.hub(Self::inner_address(site).into())
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
