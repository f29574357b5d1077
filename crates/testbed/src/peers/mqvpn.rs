//! mqvpn: a VPN over multipath QUIC, with a certificate and a key made for the run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::openvpn::{Certificate, OPENSSL};
use super::{Ground, Joined, LIMIT, Peer, Tools, UP_LIMIT, await_interface};
use crate::process::{Process, Program};
use crate::programs;
use crate::topology::HUB;

/// The peer, with one of its ways to use several paths.
#[derive(Debug)]
pub(super) struct Mqvpn {
    name: &'static str,
    /// As the key `Scheduler` takes it.
    scheduler: &'static str,
    /// Whether the receiver restores the order of each flow (the section `[Reorder]`).
    reorder: bool,
    /// Whether TCP ends at both gateways and goes through a stream (the section `[Hybrid]`).
    hybrid: bool,
}

impl Mqvpn {
    pub(super) const DEFAULT: Self = Self {
        name: "mqvpn",
        scheduler: "wlb",
        reorder: false,
        hybrid: false,
    };
    pub(super) const MIN_RTT: Self = Self {
        name: "mqvpn-minrtt",
        scheduler: "minrtt",
        ..Self::DEFAULT
    };
    pub(super) const REORDER: Self = Self {
        name: "mqvpn-reorder",
        reorder: true,
        ..Self::DEFAULT
    };
    pub(super) const MIN_RTT_REORDER: Self = Self {
        name: "mqvpn-minrtt-reorder",
        scheduler: "minrtt",
        reorder: true,
        ..Self::DEFAULT
    };
    pub(super) const HYBRID: Self = Self {
        name: "mqvpn-hybrid",
        hybrid: true,
        ..Self::DEFAULT
    };
}

impl Peer for Mqvpn {
    fn name(&self) -> &'static str {
        self.name
    }

    fn obstacle(&self, tools: &Tools) -> Option<String> {
        if program(tools).is_none() {
            return Some("no mqvpn in PATH; name it with --mqvpn or ROPEWALK_MQVPN".into());
        }
        let error = programs::require(&[OPENSSL]).err()?;
        Some(error.to_string())
    }

    fn start(&self, ground: &Ground<'_>) -> Result<Joined> {
        let path = program(ground.tools).context("mqvpn is gone")?;
        let key = Program::new(&path).arg("--genkey").success(LIMIT)?;
        let certificate = Certificate::make(ground.directory, "mqvpn-hub")?;
        let common = format!(
            "[Auth]\nKey = {}\n[Multipath]\nScheduler = {}\n",
            key.trim(),
            self.scheduler
        );
        let mut hub = format!(
            "[Interface]\nListen = {HUB}:{PORT}\nSubnet = {SUBNET}\n[TLS]\nCert = {}\nKey = {}\n{common}",
            certificate.certificate.display(),
            certificate.key.display(),
        );
        let mut site = format!("[Server]\nAddress = {HUB}:{PORT}\nInsecure = true\n{common}");
        for uplink in ground.uplinks {
            writeln!(site, "Path = {uplink}")?;
        }
        if self.reorder {
            let section =
                format!("[Reorder]\nEnabled = on\nMaxWaitMs = {WAIT_MS}\nCapPackets = {CAP}\n");
            hub += &section;
            site += &section;
        }
        if self.hybrid {
            let section = "[Hybrid]\nEnabled = true\nTcp = auto\n";
            hub += &format!("{section}EgressAllow = {SERVERS}\n");
            site += section;
        }
        let file = |name: &str, text: &str| -> Result<PathBuf> {
            let path = ground.directory.join(name);
            let mut options = std::fs::OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(text.as_bytes())?;
            Ok(path)
        };
        let (hub, site) = (
            file("mqvpn-hub.conf", &hub)?,
            file("mqvpn-site.conf", &site)?,
        );
        let hub = ground.hub.program(&path).arg("--config").arg(hub);
        let mut hub = hub.start(ground.directory, "mqvpn-hub")?;
        await_interface(ground.hub, INTERFACE, &mut hub)?;
        let site = ground.site.program(&path).arg("--config").arg(site);
        let site = site.arg("--no-manage-routes");
        let mut site = site.start(ground.directory, "mqvpn-site")?;
        await_interface(ground.site, INTERFACE, &mut site)?;
        await_paths(&mut site, ground.uplinks.len())?;
        Ok(Joined {
            site,
            hub,
            interface: INTERFACE.into(),
        })
    }
}

fn program(tools: &Tools) -> Option<PathBuf> {
    super::program(tools.mqvpn.as_ref(), "mqvpn")
}

/// Waits until the site's log says of each path that it is active.
fn await_paths(site: &mut Process, paths: usize) -> Result<()> {
    let end = Instant::now() + UP_LIMIT;
    while active(&site.log()) < paths {
        if !site.is_running() || Instant::now() > end {
            bail!("mqvpn has not all {paths} paths:\n{}", site.log_tail());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// How many paths this log says of that they became active.
fn active(log: &str) -> usize {
    let path = |line: &'_ str| -> Option<String> {
        let (before, _) = line.split_once(" -> active")?;
        before.rsplit(' ').next().map(str::to_owned)
    };
    log.lines().filter_map(path).collect::<BTreeSet<_>>().len()
}

const INTERFACE: &str = "mqvpn0";
const PORT: u16 = 4_433;
/// The window for disorder and its bound, of its preset for paths far apart.
const WAIT_MS: u32 = 50;
const CAP: u32 = 2_048;
/// Of the inner addresses: the hub has the first, the site the next.
const SUBNET: &str = "10.99.0.0/24";
/// Where the hub may connect to for the site.
const SERVERS: &str = "198.51.100.0/24";

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::active;
    use ropewalk_plan::MULTIPATH_PEERS;

    #[test]
    fn peers_with_several_paths_are_those_that_plans_know() {
        let names = all().map(|peer| peer.name());
        let several = names.iter().filter(|name| name.starts_with("mqvpn"));
        assert_eq!(several.copied().collect::<Vec<_>>(), MULTIPATH_PEERS);
    }

    #[test]
    fn a_path_that_comes_and_goes_counts_once() {
        let log = "path 1 -> active\npath 1 -> degraded\npath 1 -> active\n";
        assert_eq!(active(log), 1);
        assert_eq!(active(&format!("{log}x path 2 -> active\n")), 2);
    }
}
