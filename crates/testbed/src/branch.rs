//! A further machine behind the site of a topology, which is a relay then.
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
    links: Vec<Link>,
    direct: Option<Link>,
}

impl Branch {
    /// Builds it: `links` lead to the topology's site, `direct` to its hub.
    ///
    /// # Errors
    /// Without root, without the programs, or if a link emulator does not start.
    pub fn build(
        topology: &Topology,
        name: &str,
        links: &[LinkSpec],
        direct: Option<&LinkSpec>,
    ) -> Result<Self> {
        let namespace = Namespace::create("branch", name)?;
        let relay = topology.site();
        relay.ip(&(address_command(RELAY.into(), 32, "lo")
            + &address_command(RELAY_V6.into(), 128, "lo")))?;
        let mut branch = Self {
            namespace,
            links: Vec::new(),
            direct: None,
        };
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
        let directory = topology.directory().join("branch");
        std::fs::create_dir_all(&directory)?;
        let link = Link::create(spec, (near, near_end), (far, far_end), &directory)?;
        let subnet = FIRST_SUBNET + number;
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
/// The relay's address for its sites (TEST-NET-3, RFC 5737).
pub const RELAY: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// The relay's IPv6 address for its sites (RFC 3849).
pub const RELAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 2);
/// Link `i` has subnet `192.168.(30 + i).0/24`.
const FIRST_SUBNET: u8 = 30;
