//! What a session wants of the world around it: sockets to open and close, bytes to send.

use std::net::SocketAddr;

use ropewalk_transport::tls::TcpInfo;
use ropewalk_transport::{SocketId, Transmit};

/// Names a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Something the driver has to do. Requests are served in the order in which they come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Open a UDP socket. [`Session::handle_socket_failed`](crate::Session::handle_socket_failed)
    /// says when that cannot be done.
    OpenUdp {
        /// Its name from now on.
        socket: SocketId,
        /// Local address; port 0 leaves the port to the system.
        bind: SocketAddr,
        /// Interface it is bound to.
        device: Option<String>,
    },
    /// Close a UDP socket.
    CloseUdp {
        /// Which.
        socket: SocketId,
    },
    /// Listen for TCP connections. Each one is reported with
    /// [`Session::handle_accepted`](crate::Session::handle_accepted).
    ListenTcp {
        /// Local address.
        address: SocketAddr,
    },
    /// Connect by TCP. [`Session::handle_stream_writable`](crate::Session::handle_stream_writable)
    /// says that it has connected,
    /// [`Session::handle_stream_closed`](crate::Session::handle_stream_closed) that it cannot.
    ConnectTcp {
        /// Its name from now on.
        stream: StreamId,
        /// Interface it is bound to.
        device: Option<String>,
        /// Where to.
        remote: SocketAddr,
    },
    /// Hand an accepted TCP connection to another worker of this hub, with what
    /// [`Session::take_moved`](crate::Session::take_moved) gives.
    MoveTcp {
        /// Which.
        stream: StreamId,
        /// Index of the worker.
        worker: usize,
    },
    /// Close a TCP connection. The driver may have closed it already.
    CloseTcp {
        /// Which.
        stream: StreamId,
    },
}

/// The driver's sockets, as [`Session::pump`](crate::Session::pump) uses them. No method blocks.
pub trait Sockets {
    /// Sends UDP datagrams: `contents`, cut into pieces of `transmit.segment_size` bytes.
    /// Datagrams that cannot be sent are lost, as on the way.
    fn send_udp(&mut self, transmit: &Transmit, contents: &[u8]);

    /// Writes to a TCP connection and returns the number of bytes taken. 0 means that room, or the
    /// connection itself, is still missing. When that has changed,
    /// [`Session::handle_stream_writable`](crate::Session::handle_stream_writable) follows.
    ///
    /// # Errors
    /// Why the connection is over, in words.
    fn write_stream(&mut self, stream: StreamId, bytes: &[u8]) -> Result<usize, String>;

    /// What the kernel knows of a TCP connection now, if it says.
    fn stream_info(&mut self, stream: StreamId) -> Option<TcpInfo>;
}
