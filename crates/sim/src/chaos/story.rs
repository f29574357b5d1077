//! What a seed tells: the sites, their paths, and what happens to them.
//!
//! Invariant: a story follows from its seed alone, and leaving events out changes no other event.

use ropewalk_netem::{Capacity, DirectionConfig, GilbertElliott, LossModel, Selector, Side};
use ropewalk_types::{Duration, Instant, Random, Rate, SchedulerKind};
use std::fmt;

use super::tuning::{
    EVENTS, HOLD_MAX, HOME_SHARE, HUB_EVENTS, LONG_MAX, NUMBERED_BYTES, QUEUE_PACKETS,
    SCARCE_BYTES, SCARCE_MEMORY, SCARCE_SHARE, SITES_MAX, SPAN, SPARE_SHARE, START, TOLD_SHARE,
    UPLINKS_MAX,
};

/// What happens in a world.
#[derive(Clone, Debug)]
pub struct Story {
    /// All chance follows from it.
    pub seed: u64,
    /// Paths of each site.
    pub sites: Vec<Vec<DirectionConfig>>,
    /// Share of packets that links deliver twice.
    pub copies: f64,
    /// Memory of the hub for packets, bytes.
    pub hub_memory: u64,
    /// Bytes of a numbered packet.
    pub numbered_bytes: u32,
    /// Scheduler at the start.
    pub scheduler: SchedulerKind,
    /// No link loses or reorders packets, and no outage is longer than what is held: TCP segments of hosts get
    /// through, each of them.
    pub gentle: bool,
    /// Whether somebody with a key of his own attacks the hub.
    pub hostile: bool,
    /// Whether there is a second hub, the spare of all sites.
    pub spare: bool,
    /// Whether the hubs of such a story learn from each other what sites have signed, as by a common state. Otherwise
    /// only sites tell them.
    pub told: bool,
    /// What happens, each with its number.
    pub events: Vec<(usize, Event)>,
}

/// Something happens, and is over after a while.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it begins.
    pub at: Instant,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub what: What,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum What {
    /// A path swallows packets.
    Cut(usize, usize, Selector),
    /// All paths of a site do.
    Outage(usize),
    /// All paths of all sites do.
    OutageOfAll,
    /// The NAT of a path forgets its mappings.
    Rebind(usize, usize),
    /// An uplink gets another address.
    Readdress(usize, usize),
    /// An uplink is unplugged.
    Unplug(usize, usize),
    /// A path lets no UDP through.
    BlockUdp(usize, usize),
    /// The site is stopped, or killed if not `clean`, and starts again.
    RestartSite {
        /// Which.
        site: usize,
        /// It says goodbye.
        clean: bool,
    },
    /// The same for a hub, which then remembers nothing.
    RestartHub {
        /// Which.
        hub: usize,
        /// It says goodbye.
        clean: bool,
    },
    /// Nothing reaches a hub and nothing leaves it, but it goes on.
    HubCut(usize),
    /// A site and a hub do not reach each other. Everybody else reaches both.
    Apart(usize, usize),
    /// A hub stands still.
    HubAsleep(usize),
    /// Somebody tells the hubs that a hub serves a site, and the site has not signed that.
    Forged(usize, usize),
    /// The hubs are told again what a site has signed long ago.
    Stale(usize),
    /// A site, or the hub, stands still.
    Suspend(Option<usize>),
    /// The hub does not let the site in.
    Revoke(usize),
    /// The site's share of the hub: weight, and rate in bits per second.
    Share(usize, u32, Option<u64>),
    /// A site, or the hub for all sites, changes its scheduler in both directions.
    Scheduler(Option<usize>, SchedulerKind),
    /// The user takes a path out of use.
    Disable(usize, usize),
    /// The user says that a path will end.
    Leaving(usize, usize),
    /// The hub falls behind, again and again.
    Behind,
}

/// Tells the stream of chance for scarce memory from that of the story.
const SCARCE: u64 = 1 << 40;

/// The same for a second hub and what happens to it. Of the multiples of 2^40 this is the first with which the stories
/// that `crates/sim/tests/chaos.rs` and `scripts/mutate-chaos` name have one hub, as they had before.
const SPARE: u64 = 0x184 << 40;

/// A number between two, as likely in each order of magnitude.
fn between(random: &mut Random, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.unit())
}

fn below(random: &mut Random, count: usize) -> usize {
    (random.unit() * count as f64) as usize
}

impl Story {
    /// The story of a seed, without the events of these numbers.
    #[must_use]
    pub fn new(seed: u64, without: &[usize]) -> Self {
        let mut random = Random::new(seed);
        let gentle = random.chance(0.5);
        let sites: Vec<Vec<DirectionConfig>> = (0..=below(&mut random, SITES_MAX))
            .map(|_| {
                let uplinks = 1 + below(&mut random, UPLINKS_MAX);
                (0..uplinks).map(|_| path(&mut random, gentle)).collect()
            })
            .collect();
        let copies = if random.chance(0.3) { 0.05 } else { 0.0 };
        let memory = between(&mut random, 2e6, 64e6) as u64;
        let scheduler = any_scheduler(&mut random);
        let hostile = random.chance(0.4);
        let count = EVENTS.0 + below(&mut random, EVENTS.1 - EVENTS.0);
        let span = Duration::from_secs_f64(between(&mut random, SPAN.0, SPAN.1));
        let mut events: Vec<Event> = (0..count)
            .map(|_| event(&mut random.fork(), &sites, gentle, span))
            .collect();
        let (spare, told) = add_hub(seed, &sites, gentle, span, &mut events);
        events.sort_by_key(|event| event.at);
        let memory = if gentle { 1 << 30 } else { memory };
        // A stream of its own: all else of a story is the same with much memory and with little.
        let scarce = Random::new(seed ^ SCARCE).chance(SCARCE_SHARE);
        let (hub_memory, numbered_bytes) = if scarce {
            (SCARCE_MEMORY, SCARCE_BYTES)
        } else {
            (memory, NUMBERED_BYTES)
        };
        let events = events.into_iter().enumerate();
        Self {
            seed,
            copies,
            hub_memory,
            numbered_bytes,
            scheduler,
            gentle,
            hostile,
            spare,
            told,
            events: events
                .filter(|(number, _)| !without.contains(number))
                .collect(),
            sites,
        }
    }

    /// When the last event is over.
    #[must_use]
    pub fn last(&self) -> Instant {
        let ends = self.events.iter().map(|(_, event)| event.at + event.lasts);
        ends.max()
            .unwrap_or(Instant::ZERO)
            .max(Instant::ZERO + START)
    }
}

fn path(random: &mut Random, gentle: bool) -> DirectionConfig {
    let delay = between(random, 0.002, 0.15);
    let mbit = between(random, 3.0, 100.0);
    let kind = random.unit();
    let loss = match kind {
        _ if gentle => LossModel::None,
        kind if kind < 0.4 => LossModel::None,
        kind if kind < 0.8 => LossModel::Bernoulli(0.03 * random.unit()),
        _ => LossModel::GilbertElliott(GilbertElliott {
            good_to_bad: 0.002,
            bad_to_good: 0.1,
            loss_good: 0.0,
            loss_bad: 0.7,
        }),
    };
    DirectionConfig {
        capacity: Capacity::Fixed(Rate::from_bits_per_sec((mbit * 1e6) as u64)),
        delay: Duration::from_secs_f64(delay),
        jitter: Duration::from_secs_f64(delay * 0.2 * random.unit()),
        reorder: !gentle && random.chance(0.3),
        loss,
        queue_packets_max: Some(QUEUE_PACKETS),
        ..DirectionConfig::default()
    }
}

fn any_scheduler(random: &mut Random) -> SchedulerKind {
    if random.chance(0.6) {
        return SchedulerKind::default();
    }
    SchedulerKind::ALL[below(random, SchedulerKind::ALL.len())]
}

fn event(
    random: &mut Random,
    sites: &[Vec<DirectionConfig>],
    gentle: bool,
    span: Duration,
) -> Event {
    let at = Instant::ZERO + START + span.mul_f64(random.unit());
    let site = below(random, sites.len());
    let uplink = below(random, sites[site].len());
    let mut seconds = |least, most| Duration::from_secs_f64(between(random, least, most));
    let (cut, outage) = (seconds(0.1, 60.0), seconds(0.1, HOLD_MAX));
    let (short, long, moment) = (
        seconds(0.5, 20.0),
        seconds(5.0, LONG_MAX),
        seconds(0.01, 2.0),
    );
    let nothing = Duration::ZERO;
    let sides = [
        Selector::Both,
        Selector::Both,
        Selector::One(Side::Up),
        Selector::One(Side::Down),
    ];
    let (chance, clean) = (random.unit(), random.chance(0.5));
    let hub = random.chance(0.3);
    let (what, lasts) = match (chance * 100.0) as u32 {
        0..20 => (What::Cut(site, uplink, sides[below(random, 4)]), cut),
        20..30 => (What::Outage(site), outage),
        30..34 => (What::OutageOfAll, short),
        34..40 => (What::Rebind(site, uplink), nothing),
        40..46 => (What::Readdress(site, uplink), nothing),
        46..52 => (What::Unplug(site, uplink), short),
        52..59 => (What::BlockUdp(site, uplink), cut),
        59..64 => (What::RestartSite { site, clean }, moment),
        64..69 => (What::RestartHub { hub: 0, clean }, moment),
        69..72 => (What::Revoke(site), short),
        72..77 if gentle => (What::Share(site, 3, None), nothing),
        72..77 => (What::Share(site, 2, Some(8_000_000)), short),
        77..83 => {
            let kind = any_scheduler(random);
            (What::Scheduler((!hub).then_some(site), kind), nothing)
        }
        83..86 => (What::Disable(site, uplink), short),
        86..89 => (What::Leaving(site, uplink), short),
        89..93 => (What::Behind, moment),
        93..97 if !gentle => (What::Outage(site), long),
        93..97 => (What::Cut(site, uplink, Selector::Both), short),
        _ if gentle => (What::Suspend((!hub).then_some(site)), moment),
        _ => (What::Suspend((!hub).then_some(site)), long),
    };
    Event { at, lasts, what }
}

/// Adds what happens to two hubs, if the story of this seed has two; and whether they learn from each other.
fn add_hub(
    seed: u64,
    sites: &[Vec<DirectionConfig>],
    gentle: bool,
    span: Duration,
    events: &mut Vec<Event>,
) -> (bool, bool) {
    let mut random = Random::new(seed ^ SPARE);
    if !random.chance(SPARE_SHARE) {
        return (false, false);
    }
    let told = random.chance(TOLD_SHARE);
    let count = HUB_EVENTS.0 + below(&mut random, HUB_EVENTS.1 - HUB_EVENTS.0);
    let new = (0..count).map(|_| hub_event(&mut random.fork(), sites.len(), gentle, span));
    events.extend(new);
    (true, told)
}

fn hub_event(random: &mut Random, sites: usize, gentle: bool, span: Duration) -> Event {
    let at = Instant::ZERO + START + span.mul_f64(random.unit());
    let (site, hub) = (
        below(random, sites),
        usize::from(!random.chance(HOME_SHARE)),
    );
    let clean = random.chance(0.3);
    let most = if gentle { HOLD_MAX } else { LONG_MAX };
    let lasts = Duration::from_secs_f64(between(random, 0.1, most));
    let nothing = Duration::ZERO;
    let (what, lasts) = match (random.unit() * 100.0) as u32 {
        0..35 => (What::RestartHub { hub, clean }, lasts),
        35..55 => (What::HubCut(hub), lasts),
        55..70 => (What::Apart(site, hub), lasts),
        70..76 => (What::HubAsleep(hub), lasts),
        76..88 => (What::Forged(site, hub), nothing),
        _ => (What::Stale(site), nothing),
    };
    Event { at, lasts, what }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.since(Instant::ZERO).as_secs_f64();
        let lasts = self.lasts.as_secs_f64();
        write!(f, "{at:.3} s, for {lasts:.3} s: {:?}", self.what)
    }
}
