//! Runs `ropewalk balance`: its API, its signals, and the crate `balance`, which does the work.

use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use anyhow::bail;
use ropewalk_api::Status;
use ropewalk_balance::{Balance, Shared, check, lock, status};
use ropewalk_config::{self as config, BalanceConfig};
use ropewalk_history::Kind;
use tokio::sync::mpsc;

use super::api::{Api, CommandSink, Reload, Unoffered};
use super::memory::{self, Memory};
use super::watchdog::Watchdog;
use super::{
    ApiSocket, Asked, Commands, Held, Signals, in_turn, keys, notify, reload_and_log, restarts,
    rights,
};
use crate::engine::control::Command;

/// Runs until stopped.
pub(super) async fn run(mut held: Held, path: &Path, config: BalanceConfig) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let shared = Arc::new(Mutex::new(Shared::new(&config)));
    let (reloaded, reloads) = mpsc::channel(1);
    let reload = reload(path, Arc::clone(&shared), reloaded);
    let common = config.common.clone();
    let mut balance = Balance::start(
        config,
        None,
        Arc::clone(&shared),
        &mut held.changes,
        reloads,
    )
    .await?;
    held.changes.remove_former_tables();
    let memory = Memory::open(&common, Kind::Balance);
    memory.follow(answer_commands(Arc::clone(&shared), Flows::Uncounted));
    let commands = Commands(answer_commands(shared, Flows::Counted));
    let api = Api {
        commands: commands.0,
        pulses: Vec::new(),
        reload: Arc::clone(&reload),
        change_key: keys::by_hand(),
        memory,
        mark: memory::no_marks(),
        unoffered: Unoffered::default(),
        fleet: None,
        is_hub: false,
    };
    let api = ApiSocket::open(&common, api).await?;
    restarts::ready(path);
    let names = balance.uplinks();
    tracing::info!(config = %path.display(), uplinks = ?names, "balancing");
    // The kernel moves the packets: all that may hang is this thread.
    let mut watchdog = pin!(Watchdog::new([]).run());
    let mut lost = pin!(rights::lost());
    let result = loop {
        tokio::select! {
            never = &mut watchdog => match never {},
            error = &mut lost => break Err(error),
            asked = signals.next() => match asked {
                Asked::Stop => break Ok(()),
                Asked::Reload => reload_and_log(&reload),
            },
            turn = balance.next() => {
                let taken = turn.and_then(|turn| balance.take(turn, &mut held.changes));
                if taken.is_err() {
                    break taken;
                }
            }
        }
    };
    notify::send(notify::Stopping);
    drop(api);
    let is_restart = signals.is_restart(path).await;
    if !is_restart {
        balance.leave().await;
    }
    drop(balance);
    held.changes.end(is_restart);
    tracing::info!("balancing has stopped");
    result
}

fn reload(path: &Path, shared: Arc<Mutex<Shared>>, done: mpsc::Sender<()>) -> Reload {
    let path = path.to_owned();
    in_turn(move || {
        let config = config::load_balance(&path)?;
        let version = check(&config, None)?;
        let (uplinks, rules) = (config.uplinks.marks.len(), config.rules.len());
        lock(&shared).reloaded = Some((version, config));
        // A full channel means that a reload is due anyway.
        let _ = done.try_send(());
        Ok(format!(
            "mode, {uplinks} marks of uplinks and {rules} rules; other keys need a restart"
        ))
    })
}

/// Whether a status says how many flows each uplink has: the kernel lists them all for that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flows {
    Counted,
    Uncounted,
}

/// Answers what the API asks an engine elsewhere.
fn answer_commands(shared: Arc<Mutex<Shared>>, flows: Flows) -> CommandSink {
    Arc::new(move |command| {
        let no_tunnel = || Err("this gateway has no tunnel: it only balances".to_owned());
        match command {
            Command::Status(reply) => {
                let (mut balance, uptime) = {
                    let shared = lock(&shared);
                    (shared.status.clone(), shared.uptime())
                };
                if flows == Flows::Counted {
                    status::count_flows(&mut balance);
                }
                let _ = reply.send(Status {
                    role: config::balance::ROLE.to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    uptime_s: uptime.as_secs_f64(),
                    balance: Some(balance),
                    ..Status::default()
                });
            }
            Command::SetScheduler { reply, .. } => drop(reply.send(no_tunnel())),
            Command::SetPath { reply, .. } => drop(reply.send(no_tunnel().map(drop::<usize>))),
            Command::Uplinks(_)
            | Command::ReloadSites
            | Command::Enrolled { .. }
            | Command::Claimed(_)
            | Command::Drained(_)
            | Command::Key(_)
            | Command::MtuFloor(_)
            | Command::Shutdown => bail!("this gateway has no tunnel"),
        }
        Ok(())
    })
}
