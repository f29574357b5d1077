//! What a set of paths allows: capacity less what is lost and less headers.

use ropewalk_netem::{LinkConfig, Side};

use crate::{Carrier, Plan, Traffic, TrafficReport};

/// IPv4 (20) and TCP with timestamps (32) in a packet of 1,500 bytes.
pub const INNER_HEADERS: u32 = 52;
/// From an inner packet to the longest outer IPv4 packet; `docs/wire.md` has the parts.
pub const OUTER_OVERHEAD: u32 = 64;
/// What is left of [`INNER_HEADERS`] in a full packet when they are compressed, at most as a rule.
pub const COMPRESSED_HEADERS: u32 = ropewalk_headers::COMPRESSED_TCP as u32;
/// The same of the headers of a large UDP packet.
pub const COMPRESSED_UDP: u32 = ropewalk_headers::COMPRESSED_UDP as u32;

const MTU: f64 = 1_500.0;

/// TCP payload in Mbit/s that plain TCP gets of `capacity_mbit` of IP packets.
#[must_use]
pub fn direct_ceiling(capacity_mbit: f64) -> f64 {
    capacity_mbit * (MTU - f64::from(INNER_HEADERS)) / MTU
}

/// TCP payload in Mbit/s that TCP in a tunnel gets of `capacity_mbit` of outer IP packets, with its
/// headers compressed or in full.
#[must_use]
pub fn tunnel_ceiling(capacity_mbit: f64, compressed: bool) -> f64 {
    let headers = if compressed {
        COMPRESSED_HEADERS
    } else {
        INNER_HEADERS
    };
    capacity_mbit * (MTU - f64::from(OUTER_OVERHEAD + headers)) / MTU
}

/// TCP payload in Mbit/s that the paths in use deliver in one direction in the counted time, the
/// narrowest hop deciding; `links` are all links, shared ones last. `None` where a path has no limit.
#[must_use]
pub fn ceiling_mbit(plan: &Plan, links: &[&LinkConfig], side: Side) -> Option<f64> {
    let of = |link: usize| links[link].mean_delivery(side, plan.warmup, plan.duration);
    let mut narrowest = f64::INFINITY;
    for hop in plan.paths_by_hop() {
        let bits = plan.carried(&hop, of)?;
        narrowest = narrowest.min(bits / 1e6);
    }
    Some(match &plan.carrier {
        Carrier::Tunnel(tunnel) => tunnel_ceiling(narrowest, tunnel.compresses()),
        Carrier::Relay(relay) => tunnel_ceiling(narrowest, relay.tunnel.compresses()),
        Carrier::DirectFirst
        | Carrier::Path { .. }
        | Carrier::Chain { .. }
        | Carrier::TcpNc(_)
        | Carrier::Mptcp
        | Carrier::Balance(_)
        | Carrier::RoundRobin
        | Carrier::Peer { .. } => direct_ceiling(narrowest),
    })
}

/// Gives every bulk section the ceiling of its direction; their sum over the directions of the bulk
/// traffic. `None` where a path in use has no limit.
pub fn describe_ceilings(
    plan: &Plan,
    links: &[&LinkConfig],
    traffic: &mut [TrafficReport],
) -> Option<f64> {
    for (section, report) in plan.traffic.iter().zip(traffic) {
        let side = Traffic::bulk_side(section).filter(|_| section.beside().is_none());
        report.ceiling_mbit = side.and_then(|side| ceiling_mbit(plan, links, side));
    }
    let sides = plan.sides().into_iter();
    sides.map(|side| ceiling_mbit(plan, links, side)).sum()
}

/// The note of a report without a ceiling.
pub const NO_CEILING: &str = "a path in use has no rate limit: there is no ceiling";
