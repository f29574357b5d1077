//! The `ropewalk` program: a tunnel over several uplinks, its command line and its service.
//!
//! `engine` moves packets on a thread of its own. Everything else is the control side: `cli`
//! reads the command line, `config`, `key_file`, `sites` and `token` read and write files,
//! `service` runs a hub or a site around an engine, `client` talks to a running one.

mod cli;
mod client;
mod config;
mod demo;
mod doctor;
mod engine;
mod exit;
mod files;
mod key_file;
mod logging;
mod service;
mod sites;
mod token;

fn main() -> std::process::ExitCode {
    cli::main()
}
