//! What the control side (CLI, API, netlink watch) says to the engine thread, and what it learns.
//!
//! The engine owns every tunnel; the control side never touches one. Commands travel over a
//! channel with a wake-up, answers over a one-shot channel inside the command.

use std::sync::mpsc::SyncSender;

use ropewalk_api::{Direction, PathUse, Status};
use ropewalk_core::schedule::SchedulerKind;
pub use ropewalk_session::{KeyStep, Statement, Uplink};
use ropewalk_transport::PublicKey;

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
    /// What became of an enrolment (hub only).
    Enrolled {
        /// Key of the invitation.
        invitation: PublicKey,
        /// Key of the site.
        key: PublicKey,
        /// Why not, if so.
        refused: Option<String>,
        /// Whose the key is already, for the log of the hub alone.
        owner: Option<String>,
    },
    /// Another hub of the fleet has learned which hub serves a site (hub only).
    Claimed(Statement),
    /// Sites shall leave this hub, or may stay (hub only).
    Drained(bool),
    /// Packets from elsewhere may have this size, bytes. The interface takes them with any paths,
    /// and the tunnel splits them.
    MtuFloor(usize),
    /// Keys change.
    Key(KeyStep),
    /// Report the present state.
    Status(SyncSender<Status>),
    /// Say goodbye to peers and stop.
    Shutdown,
}
