//! The private key of a gateway on disk.
//!
//! Invariant: only its owner can read the file, from the moment it exists. A looser file is
//! refused. Format: one line of base64, as `Identity` writes it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ropewalk_transport::{Identity, PublicKey};

use ropewalk_host::files;

/// Reads the key.
///
/// # Errors
/// Missing, readable by others, or no key; the message says what to do and never shows the key.
pub fn load(path: &Path) -> anyhow::Result<Identity> {
    let path = &own_place(path);
    let text = files::read_secret(path, "a private key").map_err(|error| {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::NotFound) => anyhow::anyhow!(
                "there is no key {}; run `ropewalk join` on a site, `ropewalk hub --init` \
                 on a hub, or `ropewalk key generate`",
                path.display()
            ),
            Some(io::ErrorKind::InvalidData) => anyhow::anyhow!(no_key(path)),
            _ => error,
        }
    })?;
    Identity::from_seed_base64(&text).with_context(|| no_key(path))
}

fn no_key(path: &Path) -> String {
    format!(
        "{} holds no private key; restore it, or move it away and run `ropewalk key generate`",
        path.display()
    )
}

/// Writes the key to a new file.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn create(path: &Path, identity: &Identity) -> anyhow::Result<()> {
    if let Some(directory) = path.parent().filter(|name| !name.as_os_str().is_empty()) {
        files::create_private(directory)?;
    }
    match files::write_atomically(path, &contents(identity), files::SECRET, false) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
            "{} exists already and is not overwritten; move it away first, or use \
             `ropewalk key rotate`",
            path.display()
        ),
        other => other.with_context(|| cannot_write(path)),
    }
}

/// Writes the key over the present one, of which it keeps a copy; returns where.
///
/// # Errors
/// There is no key, or a file cannot be written.
pub fn replace(path: &Path, identity: &Identity) -> anyhow::Result<PathBuf> {
    let path = &own_place(path);
    let former = beside(path, ".former");
    let write = |path: &Path, contents: &[u8]| {
        files::write_atomically(path, contents, files::SECRET, true)
            .with_context(|| cannot_write(path))
    };
    write(&former, &contents(&load(path)?))?;
    write(path, &contents(identity))?;
    Ok(former)
}

/// Where the key is kept that the gateway will have.
#[must_use]
pub fn next_path(path: &Path) -> PathBuf {
    beside(&own_place(path), ".next")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Where the key is written: where a link leads to, for the directory of the link may be root's. Root follows no
/// link of the gateway's, and nobody follows a second one.
fn own_place(path: &Path) -> PathBuf {
    let trusted = |user| user == 0 || user == rustix::process::geteuid().as_raw();
    let is_trusted = std::fs::symlink_metadata(path).is_ok_and(|link| trusted(link.uid()));
    let target = std::fs::read_link(path).ok().filter(|_| is_trusted);
    let target = target.map(|target| path.with_file_name("").join(target));
    target
        .filter(|target| !target.is_symlink())
        .unwrap_or_else(|| path.to_owned())
}

fn cannot_write(path: &Path) -> String {
    format!(
        "cannot write the key {}; the user of the gateway must own its directory, and in a service the \
         directory must be in ReadWritePaths= of the unit",
        path.display()
    )
}

/// Reads the key that the gateway will have; `None` if there is none, or it has that key already.
///
/// # Errors
/// There is one that cannot be used.
pub fn load_next(path: &Path) -> anyhow::Result<Option<Identity>> {
    let next = next_path(path);
    if !next.exists() {
        return Ok(None);
    }
    let identity = load(&next)?;
    if identity == load(path)? {
        remove_next(path)?;
        return Ok(None);
    }
    Ok(Some(identity))
}

/// Reads the key that the gateway will have. Makes one that `fits` when there is none.
///
/// # Errors
/// There is one that cannot be used, or the new one cannot be written.
pub fn next_or_create(path: &Path, fits: impl Fn(&PublicKey) -> bool) -> anyhow::Result<Identity> {
    if let Some(next) = load_next(path)? {
        return Ok(next);
    }
    for _ in 0..KEYS_TRIED_MAX {
        let identity = Identity::generate()?;
        if fits(&identity.public_key()) {
            create(&next_path(path), &identity)?;
            return Ok(identity);
        }
    }
    bail!("no new key fits; run the same command again")
}

/// Most keys that are made to find one that fits: one in 64 does, and one in 4,096 where the hub has had two keys.
const KEYS_TRIED_MAX: usize = 60_000;

/// The gateway has the next key from now on; the former one is gone. Done already is done.
///
/// # Errors
/// The next key is another one, or the file cannot be renamed.
pub fn confirm_next(path: &Path, key: &PublicKey) -> anyhow::Result<()> {
    let path = &own_place(path);
    if load(path)?.public_key() == *key {
        return remove_next(path);
    }
    let next = next_path(path);
    if load(&next)?.public_key() != *key {
        bail!("{} holds another key than {key}", next.display());
    }
    files::rename(&next, path).with_context(|| cannot_write(path))
}

/// Gives the next key up.
///
/// # Errors
/// The file cannot be removed.
pub fn remove_next(path: &Path) -> anyhow::Result<()> {
    let next = next_path(path);
    match std::fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", next.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Gives the next key up if it is this one: another one may have taken its place meanwhile.
///
/// # Errors
/// The file cannot be read or removed.
pub fn give_up_next(path: &Path, key: &PublicKey) -> anyhow::Result<()> {
    match load_next(path)? {
        Some(next) if next.public_key() == *key => remove_next(path),
        Some(_) | None => Ok(()),
    }
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
    fn a_file_that_is_no_text_holds_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.key");
        files::write_atomically(&path, &[0xff, 0x00, 0x9f], files::SECRET, true).unwrap();
        let words = format!("{:#}", load(&path).unwrap_err());
        assert_eq!(words, no_key(&path));
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
    fn a_next_key_stays_until_it_is_the_only_one_or_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.key");
        let (first, _) = load_or_create(&path).unwrap();
        assert_eq!(load_next(&path).unwrap(), None);
        let even = |key: &PublicKey| key.as_bytes()[0].is_multiple_of(2);
        let next = next_or_create(&path, even).unwrap();
        assert!(even(&next.public_key()));
        assert_eq!(next_or_create(&path, even).unwrap(), next, "the same again");
        assert_eq!(load(&path).unwrap(), first);
        let error = confirm_next(&path, &first.derived(1).unwrap().public_key());
        assert!(error.unwrap_err().to_string().contains("another key"));
        confirm_next(&path, &next.public_key()).unwrap();
        assert_eq!(load(&path).unwrap(), next);
        confirm_next(&path, &next.public_key()).unwrap();
        let next = next_or_create(&path, even).unwrap();
        // A late word on another one.
        give_up_next(&path, &first.public_key()).unwrap();
        assert_eq!(load_next(&path).unwrap().as_ref(), Some(&next));
        give_up_next(&path, &next.public_key()).unwrap();
        assert_eq!(load_next(&path).unwrap(), None);
        // A hub that ends after it has replaced its key.
        let third = next_or_create(&path, even).unwrap();
        replace(&path, &third).unwrap();
        assert_eq!(load_next(&path).unwrap(), None);
        assert!(!next_path(&path).exists());
    }

    #[test]
    fn a_key_behind_a_link_changes_where_it_is_and_the_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = ["keys/site.key", "site.key"]
            .map(|name| directory.path().join(name))
            .into();
        let (first, _) = load_or_create(&path).unwrap();
        std::os::unix::fs::symlink("keys/site.key", &link).unwrap();
        assert_eq!(load(&link).unwrap(), first);
        let next = next_or_create(&link, |_| true).unwrap();
        assert_eq!(load_next(&path).unwrap(), Some(next.clone()));
        confirm_next(&link, &next.public_key()).unwrap();
        assert!(link.is_symlink());
        assert_eq!(load(&path).unwrap(), next);
        replace(&link, &first).unwrap();
        assert!(link.is_symlink() && directory.path().join("keys/site.key.former").exists());
        assert_eq!(load(&path).unwrap(), first);
    }

    #[test]
    fn only_the_owner_can_look_into_the_directory_of_keys() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join("etc/keys");
        load_or_create(&keys.join("site.key")).unwrap();
        let mode = std::fs::metadata(keys).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
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
