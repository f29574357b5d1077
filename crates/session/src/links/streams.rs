//! The links over TCP: made, accepted within bounds, fed and ended.

use std::net::SocketAddr;

use bytes::Bytes;
use ropewalk_transport::tls::{TlsPath, TlsServer};
use ropewalk_transport::{Identity, KeyCheck, PublicKey, Source, TransportError};
use ropewalk_types::{Instant, count_steps};

use super::census::Place;
use super::stream::Stream;
use super::tuning::{ACCEPT_HANDSHAKE, HANDSHAKE, STREAMS_MAX};
use super::{LinkEvent, LinkId, Links};
use crate::io::{Request, Sockets, StreamId};
use crate::tuning::STREAM_BYTES_WORK;

/// A connection over TCP whose peer another worker of the hub serves, without its socket.
#[derive(Debug)]
pub struct Moved {
    stream: Box<Stream>,
    peer: PublicKey,
}

/// What accepts TCP connections.
pub(super) struct Accepting {
    allowed: KeyCheck,
    server: TlsServer,
}

impl Accepting {
    /// Accepts as `identity` whoever has an `allowed` key.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn new(identity: &Identity, allowed: KeyCheck) -> Result<Self, TransportError> {
        let server = TlsServer::new(identity, allowed.clone())?;
        Ok(Self { allowed, server })
    }

    /// The same with another key of this side.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn with(&self, identity: &Identity) -> Result<Self, TransportError> {
        Self::new(identity, self.allowed.clone())
    }
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
        let tls = &self.tls.as_ref()?.server;
        let instead = match self.census.place(Source::of(remote.ip())) {
            Place::Refused => None,
            Place::Room => Some(None),
            Place::Instead(other) => Some(Some(other)),
        };
        let Some(instead) = instead.filter(|_| self.census.open() < STREAMS_MAX) else {
            self.streams_refused += 1;
            return None;
        };
        match tls.accept() {
            Ok(tls) => {
                if let Some(other) = instead {
                    self.streams_refused += 1;
                    self.fail(other, "others waited for the place".into());
                }
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
            self.census.leave(id);
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
        if self.census.open() >= STREAMS_MAX {
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

    fn add_stream(&mut self, stream: Box<Stream>) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(1);
        let source = Source::of(stream.remote.ip());
        let handshaking = stream.is_handshaking();
        self.census.enter(id, handshaking.then_some(source));
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
                    self.census.end_handshake(id);
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
            self.census.leave(id);
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
        let before = stream.sent_bytes;
        let result = stream.write(id, sockets);
        let written = stream.sent_bytes - before;
        if stream.has_ended() {
            // Best effort: a full socket loses the goodbye, the peer notices the close.
            self.streams.remove(&id);
            self.requests.push_back(Request::CloseTcp { stream: id });
        } else if let Err(reason) = result {
            self.fail(id, reason);
        }
        self.worked_for_sites(written as usize / STREAM_BYTES_WORK);
    }

    /// Ends a link whose stream failed. What the TLS layer still has to say, such as an alert,
    /// leaves with the next flush.
    pub(super) fn fail(&mut self, id: StreamId, reason: String) {
        self.end_stream(id, LinkEvent::closed(reason));
    }

    fn end_stream(&mut self, id: StreamId, closed: LinkEvent) {
        if let Some(stream) = self.stream_mut(id) {
            stream.end();
            self.census.leave(id);
            self.mark_dirty(id);
            self.events.push_back((LinkId::Tls(id), closed));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use ropewalk_transport::{CongestionControl, Event, Slice};
    use ropewalk_types::Duration;

    use super::super::tuning::HANDSHAKES_MAX;
    use super::*;
    use crate::settings::Environment;

    fn identity(number: u8) -> Identity {
        Identity::from_seed([number; 32]).unwrap()
    }

    /// Links of a hub that lets everybody in.
    fn hub() -> Links {
        let environment = Environment {
            base: std::time::Instant::now(),
            segmentation: false,
            udp_payload_max: 1_472,
            session: 1,
            tunnels: 1,
            transport: Some([0; 32]),
            slice: Slice::WHOLE,
        };
        let allowed: KeyCheck = Arc::new(|_| true);
        let congestion = CongestionControl::default();
        Links::new(identity(1), Some(allowed), congestion, &environment).unwrap()
    }

    fn is_right(links: &Links) -> bool {
        let open = links.streams.iter().filter(|(_, s)| !s.has_ended());
        let open = open.map(|(&id, stream)| (id, stream.is_handshaking()));
        links.census.is_of(open)
    }

    /// Does the handshake of a site that expects this key; whether it comes about.
    fn handshake(links: &mut Links, id: StreamId, hub: &Identity) -> bool {
        let mut site = TlsPath::client(&identity(2), hub.public_key()).unwrap();
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            site.poll_output(&mut there);
            links.handle_stream_data(id, &there);
            there.clear();
            if let Some(stream) = links.stream_mut(id) {
                stream.give_output(&mut back);
            }
            site.handle_bytes(&back).ok();
            back.clear();
        }
        matches!(site.poll_event(), Some(Event::Connected { .. }))
    }

    #[test]
    fn each_connection_is_counted_while_it_is_open_and_in_its_handshake() {
        let mut links = hub();
        let at = |host: usize| SocketAddr::from(([192, 0, 2, host as u8], 443));
        let now = Instant::ZERO;
        let own = identity(1);
        let first = links.accept(now, at(1), None).unwrap();
        assert!(is_right(&links) && handshake(&mut links, first, &own));
        assert!(is_right(&links), "the handshake is over");
        // All from one host, until it has all places.
        let mut ids = Vec::new();
        for _ in 0..HANDSHAKES_MAX {
            ids.push(links.accept(now, at(2), None).unwrap());
        }
        assert_eq!(
            links.accept(now, at(2), None),
            None,
            "its own have no fewer"
        );
        let other = links.accept(now, at(3), None).unwrap();
        assert!(links.stream(ids[0]).is_none(), "the oldest gives way");
        assert!(is_right(&links));
        links.handle_stream_data(ids[1], b"not TLS");
        assert!(links.stream(ids[1]).is_none() && is_right(&links));
        links.handle_stream_closed(ids[2], "reset".into());
        links.close(now, LinkId::Tls(ids[3]), "bye");
        links.close(now, LinkId::Tls(ids[3]), "bye");
        assert!(is_right(&links));
        links.move_stream(first, identity(2).public_key(), 1);
        assert!(is_right(&links));
        let moved = links.take_moved(first).unwrap();
        links.adopt(moved).unwrap();
        assert!(is_right(&links));
        links.handle_streams_timeout(now + ACCEPT_HANDSHAKE + Duration::from_millis(1));
        assert!(links.stream(other).is_none() && is_right(&links));
        assert_eq!(links.census.open(), 1, "the one that moved there and back");
    }

    #[test]
    fn who_connects_over_tcp_after_a_change_of_the_key_meets_the_new_one() {
        let mut links = hub();
        let (old, new) = (identity(1), identity(9));
        let at = SocketAddr::from(([192, 0, 2, 1], 443));
        let before = links.accept(Instant::ZERO, at, None).unwrap();
        links.set_identity(&new);
        let after = links.accept(Instant::ZERO, at, None).unwrap();
        assert!(handshake(&mut links, before, &old));
        assert!(handshake(&mut links, after, &new));
        let third = links.accept(Instant::ZERO, at, None).unwrap();
        assert!(!handshake(&mut links, third, &old));
    }
}
