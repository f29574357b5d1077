//! One site of the swarm: a real session, with pings in the place of a TUN interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ropewalk_core::tunnel::PathState;
use ropewalk_driver::{Owner, Ready, Sockets};
use ropewalk_session::{
    Command, CommonSettings, Environment, Event, HubAddresses, Session, Site, SiteSettings, Uplink,
};
use ropewalk_transport::{CongestionControl, Identity, PublicKey};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

use crate::ping;

/// What all sites have in common.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) hub: Arc<HubAddresses>,
    pub(crate) hub_key: PublicKey,
    /// Addresses of this machine that paths may use.
    pub(crate) local: IpAddr,
    pub(crate) paths: u32,
    /// Time between two pings of a site; `None` sends none.
    pub(crate) interval: Option<Duration>,
    /// Bytes of a ping.
    pub(crate) bytes: u16,
    /// 1 once hostile hosts have begun.
    pub(crate) phase: usize,
}

/// What a site has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// How long after its start its first path was up, and all of them.
    pub(crate) joined: Option<Duration>,
    pub(crate) whole: Option<Duration>,
    /// Times its tunnel went down.
    pub(crate) downs: u64,
    /// Pings before hostile hosts begin, and with them.
    pub(crate) phases: [Pings; 2],
}

/// What a site has seen of its pings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pings {
    pub(crate) sent: u64,
    /// Bytes of answers.
    pub(crate) answered_bytes: u64,
    /// How long answers took, microseconds.
    pub(crate) round_trips: Vec<u32>,
}

/// One site.
pub(crate) struct SwarmSite {
    owner: Owner,
    session: Session<Site>,
    started: Instant,
    address: Option<(Ipv4Addr, Ipv4Addr)>,
    next_ping: Option<Instant>,
    number: u16,
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
        setting: &Setting,
        environment: &Environment,
    ) -> anyhow::Result<Self> {
        let settings = SiteSettings {
            common: CommonSettings {
                identity,
                scheduler_send: Default::default(),
                scheduler_receive: Default::default(),
                classes: Arc::default(),
                hold: Default::default(),
                send: Default::default(),
                congestion: CongestionControl::default(),
                mtu: None,
            },
            hub_key: setting.hub_key,
            hub_addresses: Arc::clone(&setting.hub),
            tcp_port: 0,
            udp_blocked_fallback: false,
            ipv6: false,
        };
        let mut session = Session::site(settings, environment)?;
        let uplinks = (0..setting.paths).map(|path| Uplink {
            name: format!("path{path}"),
            ifindex: path + 1,
            addresses: vec![setting.local],
            mtu: 1_500,
            standby: false,
            metered: false,
            bottleneck: None,
            weight: None,
            protection_hourly: None,
            congestion: None,
        });
        let command = Command::Uplinks(uplinks.collect());
        session
            .handle_command(now, command)
            .map_err(anyhow::Error::msg)?;
        Ok(Self {
            owner,
            session,
            started: now,
            address: None,
            next_ping: None,
            number: 0,
            seen: Seen::default(),
        })
    }

    /// Reads what is ready.
    pub(crate) fn read(&mut self, now: Instant, ready: Ready, sockets: &mut Sockets) {
        sockets.of(self.owner).read(now, ready, &mut self.session);
    }

    /// Takes a turn: timers, pings, packets; returns when the next one is due.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        setting: &Setting,
        sockets: &mut Sockets,
    ) -> Option<Instant> {
        self.session.handle_timeout(now);
        self.ping(now, setting);
        self.session.end_batch(now);
        while let Some(inner) = self.session.poll_inner() {
            if let Some(took) = ping::answered(now, inner.front()) {
                let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
                let pings = &mut self.seen.phases[setting.phase];
                pings.round_trips.push(micros);
                pings.answered_bytes += inner.front().len() as u64;
            }
        }
        let mut sockets = sockets.of(self.owner);
        sockets.serve(now, &mut self.session);
        self.session.pump(now, &mut sockets);
        sockets.serve(now, &mut self.session);
        self.events(now, setting);
        if self.seen.whole.is_none() && self.paths_up() == setting.paths {
            self.seen.whole = Some(now.since(self.started));
        }
        let session = self.session.poll_timeout();
        session.into_iter().chain(self.next_ping).min()
    }

    /// Number of paths that work.
    pub(crate) fn paths_up(&self) -> u32 {
        let tunnel = self.session.role().peer().tunnel();
        let ids = (0..PATHS_MAX).filter_map(|index| u8::try_from(index).ok());
        let up = ids.filter(|&id| tunnel.path_state(PathId(id)) == Some(PathState::Up));
        u32::try_from(up.count()).unwrap_or(u32::MAX)
    }

    fn ping(&mut self, now: Instant, setting: &Setting) {
        let (Some(due), Some(interval), Some((from, to))) =
            (self.next_ping, setting.interval, self.address)
        else {
            return;
        };
        if due > now {
            return;
        }
        self.number = self.number.wrapping_add(1);
        let request = ping::request(now, from, to, self.number, setting.bytes);
        self.session.handle_inner(now, request, false);
        self.seen.phases[setting.phase].sent += 1;
        // A process that lags does not make up for it in one burst.
        self.next_ping = Some((due + interval).max(now));
    }

    fn events(&mut self, now: Instant, setting: &Setting) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Assigned {
                    addresses,
                    hub_addresses,
                } => {
                    let ours = addresses.iter().find_map(|net| v4(net.addr()));
                    let hub = hub_addresses.iter().copied().find_map(v4);
                    self.address = ours.zip(hub);
                }
                Event::TunnelUp { .. } => {
                    self.seen.joined.get_or_insert(now.since(self.started));
                    // Spread by the time it took to connect.
                    self.next_ping = setting.interval.map(|_| now);
                }
                Event::TunnelDown { .. } => {
                    self.seen.downs += 1;
                }
                Event::MtuChanged(_) => {}
            }
        }
    }
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
