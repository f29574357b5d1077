//! The engine: one thread that owns TUN, sockets, connections and tunnels, and moves packets.
//!
//! `event_loop` waits and reads; `fabric` hides whether a path is QUIC or TLS; `peer` pumps one
//! tunnel; `site` and `hub` are the two roles: which paths exist and what gateways tell each
//! other; `agenda` says which of its sites a hub looks at in a turn. The control side talks to it with [`control::Command`]. No lock is taken per packet.

#[path = "../../../session/src/ready.rs"]
mod agenda;
pub mod control;
mod event_loop;
#[path = "../../../session/src/links/mod.rs"]
mod fabric;
#[path = "../../../session/src/hub.rs"]
mod hub;
#[path = "../../../session/src/peer.rs"]
mod peer;
pub mod settings;
#[path = "../../../session/src/site/mod.rs"]
mod site;

pub use event_loop::EngineHandle;
pub use settings::{HubSettings, SiteSettings};

use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_transport::KeyCheck;

/// Opens the TUN interface and starts the engine of a site.
///
/// # Errors
/// When the interface, the event queue or the endpoint cannot be set up.
pub fn start_site(settings: SiteSettings) -> anyhow::Result<EngineHandle> {
    let common = settings.common.clone();
    event_loop::start(&common, None, |fabric| site::Site::new(settings, fabric))
}

/// Opens the TUN interface and the listening sockets, and starts the engine of a hub.
///
/// # Errors
/// When the interface, a listening socket, the event queue or the endpoint cannot be set up.
pub fn start_hub(settings: HubSettings) -> anyhow::Result<EngineHandle> {
    let common = settings.common.clone();
    let sites = std::sync::Arc::clone(&settings.sites);
    let allowed: KeyCheck =
        std::sync::Arc::new(move |key| sites.find(key).is_some_and(|site| site.enabled));
    event_loop::start(&common, Some(allowed), |fabric| {
        hub::Hub::new(settings, fabric)
    })
}

/// Largest UDP payload that leaves an interface of this MTU whole, within what discovery tries.
fn udp_payload_max(mtu: u32, remote: &std::net::SocketAddr) -> u16 {
    let headers = if remote.is_ipv4() { 28 } else { 48 };
    let payload = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    payload.clamp(fabric::MTU_MIN, fabric::MTU_MAX)
}

/// Largest UDP payload that leaves this machine whole on any of its interfaces.
fn udp_payload_max_here() -> u16 {
    let Ok(interfaces) = ropewalk_io::netlink::snapshot() else {
        return fabric::MTU_MAX;
    };
    let outside = interfaces.iter().filter(|i| !i.loopback && i.up);
    let mtu = outside.map(|i| i.mtu).max().unwrap_or(1_500);
    udp_payload_max(mtu, &std::net::SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// A random number of the system.
pub(crate) fn random_u64() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The scheduler's number in messages between gateways: its place in [`SchedulerKind::ALL`].
fn scheduler_number(kind: SchedulerKind) -> u8 {
    let place = SchedulerKind::ALL.iter().position(|&k| k == kind);
    place
        .and_then(|p| u8::try_from(p).ok())
        .unwrap_or(SCHEDULER_ANY)
}

/// The scheduler with this number, if there is one.
fn scheduler_from_number(number: u8) -> Option<SchedulerKind> {
    SchedulerKind::ALL.get(usize::from(number)).copied()
}

/// In place of a scheduler's number: whatever the peer prefers.
const SCHEDULER_ANY: u8 = 0xff;

/// Adds a tunnel's counted drops to those of the gateway.
fn add_tunnel_drops(tunnel: &Tunnel, status: &mut crate::status::Status) {
    let stats = tunnel.stats();
    let counts = [
        ("queue_codel", stats.queue.dropped_codel),
        ("queue_full", stats.queue.dropped_full),
        ("malformed_datagrams", stats.malformed),
        ("invalid_inner", stats.invalid_inner),
        ("fragments", stats.fragments_dropped),
        ("duplicates", stats.reorder.duplicates),
    ];
    for (name, count) in counts {
        *status.drops.entry(name.to_owned()).or_default() += count;
    }
}
