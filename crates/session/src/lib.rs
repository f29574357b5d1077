//! The decisions of a gateway, without I/O. A site decides which paths it has, and how each path
//! gets and keeps a connection to the hub. A hub decides how it treats the connections of its
//! sites. Both decide what they tell each other.
//!
//! One [`Session`] is one gateway: `Session<Site>` or `Session<Hub>`. `Session<Joining>` makes a
//! machine a site, once. A session has no clock, socket,
//! thread, file or random source. A driver passes time, bytes and random numbers in, and takes
//! requests and bytes out. The engine of the gateway is one driver, a simulator another.
//!
//! # A turn of a driver
//! 1. All input that is there, by the `handle_…` methods.
//!    Where more waits at the sockets than a turn can take, the driver says so with [`Session::handle_backlog`].
//!    Then [`Session::poll_stream`] until `None`: TCP connections to be read, each before the next call.
//!    Then [`Session::handle_timeout`] when [`Session::poll_timeout`] is due: bytes that are there come before the
//!    timers that wait for them. What other workers hand over may come after that.
//! 2. [`Session::end_batch`], then [`Session::poll_inner`] until `None`.
//! 3. [`Session::poll_request`] until `None`: sockets to open.
//! 4. [`Session::pump`]: packets and bytes to send.
//! 5. [`Session::poll_request`] again: sockets to close. [`Session::poll_event`] until `None`.
//!
//! # Invariants
//! - The same inputs at the same times give the same outputs. Keys and nonces of the transports are
//!   the exception, and decisions do not depend on their values.
//! - Nothing is allocated per packet beyond the buffers that come in, and nothing is locked. Datagrams that wait
//!   for their turn or their rate, and inner packets that wait in an outage, are copied. The shared tables
//!   ([`SiteDirectory`], [`HubAddresses`]) are read once per handshake or connection attempt.
//! - [`SocketId`] and [`StreamId`] are never used again after they were closed.

#![forbid(unsafe_code)]

mod claim;
mod command;
mod hub;
mod intake;
mod io;
mod joining;
mod keys;
mod links;
mod mtu;
mod peer;
mod rate;
mod ready;
mod session;
mod settings;
mod site;
mod status;
mod tuning;

pub use claim::Statement;
pub use command::{Command, Uplink};
#[cfg(debug_assertions)]
pub use hub::plant_fault;
pub use hub::{Hub, SITES_MAX};
pub use io::{Request, Sockets, StreamId};
pub use joining::{Joining, Outcome};
pub use keys::{KeyEvent, KeyStep, OTHER_WORKER};
pub use links::{LinkId, Links, Moved};
pub use peer::Peer;
pub use ropewalk_core::reorder::Inner;
pub use ropewalk_transport::tls::TcpInfo;
pub use ropewalk_transport::{GROUPS, Slice, SocketId, Transmit, group_of};
pub use session::{Elsewhere, Event, Role, Session};
pub use settings::{
    CommonSettings, Environment, HubAddresses, HubSettings, JoinSettings, MTU_DEFAULT, MTU_MAX,
    MTU_MIN, SiteDirectory, SiteEntry, SiteHub, SiteSettings, UDP_PAYLOAD_MAX, UDP_PAYLOAD_MIN,
    WEIGHT_MAX, udp_payload_max,
};
pub use site::Site;
pub use status::SessionStatus;
