//! How the program ends: exit codes, and errors as text on standard error.
//!
//! Invariant: printing never panics, also when the reader has gone or the disk is full.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use ropewalk_config::WrongUsage;
use ropewalk_config::reader::Problems;

/// Something failed.
pub const FAILURE: u8 = 1;
/// The command line or a configuration file is wrong.
pub const USAGE: u8 = 2;
/// No gateway runs, or it does not answer.
pub const NOT_RUNNING: u8 = 3;

/// The paragraph on exit codes in the help.
pub const HELP: &str = "Exit codes:
  0  success
  1  failure
  2  wrong usage or configuration
  3  no gateway is running, or it does not answer";

/// No gateway runs, or it does not answer.
#[derive(Debug)]
pub struct NotRunning(pub String);

impl fmt::Display for NotRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotRunning {}

/// Prints `error` with its causes and returns its exit code.
#[must_use]
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever closed our output has seen enough: that is how `ropewalk status | head` ends.
    let closed = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    if closed
        .into_iter()
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
    {
        return ExitCode::SUCCESS;
    }
    let text = format!("{error:#}");
    let hint = hint(error).filter(|_| !text.contains("as root"));
    let _ = writeln!(io::stderr(), "ropewalk: {text}{}", hint.unwrap_or_default());
    ExitCode::from(code(error))
}

/// What to do about a file or an interface that only root may touch.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    let denied = causes.any(|error| error.kind() == io::ErrorKind::PermissionDenied);
    (denied && !rustix::process::geteuid().is_root()).then_some("; run it as root (sudo)")
}

/// The exit code of an error.
#[must_use]
pub fn code(error: &anyhow::Error) -> u8 {
    let wrong = error
        .chain()
        .any(|cause| cause.is::<Problems>() || cause.is::<WrongUsage>());
    if wrong {
        USAGE
    } else if error.chain().any(|cause| cause.is::<NotRunning>()) {
        NOT_RUNNING
    } else {
        FAILURE
    }
}
