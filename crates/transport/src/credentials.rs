//! TLS 1.3 with Ed25519 raw public keys pinned on both sides; shared by QUIC and TLS over TCP.
//!
//! Invariant: every handshake authenticates both sides, nothing is resumed, no secret is logged.
//! A client compares the server's key before it checks the signature. A server does both at once, and tells
//! a stranger nothing of its list. Source: RFC 7250, RFC 8446
//! §4.4.2 and §4.4.3, RFC 8410 §4.

use std::sync::Arc;

use ropewalk_crypto::tls;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

use crate::{Identity, KeyCheck, PublicKey, TransportError};

/// Application protocol (RFC 7301): a change of the datagram format changes it.
pub(crate) const ALPN: &[u8] = b"ropewalk/1";

/// The alert a refused key causes on both sides (RFC 8446 §6.2, `access_denied`).
pub(crate) const ALERT_KEY_REFUSED: u8 = 49;

/// The name in the client's hello: keys decide, so it carries no information.
pub(crate) const SERVER_NAME: &str = "ropewalk.invalid";

/// DER before the key bytes of an Ed25519 SubjectPublicKeyInfo (RFC 8410 §4).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// DER before the seed of an Ed25519 private key (RFC 8410 §7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The key in a SubjectPublicKeyInfo; `None` unless it is Ed25519.
pub(crate) fn key_of_spki(spki: &[u8]) -> Option<PublicKey> {
    let key = spki.strip_prefix(&SPKI_PREFIX)?;
    key.try_into().ok().map(PublicKey::from_bytes)
}

fn spki_of_key(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], key.as_bytes()].concat()
}

/// Cipher suites by speed: with AES instructions AES-128-GCM costs least, without them ChaCha20.
/// One key exchange group keeps the client's hello within one packet.
fn provider() -> CryptoProvider {
    use tls::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let mut cipher_suites = vec![
        TLS13_AES_128_GCM_SHA256,
        TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
    ];
    if !has_aes() {
        cipher_suites.rotate_right(1);
    }
    CryptoProvider {
        cipher_suites,
        kx_groups: vec![tls::kx_group::X25519],
        ..tls::default_provider()
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

fn tls_error(error: &Error) -> TransportError {
    TransportError::Tls(error.to_string())
}

fn certified_key(
    identity: &Identity,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TransportError> {
    let pkcs8 = zeroize::Zeroizing::new([&PKCS8_PREFIX[..], identity.seed()].concat());
    let key = PrivatePkcs8KeyDer::from(pkcs8.as_slice()).clone_key();
    let key = provider
        .key_provider
        .load_private_key(key.into())
        .map_err(|e| tls_error(&e))?;
    let public = CertificateDer::from(spki_of_key(&identity.public_key()));
    Ok(CertifiedKey::new(vec![public], key))
}

/// TLS of the connecting side: the peer must hold `peer_key`, or `also` if there is one.
pub(crate) fn client_config(
    identity: &Identity,
    peer_key: PublicKey,
    also: Option<PublicKey>,
) -> Result<rustls::ClientConfig, TransportError> {
    let provider = Arc::new(provider());
    let key = Arc::new(certified_key(identity, &provider)?);
    let pinned = PinnedServer {
        key: peer_key,
        also,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| tls_error(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// TLS of the accepting side: the peer must hold a key that `allowed` accepts.
pub(crate) fn server_config(
    identity: &Identity,
    allowed: KeyCheck,
) -> Result<rustls::ServerConfig, TransportError> {
    let provider = Arc::new(provider());
    let key = Arc::new(certified_key(identity, &provider)?);
    let listed = ListedClient {
        allowed,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| tls_error(&e))?
        .with_client_cert_verifier(Arc::new(listed))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

const REFUSED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
const NOT_A_KEY: Error = Error::InvalidCertificate(CertificateError::BadEncoding);

/// Accepts exactly one key, or two while the peer changes its key.
#[derive(Debug)]
struct PinnedServer {
    key: PublicKey,
    also: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = key_of_spki(end_entity.as_ref()).ok_or(NOT_A_KEY)?;
        if found != self.key && Some(found) != self.also {
            return Err(REFUSED);
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(REFUSED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Accepts the keys a list holds.
///
/// The list is asked last, together with the check of the signature. Whoever lacks the private half of a key
/// gets the same answer at the same point, on the list or not.
struct ListedClient {
    allowed: KeyCheck,
    algorithms: WebPkiSupportedAlgorithms,
}

impl core::fmt::Debug for ListedClient {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ListedClient").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ListedClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        key_of_spki(end_entity.as_ref()).ok_or(NOT_A_KEY)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(REFUSED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let found = key_of_spki(cert.as_ref()).ok_or(NOT_A_KEY)?;
        let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
        let signed = verify_tls13_signature_with_raw_key(message, &spki, dss, &self.algorithms);
        // Both are always done, so that the time tells no more than the answer.
        let listed = (self.allowed)(&found);
        match signed {
            Ok(valid) if listed => Ok(valid),
            Ok(_) | Err(_) => Err(REFUSED),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustls::{ClientConnection, Connection, ServerConnection};

    use super::*;

    fn identity(number: u8) -> Identity {
        Identity::from_seed([number; 32]).unwrap()
    }

    /// Somebody who holds the key `own` and says that it is `claimed`; what the hub, which has the keys
    /// `listed`, sends back before it is done, and how it ends at both.
    fn attempt(own: u8, claimed: u8, listed: &[u8]) -> (Vec<usize>, String, String) {
        let hub = identity(100);
        let mut client = client_config(&identity(own), hub.public_key(), None).unwrap();
        let pretended = certified_key(&identity(own), &provider()).unwrap();
        let public = CertificateDer::from(spki_of_key(&identity(claimed).public_key()));
        let key = Arc::new(CertifiedKey::new(vec![public], pretended.key));
        client.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(key));
        // The key comes in another record than the signature.
        client.max_fragment_size = Some(64);
        let listed: BTreeSet<_> = listed.iter().map(|n| identity(*n).public_key()).collect();
        let allowed: KeyCheck = Arc::new(move |key| listed.contains(key));
        let server = Arc::new(server_config(&hub, allowed).unwrap());
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut client = Connection::from(client);
        let mut server = Connection::from(ServerConnection::new(server).unwrap());
        let mut sizes = Vec::new();
        let (mut at_hub, mut at_site) = (String::new(), String::new());
        loop {
            let mut up = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut up).unwrap();
            }
            // Record by record, so that an answer to the key alone would be seen.
            let mut rest = &up[..];
            while !rest.is_empty() && at_hub.is_empty() {
                let length = 5 + usize::from(u16::from_be_bytes([rest[3], rest[4]]));
                let mut record = &rest[..length];
                rest = &rest[length..];
                server.read_tls(&mut record).unwrap();
                if let Err(error) = server.process_new_packets() {
                    at_hub = error.to_string();
                }
                let mut down = Vec::new();
                while server.wants_write() {
                    server.write_tls(&mut down).unwrap();
                }
                sizes.push(down.len());
                client.read_tls(&mut &down[..]).unwrap();
                if let Err(error) = client.process_new_packets() {
                    at_site = error.to_string();
                }
            }
            if up.is_empty() {
                return (sizes, at_hub, at_site);
            }
        }
    }

    #[test]
    fn strangers_get_one_answer_whatever_the_list_says_of_the_key_they_name() {
        let enrolled = attempt(1, 1, &[1]);
        assert_eq!((&*enrolled.1, &*enrolled.2), ("", ""));
        let unknown = attempt(2, 2, &[1]);
        assert!(unknown.2.contains("AccessDenied"), "{unknown:?}");
        let removed = attempt(1, 1, &[]);
        let somebody_elses = attempt(2, 1, &[1]);
        let nobodys = attempt(2, 3, &[1]);
        assert_eq!(removed, unknown);
        assert_eq!(
            somebody_elses, unknown,
            "the answer tells that key 1 is enrolled"
        );
        assert_eq!(nobodys, unknown);
    }
}
