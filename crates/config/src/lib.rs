//! Configuration files: what a hub, a site and a relay can be told, with defaults and checks. [`token`] is the
//! line that makes a machine a site.
//!
//! Invariant: a value that leaves this module has passed every check. The rest of the program
//! does not check again. Every problem names file, line, key and remedy. Keys of gateways are
//! never in these files, only the path of the file that holds them.

pub mod balance;
#[cfg(test)]
mod cases;
pub mod class;
pub mod common;
pub mod described;
pub mod direct;
pub mod egress;
pub mod fleet;
mod hold;
pub mod hub;
pub mod reader;
pub mod relay;
pub mod schema;
pub mod site;
pub mod survey;
pub mod template;
#[cfg(test)]
mod tests;
pub mod token;
pub mod uplinks;
pub mod values;

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use reader::Problems;

pub use balance::BalanceConfig;
pub use fleet::{FleetConfig, parse_endpoint as parse_etcd_endpoint};
pub use hub::HubConfig;
pub use relay::RelayConfig;
pub use site::SiteConfig;

/// Where a hub's configuration is unless `--config` says otherwise.
pub const HUB_CONFIG: &str = "/etc/ropewalk/hub.toml";
/// Where a site's configuration is unless `--config` says otherwise.
pub const SITE_CONFIG: &str = "/etc/ropewalk/site.toml";
/// Where a relay's configuration is unless `--config` says otherwise.
pub const RELAY_CONFIG: &str = "/etc/ropewalk/relay.toml";
/// Where the configuration of `ropewalk balance` is unless `--config` says otherwise.
pub const BALANCE_CONFIG: &str = "/etc/ropewalk/balance.toml";
/// Directory of private keys, beside the configuration.
pub const KEYS_DIR: &str = "keys";
/// Where state is kept unless the configuration says otherwise.
pub const STATE_DIR: &str = "/var/lib/ropewalk";
/// Where sockets are unless the configuration says otherwise.
pub const RUN_DIR: &str = "/run/ropewalk";
/// Largest configuration file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The command line or a configuration asks for something that makes no sense.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// Whose configuration a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of a hub.
    Hub,
    /// Of a site.
    Site,
    /// Of a relay.
    Relay,
    /// Of `ropewalk balance`.
    Balance,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Hub, Self::Site, Self::Relay, Self::Balance];

    /// The name, also the stem of file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Site => "site",
            Self::Relay => "relay",
            Self::Balance => "balance",
        }
    }

    /// Where the file is unless `--config` says otherwise.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Hub => HUB_CONFIG,
            Self::Site => SITE_CONFIG,
            Self::Relay => RELAY_CONFIG,
            Self::Balance => BALANCE_CONFIG,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The configuration of any role.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// Of a hub.
    Hub(HubConfig),
    /// Of a site.
    Site(SiteConfig),
    /// Of a relay.
    Relay(Box<RelayConfig>),
    /// Of `ropewalk balance`.
    Balance(Box<BalanceConfig>),
}

impl Config {
    /// What all roles have in common.
    #[must_use]
    pub fn common(&self) -> &common::Common {
        match self {
            Self::Hub(hub) => &hub.common,
            Self::Site(site) => &site.common,
            Self::Relay(relay) => &relay.hub.common,
            Self::Balance(balance) => &balance.common,
        }
    }

    /// Loads the file at `path`. Its contents say which role it is for. Only a site or a relay
    /// names a hub. Only a hub or a relay has a pool. A section `[balance]` means balancing.
    ///
    /// # Errors
    /// The file cannot be read, or its problems.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::parse(path, &read_file(path)?)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let has = |name: &str| {
            toml::de::DeTable::parse(text)
                .is_ok_and(|table| table.get_ref().iter().any(|(key, _)| key.get_ref() == name))
        };
        if has("balance") {
            return Ok(Self::Balance(Box::new(balance::parse(path, text)?)));
        }
        match (has("hub"), has("pool")) {
            (true, true) => Ok(Self::Relay(Box::new(relay::parse(path, text)?))),
            (true, false) => Ok(Self::Site(site::parse(path, text)?)),
            (false, _) => Ok(Self::Hub(hub::parse(path, text)?)),
        }
    }
}

/// Loads the configuration of a hub.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_hub(path: &Path) -> anyhow::Result<HubConfig> {
    load_as(path, hub::parse)
}

/// Loads the configuration of a site.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_site(path: &Path) -> anyhow::Result<SiteConfig> {
    load_as(path, site::parse)
}

/// Loads the configuration of a relay.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_relay(path: &Path) -> anyhow::Result<RelayConfig> {
    load_as(path, relay::parse)
}

/// Loads the configuration of `ropewalk balance`.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_balance(path: &Path) -> anyhow::Result<BalanceConfig> {
    load_as(path, balance::parse)
}

/// Loads the configuration of what invites sites: a hub, or a relay's side towards its sites.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_inviting(path: &Path) -> anyhow::Result<HubConfig> {
    match Config::load(path)? {
        Config::Relay(relay) => Ok(relay.hub),
        Config::Hub(hub) => Ok(hub),
        Config::Site(_) | Config::Balance(_) => anyhow::bail!(WrongUsage(format!(
            "{} is the configuration of a site or of `ropewalk balance`, which invite nobody: do this \
             on the hub or relay",
            path.display()
        ))),
    }
}

/// The configuration file of what invites sites here: that of the hub, unless only a relay's
/// exists.
#[must_use]
pub fn inviting_path() -> &'static Path {
    let (hub, relay) = (Path::new(HUB_CONFIG), Path::new(RELAY_CONFIG));
    if relay.exists() && !hub.exists() {
        relay
    } else {
        hub
    }
}

/// The configuration file meant when several roles could be: the given one, else the one that
/// exists, else the site's.
#[must_use]
pub fn default_path(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    let found = existing_paths().into_iter().next();
    found.unwrap_or(Path::new(SITE_CONFIG)).to_owned()
}

/// The configuration files that this machine has in their usual places.
#[must_use]
pub fn existing_paths() -> Vec<&'static Path> {
    let known = [SITE_CONFIG, HUB_CONFIG, RELAY_CONFIG, BALANCE_CONFIG].map(Path::new);
    known.into_iter().filter(|path| path.exists()).collect()
}

/// The command that runs a role.
#[must_use]
pub fn command(role: &str) -> &'static str {
    match role {
        "hub" => "ropewalk hub",
        "relay" => "ropewalk relay",
        "balance" => "ropewalk balance",
        _ => "ropewalk up",
    }
}

fn load_as<T>(
    path: &Path,
    parse: impl FnOnce(&Path, &str) -> Result<T, Problems>,
) -> anyhow::Result<T> {
    let text = read_file(path)?;
    parse(path, &text).map_err(|problems| match Config::parse(path, &text) {
        // Nothing is wrong with it but who reads it: its keys need no correction.
        Ok(other) => {
            let (path, command) = (path.display(), command(other.common().role));
            WrongUsage(format!(
                "{path} is written for another command: run `{command} --config {path}`"
            ))
            .into()
        }
        Err(_) => problems.into(),
    })
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    let unreadable = || format!("cannot read the configuration {}", path.display());
    let wrong = |error: &str| WrongUsage(format!("{}: {error}", unreadable()));
    let mut bytes = Vec::new();
    // Not by the length that the file claims: a device has none, and may never end.
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            let no_such = [
                ErrorKind::NotFound,
                ErrorKind::NotADirectory,
                ErrorKind::IsADirectory,
            ];
            if no_such.contains(&error.kind()) {
                anyhow::Error::from(wrong(&error.to_string()))
            } else {
                // The disk or the rights: the file itself may be right, and the next try may read it.
                anyhow::Error::from(error).context(unreadable())
            }
        })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        anyhow::bail!(WrongUsage(format!(
            "{} has more than {FILE_BYTES_MAX} bytes: this is no configuration file",
            path.display()
        )));
    }
    Ok(String::from_utf8(bytes).map_err(|_| wrong("its text is not UTF-8"))?)
}
