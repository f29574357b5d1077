//! Tests and benchmarks measure alone on this machine; runs of plans share it with each other.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// Holds the lock until dropped; the kernel frees it if the process dies.
#[derive(Debug)]
pub struct Serial {
    _file: File,
}

/// Waits until nobody else measures.
///
/// # Errors
/// If the lock file cannot be made.
pub fn serial() -> Result<Serial> {
    lock(
        FlockOperation::NonBlockingLockExclusive,
        FlockOperation::LockExclusive,
    )
}

/// Waits until no test or benchmark measures; others may share.
///
/// # Errors
/// If the lock file cannot be made.
pub fn shared() -> Result<Serial> {
    lock(
        FlockOperation::NonBlockingLockShared,
        FlockOperation::LockShared,
    )
}

fn lock(at_once: FlockOperation, wait: FlockOperation) -> Result<Serial> {
    let path = std::env::var_os(LANE).map_or_else(|| PathBuf::from(LOCK), PathBuf::from);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    if flock(&file, at_once).is_err() {
        eprintln!("waiting until others on this machine have measured");
        flock(&file, wait)?;
    }
    Ok(Serial { _file: file })
}

const LOCK: &str = "/run/ropewalk-testbed.lock";
/// The variable that names another lock: tests that mostly wait run beside those of another lane.
const LANE: &str = "ROPEWALK_TESTBED_LOCK";
