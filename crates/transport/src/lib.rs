//! Sub-tunnels as machines without I/O: QUIC datagrams on `quinn-proto`, and TLS over TCP where
//! UDP is blocked. Callers pass bytes and `now` in and take bytes and events out.
//!
//! Invariant: a connection is reported as connected only after both ends have proved possession
//! of the Ed25519 key the other one pinned. Source: RFC 9000, RFC 9221, RFC 7250, RFC 8446.

#![forbid(unsafe_code)]

pub mod congestion;
mod credentials;
mod error;
mod keys;
mod quic;
pub mod tls;

pub use congestion::{CongestionControl, FLOW_PARTS};
pub use error::{CloseReason, ParseKeyError, SendError, TransportError};
pub use keys::{Identity, KeyCheck, PROOF_BYTES, Proof, PublicKey};
pub use quic::{
    ConnectOptions, ConnectionCounters, ConnectionId, Endpoint, EndpointConfig, EndpointStats,
    Event, GROUPS, Slice, SocketId, Source, Transmit, begins_connection, gives_way, group_of,
};
pub use ropewalk_types::Ecn;
