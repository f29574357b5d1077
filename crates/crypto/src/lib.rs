//! Cryptography of one library, chosen when the program is built: AWS-LC, or ring where AWS-LC
//! cannot be built.
//!
//! Invariant: both give the same bytes for the same inputs, and the same cipher suites and key exchange.
//! So gateways with either work together. Where both are built, AWS-LC is used: features of cargo add up.
//! Source: docs/decisions/packages.md.

#![forbid(unsafe_code)]

#[cfg(not(any(feature = "aws-lc", feature = "ring")))]
compile_error!("choose the cryptography: build with the feature `aws-lc` or with `ring`");

/// The name of the library in use.
pub const LIBRARY: &str = if cfg!(feature = "aws-lc") {
    "aws-lc"
} else {
    "ring"
};

#[cfg(feature = "aws-lc")]
pub use aws_lc_rs::{constant_time, digest, hkdf, hmac, rand, signature};
#[cfg(feature = "aws-lc")]
pub use rustls::crypto::aws_lc_rs as tls;

#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub use ring::{digest, hkdf, hmac, signature};
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub use rustls::crypto::ring as tls;

/// Random numbers of the system.
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub mod rand {
    use ring::{
        error::Unspecified,
        rand::{SecureRandom, SystemRandom},
    };

    /// Fills `bytes` with random ones.
    ///
    /// # Errors
    /// The system does not give random numbers.
    pub fn fill(bytes: &mut [u8]) -> Result<(), Unspecified> {
        SystemRandom::new().fill(bytes)
    }
}

/// Comparisons that take the same time whatever the bytes are.
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub mod constant_time {
    use ring::error::Unspecified;

    /// Says whether the bytes are equal.
    ///
    /// # Errors
    /// They are not, or there are more of one than of the other.
    pub fn verify_slices_are_equal(a: &[u8], b: &[u8]) -> Result<(), Unspecified> {
        // ring names no successor in its own API: it wants comparisons inside its own algorithms only.
        #[expect(deprecated)]
        ring::constant_time::verify_slices_are_equal(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::KeyPair;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    /// RFC 5869 §A.1.
    #[test]
    fn derived_secrets_are_those_of_the_standard() {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &bytes("000102030405060708090a0b0c"));
        let secret = salt.extract(&[0x0b; 22]);
        let info = bytes("f0f1f2f3f4f5f6f7f8f9");
        let mut okm = [0; 32];
        secret
            .expand(&[&info], hkdf::HKDF_SHA256)
            .expect("as long as the hash")
            .fill(&mut okm)
            .expect("as long as was said");
        let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf";
        assert_eq!(okm.to_vec(), bytes(expected));
    }

    /// RFC 8032 §7.1, test 1.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let pair = signature::Ed25519KeyPair::from_seed_unchecked(&seed).expect("32 bytes");
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(pair.public_key().as_ref(), bytes(public));
        let signed = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555\
                      fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
        assert_eq!(pair.sign(b"").as_ref(), bytes(signed));
    }

    #[test]
    fn bytes_that_differ_are_not_equal() {
        assert!(constant_time::verify_slices_are_equal(b"one", b"one").is_ok());
        assert!(constant_time::verify_slices_are_equal(b"one", b"two").is_err());
        assert!(constant_time::verify_slices_are_equal(b"one", b"ones").is_err());
    }

    #[test]
    fn random_bytes_differ() {
        let mut made = [[0; 32]; 2];
        for bytes in &mut made {
            rand::fill(bytes).expect("random numbers of the system");
        }
        assert_ne!(made[0], made[1]);
    }

    #[test]
    fn both_offer_what_the_tunnel_asks_for() {
        let suites = [
            tls::cipher_suite::TLS13_AES_128_GCM_SHA256,
            tls::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        assert!(suites.iter().all(|suite| suite.tls13().is_some()));
        assert_eq!(
            tls::kx_group::X25519.name(),
            rustls::NamedGroup::X25519,
            "the only key exchange"
        );
        assert_eq!(LIBRARY == "aws-lc", cfg!(feature = "aws-lc"));
    }
}
