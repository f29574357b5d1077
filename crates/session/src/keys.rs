//! What a session and its control side say to each other while a gateway changes its key.
//!
//! The control side keeps the keys on disk. So a session uses a key, or says that it knows one, only after the
//! control side has written the key down.

use ropewalk_transport::{CloseReason, GROUPS, Identity, PublicKey};

/// What the control side says of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyStep {
    /// The gateway is to have this key. A site asks its hub for it, and takes the key up by itself; a hub
    /// announces it to its sites.
    Next(Identity),
    /// New connections have the key that was announced from now on (hub only).
    Switch,
    /// No next key is made any more in place of this one, which the hub has refused (site only).
    GiveUp {
        /// The key.
        key: PublicKey,
        /// Why, and what to do, for people.
        reason: String,
    },
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

/// Why a hub with several workers does not take the next key of a site: the connections of a site are all at one of
/// them. The site makes another key, which may fall to that one.
pub const OTHER_WORKER: &str = "another worker of the hub would serve this key: make another key";

/// Why a hub does not take the next key of a site for now.
pub(crate) const TOO_OFTEN: &str =
    "this site has changed its key several times in a row: try again in a few minutes";

/// What a site is told whose QUIC connection names another worker than that of its key; its group follows.
const ELSEWHERE: &str = "another worker of the hub serves this key: connect as group ";

/// What a site is told that is to connect as this group.
pub(crate) fn elsewhere(group: u8) -> String {
    format!("{ELSEWHERE}{group}")
}

/// The group that a hub has named as the reason why it ended a connection. Only packets that the hub has encrypted for
/// the connection hold such a reason (RFC 9000 §10.2.3).
pub(crate) fn group_named(reason: &CloseReason) -> Option<u8> {
    let CloseReason::PeerClosed(words) = reason else {
        return None;
    };
    let group = words.strip_prefix(ELSEWHERE)?;
    group.parse().ok().filter(|group| *group < GROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_named_and_read_and_nothing_else_is_a_group() {
        for group in [0, 7, GROUPS - 1] {
            let reason = CloseReason::PeerClosed(elsewhere(group));
            assert_eq!(group_named(&reason), Some(group));
            // Anybody can put these words into a packet of the handshake.
            let reason = CloseReason::Transport(elsewhere(group));
            assert_eq!(group_named(&reason), None);
        }
        let mut words = vec![String::new(), "group 7".to_owned(), ELSEWHERE.to_owned()];
        words.extend(["64", "300", "-1", "7 ", "x"].map(|text| format!("{ELSEWHERE}{text}")));
        for words in words {
            let reason = CloseReason::PeerClosed(words);
            assert_eq!(group_named(&reason), None, "{reason}");
        }
    }
}
