//! All sites of the swarm on one thread: who has a turn when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, bail};
use ropewalk_driver::{Event, Owner, SocketOptions, Sockets};
use ropewalk_io::clock::Clock;
use ropewalk_session::{Environment, HubAddresses, Slice};
use ropewalk_transport::Identity;
use ropewalk_types::{Duration, Instant, Random};
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::Run;
use crate::hostile::{self, Behaviour, Target, usual_rate};
use crate::process::{Usage, usage};
use crate::report::{Hostile, HubUsage, Report};
use crate::roster;
use crate::site::{Setting, SwarmSite, local_address};
use crate::tuning::{EVENTS, HOSTILE_LEAST, LATE, OTHER_FILES, SOCKET_BYTES};

/// Exit code when some site did not connect.
const NOT_ALL: u8 = 3;
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(1);

/// Connects the sites, keeps them busy, and reports.
///
/// # Errors
/// The secret is not there, the sockets cannot be opened, or the hub's process is not there.
pub(crate) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    if args.hostile.is_some() && (args.common.count < 2 || args.seconds < HOSTILE_LEAST) {
        bail!(
            "--hostile needs --count 2 and --seconds {} at least: the last site comes late",
            HOSTILE_LEAST.as_secs()
        );
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    allow_files(u64::from(args.common.count) * u64::from(args.paths) + OTHER_FILES)?;
    let mut fleet = Fleet::new(args)?;
    let hub = args.hub_pid.map(usage).transpose()?;
    let enemy = Enemy::new(args, &fleet.secret)?;
    let misbehaved = std::thread::scope(|scope| {
        let hostile = enemy.as_ref().map(|enemy| scope.spawn(|| enemy.run()));
        let ends = enemy.as_ref().map(Ends);
        let result = fleet.run(args, &stop, enemy.as_ref());
        drop(ends);
        let hostile = hostile.map(std::thread::ScopedJoinHandle::join);
        result?;
        match hostile {
            Some(Ok(count)) => count.map(Some),
            Some(Err(_)) => bail!("the hostile host panicked"),
            None => Ok(None),
        }
    })?;
    let report = fleet.report(args, hub, misbehaved)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    let idle = report.hostile.as_ref().is_some_and(|one| one.times == 0);
    if report.joined == 0 {
        eprintln!(
            "ropewalk-swarm: no site connected. Does a hub listen on UDP {}? Is --hub-key its key \
             (`ropewalk key show`)? Has the hub read the list of `ropewalk-swarm sites`, made with this \
             secret (`kill -HUP`)?",
            args.hub
        );
    } else if idle {
        eprintln!(
            "ropewalk-swarm: the hub never let the hostile host in: make the list with --count {}, \
             and let the hub read it (`kill -HUP`)",
            args.common.count + 1
        );
    }
    let all = report.joined == fleet.sites.len() && !fleet.sites.is_empty();
    Ok(if all && !idle {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_ALL)
    })
}

/// Lets the process have so many files.
fn allow_files(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum.map(|maximum| maximum.max(wanted)),
    };
    setrlimit(Resource::Nofile, raised).with_context(|| {
        format!("{wanted} files are needed, one for each path: raise the limit with `ulimit -n {wanted}`")
    })
}

/// A host that misbehaves, and its thread's orders.
struct Enemy {
    behaviour: Behaviour,
    target: Target,
    begin: Barrier,
    stop: AtomicBool,
    begun: AtomicBool,
    count: AtomicU64,
}

impl Enemy {
    fn new(args: &Run, secret: &Identity) -> anyhow::Result<Option<Self>> {
        let Some(behaviour) = args.hostile else {
            return Ok(None);
        };
        Ok(Some(Self {
            behaviour,
            target: Target {
                hub: args.hub,
                hub_key: args.hub_key,
                identity: secret.derived(args.common.count)?,
                rate: args.hostile_rate.unwrap_or_else(|| usual_rate(behaviour)),
            },
            begin: Barrier::new(2),
            stop: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            count: AtomicU64::new(0),
        }))
    }

    /// Waits, misbehaves until the end, and says how often.
    fn run(&self) -> anyhow::Result<u64> {
        self.begin.wait();
        hostile::run(self.behaviour, &self.target, &self.stop, &self.count)?;
        Ok(self.count.load(Ordering::Relaxed))
    }

    fn begin(&self) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.begin.wait();
        }
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.begin();
    }
}

/// Ends the thread of an enemy whatever happens here.
struct Ends<'a>(&'a Enemy);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct Fleet {
    clock: Clock,
    sockets: Sockets,
    setting: Setting,
    secret: Identity,
    random: Random,
    sites: Vec<SwarmSite>,
    /// When each site is due, as its last turn said.
    due: Vec<Option<Instant>>,
    /// The same in order, with what has changed since.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Sites that need a turn, each once.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// Usage of the hub when the last site had begun.
    hub: Option<(Instant, Usage)>,
    stopped: Instant,
}

impl Fleet {
    fn new(args: &Run) -> anyhow::Result<Self> {
        let secret = roster::secret(&args.common.secret)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let options = SocketOptions {
            buffer_bytes: SOCKET_BYTES,
            devices: false,
            slice: Slice::WHOLE,
        };
        let local = local_address(args.hub)
            .with_context(|| format!("the hub's address {} is not reached", args.hub))?;
        Ok(Self {
            clock: Clock::new(),
            sockets: Sockets::new(epoll, options),
            setting: Setting {
                hub: Arc::new(HubAddresses::new(&[args.hub])),
                hub_key: args.hub_key,
                local,
                paths: args.paths,
                interval: (args.pings > 0.0).then(|| Duration::from_secs_f64(1.0 / args.pings)),
                bytes: args.bytes,
                phase: 0,
            },
            secret,
            random: Random::new(args.seed),
            sites: Vec::new(),
            due: Vec::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            is_touched: Vec::new(),
            hub: None,
            stopped: Instant::ZERO,
        })
    }

    fn run(&mut self, args: &Run, stop: &AtomicBool, enemy: Option<&Enemy>) -> anyhow::Result<()> {
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
                self.start_site(now)?;
            }
            if end.is_none() && self.sites.len() as u32 == count {
                end = Some(now + args.seconds);
                self.hub = match args.hub_pid {
                    Some(pid) => Some((now, usage(pid)?)),
                    None => None,
                };
            }
            if let (Some(enemy), Some(end)) = (enemy, end) {
                let begin = end - args.seconds / 2;
                if now >= begin && self.setting.phase == 0 {
                    self.setting.phase = 1;
                    enemy.begin();
                    late = Some(now + LATE);
                }
                if late.take_if(|at| *at <= now).is_some() {
                    self.start_site(now)?;
                }
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
            self.turns(now);
        }
    }

    fn start_site(&mut self, now: Instant) -> anyhow::Result<()> {
        let index = u32::try_from(self.sites.len())?;
        let environment = Environment {
            base: self.clock.to_std(Instant::ZERO),
            segmentation: true,
            udp_payload_max: 1_472,
            session: roster::start_number()?.max(1),
            tunnels: self.random.next_u64(),
            transport: None,
            slice: Slice::WHOLE,
        };
        let identity = self.secret.derived(index)?;
        let site = SwarmSite::start(now, Owner(index), identity, &self.setting, &environment)?;
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

    fn turns(&mut self, now: Instant) {
        for index in core::mem::take(&mut self.touched) {
            self.is_touched[index as usize] = false;
            let site = &mut self.sites[index as usize];
            let due = site.turn(now, &self.setting, &mut self.sockets);
            if due != self.due[index as usize]
                && let Some(at) = due
            {
                self.timers.push(Reverse((at, index)));
            }
            self.due[index as usize] = due;
        }
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, latest: Option<Instant>) -> anyhow::Result<()> {
        let timer = self.timers.peek().map(|&Reverse((at, _))| at);
        let wait = timer.into_iter().chain(latest).min();
        // A site that has just begun has its first turn at once.
        let wait = wait.map(|at| match self.touched.is_empty() {
            true => at.since(self.clock.now()),
            false => Duration::ZERO,
        });
        let timeout = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        events.clear();
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(self.sockets.epoll(), spare, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for events failed"),
        }
    }

    fn show(&self, count: u32) {
        let joined = self.sites.iter().filter(|site| site.seen.joined.is_some());
        let paths: u32 = self.sites.iter().map(SwarmSite::paths_up).sum();
        eprintln!(
            "{:6.1} s  {} of {count} sites begun, {} connected, {paths} paths up",
            self.clock.now().since(Instant::ZERO).as_secs_f64(),
            self.sites.len(),
            joined.count(),
        );
    }

    fn report(
        &self,
        args: &Run,
        before: Option<Usage>,
        misbehaved: Option<u64>,
    ) -> anyhow::Result<Report> {
        let after = args.hub_pid.map(usage).transpose()?;
        let hub = match (before, self.hub, after) {
            (Some(start), Some((since, begun)), Some(after)) => Some(HubUsage {
                join_cpu_s: begun.cpu_s - start.cpu_s,
                cpu_share: (after.cpu_s - begun.cpu_s) / self.stopped.since(since).as_secs_f64(),
                resident_mb: after.resident as f64 / 1e6,
                resident_start_mb: start.resident as f64 / 1e6,
            }),
            _ => None,
        };
        let seen = self.sites.iter().map(|site| (&site.seen, site.paths_up()));
        let mut report = Report::new(args.common.count, args.paths, seen, hub);
        if let Some(times) = misbehaved {
            let late = self.sites.get(args.common.count as usize - 1);
            report.hostile = Some(Hostile {
                behaviour: args
                    .hostile
                    .map_or_else(String::new, |behaviour| behaviour.to_string()),
                times,
                seconds: args.seconds.as_secs_f64() / 2.0,
                late_join_ms: late
                    .and_then(|site| site.seen.whole)
                    .map(|took| took.as_secs_f64() * 1e3),
            });
        }
        Ok(report)
    }
}
