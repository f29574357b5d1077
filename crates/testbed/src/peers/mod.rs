//! Other tunnels to compare with, each behind one small trait. `docs/peers.md` says how to add one.
//!
//! A peer joins site and hub over one uplink or all, and gives both an inner address. All traffic to the
//! server then takes the peer's interface; the hub forwards it as it does without any tunnel.

mod mqvpn;
mod openvpn;
mod wireguard_go;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::namespace::Namespace;
use crate::process::Process;
use crate::programs;
use crate::topology::{SERVER, Topology};
use crate::traffic::ping::{self, PingSpec};

/// Another tunnel program.
pub trait Peer: std::fmt::Debug + Sync {
    /// Its name in plans.
    fn name(&self) -> &'static str;

    /// Why it cannot run on this machine, in words; `None` if it can.
    fn obstacle(&self, tools: &Tools) -> Option<String>;

    /// Starts both ends. The site reaches the hub at [`crate::topology::HUB`] over each uplink, of which
    /// there is one for peers that are not among [`ropewalk_plan::MULTIPATH_PEERS`]; the inner addresses are [`SITE_INNER`] and [`HUB_INNER`].
    ///
    /// # Errors
    /// If an end does not start.
    fn start(&self, ground: &Ground<'_>) -> Result<Joined>;
}

/// Programs that the user named.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// `wireguard-go`.
    pub wireguard_go: Option<PathBuf>,
    /// `mqvpn`.
    pub mqvpn: Option<PathBuf>,
}

/// Where a peer runs.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The site's namespace.
    pub site: &'a Namespace,
    /// The hub's namespace.
    pub hub: &'a Namespace,
    /// The site's interfaces.
    pub uplinks: &'a [&'a str],
    /// For keys, configurations and logs.
    pub directory: &'a Path,
    /// Programs that the user named.
    pub tools: &'a Tools,
}

/// A peer's running programs; stopped when dropped.
#[derive(Debug)]
pub struct Joined {
    /// The site's program.
    pub site: Process,
    /// The hub's program.
    pub hub: Process,
    /// The tunnel's interface at the site.
    pub interface: String,
}

/// Every peer.
#[must_use]
pub fn all() -> [&'static dyn Peer; 8] {
    [
        &openvpn::OpenVpn::UDP,
        &openvpn::OpenVpn::TCP,
        &wireguard_go::WireguardGo,
        &mqvpn::Mqvpn::DEFAULT,
        &mqvpn::Mqvpn::MIN_RTT,
        &mqvpn::Mqvpn::REORDER,
        &mqvpn::Mqvpn::MIN_RTT_REORDER,
        &mqvpn::Mqvpn::HYBRID,
    ]
}

/// The peer of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Peer> {
    all().into_iter().find(|peer| peer.name() == name)
}

/// Starts a peer, waits until packets pass, and sends all traffic to the server through it.
///
/// # Errors
/// If an end does not start or nothing passes within [`UP_LIMIT`]; the message holds both logs.
pub fn join(peer: &dyn Peer, topology: &Topology, tools: &Tools) -> Result<Joined> {
    let uplinks = topology.uplinks().iter();
    let uplinks: Vec<&str> = uplinks.map(|uplink| uplink.interface.as_str()).collect();
    let ground = Ground {
        site: topology.site(),
        hub: topology.hub(),
        uplinks: &uplinks,
        directory: topology.directory(),
        tools,
    };
    let mut joined = peer.start(&ground)?;
    let end = Instant::now() + UP_LIMIT;
    let spec = PingSpec {
        count: 1,
        ..PingSpec::new(HUB_INNER.into())
    };
    while !ping::answers(ground.site, &spec)? {
        let running = joined.site.is_running() && joined.hub.is_running();
        if !running || Instant::now() > end {
            let (site, hub) = (joined.site.log_tail(), joined.hub.log_tail());
            bail!(
                "{} does not come up; site:\n{site}\nhub:\n{hub}",
                peer.name()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let device = &joined.interface;
    let route = format!("route add {SERVER}/32 via {HUB_INNER} dev {device}\n");
    ground.site.ip(&route).context("no route into the tunnel")?;
    Ok(joined)
}

/// The program that the user named, or the one of this name in PATH.
fn program(named: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
    match named {
        Some(path) => path.is_file().then(|| path.clone()),
        None => programs::in_path(name),
    }
}

/// Waits until a tunnel's interface exists.
fn await_interface(namespace: &Namespace, interface: &str, process: &mut Process) -> Result<()> {
    let end = Instant::now() + UP_LIMIT;
    while namespace.interface_bytes(interface).is_err() {
        if !process.is_running() || Instant::now() > end {
            bail!(
                "{} made no interface:\n{}",
                process.name(),
                process.log_tail()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The site's address in the tunnel.
pub const SITE_INNER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The hub's address in the tunnel.
pub const HUB_INNER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Longest time a peer may take to come up.
pub const UP_LIMIT: Duration = Duration::from_secs(15);
/// Bound of one administrative command.
const LIMIT: Duration = Duration::from_secs(10);
