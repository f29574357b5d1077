//! Ends TCP sockets of this machine from outside (`SOCK_DESTROY` of sock_diag(7)).
//!
//! The program that owns the socket gets `ECONNABORTED`. Needs `CONFIG_INET_DIAG_DESTROY`.

use std::io;
use std::net::SocketAddr;

use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{SockDiagDestroy, SockDiagMessage};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::netlink::socket::NetlinkSocket;

/// Ends the TCP socket from `local` to `remote`; false when this machine has none such.
///
/// # Errors
/// Not permitted, or the kernel cannot do it (`EOPNOTSUPP`).
pub fn destroy_tcp(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    let request = InetRequest {
        family: if local.is_ipv4() { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: local.port(),
            destination_port: remote.port(),
            source_address: local.ip(),
            destination_address: remote.ip(),
            interface_id: 0,
            // All ones: the addresses name the socket.
            cookie: [0xff; 8],
        },
    };
    let destroy = SockDiagDestroy::new(SockDiagMessage::InetRequest(request));
    match NetlinkSocket::open(NETLINK_SOCK_DIAG)?.change(destroy, 0) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_waiting_reader_is_told_at_once_and_other_sockets_are_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).expect("connects");
        let other = TcpStream::connect(address).expect("connects");
        match destroy_tcp(client.local_addr().expect("bound"), address) {
            Ok(found) => assert!(found),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("skipped: needs root");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(client.read(&mut [0]).is_err());
        assert!(other.take_error().expect("readable").is_none());
        let unknown = "127.0.0.1:1".parse().expect("address");
        assert!(!destroy_tcp(unknown, address).expect("no such socket"));
    }
}
