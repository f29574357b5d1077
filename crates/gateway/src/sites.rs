//! The sites a hub knows: a TOML file in the state directory, and the addresses given out.
//!
//! Invariant: names, keys and addresses are unique, and every address is in its pool and not the
//! hub's. The file is replaced as a whole, under a lock, so that `invite` and a running hub
//! never see half of it. It holds public keys only.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use ipnet::IpNet;
use ropewalk_transport::PublicKey;
use serde::Serialize;

use crate::config::HubConfig;
use crate::config::common::parse_name;
use crate::config::reader::{Problems, Section, read};
use crate::engine::settings::SiteEntry;
use crate::files;

/// Most sites of one hub.
pub const SITES_MAX: usize = 10_000;

const HEADER: &str = "# Sites of this hub. Written by `ropewalk invite`; after an edit by hand run
# `ropewalk invite --reload`. There are no secrets in this file.

";

/// One site as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Unique name.
    pub name: String,
    /// Public key.
    pub key: PublicKey,
    /// Inner IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpAddr>,
    /// Inner IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpAddr>,
    /// Whether the site may connect.
    pub enabled: bool,
}

impl Site {
    /// The addresses, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.into_iter().chain(self.ipv6)
    }

    /// The form the engine takes.
    #[must_use]
    pub fn entry(&self) -> SiteEntry {
        SiteEntry {
            name: self.name.clone(),
            key: self.key,
            addresses: self.addresses().collect(),
            enabled: self.enabled,
        }
    }
}

/// The known sites, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sites {
    #[serde(rename = "site")]
    sites: Vec<Site>,
}

impl Sites {
    /// Reads the sites file of a hub; a missing file is a hub without sites.
    ///
    /// # Errors
    /// Unreadable, or its problems with line, key and remedy.
    pub fn load(hub: &HubConfig) -> anyhow::Result<Self> {
        let path = &hub.sites_file;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Ok(Self::parse(path, &text, hub)?)
    }

    /// Changes the sites file under its lock: `change` gets the present sites, and what it leaves
    /// is written.
    ///
    /// # Errors
    /// As [`Self::load`], what `change` returns, or the file cannot be written.
    pub fn edit<T>(
        hub: &HubConfig,
        change: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let path = &hub.sites_file;
        let _lock = files::Lock::wait(&path.with_extension("lock"))?;
        let mut sites = Self::load(hub)?;
        let value = change(&mut sites)?;
        let text = format!("{HEADER}{}", toml::to_string(&sites)?);
        files::write_atomically(path, text.as_bytes(), files::PUBLIC, true)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(value)
    }

    /// Every site, by name.
    #[must_use]
    pub fn all(&self) -> &[Site] {
        &self.sites
    }

    /// The sites in the form the engine takes.
    #[must_use]
    pub fn entries(&self) -> Vec<SiteEntry> {
        self.sites.iter().map(Site::entry).collect()
    }

    /// Adds a site and gives it addresses. With `replace`, a site of this name gets the new key
    /// and keeps its addresses.
    ///
    /// # Errors
    /// The name or key is taken, or the pool is used up.
    pub fn add(
        &mut self,
        hub: &HubConfig,
        name: &str,
        key: PublicKey,
        replace: bool,
    ) -> anyhow::Result<Site> {
        if let Some(other) = self
            .sites
            .iter()
            .find(|site| site.key == key && site.name != name)
        {
            bail!(
                "site {} has this key already; every site needs its own",
                other.name
            );
        }
        if replace && !self.sites.iter().any(|site| site.name == name) {
            let names: Vec<_> = self.sites.iter().map(|site| site.name.as_str()).collect();
            bail!(
                "there is no site {name} whose key could be replaced; sites: {}",
                names.join(", ")
            );
        }
        if let Some(site) = self.sites.iter_mut().find(|site| site.name == name) {
            if !replace {
                bail!(
                    "there is a site {name} already; use --replace to give it a new key (its \
                     present one stops working), or choose another name"
                );
            }
            site.key = key;
            site.enabled = true;
            return Ok(site.clone());
        }
        if self.sites.len() >= SITES_MAX {
            bail!("this hub has {SITES_MAX} sites, which is the limit; revoke some first");
        }
        let site = Site {
            name: name.to_owned(),
            key,
            ipv4: self.free_address(hub, hub.pool_v4)?,
            ipv6: self.free_address(hub, hub.pool_v6)?,
            enabled: true,
        };
        self.sites.push(site.clone());
        self.sites.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(site)
    }

    /// Removes a site.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<Site> {
        let index = self.sites.iter().position(|site| site.name == name);
        let index = index.with_context(|| {
            format!("there is no site {name}; `ropewalk invite --list` shows all")
        })?;
        Ok(self.sites.remove(index))
    }

    fn free_address(&self, hub: &HubConfig, pool: Option<IpNet>) -> anyhow::Result<Option<IpAddr>> {
        let Some(pool) = pool else { return Ok(None) };
        let taken: HashSet<IpAddr> = self.sites.iter().flat_map(Site::addresses).collect();
        let own: Vec<IpAddr> = hub.own_addresses().iter().map(IpNet::addr).collect();
        // Network, hub and sites are all that can be in the way.
        let candidates = pool.hosts().take(SITES_MAX + 2);
        let free = candidates
            .filter(|ip| *ip != pool.network() && *ip != pool.broadcast() && !own.contains(ip))
            .find(|ip| !taken.contains(ip));
        let free = free.with_context(|| {
            format!("every address of the pool {pool} is taken; revoke sites or enlarge the pool")
        })?;
        Ok(Some(free))
    }

    fn parse(path: &Path, text: &str, hub: &HubConfig) -> Result<Self, Problems> {
        let own: Vec<IpAddr> = hub.own_addresses().iter().map(IpNet::addr).collect();
        let mut seen = HashSet::new();
        let mut sites = read(path, text, |root| {
            root.sections("site", SITES_MAX, |site| {
                let parsed = parse_site(site, hub);
                if let Some(parsed) = &parsed {
                    reject_doubles(site, parsed, &own, &mut seen);
                }
                parsed
            })
        })?;
        sites.sort_by(|a, b| {
            a.as_ref()
                .map(|s| &s.name)
                .cmp(&b.as_ref().map(|s| &s.name))
        });
        Ok(Self {
            sites: sites.into_iter().flatten().collect(),
        })
    }
}

fn parse_site(site: &mut Section<'_>, hub: &HubConfig) -> Option<Site> {
    let remedy = "remove the entry, and invite the site again";
    let name = site.text("name", "name = \"boat\"", parse_name);
    let name = site.require("name", name, remedy);
    let key = site.text(
        "key",
        "the 44 characters of a public key",
        str::parse::<PublicKey>,
    );
    let key = site.require("key", key, remedy);
    let mut address = |name: &'static str, pool: Option<IpNet>| {
        site.text(name, "an address of the hub's pool", |text| {
            let ip: IpAddr = text
                .parse()
                .map_err(|_| format!("{text:?} is not an IP address"))?;
            match pool {
                Some(pool) if pool.contains(&ip) => Ok(ip),
                Some(pool) => Err(format!("{ip} is not in the pool {pool}")),
                None => Err("the hub has no pool for it".to_owned()),
            }
        })
    };
    let ipv4 = address("ipv4", hub.pool_v4);
    let ipv6 = address("ipv6", hub.pool_v6);
    let enabled = site.boolean("enabled").unwrap_or(true);
    Some(Site {
        name: name?,
        key: key?,
        ipv4,
        ipv6,
        enabled,
    })
}

fn reject_doubles(section: &Section<'_>, site: &Site, own: &[IpAddr], seen: &mut HashSet<String>) {
    let remedy = "every site needs its own; invite it again";
    let mut check = |key: &str, value: String| {
        if !seen.insert(format!("{key}={value}")) {
            section.reject(key, &format!("{value} belongs to an earlier site"), remedy);
        }
    };
    check("name", site.name.clone());
    check("key", site.key.to_string());
    for ip in site.addresses() {
        check(if ip.is_ipv4() { "ipv4" } else { "ipv6" }, ip.to_string());
    }
    for ip in site.addresses().filter(|ip| own.contains(ip)) {
        let key = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
        section.reject(key, &format!("{ip} is the hub's own address"), remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::hub;
    use ropewalk_transport::Identity;

    fn key(number: u8) -> PublicKey {
        Identity::from_seed([number; 32]).unwrap().public_key()
    }

    fn config(directory: &Path, pool: &str) -> HubConfig {
        let text = format!("state_dir = \"{}\"\n[pool]\n{pool}\n", directory.display());
        hub::parse(Path::new("hub.toml"), &text).unwrap()
    }

    #[test]
    fn sites_get_distinct_addresses_and_survive_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(
            directory.path(),
            "ipv4 = \"10.9.0.0/16\"\nipv6 = \"fd00:9::/64\"",
        );
        for (number, name) in [(1, "boat"), (2, "van")] {
            Sites::edit(&hub, |sites| sites.add(&hub, name, key(number), false)).unwrap();
        }
        let sites = Sites::load(&hub).unwrap();
        let addresses: Vec<_> = sites.all().iter().flat_map(Site::addresses).collect();
        let text: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.9.0.2", "fd00:9::2", "10.9.0.3", "fd00:9::3"]);
        assert_eq!(sites.entries()[1].key, key(2));
    }

    #[test]
    fn taken_names_need_replace_which_keeps_the_addresses() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let mut sites = Sites::default();
        let first = sites.add(&hub, "boat", key(1), false).unwrap();
        let error = sites
            .add(&hub, "boat", key(2), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--replace"), "{error}");
        let second = sites.add(&hub, "boat", key(2), true).unwrap();
        assert_eq!((second.ipv4, second.key), (first.ipv4, key(2)));
        assert!(
            sites.add(&hub, "van", key(2), false).is_err(),
            "one key for two sites"
        );
        assert_eq!(sites.revoke("boat").unwrap().key, key(2));
        assert!(
            sites
                .revoke("boat")
                .unwrap_err()
                .to_string()
                .contains("--list")
        );
    }

    #[test]
    fn used_up_pool_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/30\"");
        let mut sites = Sites::default();
        sites.add(&hub, "a", key(1), false).unwrap();
        let error = sites.add(&hub, "b", key(2), false).unwrap_err().to_string();
        assert!(error.contains("10.9.0.0/30 is taken"), "{error}");
    }

    #[test]
    fn broken_sites_files_are_refused_with_line_and_key() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let site = |name: &str, number, ip: &str| {
            format!(
                "[[site]]\nname = \"{name}\"\nkey = \"{}\"\nipv4 = \"{ip}\"\n",
                key(number)
            )
        };
        for (text, part) in [
            (
                site("a", 1, "10.8.0.2"),
                ":4: site[1].ipv4: 10.8.0.2 is not in the pool",
            ),
            (
                site("a", 1, "10.9.0.1"),
                ":4: site[1].ipv4: 10.9.0.1 is the hub's own address",
            ),
            (
                site("a", 1, "10.9.0.2") + &site("b", 1, "10.9.0.3"),
                ":7: site[2].key:",
            ),
            (
                site("a", 1, "10.9.0.2") + &site("a", 2, "10.9.0.3"),
                ":6: site[2].name:",
            ),
            (
                site("a", 1, "10.9.0.2") + &site("b", 2, "10.9.0.2"),
                ":8: site[2].ipv4:",
            ),
            (
                "[[site]]\nname = \"a\"\n".to_owned(),
                ":1: site[1].key: missing",
            ),
            ("[[site]]\nnmae = \"a\"\n".to_owned(), "did you mean name?"),
        ] {
            std::fs::write(&hub.sites_file, &text).unwrap();
            let error = Sites::load(&hub).unwrap_err().to_string();
            assert!(error.contains(part), "{text}\ngave {error}");
        }
    }
}
