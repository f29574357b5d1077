//! A site with several uplinks, a hub reached over each of them, and a server behind the hub.
//!
//! ```text
//!            ┌─ up0 ══ link 0 ══ isp0 ─┐
//!   site ────┤                         ├──── hub ── lan ══ veth ══ wan ── server
//!            └─ up1 ══ link 1 ══ isp1 ─┘   203.0.113.1        198.51.100.10
//! ```
//!
//! As in real life each uplink has its own subnet and a default route of its own, told apart by
//! metric only. Source routing is off, and all uplinks lead to the hub's one address. The hub's
//! namespace also is the network between: it forwards to the server. So a download over one uplink
//! without a tunnel can be measured in the same place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cleanup::{self, Resource, Ticket};
use crate::link::{Link, LinkSpec};
use crate::mptcp;
use crate::namespace::{Namespace, address_command, veth};
use crate::nodes::{NodeSpec, Nodes};

use crate::traffic::Endpoints;

/// What to build.
#[derive(Clone, Debug)]
pub struct TopologySpec {
    /// Part of the namespaces' names: letters and digits, short.
    pub purpose: String,
    /// One link per uplink, 1..=8.
    pub uplinks: Vec<LinkSpec>,
    /// Whether the hub's namespace forwards between uplinks and server.
    pub forwarding: bool,
    /// Whether the server knows the way back to the uplinks, as the internet would. Without it
    /// only what the hub translates reaches the server.
    pub server_routes: bool,
    /// Links that uplinks share.
    pub nodes: Vec<NodeSpec>,
    /// The shared link, by number, that each uplink goes on over; an uplink without an entry, or
    /// with none, leads to the hub.
    pub through: Vec<Option<usize>>,
    /// The shared link, by number, at whose near end each host beside the site is.
    pub hosts: Vec<usize>,
}

/// The namespaces, links and addresses. Everything is removed on drop.
#[derive(Debug)]
pub struct Topology {
    uplinks: Vec<Uplink>,
    nodes: Nodes,
    site: Namespace,
    hub: Namespace,
    server: Namespace,
    directory: Directory,
}

/// One way out of the site.
#[derive(Debug)]
pub struct Uplink {
    /// Interface in the site: `up0`, `up1`, ….
    pub interface: String,
    /// Interface at the other end: in the hub's namespace, or in that of a shared link's near end.
    pub far_interface: String,
    /// Site addresses, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
    /// Addresses of the other end: the gateways.
    pub gateways: [IpAddr; 2],
    /// The link.
    pub link: Link,
    /// The namespace at the other end: the hub's, or that of a node.
    far_end: Namespace,
    metric: u32,
}

/// A way to take an uplink away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// The site's interface goes down: the kernel says so.
    InterfaceDown,
    /// The site's addresses are removed: the kernel says so.
    AddressRemoved,
    /// Packets vanish in both directions: nobody says so.
    Blackhole,
    /// Packets to the hub vanish, those to the site arrive: nobody says so.
    HubDeaf,
    /// Packets to the site vanish, those to the hub arrive: nobody says so.
    SiteDeaf,
}

impl Cut {
    /// Every way that takes both directions.
    pub const ALL: [Self; 3] = [Self::InterfaceDown, Self::AddressRemoved, Self::Blackhole];

    /// Name for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InterfaceDown => "interface down",
            Self::AddressRemoved => "address removed",
            Self::Blackhole => "silent blackhole",
            Self::HubDeaf => "hub deaf",
            Self::SiteDeaf => "site deaf",
        }
    }
}

impl TopologySpec {
    /// A forwarding topology over these links.
    #[must_use]
    pub fn new(purpose: &str, uplinks: Vec<LinkSpec>) -> Self {
        Self {
            purpose: purpose.into(),
            uplinks,
            forwarding: true,
            server_routes: true,
            nodes: Vec::new(),
            through: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

impl Topology {
    /// Builds everything; links are up when this returns.
    ///
    /// # Errors
    /// Without root, without the programs, or if a link emulator does not start.
    pub fn build(spec: &TopologySpec) -> Result<Self> {
        let directory = Directory::new(&spec.purpose)?;
        let site = Namespace::create(&spec.purpose, "site")?;
        let hub = Namespace::create(&spec.purpose, "hub")?;
        let server = Namespace::create(&spec.purpose, "server")?;
        let nodes = Nodes::build(
            &spec.purpose,
            &spec.nodes,
            &spec.hosts,
            &hub,
            &directory.path,
        )?;
        let mut topology = Self {
            uplinks: Vec::new(),
            nodes,
            site,
            hub,
            server,
            directory,
        };
        topology.join_server(spec)?;
        for (index, link) in (0..).zip(&spec.uplinks) {
            let through = spec.through.get(usize::from(index)).copied().flatten();
            let uplink = topology.make_uplink(index, link, through)?;
            topology.uplinks.push(uplink);
        }
        Ok(topology)
    }

    /// The site.
    #[must_use]
    pub const fn site(&self) -> &Namespace {
        &self.site
    }

    /// The hub.
    #[must_use]
    pub const fn hub(&self) -> &Namespace {
        &self.hub
    }

    /// The server behind the hub.
    #[must_use]
    pub const fn server(&self) -> &Namespace {
        &self.server
    }

    /// The uplinks in order of their metric.
    #[must_use]
    pub fn uplinks(&self) -> &[Uplink] {
        &self.uplinks
    }

    /// The links that uplinks share, by number.
    pub fn shared_links(&self) -> impl Iterator<Item = &Link> {
        self.nodes.links()
    }

    /// A host beside the site; its only interface is `net`.
    #[must_use]
    pub fn host_beside(&self, host: usize) -> &Namespace {
        self.nodes.host(host)
    }

    /// Traffic over IPv4 between a host beside the site and the server.
    #[must_use]
    pub fn endpoints_beside(&self, host: usize) -> Endpoints {
        Endpoints {
            client: self.host_beside(host).clone(),
            ..self.endpoints()
        }
    }

    /// Where programs log and keep their state.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// Leaves the directory with logs and state in place, until [`crate::remove_leftovers`] finds it.
    pub fn keep_directory(&mut self) {
        self.directory.keep = true;
    }

    /// Traffic between site and server over IPv4, routed as the site's routes say.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        self.endpoints_to(SERVER.into())
    }

    /// Traffic between site and server over IPv6, routed as the site's routes say.
    #[must_use]
    pub fn endpoints_v6(&self) -> Endpoints {
        self.endpoints_to(SERVER_V6.into())
    }

    fn endpoints_to(&self, server_address: IpAddr) -> Endpoints {
        let (client, server) = (self.site.clone(), self.server.clone());
        Endpoints {
            client,
            server,
            server_address,
            device: None,
        }
    }

    /// Lets MPTCP connections from the site use every uplink. False if the kernel lacks MPTCP.
    ///
    /// # Errors
    /// If the endpoints cannot be set.
    pub fn enable_mptcp(&self) -> Result<bool> {
        if !mptcp::available(&self.site) {
            return Ok(false);
        }
        let interfaces: Vec<(String, IpAddr)> = self
            .uplinks
            .iter()
            .map(|u| (u.interface.clone(), u.addresses[0]))
            .collect();
        mptcp::enable(&self.site, &interfaces, &self.server)?;
        Ok(true)
    }

    /// Makes all addresses of an IPv4 network the server's, as if many servers were there.
    ///
    /// # Errors
    /// If a route cannot be added.
    pub fn give_server(&self, network: &str) -> Result<()> {
        self.server
            .ip(&format!("route add local {network} dev lo"))?;
        self.hub.ip(&format!("route add {network} via {SERVER}"))
    }

    /// Takes an uplink away.
    ///
    /// # Errors
    /// If a command fails.
    pub fn cut(&self, uplink: usize, cut: Cut) -> Result<()> {
        let (site, uplink) = (&self.site, &self.uplinks[uplink]);
        let hub = &uplink.far_end;
        match cut {
            Cut::InterfaceDown => site.set_interface(&uplink.interface, false),
            Cut::AddressRemoved => site.ip(&format!("addr flush dev {}", uplink.interface)),
            Cut::Blackhole => uplink.set_blackhole(site, hub, true),
            Cut::HubDeaf => hub.set_deaf(&uplink.far_interface, true),
            Cut::SiteDeaf => site.set_deaf(&uplink.interface, true),
        }
    }

    /// Gives an uplink back, with its addresses and routes, as a DHCP client would.
    ///
    /// # Errors
    /// If a command fails.
    pub fn restore(&self, uplink: usize, cut: Cut) -> Result<()> {
        let (site, uplink) = (&self.site, &self.uplinks[uplink]);
        let hub = &uplink.far_end;
        match cut {
            Cut::Blackhole => uplink.set_blackhole(site, hub, false),
            Cut::HubDeaf => hub.set_deaf(&uplink.far_interface, false),
            Cut::SiteDeaf => site.set_deaf(&uplink.interface, false),
            Cut::InterfaceDown | Cut::AddressRemoved => uplink.configure(site),
        }
    }

    /// Drops UDP on every uplink, both ways, or no longer.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn block_udp(&self, blocked: bool) -> Result<()> {
        if !blocked {
            self.site.unblock_udp()?;
            return self.hub.unblock_udp();
        }
        let near: Vec<&str> = self.uplinks.iter().map(|u| u.interface.as_str()).collect();
        let far: Vec<&str> = self
            .uplinks
            .iter()
            .map(|u| u.far_interface.as_str())
            .collect();
        self.site.block_udp(&near)?;
        self.hub.block_udp(&far)
    }

    fn join_server(&self, spec: &TopologySpec) -> Result<()> {
        veth((&self.hub, "lan"), (&self.server, "wan"), SERVER_MTU)?;
        let mut hub = String::new();
        hub += &address_command(HUB.into(), 32, "lo");
        hub += &address_command(HUB_LAN.into(), 24, "lan");
        let ipv6 = self.hub.has_ipv6()?;
        if ipv6 {
            hub += &address_command(HUB_V6.into(), 128, "lo");
            hub += &address_command(HUB_LAN_V6.into(), 64, "lan");
        }
        self.hub.ip(&hub)?;
        let mut server = String::new();
        server += &address_command(SERVER.into(), 24, "wan");
        if ipv6 {
            server += &address_command(SERVER_V6.into(), 64, "wan");
        }
        if spec.server_routes {
            server += &format!("route add default via {HUB_LAN}\n");
            if ipv6 {
                server += &format!("route add default via {HUB_LAN_V6}\n");
            }
        }
        self.server.ip(&server)?;
        if spec.forwarding {
            self.hub.sysctl("net/ipv4/ip_forward", "1")?;
            if ipv6 {
                self.hub.sysctl("net/ipv6/conf/all/forwarding", "1")?;
            }
        }
        Ok(())
    }

    fn make_uplink(&self, index: u8, spec: &LinkSpec, through: Option<usize>) -> Result<Uplink> {
        let far_end = through.map_or(&self.hub, |node| self.nodes.node(node));
        let (interface, far_interface) = (format!("up{index}"), format!("isp{index}"));
        let link = Link::create(
            spec,
            (&self.site, &interface),
            (far_end, &far_interface),
            self.directory(),
        )?;
        let subnet = FIRST_SUBNET + index;
        let v4 = |host| IpAddr::from(Ipv4Addr::new(192, 168, subnet, host));
        let v6 = |host| IpAddr::from(Ipv6Addr::new(0xfd00, 0x10, subnet.into(), 0, 0, 0, 0, host));
        let uplink = Uplink {
            interface,
            far_interface,
            addresses: [v4(2), v6(2)],
            gateways: [v4(1), v6(1)],
            link,
            far_end: far_end.clone(),
            metric: 100 + u32::from(index),
        };
        let mut far = address_command(uplink.gateways[0], 24, &uplink.far_interface);
        if self.hub.has_ipv6()? {
            far += &address_command(uplink.gateways[1], 64, &uplink.far_interface);
        }
        far_end.ip(&far)?;
        self.site.remember_neighbours(&uplink.interface)?;
        far_end.remember_neighbours(&uplink.far_interface)?;
        if let Some(node) = through {
            self.nodes.lead_back_to_uplink(node, subnet, &self.hub)?;
        }
        uplink.configure(&self.site)?;
        Ok(uplink)
    }
}

impl Uplink {
    /// Brings the site's end up with addresses and default routes, whatever it had before.
    fn configure(&self, site: &Namespace) -> Result<()> {
        let (interface, metric) = (&self.interface, self.metric);
        let mut commands = format!("link set {interface} up\naddr flush dev {interface}\n");
        let ipv6 = site.has_ipv6()?;
        let usable = |address: &IpAddr| ipv6 || address.is_ipv4();
        for (address, length) in self.addresses.into_iter().zip([24, 64]) {
            if usable(&address) {
                commands += &address_command(address, length, interface);
            }
        }
        for gateway in self.gateways.into_iter().filter(usable) {
            commands +=
                &format!("route replace default via {gateway} dev {interface} metric {metric}\n");
        }
        site.ip(&commands)
    }

    fn set_blackhole(&self, site: &Namespace, hub: &Namespace, on: bool) -> Result<()> {
        if self.link.is_emulated() {
            return self.link.set_blackhole(on);
        }
        site.set_deaf(&self.interface, on)?;
        hub.set_deaf(&self.far_interface, on)
    }
}

/// A temporary directory that Ctrl-C removes too.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    ticket: Ticket,
    /// Whether it stays.
    pub(crate) keep: bool,
}

impl Directory {
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        let path = tempfile::Builder::new()
            .prefix(&format!("rw-{purpose}-{}-", std::process::id()))
            .tempdir()?
            .keep();
        let ticket = cleanup::register(Resource::Directory(path.clone()));
        Ok(Self {
            path,
            ticket,
            keep: false,
        })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
        self.ticket.release();
    }
}

/// The hub's address, reached over every uplink (TEST-NET-3, RFC 5737).
pub const HUB: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The hub's IPv6 address (RFC 3849).
pub const HUB_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 1);
/// The server's address (TEST-NET-2, RFC 5737).
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// The server's IPv6 address (RFC 3849).
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 10);

/// Address of the hub towards the server.
pub const HUB_LAN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const HUB_LAN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 1);
/// Uplink `i` has subnet `192.168.(10 + i).0/24`.
const FIRST_SUBNET: u8 = 10;
/// MTU between hub and server: that of Ethernet.
pub(crate) const SERVER_MTU: u32 = 1_500;
