//! Listening TCP sockets and options of accepted ones, for paths where UDP is blocked.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::helper::{self, Order};

/// Connections the kernel keeps waiting for `accept`.
const BACKLOG: i32 = 128;

/// Listens on `address`, without blocking. An IPv6 address serves IPv6 only, so that the same
/// port can be served on both families.
///
/// # Errors
/// What `bind` and `listen` report: the address is in use, not ours, or the port is privileged.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Bounds the bytes that wait unsent in a connection before it stops being writable.
///
/// # Errors
/// When it is not a TCP socket.
pub fn set_not_sent_low_water(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(bytes)
}

/// Chooses the congestion control of a connection by its kernel name.
///
/// # Errors
/// When the kernel does not have it.
pub fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    let own = set_congestion_here(socket, name);
    // Names that the machine does not allow to everybody, and modules that are not loaded yet, take
    // CAP_NET_ADMIN.
    if own.is_err() {
        let order = Order::Congestion(name.to_owned());
        if let Some(done) = helper::quick_order(&order, Some(socket.as_fd())) {
            return done.map(|((), _)| ()).map_err(io::Error::from);
        }
    }
    own
}

pub(crate) fn set_congestion_here(socket: &impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_share_a_port() {
        let v4 = listen("127.0.0.1:0".parse().expect("address")).expect("listens");
        let port = v4.local_addr().expect("bound").port();
        let v6 = SocketAddr::new("::1".parse().expect("address"), port);
        listen(v6).expect("the same port on the other family");
        assert!(listen(v4.local_addr().expect("bound")).is_err());
    }
}
