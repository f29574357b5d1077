//! Removes what this process made: on drop, on Ctrl-C, and what an earlier process left behind.
//!
//! Invariant: every namespace, child process and directory is registered before it is used, and
//! taken off the list when it is removed. So one list always names everything to undo. Children are
//! stopped before namespaces go, namespaces before directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Something to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A child process, killed by its id.
    Process(u32),
    /// A named network namespace.
    Namespace(String),
    /// A directory with its content.
    Directory(PathBuf),
}

/// An entry of the list; [`Ticket::release`] takes it off.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// The resource is gone: forget it.
    pub(crate) fn release(&self) {
        list().entries.remove(&self.0);
    }
}

/// Puts a resource on the list and makes sure that Ctrl-C works it off.
pub(crate) fn register(resource: Resource) -> Ticket {
    watch_signals();
    let mut list = list();
    list.last += 1;
    let number = list.last;
    list.entries.insert(number, resource);
    Ticket(number)
}

/// Undoes everything on the list. Errors are ignored: this runs when nothing better can be done.
pub(crate) fn undo_all() {
    let entries: Vec<Resource> = std::mem::take(&mut list().entries)
        .into_values()
        .rev()
        .collect();
    for resource in &entries {
        if let Resource::Process(pid) = resource {
            kill(*pid, Signal::KILL);
        }
    }
    for resource in &entries {
        if let Resource::Namespace(name) = resource {
            delete_namespace(name);
        }
    }
    for resource in &entries {
        if let Resource::Directory(path) = resource {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Waits for the end of the process if a signal has come, so that nobody disturbs the clean-up
/// or reports what it breaks. Returns at once otherwise.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

/// Removes namespaces, directories and WireGuard's control sockets whose maker is dead: names are
/// `rw-PURPOSE-PID-…`.
///
/// Returns how many were removed.
pub fn remove_leftovers() -> usize {
    let namespaces = orphans(Path::new(NAMESPACE_DIR));
    for name in &namespaces {
        delete_namespace(name);
    }
    let temporary = std::env::temp_dir();
    let directories = orphans(&temporary);
    for name in &directories {
        let _ = std::fs::remove_dir_all(temporary.join(name));
    }
    let sockets = orphans(Path::new(WIREGUARD_DIR));
    for name in &sockets {
        let _ = std::fs::remove_file(Path::new(WIREGUARD_DIR).join(name));
    }
    namespaces.len() + directories.len() + sockets.len()
}

/// Entries of a directory that a dead process made.
fn orphans(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| maker(name).is_some_and(|pid| !is_alive(pid)))
        .collect()
}

/// Whether a process still runs. One that has ended but was not waited for has no command line.
fn is_alive(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// The process id inside a name made by this crate.
fn maker(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix("rw-")?.rsplitn(3, '-');
    let (_role, pid) = (parts.next()?, parts.next()?);
    parts.next()?;
    pid.parse().ok()
}

/// Sends a signal to one process.
pub(crate) fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Deletes a named namespace; its interfaces go with it.
pub(crate) fn delete_namespace(name: &str) {
    let _ = std::process::Command::new("ip")
        .args(["netns", "del", name])
        .output();
}

/// Starts the thread that works off the list on SIGINT, SIGTERM and SIGHUP, once.
fn watch_signals() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else {
            return;
        };
        let _ = std::thread::Builder::new()
            .name("testbed-signals".into())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    INTERRUPTED.store(true, Ordering::Relaxed);
                    eprintln!("interrupted: removing namespaces and programs");
                    undo_all();
                    std::process::exit(128 + signal);
                }
            });
    });
}

#[derive(Default)]
struct List {
    last: u64,
    entries: BTreeMap<u64, Resource>,
}

fn list() -> MutexGuard<'static, List> {
    static LIST: Mutex<List> = Mutex::new(List {
        last: 0,
        entries: BTreeMap::new(),
    });
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a signal came and everything is being undone.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Where `wireguard-go` makes its control sockets.
pub(crate) const WIREGUARD_DIR: &str = "/var/run/wireguard";
/// Where `ip netns` keeps its names.
pub(crate) const NAMESPACE_DIR: &str = "/run/netns";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_not_waited_for_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        assert!(is_alive(std::process::id()));
        child.wait().unwrap();
    }

    #[test]
    fn only_names_of_this_crate_have_a_maker() {
        assert_eq!(maker("rw-demo-123-site"), Some(123));
        assert_eq!(maker("rw-two-words-77-hub"), Some(77));
        for foreign in [
            "rw-demo-site",
            "rw-123-site",
            "other-1-2-3",
            "rw-demo-12x-hub",
            "rw-",
        ] {
            assert_eq!(maker(foreign), None, "{foreign}");
        }
    }
}
