//! The program `ropewalk-sim`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
