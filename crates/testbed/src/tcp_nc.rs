//! TCP/NC between the gateways of a row, by the program `ropewalk-tcpnc`.
//!
//! Each hop has a source and a sink, each with an interface of its own. What a sink delivers is led
//! into the source of the next hop. Answers are routed beside the sessions.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use ropewalk_plan::TcpNcPlan;

use crate::process::Process;
use crate::programs;
use crate::row::Row;

/// Starts both ends of every hop; the programs, stopped when dropped.
///
/// # Errors
/// If a program does not start, or the kernel refuses.
pub(crate) fn join(row: &Row, plan: &TcpNcPlan) -> Result<Vec<Process>> {
    let program = programs::own("ropewalk-tcpnc")?;
    let mut running = Vec::new();
    for hop in 0..row.hops().len() {
        let [v4, _] = row.addresses(hop + 1)?;
        let address = SocketAddr::new(v4, PORT);
        let ends = [
            (hop + 1, "--listen", format!("nc{hop}in")),
            (hop, "--peer", format!("nc{hop}")),
        ];
        for (gateway, role, interface) in ends {
            let namespace = &row.gateways()[gateway];
            let mut start = namespace.program(&program).args([
                role,
                &address.to_string(),
                "--interface",
                &interface,
            ]);
            if let Some((n, k)) = plan.fixed() {
                start = start.args(["--n", &n.to_string(), "--k", &k.to_string()]);
            }
            let mut process = start.start(row.directory(), &interface)?;
            process.first_line(UP_LIMIT)?;
            namespace.ip(&format!("link set {interface} up\n"))?;
            running.push(process);
        }
        row.lead_on_into(hop, &format!("nc{hop}"))?;
    }
    Ok(running)
}

const PORT: u16 = 4790;
/// Longest time until an interface is there.
const UP_LIMIT: Duration = Duration::from_secs(10);
