//! What a session and its control side say to each other while a gateway changes its key.
//!
//! The control side keeps the keys on disk. So a session uses a key, or says that it knows one, only after the
//! control side has written the key down.

use ropewalk_transport::{Identity, PublicKey};

/// What the control side says of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyStep {
    /// The gateway is to have this key. A site asks its hub for it, and takes the key up by itself; a hub
    /// announces it to its sites.
    Next(Identity),
    /// New connections have the key that was announced from now on (hub only).
    Switch,
    /// What is written down of the hub's keys beside the one that the settings have (site only).
    OfHub {
        /// The key that the hub will have.
        next: Option<PublicKey>,
        /// The key that it had before: a hub that has not started anew since tells sites apart by it.
        former: Option<PublicKey>,
    },
}

/// What a session says of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyEvent {
    /// The hub has let this site in with its next key (site only).
    Confirmed(PublicKey),
    /// The hub does not take the next key of this site (site only).
    Refused {
        /// The key.
        key: PublicKey,
        /// Why, in the words of the hub.
        reason: String,
    },
    /// The hub will have this key. [`KeyStep::OfHub`] is the answer (site only).
    HubNext(PublicKey),
    /// The hub has this key now; the second one is its former key (site only).
    HubIs(PublicKey, PublicKey),
    /// A site has connected with its next key (hub only).
    Used(PublicKey),
}
