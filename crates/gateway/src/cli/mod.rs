//! The command line: one file per command.
//!
//! Invariants: results go to standard output, everything else to standard error. Colours appear on
//! a terminal only, and never with `NO_COLOR`.

mod balance;
mod balance_status;
mod completions;
mod dashboard;
mod doctor;
mod down;
#[cfg(feature = "fleet")]
mod fleet;
mod hub;
mod invite;
mod join;
mod key;
mod kill_switch;
mod output;
mod pages;
mod path;
mod plan;
mod portal;
mod relay;
mod reload;
mod remote;
mod scheduler;
mod schema;
mod status;
#[cfg(test)]
mod tests;
mod top;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::exit;
use ropewalk_config::common::LogFormat;
use ropewalk_demo::replay::{self, ReplayArgs};
use ropewalk_demo::{self as demo, DemoArgs};

const EXAMPLES: &str = "Examples:
  On a server with a public address (the hub):
    ropewalk hub --init               write key and configuration
    ropewalk hub                      run it
    ropewalk invite boat              print a token for the site \"boat\"
  On the machine with several uplinks (the site):
    ropewalk join                     ask for the token, make a key, write the configuration
    ropewalk up                       run it
    ropewalk status                   what each path does
    ropewalk top                      the same in this terminal, with a graph and keys to act
    ropewalk dashboard                the same in a browser, with charts
    ropewalk portal 5m                log in to a hotel's network past the kill switch
    ropewalk down                     stop it and lift the kill switch
  On a machine between them, if there is one (a relay):
    ropewalk relay --join             write keys and configuration; the hub invites with --relay
    ropewalk relay                    run it; it invites its sites as a hub does
  On several hubs that serve the same sites (a fleet):
    ropewalk fleet init NAME          make it; the hubs share their state on etcd
    ropewalk fleet status             the hubs, and how old the copy of the state is
  On a machine with several uplinks and no hub anywhere:
    ropewalk balance --plan           list what would be changed
    ropewalk balance                  spread connections over the uplinks
  When something does not work, on any:
    ropewalk doctor                   check everything and say what to do";

/// Joins several unreliable uplinks (Wi-Fi, LTE, DSL, satellite) into one connection that
/// aims never to be worse than the best of them.
#[derive(Debug, Parser)]
#[command(name = "ropewalk", version, propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: CliCommand,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Common options")]
pub struct Global {
    /// Configuration file [default: site.toml, hub.toml, relay.toml or balance.toml in
    /// /etc/ropewalk]. A second gateway on one machine also needs its own `state_dir`,
    /// `api.socket` and `tunnel.interface` there
    #[arg(
        long,
        short,
        global = true,
        value_name = "FILE",
        env = "ROPEWALK_CONFIG"
    )]
    config: Option<PathBuf>,
    /// Socket of the running gateway, if not the configured one
    #[arg(long, global = true, value_name = "PATH", env = "ROPEWALK_SOCKET")]
    socket: Option<PathBuf>,
    /// Log more: -v decisions, -vv packets. RUST_LOG is obeyed too
    #[arg(long, short, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Form of log lines
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

impl Global {
    /// What a command that is suggested needs to mean the same file.
    fn config_option(&self) -> String {
        let given = self.config.as_ref();
        given.map_or_else(String::new, |path| format!(" --config {}", path.display()))
    }
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Hub(hub::Hub),
    Up(up::Up),
    Down(down::Down),
    KillSwitch(kill_switch::KillSwitchArgs),
    Portal(portal::PortalArgs),
    Relay(relay::Relay),
    #[cfg(feature = "fleet")]
    Fleet(fleet::FleetArgs),
    Balance(balance::Balance),
    Invite(invite::Invite),
    Join(join::Join),
    Status(status::StatusArgs),
    Top(top::Top),
    Dashboard(dashboard::Dashboard),
    Path(path::PathArgs),
    Scheduler(scheduler::SchedulerArgs),
    Reload(reload::ReloadArgs),
    Key(key::Key),
    Doctor(doctor::DoctorArgs),
    Demo(DemoArgs),
    Replay(ReplayArgs),
    Completions(completions::Completions),
    Schema(schema::SchemaArgs),
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let global = &cli.global;
    let result = match cli.command {
        CliCommand::Hub(command) => command.run(global),
        CliCommand::Up(command) => command.run(global),
        CliCommand::Down(command) => command.run(global),
        CliCommand::KillSwitch(command) => command.run(global),
        CliCommand::Portal(command) => command.run(global),
        CliCommand::Relay(command) => command.run(global),
        #[cfg(feature = "fleet")]
        CliCommand::Fleet(command) => command.run(global),
        CliCommand::Balance(command) => command.run(global),
        CliCommand::Invite(command) => command.run(global),
        CliCommand::Join(command) => command.run(global),
        CliCommand::Status(command) => command.run(global),
        CliCommand::Top(command) => command.run(global),
        CliCommand::Dashboard(command) => command.run(global),
        CliCommand::Path(command) => command.run(global),
        CliCommand::Scheduler(command) => command.run(global),
        CliCommand::Reload(command) => command.run(global),
        CliCommand::Key(command) => command.run(global),
        CliCommand::Doctor(command) => command.run(global),
        CliCommand::Replay(args) => replay::run(&args),
        CliCommand::Demo(args) => {
            return demo::run(args, dashboard::of_demo)
                .unwrap_or_else(|error| exit::report(&error));
        }
        CliCommand::Completions(command) => command.run(),
        CliCommand::Schema(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
