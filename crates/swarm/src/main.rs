//! `ropewalk-swarm`: thousands of sites in one process, to load a hub.
//!
//! Each site is the `session` of a real site, over real UDP sockets. Only the TUN interface is
//! missing: a site makes its inner packets itself. All of these are pings of the hub's inner address,
//! which the hub's kernel answers. So a swarm loads anyone's hub without anything else on it.

#![forbid(unsafe_code)]

mod absence;
mod args;
mod chance;
mod enemy;
mod fleet;
mod goodput;
mod hostile;
mod load;
mod ping;
mod process;
mod report;
mod roam;
mod roster;
mod run;
mod seen;
mod site;
mod tuning;
mod window;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    if let Some(code) = ropewalk_manual::asked(args::Args::command) {
        return code;
    }
    let args = args::Args::parse();
    let result = match &args.command {
        args::Command::Sites(sites) => roster::print(sites),
        args::Command::Run(run) => run::run(run),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ropewalk-swarm: {error:#}");
            ExitCode::FAILURE
        }
    }
}
