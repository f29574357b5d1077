//! A fleet in virtual time: many sites, several hubs, and one hub that dies and comes back.
//!
//! The gateways are real sessions. Each site has a home and a spare among the hubs, by rendezvous hash (Thaler and
//! Ravishankar, "Using name-based mappings to increase hit rates", 1998). Time costs nothing here: a hub answers at
//! once, however much comes. The module `queue` says what the same arrivals mean for a processor.
//!
//! Invariant: a report follows from the settings alone.

mod queue;
mod report;

use ropewalk_netem::{DirectionConfig, LinkConfig};
use ropewalk_session::Event;
use ropewalk_testkit::{HUB_INNER, Spec, World};
use ropewalk_types::{Duration, Instant, Random};
use std::net::IpAddr;

pub use queue::{Queue, serve};
pub use report::{Amount, Report, Spread};

/// Packets of a call leave in both directions so far apart.
const CALL_INTERVAL: Duration = Duration::from_millis(20);
/// Calls begin so long before the hub dies, and go on for so long after that.
const CALL_BEFORE: Duration = Duration::from_secs(3);
const CALL_AFTER: Duration = Duration::from_secs(12);
/// After the last site has started: paths come up and probe their MTU.
const CALM: Duration = Duration::from_secs(30);
/// Idle traffic is measured for so long: four times the interval of messages to a spare, 25 s.
const IDLE: Duration = Duration::from_secs(100);
/// After the dead hub has started again.
const AFTER: Duration = Duration::from_secs(20);
/// Delays of paths in one direction, least and most, seconds: round trips of 10 to 80 ms.
const DELAYS: (f64, f64) = (0.005, 0.04);

/// Which fleet, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// All chance follows from it.
    pub seed: u64,
    /// Number of sites, up to 10,000: the most that a hub takes.
    pub sites: usize,
    /// Number of hubs, 2 to 64.
    pub hubs: usize,
    /// Number of uplinks of each site.
    pub uplinks: usize,
    /// So many sites have a call; all others are idle.
    pub calls: usize,
    /// Sites start in this time, one after the other.
    pub join: Duration,
    /// So long after its death the hub starts again.
    pub away: Duration,
}

/// The hub that dies.
const DEAD: usize = 0;

/// The home and the spare of a site.
fn hubs_of(settings: &Settings, site: usize) -> Vec<usize> {
    let weight = |hub: usize| {
        let mixed = settings.seed ^ (site as u64) << 8 ^ (hub as u64) << 40;
        Random::new(mixed).next_u64()
    };
    let mut hubs: Vec<usize> = (0..settings.hubs).collect();
    hubs.sort_by_key(|hub| std::cmp::Reverse((weight(*hub), *hub)));
    hubs.truncate(2);
    hubs
}

struct Stage<'a> {
    settings: &'a Settings,
    world: World,
    hubs_of: Vec<Vec<usize>>,
    /// The sites with a call.
    calling: Vec<usize>,
    number: u64,
}

/// Plays it. `tell` hears of each part as it begins.
pub fn play(settings: &Settings, mut tell: impl FnMut(&str)) -> Report {
    let mut stage = Stage::new(settings);
    tell("sites start");
    stage.join();
    let joined = stage.world.now();
    stage.world.run(CALM);
    let waiting = stage.links();
    tell("idle");
    let before = stage.bytes();
    stage.world.run(IDLE);
    let after = stage.bytes();
    tell("calls begin, then a hub dies");
    stage.calls(CALL_BEFORE);
    let routes_before = stage.served();
    let claims_join = Amount::of(stage.claims(Instant::ZERO));
    let died = stage.world.now();
    stage.world.kill_hub_at(DEAD);
    stage.calls(CALL_AFTER);
    stage.world.run_to(died + settings.away.max(CALL_AFTER));
    let routes_after = stage.served();
    tell("the hub starts again");
    let back = stage.world.now();
    stage.world.start_hub_at(DEAD);
    stage.world.run(AFTER);
    tell("the report");
    let mut report = Report::new(settings);
    report.links = waiting;
    report.idle_bits = [0, 1].map(|kind| {
        let bytes = after[kind] - before[kind];
        bytes as f64 * 8.0 / IDLE.as_secs_f64() / settings.sites as f64
    });
    stage.homes(&mut report);
    (report.served_before, report.served_after) = (routes_before, routes_after);
    stage.moves(&mut report, died, back);
    report.claims_join = claims_join;
    report.claims_takeover = Amount::of(stage.claims(died));
    stage.handshakes(&mut report, [joined + CALM, died, back]);
    report.outer_packets = stage.world.sent();
    report.seconds = stage.world.now().since(Instant::ZERO).as_secs();
    report
}

impl<'a> Stage<'a> {
    fn new(settings: &'a Settings) -> Self {
        let hubs_of: Vec<_> = (0..settings.sites)
            .map(|site| hubs_of(settings, site))
            .collect();
        let mut world = World::new(&Spec {
            seed: settings.seed,
            sites: settings.sites,
            uplinks: settings.uplinks,
            hubs_of: hubs_of.clone(),
            rests: true,
            ..Spec::default()
        });
        world.keep_begun();
        let mut random = Random::new(settings.seed ^ 1);
        for site in 0..settings.sites {
            let links: Vec<_> = (0..settings.uplinks).map(|_| link(&mut random)).collect();
            world.replace_links(site, links);
        }
        let step = settings.sites / settings.calls.clamp(1, settings.sites);
        let calling = (0..settings.calls.min(settings.sites)).map(|nth| nth * step);
        Self {
            settings,
            world,
            hubs_of,
            calling: calling.collect(),
            number: 0,
        }
    }

    fn join(&mut self) {
        let count = self.settings.sites;
        for site in 0..count {
            let at = self.settings.join.mul_f64(site as f64 / count as f64);
            self.world.run_to(Instant::ZERO + at);
            self.world.start_site(site);
        }
        self.world.run_to(Instant::ZERO + self.settings.join);
    }

    /// Calls in both directions for this time.
    fn calls(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            for &site in &self.calling {
                self.world.send_up(site, self.number, 1);
                self.world.send_down(site, self.number, 1);
            }
            self.number += 1;
            self.world.run(CALL_INTERVAL);
        }
    }

    /// Connections of all hubs: those with a tunnel and those that wait.
    fn links(&self) -> usize {
        let hubs = (0..self.settings.hubs).filter_map(|hub| self.world.hub_at(hub));
        hubs.map(|hub| hub.session.links()).sum()
    }

    /// Bytes between all sites and their homes, and their spares.
    fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|kind| {
            let sites = self.hubs_of.iter().enumerate();
            sites
                .map(|(site, hubs)| self.world.bytes_between(site, hubs[kind]))
                .sum()
        })
    }

    /// How many sites each hub serves, as routers see it.
    fn served(&self) -> Vec<usize> {
        let mut served = vec![0; self.settings.hubs];
        for site in 0..self.settings.sites {
            served[self.world.route_to(site)] += 1;
        }
        served
    }

    fn homes(&self, report: &mut Report) {
        for hubs in &self.hubs_of {
            report.homes[hubs[0]] += 1;
            report.spares[hubs[1]] += 1;
        }
    }

    /// When each site of the dead hub was served again, what the others saw, and what calls saw.
    fn moves(&self, report: &mut Report, died: Instant, back: Instant) {
        let mut again: Vec<Option<Duration>> = vec![None; self.settings.sites];
        for hub in (0..self.settings.hubs).filter(|hub| *hub != DEAD) {
            let host = self.world.hub_at(hub);
            for (at, event) in host.iter().flat_map(|host| &host.events) {
                if let Event::Served { site, .. } = event
                    && *at >= died
                    && let Some(site) = site.strip_prefix("site").and_then(|s| s.parse().ok())
                    && let Some(slot) = again.get_mut::<usize>(site)
                {
                    slot.get_or_insert(at.since(died));
                }
            }
        }
        let (mut with_call, mut idle, mut gaps, mut gaps_others) = (vec![], vec![], vec![], vec![]);
        let (gap_from, gap_to) = (died, died + (CALL_AFTER - Duration::from_secs(1)));
        let gap_of = self.gaps(gap_from, gap_to);
        for (site, hubs) in self.hubs_of.iter().enumerate() {
            let called = self.calling.binary_search(&site).ok();
            let moved_later = self
                .world
                .site(site)
                .events
                .iter()
                .any(|(at, event)| matches!(event, Event::Moved { .. }) && *at >= died);
            if hubs[0] != DEAD {
                report.others_moved += usize::from(moved_later);
                gaps_others.extend(called.map(|nth| gap_of[nth]));
                continue;
            }
            gaps.extend(called.map(|nth| gap_of[nth]));
            match (again[site].filter(|after| died + *after < back), called) {
                (None, _) => report.never += 1,
                (Some(after), Some(_)) => with_call.push(after),
                (Some(after), None) => idle.push(after),
            }
        }
        report.again_with_call = Spread::of(with_call);
        report.again_idle = Spread::of(idle);
        report.gaps = Spread::of(gaps);
        report.gaps_others = Spread::of(gaps_others);
    }

    /// Of each site with a call: the longest time without a packet in either direction.
    fn gaps(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let mut heard: Vec<[Vec<Instant>; 2]> = vec![Default::default(); self.calling.len()];
        let address = |nth: usize| IpAddr::from(World::inner_address(self.calling[nth]));
        let of: std::collections::BTreeMap<IpAddr, usize> = (0..self.calling.len())
            .map(|nth| (address(nth), nth))
            .collect();
        for hub in (0..self.settings.hubs).filter_map(|hub| self.world.hub_at(hub)) {
            for (at, source, _) in &hub.delivered {
                if let Some(nth) = of.get(source) {
                    heard[*nth][0].push(*at);
                }
            }
        }
        for (nth, site) in self.calling.iter().enumerate() {
            let delivered = self.world.site(*site).delivered.iter();
            let from_hosts = delivered.filter(|(_, source, _)| *source == IpAddr::from(HUB_INNER));
            heard[nth][1].extend(from_hosts.map(|(at, ..)| *at));
        }
        let longest = |times: &mut Vec<Instant>| {
            times.retain(|at| *at >= from && *at < to);
            times.extend([from, to]);
            times.sort_unstable();
            let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]));
            gaps.max().unwrap_or_default()
        };
        let both = heard.iter_mut().map(|heard| heard.each_mut().map(longest));
        both.map(|both| both[0].max(both[1])).collect()
    }

    /// When hubs that run have learned of claims that they would write to the common state, since then.
    fn claims(&self, since: Instant) -> Vec<Instant> {
        let hubs = (0..self.settings.hubs).filter_map(|hub| self.world.hub_at(hub));
        let events = hubs.flat_map(|hub| &hub.events);
        let served = events.filter(|(at, event)| {
            let claims = matches!(
                event,
                Event::Served {
                    statement: Some(_),
                    ..
                }
            );
            claims && *at >= since
        });
        served.map(|(at, _)| *at).collect()
    }

    /// Handshakes at hubs: while sites join, while a hub is dead, and after its return.
    fn handshakes(&self, report: &mut Report, [calm, died, back]: [Instant; 3]) {
        let begun = |hub: usize, from: Instant, to: Instant| -> Vec<Instant> {
            let begun = self.world.begun().iter();
            let here = begun.filter(|(at, of)| *of == hub && *at >= from && *at < to);
            here.map(|(at, _)| *at).collect()
        };
        let end = Instant::FAR_FUTURE;
        for hub in 0..self.settings.hubs {
            report
                .handshakes_join
                .push(Amount::of(begun(hub, Instant::ZERO, calm)));
            report
                .handshakes_away
                .push(Amount::of(begun(hub, died, back)));
            report
                .handshakes_back
                .push(Amount::of(begun(hub, back, end)));
        }
        report.queue_back = Queue::both(&begun(DEAD, back, end));
        report.queue_join = Queue::both(&begun(DEAD, Instant::ZERO, calm));
    }
}

/// A path that only delays.
fn link(random: &mut Random) -> LinkConfig {
    let delay = DELAYS.0 + (DELAYS.1 - DELAYS.0) * random.unit();
    let direction = DirectionConfig {
        delay: Duration::from_secs_f64(delay),
        ..DirectionConfig::default()
    };
    LinkConfig {
        seed: random.next_u64(),
        up: direction.clone(),
        down: direction,
        changes: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
