//! `ropewalk join`: makes this machine a site.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;

use super::{Global, output};
use crate::key_file;
use crate::token::Token;
use ropewalk_config as config;
use ropewalk_config::WrongUsage;
use ropewalk_config::template::{self, SiteTemplate};
use ropewalk_host::files;

const EXAMPLES: &str = "Examples:
  ropewalk join ropewalk1.AQHk…        then `ropewalk up`, or with the Debian package
                                       `systemctl enable --now ropewalk-site`
  ssh hub ropewalk invite boat | ropewalk join -
                                       keeps the token out of the shell's history
  ropewalk join TOKEN --config ./site.toml
                                       key and configuration somewhere else

Writes the configuration (readable by all) and the private key beside it (readable by its owner
only). Existing ones are kept unless you say --force.";

/// Join a hub: write key and configuration from a token
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Join {
    /// The line that `ropewalk invite` printed; `-` reads it from standard input
    token: String,
    /// Replace an existing key and configuration; the former ones are kept as *.bak
    #[arg(long)]
    force: bool,
}

/// Longest input that is read from standard input, bytes.
const INPUT_MAX: u64 = 8_192;

impl Join {
    /// Writes key and configuration.
    ///
    /// # Errors
    /// The token is damaged, or the machine is a site already.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::SITE_CONFIG));
        let token = read_token(self.token)?;
        if !token.networks.is_empty() {
            return Err(WrongUsage(
                "this token is for a relay: run `ropewalk relay --join TOKEN`".to_owned(),
            )
            .into());
        }
        let parent = path.parent().unwrap_or_else(|| Path::new("."));
        let key_path = parent.join("site.key");
        let makes_key = token.identity.is_some();
        let written = [Some(path), makes_key.then_some(key_path.as_path())];
        let occupied = || written.into_iter().flatten().filter(|file| file.exists());
        for existing in occupied() {
            if !self.force {
                bail!(
                    "{} exists: this machine is a site already; say --force to replace it (the \
                     former file is kept), or give another --config",
                    existing.display()
                );
            }
        }
        if !makes_key {
            check_own_key(&key_path)?;
        }
        for existing in occupied() {
            keep_former(existing)?;
        }
        if let Some(identity) = &token.identity {
            key_file::create(&key_path, identity)?;
        }
        let config = template::site(&SiteTemplate {
            name: token.name.clone(),
            hub_key: token.hub_key,
            endpoints: token.endpoints.clone(),
            tcp_port: token.tcp_port,
        });
        files::create_parent(path)?;
        files::write_atomically(path, config.as_bytes(), files::PUBLIC, false)
            .with_context(|| format!("cannot write {}", path.display()))?;
        // The unit reads the file in its usual place.
        let unit = if global.config.is_none() {
            ", or with the Debian package `systemctl enable --now ropewalk-site`"
        } else {
            ""
        };
        let option = global.config_option();
        output::note(&format!(
            "this machine is site {} of the hub at {}; wrote {} and its key\n\
             its kill switch is on: once up, nothing leaves this machine but through the tunnel, until \
             `ropewalk down{option}`; kill_switch = false in [network] turns this off\n\
             next: `ropewalk up{option}`{unit}",
            token.name,
            token.endpoints[0],
            path.display(),
        ));
        Ok(())
    }
}

/// The token in `given`, or on standard input when that is `-`.
pub(super) fn read_token(given: String) -> anyhow::Result<Token> {
    let text = if given == "-" {
        let mut text = String::new();
        std::io::stdin().take(INPUT_MAX).read_to_string(&mut text)?;
        text
    } else {
        given
    };
    Ok(Token::decode(&text).map_err(|error| WrongUsage(error.to_string()))?)
}

/// Looks for the key that a token without one is for.
pub(super) fn check_own_key(path: &Path) -> anyhow::Result<()> {
    let identity =
        key_file::load(path).context("this token holds no key, and this machine has none")?;
    output::note(&format!(
        "using the key of this machine, {}",
        identity.public_key()
    ));
    Ok(())
}

/// Moves a file that is to be replaced out of the way.
pub(super) fn keep_former(path: &Path) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".bak");
    std::fs::rename(path, &name).with_context(|| format!("cannot move {} away", path.display()))
}
