//! The one line that makes a machine a site: what `invite` prints and `join` reads.
//!
//! Text form: `ropewalk2.` and base64url without padding (RFC 4648 §5) of
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version: 3 |
//! | 1 | 1 when a secret follows, else 0 |
//! | 32 | the hub's public key |
//! | 16 | the one-time secret, if so |
//! | 2 | the hub's TCP port, big endian |
//! | 1 + n | length of the site's name, name |
//! | 1 | number of endpoints |
//! | (1 + n) each | length of the endpoint, endpoint as `host:port` |
//! | 1 | number of networks that the hub routes to the site, if it is a relay |
//! | (1 + n) each | length of the network, network as `address/prefix` |
//! | 4 | start of the SHA-256 of all bytes before |
//!
//! The token of a fleet has another version, so that programs which know one hub only refuse it in words:
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version: 4 |
//! | 1 | 1 when a secret follows, else 0 |
//! | 32 | the fleet's public key, from which with the secret the key of the invitation follows |
//! | 16 | the one-time secret, if so |
//! | 1 + n | length of the site's name, name |
//! | 1 | number of hubs, 1 to 3, the home first |
//! | of each hub 32 | its public key |
//! | 2 | its TCP port, big endian |
//! | 1 | number of its region within this token, 0 if the hub has none |
//! | 1 | number of its endpoints |
//! | (1 + n) each | length of the endpoint, endpoint as `host:port` |
//! | 4 | start of the SHA-256 of all bytes before |
//!
//! Invariants: a parsed token has the checksum and nothing after it. A token holds no key but the
//! hub's public one. The secret never appears in `Debug` or in an error.

use std::fmt;

use anyhow::Context;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine};
use ipnet::IpNet;
use ropewalk_crypto::digest::{SHA256, digest};
use ropewalk_crypto::hkdf;
use ropewalk_transport::{Identity, PublicKey};
use zeroize::Zeroizing;

use crate::hub::ENDPOINTS_MAX;
use crate::values::{HostPort, parse_name};

/// What every token of this version starts with.
const PREFIX: &str = "ropewalk2.";
/// What tokens started with that held a private key.
const FORMER: &str = "ropewalk1.";
/// What every token starts with.
const FAMILY: &str = "ropewalk";
const VERSION: u8 = 3;
/// Version of the token of a fleet.
const FLEET_VERSION: u8 = 4;
/// Most hubs of a token. More: more ways to join, longer tokens.
pub const HUBS_MAX: usize = 3;
/// Most endpoints of each hub of a fleet in a token: both families, and as many again. More: longer tokens.
pub const FLEET_ENDPOINTS_MAX: usize = 4;
/// Bytes of a secret: as hard to guess as a key of AES-128. More: longer tokens.
const SECRET_BYTES: usize = 16;
/// Tells keys of invitations from other uses of a secret.
const DERIVED: &[u8] = b"ropewalk invitation";
/// Most networks in a token: one of each family.
const NETWORKS_MAX: usize = 2;
const CHECKSUM_BYTES: usize = 4;
/// Room for the bytes of every token: texts with their lengths, and all else.
const BYTES_MAX: usize = 64 + HUBS_MAX * 35 + 256 * (1 + HUBS_MAX * FLEET_ENDPOINTS_MAX);
const _: () = assert!(HUBS_MAX * FLEET_ENDPOINTS_MAX >= ENDPOINTS_MAX + NETWORKS_MAX);
/// Longest token that is looked at, characters.
const CHARS_MAX: usize = 6_144;
const _: () = assert!(CHARS_MAX > BYTES_MAX * 4 / 3);

/// What proves that a site is the one that the hub has invited.
///
/// A key pair follows from the secret and the hub's public key (RFC 5869). The hub keeps only the public
/// half. The site proves the secret by a handshake with the key pair.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A new one from the system's random source.
    ///
    /// # Errors
    /// The system does not give random numbers.
    pub fn generate() -> anyhow::Result<Self> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        ropewalk_crypto::rand::fill(bytes.as_mut_slice())
            .ok()
            .context("the system gives no random numbers")?;
        Ok(Self(bytes))
    }

    /// The key pair that enrols the site at this hub, or at the hubs of the fleet with this key.
    ///
    /// # Errors
    /// When the bytes are refused as a key.
    pub fn identity(&self, hub: &PublicKey) -> anyhow::Result<Identity> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, DERIVED);
        let mut seed = Zeroizing::new([0; 32]);
        salt.extract(self.0.as_slice())
            .expand(&[hub.as_bytes()], hkdf::HKDF_SHA256)
            .and_then(|key| key.fill(seed.as_mut_slice()))
            .ok()
            .context("no key follows from the secret")?;
        Ok(Identity::from_seed(*seed)?)
    }
}

/// Where a hub is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The hub's public key.
    pub key: PublicKey,
    /// The hub's TCP port for TLS.
    pub tcp_port: u16,
    /// Hubs of a token with the same number are in the same region. 0: the hub has none.
    pub region: u8,
    /// Where the hub is reached, preferred first; 1 to [`FLEET_ENDPOINTS_MAX`].
    pub endpoints: Vec<HostPort>,
}

/// The fleet of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetPlaces {
    /// The fleet's public key.
    pub key: PublicKey,
    /// Region of the first hub, as in [`Place`].
    pub region: u8,
    /// Further hubs, at most [`HUBS_MAX`] less one.
    pub others: Vec<Place>,
}

/// Everything a site must know to reach its hub.
pub struct Token {
    /// The hub's public key.
    pub hub_key: PublicKey,
    /// The one-time secret, unless the hub has the site's key already.
    pub secret: Option<Secret>,
    /// The hub's TCP port for TLS.
    pub tcp_port: u16,
    /// The site's name.
    pub name: String,
    /// Where the hub is reached, preferred first; 1 to [`ENDPOINTS_MAX`].
    pub endpoints: Vec<HostPort>,
    /// Networks that the hub routes to a relay, for its sites; at most one of each family. Empty
    /// for a plain site.
    pub networks: Vec<IpNet>,
    /// The fleet, if the hub belongs to one. A site of a fleet has no networks.
    pub fleet: Option<FleetPlaces>,
}

/// Why a text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Something else altogether.
    #[error(
        "this is no token: a token starts with {PREFIX}; copy the whole line that `ropewalk invite` printed"
    )]
    NotAToken,
    /// A newer version.
    #[error("this token was made by a newer version of Ropewalk; update this machine")]
    Version,
    /// An older version.
    #[error(
        "this token was made by an older version of Ropewalk; update the hub, and make a new token there \
         with `ropewalk invite NAME --replace`"
    )]
    Older,
    /// One of those that held a private key.
    #[error(
        "this token was made by an older version of Ropewalk, and may hold a private key; update the \
         hub, and make a new token there with `ropewalk invite NAME --replace`"
    )]
    Former,
    /// Cut or changed on the way.
    #[error("the token is damaged ({0}); copy the whole line again, without spaces or line breaks")]
    Damaged(&'static str),
}

impl Token {
    /// The key from which, with the secret, the key of the invitation follows.
    #[must_use]
    pub fn inviting_key(&self) -> &PublicKey {
        let fleet = self.fleet.as_ref().map(|fleet| &fleet.key);
        fleet.unwrap_or(&self.hub_key)
    }

    /// The hubs at which the site may join, the home first.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        let home = Place {
            key: self.hub_key,
            tcp_port: self.tcp_port,
            region: self.fleet.as_ref().map_or(0, |fleet| fleet.region),
            endpoints: self.endpoints.clone(),
        };
        let others = self.fleet.iter().flat_map(|fleet| fleet.others.clone());
        std::iter::once(home).chain(others).collect()
    }

    /// The text form. It is a secret when it holds one.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        // A buffer that grows leaves copies of the secret behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(BYTES_MAX));
        if let Some(fleet) = &self.fleet {
            self.put_of_fleet(&mut bytes, &fleet.key);
        } else {
            self.put_of_hub(&mut bytes);
        }
        let checksum = digest(&SHA256, &bytes);
        bytes.extend_from_slice(&checksum.as_ref()[..CHECKSUM_BYTES]);
        let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(&*bytes));
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + encoded.len()));
        text.push_str(PREFIX);
        text.push_str(&encoded);
        text
    }

    fn put_of_fleet(&self, bytes: &mut Vec<u8>, fleet: &PublicKey) {
        bytes.extend_from_slice(&[FLEET_VERSION, u8::from(self.secret.is_some())]);
        bytes.extend_from_slice(fleet.as_bytes());
        if let Some(secret) = &self.secret {
            bytes.extend_from_slice(secret.0.as_slice());
        }
        put_text(bytes, &self.name);
        let mut places = self.places();
        places.truncate(HUBS_MAX);
        bytes.push(u8::try_from(places.len()).unwrap_or(u8::MAX));
        for place in &places {
            bytes.extend_from_slice(place.key.as_bytes());
            bytes.extend_from_slice(&place.tcp_port.to_be_bytes());
            bytes.push(place.region);
            put_endpoints(bytes, &place.endpoints, FLEET_ENDPOINTS_MAX);
        }
    }

    fn put_of_hub(&self, bytes: &mut Vec<u8>) {
        let networks = &self.networks[..self.networks.len().min(NETWORKS_MAX)];
        bytes.extend_from_slice(&[VERSION, u8::from(self.secret.is_some())]);
        bytes.extend_from_slice(self.hub_key.as_bytes());
        if let Some(secret) = &self.secret {
            bytes.extend_from_slice(secret.0.as_slice());
        }
        bytes.extend_from_slice(&self.tcp_port.to_be_bytes());
        put_text(bytes, &self.name);
        put_endpoints(bytes, &self.endpoints, ENDPOINTS_MAX);
        bytes.push(u8::try_from(networks.len()).unwrap_or(u8::MAX));
        for network in networks {
            put_text(bytes, &network.to_string());
        }
    }

    /// Reads the text form; white space around it is ignored.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.starts_with(FORMER) {
            return Err(TokenError::Former);
        }
        let Some(encoded) = text.strip_prefix(PREFIX) else {
            let newer = text.strip_prefix(FAMILY).is_some_and(|rest| {
                rest.split_once('.')
                    .is_some_and(|(version, _)| version.parse::<u32>().is_ok())
            });
            return Err(if newer {
                TokenError::Version
            } else {
                TokenError::NotAToken
            });
        };
        if encoded.len() > CHARS_MAX {
            return Err(TokenError::Damaged("too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|error| {
            TokenError::Damaged(match error {
                DecodeError::InvalidByte(..) => "a character that does not belong there",
                DecodeError::InvalidLength(_)
                | DecodeError::InvalidLastSymbol { .. }
                | DecodeError::InvalidPadding => "its end is missing or wrong",
            })
        })?;
        let bytes = Zeroizing::new(bytes);
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(TokenError::Damaged("too short"))?;
        if digest(&SHA256, body).as_ref()[..CHECKSUM_BYTES] != checksum[..] {
            return Err(TokenError::Damaged("the checksum does not match"));
        }
        parse_body(body)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

fn parse_body(body: &[u8]) -> Result<Token, TokenError> {
    let mut rest = body;
    let version = take::<1>(&mut rest)?[0];
    if version == FLEET_VERSION {
        return parse_of_fleet(rest);
    }
    if version != VERSION {
        return Err(if version > VERSION {
            TokenError::Version
        } else {
            TokenError::Older
        });
    }
    let has_secret = take::<1>(&mut rest)?[0] == 1;
    let hub_key = PublicKey::from_bytes(take(&mut rest)?);
    let secret = if has_secret {
        Some(Secret(Zeroizing::new(take(&mut rest)?)))
    } else {
        None
    };
    let tcp_port = u16::from_be_bytes(take(&mut rest)?);
    let name = parse_name(take_text(&mut rest)?).map_err(|_| TokenError::Damaged("no name"))?;
    let endpoints = take_endpoints(&mut rest, ENDPOINTS_MAX)?;
    let networks = take_networks(&mut rest)?;
    if !rest.is_empty() {
        return Err(TokenError::Damaged("too long"));
    }
    Ok(Token {
        hub_key,
        secret,
        tcp_port,
        name,
        endpoints,
        networks,
        fleet: None,
    })
}

/// What follows the version in the token of a fleet.
fn parse_of_fleet(body: &[u8]) -> Result<Token, TokenError> {
    let mut rest = body;
    let has_secret = take::<1>(&mut rest)?[0] == 1;
    let key = PublicKey::from_bytes(take(&mut rest)?);
    let secret = if has_secret {
        Some(Secret(Zeroizing::new(take(&mut rest)?)))
    } else {
        None
    };
    let name = parse_name(take_text(&mut rest)?).map_err(|_| TokenError::Damaged("no name"))?;
    let count = usize::from(take::<1>(&mut rest)?[0]);
    if count == 0 || count > HUBS_MAX {
        return Err(TokenError::Damaged("no hubs"));
    }
    let mut places = Vec::new();
    for _ in 0..count {
        places.push(Place {
            key: PublicKey::from_bytes(take(&mut rest)?),
            tcp_port: u16::from_be_bytes(take(&mut rest)?),
            region: take::<1>(&mut rest)?[0],
            endpoints: take_endpoints(&mut rest, FLEET_ENDPOINTS_MAX)?,
        });
    }
    if !rest.is_empty() {
        return Err(TokenError::Damaged("too long"));
    }
    let home = places.remove(0);
    Ok(Token {
        hub_key: home.key,
        secret,
        tcp_port: home.tcp_port,
        name,
        endpoints: home.endpoints,
        networks: Vec::new(),
        fleet: Some(FleetPlaces {
            key,
            region: home.region,
            others: places,
        }),
    })
}

fn put_endpoints(bytes: &mut Vec<u8>, endpoints: &[HostPort], most: usize) {
    let endpoints = &endpoints[..endpoints.len().min(most)];
    bytes.push(u8::try_from(endpoints.len()).unwrap_or(u8::MAX));
    for endpoint in endpoints {
        put_text(bytes, &endpoint.to_string());
    }
}

fn take_endpoints(rest: &mut &[u8], most: usize) -> Result<Vec<HostPort>, TokenError> {
    let count = usize::from(take::<1>(rest)?[0]);
    if count == 0 || count > most {
        return Err(TokenError::Damaged("no endpoints"));
    }
    let mut endpoints = Vec::new();
    for _ in 0..count {
        let endpoint = take_text(rest)?.parse();
        endpoints.push(endpoint.map_err(|_| TokenError::Damaged("no endpoint"))?);
    }
    Ok(endpoints)
}

/// The networks of a relay: one, or one of each family; none of a plain site.
fn take_networks(rest: &mut &[u8]) -> Result<Vec<IpNet>, TokenError> {
    let count = usize::from(take::<1>(rest)?[0]);
    let mut networks: Vec<IpNet> = Vec::new();
    for _ in 0..count {
        let network: IpNet = take_text(rest)?
            .parse()
            .map_err(|_| TokenError::Damaged("no network"))?;
        let is_ipv4 = network.addr().is_ipv4();
        let again = networks.iter().any(|net| net.addr().is_ipv4() == is_ipv4);
        if again || network != network.trunc() {
            return Err(TokenError::Damaged("no network"));
        }
        networks.push(network);
    }
    Ok(networks)
}

/// Names and endpoints are shorter than 256 bytes by their own checks.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    bytes.push(length);
    bytes.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], TokenError> {
    let (head, tail) = rest
        .split_first_chunk::<N>()
        .ok_or(TokenError::Damaged("too short"))?;
    *rest = tail;
    Ok(*head)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, TokenError> {
    let length = usize::from(take::<1>(rest)?[0]);
    let (head, tail) = rest
        .split_at_checked(length)
        .ok_or(TokenError::Damaged("too short"))?;
    *rest = tail;
    std::str::from_utf8(head).map_err(|_| TokenError::Damaged("no text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_whose_end_is_missing_is_told_from_one_with_a_strange_character() {
        let damaged = |text: &str| match Token::decode(text) {
            Err(TokenError::Damaged(why)) => why,
            other => panic!("{other:?}"),
        };
        let whole = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([0x5a; 60]));
        // One more than a multiple of four cannot be, nor can two more that have bits to spare.
        assert_eq!(
            damaged(&whole[..PREFIX.len() + 41]),
            "its end is missing or wrong"
        );
        assert_eq!(
            damaged(&whole[..PREFIX.len() + 42]),
            "its end is missing or wrong"
        );
        let strange = format!("{}!{}", &whole[..30], &whole[31..]);
        assert_eq!(damaged(&strange), "a character that does not belong there");
    }

    fn token(with_secret: bool) -> Token {
        Token {
            hub_key: Identity::from_seed([7; 32]).unwrap().public_key(),
            secret: with_secret.then(|| Secret(Zeroizing::new([9; SECRET_BYTES]))),
            tcp_port: 443,
            name: "boat".to_owned(),
            endpoints: vec![
                "192.0.2.7:4443".parse().unwrap(),
                "[2001:db8::1]:4443".parse().unwrap(),
            ],
            networks: Vec::new(),
            fleet: None,
        }
    }

    fn of_fleet(others: u8) -> Token {
        let place = |number: u8| Place {
            key: PublicKey::from_bytes([number + 20; 32]),
            tcp_port: 444,
            region: number,
            endpoints: vec![format!("hub{number}.example:4443").parse().unwrap()],
        };
        let fleet = FleetPlaces {
            key: PublicKey::from_bytes([5; 32]),
            region: 1,
            others: (0..others).map(place).collect(),
        };
        Token {
            fleet: Some(fleet),
            ..token(true)
        }
    }

    #[test]
    fn the_token_of_a_fleet_has_its_hubs_in_their_order() {
        for others in 0..3 {
            let sent = of_fleet(others);
            let got = Token::decode(&sent.encode()).unwrap();
            assert_eq!(got.places(), sent.places());
            assert_eq!((&got.name, &got.fleet), (&sent.name, &sent.fleet));
            assert_eq!(got.inviting_key(), &PublicKey::from_bytes([5; 32]));
            assert_eq!(got.secret.map(|secret| *secret.0), Some([9; SECRET_BYTES]));
        }
        let text = of_fleet(2).encode();
        for cut in 0..text.len() {
            assert!(Token::decode(&text[..cut]).is_err(), "cut at {cut}");
        }
    }

    /// What the longest names take is still read.
    #[test]
    fn the_longest_token_of_a_fleet_is_read() {
        let mut sent = of_fleet(2);
        let host = |label: &str| format!("{}.{}:65535", [label; 3].join("."), "e".repeat(50));
        let endpoint: HostPort = host(&"h".repeat(63)).parse().unwrap();
        sent.name = "n".repeat(63);
        sent.endpoints = vec![endpoint.clone(); FLEET_ENDPOINTS_MAX];
        for place in &mut sent.fleet.as_mut().unwrap().others {
            place.endpoints = vec![endpoint.clone(); FLEET_ENDPOINTS_MAX];
        }
        let got = Token::decode(&sent.encode()).unwrap();
        assert_eq!(got.places(), sent.places());
    }

    #[test]
    fn token_survives_encoding() {
        for with_secret in [true, false] {
            let sent = token(with_secret);
            let text = sent.encode();
            assert!(!text.contains(char::is_whitespace));
            let got = Token::decode(&format!("  {}\n", *text)).unwrap();
            assert_eq!(got.hub_key, sent.hub_key);
            let bytes = |token: &Token| token.secret.as_ref().map(|secret| *secret.0);
            assert_eq!(bytes(&got), bytes(&sent));
            assert_eq!((got.tcp_port, got.name), (443, "boat".to_owned()));
            assert_eq!(got.endpoints, sent.endpoints);
        }
    }

    #[test]
    fn networks_of_a_relay_survive() {
        let networks: Vec<IpNet> = ["10.9.0.192/26", "fd00:9::/96"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        for networks in [networks.clone(), networks[..1].to_vec(), Vec::new()] {
            let mut sent = token(true);
            sent.networks.clone_from(&networks);
            assert_eq!(Token::decode(&sent.encode()).unwrap().networks, networks);
        }
    }

    #[test]
    fn any_other_byte_in_any_place_is_noticed() {
        let text = token(true).encode();
        for index in 0..text.len() {
            assert!(Token::decode(&text[..index]).is_err(), "cut at {index}");
            for byte in 0..=127 {
                let mut changed = text.as_bytes().to_vec();
                if changed[index] == byte {
                    continue;
                }
                changed[index] = byte;
                let changed = String::from_utf8(changed).unwrap();
                // White space around a token belongs to no token: then it is one that was cut.
                let error = Token::decode(&changed).expect_err("a damaged token");
                assert!(error.to_string().contains("token"), "{error}");
            }
        }
    }

    #[test]
    fn other_texts_are_told_apart() {
        assert_eq!(Token::decode("hello").unwrap_err(), TokenError::NotAToken);
        assert_eq!(Token::decode("").unwrap_err(), TokenError::NotAToken);
        assert_eq!(
            Token::decode("ropewalk3.AAAA").unwrap_err(),
            TokenError::Version
        );
        let former = Token::decode("ropewalk1.AQFdbW9R").unwrap_err();
        assert_eq!(former, TokenError::Former);
        assert!(former.to_string().contains("ropewalk invite NAME"));
    }

    /// A token as it was printed once. Tokens in the hands of users are good for weeks.
    #[test]
    fn a_recorded_token_is_read() {
        let recorded = "ropewalk2.AwHqSmxj4pxSCr71UHsTLsX5lUd2rr6-e5JCHuppFEbSLAkJCQkJCQkJCQkJ\
            CQkJCQkBuwRib2F0Ag4xOTIuMC4yLjc6NDQ0MxJbMjAwMTpkYjg6OjFdOjQ0NDMAiYvPEQ";
        let got = Token::decode(recorded).unwrap();
        let sent = token(true);
        assert_eq!((got.hub_key, got.name), (sent.hub_key, sent.name));
        assert_eq!(got.endpoints, sent.endpoints);
        assert_eq!(got.secret.map(|secret| *secret.0), Some([9; SECRET_BYTES]));
    }

    #[test]
    fn tokens_of_other_versions_say_which_end_to_update() {
        let of_version = |version| {
            let mut body = vec![version, 0];
            body.extend_from_slice(&[7; 40]);
            parse_body(&body).unwrap_err()
        };
        assert_eq!(of_version(FLEET_VERSION + 1), TokenError::Version);
        assert_eq!(of_version(VERSION - 1), TokenError::Older);
        assert!(
            TokenError::Version
                .to_string()
                .contains("update this machine")
        );
        assert!(TokenError::Older.to_string().contains("update the hub"));
    }

    #[test]
    fn a_secret_gives_each_hub_another_key_and_the_same_again() {
        let hub = |number| Identity::from_seed([number; 32]).unwrap().public_key();
        let key = |secret: u8, number| {
            let secret = Secret(Zeroizing::new([secret; SECRET_BYTES]));
            secret.identity(&hub(number)).unwrap().public_key()
        };
        assert_eq!(key(1, 1), key(1, 1));
        assert_ne!(key(1, 1), key(1, 2));
        assert_ne!(key(1, 1), key(2, 1));
        let (a, b) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(a.0, b.0);
    }

    #[test]
    fn the_secret_is_in_no_debug_output() {
        let shown = format!("{:?}", token(true));
        assert!(
            !shown.contains("[9, 9") && !shown.contains("CQkJ"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_without_panic(text in "ropewalk2\\.[A-Za-z0-9_-]{0,300}") {
            let _ = Token::decode(&text);
        }

        #[test]
        fn any_body_is_refused_or_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_body(&body);
        }
    }
}
