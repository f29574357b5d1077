//! Plays a story: moves the world from event to event, lets hosts talk, and looks whether rules hold.

mod hubs;

use bytes::{Bytes, BytesMut};
use ropewalk_api::{Direction, PathUse};
use ropewalk_core::tunnel::{Observer, Outgoing};
use ropewalk_netem::{LinkConfig, Selector, Side};
use ropewalk_session::Command;
use ropewalk_testkit::{HOME, HUB_UDP, Neighbour, Packet, Spec, World};
use ropewalk_types::{Duration, Instant, PathId, PathSnapshot, Random, SchedulerKind};
use ropewalk_wire::Versions;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::hubs::Fleet;
use super::hostile::Hostile;
use super::story::{Story, What};
use super::traffic::{TWICE, Traffic, addresses};
use super::tuning::{
    HOSTILE_INTERVAL, LEAK_MAX, LINKS_MOMENT, LINKS_TIME, LOOK, LOST_BEFORE, MEMORY_EACH,
    MEMORY_SLACK, MOVE_TIME, NUMBERED_INTERVAL, OFFER_INTERVAL, OFFER_SEGMENTS, PATHS_TIME,
    PROBATION, PROBATION_SHARE, RETURN_ROUND_TRIPS, RETURN_TIME, RETURN_TIME_LOSSY, SETTLE,
    SPOOF_INTERVAL, STEPS_MAX, STREAMS_TIME, TURNS_EACH, TURNS_FREE,
};
use super::{Outcome, Play, Violation};
use crate::traffic::Outbox;

type Held<T = ()> = Result<T, Violation>;

/// IP packets that a queue has dropped.
type Dropped = Arc<Mutex<Vec<Vec<u8>>>>;

fn taken(dropped: &Dropped) -> MutexGuard<'_, Vec<Vec<u8>>> {
    dropped.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens to a tunnel, for the rules and for the hostile site.
struct Witness {
    dropped: Dropped,
    ear: Option<Box<dyn Observer>>,
}

impl Observer for Witness {
    fn on_sent(&mut self, now: Instant, sent: &Outgoing, path: &PathSnapshot, backlog: u64) {
        if let Some(ear) = &mut self.ear {
            ear.on_sent(now, sent, path, backlog);
        }
    }

    fn on_received(&mut self, _: Instant, _: PathId, _: &Bytes) {}

    fn on_dropped(&mut self, _: Instant, ip: &[u8]) {
        taken(&self.dropped).push(ip.to_vec());
    }
}

/// What of a site is wanted; counts, since events may meet.
#[derive(Clone, Debug, Default)]
struct Wanted {
    cut: Vec<[u32; 2]>,
    unplugged: Vec<u32>,
    blocked: Vec<u32>,
    disabled: Vec<u32>,
    leaving: Vec<u32>,
    stopped: u32,
    revoked: u32,
    asleep_until: Instant,
    /// By hub: that the site and it do not reach each other.
    apart: [u32; 2],
}

struct Stage<'a> {
    story: &'a Story,
    how: Play,
    world: World,
    hostile: Option<Hostile>,
    traffic: Vec<Traffic>,
    wanted: Vec<Wanted>,
    /// By hub.
    hub_stopped: [u32; 2],
    hub_asleep_until: [Instant; 2],
    hub_cut: [u32; 2],
    fleet: Fleet,
    behind: u32,
    /// Of each site: packets sent in these times may get lost, or come twice, because an end began anew.
    excused: Vec<Vec<(Instant, Instant)>>,
    /// Packets of each site that a queue has dropped, at the site or at the hub.
    dropped: Vec<Dropped>,
    talking: bool,
    readdressed: u16,
    outcome: Outcome,
    outbox: Outbox,
    slab: BytesMut,
    due: Due,
    offered: u64,
    looked: (u64, u64, u64),
    /// Most memory that the tunnels of the hub took together, bytes.
    most_memory: u64,
}

/// When things are due that come again and again.
struct Due {
    numbered: Instant,
    offer: Instant,
    spoof: Instant,
    hostile: Instant,
    look: Instant,
}

/// Plays it.
pub fn play(story: &Story, how: Play) -> Outcome {
    let before = how.live.map(|live| live());
    let mut stage = Stage::new(story, how);
    if let Err(violation) = stage.run() {
        stage.outcome.violation = Some(violation);
    }
    stage.outcome.sent = stage.world.sent();
    stage.outcome.seconds = stage.world.now().since(Instant::ZERO).as_secs();
    let mut outcome = std::mem::take(&mut stage.outcome);
    let at = stage.world.now();
    drop(stage);
    let after = how.live.map(|live| live());
    if let (Some(before), Some(after), None) = (before, after, &outcome.violation)
        && after > before + LEAK_MAX
    {
        let what = format!("{} bytes of memory stay taken", after - before);
        outcome.violation = Some(Violation {
            at,
            rule: "leftovers",
            what,
        });
    }
    outcome
}

/// The hub of a story, without sites, and how they are reached.
fn world(story: &Story) -> World {
    let uplinks = story.sites.iter().map(Vec::len);
    let uplinks = uplinks.chain(story.hostile.then_some(1));
    let neighbours = uplinks.enumerate().map(|(site, uplinks)| Neighbour {
        addresses: addresses(site),
        uplinks,
    });
    World::new(&Spec {
        seed: story.seed,
        sites: 0,
        scheduler: story.scheduler,
        hub_memory: story.hub_memory,
        neighbours: neighbours.collect(),
        spare: story.spare,
        ..Spec::default()
    })
}

impl<'a> Stage<'a> {
    fn new(story: &'a Story, how: Play) -> Self {
        let mut random = Random::new(story.seed ^ 1);
        let mut world = world(story);
        world.keep_packets();
        let count = story.sites.len();
        let hostile = story.hostile.then(|| {
            world.kill_site(count);
            world.keep_taps();
            world.keep_strays();
            let hub = world.hub_identity().public_key();
            Hostile::new(
                world.identity(count).clone(),
                hub,
                random.fork(),
                story.spare,
            )
        });
        for (site, paths) in story.sites.iter().enumerate() {
            let links = paths.iter().map(|path| LinkConfig {
                seed: random.next_u64(),
                up: path.clone(),
                down: path.clone(),
                changes: Vec::new(),
            });
            world.replace_links(site, links);
            for uplink in 0..paths.len() {
                world.set_copies(site, uplink, story.copies);
            }
        }
        let wanted = story.sites.iter().map(|paths| Wanted {
            cut: vec![[0; 2]; paths.len()],
            unplugged: vec![0; paths.len()],
            blocked: vec![0; paths.len()],
            disabled: vec![0; paths.len()],
            leaving: vec![0; paths.len()],
            ..Wanted::default()
        });
        let now = Instant::ZERO;
        Self {
            story,
            how,
            traffic: (0..count)
                .map(|site| Traffic::new(site, story.numbered_bytes, &mut random))
                .collect(),
            wanted: wanted.collect(),
            hub_stopped: [0; 2],
            hub_asleep_until: [now; 2],
            hub_cut: [0; 2],
            fleet: Fleet::new(count),
            behind: 0,
            excused: vec![Vec::new(); count],
            // Each a list of its own: `vec!` would share one.
            dropped: (0..count).map(|_| Dropped::default()).collect(),
            talking: true,
            readdressed: 0,
            outcome: Outcome::default(),
            outbox: Outbox::new(),
            slab: BytesMut::new(),
            due: Due {
                numbered: now,
                offer: now,
                spoof: now,
                hostile: now,
                look: now,
            },
            offered: 0,
            looked: (0, 0, 0),
            most_memory: 0,
            hostile,
            world,
        }
    }

    fn run(&mut self) -> Held {
        let story = self.story;
        self.tell(&format!(
            "{} sites, scheduler {}, gentle: {}, spare: {}, told: {}",
            story.sites.len(),
            story.scheduler,
            story.gentle,
            story.spare,
            story.told
        ));
        for (site, paths) in story.sites.iter().enumerate() {
            for path in paths {
                self.tell(&format!("site {site}: {path:?}"));
            }
        }
        // What happens, in order; `true` begins it.
        let mut happens: Vec<(Instant, usize, bool)> = Vec::new();
        for (index, (_, event)) in self.story.events.iter().enumerate() {
            happens.push((event.at, index, true));
            happens.push((event.at + event.lasts, index, false));
        }
        happens.sort_by_key(|(at, index, begins)| (*at, *index, !begins));
        for (at, index, begins) in happens {
            self.run_to(at)?;
            let (number, event) = &self.story.events[index];
            if begins {
                self.tell(&format!("event {number}: {event}"));
                self.begin(&event.what, event.lasts)?;
            } else {
                self.tell(&format!("event {number} is over"));
                self.end(&event.what);
            }
            self.note_event(&event.what);
            self.settle()?;
        }
        self.tell("everything is over");
        let (most, may) = (self.most_memory, story.hub_memory);
        self.tell(&format!("the hub took {most} of {may} bytes of memory"));
        let last = self.story.last();
        self.returns(last)?;
        self.streams_end(last)?;
        self.what_was_lost()?;
        self.leftovers()
    }

    fn tell(&self, what: &str) {
        if self.how.verbose {
            let now = self.world.now().since(Instant::ZERO).as_secs_f64();
            eprintln!("{now:9.3} {what}");
        }
    }

    fn broken<T>(&self, rule: &'static str, what: String) -> Held<T> {
        let at = self.world.now();
        Err(Violation { at, rule, what })
    }

    // Time.

    /// Lets time pass until then.
    fn run_to(&mut self, end: Instant) -> Held {
        let (mut last, mut steps) = (self.world.now(), 0);
        loop {
            let mut next = self.due.look;
            if self.talking {
                next = next
                    .min(self.due.numbered)
                    .min(self.due.offer)
                    .min(self.due.spoof);
            }
            if self.hostile.is_some() {
                next = next.min(self.due.hostile);
            }
            let streams = self.traffic.iter().flat_map(|traffic| &traffic.streams);
            let streams = streams
                .map(|stream| Instant::from_nanos(stream.due_ns()))
                .min();
            let world = self.world.next_due();
            let next = streams.into_iter().chain(world).chain([next]).min();
            let next = next.unwrap_or(end).max(self.world.now());
            if next > end {
                self.world.run_to(end);
                return self.settle();
            }
            self.world.run_to(next);
            if next > last + Duration::from_micros(1) {
                (last, steps) = (next, 0);
            }
            steps += 1;
            if steps > STEPS_MAX {
                return self.broken("spin", format!("{steps} turns without time passing"));
            }
            self.hosts(next);
            if self.due.hostile <= next {
                self.due.hostile = next + HOSTILE_INTERVAL;
                self.attack(next);
            }
            self.settle()?;
            if self.due.look <= next {
                self.due.look = next + LOOK;
                self.look()?;
            }
        }
    }

    /// Everything of this instant is answered.
    fn settle(&mut self) -> Held {
        loop {
            self.take_released()?;
            self.send();
            self.world.settle_touched();
            let mut sites = 0..self.story.sites.len();
            if !sites.any(|site| self.world.has_released(site)) {
                let _fates = self.world.take_fates().count() + self.world.take_taps().count();
                return Ok(());
            }
        }
    }

    // Hosts.

    /// Hosts send what is due.
    fn hosts(&mut self, now: Instant) {
        if self.talking && self.due.numbered <= now {
            self.due.numbered = now + NUMBERED_INTERVAL;
            for site in 0..self.traffic.len() {
                for flow in 0..self.traffic[site].numbered.len() {
                    self.send_numbered(now, site, flow);
                }
            }
        }
        if self.talking && self.due.offer <= now {
            self.due.offer = now + OFFER_INTERVAL;
            for site in 0..self.traffic.len() {
                self.traffic[site].offered += OFFER_SEGMENTS;
                for stream in &mut self.traffic[site].streams {
                    stream.offer(now.as_nanos(), OFFER_SEGMENTS, &mut self.outbox);
                }
                self.send();
            }
        }
        if self.talking && self.due.spoof <= now {
            self.due.spoof = now + SPOOF_INTERVAL;
            let count = self.traffic.len();
            for site in 0..count {
                let victim = (site + 1) % count;
                if victim != site {
                    self.traffic[site].spoofed(now, victim, &mut self.slab);
                    self.offer(now, site, Side::Up);
                }
            }
        }
        for site in 0..self.traffic.len() {
            for stream in &mut self.traffic[site].streams {
                if stream.due_ns() <= now.as_nanos() {
                    stream.on_timer(now.as_nanos(), &mut self.outbox);
                }
            }
        }
        self.send();
    }

    /// The hostile site does something.
    fn attack(&mut self, now: Instant) {
        let Some(hostile) = &mut self.hostile else {
            return;
        };
        self.world.take_taps().for_each(|tap| hostile.see(tap));
        let heard: Vec<Packet> = self.world.take_strays().collect();
        heard
            .into_iter()
            .for_each(|packet| hostile.hear(now, packet));
        let acts = hostile.act(now);
        self.listen(0, Side::Up);
        for packet in acts {
            if packet.to == HUB_UDP {
                self.world.inject(packet);
            } else {
                self.world.inject_at_site(0, 0, packet);
            }
        }
    }

    /// Listens to a tunnel, if there is one: a gateway that starts has another one.
    fn listen(&mut self, site: usize, side: Side) {
        let overheard = site == 0 && side == Side::Up;
        let hostile = self.hostile.as_ref().filter(|_| overheard);
        let witness = || {
            Box::new(Witness {
                dropped: Dropped::clone(&self.dropped[site]),
                ear: hostile.map(Hostile::ear),
            })
        };
        match side {
            Side::Up if self.world.site_runs(site) => self.world.observe(site, side, witness()),
            Side::Up => {}
            Side::Down => {
                let name = name(site);
                for hub in 0..self.world.hub_count() {
                    if let Some(host) = self.world.hub_at_mut(hub) {
                        host.session.observe(&name, witness());
                    }
                }
            }
        }
    }

    fn send_numbered(&mut self, now: Instant, site: usize, flow: usize) {
        let side = self.traffic[site].numbered[flow].side;
        let taken = match side {
            Side::Up => self.wanted[site].stopped == 0 && self.wanted[site].asleep_until <= now,
            Side::Down => {
                let hub = self.world.route_to(site);
                self.hub_stopped[hub] == 0
                    && self.hub_asleep_until[hub] <= now
                    && self.serves(hub, site) == Some(true)
            }
        };
        self.traffic[site].next_numbered(now, flow, &mut self.slab);
        self.traffic[site].note_sent(now, flow, taken);
        self.offer(now, site, side);
    }

    fn offer(&mut self, now: Instant, site: usize, side: Side) {
        self.offered += 1;
        let data = std::mem::take(&mut self.slab);
        self.world.offer(now, site, side, data);
    }

    /// Sends what streams have to say.
    fn send(&mut self) {
        let now = self.world.now();
        let mut outbox = std::mem::take(&mut self.outbox);
        for (side, packet) in outbox.drain(..) {
            let site = usize::from(packet.flow / super::traffic::FLOWS);
            self.traffic[site].write(side, &packet, &mut self.slab);
            self.offer(now, site, side);
        }
        self.outbox = outbox;
    }

    /// Takes what gateways let through.
    fn take_released(&mut self) -> Held {
        let mut came: Vec<(Option<usize>, bytes::Bytes)> = Vec::new();
        self.world
            .take_released(0, Side::Up, |data| came.push((None, data)));
        for site in 0..self.traffic.len() {
            self.world
                .take_released(site, Side::Down, |data| came.push((Some(site), data)));
        }
        let now = self.world.now();
        for (at_site, data) in came {
            let owner = at_site.or_else(|| Traffic::owner(&data));
            if self.hostile.is_some() && owner == Some(self.traffic.len()) {
                // The hostile site may say what it likes in its own name.
                continue;
            }
            let Some(traffic) = owner.and_then(|site| self.traffic.get_mut(site)) else {
                return self.broken("isolation", format!("a packet of nobody came: {data:x?}"));
            };
            let side = if at_site.is_some() {
                Side::Down
            } else {
                Side::Up
            };
            match traffic.came(now, side, &data, &mut self.outbox) {
                Ok(digest) => {
                    self.outcome.delivered += 1;
                    let mixed = self.outcome.digest ^ digest ^ now.as_nanos();
                    self.outcome.digest = mixed.wrapping_mul(0x100_0000_01b3).rotate_left(5);
                }
                Err((wrong, sent)) => {
                    let rule = if wrong == TWICE { "twice" } else { "isolation" };
                    // The site may have moved in this instant.
                    self.follow_hubs()?;
                    if rule == "twice" && self.is_excused(owner.unwrap_or(0), sent) {
                        self.fleet.note_copy(owner.unwrap_or(0));
                        continue;
                    }
                    let place = at_site.map_or("the hub".into(), |site| format!("site {site}"));
                    let head = &data[..data.len().min(60)];
                    return self.broken(rule, format!("at {place}: {wrong}: {head:x?}"));
                }
            }
        }
        Ok(())
    }

    // Events.

    /// Whether a packet may get lost or come twice: the site or the hub has ended or begun since, or lately.
    fn is_excused(&self, site: usize, sent: Instant) -> bool {
        let mut excused = self.excused[site].iter();
        excused.any(|(from, until)| *from <= sent && sent <= *until)
    }

    fn excuse(&mut self, site: usize) {
        let now = self.world.now();
        let from = Instant::ZERO + now.since(Instant::ZERO + LOST_BEFORE);
        self.excused[site].push((from, Instant::FAR_FUTURE));
        self.fleet.note_excuse(site);
    }

    /// An end that has begun anew is found: what is sent from now on is safe.
    fn settle_excuses(&mut self) {
        let now = self.world.now();
        for site in 0..self.traffic.len() {
            let up = self
                .world
                .tunnels(site)
                .map(|end| end.is_some_and(|t| t.any_up()));
            let wanted = &self.wanted[site];
            if up == [true; 2]
                && wanted.stopped + wanted.revoked + self.hub_stopped[self.world.route_to(site)]
                    == 0
            {
                let open = self.excused[site].iter_mut();
                open.filter(|(_, until)| *until == Instant::FAR_FUTURE)
                    .for_each(|(_, until)| *until = now + SETTLE);
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each trouble")]
    fn begin(&mut self, what: &What, lasts: Duration) -> Held {
        let now = self.world.now();
        match *what {
            What::Cut(site, uplink, sides) => self.cut(site, uplink, sides, true),
            What::Outage(site) => self.outage(site, true),
            What::OutageOfAll => (0..self.wanted.len()).for_each(|site| self.outage(site, true)),
            What::Rebind(site, uplink) => self.world.rebind(site, uplink),
            What::Readdress(site, uplink) => {
                self.readdressed += 1;
                let [high, low] = self.readdressed.to_be_bytes();
                let address = Ipv4Addr::new(100, 77, high, low);
                self.world.readdress(site, uplink, address);
            }
            What::Unplug(site, uplink) => {
                self.wanted[site].unplugged[uplink] += 1;
                self.plug(site, uplink);
            }
            What::BlockUdp(site, uplink) => {
                self.wanted[site].blocked[uplink] += 1;
                self.world.block_udp(site, uplink, true);
            }
            What::RestartSite { site, clean } => {
                self.excuse(site);
                self.wanted[site].stopped += 1;
                self.fleet.forget_site(site);
                if clean {
                    self.world.stop_site(site);
                } else {
                    self.world.kill_site(site);
                }
            }
            What::RestartHub { hub, clean } => {
                (0..self.wanted.len()).for_each(|site| self.excuse(site));
                self.hub_stopped[hub] += 1;
                self.fleet.forget_hub(hub);
                if clean {
                    self.world.stop_hub_at(hub);
                } else {
                    self.world.kill_hub_at(hub);
                }
            }
            What::HubCut(hub) => {
                self.hub_cut[hub] += 1;
                self.world.set_cut(hub, true);
            }
            What::Apart(site, hub) => {
                self.wanted[site].apart[hub] += 1;
                self.world.set_apart(site, hub, true);
            }
            What::HubAsleep(hub) => {
                let until = now + lasts;
                self.world.suspend_hub(hub, until);
                self.hub_asleep_until[hub] = until.max(self.hub_asleep_until[hub]);
            }
            What::Forged(site, hub) => return self.tell_forged(site, hub),
            What::Stale(site) => self.tell_stale(site),
            What::Suspend(site) => {
                let until = now + lasts;
                self.world.suspend(site, until);
                let asleep = match site {
                    Some(site) => &mut self.wanted[site].asleep_until,
                    None => &mut self.hub_asleep_until[HOME],
                };
                *asleep = until.max(*asleep);
            }
            What::Revoke(site) => {
                self.excuse(site);
                self.wanted[site].revoked += 1;
                self.world.set_enabled(site, false);
            }
            What::Share(site, weight, rate) => self.world.set_share(site, weight, rate),
            What::Scheduler(site, kind) => self.set_scheduler(site, kind),
            What::Disable(site, uplink) => {
                self.wanted[site].disabled[uplink] += 1;
                self.use_path(site, uplink);
            }
            What::Leaving(site, uplink) => {
                self.wanted[site].leaving[uplink] += 1;
                self.leave(site, uplink, PathUse::Leaving(Some(lasts)));
            }
            What::Behind => self.behind += 1,
        }
        Ok(())
    }

    /// A site, or else a hub, that starts again speaks all versions, or none of the newest, as before an upgrade or
    /// after a downgrade.
    fn upgrade(&mut self, who: Result<usize, usize>) {
        let ours = Versions::OURS;
        let mut random = Random::new(self.story.seed ^ self.world.now().as_nanos());
        let newest = ours.newest() - u8::from(random.chance(0.5));
        if let Some(versions) = Versions::new(ours.oldest(), newest) {
            self.tell(&format!("starts with {versions} of the wire"));
            match who {
                Ok(site) => self.world.set_versions(Some(site), versions),
                Err(hub) => self.world.set_hub_versions(hub, versions),
            }
        }
    }

    fn end(&mut self, what: &What) {
        match *what {
            What::Cut(site, uplink, sides) => self.cut(site, uplink, sides, false),
            What::Outage(site) => self.outage(site, false),
            What::OutageOfAll => (0..self.wanted.len()).for_each(|site| self.outage(site, false)),
            What::Unplug(site, uplink) => {
                self.wanted[site].unplugged[uplink] -= 1;
                self.plug(site, uplink);
            }
            What::BlockUdp(site, uplink) => {
                self.wanted[site].blocked[uplink] -= 1;
                let blocked = self.wanted[site].blocked[uplink] > 0;
                self.world.block_udp(site, uplink, blocked);
            }
            What::RestartSite { site, .. } => {
                self.wanted[site].stopped -= 1;
                if self.wanted[site].stopped == 0 {
                    // A site of the version before claims has one hub: it cannot move.
                    if !self.story.spare {
                        self.upgrade(Ok(site));
                    }
                    self.world.start_site(site);
                    (0..self.story.sites[site].len()).for_each(|uplink| {
                        self.use_path(site, uplink);
                    });
                }
            }
            What::RestartHub { hub, .. } => {
                self.hub_stopped[hub] -= 1;
                if self.hub_stopped[hub] == 0 {
                    self.upgrade(Err(hub));
                    self.world.start_hub_at(hub);
                    self.fleet.forget_hub(hub);
                    self.tell_all(hub);
                }
            }
            What::HubCut(hub) => {
                self.hub_cut[hub] -= 1;
                self.world.set_cut(hub, self.hub_cut[hub] > 0);
            }
            What::Apart(site, hub) => {
                self.wanted[site].apart[hub] -= 1;
                let apart = self.wanted[site].apart[hub] > 0;
                self.world.set_apart(site, hub, apart);
            }
            What::Revoke(site) => {
                self.wanted[site].revoked -= 1;
                let enabled = self.wanted[site].revoked == 0;
                self.world.set_enabled(site, enabled);
            }
            What::Share(site, ..) => self.world.set_share(site, 1, None),
            What::Disable(site, uplink) => {
                self.wanted[site].disabled[uplink] -= 1;
                self.use_path(site, uplink);
            }
            What::Leaving(site, uplink) => {
                self.wanted[site].leaving[uplink] -= 1;
                if self.wanted[site].leaving[uplink] == 0 {
                    self.leave(site, uplink, PathUse::Returning);
                }
            }
            What::Behind => self.behind -= 1,
            What::Rebind(..)
            | What::Readdress(..)
            | What::Suspend(_)
            | What::Scheduler(..)
            | What::HubAsleep(_)
            | What::Forged(..)
            | What::Stale(_) => {}
        }
    }

    fn cut(&mut self, site: usize, uplink: usize, sides: Selector, dead: bool) {
        let counts = &mut self.wanted[site].cut[uplink];
        for (index, side) in [Selector::One(Side::Up), Selector::One(Side::Down)]
            .into_iter()
            .enumerate()
        {
            if sides == Selector::Both || sides == side {
                counts[index] = if dead {
                    counts[index] + 1
                } else {
                    counts[index] - 1
                };
            }
        }
        let [up, down] = *counts;
        self.world
            .set_dead(site, uplink, Selector::One(Side::Up), up > 0);
        self.world
            .set_dead(site, uplink, Selector::One(Side::Down), down > 0);
    }

    fn outage(&mut self, site: usize, dead: bool) {
        for uplink in 0..self.story.sites[site].len() {
            self.cut(site, uplink, Selector::Both, dead);
        }
    }

    fn plug(&mut self, site: usize, uplink: usize) {
        let present = self.wanted[site].unplugged[uplink] == 0;
        self.world.set_present(site, uplink, present);
        self.use_path(site, uplink);
    }

    fn use_path(&mut self, site: usize, uplink: usize) {
        let disabled = self.wanted[site].disabled[uplink] > 0;
        let wanted = if disabled {
            PathUse::Disabled
        } else {
            PathUse::Enabled
        };
        self.leave(site, uplink, wanted);
    }

    fn leave(&mut self, site: usize, uplink: usize, wanted: PathUse) {
        if self.wanted[site].stopped > 0 {
            return;
        }
        let (now, uplink) = (self.world.now(), format!("up{uplink}"));
        let command = Command::SetPath { uplink, wanted };
        // A path that is unplugged, or not up, is not changed: the site says so.
        let _refused = self
            .world
            .site_mut(site)
            .session
            .handle_command(now, command);
        self.world.touch_site(site);
    }

    fn set_scheduler(&mut self, site: Option<usize>, kind: SchedulerKind) {
        let now = self.world.now();
        let command = Command::SetScheduler {
            direction: Direction::Both,
            kind,
            peer: None,
        };
        match site {
            Some(site) if self.wanted[site].stopped == 0 => {
                let _done = self
                    .world
                    .site_mut(site)
                    .session
                    .handle_command(now, command);
                self.world.touch_site(site);
            }
            None if self.hub_stopped[HOME] == 0 => {
                let _done = self.world.hub_mut().session.handle_command(now, command);
                self.world.touch_hub();
            }
            Some(_) | None => {}
        }
    }

    // Rules.

    /// What holds at any time.
    fn look(&mut self) -> Held {
        if self.behind > 0 {
            self.world.let_hub_fall_behind();
        }
        self.settle_excuses();
        for site in 0..self.traffic.len() {
            let tunnels = self.world.tunnels(site);
            for (end, tunnel) in ["site", "hub"].into_iter().zip(tunnels) {
                let Some(tunnel) = tunnel else { continue };
                if let Some(excess) = tunnel.footprint().excess() {
                    let footprint = tunnel.footprint();
                    let what =
                        format!("site {site}, at the {end}: too many {excess}: {footprint:?}");
                    return self.broken("memory", what);
                }
            }
            Side::ALL
                .into_iter()
                .for_each(|side| self.listen(site, side));
            for ip in std::mem::take(&mut *taken(&self.dropped[site])) {
                self.traffic[site].note_dropped(&ip);
            }
        }
        for hub in 0..self.world.hub_count() {
            let memory = self.memory_taken(hub);
            self.most_memory = self.most_memory.max(memory);
            let most = self.story.hub_memory;
            let sites = self.traffic.len() + usize::from(self.hostile.is_some());
            if memory > most + MEMORY_SLACK + sites as u64 * MEMORY_EACH {
                return self.broken("memory", format!("hub {hub} has {memory} of {most} bytes"));
            }
        }
        self.look_at_hubs()?;
        let now = (self.world.turns(), self.world.sent(), self.offered);
        let before = std::mem::replace(&mut self.looked, now);
        let turns = now.0 - before.0;
        let reasons = (now.1 - before.1) + (now.2 - before.2);
        if turns > TURNS_FREE + TURNS_EACH * reasons {
            let what = format!("{turns} turns for {reasons} packets within {LOOK:?}");
            return self.broken("spin", what);
        }
        self.errors()
    }

    /// No work panicked.
    fn errors(&self) -> Held {
        let mut found = Vec::new();
        for hub in 0..self.world.hub_count() {
            if let Some(host) = self.world.hub_at(hub) {
                found.push((format!("hub {hub}"), host.session.status().drops));
            }
        }
        for site in 0..self.traffic.len() {
            if self.world.site_runs(site) {
                let drops = self.world.site(site).session.status().drops;
                found.push((format!("site {site}"), drops));
            }
        }
        for (place, drops) in found {
            if drops.get("internal_errors").is_some_and(|count| *count > 0) {
                return self.broken("internal errors", place);
            }
        }
        Ok(())
    }

    /// Tunnels and paths come back, and numbered packets get through.
    fn returns(&mut self, last: Instant) -> Held {
        let count = self.traffic.len();
        let mut bounds: Vec<(Duration, usize)> = (0..count)
            .map(|site| (bound(self.story, site), site))
            .collect();
        bounds.sort_unstable();
        for (after, site) in bounds.iter().copied() {
            self.run_to(last + after)?;
            let up = self
                .world
                .tunnels(site)
                .map(|end| end.is_some_and(|t| t.any_up()));
            if up != [true; 2] {
                let what = format!("site {site} has no tunnel after {after:?}: {up:?}");
                return self.broken("return", what);
            }
        }
        self.paths_return(last, &bounds)?;
        let from = self.world.now();
        self.run_to(from + PROBATION)?;
        let until = self.world.now();
        self.talking = false;
        self.run_to(until + Duration::from_secs(5))?;
        for (site, traffic) in self.traffic.iter().enumerate() {
            for (index, flow) in traffic.numbered.iter().enumerate() {
                let sent = flow.sent.iter().zip(&flow.came);
                let counted = sent.filter(|(at, _)| at.is_some_and(|at| at > from && at < until));
                let came: Vec<bool> = counted.map(|(_, came)| *came > 0).collect();
                let share = came.iter().filter(|came| **came).count() as f64 / came.len() as f64;
                let least = if self.story.gentle {
                    1.0
                } else {
                    PROBATION_SHARE
                };
                // Without packets the share is no number.
                if share.is_nan() || share < least {
                    let what = format!("site {site}, flow {index}: {share:.3} of packets come");
                    return self.broken("return", what);
                }
            }
        }
        Ok(())
    }

    /// Each path of each site works within the bound of the site, counted from `last`, and [`PATHS_TIME`]. On links that
    /// lose packets a path may be suspect again at any instant: there it has worked at some time within
    /// [`PATHS_TIME`] before.
    fn paths_return(&mut self, last: Instant, bounds: &[(Duration, usize)]) -> Held {
        let mut up_at: Vec<BTreeMap<u8, Instant>> = vec![BTreeMap::new(); self.traffic.len()];
        for (after, site) in bounds.iter().copied() {
            let after = after + PATHS_TIME;
            while self.world.now() < last + after {
                let next = self.world.now() + LOOK;
                self.run_to(next.min(last + after))?;
                self.note_paths(&mut up_at);
            }
            let oldest = self.world.now() - PATHS_TIME;
            let paths = self.world.paths(site);
            let down = paths.iter().find(|path| {
                let since = up_at[site].get(&path.id);
                let was_up = since.is_some_and(|at| !self.story.gentle && *at >= oldest);
                path.state != "up" && !was_up
            });
            if let Some(path) = down {
                let what = format!("site {site}: a path is not up after {after:?}: {path:?}");
                return self.broken("return", what);
            }
        }
        Ok(())
    }

    /// Notes which paths work now.
    fn note_paths(&self, up_at: &mut [BTreeMap<u8, Instant>]) {
        let now = self.world.now();
        for (site, up_at) in up_at.iter_mut().enumerate() {
            for path in self.world.paths(site) {
                if path.state == "up" {
                    up_at.insert(path.id, now);
                } else {
                    self.tell(&format!("site {site}: path {} is {}", path.id, path.state));
                }
            }
        }
    }

    /// TCP has delivered everything.
    fn streams_end(&mut self, last: Instant) -> Held {
        let end = last + STREAMS_TIME;
        loop {
            let mut behind = None;
            for (site, traffic) in self.traffic.iter().enumerate() {
                for (index, stream) in traffic.streams.iter().enumerate() {
                    if stream.delivered() < traffic.offered {
                        behind = Some((site, index, stream.delivered(), traffic.offered));
                    }
                }
            }
            let Some((site, index, delivered, offered)) = behind else {
                return Ok(());
            };
            if self.world.now() >= end {
                let what =
                    format!("site {site}, stream {index}: {delivered} of {offered} segments");
                return self.broken("stream", what);
            }
            self.run_to(self.world.now() + Duration::from_secs(1))?;
        }
    }

    /// Each numbered TCP segment came, unless an end began anew, or a queue has dropped that very segment.
    fn what_was_lost(&mut self) -> Held {
        if !self.story.gentle {
            return Ok(());
        }
        for (site, traffic) in self.traffic.iter().enumerate() {
            for (index, flow) in traffic.numbered.iter().enumerate() {
                if !flow.tcp {
                    continue;
                }
                let (mut missing, mut drops, mut first) = (0, 0, None);
                for (number, (sent, came)) in flow.sent.iter().zip(&flow.came).enumerate() {
                    let Some(sent) = sent.filter(|_| *came == 0) else {
                        continue;
                    };
                    if flow.dropped[number] {
                        drops += 1;
                    } else if !self.is_excused(site, sent) {
                        missing += 1;
                        let since = sent.since(Instant::ZERO).as_secs_f64();
                        self.tell(&format!(
                            "site {site}, flow {index}: {number} of {since:.3} s is missing"
                        ));
                        first.get_or_insert((number, sent));
                    }
                }
                if drops > 0 {
                    self.tell(&format!("site {site}, flow {index}: {drops} dropped"));
                }
                if missing > 0 {
                    let what = format!(
                        "site {site}, flow {index}: {missing} segments that no queue dropped: {first:?}"
                    );
                    return self.broken("loss", what);
                }
            }
        }
        Ok(())
    }

    /// What is wrong with the links and sockets at this instant: each path has one of each.
    fn excess_links(&self) -> Option<String> {
        let mut all = 0;
        for site in 0..self.traffic.len() {
            let host = self.world.site(site);
            let paths = self.story.sites[site].len();
            // One more waits at each hub that does not serve.
            let links = paths * self.world.hub_count();
            let has = [
                host.session.links(),
                host.udp_sockets() + host.tcp_connections(),
            ];
            all += links;
            if has != [links, paths] {
                let what = format!("site {site} has {has:?} links and sockets for {paths} paths");
                return Some(what);
            }
        }
        let hubs = (0..self.world.hub_count()).filter_map(|hub| self.world.hub_at(hub));
        let has = hubs.map(|hub| [hub.session.links(), hub.tcp_connections()]);
        let has: Vec<_> = has.collect();
        let links: usize = has.iter().map(|has| has[0]).sum();
        (links != all).then(|| format!("hubs have {has:?} links and TCP connections, sites {all}"))
    }

    /// Memory that all tunnels of a hub take, that of the hostile site included, bytes.
    fn memory_taken(&self, hub: usize) -> u64 {
        let Some(host) = self.world.hub_at(hub) else {
            return 0;
        };
        let peers = host.session.role().peers();
        peers.map(|peer| peer.tunnel().memory()).sum()
    }

    /// Each hub counts the memory that its tunnels take. What it counts beyond that, sites may not take.
    fn memory_is_counted(&self) -> Held {
        for hub in 0..self.world.hub_count() {
            let taken = self.memory_taken(hub);
            let counted = self.world.hub_at(hub).map_or(0, |hub| hub.session.memory());
            if counted != taken {
                let what = format!("hub {hub} counts {counted} bytes, its tunnels take {taken}");
                return self.broken("memory", what);
            }
        }
        Ok(())
    }

    /// Links that nobody needs are closed, and at the end all are. On links that lose packets a path may be silent at
    /// any instant, and have an attempt beside its connection: the numbers fit at some time within [`LINKS_MOMENT`].
    fn leftovers(&mut self) -> Held {
        self.hostile = None;
        self.run_to(self.world.now() + LINKS_TIME)?;
        let end = self.world.now() + LINKS_MOMENT;
        while let Some(what) = self.excess_links() {
            if self.world.now() >= end {
                return self.broken("leftovers", what);
            }
            self.run_to(self.world.now() + LOOK)?;
        }
        self.memory_is_counted()?;
        self.hubs_agree()?;
        for site in 0..self.traffic.len() {
            let left = self.world.stop_site(site);
            if left[1] > 0 {
                return self.broken("leftovers", format!("site {site} leaves {left:?} open"));
            }
        }
        // A goodbye may be lost. Then the hub closes what is idle.
        self.run_to(self.world.now() + LINKS_TIME)?;
        for hub in 0..self.world.hub_count() {
            let links = self.world.hub_at(hub).map_or(0, |hub| hub.session.links());
            let left = self.world.stop_hub_at(hub);
            if links > 0 || left[1] > 0 {
                let what = format!("hub {hub} has {links} links, leaves {left:?}");
                return self.broken("leftovers", what);
            }
        }
        Ok(())
    }
}

/// A tunnel works again within this time.
fn bound(story: &Story, site: usize) -> Duration {
    let paths = story.sites[site].iter();
    let round_trip = paths.map(|path| 2 * path.delay + 4 * path.jitter).max();
    let lossy = if story.gentle {
        Duration::ZERO
    } else {
        RETURN_TIME_LOSSY
    };
    let moves = if story.spare {
        MOVE_TIME
    } else {
        Duration::ZERO
    };
    RETURN_TIME + lossy + moves + round_trip.unwrap_or_default() * RETURN_ROUND_TRIPS
}

/// The name of a site at the hubs.
fn name(site: usize) -> String {
    format!("site{site}")
}
