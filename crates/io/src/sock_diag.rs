//! Ends TCP sockets of this machine from outside (`SOCK_DESTROY` of sock_diag(7)).
//!
//! The program that owns the socket gets `ECONNABORTED`. Needs `CONFIG_INET_DIAG_DESTROY`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::raw_netlink::RawNetlink;

/// Ends the TCP socket from `local` to `remote`; false when this machine has none such.
///
/// # Errors
/// Not permitted, or the kernel cannot do it (`EOPNOTSUPP`).
pub fn destroy_tcp(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    let family = if local.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // struct inet_diag_req_v2
    let mut body = vec![u8::try_from(family).unwrap_or(0), 6, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    body.extend(sixteen(local.ip()));
    body.extend(sixteen(remote.ip()));
    body.extend(0_u32.to_ne_bytes());
    body.extend([0xff; 8]);
    match RawNetlink::open(NETLINK_SOCK_DIAG)?.change(SOCK_DESTROY, &body) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn sixteen(ip: IpAddr) -> [u8; 16] {
    let mut out = [0; 16];
    match ip {
        IpAddr::V4(ip) => out[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out = ip.octets(),
    }
    out
}

const NETLINK_SOCK_DIAG: isize = 4;
const SOCK_DESTROY: u16 = 21;

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
