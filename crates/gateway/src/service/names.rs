//! The name servers of a site's machine while the tunnel is to carry all that is asked.
//!
//! A DHCP client may write `/etc/resolv.conf` with each lease. What it wrote then comes back at the end, and the
//! configured name servers take its place again.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_host::{Changes, resolver};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// How often the file is looked at. Longer: questions leave for the name servers of a lease, where a kill switch
/// refuses them, for longer. Shorter: more work.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two lines on the file. Longer: fewer lines where two programs take the file from each other.
const TELL_INTERVAL: Duration = Duration::from_secs(600);

/// The configured name servers, if there are any.
#[derive(Debug)]
pub(super) struct NameServers {
    servers: Vec<IpAddr>,
    tun: String,
    path: PathBuf,
    /// Whether they were set.
    is_set: bool,
    tick: Interval,
    told_at: Option<Instant>,
}

impl NameServers {
    /// These servers, for which the interface `tun` speaks where each interface has its own. Nothing is set yet.
    pub(super) fn new(servers: &[IpAddr], tun: &str) -> Self {
        let mut tick = interval(KEEP_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            servers: servers.to_vec(),
            tun: tun.to_owned(),
            path: Path::new(resolver::RESOLV_CONF).to_owned(),
            is_set: false,
            tick,
            told_at: None,
        }
    }

    /// Takes the configured name servers in place of those that uplinks gave. Without them the site works
    /// on: names are found as before, or refused by the kill switch.
    pub(super) fn set(&mut self, machine: &mut Changes) {
        if self.servers.is_empty() {
            return;
        }
        self.is_set = true;
        let setting = resolver::set(machine, &self.path, &self.tun, &self.servers);
        let servers = self.servers.clone();
        // A service of others may hang, and the watchdog, the kill switch and the API must not.
        tokio::task::spawn_blocking(
            move || match setting.and_then(resolver::Setting::carry_out) {
                Ok(manager) => tracing::info!(
                    ?servers,
                    by = manager.name(),
                    "name servers of this machine"
                ),
                Err(error) => tracing::error!(
                    ?servers,
                    error = format!("{error:#}"),
                    "the name servers cannot be set: those of the uplinks stay"
                ),
            },
        );
    }

    /// When it is time to look after the file; never while nothing is set.
    pub(super) async fn tick(&mut self) {
        if !self.is_set {
            return std::future::pending().await;
        }
        self.tick.tick().await;
    }

    /// Writes the file again if somebody else has.
    pub(super) fn keep(&mut self, machine: &mut Changes) {
        if !resolver::is_replaced(&self.path, &self.servers) {
            return;
        }
        let is_told = self
            .told_at
            .is_some_and(|told| told.elapsed() < TELL_INTERVAL);
        let set = resolver::set(machine, &self.path, &self.tun, &self.servers)
            .and_then(resolver::Setting::carry_out);
        if is_told {
            return;
        }
        self.told_at = Some(Instant::now());
        let file = self.path.display();
        match set {
            Ok(_) => tracing::warn!(
                %file,
                "another program has written the name servers, as DHCP clients do; those of `dns` are set again, now \
                 and from now on"
            ),
            Err(error) => tracing::error!(
                %file,
                error = format!("{error:#}"),
                "another program has written the name servers, and those of `dns` cannot be set again"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_lease_writes_is_replaced_and_comes_back_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        let read = || std::fs::read_to_string(&file).unwrap();
        let list = directory.path().join("changes.json");
        std::fs::write(&file, "nameserver 192.168.7.1\n").unwrap();
        let mut changes = Changes::begin(&list, false).unwrap();
        let mut names = NameServers::new(&["192.0.2.53".parse().unwrap()], "rope0");
        names.path = file.clone();
        names.set(&mut changes);
        let ours = read();
        assert!(ours.contains("nameserver 192.0.2.53\n"));
        names.keep(&mut changes);
        assert!(names.told_at.is_none(), "nobody has written the file");
        for lease in ["nameserver 192.168.7.2\n", "nameserver 192.168.7.3\n"] {
            // As DHCP clients do: another file takes the place.
            let new = directory.path().join("new");
            std::fs::write(&new, lease).unwrap();
            std::fs::rename(&new, &file).unwrap();
            names.keep(&mut changes);
            assert_eq!(read(), ours);
        }
        assert!(names.told_at.is_some());
        drop(changes);
        assert_eq!(read(), "nameserver 192.168.7.3\n");
    }
}
