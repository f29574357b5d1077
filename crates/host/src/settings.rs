//! Kernel settings that gateways need, changed so that they can be undone.

use ropewalk_io::{netlink, sysctl};

use crate::Changes;

/// Whether the kernel has IPv6, switched on or off.
#[must_use]
pub fn kernel_has_ipv6() -> bool {
    sysctl::read(FORWARD_IPV6).is_ok()
}

/// Whether this machine forwards IPv6.
pub const FORWARD_IPV6: &str = "net.ipv6.conf.all.forwarding";

/// Forwards IPv6. A host that forwards ignores router advertisements and would lose its own default
/// route, unless told to take them all the same.
///
/// # Errors
/// Not permitted, or the kernel has no IPv6.
pub fn forward_ipv6(changes: &mut Changes) -> anyhow::Result<()> {
    for key in router_advertisement_keys() {
        changes.sysctl(&key, "2")?;
    }
    changes.sysctl(FORWARD_IPV6, "1")
}

/// Settings of interfaces that would ignore router advertisements once this machine forwards.
#[must_use]
pub fn router_advertisement_keys() -> Vec<String> {
    let interfaces = netlink::snapshot().unwrap_or_default();
    let routed = interfaces
        .iter()
        .filter(|interface| interface.default_route_v6);
    routed
        .map(|interface| format!("net/ipv6/conf/{}/accept_ra", interface.name))
        .filter(|key| sysctl::read(key).is_ok_and(|value| value == "1"))
        .collect()
}

/// Lets answers of the hub in where the kernel would drop them. With the strict check of RFC 3704
/// §2.2 the kernel accepts a packet only on the interface by which it would send to the sender.
/// That interface is the tunnel or another uplink.
pub fn loosen_reverse_path(changes: &mut Changes, uplink: &str) {
    if !is_reverse_path_strict(uplink) {
        return;
    }
    let key = reverse_path_key(uplink);
    match changes.sysctl(&key, "2") {
        Ok(()) => tracing::info!(uplink, "reverse path filter is loose now"),
        Err(error) => tracing::warn!(
            uplink,
            error = format!("{error:#}"),
            "the strict reverse path filter may drop the hub's answers; set {key} to 2"
        ),
    }
}

/// The setting of an interface's reverse path filter.
#[must_use]
pub fn reverse_path_key(uplink: &str) -> String {
    format!("net/ipv4/conf/{uplink}/rp_filter")
}

/// Whether the kernel drops what comes in over an interface that it would not answer by.
#[must_use]
pub fn is_reverse_path_strict(uplink: &str) -> bool {
    let is = |name: &str, wanted: &str| {
        sysctl::read(&reverse_path_key(name)).is_ok_and(|value| value == wanted)
    };
    // The kernel takes the larger of both values.
    let loose = is("all", "2") || is(uplink, "2");
    !loose && (is("all", "1") || is(uplink, "1"))
}
