//! Checks everything a gateway needs and says what to do about what is missing.
//!
//! Invariant: checks change nothing on this machine. Only [`repair()`] does, with the lock that a
//! running gateway holds.

mod machine;
mod probe;
mod repair;
mod role;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::{key_file, service};
pub use repair::repair;
use ropewalk_api::{BalanceStatus, Status, words};
use ropewalk_config::common::Common;
use ropewalk_config::{self as config, Config};
use ropewalk_host::files::{self, Lock};

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
    let kills = matches!(Config::load(path), Ok(Config::Site(site)) if site.kill_switch);
    checks.push(machine::nft(kills));
    if !path.exists() {
        checks.push(missing(path, named));
        return checks;
    }
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            checks.push(unusable(&error));
            return checks;
        }
    };
    checks.push(Check::ok(
        "configuration",
        format!("{} is sound", path.display()),
    ));
    let common = config.common();
    let role = common.role;
    let running = running(common);
    match running {
        Some(running) => {
            if !matches!(config, Config::Balance(_)) {
                checks.push(key("key", common));
            }
            checks.push(left_overs(common, role, running));
        }
        None => checks.push(rights(common)),
    }
    match &config {
        Config::Hub(hub) => checks.extend(role::hub(hub, running)),
        Config::Site(site) => checks.extend(role::site(site, running)),
        Config::Relay(relay) => {
            if running.is_some() {
                checks.push(key("key at the hub", &relay.site.common));
            }
            checks.extend(role::hub(&relay.hub, running));
            checks.extend(role::site(&relay.site, running));
        }
        Config::Balance(balance) => checks.extend(role::balance(balance)),
    }
    if let Some(running) = running {
        checks.push(gateway(path, common, role, running));
    }
    if !named {
        checks.extend(left_overs_of_others(path));
    }
    checks
}

/// Whether the gateway runs. `None`: this user may not look.
fn running(common: &Common) -> Option<bool> {
    match Lock::look(&service::lock_path(&common.state_dir, common.role)) {
        Ok(held) => Some(held),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// What is not checked where this user may not look whether the gateway runs: it would be a guess.
fn rights(common: &Common) -> Check {
    let found = format!(
        "this user may not look at the state of the gateway in {}: whether it runs, and its key, sites, ports and left-overs, \
         are not checked",
        common.state_dir.display()
    );
    Check::fail("rights", found, "run `ropewalk doctor` as root (sudo)")
}

/// What roles other than that of `path` have left.
fn left_overs_of_others(path: &Path) -> Vec<Check> {
    let others = config::existing_paths().into_iter().filter(|p| *p != path);
    let found = others.filter_map(|other| {
        let config = Config::load(other).ok()?;
        let common = config.common();
        let running = running(common)?;
        let check = left_overs(common, common.role, running);
        (check.state != State::Ok).then(|| Check {
            name: format!("left-overs of {}", other.display()),
            ..check
        })
    });
    found.collect()
}

/// A configuration that is wrong, or that this user may not read.
fn unusable(error: &anyhow::Error) -> Check {
    let remedy = if files::is_denied(error) {
        "run as root"
    } else {
        "correct the file; the lines above say how"
    };
    Check::fail("configuration", format!("{error:#}"), remedy)
}

fn missing(path: &Path, named: bool) -> Check {
    let (name, path) = ("configuration", path.display());
    let write = "`ropewalk join` on a site, `ropewalk hub --init` on a hub, `ropewalk relay \
                 --join` on a relay, or `ropewalk balance --init` where there is no hub";
    if named {
        let remedy = format!("correct --config, or write the file with it and {write}");
        return Check::fail(name, format!("{path} is missing"), remedy);
    }
    let found = format!("{path} is missing: this machine has no role yet");
    Check::warn(name, found, format!("run {write}, or give --config"))
}

/// The configuration that is checked: the given one, else that of the gateway that runs, else the first.
#[must_use]
pub fn default_config(given: Option<&Path>) -> std::path::PathBuf {
    let runs = |path: &&Path| {
        Config::load(path).is_ok_and(|config| {
            let common = config.common();
            Lock::is_held(&service::lock_path(&common.state_dir, common.role))
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
            let text = if files::is_denied(&error) {
                error.to_string()
            } else {
                format!("{error:#}")
            };
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
    match ropewalk_host::changes::left_over(&service::changes_path(&common.state_dir, role)) {
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
        Err(error) => {
            let remedy = if files::is_denied(&error) {
                files::AS_ROOT
            } else {
                "look at the file by hand"
            };
            Check::fail(name, format!("{error:#}"), remedy)
        }
    }
}

fn gateway(path: &Path, common: &Common, role: &str, running: bool) -> Check {
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
            let check = if up == 0 && role == "site" {
                without_tunnel(name, &status, found)
            } else {
                beside_tunnel(name, &status, found)
            };
            match outdated_by(&status, path, &common.key_file) {
                Some(file) => outdated(check, file, role),
                None => check,
            }
        }
        Err(error) => Check::warn(
            name,
            format!("running, but {error:#}"),
            "run as root, or restart it",
        ),
    }
}

/// Adds to what was found that `file` has changed since the gateway started.
fn outdated(check: Check, file: &Path, role: &str) -> Check {
    let restart = format!(
        "restart the gateway, unless a reload took the change over: `systemctl restart ropewalk-{role}`, or that of its \
         own unit"
    );
    Check {
        state: check.state.max(State::Warn),
        found: format!(
            "{}; {} has changed since it started",
            check.found,
            file.display()
        ),
        remedy: Some(match check.remedy {
            Some(remedy) => format!("{restart}; {remedy}"),
            None => restart,
        }),
        ..check
    }
}

/// The file that says something else now than when the gateway read it: its configuration or its key.
fn outdated_by<'a>(status: &Status, path: &'a Path, key: &'a Path) -> Option<&'a Path> {
    // A gateway writes the key that it takes up.
    let other_key = key_file::load(key)
        .is_ok_and(|identity| identity.public_key().to_string() != status.public_key);
    if other_key {
        return Some(key);
    }
    let changed = path.metadata().and_then(|about| about.modified()).ok()?;
    let age = changed.elapsed().ok()?;
    (age.as_secs_f64() < status.uptime_s).then_some(path)
}

/// A site of which no tunnel is up, and what its paths say of that.
fn without_tunnel(name: &str, status: &Status, found: String) -> Check {
    let paths = status.tunnels.iter().flat_map(|tunnel| &tunnel.paths);
    let errors: BTreeSet<&str> = paths
        .filter_map(|path| path.last_error.as_deref())
        .collect();
    let remedy = if let Some(remedy) = errors.iter().copied().find_map(words::key_remedy) {
        remedy
    } else if errors.iter().copied().any(words::is_stranger) {
        "somebody else answers in place of the hub, as behind a login page: log in there with `ropewalk portal 5m --uplink NAME`"
    } else {
        "see the lines about the hub above"
    };
    let errors: String = errors.iter().map(|error| format!("; {error}")).collect();
    Check::fail(name, format!("{found}{errors}"), remedy)
}

/// A gateway whose tunnels are as `found`, and what it sends beside them.
fn beside_tunnel(name: &str, status: &Status, found: String) -> Check {
    let direct = status.direct.as_ref();
    if direct.is_some_and(|direct| direct.spread.none_answers()) {
        let found = format!(
            "{found}; no target answers on any uplink: flows beside the tunnel cannot avoid a dead \
             uplink"
        );
        return Check::warn(
            name,
            found,
            "set targets in [probe] that answer echo requests",
        );
    }
    Check::ok(name, found)
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
    use ropewalk_api::{PathStatus, TunnelStatus, UplinkStatus};

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
    fn a_site_whose_targets_do_not_answer_is_warned_of() {
        let of = |state: &str| {
            let uplink = UplinkStatus {
                state_ipv4: state.to_owned(),
                state_ipv6: "none".to_owned(),
                ..UplinkStatus::default()
            };
            let mut direct = ropewalk_api::DirectStatus::default();
            direct.spread.uplinks.push(uplink);
            let status = Status {
                direct: Some(direct),
                ..Status::default()
            };
            beside_tunnel("gateway", &status, "running".to_owned())
        };
        assert_eq!(of("up").state, State::Ok);
        let check = of("dead");
        assert_eq!(check.state, State::Warn);
        assert!(check.remedy.unwrap().contains("[probe]"));
    }

    #[test]
    fn a_user_without_rights_is_told_to_be_root_and_nothing_that_is_guessed() {
        use std::os::unix::fs::PermissionsExt;
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let everybodys = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), everybodys).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let [path, state, key] =
            ["hub.toml", "state", "hub.key"].map(|name| directory.path().join(name));
        let text = format!(
            "state_dir = \"{0}\"\nkey_file = \"{1}\"\nsites_file = \"{0}/sites.toml\"\n[pool]\nipv4 = \
             \"10.9.0.0/16\"\n[listen]\nudp = [\"{2}\"]\ntcp = []\n",
            state.display(),
            key.display(),
            socket.local_addr().unwrap()
        );
        std::fs::write(&path, text).unwrap();
        key_file::load_or_create(&key).unwrap();
        let lock = service::lock_path(&state, "hub");
        let _hub = Lock::take(&lock, "a hub", "").unwrap();
        std::fs::write(service::changes_path(&state, "hub"), "{").unwrap();
        let check = |state_mode| {
            let permissions = std::fs::Permissions::from_mode(state_mode);
            std::fs::set_permissions(&state, permissions).unwrap();
            let path = path.clone();
            let checked = std::thread::spawn(move || {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                run(&path, true)
            });
            checked.join().unwrap()
        };
        // Whoever may enter the directory may still not open the lock.
        for mode in [0o700, 0o755] {
            let checks = check(mode);
            let rights = checks.iter().find(|check| check.name == "rights");
            let rights = rights.expect("a check of rights");
            assert_eq!(rights.state, State::Fail);
            assert!(rights.remedy.as_ref().unwrap().contains("as root (sudo)"));
            let guesses = [
                "ports",
                "left-overs",
                "gateway",
                "sites",
                "key",
                "forwarding",
            ];
            for check in &checks {
                assert!(!guesses.contains(&&*check.name), "{check:?}");
            }
        }
        // No hub has run: what is there may be looked at, as far as it may be read.
        std::fs::remove_file(&lock).unwrap();
        std::fs::write(state.join("sites.toml"), "").unwrap();
        for file in [
            service::changes_path(&state, "hub"),
            state.join("sites.toml"),
        ] {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let checks = check(0o755);
        for name in ["key", "left-overs", "sites"] {
            let found = checks.iter().find(|check| check.name == name).unwrap();
            assert_eq!(found.remedy.as_deref(), Some(files::AS_ROOT), "{found:?}");
            assert!(!found.found.contains("damaged"), "{found:?}");
        }
    }

    #[test]
    fn a_site_without_a_tunnel_says_why_and_how_to_be_back() {
        let check = |errors: &[&str]| {
            let path = |error: &&str| PathStatus {
                last_error: Some((*error).to_owned()),
                ..PathStatus::default()
            };
            let status = Status {
                tunnels: vec![TunnelStatus {
                    paths: errors.iter().map(path).collect(),
                    ..TunnelStatus::default()
                }],
                ..Status::default()
            };
            without_tunnel("gateway", &status, "running, 0 of 1 tunnels up".to_owned())
        };
        let unknown = ropewalk_transport::CloseReason::KeyUnknown.to_string();
        let revoked = check(&[&unknown, &unknown]);
        assert_eq!(revoked.state, State::Fail);
        assert_eq!(
            revoked.found,
            format!("running, 0 of 1 tunnels up; {unknown}")
        );
        assert!(
            revoked
                .remedy
                .unwrap()
                .contains("`ropewalk invite NAME --replace`")
        );
        let other = "key refused: the peer's key is not the expected one";
        let remedy = check(&[other]).remedy.unwrap();
        assert_eq!(Some(&*remedy), words::key_remedy(other));
        assert!(remedy.contains("write that key into [hub]"), "{remedy}");
        let page = check(&["protocol error: received corrupt message of type InvalidContentType"]);
        assert!(
            page.remedy
                .unwrap()
                .contains("`ropewalk portal 5m --uplink NAME`")
        );
        for errors in [&[][..], &["timed out"]] {
            assert_eq!(
                check(errors).remedy.unwrap(),
                "see the lines about the hub above"
            );
        }
    }

    #[test]
    fn files_that_a_gateway_has_not_read_yet_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let [file, key] = ["site.toml", "site.key"].map(|name| directory.path().join(name));
        std::fs::write(&file, "").unwrap();
        let (identity, _) = key_file::load_or_create(&key).unwrap();
        let mut status = Status {
            public_key: identity.public_key().to_string(),
            ..Status::default()
        };
        assert_eq!(outdated_by(&status, &file, &key), None, "it has just begun");
        status.uptime_s = 3_600.0;
        assert_eq!(outdated_by(&status, &file, &key), Some(&*file));
        for (check, state) in [
            (Check::ok("gateway", "running"), State::Warn),
            (
                Check::fail("gateway", "no tunnel", "join again"),
                State::Fail,
            ),
        ] {
            let check = outdated(check, &file, "site");
            assert_eq!(check.state, state);
            assert!(check.found.contains("site.toml has changed"), "{check:?}");
            assert!(check.remedy.unwrap().contains("restart ropewalk-site"));
        }
        status.uptime_s = 0.0;
        status.public_key = "another".to_owned();
        assert_eq!(outdated_by(&status, &file, &key), Some(&*key));
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
    fn a_configuration_that_only_root_may_read_is_not_to_be_corrected() {
        let denied = anyhow::Error::from(io::Error::from(io::ErrorKind::PermissionDenied));
        let check = unusable(&denied.context("cannot read the configuration"));
        assert_eq!(check.remedy.unwrap(), "run as root");
        let other = unusable(&anyhow::anyhow!("site.toml:2: wrong"));
        assert!(other.remedy.unwrap().starts_with("correct the file"));
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
