//! All sites of the swarm on one thread: who has a turn when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use ropewalk_driver::{Event, Owner, SocketOptions, Sockets};
use ropewalk_io::clock::Clock;
use ropewalk_session::{HubAddresses, SiteHub, Slice};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::{Duration, Instant, Random};
use rustix::event::epoll;

use crate::args::Run;
use crate::enemy::Enemy;
use crate::load::{self, Traffic};
use crate::ping::Requests;
use crate::process::{Usage, still};
use crate::report::{Asked, Hostile, HubUsage, Report};
use crate::roster;
use crate::site::{Habits, Setting, SwarmSite, local_address};
use crate::tuning::{ALL_PRESENT, EVENTS, LATE, MOVE_WATCHED, PROGRESS, SETTLE, SOCKET_BYTES};

/// A hub as a site knows it. The swarm speaks QUIC only.
fn place(name: &str, address: SocketAddr, key: PublicKey) -> SiteHub {
    SiteHub {
        name: name.to_owned(),
        key,
        addresses: Arc::new(HubAddresses::new(&[address])),
        tcp_port: 0,
    }
}

/// All sites, and what they share.
pub(crate) struct Fleet {
    clock: Clock,
    sockets: Sockets,
    setting: Setting,
    habits: Habits,
    requests: Requests,
    pub(crate) secret: Identity,
    random: Random,
    pub(crate) sites: Vec<SwarmSite>,
    /// When each site is due, as its last turn said.
    due: Vec<Option<Instant>>,
    /// The same in order, with what has changed since.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Sites that need a turn, each once.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// Usage of the hub when the last site had begun.
    hub: Option<(Instant, Usage)>,
    /// Since when traffic has counted, without hostile hosts and with them.
    counting: [Option<Instant>; 2],
    stopped: Instant,
}

impl Fleet {
    /// No sites yet.
    ///
    /// # Errors
    /// The secret is not there, or the hub cannot be reached from here.
    pub(crate) fn new(args: &Run) -> anyhow::Result<Self> {
        let secret = roster::secret(&args.common.secret)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let options = SocketOptions {
            buffer_bytes: SOCKET_BYTES,
            devices: false,
            mark: None,
            slice: Slice::WHOLE,
        };
        let local = local_address(args.hub)
            .with_context(|| format!("the hub's address {} is not reached", args.hub))?;
        let clock = Clock::new();
        Ok(Self {
            sockets: Sockets::new(epoll, options),
            setting: Setting {
                home: place("hub", args.hub, args.hub_key),
                spares: args
                    .spare
                    .iter()
                    .zip(&args.spare_key)
                    .map(|(address, key)| place("spare", *address, *key))
                    .collect(),
                base: clock.to_std(Instant::ZERO),
                local,
                paths: args.paths,
                interval: (args.pings > 0.0).then(|| Duration::from_secs_f64(1.0 / args.pings)),
                bytes: args.bytes,
                phase: 0,
                counts: false,
                outages: 0,
                last_move: Instant::FAR_FUTURE,
                last_absence: Instant::FAR_FUTURE,
            },
            habits: Habits {
                traffic: Traffic {
                    profile: args.traffic,
                    interval: args.rate.map(load::interval),
                    window: args.window,
                },
                roam: args.roam,
                vanish: args.vanish,
            },
            requests: Requests::new(),
            clock,
            secret,
            random: Random::new(args.seed),
            sites: Vec::new(),
            due: Vec::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            is_touched: Vec::new(),
            hub: None,
            counting: [None; 2],
            stopped: Instant::ZERO,
        })
    }

    /// Begins the sites, and goes on until the end or until told to stop.
    ///
    /// # Errors
    /// A site cannot begin, or the hub's process is gone.
    pub(crate) fn run(
        &mut self,
        args: &Run,
        stop: &AtomicBool,
        enemy: Option<&Enemy>,
    ) -> anyhow::Result<()> {
        // The last site begins late if there is an enemy.
        let count = args.common.count - u32::from(enemy.is_some());
        let mut late = None;
        let between = args.join_over / count;
        let mut events = Vec::with_capacity(EVENTS);
        let mut progress = Instant::ZERO;
        let mut end = None;
        loop {
            let mut now = self.clock.now();
            if stop.load(Ordering::Relaxed) || end.is_some_and(|end| now >= end) {
                self.stopped = now;
                return Ok(());
            }
            let begun = u32::try_from(self.sites.len()).unwrap_or(u32::MAX);
            if begun < count && now >= Instant::ZERO + between * begun {
                self.start_site(now, &self.habits.clone())?;
            }
            if end.is_none() && self.sites.len() as u32 == count {
                end = Some(now + args.seconds);
                self.all_begun(now, args);
            }
            if let (Some(enemy), Some(end)) = (enemy, end) {
                let begin = end - args.seconds / 2;
                if now >= begin && self.setting.phase == 0 {
                    self.setting.phase = 1;
                    enemy.begin();
                    late = Some(now + LATE);
                }
                if late.take_if(|at| *at <= now).is_some() {
                    self.start_site(now, &Habits::QUIET)?;
                }
            }
            if let Some(end) = end {
                let settled = end - args.seconds + SETTLE.min(args.seconds / 4);
                self.count(now, settled);
            }
            if !args.quiet && now >= progress {
                progress = now + PROGRESS;
                self.show(args.common.count);
            }
            let next = (begun < count).then(|| Instant::ZERO + between * (begun + 1));
            let middle = end.filter(|_| enemy.is_some() && self.setting.phase == 0);
            let middle = middle.map(|end| end - args.seconds / 2);
            let shown = (!args.quiet).then_some(progress);
            let latest = [next, end, middle, late, shown];
            self.wait(&mut events, latest.into_iter().flatten().min())?;
            now = self.clock.now();
            for event in &events {
                let Event { owner, ready } = Event::decode(event.data.u64());
                if let Some(site) = self.sites.get_mut(owner.0 as usize) {
                    site.read(now, ready, &mut self.sockets);
                    self.touch(owner.0);
                }
            }
            self.touch_due(now);
            self.turns(now)?;
        }
    }

    /// The last site but a late one has begun.
    fn all_begun(&mut self, now: Instant, args: &Run) {
        self.setting.last_move = now + args.seconds - MOVE_WATCHED.min(args.seconds);
        self.setting.last_absence = now + args.seconds - ALL_PRESENT.min(args.seconds);
        self.hub = args.hub_pid.and_then(still).map(|usage| (now, usage));
    }

    /// Counts traffic once it has settled.
    fn count(&mut self, now: Instant, settled: Instant) {
        if now >= settled {
            self.setting.counts = true;
            self.counting[self.setting.phase].get_or_insert(now);
        }
    }

    fn start_site(&mut self, now: Instant, habits: &Habits) -> anyhow::Result<()> {
        let index = u32::try_from(self.sites.len())?;
        let identity = self.secret.derived(index)?;
        let random = self.random.fork();
        let site = SwarmSite::start(now, Owner(index), identity, habits, random, &self.setting)?;
        self.sites.push(site);
        self.due.push(None);
        self.is_touched.push(false);
        self.touch(index);
        Ok(())
    }

    fn touch(&mut self, index: u32) {
        if !core::mem::replace(&mut self.is_touched[index as usize], true) {
            self.touched.push(index);
        }
    }

    fn touch_due(&mut self, now: Instant) {
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            if at > now {
                return;
            }
            self.timers.pop();
            if self.due[index as usize] == Some(at) {
                self.touch(index);
            }
        }
    }

    fn turns(&mut self, now: Instant) -> anyhow::Result<()> {
        for index in core::mem::take(&mut self.touched) {
            self.is_touched[index as usize] = false;
            let site = &mut self.sites[index as usize];
            self.setting.outages -= u32::from(site.is_out);
            let due = site.turn(now, &self.setting, &mut self.sockets, &mut self.requests)?;
            self.setting.outages += u32::from(site.is_out);
            if due != self.due[index as usize]
                && let Some(at) = due
            {
                self.timers.push(Reverse((at, index)));
            }
            self.due[index as usize] = due;
        }
        Ok(())
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, latest: Option<Instant>) -> anyhow::Result<()> {
        let timer = self.timers.peek().map(|&Reverse((at, _))| at);
        let wait = timer.into_iter().chain(latest).min();
        // A site that has just begun has its first turn at once.
        let wait = wait.map(|at| match self.touched.is_empty() {
            true => at.since(self.clock.now()),
            false => Duration::ZERO,
        });
        ropewalk_io::events::wait(self.sockets.epoll(), events, wait)
            .context("waiting for events failed")
    }

    fn show(&self, count: u32) {
        let joined = self.sites.iter().filter(|site| site.seen.is_joined());
        let paths = self.sites.iter().map(SwarmSite::paths_up);
        let now = paths.clone().filter(|paths| *paths > 0);
        eprintln!(
            "{:6.1} s  {} of {count} sites begun, {} have connected, {} are connected now, {} paths up",
            self.clock.now().since(Instant::ZERO).as_secs_f64(),
            self.sites.len(),
            joined.count(),
            now.count(),
            paths.sum::<u32>(),
        );
    }

    /// What the sites have seen. It says nothing of a hub whose process is gone.
    pub(crate) fn report(
        &mut self,
        args: &Run,
        before: Option<Usage>,
        misbehaved: Option<u64>,
    ) -> Report {
        let after = args.hub_pid.and_then(still);
        let hub = match (before, self.hub, after) {
            (Some(start), Some((since, begun)), Some(after)) => Some(HubUsage {
                join_cpu_s: begun.cpu_s - start.cpu_s,
                cpu_share: (after.cpu_s - begun.cpu_s) / self.stopped.since(since).as_secs_f64(),
                resident_mb: after.resident as f64 / 1e6,
                resident_start_mb: start.resident as f64 / 1e6,
            }),
            _ => None,
        };
        for site in &mut self.sites {
            site.end(self.stopped);
        }
        let [before, with] = self.counting;
        let counted = [
            before.map(|since| with.unwrap_or(self.stopped).since(since)),
            with.map(|since| self.stopped.since(since)),
        ];
        let asked = Asked {
            sites: args.common.count,
            paths: args.paths,
            traffic: args.traffic,
            late: args.hostile.is_some(),
            spares: !args.spare.is_empty(),
            counted: counted.map(Option::unwrap_or_default),
        };
        let seen = self.sites.iter().map(|site| (&site.seen, site.paths_up()));
        let mut report = Report::new(&asked, seen, hub);
        if let Some(times) = misbehaved {
            let late = self.sites.get(args.common.count as usize - 1);
            let late = late.and_then(|site| site.seen.starts.first()?.whole);
            report.hostile = Some(Hostile {
                behaviour: args
                    .hostile
                    .map_or_else(String::new, |behaviour| behaviour.to_string()),
                times,
                seconds: args.seconds.as_secs_f64() / 2.0,
                late_join_ms: late.map(|took| took.as_secs_f64() * 1e3),
                goodput_ratio: report.goodput_ratio(),
            });
        }
        report
    }
}
