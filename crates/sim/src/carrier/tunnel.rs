//! A tunnel between the session of a site and that of a hub, as gateways run them.
//!
//! The world of both begins before the run: the site connects over links that only delay. Then
//! the plan's links take their place, so that the world's clock is ahead of the run's by
//! `prelude`. Keys are random, so the bytes of packets differ from run to run. Their number, sizes
//! and times do not, and only those count for the trace hash.

use super::joint::{Links, Neighbour};
use super::observer::{Gateway, Told};
use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::events::Item;
use crate::headers::{Headers, site_address};
use crate::outputs::Outputs;
use crate::packet::Packet;
use crate::run::SimError;
use bytes::BytesMut;
use ropewalk_core::protect::Protection;
use ropewalk_core::queue::QueueStats;
use ropewalk_core::schedule::{Policy, SchedulerKind};
use ropewalk_core::tunnel::{Order, SendOptions, Tunnel, TunnelStats};
use ropewalk_netem::{Counters, DirectionConfig, LinkConfig, Side, units};
use ropewalk_plan::{TunnelPlan, TunnelReport};
use ropewalk_testkit::{End, Spec, World};
use ropewalk_transport::CongestionControl;
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::HEADROOM;
use std::fmt::Display;
use std::str::FromStr;

/// Round trips and time that handshakes and path MTU discovery get.
const PRELUDE_ROUND_TRIPS: u32 = 16;
const PRELUDE_MIN: Duration = Duration::from_secs(1);
/// Packets of the prelude are given this long to arrive.
const PRELUDE_DRAIN: Duration = Duration::from_secs(2);
/// Sessions give up a handshake that takes this long. Over longer round trips the prelude would be
/// simulated for hours, and nothing connects.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(8);
/// The site whose tunnel is the carrier; its neighbours come after it.
const SITE: usize = 0;
/// Inner packets are cut from slabs of this size, bytes.
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
    /// What published systems do otherwise when sending.
    pub send: SendOptions,
    /// All paths count as paths through one bottleneck.
    pub coupled: bool,
    /// There is a second hub, which waits.
    pub spare: bool,
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
        let congestion = congestion.unwrap_or_default();
        let order: Option<Order> = named(section, "order", &plan.order)?;
        let send = SendOptions {
            order: order.unwrap_or_default(),
            buffer_packets: plan.send_buffer,
            compress_headers: plan.compresses(),
            ..SendOptions::default()
        };
        Ok(Self {
            send,
            coupled: plan.coupled,
            spare: false,
            scheduler: scheduler.unwrap_or_default(),
            congestion,
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

/// The delays of a link, without anything else.
fn only_delay(link: &LinkConfig) -> LinkConfig {
    let direction = |delay| DirectionConfig {
        delay,
        ..DirectionConfig::default()
    };
    LinkConfig {
        seed: 0,
        up: direction(link.up.delay),
        down: direction(link.down.delay),
        changes: Vec::new(),
    }
}

/// The path or link, of these many paths, whose round trip is the longest keeps the tunnel from coming up.
fn too_far((round_trip, place): (Duration, usize), paths: usize) -> SimError {
    let problem = format!(
        "the tunnel does not come up before the run, with a round trip of {} here; use a shorter \
         delay",
        units::format_duration(round_trip)
    );
    let key = match place.checked_sub(paths) {
        None => format!("path[{place}].delay"),
        Some(link) => format!("link[{link}].delay"),
    };
    SimError::setting(&key, problem)
}

/// A site, a hub and the links between them.
#[derive(Debug)]
pub struct TunnelCarrier {
    world: World,
    prelude: Duration,
    /// Numbers of the paths in the plan, by uplink.
    paths: Vec<usize>,
    warm: [TunnelStats; 2],
    headers: Headers,
    slab: BytesMut,
    sent_before: u64,
    /// What the gateways do, if the log wants it.
    told: Option<Told>,
    /// For each flow the route of a host beside the tunnel, if it has one.
    beside: Vec<Option<usize>>,
    /// Sites of their own beside the tunnel.
    neighbours: Vec<Neighbour>,
    /// Whether the links are those of [`Self::over_joint`].
    joint: bool,
}

impl TunnelCarrier {
    /// A tunnel over these paths and those of its neighbours, connected. `policy` schedules the
    /// gateway that sends towards `ingress`. Neighbours need [`Self::over_joint`]. The plan has
    /// `plan_paths` paths; the numbers beyond are shared links.
    ///
    /// # Errors
    /// With the path, when not every path connects.
    pub fn new(
        settings: &TunnelSettings,
        links: Vec<(usize, LinkConfig)>,
        neighbours: Vec<Neighbour>,
        (seed, plan_paths): (u64, usize),
        (ingress, policy): (Side, Option<Box<dyn Policy>>),
    ) -> Result<Self, SimError> {
        let beside = |near: &Neighbour| ropewalk_testkit::Neighbour {
            addresses: near.flows.clone().map(|f| site_address(f).into()).collect(),
            uplinks: 1,
        };
        let mut world = World::new(&Spec {
            seed,
            sites: 1,
            uplinks: links.len(),
            link: DirectionConfig::default(),
            scheduler: settings.scheduler,
            congestion: settings.congestion,
            protection: Some(settings.protection),
            send: settings.send,
            coupled: settings.coupled,
            hosts: true,
            hub_memory: u64::MAX,
            hold: ropewalk_core::hold::Limits::default(),
            spare: settings.spare,
            neighbours: neighbours.iter().map(beside).collect(),
            ..Spec::default()
        });
        world.replace_links(SITE, links.iter().map(|(_, link)| only_delay(link)));
        for (site, neighbour) in (SITE + 1..).zip(&neighbours) {
            world.replace_links(site, [only_delay(&neighbour.link)]);
        }
        let own = links.iter().map(|(path, link)| (*path, link));
        let all = own.chain(neighbours.iter().map(|near| (near.entry, &near.link)));
        let round_trips = all.map(|(path, link)| (link.up.delay + link.down.delay, path));
        let longest = round_trips.max().unwrap_or_default();
        if longest.0 > ROUND_TRIP_MAX {
            return Err(too_far(longest, plan_paths));
        }
        world.run(PRELUDE_MIN + longest.0 * PRELUDE_ROUND_TRIPS);
        let latest = world.now() + PRELUDE_DRAIN;
        let sites = SITE..=neighbours.len();
        let idle = |world: &World| sites.clone().all(|site| world.links_idle(site));
        while !idle(&world) && world.now() < latest {
            world.run(Duration::from_millis(1));
        }
        let up = sites.clone().flat_map(|site| world.transports_up(site));
        if up.filter(|up| up != "tls").count() < links.len() + neighbours.len() {
            return Err(too_far(longest, plan_paths));
        }
        if let Some(policy) = policy {
            world.set_policy(SITE, ingress, policy);
        }
        // From here on this carrier gives turns.
        world.keep_packets();
        let (paths, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        world.replace_links(SITE, links);
        let _before = world.take_fates().count();
        Ok(Self {
            prelude: world.now().since(Instant::ZERO),
            sent_before: world.sent(),
            world,
            paths,
            warm: Default::default(),
            headers: Headers::default(),
            slab: BytesMut::new(),
            told: None,
            beside: Vec::new(),
            neighbours,
            joint: false,
        })
    }

    /// Puts links that the paths share in place of the paths' own, with hosts beside the tunnel.
    #[must_use]
    pub fn over_joint(mut self, links: Links) -> Self {
        // The routes of the uplinks come first, then one for each link that hosts enter.
        let uplinks = self.paths.len() + self.neighbours.len();
        let count = links.links.len();
        let near = self.neighbours.iter().map(|near| near.entry);
        let entries = self.paths.iter().copied().chain(near).chain(0..count);
        let entries: Vec<usize> = entries.collect();
        self.world.join_links(links.links, &links.through, &entries);
        let beside = links.beside.into_iter();
        self.beside = beside.map(|link| link.map(|link| uplinks + link)).collect();
        self.paths = entries;
        self.joint = true;
        let _before = self.world.take_fates().count();
        self
    }

    /// The hub that serves the site is lost.
    #[cfg(test)]
    pub fn lose_home(&mut self, now: Instant, loss: crate::run::fleet::Loss) {
        use crate::run::fleet::Loss;
        self.world.run_to(now + self.prelude);
        match loss {
            Loss::Never => {}
            Loss::Dies => self.world.kill_hub(),
            Loss::Cut => self.world.set_cut(ropewalk_testkit::HOME, true),
            Loss::Drained => {
                self.world.set_route_delay(Duration::from_secs(1));
                let told = self.world.drain_hub(ropewalk_testkit::HOME, true);
                assert_eq!(told, Ok(1), "one site is served");
            }
        }
    }

    /// Keeps what the outputs want beyond the fate of packets.
    pub fn watch(&mut self, outputs: &Outputs) {
        if outputs.pcap.is_some() {
            self.world.keep_taps();
        }
        if outputs.events.is_some() {
            let told = Told::default();
            for side in Side::ALL {
                let gateway = Gateway::new(side, self.paths.clone(), told.clone());
                self.world.observe(SITE, side, Box::new(gateway));
            }
            self.told = Some(told);
        }
    }

    /// Writes into the trace what gateways did, and what became of outer packets.
    fn record(&mut self, core: &mut Core) {
        if let Some(told) = &self.told {
            told.log(&mut core.trace, core.now_ns);
        }
        if let Some(capture) = &mut core.trace.capture {
            for tap in self.world.take_taps() {
                let path = self.paths[tap.uplink];
                capture.outer(core.now_ns, path, (tap.side, tap.leaves), &tap.packet);
            }
        }
        for fate in self.world.take_fates() {
            let place = (self.paths[fate.uplink], fate.side);
            let item = Item::Outer(fate.digest);
            match fate.end {
                End::Delivered => core.trace.delivered(core.now_ns, place, item),
                End::Refused(reason) => {
                    core.trace.dropped(core.now_ns, place, reason, item);
                }
                End::Lost => core.trace.lost(core.now_ns, place, item),
            }
        }
    }
}

impl Carrier for TunnelCarrier {
    fn components(&self) -> usize {
        1
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let length = HEADROOM + packet.bytes as usize;
        if self.slab.capacity() < length {
            self.slab = BytesMut::with_capacity(SLAB_BYTES.max(length));
        }
        self.headers.write(direction, packet, &mut self.slab);
        let route = self.beside.get(usize::from(packet.flow));
        if let Some(&Some(route)) = route {
            let data = self.slab.split().split_off(HEADROOM);
            let now = core.now() + self.prelude;
            self.world.send_beside(now, route, direction, data);
            return;
        }
        let data = self.slab.split();
        let site = site_of(&self.neighbours, packet.flow);
        self.world
            .offer(core.now() + self.prelude, site, direction, data);
    }

    fn wake(&mut self, core: &mut Core, _component: usize, arrivals: &mut Vec<Arrival>) {
        self.world.run_to(core.now() + self.prelude);
        self.record(core);
        let mut arrive = |direction, data: &[u8], site: Option<usize>| {
            let packet = self.headers.read(data);
            debug_assert!(packet.is_some(), "what hosts sent comes out");
            let Some(packet) = packet else { return };
            let own = site.is_none_or(|site| site_of(&self.neighbours, packet.flow) == site);
            assert!(
                own,
                "flow {} came out at another site's tunnel",
                packet.flow
            );
            arrivals.push((direction, packet));
        };
        self.world
            .take_beside(|direction, data| arrive(direction, data, None));
        self.world
            .take_released(SITE, Side::Up, |data| arrive(Side::Up, &data, None));
        for site in SITE..=self.neighbours.len() {
            self.world.take_released(site, Side::Down, |data| {
                arrive(Side::Down, &data, Some(site));
            });
        }
    }

    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>) {
        if !arrivals.is_empty() {
            return;
        }
        self.world.settle_touched();
        self.record(core);
        // What was let through just now is taken at this instant, too.
        let mut sites = SITE..=self.neighbours.len();
        let due_ns = if sites.any(|site| self.world.has_released(site)) {
            core.now_ns
        } else {
            let due = self.world.next_due();
            due.map_or(NEVER, |at| {
                (Instant::ZERO + at.since(Instant::ZERO + self.prelude)).as_nanos()
            })
        };
        core.look_at(0, due_ns.max(core.now_ns));
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        if self.joint {
            return self
                .world
                .joint_counters(now + self.prelude, path, direction);
        }
        let uplink = self.paths.iter().position(|&number| number == path);
        uplink.map_or_else(Counters::default, |uplink| {
            self.world
                .counters(now + self.prelude, SITE, uplink, direction)
        })
    }

    fn mark_warm(&mut self) {
        let tunnels = self.world.tunnels(SITE);
        self.warm = tunnels.map(|tunnel| tunnel.map_or_else(Default::default, |t| t.stats()));
    }

    fn tunnel_report(&self, direction: Side) -> Option<TunnelReport> {
        let [site, hub] = self.world.tunnels(SITE);
        Some(report_on(direction, [site?, hub?], &self.warm))
    }

    fn packets(&self) -> u64 {
        self.world.sent() - self.sent_before
    }
}

/// The site that a flow's hosts are behind.
fn site_of(neighbours: &[Neighbour], flow: u16) -> usize {
    let near = neighbours
        .iter()
        .position(|near| near.flows.contains(&flow));
    near.map_or(SITE, |neighbour| SITE + 1 + neighbour)
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
        buffer_drops: since(sent.buffer_drops, sent_before.buffer_drops),
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

#[cfg(test)]
mod tests {
    use crate::run;
    use ropewalk_plan::Plan;

    #[test]
    fn a_path_that_is_too_long_for_a_tunnel_is_named_at_once() {
        let plan = |delay: &str| {
            let plan = format!(
                "name = \"x\"\nduration = \"1s\"\n[[path]]\nname = \"a\"\n[[path]]\nname = \"b\"\n\
                 both.delay = \"{delay}\"\n[carrier]\nkind = \"tunnel\""
            );
            Plan::parse(&plan).expect("a plan")
        };
        // A round trip of 2 s is not too long: each answer of the hub gives an attempt 4 s.
        assert!(run(&plan("1s"), 1).is_ok());
        for delay in ["2s", "10s", "60min"] {
            let plan = plan(delay);
            let error = run(&plan, 1).expect_err("too long").to_string();
            assert!(
                error.starts_with("path[1].delay: the tunnel does not"),
                "{error}"
            );
        }
    }
}
