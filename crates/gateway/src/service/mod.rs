//! Runs a hub, a site or a relay: an engine (a relay: two), and around it everything that is not moving packets.
//!
//! The engine has a thread of its own; this thread runs a small event loop for the API, signals,
//! netlink and the engine's events.
//!
//! Invariants: a state directory has one gateway (lock). Changes of this machine are undone on
//! every way out: at a normal end, on errors, and after a crash by the next start.

pub mod admission;
mod api;
pub mod direct;
mod names;
pub mod network;
mod notify;
mod ports;
pub mod resolve;

mod assigned;
mod balance;
mod guard;
mod hub;
mod keys;
mod managers;
mod memory;
mod relay;
pub mod restarts;
mod rights;
mod site;
mod site_routes;
pub mod spare;
mod supplicant;
mod watchdog;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_session::CommonSettings;
use ropewalk_transport::Identity;
use ropewalk_types::Lines;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::engine::control::Command;
use crate::engine::settings::{EngineEvent, EventSink, HostSettings};
use crate::engine::{EngineHandle, Pulse};
use crate::key_file;
use api::{Api, CommandSink, Reload};
pub(crate) use keys::next_of_site;
use memory::Memory;
use network::Tun;
use ropewalk_config as config;
use ropewalk_config::common::Common;
use ropewalk_config::{BalanceConfig, Config, HubConfig, RelayConfig, SiteConfig};
use ropewalk_host::Changes;
use ropewalk_host::files;

/// Engine events that may wait for this thread. More: memory.
const EVENTS_MAX: usize = 1_024;
/// Longest time an engine may take to answer. Longer: surer on a busy machine, a client of an engine
/// that hangs waits longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stopping engine may say goodbye. Longer: peers are surer to hear it, slower stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stop for good may follow on one for a restart. Longer: surer on a busy machine,
/// slower restarts.
const SECOND_SIGNAL: Duration = Duration::from_millis(20);
/// Threads that wait for answers of the engine. More: more requests at a time, memory.
const WAITING_THREADS_MAX: usize = 4;
/// Bit of `CAP_NET_ADMIN` (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;

/// Runs a hub until a signal or a failure ends it.
///
/// # Errors
/// It could not start, or the engine failed.
pub fn run_hub(path: &Path, config: HubConfig) -> anyhow::Result<()> {
    require_net_admin("hub")?;
    rights::look_at_configuration(path);
    rights::hub(&config)?;
    let prepared = Prepared::new("hub", &config.common)?;
    let runtime = runtime()?;
    let result = runtime.block_on(hub::run(prepared, path, config));
    // An engine that hangs must not keep the process from ending.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result
}

/// Runs a site until a signal or a failure ends it.
///
/// # Errors
/// It could not start, or the engine failed.
pub fn run_site(path: &Path, config: SiteConfig) -> anyhow::Result<()> {
    require_net_admin("site")?;
    rights::look_at_configuration(path);
    rights::site(path, &config)?;
    let prepared = Prepared::new("site", &config.common)?;
    let runtime = runtime()?;
    let result = runtime.block_on(site::run(prepared, path, config));
    // An engine that hangs must not keep the process from ending.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result
}

/// Runs a relay until a signal or a failure ends it.
///
/// # Errors
/// It could not start, or an engine failed.
pub fn run_relay(path: &Path, config: RelayConfig) -> anyhow::Result<()> {
    require_net_admin("relay")?;
    rights::look_at_configuration(path);
    rights::relay(&config)?;
    let prepared = Prepared::new("relay", &config.hub.common)?;
    let runtime = runtime()?;
    let result = runtime.block_on(relay::run(prepared, path, config));
    // An engine that hangs must not keep the process from ending.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result
}

/// Spreads flows over uplinks until a signal or a failure ends it.
///
/// # Errors
/// It could not start, or this machine cannot be set up.
pub fn run_balance(path: &Path, config: BalanceConfig) -> anyhow::Result<()> {
    require_net_admin(config::balance::ROLE)?;
    rights::look_at_configuration(path);
    rights::balance(path, &config)?;
    let _spreading = take_spreading()?;
    let held = Held::new(config::balance::ROLE, &config.common)?;
    let runtime = runtime()?;
    let result = runtime.block_on(balance::run(held, path, config));
    // A program that hangs must not keep the process from ending.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result
}

/// File of the lock of a gateway.
#[must_use]
pub fn lock_path(state_dir: &Path, role: &str) -> PathBuf {
    state_dir.join(format!("{role}.lock"))
}

/// Takes the lock of a role.
///
/// # Errors
/// Such a gateway runs already.
pub fn take_lock(state_dir: &Path, role: &str) -> anyhow::Result<files::Lock> {
    let remedy = if role == config::balance::ROLE {
        ONE_BALANCES
    } else {
        "stop it first, or give the second one its own state_dir, and its own api.socket and \
         tunnel.interface"
    };
    files::Lock::take(&lock_path(state_dir, role), &of_role(role), remedy)
}

/// Takes the right to spread connections in this network namespace. One program at a time owns the
/// namespace's firewall table and routing rules, also with another state directory.
///
/// # Errors
/// Something else spreads connections there.
fn take_spreading() -> anyhow::Result<files::Lock> {
    let namespace: String = ropewalk_host::changes::namespace()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    // The file stays, one of a few bytes for each network namespace until the machine starts again. A helper that
    // outlives this process keeps the lock: without the file the next program would take another lock beside it.
    let path = Path::new(config::RUN_DIR).join(format!("balance-{namespace}.lock"));
    files::Lock::take(&path, "a gateway that balances", ONE_BALANCES)
}

/// What to do about a second gateway that balances.
const ONE_BALANCES: &str = "stop it first: only one at a time can balance on a machine";

/// A gateway of a role, in a sentence.
fn of_role(role: &str) -> String {
    match role {
        config::balance::ROLE => "a gateway that balances".to_owned(),
        role => format!("a {role}"),
    }
}

/// File of the changes of a gateway.
#[must_use]
pub fn changes_path(state_dir: &Path, role: &str) -> PathBuf {
    state_dir.join(format!("{role}-changes.json"))
}

/// Whether this process may configure the network.
#[must_use]
pub fn has_net_admin() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_NET_ADMIN & 1 == 1)
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(WAITING_THREADS_MAX)
        .build()
        .context("cannot start the control loop")
}

/// What every role needs first. Fields are dropped in order: changes are undone while the lock is
/// still held.
#[derive(Debug)]
struct Held {
    changes: Changes,
    _lock: files::Lock,
}

impl Held {
    fn new(role: &str, common: &Common) -> anyhow::Result<Self> {
        let lock = take_lock(&common.state_dir, role)?;
        let changes = Changes::begin(&changes_path(&common.state_dir, role), role != "site")?;
        Ok(Self {
            changes,
            _lock: lock,
        })
    }
}

/// What both roles need before the engine starts. Fields are dropped in order: changes are undone
/// while the lock is still held.
#[derive(Debug)]
struct Prepared {
    identity: Identity,
    changes: Changes,
    _lock: files::Lock,
}

impl Prepared {
    fn new(role: &str, common: &Common) -> anyhow::Result<Self> {
        let identity = key_file::load(&common.key_file)?;
        raise_open_files();
        let Held { changes, _lock } = Held::new(role, common)?;
        Ok(Self {
            identity,
            changes,
            _lock,
        })
    }
}

/// Raises how many files this process may have open to what it may choose itself: each connection over TCP is one, and
/// many shells allow 1,024.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, ?limit, "the number of open files stays bounded as it was");
    }
}

fn require_net_admin(role: &str) -> anyhow::Result<()> {
    if !has_net_admin() {
        bail!("a {role} needs the right to configure the network; run it as root (sudo)");
    }
    Ok(())
}

fn session_settings(identity: Identity, common: &Common) -> CommonSettings {
    if let Some(packets) = common.send.buffer_packets {
        tracing::warn!(
            packets,
            "send_buffer_packets is for experiments only: full buffers drop packets"
        );
    }
    CommonSettings {
        identity,
        scheduler_send: common.scheduler_send,
        scheduler_receive: common.scheduler_receive,
        classes: Arc::clone(&common.classes),
        hold: common.hold,
        send: common.send,
        congestion: common.congestion,
        mtu: common.mtu,
    }
}

fn host_settings(common: &Common) -> HostSettings {
    HostSettings {
        tun_name: common.interface.clone(),
        offload: common.offload,
        socket_buffer_bytes: common.socket_buffer_bytes,
        mark: None,
    }
}

fn event_channel() -> (EventSink, mpsc::Receiver<EngineEvent>) {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let (start, lines) = (std::time::Instant::now(), Mutex::new(Lines::default()));
    let sink = EventSink::new(move |event| {
        // While the gateway stops nobody listens.
        if matches!(event, EngineEvent::Stopped { .. }) {
            // The last word of a thread: it can wait, and a hub without one of its workers must end.
            sender.blocking_send(event).ok();
        } else if let Err(error @ TrySendError::Full(_)) = sender.try_send(event) {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.allow(ropewalk_types::Instant::ZERO + start.elapsed()) {
                let count = 1 + lines.take_left_out();
                tracing::warn!(%error, count, "events of the engine were lost");
            }
        }
    });
    (sink, receiver)
}

/// A running engine; stops it when dropped.
#[derive(Debug)]
struct RunningEngine {
    /// One per worker.
    handles: Vec<EngineHandle>,
    tun: Tun,
    commands: Commands,
    /// What the workers say.
    events: mpsc::Receiver<EngineEvent>,
}

/// Hands commands to the engine.
#[derive(Clone)]
struct Commands(CommandSink);

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Commands")
    }
}

impl Commands {
    /// Hands a command over to an engine that may have stopped.
    fn send(&self, command: Command) {
        if let Err(error) = (self.0)(command) {
            tracing::debug!(%error, "a command was lost");
        }
    }
}

impl RunningEngine {
    fn new(
        handles: Vec<EngineHandle>,
        events: mpsc::Receiver<EngineEvent>,
    ) -> anyhow::Result<Self> {
        let info = handles.first().context("no engine")?.info();
        let tun = Tun {
            name: info.interface.clone(),
            ifindex: info.ifindex,
        };
        let commands = |handle: &EngineHandle| {
            let sender = handle.sender();
            Commands(Arc::new(move |command| sender.send(command)))
        };
        let commands = workers::together(handles.iter().map(commands).collect());
        Ok(Self {
            handles,
            tun,
            commands,
            events,
        })
    }

    fn send(&self, command: Command) {
        self.commands.send(command);
    }

    /// The turns of each thread.
    fn pulses(&self) -> Vec<Pulse> {
        let pulses = self.handles.iter().map(EngineHandle::pulse);
        pulses.cloned().collect()
    }

    /// Stops the engine and waits for it.
    ///
    /// # Errors
    /// What made the engine fail.
    async fn stop(mut self) -> anyhow::Result<()> {
        // Their last words wait for room.
        self.events.close();
        let handles = std::mem::take(&mut self.handles);
        for handle in &handles {
            let _ = handle.send(Command::Shutdown);
        }
        let ended = tokio::task::spawn_blocking(move || {
            let results = handles.into_iter().map(EngineHandle::join);
            // All of them end before the first error counts.
            let results: Vec<_> = results.collect();
            results.into_iter().collect::<anyhow::Result<()>>()
        });
        match tokio::time::timeout(STOP_TIMEOUT, ended).await {
            Ok(Ok(result)) => result.context("the engine failed"),
            Ok(Err(error)) => Err(error).context("the engine failed"),
            Err(_) => {
                tracing::warn!("the engine did not stop in time and is abandoned");
                Ok(())
            }
        }
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.events.close();
        for handle in &self.handles {
            let _ = handle.send(Command::Shutdown);
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// The API of a running gateway. When dropped, its socket is removed, and what it remembers is written.
#[derive(Debug)]
struct ApiSocket {
    path: PathBuf,
    memory: Memory,
}

impl ApiSocket {
    async fn open(common: &Common, api: Api) -> anyhow::Result<Self> {
        let memory = api.memory.clone();
        api::serve_unix(api.clone(), &common.socket, common.socket_group.as_deref())?;
        let socket = Self {
            path: common.socket.clone(),
            memory,
        };
        if let Some(address) = common.api_listen {
            api::serve_tcp(api, address).await;
        }
        Ok(socket)
    }
}

impl Drop for ApiSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.memory.save();
    }
}

/// The signals a gateway obeys.
#[derive(Debug)]
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    restart: Signal,
    is_restart: bool,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Stop,
    Reload,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
            restart: catch(SignalKind::user_defined2())?,
            is_restart: false,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
            _ = self.restart.recv() => {
                self.is_restart = true;
                Asked::Stop
            }
        }
    }

    /// Whether it stops to be started again at once. A restart was asked for, nobody has asked for
    /// an end since, and the configuration at `path` is usable.
    async fn is_restart(&mut self, path: &Path) -> bool {
        let stopped = tokio::select! {
            biased;
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => true,
            () = tokio::time::sleep(SECOND_SIGNAL) => false,
        };
        self.is_restart && !stopped && Config::load(path).is_ok()
    }
}

/// Reloads, and goes on meanwhile.
fn reload_and_log(reload: &Reload) {
    let reload = reload();
    tokio::spawn(async move {
        match reload.await {
            Ok(what) => tracing::info!(what, "reloaded"),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "nothing was reloaded");
            }
        }
    });
}

/// What reloads by work that may wait for files: in the background, and one at a time.
fn in_turn(work: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Reload {
    let (work, turn) = (Arc::new(work), Arc::new(tokio::sync::Mutex::new(())));
    Arc::new(move || {
        let (work, turn) = (Arc::clone(&work), Arc::clone(&turn));
        Box::pin(async move {
            let turn = turn.lock_owned().await;
            let work = move || {
                let _turn = turn;
                work()
            };
            tokio::task::spawn_blocking(work).await?
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::with_notice;

    #[test]
    fn as_many_files_may_be_open_as_this_process_may_choose() {
        let limit = getrlimit(Resource::Nofile);
        let current = Some(limit.current.map_or(4_096, |most| most.min(4_096) - 1));
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }

    #[test]
    fn a_start_that_fails_ends_though_more_events_wait_than_there_is_room_for() {
        let (sink, events) = event_channel();
        for _ in 0..EVENTS_MAX {
            sink.send(EngineEvent::TunnelUp { peer: "a".into() });
        }
        let worker = EngineHandle::detached(move || {
            sink.send(EngineEvent::Stopped { error: None });
            Ok(())
        });
        let engine = RunningEngine::new(vec![worker], events).unwrap();
        // It waits for room by then.
        std::thread::sleep(Duration::from_millis(100));
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(engine);
            done.send(()).ok();
        });
        let ended = is_done.recv_timeout(Duration::from_secs(5));
        assert!(
            ended.is_ok(),
            "the engine and who drops it wait for each other"
        );
    }

    #[test]
    fn a_worker_that_panics_is_heard_of_even_when_nobody_keeps_up_with_events() {
        let (sink, mut events) = event_channel();
        for _ in 0..EVENTS_MAX + 5 {
            sink.send(EngineEvent::TunnelUp { peer: "a".into() });
        }
        let worker = std::thread::spawn(move || with_notice(&sink, || panic!("as the test wants")));
        // Whoever drops the event is done by then.
        std::thread::sleep(std::time::Duration::from_millis(200));
        for _ in 0..EVENTS_MAX {
            assert!(matches!(
                events.blocking_recv(),
                Some(EngineEvent::TunnelUp { .. })
            ));
        }
        let last = events.blocking_recv();
        assert!(
            matches!(last, Some(EngineEvent::Stopped { error: Some(_) })),
            "{last:?}: the hub ends with an error"
        );
        assert!(worker.join().is_err());
        assert!(events.blocking_recv().is_none());
    }
}
