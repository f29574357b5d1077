//! The engine: a thread that owns the TUN interface and the sockets, and drives a session. A hub may have
//! several, its workers, each with a queue of the interface, sockets and a slice of the sites.
//!
//! `event_loop` waits, reads and gives everybody a turn. The crate `driver` does what the session
//! asks for. Everything that decides is in the session. The control side talks to the thread with
//! [`control::Command`]. No lock is taken per packet.

mod asked;
pub mod control;
mod event_loop;
mod pulse;
pub mod settings;
mod workers;

#[cfg(test)]
pub(crate) use event_loop::with_notice;
pub use event_loop::{CommandSender, EngineHandle};
pub use pulse::Pulse;
pub use ropewalk_session::GROUPS;

use ropewalk_session::{HubSettings, Session, SiteSettings, UDP_PAYLOAD_MAX, udp_payload_max};
use settings::{EventSink, HostSettings};

/// Opens the TUN interface and starts the engine of a site.
///
/// # Errors
/// When the interface, the event queue or the session cannot be set up.
pub fn start_site(
    host: &HostSettings,
    settings: SiteSettings,
    events: &EventSink,
) -> anyhow::Result<Vec<EngineHandle>> {
    let common = settings.common.clone();
    event_loop::start(host, &common, events, 1, |environment| {
        Session::site(settings.clone(), environment)
    })
}

/// Opens the TUN interface and the listening sockets, and starts the workers of a hub, `1..=`
/// [`GROUPS`].
///
/// # Errors
/// When the interface, a listening socket, the event queue or the session cannot be set up.
pub fn start_hub(
    host: &HostSettings,
    settings: HubSettings,
    events: &EventSink,
    workers: usize,
) -> anyhow::Result<Vec<EngineHandle>> {
    let common = settings.common.clone();
    event_loop::start(host, &common, events, workers, |environment| {
        Session::hub(settings.clone(), environment)
    })
}

/// Largest UDP payload that leaves this machine whole on any of its interfaces.
fn udp_payload_max_here() -> u16 {
    let Ok(interfaces) = ropewalk_io::netlink::snapshot() else {
        return UDP_PAYLOAD_MAX;
    };
    let outside = interfaces.iter().filter(|i| !i.loopback && i.up);
    let mtu = outside.map(|i| i.mtu).max().unwrap_or(1_500);
    udp_payload_max(mtu, &std::net::SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// A random number of the system.
pub(crate) fn random_u64() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    ropewalk_crypto::rand::fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}
