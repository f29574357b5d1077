//! The key of the fleet, and what it signs: certificates of hubs, and the list of them.
//!
//! Sites pin the public key of the fleet. The fleet's key certifies the key of a hub for a short time, so a stolen key of
//! a hub is worth little soon. The private half of the fleet's key need not be on any hub.
//!
//! What is signed are bytes with one encoding ([`HubEntry`] and [`HubList`] say which), whatever text carries the values.
//! All numbers are big-endian. A text or a block is its length in bytes as a `u32`, and then its bytes.
//!
//! Invariant: every signature begins with words that say what is signed, and the number of the encoding, so none can be
//! taken for another. Different values have different bytes: every field has a fixed length or says its length.
//! Source: RFC 8032.

use std::net::SocketAddr;

use ropewalk_transport::{Identity, PublicKey};
use serde::{Deserialize, Serialize};

use crate::record::{Signature, addresses};

/// Longest life of a certificate, seconds: a day. Shorter ones are safer, longer ones outlast a longer absence of the
/// fleet's key.
pub const LIFE_SECONDS_MAX: u64 = 86_400;
/// So far the clock of the signer may be ahead of the reader's, seconds. More forgives worse clocks, and lets what is
/// signed last that much longer.
pub const CLOCK_SECONDS: u64 = 300;
/// Most hubs of a list.
pub const HUBS_MAX: usize = 64;
const HUB: &[u8] = b"ropewalk certificate of a hub\0";
const LIST: &[u8] = b"ropewalk list of hubs\0";
/// Number of the encoding of what is signed.
const ENCODING: u8 = 1;

/// Why a certificate or a list is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// Another key signed it, or it was changed.
    #[error("the key of this fleet has not signed it: check that the hub belongs to this fleet")]
    Signature,
    /// Too old.
    #[error("it ended {0} s ago: renew it with the key of the fleet, and check the clocks")]
    Ended(u64),
    /// It would last too long.
    #[error("it ends more than {LIFE_SECONDS_MAX} s from now: check the clocks")]
    TooLong,
    /// More than a list holds.
    #[error("a list has {HUBS_MAX} hubs at most, this has {0}")]
    TooMany(usize),
}

/// The private key of a fleet.
#[derive(Clone, Debug)]
pub struct FleetKey(Identity);

impl FleetKey {
    /// The fleet's key, from the file of a key.
    #[must_use]
    pub const fn new(identity: Identity) -> Self {
        Self(identity)
    }

    /// What sites pin.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.0.public_key()
    }

    /// Certifies a hub until `hub.until`.
    #[must_use]
    pub fn certify(&self, hub: HubEntry) -> HubCertificate {
        let signature = Signature(self.0.sign(&hub.signed()));
        HubCertificate { hub, signature }
    }

    /// Signs the list of the fleet's hubs: [`HUBS_MAX`] at most, or nobody takes it.
    #[must_use]
    pub fn list(&self, number: u64, until: u64, hubs: Vec<HubCertificate>) -> HubList {
        let mut list = HubList {
            number,
            until,
            hubs,
            signature: Signature([0; 64]),
        };
        list.signature = Signature(self.0.sign(&list.signed()));
        list
    }
}

/// What is certified of a hub. The signed bytes, in this order:
///
/// | bytes | what |
/// |---|---|
/// | 30 | `ropewalk certificate of a hub` and a zero byte |
/// | 1 | number of the encoding, 1 |
/// | a text | name |
/// | 32 | key |
/// | `u32` | number of addresses |
/// | 1 + 4 + 2, or 1 + 20 + 2 | each address: 4, IPv4 address, port; or 6, IPv6 address, scope as `u32`, port |
/// | a text | region |
/// | `u64` | end |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubEntry {
    /// Name of the hub in the fleet.
    pub id: String,
    /// Its key.
    pub key: PublicKey,
    /// Where sites reach it.
    #[serde(deserialize_with = "addresses")]
    pub addresses: Vec<SocketAddr>,
    /// Where it is, in the operator's words.
    pub region: String,
    /// End, seconds since 1970.
    pub until: u64,
}

impl HubEntry {
    fn signed(&self) -> Vec<u8> {
        let mut out = [HUB, &[ENCODING]].concat();
        block(self.id.as_bytes(), &mut out);
        out.extend_from_slice(self.key.as_bytes());
        count(self.addresses.len(), &mut out);
        for address in &self.addresses {
            match address {
                SocketAddr::V4(v4) => {
                    out.push(4);
                    out.extend_from_slice(&v4.ip().octets());
                }
                SocketAddr::V6(v6) => {
                    out.push(6);
                    out.extend_from_slice(&v6.ip().octets());
                    out.extend_from_slice(&v6.scope_id().to_be_bytes());
                }
            }
            out.extend_from_slice(&address.port().to_be_bytes());
        }
        block(self.region.as_bytes(), &mut out);
        out.extend_from_slice(&self.until.to_be_bytes());
        out
    }
}

/// The length of something in memory, which has fewer than 2^32 parts or was not read from anywhere.
fn count(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

fn block(bytes: &[u8], out: &mut Vec<u8>) {
    count(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// That a key is one of a hub of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubCertificate {
    /// What is certified.
    pub hub: HubEntry,
    signature: Signature,
}

impl HubCertificate {
    /// The hub, if the fleet's key certifies it at `now`, seconds since 1970.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(&self, fleet: &PublicKey, now: u64) -> Result<&HubEntry, Distrust> {
        check(fleet, &self.hub.signed(), &self.signature)?;
        lasts(self.hub.until, now)?;
        Ok(&self.hub)
    }
}

/// The hubs of a fleet, for tokens and for sites that are connected. The signed bytes, in this order:
///
/// | bytes | what |
/// |---|---|
/// | 22 | `ropewalk list of hubs` and a zero byte |
/// | 1 | number of the encoding, 1 |
/// | `u64` | number of the list |
/// | `u64` | end |
/// | `u32` | number of hubs |
/// | a block and 64 | each hub: the signed bytes of its certificate, and the signature of the certificate |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubList {
    /// Grows with each list: a site takes no older one than it has.
    pub number: u64,
    /// End, seconds since 1970.
    pub until: u64,
    /// The hubs.
    pub hubs: Vec<HubCertificate>,
    signature: Signature,
}

impl HubList {
    /// The hubs whose certificates hold at `now`, seconds since 1970.
    ///
    /// # Errors
    /// Why the list is not taken.
    pub fn verify(&self, fleet: &PublicKey, now: u64) -> Result<Vec<&HubEntry>, Distrust> {
        if self.hubs.len() > HUBS_MAX {
            return Err(Distrust::TooMany(self.hubs.len()));
        }
        check(fleet, &self.signed(), &self.signature)?;
        lasts(self.until, now)?;
        let hubs = self.hubs.iter();
        Ok(hubs.filter_map(|hub| hub.verify(fleet, now).ok()).collect())
    }

    fn signed(&self) -> Vec<u8> {
        let mut out = [LIST, &[ENCODING]].concat();
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.until.to_be_bytes());
        count(self.hubs.len(), &mut out);
        for certificate in &self.hubs {
            block(&certificate.hub.signed(), &mut out);
            out.extend_from_slice(&certificate.signature.0);
        }
        out
    }
}

fn check(fleet: &PublicKey, message: &[u8], signature: &Signature) -> Result<(), Distrust> {
    if fleet.has_signed(message, &signature.0) {
        Ok(())
    } else {
        Err(Distrust::Signature)
    }
}

const fn lasts(until: u64, now: u64) -> Result<(), Distrust> {
    if until <= now {
        return Err(Distrust::Ended(now - until));
    }
    if until - now > LIFE_SECONDS_MAX + CLOCK_SECONDS {
        return Err(Distrust::TooLong);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> FleetKey {
        FleetKey::new(Identity::from_seed([number; 32]).unwrap())
    }

    fn entry(until: u64) -> HubEntry {
        HubEntry {
            id: "a".to_owned(),
            key: key(9).public_key(),
            addresses: vec!["192.0.2.1:4433".parse().unwrap()],
            region: "north".to_owned(),
            until,
        }
    }

    #[test]
    fn a_hub_is_trusted_until_its_certificate_ends_and_not_when_changed() {
        let (fleet, other) = (key(1), key(2));
        let certificate = fleet.certify(entry(2_000));
        assert_eq!(
            certificate.verify(&fleet.public_key(), 1_000),
            Ok(&entry(2_000))
        );
        assert_eq!(
            certificate.verify(&other.public_key(), 1_000),
            Err(Distrust::Signature)
        );
        assert_eq!(
            certificate.verify(&fleet.public_key(), 2_000),
            Err(Distrust::Ended(0))
        );
        let mut changed = certificate.clone();
        changed.hub.addresses.clear();
        assert_eq!(
            changed.verify(&fleet.public_key(), 1_000),
            Err(Distrust::Signature)
        );
        let long = fleet.certify(entry(1_001 + LIFE_SECONDS_MAX + CLOCK_SECONDS));
        assert_eq!(
            long.verify(&fleet.public_key(), 1_000),
            Err(Distrust::TooLong)
        );
    }

    #[test]
    fn a_list_names_the_hubs_that_are_certified_now() {
        let fleet = key(1);
        let hubs = vec![
            fleet.certify(entry(2_000)),
            fleet.certify(entry(1_000)),
            key(2).certify(entry(2_000)),
        ];
        let list = fleet.list(7, 3_000, hubs);
        let read: HubList = serde_json::from_str(&serde_json::to_string(&list).unwrap()).unwrap();
        assert_eq!(
            read.verify(&fleet.public_key(), 1_500),
            Ok(vec![&entry(2_000)])
        );
        let cut = HubList {
            hubs: Vec::new(),
            ..list
        };
        assert_eq!(
            cut.verify(&fleet.public_key(), 1_500),
            Err(Distrust::Signature)
        );
    }

    /// The bytes are those that the documentation says, and none of a library for JSON.
    #[test]
    fn what_is_signed_has_one_encoding_that_does_not_depend_on_the_text() {
        let fleet = key(1);
        let hub = HubEntry {
            addresses: vec![
                "192.0.2.1:4433".parse().unwrap(),
                "[fe80::1%7]:9".parse().unwrap(),
            ],
            ..entry(2_000)
        };
        let mut bytes = b"ropewalk certificate of a hub\0\x01\0\0\0\x01a".to_vec();
        bytes.extend_from_slice(key(9).public_key().as_bytes());
        bytes.extend_from_slice(b"\0\0\0\x02\x04\xc0\0\x02\x01\x11\x51\x06\xfe\x80");
        bytes.extend_from_slice(&[0; 13]);
        bytes.extend_from_slice(b"\x01\0\0\0\x07\0\x09\0\0\0\x05north\0\0\0\0\0\0\x07\xd0");
        let certificate = fleet.certify(hub);
        assert!(
            fleet
                .public_key()
                .has_signed(&bytes, &certificate.signature.0)
        );
        // Another order of fields and other spaces are the same certificate.
        let value: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&certificate).unwrap()).unwrap();
        let read: HubCertificate =
            serde_json::from_str(&serde_json::to_string_pretty(&value).unwrap()).unwrap();
        assert_eq!(
            read.verify(&fleet.public_key(), 1_000),
            Ok(&certificate.hub)
        );
        // What moves from one field to the next is another message.
        let moved = HubEntry {
            id: "an".to_owned(),
            region: "orth".to_owned(),
            ..certificate.hub.clone()
        };
        assert_ne!(moved.signed(), certificate.hub.signed());
        let list = fleet.list(7, 3_000, vec![certificate.clone()]);
        let inner = certificate.hub.signed();
        let mut bytes = b"ropewalk list of hubs\0\x01\0\0\0\0\0\0\0\x07".to_vec();
        bytes.extend_from_slice(b"\0\0\0\0\0\0\x0b\xb8\0\0\0\x01\0\0\0");
        bytes.push(u8::try_from(inner.len()).unwrap());
        bytes.extend_from_slice(&inner);
        bytes.extend_from_slice(&certificate.signature.0);
        assert!(fleet.public_key().has_signed(&bytes, &list.signature.0));
        let many = fleet.list(8, 3_000, vec![certificate; HUBS_MAX + 1]);
        assert_eq!(
            many.verify(&fleet.public_key(), 1_000),
            Err(Distrust::TooMany(HUBS_MAX + 1))
        );
    }

    #[test]
    fn a_certificate_of_the_longest_life_holds_at_a_hub_whose_clock_is_behind() {
        let fleet = key(1);
        let certificate = fleet.certify(entry(1_000 + LIFE_SECONDS_MAX));
        assert!(certificate.verify(&fleet.public_key(), 700).is_ok());
        assert!(certificate.verify(&fleet.public_key(), 699).is_err());
    }
}
