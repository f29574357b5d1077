//! One site of the swarm: a real session, with pings in the place of a TUN interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ropewalk_core::tunnel::PathState;
use ropewalk_driver::{Owner, Ready, Sockets};
use ropewalk_session::{
    Command, CommonSettings, Environment, Event, Session, Site, SiteHub, SiteSettings, Slice,
    Uplink,
};
use ropewalk_transport::{CongestionControl, Identity};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, Random};

use crate::absence::Absence;
use crate::load::{Load, Traffic};
use crate::ping::{self, Ends, Kind, Requests};
use crate::roam::{Move, Roam};
use crate::roster;
use crate::seen::{Seen, Start};
use crate::tuning::TURN_PACKETS;

/// What all sites have in common.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The hub of all sites.
    pub(crate) home: SiteHub,
    /// Further hubs, of which each site knows one; empty without.
    pub(crate) spares: Vec<SiteHub>,
    /// The system's instant at which the clock of the swarm began.
    pub(crate) base: std::time::Instant,
    /// Addresses of this machine that paths may use.
    pub(crate) local: IpAddr,
    pub(crate) paths: u32,
    /// Time between two pings of a site; `None` sends none.
    pub(crate) interval: Option<Duration>,
    /// Bytes of a ping.
    pub(crate) bytes: u16,
    /// 1 once hostile hosts have begun.
    pub(crate) phase: usize,
    /// Whether traffic counts.
    pub(crate) counts: bool,
    /// Sites whose tunnel is down.
    pub(crate) outages: u32,
    /// No path moves after that.
    pub(crate) last_move: Instant,
    /// Nobody vanishes after that.
    pub(crate) last_absence: Instant,
}

impl Setting {
    /// The hubs that the site with this number knows, its home first.
    fn hubs(&self, number: u32) -> Vec<SiteHub> {
        let turn = self.spares.len().max(1);
        let spare = self.spares.get(number as usize % turn);
        std::iter::once(&self.home).chain(spare).cloned().collect()
    }
}

/// What one site does.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) traffic: Traffic,
    /// Average time between two moves, and until it vanishes.
    pub(crate) roam: Option<Duration>,
    pub(crate) vanish: Option<Duration>,
}

impl Habits {
    /// Of a site that only pings.
    pub(crate) const QUIET: Self = Self {
        traffic: Traffic::NONE,
        roam: None,
        vanish: None,
    };
}

/// One site.
pub(crate) struct SwarmSite {
    owner: Owner,
    identity: Identity,
    random: Random,
    /// None while the site has vanished.
    session: Option<Session<Site>>,
    started: Instant,
    uplinks: Vec<Uplink>,
    /// Which address its uplinks got last.
    addresses: u32,
    ends: Option<Ends>,
    next_ping: Option<Instant>,
    /// When a ping was answered last, since the start.
    answered: Option<Instant>,
    /// Whether its tunnel has gone down and is not up again.
    pub(crate) is_out: bool,
    number: u16,
    load: Load,
    roam: Roam,
    absence: Absence,
    pub(crate) seen: Seen,
}

impl SwarmSite {
    /// A site that begins to connect now.
    ///
    /// # Errors
    /// The TLS library refuses the key.
    pub(crate) fn start(
        now: Instant,
        owner: Owner,
        identity: Identity,
        habits: &Habits,
        mut random: Random,
        setting: &Setting,
    ) -> anyhow::Result<Self> {
        let uplinks = (0..setting.paths).map(|path| Uplink {
            name: format!("path{path}"),
            ifindex: path + 1,
            addresses: vec![setting.local, other_address(0)],
            mtu: 1_500,
            standby: false,
            metered: false,
            bottleneck: None,
            weight: None,
            protection_hourly: None,
            congestion: None,
        });
        let mut site = Self {
            owner,
            identity,
            session: None,
            started: now,
            uplinks: uplinks.collect(),
            addresses: 0,
            ends: None,
            next_ping: None,
            answered: None,
            is_out: false,
            number: 0,
            load: Load::new(habits.traffic, random.fork()),
            roam: Roam::new(habits.roam, random.fork()),
            absence: Absence::new(habits.vanish, random.fork()),
            random,
            seen: Seen::default(),
        };
        site.connect(now, setting)?;
        Ok(site)
    }

    /// Starts, for the first time or anew.
    fn connect(&mut self, now: Instant, setting: &Setting) -> anyhow::Result<()> {
        let environment = Environment {
            base: setting.base,
            segmentation: true,
            udp_payload_max: 1_472,
            session: roster::start_number()?.max(1),
            tunnels: self.random.next_u64(),
            transport: None,
            slice: Slice::WHOLE,
        };
        let settings = SiteSettings {
            common: CommonSettings {
                identity: self.identity.clone(),
                scheduler_send: Default::default(),
                scheduler_receive: Default::default(),
                classes: Arc::default(),
                hold: Default::default(),
                send: Default::default(),
                congestion: CongestionControl::default(),
                mtu: None,
            },
            hubs: setting.hubs(self.owner.0),
            udp_blocked_fallback: false,
            ipv6: false,
        };
        let mut session = Session::site(settings, &environment)?;
        session
            .handle_command(now, Command::Uplinks(self.uplinks.clone()))
            .map_err(anyhow::Error::msg)?;
        self.session = Some(session);
        self.started = now;
        self.seen.starts.push(Start::default());
        Ok(())
    }

    /// Reads what is ready.
    pub(crate) fn read(&mut self, now: Instant, ready: Ready, sockets: &mut Sockets) {
        if let Some(session) = &mut self.session {
            sockets.of(self.owner).read(now, ready, session);
        }
    }

    /// Takes a turn: timers, pings, packets; returns when the next one is due.
    ///
    /// # Errors
    /// A site that comes back cannot start.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        setting: &Setting,
        sockets: &mut Sockets,
        requests: &mut Requests,
    ) -> anyhow::Result<Option<Instant>> {
        if self.absence.vanishes(now, setting.last_absence) {
            self.vanish(now, sockets);
        }
        if self.absence.returns(now) {
            self.connect(now, setting)?;
        }
        let Some(session) = &mut self.session else {
            return Ok(self.absence.poll_timeout());
        };
        sockets.of(self.owner).end_input(now, session);
        session.end_batch(now);
        self.answers(now, setting);
        self.move_path(now, setting, sockets);
        self.ping(now, setting, requests);
        let full = self.send(now, setting, requests);
        if let Some(session) = &mut self.session {
            session.set_outages(setting.outages);
            session.end_batch(now);
            let mut sockets = sockets.of(self.owner);
            sockets.serve(now, session);
            session.pump(now, &mut sockets);
            sockets.serve(now, session);
        }
        self.events(now, setting);
        self.look(now, setting);
        let session = self.session.as_mut().and_then(Session::poll_timeout);
        // What finds the tunnel full waits for acknowledgements.
        let load = self.load.poll_timeout(now).filter(|_| !full);
        let due = [
            session,
            self.next_ping.filter(|_| self.ends.is_some()),
            load,
            self.roam.poll_timeout(),
            self.absence.poll_timeout(),
        ];
        Ok(due.into_iter().flatten().min())
    }

    /// Number of paths that work.
    pub(crate) fn paths_up(&self) -> u32 {
        let Some(session) = &self.session else {
            return 0;
        };
        let tunnel = session.role().peer().tunnel();
        let ids = (0..PATHS_MAX).filter_map(|index| u8::try_from(index).ok());
        let up = ids.filter(|&id| tunnel.path_state(PathId(id)) == Some(PathState::Up));
        u32::try_from(up.count()).unwrap_or(u32::MAX)
    }

    /// The swarm ends: a move that is still watched counts as far as it has come.
    pub(crate) fn end(&mut self, now: Instant) {
        self.seen.moved.extend(self.roam.end(now));
        self.seen.silence(self.answered, now);
    }

    /// What the hub has answered.
    fn answers(&mut self, now: Instant, setting: &Setting) {
        let Some(session) = &mut self.session else {
            return;
        };
        while let Some(inner) = session.poll_inner() {
            let Some(answer) = ping::answer(inner.front()) else {
                continue;
            };
            match answer.kind {
                Kind::Ping => {
                    let took = now.since(answer.sent).as_micros();
                    let pings = &mut self.seen.pings[setting.phase];
                    pings
                        .round_trips
                        .push(u32::try_from(took).unwrap_or(u32::MAX));
                    pings.answered_bytes += inner.bytes() as u64;
                    self.seen.silence(self.answered.replace(now), now);
                    self.roam.on_answer(now, answer.sent);
                }
                Kind::Load => {
                    if self.load.on_answer(answer.number) && setting.counts {
                        let load = &mut self.seen.load[setting.phase];
                        load.answered += 1;
                        load.answered_bytes += inner.bytes() as u64;
                    }
                }
            }
        }
    }

    fn ping(&mut self, now: Instant, setting: &Setting, requests: &mut Requests) {
        let (Some(due), Some(interval), Some(ends), Some(session)) = (
            self.next_ping,
            setting.interval,
            self.ends,
            &mut self.session,
        ) else {
            return;
        };
        if due > now {
            return;
        }
        self.number = self.number.wrapping_add(1);
        let request = requests.make(now, Kind::Ping, ends, self.number, setting.bytes);
        session.handle_inner(now, request, false);
        self.seen.pings[setting.phase].sent += 1;
        // A process that lags does not make up for it in one burst.
        self.next_ping = Some((due + interval).max(now));
    }

    /// Sends the traffic that is due; whether the tunnel takes none now.
    fn send(&mut self, now: Instant, setting: &Setting, requests: &mut Requests) -> bool {
        self.load.on_timeout(now);
        let (Some(ends), Some(session)) = (self.ends, &mut self.session) else {
            return true;
        };
        for _ in 0..TURN_PACKETS {
            if !session.takes_inner() {
                return true;
            }
            let Some(number) = self.load.take(now) else {
                return false;
            };
            let bytes = self.load.bytes();
            let request = requests.make(now, Kind::Load, ends, number, bytes);
            session.handle_inner(now, request, false);
            if setting.counts {
                self.seen.load[setting.phase].sent += 1;
            }
        }
        false
    }

    /// Moves a path if that is due.
    fn move_path(&mut self, now: Instant, setting: &Setting, sockets: &mut Sockets) {
        self.seen.moved.extend(self.roam.take_moved(now));
        let Some(session) = &mut self.session else {
            return;
        };
        let Some((how, path)) = self.roam.take(now, self.uplinks.len(), setting.last_move) else {
            return;
        };
        let uplink = &mut self.uplinks[path];
        let moved = match how {
            Move::Nat | Move::Address => {
                session.role().socket(&uplink.name).is_some_and(|socket| {
                    let mut sockets = sockets.of(self.owner);
                    sockets.rebind(socket, None, session).is_ok()
                })
            }
            Move::Uplink => {
                // An interface that is plugged in again has another index.
                uplink.ifindex += setting.paths;
                true
            }
        };
        if moved && how == Move::Address {
            self.addresses = self.addresses.wrapping_add(1);
            uplink.addresses = vec![setting.local, other_address(self.addresses)];
        }
        let told = how == Move::Nat
            || session
                .handle_command(now, Command::Uplinks(self.uplinks.clone()))
                .is_ok();
        if moved && told {
            self.roam.watch(now, how);
        } else {
            self.seen.not_moved += 1;
        }
    }

    /// Is gone without a goodbye.
    fn vanish(&mut self, now: Instant, sockets: &mut Sockets) {
        self.seen.moved.extend(self.roam.end(now));
        (self.session, self.is_out) = (None, false);
        sockets.of(self.owner).close_all();
        (self.ends, self.next_ping, self.answered) = (None, None, None);
        self.load.stop();
        self.roam.stop();
        self.seen.vanished += 1;
    }

    fn events(&mut self, now: Instant, setting: &Setting) {
        let Some(session) = &mut self.session else {
            return;
        };
        while let Some(event) = session.poll_event() {
            match event {
                Event::Assigned {
                    addresses,
                    hub_addresses,
                    ..
                } => {
                    let ours = addresses.iter().find_map(|net| v4(net.addr()));
                    let hub = hub_addresses.iter().copied().find_map(v4);
                    self.ends = ours.zip(hub).map(|(from, to)| Ends { from, to });
                }
                Event::TunnelUp { .. } => {
                    self.is_out = false;
                    if let Some(start) = self.seen.starts.last_mut()
                        && start.joined.is_none()
                    {
                        start.joined = Some(now.since(self.started));
                        self.load.start(now);
                    }
                    // Spread by the time it took to connect.
                    self.next_ping = setting.interval.map(|_| now);
                }
                Event::TunnelDown { .. } => {
                    self.is_out = true;
                    self.seen.downs += 1;
                    self.roam.on_down();
                }
                Event::Moved { .. } => self.seen.hub_moves += 1,
                Event::MtuChanged(_)
                | Event::Served { .. }
                | Event::Withdrawn { .. }
                | Event::Enrol { .. }
                | Event::Key(_) => {}
            }
        }
    }

    /// Notes when all paths are up for the first time.
    fn look(&mut self, now: Instant, setting: &Setting) {
        let waits = |start: &Start| start.whole.is_none();
        if self.seen.starts.last().is_some_and(waits) && self.paths_up() == setting.paths {
            if let Some(start) = self.seen.starts.last_mut() {
                start.whole = Some(now.since(self.started));
            }
            self.roam.start(now);
            self.absence.start(now);
        }
    }
}

/// An address that an uplink had and will not have again: of those for documents (RFC 5737).
fn other_address(number: u32) -> IpAddr {
    let [.., last] = number.to_be_bytes();
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// The local address from which the hub is reached.
///
/// # Errors
/// There is no route to the hub.
pub(crate) fn local_address(hub: SocketAddr) -> anyhow::Result<IpAddr> {
    let any = if hub.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(hub)?;
    Ok(socket.local_addr()?.ip())
}
