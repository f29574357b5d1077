//! The links over TCP: made, accepted within bounds, fed and ended.

use std::net::SocketAddr;

use bytes::Bytes;
use ropewalk_transport::tls::TlsPath;
use ropewalk_transport::{PublicKey, Source, TransportError, gives_way};
use ropewalk_types::{Instant, count_steps};

use super::stream::Stream;
use super::tuning::{ACCEPT_HANDSHAKE, HANDSHAKE, HANDSHAKES_MAX, STREAMS_MAX};
use super::{LinkEvent, LinkId, Links};
use crate::io::{Request, Sockets, StreamId};

/// A connection over TCP whose peer another worker of the hub serves, without its socket.
#[derive(Debug)]
pub struct Moved {
    stream: Box<Stream>,
    peer: PublicKey,
}

impl Links {
    /// Starts a TLS connection to `remote`, through `device` if given. Its key is `key`, or `also`.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub(crate) fn connect_tls(
        &mut self,
        now: Instant,
        device: Option<&str>,
        remote: SocketAddr,
        (key, also): (PublicKey, Option<PublicKey>),
    ) -> Result<LinkId, TransportError> {
        let tls = TlsPath::client_of(&self.identity, key, also)?;
        let stream = self.add_stream(Stream::new(now + HANDSHAKE, tls, remote, None));
        self.requests.push_back(Request::ConnectTcp {
            stream,
            device: device.map(str::to_owned),
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
        let open = self.streams.values().filter(|s| !s.has_ended()).count();
        if open >= STREAMS_MAX || !self.make_handshake_room(Source::of(remote.ip())) {
            self.streams_refused += 1;
            return None;
        }
        match TlsPath::server(&self.identity, allowed) {
            Ok(tls) => {
                let stream = Stream::new(now + ACCEPT_HANDSHAKE, tls, remote, local);
                Some(self.add_stream(stream))
            }
            Err(error) => {
                tracing::debug!(%remote, %error, "TCP connection dropped");
                None
            }
        }
    }

    /// Lets go of a connection whose peer another worker serves.
    pub(crate) fn move_stream(&mut self, id: StreamId, peer: PublicKey, worker: usize) {
        if self.stream(id).is_none() {
            return;
        }
        if let Some(stream) = self.streams.remove(&id) {
            self.moving.insert(id, Moved { stream, peer });
            let request = Request::MoveTcp { stream: id, worker };
            self.requests.push_back(request);
        }
    }

    /// What the driver hands to the other worker.
    pub(crate) fn take_moved(&mut self, id: StreamId) -> Option<Moved> {
        self.moving.remove(&id)
    }

    /// Takes over a connection from another worker; `None` when there are too many.
    pub(crate) fn adopt(&mut self, moved: Moved) -> Option<StreamId> {
        let open = self.streams.values().filter(|s| !s.has_ended()).count();
        if open >= STREAMS_MAX {
            self.streams_refused += 1;
            return None;
        }
        let Moved { mut stream, peer } = moved;
        stream.dirty = false;
        stream.awaits_turn = false;
        stream.timer = None;
        let id = self.add_stream(stream);
        let connected = LinkEvent::Connected { peer };
        self.events.push_back((LinkId::Tls(id), connected));
        Some(id)
    }

    /// Whether a handshake from `source` may begin. While all places are taken, another one gives way, or this one.
    fn make_handshake_room(&mut self, source: Source) -> bool {
        // The oldest have the smallest names.
        let handshaking = self.streams.iter().filter_map(|(&id, stream)| {
            let open = !stream.has_ended() && stream.is_handshaking();
            open.then(|| (id, Source::of(stream.remote.ip())))
        });
        if handshaking.clone().count() < HANDSHAKES_MAX {
            return true;
        }
        let out = gives_way(source, handshaking);
        if let Some(id) = out {
            self.streams_refused += 1;
            self.fail(id, "others waited for the place".into());
        }
        out.is_some()
    }

    fn add_stream(&mut self, stream: Box<Stream>) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(1);
        self.streams.insert(id, stream);
        self.note_timer(id);
        self.mark_dirty(id);
        id
    }

    /// Lists the timer of a stream again after it may have become earlier.
    pub(super) fn note_timer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(at) = stream.poll_timeout() else {
            return;
        };
        if stream.timer.is_none_or(|old| at < old) {
            if let Some(old) = stream.timer.replace(at) {
                self.timers.remove(&(old, id));
            }
            self.timers.insert((at, id));
        }
    }

    /// When the first timer of a stream is due. Timers mostly move later, which only the head needs to know.
    pub(super) fn streams_due(&mut self) -> Option<Instant> {
        while let Some(&(at, id)) = self.timers.first() {
            count_steps(1);
            let stream = self.streams.get_mut(&id);
            let actual = stream.and_then(|stream| {
                stream.timer = stream.poll_timeout();
                stream.timer
            });
            if actual == Some(at) {
                return Some(at);
            }
            self.timers.pop_first();
            self.timers.extend(actual.map(|at| (at, id)));
        }
        None
    }

    /// Lets the timers of streams go off.
    pub(super) fn handle_streams_timeout(&mut self, now: Instant) {
        // Each once: a stream whose next timer is due already waits for the next turn.
        for _ in 0..self.timers.len() {
            if self.streams_due().is_none_or(|at| at > now) {
                return;
            }
            let Some((_, id)) = self.timers.pop_first() else {
                return;
            };
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.timer = None;
            match stream.handle_timeout(now) {
                Ok(true) => self.mark_dirty(id),
                Ok(false) => {}
                Err(reason) => self.fail(id, reason),
            }
            self.note_timer(id);
        }
    }

    /// Whether a stream is to wait for its turn to be read, and did not yet.
    pub(crate) fn await_turn(&mut self, id: StreamId) -> bool {
        let stream = self.stream_mut(id);
        stream.is_some_and(|stream| !std::mem::replace(&mut stream.awaits_turn, true))
    }

    /// A stream has its turn; false when it is over.
    pub(crate) fn has_turn(&mut self, id: StreamId) -> bool {
        let stream = self.stream_mut(id);
        stream.is_some_and(|stream| std::mem::take(&mut stream.awaits_turn))
    }

    /// Takes bytes of a TCP connection in.
    pub(crate) fn handle_stream_data(&mut self, id: StreamId, bytes: &[u8]) {
        // The driver may have read more before it learns that the connection moves.
        if let Some(moved) = self.moving.get_mut(&id) {
            // An error comes again with the next bytes, at the other worker.
            moved.stream.handle_data(bytes).ok();
            return;
        }
        let Some(stream) = self.streams.get_mut(&id).filter(|s| !s.has_ended()) else {
            return;
        };
        let mut end = stream.handle_data(bytes).err().map(LinkEvent::closed);
        while let Some(event) = stream.poll_event() {
            match event {
                // The TLS layer's reason is closer to the cause.
                closed @ LinkEvent::Closed { .. } => end = Some(closed),
                connected @ LinkEvent::Connected { .. } => {
                    self.events.push_back((LinkId::Tls(id), connected));
                }
            }
        }
        match end {
            None => self.mark_dirty(id),
            Some(closed) => self.end_stream(id, closed),
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
            let event = LinkEvent::closed(reason);
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
        self.end_stream(id, LinkEvent::closed(reason));
    }

    fn end_stream(&mut self, id: StreamId, closed: LinkEvent) {
        if let Some(stream) = self.stream_mut(id) {
            stream.end();
            self.mark_dirty(id);
            self.events.push_back((LinkId::Tls(id), closed));
        }
    }
}
