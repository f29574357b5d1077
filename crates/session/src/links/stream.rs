//! A link over TCP, where UDP is blocked: TLS, and the bytes between it and the driver's socket.

use std::net::SocketAddr;

use bytes::Bytes;
use ropewalk_transport::tls::TlsPath;
use ropewalk_transport::{Event, SendError};
use ropewalk_types::{Instant, PathSnapshot};

use super::LinkEvent;
use super::tuning::{DATAGRAM_BYTES, INFO_AGE, LOOK_MAX, REKEY_TIME};
use crate::io::{Sockets, StreamId};

/// A TLS connection over a TCP connection of the driver.
#[derive(Debug)]
pub(super) struct Stream {
    tls: TlsPath,
    pub remote: SocketAddr,
    pub local: Option<SocketAddr>,
    /// Encrypted bytes that the socket had no room for.
    pending: Vec<u8>,
    /// Until when the handshake must be done, while it is not.
    deadline: Option<Instant>,
    info_at: Option<Instant>,
    /// Bytes were written since.
    unseen: bool,
    /// When to look whether bytes under way have arrived, if there are any.
    look_at: Option<Instant>,
    /// Over: what is left to say is written once, then the TCP connection is closed.
    ended: bool,
    /// When the present keys came; `None` before the first look.
    keys_since: Option<Instant>,
    /// Whether it waits to be flushed.
    pub dirty: bool,
    /// Whether it waits for its turn to be read.
    pub awaits_turn: bool,
    /// Where it stands among the timers.
    pub timer: Option<Instant>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Stream {
    pub fn new(
        deadline: Instant,
        tls: TlsPath,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Box<Self> {
        Box::new(Self {
            tls,
            remote,
            local,
            pending: Vec::new(),
            deadline: Some(deadline),
            info_at: None,
            unseen: false,
            look_at: None,
            ended: false,
            keys_since: None,
            dirty: false,
            awaits_turn: false,
            timer: None,
            sent_bytes: 0,
            received_bytes: 0,
        })
    }

    /// Whether the handshake is still going on.
    pub const fn is_handshaking(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether it is over, so that nobody may use it any more.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Nobody uses it from now on.
    pub const fn end(&mut self) {
        self.ended = true;
    }

    /// Says goodbye and ends.
    pub fn close(&mut self) {
        self.tls.close();
        self.end();
    }

    /// Takes bytes in that arrived.
    pub fn handle_data(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.received_bytes += bytes.len() as u64;
        self.tls.handle_bytes(bytes).map_err(|e| e.to_string())
    }

    /// What happened to it since the last call.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        let event = self.tls.poll_event()?;
        if matches!(event, Event::Connected { .. }) {
            self.deadline = None;
        }
        Some(event.into())
    }

    /// The next datagram that came in.
    pub fn receive(&mut self) -> Option<Bytes> {
        self.tls.receive()
    }

    /// Queues a datagram.
    pub fn send(&mut self, datagram: Bytes) -> Result<(), SendError> {
        self.tls.send(datagram)
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn write(&mut self, id: StreamId, sockets: &mut impl Sockets) -> Result<(), String> {
        loop {
            if self.pending.is_empty() && self.tls.poll_output(&mut self.pending) == 0 {
                return Ok(());
            }
            let written = sockets.write_stream(id, &self.pending)?;
            if written == 0 {
                return Ok(());
            }
            self.sent_bytes += written as u64;
            self.unseen = true;
            self.pending.drain(..written);
        }
    }

    /// Appends what the socket would be given.
    #[cfg(test)]
    pub fn give_output(&mut self, buffer: &mut Vec<u8>) {
        while self.tls.poll_output(buffer) > 0 {}
    }

    /// The state of the path, for the scheduler; `None` unless connected.
    pub fn snapshot(
        &mut self,
        now: Instant,
        id: StreamId,
        sockets: &mut impl Sockets,
    ) -> Option<PathSnapshot> {
        if self.info_at.is_none_or(|at| now.since(at) >= INFO_AGE) {
            self.info_at = Some(now);
            self.unseen = false;
            if let Some(mut info) = sockets.stream_info(id) {
                let busy = info.in_flight_bytes + info.not_sent_bytes > 0;
                let pause = (info.srtt / 8).clamp(INFO_AGE, LOOK_MAX);
                self.look_at = busy.then(|| now + pause);
                info.not_sent_bytes += self.pending.len() as u64;
                self.tls.update_tcp_info(now, info);
            }
        } else if self.unseen && self.look_at.is_none() {
            // Else the bytes after a pause would be unknown until something happens, and the silence behind them too.
            self.look_at = self.info_at.map(|at| at + INFO_AGE);
        }
        let mut snapshot = self.tls.snapshot(now)?;
        // A path is looked at whenever something may be sent, and sends nothing otherwise.
        let since = *self.keys_since.get_or_insert(now);
        if now.since(since) >= REKEY_TIME {
            self.keys_since = Some(now);
            self.tls.change_keys();
        }
        // A stream takes any size; a steady inner MTU is worth more when QUIC returns.
        snapshot.max_datagram = snapshot.max_datagram.min(DATAGRAM_BYTES);
        Some(snapshot)
    }

    /// When [`Self::handle_timeout`] is wanted.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
            .into_iter()
            .chain(self.look_at)
            .min()
            .filter(|_| !self.ended)
    }

    /// Lets its timers go off; whether it is to be flushed.
    ///
    /// # Errors
    /// Why it is over, in words.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<bool, String> {
        if self.deadline.is_some_and(|at| at <= now) {
            return Err("the TLS handshake took too long".into());
        }
        Ok(self.look_at.take_if(|at| *at <= now).is_some())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ropewalk_transport::tls::TcpInfo;
    use ropewalk_transport::{Identity, Transmit};
    use std::sync::Arc;

    const ID: StreamId = StreamId(0);

    /// The socket of a connection whose peer acknowledges nothing.
    #[derive(Default)]
    struct Socket {
        written: Vec<u8>,
    }

    impl Sockets for Socket {
        fn send_udp(&mut self, _: &Transmit, _: &[u8]) {}

        fn write_stream(&mut self, _: StreamId, bytes: &[u8]) -> Result<usize, String> {
            self.written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn stream_info(&mut self, _: StreamId) -> Option<TcpInfo> {
            Some(TcpInfo {
                in_flight_bytes: self.written.len() as u64,
                ..TcpInfo::default()
            })
        }
    }

    /// A stream after its handshake, and its socket with nothing under way.
    fn connected() -> (Box<Stream>, Socket) {
        let [client, server] = [1, 2].map(|number| Identity::from_seed([number; 32]).unwrap());
        let tls = TlsPath::client(&client, server.public_key()).unwrap();
        let mut peer = TlsPath::server(&server, Arc::new(|_| true)).unwrap();
        let remote = SocketAddr::from(([192, 0, 2, 1], 443));
        let mut stream = Stream::new(Instant::FAR_FUTURE, tls, remote, None);
        let mut socket = Socket::default();
        while stream.is_handshaking() {
            stream.write(ID, &mut socket).unwrap();
            peer.handle_bytes(&std::mem::take(&mut socket.written))
                .unwrap();
            let mut answer = Vec::new();
            peer.poll_output(&mut answer);
            stream.handle_data(&answer).unwrap();
            stream.poll_event();
        }
        stream.write(ID, &mut socket).unwrap();
        socket.written.clear();
        (stream, socket)
    }

    #[test]
    fn the_first_bytes_after_a_pause_are_looked_at_soon() {
        let at = Instant::from_millis;
        let (mut stream, mut socket) = connected();
        // Nothing is under way, and nobody need look again.
        stream.snapshot(at(1_000), ID, &mut socket);
        assert_eq!(stream.poll_timeout(), None);
        stream.send(Bytes::from_static(b"datagram")).unwrap();
        stream.write(ID, &mut socket).unwrap();
        // Too soon for a look.
        let snapshot = stream.snapshot(at(1_001), ID, &mut socket).unwrap();
        assert_eq!(snapshot.silent_since, None);
        let look = at(1_000) + INFO_AGE;
        assert_eq!(stream.poll_timeout(), Some(look));
        assert_eq!(stream.handle_timeout(look), Ok(true));
        let snapshot = stream.snapshot(look, ID, &mut socket).unwrap();
        assert_eq!(snapshot.silent_since, Some(look));
    }
}
