//! Which rights a gateway has while it runs: almost none. Its helper has them.
//!
//! Invariant: the process is split, and has given its rights up, before it makes a thread and before it
//! reads a byte from the network.
//!
//! Why: `docs/decisions/privileges.md`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, anyhow};
use ropewalk_balance as balance;
use ropewalk_config::common::Common;
use ropewalk_config::{self as config, BalanceConfig, HubConfig, RelayConfig, SiteConfig};
use ropewalk_host::{files, kill_switch, resolver};
use ropewalk_io::confine::{self, Keeps};
use ropewalk_io::helper::{self, Scope, Service};
use tokio::net::unix::pipe::Receiver;

use super::{api, direct};

/// Switches the filter of system calls off, with the value `off`: for a library that calls what the list
/// lacks, until the list has it.
const SWITCH: &str = "ROPEWALK_SECCOMP";

/// Gives up what a hub does not need.
///
/// # Errors
/// See [`begin`].
pub(super) fn hub(config: &HubConfig) -> anyhow::Result<()> {
    let interfaces = vec![config.common.interface.clone()];
    begin(interfaces, vec![socket(&config.common)], Keeps::Nothing)
}

/// The same of a site, whose configuration is at `path`.
///
/// # Errors
/// See [`begin`].
pub(super) fn site(path: &Path, config: &SiteConfig) -> anyhow::Result<()> {
    let mut services = vec![socket(&config.common)];
    services.extend(of_site(config));
    let mut keeps = Keeps::Nothing;
    if let Some(direct) = &config.direct {
        keeps = Keeps::Connections;
        let path = path.to_owned();
        let load = move || {
            let config = config::load_site(&path)?;
            let direct = config
                .direct
                .context("nothing goes beside the tunnel now")?;
            Ok(direct.spread)
        };
        let spread = direct.spread.clone();
        services.push(balance::service(spread, direct::split(config), load));
    }
    begin(vec![config.common.interface.clone()], services, keeps)
}

/// The same of a relay.
///
/// # Errors
/// See [`begin`].
pub(super) fn relay(config: &RelayConfig) -> anyhow::Result<()> {
    let commons = [&config.hub.common, &config.site.common];
    let interfaces = commons.map(|common| common.interface.clone());
    let mut services = vec![socket(&config.hub.common)];
    services.extend(of_site(&config.site));
    begin(interfaces.to_vec(), services, Keeps::Nothing)
}

/// The same of a gateway that balances, whose configuration is at `path`.
///
/// # Errors
/// See [`begin`].
pub(super) fn balance(path: &Path, config: &BalanceConfig) -> anyhow::Result<()> {
    let path = path.to_owned();
    let load = move || config::load_balance(&path);
    let services = vec![
        socket(&config.common),
        balance::service(config.clone(), None, load),
    ];
    begin(Vec::new(), services, Keeps::Connections)
}

fn of_site(config: &SiteConfig) -> [Service; 2] {
    let tun = &config.common.interface;
    [
        kill_switch::service(tun.clone()),
        resolver::service(tun.clone()),
    ]
}

fn socket(common: &Common) -> Service {
    api::socket_service(common.socket.clone(), common.socket_group.clone())
}

/// Waits for the end of the helper; for ever without a helper. What is returned ends the gateway: nothing
/// gives its rights back to it, and the service manager starts it anew.
pub(super) async fn lost() -> anyhow::Error {
    let Some(life) = helper::life() else {
        return std::future::pending().await;
    };
    let ended = async {
        let life = Receiver::from_owned_fd(life.try_clone_to_owned()?)?;
        life.readable().await
    };
    match ended.await {
        Ok(()) => anyhow!(
            "the process with the rights (the helper) {}: this gateway ends, to be started anew",
            helper::how_it_ended()
        ),
        Err(error) => anyhow::Error::new(error).context("cannot watch the helper"),
    }
}

/// Whether a process of this user could change what the file at `path` says: it owns the file or its directory.
fn may_change(path: &Path, user: u32) -> bool {
    let owns = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.uid() == user);
    owns(path) || path.parent().is_some_and(owns)
}

/// Says so where whoever takes this gateway over could change its configuration, which the helper and commands of
/// root read. Root by number may do so anyway.
pub(super) fn look_at_configuration(path: &Path) {
    let user = rustix::process::geteuid();
    if !user.is_root() && may_change(path, user.as_raw()) {
        let (file, directory) = (path.display(), path.with_file_name(""));
        let directory = directory.display();
        tracing::warn!(
            "this gateway may write its own configuration, and so could whoever takes it over: run `chown \
             root:{user} {directory} {file}` and `chmod 640 {file}`; only {directory}{keys} has to be the \
             gateway's",
            user = files::USER,
            keys = config::KEYS_DIR,
        );
    }
}

/// Splits the process, and gives rights up.
///
/// # Errors
/// The kernel refuses, or there are other threads.
fn begin(interfaces: Vec<String>, services: Vec<Service>, keeps: Keeps) -> anyhow::Result<()> {
    // Other gateways of this machine are of the same user.
    confine::shut_others_out().context("cannot shut other processes out")?;
    helper::split(Scope::new(interfaces), services)
        .context("cannot make the process that keeps the rights")?;
    confine::drop_capabilities(keeps).context("cannot give up capabilities")?;
    if std::env::var(SWITCH).is_ok_and(|value| value == "off") {
        tracing::warn!("{SWITCH}=off: this gateway may make any system call");
        return Ok(());
    }
    match confine::restrict_calls(keeps) {
        Ok(true) => {}
        Ok(false) => tracing::warn!("no list of system calls for this processor: all are allowed"),
        Err(error) => tracing::warn!(%error, "this kernel does not restrict system calls"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_owns_a_file_or_its_directory_may_change_it() {
        const STRANGER: u32 = 54_321;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("site.toml");
        std::fs::write(&file, "").unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(may_change(&file, own));
        assert!(!may_change(&file, STRANGER));
        if own == 0 {
            let give =
                |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
            give(&file, STRANGER);
            assert!(may_change(&file, STRANGER));
            give(&file, 0);
            give(directory.path(), STRANGER);
            assert!(may_change(&file, STRANGER), "by exchanging it");
        }
    }
}
