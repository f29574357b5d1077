//! `ropewalk reload`: the running gateway reads its configuration again, as on SIGHUP.

use clap::Args;
use ropewalk_api::{Reloaded, Route};
use serde_json::json;

use super::{Global, output};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk reload                   after a change of [uplinks] in site.toml, or of sites.toml

What cannot change while the gateway runs needs a restart: `ropewalk reload` leaves it as it is.
With systemd, `systemctl reload ropewalk-site` does the same.";

/// Have the running gateway read again what can change while it runs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReloadArgs;

impl ReloadArgs {
    /// Asks the running gateway.
    ///
    /// # Errors
    /// No gateway runs, or its configuration is not usable: then nothing was changed.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref())?;
        let Reloaded { reloaded } = client.post(Route::Reload.path(), &json!({}))?;
        output::note(&format!("read again: {reloaded}"));
        Ok(())
    }
}
