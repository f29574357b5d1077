//! The name servers of this machine, in place of those that uplinks gave.
//!
//! Invariant: what outlives the process is recorded in [`Changes`] first. systemd-resolved forgets the
//! servers of an interface with the interface, so nothing is recorded there.
//!
//! Source: resolvectl(1), resolvconf(8), resolv.conf(5).

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use ropewalk_config::values::parse_interface;
use ropewalk_io::helper::{self, Lane, Service};
use ropewalk_io::program;
use serde::{Deserialize, Serialize};

use crate::Changes;

/// The file that the C library reads.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Largest such file that is kept, bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;
/// Name of the helper's service.
const SERVICE: &str = "name-servers";
/// What the record of resolvconf(8) is called behind the interface.
const RECORD: &str = "ropewalk";

/// How the name servers were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// systemd-resolved, by resolvectl(1).
    Resolved,
    /// resolvconf(8), of Debian or openresolv.
    Resolvconf,
    /// The file itself.
    File,
}

impl Manager {
    /// Who looks after the file at `path`.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let target = std::fs::read_link(path).unwrap_or_default();
        let leads_to = |part: &str| target.to_string_lossy().contains(part);
        if leads_to("systemd/resolve") {
            Self::Resolved
        } else if leads_to("resolvconf") {
            Self::Resolvconf
        } else {
            Self::File
        }
    }

    /// In words for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolved => "systemd-resolved",
            Self::Resolvconf => "resolvconf",
            Self::File => RESOLV_CONF,
        }
    }
}

/// Makes `servers` the name servers of this machine while `tun` is there. `path` is the file that the C
/// library reads. What is returned does it, and may wait for a service of others.
///
/// # Errors
/// Not permitted.
pub fn set(
    changes: &mut Changes,
    path: &Path,
    tun: &str,
    servers: &[IpAddr],
) -> anyhow::Result<Setting> {
    let manager = Manager::of(path);
    let servers = servers.to_vec();
    let tun = tun.to_owned();
    let order = match manager {
        Manager::Resolved => Some(Order::Resolved { tun, servers }),
        Manager::Resolvconf => {
            changes.resolvconf(&record(&tun))?;
            Some(Order::Resolvconf { tun, servers })
        }
        Manager::File => {
            changes.resolver(path, &text(&servers))?;
            None
        }
    };
    Ok(Setting { manager, order })
}

/// Name servers that are about to be set.
#[derive(Debug)]
#[must_use = "it has to be carried out"]
pub struct Setting {
    manager: Manager,
    /// What is still to be done.
    order: Option<Order>,
}

impl Setting {
    /// Sets them. It takes as long as a few programs may take ([`program::TIME_MAX`] each).
    ///
    /// # Errors
    /// The manager of the file refuses, or does not answer.
    pub fn carry_out(self) -> anyhow::Result<Manager> {
        if let Some(step) = &self.order {
            order(step)?;
        }
        Ok(self.manager)
    }
}

/// What of the name servers takes rights.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Tells systemd-resolved.
    Resolved { tun: String, servers: Vec<IpAddr> },
    /// Tells resolvconf(8).
    Resolvconf { tun: String, servers: Vec<IpAddr> },
    /// Takes the record of resolvconf(8) away.
    Forget { tun: String },
    /// Writes [`RESOLV_CONF`], or puts back what was there.
    Write { text: String },
}

/// What the helper of a site does for its name servers: those of the interface `tun`, and [`RESOLV_CONF`].
#[must_use]
pub fn service(tun: String) -> Service {
    Service::new(SERVICE, move |order: Order| {
        let own = match &order {
            Order::Resolved { tun: asked, .. } | Order::Resolvconf { tun: asked, .. } => {
                *asked == tun
            }
            // An earlier run may have had another name. The record's own end keeps it ours.
            Order::Forget { tun: asked } => {
                !asked.starts_with('-') && parse_interface(asked).is_ok()
            }
            Order::Write { text } => u64::try_from(text.len()).is_ok_and(|l| l <= FILE_BYTES_MAX),
        };
        if !own {
            bail!("these are not the name servers of {tun}");
        }
        carry_out(&order)
    })
}

fn order(order: &Order) -> anyhow::Result<()> {
    helper::delegate(Lane::Patient, SERVICE, order, carry_out)
}

fn carry_out(order: &Order) -> anyhow::Result<()> {
    match order {
        Order::Resolved { tun, servers } => {
            let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
            let mut words = vec!["dns", tun];
            words.extend(servers.iter().map(String::as_str));
            run("resolvectl", &words, "")?;
            // All names, before the servers of every other interface.
            run("resolvectl", &["domain", tun, "~."], "")?;
            run("resolvectl", &["default-route", tun, "yes"], "")?;
            // Answers of the former servers.
            if let Err(error) = run("resolvectl", &["flush-caches"], "") {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "stale names may stay for a while"
                );
            }
            Ok(())
        }
        Order::Resolvconf { tun, servers } => {
            run("resolvconf", &["-a", &record(tun)], &text(servers))
        }
        Order::Forget { tun } => run("resolvconf", &["-d", &record(tun)], ""),
        Order::Write { text } => write_here(Path::new(RESOLV_CONF), text),
    }
}

/// Name of the record of resolvconf(8).
fn record(tun: &str) -> String {
    format!("{tun}.{RECORD}")
}

/// Takes a record of resolvconf(8) away.
///
/// # Errors
/// The program is missing or refuses.
pub(crate) fn remove_record(record: &str) -> anyhow::Result<()> {
    let tun = record
        .strip_suffix(RECORD)
        .and_then(|name| name.strip_suffix('.'));
    let tun = tun.with_context(|| format!("{record} is no record of ours"))?;
    order(&Order::Forget {
        tun: tun.to_owned(),
    })
}

/// The contents of a file at most [`FILE_BYTES_MAX`] long; empty where there is none.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            bail!("{} is too large to be kept", path.display());
        }
        _ => {}
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes in place: the file may be a mount of its own, which no other can take the place of. It is not
/// emptied first, so that a full disk leaves it as it was.
///
/// # Errors
/// What the file system says.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if path == Path::new(RESOLV_CONF) {
        let text = text.to_owned();
        return order(&Order::Write { text });
    }
    write_here(path, text)
}

fn write_here(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Whether `present` is what [`write`] left when `value` took the place of `former`, or the other way round. A
/// crash may have come before the file had its new length, or, in earlier versions, between the first byte and the
/// last.
pub(crate) fn is_ours(present: &str, former: &str, value: &str) -> bool {
    let over = |new: &str, old: &str| {
        let rest = old.as_bytes().get(new.len()..).unwrap_or_default();
        [new.as_bytes(), rest].concat() == present.as_bytes()
    };
    value.starts_with(present) || over(value, former) || over(former, value)
}

fn text(servers: &[IpAddr]) -> String {
    let mut text =
        "# By ropewalk while its tunnel runs; the former file comes back then.\n".to_owned();
    for server in servers {
        text += &format!("nameserver {server}\n");
    }
    text
}

fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<()> {
    program::run(program, arguments, input)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMER: &str = "nameserver 192.168.1.1\nsearch lan\n";

    #[test]
    fn the_file_is_replaced_and_comes_back_at_the_end_and_after_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        let list = directory.path().join("changes.json");
        std::fs::write(&file, FORMER).unwrap();
        let servers = [
            "192.0.2.53".parse().unwrap(),
            "2001:db8::53".parse().unwrap(),
        ];
        let contents = || std::fs::read_to_string(&file).unwrap();

        let mut changes = Changes::begin(&list, false).unwrap();
        let setting = set(&mut changes, &file, "rope0", &servers).unwrap();
        let manager = setting.carry_out().unwrap();
        assert_eq!(manager, Manager::File);
        assert!(contents().contains("nameserver 192.0.2.53\nnameserver 2001:db8::53\n"));
        // Set again, as after other addresses: the former one is still the user's.
        let _ = set(&mut changes, &file, "rope0", &servers[..1]).unwrap();
        assert!(!contents().contains("2001:db8::53"));
        drop(changes);
        assert_eq!(contents(), FORMER);

        let mut changes = Changes::begin(&list, false).unwrap();
        let _ = set(&mut changes, &file, "rope0", &servers).unwrap();
        std::mem::forget(changes);
        assert_ne!(contents(), FORMER);
        drop(Changes::begin(&list, false).unwrap());
        assert_eq!(contents(), FORMER, "after a crash");
    }

    #[test]
    fn what_somebody_else_wrote_since_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        std::fs::write(&file, FORMER).unwrap();
        let mut changes = Changes::begin(&directory.path().join("changes.json"), false).unwrap();
        let _ = set(
            &mut changes,
            &file,
            "rope0",
            &["192.0.2.53".parse().unwrap()],
        )
        .unwrap();
        std::fs::write(&file, "nameserver 192.168.7.1\n").unwrap();
        drop(changes);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "nameserver 192.168.7.1\n"
        );
    }

    #[test]
    fn the_link_of_the_file_tells_who_looks_after_it() {
        let directory = tempfile::tempdir().unwrap();
        for (target, manager) in [
            ("../run/systemd/resolve/stub-resolv.conf", Manager::Resolved),
            ("/run/systemd/resolve/resolv.conf", Manager::Resolved),
            ("/etc/resolvconf/run/resolv.conf", Manager::Resolvconf),
            ("/run/resolvconf/resolv.conf", Manager::Resolvconf),
            ("/run/NetworkManager/resolv.conf", Manager::File),
        ] {
            let link = directory.path().join("resolv.conf");
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert_eq!(Manager::of(&link), manager, "{target}");
            std::fs::remove_file(&link).unwrap();
        }
        assert_eq!(Manager::of(&directory.path().join("none")), Manager::File);
    }
}
