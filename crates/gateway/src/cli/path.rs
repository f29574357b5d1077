//! `ropewalk path`: lists paths and takes uplinks in and out of use.

use clap::{Args, Subcommand};
use serde_json::json;

use super::output;
use super::{Global, status};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk path                    list the paths
  ropewalk path disable wlan0      stop using an uplink, until the next start
  ropewalk path enable wlan0

To leave an uplink out for good, put it into `exclude` of [uplinks] in the configuration.";

/// List paths, or take an uplink in or out of use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PathArgs {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the paths
    List,
    /// Use an uplink again
    Enable {
        /// Name of the uplink, as `ropewalk path` lists it
        uplink: String,
    },
    /// Stop using an uplink
    Disable {
        /// Name of the uplink, as `ropewalk path` lists it
        uplink: String,
    },
}

impl PathArgs {
    /// Asks the running gateway.
    ///
    /// # Errors
    /// No gateway runs, or it has no such uplink.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref())?;
        let (uplink, enabled) = match self.action.unwrap_or(Action::List) {
            Action::List => {
                return output::print(&status::paths(&client.status()?)).map_err(Into::into);
            }
            Action::Enable { uplink } => (uplink, true),
            Action::Disable { uplink } => (uplink, false),
        };
        client.post(
            "/v1/paths",
            &json!({ "uplink": uplink, "enabled": enabled }),
        )?;
        let state = if enabled {
            "in use again"
        } else {
            "not used any more, until the next start"
        };
        output::note(&format!("{uplink} is {state}"));
        Ok(())
    }
}
