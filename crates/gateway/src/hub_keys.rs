//! What a site knows of its hub's keys beside its configuration: a file in the state directory.
//!
//! The configuration pins one key. The hub proves that key, and then may say which one comes next. Invariant: the
//! file counts only while the configuration still pins the key from which it began. So whoever writes
//! another key into the configuration has the last word.

use std::io;
use std::path::Path;

use anyhow::Context;
use ropewalk_host::files;
use ropewalk_transport::PublicKey;
use serde::{Deserialize, Serialize};

/// Name of the file in the state directory.
const FILE: &str = "hub-keys.json";

/// The keys of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubKeys {
    /// The key of the configuration.
    pub pinned: PublicKey,
    /// The key that the hub has now, as far as this site knows.
    pub key: PublicKey,
    /// The key that the hub has announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<PublicKey>,
    /// The key that it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<PublicKey>,
}

impl HubKeys {
    /// What is known when the configuration pins this key.
    ///
    /// # Errors
    /// There is a file that cannot be read.
    pub fn load(state_dir: &Path, pinned: PublicKey) -> anyhow::Result<Self> {
        let path = state_dir.join(FILE);
        let fresh = Self {
            pinned,
            key: pinned,
            next: None,
            former: None,
        };
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(fresh),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let known: Self = serde_json::from_slice(&text).with_context(|| {
            format!(
                "{} is damaged; write the present key of the hub into [hub] of the configuration, \
                 and remove the file",
                path.display()
            )
        })?;
        Ok(if known.pinned == pinned { known } else { fresh })
    }

    /// Writes it down.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, state_dir: &Path) -> anyhow::Result<()> {
        let path = state_dir.join(FILE);
        let text = serde_json::to_vec_pretty(self)?;
        files::write_atomically(&path, &text, files::SECRET, true)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Removes the file if it began from `pinned`. A machine that joins has the key of its token, whatever the hub has said
/// before. A file that began from another key stays: [`HubKeys::load`] passes over it, and another site with this state
/// directory may need it. A damaged file is removed only if it `is_own`, and so is no other site's.
///
/// # Errors
/// The file cannot be read or removed.
pub fn forget(state_dir: &Path, pinned: PublicKey, is_own: bool) -> anyhow::Result<()> {
    let path = state_dir.join(FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    let counts =
        serde_json::from_slice::<HubKeys>(&text).map_or(is_own, |known| known.pinned == pinned);
    if counts {
        files::remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    #[test]
    fn the_file_counts_while_the_configuration_has_the_key_that_it_began_with() {
        let directory = tempfile::tempdir().unwrap();
        let mut keys = HubKeys::load(directory.path(), key(1)).unwrap();
        assert_eq!((keys.key, keys.next), (key(1), None));
        (keys.key, keys.next, keys.former) = (key(2), Some(key(3)), Some(key(1)));
        keys.store(directory.path()).unwrap();
        assert_eq!(HubKeys::load(directory.path(), key(1)).unwrap(), keys);
        let other = HubKeys::load(directory.path(), key(4)).unwrap();
        assert_eq!((other.key, other.next, other.former), (key(4), None, None));
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        let error = HubKeys::load(directory.path(), key(1)).unwrap_err();
        assert!(error.to_string().contains("remove the file"), "{error}");
    }
}
