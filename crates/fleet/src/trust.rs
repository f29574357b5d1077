//! The key of the fleet, and what it signs: certificates of hubs, and the list of them.
//!
//! Sites pin the public key of the fleet. The fleet's key certifies the key of a hub for a short time, so a stolen key of
//! a hub is worth little soon. The private half of the fleet's key need not be on any hub.
//!
//! Invariant: every signature begins with words that say what is signed, so none can be taken for another.
//! Source: RFC 8032.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ropewalk_crypto::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use ropewalk_transport::{Identity, PublicKey};
use serde::{Deserialize, Serialize};

use crate::record::addresses;

/// Longest life of a certificate, seconds: a day. Shorter ones are safer, longer ones outlast a longer absence of the
/// fleet's key.
pub const LIFE_SECONDS_MAX: u64 = 86_400;
/// Most hubs of a list.
pub const HUBS_MAX: usize = 64;
const HUB: &[u8] = b"ropewalk certificate of a hub\0";
const LIST: &[u8] = b"ropewalk list of hubs\0";

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
        let signature = self.sign(HUB, &signed(&hub));
        HubCertificate { hub, signature }
    }

    /// Signs the list of the fleet's hubs.
    #[must_use]
    pub fn list(&self, number: u64, until: u64, hubs: Vec<HubCertificate>) -> HubList {
        let mut list = HubList {
            number,
            until,
            hubs,
            signature: String::new(),
        };
        list.signature = self.sign(LIST, &list.signed());
        list
    }

    fn sign(&self, purpose: &[u8], message: &[u8]) -> String {
        let text = self.0.to_seed_base64();
        let seed =
            zeroize::Zeroizing::new(STANDARD.decode(text.as_bytes()).expect("base64 of a seed"));
        let pair =
            Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed that was taken before");
        debug_assert_eq!(pair.public_key().as_ref(), self.public_key().as_bytes());
        STANDARD.encode(pair.sign(&[purpose, message].concat()).as_ref())
    }
}

/// What is certified of a hub.
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

/// That a key is one of a hub of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubCertificate {
    /// What is certified.
    pub hub: HubEntry,
    signature: String,
}

impl HubCertificate {
    /// The hub, if the fleet's key certifies it at `now`, seconds since 1970.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(&self, fleet: &PublicKey, now: u64) -> Result<&HubEntry, Distrust> {
        check(fleet, HUB, &signed(&self.hub), &self.signature)?;
        lasts(self.hub.until, now)?;
        Ok(&self.hub)
    }
}

/// The hubs of a fleet, for tokens and for sites that are connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubList {
    /// Grows with each list: a site takes no older one than it has.
    pub number: u64,
    /// End, seconds since 1970.
    pub until: u64,
    /// The hubs.
    pub hubs: Vec<HubCertificate>,
    signature: String,
}

impl HubList {
    /// The hubs whose certificates hold at `now`, seconds since 1970.
    ///
    /// # Errors
    /// Why the list is not taken.
    pub fn verify(&self, fleet: &PublicKey, now: u64) -> Result<Vec<&HubEntry>, Distrust> {
        check(fleet, LIST, &self.signed(), &self.signature)?;
        lasts(self.until, now)?;
        let hubs = self.hubs.iter().take(HUBS_MAX);
        Ok(hubs.filter_map(|hub| hub.verify(fleet, now).ok()).collect())
    }

    fn signed(&self) -> Vec<u8> {
        signed(&(self.number, self.until, &self.hubs))
    }
}

/// The bytes that are signed: JSON, whose fields have one order in this program. They are encoded again from what was
/// read, so a value that reads alike verifies alike.
fn signed<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("entries have text keys only")
}

fn check(
    fleet: &PublicKey,
    purpose: &[u8],
    message: &[u8],
    signature: &str,
) -> Result<(), Distrust> {
    let signature = STANDARD
        .decode(signature)
        .map_err(|_| Distrust::Signature)?;
    let key = UnparsedPublicKey::new(&ED25519, fleet.as_bytes());
    key.verify(&[purpose, message].concat(), &signature)
        .map_err(|_| Distrust::Signature)
}

const fn lasts(until: u64, now: u64) -> Result<(), Distrust> {
    if until <= now {
        return Err(Distrust::Ended(now - until));
    }
    if until - now > LIFE_SECONDS_MAX {
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
        let long = fleet.certify(entry(1_001 + LIFE_SECONDS_MAX));
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
}
