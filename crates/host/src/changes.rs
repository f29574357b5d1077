//! What a gateway changed on this machine, on disk, so that it is undone even after a crash.
//!
//! Invariant: a change is written to the disk before it is made, and struck off after it is
//! undone. On a full disk the list cannot be written. Changes that end with the boot are made all the same,
//! because a machine far away needs its tunnel. Such a change stays after a crash until the machine starts
//! again. The TUN interface, its addresses and its routes are not listed, because the kernel removes them
//! with the process. Changes of an earlier boot or another network namespace are gone and
//! must not be undone again: the same settings may since have been made by somebody else. Only the file
//! with the name servers outlives a boot.
//!
//! The next gateway takes over the nftables tables of a gateway that is restarted or was killed.
//! Without them the kernel would not translate packets that still arrive for hosts behind this
//! machine, and would answer them with a reset. The tables of a site are not taken over. A site
//! may wait for the name of its hub, and its table for flows beside the tunnel is wrong as soon as
//! the tunnel is gone.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_io::helper;
use ropewalk_io::netlink::{self, RuleSpec};
use ropewalk_io::{nft, sysctl};
use serde::{Deserialize, Serialize};

use crate::{files, resolver};

/// Largest state file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Change {
    /// A kernel setting.
    Sysctl {
        /// Key as sysctl(8) writes it.
        key: String,
        /// Value before.
        former: String,
        /// Value that was set.
        value: String,
    },
    /// An nftables table.
    Table {
        /// Its name.
        name: String,
    },
    /// A routing policy rule: packets from a network look in a table of their own.
    Rule {
        /// The network's first address.
        network: IpAddr,
        /// Its prefix length.
        prefix: u8,
        /// Place among the rules; lower comes first.
        priority: u32,
        /// Number of the table.
        table: u32,
    },
    /// A routing policy rule: packets with a mark look in a table.
    Policy(Policy),
    /// A routing table of our own.
    Routes {
        /// Its number.
        table: u32,
    },
    /// The file with the name servers of this machine.
    Resolver {
        /// Where it is.
        path: PathBuf,
        /// Contents before.
        former: String,
        /// Contents that were written.
        value: String,
        /// Whether there was no file before.
        #[serde(default)]
        was_missing: bool,
    },
    /// A record of resolvconf(8).
    Resolvconf {
        /// Its name.
        record: String,
    },
}

/// A routing policy rule by packet mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// For IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Place among the rules; lower comes first.
    pub priority: u32,
    /// Mark of the packets, as far as the mask goes.
    pub mark: u32,
    /// Bits of the mark that count.
    pub mask: u32,
    /// Number of the table.
    pub table: u32,
    /// Whether the default routes of the table are left out.
    pub without_default: bool,
    /// Whether its routes to interfaces of this group are left out.
    #[serde(default)]
    pub without_group: Option<u32>,
}

impl Policy {
    fn spec(&self) -> RuleSpec {
        RuleSpec {
            ipv6: self.ipv6,
            priority: self.priority,
            fwmark: Some(self.mark),
            fwmask: Some(self.mask),
            source: None,
            suppress_prefix: self.without_default.then_some(0),
            suppress_group: self.without_group,
            table: self.table,
        }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        let Self {
            priority,
            mark,
            mask,
            table,
            ..
        } = self;
        write!(f, "{family} routing rule {priority}: ")?;
        write!(f, "fwmark {mark:#x}/{mask:#x} lookup ")?;
        if *table == netlink::TABLE_MAIN {
            f.write_str("main")?;
        } else {
            write!(f, "{table}")?;
        }
        if self.without_default {
            f.write_str(" without its default routes")?;
        }
        if let Some(group) = self.without_group {
            write!(f, " and those to interfaces of group {group}")?;
        }
        Ok(())
    }
}

impl Change {
    /// Whether a gateway can have made it. Whoever takes a gateway over can write other things into the list, which
    /// `ropewalk doctor --repair` of root must not carry out.
    fn is_of_gateway(&self) -> bool {
        match self {
            Self::Sysctl { key, former, .. } => helper::is_setting(key, former),
            Self::Table { name } => helper::is_table(name),
            Self::Rule { table, .. } | Self::Routes { table } => helper::is_routing_table(*table),
            Self::Policy(policy) => {
                policy.table == netlink::TABLE_MAIN || helper::is_routing_table(policy.table)
            }
            Self::Resolver { path, .. } => path == Path::new(resolver::RESOLV_CONF),
            Self::Resolvconf { record } => {
                record
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
                    && !record.starts_with('-')
            }
        }
    }

    /// Whether a start of the machine does not undo it.
    const fn outlives_boot(&self) -> bool {
        matches!(self, Self::Resolver { .. })
    }

    const fn is_table(&self) -> bool {
        matches!(self, Self::Table { .. })
    }

    /// Undoes the change. A setting that somebody changed since is left alone.
    fn undo(&self) -> anyhow::Result<()> {
        match self {
            Self::Sysctl { key, former, value } => match sysctl::read(key) {
                Ok(present) if present == *value => sysctl::write(key, former)
                    .with_context(|| format!("cannot set {key} back to {former}")),
                // The interface it belonged to may be gone.
                _ => Ok(()),
            },
            // It may never have been made, for want of the program nft, which takes no part then.
            Self::Table { name } if matches!(nft::table_handle(name), Ok(None)) => Ok(()),
            Self::Table { name } => nft::remove(name)
                .with_context(|| format!("cannot remove the nftables table {name}")),
            Self::Rule {
                network,
                prefix,
                priority,
                table,
            } => netlink::delete_rule(&rule(*network, *prefix, *priority, *table))
                .with_context(|| format!("cannot remove the rule for {network}/{prefix}")),
            Self::Policy(policy) => netlink::delete_rule(&policy.spec())
                .with_context(|| format!("cannot remove the {policy}")),
            Self::Routes { table } => netlink::flush_table(*table)
                .with_context(|| format!("cannot empty the routing table {table}")),
            Self::Resolver {
                path,
                former,
                value,
                was_missing,
            } => {
                // Whoever took the file away does not want it back, and a link may lead nowhere since the start of
                // the machine.
                let is_gone = matches!(path.try_exists(), Ok(false));
                if is_gone || !resolver::is_ours(&resolver::read(path)?, former, value) {
                    return Ok(());
                }
                // A mount cannot be removed.
                if *was_missing && resolver::remove(path).is_ok() {
                    return Ok(());
                }
                resolver::write(path, former)
            }
            Self::Resolvconf { record } => resolver::remove_record(record),
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sysctl { key, former, value } => write!(f, "{key} = {value}, before {former}"),
            Self::Table { name } => write!(f, "nftables table {name}"),
            Self::Rule {
                network,
                prefix,
                priority,
                table,
            } => write!(
                f,
                "routing rule {priority}: from {network}/{prefix} lookup {table}"
            ),
            Self::Policy(policy) => policy.fmt(f),
            Self::Routes { table } => write!(f, "routing table {table}"),
            Self::Resolver { path, .. } => write!(f, "name servers in {}", path.display()),
            Self::Resolvconf { record } => write!(f, "name servers of resolvconf for {record}"),
        }
    }
}

fn rule(network: IpAddr, prefix: u8, priority: u32, table: u32) -> RuleSpec {
    RuleSpec {
        ipv6: network.is_ipv6(),
        priority,
        fwmark: None,
        fwmask: None,
        source: Some((network, prefix)),
        suppress_prefix: None,
        suppress_group: None,
        table,
    }
}

/// Newest format of the list that this program reads. A list without a number has format 1. Whoever
/// changes the meaning of what is listed raises the number, and writes it: older programs then leave
/// the list alone.
const FORMAT: u64 = 1;

/// What lists of all formats say.
#[derive(Debug, Deserialize)]
struct Marked {
    #[serde(default)]
    format: u64,
    boot: String,
    namespace: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    pid: u32,
    boot: String,
    namespace: String,
    changes: Vec<Change>,
}

/// The changes of a running gateway; dropping it undoes them.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    /// What an earlier gateway left: tables that were not made anew yet, and what could not be undone.
    inherited: Vec<Change>,
    made: Vec<Change>,
    /// Tables for the next gateway.
    kept: Vec<Change>,
}

impl Changes {
    /// No changes yet; they will be listed in the file at `path`. What an earlier gateway left
    /// there is undone first. With `keeps` nftables tables stay. They are replaced, or removed by
    /// [`Self::remove_former_tables`]. What cannot be undone stays listed, and is tried again at the end. It keeps
    /// no gateway from starting.
    ///
    /// # Errors
    /// The list is one of a newer program, or cannot be read.
    pub fn begin(path: &Path, keeps: bool) -> anyhow::Result<Self> {
        let is_kept = |change: &Change| keeps && change.is_table();
        let left = left_over(path).or_else(|error| set_aside(path, error))?;
        let (inherited, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_kept);
        let (tables, undone) = (inherited.len(), others.len());
        let refused = undo_listed(path, &inherited, others);
        for (change, error) in &refused {
            tracing::error!(
                %change,
                error = format!("{error:#}"),
                "what an earlier run left could not be undone; it is tried again at the end"
            );
        }
        let undone = undone - refused.len();
        let refused = refused.into_iter().map(|(change, _)| change);
        let inherited = inherited.into_iter().chain(refused).collect();
        if undone > 0 {
            tracing::warn!(
                undone,
                tables,
                "undid what an earlier run left; its tables stay until they are replaced"
            );
        } else if tables > 0 {
            tracing::info!(
                tables,
                "tables of an earlier run stay until they are replaced"
            );
        }
        Ok(Self {
            path: path.to_owned(),
            inherited,
            made: Vec::new(),
            kept: Vec::new(),
        })
    }

    /// Removes tables of an earlier gateway that were not made anew: this machine is set up. Nothing else is
    /// undone here, because this gateway may need a setting that it has found as it wants it.
    pub fn remove_former_tables(&mut self) {
        let made = &self.made;
        self.inherited.retain(|change| {
            if !change.is_table() || made.contains(change) {
                return !change.is_table();
            }
            let undone = change.undo();
            if let Err(error) = &undone {
                tracing::error!(
                    error = format!("{error:#}"),
                    "a table of an earlier run could not be removed; it is tried again at the end"
                );
            }
            undone.is_err()
        });
        let all = self.inherited.iter().chain(&self.made);
        if let Err(error) = list(&self.path, all) {
            tracing::warn!(%error, "the list of changes is out of date");
        }
    }

    /// Changes a kernel setting unless it has the value already.
    ///
    /// # Errors
    /// No such setting, not permitted, or the list cannot be written.
    pub fn sysctl(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        let former = sysctl::read(key).with_context(|| format!("cannot read the setting {key}"))?;
        if former == value {
            return Ok(());
        }
        self.record(Change::Sysctl {
            key: key.to_owned(),
            former,
            value: value.to_owned(),
        })?;
        sysctl::write(key, value)
            .with_context(|| format!("cannot set {key} to {value}; run as root"))
    }

    /// Records that the nftables table `name` is about to be made.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn table(&mut self, name: &str) -> anyhow::Result<()> {
        self.record(Change::Table {
            name: name.to_owned(),
        })
    }

    /// Lets packets from `source` look in `table`.
    ///
    /// # Errors
    /// Not permitted, or the list cannot be written.
    pub fn rule(&mut self, source: IpNet, priority: u32, table: u32) -> anyhow::Result<()> {
        let (network, prefix) = (source.network(), source.prefix_len());
        self.record(Change::Rule {
            network,
            prefix,
            priority,
            table,
        })?;
        netlink::add_rule(&rule(network, prefix, priority, table))
            .map(drop)
            .with_context(|| format!("cannot add a routing rule for {source}"))
    }

    /// Lets packets with a mark look in a table; true when they did not yet.
    ///
    /// # Errors
    /// Not permitted, or the list cannot be written.
    pub fn policy(&mut self, policy: Policy) -> anyhow::Result<bool> {
        self.record(Change::Policy(policy))?;
        netlink::add_rule(&policy.spec()).with_context(|| format!("cannot add the {policy}"))
    }

    /// Records that the routing table `table` is about to get routes.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn routes(&mut self, table: u32) -> anyhow::Result<()> {
        self.record(Change::Routes { table })
    }

    /// Writes `text` into the file with the name servers of this machine.
    ///
    /// # Errors
    /// The file cannot be read or written, or the list cannot.
    pub fn resolver(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        let same =
            |change: &&Change| matches!(change, Change::Resolver { path: p, .. } if p == path);
        let present = resolver::read(path)?;
        let listed = self.made.iter().find(same).cloned();
        let (former, was_missing) = match &listed {
            // The file of before is in the list, unless somebody else has written another one since.
            Some(Change::Resolver {
                former,
                value,
                was_missing,
                ..
            }) if resolver::is_ours(&present, former, value) => (former.clone(), *was_missing),
            _ => (present, matches!(path.try_exists(), Ok(false))),
        };
        self.made.retain(|change| !same(&change));
        let recorded = self.record(Change::Resolver {
            path: path.to_owned(),
            former,
            value: text.to_owned(),
            was_missing,
        });
        if let Err(error) = recorded {
            // What the file was before must not be forgotten.
            self.made.extend(listed);
            return Err(error);
        }
        resolver::write(path, text)
    }

    /// Records that resolvconf(8) is about to get this record.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn resolvconf(&mut self, record: &str) -> anyhow::Result<()> {
        self.record(Change::Resolvconf {
            record: record.to_owned(),
        })
    }

    /// Undoes everything, but for tables when the gateway `is_restart`ed: the next one replaces them.
    pub fn end(mut self, is_restart: bool) {
        if is_restart {
            let made = std::mem::take(&mut self.made);
            (self.kept, self.made) = made.into_iter().partition(Change::is_table);
        }
    }

    fn record(&mut self, change: Change) -> anyhow::Result<()> {
        if self.made.contains(&change) {
            return Ok(());
        }
        let outlives_boot = change.outlives_boot();
        self.made.push(change);
        let inherited = self.inherited.iter().filter(|c| !self.made.contains(c));
        match list(&self.path, inherited.chain(&self.made)) {
            Err(error) if outlives_boot => {
                self.made.pop();
                Err(error)
            }
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "a change is not listed: after a crash it stays until the machine starts again"
                );
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if helper::has_ended() {
            tracing::warn!(
                "without its helper this program undoes no changes of this machine: the next start does"
            );
            return;
        }
        let mut left = Vec::new();
        let made = self.made.drain(..).rev();
        for change in made.chain(self.inherited.drain(..).rev()) {
            if let Err(error) = change.undo() {
                tracing::error!(%error, "a change could not be undone; `ropewalk doctor --repair` tries again");
                left.push(change);
            }
        }
        if let Err(error) = list(&self.path, self.kept.iter().chain(left.iter().rev())) {
            tracing::warn!(%error, "the list of changes is out of date");
        }
    }
}

/// What an earlier gateway left behind and is still in force.
///
/// # Errors
/// The file cannot be read.
pub fn left_over(path: &Path) -> anyhow::Result<Vec<Change>> {
    let damaged = || {
        format!(
            "{} is damaged; look at it, undo what it lists by hand, and remove it",
            path.display()
        )
    };
    let read = files::read_state_and_owner(path, FILE_BYTES_MAX).map_err(|error| {
        if files::is_denied(&error) {
            error
        } else {
            error.context(damaged())
        }
    })?;
    let Some((text, owner)) = read else {
        return Ok(Vec::new());
    };
    let marked: Marked = serde_json::from_str(&text).with_context(damaged)?;
    let (same_boot, same_namespace) = (marked.boot == boot(), marked.namespace == namespace());
    if marked.format > FORMAT {
        if !(same_boot && same_namespace) {
            return Ok(Vec::new());
        }
        let (path, format) = (path.to_owned(), marked.format);
        return Err(Newer { path, format }.into());
    }
    let state: StateFile = serde_json::from_str(&text).with_context(damaged)?;
    let mut changes = state.changes;
    if !same_boot {
        changes.retain(Change::outlives_boot);
    } else if !same_namespace {
        changes.clear();
    }
    // The helper looks at what its own gateway has undone.
    if owner != rustix::process::geteuid().as_raw() {
        changes.retain(|change| {
            let keep = change.is_of_gateway();
            if !keep {
                tracing::error!(%change, list = %path.display(), "no gateway makes such a change: it is not undone");
            }
            keep
        });
    }
    Ok(changes)
}

/// A newer program wrote a list. Its changes are that program's to undo.
#[derive(Debug)]
struct Newer {
    path: PathBuf,
    format: u64,
}

impl std::fmt::Display for Newer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} has format {}, and this program reads format {FORMAT}: a newer Ropewalk wrote it; undo its \
             changes with `ropewalk doctor --repair` of the newer program, or restart the machine",
            self.path.display(),
            self.format
        )
    }
}

impl std::error::Error for Newer {}

/// Moves a list that cannot be read away: it must not keep a gateway from starting for ever. The list of a
/// newer program stays.
///
/// # Errors
/// The `error`, when the list is one of a newer program, or cannot be moved.
fn set_aside(path: &Path, error: anyhow::Error) -> anyhow::Result<Vec<Change>> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    if error.is::<Newer>() || files::rename(path, Path::new(&aside)).is_err() {
        return Err(error);
    }
    tracing::error!(
        error = format!("{error:#}"),
        kept = %Path::new(&aside).display(),
        "what an earlier run left is not known; starting without"
    );
    Ok(Vec::new())
}

/// Undoes what an earlier gateway left behind; returns it. The caller holds the gateway's lock.
///
/// # Errors
/// Something cannot be undone; it stays listed.
pub fn repair(path: &Path) -> anyhow::Result<Vec<Change>> {
    let left = left_over(path)?;
    let refused = undo_listed(path, &[], left.clone());
    match refused.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(left),
    }
}

/// Undoes `left`, the last first; it stays listed until then, and `kept` afterwards. What cannot be undone
/// stays listed behind `kept`; it is returned, the first first.
fn undo_listed(
    path: &Path,
    kept: &[Change],
    mut left: Vec<Change>,
) -> Vec<(Change, anyhow::Error)> {
    // What is undone already may be undone once more, so a full disk is no reason to stop.
    let relist = |left: &[Change], refused: &[(Change, anyhow::Error)]| {
        let refused = refused.iter().map(|(change, _)| change);
        if let Err(error) = list(path, kept.iter().chain(left).chain(refused)) {
            tracing::warn!(
                error = format!("{error:#}"),
                "the list of changes is out of date"
            );
        }
    };
    let mut refused = Vec::new();
    while let Some(change) = left.pop() {
        if let Err(error) = change.undo() {
            refused.insert(0, (change, error));
        } else if !left.is_empty() {
            relist(&left, &refused);
        }
    }
    relist(&[], &refused);
    refused
}

/// Lists these changes; without any there is no file.
fn list<'a>(path: &Path, changes: impl Iterator<Item = &'a Change>) -> anyhow::Result<()> {
    let changes: Vec<Change> = changes.cloned().collect();
    if changes.is_empty() {
        let removed = files::remove(path).map(drop);
        return removed.with_context(|| format!("cannot remove {}", path.display()));
    }
    let state = StateFile {
        pid: std::process::id(),
        boot: boot(),
        namespace: namespace(),
        changes,
    };
    let text = serde_json::to_vec_pretty(&state)?;
    files::write_atomically(path, &text, files::SECRET, true)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn boot() -> String {
    sysctl::read("kernel.random.boot_id").unwrap_or_default()
}

/// Name of the network namespace that this process is in; empty if it cannot be read.
#[must_use]
pub fn namespace() -> String {
    std::fs::read_link("/proc/self/ns/net")
        .map(|target| target.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A setting that any process may have an opinion on and that affects no traffic here.
    const KEY: &str = "net.ipv4.icmp_msgs_burst";

    fn present() -> String {
        sysctl::read(KEY).unwrap()
    }

    #[test]
    fn a_list_of_a_newer_program_is_refused_with_words_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub-changes.json");
        let list = |boot: &str, format: u64| {
            serde_json::json!({
                "pid": 1, "boot": boot, "namespace": namespace(), "format": format,
                "changes": [{ "kind": "something-new" }],
            })
            .to_string()
        };
        let newer = list(&boot(), 2);
        fs::write(&path, &newer).unwrap();
        for error in [
            Changes::begin(&path, true).map(drop).unwrap_err(),
            repair(&path).map(drop).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(
                error.contains("format 2") && error.contains("doctor --repair"),
                "{error}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        // What happened before the machine started is gone.
        fs::write(&path, list("another boot", 2)).unwrap();
        assert_eq!(left_over(&path).unwrap(), []);
    }

    /// A list as a program wrote it that knew no formats.
    #[test]
    fn a_list_without_a_format_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub-changes.json");
        let list = format!(
            "{{\"pid\": 7, \"boot\": {:?}, \"namespace\": {:?}, \"changes\": \
             [{{\"kind\": \"table\", \"name\": \"ropewalk_x\"}}]}}",
            boot(),
            namespace()
        );
        fs::write(&path, list).unwrap();
        let name = "ropewalk_x".to_owned();
        assert_eq!(left_over(&path).unwrap(), [Change::Table { name }]);
    }

    /// One test, because all share the setting of this machine.
    #[test]
    fn changes_are_undone_at_the_end_after_a_crash_and_only_if_still_in_force() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let former = present();
        let other = format!("{}", former.parse::<u32>().unwrap() + 7);

        let mut changes = Changes::begin(&path, true).unwrap();
        changes.sysctl(KEY, &other).unwrap();
        assert_eq!(present(), other);
        drop(changes);
        assert_eq!(present(), former, "not undone at the end");
        assert!(!path.exists());

        let mut changes = Changes::begin(&path, true).unwrap();
        changes.sysctl(KEY, &other).unwrap();
        std::mem::forget(changes);
        assert_eq!(left_over(&path).unwrap().len(), 1);
        drop(Changes::begin(&path, true).unwrap());
        assert_eq!(present(), former, "not undone after a crash");

        let mut changes = Changes::begin(&path, true).unwrap();
        changes.sysctl(KEY, &other).unwrap();
        let third = format!("{}", former.parse::<u32>().unwrap() + 9);
        sysctl::write(KEY, &third).unwrap();
        drop(changes);
        assert_eq!(present(), third, "somebody else's value was overwritten");
        sysctl::write(KEY, &former).unwrap();
    }

    #[test]
    fn tables_stay_after_a_crash_or_restart_until_the_next_run_is_set_up() {
        let Ok(namespace) = ropewalk_io::netns::Namespace::anonymous() else {
            eprintln!("skipped: needs root");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let names = ["ropewalk_again", "ropewalk_once"];
        let steps = || {
            let made = || names.map(|name| nft::table_handle(name).unwrap().is_some());
            let make = |changes: &mut Changes, name: &str| {
                changes.table(name).unwrap();
                nft::run_script(&format!("add table inet {name}\n")).unwrap();
            };
            let mut changes = Changes::begin(&path, true).unwrap();
            names.iter().for_each(|name| make(&mut changes, name));
            std::mem::forget(changes);
            for restarted in [false, true] {
                let mut changes = Changes::begin(&path, true).unwrap();
                assert_eq!(made(), [true, true], "restarted: {restarted}");
                assert_eq!(left_over(&path).unwrap().len(), 2, "no longer listed");
                make(&mut changes, names[0]);
                changes.remove_former_tables();
                assert_eq!(made(), [true, false], "restarted: {restarted}");
                make(&mut changes, names[1]);
                changes.end(!restarted);
                assert_eq!(made(), [!restarted; 2]);
                assert_eq!(path.exists(), !restarted);
            }
            let mut changes = Changes::begin(&path, true).unwrap();
            make(&mut changes, names[0]);
            std::mem::forget(changes);
            drop(Changes::begin(&path, true).unwrap());
            assert_eq!(made(), [false; 2], "a start that failed leaves tables");
            assert!(!path.exists());
        };
        namespace.enter(steps).unwrap();
    }

    #[test]
    fn a_setting_of_an_earlier_run_that_this_one_needs_is_set_back_at_the_end_and_not_before() {
        let Ok(namespace) = ropewalk_io::netns::Namespace::anonymous() else {
            eprintln!("skipped: needs root");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let steps = || {
            let key = "net.ipv4.ip_forward";
            let now = || sysctl::read(key).unwrap();
            assert_eq!(now(), "0");
            sysctl::write(key, "1").unwrap();
            // An earlier run set it, and its end could not set it back.
            let mut changes = Changes::begin(&path, true).unwrap();
            changes.inherited.push(Change::Sysctl {
                key: key.to_owned(),
                former: "0".to_owned(),
                value: "1".to_owned(),
            });
            changes.sysctl(key, "1").unwrap();
            changes.remove_former_tables();
            assert_eq!(now(), "1", "this gateway forwards");
            assert_eq!(
                left_over(&path).unwrap(),
                changes.inherited,
                "it is still listed"
            );
            drop(changes);
            assert_eq!(now(), "0");
            assert!(!path.exists());
        };
        namespace.enter(steps).unwrap();
    }

    #[test]
    fn changes_of_another_boot_are_forgotten_and_damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let state = StateFile {
            pid: 1,
            boot: "another".to_owned(),
            namespace: namespace(),
            changes: vec![Change::Sysctl {
                key: "net.ipv4.ip_forward".to_owned(),
                former: "5".to_owned(),
                value: sysctl::read("net.ipv4.ip_forward").unwrap(),
            }],
        };
        fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
        assert!(repair(&path).unwrap().is_empty());
        assert!(!path.exists());
        fs::write(&path, "{\"pid\":").unwrap();
        let error = left_over(&path).unwrap_err().to_string();
        assert!(
            error.contains("damaged") && error.contains("remove it"),
            "{error}"
        );
        if rustix::process::geteuid().is_root() {
            let path = path.clone();
            let secret = std::os::unix::fs::PermissionsExt::from_mode(files::SECRET);
            fs::set_permissions(&path, secret).unwrap();
            let looked = std::thread::spawn(move || {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                format!("{:#}", left_over(&path).unwrap_err())
            });
            let words = looked.join().unwrap();
            assert!(words.contains("Permission denied"), "{words}");
            assert!(!words.contains("damaged"), "{words}");
        }
        drop(Changes::begin(&path, true).unwrap());
        let aside = directory.path().join("state.json.damaged");
        assert_eq!(fs::read_to_string(aside).unwrap(), "{\"pid\":");
        assert!(!path.exists());
    }

    #[test]
    fn name_servers_come_back_after_a_power_cut_at_any_byte() {
        let directory = tempfile::tempdir().unwrap();
        let [path, file] = ["state.json", "resolv.conf"].map(|name| directory.path().join(name));
        let (former, value) = ("nameserver 192.0.2.1\n# long\n", "nameserver 192.0.2.2\n");
        let state = |boot: String| StateFile {
            pid: 1,
            boot,
            namespace: "net:[1]".to_owned(),
            changes: vec![Change::Resolver {
                path: file.clone(),
                former: former.to_owned(),
                value: value.to_owned(),
                was_missing: false,
            }],
        };
        let after = |present: &str| {
            let text = serde_json::to_vec(&state("another".to_owned())).unwrap();
            fs::write(&path, text).unwrap();
            fs::write(&file, present).unwrap();
            drop(Changes::begin(&path, false).unwrap());
            assert!(!path.exists());
            fs::read_to_string(&file).unwrap()
        };
        for bytes in 0..=value.len() {
            assert_eq!(after(&value[..bytes]), former, "{bytes} bytes were written");
        }
        assert_eq!(after(&format!("{value}{}", &former[value.len()..])), former);
        let other = "nameserver 192.0.2.3\n";
        assert_eq!(after(other), other, "somebody else's");
        fs::write(&path, serde_json::to_vec(&state(boot())).unwrap()).unwrap();
        assert!(left_over(&path).unwrap().is_empty(), "of another namespace");
    }

    /// Root undoes what a list of another user says.
    #[test]
    fn a_list_of_another_user_changes_nothing_that_gateways_do_not_change() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [path, file] = ["state.json", "passwd"].map(|name| directory.path().join(name));
        let (former, value) = ("forged".to_owned(), "precious".to_owned());
        let resolver = Change::Resolver {
            path: file.clone(),
            former,
            value: value.clone(),
            was_missing: false,
        };
        let setting = |key: &str, former: &str| Change::Sysctl {
            key: key.to_owned(),
            former: former.to_owned(),
            value: "x".to_owned(),
        };
        let table = |name: &str| Change::Table {
            name: name.to_owned(),
        };
        let state = StateFile {
            pid: 1,
            boot: boot(),
            namespace: namespace(),
            changes: vec![
                resolver,
                setting("kernel.core_pattern", "|/tmp/x"),
                setting("net.ipv4.ip_forward", "|/tmp/x"),
                table("filter"),
                Change::Routes { table: 254 },
                setting("net/ipv4/conf/eth7/rp_filter", "1"),
                table("ropewalk_nothing"),
            ],
        };
        fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
        fs::write(&file, &value).unwrap();
        assert_eq!(left_over(&path).unwrap().len(), 7, "of this user");
        std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
        assert_eq!(left_over(&path).unwrap(), state.changes[5..]);
        let forged = fs::read(&path).unwrap();
        repair(&path).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), value);
        // So does a gateway of root that starts.
        fs::write(&path, forged).unwrap();
        std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
        drop(Changes::begin(&path, true).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), value);
    }

    #[test]
    fn a_list_that_cannot_be_written_stops_no_gateway_but_keeps_the_name_servers() {
        let directory = tempfile::tempdir().unwrap();
        let [path, file] =
            ["none/state.json", "resolv.conf"].map(|name| directory.path().join(name));
        fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
        let mut changes = Changes::begin(&path, false).unwrap();
        changes.routes(21_999).unwrap();
        let error = changes.resolver(&file, "nameserver 192.0.2.2\n");
        assert!(format!("{:#}", error.unwrap_err()).contains("state.json"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "nameserver 192.0.2.1\n");
        // Not undone in the namespace of the machine.
        changes.made.clear();
    }

    #[test]
    fn a_list_of_an_earlier_run_that_cannot_be_written_again_stops_no_gateway() {
        let directory = tempfile::tempdir().unwrap();
        // With its process the name of a temporary file is too long, for root too.
        let path = directory.path().join("x".repeat(253));
        let table = Change::Table {
            name: "ropewalk_none".to_owned(),
        };
        let undone = Change::Sysctl {
            key: "net.ipv4.conf.lo.rp_filter".to_owned(),
            former: "1".to_owned(),
            value: "none".to_owned(),
        };
        let state = StateFile {
            pid: 1,
            boot: boot(),
            namespace: namespace(),
            changes: vec![table.clone(), undone],
        };
        let text = serde_json::to_vec(&state).unwrap();
        fs::write(&path, &text).unwrap();
        let mut changes = Changes::begin(&path, true).unwrap();
        assert_eq!(changes.inherited, [table]);
        assert_eq!(fs::read(&path).unwrap(), text);
        // Not undone in the namespace of the machine.
        changes.inherited.clear();
    }
}
