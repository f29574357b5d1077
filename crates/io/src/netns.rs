//! Work inside another network namespace.
//!
//! setns(2) moves only the calling thread. So the work runs on a thread of its own that ends with
//! the work. A caller is never left in the wrong namespace. Descriptors made there stay bound to
//! it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// An open network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    name: String,
}

/// Why a namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The namespace is missing.
    #[error("there is no network namespace {name} ({path} is missing): {remedy}")]
    Missing {
        /// As given.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// The process may not enter namespaces.
    #[error("entering the network namespace {0} needs CAP_SYS_ADMIN: run as root")]
    NotPermitted(String),
    /// Another system call failed.
    #[error("{step} the network namespace {name}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// As given.
        name: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Where `ip netns` keeps the namespaces it names.
const NAMED_DIRECTORY: &str = "/run/netns";

impl Namespace {
    /// Opens a namespace: a name that `ip netns` lists, `pid:1234` for that of a process, `self`
    /// for the caller's own, or a path with a `/`.
    ///
    /// # Errors The namespace is missing, or it may not be read.
    pub fn open(name: &str) -> Result<Self, NamespaceError> {
        let path = if name == "self" {
            PathBuf::from("/proc/thread-self/ns/net")
        } else if let Some(pid) = name.strip_prefix("pid:") {
            PathBuf::from(format!("/proc/{pid}/ns/net"))
        } else if name.contains('/') {
            PathBuf::from(name)
        } else {
            PathBuf::from(NAMED_DIRECTORY).join(name)
        };
        let file = File::open(&path).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT) => NamespaceError::Missing {
                remedy: if name.starts_with("pid:") {
                    "give the id of a running process".into()
                } else {
                    format!("make it with `ip netns add {name}`, or see `ip netns list`")
                },
                name: name.into(),
                path,
            },
            Some(libc::EACCES | libc::EPERM) => NamespaceError::NotPermitted(name.into()),
            _ => NamespaceError::Io {
                step: "opening",
                name: name.into(),
                source,
            },
        })?;
        Ok(Self {
            file,
            name: name.into(),
        })
    }

    /// A new namespace without a name, which ends with its last user.
    ///
    /// # Errors
    /// Without the privilege.
    pub fn anonymous() -> Result<Self, NamespaceError> {
        let name = "(unnamed)";
        let make = || {
            // SAFETY: unshare(2) takes apart only the network namespace. Descriptors and memory
            // stay shared, and the thread ends with this closure.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        };
        let thread = std::thread::spawn(make);
        let file = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let file = file.map_err(|source| match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => NamespaceError::NotPermitted(name.into()),
            _ => NamespaceError::Io {
                step: "making",
                name: name.into(),
                source,
            },
        })?;
        Ok(Self {
            file,
            name: name.into(),
        })
    }

    /// As given to [`Self::open`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside the namespace and waits for it.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.move_here()?;
                Ok(work())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn move_here(&self) -> Result<(), NamespaceError> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
            |errno| match errno {
                rustix::io::Errno::PERM => NamespaceError::NotPermitted(self.name.clone()),
                errno => NamespaceError::Io {
                    step: "entering",
                    name: self.name.clone(),
                    source: errno.into(),
                },
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_namespace_is_named_with_a_remedy() {
        let error = Namespace::open("no-such-namespace")
            .expect_err("missing")
            .to_string();
        assert!(
            error.contains("no-such-namespace") && error.contains("ip netns add"),
            "{error}"
        );
        let error = Namespace::open("pid:999999999")
            .expect_err("missing")
            .to_string();
        assert!(error.contains("running process"), "{error}");
    }

    #[test]
    fn an_unnamed_namespace_is_another_one() {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").expect("readable");
        match Namespace::anonymous() {
            Ok(namespace) => assert_ne!(namespace.enter(own).expect("enterable"), own()),
            Err(NamespaceError::NotPermitted(_)) => println!("skipped: needs root"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn work_runs_inside_and_the_caller_stays_outside() {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").expect("readable");
        let before = own();
        let namespace = Namespace::open("self").expect("the own namespace");
        match namespace.enter(own) {
            Ok(inside) => assert_eq!(inside, before),
            Err(NamespaceError::NotPermitted(_)) => println!("skipped: needs root"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(own(), before);
    }
}
