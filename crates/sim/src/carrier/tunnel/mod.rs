//! A pair of gateways with the real tunnel core, and a sub-tunnel per path.

mod gateway;
mod subtunnel;

use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::packet::Packet;
use crate::run::SimError;
use bytes::BytesMut;
use gateway::{Gateway, Role};
use ropewalk_core::protect::Protection;
use ropewalk_core::queue::QueueStats;
use ropewalk_core::schedule::{Policy, SchedulerKind};
use ropewalk_core::tunnel::{Tunnel, TunnelStats};
use ropewalk_netem::{Counters, Link, LinkConfig, Refused, Side};
use ropewalk_plan::{TunnelPlan, TunnelReport};
use ropewalk_transport::CongestionControl;
use ropewalk_types::{Instant, Random};
use ropewalk_wire::HEADROOM;
use std::fmt::Display;
use std::str::FromStr;
use subtunnel::{LinkItem, Settings};

pub use subtunnel::SubTunnel;
pub use subtunnel::model::ModelledTunnel;

/// Inner packets are cut from slabs of this size, so that memory is neither asked for nor given
/// back per packet.
const SLAB_BYTES: usize = 64 * 1024;

/// What a plan says of a tunnel, checked.
#[derive(Clone, Copy, Debug)]
pub struct TunnelSettings {
    /// Scheduler of both ends.
    pub scheduler: SchedulerKind,
    /// Congestion control of the sub-tunnels.
    pub congestion: CongestionControl,
    /// What the site and the hub protect, and how.
    pub protection: [Protection; 2],
}

impl TunnelSettings {
    /// Checks names; `section` is where in the plan they are.
    ///
    /// # Errors
    /// With the key, on unknown names.
    pub fn parse(plan: &TunnelPlan, section: &str) -> Result<Self, SimError> {
        let protect_up: Option<Protection> = named(section, "protect_up", &plan.protect_up)?;
        let protect_down: Option<Protection> = named(section, "protect_down", &plan.protect_down)?;
        let scheduler: Option<SchedulerKind> = named(section, "scheduler", &plan.scheduler)?;
        let congestion: Option<CongestionControl> = named(section, "congestion", &plan.congestion)?;
        Ok(Self {
            scheduler: scheduler.unwrap_or_default(),
            congestion: congestion.unwrap_or_default(),
            protection: [
                protect_up.unwrap_or_default(),
                protect_down.unwrap_or_default(),
            ],
        })
    }
}

/// The setting of this name, if the plan has one.
fn named<T: FromStr<Err: Display>>(
    section: &str,
    key: &str,
    name: &Option<String>,
) -> Result<Option<T>, SimError> {
    let parse = |name: &String| {
        name.parse()
            .map_err(|error| SimError::setting(&format!("{section}.{key}"), format!("{error}")))
    };
    name.as_ref().map(parse).transpose()
}

/// Two gateways and the links between them.
#[derive(Debug)]
pub struct TunnelCarrier<S: SubTunnel> {
    /// Number of the path in the plan, and its link.
    links: Vec<(usize, Link<S::Packet>)>,
    /// The site's and the hub's.
    gateways: [Gateway<S>; 2],
    /// What their tunnels had counted when the warm-up was over.
    warm: [TunnelStats; 2],
    /// What the next inner packets are cut from.
    slab: BytesMut,
    packets: Vec<S::Packet>,
    sent: u64,
}

impl<S: SubTunnel> TunnelCarrier<S> {
    /// A tunnel over these paths. `policy` schedules the gateway that sends towards `ingress`.
    ///
    /// # Errors
    /// With the key, when sub-tunnels cannot be what the settings say.
    pub fn new(
        settings: &TunnelSettings,
        links: Vec<(usize, LinkConfig)>,
        seed: u64,
        ingress: Side,
        policy: Option<Box<dyn Policy>>,
    ) -> Result<Self, SimError> {
        let mut random = Random::new(seed ^ GATEWAY_SEED);
        let mut ends = [Vec::new(), Vec::new()];
        for (path, (_, link)) in (0..).zip(&links) {
            let settings = Settings {
                congestion: settings.congestion,
                delays: [link.up.delay, link.down.delay],
            };
            let [site, hub] = S::pair(&settings, seed ^ PATH_SEED ^ path)?;
            ends[0].push(site);
            ends[1].push(hub);
        }
        let mut policy = policy;
        let mut gateway = |role: Role, paths| {
            let policy = if role.direction() == ingress {
                policy.take()
            } else {
                None
            };
            let protection = settings.protection[usize::from(role == Role::Hub)];
            let config = (settings.scheduler, protection);
            Gateway::new(role, config, paths, random.next_u64(), policy)
        };
        let [site, hub] = ends;
        let gateways = [gateway(Role::Site, site), gateway(Role::Hub, hub)];
        let links = links.into_iter();
        Ok(Self {
            links: links.map(|(path, link)| (path, Link::new(link))).collect(),
            gateways,
            warm: Default::default(),
            slab: BytesMut::new(),
            packets: Vec::new(),
            sent: 0,
        })
    }

    fn gateway(direction: Side) -> usize {
        usize::from(direction == Side::Down)
    }

    /// Takes out what a gateway's egress releases.
    fn release(&mut self, direction: Side, arrivals: &mut Vec<Arrival>) {
        let egress = &mut self.gateways[1 - Self::gateway(direction)];
        while let Some(inner) = egress.tunnel.poll_inner() {
            if let Some(packet) = Packet::read(&inner.data) {
                arrivals.push((direction, packet));
            }
        }
    }

    /// Moves what the gateway's ingress holds onto the links.
    fn pump(&mut self, core: &mut Core, index: usize) {
        let now = core.now();
        let gateway = &mut self.gateways[index];
        let direction = gateway.role.direction();
        let links = &mut self.links;
        let sent = &mut self.sent;
        gateway.pump(now, &mut |path, packet: S::Packet| {
            *sent += 1;
            let (number, link) = &mut links[path];
            let bytes = packet.ip_bytes() as usize;
            if let Err(Refused { reason, item }) = link.enqueue(now, direction, bytes, packet) {
                core.trace
                    .dropped(core.now_ns, *number, reason, item.digest());
            }
        });
    }
}

impl<S: SubTunnel> Carrier for TunnelCarrier<S> {
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
            let mut packets = std::mem::take(&mut self.packets);
            let (_, link) = &mut self.links[component];
            while let Some(packet) = link.poll(now, direction) {
                core.trace.delivered(core.now_ns, number, packet.digest());
                packets.push(packet);
            }
            while let Some(packet) = link.poll_lost(direction) {
                core.trace.lost(core.now_ns, number, packet.digest());
            }
            if !packets.is_empty() {
                let egress = &mut self.gateways[1 - Self::gateway(direction)];
                for packet in packets.drain(..) {
                    egress.on_packet(now, component, packet);
                }
                egress.tunnel.end_batch(now);
                self.release(direction, arrivals);
            }
            self.packets = packets;
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
            core.look_at(self.links.len() + index, due_ns.max(core.now_ns + 1));
        }
        for (index, (_, link)) in self.links.iter().enumerate() {
            let due_ns = link.poll_timeout().map_or(NEVER, Instant::as_nanos);
            core.look_at(index, due_ns.max(core.now_ns));
        }
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        let link = self.links.iter_mut().find(|(number, _)| *number == path);
        link.map_or_else(Counters::default, |(_, link)| {
            link.advance(now);
            link.counters(direction)
        })
    }

    fn mark_warm(&mut self) {
        self.warm = [0, 1].map(|index| self.gateways[index].tunnel.stats());
    }

    fn tunnel_report(&self, direction: Side) -> Option<TunnelReport> {
        let tunnels = [0, 1].map(|index| &self.gateways[index].tunnel);
        Some(report_on(direction, tunnels, &self.warm))
    }

    fn packets(&self) -> u64 {
        self.sent
    }
}

/// The report on a direction of a tunnel whose ends are these, of site and hub; `warm` is what
/// they had counted when the warm-up was over. An end that was started again since counts anew.
pub fn report_on(direction: Side, tunnels: [&Tunnel; 2], warm: &[TunnelStats; 2]) -> TunnelReport {
    let index = usize::from(direction == Side::Down);
    let (ingress, egress) = (tunnels[index], tunnels[1 - index]);
    let (sent, received) = (ingress.stats(), egress.stats());
    let [sent_before, received_before] = [index, 1 - index].map(|index| warm[index]);
    let (queue, queue_before) = (sent.queue, sent_before.queue);
    let (reorder, reorder_before) = (received.reorder, received_before.reorder);
    let drops = |q: &QueueStats| q.dropped_codel + q.dropped_full + q.marked;
    TunnelReport {
        delivered: since(reorder.delivered, reorder_before.delivered),
        reordered: since(reorder.reordered, reorder_before.reordered),
        held: since(reorder.held, reorder_before.held),
        hold_timeouts: since(reorder.hold_timeouts, reorder_before.hold_timeouts),
        late: since(reorder.late, reorder_before.late),
        duplicates: since(reorder.duplicates, reorder_before.duplicates),
        ingress_drops: since(drops(&queue), drops(&queue_before)),
        recovered: since(received.recovered, received_before.recovered),
        repairs: since(sent.repairs_sent, sent_before.repairs_sent),
        repair_symbols: since(sent.coded_sent, sent_before.coded_sent),
        overhead: ropewalk_plan::overhead(
            since(sent.protection_bytes, sent_before.protection_bytes),
            since(sent.data_bytes, sent_before.data_bytes),
        ),
        reason: ingress.scheduler_reason(),
    }
}

/// What a counter has grown by; of one that began anew, all.
const fn since(after: u64, before: u64) -> u64 {
    match after.checked_sub(before) {
        Some(grown) => grown,
        None => after,
    }
}

/// Keeps the gateways' randomness apart from the hosts' and the links'.
const GATEWAY_SEED: u64 = 0x6761_7465_7700;
/// The same for the keys and identifiers of sub-tunnels.
const PATH_SEED: u64 = 0x7061_7468_0000;
