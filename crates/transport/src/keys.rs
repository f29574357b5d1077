//! Ed25519 keys as identities: text form, generation, and the list check of a hub.
//!
//! Invariant: the private key leaves this module only through [`Identity::to_seed_base64`] and into
//! the TLS library. `Debug` never shows it. Source: RFC 8032, RFC 8410.

use core::{fmt, str::FromStr};
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use ropewalk_crypto::hkdf;
use ropewalk_crypto::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use zeroize::Zeroizing;

use crate::{ParseKeyError, TransportError};

/// Says whether the holder of a key may connect. Called once per handshake.
pub type KeyCheck = Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// Bytes of an Ed25519 public key and of a seed.
const KEY_BYTES: usize = 32;
/// Tells derived keys from other uses of a seed.
const DERIVED: &[u8] = b"ropewalk derived key";
/// Bytes of a [`Proof`].
pub const PROOF_BYTES: usize = 64;
/// Tells proofs from other signatures of a key: those of TLS begin with spaces (RFC 8446 §4.4.3).
const PROVED: &[u8] = b"ropewalk proof of a site's key";
/// Characters of a key in base64.
const KEY_CHARS: usize = 44;

/// What the holder of a key says to be known by it in place of another key, or of an invitation: an Ed25519 signature
/// over the other key. Whoever reads the proof can use it only with that other key.
pub type Proof = [u8; PROOF_BYTES];

/// An Ed25519 public key: the name of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Whether the holder of this key has said so to be known by it in place of the key `asker`.
    #[must_use]
    pub fn has_proved(&self, asker: &Self, proof: &Proof) -> bool {
        self.has_signed(&proved(asker), proof)
    }

    /// Whether the holder of this key has signed `message` (Ed25519, RFC 8032).
    #[must_use]
    pub fn has_signed(&self, message: &[u8], signature: &[u8; PROOF_BYTES]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(message, signature).is_ok()
    }

    /// The key with these bytes (RFC 8032 §5.1.5).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        decode(text).map(|bytes| Self(*bytes))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// An Ed25519 private key: who this gateway is. Wiped from memory when dropped.
#[derive(Clone)]
pub struct Identity {
    seed: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl Identity {
    /// A new key from the system's random source.
    ///
    /// # Errors The system does not give random numbers.
    pub fn generate() -> Result<Self, TransportError> {
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        ropewalk_crypto::rand::fill(seed.as_mut_slice()).map_err(|_| TransportError::Random)?;
        Self::from_seed(*seed).map_err(|_| TransportError::Random)
    }

    /// The key whose seed (RFC 8032 §5.1.5, "private key") is `seed`.
    ///
    /// # Errors
    /// When the bytes are refused as a key.
    pub fn from_seed(seed: [u8; KEY_BYTES]) -> Result<Self, ParseKeyError> {
        let seed = Zeroizing::new(seed);
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice())
            .map_err(|_| ParseKeyError::NotAKey)?;
        let public = pair
            .public_key()
            .as_ref()
            .try_into()
            .map_err(|_| ParseKeyError::NotAKey)?;
        Ok(Self {
            seed,
            public: PublicKey(public),
        })
    }

    /// Reads what [`Self::to_seed_base64`] wrote; surrounding white space is ignored.
    ///
    /// # Errors
    /// Says what is wrong with the text, without repeating it.
    pub fn from_seed_base64(text: &str) -> Result<Self, ParseKeyError> {
        Self::from_seed(*decode(text)?)
    }

    /// The seed in base64, for the key file.
    #[must_use]
    pub fn to_seed_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.seed.as_slice()))
    }

    /// The key with this number of those that follow from this one (RFC 5869). Who knows a derived
    /// key learns nothing of this key or of the others.
    ///
    /// # Errors
    /// When the bytes are refused as a key.
    pub fn derived(&self, number: u32) -> Result<Self, ParseKeyError> {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, DERIVED).extract(self.seed.as_slice());
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        let number = number.to_be_bytes();
        secret
            .expand(&[&number], hkdf::HKDF_SHA256)
            .and_then(|key| key.fill(seed.as_mut_slice()))
            .map_err(|_| ParseKeyError::NotAKey)?;
        Self::from_seed(*seed)
    }

    /// The seed, for the TLS library and for keys derived from it.
    pub(crate) fn seed(&self) -> &[u8; KEY_BYTES] {
        &self.seed
    }

    /// The public half.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Proves to whoever knows the holder of the key `asker` that the same machine holds this key.
    #[must_use]
    pub fn prove(&self, asker: &PublicKey) -> Proof {
        self.sign(&proved(asker))
    }

    /// Signs a message (Ed25519, RFC 8032). It begins with a text that no other use of the key has.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; PROOF_BYTES] {
        let pair = Ed25519KeyPair::from_seed_unchecked(self.seed.as_slice());
        let signed = pair
            .expect("the seed was taken as a key before")
            .sign(message);
        let mut signature = [0; PROOF_BYTES];
        signature.copy_from_slice(signed.as_ref());
        signature
    }
}

/// What a proof for the holder of `asker` signs.
fn proved(asker: &PublicKey) -> Vec<u8> {
    [PROVED, asker.as_bytes()].concat()
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.public == other.public
    }
}

impl Eq for Identity {}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

fn decode(text: &str) -> Result<Zeroizing<[u8; KEY_BYTES]>, ParseKeyError> {
    let text = text.trim();
    if text.len() != KEY_CHARS {
        return Err(ParseKeyError::Length(text.chars().count()));
    }
    let mut bytes = Zeroizing::new([0; KEY_BYTES + 1]);
    let length = STANDARD
        .decode_slice(text, bytes.as_mut_slice())
        .map_err(|_| ParseKeyError::Base64)?;
    if length != KEY_BYTES {
        return Err(ParseKeyError::Base64);
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    key.copy_from_slice(&bytes[..KEY_BYTES]);
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 8032 §7.1, test 1.
    const SEED: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
    const PUBLIC: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    #[test]
    fn the_public_key_follows_from_the_seed() {
        let identity = Identity::from_seed_base64(SEED).unwrap();
        assert_eq!(identity.public_key().to_string(), PUBLIC);
        assert_eq!(identity.to_seed_base64().as_str(), SEED);
        let with_line_end = format!("{SEED}\n");
        assert!(Identity::from_seed_base64(&with_line_end).is_ok());
    }

    #[test]
    fn generated_keys_differ_and_survive_the_text_form() {
        let (a, b) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        assert_ne!(a.public_key(), b.public_key());
        let again = Identity::from_seed_base64(&a.to_seed_base64()).unwrap();
        assert_eq!(again.public_key(), a.public_key());
        let key: PublicKey = a.public_key().to_string().parse().unwrap();
        assert_eq!(key, a.public_key());
    }

    #[test]
    fn derived_keys_differ_and_come_again() {
        let identity = Identity::from_seed_base64(SEED).unwrap();
        let key = |number| identity.derived(number).unwrap().public_key();
        assert_eq!(key(7), key(7));
        assert_ne!(key(7), key(8));
        assert_ne!(key(0), identity.public_key());
    }

    #[test]
    fn a_proof_is_good_for_one_key_and_one_asker() {
        let [asker, other, next] = [1, 2, 3].map(|n| Identity::from_seed([n; 32]).unwrap());
        let proof = next.prove(&asker.public_key());
        let key = next.public_key();
        assert!(key.has_proved(&asker.public_key(), &proof));
        assert!(!key.has_proved(&other.public_key(), &proof));
        assert!(!other.public_key().has_proved(&asker.public_key(), &proof));
        let mut broken = proof;
        broken[7] ^= 1;
        assert!(!key.has_proved(&asker.public_key(), &broken));
    }

    #[test]
    fn a_bad_key_is_refused_with_the_reason() {
        let parse = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(parse(""), ParseKeyError::Length(0));
        assert_eq!(parse(&PUBLIC[..43]), ParseKeyError::Length(43));
        assert_eq!(parse(&PUBLIC.replace('=', "!")), ParseKeyError::Base64);
        assert_eq!(parse(&PUBLIC.replace('=', "A")), ParseKeyError::Base64);
        assert_eq!(parse(&"ä".repeat(22)), ParseKeyError::Base64);
    }

    #[test]
    fn debug_never_shows_the_secret() {
        let identity = Identity::from_seed_base64(SEED).unwrap();
        let shown = format!("{identity:?} {identity:#?}");
        assert!(
            shown.contains(PUBLIC) && !shown.contains(&SEED[..8]),
            "{shown}"
        );
        assert!(
            !shown.contains("9d, 61") && !shown.contains("157, 97"),
            "{shown}"
        );
    }

    #[test]
    fn keys_are_text_in_configuration() {
        let key: PublicKey = PUBLIC.parse().unwrap();
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text, format!("\"{PUBLIC}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&text).unwrap(), key);
        let error = serde_json::from_str::<PublicKey>("\"abc\"").unwrap_err();
        assert!(error.to_string().contains("44 characters"), "{error}");
    }
}
