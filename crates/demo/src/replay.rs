//! `ropewalk replay`: recorded uplinks in the simulator.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use ropewalk_testbed::programs;

const EXAMPLES: &str = "Examples:
  ropewalk replay wifi.csv lte.csv                 a download and a call, alone and together
  ropewalk replay a.up b.up --delay 10ms,40ms --html gain.html";

/// Play recorded uplinks: what would they carry alone, and what together through Ropewalk?
///
/// The same as `ropewalk-sim replay`, which has the real scheduler in virtual time. `ropewalk replay --help` lists
/// its options.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// Recordings, one for each uplink, and options
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "FILE"
    )]
    pub arguments: Vec<OsString>,
}

/// Becomes the simulator.
///
/// # Errors
/// The simulator is missing or cannot be started.
pub fn run(args: &ReplayArgs) -> Result<()> {
    let program = programs::own("ropewalk-sim")?;
    let error = Command::new(&program)
        .arg("replay")
        .args(&args.arguments)
        .exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
