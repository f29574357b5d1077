//! What stands in etcd: keys, values, and how they are encoded.
//!
//! All keys of a fleet begin with `/ropewalk/FLEET/`. Behind that:
//!
//! | key | value | written by |
//! |---|---|---|
//! | `meta` | [`Meta`]: public key of the fleet, pools | `fleet init`, `fleet restore` |
//! | `site/NAME` | [`Site`]: keys, blocks, rules, invitation | every hub |
//! | `slot/00000000` (hexadecimal) | [`Owner`]: the last site that got the blocks with this number | with the site |
//! | `key/BASE64` | [`Owner`]: the site whose key, next key or invitation this is | with the site |
//! | `hub/ID` | [`HubLease`], under a lease of etcd: gone when the hub is | that hub |
//! | `drain/ID` | [`Drain`]: sites shall leave this hub | every hub |
//! | `claim/NAME` | [`Claim`]: which hub serves the site, as the site has signed it | the hub that serves it |
//!
//! Invariant: a slot or a key has one site. Only a transaction that finds its key absent, or a slot freed, makes it. All blocks of a site
//! follow from its slot and the pools, so a block is never given twice.
//!
//! Values are JSON with a version `v`. An operator reads them with `etcdctl`. Hubs of neighbouring versions work together:
//! a program keeps the fields that it does not know when it writes a record again ([`Rest`]). Whoever changes the meaning
//! of a field raises the version. Older programs leave that record alone, and go by what it said before
//! ([`crate::copy`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::{Ipv4Net, Ipv6Net};
use ropewalk_config::egress::Allowed;
use ropewalk_config::values::{HostPort, parse_name};
use ropewalk_transport::PublicKey;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::trust::HubCertificate;

/// Newest version of a value that this program reads.
pub const VERSION: u32 = 1;
/// Largest value that is read, bytes. Larger ones are no records of ours: a site with 64 rules takes 6 kB.
pub const VALUE_BYTES_MAX: usize = 1 << 16;
/// Most addresses of a hub.
pub const ADDRESSES_MAX: usize = 16;
/// Most shared addresses of a fleet.
pub const SHARED_MAX: usize = 4096;
/// Lowest port of a block: those below are for services.
pub const PORT_MIN: u16 = 1024;

/// What is wrong with a key or a value in etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// No key of this schema.
    #[error("no record of a fleet has this key")]
    Key,
    /// A newer program wrote it.
    #[error("a newer version of Ropewalk wrote this record (format {0}); update this hub")]
    Newer(u32),
    /// Anything else.
    #[error("the record is damaged: {0}")]
    Value(String),
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `meta`.
    Meta(Meta),
    /// `site/NAME`.
    Site(Box<Site>),
    /// `slot/N`.
    Slot(u32, Owner),
    /// `key/KEY`.
    Key(PublicKey, Owner),
    /// `hub/ID`.
    Hub(Box<HubLease>),
    /// `drain/ID`.
    Drain(String, Drain),
    /// `claim/NAME`.
    Claim(Claim),
}

/// Fields of a newer program, which a record keeps when it is written again.
pub type Rest = serde_json::Map<String, serde_json::Value>;

/// What the whole fleet has in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Public key of the fleet, which sites pin.
    pub fleet: PublicKey,
    /// Where the blocks of sites come from.
    pub pools: Pools,
    /// A backup is being written back: nothing else is written meanwhile.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restoring: bool,
    /// A number by chance for each time that the fleet was made: one that was made anew has no sites, and hubs do not
    /// follow it. None in fleets that earlier programs have made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<u64>,
    /// That number of the fleet in whose place a backup was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// Fields of a newer program.
    #[serde(flatten)]
    pub rest: Rest,
}

impl Meta {
    /// Whether this fleet was made anew since `former` was its record, and is no backup in the place of that one.
    #[must_use]
    pub fn is_remade(&self, former: &Self) -> bool {
        let is_other = self.made.is_some() && self.made != former.made;
        is_other && (former.made.is_none() || self.replaces != former.made)
    }
}

/// Where the blocks of sites come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools {
    /// Inner IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// Prefix length of the IPv4 block of a site: 32 for one address.
    #[serde(default = "whole_v4")]
    pub ipv4_block: u8,
    /// Inner IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// Prefix length of the IPv6 block of a site: 128 for one address.
    #[serde(default = "whole_v6")]
    pub ipv6_block: u8,
    /// IPv4 addresses whose ports the sites share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<Ipv4Addr>,
    /// Ports of a site, of one of these addresses.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ports: u16,
    /// So many blocks at the beginning of each pool of addresses are for the network and the hubs.
    #[serde(default = "reserved")]
    pub reserved: u32,
    /// Fields of a newer program.
    #[serde(flatten)]
    pub rest: Rest,
}

const fn whole_v4() -> u8 {
    32
}
const fn whole_v6() -> u8 {
    128
}
const fn reserved() -> u32 {
    16
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_false(value: &bool) -> bool {
    !*value
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_zero(value: &u16) -> bool {
    *value == 0
}

/// The blocks with one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Inner IPv4 addresses.
    pub ipv4: Option<Ipv4Net>,
    /// Inner IPv6 addresses.
    pub ipv6: Option<Ipv6Net>,
    /// Ports of a shared address.
    pub ports: Option<PortBlock>,
}

/// Ports of a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortBlock {
    /// The shared address.
    pub address: Ipv4Addr,
    /// First port.
    pub first: u16,
    /// How many.
    pub count: u16,
}

impl Pools {
    /// What is wrong with these pools.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), String> {
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Err("no pool of addresses; give an IPv4 or an IPv6 network".to_owned());
        }
        for (pool, block, most) in [
            (self.ipv4.map(|net| net.prefix_len()), self.ipv4_block, 32),
            (self.ipv6.map(|net| net.prefix_len()), self.ipv6_block, 128),
        ] {
            if block > most || pool.is_some_and(|length| length > block) {
                return Err(format!(
                    "a block with a prefix of {block} bits does not fit in its pool; give each site \
                     a longer prefix, or enlarge the pool"
                ));
            }
        }
        let beyond = |pool: IpAddr, network: IpAddr| pool != network;
        let v4 = self
            .ipv4
            .map(|net| (net.addr().into(), net.network().into()));
        let v6 = self
            .ipv6
            .map(|net| (net.addr().into(), net.network().into()));
        if v4
            .into_iter()
            .chain(v6)
            .any(|(addr, net)| beyond(addr, net))
        {
            return Err("a pool has bits beyond its prefix; give its network".to_owned());
        }
        let mut shared = self.shared.clone();
        shared.sort_unstable();
        shared.dedup();
        if shared.len() != self.shared.len() || shared.len() > SHARED_MAX {
            return Err(format!(
                "a shared address stands twice, or there are more than {SHARED_MAX}; remove some"
            ));
        }
        if self.shared.is_empty() != (self.ports == 0) {
            return Err(
                "shared addresses and the number of ports of a site go together; give both"
                    .to_owned(),
            );
        }
        if self.capacity() == 0 {
            return Err("the pools hold no site; enlarge them".to_owned());
        }
        Ok(())
    }

    /// How many sites have room.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        let blocks = |bits: u8| 1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX);
        // The last block of the IPv4 pool has its broadcast address.
        let v4 = self
            .ipv4
            .map(|net| blocks(self.ipv4_block.saturating_sub(net.prefix_len())).saturating_sub(1));
        let v6 = self
            .ipv6
            .map(|net| blocks(self.ipv6_block.saturating_sub(net.prefix_len())));
        let free = v4
            .into_iter()
            .chain(v6)
            .map(|all| all.saturating_sub(self.reserved.into()));
        let ports =
            (self.ports > 0).then(|| self.shared.len() as u64 * u64::from(self.per_shared()));
        let least = free.chain(ports).min().unwrap_or(0);
        u32::try_from(least).unwrap_or(u32::MAX)
    }

    /// How many sites share an address.
    fn per_shared(&self) -> u32 {
        (u32::from(u16::MAX) + 1 - u32::from(PORT_MIN)) / u32::from(self.ports.max(1))
    }

    /// The blocks with the number `slot`; `None` beyond [`Self::capacity`].
    #[must_use]
    pub fn blocks(&self, slot: u32) -> Option<Blocks> {
        if slot >= self.capacity() {
            return None;
        }
        let index = u128::from(slot) + u128::from(self.reserved);
        let ipv4 = self.ipv4.and_then(|net| {
            let first = u128::from(net.network().to_bits()) + (index << (32 - self.ipv4_block));
            let first = Ipv4Addr::from_bits(u32::try_from(first).ok()?);
            Ipv4Net::new(first, self.ipv4_block).ok()
        });
        let ipv6 = self.ipv6.and_then(|net| {
            let shift = u32::from(128 - self.ipv6_block);
            let first = net.network().to_bits() + index.checked_shl(shift)?;
            Ipv6Net::new(Ipv6Addr::from_bits(first), self.ipv6_block).ok()
        });
        let ports = (self.ports > 0).then(|| {
            let (address, part) = (slot / self.per_shared(), slot % self.per_shared());
            let first = u32::from(PORT_MIN) + part * u32::from(self.ports);
            Some(PortBlock {
                address: *self.shared.get(address as usize)?,
                first: u16::try_from(first).ok()?,
                count: self.ports,
            })
        });
        Some(Blocks {
            ipv4,
            ipv6,
            ports: ports.flatten(),
        })
    }

    /// Whether every slot keeps its blocks when these pools come after `former`: they may only grow at their end.
    #[must_use]
    pub fn extends(&self, former: &Self) -> bool {
        let shape = |pools: &Self| {
            let v4 = pools.ipv4.map(|net| net.network());
            let v6 = pools.ipv6.map(|net| net.network());
            let sizes = (
                pools.ipv4_block,
                pools.ipv6_block,
                pools.ports,
                pools.reserved,
            );
            (v4, v6, sizes)
        };
        shape(self) == shape(former)
            && self.shared.starts_with(&former.shared)
            && self.capacity() >= former.capacity()
    }
}

/// A site, with the notions of a single hub's `sites.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Unique name: the end of the record's key.
    #[serde(skip)]
    pub name: String,
    /// Public key; an invited site has none before it has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// The key that the site will have, once it has connected with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_key: Option<PublicKey>,
    /// Number of its blocks.
    pub slot: u32,
    /// Inner IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// Inner IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// Ports of a shared address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortBlock>,
    /// Whether the site may connect.
    pub enabled: bool,
    /// Its part of a busy hub, beside 1 of each other site.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Most that it may send and receive, Mbit/s each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbit: Option<u32>,
    /// What the site may reach beside the internet and the hub's inner addresses; `None` is what the hub says for all.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "allow"
    )]
    pub allow: Option<Vec<Allowed>>,
    /// The invitation by which it joins or has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invitation: Option<Invitation>,
    /// Fields of a newer program.
    #[serde(flatten)]
    pub rest: Rest,
}

const fn one() -> u32 {
    1
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_one(weight: &u32) -> bool {
    *weight == 1
}

fn allow<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Allowed>>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(deserializer)?;
    let parse = |texts: Vec<String>| texts.iter().map(|text| text.parse()).collect();
    texts.map(parse).transpose().map_err(D::Error::custom)
}

impl Site {
    /// Every key by which the site or its invitation is known.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> {
        let invitation = self.invitation.as_ref().map(|invitation| invitation.key);
        [self.key, self.next_key, invitation].into_iter().flatten()
    }
}

/// An invitation: the public half of the key that follows from its secret, which says as little of the secret as a hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Public half.
    pub key: PublicKey,
    /// End, seconds since 1970.
    pub ends: u64,
    /// Who has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// Fields of a newer program.
    #[serde(flatten)]
    pub rest: Rest,
}

/// The use of an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// When, seconds since 1970.
    pub at: u64,
    /// By this key.
    pub key: PublicKey,
    /// Fields of a newer program.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Whose a slot or a key is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Name of the site.
    pub site: String,
    /// Of a slot: the site is gone. A hub that cannot reach etcd may serve it on, so the slot is given again only after
    /// others ([`crate::plan::RESTING_MAX`]).
    #[serde(default, skip_serializing_if = "is_false")]
    pub freed: bool,
}

/// A hub that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubLease {
    /// Unique name: the end of the record's key.
    #[serde(skip)]
    pub id: String,
    /// Its key.
    pub key: PublicKey,
    /// Where sites reach it, preferred first, [`ADDRESSES_MAX`] at most.
    #[serde(with = "endpoints")]
    pub endpoints: Vec<HostPort>,
    /// Its TCP port for TLS.
    pub tcp_port: u16,
    /// Where it is, in the operator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Version of its program.
    pub version: String,
    /// Name, key, addresses, region and end, signed by the fleet's key, if the fleet's key is at work. Whoever uses them
    /// calls [`HubCertificate::verify`]; of a record that was read only the name and the key are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<HubCertificate>,
    /// Sites that it serves now.
    pub sites: u32,
}

/// Endpoints as texts.
mod endpoints {
    use super::{ADDRESSES_MAX, Deserialize, Deserializer, HostPort, Serializer};
    use serde::de::Error as _;

    pub fn serialize<S: Serializer>(list: &[HostPort], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(ToString::to_string))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<HostPort>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        if texts.len() > ADDRESSES_MAX {
            return Err(D::Error::custom("too many endpoints"));
        }
        let parse = |text: String| text.parse().map_err(D::Error::custom);
        texts.into_iter().map(parse).collect()
    }
}

/// Sites shall leave this hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Since when, seconds since 1970.
    pub since: u64,
}

/// Which hub serves a site, as the site has signed it.
///
/// The record's only epoch is the signed one. [`Record::decode`] refuses a claim with a wrong signature.
/// [`crate::Copy::claims`] gives the claims that are signed with a present key of their site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the site: the end of the record's key.
    #[serde(skip)]
    pub site: String,
    /// Key of the site, which has signed.
    pub key: PublicKey,
    /// Grows with each move of the site.
    pub epoch: u64,
    /// Key of the hub that serves the site.
    pub hub: PublicKey,
    /// Signature by `key` over [`ropewalk_wire::Claim::signed`].
    pub signature: Signature,
}

impl Claim {
    /// Whether the holder of `key` has signed it. This computes a signature check: some 50 µs.
    #[must_use]
    pub fn is_genuine(&self) -> bool {
        let (key, hub) = (self.key.as_bytes(), self.hub.as_bytes());
        let signed = ropewalk_wire::Claim::signed(key, self.epoch, hub);
        self.key.has_signed(&signed, &self.signature.0)
    }
}

/// An Ed25519 signature (RFC 8032), base64 in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        let bytes = <[u8; 64]>::try_from(bytes);
        let bytes = bytes.map_err(|_| D::Error::custom("a signature has 64 bytes"))?;
        Ok(Self(bytes))
    }
}

/// Key of the record about the fleet.
pub const META: &str = "meta";

/// Key of a site.
#[must_use]
pub fn site_key(name: &str) -> String {
    format!("site/{name}")
}
/// Key of a slot.
#[must_use]
pub fn slot_key(slot: u32) -> String {
    format!("slot/{slot:08x}")
}
/// The slot with this key, if it is one of a slot.
#[must_use]
pub fn slot_of(key: &str) -> Option<u32> {
    let slot = u32::from_str_radix(key.strip_prefix("slot/")?, 16).ok()?;
    (slot_key(slot) == key).then_some(slot)
}
/// Key of the owner of a public key.
#[must_use]
pub fn owner_key(key: &PublicKey) -> String {
    format!("key/{key}")
}
/// Key of a hub.
#[must_use]
pub fn hub_key(id: &str) -> String {
    format!("hub/{id}")
}
/// Key of a drain mark.
#[must_use]
pub fn drain_key(id: &str) -> String {
    format!("drain/{id}")
}
/// Key of a claim.
#[must_use]
pub fn claim_key(site: &str) -> String {
    format!("claim/{site}")
}

/// Whether a record belongs to a hub that runs, and so is no part of a backup.
#[must_use]
pub fn is_of_running_hub(key: &str) -> bool {
    key.starts_with("hub/")
}

impl Record {
    /// Key of the record, without the prefix of the fleet.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Meta(_) => META.to_owned(),
            Self::Site(site) => site_key(&site.name),
            Self::Slot(slot, _) => slot_key(*slot),
            Self::Key(key, _) => owner_key(key),
            Self::Hub(hub) => hub_key(&hub.id),
            Self::Drain(id, _) => drain_key(id),
            Self::Claim(claim) => claim_key(&claim.site),
        }
    }

    /// Value of the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Meta(meta) => encode(meta),
            Self::Site(site) => encode(site),
            Self::Slot(_, owner) | Self::Key(_, owner) => encode(owner),
            Self::Hub(hub) => encode(hub),
            Self::Drain(_, drain) => encode(drain),
            Self::Claim(claim) => encode(claim),
        }
    }

    /// Reads the record with this key, without the prefix of the fleet, and this value.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, Unreadable> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Unreadable::Value(format!("{} bytes", value.len())));
        }
        if key == META {
            let meta: Meta = decode(value)?;
            // Blocks are computed from pools: those that do not fit have none.
            meta.pools.check().map_err(Unreadable::Value)?;
            return Ok(Self::Meta(meta));
        }
        let (kind, rest) = key.split_once('/').ok_or(Unreadable::Key)?;
        let named = || parse_name(rest).map_err(|_| Unreadable::Key);
        match kind {
            "site" => {
                let name = named()?;
                let site: Site = decode(value)?;
                Ok(Self::Site(Box::new(Site { name, ..site })))
            }
            "slot" => {
                let slot = slot_of(key).ok_or(Unreadable::Key)?;
                Ok(Self::Slot(slot, owner(value)?))
            }
            "key" => {
                let key: PublicKey = rest.parse().map_err(|_| Unreadable::Key)?;
                if key.to_string() != rest {
                    return Err(Unreadable::Key);
                }
                Ok(Self::Key(key, owner(value)?))
            }
            "hub" => {
                let id = named()?;
                let hub: HubLease = decode(value)?;
                let other = hub.certificate.as_ref().map(|certificate| &certificate.hub);
                if let Some(other) = other.filter(|other| other.id != id || other.key != hub.key) {
                    let why = format!("the certificate is one of hub {:?}", other.id);
                    return Err(Unreadable::Value(why));
                }
                Ok(Self::Hub(Box::new(HubLease { id, ..hub })))
            }
            "drain" => Ok(Self::Drain(named()?, decode(value)?)),
            "claim" => {
                let site = named()?;
                let claim: Claim = decode(value)?;
                if !claim.is_genuine() {
                    let why = "the site has not signed this claim".to_owned();
                    return Err(Unreadable::Value(why));
                }
                Ok(Self::Claim(Claim { site, ..claim }))
            }
            _ => Err(Unreadable::Key),
        }
    }
}

fn owner(value: &[u8]) -> Result<Owner, Unreadable> {
    let owner: Owner = decode(value)?;
    parse_name(&owner.site).map_err(Unreadable::Value)?;
    Ok(owner)
}

/// The version beside the fields of a value.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    value: T,
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

fn encode<T: Serialize>(value: T) -> Vec<u8> {
    serde_json::to_vec(&Versioned { v: VERSION, value }).expect("records have text keys only")
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, Unreadable> {
    let wrong = |error: serde_json::Error| Unreadable::Value(error.to_string());
    let VersionOnly { v } = serde_json::from_slice(value).map_err(wrong)?;
    if v > VERSION {
        return Err(Unreadable::Newer(v));
    }
    let versioned: Versioned<T> = serde_json::from_slice(value).map_err(wrong)?;
    Ok(versioned.value)
}

/// Addresses of a hub are for a list that travels in tokens.
pub(crate) fn addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SocketAddr>, D::Error> {
    let addresses = Vec::<SocketAddr>::deserialize(deserializer)?;
    if addresses.len() > ADDRESSES_MAX {
        return Err(D::Error::custom("too many addresses"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    pub(crate) fn pools() -> Pools {
        Pools {
            ipv4: Some("10.9.0.0/16".parse().unwrap()),
            ipv4_block: 32,
            ipv6: Some("fd00:9::/48".parse().unwrap()),
            ipv6_block: 64,
            shared: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()],
            ports: 1024,
            reserved: 16,
            rest: Rest::new(),
        }
    }

    #[test]
    fn blocks_of_two_slots_have_nothing_in_common_and_are_in_the_pools() {
        let pools = pools();
        pools.check().unwrap();
        assert_eq!(
            pools.capacity(),
            126,
            "63 blocks of ports of each of two addresses"
        );
        let mut seen = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for slot in 0..pools.capacity() {
            let blocks = pools.blocks(slot).unwrap();
            let ports = blocks.ports.unwrap();
            assert!(ports.first >= PORT_MIN && ports.first.checked_add(ports.count - 1).is_some());
            assert!(pools.ipv4.unwrap().contains(&blocks.ipv4.unwrap()));
            assert!(pools.ipv6.unwrap().contains(&blocks.ipv6.unwrap()));
            assert!(
                seen.0.insert(blocks.ipv4) && seen.1.insert(blocks.ipv6) && seen.2.insert(ports)
            );
        }
        assert_eq!(pools.blocks(pools.capacity()), None);
        assert_eq!(
            pools.blocks(0).unwrap().ipv4,
            Some("10.9.0.16/32".parse().unwrap())
        );
    }

    #[test]
    fn pools_may_grow_at_their_end_only() {
        let former = pools();
        let more = Pools {
            shared: [former.shared.clone(), vec!["192.0.2.3".parse().unwrap()]].concat(),
            ..pools()
        };
        assert!(more.extends(&former) && !former.extends(&more));
        let moved = Pools {
            ipv4: Some("10.8.0.0/16".parse().unwrap()),
            ..pools()
        };
        assert!(!moved.extends(&former));
        assert!(
            Pools {
                ports: 0,
                ..pools()
            }
            .check()
            .unwrap_err()
            .contains("give both")
        );
    }

    #[test]
    fn a_claim_that_the_site_has_not_signed_and_pools_that_do_not_fit_are_no_records() {
        let site = ropewalk_transport::Identity::from_seed([3; 32]).unwrap();
        let (key, hub) = (site.public_key(), PublicKey::from_bytes([4; 32]));
        let signed = ropewalk_wire::Claim::signed(key.as_bytes(), 5, hub.as_bytes());
        let claim = Claim {
            site: "boat".to_owned(),
            key,
            epoch: 5,
            hub,
            signature: Signature(site.sign(&signed)),
        };
        let read =
            |claim: &Claim| Record::decode("claim/boat", &Record::Claim(claim.clone()).encode());
        assert_eq!(read(&claim), Ok(Record::Claim(claim.clone())));
        let later = Claim { epoch: 6, ..claim };
        assert!(matches!(read(&later), Err(Unreadable::Value(_))));
        // A block longer than an address: its shift has no result.
        let pools = Pools {
            ipv4_block: 40,
            ..pools()
        };
        let meta = Record::Meta(Meta {
            fleet: hub,
            pools,
            restoring: false,
            made: None,
            replaces: None,
            rest: Rest::new(),
        });
        assert!(matches!(
            Record::decode(META, &meta.encode()),
            Err(Unreadable::Value(_))
        ));
    }

    #[test]
    fn the_record_of_a_hub_has_the_name_of_its_certificate() {
        let key = crate::FleetKey::new(ropewalk_transport::Identity::from_seed([1; 32]).unwrap());
        let entry = crate::trust::HubEntry {
            id: "a".to_owned(),
            key: key.public_key(),
            addresses: Vec::new(),
            region: String::new(),
            until: 1,
        };
        let hub = HubLease {
            id: "b".to_owned(),
            key: key.public_key(),
            endpoints: vec!["hub.example:4443".parse().unwrap()],
            tcp_port: 443,
            region: String::new(),
            version: "1".to_owned(),
            certificate: Some(key.certify(entry)),
            sites: 0,
        };
        let value = Record::Hub(Box::new(hub)).encode();
        assert!(Record::decode("hub/a", &value).is_ok());
        assert!(matches!(
            Record::decode("hub/b", &value),
            Err(Unreadable::Value(_))
        ));
    }

    #[test]
    fn a_record_of_a_newer_program_is_told_from_a_damaged_one() {
        let newer = Record::decode("drain/a", b"{\"v\":2,\"since\":1}");
        assert_eq!(newer, Err(Unreadable::Newer(2)));
        assert!(matches!(
            Record::decode("drain/a", b"{"),
            Err(Unreadable::Value(_))
        ));
        assert_eq!(Record::decode("slot/1", b"{}"), Err(Unreadable::Key));
        let drain = Record::Drain("a".to_owned(), Drain { since: 1 });
        assert_eq!(Record::decode(&drain.key(), &drain.encode()), Ok(drain));
        assert_eq!(
            Record::decode("drain/a", b"{\"v\":1,\"since\":1,\"later\":2}")
                .unwrap()
                .encode(),
            b"{\"v\":1,\"since\":1}"
        );
    }
}
