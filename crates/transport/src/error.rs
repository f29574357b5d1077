//! Errors of this crate and why a connection ended, in words that say what to do.
//!
//! Invariant: nothing here carries key material.

use core::fmt;

/// Why a key in text form was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyError {
    /// Not 44 characters of base64.
    #[error("a key is 44 characters of base64 ending in '=', this has {0}")]
    Length(usize),
    /// A character that base64 does not have, or wrong padding.
    #[error("not base64 (RFC 4648 §4): only A-Z a-z 0-9 + / and one '=' at the end")]
    Base64,
    /// The bytes are not a usable Ed25519 key.
    #[error("not an Ed25519 key: copy it again from `ropewalk key`")]
    NotAKey,
}

/// Why a transport could not be set up or a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The TLS library refused the configuration.
    #[error("TLS cannot be configured: {0}")]
    Tls(String),
    /// A configuration value outside its range.
    #[error("{0}")]
    Config(String),
    /// The remote address cannot be connected to.
    #[error("cannot connect to {0}: give an address that is not unspecified, and a port")]
    RemoteAddress(std::net::SocketAddr),
    /// The system gave no random numbers.
    #[error("the system gave no random numbers")]
    Random,
    /// The number of connections reached its bound.
    #[error("{0} connections are open, which is the limit")]
    ConnectionsMax(usize),
    /// The byte stream of a TLS path broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Longer than [`crate::Endpoint::mtu`] allows now; the value is the largest size in bytes.
    #[error("larger than the {0} bytes this path takes")]
    TooLarge(usize),
    /// The bounded send queue is full: wait for `free` in the snapshot.
    #[error("the send queue is full")]
    Full,
    /// Not connected yet, closed, or never existed.
    #[error("not connected")]
    NotConnected,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Nothing came from the peer for the idle timeout, or the handshake did not finish.
    TimedOut,
    /// The peer does not know the connection any more, for example after a restart.
    Reset,
    /// The peer closed it; its words.
    PeerClosed(String),
    /// A key was not the pinned one or is not on the list; which side says so, and why.
    KeyRejected(String),
    /// The accepting side does not know the key of this side, which connects.
    KeyUnknown,
    /// Closed by this side.
    Local,
    /// The protocol failed.
    Transport(String),
    /// This side's program panicked in the work of the connection.
    Internal,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str(
                "timed out: check that the peer runs, its address, and that UDP is not blocked",
            ),
            Self::Reset => f.write_str("the peer lost the connection (restarted?): connect again"),
            Self::PeerClosed(why) if why.is_empty() => f.write_str("closed by the peer"),
            Self::PeerClosed(why) => write!(f, "closed by the peer: {why}"),
            Self::KeyRejected(why) => write!(f, "key refused: {why}"),
            Self::KeyUnknown => f.write_str(
                "key refused: the peer does not accept this key (not enrolled, or removed)",
            ),
            Self::Local => f.write_str("closed by this side"),
            Self::Transport(why) => write!(f, "protocol error: {why}"),
            Self::Internal => f.write_str("internal error: please report the panic in the log"),
        }
    }
}
