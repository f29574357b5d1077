//! Interfaces, addresses, routes and rules over rtnetlink (rtnetlink(7)).
//!
//! Every call opens a socket in the network namespace of the calling thread, waits for the kernel's
//! answer and closes the socket. The control side calls seldom, so a runtime is not needed. Changes
//! are idempotent: what is already as wanted is success.

mod change;
pub(crate) mod socket;
mod view;
mod watch;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub(crate) use change::set_queue_here;
pub use change::{
    TABLE_MAIN, add_address, add_route, add_rule, delete_address, delete_route, delete_rule,
    flush_table, keep_route, set_group, set_mtu, set_up,
};
pub use view::{addresses, snapshot};
pub use watch::{Watch, WatchCallback};

use crate::helper::Refusal;

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
    /// IPv6 privacy address (RFC 8981).
    pub temporary: bool,
    /// Not for new connections.
    pub deprecated: bool,
    /// Not usable yet: duplicate address detection runs or failed.
    pub tentative: bool,
    /// Stays until somebody takes it away (`IFA_F_PERMANENT`). Leases and router advertisements end.
    pub permanent: bool,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name; may change.
    pub name: String,
    /// Kernel interface index; never changes.
    pub index: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Operational: has a carrier and, on Wi-Fi and 802.1X ports, is authenticated.
    pub carrier: bool,
    /// Is the loopback interface.
    pub loopback: bool,
    /// Kind of a virtual interface, such as `tun`, `veth`, `bridge` or `wireguard`; `None` for
    /// hardware.
    pub kind: Option<String>,
    /// Addresses in the kernel's order.
    pub addresses: Vec<Address>,
    /// Whether any table has an IPv4 default route through it.
    pub default_route_v4: bool,
    /// Whether any table has an IPv6 default route through it.
    pub default_route_v6: bool,
    /// Default routes through it, of all tables and both families.
    pub default_routes: Vec<DefaultRoute>,
}

impl Interface {
    /// A network card with a carrier and these addresses with their prefix lengths, and without routes. Decisions from
    /// interfaces are tested with cards.
    #[must_use]
    pub fn card(name: &str, index: u32, addresses: &[(IpAddr, u8)]) -> Self {
        let address = |&(ip, prefix): &(IpAddr, u8)| Address {
            ip,
            prefix,
            temporary: false,
            deprecated: false,
            tentative: false,
            permanent: true,
        };
        Self {
            name: name.to_owned(),
            index,
            mtu: 1_500,
            up: true,
            carrier: true,
            loopback: false,
            kind: None,
            addresses: addresses.iter().map(address).collect(),
            default_route_v4: false,
            default_route_v6: false,
            default_routes: Vec::new(),
        }
    }
}

/// A default route of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// Routing table it is in.
    pub table: u32,
    /// Lower wins.
    pub metric: u32,
    /// Whether it is for IPv6.
    pub ipv6: bool,
    /// Next hop, if not on the link.
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSpec {
    /// Destination network.
    pub destination: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
    /// Interface the packets leave by.
    pub ifindex: u32,
    /// Next hop, if not on the link.
    pub gateway: Option<IpAddr>,
    /// Routing table; `None` is the main table (254).
    pub table: Option<u32>,
    /// Metric; lower wins.
    pub metric: Option<u32>,
    /// Largest packet that may go there, bytes; `None` is what the interface takes.
    pub mtu: Option<u32>,
}

/// A routing policy rule of one address family: packets that match look in `table`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSpec {
    /// Rule for IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Lower comes first.
    pub priority: u32,
    /// Packets with this mark; `None` matches all.
    pub fwmark: Option<u32>,
    /// Bits of the mark that count; `None` is all.
    pub fwmask: Option<u32>,
    /// Packets from this source network.
    pub source: Option<(IpAddr, u8)>,
    /// Ignore what the table finds if its prefix is at most this long: 0 ignores default routes.
    pub suppress_prefix: Option<u32>,
    /// Ignore what the table finds if it leads to an interface of this group.
    pub suppress_group: Option<u32>,
    /// Table to look in.
    pub table: u32,
}

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The process may not change the network configuration.
    #[error("{0} needs CAP_NET_ADMIN: run as root")]
    NotPermitted(&'static str),
    /// IPv6 is switched off: the kernel refuses IPv6 addresses and routes then, whoever asks.
    #[error("{0}: IPv6 is switched off for this interface (net.ipv6.conf.*.disable_ipv6)")]
    NoIpv6(&'static str),
    /// The interface is gone.
    #[error("{0}: no such interface")]
    NoInterface(&'static str),
    /// The kernel refused the request or the socket failed.
    #[error("{step}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// The helper did not do it.
    #[error(transparent)]
    Helper(#[from] Refusal),
}

impl From<NetlinkError> for Refusal {
    fn from(error: NetlinkError) -> Self {
        Self::new(error.to_string())
    }
}

/// Result of a netlink request.
pub type Result<T> = std::result::Result<T, NetlinkError>;
