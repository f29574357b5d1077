//! One end of the tunnel: the core, its sub-tunnels, and the pump between them, in the order in
//! which the gateway's event loop works.

use super::subtunnel::SubTunnel;
use crate::engine::NEVER;
use bytes::BytesMut;
use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::{Classes, Protection};
use ropewalk_core::schedule::{Policy, SchedulerKind};
use ropewalk_core::tunnel::{Outgoing, Tunnel, TunnelConfig};
use ropewalk_netem::Side;
use ropewalk_types::{Duration, Ecn, Instant, PathId};

/// As the gateway: packets bound per round, rounds per turn.
const ROUND_PACKETS: usize = 64;
const ROUNDS: usize = 4;
/// A path idle for this long sends a probe, from the site's side.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Where the uplinks are.
    Site,
    /// Where the server is.
    Hub,
}

impl Role {
    /// The direction this end sends in.
    #[must_use]
    pub const fn direction(self) -> Side {
        match self {
            Self::Site => Side::Up,
            Self::Hub => Side::Down,
        }
    }
}

/// One gateway.
#[derive(Debug)]
pub struct Gateway<S> {
    /// Which end it is.
    pub role: Role,
    /// The core.
    pub tunnel: Tunnel,
    /// Something happened since its deadline was last set.
    pub touched: bool,
    /// Something happened that may let packets go: an inner packet, a timer, news of a path.
    pub ready: bool,
    paths: Vec<S>,
    out: Vec<Outgoing>,
}

impl<S: SubTunnel> Gateway<S> {
    /// A gateway whose paths are up.
    #[must_use]
    pub fn new(
        role: Role,
        (scheduler, protection): (SchedulerKind, Protection),
        paths: Vec<S>,
        seed: u64,
        policy: Option<Box<dyn Policy>>,
    ) -> Self {
        let config = TunnelConfig {
            scheduler,
            probe_interval: (role == Role::Site).then_some(PROBE_INTERVAL),
            classes: Classes::all(protection).into(),
            hold: Default::default(),
        };
        let mut tunnel = match policy {
            Some(policy) => Tunnel::with_policy(&config, seed, policy),
            None => Tunnel::new(config, seed),
        };
        for index in 0..paths.len() {
            tunnel.add_path(Instant::ZERO, id(index), PathConfig::default());
        }
        Self {
            role,
            tunnel,
            touched: true,
            ready: true,
            paths,
            out: Vec::new(),
        }
    }

    /// A packet of the peer arrived on a path.
    pub fn on_packet(&mut self, now: Instant, path: usize, packet: S::Packet) {
        self.touched = true;
        let tunnel = &mut self.tunnel;
        self.ready |= self.paths[path].on_packet(now, packet, |datagram| {
            // Simulated gateways exchange no control messages.
            let _none = tunnel.handle_datagram(now, id(path), Ecn::NotEct, datagram);
        });
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now: Instant) {
        (self.touched, self.ready) = (true, true);
        for path in &mut self.paths {
            path.on_timer(now);
        }
        if self.tunnel.poll_timeout().is_some_and(|at| at <= now) {
            self.tunnel.handle_timeout(now);
        }
    }

    /// An inner packet is at the ingress.
    pub fn on_inner(&mut self, now: Instant, data: BytesMut) {
        self.tunnel.handle_inner(now, data, false);
        (self.touched, self.ready) = (true, true);
    }

    /// Moves packets from the ingress to the paths while they take any.
    pub fn pump(&mut self, now: Instant, send: &mut impl FnMut(usize, S::Packet)) {
        // After rounds that all moved packets there may be more to move at the next event.
        self.ready = true;
        for _ in 0..ROUNDS {
            self.refresh(now);
            while let Some(path) = self.tunnel.poll_declared_lost() {
                let index = path.index();
                self.paths[index].declare_lost();
                // What waited behind the window leaves first and makes room for more.
                while let Some(packet) = self.paths[index].poll_transmit(now) {
                    send(index, packet);
                }
            }
            let bound = self.tunnel.poll_transmit(now, &mut self.out, ROUND_PACKETS);
            for outgoing in self.out.drain(..) {
                let path = &mut self.paths[outgoing.path.index()];
                if outgoing.urgent {
                    path.push_urgent(outgoing.datagram);
                } else {
                    path.push(outgoing.datagram);
                }
            }
            for (index, path) in self.paths.iter_mut().enumerate() {
                while let Some(packet) = path.poll_transmit(now) {
                    send(index, packet);
                }
            }
            if bound == 0 {
                self.ready = false;
                break;
            }
        }
        self.refresh(now);
    }

    /// Reports the paths of which there is news.
    fn refresh(&mut self, now: Instant) {
        for (index, path) in self.paths.iter_mut().enumerate() {
            if let Some(snapshot) = path.take_news() {
                self.tunnel.update_path(now, id(index), snapshot);
            }
        }
    }

    /// When [`Self::on_timer`] is wanted.
    pub fn due_ns(&mut self) -> u64 {
        let paths = self.paths.iter_mut().map(SubTunnel::due_ns);
        let tunnel = self.tunnel.poll_timeout().map_or(NEVER, Instant::as_nanos);
        paths.min().unwrap_or(NEVER).min(tunnel)
    }
}

fn id(index: usize) -> PathId {
    PathId(u8::try_from(index).unwrap_or(0))
}
