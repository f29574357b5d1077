//! Links between uplinks and hub that several of them pass, and hosts beside the site on them.
//!
//! ```text
//!   site ── up0 ══ link 0 ══ isp0 ─┐
//!   site ── up1 ══ link 1 ══ isp1 ─┼── node0 ── out0 ══ shared link 0 ══ in0 ── hub
//!   host0 ─────────────────────────┘
//! ```
//!
//! A node is the near end of a shared link: a namespace that only routes. What comes over a node's
//! link comes out at the hub or at the next node.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::Result;

use crate::link::{Link, LinkSpec};
use crate::namespace::{Namespace, address_command, veth};
use crate::topology::SERVER_MTU;

/// A shared link.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// How it behaves.
    pub link: LinkSpec,
    /// The shared link that comes next towards the hub, by number; without circles.
    pub through: Option<usize>,
}

/// Nodes with their links, and hosts. Everything is removed on drop.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    hosts: Vec<Namespace>,
}

#[derive(Debug)]
struct Node {
    namespace: Namespace,
    link: Option<Link>,
    through: Option<usize>,
}

impl Nodes {
    /// Builds nodes, links and one host for each number of a node in `hosts`.
    pub(crate) fn build(
        purpose: &str,
        nodes: &[NodeSpec],
        hosts: &[usize],
        hub: &Namespace,
        directory: &Path,
    ) -> Result<Self> {
        let mut made = Self::default();
        for (index, spec) in nodes.iter().enumerate() {
            made.nodes.push(Node {
                namespace: router(purpose, index)?,
                link: None,
                through: spec.through,
            });
        }
        for (index, spec) in nodes.iter().enumerate() {
            made.join(index, &spec.link, hub, directory)?;
        }
        for index in 0..nodes.len() {
            made.lead_back(index, SubnetKind::Node, index, hub)?;
        }
        for (index, &node) in hosts.iter().enumerate() {
            let host = made.make_host(purpose, index, node, hub)?;
            made.hosts.push(host);
        }
        Ok(made)
    }

    /// The namespace at the near end of a shared link.
    pub(crate) fn node(&self, index: usize) -> &Namespace {
        &self.nodes[index].namespace
    }

    /// All links by number.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.nodes.iter().filter_map(|node| node.link.as_ref())
    }

    /// The hosts by number.
    pub(crate) fn host(&self, index: usize) -> &Namespace {
        &self.hosts[index]
    }

    /// Lets everything beyond a node send to the subnet of an uplink that ends at this node.
    pub(crate) fn lead_back_to_uplink(
        &self,
        node: usize,
        third: u8,
        hub: &Namespace,
    ) -> Result<()> {
        self.lead_back(node, SubnetKind::Uplink, usize::from(third), hub)
    }

    /// Joins a node to the hub or to the next node.
    fn join(
        &mut self,
        index: usize,
        spec: &LinkSpec,
        hub: &Namespace,
        directory: &Path,
    ) -> Result<()> {
        let (near, far) = (self.node(index), self.far(index, hub));
        let (out, back) = (format!("out{index}"), format!("in{index}"));
        let link = Link::create(spec, (near, &out), (far, &back), directory)?;
        let [near_v4, far_v4] = [2, 1].map(|host| v4(SubnetKind::Node, index, host));
        let [near_v6, far_v6] = [2, 1].map(|host| v6(SubnetKind::Node, index, host));
        let mut ends = [
            address_command(near_v4.into(), 24, &out)
                + &format!("route add default via {far_v4} dev {out}\n"),
            address_command(far_v4.into(), 24, &back),
        ];
        if hub.has_ipv6()? {
            ends[0] += &address_command(near_v6.into(), 64, &out);
            ends[0] += &format!("route add default via {far_v6} dev {out}\n");
            ends[1] += &address_command(far_v6.into(), 64, &back);
        }
        near.ip(&ends[0])?;
        far.ip(&ends[1])?;
        near.remember_neighbours(&out)?;
        far.remember_neighbours(&back)?;
        self.nodes[index].link = Some(link);
        Ok(())
    }

    /// Where the link of a node leads.
    fn far<'a>(&'a self, index: usize, hub: &'a Namespace) -> &'a Namespace {
        let next = self.nodes[index].through;
        next.map_or(hub, |next| &self.nodes[next].namespace)
    }

    /// Tells everybody between a node and the hub the way back to a subnet at that node.
    fn lead_back(
        &self,
        node: usize,
        kind: SubnetKind,
        number: usize,
        hub: &Namespace,
    ) -> Result<()> {
        let mut at = Some(node);
        // The subnet of the node's own link is known at its far end.
        let mut known = matches!(kind, SubnetKind::Node);
        while let Some(index) = at {
            at = self.nodes[index].through;
            if std::mem::take(&mut known) {
                continue;
            }
            let far = self.far(index, hub);
            let back = v4(SubnetKind::Node, index, 2);
            let mut commands = format!("route add {}/24 via {back}\n", v4(kind, number, 0));
            if hub.has_ipv6()? {
                let back = v6(SubnetKind::Node, index, 2);
                commands += &format!("route add {}/64 via {back}\n", v6(kind, number, 0));
            }
            far.ip(&commands)?;
        }
        Ok(())
    }

    fn make_host(
        &self,
        purpose: &str,
        index: usize,
        node: usize,
        hub: &Namespace,
    ) -> Result<Namespace> {
        let host = Namespace::create(purpose, &format!("beside{index}"))?;
        let near = self.node(node);
        let theirs = format!("host{index}");
        veth((&host, HOST_INTERFACE), (near, &theirs), SERVER_MTU)?;
        let gateway = v4(SubnetKind::Host, index, 1);
        host.ip(&format!(
            "{}route add default via {gateway}\n",
            address_command(v4(SubnetKind::Host, index, 2).into(), 24, HOST_INTERFACE)
        ))?;
        near.ip(&address_command(gateway.into(), 24, &theirs))?;
        self.lead_back(node, SubnetKind::Host, index, hub)?;
        Ok(host)
    }
}

/// A machine that passes on what comes over any of its links.
fn router(purpose: &str, index: usize) -> Result<Namespace> {
    let namespace = Namespace::create(purpose, &format!("node{index}"))?;
    namespace.sysctl("net/ipv4/ip_forward", "1")?;
    if namespace.has_ipv6()? {
        namespace.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    }
    for which in ["all", "default"] {
        namespace.sysctl(&format!("net/ipv4/conf/{which}/rp_filter"), "0")?;
    }
    Ok(namespace)
}

/// What a subnet is of.
#[derive(Clone, Copy, Debug)]
enum SubnetKind {
    /// An uplink, by its third octet: `192.168.n.0/24`.
    Uplink,
    /// The link of a node: `192.168.(100 + n).0/24`.
    Node,
    /// A host: `10.98.n.0/24`.
    Host,
}

/// An address in such a subnet; there are 100 nodes and 200 hosts at most.
fn v4(kind: SubnetKind, number: usize, host: u8) -> Ipv4Addr {
    let third = |first: usize| u8::try_from(first + number).unwrap_or(u8::MAX);
    match kind {
        SubnetKind::Uplink => Ipv4Addr::new(192, 168, third(0), host),
        SubnetKind::Node => Ipv4Addr::new(192, 168, third(FIRST_NODE), host),
        SubnetKind::Host => Ipv4Addr::new(10, 98, third(0), host),
    }
}

/// The same over IPv6, by the numbers of IPv4.
fn v6(kind: SubnetKind, number: usize, host: u16) -> Ipv6Addr {
    let [a, b, third, _] = v4(kind, number, 0).octets();
    let second = if (a, b) == (10, 98) { 0x98 } else { 0x10 };
    Ipv6Addr::new(0xfd00, second, third.into(), 0, 0, 0, 0, host)
}

const FIRST_NODE: usize = 100;
/// The only interface of a host beside the site.
pub(crate) const HOST_INTERFACE: &str = "net";
