//! Configuration files: what a hub and a site can be told, with defaults and checks.
//!
//! Invariant: a value that leaves this module has passed every check; the rest of the program
//! does not check again. Every problem names file, line, key and remedy. Keys of gateways are
//! never in these files, only the path of the file that holds them.

mod class;
pub mod common;
pub mod hub;
pub mod reader;
pub mod site;
pub mod template;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::exit::WrongUsage;

pub use hub::HubConfig;
pub use site::SiteConfig;

/// Where a hub's configuration is unless `--config` says otherwise.
pub const HUB_CONFIG: &str = "/etc/ropewalk/hub.toml";
/// Where a site's configuration is unless `--config` says otherwise.
pub const SITE_CONFIG: &str = "/etc/ropewalk/site.toml";
/// Where state is kept unless the configuration says otherwise.
pub const STATE_DIR: &str = "/var/lib/ropewalk";
/// Where sockets are unless the configuration says otherwise.
pub const RUN_DIR: &str = "/run/ropewalk";
/// Largest configuration file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The configuration of either role.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// Of a hub.
    Hub(HubConfig),
    /// Of a site.
    Site(SiteConfig),
}

impl Config {
    /// What both roles have in common.
    #[must_use]
    pub fn common(&self) -> &common::Common {
        match self {
            Self::Hub(hub) => &hub.common,
            Self::Site(site) => &site.common,
        }
    }

    /// Loads the file at `path`; its contents say which role it is for: only a site names a hub.
    ///
    /// # Errors
    /// The file cannot be read, or its problems.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = read_file(path)?;
        let is_site = toml::de::DeTable::parse(&text).is_ok_and(|table| {
            table
                .get_ref()
                .iter()
                .any(|(key, _)| key.get_ref() == "hub")
        });
        if is_site {
            Ok(Self::Site(site::parse(path, &text)?))
        } else {
            Ok(Self::Hub(hub::parse(path, &text)?))
        }
    }
}

/// Loads the configuration of a hub.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_hub(path: &Path) -> anyhow::Result<HubConfig> {
    Ok(hub::parse(path, &read_file(path)?)?)
}

/// Loads the configuration of a site.
///
/// # Errors
/// The file cannot be read, or its problems.
pub fn load_site(path: &Path) -> anyhow::Result<SiteConfig> {
    Ok(site::parse(path, &read_file(path)?)?)
}

/// The configuration file meant when several roles could be: the given one, else the one that
/// exists, else the site's.
#[must_use]
pub fn default_path(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    let hub = Path::new(HUB_CONFIG);
    if hub.exists() && !Path::new(SITE_CONFIG).exists() {
        return hub.to_owned();
    }
    SITE_CONFIG.into()
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    let unreadable = |error: std::io::Error| {
        let path = path.display();
        WrongUsage(format!("cannot read the configuration {path}: {error}"))
    };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        anyhow::bail!(WrongUsage(format!(
            "{} has {length} bytes, more than {FILE_BYTES_MAX}: this is no configuration file",
            path.display()
        )));
    }
    Ok(std::fs::read_to_string(path).map_err(unreadable)?)
}
