//! Connections over the uplinks in turn, by a firewall rule alone: what routers do that know nothing of
//! their uplinks' rates, and the yardstick for `ropewalk balance`.
//!
//! Invariant: a connection keeps the uplink of its first packet, by the mark of the connection.

use anyhow::Result;

use crate::topology::Topology;

/// Gives connections that the site opens to its uplinks in turn, with equal weights, until its namespace
/// goes.
///
/// # Errors
/// If `nft` or `ip` refuses.
pub fn take(topology: &Topology) -> Result<()> {
    let site = topology.site();
    let uplinks = topology.uplinks();
    let mut marks = Vec::new();
    let mut routes = String::new();
    for (index, uplink) in uplinks.iter().enumerate() {
        let (table, mark) = (TABLE + index, index + 1);
        let gateway = uplink.gateways[0];
        marks.push(format!("{index} : {mark:#x}"));
        routes += &format!(
            "route add default via {gateway} dev {} table {table}\n\
             rule add fwmark {mark} lookup {table} priority {PRIORITY}\n",
            uplink.interface
        );
        // Answers come in over an uplink that the main route does not name.
        site.sysctl(
            &format!("net/ipv4/conf/{}/rp_filter", uplink.interface),
            "2",
        )?;
    }
    site.ip(&routes)?;
    let (count, marks) = (uplinks.len(), marks.join(", "));
    // A connection is new until it is answered: further packets of a handshake keep its mark.
    site.nft(&format!(
        "table ip turns {{\n\
           chain mark_new {{\n\
             type route hook output priority mangle;\n\
             oifname \"up*\" ct state new ct mark 0 ct mark set numgen inc mod {count} map {{ {marks} }}\n\
             meta mark set ct mark\n\
           }}\n\
           chain translate {{\n\
             type nat hook postrouting priority srcnat;\n\
             oifname \"up*\" masquerade\n\
           }}\n\
         }}\n"
    ))
}

/// The first routing table.
const TABLE: usize = 100;
/// Before the main table.
const PRIORITY: u32 = 1_000;
