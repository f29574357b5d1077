//! Checks everything a gateway needs and says what to do about what is missing.
//!
//! Invariant: checks change nothing on this machine; only [`repair`] does, and only with the lock
//! that a running gateway holds.

mod machine;
mod probe;
mod role;

use std::path::Path;

use serde::Serialize;

use crate::config::common::Common;
use crate::config::{self, Config};
use crate::exit::WrongUsage;
use crate::files::Lock;
use crate::status::{BalanceStatus, Status};
use crate::{key_file, service};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, but worse than it could.
    Warn,
    /// Does not work.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it ended.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn warn(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: State::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    fn fail(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: State::Fail,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }
}

/// Checks this machine, and the gateway configured in `path` if there is one. There must be one if
/// the file was `named`.
#[must_use]
pub fn run(path: &Path, named: bool) -> Vec<Check> {
    let mut checks = machine::checks();
    if !path.exists() {
        checks.push(missing(path, named));
        return checks;
    }
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            let remedy = "correct the file; the lines above say how";
            checks.push(Check::fail("configuration", format!("{error:#}"), remedy));
            return checks;
        }
    };
    checks.push(Check::ok(
        "configuration",
        format!("{} is sound", path.display()),
    ));
    let common = config.common();
    if !matches!(config, Config::Balance(_)) {
        checks.push(key("key", common));
    }
    let role = common.role;
    let running = Lock::is_held(&service::lock_path(common, role));
    checks.push(left_overs(common, role, running));
    match &config {
        Config::Hub(hub) => checks.extend(role::hub(hub, running)),
        Config::Site(site) => checks.extend(role::site(site)),
        Config::Relay(relay) => {
            checks.push(key("key at the hub", &relay.site.common));
            checks.extend(role::hub(&relay.hub, running));
            checks.extend(role::site(&relay.site));
        }
        Config::Balance(balance) => checks.push(role::balance(balance)),
    }
    checks.push(gateway(common, role, running));
    if !named {
        checks.extend(left_overs_of_others(path));
    }
    checks
}

/// What roles other than that of `path` have left.
fn left_overs_of_others(path: &Path) -> Vec<Check> {
    let others = config::existing_paths().into_iter().filter(|p| *p != path);
    let found = others.filter_map(|other| {
        let config = Config::load(other).ok()?;
        let common = config.common();
        let running = Lock::is_held(&service::lock_path(common, common.role));
        let check = left_overs(common, common.role, running);
        (check.state != State::Ok).then(|| Check {
            name: format!("left-overs of {}", other.display()),
            ..check
        })
    });
    found.collect()
}

fn missing(path: &Path, named: bool) -> Check {
    let (name, path) = ("configuration", path.display());
    let write = "`ropewalk join TOKEN` on a site, `ropewalk hub --init` on a hub, `ropewalk relay \
                 --join TOKEN` on a relay, or `ropewalk balance --init` where there is no hub";
    if named {
        let remedy = format!("correct --config, or write the file with it and {write}");
        return Check::fail(name, format!("{path} is missing"), remedy);
    }
    let found = format!("{path} is missing: this machine has no role yet");
    Check::warn(name, found, format!("run {write}, or give --config"))
}

/// Undoes what a gateway that crashed left behind, or one that was to be started again and was not: the
/// `given` one, else those of all roles that this machine has and that do not run. Appends to `done` what was.
///
/// # Errors
/// The only gateway runs, a configuration is not usable, or something cannot be undone; the others are
/// repaired all the same.
pub fn repair(given: Option<&Path>, done: &mut Vec<String>) -> anyhow::Result<()> {
    let paths = match given {
        Some(path) => vec![path],
        None => config::existing_paths(),
    };
    let [first, others @ ..] = paths.as_slice() else {
        return Err(WrongUsage(
            "this machine has no role, so there is no list of what was changed; name the \
             configuration with --config"
                .to_owned(),
        )
        .into());
    };
    if others.is_empty() {
        done.extend(repair_role(first, false)?);
        return Ok(());
    }
    let mut failed = None;
    for path in &paths {
        match repair_role(path, true) {
            Ok(lines) => done.extend(lines),
            Err(error) => {
                let error = error.context(format!("{} is not repaired", path.display()));
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// One role. While it runs there is nothing to do where it `may_run`.
fn repair_role(path: &Path, may_run: bool) -> anyhow::Result<Vec<String>> {
    let config = Config::load(path)?;
    let common = config.common();
    let role = common.role;
    if may_run && Lock::is_held(&service::lock_path(common, role)) {
        return Ok(Vec::new());
    }
    let _lock = Lock::take(&service::lock_path(common, role), &format!("a {role}"))?;
    let undone = service::state::repair(&service::changes_path(common, role))?;
    let mut done: Vec<String> = undone.iter().map(ToString::to_string).collect();
    if common.socket.exists() && std::os::unix::net::UnixStream::connect(&common.socket).is_err() {
        std::fs::remove_file(&common.socket)?;
        done.push(format!(
            "removed the stale socket {}",
            common.socket.display()
        ));
    }
    Ok(done)
}

/// The configuration that is checked: the given one, else that of the gateway that runs, else the first.
#[must_use]
pub fn default_config(given: Option<&Path>) -> std::path::PathBuf {
    let runs = |path: &&Path| {
        Config::load(path).is_ok_and(|config| {
            let common = config.common();
            Lock::is_held(&service::lock_path(common, common.role))
        })
    };
    let running = || config::existing_paths().into_iter().find(runs);
    config::default_path(given.or_else(running))
}

fn key(name: &str, common: &Common) -> Check {
    let path = common.key_file.display();
    match key_file::load(&common.key_file) {
        Ok(identity) => Check::ok(
            name,
            format!("{path}, public key {}", identity.public_key()),
        ),
        Err(error) => {
            let text = format!("{error:#}");
            // Errors of keys carry their remedy behind a semicolon.
            let (found, remedy) = text.split_once("; ").unwrap_or((&text, "run as root"));
            Check::fail(name, found, remedy)
        }
    }
}

fn left_overs(common: &Common, role: &str, running: bool) -> Check {
    let name = "left-overs";
    if running {
        return Check::ok(name, "the gateway is running and will clean up itself");
    }
    match service::state::left_over(&service::changes_path(common, role)) {
        Ok(changes) if changes.is_empty() => Check::ok(name, "nothing of an earlier run is left"),
        Ok(changes) => {
            let list: Vec<String> = changes.iter().map(ToString::to_string).collect();
            let found = format!("an earlier run has left: {}", list.join("; "));
            Check::warn(
                name,
                found,
                "run `ropewalk doctor --repair`, or start the gateway",
            )
        }
        Err(error) => Check::fail(name, format!("{error:#}"), "look at the file by hand"),
    }
}

fn gateway(common: &Common, role: &str, running: bool) -> Check {
    let name = "gateway";
    if !running {
        let command = config::command(role);
        return Check::warn(name, "not running", format!("start it with `{command}`"));
    }
    match crate::client::Client::new(&common.socket).status() {
        Ok(Status {
            balance: Some(balance),
            ..
        }) => balancing(name, &balance),
        Ok(status) => {
            let up = status.tunnels.iter().filter(|tunnel| tunnel.up).count();
            let found = format!("running, {up} of {} tunnels up", status.tunnels.len());
            if up == 0 && role == "site" {
                return Check::fail(name, found, "see the lines about the hub above");
            }
            Check::ok(name, found)
        }
        Err(error) => Check::warn(
            name,
            format!("running, but {error:#}"),
            "run as root, or restart it",
        ),
    }
}

fn balancing(name: &str, balance: &BalanceStatus) -> Check {
    let uplinks = &balance.uplinks;
    let used = uplinks.iter().filter(|uplink| uplink.is_used()).count();
    let found = format!(
        "running, {used} of {} uplinks carry new flows",
        uplinks.len()
    );
    if used == 0 {
        return Check::fail(name, found, "see `ropewalk status`");
    }
    if balance.none_answers() {
        let found =
            format!("{found}; no target answers on any uplink: a dead uplink cannot be told");
        return Check::warn(name, found, "set targets in [probe]");
    }
    Check::ok(name, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::balance::UplinkStatus;

    #[test]
    fn uplinks_that_carry_flows_though_no_target_answers_are_warned_of() {
        let uplink = |state: &str| UplinkStatus {
            state_ipv4: state.to_owned(),
            state_ipv6: "none".to_owned(),
            share_ipv4: 0.5,
            ..UplinkStatus::default()
        };
        let of = |states: &[&str]| {
            let uplinks = states.iter().map(|state| uplink(state)).collect();
            let balance = BalanceStatus {
                uplinks,
                ..BalanceStatus::default()
            };
            super::balancing("gateway", &balance)
        };
        let check = of(&["dead", "dead", "absent"]);
        assert_eq!(check.state, State::Warn);
        assert!(check.found.contains("no target answers"), "{check:?}");
        assert_eq!(of(&["dead", "up"]).state, State::Ok);
        assert_eq!(of(&["unproven"]).state, State::Ok);
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let path = Path::new("/nonexistent/site.toml");
        for (named, state) in [(true, State::Fail), (false, State::Warn)] {
            let check = run(path, named).pop().unwrap();
            assert_eq!(check.state, state);
            assert!(check.remedy.unwrap().contains("ropewalk balance --init"));
        }
    }

    #[test]
    fn every_check_that_is_not_ok_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.toml");
        let state = directory.path().display();
        let text = format!(
            "state_dir = \"{state}\"\n[pool]\nipv4 = \"10.9.0.0/16\"\n[network]\nforward = false\n\
             [api]\nsocket = \"{state}/s\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let checks = run(&path, true);
        for check in &checks {
            let said = check
                .remedy
                .as_ref()
                .is_some_and(|remedy| !remedy.is_empty());
            assert_eq!(said, check.state != State::Ok, "{check:?}");
        }
        let state_of = |name: &str| {
            checks
                .iter()
                .find(|check| check.name == name)
                .unwrap()
                .state
        };
        assert_eq!(state_of("configuration"), State::Ok);
        assert_eq!(state_of("key"), State::Fail);
        assert_eq!(state_of("left-overs"), State::Ok);
        assert_eq!(state_of("gateway"), State::Warn);
    }

    #[test]
    fn broken_configuration_fails_with_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.toml");
        std::fs::write(&path, "[pool]\nipv4 = 3\n").unwrap();
        let checks = run(&path, true);
        let last = checks.last().unwrap();
        assert_eq!(last.state, State::Fail);
        assert!(last.found.contains("hub.toml:2: pool.ipv4"), "{last:?}");
    }
}
