//! `ropewalk relay`: runs a relay, and prepares one from a token of the next hub.

use std::path::Path;

use anyhow::Context;
use clap::Args;

use super::join::{self, Entry, Given, read_token};
use super::{Global, hub, output};
use crate::service::restarts;
use crate::token::Token;
use crate::{key_file, logging, service};
use ropewalk_config as config;
use ropewalk_config::WrongUsage;
use ropewalk_config::common;
use ropewalk_config::template::{self, RelayTemplate, SiteTemplate};
use ropewalk_config::values::HostPort;

const EXAMPLES: &str = "Examples:
  On the hub:
    ropewalk invite harbour --relay    print a token for the relay \"harbour\"
  On the relay:
    ropewalk relay --join --public relay.example.org:4443
                                       ask for the token, write keys and configuration
    ropewalk relay                     run it
    ropewalk invite boat               print a token for a site behind the relay
    systemctl enable --now ropewalk-relay
                                       always, with the Debian package
  On the site:
    ropewalk join                      as with a hub

A relay is a hub to its sites and a site of the next hub. What the paths of one side lose is
recovered here and protected anew for the other. The sites keep their addresses up to the hub,
which gave the relay a network for them; with a token of a plain site they are translated, and
only they can open connections. Nothing of the relay's own goes through the tunnels.

Open UDP port 4443 and TCP port 443 to the sites. Stop with Ctrl-C; interfaces, routes, rules
and firewall tables are removed again. SIGHUP reads the sites and the rules for uplinks again.
SIGUSR2 stops it for a restart: the firewall tables stay until the next start, and connections go on.";

/// Run a relay: carry sites on to the next hub, each hop with its own paths and protection
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Relay {
    /// Join the next hub with the line that `ropewalk invite NAME --relay` printed there, and stop:
    /// from a file, from standard input, or asked for, as `ropewalk join`
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    join: Option<Option<Given>>,
    /// Where sites reach this relay, for a new configuration; may be given several times
    #[arg(long, value_name = "HOST:PORT", requires = "join")]
    public: Vec<HostPort>,
    /// Replace an existing configuration and key at the hub; the former ones are kept as *.bak,
    /// *.bak2 and so on.
    /// The key that the sites know stays
    #[arg(long, requires = "join")]
    force: bool,
}

impl Relay {
    /// Runs until stopped by a signal, or only prepares.
    ///
    /// # Errors
    /// The token or the configuration is wrong, or the relay cannot start.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::RELAY_CONFIG));
        if let Some(token) = self.join {
            let token = read_token(token.as_ref().map(Given::text))?;
            prepare(path, &token, self.public, self.force)?;
            let option = global.config_option();
            output::note(&format!(
                "next: open UDP 4443 and TCP 443 (or the ports in the configuration), then `ropewalk relay{option}` and `ropewalk invite NAME{option}`"
            ));
            return Ok(());
        }
        if !restarts::wait("relay", path)? {
            return Ok(());
        }
        let config = config::load_relay(path).with_context(|| {
            if path.exists() {
                "the configuration is not usable".to_owned()
            } else {
                "this machine is no relay yet; run `ropewalk relay --join` with the token \
                 that `ropewalk invite NAME --relay` printed on the hub"
                    .to_owned()
            }
        })?;
        logging::start(global.verbose, global.log_format, &config.hub.common.log)?;
        service::run_relay(path, config)
    }
}

/// Writes the keys and the configuration.
fn prepare(path: &Path, token: &Token, public: Vec<HostPort>, force: bool) -> anyhow::Result<()> {
    if public.len() > config::hub::ENDPOINTS_MAX {
        let max = config::hub::ENDPOINTS_MAX;
        return Err(WrongUsage(format!("a token holds {max} endpoints at most")).into());
    }
    let sites_key = common::key_file(path, "relay.key");
    // Before anything is changed: what fails must leave a working relay as it is.
    let entry = Entry::begin(token, path, "relay-hub.key", "relay", force)?;
    if sites_key.exists() {
        key_file::load(&sites_key).context("the key for sites is not usable")?;
    }
    let routed = !token.networks.is_empty();
    let pools = if routed {
        token.networks.clone()
    } else {
        output::note(
            "this token gives the relay no networks for sites: their addresses will be translated, \
             and only they can open connections; for both ways invite with --relay on the hub",
        );
        hub::random_pools()?.to_vec()
    };
    let (listen, tcp_listen) = hub::listen(&public);
    let home = entry.enrol(token)?.remove(0).place;
    let text = template::relay(&RelayTemplate {
        site: SiteTemplate {
            name: token.name.clone(),
            hub_key: home.key,
            endpoints: home.endpoints,
            tcp_port: home.tcp_port,
            spares: Vec::new(),
        },
        listen,
        tcp_listen,
        public,
        pools,
        routed,
    });
    if let Some(former) = entry.finish(&text)? {
        output::note(&join::replaced(&former, &text));
    }
    output::note(&format!("wrote {}", path.display()));
    let config = config::load_relay(path).context("the configuration is not usable")?;
    let (identity, new) = key_file::load_or_create(&config.hub.common.key_file)?;
    if new {
        let file = config.hub.common.key_file.display();
        let key = identity.public_key();
        output::note(&format!("wrote {file}; public key for sites {key}"));
    }
    Ok(())
}
