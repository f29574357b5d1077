//! The key of a running gateway changes: what is on disk, and what the engine is told.
//!
//! Invariant: the engine hears of a key only after the key is on disk. At every moment the key file holds a key
//! that works, or the file of the next key does: the hub of a site takes both until one has ended, and the site
//! tries both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::{Context, bail};
use ropewalk_api::{KeyChange, KeyRequest};
use ropewalk_session::{KeyEvent, KeyStep, OTHER_WORKER, group_of};
use ropewalk_transport::{Identity, PublicKey};

use super::Commands;
use crate::engine::control::Command;
use crate::hub_keys::HubKeys;
use crate::key_file;

/// Changes the key on request.
pub type ChangeKey = Arc<dyn Fn(KeyRequest) -> anyhow::Result<KeyChange> + Send + Sync>;

/// For a gateway whose keys are changed by hand, or that has none.
pub(super) fn by_hand() -> ChangeKey {
    Arc::new(|_| {
        bail!(
            "the keys of a relay are changed by hand, and `ropewalk balance` has none: see \
             `ropewalk key rotate --help`, --by-hand"
        )
    })
}

/// For a site whose configuration pins the key `pinned`. The next key keeps the site in its group.
fn of_site(
    key_file: PathBuf,
    state_dir: PathBuf,
    pinned: PublicKey,
    commands: Commands,
) -> ChangeKey {
    Arc::new(move |request| {
        if request.switch {
            bail!("a site takes its next key up by itself; only a hub is told when");
        }
        let next = next_of_site(&key_file, &HubKeys::load(&state_dir, pinned)?)?;
        let key = next.public_key();
        tracing::info!(%key, "the hub is asked to take the next key of this site");
        (commands.0)(Command::Key(KeyStep::Next(next)))?;
        Ok(KeyChange {
            key: key.to_string(),
            uninvited: Vec::new(),
        })
    })
}

/// The next key of a site. It falls to the same worker of the hub as the present one, if the hub tells sites apart by
/// its present key or by the one before.
///
/// # Errors
/// There is a key that cannot be used, or the new one cannot be written.
pub(crate) fn next_of_site(key_file: &Path, hub: &HubKeys) -> anyhow::Result<Identity> {
    let own = key_file::load(key_file)?.public_key();
    let mut hubs = vec![hub.key];
    hubs.extend(hub.former);
    let groups: Vec<_> = hubs.iter().map(|hub| (hub, group_of(hub, &own))).collect();
    let fits = |key: &PublicKey| {
        groups
            .iter()
            .all(|(hub, group)| group_of(hub, key) == *group)
    };
    key_file::next_or_create(key_file, fits)
}

/// For a hub. `uninvite` ends the invitations for the present key and names their sites; `changed` is told the key that
/// the hub has from then on.
pub(super) fn of_hub(
    key_file: PathBuf,
    commands: Commands,
    uninvite: impl Fn() -> Vec<String> + Send + Sync + 'static,
    changed: impl Fn(PublicKey) + Send + Sync + 'static,
) -> ChangeKey {
    Arc::new(move |request| {
        if !request.switch {
            let next = key_file::next_or_create(&key_file, |_| true)?;
            let key = next.public_key();
            tracing::info!(%key, "the next key of this hub is announced to its sites");
            (commands.0)(Command::Key(KeyStep::Next(next)))?;
            return Ok(KeyChange {
                key: key.to_string(),
                uninvited: Vec::new(),
            });
        }
        let next = key_file::load_next(&key_file)?
            .context("there is no next key; run `ropewalk key rotate` first")?;
        let key = next.public_key();
        // A hub that is killed in between has ended them for nothing. The other way round they would look open for ever.
        let uninvited = uninvite();
        // A hub that ends in between starts with the next key.
        key_file::replace(&key_file, &next).with_context(|| {
            let ended = match uninvited.as_slice() {
                [] => String::new(),
                names => format!("; the invitations of {} have ended", names.join(", ")),
            };
            format!("the hub keeps its key{ended}")
        })?;
        key_file::remove_next(&key_file)?;
        (commands.0)(Command::Key(KeyStep::Switch))?;
        changed(key);
        tracing::warn!(%key, "new connections have the next key of this hub");
        Ok(KeyChange {
            key: key.to_string(),
            uninvited,
        })
    })
}

/// The thread that keeps the keys of a site. A search for a key makes some thousands of keys, and the disk may be slow;
/// signals, the API and the watchdog do not wait for either. When dropped, the thread ends after what it has been given.
/// A process that ends before leaves whole files, and the engine says again after its next start what was lost.
#[derive(Debug)]
pub(super) struct KeyThread(SyncSender<KeyEvent>);

/// Most events that wait to be written down. The engine says one in a second. More: a slower disk does, and a hub that
/// says much takes more memory.
const EVENTS_MAX: usize = 64;

impl KeyThread {
    /// Starts the thread, which handles events one after the other.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub(super) fn start(mut keys: SiteKeys, commands: Commands) -> anyhow::Result<Self> {
        let (sender, events) = sync_channel(EVENTS_MAX);
        std::thread::Builder::new()
            .name("keys".into())
            .spawn(move || {
                for event in events {
                    keys.handle(event, &commands);
                }
            })
            .context("cannot start the thread that keeps the keys of this site")?;
        Ok(Self(sender))
    }

    /// Takes what the engine says, and does not wait until it is written down.
    pub(super) fn handle(&self, event: KeyEvent) {
        if let Err(error) = self.0.try_send(event) {
            tracing::warn!(%error, "a change of keys is not written down; this site hears of it again after its next start");
        }
    }
}

/// What a site writes down of keys.
#[derive(Debug)]
pub(super) struct SiteKeys {
    pub(super) key_file: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) hub: HubKeys,
    /// Next keys that the hub did not take because of its workers, in a row.
    pub(super) others: u32,
}

/// Most next keys in a row that are given up because they fall to another worker of the hub: with as many workers as
/// there are groups one key in [`GROUPS`](ropewalk_session::GROUPS) does not. The hub takes one question a second. More:
/// surer with many workers, longer in vain where something else is wrong.
const OTHERS_MAX: u32 = 1_000;

impl SiteKeys {
    /// Changes the key of this site on request.
    pub(super) fn change(&self, commands: Commands) -> ChangeKey {
        let (key_file, state_dir) = (self.key_file.clone(), self.state_dir.clone());
        of_site(key_file, state_dir, self.hub.pinned, commands)
    }

    /// What the engine needs to know at the start.
    ///
    /// # Errors
    /// There is a next key that cannot be used.
    pub(super) fn begin(&self, commands: &Commands) -> anyhow::Result<()> {
        self.tell_of_hub(commands);
        if let Some(next) = key_file::load_next(&self.key_file)? {
            commands.send(Command::Key(KeyStep::Next(next)));
        }
        Ok(())
    }

    fn tell_of_hub(&self, commands: &Commands) {
        let HubKeys { next, former, .. } = self.hub;
        if next.is_some() || former.is_some() {
            commands.send(Command::Key(KeyStep::OfHub { next, former }));
        }
    }

    /// Writes down what the engine says. When the disk does not take it, things stay as they are, and the
    /// engine says it again after the next start.
    fn handle(&mut self, event: KeyEvent, commands: &Commands) {
        if let Err(error) = self.try_handle(event, commands) {
            let error = format!("{error:#}");
            tracing::error!(error, "a change of keys cannot be written down");
        }
    }

    fn try_handle(&mut self, event: KeyEvent, commands: &Commands) -> anyhow::Result<()> {
        match event {
            KeyEvent::Confirmed(key) => {
                self.others = 0;
                key_file::confirm_next(&self.key_file, &key)
            }
            KeyEvent::Refused { key, reason } => {
                key_file::give_up_next(&self.key_file, &key)?;
                if reason != OTHER_WORKER {
                    self.others = 0;
                    return Ok(());
                }
                self.others += 1;
                if self.others >= OTHERS_MAX {
                    self.others = 0;
                    let reason = format!(
                        "each of {OTHERS_MAX} next keys would have taken this site to another worker of the hub, which \
                         tells sites apart by a key that this site does not know; restart the hub, and run `ropewalk \
                         key rotate` again"
                    );
                    tracing::error!(%key, reason, "this site keeps its present key");
                    commands.send(Command::Key(KeyStep::GiveUp { key, reason }));
                    return Ok(());
                }
                let next = next_of_site(&self.key_file, &self.hub)?;
                commands.send(Command::Key(KeyStep::Next(next)));
                Ok(())
            }
            KeyEvent::HubNext(key) => {
                let hub = HubKeys {
                    next: Some(key),
                    ..self.hub
                };
                hub.store(&self.state_dir)?;
                self.hub = hub;
                tracing::info!(%key, "the hub will have another key, which is accepted from now on");
                self.tell_of_hub(commands);
                Ok(())
            }
            KeyEvent::HubIs(key, former) => {
                let hub = HubKeys {
                    key,
                    next: None,
                    former: Some(former),
                    ..self.hub
                };
                hub.store(&self.state_dir)?;
                self.hub = hub;
                Ok(())
            }
            KeyEvent::Used(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use ropewalk_session::GROUPS;
    use tempfile::TempDir;

    use super::*;

    /// A site with a key and a next key at a hub that has had two keys, and what its engine is told.
    fn scene() -> (TempDir, SiteKeys, Commands, Arc<Mutex<Vec<KeyStep>>>) {
        let directory = tempfile::tempdir().unwrap();
        let key = |seed| Identity::from_seed([seed; 32]).unwrap().public_key();
        let keys = SiteKeys {
            key_file: directory.path().join("site.key"),
            state_dir: directory.path().to_owned(),
            hub: HubKeys {
                pinned: key(1),
                key: key(2),
                next: None,
                former: Some(key(1)),
            },
            others: 0,
        };
        key_file::load_or_create(&keys.key_file).unwrap();
        let told = Arc::<Mutex<Vec<_>>>::default();
        let sink = Arc::clone(&told);
        let commands = Commands(Arc::new(move |command| {
            if let Command::Key(step) = command {
                sink.lock().unwrap().push(step);
            }
            Ok(())
        }));
        (directory, keys, commands, told)
    }

    #[test]
    fn a_next_key_is_of_the_same_group_by_both_keys_that_the_hub_has_had() {
        for _ in 0..2 {
            let (_directory, keys, ..) = scene();
            let own = key_file::load(&keys.key_file).unwrap().public_key();
            let next = next_of_site(&keys.key_file, &keys.hub).unwrap();
            let next = next.public_key();
            for hub in [Some(keys.hub.key), keys.hub.former].into_iter().flatten() {
                assert_eq!(group_of(&hub, &next), group_of(&hub, &own));
            }
        }
    }

    #[test]
    fn the_control_side_goes_on_while_a_key_is_looked_for_and_told() {
        let (_directory, keys, ..) = scene();
        let next = next_of_site(&keys.key_file, &keys.hub).unwrap();
        // The engine takes the key that was found only once the control side has said so. A control side that waits
        // for the search does not say so in time.
        let (go_on, wait) = sync_channel(1);
        let (tell, told) = sync_channel(1);
        let wait = Mutex::new(wait);
        let commands = Commands(Arc::new(move |command| {
            let waited = wait.lock().unwrap().recv_timeout(Duration::from_secs(5));
            if let Command::Key(KeyStep::Next(next)) = command {
                tell.try_send((next.public_key(), waited))?;
            }
            Ok(())
        }));
        let thread = KeyThread::start(keys, commands).unwrap();
        let (key, reason) = (next.public_key(), OTHER_WORKER.to_owned());
        thread.handle(KeyEvent::Refused { key, reason });
        go_on.send(()).unwrap();
        let (found, waited) = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(waited, Ok(()), "the control side waited for the search");
        assert_ne!(found, key);
    }

    #[test]
    fn a_site_finds_a_key_for_any_number_of_workers_and_else_says_why() {
        // With as many workers as there can be, all but a millionth of the sites find one.
        let none = (1.0 - 1.0 / f64::from(GROUPS)).powi(OTHERS_MAX as i32);
        assert!(none < 1e-6, "{none}");
        let (_directory, mut keys, commands, told) = scene();
        let refuse = |keys: &mut SiteKeys, others: u32| {
            let next = next_of_site(&keys.key_file, &keys.hub).unwrap();
            let key = next.public_key();
            keys.others = others;
            let reason = OTHER_WORKER.to_owned();
            keys.handle(KeyEvent::Refused { key, reason }, &commands);
            (key, told.lock().unwrap().pop())
        };
        for others in [0, 64, OTHERS_MAX - 2] {
            let (_, step) = refuse(&mut keys, others);
            assert!(matches!(step, Some(KeyStep::Next(_))), "{others}: {step:?}");
        }
        let (refused, step) = refuse(&mut keys, OTHERS_MAX - 1);
        let Some(KeyStep::GiveUp { key, reason }) = step else {
            panic!("{step:?}");
        };
        assert_eq!(key, refused);
        for word in ["another worker", "restart the hub", "ropewalk key rotate"] {
            assert!(reason.contains(word), "{reason}");
        }
        assert_eq!(key_file::load_next(&keys.key_file).unwrap(), None);
        assert_eq!(keys.others, 0, "a further attempt begins anew");
    }
}
