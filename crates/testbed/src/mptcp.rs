//! In-kernel Multipath TCP (RFC 8684), the yardstick on several links.

use anyhow::{Context, Result};

use crate::namespace::Namespace;

/// Whether the kernel has MPTCP in this namespace.
#[must_use]
pub fn available(namespace: &Namespace) -> bool {
    namespace.sysctl_value("net/mptcp/enabled").is_ok()
}

/// Lets connections from `client` use a subflow per interface, and `server` accept them.
///
/// `interfaces` are the client's, each with the address a subflow starts from.
///
/// # Errors
/// If the kernel or `ip` has no MPTCP.
pub fn enable(
    client: &Namespace,
    interfaces: &[(String, std::net::IpAddr)],
    server: &Namespace,
) -> Result<()> {
    for namespace in [client, server] {
        namespace
            .sysctl("net/mptcp/enabled", "1")
            .context("this kernel has no MPTCP")?;
        namespace.ip("mptcp limits set subflow 8 add_addr_accepted 8")?;
    }
    client.ip("mptcp endpoint flush")?;
    for (id, (interface, address)) in (1..).zip(interfaces) {
        client.ip(&format!(
            "mptcp endpoint add {address} id {id} dev {interface} subflow"
        ))?;
    }
    Ok(())
}
