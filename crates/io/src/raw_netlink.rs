//! Netlink messages of protocols for which no crate builds them: attributes out, attributes in.
//!
//! Invariant: what is read is bounded by lengths that were checked; a message that is cut short
//! ends the reading of it, never the program.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// The kernel answers at once; longer means the answer was lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Datagrams read for one request: a table of millions of connections.
const DATAGRAMS_MAX: usize = 200_000;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLA_F_NESTED`, and the byte order flag beside it.
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// A socket of one netlink protocol.
pub(crate) struct RawNetlink {
    socket: Socket,
    sequence: u32,
}

impl RawNetlink {
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket2::SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Asks for a change and waits for the kernel's verdict.
    pub(crate) fn change(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK, body)?;
        self.answers(|_| {})
    }

    /// Asks for one thing; `take` gets the body of the answer.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        body: &[u8],
        take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        // With the verdict behind it the end of the answer is seen.
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK, body)?;
        self.answers(take)
    }

    /// Asks for everything of a kind; `take` gets the body of each message.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
        self.answers(take)
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(HEADER_BYTES + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        // Port 0 is the kernel.
        let kernel = SocketAddr::new(0, 0);
        self.socket.send_to(&message, &kernel, 0).map(drop)
    }

    fn answers(&self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        for _ in 0..DATAGRAMS_MAX {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while let Some((kind, sequence, body, behind)) = message(rest) {
                rest = behind;
                if sequence != self.sequence {
                    continue;
                }
                if kind == NLMSG_DONE {
                    return Ok(());
                }
                if kind == NLMSG_ERROR {
                    let code = body
                        .first_chunk()
                        .map_or(0, |code| i32::from_ne_bytes(*code));
                    return if code == 0 {
                        Ok(())
                    } else {
                        Err(io::Error::from_raw_os_error(code.saturating_abs()))
                    };
                }
                take(body);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer does not end",
        ))
    }
}

/// Kind, sequence number and body of the first message, and what comes behind it.
fn message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let body = bytes.get(HEADER_BYTES..length)?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let behind = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, sequence, body, behind))
}

/// Appends an attribute.
pub(crate) fn push(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an attribute that holds attributes.
pub(crate) fn push_nested(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    push(out, kind | NESTED, value);
}

/// The attributes in `bytes`.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The value of one attribute.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back_and_short_ones_end_the_list() {
        let mut bytes = Vec::new();
        push(&mut bytes, 3, &[1, 2, 3]);
        push_nested(&mut bytes, 4, &[9]);
        assert_eq!(bytes.len(), 16);
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(3, &[1, 2, 3][..]), (4, &[9][..])]);
        for end in 0..bytes.len() {
            assert!(attributes(&bytes[..end]).count() <= 2);
            assert!(message(&bytes[..end]).is_none());
        }
        assert_eq!(attributes(&[0; 8]).count(), 0);
    }
}
