//! A pair of gateways with the real tunnel core, and a modelled sub-tunnel per path.

mod gateway;
mod pacer;
mod subtunnel;

use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::packet::Packet;
use crate::run::SimError;
use bytes::BytesMut;
use gateway::{Gateway, Role};
use ropewalk_core::schedule::{Policy, SchedulerKind};
use ropewalk_netem::{Counters, Link, LinkConfig, Refused, Side};
use ropewalk_plan::{TunnelPlan, TunnelReport};
use ropewalk_transport::CongestionControl;
use ropewalk_types::{Instant, Random};
use ropewalk_wire::HEADROOM;
use subtunnel::Frame;

/// Inner packets are cut from slabs of this size, so that memory is neither asked for nor given
/// back per packet.
const SLAB_BYTES: usize = 64 * 1024;

/// What a plan says of a tunnel, checked.
#[derive(Clone, Copy, Debug)]
pub struct TunnelSettings {
    scheduler: SchedulerKind,
}

impl TunnelSettings {
    /// Checks names.
    ///
    /// # Errors
    /// With the key, on unknown names and on what the model does not have.
    pub fn parse(plan: &TunnelPlan) -> Result<Self, SimError> {
        let scheduler = match &plan.scheduler {
            None => SchedulerKind::default(),
            Some(name) => name
                .parse()
                .map_err(|error| SimError::setting("carrier.scheduler", format!("{error}")))?,
        };
        let congestion = match &plan.congestion {
            None => CongestionControl::default(),
            Some(name) => name
                .parse()
                .map_err(|error| SimError::setting("carrier.congestion", format!("{error}")))?,
        };
        if congestion != CongestionControl::Bdp {
            return Err(SimError::setting(
                "carrier.congestion",
                format!("`{congestion}` is not modelled in sub-tunnels; use `bdp`"),
            ));
        }
        Ok(Self { scheduler })
    }
}

/// Two gateways and the links between them.
#[derive(Debug)]
pub struct TunnelCarrier {
    /// Number of the path in the plan, and its link.
    links: Vec<(usize, Link<Frame>)>,
    /// The site's and the hub's.
    gateways: [Gateway; 2],
    /// What the next inner packets are cut from.
    slab: BytesMut,
    frames: Vec<Frame>,
    sent: u64,
}

impl TunnelCarrier {
    /// A tunnel over these paths. `policy` schedules the gateway that sends towards `entry`.
    #[must_use]
    pub fn new(
        settings: &TunnelSettings,
        links: Vec<(usize, LinkConfig)>,
        seed: u64,
        entry: Side,
        policy: Option<Box<dyn Policy>>,
    ) -> Self {
        let mut random = Random::new(seed ^ GATEWAY_SEED);
        let mut policy = policy;
        let rtts: Vec<_> = links
            .iter()
            .map(|(_, link)| link.up.delay + link.down.delay)
            .collect();
        let gateways = [Role::Site, Role::Hub].map(|role| {
            let policy = if role.direction() == entry {
                policy.take()
            } else {
                None
            };
            Gateway::new(role, settings.scheduler, &rtts, random.next_u64(), policy)
        });
        let links = links.into_iter();
        Self {
            links: links.map(|(path, link)| (path, Link::new(link))).collect(),
            gateways,
            slab: BytesMut::new(),
            frames: Vec::new(),
            sent: 0,
        }
    }

    fn gateway(direction: Side) -> usize {
        usize::from(direction == Side::Down)
    }

    /// Takes out what a gateway's exit releases.
    fn release(&mut self, direction: Side, arrivals: &mut Vec<Arrival>) {
        let exit = &mut self.gateways[1 - Self::gateway(direction)];
        while let Some(inner) = exit.tunnel.poll_inner() {
            if let Some(packet) = Packet::read(&inner.data) {
                arrivals.push((direction, packet));
            }
        }
    }

    /// Moves what the gateway's entry holds onto the links.
    fn pump(&mut self, core: &mut Core, index: usize) {
        let now = core.now();
        let gateway = &mut self.gateways[index];
        let direction = gateway.role.direction();
        let links = &mut self.links;
        let sent = &mut self.sent;
        gateway.pump(now, &mut |path, frame: Frame| {
            *sent += 1;
            let (number, link) = &mut links[path];
            let bytes = frame.ip_bytes() as usize;
            if let Err(Refused { reason, item }) = link.enqueue(now, direction, bytes, frame) {
                core.trace
                    .dropped(core.now_ns, *number, reason, item.digest());
            }
        });
    }
}

impl Carrier for TunnelCarrier {
    fn components(&self) -> usize {
        self.links.len() + self.gateways.len()
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let length = HEADROOM + packet.bytes as usize;
        if self.slab.capacity() < length {
            self.slab = BytesMut::with_capacity(SLAB_BYTES.max(length));
        }
        packet.write(&mut self.slab);
        let data = self.slab.split();
        let gateway = &mut self.gateways[Self::gateway(direction)];
        gateway.on_inner(core.now(), data);
    }

    fn wake(&mut self, core: &mut Core, component: usize, arrivals: &mut Vec<Arrival>) {
        let now = core.now();
        let Some(&(number, _)) = self.links.get(component) else {
            let index = component - self.links.len();
            self.gateways[index].on_timer(now);
            let direction = self.gateways[1 - index].role.direction();
            self.release(direction, arrivals);
            return;
        };
        for direction in Side::ALL {
            let mut frames = std::mem::take(&mut self.frames);
            let (_, link) = &mut self.links[component];
            while let Some(frame) = link.poll(now, direction) {
                core.trace.delivered(core.now_ns, number, frame.digest());
                frames.push(frame);
            }
            while let Some(frame) = link.poll_lost(direction) {
                core.trace.lost(core.now_ns, number, frame.digest());
            }
            if !frames.is_empty() {
                let exit = &mut self.gateways[1 - Self::gateway(direction)];
                for frame in frames.drain(..) {
                    exit.on_frame(now, component, frame);
                }
                exit.tunnel.end_batch(now);
                self.release(direction, arrivals);
            }
            self.frames = frames;
        }
    }

    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>) {
        if !arrivals.is_empty() {
            return;
        }
        for index in 0..self.gateways.len() {
            if !std::mem::take(&mut self.gateways[index].touched) {
                continue;
            }
            if self.gateways[index].ready {
                self.pump(core, index);
            }
            let due_ns = self.gateways[index].due_ns();
            core.queue
                .set(self.links.len() + index, due_ns.max(core.now_ns + 1));
        }
        for (index, (_, link)) in self.links.iter().enumerate() {
            let due_ns = link.poll_timeout().map_or(NEVER, Instant::as_nanos);
            core.queue.set(index, due_ns.max(core.now_ns));
        }
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        let link = self.links.iter_mut().find(|(number, _)| *number == path);
        link.map_or_else(Counters::default, |(_, link)| {
            link.advance(now);
            link.counters(direction)
        })
    }

    fn tunnel_report(&self, direction: Side) -> Option<TunnelReport> {
        let index = Self::gateway(direction);
        let (entry, exit) = (
            &self.gateways[index].tunnel,
            &self.gateways[1 - index].tunnel,
        );
        let (queue, reorder) = (entry.stats().queue, exit.stats().reorder);
        Some(TunnelReport {
            delivered: reorder.delivered,
            reordered: reorder.reordered,
            held: reorder.held,
            hold_timeouts: reorder.hold_timeouts,
            late: reorder.late,
            duplicates: reorder.duplicates,
            entry_drops: queue.dropped_codel + queue.dropped_full + queue.marked,
            reason: entry.scheduler_reason(),
        })
    }

    fn packets(&self) -> u64 {
        self.sent
    }
}

/// Keeps the gateways' randomness apart from the hosts' and the links'.
const GATEWAY_SEED: u64 = 0x6761_7465_7700;
