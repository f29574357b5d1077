//! A hub and its sites in virtual time: the sessions that gateways run, joined by emulated links.
//! Tests use it as it is; the simulator puts hosts and traffic around it.
//!
//! A [`World`] is a driver like the engine of a gateway. Its sockets are names, its network is
//! one [`Link`](ropewalk_netem::Link) per uplink, its time moves from event to event.
//!
//! Invariant: what happens follows from the seed and the calls alone.

#![forbid(unsafe_code)]

mod host;
pub mod packet;
mod world;

pub use host::Host;
pub use packet::Packet;
pub use world::{End, Fate, HUB_INNER, HUB_TCP, HUB_UDP, Spec, World};
