//! What a session tells of itself: tunnels and paths as the API shows them, and counted drops.

use std::collections::BTreeMap;

use ropewalk_api::{KeyRotation, PassedStatus, TunnelStatus};
use ropewalk_core::tunnel::Tunnel;

/// State of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStatus {
    /// `site` or `hub`.
    pub role: &'static str,
    /// Public key of this gateway, base64.
    pub public_key: String,
    /// The change of that key, if one is under way or was refused.
    pub rotation: Option<KeyRotation>,
    /// Inner addresses of this gateway with prefix length.
    pub addresses: Vec<String>,
    /// One entry per peer: the hub of a site, the known sites of a hub.
    pub tunnels: Vec<TunnelStatus>,
    /// Of a hub that passes packets on to other hubs.
    pub passed: Option<PassedStatus>,
    /// Counted drops and refusals by reason, over all tunnels and links.
    pub drops: BTreeMap<String, u64>,
}

impl SessionStatus {
    /// Adds a tunnel's counted drops.
    pub(crate) fn add_tunnel_drops(&mut self, tunnel: &Tunnel) {
        let stats = tunnel.stats();
        let counts = [
            ("queue_codel", stats.queue.dropped_codel),
            ("queue_full", stats.queue.dropped_full),
            ("send_buffer", stats.buffer_drops),
            ("malformed_datagrams", stats.malformed),
            ("headers_unknown", stats.headers_unknown),
            ("invalid_inner", stats.invalid_inner),
            ("too_big", stats.too_big),
            ("fragments", stats.fragments_dropped),
            ("duplicates", stats.reorder.duplicates),
        ];
        for (name, count) in counts {
            *self.drops.entry(name.to_owned()).or_default() += count;
        }
    }
}
