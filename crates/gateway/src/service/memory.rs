//! What a gateway remembers, kept while it runs and across restarts.
//!
//! A task of the control side takes a status once in a while, and writes the file `ROLE-history.json` in the
//! state directory from time to time. The engine makes that status between packets, as for `ropewalk status`. The rest is
//! on the control side. A gateway without this file works as well: errors are logged, and go no further.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use ropewalk_api::{Happened, History as Answer, LeftOut, Quota, Status};
use ropewalk_config::common::Common;
use ropewalk_history::{BYTES_MAX, History, Kind, Range};
use ropewalk_host::files;
use ropewalk_managers::Everything;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::ANSWER_TIMEOUT;
use super::api::{CommandSink, Mark};
use super::managers;
use crate::engine::control::Command;

/// How often a site and `ropewalk balance` look, seconds. Longer: less work, coarser points.
const UPLINKS_STEP_S: u32 = 1;
/// The same of a hub, whose status has all its sites.
const HUB_STEP_S: u32 = 10;
/// How often the file is written. Longer: less wear of a flash disk, more is lost in a crash.
const SAVE_INTERVAL: Duration = Duration::from_mins(10);

/// The memory of a gateway; clones share it.
#[derive(Clone, Debug)]
pub struct Memory(Option<Arc<Kept>>);

#[derive(Debug)]
struct Kept {
    history: Mutex<History>,
    file: PathBuf,
    step_s: u32,
    quotas: OnceLock<Quotas>,
    told: OnceLock<Told>,
    /// Of the gateway, in its configuration.
    name: String,
}

/// What a site knows beside its engine.
#[derive(Debug)]
pub(super) struct Told {
    /// By NetworkManager and ModemManager.
    pub(super) said: watch::Receiver<Everything>,
    /// Interfaces that are not used.
    pub(super) left_out: watch::Receiver<Vec<LeftOut>>,
}

/// The quotas of a site's uplinks, and what happens when nothing is left of one.
pub(super) trait CountQuotas: Send + Sync {
    /// What an uplink may carry in a month.
    fn quota(&self, uplink: &str) -> Option<Quota>;
    /// These uplinks have nothing left. Called after each look.
    fn used_up(&self, uplinks: BTreeSet<String>);
}

struct Quotas(Box<dyn CountQuotas>);

impl std::fmt::Debug for Quotas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Quotas")
    }
}

impl Memory {
    /// The memory of a gateway, with what is left of earlier runs.
    pub(super) fn open(common: &Common, kind: Kind) -> Self {
        let file = format!("{}-history.json", common.role);
        Self::at(common.state_dir.join(file), kind, common.name.clone())
    }

    fn at(file: PathBuf, kind: Kind, name: String) -> Self {
        let step_s = match kind {
            Kind::Hub => HUB_STEP_S,
            Kind::Site | Kind::Balance => UPLINKS_STEP_S,
        };
        let mut history = History::new(kind, step_s);
        if let Err(error) = restore(&mut history, &file) {
            let error = format!("{error:#}");
            tracing::warn!(%error, "the history of earlier runs is left out");
        }
        history.happened(now_ms(), "the gateway started");
        Self(Some(Arc::new(Kept {
            history: Mutex::new(history),
            file,
            step_s,
            quotas: OnceLock::new(),
            told: OnceLock::new(),
            name,
        })))
    }

    /// A memory that keeps nothing.
    #[cfg(test)]
    pub const fn none() -> Self {
        Self(None)
    }

    fn history(&self) -> Option<MutexGuard<'_, History>> {
        self.0.as_ref().map(|kept| kept.history())
    }

    /// Counts against these quotas from now on.
    pub(super) fn count_quotas(&self, quotas: impl CountQuotas + 'static) {
        if let Some(kept) = &self.0 {
            let recalled = kept
                .history()
                .recall_quotas(now_ms(), |uplink| quotas.quota(uplink));
            quotas.used_up(recalled);
            // Whoever opens a memory calls this once.
            let _ = kept.quotas.set(Quotas(Box::new(quotas)));
        }
    }

    /// Adds this to each status from now on.
    pub(super) fn listen(&self, told: Told) {
        if let Some(kept) = &self.0 {
            // Whoever opens a memory calls this once.
            let _ = kept.told.set(told);
        }
    }

    /// Looks from now on, until the last clone is gone.
    pub(super) fn follow(&self, commands: CommandSink) {
        if let Some(kept) = &self.0 {
            tokio::spawn(follow(Arc::downgrade(kept), kept.step_s, commands));
        }
    }

    /// Writes the file.
    pub(super) fn save(&self) {
        if let Some(kept) = &self.0 {
            kept.save();
        }
    }

    /// Adds to a status what the engine does not know, and the words.
    pub fn describe(&self, status: &mut Status) {
        let Some(kept) = &self.0 else { return };
        status.name.clone_from(&kept.name);
        if let Some(told) = kept.told.get() {
            managers::describe(&told.said.borrow(), status);
            status.left_out.clone_from(&told.left_out.borrow());
        }
        kept.history().describe(now_ms(), status);
    }

    /// The newest `last` points of a range.
    pub fn points(&self, range: Range, last: usize) -> Answer {
        self.history()
            .map_or_else(Answer::default, |history| history.points(range, last))
    }

    /// What happened, oldest first.
    pub fn events(&self) -> Vec<Happened> {
        self.history()
            .map_or_else(Vec::new, |history| history.events())
    }

    /// Notes that something happened.
    pub fn happened(&self, what: String) {
        if let Some(mut history) = self.history() {
            history.happened(now_ms(), what);
        }
    }
}

impl Kept {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, status: &Status) {
        let now_ms = now_ms();
        let mut history = self.history();
        history.sample(now_ms, status);
        if let Some(Quotas(quotas)) = self.quotas.get() {
            let used_up = history.count_quotas(now_ms, status, |uplink| quotas.quota(uplink));
            drop(history);
            quotas.used_up(used_up);
        }
    }

    fn save(&self) {
        let text = self.history().save().map_err(anyhow::Error::from);
        let saved = text.and_then(|text| {
            files::write_atomically(&self.file, text.as_bytes(), files::SECRET, true)
                .map_err(anyhow::Error::from)
        });
        if let Err(error) = saved {
            let (file, error) = (self.file.display(), format!("{error:#}"));
            tracing::warn!(%file, error, "the history cannot be written; the gateway works on");
        }
    }
}

fn restore(history: &mut History, file: &Path) -> anyhow::Result<()> {
    if let Some(text) = files::read_state(file, BYTES_MAX)? {
        history.restore(&text)?;
    }
    Ok(())
}

async fn follow(kept: Weak<Kept>, step_s: u32, commands: CommandSink) {
    let step = Duration::from_secs(step_s.into());
    let mut look = interval(step);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saved = tokio::time::Instant::now();
    loop {
        look.tick().await;
        let commands = Arc::clone(&commands);
        let asked = tokio::task::spawn_blocking(move || {
            let (reply, answer) = sync_channel(1);
            commands(Command::Status(reply)).ok()?;
            answer.recv_timeout(ANSWER_TIMEOUT).ok()
        });
        let status = asked.await.ok().flatten();
        let Some(kept) = kept.upgrade() else { return };
        // An engine that does not answer leaves a gap; the watchdog looks after it.
        if let Some(status) = status {
            kept.look(&status);
        }
        if saved.elapsed() >= SAVE_INTERVAL {
            saved = tokio::time::Instant::now();
            // Disks may be slow.
            let _ = tokio::task::spawn_blocking(move || kept.save()).await;
        }
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Marks of a gateway that has no uplinks to mark.
pub fn no_marks() -> Mark {
    Arc::new(|_, _| Err("only a site has uplinks to mark".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::TunnelStatus;

    #[test]
    fn what_was_seen_outlives_the_gateway_and_a_broken_file_harms_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("site-history.json");
        let commands: CommandSink = Arc::new(|command| {
            if let Command::Status(reply) = command {
                let tunnel = TunnelStatus {
                    peer: "hub".to_owned(),
                    up: true,
                    ..TunnelStatus::default()
                };
                let _ = reply.send(Status {
                    role: "site".to_owned(),
                    tunnels: vec![tunnel],
                    ..Status::default()
                });
            }
            Ok(())
        });
        let memory = Memory::at(file.clone(), Kind::Site, "boat".to_owned());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            memory.follow(commands);
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        });
        let seen = memory.points(Range::Minutes, 9).up;
        assert!(
            seen.len() >= 2 && seen.iter().all(|up| *up == Some(1.0)),
            "{seen:?}"
        );
        let mut status = Status::default();
        let (_, said) = watch::channel(Everything::new());
        let wlan1 = LeftOut {
            name: "wlan1".to_owned(),
            why: "looks like another VPN (tun)".to_owned(),
        };
        let (_, left_out) = watch::channel(vec![wlan1.clone()]);
        memory.listen(Told { said, left_out });
        memory.describe(&mut status);
        assert_eq!(
            (status.name.as_str(), status.left_out),
            ("boat", vec![wlan1])
        );
        memory.save();
        let next = Memory::at(file.clone(), Kind::Site, "boat".to_owned());
        assert!(!next.points(Range::Hour, 9).up.is_empty());
        let events: Vec<_> = next.events().into_iter().map(|event| event.what).collect();
        let expected = [
            "the gateway started",
            "the tunnel is up",
            "the gateway started",
        ];
        assert_eq!(events, expected);
        std::fs::write(&file, "{\"format\":1, broken").unwrap();
        let fresh = Memory::at(file.clone(), Kind::Site, "boat".to_owned());
        assert!(fresh.points(Range::Hour, 9).up.is_empty());
        fresh.save();
        assert!(
            std::fs::read_to_string(&file)
                .unwrap()
                .starts_with("{\"format\":1,\"minutes\"")
        );
    }
}
