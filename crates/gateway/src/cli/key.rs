//! `ropewalk key`: shows, makes and replaces the key of this gateway.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ropewalk_transport::Identity;

use super::{Global, output};
use crate::config::{self, Config};
use crate::key_file;

const EXAMPLES: &str = "Examples:
  ropewalk key                 show the public key
  ropewalk key generate        make a key before joining; give the public key that it prints to
                               `ropewalk invite NAME --public-key KEY` on the hub
  ropewalk key rotate          make a new key in place of the present one

After `rotate` on a site, run `ropewalk invite NAME --replace --public-key KEY` on the hub and
restart the site. After `rotate` on a hub every site must join again: prefer not to.
The private key is never shown.";

/// Show, make or replace the key of this gateway
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Key {
    #[command(subcommand)]
    action: Option<Action>,
    /// Key file, if not the configured one
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the public key
    Show,
    /// Make a key where there is none
    Generate,
    /// Make a new key in place of the present one
    Rotate,
}

impl Key {
    /// Prints the public key, after making it if asked to.
    ///
    /// # Errors
    /// There is no key, or one that must not be overwritten.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = self.path(global)?;
        let identity = match self.action.unwrap_or(Action::Show) {
            Action::Show => key_file::load(&path)?,
            Action::Generate => {
                let identity = Identity::generate()?;
                key_file::create(&path, &identity)?;
                output::note(&format!("wrote {}; the public key is", path.display()));
                identity
            }
            Action::Rotate => {
                // A key that cannot be read must not be lost by accident.
                key_file::load(&path).context("there must be a key to replace")?;
                let identity = Identity::generate()?;
                key_file::replace(&path, &identity)?;
                output::note(&format!(
                    "replaced {}; restart this gateway after its peer knows the new public key",
                    path.display()
                ));
                identity
            }
        };
        output::print(&format!("{}\n", identity.public_key()))?;
        Ok(())
    }

    fn path(&self, global: &Global) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.key_file {
            return Ok(path.clone());
        }
        let config = config::default_path(global.config.as_deref());
        if config.exists() {
            return Ok(Config::load(&config)?.common().key_file.clone());
        }
        Ok(config.with_file_name("site.key"))
    }
}
