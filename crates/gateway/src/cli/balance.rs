//! `ropewalk balance`: spreads flows over uplinks without a hub.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::Global;
use super::{output, plan};
use crate::service::restarts;
use crate::{logging, service};
use ropewalk_balance as balance;
use ropewalk_config as config;
use ropewalk_config::template;
use ropewalk_host::files;

const EXAMPLES: &str = "Examples:
  ropewalk balance --init                  write /etc/ropewalk/balance.toml, start nothing
  ropewalk balance --plan                  list every change it would make; change nothing
  ropewalk balance                         run it
  ropewalk status                          uplinks, shares, flows, and why
  systemctl enable --now ropewalk-balance  always, with the Debian package

No hub and no account are needed. Each new connection of this machine, and of the network behind it,
takes one uplink and stays there, so one connection is never faster than one uplink, and it ends
when its uplink dies: then it is reset at once, and the next one takes another uplink.

Stop with Ctrl-C; firewall table, routing rules, routes and settings are as before then. After a
crash the next start or `ropewalk doctor --repair` does the same. SIGHUP reads mode, marks
and rules from the file again.";

/// Spread connections over several uplinks, without a hub
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Balance {
    /// Write a commented configuration, and stop there
    #[arg(long, conflicts_with = "plan")]
    init: bool,
    /// List every change to this machine, and change nothing
    #[arg(long)]
    plan: bool,
    /// With --plan: one JSON object
    #[arg(long, requires = "plan")]
    json: bool,
}

impl Balance {
    /// Runs until stopped by a signal, or only prepares or plans.
    ///
    /// # Errors
    /// The configuration is wrong, or this machine cannot be set up.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let default = PathBuf::from(config::BALANCE_CONFIG);
        let path = global.config.clone().unwrap_or(default);
        if self.init {
            return init(&path, &global.config_option());
        }
        if !self.plan && !restarts::wait(config::balance::ROLE, &path)? {
            return Ok(());
        }
        let config = config::load_balance(&path).with_context(|| {
            if path.exists() {
                "the configuration is not usable".to_owned()
            } else {
                let option = global.config_option();
                format!("there is no configuration yet; run `ropewalk balance --init{option}`")
            }
        })?;
        if self.plan {
            return plan::print(&balance::plan(&config, None)?, self.json);
        }
        logging::start(global.verbose, global.log_format, &config.common.log)?;
        service::run_balance(&path, config)
    }
}

fn init(path: &Path, option: &str) -> anyhow::Result<()> {
    if path.exists() {
        bail!("{} exists; edit it, or remove it first", path.display());
    }
    files::create_parent(path)?;
    files::write_atomically(
        path,
        template::balance().as_bytes(),
        files::CONFIGURATION,
        true,
    )
    .with_context(|| format!("cannot write {}", path.display()))?;
    output::note(&format!(
        "wrote {}; see what it would do with `ropewalk balance --plan{option}`",
        path.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_makes_the_directory_of_a_fresh_machine_and_overwrites_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/ropewalk/balance.toml");
        init(&path, "").unwrap();
        config::load_balance(&path).unwrap();
        let error = init(&path, "").unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
    }
}
