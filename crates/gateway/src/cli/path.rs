//! `ropewalk path`: lists paths and takes uplinks in and out of use.

use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use ropewalk_api::{Done, LEAVING_SECONDS_MAX, PathRequest, PathUse, Status};
use serde_json::json;

use super::output;
use super::{Global, status};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk path                    list the paths
  ropewalk path list --json        the same for programs
  ropewalk path disable wlan0      stop using an uplink, until the next start
  ropewalk path enable wlan0
  ropewalk path leaving wlan0      it will end soon: move its traffic now, before it does
  ropewalk path leaving wlan0 --for 30    the same, but forget it after 30 seconds
  ropewalk path returning wlan0    it does not end after all, or is back

To leave an uplink out for good, put it into `exclude` of [uplinks] in the configuration.";

/// List paths, take an uplink in or out of use, or announce its end
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PathArgs {
    #[command(subcommand)]
    action: Option<PathAction>,
}

#[derive(Debug, Subcommand)]
enum PathAction {
    /// List the paths
    List {
        /// One JSON array: each tunnel with its `peer` and its `paths`, as `ropewalk status --json` has them
        #[arg(long)]
        json: bool,
    },
    /// Use an uplink again
    Enable {
        /// Name of the uplink, as `ropewalk path` lists it
        #[arg(value_hint = ValueHint::Other)]
        uplink: String,
    },
    /// Stop using an uplink
    Disable {
        /// Name of the uplink, as `ropewalk path` lists it
        #[arg(value_hint = ValueHint::Other)]
        uplink: String,
    },
    /// Announce that an uplink will end soon: both ends move to others before it does. It is used
    /// again when it has gone and come back, or after `returning`. If it is the last one, and
    /// `freeze` in the section `hold` says so, senders are stopped meanwhile
    Leaving {
        /// Name of the uplink, as `ropewalk path` lists it
        #[arg(value_hint = ValueHint::Other)]
        uplink: String,
        /// Use it again after so many seconds, whatever has become of it
        #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=i64::from(LEAVING_SECONDS_MAX)))]
        seconds: Option<u32>,
    },
    /// Take the announcement of an end back: the uplink is used again at once
    Returning {
        /// Name of the uplink, as `ropewalk path` lists it
        #[arg(value_hint = ValueHint::Other)]
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
        let (uplink, wanted, state) = match self.action.unwrap_or(PathAction::List { json: false })
        {
            PathAction::List { json } => {
                let status = client.status()?;
                let text = if json {
                    for_programs(&status)?
                } else {
                    status::paths(&status)
                };
                return output::print(&text).map_err(Into::into);
            }
            PathAction::Enable { uplink } => (uplink, PathUse::Enabled, "in use again".to_owned()),
            PathAction::Disable { uplink } => {
                let state = "not used any more, until the next start".to_owned();
                (uplink, PathUse::Disabled, state)
            }
            PathAction::Leaving { uplink, seconds } => {
                let longest = seconds.map(|seconds| Duration::from_secs(seconds.into()));
                (uplink, PathUse::Leaving(longest), left_until(seconds))
            }
            PathAction::Returning { uplink } => {
                let state = "used like the others".to_owned();
                (uplink, PathUse::Returning, state)
            }
        };
        let request = PathRequest::new(uplink, wanted);
        let _: Done = client.post("/v1/paths", &request)?;
        output::note(&format!("{} is {state}", request.uplink));
        Ok(())
    }
}

fn for_programs(status: &Status) -> anyhow::Result<String> {
    let tunnels = status.tunnels.iter();
    let paths = tunnels.map(|tunnel| json!({ "peer": tunnel.peer, "paths": tunnel.paths }));
    let text = serde_json::to_string_pretty(&paths.collect::<Vec<_>>())?;
    Ok(format!("{text}\n"))
}

/// How long an uplink whose end was announced is left alone.
fn left_until(seconds: Option<u32>) -> String {
    let longest = match seconds {
        None => String::new(),
        Some(1) => ", for a second at most".to_owned(),
        Some(seconds) => format!(", for {seconds} seconds at most"),
    };
    format!("used only while there is nothing else, until it has gone and come back{longest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_the_paths_of_each_tunnel() {
        let path = ropewalk_api::PathStatus {
            uplink: "wlan0".to_owned(),
            ..Default::default()
        };
        let tunnel = ropewalk_api::TunnelStatus {
            peer: "hub".to_owned(),
            paths: vec![path],
            ..Default::default()
        };
        let status = Status {
            tunnels: vec![tunnel],
            ..Status::default()
        };
        let shown: serde_json::Value =
            serde_json::from_str(&for_programs(&status).unwrap()).unwrap();
        assert_eq!(shown[0]["peer"], "hub");
        assert_eq!(shown[0]["paths"][0]["uplink"], "wlan0");
    }

    #[test]
    fn the_time_after_which_an_end_is_forgotten_is_told() {
        assert!(left_until(None).ends_with("come back"));
        assert!(left_until(Some(3)).ends_with(", for 3 seconds at most"));
    }
}
