//! The Unix socket of the API: who may connect.
//!
//! Invariant: the socket is never open wider than it ends up.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use ropewalk_host::files;
use ropewalk_io::helper::{self, Lane, Service};

/// Name of the helper's service.
const SERVICE: &str = "api-socket";

/// Opens the Unix socket: for root, and for `group` if given.
pub fn bind_unix(path: &Path, group: Option<&str>) -> anyhow::Result<UnixListener> {
    files::create_parent(path)?;
    let group = group.map(group_id).transpose()?;
    if UnixStream::connect(path).is_ok() {
        bail!(
            "another gateway serves its API at {}; stop it, or give this one its own `socket` in \
             [api]",
            path.display()
        );
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let former = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(former);
    let listener =
        bound.with_context(|| format!("cannot make the API socket {}", path.display()))?;
    listener.set_nonblocking(true)?;
    if let Some(group) = group {
        helper::delegate(Lane::Slow, SERVICE, &(), |()| hand_over(path, group))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))
            .with_context(|| format!("cannot open {} to its group", path.display()))?;
    }
    Ok(listener)
}

/// What the helper of a gateway does for the API: gives the socket at `path` to `group`.
pub fn socket_service(path: PathBuf, group: Option<String>) -> Service {
    Service::new(SERVICE, move |()| {
        let group = group.as_deref().context("the API has no group")?;
        hand_over(&path, group_id(group)?)
    })
}

fn hand_over(path: &Path, group: u32) -> anyhow::Result<()> {
    let told = || format!("cannot hand {} to its group", path.display());
    // Whoever may write in the directory may have put something else there.
    let found = fs::symlink_metadata(path).with_context(told)?;
    if !found.file_type().is_socket() {
        bail!("{} is no socket", path.display());
    }
    lchown(path, None, Some(group)).with_context(told)
}

fn group_id(name: &str) -> anyhow::Result<u32> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    // The system's own look-up: groups may come from LDAP or SSSD.
    let group = uzers::get_group_by_name(name).with_context(|| {
        format!("there is no group {name}; run `groupadd {name}`, or change `group` in [api]")
    })?;
    Ok(group.gid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_private_and_a_live_one_is_not_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/api.sock");
        let first = bind_unix(&path, None).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let error = bind_unix(&path, None).unwrap_err().to_string();
        assert!(error.contains("another gateway"), "{error}");
        drop(first);
        bind_unix(&path, None).expect("a socket left by a crash is replaced");
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("42").unwrap(), 42);
        let error = group_id("no-such-group").unwrap_err().to_string();
        assert!(error.contains("groupadd no-such-group"), "{error}");
    }
}
