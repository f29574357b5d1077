//! Runs sessions on the sockets of the kernel: opens what they ask for, reads and writes it.
//!
//! One thread may drive any number of sessions: [`Owner`] tells them apart. Whoever drives waits
//! with `epoll`, decodes [`Event`]s, and takes the turns that the head of `ropewalk_session`
//! describes. The engine of a gateway drives one session; a load test drives thousands.

#![forbid(unsafe_code)]

mod event;
mod sockets;

pub use event::{Event, OWNERS_MAX, Owner, Ready};
pub use sockets::{MovedStream, SocketDrops, SocketOptions, Sockets, SocketsOf};
