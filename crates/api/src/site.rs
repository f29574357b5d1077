//! A site as a hub shows it to people: a line of a list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::TunnelStatus;
use crate::words::{Weight, Words};

/// A site of a hub or relay, in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SiteStatus {
    /// Name.
    pub name: String,
    /// Whether any path works.
    pub up: bool,
    /// Inner addresses.
    pub addresses: String,
    /// Paths that work, and all.
    pub paths: [usize; 2],
    /// Inner bytes to the site.
    pub sent_bytes: u64,
    /// Inner bytes from the site.
    pub received_bytes: u64,
    /// Version of the wire, 0 before both ends stated theirs.
    pub wire: u8,
    /// What is wrong with its paths: the name of the uplink, and what matters most of it.
    pub words: Vec<(String, Words)>,
}

impl SiteStatus {
    /// The site at the other end of a tunnel.
    #[must_use]
    pub fn of(tunnel: TunnelStatus) -> Self {
        let up = tunnel.paths.iter().filter(|path| path.is_up()).count();
        let paths = [up, tunnel.paths.len()];
        let first = tunnel.paths.into_iter().filter_map(|path| {
            let words = path.words.into_iter().next()?;
            (words.weight != Weight::Good).then_some((path.uplink, words))
        });
        Self {
            name: tunnel.peer,
            up: tunnel.up,
            addresses: tunnel.peer_addresses.join(" "),
            paths,
            sent_bytes: tunnel.tx_bytes,
            received_bytes: tunnel.rx_bytes,
            wire: tunnel.wire_version,
            words: first.collect(),
        }
    }
}
