//! One netlink socket: a request out, its answers in.
//!
//! Invariant: a request ends with the kernel's acknowledgement, its end-of-dump mark, an error, or
//! the time limit. Answers to anything else are skipped.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tracing::debug;

use super::{NetlinkError, Result};

/// The kernel answers at once; longer means the answer was lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Messages read for one request: a full internet routing table and room.
const ANSWERS_MAX: usize = 4_000_000;

/// Dumps that a concurrent change interrupted are repeated this often.
const DUMP_TRIES_MAX: usize = 8;

/// A socket of one netlink protocol, whose messages are `T`.
pub(crate) struct NetlinkSocket<T> {
    socket: Socket,
    sequence: u32,
    messages: PhantomData<T>,
}

/// A socket for interfaces, addresses, routes and rules.
pub(super) fn route_socket() -> io::Result<NetlinkSocket<RouteNetlinkMessage>> {
    NetlinkSocket::open(NETLINK_ROUTE)
}

/// How a dump ended.
enum End {
    Complete,
    /// Something changed meanwhile: the answers may contradict each other.
    Interrupted,
}

impl<T: NetlinkSerializable + NetlinkDeserializable + Clone + Debug> NetlinkSocket<T> {
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        // The error message then carries only the header of the request.
        socket.set_cap_ack(true)?;
        socket2::SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self {
            socket,
            sequence: 0,
            messages: PhantomData,
        })
    }

    /// Asks for a change and waits for the kernel's verdict.
    pub(crate) fn change(&mut self, message: T, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.answers(|_| {}).map(drop)
    }

    /// Asks for one object, and waits for the kernel's verdict behind the answer.
    pub(crate) fn ask(&mut self, request: T) -> io::Result<Option<T>> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK)?;
        let mut answer = None;
        self.answers(|message| answer = Some(message))?;
        Ok(answer)
    }

    /// Calls `take` with every object of a kind. An object that changes meanwhile may be missed.
    pub(crate) fn for_each(&mut self, request: T, take: impl FnMut(T)) -> io::Result<()> {
        self.send(request, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.answers(take).map(drop)
    }

    /// Every object of a kind, as it was at one moment where the kernel grants one.
    pub(crate) fn dump(&mut self, request: &T) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..DUMP_TRIES_MAX {
            all.clear();
            self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            if let End::Complete = self.answers(|message| all.push(message))? {
                break;
            }
        }
        Ok(all)
    }

    fn send(&mut self, message: T, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        // Port 0 is the kernel.
        self.socket
            .send_to(&bytes, &SocketAddr::new(0, 0), 0)
            .map(drop)
    }

    fn answers(&self, mut take: impl FnMut(T)) -> io::Result<End> {
        let mut end = End::Complete;
        let mut count = 0;
        while count < ANSWERS_MAX {
            let (bytes, _) = self.socket.recv_from_full()?;
            for message in messages::<T>(&bytes) {
                count += 1;
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                if message.header.flags & NLM_F_DUMP_INTR != 0 {
                    end = End::Interrupted;
                }
                if let NetlinkPayload::Done(_) = message.payload {
                    return Ok(end);
                }
                if let NetlinkPayload::Error(error) = message.payload {
                    return match error.code {
                        None => Ok(end),
                        Some(code) => Err(io::Error::from_raw_os_error(code.get().abs())),
                    };
                }
                if let NetlinkPayload::InnerMessage(message) = message.payload {
                    take(message);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer does not end",
        ))
    }
}

/// The messages in one netlink datagram; those that cannot be read are skipped.
fn messages<T: NetlinkDeserializable>(
    bytes: &[u8],
) -> impl Iterator<Item = NetlinkMessage<T>> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            let length = rest.first_chunk::<4>().map(|l| u32::from_ne_bytes(*l))?;
            let length = usize::try_from(length).ok()?;
            if length < HEADER_BYTES || length > rest.len() {
                return None;
            }
            let (message, behind) = rest.split_at(length);
            // Messages are aligned to four bytes (netlink(7)).
            rest = behind
                .get(length.next_multiple_of(4) - length..)
                .unwrap_or(&[]);
            match NetlinkMessage::deserialize(message) {
                Ok(message) => return Some(message),
                Err(error) => debug!(%error, "netlink message skipped"),
            }
        }
    })
}

/// The messages about interfaces, addresses, routes and rules in one netlink datagram.
pub(super) fn route_messages(
    bytes: &[u8],
) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> + '_ {
    messages(bytes)
}

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// As [`explain_value`], of what has no value.
pub(super) fn explain(step: &'static str, result: io::Result<()>) -> Result<()> {
    explain_value(step, result)
}

/// Says what failed in the words of [`NetlinkError`].
pub(super) fn explain_value<T>(step: &'static str, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM) => NetlinkError::NotPermitted(step),
        Some(libc::EACCES) => NetlinkError::NoIpv6(step),
        Some(libc::ENODEV | libc::ENXIO) => NetlinkError::NoInterface(step),
        _ => NetlinkError::Io { step, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_datagrams_end_without_panic() {
        for bytes in [
            &[][..],
            &[1],
            &[0; 16],
            &[255; 40],
            &[16, 0, 0, 0, 2, 0, 0, 0],
        ] {
            assert_eq!(route_messages(bytes).count(), 0);
        }
        // A message that ends unaligned at the end of the datagram.
        let mut odd = vec![0; 17];
        odd[0] = 17;
        odd[4] = 1;
        assert!(route_messages(&odd).count() <= 1);
    }
}
