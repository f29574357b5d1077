//! Messages on a stream: four bytes of length, little-endian, and JSON. A descriptor goes with the
//! length.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Longest message, bytes: the rules of a hub with tens of thousands of exceptions. More: larger hubs,
/// more memory that a parent can make the helper take.
const BYTES_MAX: usize = 16 << 20;

/// A message, and the descriptor that came with it.
pub type Message = (Vec<u8>, Option<OwnedFd>);

/// Why a message did not pass.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other end has gone.
    #[error(transparent)]
    Gone(#[from] io::Error),
    /// The message was not sent: it has so many bytes.
    #[error("the message has {0} bytes, and may have {BYTES_MAX}")]
    TooLong(usize),
}

/// Sends a message.
///
/// # Errors
/// See [`WireError`]; after a message that is too long the stream is as before.
pub fn send(
    stream: &UnixStream,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), WireError> {
    let length = u32::try_from(message.len()).ok();
    let length = length.filter(|_| message.len() <= BYTES_MAX);
    let length = length.ok_or(WireError::TooLong(message.len()))?;
    let descriptors = descriptor.map(|one| [one]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = length.to_le_bytes();
    // Four bytes go whole: the other end reads one message before it waits for the next.
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    );
    if sent.map_err(io::Error::from)? != bytes.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
    }
    Ok((&*stream).write_all(message)?)
}

/// Receives a message; `None` when the other end has gone.
///
/// # Errors
/// The message is cut short or too long: the stream cannot be used any more.
pub fn receive(stream: &UnixStream) -> Result<Option<Message>, WireError> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut length)];
    let received = loop {
        match recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.map_err(io::Error::from)?,
        }
    };
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptor = rights.last();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    (&*stream).read_exact(&mut length[received.bytes..])?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > BYTES_MAX {
        return Err(WireError::TooLong(length));
    }
    let mut message = vec![0; length];
    (&*stream).read_exact(&mut message)?;
    Ok(Some((message, descriptor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_come_whole_and_descriptors_with_them() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let mut file = std::io::pipe().expect("a pipe");
        send(&here, b"first", Some(file.1.as_fd())).expect("sent");
        send(&here, b"", None).expect("sent");
        drop(here);
        let (message, descriptor) = receive(&there).expect("received").expect("a message");
        assert_eq!(message, b"first");
        let mut copy = std::fs::File::from(descriptor.expect("a descriptor"));
        copy.write_all(b"x").expect("the same pipe");
        let mut byte = [0];
        file.0.read_exact(&mut byte).expect("readable");
        assert_eq!(&byte, b"x");
        let (message, descriptor) = receive(&there).expect("received").expect("a message");
        assert!(message.is_empty() && descriptor.is_none());
        assert!(receive(&there).expect("the end").is_none());
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_memory_is_taken() {
        let (here, there) = UnixStream::pair().expect("a pair");
        (&here).write_all(&u32::MAX.to_le_bytes()).expect("sent");
        let error = receive(&there).expect_err("too long");
        assert!(matches!(error, WireError::TooLong(length) if length == u32::MAX as usize));
    }

    #[test]
    fn a_message_that_is_too_long_is_told_from_an_end_and_leaves_the_stream_as_it_was() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let long = vec![0; BYTES_MAX + 1];
        let error = send(&here, &long, None).expect_err("too long");
        assert!(matches!(error, WireError::TooLong(length) if length == long.len()));
        send(&here, b"short", None).expect("sent");
        let (message, _) = receive(&there).expect("received").expect("a message");
        assert_eq!(message, b"short");
        drop(there);
        let error = send(&here, b"short", None).expect_err("gone");
        assert!(matches!(error, WireError::Gone(_)), "{error}");
    }
}
