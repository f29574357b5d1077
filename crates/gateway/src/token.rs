//! The one line that makes a machine a site: what `invite` prints and `join` reads.
//!
//! Text form: `ropewalk1.` and base64url without padding (RFC 4648 §5) of
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version: 1, or 2 for a relay |
//! | 1 | 1 when a private key follows, else 0 |
//! | 32 | the hub's public key |
//! | 32 | the site's private key, if so |
//! | 2 | the hub's TCP port, big endian |
//! | 1 + n | length of the site's name, name |
//! | 1 | number of endpoints |
//! | (1 + n) each | length of the endpoint, endpoint as `host:port` |
//! | 1 | version 2: number of networks that the hub routes to the relay |
//! | (1 + n) each | length of the network, network as `address/prefix` |
//! | 4 | start of the SHA-256 of all bytes before |
//!
//! Invariants: a parsed token has the checksum and nothing after it. The private key never appears
//! in `Debug` or in an error.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ipnet::IpNet;
use ropewalk_transport::{Identity, PublicKey};

use ropewalk_config::hub::ENDPOINTS_MAX;
use ropewalk_config::values::{HostPort, parse_name};

/// What every token of this version starts with.
const PREFIX: &str = "ropewalk1.";
/// What every token starts with.
const FAMILY: &str = "ropewalk";
const VERSION: u8 = 1;
/// Version of a token with networks. Programs that do not know relays say that they are too old for
/// it.
const VERSION_RELAY: u8 = 2;
/// Most networks in a token: one of each family.
const NETWORKS_MAX: usize = 2;
const CHECKSUM_BYTES: usize = 4;
/// Longest token that is looked at, characters.
const CHARS_MAX: usize = 4_096;

/// Everything a site must know to reach its hub.
pub struct Token {
    /// The hub's public key.
    pub hub_key: PublicKey,
    /// The site's key pair, unless the site made its own.
    pub identity: Option<Identity>,
    /// The hub's TCP port for TLS.
    pub tcp_port: u16,
    /// The site's name.
    pub name: String,
    /// Where the hub is reached, preferred first; 1 to [`ENDPOINTS_MAX`].
    pub endpoints: Vec<HostPort>,
    /// Networks that the hub routes to a relay, for its sites; at most one of each family. Empty
    /// for a plain site.
    pub networks: Vec<IpNet>,
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
    /// Cut or changed on the way.
    #[error("the token is damaged ({0}); copy the whole line again, without spaces or line breaks")]
    Damaged(&'static str),
}

impl Token {
    /// The text form. It is a secret when it holds a private key.
    #[must_use]
    pub fn encode(&self) -> String {
        let networks = &self.networks[..self.networks.len().min(NETWORKS_MAX)];
        let version = if networks.is_empty() {
            VERSION
        } else {
            VERSION_RELAY
        };
        let mut bytes = vec![version, u8::from(self.identity.is_some())];
        bytes.extend_from_slice(self.hub_key.as_bytes());
        if let Some(identity) = &self.identity {
            let seed = STANDARD
                .decode(identity.to_seed_base64().as_bytes())
                .unwrap_or_default();
            bytes.extend_from_slice(&seed);
        }
        bytes.extend_from_slice(&self.tcp_port.to_be_bytes());
        put_text(&mut bytes, &self.name);
        let endpoints = &self.endpoints[..self.endpoints.len().min(ENDPOINTS_MAX)];
        bytes.push(u8::try_from(endpoints.len()).unwrap_or(u8::MAX));
        for endpoint in endpoints {
            put_text(&mut bytes, &endpoint.to_string());
        }
        if version == VERSION_RELAY {
            bytes.push(u8::try_from(networks.len()).unwrap_or(u8::MAX));
            for network in networks {
                put_text(&mut bytes, &network.to_string());
            }
        }
        let checksum = digest(&SHA256, &bytes);
        bytes.extend_from_slice(&checksum.as_ref()[..CHECKSUM_BYTES]);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Reads the text form; white space around it is ignored.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
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
        let bytes = URL_SAFE_NO_PAD
            .decode(encoded)
            .map_err(|_| TokenError::Damaged("a character that does not belong there"))?;
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
    if ![VERSION, VERSION_RELAY].contains(&version) {
        return Err(TokenError::Version);
    }
    let has_seed = take::<1>(&mut rest)?[0] == 1;
    let hub_key = PublicKey::from_bytes(take(&mut rest)?);
    let identity = if has_seed {
        let seed = take(&mut rest)?;
        Some(Identity::from_seed(seed).map_err(|_| TokenError::Damaged("no key"))?)
    } else {
        None
    };
    let tcp_port = u16::from_be_bytes(take(&mut rest)?);
    let name = parse_name(take_text(&mut rest)?).map_err(|_| TokenError::Damaged("no name"))?;
    let count = usize::from(take::<1>(&mut rest)?[0]);
    if count == 0 || count > ENDPOINTS_MAX {
        return Err(TokenError::Damaged("no endpoints"));
    }
    let mut endpoints = Vec::new();
    for _ in 0..count {
        let endpoint = take_text(&mut rest)?.parse();
        endpoints.push(endpoint.map_err(|_| TokenError::Damaged("no endpoint"))?);
    }
    let networks = if version == VERSION_RELAY {
        take_networks(&mut rest)?
    } else {
        Vec::new()
    };
    if !rest.is_empty() {
        return Err(TokenError::Damaged("too long"));
    }
    Ok(Token {
        hub_key,
        identity,
        tcp_port,
        name,
        endpoints,
        networks,
    })
}

/// The networks of a relay: one, or one of each family.
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
    if networks.is_empty() {
        return Err(TokenError::Damaged("no networks"));
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

    fn token(with_key: bool) -> Token {
        Token {
            hub_key: Identity::from_seed([7; 32]).unwrap().public_key(),
            identity: with_key.then(|| Identity::from_seed([9; 32]).unwrap()),
            tcp_port: 443,
            name: "boat".to_owned(),
            endpoints: vec![
                "192.0.2.7:4443".parse().unwrap(),
                "[2001:db8::1]:4443".parse().unwrap(),
            ],
            networks: Vec::new(),
        }
    }

    #[test]
    fn token_survives_encoding() {
        for with_key in [true, false] {
            let sent = token(with_key);
            let text = sent.encode();
            assert!(!text.contains(char::is_whitespace));
            let got = Token::decode(&format!("  {text}\n")).unwrap();
            assert_eq!(got.hub_key, sent.hub_key);
            assert_eq!(got.identity.is_some(), with_key);
            let public = |token: &Token| token.identity.as_ref().map(Identity::public_key);
            assert_eq!(public(&got), public(&sent));
            assert_eq!((got.tcp_port, got.name), (443, "boat".to_owned()));
            assert_eq!(got.endpoints, sent.endpoints);
        }
    }

    #[test]
    fn networks_of_a_relay_survive_and_a_plain_token_is_as_before() {
        let networks: Vec<IpNet> = ["10.9.0.192/26", "fd00:9::/96"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        for networks in [networks.clone(), networks[..1].to_vec(), Vec::new()] {
            let mut sent = token(true);
            sent.networks.clone_from(&networks);
            let text = sent.encode();
            let first = URL_SAFE_NO_PAD.decode(&text[PREFIX.len()..]).unwrap()[0];
            assert_eq!(first, if networks.is_empty() { 1 } else { 2 });
            assert_eq!(Token::decode(&text).unwrap().networks, networks);
        }
    }

    #[test]
    fn every_changed_or_cut_character_is_noticed() {
        let text = token(true).encode();
        for index in PREFIX.len()..text.len() {
            assert!(Token::decode(&text[..index]).is_err(), "cut at {index}");
            let mut changed = text.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            let result = Token::decode(&changed);
            assert!(
                matches!(result, Err(TokenError::Damaged(_))),
                "changed at {index}"
            );
        }
    }

    #[test]
    fn other_texts_are_told_apart() {
        assert_eq!(Token::decode("hello").unwrap_err(), TokenError::NotAToken);
        assert_eq!(Token::decode("").unwrap_err(), TokenError::NotAToken);
        assert_eq!(
            Token::decode("ropewalk2.AAAA").unwrap_err(),
            TokenError::Version
        );
    }

    #[test]
    fn private_key_is_in_no_debug_output() {
        let shown = format!("{:?}", token(true));
        let seed = token(true).identity.unwrap().to_seed_base64();
        assert!(
            !shown.contains(seed.as_str()) && !shown.contains("[9, 9"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_without_panic(text in "ropewalk1\\.[A-Za-z0-9_-]{0,300}") {
            let _ = Token::decode(&text);
        }

        #[test]
        fn any_body_is_refused_or_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_body(&body);
        }
    }
}
