//! Echo requests over one interface (RFC 792, RFC 4443 §4).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, Socket, Type};

use crate::checksum;

/// Sends echo requests and takes the answers, bound to an interface.
#[derive(Debug)]
pub struct Echo {
    socket: Socket,
    ipv6: bool,
    token: [u8; TOKEN_BYTES],
}

/// Bytes that tell this prober's answers from those of others.
pub const TOKEN_BYTES: usize = 8;
/// Type and code, checksum, identifier and sequence number.
const HEADER_BYTES: usize = 8;
/// Room for an answer with an IPv4 header with options.
const ANSWER_BYTES: usize = 128;
const ECHO_V4: u8 = 8;
const REPLY_V4: u8 = 0;
const ECHO_V6: u8 = 128;
const REPLY_V6: u8 = 129;

impl Echo {
    /// A prober of one address family, bound to `interface`, whose packets carry `mark`; `token` comes
    /// back with every answer.
    ///
    /// # Errors
    /// Not permitted (`CAP_NET_RAW`), or no such interface.
    pub fn open(
        interface: &str,
        ipv6: bool,
        mark: u32,
        token: [u8; TOKEN_BYTES],
    ) -> io::Result<Self> {
        let (domain, protocol) = if ipv6 {
            (Domain::IPV6, Protocol::ICMPV6)
        } else {
            (Domain::IPV4, Protocol::ICMPV4)
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_mark(mark)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            ipv6,
            token,
        })
    }

    /// Sends an echo request.
    ///
    /// # Errors
    /// What the system call reports, such as no route.
    pub fn send(&self, target: IpAddr, sequence: u16) -> io::Result<()> {
        let mut packet = vec![if self.ipv6 { ECHO_V6 } else { ECHO_V4 }, 0, 0, 0];
        packet.extend(&self.token[..2]);
        packet.extend(sequence.to_be_bytes());
        packet.extend(self.token);
        if !self.ipv6 {
            // The kernel computes that of IPv6, whose pseudo-header it knows.
            let sum = !checksum::fold(checksum::add(0, &packet));
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let target = SocketAddr::new(target, 0);
        self.socket.send_to(&packet, &target.into()).map(drop)
    }

    /// The next answer: who sent it and the sequence number of its request. Packets that are no answer
    /// to this prober are skipped.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn receive(&self) -> io::Result<(IpAddr, u16)> {
        loop {
            let mut buffer = [0; ANSWER_BYTES];
            let (length, _, from) =
                rustix::net::recvfrom(&self.socket, &mut buffer, RecvFlags::empty())?;
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let (bytes, from) = (buffer.get(..length).unwrap_or(&[]), from.map(|f| f.ip()));
            if let (Some(sequence), Some(from)) = (self.answer(bytes), from) {
                return Ok((from, sequence));
            }
        }
    }

    fn answer(&self, bytes: &[u8]) -> Option<u16> {
        let header = if self.ipv6 {
            0
        } else {
            usize::from(bytes.first()? & 0xf) * 4
        };
        let icmp = bytes.get(header..)?;
        let wanted = if self.ipv6 { REPLY_V6 } else { REPLY_V4 };
        let token = icmp.get(HEADER_BYTES..HEADER_BYTES + TOKEN_BYTES)?;
        let sequence = icmp.get(6..8)?.first_chunk()?;
        (icmp[0] == wanted && token == self.token).then(|| u16::from_be_bytes(*sequence))
    }
}

impl AsFd for Echo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_answers_come_back_and_those_of_others_do_not() {
        for (ipv6, target) in [(false, "127.0.0.1"), (true, "::1")] {
            let open = |token| Echo::open("lo", ipv6, 0, [token; TOKEN_BYTES]);
            let (first, second) = match (open(7), open(8)) {
                (Ok(first), Ok(second)) => (first, second),
                (Err(error), _) | (_, Err(error)) => {
                    eprintln!("skipped: needs root ({error})");
                    return;
                }
            };
            let target: IpAddr = target.parse().expect("address");
            if first.send(target, 513).is_err() {
                eprintln!("skipped: no {target} here");
                continue;
            }
            let mut came = Vec::new();
            for _ in 0..50 {
                came.extend(first.receive());
                assert!(second.receive().is_err(), "an answer to somebody else");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            assert_eq!(came, [(target, 513)]);
        }
    }
}
