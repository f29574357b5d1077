//! What the control side asks of a session.

use std::net::IpAddr;

use ropewalk_api::{Direction, PathUse};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_transport::{CongestionControl, PublicKey};
use serde::{Deserialize, Serialize};

use crate::claim::Statement;
use crate::keys::KeyStep;

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
    /// Number of the bottleneck that the uplink shares with others that have the same number, 1 to
    /// [`ropewalk_core::path::BOTTLENECK_MAX`].
    pub bottleneck: Option<u8>,
    /// Fixed share under weighted round robin.
    pub weight: Option<u16>,
    /// Bytes per hour that protection may cost; `None` is what the core takes for such an uplink.
    pub protection_hourly: Option<u64>,
    /// Congestion control of this uplink; `None` is the tunnel's default.
    pub congestion: Option<CongestionControl>,
}

/// A request to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The uplinks in use are now exactly these (site only).
    Uplinks(Vec<Uplink>),
    /// Change the scheduler. The answer is the number of tunnels changed.
    SetScheduler {
        /// Direction to change.
        direction: Direction,
        /// The new scheduler.
        kind: SchedulerKind,
        /// Name of a site on a hub; `None` means every tunnel.
        peer: Option<String>,
    },
    /// Take a path out of use, put it back, or announce its end (site only).
    SetPath {
        /// Uplink name.
        uplink: String,
        /// What is wanted of it.
        wanted: PathUse,
    },
    /// The table of sites that may connect has changed (hub only).
    ReloadSites,
    /// What became of an enrolment that [`Event::Enrol`](crate::Event::Enrol) asked for (hub only).
    /// The answer is the number of connections that are told.
    Enrolled {
        /// Key of the invitation.
        invitation: PublicKey,
        /// Key of the site.
        key: PublicKey,
        /// Why not; `None` when the site may connect with its key now.
        refused: Option<String>,
        /// Whose the key is already, if that is why; for the log of the hub alone.
        owner: Option<String>,
    },
    /// Packets from elsewhere may have this size, bytes. The interface takes them even where the
    /// paths do not, and the tunnel splits them.
    MtuFloor(usize),
    /// Another hub has learned from a site, or this one knew before it started, which hub serves the site (hub only).
    /// The answer is 1 if that was news, else 0. The error says whose key or signature is wrong.
    Claimed(Statement),
    /// Sites shall leave this hub, or may stay (hub only). The answer is the number of sites that are served here.
    Drained(bool),
    /// Keys change.
    Key(KeyStep),
}
