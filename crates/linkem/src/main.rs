//! `ropewalk-linkem`: the link model in real time between two network namespaces.
//!
//! Each end is an ordinary Ethernet interface (TAP). Frames read at one end pass the model of
//! `ropewalk-netem` and are written at the other when their time has come. One thread carries
//! both directions, so no lock is taken and the order of frames is that of the model.

#![forbid(unsafe_code)]

mod args;
mod control;
mod end;
mod engine;
mod frame;
mod report;
mod run;
mod validate;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    if let Some(code) = ropewalk_manual::asked(args::Args::command) {
        return code;
    }
    let args = args::Args::parse();
    let result = match args.task {
        Some(args::Task::Validate { quick, json }) => validate::validate(quick, json),
        None => run::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk-linkem: {error:#}");
            ExitCode::FAILURE
        }
    }
}
