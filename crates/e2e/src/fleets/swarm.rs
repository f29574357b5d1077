//! A swarm of sites in a fleet.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ropewalk_fleet::plan::Credential;
use ropewalk_fleet::{EtcdState, Fleet as State, Options, Request, Terms};
use ropewalk_testbed::{Namespace, Process, Program, programs};
use ropewalk_transport::PublicKey;
use serde_json::Value;

use super::etcd::{MEMBERS, url};
use super::{FLEET, Fleet, LIMIT, LOOK, NAMES, place};

/// A swarm: which sites, with which hub.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    /// Sites.
    pub(super) count: u32,
    /// Number of their hub.
    pub(super) home: usize,
    /// Numbers of the hubs that they take as spare, in turn.
    pub(super) spares: Vec<usize>,
    /// Pings of a site in a second.
    pub(super) pings: f64,
    secret: PathBuf,
    name: String,
}

/// A site of a swarm.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) key: PublicKey,
}

impl Swarm {
    pub(super) fn new(
        fleet: &Fleet,
        count: u32,
        home: usize,
        spares: &[usize],
        pings: f64,
    ) -> Self {
        let name = format!("swarm-{}", NAMES[home]);
        Self {
            count,
            home,
            spares: spares.to_vec(),
            pings,
            secret: fleet.directory().join(format!("{name}.key")),
            name,
        }
    }

    fn program(&self, fleet: &Fleet, verb: &str) -> Result<Program> {
        let program = programs::own("ropewalk-swarm")?;
        let program = fleet.ground.topology.hub().program(program);
        let program = program.args([verb, "--count", &self.count.to_string()]);
        Ok(program.arg("--secret").arg(&self.secret))
    }

    /// Its sites, with names that no other swarm has.
    ///
    /// # Errors
    /// The program is missing, or prints another list than is known here.
    pub(super) fn members(&self, fleet: &Fleet) -> Result<Vec<Member>> {
        let list = self.program(fleet, "sites")?.success(LIMIT)?;
        let (names, keys) = (values(&list, "name"), values(&list, "key"));
        ensure!(
            names.len() == self.count as usize && keys.len() == names.len(),
            "{} sites, {} keys in the list of a swarm of {}",
            names.len(),
            keys.len(),
            self.count
        );
        let member = |(name, key): (&&str, &&str)| -> Result<Member> {
            let key = key.parse::<PublicKey>();
            Ok(Member {
                name: name.replace("swarm", &self.name),
                key: key.map_err(|_| anyhow::anyhow!("{name} has no key in the list"))?,
            })
        };
        names.iter().zip(&keys).map(member).collect()
    }

    /// Connects the sites within `join_over`, and lets them ping for `time` after that.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(
        &self,
        fleet: &Fleet,
        join_over: Duration,
        time: Duration,
    ) -> Result<Process> {
        let key = |hub: usize| -> Result<String> {
            let key = fleet.hubs[hub].run(&["key"])?.success()?;
            Ok(key.trim().to_owned())
        };
        let at = |hub: usize| format!("{}:4443", place(hub).wan);
        let mut program = self.program(fleet, "run")?;
        program = program.args(["--hub", &at(self.home), "--hub-key", &key(self.home)?]);
        for spare in &self.spares {
            program = program.args(["--spare", &at(*spare), "--spare-key", &key(*spare)?]);
        }
        let (join_over, time) = (join_over.as_secs_f64(), time.as_secs_f64());
        program = program.args(["--join-over", &join_over.to_string()]);
        program = program.args(["--seconds", &time.to_string()]);
        program = program.args(["--pings", &self.pings.to_string()]);
        let program = program.args(["--json"]);
        // Each start has its own output.
        let number = std::fs::read_dir(fleet.directory())?.count();
        program.start(fleet.directory(), &format!("{}-{number}", self.name))
    }
}

/// What a list of sites has for this key, in order.
fn values<'a>(list: &'a str, key: &str) -> Vec<&'a str> {
    let start = format!("{key} = \"");
    let lines = list.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(|rest| rest.trim_end_matches('"')).collect()
}

/// What a swarm has found, once it has ended.
///
/// # Errors
/// It does not end in time, or prints no report.
pub(super) fn report(process: &mut Process, limit: Duration) -> Result<Value> {
    if process.wait(limit)?.is_none() {
        bail!(
            "the swarm did not end within {limit:?}: {}",
            process.last_line()
        );
    }
    let text = process.output();
    serde_json::from_str(&text).with_context(|| format!("no report:\n{}", process.log_tail()))
}

/// Waits until so many sites have connected.
///
/// # Errors
/// Not in time.
pub(super) fn await_joined(process: &mut Process, count: u32, limit: Duration) -> Result<()> {
    let wanted = format!(" {count} are connected now");
    let end = Instant::now() + limit;
    while !process.last_line().contains(&wanted) {
        if !process.is_running() || Instant::now() > end {
            bail!(
                "not {count} sites within {limit:?}: {}",
                process.last_line()
            );
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Follows the state of the fleet, and writes to it, as a hub does.
///
/// # Errors
/// Etcd does not answer.
pub(super) fn follow(fleet: &Fleet, within: &Namespace, file: &str) -> Result<State> {
    let key = fleet.key()?.parse::<PublicKey>();
    let options = Options {
        fleet: FLEET.to_owned(),
        key: key.map_err(|_| anyhow::anyhow!("the key of the fleet is none"))?,
        endpoints: (0..MEMBERS).map(url).collect(),
        tls: None,
        login: None,
        file: fleet.directory().join(file),
        read_only: true,
    };
    let state = within.enter(|| State::open(options, Box::new(|_| {})))??;
    let end = Instant::now() + LIMIT;
    while state.status().etcd != EtcdState::There {
        ensure!(Instant::now() < end, "etcd does not answer for {LIMIT:?}");
        std::thread::sleep(LOOK);
    }
    Ok(state)
}

/// Lets sites into the fleet.
///
/// # Errors
/// The fleet refuses, or etcd does not answer.
pub(super) fn admit(state: &State, members: &[Member]) -> Result<()> {
    let request = |member: &Member| Request::Add {
        name: member.name.clone(),
        credential: Credential::Key(member.key),
        terms: Terms::default(),
    };
    for some in members.chunks(AT_ONCE) {
        let waiting: Vec<_> = some
            .iter()
            .map(|member| state.begin(request(member), LIMIT))
            .collect();
        for answer in waiting {
            answer
                .recv()
                .context("the thread that writes has ended")??;
        }
    }
    Ok(())
}

/// Writes that wait at the same time. More: quicker, and more load on etcd.
const AT_ONCE: usize = 64;
