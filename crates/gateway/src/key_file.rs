//! The private key of a gateway on disk.
//!
//! Invariant: only its owner can read the file, from the moment it exists. A looser file is
//! refused. Format: one line of base64, as `Identity` writes it.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ropewalk_transport::Identity;

use ropewalk_host::files;

/// Reads the key.
///
/// # Errors
/// Missing, readable by others, or no key; the message says what to do and never shows the key.
pub fn load(path: &Path) -> anyhow::Result<Identity> {
    let text = files::read_secret(path).map_err(|error| {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::NotFound) => anyhow::anyhow!(
                "there is no key {}; run `ropewalk join` on a site, `ropewalk hub --init` \
                 on a hub, or `ropewalk key generate`",
                path.display()
            ),
            _ => error,
        }
    })?;
    Identity::from_seed_base64(&text).with_context(|| {
        format!(
            "{} holds no private key; restore it, or move it away and run `ropewalk key generate`",
            path.display()
        )
    })
}

/// Writes the key to a new file.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn create(path: &Path, identity: &Identity) -> anyhow::Result<()> {
    files::create_parent(path)?;
    match files::write_atomically(path, &contents(identity), files::SECRET, false) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
            "{} exists already and is not overwritten; move it away first, or use \
             `ropewalk key rotate`",
            path.display()
        ),
        other => other.with_context(|| format!("cannot write the key {}", path.display())),
    }
}

/// Writes the key over the present one, of which it keeps a copy; returns where.
///
/// # Errors
/// There is no key, or a file cannot be written.
pub fn replace(path: &Path, identity: &Identity) -> anyhow::Result<PathBuf> {
    let mut former = path.to_owned().into_os_string();
    former.push(".former");
    let former = PathBuf::from(former);
    let write = |path: &Path, contents: &[u8]| {
        files::write_atomically(path, contents, files::SECRET, true)
            .with_context(|| format!("cannot write the key {}", path.display()))
    };
    write(&former, &contents(&load(path)?))?;
    write(path, &contents(identity))?;
    Ok(former)
}

/// Reads the key, or makes one when there is none; the second value says whether it is new.
///
/// # Errors
/// As [`load`] and [`create`].
pub fn load_or_create(path: &Path) -> anyhow::Result<(Identity, bool)> {
    if path.exists() {
        return Ok((load(path)?, false));
    }
    let identity = Identity::generate()?;
    create(path, &identity)?;
    Ok((identity, true))
}

fn contents(identity: &Identity) -> Vec<u8> {
    let mut text = identity.to_seed_base64().as_bytes().to_vec();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_writing_and_reading() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/site.key");
        let (made, new) = load_or_create(&path).unwrap();
        let (read, again) = load_or_create(&path).unwrap();
        assert_eq!(made.public_key(), read.public_key());
        assert!(new && !again);
        assert!(
            create(&path, &made)
                .unwrap_err()
                .to_string()
                .contains("key rotate")
        );
    }

    #[test]
    fn a_replaced_key_is_kept_beside_the_new_one_and_is_as_secret() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.key");
        let (first, _) = load_or_create(&path).unwrap();
        let second = Identity::generate().unwrap();
        let former = replace(&path, &second).unwrap();
        assert_eq!(former, directory.path().join("hub.key.former"));
        assert_eq!(load(&former).unwrap().public_key(), first.public_key());
        assert_eq!(load(&path).unwrap().public_key(), second.public_key());
        let mode = std::fs::metadata(&former).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn missing_and_broken_keys_say_what_to_do_and_show_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        assert!(
            load(&path)
                .unwrap_err()
                .to_string()
                .contains("ropewalk join")
        );
        files::write_atomically(&path, b"c2VjcmV0", files::SECRET, false).unwrap();
        let error = format!("{:#}", load(&path).unwrap_err());
        assert!(error.contains("holds no private key"), "{error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
}
