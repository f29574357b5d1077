//! `ropewalk down`: stops the site and lifts its kill switch.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Global, output};
use crate::service;
use ropewalk_config::{self as config, Config, WrongUsage};
use ropewalk_host::files::Lock;
use ropewalk_host::{kill_switch, portal};

const EXAMPLES: &str = "Examples:
  ropewalk down                  traffic goes over the uplinks again, without the tunnel

A site that stops, crashes or is killed leaves its kill switch in place, so that nothing leaves
beside the tunnel. This command takes it away. `ropewalk up` sets it again, and so does a start of
the machine if the site is enabled (`systemctl disable ropewalk-site` ends that).";

/// Stop the site, and lift its kill switch
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Down {}

/// Longest time that a site may take to stop. Longer: surer on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How often is looked whether it has. Longer: less work, slower.
const POLL: Duration = Duration::from_millis(50);
/// A directory that exists where systemd runs.
const SYSTEMD: &str = "/run/systemd/system";

/// Where a site has its state, and its interface.
#[derive(Debug)]
pub struct Place {
    /// Directory of state.
    pub state_dir: PathBuf,
    /// TUN interface.
    pub tun: String,
}

impl Place {
    /// From the configuration. Where that of the usual place is not usable, from the file of the kill switch
    /// in the usual place.
    ///
    /// # Errors
    /// The configuration that the user named is missing or wrong: another site may be meant.
    pub fn find(global: &Global) -> anyhow::Result<Self> {
        // Whoever names the usual place means the site there, also when its configuration is damaged.
        let named = global
            .config
            .as_deref()
            .filter(|named| *named != Path::new(config::SITE_CONFIG));
        let site = config::load_site(named.unwrap_or_else(|| Path::new(config::SITE_CONFIG)));
        let error = match site {
            Ok(site) => {
                return Ok(Self {
                    state_dir: site.common.state_dir,
                    tun: site.common.interface,
                });
            }
            Err(error) => error,
        };
        if named.is_some() {
            return Err(error.context(
                "nothing is changed, because the configuration of --config cannot be used (without one, \
                 `nft delete table inet ropewalk_kill_INTERFACE` lifts the kill switch of an interface)",
            ));
        }
        let state_dir = PathBuf::from(config::STATE_DIR);
        let plan = kill_switch::read(&kill_switch::path(&state_dir));
        let tun = plan.ok().flatten().map(|plan| plan.tun);
        Ok(Self {
            state_dir,
            tun: tun.unwrap_or_else(|| "ropewalk0".to_owned()),
        })
    }

    /// As [`Self::find`], where this machine is a site or a kill switch was left on it.
    ///
    /// # Errors
    /// The configuration is that of another role, or [`Self::find`] fails.
    pub fn of_site(global: &Global, command: &str) -> anyhow::Result<Self> {
        let usual = config::existing_paths();
        let path = global.config.as_deref().or_else(|| usual.first().copied());
        let config = path.and_then(|path| Config::load(path).ok());
        let role = match config {
            None | Some(Config::Site(_)) => return Self::find(global),
            Some(other) => other.common().role,
        };
        if global.config.is_none() {
            let place = Self::find(global)?;
            let is_set = kill_switch::state(&place.tun).is_ok_and(|state| state.is_some());
            if is_set || place.file().exists() {
                return Ok(place);
            }
        }
        Err(WrongUsage(format!(
            "`ropewalk {command}` is for sites. This machine is for `{}`, which has no kill switch, and \
             stops with Ctrl-C or `systemctl stop ropewalk-{role}`",
            config::command(role)
        ))
        .into())
    }

    /// The file of the kill switch.
    pub fn file(&self) -> PathBuf {
        kill_switch::path(&self.state_dir)
    }
}

impl Down {
    /// Stops, then lifts.
    ///
    /// # Errors
    /// The site does not stop, or the rules cannot be removed.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        if !service::has_net_admin() {
            bail!("only root may stop the site and lift its kill switch; run it as root (sudo)");
        }
        let place = Place::of_site(global, "down")?;
        let stopped = stop(&place.state_dir).context("the kill switch stays as it is")?;
        if !stopped {
            // Between two starts there is no process, and the next one would set the switch again.
            stop_unit(global.config.as_deref());
        }
        if stopped {
            output::note("the site is stopped");
        }
        let lifted = kill_switch::lift(&place.file(), &place.tun)
            .context("the kill switch was not lifted; `ropewalk kill-switch` shows it")?;
        let state = if lifted {
            "the kill switch is lifted"
        } else {
            "no kill switch was set"
        };
        output::note(&format!(
            "{state}: traffic leaves over the uplinks, without the tunnel"
        ));
        // One that fails keeps no other from being done.
        let portal = kill_switch::close_portal(&place.tun);
        let routes = portal::clear();
        let undone = undo(&place.state_dir);
        for change in undone.as_deref().unwrap_or_default() {
            output::note(&format!("undone, left by a site that was killed: {change}"));
        }
        let failed = [portal.err(), routes.err(), undone.err()]
            .into_iter()
            .flatten();
        let failed: Vec<_> = failed.map(|error| format!("{error:#}")).collect();
        if failed.is_empty() {
            return Ok(());
        }
        bail!("{state}, but: {}", failed.join("; "))
    }
}

/// Stops the site that has this directory; false when none runs.
fn stop(state_dir: &Path) -> anyhow::Result<bool> {
    let lock = service::lock_path(state_dir, "site");
    if !Lock::is_held(&lock) {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&lock).unwrap_or_default();
    let told = || match holders(&lock).first() {
        Some(holder) => remedy(*holder),
        None => format!(
            "{} does not name the site's process; stop it by hand",
            lock.display()
        ),
    };
    let pid: u32 = text.trim().parse().with_context(told)?;
    // The number means this process from here on, also after its end.
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    // The user of the gateway can write any number into the file.
    let process = process.filter(|_| Lock::is_held_by(&lock, pid));
    let process = process.with_context(told)?;
    match unit(pid) {
        // The service manager would start it again.
        Some(unit) => {
            let stopped = Command::new("systemctl").args(["stop", &unit]).status();
            let stopped = stopped.with_context(|| format!("cannot stop {unit}"))?;
            if !stopped.success() {
                bail!("`systemctl stop {unit}` failed; see `systemctl status {unit}`");
            }
        }
        None => {
            pidfd_send_signal(&process, Signal::TERM)
                .with_context(|| format!("cannot stop process {pid}"))?;
        }
    }
    let end = Instant::now() + STOP_TIMEOUT;
    while Lock::is_held(&lock) {
        if Instant::now() > end {
            // A helper that somebody stopped outlives its site.
            bail!(remedy(holders(&lock).first().copied().unwrap_or(pid)));
        }
        std::thread::sleep(POLL);
    }
    Ok(true)
}

fn remedy(holder: u32) -> String {
    format!(
        "process {holder} of the site does not end: run `kill -9 {holder}`, then `ropewalk down` again"
    )
}

/// Other processes that have this file open: the site, and its helper.
fn holders(lock: &Path) -> Vec<u32> {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let Some(wanted) = place(lock) else {
        return Vec::new();
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_open = |process: &u32| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| place(&file.path()) == Some(wanted))
    };
    let others = numbers.filter(|process| *process != std::process::id());
    others.filter(has_open).collect()
}

/// Undoes what a site has left that was killed, such as its name servers, in words. A site that stopped left nothing.
fn undo(state_dir: &Path) -> anyhow::Result<Vec<String>> {
    let changes = service::changes_path(state_dir, "site");
    if !changes.exists() {
        return Ok(Vec::new());
    }
    let _lock = service::take_lock(state_dir, "site")?;
    let undone = ropewalk_host::changes::repair(&changes)?;
    Ok(undone.iter().map(ToString::to_string).collect())
}

/// Stops the unit of the site with this configuration, if the service manager has it.
fn stop_unit(config: Option<&Path>) {
    let Some(unit) = unit_with(config).filter(|_| Path::new(SYSTEMD).exists()) else {
        return;
    };
    // A machine whose sites are started in another way has no such unit.
    let stop = Command::new("systemctl").args(["stop", &unit]).output();
    if let Err(error) = stop {
        output::note(&format!("cannot stop {unit}: {error}"));
    }
}

/// The unit of the package that runs the site with this configuration.
fn unit_with(config: Option<&Path>) -> Option<String> {
    let path = config.unwrap_or_else(|| Path::new(config::SITE_CONFIG));
    let usual = Path::new(config::SITE_CONFIG);
    if path == usual {
        return Some("ropewalk-site.service".to_owned());
    }
    let (name, parent) = (path.parent()?.file_name()?.to_str()?, path.parent()?);
    let is = parent.parent() == usual.parent() && path.file_name() == usual.file_name();
    is.then(|| format!("ropewalk-site@{name}.service"))
}

/// The unit of systemd that a process belongs to, if it is one of ours.
fn unit(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    unit_of(&groups)
}

fn unit_of(groups: &str) -> Option<String> {
    let mut parts = groups.lines().flat_map(|line| line.split('/'));
    let unit =
        parts.find(|part| part.starts_with("ropewalk-site") && part.ends_with(".service"))?;
    Some(unit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_a_site_that_pauses_is_known_by_its_configuration() {
        let unit = |path: &str| unit_with(Some(Path::new(path)));
        let usual = Some("ropewalk-site.service".to_owned());
        assert_eq!(unit_with(None), usual);
        assert_eq!(unit("/etc/ropewalk/site.toml"), usual);
        assert_eq!(
            unit("/etc/ropewalk/van/site.toml"),
            Some("ropewalk-site@van.service".to_owned())
        );
        for other in [
            "/etc/ropewalk/van/hub.toml",
            "site.toml",
            "/srv/van/site.toml",
        ] {
            assert_eq!(unit(other), None, "{other}");
        }
    }

    #[test]
    fn commands_of_sites_are_refused_with_the_configuration_of_another_role() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.toml");
        std::fs::write(&path, "[pool]\nipv4 = \"10.9.0.0/16\"\n").unwrap();
        let global = Global {
            config: Some(path.clone()),
            ..Global::default()
        };
        let error = Place::of_site(&global, "down").unwrap_err();
        assert!(error.is::<WrongUsage>(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("`ropewalk down` is for sites. This machine is for `ropewalk hub`"),
            "{text}"
        );
    }

    #[test]
    fn a_configuration_that_the_user_named_and_that_cannot_be_used_is_wrong_usage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.toml");
        let global = Global {
            config: Some(path.clone()),
            ..Global::default()
        };
        for text in [
            None,
            Some("no configuration"),
            Some("[hub]\nkey = \"short\"\n"),
        ] {
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            for error in [
                Place::of_site(&global, "down").unwrap_err(),
                Place::find(&global).unwrap_err(),
            ] {
                assert_eq!(crate::exit::code(&error), 2, "{error:#}");
                let told = format!("{error:#}");
                assert!(told.contains("ropewalk_kill_INTERFACE"), "{told}");
                assert!(told.contains("site.toml"), "{told}");
            }
        }
        // Whoever names the usual place means the site there.
        let usual = Global {
            config: Some(config::SITE_CONFIG.into()),
            ..Global::default()
        };
        Place::find(&usual).unwrap();
    }

    #[test]
    fn a_process_that_the_file_names_is_stopped_only_if_it_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = service::lock_path(directory.path(), "site");
        let lock = Lock::take(&path, "the site", "stop it").unwrap();
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut stranger = sleep();
        for named in [stranger.id().to_string(), "0".to_owned(), "-1".to_owned()] {
            std::fs::write(&path, &named).unwrap();
            let error = stop(directory.path()).unwrap_err().to_string();
            assert!(error.contains("stop it by hand"), "{named}: {error}");
        }
        assert_eq!(stranger.try_wait().unwrap(), None, "a stranger was stopped");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        drop(lock);
        // It holds the lock, and the program that it starts does not.
        let mut holder = Command::new("flock");
        let holder = holder.arg("--close").arg(&path).args(["sleep", "3"]);
        let mut holder = holder.spawn().unwrap();
        while !Lock::is_held(&path) {
            std::thread::sleep(POLL);
        }
        std::fs::write(&path, holder.id().to_string()).unwrap();
        let reaper = std::thread::spawn(move || holder.wait().unwrap());
        assert!(stop(directory.path()).unwrap());
        assert!(!reaper.join().unwrap().success());
    }

    #[test]
    fn a_helper_that_outlives_its_site_is_named_with_what_ends_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = service::lock_path(directory.path(), "site");
        let mut helper = Command::new("flock");
        let helper = helper.arg("--no-fork").arg(&path).args(["sleep", "60"]);
        let mut helper = helper.spawn().unwrap();
        while !Lock::is_held(&path) {
            std::thread::sleep(POLL);
        }
        // The number of the site, which has ended.
        std::fs::write(&path, "0").unwrap();
        let error = stop(directory.path()).unwrap_err();
        helper.kill().unwrap();
        helper.wait().unwrap();
        let remedy = format!("run `kill -9 {}`, then `ropewalk down`", helper.id());
        assert!(error.to_string().contains(&remedy), "{error:#}");
    }

    #[test]
    fn only_our_units_are_stopped_by_the_service_manager() {
        let unit = |text: &str| unit_of(text);
        assert_eq!(
            unit("0::/system.slice/ropewalk-site.service\n").unwrap(),
            "ropewalk-site.service"
        );
        assert_eq!(
            unit("0::/system.slice/system-ropewalk.slice/ropewalk-site@van.service\n").unwrap(),
            "ropewalk-site@van.service"
        );
        for text in [
            "0::/user.slice/user-0.slice/session-1.scope\n",
            "0::/system.slice/ssh.service\n",
            "",
        ] {
            assert_eq!(unit(text), None, "{text}");
        }
    }
}
