//! The key of a running gateway changes: what is on disk, and what the engine is told.
//!
//! Invariant: the engine hears of a key only after the key is on disk. At every moment the key file holds a key
//! that works, or the file of the next key does: the hub of a site takes both until one has ended, and the site
//! tries both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

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
pub(super) fn of_site(
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
        })
    })
}

/// The next key of a site. It falls to the same worker of the hub as the present one, as far as the site knows.
///
/// # Errors
/// There is a key that cannot be used, or the new one cannot be written.
pub(crate) fn next_of_site(key_file: &Path, hub: &HubKeys) -> anyhow::Result<Identity> {
    let own = key_file::load(key_file)?.public_key();
    let group = group_of(&hub.key, &own);
    key_file::next_or_create(key_file, |key| group_of(&hub.key, key) == group)
}

/// For a hub.
pub(super) fn of_hub(key_file: PathBuf, commands: Commands) -> ChangeKey {
    Arc::new(move |request| {
        if !request.switch {
            let next = key_file::next_or_create(&key_file, |_| true)?;
            let key = next.public_key();
            tracing::info!(%key, "the next key of this hub is announced to its sites");
            (commands.0)(Command::Key(KeyStep::Next(next)))?;
            return Ok(KeyChange {
                key: key.to_string(),
            });
        }
        let next = key_file::load_next(&key_file)?
            .context("there is no next key; run `ropewalk key rotate` first")?;
        let key = next.public_key();
        // A hub that ends in between starts with the next key.
        key_file::replace(&key_file, &next)?;
        key_file::remove_next(&key_file)?;
        (commands.0)(Command::Key(KeyStep::Switch))?;
        tracing::warn!(%key, "new connections have the next key of this hub");
        Ok(KeyChange {
            key: key.to_string(),
        })
    })
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

/// Most next keys in a row that are given up because they fall to another worker of the hub, which has tens of them
/// at most. More: surer with many workers, longer in vain where something else is wrong.
const OTHERS_MAX: u32 = 64;

impl SiteKeys {
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
    pub(super) fn handle(&mut self, event: KeyEvent, commands: &Commands) {
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
                if self.others > OTHERS_MAX {
                    self.others = 0;
                    bail!(
                        "the hub took none of {OTHERS_MAX} next keys; restart the hub, and run `ropewalk key rotate` again"
                    );
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
