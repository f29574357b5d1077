//! A further machine behind the site of a topology, which is a relay then; or behind another
//! branch.
//!
//! ```text
//!            ┌─ up0 ══ link 0 ══ in0 ─┐
//!   branch ──┼─ up1 ══ link 1 ══ in1 ─┴── relay ── … ── hub
//!            └─ direct ═══════════ branch0 ────────────┘
//! ```
//!
//! Every interface of the branch has a subnet and a default route of its own, as the uplinks of
//! the topology's site have. The way past the relay is there only if asked for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;

use crate::link::{Link, LinkSpec};
use crate::namespace::{Namespace, address_command};
use crate::topology::Topology;

/// The machine and its links. Everything is removed on drop.
#[derive(Debug)]
pub struct Branch {
    namespace: Namespace,
    number: u8,
    links: Vec<Link>,
    direct: Option<Link>,
}

impl Branch {
    /// Builds it: `links` lead to the topology's site, `direct` to its hub. One at most has no
    /// `relay`; each of those in a row has another branch there and a `number` of its own, from 1.
    ///
    /// # Errors
    /// Without root, without the programs, or if a link emulator does not start.
    pub fn build(
        topology: &Topology,
        relay: Option<(&Self, u8)>,
        name: &str,
        links: &[LinkSpec],
        direct: Option<&LinkSpec>,
    ) -> Result<Self> {
        let namespace = Namespace::create("branch", name)?;
        let (relay, number) = relay.map_or((topology.site(), 0), |(branch, number)| {
            (branch.namespace(), number)
        });
        let mut branch = Self {
            number,
            namespace,
            links: Vec::new(),
            direct: None,
        };
        let [v4, v6] = branch.relay();
        relay.ip(&(address_command(v4, 32, "lo") + &address_command(v6, 128, "lo")))?;
        for (index, spec) in (0..).zip(links) {
            let ends = (format!("up{index}"), format!("in{index}"));
            let link = branch.join(topology, spec, relay, &ends, index)?;
            branch.links.push(link);
        }
        if let Some(spec) = direct {
            let ends = (DIRECT.to_owned(), "branch0".to_owned());
            let number = u8::try_from(links.len())?;
            branch.direct = Some(branch.join(topology, spec, topology.hub(), &ends, number)?);
        }
        Ok(branch)
    }

    /// The machine.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Where the relay is reached from here, over IPv4 and IPv6.
    #[must_use]
    pub fn relay(&self) -> [IpAddr; 2] {
        let host = RELAY_FIRST + self.number;
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, host.into());
        [Ipv4Addr::new(203, 0, 113, host).into(), v6.into()]
    }

    /// The links to the relay.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link past the relay.
    #[must_use]
    pub const fn direct(&self) -> Option<&Link> {
        self.direct.as_ref()
    }

    fn join(
        &self,
        topology: &Topology,
        spec: &LinkSpec,
        far: &Namespace,
        (near_end, far_end): &(String, String),
        number: u8,
    ) -> Result<Link> {
        let near = &self.namespace;
        // Emulators keep files by the interface's name, which the topology has as well.
        let directory = topology.directory().join(format!("branch{}", self.number));
        std::fs::create_dir_all(&directory)?;
        let link = Link::create(spec, (near, near_end), (far, far_end), &directory)?;
        let subnet = FIRST_SUBNET + SUBNETS * self.number + number;
        let v4 = |host| IpAddr::from(Ipv4Addr::new(192, 168, subnet, host));
        let v6 = |host| IpAddr::from(Ipv6Addr::new(0xfd00, 0x10, subnet.into(), 0, 0, 0, 0, host));
        far.ip(&(address_command(v4(1), 24, far_end) + &address_command(v6(1), 64, far_end)))?;
        let mut commands =
            address_command(v4(2), 24, near_end) + &address_command(v6(2), 64, near_end);
        for gateway in [v4(1), v6(1)] {
            let metric = 100 + u32::from(number);
            commands +=
                &format!("route add default via {gateway} dev {near_end} metric {metric}\n");
        }
        near.ip(&commands)?;
        Ok(link)
    }
}

/// The branch's interface past the relay.
pub const DIRECT: &str = "direct";
/// Last part of the first relay's addresses, which are in the networks of the hub's (TEST-NET-3
/// of RFC 5737, and RFC 3849).
const RELAY_FIRST: u8 = 2;
/// Link `i` of branch `n` has subnet `192.168.(30 + 10 n + i).0/24`.
const FIRST_SUBNET: u8 = 30;
const SUBNETS: u8 = 10;
