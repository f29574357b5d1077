//! What a site signs about the hub that serves it.
//!
//! Several hubs need no agreement on who serves a site: the site says so, and of two statements the one with the
//! higher epoch holds, wherever it is read. Whoever passes a statement on cannot change it. Invariant: a
//! [`Statement`] that came from outside is used only after [`Statement::is_genuine`].

use ropewalk_transport::{Identity, PublicKey};
use ropewalk_wire::Claim;

/// That a hub serves a site in an epoch, in the site's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Key of the site.
    pub site: PublicKey,
    /// Rises with every move of the site.
    pub epoch: u64,
    /// Key of the hub that serves the site.
    pub hub: PublicKey,
    /// The site's Ed25519 signature over [`Claim::signed`].
    pub signature: [u8; 64],
}

impl Statement {
    /// The site with this identity says so.
    #[must_use]
    pub fn sign(site: &Identity, epoch: u64, hub: &PublicKey) -> Self {
        let key = site.public_key();
        let signed = Claim::signed(key.as_bytes(), epoch, hub.as_bytes());
        Self {
            site: key,
            epoch,
            hub: *hub,
            signature: site.sign(&signed),
        }
    }

    /// Whether the site has signed it. This computes a signature check: some 50 µs.
    #[must_use]
    pub fn is_genuine(&self) -> bool {
        let signed = Claim::signed(self.site.as_bytes(), self.epoch, self.hub.as_bytes());
        self.site.has_signed(&signed, &self.signature)
    }

    /// What the message of a site says, unchecked.
    pub(crate) const fn of(site: PublicKey, claim: &Claim) -> Self {
        Self {
            site,
            epoch: claim.epoch,
            hub: PublicKey::from_bytes(claim.hub),
            signature: claim.signature,
        }
    }

    /// As it goes over the wire.
    pub(crate) const fn claim(&self) -> Claim {
        Claim {
            epoch: self.epoch,
            hub: *self.hub.as_bytes(),
            signature: self.signature,
        }
    }
}
