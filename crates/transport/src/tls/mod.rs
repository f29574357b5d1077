//! The fallback path: TLS 1.3 over a TCP byte stream, without I/O.
//!
//! Datagrams travel as frames: their length in two bytes, big-endian, then the bytes. An empty
//! frame is the accepting side's word that it has verified the connecting side's key.
//!
//! Invariants: at most [`OUTPUT_QUEUE_MAX`] bytes wait to be sent and [`INPUT_QUEUE_MAX`] to be
//! read, so that a packet is still bound late. After an error nothing more is delivered. Source:
//! RFC 8446, RFC 7250.

mod frame;
mod tcp;
mod tuning;

use std::{collections::VecDeque, io, sync::Arc};

use bytes::Bytes;
use ropewalk_types::{Instant, PathSnapshot};
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection,
    pki_types::ServerName,
};

pub use frame::DATAGRAM_MAX;
pub use tcp::TcpInfo;
pub use tuning::{INPUT_QUEUE_MAX, OUTPUT_MAX, OUTPUT_QUEUE_MAX};

use crate::{
    CloseReason, Event, Identity, KeyCheck, PublicKey, SendError, TransportError,
    credentials::{self, SERVER_NAME, key_of_spki},
    quic::{refused_here, refused_there},
};
use frame::Deframer;
use tcp::TcpView;
use tuning::ENCRYPT_MAX;

/// How far a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsPhase {
    Handshaking,
    /// The connecting side waits for the empty frame.
    Unconfirmed,
    Up,
    Closed,
}

/// A sub-tunnel over one TCP connection.
pub struct TlsPath {
    tls: Connection,
    connecting: bool,
    phase: TlsPhase,
    peer: Option<PublicKey>,
    deframer: Deframer,
    /// Frames not encrypted yet, the first `staged_from` bytes of which are.
    staged: Vec<u8>,
    staged_from: usize,
    inbox: VecDeque<Bytes>,
    inbox_bytes: usize,
    events: VecDeque<Event>,
    view: TcpView,
    /// Bytes that [`Self::poll_output`] gave.
    output: u64,
    dropped: u64,
    key_changes: u64,
}

/// What all connections share that one identity accepts.
#[derive(Clone)]
pub struct TlsServer(Arc<rustls::ServerConfig>);

impl TlsServer {
    /// Accepts as `identity`; `allowed` says which keys may connect.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn new(identity: &Identity, allowed: KeyCheck) -> Result<Self, TransportError> {
        let config = credentials::server_config(identity, allowed)?;
        Ok(Self(Arc::new(config)))
    }

    /// The accepting side of a connection.
    ///
    /// # Errors
    /// When TLS refuses it.
    pub fn accept(&self) -> Result<TlsPath, TransportError> {
        let tls = ServerConnection::new(Arc::clone(&self.0)).map_err(|e| tls_error(&e))?;
        Ok(TlsPath::new(tls.into(), false))
    }
}

impl core::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl TlsPath {
    /// The connecting side; the peer's key must be `peer_key`.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn client(identity: &Identity, peer_key: PublicKey) -> Result<Self, TransportError> {
        Self::client_of(identity, peer_key, None)
    }

    /// [`Self::client`] of a peer that may have the key `also` instead.
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn client_of(
        identity: &Identity,
        peer_key: PublicKey,
        also: Option<PublicKey>,
    ) -> Result<Self, TransportError> {
        let config = Arc::new(credentials::client_config(identity, peer_key, also)?);
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| tls_error(&e))?;
        let tls = ClientConnection::new(config, name).map_err(|e| tls_error(&e))?;
        Ok(Self::new(tls.into(), true))
    }

    /// The accepting side; `allowed` says which keys may connect. Who accepts many uses [`TlsServer`].
    ///
    /// # Errors
    /// When TLS refuses the key.
    pub fn server(identity: &Identity, allowed: KeyCheck) -> Result<Self, TransportError> {
        TlsServer::new(identity, allowed)?.accept()
    }

    fn new(mut tls: Connection, connecting: bool) -> Self {
        tls.set_buffer_limit(Some(2 * ENCRYPT_MAX));
        Self {
            tls,
            connecting,
            phase: TlsPhase::Handshaking,
            peer: None,
            deframer: Deframer::default(),
            staged: Vec::new(),
            staged_from: 0,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            events: VecDeque::new(),
            view: TcpView::default(),
            output: 0,
            dropped: 0,
            key_changes: 0,
        }
    }

    /// Takes bytes read from the TCP connection in.
    ///
    /// # Errors
    /// When the peer breaks the protocol: write what [`Self::poll_output`] still gives (an
    /// alert), then close the TCP connection.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<(), TransportError> {
        while !bytes.is_empty() && self.phase != TlsPhase::Closed {
            let took = self
                .tls
                .read_tls(&mut bytes)
                .map_err(|e| self.fail(e.to_string()))?;
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => return Err(self.refuse(&error)),
            };
            self.read_plaintext(state.plaintext_bytes_to_read())?;
            if self.phase == TlsPhase::Handshaking && !self.tls.is_handshaking() {
                self.authenticated()?;
            }
            if state.peer_has_closed() {
                self.end(CloseReason::PeerClosed(String::new()));
            }
            if took == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The TCP connection ended without a goodbye.
    pub fn handle_eof(&mut self) {
        self.end(CloseReason::Reset);
    }

    fn read_plaintext(&mut self, mut bytes: usize) -> Result<(), TransportError> {
        let mut chunk = [0; 4096];
        while bytes > 0 {
            let part = bytes.min(chunk.len());
            let read = io::Read::read(&mut self.tls.reader(), &mut chunk[..part])
                .map_err(|e| self.fail(e.to_string()))?;
            if read == 0 {
                break;
            }
            bytes -= read;
            self.deframer.push(&chunk[..read]);
            self.take_frames()?;
        }
        Ok(())
    }

    fn take_frames(&mut self) -> Result<(), TransportError> {
        loop {
            match self.deframer.next() {
                Ok(Some(frame)) if frame.is_empty() => {
                    if self.phase == TlsPhase::Unconfirmed {
                        self.up();
                    }
                }
                Ok(Some(frame)) if self.inbox_bytes + frame.len() <= INPUT_QUEUE_MAX => {
                    self.inbox_bytes += frame.len();
                    self.inbox.push_back(frame);
                }
                Ok(Some(_)) => self.dropped += 1,
                Ok(None) => return Ok(()),
                Err(length) => {
                    return Err(
                        self.fail(format!("a frame of {length} bytes, at most {DATAGRAM_MAX}"))
                    );
                }
            }
        }
    }

    /// This side has verified the peer.
    fn authenticated(&mut self) -> Result<(), TransportError> {
        if self.tls.alpn_protocol() != Some(credentials::ALPN) {
            return Err(self.fail("the peer speaks another protocol".to_owned()));
        }
        let keys = self.tls.peer_certificates();
        self.peer = keys.and_then(|keys| key_of_spki(keys.first()?.as_ref()));
        if self.connecting {
            // A client is done before the server has looked at its key (RFC 8446 §2).
            self.phase = TlsPhase::Unconfirmed;
            return self.take_frames();
        }
        frame::write(&mut self.staged, &[]);
        self.up();
        Ok(())
    }

    fn up(&mut self) {
        self.phase = TlsPhase::Up;
        if let Some(peer) = self.peer {
            self.events.push_back(Event::Connected { peer });
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if self.phase != TlsPhase::Closed {
            self.phase = TlsPhase::Closed;
            self.events.push_back(Event::Closed { reason });
        }
    }

    fn fail(&mut self, why: String) -> TransportError {
        self.end(CloseReason::Transport(why.clone()));
        TransportError::Protocol(why)
    }

    fn refuse(&mut self, error: &Error) -> TransportError {
        let why = error.to_string();
        let refused = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        if *error == refused {
            self.end(CloseReason::KeyRejected(
                refused_here(self.connecting).to_owned(),
            ));
        } else if *error == Error::AlertReceived(AlertDescription::AccessDenied) {
            self.end(refused_there(self.connecting));
        } else {
            self.end(CloseReason::Transport(why.clone()));
        }
        TransportError::Protocol(why)
    }

    /// Appends bytes for the TCP connection to `buf`, at most [`OUTPUT_MAX`] at once; the number
    /// appended.
    pub fn poll_output(&mut self, buf: &mut Vec<u8>) -> usize {
        let start = buf.len();
        let mut output = Limited {
            buf,
            left: OUTPUT_MAX,
        };
        loop {
            while self.tls.wants_write() && output.left > 0 {
                // The writer below fails never.
                if self.tls.write_tls(&mut output).unwrap_or(0) == 0 {
                    break;
                }
            }
            if output.left == 0 || self.staged_from == self.staged.len() || !self.encrypt() {
                break;
            }
        }
        let given = output.buf.len() - start;
        self.output += given as u64;
        given
    }

    /// Encrypts some of what is staged; whether there was progress.
    fn encrypt(&mut self) -> bool {
        if self.tls.is_handshaking() {
            return false;
        }
        let end = self.staged.len().min(self.staged_from + ENCRYPT_MAX);
        let plain = &self.staged[self.staged_from..end];
        let written = io::Write::write(&mut self.tls.writer(), plain).unwrap_or(0);
        self.staged_from += written;
        if self.staged_from == self.staged.len() {
            self.staged.clear();
            self.staged_from = 0;
        }
        written > 0
    }

    /// Queues a datagram.
    ///
    /// # Errors
    /// When it is empty or too large, the queue is full, or the handshake is not done.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the same call as on a QUIC connection"
    )]
    pub fn send(&mut self, datagram: Bytes) -> Result<(), SendError> {
        if self.phase != TlsPhase::Up {
            return Err(SendError::NotConnected);
        }
        if datagram.is_empty() || datagram.len() > DATAGRAM_MAX {
            return Err(SendError::TooLarge(DATAGRAM_MAX));
        }
        if self.queued() + datagram.len() + frame::HEADER_BYTES > OUTPUT_QUEUE_MAX {
            return Err(SendError::Full);
        }
        if self.staged_from > OUTPUT_QUEUE_MAX / 2 {
            self.staged.drain(..self.staged_from);
            self.staged_from = 0;
        }
        frame::write(&mut self.staged, &datagram);
        Ok(())
    }

    /// Changes the keys of both directions (RFC 8446 §4.6.3). What is encrypted already keeps the old ones.
    /// The TLS library does so itself before a key has protected more than its cipher allows.
    pub fn change_keys(&mut self) {
        if self.phase == TlsPhase::Up && self.tls.refresh_traffic_keys().is_ok() {
            self.key_changes += 1;
        }
    }

    /// How often this side has changed the keys on the caller's wish.
    #[must_use]
    pub const fn key_changes(&self) -> u64 {
        self.key_changes
    }

    /// The next datagram received.
    pub fn receive(&mut self) -> Option<Bytes> {
        let datagram = self.inbox.pop_front()?;
        self.inbox_bytes -= datagram.len();
        Some(datagram)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the handshake is still going on: the caller bounds its time and number.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        matches!(self.phase, TlsPhase::Handshaking | TlsPhase::Unconfirmed)
    }

    /// Datagrams dropped because [`Self::receive`] was not called often enough.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes the kernel's view of the TCP connection in; call before [`Self::snapshot`].
    pub fn update_tcp_info(&mut self, now: Instant, info: TcpInfo) {
        let end = self.output + self.output_left();
        self.view.update(now, info, end);
    }

    /// Bytes that what is queued becomes at most once it is encrypted: each record adds a few (RFC 8446 §5.2).
    fn output_left(&self) -> u64 {
        let encrypted = if self.tls.wants_write() {
            2 * ENCRYPT_MAX
        } else {
            0
        };
        let queued = self.queued();
        (encrypted + queued + queued / 8) as u64
    }

    /// The state of the path, for the scheduler; `None` unless connected.
    #[must_use]
    pub fn snapshot(&self, _now: Instant) -> Option<PathSnapshot> {
        (self.phase == TlsPhase::Up).then(|| self.view.snapshot(self.queued() as u64))
    }

    /// Says goodbye: queues a close alert (RFC 8446 §6.1) behind what is queued already.
    pub fn close(&mut self) {
        while self.staged_from < self.staged.len() && self.encrypt() {}
        self.tls.send_close_notify();
        self.end(CloseReason::Local);
    }

    /// Bytes not encrypted yet.
    fn queued(&self) -> usize {
        self.staged.len() - self.staged_from
    }
}

impl core::fmt::Debug for TlsPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsPath")
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

fn tls_error(error: &dyn core::fmt::Display) -> TransportError {
    TransportError::Tls(error.to_string())
}

/// Appends to a buffer up to a limit; never fails.
struct Limited<'a> {
    buf: &'a mut Vec<u8>,
    left: usize,
}

impl io::Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = bytes.len().min(self.left);
        self.buf.extend_from_slice(&bytes[..part]);
        self.left -= part;
        Ok(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
