//! The sites a hub knows: a TOML file in the state directory, and the addresses given out.
//!
//! Invariant: names, keys, addresses, blocks of ports and networks are unique and overlap nowhere, and each is in
//! its pool and not the hub's. The file is replaced as a whole, under a lock, so that `invite` and a running hub
//! never see half of it. It holds public keys only, and is readable by its owner only.

mod invitation;

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, bail};
use ipnet::IpNet;
use ropewalk_transport::PublicKey;
use serde::{Serialize, Serializer};

use crate::service::network::overlap;
pub use invitation::{Credential, Enrolled, Invitation, Joined, Refusal, Time, fingerprint};
use ropewalk_config::HubConfig;
use ropewalk_config::egress::{self, Allowed};
use ropewalk_config::hub::PORT_FIRST;
use ropewalk_config::reader::{Problems, Section, read};
use ropewalk_config::relay::NEXT_HUB;
use ropewalk_config::values::parse_name;
use ropewalk_host::files;
use ropewalk_session::{SITES_MAX, SiteEntry, WEIGHT_MAX};
use ropewalk_types::PortBlock;

/// Newest format of the file that this program reads. A file without a number has format 1. Whoever
/// changes the meaning of a key raises the number, and writes it: older programs then leave the file alone.
const FORMAT: u64 = 1;
const HEADER: &str = "# Sites of this hub. Written by `ropewalk invite`; after an edit by hand run
# `ropewalk invite --reload`. There are no secrets in this file.

";

/// Largest sites file that is read, bytes: some ten times what the most sites need.
const FILE_BYTES_MAX: u64 = 1 << 26;

/// One site as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Unique name.
    pub name: String,
    /// Public key; an invited site has none before it has joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// The key that the site will have, once it has connected with that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_key: Option<PublicKey>,
    /// Inner IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpAddr>,
    /// Inner IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpAddr>,
    /// Its ports of an address that sites share.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub block: Option<PortBlock>,
    /// Networks for the sites of a relay, one per family at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
    /// Whether the site may connect.
    pub enabled: bool,
    /// Its part of a busy hub, beside 1 of each other site.
    #[serde(skip_serializing_if = "is_usual")]
    pub weight: u32,
    /// Most that it may send and receive, Mbit/s each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbit: Option<u32>,
    /// What the site may reach beside the internet and the hub's inner addresses; `None` is what the
    /// configuration of the hub says for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Allowed>>,
    /// The invitation by which it joins or has joined.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub invitation: Option<Invitation>,
}

/// Weight of a site unless the file names another.
const WEIGHT: u32 = 1;
/// Largest bound of a site, Mbit/s. More than any hub carries.
pub const RATE_MAX: u32 = 100_000;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_usual(weight: &u32) -> bool {
    *weight == WEIGHT
}

fn as_text<S: Serializer>(block: &Option<PortBlock>, to: S) -> Result<S::Ok, S::Error> {
    match block {
        Some(block) => to.collect_str(block),
        None => to.serialize_none(),
    }
}

/// What `invite` asks for beside a name and a key.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// A site of this name gets the new key and keeps its addresses.
    pub replace: bool,
    /// The site also gets networks for sites of its own.
    pub relay: bool,
    /// Its weight, if given.
    pub weight: Option<u32>,
    /// Its bound, Mbit/s, if given.
    pub rate_mbit: Option<u32>,
    /// What it may reach, if given.
    pub allow: Option<Vec<Allowed>>,
}

impl Site {
    /// The addresses, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.into_iter().chain(self.ipv6)
    }

    /// Addresses and networks, as networks.
    pub fn places(&self) -> impl Iterator<Item = IpNet> {
        let addresses = self.addresses().map(IpNet::from);
        addresses.chain(self.networks.iter().copied())
    }

    /// The form the engine takes; `None` before the site has a key.
    #[must_use]
    pub fn entry(&self) -> Option<SiteEntry> {
        Some(SiteEntry {
            name: self.name.clone(),
            key: self.key?,
            addresses: self.addresses().collect(),
            networks: self.networks.clone(),
            block: self.block,
            enabled: self.enabled,
            weight: self.weight,
            rate: self.rate_mbit.map(|mbit| u64::from(mbit) * 1_000_000),
        })
    }

    fn take(&mut self, credential: Credential) {
        (self.key, self.invitation) = match credential {
            Credential::Key(key) => (Some(key), None),
            Credential::Invitation(invitation) => (None, Some(invitation)),
        };
        self.next_key = None;
    }
}

/// The known sites, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sites {
    #[serde(rename = "site")]
    sites: Vec<Site>,
}

impl Sites {
    /// These sites.
    #[must_use]
    pub fn of(mut sites: Vec<Site>) -> Self {
        sites.sort_by(|a, b| a.name.cmp(&b.name));
        Self { sites }
    }

    /// Reads the sites file of a hub; a missing file is a hub without sites. An empty one is none: the program
    /// writes a comment into a file without sites.
    ///
    /// # Errors
    /// Unreadable, empty or writable by anybody, or its problems with line, key and remedy.
    pub fn load(hub: &HubConfig) -> anyhow::Result<Self> {
        let path = &hub.sites_file;
        let Some(text) = files::read_state(path, FILE_BYTES_MAX)? else {
            return Ok(Self::default());
        };
        Ok(Self::parse(path, &text, hub)?)
    }

    /// Changes the sites file under its lock: `change` gets the present sites, and what it leaves
    /// is written, if it is something else.
    ///
    /// # Errors
    /// As [`Self::load`], what `change` returns, or the file cannot be written.
    pub fn edit<T>(
        hub: &HubConfig,
        change: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let path = &hub.sites_file;
        let _lock = files::Lock::wait(&path.with_extension("lock"))?;
        let before = Self::load(hub)?;
        let mut sites = before.clone();
        let value = change(&mut sites)?;
        if sites == before && path.exists() {
            return Ok(value);
        }
        let text = format!("{HEADER}{}", toml::to_string(&sites)?);
        files::write_atomically(path, text.as_bytes(), files::SECRET, true)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(value)
    }

    /// Ends the invitations of a hub that nobody has used, as its key is about to change; the names of their sites. Those
    /// of a fleet are for the key of the fleet, and stay.
    ///
    /// # Errors
    /// As [`Self::edit`].
    pub fn uninvite(hub: &HubConfig) -> anyhow::Result<Vec<String>> {
        if hub.fleet.is_some() || !hub.sites_file.exists() {
            return Ok(Vec::new());
        }
        Self::edit(hub, |sites| Ok(sites.end_invitations(Time::now())))
    }

    /// Every site, by name.
    #[must_use]
    pub fn all(&self) -> &[Site] {
        &self.sites
    }

    /// The sites in the form the engine takes; without `ipv6` they have IPv4 addresses only.
    #[must_use]
    pub fn entries(&self, ipv6: bool) -> Vec<SiteEntry> {
        let mut entries: Vec<_> = self.sites.iter().filter_map(Site::entry).collect();
        for entry in &mut entries {
            entry.addresses.retain(|ip| ipv6 || ip.is_ipv4());
            entry.networks.retain(|net| ipv6 || net.addr().is_ipv4());
        }
        entries
    }

    /// Adds a site and gives it addresses, by these terms.
    ///
    /// # Errors
    /// The name or key is taken, or the pool is used up.
    pub fn add(
        &mut self,
        hub: &HubConfig,
        name: &str,
        credential: impl Into<Credential>,
        terms: Terms,
    ) -> anyhow::Result<Site> {
        let Terms { replace, relay, .. } = terms;
        let credential = credential.into();
        self.reject_shared(name, &credential)?;
        if replace && !self.sites.iter().any(|site| site.name == name) {
            let names: Vec<_> = self.sites.iter().map(|site| site.name.as_str()).collect();
            bail!(
                "there is no site {name} whose key could be replaced; sites: {}",
                names.join(", ")
            );
        }
        if let Some(site) = self.sites.iter_mut().find(|site| site.name == name) {
            if !replace && site.key.is_none() {
                bail!(
                    "site {name} is invited already; use --replace to make a new invitation (the \
                     present one stops working), or choose another name"
                );
            }
            if !replace {
                bail!(
                    "there is a site {name} already; to change what it may do, edit its entry in the \
                     list of sites, then run `ropewalk invite --reload`; --replace gives it a new key (its \
                     present one stops working)"
                );
            }
            site.take(credential);
            site.enabled = true;
            site.weight = terms.weight.unwrap_or(site.weight);
            site.rate_mbit = terms.rate_mbit.or(site.rate_mbit);
            site.allow = terms.allow.or_else(|| site.allow.take());
            let mut site = site.clone();
            let before = (site.networks.len(), site.block);
            if relay && site.networks.is_empty() {
                site.networks = self.free_networks(hub)?;
                site.block = None;
            } else if site.networks.is_empty() && site.block.is_none() {
                // Without ports the site goes on as before.
                site.block = self.free_block(hub).unwrap_or_default();
            }
            if (site.networks.len(), site.block) != before {
                self.sites.retain(|other| other.name != name);
                self.insert(site.clone());
            }
            return Ok(site);
        }
        if self.sites.len() >= SITES_MAX {
            bail!("this hub has {SITES_MAX} sites, which is the limit; revoke some first");
        }
        let networks = if relay {
            self.free_networks(hub)?
        } else {
            Vec::new()
        };
        // The sites of a relay have addresses of their own.
        let block = if relay { None } else { self.free_block(hub)? };
        let mut site = Site {
            block,
            name: name.to_owned(),
            key: None,
            next_key: None,
            invitation: None,
            ipv4: self.free_address(hub, hub.pool_v4)?,
            ipv6: self.free_address(hub, hub.pool_v6)?,
            networks,
            enabled: true,
            weight: terms.weight.unwrap_or(WEIGHT),
            rate_mbit: terms.rate_mbit,
            allow: terms.allow,
        };
        site.take(credential);
        self.insert(site.clone());
        Ok(site)
    }

    /// A key is that of one site, or of one invitation.
    fn reject_shared(&self, name: &str, credential: &Credential) -> anyhow::Result<()> {
        let owned = |site: &&Site| match credential {
            Credential::Key(key) => [site.key, site.next_key].contains(&Some(*key)),
            Credential::Invitation(_) => false,
        };
        if let Some(other) = self.sites.iter().filter(owned).find(|s| s.name != name) {
            bail!(
                "site {} has this key already; every site needs its own",
                other.name
            );
        }
        let shared = match credential {
            Credential::Key(key) => self.invitations().any(|invitation| invitation == *key),
            Credential::Invitation(new) => {
                let mut keys = self.sites.iter().map(|site| [site.key, site.next_key]);
                keys.any(|keys| keys.contains(&Some(new.key)))
            }
        };
        if shared {
            bail!("a site and an invitation cannot have one key; make another key");
        }
        Ok(())
    }

    /// The networks that an entry of `allow` stands for: none for a site that is not known.
    #[must_use]
    pub fn resolve(&self, allowed: &Allowed) -> Vec<IpNet> {
        match allowed {
            Allowed::Net(net) => vec![*net],
            Allowed::Site(name) => {
                let site = self.sites.iter().find(|site| site.name == *name);
                site.into_iter().flat_map(Site::places).collect()
            }
        }
    }

    fn insert(&mut self, site: Site) {
        self.sites.push(site);
        self.sites.sort_by(|a, b| a.name.cmp(&b.name));
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
            .filter(|ip| !self.networks().any(|net| net.contains(ip)))
            .find(|ip| !taken.contains(ip));
        let free = free.with_context(|| {
            format!("every address of the pool {pool} is taken; revoke sites or enlarge the pool")
        })?;
        Ok(Some(free))
    }

    /// The first ports that no site has, of the first shared address that has as many as a site gets; none where no
    /// addresses are shared. Blocks may be of different sizes, as the configuration was when they were given.
    fn free_block(&self, hub: &HubConfig) -> anyhow::Result<Option<PortBlock>> {
        let Some(shared) = &hub.shared else {
            return Ok(None);
        };
        let mut taken: Vec<PortBlock> = self.sites.iter().filter_map(|site| site.block).collect();
        taken.sort_unstable();
        let free = |address: &Ipv4Addr| {
            let of_address = taken.iter().filter(|block| block.address == *address);
            first_gap(of_address, *address, shared.ports)
        };
        let free = shared.addresses.iter().find_map(free).with_context(|| {
            format!(
                "no shared address of [pool] has {} ports left; add an address to `shared`, lower \
                 `ports`, which leaves the sites of before as they are, or revoke sites",
                shared.ports
            )
        })?;
        Ok(Some(free))
    }

    fn networks(&self) -> impl Iterator<Item = &IpNet> {
        self.sites.iter().flat_map(|site| &site.networks)
    }

    /// A network for a relay's sites out of each pool. They are taken from the pool's end, the
    /// addresses of sites from its beginning.
    fn free_networks(&self, hub: &HubConfig) -> anyhow::Result<Vec<IpNet>> {
        let pools = hub.pool_v4.into_iter().chain(hub.pool_v6);
        pools.map(|pool| self.free_network(hub, pool)).collect()
    }

    fn free_network(&self, hub: &HubConfig, pool: IpNet) -> anyhow::Result<IpNet> {
        let length = relay_prefix(pool).with_context(|| {
            format!("the pool {pool} is too small to give a part of it to a relay; enlarge it")
        })?;
        let own: Vec<IpAddr> = hub.own_addresses().iter().map(IpNet::addr).collect();
        let taken = |part: &IpNet| {
            let mut addresses = self.sites.iter().flat_map(Site::addresses);
            addresses.any(|ip| part.contains(&ip))
                || own.iter().any(|ip| part.contains(ip))
                || self.networks().any(|net| overlap(net, part))
        };
        let mut part = IpNet::new(pool.broadcast(), length)
            .map(|net| net.trunc())
            .ok();
        // Sites, the hub, and as many relays are all that can be in the way.
        for _ in 0..2 * SITES_MAX + 2 {
            match part {
                Some(free) if !taken(&free) => return Ok(free),
                Some(used) => part = before(used).filter(|net| pool.contains(net)),
                None => break,
            }
        }
        bail!(
            "no part of the pool {pool} with a prefix of {length} bits is free for a relay; revoke \
             sites or enlarge the pool"
        )
    }

    fn parse(path: &Path, text: &str, hub: &HubConfig) -> Result<Self, Problems> {
        let own: Vec<IpAddr> = hub.own_addresses().iter().map(IpNet::addr).collect();
        let mut seen = HashSet::new();
        let mut earlier = Earlier::default();
        let mut sites = read(path, text, |root| {
            if let Some(format) = root.integer("format", 1..=u64::MAX)
                && format > FORMAT
            {
                root.reject(
                    "format",
                    &format!("a newer Ropewalk wrote this file: its format is {format}, and this program reads {FORMAT}"),
                    "upgrade Ropewalk on this machine",
                );
            }
            root.sections("site", SITES_MAX, |site| {
                let parsed = parse_site(site, hub);
                if let Some(parsed) = &parsed {
                    reject_doubles(site, parsed, &own, &mut seen);
                    reject_overlaps(site, parsed, &own, &mut earlier);
                    reject_shared_ports(site, parsed, &mut earlier);
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

/// Most networks of one relay that the file may list: one of each family, as a token holds.
const NETWORKS_MAX: usize = 2;

/// Prefix of the part of a pool that a relay gets: half of the bits that are left, so that a
/// relay can give parts to further relays. `None` if such a part would be too small for a relay
/// and a site.
fn relay_prefix(pool: IpNet) -> Option<u8> {
    let left = pool.max_prefix_len() - pool.prefix_len();
    let bits = left / 2;
    (bits >= 2).then(|| pool.max_prefix_len() - bits)
}

/// The first `ports` ports in a row of an address that none of the blocks `taken`, sorted, has.
fn first_gap<'a>(
    taken: impl Iterator<Item = &'a PortBlock>,
    address: Ipv4Addr,
    ports: u16,
) -> Option<PortBlock> {
    let mut first = PORT_FIRST;
    for block in taken {
        if block.first > first && block.first - first >= ports {
            break;
        }
        first = first.max(block.last.checked_add(1)?);
    }
    PortBlock::new(address, first, first.checked_add(ports - 1)?)
}

/// The network of the same size before this one.
fn before(net: IpNet) -> Option<IpNet> {
    let last: IpAddr = match net.network() {
        IpAddr::V4(ip) => std::net::Ipv4Addr::from(u32::from(ip).checked_sub(1)?).into(),
        IpAddr::V6(ip) => std::net::Ipv6Addr::from(u128::from(ip).checked_sub(1)?).into(),
    };
    Some(IpNet::new(last, net.prefix_len()).ok()?.trunc())
}

fn parse_site(site: &mut Section<'_>, hub: &HubConfig) -> Option<Site> {
    let remedy = "remove the entry, and invite the site again";
    let name = site.text("name", "name = \"boat\"", parse_name);
    let name = site.require("name", name, remedy);
    if hub.is_relay() && name.as_deref() == Some(NEXT_HUB) {
        let what = format!("{NEXT_HUB} is what a relay calls its next hub");
        site.reject("name", &what, "give the site another name");
    }
    let example = "the 44 characters of a public key";
    let key = site.text("key", example, str::parse::<PublicKey>);
    let next_key = parse_next_key(site, key, remedy);
    let invitation = parse_invitation(site, remedy);
    let key_missing = !site.has("invitation") && site.require("key", key, remedy).is_none();
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
    let networks = parse_networks(site, hub);
    let block = parse_block(site, hub);
    if networks.is_some() && block.is_some() {
        let remedy = "remove one of the two; the sites of a relay have addresses of their own";
        site.reject("block", "a relay has no block of ports", remedy);
    }
    let enabled = site.boolean("enabled").unwrap_or(true);
    let weight = site.integer("weight", 1..=u64::from(WEIGHT_MAX));
    let rate = site.integer("rate_mbit", 1..=u64::from(RATE_MAX));
    let allow = egress::read(site);
    if key_missing {
        return None;
    }
    Some(Site {
        name: name?,
        key,
        next_key,
        invitation,
        ipv4,
        ipv6,
        block,
        networks: networks.unwrap_or_default(),
        enabled,
        weight: weight.and_then(|w| w.try_into().ok()).unwrap_or(WEIGHT),
        rate_mbit: rate.and_then(|r| r.try_into().ok()),
        allow,
    })
}

/// The networks of a relay: one of each family at most.
fn parse_networks(site: &mut Section<'_>, hub: &HubConfig) -> Option<Vec<IpNet>> {
    let pools: Vec<IpNet> = hub.pool_v4.into_iter().chain(hub.pool_v6).collect();
    let networks = site.list("networks", "[\"10.201.31.192/26\"]", NETWORKS_MAX, |text| {
        let net: IpNet = text
            .parse()
            .map_err(|_| format!("{text:?} is not a network"))?;
        if net.trunc() != net {
            return Err(format!("{net} has bits beyond its prefix"));
        }
        if !pools.iter().any(|pool| pool.contains(&net)) {
            return Err(format!("{net} is in no pool of the hub"));
        }
        Ok(net)
    });
    if let Some([one, other]) = networks.as_deref()
        && one.addr().is_ipv4() == other.addr().is_ipv4()
    {
        site.reject(
            "networks",
            &format!("{one} and {other} are of one family"),
            "leave one IPv4 and one IPv6 network at most",
        );
    }
    networks
}

fn parse_block(site: &mut Section<'_>, hub: &HubConfig) -> Option<PortBlock> {
    let example = "\"203.0.113.7:1024-2031\", of an address of `shared` in the hub's [pool]";
    site.text("block", example, |text| {
        let block: PortBlock = text
            .parse()
            .map_err(|error| format!("{text:?} is {error}"))?;
        let addresses = hub.shared.iter().flat_map(|shared| &shared.addresses);
        if !addresses.into_iter().any(|ip| *ip == block.address) {
            let address = block.address;
            return Err(format!("{address} is not in `shared` of the hub's [pool]"));
        }
        if block.first < PORT_FIRST {
            return Err(format!("{block} begins below port {PORT_FIRST}"));
        }
        Ok(block)
    })
}

fn parse_next_key(
    site: &mut Section<'_>,
    key: Option<PublicKey>,
    remedy: &str,
) -> Option<PublicKey> {
    let example = "the 44 characters of a public key";
    let next = site.text("next_key", example, str::parse::<PublicKey>);
    if next.is_some() && key.is_none() {
        site.reject("next_key", "there is no key beside it", remedy);
    }
    next
}

fn parse_invitation(site: &mut Section<'_>, remedy: &str) -> Option<Invitation> {
    let example = "the 44 characters of a public key";
    let time = "\"2026-01-31T12:00:00Z\"";
    let key = site.text("invitation", example, str::parse::<PublicKey>);
    let ends = site.text("invitation_ends", time, str::parse::<Time>);
    let at = site.text("joined", time, str::parse::<Time>);
    let joined_key = site.text("joined_key", example, str::parse::<PublicKey>);
    let key = key?;
    let ends = site.require("invitation_ends", ends, remedy)?;
    // Half of the pair must not make a used invitation an open one.
    for (name, other) in [("joined", "joined_key"), ("joined_key", "joined")] {
        if site.has(name) && !site.has(other) {
            site.reject(name, &format!("there is no {other} beside it"), remedy);
        }
    }
    let joined = at.zip(joined_key).map(|(at, key)| Joined { at, key });
    Some(Invitation { key, ends, joined })
}

fn reject_doubles(section: &Section<'_>, site: &Site, own: &[IpAddr], seen: &mut HashSet<String>) {
    let remedy = "every site needs its own; invite it again";
    let mut check = |key: &str, kind: &str, value: String| {
        if !seen.insert(format!("{kind}={value}")) {
            section.reject(key, &format!("{value} stands in the file already"), remedy);
        }
    };
    check("name", "name", site.name.clone());
    if let Some(key) = site.key {
        check("key", "key", key.to_string());
    }
    if let Some(key) = site.next_key {
        check("next_key", "key", key.to_string());
    }
    // Whoever has the token would be the site whose key is the invitation's.
    if let Some(invitation) = &site.invitation {
        check("invitation", "key", invitation.key.to_string());
    }
    for ip in site.addresses() {
        check(
            if ip.is_ipv4() { "ipv4" } else { "ipv6" },
            "ip",
            ip.to_string(),
        );
    }
    for ip in site.addresses().filter(|ip| own.contains(ip)) {
        let key = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
        section.reject(key, &format!("{ip} is the hub's own address"), remedy);
    }
}

/// What the sites before in the file have.
#[derive(Debug, Default)]
struct Earlier {
    addresses: Vec<IpAddr>,
    networks: Vec<IpNet>,
    /// By address and first port.
    blocks: BTreeMap<(Ipv4Addr, u16), PortBlock>,
}

/// Blocks of ports must have no port of anybody else.
fn reject_shared_ports(section: &Section<'_>, site: &Site, earlier: &mut Earlier) {
    let Some(block) = site.block else { return };
    // Those before do not overlap, so one that begins later is in the way only if it is the next one.
    let place = (block.address, block.first);
    let before = earlier.blocks.range(..=place).next_back();
    let after = earlier.blocks.range(place..).next();
    let mut near = before.into_iter().chain(after).map(|(_, other)| other);
    if let Some(other) = near.find(|other| other.overlaps(&block)) {
        let what = format!("{block} has ports of {other}, which another site has");
        let remedy =
            "give every site ports of its own, or remove the entry and invite the site again";
        section.reject("block", &what, remedy);
    }
    earlier.blocks.insert(place, block);
}

/// Networks of relays must hold no address and no network of anybody else.
fn reject_overlaps(section: &Section<'_>, site: &Site, own: &[IpAddr], earlier: &mut Earlier) {
    let remedy = "give every relay a network of its own";
    earlier.addresses.extend(site.addresses());
    for net in &site.networks {
        let mut addresses = own.iter().chain(&earlier.addresses);
        if let Some(ip) = addresses.find(|ip| net.contains(*ip)) {
            section.reject(
                "networks",
                &format!("{net} holds {ip}, which is taken"),
                remedy,
            );
        }
        if let Some(other) = earlier.networks.iter().find(|other| overlap(other, net)) {
            section.reject("networks", &format!("{net} overlaps with {other}"), remedy);
        }
        earlier.networks.push(*net);
    }
    let mut inside = site.addresses().filter_map(|ip| {
        let net = earlier.networks.iter().find(|net| net.contains(&ip))?;
        Some((ip, net))
    });
    if let Some((ip, net)) = inside.next() {
        let key = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
        section.reject(
            key,
            &format!("{ip} is in the network {net} of a relay"),
            remedy,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLACE: Terms = Terms {
        replace: true,
        relay: false,
        weight: None,
        rate_mbit: None,
        allow: None,
    };
    const RELAY: Terms = Terms {
        replace: false,
        relay: true,
        ..REPLACE
    };
    use ropewalk_config::hub;
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
            Sites::edit(&hub, |sites| {
                sites.add(&hub, name, key(number), Terms::default())
            })
            .unwrap();
        }
        let sites = Sites::load(&hub).unwrap();
        let addresses: Vec<_> = sites.all().iter().flat_map(Site::addresses).collect();
        let text: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.9.0.2", "fd00:9::2", "10.9.0.3", "fd00:9::3"]);
        assert_eq!(sites.entries(true)[1].key, key(2));
    }

    #[test]
    fn sites_get_blocks_in_order_which_are_written_down_and_given_once() {
        let directory = tempfile::tempdir().unwrap();
        let pool = "ipv4 = \"10.9.0.0/16\"\nshared = [\"203.0.113.7\", \"203.0.113.8\"]\n";
        let with = |ports: u32| config(directory.path(), &format!("{pool}ports = {ports}"));
        let blocks = |hub: &HubConfig| -> Vec<_> {
            let sites = Sites::load(hub).unwrap();
            let block = |site: &Site| Some(site.block?.to_string());
            sites.all().iter().map(block).collect()
        };
        let hub = with(32_256);
        let add = |hub: &HubConfig, number: u8, terms| {
            let name = format!("site{number}");
            Sites::edit(hub, |sites| sites.add(hub, &name, key(number), terms))
        };
        for number in 1..=3 {
            add(&hub, number, Terms::default()).unwrap();
        }
        let some = |text: &str| Some(text.to_owned());
        let all = [
            some("203.0.113.7:1024-33279"),
            some("203.0.113.7:33280-65535"),
            some("203.0.113.8:1024-33279"),
        ];
        assert_eq!(blocks(&hub), all);
        // The copy for another hub says the same.
        let entry = Sites::load(&hub).unwrap().entries(true)[1].block;
        assert_eq!(entry.map(|block| block.to_string()), all[1]);
        // Fewer ports for those that come: the former blocks stay, and what is free between is given.
        Sites::edit(&hub, |sites| sites.revoke("site1")).unwrap();
        let smaller = with(1_008);
        add(&smaller, 4, Terms::default()).unwrap();
        add(&smaller, 5, RELAY).unwrap();
        let now = [
            all[1].clone(),
            all[2].clone(),
            some("203.0.113.7:1024-2031"),
            None,
        ];
        assert_eq!(blocks(&smaller), now);
        // A new key leaves the block as it is.
        let again = |number: u8| {
            let add = |sites: &mut Sites| sites.add(&smaller, "site4", key(number), REPLACE);
            Sites::edit(&smaller, add).unwrap().block
        };
        assert_eq!(again(6).map(|block| block.to_string()), now[2]);
        let all = with(64_512);
        let error = add(&all, 7, Terms::default()).unwrap_err().to_string();
        assert!(
            error.contains("64512 ports left; add an address"),
            "{error}"
        );
    }

    #[test]
    fn a_site_of_before_gets_a_block_with_a_new_invitation() {
        let directory = tempfile::tempdir().unwrap();
        let pool = "ipv4 = \"10.9.0.0/16\"";
        let before = config(directory.path(), pool);
        let mut sites = Sites::default();
        sites
            .add(&before, "boat", key(1), Terms::default())
            .unwrap();
        let hub = config(
            directory.path(),
            &format!("{pool}\nshared = [\"203.0.113.7\"]"),
        );
        let site = sites.add(&hub, "boat", key(2), REPLACE).unwrap();
        assert_eq!(site.block.unwrap().to_string(), "203.0.113.7:1024-2031");
        let relay = Terms {
            replace: true,
            ..RELAY
        };
        let site = sites.add(&hub, "boat", key(3), relay).unwrap();
        assert_eq!((site.block, sites.all()[0].block), (None, None));
    }

    #[test]
    fn blocks_that_are_nobodys_or_anothers_are_refused_with_line_and_key() {
        let directory = tempfile::tempdir().unwrap();
        let pool = "ipv4 = \"10.9.0.0/16\"\nshared = [\"203.0.113.7\"]";
        let hub = config(directory.path(), pool);
        let check = |first: &str, second: &str| {
            let site = |number: u8, block: &str| {
                let name = ["boat", "van"][usize::from(number) - 1];
                format!(
                    "[[site]]\nname = \"{name}\"\nkey = \"{}\"\n{block}\n",
                    key(number)
                )
            };
            let text = site(1, first) + &site(2, second);
            let parsed = Sites::parse(&hub.sites_file, &text, &hub);
            parsed.map_or_else(|problems| problems.to_string(), |_| String::new())
        };
        let first = "block = \"203.0.113.7:2000-2999\"";
        assert_eq!(check(first, "block = \"203.0.113.7:3000-3999\""), "");
        for (second, said) in [
            ("block = \"203.0.113.7:2999-3999\"", "has ports of"),
            ("block = \"203.0.113.7:1024-2000\"", "has ports of"),
            ("block = \"203.0.113.7:1024-65535\"", "has ports of"),
            ("block = \"203.0.113.7:2500-2501\"", "has ports of"),
            ("block = \"203.0.113.8:1024-2031\"", "not in `shared`"),
            ("block = \"203.0.113.7:80-99\"", "below port 1024"),
            ("block = \"203.0.113.7\"", "not an IPv4 address with"),
            (
                "block = \"203.0.113.7:3000-3999\"\nnetworks = [\"10.9.8.0/24\"]",
                "a relay has no block",
            ),
        ] {
            let message = check(first, second);
            let place = "sites.toml:8: site[2].block:";
            assert!(message.contains(said), "{second} gave: {message}");
            assert!(message.contains(place), "{second} gave: {message}");
        }
        let none = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let text = format!("[[site]]\nname = \"boat\"\nkey = \"{}\"\n{first}\n", key(1));
        Sites::parse(&none.sites_file, &text, &none).unwrap_err();
    }

    #[test]
    fn a_file_of_a_newer_program_is_refused_with_words_and_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let site = format!("[[site]]\nname = \"boat\"\nkey = \"{}\"\n", key(1));
        for (head, said) in [
            ("format = 2\n", "a newer Ropewalk wrote this file"),
            ("format = 0\n", "out of range"),
            ("colour = \"red\"\n", "colour"),
        ] {
            let newer = format!("{head}{site}");
            std::fs::write(&hub.sites_file, &newer).unwrap();
            let add = |sites: &mut Sites| sites.add(&hub, "van", key(2), Terms::default());
            for error in [
                Sites::load(&hub).unwrap_err(),
                Sites::edit(&hub, add).unwrap_err(),
            ] {
                let error = format!("{error:#}");
                assert!(
                    error.contains("sites.toml:1") && error.contains(said),
                    "{error}"
                );
            }
            assert_eq!(std::fs::read_to_string(&hub.sites_file).unwrap(), newer);
        }
        // What this program writes, programs without formats read.
        std::fs::write(&hub.sites_file, format!("format = 1\n{site}")).unwrap();
        Sites::edit(&hub, |sites| {
            sites.add(&hub, "van", key(2), Terms::default())
        })
        .unwrap();
        let written = std::fs::read_to_string(&hub.sites_file).unwrap();
        assert!(!written.contains("format ="), "{written}");
        assert_eq!(Sites::load(&hub).unwrap().all().len(), 2);
    }

    #[test]
    fn a_file_that_was_cut_off_is_no_hub_without_sites_and_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let add = || Sites::edit(&hub, |s| s.add(&hub, "boat", key(1), Terms::default()));
        add().unwrap();
        Sites::edit(&hub, |sites| sites.revoke("boat")).unwrap();
        assert!(
            Sites::load(&hub).unwrap().all().is_empty(),
            "nobody is left"
        );
        std::fs::write(&hub.sites_file, "").unwrap();
        for error in [Sites::load(&hub).unwrap_err(), add().unwrap_err()] {
            let error = format!("{error:#}");
            assert!(error.contains("sites.toml is empty"), "{error}");
        }
        assert_eq!(std::fs::read(&hub.sites_file).unwrap(), b"");
    }

    #[test]
    fn taken_names_need_replace_which_keeps_the_addresses() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let mut sites = Sites::default();
        let first = sites.add(&hub, "boat", key(1), Terms::default()).unwrap();
        let error = sites
            .add(&hub, "boat", key(2), Terms::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--replace"), "{error}");
        let second = sites.add(&hub, "boat", key(2), REPLACE).unwrap();
        assert_eq!((second.ipv4, second.key), (first.ipv4, Some(key(2))));
        assert!(
            sites.add(&hub, "van", key(2), Terms::default()).is_err(),
            "one key for two sites"
        );
        assert_eq!(sites.revoke("boat").unwrap().key, Some(key(2)));
        assert!(
            sites
                .revoke("boat")
                .unwrap_err()
                .to_string()
                .contains("--list")
        );
    }

    #[test]
    fn rate_and_weight_of_an_invitation_last_until_others_are_given() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let invite = |number, terms: Terms| {
            Sites::edit(&hub, |sites| sites.add(&hub, "boat", key(number), terms)).unwrap();
            let site = Sites::load(&hub).unwrap().all()[0].clone();
            let entry = site.entry().expect("it has a key");
            assert_eq!(
                entry.rate,
                site.rate_mbit.map(|rate| u64::from(rate) * 1_000_000)
            );
            assert_eq!(entry.weight, site.weight);
            (site.weight, site.rate_mbit)
        };
        let given = |weight, rate_mbit| Terms {
            weight,
            rate_mbit,
            ..REPLACE
        };
        let first = Terms {
            replace: false,
            ..given(None, Some(20))
        };
        assert_eq!(invite(1, first), (1, Some(20)));
        assert_eq!(invite(2, REPLACE), (1, Some(20)), "a new key");
        assert_eq!(invite(3, given(Some(4), None)), (4, Some(20)));
        assert_eq!(invite(4, given(None, Some(100_000))), (4, Some(100_000)));
        assert_eq!(invite(5, REPLACE), (4, Some(100_000)));
        assert_eq!(invite(6, given(Some(1), Some(1))), (1, Some(1)));
    }

    #[test]
    fn relays_get_networks_from_the_end_of_the_pools_and_sites_none_of_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(
            directory.path(),
            "ipv4 = \"10.9.0.0/24\"\nipv6 = \"fd00:9::/64\"",
        );
        let relays = [(1, "a"), (2, "b")];
        for (number, name) in relays {
            Sites::edit(&hub, |sites| sites.add(&hub, name, key(number), RELAY)).unwrap();
        }
        let mut sites = Sites::load(&hub).unwrap();
        let places: Vec<_> = sites
            .entries(true)
            .iter()
            .flat_map(SiteEntry::places)
            .collect();
        let expected = [
            [
                "10.9.0.2",
                "fd00:9::2",
                "10.9.0.240/28",
                "fd00:9::ffff:ffff:0:0/96",
            ],
            [
                "10.9.0.3",
                "fd00:9::3",
                "10.9.0.224/28",
                "fd00:9::ffff:fffe:0:0/96",
            ],
        ];
        assert_eq!(places, expected.concat());
        let entry = &sites.entries(true)[0];
        assert!(entry.owns(&"10.9.0.241".parse().unwrap()));
        assert!(!entry.owns(&"10.9.0.225".parse().unwrap()));
        // 256 addresses less network, broadcast, hub, two relays and their 32 addresses, of which
        // the broadcast is one.
        let mut count = 0;
        while sites
            .add(
                &hub,
                &format!("s{count}"),
                key(10 + count),
                Terms::default(),
            )
            .is_ok()
        {
            count += 1;
        }
        assert_eq!(count, 220);
    }

    #[test]
    fn a_site_becomes_a_relay_when_it_is_invited_anew() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/28\"");
        let mut sites = Sites::default();
        let first = sites.add(&hub, "a", key(1), Terms::default()).unwrap();
        assert!(first.networks.is_empty());
        let second = sites
            .add(
                &hub,
                "a",
                key(2),
                Terms {
                    replace: true,
                    ..RELAY
                },
            )
            .unwrap();
        assert_eq!(second.ipv4, first.ipv4);
        assert_eq!(second.networks, ["10.9.0.12/30".parse::<IpNet>().unwrap()]);
        assert_eq!(sites.all(), [second]);
        let small = config(directory.path(), "ipv4 = \"10.9.0.0/29\"");
        let error = Sites::default().add(&small, "a", key(1), RELAY);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("too small"), "{error}");
    }

    #[test]
    fn a_site_gets_a_new_key_also_when_no_ports_are_left() {
        let directory = tempfile::tempdir().unwrap();
        let plain = config(directory.path(), "ipv4 = \"10.9.0.0/28\"");
        let shared = "ipv4 = \"10.9.0.0/28\"\nshared = [\"203.0.113.7\"]\nports = 64512";
        let shared = config(directory.path(), shared);
        let mut sites = Sites::default();
        sites.add(&plain, "old", key(1), Terms::default()).unwrap();
        let van = sites.add(&shared, "van", key(2), Terms::default()).unwrap();
        assert!(sites.add(&shared, "car", key(3), Terms::default()).is_err());
        let again = sites.add(&shared, "van", key(4), REPLACE).unwrap();
        assert_eq!(again.block, van.block);
        let old = sites.add(&shared, "old", key(5), REPLACE).unwrap();
        assert_eq!((old.key, old.block), (Some(key(5)), None));
    }

    #[test]
    fn used_up_pool_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/30\"");
        let mut sites = Sites::default();
        sites.add(&hub, "a", key(1), Terms::default()).unwrap();
        let error = sites
            .add(&hub, "b", key(2), Terms::default())
            .unwrap_err()
            .to_string();
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
            (
                site("a", 1, "10.9.0.2") + "networks = [\"10.9.0.0/28\"]\n",
                ":5: site[1].networks: 10.9.0.0/28 holds 10.9.0.1",
            ),
            (
                site("a", 1, "10.9.0.2") + "networks = [\"10.8.0.0/28\"]\n",
                "10.8.0.0/28 is in no pool",
            ),
            (
                site("a", 1, "10.9.0.2") + "weight = 0\n",
                ":5: site[1].weight: 0 is out of range",
            ),
            (
                site("a", 1, "10.9.0.2") + "rate_mbit = 100001\n",
                ":5: site[1].rate_mbit: 100001 is out of range",
            ),
            (
                site("a", 1, "10.9.0.2")
                    + "networks = [\"10.9.1.0/28\"]\n"
                    + &site("b", 2, "10.9.1.3"),
                ":9: site[2].ipv4: 10.9.1.3 is in the network 10.9.1.0/28",
            ),
        ] {
            std::fs::write(&hub.sites_file, &text).unwrap();
            let error = Sites::load(&hub).unwrap_err().to_string();
            assert!(error.contains(part), "{text}\ngave {error}");
        }
    }

    #[test]
    fn what_no_token_can_hold_and_names_with_a_meaning_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let hub = config(directory.path(), "ipv4 = \"10.9.0.0/16\"");
        let site = |name: &str, networks: &str| {
            let key = key(1);
            format!("[[site]]\nname = \"{name}\"\nkey = \"{key}\"\nnetworks = [{networks}]\n")
        };
        let problem = |hub: &HubConfig, text: String| {
            std::fs::write(&hub.sites_file, text).unwrap();
            Sites::load(hub).err().map(|error| error.to_string())
        };
        let two = "\"10.9.1.0/28\", \"10.9.2.0/28\"";
        let error = problem(&hub, site("a", two)).unwrap();
        let part = "sites.toml:4: site[1].networks: 10.9.1.0/28 and 10.9.2.0/28 are of one family; leave one IPv4";
        assert!(error.contains(part), "{error}");
        let error = problem(&hub, site("a", &format!("{two}, \"10.9.3.0/28\""))).unwrap();
        let part = "sites.toml:4: site[1].networks: more than 2 entries; remove some";
        assert!(error.contains(part), "{error}");
        assert_eq!(problem(&hub, site(NEXT_HUB, "")), None);
        let relay = HubConfig {
            onward: Some("ropewalk0".to_owned()),
            ..hub
        };
        let error = problem(&relay, site(NEXT_HUB, "")).unwrap();
        let part = "sites.toml:2: site[1].name: hub is what a relay calls its next hub; give the site another";
        assert!(error.contains(part), "{error}");
    }

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    /// A hub that has invited a boat until noon.
    fn invited(directory: &Path) -> (HubConfig, Sites) {
        let hub = config(directory, "ipv4 = \"10.9.0.0/16\"");
        let mut sites = Sites::default();
        let invitation = Invitation::new(key(100), at("2026-01-31T12:00:00Z"));
        let invitation = Credential::Invitation(invitation);
        let terms = Terms {
            rate_mbit: Some(20),
            ..Terms::default()
        };
        sites.add(&hub, "boat", invitation, terms).unwrap();
        (hub, sites)
    }

    #[test]
    fn an_invitation_is_used_once_and_again_only_by_the_same_key() {
        let directory = tempfile::tempdir().unwrap();
        let (_, mut sites) = invited(directory.path());
        assert!(sites.entries(true).is_empty(), "nobody has joined");
        let early = at("2026-01-31T11:00:00Z");
        let late = at("2026-01-31T13:00:00Z");
        let first = sites.enrol(&key(0), &key(100), key(1), false, early);
        let (site, new) = first.map(|(site, new)| (site.clone(), new)).unwrap();
        assert_eq!(new, Enrolled::Joined);
        assert!(site.key == Some(key(1)) && site.rate_mbit == Some(20));
        assert_eq!(sites.entries(true)[0].key, key(1));
        let again = sites.enrol(&key(0), &key(100), key(1), false, late);
        assert_eq!(
            again.unwrap().1,
            Enrolled::Again,
            "the answer was lost, the key is the same"
        );
        let second = sites
            .enrol(&key(0), &key(100), key(2), false, early)
            .unwrap_err();
        let words = second.to_string();
        let by = fingerprint(&key(1));
        let expected = format!("used on 2026-01-31 11:00:00 UTC by key {by}");
        assert!(words.contains(&expected), "{words}");
        assert!(words.len() <= ropewalk_wire::REASON_MAX, "{}", words.len());
        assert_eq!(sites.entries(true)[0].key, key(1));
    }

    #[test]
    fn only_invitations_that_are_open_end_with_the_key_of_their_hub() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        let early = at("2026-01-31T11:00:00Z");
        for (seed, name, ends) in [(101, "van", "12:00:00"), (102, "farm", "10:00:00")] {
            let ends = at(&format!("2026-01-31T{ends}Z"));
            let invitation = Credential::Invitation(Invitation::new(key(seed), ends));
            sites.add(&hub, name, invitation, Terms::default()).unwrap();
        }
        sites
            .enrol(&key(0), &key(101), key(1), false, early)
            .unwrap();
        let before = sites.clone();
        assert_eq!(sites.end_invitations(early), ["boat"]);
        let refused = sites.enrol(&key(0), &key(100), key(2), false, early);
        assert_eq!(refused.unwrap_err(), Refusal::Ended(early));
        for name in ["van", "farm"] {
            let of = |sites: &Sites| sites.all().iter().find(|site| site.name == name).cloned();
            assert_eq!(of(&sites), of(&before));
        }
        assert!(sites.end_invitations(early).is_empty());
    }

    #[test]
    fn who_is_late_or_comes_with_another_key_is_refused_in_words() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        sites.add(&hub, "van", key(3), Terms::default()).unwrap();
        let (early, noon) = (at("2026-01-31T11:59:59Z"), at("2026-01-31T12:00:00Z"));
        let mut refused = |invitation, key, now| {
            let refusal = sites
                .enrol(&self::key(0), &invitation, key, false, now)
                .map(|_| ());
            refusal.unwrap_err().to_string()
        };
        let ended = refused(key(100), key(1), noon);
        assert!(
            ended.contains("ended on 2026-01-31 12:00:00 UTC"),
            "{ended}"
        );
        assert!(refused(key(101), key(1), early).contains("revoked"));
        // A site's, the hub's, an invitation's: the words do not say whose.
        for taken in [3, 0, 100] {
            let words = refused(key(100), key(taken), early);
            assert_eq!(words, Refusal::KeyTaken(String::new()).to_string());
        }
        sites.sites[0].enabled = false;
        let disabled = sites
            .enrol(&key(0), &key(100), key(1), false, early)
            .unwrap_err();
        assert_eq!(disabled, Refusal::Disabled("boat".to_owned()));
    }

    #[test]
    fn who_holds_a_key_gets_it_though_a_site_has_asked_for_it_and_no_other_key_of_a_site() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        for (name, number) in [("van", 3), ("car", 4)] {
            sites
                .add(&hub, name, key(number), Terms::default())
                .unwrap();
        }
        let now = at("2026-01-31T11:00:00Z");
        let mut enrol = |by, number, proved| {
            let enrolled = sites.enrol(&key(0), &key(by), key(number), proved, now);
            enrolled
                .map(|(_, new)| new)
                .map_err(|refusal| refusal.owner().map(str::to_owned))
        };
        // The van, of the version before, asks for keys of others.
        assert_eq!(enrol(3, 1, false), Ok(Enrolled::Next));
        let of_van = Err(Some("site van".to_owned()));
        assert_eq!(
            enrol(100, 1, false),
            of_van,
            "without a proof the first one has it"
        );
        assert_eq!(enrol(100, 1, true), Ok(Enrolled::Joined));
        assert_eq!(enrol(3, 5, false), Ok(Enrolled::Next));
        assert_eq!(enrol(4, 5, true), Ok(Enrolled::Next));
        // A key with which a site connects stays with the site.
        assert_eq!(enrol(4, 3, true), of_van);
        assert_eq!(sites.next_keys().collect::<Vec<_>>(), [(key(5), key(4))]);
        let van = sites.all().iter().find(|site| site.name == "van").unwrap();
        assert_eq!((van.key, van.next_key), (Some(key(3)), None));
    }

    #[test]
    fn invitations_survive_the_file_which_only_its_owner_can_read() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        let write = |wanted: &Sites| {
            Sites::edit(&hub, |sites| {
                sites.clone_from(wanted);
                Ok(())
            })
            .unwrap();
        };
        write(&sites);
        assert_eq!(Sites::load(&hub).unwrap(), sites);
        let now = at("2026-01-31T11:00:00Z");
        sites.enrol(&key(0), &key(100), key(1), false, now).unwrap();
        write(&sites);
        assert_eq!(Sites::load(&hub).unwrap(), sites);
        assert_eq!(sites.invitations().collect::<Vec<_>>(), [key(100)]);
        let mode = std::fs::metadata(&hub.sites_file).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_site_and_an_invitation_have_no_key_in_common() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        let error = sites.add(&hub, "van", key(100), Terms::default());
        assert!(error.unwrap_err().to_string().contains("one key"));
        sites.add(&hub, "van", key(3), Terms::default()).unwrap();
        let ends = at("2026-02-01T00:00:00Z");
        let invitation = Credential::Invitation(Invitation::new(key(3), ends));
        let error = sites.add(&hub, "car", invitation, Terms::default());
        assert!(error.unwrap_err().to_string().contains("one key"));
        let own = format!("key = \"{}\"\n", key(1));
        let invitation = format!(
            "invitation = \"{}\"\ninvitation_ends = \"2026-02-01T00:00:00Z\"\n",
            key(1)
        );
        let site = |name: &str, rest: &str| format!("[[site]]\nname = \"{name}\"\n{rest}");
        for (text, part) in [
            (
                site("a", &own) + &site("b", &invitation),
                ":6: site[2].invitation:",
            ),
            (
                site("a", &invitation) + &site("b", &own),
                ":7: site[2].key:",
            ),
            (site("a", &own) + &invitation, ":4: site[1].invitation:"),
        ] {
            std::fs::write(&hub.sites_file, &text).unwrap();
            let error = Sites::load(&hub).unwrap_err().to_string();
            assert!(error.contains(part), "{text}\ngave {error}");
        }
    }

    #[test]
    fn half_a_note_of_who_has_joined_does_not_open_the_invitation_again() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, _) = invited(directory.path());
        let open = format!(
            "[[site]]\nname = \"a\"\ninvitation = \"{}\"\n\
             invitation_ends = \"2026-02-01T00:00:00Z\"\n",
            key(100)
        );
        let at = "joined = \"2026-01-31T11:00:00Z\"\n";
        let by = format!("joined_key = \"{}\"\n", key(1));
        for (half, part) in [
            (at, ":5: site[1].joined: there is no joined_key"),
            (&by, ":5: site[1].joined_key: there is no joined "),
        ] {
            std::fs::write(&hub.sites_file, format!("{open}{half}")).unwrap();
            let error = Sites::load(&hub).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        std::fs::write(&hub.sites_file, format!("{open}{at}{by}")).unwrap();
        Sites::load(&hub).unwrap();
    }

    #[test]
    fn a_new_invitation_ends_the_former_one_and_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let (hub, mut sites) = invited(directory.path());
        let (now, ends) = (at("2026-01-31T11:00:00Z"), at("2026-02-01T00:00:00Z"));
        let again = |number| Credential::Invitation(Invitation::new(key(number), ends));
        let error = sites.add(&hub, "boat", again(101), Terms::default());
        assert!(error.unwrap_err().to_string().contains("invited already"));
        sites.enrol(&key(0), &key(100), key(1), false, now).unwrap();
        sites.add(&hub, "boat", again(101), REPLACE).unwrap();
        assert!(sites.entries(true).is_empty());
        let former = sites
            .enrol(&key(0), &key(100), key(1), false, now)
            .unwrap_err();
        assert_eq!(former, Refusal::Revoked);
        let state = |sites: &Sites, now| sites.all()[0].invitation.as_ref().unwrap().state(now);
        assert_eq!(state(&sites, now), "open until 2026-02-01 00:00:00 UTC");
        assert_eq!(state(&sites, ends), "ended 2026-02-01 00:00:00 UTC");
        sites.enrol(&key(0), &key(101), key(2), false, now).unwrap();
        assert!(state(&sites, ends).starts_with("used 2026-01-31 11:00:00 UTC by "));
    }
}
