//! Gateways in a row, hosts at them, and a server behind the last.
//!
//! ```text
//!   host0 ── access 0 ── gw1 ─┬─ up00 ══ hop 0, link 0 ══ in00 ─┬─ gw2 ── … ── gw3 ── lan ══ wan ── server
//!                             └─ up01 ══ hop 0, link 1 ══ in01 ─┘   │             198.51.100.10
//!                                             host1 ── access 1 ────┘
//! ```
//!
//! Every gateway routes. Without a tunnel, packets of a host go on over the first link of each hop,
//! and the answers of the server come back over the same link. As in a
//! [`Topology`](crate::Topology) every link has a subnet and a default route of its own, told apart
//! by metric only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::Result;

use crate::link::{Link, LinkSpec};
use crate::namespace::{Namespace, address_command, veth};
use crate::topology::{Directory, HUB, HUB_V6, SERVER, SERVER_MTU};
use crate::traffic::Endpoints;

/// What to build.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// Part of the namespaces' names: letters and digits, short.
    pub purpose: String,
    /// The links of each hop, 1 to 8 hops with 1 to 8 links each.
    pub hops: Vec<Vec<LinkSpec>>,
    /// The hosts, 100 at most.
    pub hosts: Vec<HostSpec>,
}

/// A host of the site's side.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Its gateway, from 0; not the last.
    pub gateway: usize,
    /// The link to it, the host at the site's end; one without any limit unless given.
    pub access: Option<LinkSpec>,
    /// Whether its connections have no TCP options.
    pub plain: bool,
}

/// The namespaces, links and addresses. Everything is removed on drop.
#[derive(Debug)]
pub struct Row {
    hops: Vec<Vec<Link>>,
    hosts: Vec<Host>,
    gateways: Vec<Namespace>,
    server: Namespace,
    directory: Directory,
}

/// A host in being.
#[derive(Debug)]
struct Host {
    namespace: Namespace,
    gateway: usize,
    access: Option<Link>,
}

impl Row {
    /// Builds everything; links are up when this returns.
    ///
    /// # Errors
    /// Without root, without the programs, or if a link emulator does not start.
    pub fn build(spec: &RowSpec) -> Result<Self> {
        let directory = Directory::new(&spec.purpose)?;
        let gateways = (0..=spec.hops.len()).map(|index| gateway(&spec.purpose, index));
        let mut row = Self {
            hops: Vec::new(),
            hosts: Vec::new(),
            gateways: gateways.collect::<Result<_>>()?,
            server: Namespace::create(&spec.purpose, "server")?,
            directory,
        };
        row.join_server()?;
        for (index, links) in spec.hops.iter().enumerate() {
            let hop = row.make_hop(index, links)?;
            row.hops.push(hop);
        }
        for (index, host) in spec.hosts.iter().enumerate() {
            let host = row.make_host(&spec.purpose, index, host)?;
            row.hosts.push(host);
        }
        Ok(row)
    }

    /// The gateways, that of the site first and that of the server last.
    #[must_use]
    pub fn gateways(&self) -> &[Namespace] {
        &self.gateways
    }

    /// Where a gateway is reached as a hub from the one before it, over IPv4 and IPv6; the last has
    /// the addresses of a hub in other topologies.
    ///
    /// # Errors
    /// If there are too many gateways.
    pub fn addresses(&self, gateway: usize) -> Result<[IpAddr; 2]> {
        let number = u8::try_from(self.gateways.len() - 1 - gateway)?;
        let [a, b, c, d] = HUB.octets();
        let v6 = Ipv6Addr::from(u128::from(HUB_V6) + u128::from(number));
        Ok([Ipv4Addr::new(a, b, c, d + number).into(), v6.into()])
    }

    /// The links of each hop.
    #[must_use]
    pub fn hops(&self) -> &[Vec<Link>] {
        &self.hops
    }

    /// The hosts' own links, where they are emulated.
    pub fn access(&self) -> impl Iterator<Item = &Link> {
        self.hosts.iter().filter_map(|host| host.access.as_ref())
    }

    /// Where programs log and keep their state.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// As [`Topology::keep_directory`](crate::Topology::keep_directory).
    pub fn keep_directory(&mut self) {
        self.directory.keep = true;
    }

    /// Traffic between a host and the server over IPv4.
    #[must_use]
    pub fn endpoints(&self, host: usize) -> Endpoints {
        Endpoints {
            client: self.hosts[host].namespace.clone(),
            server: self.server.clone(),
            server_address: SERVER.into(),
            device: None,
        }
    }

    /// Sends what the hosts at this gateway send into `interface`, translated to the gateway's
    /// address there: whoever is at its other end knows no other.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lead_hosts_into(&self, gateway: usize, interface: &str) -> Result<()> {
        let namespace = &self.gateways[gateway];
        let mut commands = format!("route replace default dev {interface} table {HOSTS_TABLE}\n");
        let hosts = self.hosts.iter().enumerate();
        let here: Vec<_> = hosts
            .filter(|(_, host)| host.gateway == gateway)
            .map(|(index, _)| lan(index))
            .collect();
        for lan in &here {
            commands += &format!("rule add from {lan} lookup {HOSTS_TABLE} priority 4000\n");
        }
        if here.is_empty() {
            return Ok(());
        }
        namespace.ip(&commands)?;
        namespace.nft(&format!(
            "table ip testbed_hosts {{\nchain leaving {{\n\
             type nat hook postrouting priority srcnat;\n\
             ip saddr {HOSTS}/16 oifname \"{interface}\" masquerade\n}}\n}}\n"
        ))
    }

    /// Sends what comes from any host, over a link or out of the tunnel before, into `interface`.
    /// The answers are routed beside it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lead_on_into(&self, gateway: usize, interface: &str) -> Result<()> {
        self.gateways[gateway].ip(&format!(
            "route replace default dev {interface} table {HOSTS_TABLE}\n\
             rule add from {HOSTS}/16 lookup {HOSTS_TABLE} priority 4000\n"
        ))
    }

    fn join_server(&self) -> Result<()> {
        let last = &self.gateways[self.gateways.len() - 1];
        veth((last, "lan"), (&self.server, "wan"), SERVER_MTU)?;
        last.ip(&address_command(SERVER_GATEWAY.into(), 24, "lan"))?;
        self.server.ip(&format!(
            "{}route add default via {SERVER_GATEWAY}\n",
            address_command(SERVER.into(), 24, "wan")
        ))
    }

    fn make_hop(&self, index: usize, links: &[LinkSpec]) -> Result<Vec<Link>> {
        let (near, far) = (&self.gateways[index], &self.gateways[index + 1]);
        let [v4, v6] = self.addresses(index + 1)?;
        far.ip(&(address_command(v4, 32, "lo") + &address_command(v6, 128, "lo")))?;
        let mut made = Vec::new();
        for (place, spec) in links.iter().enumerate() {
            let ends = (format!("up{index}{place}"), format!("in{index}{place}"));
            let link = Link::create(spec, (near, &ends.0), (far, &ends.1), self.directory())?;
            let subnet = u8::try_from(FIRST_SUBNET + LINKS_MAX * index + place)?;
            let v4 = |host| IpAddr::from(Ipv4Addr::new(192, 168, subnet, host));
            let v6 =
                |host| IpAddr::from(Ipv6Addr::new(0xfd00, 0x10, subnet.into(), 0, 0, 0, 0, host));
            far.ip(&(address_command(v4(1), 24, &ends.1) + &address_command(v6(1), 64, &ends.1)))?;
            let mut commands =
                address_command(v4(2), 24, &ends.0) + &address_command(v6(2), 64, &ends.0);
            for gateway in [v4(1), v6(1)] {
                let metric = FIRST_METRIC + place;
                commands += &format!(
                    "route add default via {gateway} dev {} metric {metric}\n",
                    ends.0
                );
            }
            near.ip(&commands)?;
            made.push(link);
        }
        Ok(made)
    }

    fn make_host(&self, purpose: &str, index: usize, spec: &HostSpec) -> Result<Host> {
        let namespace = Namespace::create(purpose, &format!("host{index}"))?;
        if spec.plain {
            // Whoever opens a connection decides which options it has.
            for option in ["sack", "timestamps", "window_scaling"] {
                namespace.sysctl(&format!("net/ipv4/tcp_{option}"), "0")?;
            }
        }
        let near = &self.gateways[spec.gateway];
        let (own, theirs) = (format!("net{index}"), format!("host{index}"));
        let ends = ((&namespace, own.as_str()), (near, theirs.as_str()));
        let access = match &spec.access {
            Some(link) => Some(Link::create(link, ends.0, ends.1, self.directory())?),
            None => {
                veth(ends.0, ends.1, SERVER_MTU)?;
                None
            }
        };
        let third = u8::try_from(index)?;
        let [a, b, ..] = HOSTS.octets();
        let address = |host| Ipv4Addr::new(a, b, third, host);
        namespace.ip(&format!(
            "{}route add default via {}\n",
            address_command(address(2).into(), 24, &own),
            address(1)
        ))?;
        near.ip(&address_command(address(1).into(), 24, &theirs))?;
        // Answers without a tunnel find the way back gateway by gateway.
        for hop in spec.gateway..self.hops.len() {
            let subnet = FIRST_SUBNET + LINKS_MAX * hop;
            let lan = lan(index);
            self.gateways[hop + 1].ip(&format!("route add {lan} via 192.168.{subnet}.2\n"))?;
        }
        Ok(Host {
            namespace,
            gateway: spec.gateway,
            access,
        })
    }
}

/// A machine that passes on what comes over any of its links.
fn gateway(purpose: &str, index: usize) -> Result<Namespace> {
    let namespace = Namespace::create(purpose, &format!("gw{}", index + 1))?;
    namespace.sysctl("net/ipv4/ip_forward", "1")?;
    namespace.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    // What comes out of a tunnel comes over another interface than the answer leaves by.
    for which in ["all", "default"] {
        namespace.sysctl(&format!("net/ipv4/conf/{which}/rp_filter"), "0")?;
    }
    Ok(namespace)
}

fn lan(host: usize) -> String {
    let [a, b, ..] = HOSTS.octets();
    format!("{a}.{b}.{host}.0/24")
}

const SERVER_GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Host `i` is in `10.99.i.0/24`.
const HOSTS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 0);
/// Link `i` of hop `h` has subnet `192.168.(10 + 8 h + i).0/24`.
const FIRST_SUBNET: usize = 10;
const LINKS_MAX: usize = 8;
const FIRST_METRIC: usize = 100;
/// Routing table of what hosts send into a tunnel.
const HOSTS_TABLE: u32 = 4_000;
