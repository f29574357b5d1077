//! A certificate made for one run, and a client that accepts that one only.
//!
//! There is no name and no authority: the SHA-256 fingerprint of the certificate decides.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("write {} hexadecimal digits", 2 * SHA256_OUTPUT_LEN);
        if text.len() != 2 * SHA256_OUTPUT_LEN || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// TLS of the server with a fresh self-signed certificate, and its fingerprint.
pub(crate) fn server() -> Result<(QuicServerConfig, Fingerprint)> {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let fingerprint = Fingerprint::of(&certificate);
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = QuicServerConfig::try_from(tls).context("TLS for QUIC")?;
    Ok((config, fingerprint))
}

/// TLS of a client that accepts only the certificate with this fingerprint.
pub(crate) fn client(pin: Fingerprint) -> Result<QuicClientConfig> {
    let provider = provider();
    let verifier = PinVerifier {
        pin,
        provider: Arc::clone(&provider),
    };
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    QuicClientConfig::try_from(tls).context("TLS for QUIC")
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[derive(Debug)]
struct PinVerifier {
    pin: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Fingerprint::of(end_entity) == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// In the client's hello; the fingerprint decides, so it carries no information.
pub(crate) const SERVER_NAME: &str = "bulk.invalid";
const ALPN: &[u8] = b"ropewalk-bulk/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let fingerprint = Fingerprint([0xa5; SHA256_OUTPUT_LEN]);
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        for wrong in ["", &text[1..], &text.replace('a', "g"), &"é".repeat(32)] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
