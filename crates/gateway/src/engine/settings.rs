//! What the control side hands to the engine when it starts, and what the engine tells back.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_session::{KeyEvent, Statement};
use ropewalk_transport::PublicKey;
use ropewalk_types::PortBlock;

/// What an engine needs besides what its session is given.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Name of the TUN interface to create, 1..=15 bytes.
    pub tun_name: String,
    /// Whether TUN and UDP segmentation offloads may be used.
    pub offload: bool,
    /// Requested size of each UDP socket's send and receive buffer, bytes.
    pub socket_buffer_bytes: usize,
    /// Mark of the packets that the tunnel sends, for firewall rules (`SO_MARK`).
    pub mark: Option<u32>,
}

/// What the engine tells the control side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// The hub told this site its inner addresses (site only). Sent again only when they change.
    Assigned {
        /// This site's addresses, with the prefix of the hub's pool.
        addresses: Vec<IpNet>,
        /// The hub's inner addresses.
        hub_addresses: Vec<IpAddr>,
        /// Ports of a shared IPv4 address from which this site may send.
        block: Option<PortBlock>,
    },
    /// The first path to a peer works.
    TunnelUp {
        /// Name of the peer.
        peer: String,
    },
    /// No path to a peer works any more.
    TunnelDown {
        /// Name of the peer.
        peer: String,
    },
    /// This hub serves a site from now on: packets to these addresses go into the TUN interface (hub only).
    Served {
        /// Name of the site.
        site: String,
        /// Addresses of the site, and the networks behind it.
        addresses: Vec<IpNet>,
        /// What the site has signed; `None` of a site with one hub.
        statement: Option<Statement>,
    },
    /// This hub no longer serves a site with these addresses (hub only).
    Withdrawn {
        /// Name of the site.
        site: String,
        /// Addresses of the site, and the networks behind it.
        addresses: Vec<IpNet>,
    },
    /// Another hub serves this site from now on (site only).
    Moved {
        /// Name of the hub.
        hub: String,
        /// Rises with every move.
        epoch: u64,
    },
    /// The MTU of the TUN interface, in bytes, should be this now; the engine has set it.
    MtuChanged(usize),
    /// The holder of an invitation wants to be the invited site, or a site wants to have another key (hub only).
    /// [`Command::Enrolled`](super::control::Command::Enrolled) is the answer.
    Enrol {
        /// Key of the invitation or of the site.
        invitation: PublicKey,
        /// Key that the site made.
        key: PublicKey,
        /// Whether the holder has proved to have that key, too. Earlier versions do not.
        proved: bool,
    },
    /// Keys change.
    Key(KeyEvent),
    /// The engine thread ends; the last event.
    Stopped {
        /// Why, when nobody asked for it.
        error: Option<String>,
    },
}

/// Takes the engine's events. Called on the engine thread: it must not block.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(EngineEvent) + Send + Sync>);

impl EventSink {
    /// A sink that calls `on_event`.
    #[must_use]
    pub fn new(on_event: impl Fn(EngineEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(on_event))
    }

    /// Passes `event` on.
    pub fn send(&self, event: EngineEvent) {
        (self.0)(event);
    }
}

impl std::fmt::Debug for EventSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventSink")
    }
}
