//! `ropewalk up`: runs a site.

use std::path::Path;

use anyhow::Context;
use clap::Args;

use super::{Global, output, plan, remote};
use crate::service::{direct, restarts};
use crate::{logging, service};
use ropewalk_config as config;

const EXAMPLES: &str = "Examples:
  ropewalk up                              with /etc/ropewalk/site.toml
  ropewalk up --config ./site.toml -v      somewhere else, logging decisions
  ropewalk up --plan                       list what is changed for flows beside the tunnel
  ropewalk up --yes                        also if that cuts the SSH connection you type it over
  systemctl enable --now ropewalk-site     always, with the Debian package

The file is written by `ropewalk join`. Stop with Ctrl-C; everything that was set
(interface, addresses, routes, firewall table) is removed again, but for the kill switch. SIGHUP
reads the rules for uplinks from the file again.

Everything goes through the tunnel unless `routes` in [network] says otherwise, or `via` of a
[[class]] sends it over the uplinks directly. With kill_switch = true, which `ropewalk join` writes,
everything else is refused: before the tunnel is up, while it is down, and after this program has
ended, until `ropewalk down`. Without it, traffic leaves beside the tunnel at these times. Classes
with via = \"auto\" go directly until the hub is back.";

/// Run a site: connect to the hub over every uplink
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Up {
    /// List every change to this machine for flows beside the tunnel, and change nothing
    #[arg(long)]
    plan: bool,
    /// With --plan: one JSON object
    #[arg(long, requires = "plan")]
    json: bool,
    /// Start although that cuts the SSH connection of this session
    #[arg(long)]
    yes: bool,
}

impl Up {
    /// Runs until stopped by a signal.
    ///
    /// # Errors
    /// The configuration is wrong, or the site cannot start.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::SITE_CONFIG));
        if !self.plan && !restarts::wait("site", path)? {
            return Ok(());
        }
        let config = config::load_site(path).with_context(|| {
            if path.exists() {
                "the configuration is not usable".to_owned()
            } else {
                "this machine is no site yet; run `ropewalk join` with the token that \
                 `ropewalk invite NAME` printed on the hub"
                    .to_owned()
            }
        })?;
        if self.plan {
            let plan = direct::plan(&config)?;
            if plan.is_none() {
                output::note(
                    "nothing goes beside the tunnel: no class has via = \"direct\" or \"auto\"",
                );
            }
            return plan::print(&plan.unwrap_or_default(), self.json);
        }
        remote::refuse(&config, self.yes)?;
        logging::start(global.verbose, global.log_format, &config.common.log)?;
        service::run_site(path, config)
    }
}
