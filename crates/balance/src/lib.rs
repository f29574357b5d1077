//! Spreads flows over uplinks on this machine alone, without a hub.
//!
//! The kernel does all work per packet. The firewall table chooses an uplink for each new flow
//! (`ruleset`). Routing rules lead marked packets to the table of their uplink (`setup`). This
//! program follows the interfaces (`members`), probes them (`probe`, `health`) and measures them
//! (`gauge`, `survey`). It gives the table new places when shares change (`shares`), keeps the
//! table (`table`), and ends flows on a dead uplink (`terminate`).
//!
//! Invariant: the table holds what `apply` computed last from members, health and measurements.
//! Nothing else writes it, but for the addresses of names.

mod doubts;
mod gauge;
mod health;
mod kept;
mod marks;
mod members;
mod names;
mod order;
mod plan;
mod probe;
mod ruleset;
mod setup;
mod shares;
mod split;
pub mod status;
mod survey;
mod table;
mod terminate;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ropewalk_api::{BalanceStatus, RuleStatus, UplinkStatus};
use ropewalk_config::BalanceConfig;
use ropewalk_core::balance::liveness::PROBE_INTERVAL;
use ropewalk_core::balance::{Affinity, Answer as Echoed};
use ropewalk_host::Changes;
use ropewalk_io::netlink::{Interface, Watch};
use ropewalk_types::Instant;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use gauge::Gauge;
use health::Health;
use members::{FAMILIES, Member, WayId};
use probe::{Answer, Prober};
use ruleset::Group;
use setup::Setup;
use survey::Survey;
use terminate::DeadWay;

pub use marks::TUNNEL_GROUP;
pub use members::Family;
pub use order::{check, service};
pub use plan::{Plan, plan};
pub use split::Split;

/// How often silence is looked for. Longer: less work, dead uplinks are found later. Twice this
/// must stay below the `LOOK_MAX` of `core::balance::liveness`, or it counts as a stall.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How often weights follow the capacities. Longer: steadier shares, less work, later to follow.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// How often captive portals are looked for. Longer: fewer bytes, portals are found and left later.
const PORTAL_INTERVAL: Duration = Duration::from_secs(10);
/// Pauses after which clients are told again that their uplink is dead: what tells them may be
/// lost. Longer: surer on bad links, later ends.
const TERMINATE_AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(550)];
/// How long after that the rest is forgotten. Longer: more clients that speak late are reset, what
/// is left hangs for longer.
const FORGET_AFTER: Duration = Duration::from_secs(2);
/// How long a stop waits for clients to answer that they are told of the end: twice. Longer: more
/// connections end at once, slower stops.
const LEAVE: Duration = Duration::from_millis(400);
/// Portal answers that may wait; one for each uplink and family is enough.
const PORTALS_MAX: usize = 64;

/// What the API reads, and what a reload brings.
#[derive(Debug)]
pub struct Shared {
    /// State as it was published last.
    pub status: BalanceStatus,
    started: std::time::Instant,
    /// A configuration that was read again and is to be taken over.
    /// With the number that [`check`] gave.
    pub reloaded: Option<(u32, BalanceConfig)>,
}

impl Shared {
    /// Before the first uplink is known.
    #[must_use]
    pub fn new(config: &BalanceConfig) -> Self {
        Self {
            status: BalanceStatus {
                mode: config.mode.name().to_owned(),
                affinity_s: config.affinity.as_secs(),
                ..BalanceStatus::default()
            },
            started: std::time::Instant::now(),
            reloaded: None,
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// What the API reads, for this thread alone. A thread that panicked while it held the lock leaves
/// sound values.
pub fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both ends of what tasks tell the loop.
type Channel<T> = (mpsc::Sender<T>, mpsc::Receiver<T>);

/// Spreads flows. Its owner awaits what is next and hands it back, so that it may do other things
/// between.
pub struct Balance {
    config: BalanceConfig,
    /// Number of its rules at the helper.
    version: u32,
    /// The tunnel that only some flows go beside.
    split: Option<Split>,
    members: Vec<Member>,
    health: Health,
    gauge: Gauge,
    affinity: Affinity,
    prober: Prober,
    survey: Survey,
    setup: Setup,
    /// What the table was made from last, and its number; nothing before it was made.
    frame: String,
    table: Option<u64>,
    /// What the table holds.
    groups: Vec<Group>,
    usable: Vec<[bool; 2]>,
    /// Dead ways whose flows end, because there are others to take.
    refused: BTreeSet<WayId>,
    terminated: Arc<Mutex<BTreeMap<u8, u64>>>,
    /// Those that are being ended; stopped when the way comes back, which has new ones then.
    terminating: BTreeMap<WayId, JoinHandle<()>>,
    names: names::Names,
    shared: Arc<Mutex<Shared>>,
    answers: mpsc::Receiver<Answer>,
    portals: Channel<(WayId, bool)>,
    interfaces: watch::Receiver<Vec<Interface>>,
    reloads: mpsc::Receiver<()>,
    _watching: Watch,
    timers: Timers,
    measured: std::time::Instant,
    origin: std::time::Instant,
}

/// What comes next.
pub enum Turn {
    /// The interfaces have changed.
    Interfaces,
    /// The configuration was read again.
    Reload,
    /// A probe was answered.
    Answer(Answer),
    /// Whether a captive portal answers on a way.
    Portal(WayId, bool),
    /// Addresses of names were found.
    Names(names::Found),
    /// A measurement of an idle uplink has ended.
    Surveyed(survey::Done),
    /// Probes are due.
    Probe,
    /// Silence is to be looked for.
    Look,
    /// Shares are to follow the capacities.
    Measure,
    /// Captive portals are to be looked for.
    LookForPortals,
}

struct Timers {
    look: Interval,
    probe: Interval,
    measure: Interval,
    portal: Interval,
}

impl Timers {
    fn new() -> Self {
        let every = |period| {
            let mut timer = interval(period);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        };
        Self {
            look: every(LOOK_INTERVAL),
            probe: every(PROBE_INTERVAL),
            measure: every(MEASURE_INTERVAL),
            portal: every(PORTAL_INTERVAL),
        }
    }
}

impl Balance {
    /// Sets this machine up and begins to spread: everything, or what `split` leaves.
    ///
    /// # Errors
    /// Not permitted, or something of the machine cannot be read or set.
    pub async fn start(
        config: BalanceConfig,
        split: Option<Split>,
        shared: Arc<Mutex<Shared>>,
        changes: &mut Changes,
        reloads: mpsc::Receiver<()>,
    ) -> anyhow::Result<Self> {
        let (notify_interfaces, mut interfaces) = watch::channel(Vec::new());
        let watching = Watch::start(Box::new(move |list| {
            notify_interfaces.send_replace(list);
        }))
        .context("cannot follow the network interfaces")?;
        interfaces
            .changed()
            .await
            .context("cannot read the network interfaces")?;
        for doubt in doubts::doubts(&interfaces.borrow(), &config) {
            tracing::warn!("{doubt}");
        }
        let (prober, answers) = Prober::new(&config.probe);
        let mut balance = Self {
            names: names::Names::new(&config.rules),
            split,
            members: Vec::new(),
            health: Health::default(),
            survey: Survey::new(&config.probe),
            gauge: Gauge::default(),
            affinity: Affinity::default(),
            prober,
            setup: Setup::default(),
            frame: String::new(),
            table: None,
            groups: Vec::new(),
            usable: Vec::new(),
            refused: BTreeSet::new(),
            terminated: Arc::default(),
            terminating: BTreeMap::new(),
            shared,
            answers,
            portals: mpsc::channel(PORTALS_MAX),
            interfaces,
            reloads,
            _watching: watching,
            timers: Timers::new(),
            measured: std::time::Instant::now(),
            origin: std::time::Instant::now(),
            config,
            version: 0,
        };
        changes.table(marks::TABLE)?;
        balance.follow(changes)?;
        if let Err(error) = terminate::forget_stale(&balance.members) {
            tracing::debug!(%error, "connections of an earlier run are not looked through");
        }
        balance.names.fill();
        Ok(balance)
    }

    /// Time since the start of the program.
    #[must_use]
    pub fn now(&self) -> Instant {
        let nanos = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Waits for what is next. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// The interfaces can no longer be followed.
    pub async fn next(&mut self) -> anyhow::Result<Turn> {
        let timers = &mut self.timers;
        Ok(tokio::select! {
            changed = self.interfaces.changed() => {
                changed.context("following the network interfaces ended")?;
                Turn::Interfaces
            }
            Some(()) = self.reloads.recv() => Turn::Reload,
            Some(answer) = self.answers.recv() => Turn::Answer(answer),
            Some((way, captive)) = self.portals.1.recv() => Turn::Portal(way, captive),
            Some(found) = self.names.next() => Turn::Names(found),
            Some(done) = self.survey.next() => Turn::Surveyed(done),
            _ = timers.probe.tick() => Turn::Probe,
            _ = timers.look.tick() => Turn::Look,
            _ = timers.measure.tick() => Turn::Measure,
            _ = timers.portal.tick() => Turn::LookForPortals,
        })
    }

    /// Does what [`Balance::next`] brought.
    ///
    /// # Errors
    /// This machine cannot be set up.
    pub fn take(&mut self, turn: Turn, changes: &mut Changes) -> anyhow::Result<()> {
        match turn {
            Turn::Interfaces => self.follow(changes)?,
            Turn::Reload => self.take_reload(changes)?,
            Turn::Answer(answer) => self.take_answer(&answer),
            Turn::Portal(way, captive) => {
                self.health.portal(way, captive);
                self.refresh()?;
            }
            Turn::Names(found) => self.names.take(found),
            Turn::Surveyed(done) => {
                let now = self.now();
                self.survey.take(now, &done);
                self.probe_capacity();
            }
            Turn::Probe => {
                for number in self.gauge.look(&self.members) {
                    let now = self.now();
                    self.health.traffic(now, number);
                }
                let now = self.now();
                self.prober.send(now);
            }
            Turn::Look => {
                while let Ok(answer) = self.answers.try_recv() {
                    self.take_answer(&answer);
                }
                let now = self.now();
                self.health.timeout(now);
                self.refresh()?;
            }
            Turn::Measure => {
                self.gauge.end_interval(self.now(), self.measured.elapsed());
                self.measured = std::time::Instant::now();
                self.keep(changes)?;
                self.probe_capacity();
                self.rebalance()?;
            }
            Turn::LookForPortals => self.look_for_portals(),
        }
        Ok(())
    }

    fn take_answer(&mut self, answer: &Answer) {
        let known = match self.prober.take(answer, self.origin) {
            Some(Echoed::RoundTrip(rtt)) => {
                self.gauge.round_trip(answer.way.0, rtt);
                true
            }
            Some(Echoed::Late) => true,
            Some(Echoed::Unknown) | None => false,
        };
        if known {
            self.health.answer(self.now(), answer.way);
        }
    }

    fn take_reload(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let Some((version, new)) = lock(&self.shared).reloaded.take() else {
            return Ok(());
        };
        let old = (self.version, self.config.clone());
        self.version = version;
        self.config.mode = new.mode;
        self.config.uplinks = new.uplinks;
        self.config.extras = new.extras;
        self.config.rules = new.rules;
        if let Err(error) = self.follow(changes) {
            tracing::error!(
                error = format!("{error:#}"),
                "the new configuration cannot be carried out; the old one stays"
            );
            (self.version, self.config) = old;
            self.follow(changes)?;
        }
        self.look_up_names();
        Ok(())
    }

    /// Takes the latest state of the interfaces.
    fn follow(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let interfaces = self.interfaces.borrow_and_update().clone();
        let former = std::mem::take(&mut self.members);
        self.members = members::follow(&interfaces, &self.config, &former);
        for member in &self.members {
            let old = former.iter().find(|old| old.number == member.number);
            match old {
                Some(old) if old.present && !member.present => {
                    tracing::warn!(uplink = member.name, "uplink is gone");
                }
                Some(old) if old.present => {}
                _ if member.present => tracing::info!(uplink = member.name, "uplink is there"),
                _ => {}
            }
        }
        self.prober.follow(&self.members);
        self.health.follow(self.now(), &self.members, &self.prober);
        self.gauge.look(&self.members);
        let setup = Setup::new(&self.members, setup::has_ipv6(), self.split.is_some());
        setup.apply(&self.setup, changes)?;
        self.setup = setup;
        setup::settings(&self.config, &self.members, changes)?;
        let usable = self.health.usable(&self.members);
        let groups = self.compute(&usable);
        self.usable = usable;
        self.groups = groups;
        let before = self.refuse();
        self.write()?;
        self.terminate_moved(&former);
        self.terminate_dead(&before);
        self.publish();
        Ok(())
    }

    fn compute(&self, usable: &[[bool; 2]]) -> Vec<Group> {
        let readings = self.gauge.readings(&self.members);
        shares::groups(&self.config, &self.members, usable, &readings)
    }

    /// Acts on ways that died or came back.
    fn refresh(&mut self) -> anyhow::Result<()> {
        let usable = self.health.usable(&self.members);
        if usable == self.usable {
            return Ok(());
        }
        self.groups = self.compute(&usable);
        let former = std::mem::replace(&mut self.usable, usable);
        let before = self.refuse();
        self.write()?;
        for (member, (old, new)) in self.members.iter().zip(former.iter().zip(&self.usable)) {
            for family in FAMILIES
                .into_iter()
                .filter(|f| old[*f as usize] != new[*f as usize])
            {
                let (state, _) = self.health.state(member, family);
                let family = status::family_name(family);
                tracing::info!(uplink = member.name, family, state, "uplink changed");
            }
        }
        self.terminate_dead(&before);
        self.publish();
        Ok(())
    }

    /// Takes what was found of idle uplinks, and goes on finding out.
    fn probe_capacity(&mut self) {
        let readings = self.gauge.readings(&self.members);
        self.survey
            .begin(self.now(), &self.members, &readings, &self.health);
        self.gauge.estimates(|number| self.survey.estimate(number));
    }

    /// Gives the table new places when the weights have changed.
    fn rebalance(&mut self) -> anyhow::Result<()> {
        let groups = self.compute(&self.usable);
        if shares::differ(&self.groups, &groups) {
            self.groups = groups;
            self.write()?;
        }
        self.let_go()?;
        self.publish();
        Ok(())
    }

    /// Computes which ways are refused; returns those that were. While no way of a family is
    /// usable, its flows go on waiting: they have nowhere else to go, and the outage may be short.
    fn refuse(&mut self) -> BTreeSet<WayId> {
        let mut refused = BTreeSet::new();
        for family in FAMILIES {
            let is_usable = |index: usize| {
                let usable = self.usable.get(index);
                usable.is_some_and(|usable| usable[family as usize])
            };
            if !(0..self.members.len()).any(is_usable) {
                continue;
            }
            let dead = (0..self.members.len()).filter(|&index| !is_usable(index));
            refused.extend(dead.map(|index| (self.members[index].number, family)));
        }
        for back in self.refused.difference(&refused) {
            if let Some(task) = self.terminating.remove(back) {
                task.abort();
            }
        }
        std::mem::replace(&mut self.refused, refused)
    }

    /// Names of the uplinks.
    #[must_use]
    pub fn uplinks(&self) -> Vec<&str> {
        let names = self.members.iter().map(|member| member.name.as_str());
        names.collect()
    }

    /// Ends the flows that lose their way out with the rules, so that programs notice at once and
    /// try again. These are the flows over other uplinks than that of the main route.
    pub async fn leave(&mut self) {
        let stranded = members::stranded(&self.interfaces.borrow(), &self.members);
        if stranded.is_empty() {
            return;
        }
        let before = std::mem::replace(&mut self.refused, stranded);
        match self.write() {
            Ok(()) => {
                self.terminate_dead(&before);
                tokio::time::sleep(LEAVE).await;
            }
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "connections over other uplinks than the main one hang"
            ),
        }
    }

    /// Ends the flows of ways that are refused from now on.
    fn terminate_dead(&mut self, before: &BTreeSet<WayId>) {
        let dead: Vec<WayId> = self.refused.difference(before).copied().collect();
        for (number, family) in dead {
            let member = self.members.iter().find(|member| member.number == number);
            if let Some(member) = member.cloned() {
                let way = DeadWay {
                    number,
                    addresses: member.held(family),
                    readdressed: false,
                };
                self.terminate(&member, family, way);
            }
        }
    }

    /// Ends the flows of addresses that are gone: nothing comes back to them.
    fn terminate_moved(&mut self, former: &[Member]) {
        for old in former {
            let new = self.members.iter().find(|m| m.number == old.number);
            let held = new.map(|new| new.held.clone()).unwrap_or_default();
            for family in FAMILIES {
                let mut gone = old.held(family);
                // A privacy address that has been replaced still carries what was opened with it.
                gone.retain(|ip| !held.contains(ip));
                if old.way(family).is_some() && !gone.is_empty() {
                    let way = DeadWay {
                        number: old.number,
                        addresses: gone,
                        readdressed: true,
                    };
                    self.terminate(old, family, way);
                }
            }
        }
    }

    fn terminate(&mut self, member: &Member, family: members::Family, way: DeadWay) {
        let number = way.number;
        let way = Arc::new(way);
        let counts = Arc::clone(&self.terminated);
        let uplink = member.name.clone();
        let task = tokio::spawn(async move {
            let once = || {
                let way = Arc::clone(&way);
                tokio::task::spawn_blocking(move || terminate::terminate(&way))
            };
            match once().await {
                Ok(Ok(done)) => {
                    let ended = u64::try_from(done.own + done.clients).unwrap_or(u64::MAX);
                    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                    *counts.entry(number).or_default() += ended;
                    let terminate::Terminated {
                        own,
                        clients,
                        forgotten,
                    } = done;
                    tracing::info!(uplink, own, clients, forgotten, "ended what hung on it");
                }
                Ok(Err(error)) => tracing::warn!(uplink, %error, "connections were not ended"),
                Err(error) => tracing::warn!(uplink, %error, "connections were not ended"),
            }
            for pause in TERMINATE_AGAIN {
                tokio::time::sleep(pause).await;
                let _ = once().await;
            }
            tokio::time::sleep(FORGET_AFTER).await;
            let _ = tokio::task::spawn_blocking(move || terminate::forget(&way)).await;
        });
        self.terminating.insert((number, family), task);
    }

    fn look_for_portals(&self) {
        let Some(url) = &self.config.probe.portal else {
            return;
        };
        for member in self.members.iter().filter(|member| member.present) {
            for family in FAMILIES.into_iter().filter(|f| member.way(*f).is_some()) {
                let (url, member, sender) = (url.clone(), member.clone(), self.portals.0.clone());
                tokio::spawn(async move {
                    if let Some(captive) = probe::is_captive(&url, &member, family).await {
                        let _ = sender.try_send(((member.number, family), captive));
                    }
                });
            }
        }
    }

    fn publish(&self) {
        let readings = self.gauge.readings(&self.members);
        let uplinks = self.members.iter().zip(&readings);
        let status = BalanceStatus {
            mode: self.config.mode.name().to_owned(),
            affinity_s: self.config.affinity.as_secs(),
            uplinks: uplinks.map(|(m, r)| self.uplink_status(m, r)).collect(),
            rules: self.rules_status(),
        };
        lock(&self.shared).status = status;
    }

    fn uplink_status(&self, member: &Member, reading: &gauge::Reading) -> UplinkStatus {
        let [v4, v6] = FAMILIES.map(|family| self.health.state(member, family));
        let share = |family| {
            let group = self.groups.first();
            group.map_or(0.0, |group| shares::share(group, family, member.number))
        };
        let mbit = |rate: ropewalk_types::Rate| rate.bits_per_sec() as f64 / 1e6;
        let terminated = self
            .terminated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut status = UplinkStatus {
            uplink: member.name.clone(),
            number: member.number,
            mark: marks::key(member.number),
            state_ipv4: v4.0.to_owned(),
            state_ipv6: v6.0.to_owned(),
            share_ipv4: share(members::Family::V4),
            share_ipv6: share(members::Family::V6),
            weight: member.weight,
            capacity_mbit: mbit(reading.capacity),
            capacity_measured: reading.known,
            capacity_probed: reading.estimated,
            load_mbit: mbit(reading.load),
            rtt_ms: reading.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            metered: member.metered,
            standby: member.standby,
            tx_bytes: reading.bytes.sent,
            rx_bytes: reading.bytes.received,
            failures: v4.1 + v6.1,
            severed: terminated.get(&member.number).copied().unwrap_or(0),
            ..UplinkStatus::default()
        };
        status.reason = self.reason(&status);
        status
    }

    /// Why an uplink has the share it has.
    fn reason(&self, status: &UplinkStatus) -> String {
        use ropewalk_core::balance::Mode;
        let used = status.is_used();
        let text = match status.state() {
            "absent" => "the interface is down, gone, or has no address or default route",
            "dead" if used => "no uplink answers probes: all are tried",
            "dead" => "no answer to probes",
            "captive" => "a captive portal answers",
            "up" | "unproven" => match (self.config.mode, used) {
                (_, false) if status.standby => "standby: others work",
                (Mode::Cheapest, false) => "metered: others cost nothing",
                (Mode::Failover, true) => "the first that works",
                (Mode::Failover, false) => "one before it works",
                (Mode::LeastFinish, true) => "by capacity and load",
                (Mode::LeastFinish, false) => "others finish sooner",
                (Mode::Weighted | Mode::Cheapest, _) if status.weight.is_some() => "set weight",
                (Mode::Weighted | Mode::Cheapest, _) if status.capacity_measured => {
                    "measured capacity"
                }
                (Mode::Weighted | Mode::Cheapest, _) if status.capacity_probed => {
                    "probed while idle"
                }
                (Mode::Weighted | Mode::Cheapest, _) => "never seen full: as fast as the fastest",
            },
            _ => "",
        };
        text.to_owned()
    }

    fn rules_status(&self) -> Vec<RuleStatus> {
        let named = |places: &[u8]| {
            let used = self.members.iter().filter(|m| places.contains(&m.number));
            used.map(|member| member.name.clone()).collect::<Vec<_>>()
        };
        let rules = self.config.rules.iter().zip(self.groups.iter().skip(1));
        let rules = rules.enumerate().map(|(index, (rule, group))| RuleStatus {
            rule: rule.name.clone(),
            uplinks_ipv4: named(&group.places[0]),
            uplinks_ipv6: named(&group.places[1]),
            addresses: self.names.count(index),
        });
        rules.collect()
    }
}
