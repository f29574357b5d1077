//! Trial: hubs invite and revoke sites at the same time, while hubs and members of etcd die and networks are cut, all by
//! chance from a seed. [`history::check`] judges what commands answered and hubs said.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ropewalk_api::Status;
use ropewalk_testbed::gateway::Gateway;
use ropewalk_testbed::{Finished, Namespace, programs};
use ropewalk_types::Random;
use serde::Serialize;
use serde_json::Value;

use super::etcd::MEMBERS;
use super::history::{self, Change, Entry, Event, List, Operation, Outcome, Sight};
use super::swarm::{Member, Swarm};
use super::{Cut, Fleet, FleetSpec, NAMES, Row, want};

/// What is played.
#[derive(Clone, Debug)]
pub struct RandomSpec {
    /// For how long things break.
    pub time: Duration,
    /// Seed of all choices. When they take effect is the machine's doing.
    pub seed: u64,
    /// Sites that run, and come and go.
    pub sites: u32,
    /// Where the history is written, a JSON object a line.
    pub history: PathBuf,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Seed.
    pub seed: u64,
    /// How long things broke, seconds.
    pub seconds: f64,
    /// What was broken, and how often.
    pub faults: BTreeMap<String, usize>,
    /// Commands by what they asked for and how they ended.
    pub commands: BTreeMap<String, usize>,
    /// Looks at hubs, and at how many of them a site was served.
    pub looks: usize,
    /// Looks at which the hub served a site.
    pub looks_serving: usize,
    /// Lists of all sites.
    pub lists: usize,
    /// Longest time after its revocation that a hub which saw etcd was seen to serve a site, milliseconds.
    pub longest_after_revocation_ms: Option<u64>,
    /// Events of the history.
    pub events: usize,
    /// Where it is.
    pub history: PathBuf,
}

/// Names that nobody runs under, which are invited by token and revoked.
const GUESTS: u32 = 20;
/// Share of orders that revoke a site which was invited at the same hub, and of the others that revoke any.
const REVOKE_KNOWN: f64 = 0.4;
const REVOKE_ANY: f64 = 0.2;
/// Shortest and longest pause of who gives orders at a hub, seconds.
const PAUSE_S: (f64, f64) = (0.05, 0.5);
/// How often a hub is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often all sites are listed.
const LISTS: Duration = Duration::from_secs(2);
/// How long a fault lasts, seconds.
const FAULT_S: (f64, f64) = (2.0, 15.0);
/// Time between two faults, seconds.
const QUIET_S: (f64, f64) = (1.0, 8.0);
/// How long everything runs whole before the end is judged.
const END: Duration = Duration::from_secs(8);
/// A copy older than this is not that of a hub that sees etcd, seconds.
const FRESH_S: f64 = 3.0;
/// Longest time of one command.
const COMMAND: Duration = Duration::from_secs(40);

/// What gives orders at a hub, whether it runs or not.
#[derive(Clone, Debug)]
struct Desk {
    name: &'static str,
    space: Namespace,
    config: PathBuf,
    program: PathBuf,
    begun: Instant,
    events: Sender<Event>,
}

impl Desk {
    fn run(&self, arguments: &[&str]) -> Result<Finished> {
        let program = self.space.program(&self.program).args(arguments);
        program.arg("--config").arg(&self.config).run(COMMAND)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn tell(&self, event: Event) {
        // Nobody listens any more once the run has failed.
        let _ = self.events.send(event);
    }

    fn operate(&self, change: Change, site: &str, key: Option<&str>) -> Outcome {
        let begin_ms = self.now_ms();
        let finished = match (change, key) {
            (Change::Invite, Some(key)) => self.run(&["invite", site, "--public-key", key]),
            (Change::Invite, None) => self.run(&["invite", site]),
            (Change::Revoke, _) => self.run(&["invite", "--revoke", site]),
        };
        let (outcome, blocks) = match finished {
            Ok(finished) => outcome(change, &finished),
            // It was killed because it took too long.
            Err(_) => (Outcome::Unknown, Vec::new()),
        };
        self.tell(Event::Operation(Operation {
            hub: self.name.to_owned(),
            change,
            site: site.to_owned(),
            begin_ms,
            end_ms: self.now_ms(),
            outcome,
            blocks,
        }));
        outcome
    }

    /// Says what the hub says of itself. One that does not run sees no etcd and serves nobody.
    fn look(&self) {
        let status = self.run(&["status", "--json"]).and_then(Finished::success);
        let status = status.and_then(|text| Ok(serde_json::from_str::<Status>(&text)?));
        let mut sight = Sight {
            hub: self.name.to_owned(),
            at_ms: self.now_ms(),
            sees_etcd: false,
            served: Vec::new(),
        };
        if let Ok(status) = status {
            let fresh = |fleet: &ropewalk_api::FleetStatus| {
                fleet.etcd.is_there() && fleet.age_s.is_some_and(|age| age <= FRESH_S)
            };
            sight.sees_etcd = status.fleet.as_ref().is_some_and(fresh);
            let served = status.tunnels.into_iter().filter(|tunnel| tunnel.up);
            sight.served = served
                .map(|tunnel| Entry {
                    site: tunnel.peer,
                    blocks: tunnel.peer_addresses,
                })
                .collect();
        }
        self.tell(Event::Sight(sight));
    }

    /// Lists all sites. A hub that does not see etcd lists its copy, which has its rules, too.
    fn list(&self, last: bool) -> Result<()> {
        let text = self.run(&["invite", "--list", "--json"])?.success()?;
        self.tell(Event::List(List {
            hub: self.name.to_owned(),
            at_ms: self.now_ms(),
            last,
            sites: entries(&text)?,
        }));
        Ok(())
    }
}

/// How a command ended, and the addresses that it says.
fn outcome(change: Change, finished: &Finished) -> (Outcome, Vec<String>) {
    let said = &finished.stderr;
    if finished.status.success() {
        let words = said.lines().find_map(|line| {
            let (_, rest) = line.split_once(" has ")?;
            Some(rest.split_once(" behind this")?.0)
        });
        let words = words.unwrap_or_default().split(" and ");
        let blocks = words.filter(|word| !word.is_empty()).map(str::to_owned);
        return (Outcome::Done, blocks.collect());
    }
    let sure: &[&str] = match change {
        Change::Invite => &[
            "nothing was changed",
            "there is a site",
            "places of the fleet's pools",
        ],
        Change::Revoke => &["nothing was changed"],
    };
    let outcome = if sure.iter().any(|words| said.contains(words)) {
        Outcome::Refused
    } else if change == Change::Revoke && said.contains("there is no site") {
        Outcome::Absent
    } else {
        Outcome::Unknown
    };
    (outcome, Vec::new())
}

fn entries(text: &str) -> Result<Vec<Entry>> {
    let value: Value = serde_json::from_str(text)?;
    let sites = value["site"].as_array().context("no sites in the list")?;
    let entry = |site: &Value| {
        let blocks = ["ipv4", "ipv6", "block"].map(|key| site[key].as_str().map(str::to_owned));
        Some(Entry {
            site: site["name"].as_str()?.to_owned(),
            blocks: blocks.into_iter().flatten().collect(),
        })
    };
    sites
        .iter()
        .map(|site| entry(site).with_context(|| format!("a site without a name: {site}")))
        .collect()
}

/// A number between the two.
fn between(random: &mut Random, (least, most): (f64, f64)) -> f64 {
    least + (most - least) * random.unit()
}

fn one_of<T>(random: &mut Random, all: &[T]) -> usize {
    let count = u64::try_from(all.len()).unwrap_or(u64::MAX).max(1);
    usize::try_from(random.next_u64() % count).unwrap_or_default()
}

/// A fleet whose sites share addresses.
fn settings() -> FleetSpec {
    let shared: Vec<_> = (64..128).map(|last| format!("203.0.113.{last}")).collect();
    FleetSpec {
        // Ports are shared, which excludes routes to sites.
        shared: format!("shared = {shared:?}\nports = 1008"),
        // Small enough that a long run gives freed places again, and large enough for those that rest.
        pool: "10.86.0.0/21".to_owned(),
        routes: false,
        ..FleetSpec::new("random")
    }
}

/// Runs the trial.
///
/// # Errors
/// A part does not start or does not come back, or the history cannot be written. What the checker finds is no error.
pub fn run(spec: &RandomSpec) -> Result<Row<Figures>> {
    let mut fleet = Fleet::new(&settings())?;
    let swarm = Swarm::new(&fleet, spec.sites, 0, &[1, 2], 2.0);
    let members = swarm.members(&fleet)?;
    let longest = spec.time + Duration::from_secs(300);
    let mut sites = swarm.start(&fleet, Duration::from_secs(1), longest)?;
    let (sender, events) = channel();
    let events = write(&spec.history, events)?;
    let begun = Instant::now();
    let program = programs::own("ropewalk")?;
    let desk = |(hub, name): (&Gateway, &'static str)| Desk {
        name,
        space: hub.namespace().clone(),
        config: hub.config().to_owned(),
        program: program.clone(),
        begun,
        events: sender.clone(),
    };
    let desks: Vec<_> = fleet.hubs.iter().zip(NAMES).map(desk).collect();
    drop(sender);
    let (orders, looks) = (AtomicBool::new(true), AtomicBool::new(true));
    let mut random = Random::new(spec.seed);
    let faults = std::thread::scope(|scope| -> Result<_> {
        // Whatever happens, the threads end.
        let end = Ends(&orders, &looks);
        let mut working = Vec::new();
        for desk in &desks {
            let (mut random, members) = (random.fork(), &members);
            let orders = &orders;
            working.push(scope.spawn(move || give_orders(desk, members, &mut random, orders)));
            let looks = &looks;
            scope.spawn(move || {
                while looks.load(Ordering::Relaxed) {
                    desk.look();
                    std::thread::sleep(LOOK);
                }
            });
        }
        let (lists, list_desks) = (&orders, &desks);
        scope.spawn(move || {
            for desk in list_desks.iter().cycle() {
                if !lists.load(Ordering::Relaxed) {
                    return;
                }
                let _ = desk.list(false);
                std::thread::sleep(LISTS);
            }
        });
        let faults = break_things(&mut fleet, &desks[0], spec.time, &mut random)?;
        orders.store(false, Ordering::Relaxed);
        for worker in working {
            let _ = worker.join();
        }
        fleet.etcd.restore()?;
        fleet.await_all()?;
        std::thread::sleep(END);
        for desk in &desks {
            desk.list(true)?;
        }
        drop(end);
        Ok(faults)
    });
    let seconds = begun.elapsed().as_secs_f64();
    drop(desks);
    sites.kill();
    let events = events
        .join()
        .map_err(|_| anyhow!("the thread that writes panicked"))??;
    let faults = faults.with_context(|| fleet.explain())?;
    Ok(row(spec, seconds, faults, &events))
}

/// Ends threads when it is dropped.
struct Ends<'a>(&'a AtomicBool, &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        self.1.store(false, Ordering::Relaxed);
    }
}

/// Writes events as they come, so that a run which is interrupted leaves what was before; all of them at the end.
fn write(path: &Path, events: Receiver<Event>) -> Result<JoinHandle<Result<Vec<Event>>>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = LineWriter::new(file);
    Ok(std::thread::spawn(move || {
        let mut all = Vec::new();
        for event in events {
            writeln!(file, "{}", serde_json::to_string(&event)?)?;
            all.push(event);
        }
        Ok(all)
    }))
}

/// Reads a history that [`run`] has written.
///
/// # Errors
/// The file is missing, or a line of it is no event.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let event = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("line {}", number + 1))
    };
    text.lines().enumerate().map(event).collect()
}

fn row(
    spec: &RandomSpec,
    seconds: f64,
    faults: BTreeMap<String, usize>,
    events: &[Event],
) -> Row<Figures> {
    let mut figures = Figures {
        seed: spec.seed,
        seconds,
        faults,
        events: events.len(),
        history: spec.history.clone(),
        longest_after_revocation_ms: history::longest_after_revocation(events),
        ..Figures::default()
    };
    for event in events {
        match event {
            Event::Operation(one) => {
                let what = match one.change {
                    Change::Invite => "invite",
                    Change::Revoke => "revoke",
                };
                let how = match one.outcome {
                    Outcome::Done => "done",
                    Outcome::Refused => "refused",
                    Outcome::Absent => "not there",
                    Outcome::Unknown => "unknown",
                };
                *figures.commands.entry(format!("{what} {how}")).or_default() += 1;
            }
            Event::Sight(sight) => {
                figures.looks += 1;
                figures.looks_serving += usize::from(!sight.served.is_empty());
            }
            Event::List(_) => figures.lists += 1,
            Event::Fault { .. } => {}
        }
    }
    let mut broken = history::check(events);
    // A run in which little happens proves little.
    for what in ["invite done", "revoke done"] {
        let count = figures.commands.get(what).copied().unwrap_or_default();
        want(&mut broken, count > 0, || {
            format!("no {what} in the whole run")
        });
    }
    want(&mut broken, figures.looks_serving > 0, || {
        "no hub was seen to serve a site".to_owned()
    });
    Row {
        trial: format!("chance, seed {}", spec.seed),
        figures,
        broken,
        slow: Vec::new(),
    }
}

/// Invites and revokes sites at a hub. Other hubs know the same names.
fn give_orders(desk: &Desk, members: &[Member], random: &mut Random, goes_on: &AtomicBool) {
    let guests = (0..GUESTS).map(|guest| (format!("guest-{guest}"), None));
    let members = members.iter();
    let members = members.map(|one| (one.name.clone(), Some(one.key.to_string())));
    let names: [Vec<_>; 2] = [guests.collect(), members.collect()];
    // Those that were invited here: most of them are still there.
    let mut invited = Vec::new();
    while goes_on.load(Ordering::Relaxed) {
        if !invited.is_empty() && random.chance(REVOKE_KNOWN) {
            let site: String = invited.swap_remove(one_of(random, &invited));
            desk.operate(Change::Revoke, &site, None);
        } else {
            let kind = &names[usize::from(random.chance(0.5))];
            let (site, key) = &kind[one_of(random, kind)];
            if random.chance(REVOKE_ANY) {
                desk.operate(Change::Revoke, site, None);
            } else if desk.operate(Change::Invite, site, key.as_deref()) == Outcome::Done {
                invited.push(site.clone());
            }
        }
        std::thread::sleep(Duration::from_secs_f64(between(random, PAUSE_S)));
    }
}

/// Something that is broken.
#[derive(Clone, Copy, Debug)]
enum Fault {
    HubKilled(usize),
    HubCut(usize, Cut),
    MemberKilled(usize),
    MajorityKilled(usize),
    MemberCut(usize),
}

impl Fault {
    fn words(self) -> String {
        match self {
            Self::HubKilled(_) => "hub killed".to_owned(),
            Self::HubCut(_, cut) => format!("hub {}", cut.words()),
            Self::MemberKilled(_) => "member of etcd killed".to_owned(),
            Self::MajorityKilled(_) => "majority of etcd killed".to_owned(),
            Self::MemberCut(_) => "member of etcd cut off".to_owned(),
        }
    }

    const fn number(self) -> usize {
        match self {
            Self::HubKilled(number)
            | Self::HubCut(number, _)
            | Self::MemberKilled(number)
            | Self::MajorityKilled(number)
            | Self::MemberCut(number) => number,
        }
    }

    /// One of a hub.
    fn of_hub(random: &mut Random) -> Self {
        let hub = one_of(random, &NAMES);
        let cuts = [
            Cut::Etcd,
            Cut::Etcd,
            Cut::All,
            Cut::SitesAndEtcd,
            Cut::Sites,
        ];
        if random.chance(0.4) {
            Self::HubKilled(hub)
        } else {
            Self::HubCut(hub, cuts[one_of(random, &cuts)])
        }
    }

    /// One of etcd.
    fn of_etcd(random: &mut Random) -> Self {
        let member = one_of(random, &[(); MEMBERS]);
        match random.next_u64() % 4 {
            0 => Self::MajorityKilled(member),
            1 => Self::MemberCut(member),
            _ => Self::MemberKilled(member),
        }
    }

    fn begin(self, fleet: &mut Fleet) -> Result<()> {
        match self {
            Self::HubKilled(hub) => fleet.hubs[hub].kill(),
            Self::HubCut(hub, cut) => fleet.cut(hub, cut)?,
            Self::MemberKilled(member) => fleet.etcd.kill(member),
            Self::MajorityKilled(member) => {
                fleet.etcd.kill(member);
                fleet.etcd.kill((member + 1) % MEMBERS);
            }
            Self::MemberCut(member) => fleet.etcd.cut(member, true)?,
        }
        Ok(())
    }

    fn end(self, fleet: &mut Fleet) -> Result<()> {
        match self {
            Self::HubKilled(hub) => fleet.hubs[hub].start(),
            Self::HubCut(hub, _) => fleet.mend(hub),
            Self::MemberKilled(member) => fleet.etcd.start(member),
            Self::MajorityKilled(member) => {
                fleet.etcd.start(member)?;
                fleet.etcd.start((member + 1) % MEMBERS)
            }
            Self::MemberCut(member) => fleet.etcd.cut(member, false),
        }
    }
}

/// Breaks a hub, or etcd, or both at the same time, again and again, and mends all at the end.
fn break_things(
    fleet: &mut Fleet,
    desk: &Desk,
    time: Duration,
    random: &mut Random,
) -> Result<BTreeMap<String, usize>> {
    let mut count = BTreeMap::new();
    let end = Instant::now() + time;
    let pause = |random: &mut Random, range| {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(Duration::from_secs_f64(between(random, range)).min(left));
    };
    let mut shown = Instant::now();
    while Instant::now() < end {
        pause(random, QUIET_S);
        let faults = match random.next_u64() % 3 {
            0 => vec![Fault::of_hub(random)],
            1 => vec![Fault::of_etcd(random)],
            _ => vec![Fault::of_hub(random), Fault::of_etcd(random)],
        };
        for fault in &faults {
            tell(desk, *fault, "begins");
            fault.begin(fleet)?;
            *count.entry(fault.words()).or_default() += 1;
            pause(random, FAULT_S);
        }
        for fault in &faults {
            fault.end(fleet)?;
            tell(desk, *fault, "ends");
        }
        if shown.elapsed() >= Duration::from_secs(10) {
            shown = Instant::now();
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            let all: usize = count.values().sum();
            eprintln!("{all} faults so far, {left} s are left");
        }
    }
    Ok(count)
}

fn tell(desk: &Desk, fault: Fault, how: &str) {
    desk.tell(Event::Fault {
        at_ms: desk.now_ms(),
        what: format!("{} {} {how}", fault.words(), fault.number()),
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn finished(code: i32, stderr: &str) -> Finished {
        Finished {
            status: ExitStatus::from_raw(code << 8),
            stdout: String::new(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn answers_of_commands_are_understood() {
        let made =
            "site boat has 10.86.0.17 and fd86:1::11 behind this hub\nthe next line is a secret\n";
        let blocks = vec!["10.86.0.17".to_owned(), "fd86:1::11".to_owned()];
        assert_eq!(
            outcome(Change::Invite, &finished(0, made)),
            (Outcome::Done, blocks)
        );
        for (change, said, wanted) in [
            (
                Change::Revoke,
                "etcd does not answer for 10 s: nothing was changed.",
                Outcome::Refused,
            ),
            (
                Change::Invite,
                "there is a site boat already; use --replace",
                Outcome::Refused,
            ),
            (
                Change::Invite,
                "all 9 places of the fleet's pools are taken",
                Outcome::Refused,
            ),
            (
                Change::Invite,
                "the change may have been made or not",
                Outcome::Unknown,
            ),
            (
                Change::Revoke,
                "there is no site boat; `ropewalk invite --list`",
                Outcome::Absent,
            ),
            (Change::Invite, "another error", Outcome::Unknown),
        ] {
            let (outcome, blocks) = outcome(change, &finished(1, said));
            assert_eq!((outcome, blocks.len()), (wanted, 0), "{said}");
        }
    }

    #[test]
    fn a_list_is_read() {
        let text = r#"{"site":[{"name":"boat","ipv4":"10.86.0.17","block":"203.0.113.64:1024-2031"},{"name":"farm"}]}"#;
        let read = entries(text).unwrap();
        assert_eq!(read[0].blocks, ["10.86.0.17", "203.0.113.64:1024-2031"]);
        assert_eq!((read[1].site.as_str(), read[1].blocks.len()), ("farm", 0));
        assert!(entries(r#"{"site":[{}]}"#).is_err());
    }
}
