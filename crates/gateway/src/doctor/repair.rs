//! Undoes what gateways left behind.
//!
//! Invariant: nothing is undone without the lock that a running gateway holds. A configuration that
//! cannot be read costs only its settings: the list of changes is then looked for where its
//! `state_dir` line, or else the default, says.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::service;
use ropewalk_config::WrongUsage;
use ropewalk_config::{self as config, Config};
use ropewalk_host::files::Lock;

/// All roles, by the names of their files.
const ROLES: [&str; 4] = ["site", "hub", "relay", "balance"];

/// Undoes the changes that a gateway left behind when it crashed, or when it was not started again
/// as planned. That is the `given` gateway, else those of all roles that this machine has and that
/// do not run. Appends to `done` what was undone.
///
/// # Errors
/// The only gateway runs, nothing is found for a configuration that is not usable, or something
/// cannot be undone; the others are repaired all the same.
pub fn repair(given: Option<&Path>, done: &mut Vec<String>) -> anyhow::Result<()> {
    let paths = match given {
        Some(path) => vec![path],
        None => config::existing_paths(),
    };
    match paths.as_slice() {
        [] => repair_without(Path::new(config::STATE_DIR), done),
        [only] => repair_role(only, false, done),
        paths => {
            let mut failed = None;
            for path in paths {
                if let Err(error) = repair_role(path, true, done) {
                    let error = error.context(format!("{} is not repaired", path.display()));
                    failed.get_or_insert(error);
                }
            }
            failed.map_or(Ok(()), Err)
        }
    }
}

/// This machine has no configuration: the lists in `state_dir` say what there is to undo.
fn repair_without(state_dir: &Path, done: &mut Vec<String>) -> anyhow::Result<()> {
    if repair_listed(state_dir, &ROLES, done)? {
        return Ok(());
    }
    Err(WrongUsage(format!(
        "this machine has no role, and {} holds no list of what was changed; name the \
         configuration with --config",
        state_dir.display()
    ))
    .into())
}

/// One role. While it runs there is nothing to do where it `may_run`.
fn repair_role(path: &Path, may_run: bool, done: &mut Vec<String>) -> anyhow::Result<()> {
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => return repair_unreadable(path, error, done),
    };
    let common = config.common();
    let (state_dir, role) = (&common.state_dir, common.role);
    if may_run && Lock::is_held(&service::lock_path(state_dir, role)) {
        return Ok(());
    }
    let _lock = service::take_lock(state_dir, role)?;
    let undone = ropewalk_host::changes::repair(&service::changes_path(state_dir, role))?;
    done.extend(undone.iter().map(ToString::to_string));
    if common.socket.exists() && UnixStream::connect(&common.socket).is_err() {
        std::fs::remove_file(&common.socket)?;
        done.push(format!(
            "removed the stale socket {}",
            common.socket.display()
        ));
    }
    Ok(())
}

/// What the gateway of a configuration has left that is not usable for the reason `error`. A file
/// whose name says no role may be of any.
fn repair_unreadable(
    path: &Path,
    error: anyhow::Error,
    done: &mut Vec<String>,
) -> anyhow::Result<()> {
    let Ok(text) = std::fs::read_to_string(path) else {
        return Err(error);
    };
    let state_dir = state_dir(&text);
    let stem = path.file_stem().unwrap_or_default();
    let named: Vec<&str> = ROLES.into_iter().filter(|role| stem == *role).collect();
    let roles = if named.is_empty() {
        &ROLES
    } else {
        named.as_slice()
    };
    if repair_listed(&state_dir, roles, done)? {
        return Ok(());
    }
    let state_dir = state_dir.display();
    Err(error.context(format!(
        "{state_dir} holds no list of what was changed, and the configuration is not usable"
    )))
}

/// Undoes the lists of these roles; says whether there was any.
fn repair_listed(state_dir: &Path, roles: &[&str], done: &mut Vec<String>) -> anyhow::Result<bool> {
    let mut any = false;
    for role in roles {
        let changes = service::changes_path(state_dir, role);
        if !changes.exists() {
            continue;
        }
        any = true;
        let _lock = service::take_lock(state_dir, role)?;
        let undone = ropewalk_host::changes::repair(&changes)?;
        done.extend(undone.iter().map(ToString::to_string));
    }
    Ok(any)
}

/// The value of the line `state_dir = "…"` in a text that may be no TOML, else the default.
fn state_dir(text: &str) -> PathBuf {
    let value = |line: &str| {
        let rest = line.trim_start().strip_prefix("state_dir")?.trim_start();
        let quoted = rest.strip_prefix('=')?.trim_start();
        let quote = quoted.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, _) = quoted[1..].split_once(quote)?;
        value.starts_with('/').then(|| PathBuf::from(value))
    };
    let found = text.lines().find_map(value);
    found.unwrap_or_else(|| PathBuf::from(config::STATE_DIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_configuration_still_says_where_its_list_of_changes_lies() {
        let text = "state_dir = '/tmp/a b'  # own\n[[[\n";
        assert_eq!(state_dir(text), Path::new("/tmp/a b"));
        for text in [
            "",
            "# state_dir = \"/x\"",
            "state_dir = \"x\"",
            "state_dir = /x",
        ] {
            assert_eq!(state_dir(text), Path::new(config::STATE_DIR), "{text}");
        }
    }

    #[test]
    fn repair_without_a_readable_configuration_clears_the_list_and_without_a_list_tells_the_error()
    {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        let path = dir.join("hub.toml");
        std::fs::write(&path, format!("state_dir = \"{}\"\n[pool\n", dir.display())).unwrap();
        let mut done = Vec::new();
        let error = format!("{:#}", repair(Some(&path), &mut done).unwrap_err());
        assert!(
            error.contains("holds no list") && error.contains("hub.toml:2:"),
            "{error}"
        );
        // Changes of another boot are gone already: the list is all that is left.
        let list = dir.join("hub-changes.json");
        let text = r#"{"pid":1,"boot":"other","namespace":"","changes":[]}"#;
        std::fs::write(&list, text).unwrap();
        repair(Some(&path), &mut done).unwrap();
        assert!(!list.exists() && done.is_empty(), "{done:?}");
        let error = repair_without(dir, &mut done).unwrap_err();
        assert_eq!(crate::exit::code(&error), crate::exit::USAGE, "{error:#}");
        std::fs::write(&list, text).unwrap();
        repair_without(dir, &mut done).unwrap();
        assert!(!list.exists());
    }

    #[test]
    fn a_running_gateway_is_not_repaired_whatever_its_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        let list = dir.join("site-changes.json");
        std::fs::write(
            &list,
            r#"{"pid":1,"boot":"other","namespace":"","changes":[]}"#,
        )
        .unwrap();
        let _running = service::take_lock(dir, "site").unwrap();
        let error = repair_without(dir, &mut Vec::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("a site runs already"), "{error}");
        assert!(list.exists());
    }
}
