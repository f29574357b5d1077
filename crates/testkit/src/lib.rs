//! Worlds for tests, in virtual time over emulated links.
//!
//! A [`World`] is a hub and its sites: the sessions that gateways run. It is a driver like the
//! engine of a gateway. Its sockets are names, its network is one
//! [`Link`](ropewalk_netem::Link) per uplink, its time moves from event to event. Tests use it as
//! it is; the simulator puts hosts and traffic around it.
//!
//! A [`Pair`] is two machines of any kind below a session: raw [`tunnels`], or QUIC
//! [`endpoints`].
//!
//! Invariant: what happens follows from the seed and the calls alone.

#![forbid(unsafe_code)]

#[cfg(feature = "session")]
pub mod endpoints;
#[cfg(feature = "session")]
mod host;
#[cfg(feature = "session")]
mod joint;
pub mod packet;
mod pair;
#[cfg(feature = "session")]
mod stream;
pub mod tunnels;
#[cfg(feature = "session")]
mod world;

#[cfg(feature = "session")]
pub use host::Host;
pub use packet::Packet;
pub use pair::{Machine, Outbound, Pair};
#[cfg(feature = "session")]
pub use world::{
    End, Fate, HOME, HUB_INNER, HUB_TCP, HUB_UDP, Neighbour, SITE_HOSTS, SPARE, Spec, Tap, World,
};
