//! `ropewalk key`: shows, makes and replaces the key of this gateway.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ropewalk_transport::Identity;

use super::{Global, output};
use crate::key_file;
use ropewalk_config::WrongUsage;
use ropewalk_config::{self as config, Config};

const EXAMPLES: &str = "Examples:
  ropewalk key                 show the public key
  ropewalk key generate        make a key before joining; give the public key that it prints to
                               `ropewalk invite NAME --public-key KEY` on the hub
  ropewalk key rotate          make a new key in place of the present one

After `rotate` on a site, run `ropewalk invite NAME --replace --public-key KEY` on the hub and
restart the site. After `rotate` on a hub every site must join again: prefer not to.
`rotate` keeps the former key in a file beside the new one, whose name ends in .former.
The private key is never shown.";

/// Show, make or replace the key of this gateway
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Key {
    #[command(subcommand)]
    action: Option<KeyAction>,
    /// Key file, if not the configured one
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum KeyAction {
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
        let makes_first = matches!(self.action, Some(KeyAction::Generate));
        let path = self.path(global, makes_first)?;
        let identity = match self.action.unwrap_or(KeyAction::Show) {
            KeyAction::Show => key_file::load(&path)?,
            KeyAction::Generate => {
                let identity = Identity::generate()?;
                key_file::create(&path, &identity)?;
                output::note(&format!("wrote {}; the public key is", path.display()));
                identity
            }
            KeyAction::Rotate => {
                // A key that cannot be read must not be lost by accident.
                key_file::load(&path).context("there must be a key to replace")?;
                let identity = Identity::generate()?;
                let former = key_file::replace(&path, &identity)?;
                output::note(&format!(
                    "replaced {}; restart this gateway after its peer knows the new public key. \
                     The former key is in {}: move it back to undo this, else remove it",
                    path.display(),
                    former.display()
                ));
                identity
            }
        };
        output::print(&format!("{}\n", identity.public_key()))?;
        Ok(())
    }

    /// The file of the key. With `makes_first` the key may be made before the configuration.
    fn path(&self, global: &Global, makes_first: bool) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.key_file {
            return Ok(path.clone());
        }
        let config = global.config.clone().unwrap_or_else(|| {
            // `ropewalk balance` has no key.
            let mut existing = config::existing_paths().into_iter();
            let found = existing.find(|path| *path != Path::new(config::BALANCE_CONFIG));
            found.unwrap_or(Path::new(config::SITE_CONFIG)).to_owned()
        });
        if !config.exists() && (makes_first || global.config.is_none()) {
            return Ok(config.with_file_name("site.key"));
        }
        match Config::load(&config)? {
            Config::Balance(_) => bail!(WrongUsage(format!(
                "{} is for `ropewalk balance`, which has no key; name the file of a key with \
                 --key-file",
                config.display()
            ))),
            config @ (Config::Hub(_) | Config::Site(_) | Config::Relay(_)) => {
                Ok(config.common().key_file.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;

    fn path(config: &Path, makes_first: bool) -> anyhow::Result<PathBuf> {
        let key = Key {
            action: None,
            key_file: None,
        };
        let global = Global {
            config: Some(config.to_owned()),
            ..Global::default()
        };
        key.path(&global, makes_first)
    }

    #[test]
    fn a_missing_configuration_is_wrong_usage_unless_a_first_key_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("site.toml");
        let error = path(&config, false).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE, "{error:#}");
        let first = path(&config, true).unwrap();
        assert_eq!(first, directory.path().join("site.key"));
    }

    #[test]
    fn no_key_is_made_for_a_gateway_that_only_balances() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("balance.toml");
        std::fs::write(&config, "[balance]\n").unwrap();
        let error = path(&config, true).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE);
        assert!(error.to_string().contains("has no key"), "{error:#}");
    }
}
