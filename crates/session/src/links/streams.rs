//! The links over TCP: made, accepted within bounds, fed and ended.

use std::net::SocketAddr;

use bytes::Bytes;
use ropewalk_transport::tls::TlsPath;
use ropewalk_transport::{PublicKey, TransportError};
use ropewalk_types::Instant;

use super::stream::Stream;
use super::tuning::{HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS, STREAMS_MAX};
use super::{LinkEvent, LinkId, Links};
use crate::io::{Request, Sockets, StreamId};

impl Links {
    /// Starts a TLS connection to `remote` through `device`.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub(crate) fn connect_tls(
        &mut self,
        now: Instant,
        device: &str,
        remote: SocketAddr,
        key: PublicKey,
    ) -> Result<LinkId, TransportError> {
        let tls = TlsPath::client(&self.identity, key)?;
        let stream = self.add_stream(Stream::new(now, tls, remote, None));
        self.requests.push_back(Request::ConnectTcp {
            stream,
            device: device.to_owned(),
            remote,
        });
        Ok(LinkId::Tls(stream))
    }

    /// Somebody has connected by TCP: the name of the stream, or `None` when it is to be refused.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Option<StreamId> {
        let allowed = self.allowed.clone()?;
        let (mut open, mut handshakes, mut from_there) = (0, 0, 0);
        for stream in self.streams.values().filter(|s| !s.has_ended()) {
            let handshake = stream.is_handshaking();
            open += 1;
            handshakes += usize::from(handshake);
            from_there += usize::from(handshake && stream.remote.ip() == remote.ip());
        }
        let full = open >= STREAMS_MAX || handshakes >= HANDSHAKES_MAX;
        if full || from_there >= HANDSHAKES_PER_ADDRESS {
            self.streams_refused += 1;
            return None;
        }
        match TlsPath::server(&self.identity, allowed) {
            Ok(tls) => Some(self.add_stream(Stream::new(now, tls, remote, local))),
            Err(error) => {
                tracing::debug!(%remote, %error, "TCP connection dropped");
                None
            }
        }
    }

    fn add_stream(&mut self, stream: Box<Stream>) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(1);
        self.streams.insert(id, stream);
        self.mark_dirty(id);
        id
    }

    /// Takes bytes of a TCP connection in.
    pub(crate) fn handle_stream_data(&mut self, id: StreamId, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| !s.has_ended()) else {
            return;
        };
        let mut result = stream.handle_data(bytes);
        while let Some(event) = stream.poll_event() {
            match event {
                // The TLS layer's reason is closer to the cause.
                LinkEvent::Closed { reason } => result = Err(reason),
                connected @ LinkEvent::Connected { .. } => {
                    self.events.push_back((LinkId::Tls(id), connected));
                }
            }
        }
        match result {
            Ok(()) => self.mark_dirty(id),
            Err(reason) => self.fail(id, reason),
        }
    }

    /// A TCP connection is up, or takes bytes again.
    pub(crate) fn handle_stream_writable(&mut self, id: StreamId) {
        self.mark_dirty(id);
    }

    /// A TCP connection is over.
    pub(crate) fn handle_stream_closed(&mut self, id: StreamId, reason: String) {
        if let Some(stream) = self.streams.remove(&id)
            && !stream.has_ended()
        {
            let event = LinkEvent::Closed { reason };
            self.events.push_back((LinkId::Tls(id), event));
        }
    }

    /// The driver says from where a TCP connection goes.
    pub(crate) fn set_stream_local(&mut self, id: StreamId, local: SocketAddr) {
        if let Some(stream) = self.stream_mut(id) {
            stream.local = Some(local);
        }
    }

    pub(super) fn stream(&self, id: StreamId) -> Option<&Stream> {
        let stream = self.streams.get(&id)?;
        (!stream.has_ended()).then_some(stream)
    }

    pub(super) fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(&id)?;
        (!stream.has_ended()).then_some(stream)
    }

    pub(super) fn queue_on_stream(&mut self, id: StreamId, datagram: Bytes) -> bool {
        let sent = self
            .stream_mut(id)
            .is_some_and(|stream| stream.send(datagram).is_ok());
        self.mark_dirty(id);
        sent
    }

    pub(super) fn mark_dirty(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.dirty, true)
        {
            self.dirty.push_back(id);
        }
    }

    pub(super) fn flush_stream(&mut self, id: StreamId, sockets: &mut impl Sockets) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let result = stream.write(id, sockets);
        if stream.has_ended() {
            // Best effort: a full socket loses the goodbye, the peer notices the close.
            self.streams.remove(&id);
            self.requests.push_back(Request::CloseTcp { stream: id });
        } else if let Err(reason) = result {
            self.fail(id, reason);
        }
    }

    /// Ends a link whose stream failed. What the TLS layer still has to say, such as an alert,
    /// leaves with the next flush.
    pub(super) fn fail(&mut self, id: StreamId, reason: String) {
        if let Some(stream) = self.stream_mut(id) {
            stream.end();
            self.mark_dirty(id);
            let event = LinkEvent::Closed { reason };
            self.events.push_back((LinkId::Tls(id), event));
        }
    }
}
