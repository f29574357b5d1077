//! What the control side (CLI, API, netlink watch) says to the engine thread, and what it learns.
//!
//! The engine owns every tunnel; the control side never touches one. Commands travel over a
//! channel with a wake-up, answers over a one-shot channel inside the command.

use std::net::IpAddr;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use ropewalk_core::schedule::SchedulerKind;
use ropewalk_transport::CongestionControl;
use serde::{Deserialize, Serialize};

use crate::status::Status;

/// One uplink as the netlink watch sees it and the configuration marks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Interface name.
    pub name: String,
    /// Kernel interface index.
    pub ifindex: u32,
    /// Addresses usable as source, preferred first (IPv6 privacy addresses before stable ones).
    pub addresses: Vec<IpAddr>,
    /// Interface MTU in bytes.
    pub mtu: u32,
    /// Used only while no other path works.
    pub standby: bool,
    /// Costs money by the byte.
    pub metered: bool,
    /// Fixed share under weighted round robin.
    pub weight: Option<u16>,
    /// Bytes per hour that protection may cost; `None` is what the core takes for such an uplink.
    pub protection_hourly: Option<u64>,
    /// Congestion control of this uplink; `None` is the tunnel's default.
    pub congestion: Option<CongestionControl>,
}

/// Which way packets go, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From this machine to its peer.
    Send,
    /// From the peer to this machine.
    Receive,
    /// Both ways.
    Both,
}

/// What is wanted of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// It may be used.
    Enabled,
    /// It is out of use.
    Disabled,
    /// It will end soon: it is used only while there is nothing else, until it has gone and come
    /// back, for this long at most.
    Leaving(Option<Duration>),
    /// It will not end after all, or is back.
    Returning,
    /// Signs say that it will end, and count for so long, or that it will not. What the user said holds beside.
    Foretold(Option<Duration>),
}

/// A request to the engine.
#[derive(Debug)]
pub enum Command {
    /// The uplinks in use are now exactly these (site only).
    Uplinks(Vec<Uplink>),
    /// Change the scheduler; `peer` names a site on a hub, `None` means every tunnel.
    SetScheduler {
        /// Direction to change.
        direction: Direction,
        /// The new scheduler.
        kind: SchedulerKind,
        /// Site name, or every tunnel.
        peer: Option<String>,
        /// Number of tunnels changed, or why none.
        reply: SyncSender<Result<usize, String>>,
    },
    /// Take a path out of use, put it back, or announce its end.
    SetPath {
        /// Uplink name.
        uplink: String,
        /// What is wanted of it.
        wanted: PathUse,
        /// Why not, if it failed.
        reply: SyncSender<Result<(), String>>,
    },
    /// The sites that may connect changed (hub only).
    ReloadSites,
    /// What comes from elsewhere may have this size, bytes: the interface takes it, whatever the
    /// paths do, and the tunnel splits it.
    MtuFloor(usize),
    /// Report the present state.
    Status(SyncSender<Status>),
    /// Say goodbye to peers and stop.
    Shutdown,
}
