//! One connection of an endpoint: the protocol machine and what is known of its path.
//!
//! Invariants: `queued` equals the bytes that the machine holds unsent. The path state learns of
//! every packet that will be acknowledged, and only of those.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use quinn_proto::{Connection, ConnectionError, FrameStats, SendDatagramError, TransportErrorCode};
use ropewalk_types::{Instant, PathSnapshot};

use super::{
    ConnectionCounters, SocketId,
    handshakes::Ticket,
    tuning::{REKEY_DATAGRAMS, REKEY_TIME, SEND_BUFFER_BYTES, URGENT_SLACK},
};
use crate::{
    CloseReason, PublicKey, SendError,
    congestion::{PathState, Sending},
    credentials::ALERT_KEY_REFUSED,
};

/// What one queued datagram takes of the send buffer besides its bytes. A packet adds about as
/// much, so the buffer's own count serves as bytes on the wire.
const QUEUE_ITEM_BYTES: usize = size_of::<Bytes>();

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Keys are being agreed on.
    Handshaking,
    /// This side is satisfied; the peer has not confirmed yet that it is (connecting side only).
    Unconfirmed,
    /// Both sides have verified each other's key.
    Up,
    /// Closed, and kept only until the last packets are gone.
    Closed,
}

/// A connection and its surroundings.
pub(super) struct Slot {
    pub generation: u32,
    pub conn: Connection,
    pub state: Arc<PathState>,
    pub phase: Phase,
    /// The peer's key, once known.
    pub peer: Option<PublicKey>,
    /// Whether this side accepted it.
    pub accepted: bool,
    /// Its place among the handshakes of the accepting side, until the handshake is over.
    pub ticket: Option<Ticket>,
    /// Socket through which it sends.
    pub socket: SocketId,
    /// Codepoint of the packets it sends now.
    pub dscp: u8,
    /// Whether it may have something to transmit.
    pub dirty: bool,
    /// Whether it waits in the dirty queue.
    pub listed: bool,
    /// When it is in the endpoint's timer set.
    pub timer: Option<Instant>,
    /// When the pacer lets go, if that blocks.
    pacer: Option<Instant>,
    /// Bytes between the MTU and the largest datagram.
    overhead: usize,
    frames_sent: u64,
    frames_received: u64,
    probes_sent: u64,
    rekey: Rekey,
}

/// How long the present keys of a connection have been in use.
#[derive(Clone, Copy, Debug, Default)]
struct Rekey {
    /// Changes of keys so far, on either side's wish.
    updates: u64,
    /// When the present ones came; `None` before the connection is up.
    since: Option<std::time::Instant>,
    /// Datagrams that had been sent by then.
    sent: u64,
}

impl Slot {
    pub(super) fn new(conn: Connection, state: Arc<PathState>, socket: SocketId) -> Self {
        Self {
            generation: 0,
            socket,
            dscp: 0,
            conn,
            state,
            phase: Phase::Handshaking,
            peer: None,
            accepted: false,
            ticket: None,
            dirty: false,
            listed: false,
            timer: None,
            pacer: None,
            overhead: 0,
            frames_sent: 0,
            frames_received: 0,
            probes_sent: 0,
            rekey: Rekey::default(),
        }
    }

    /// Bytes handed over and not sent yet.
    pub(super) fn queued(&mut self) -> u64 {
        let free = self.conn.datagrams().send_buffer_space();
        (SEND_BUFFER_BYTES - QUEUE_ITEM_BYTES).saturating_sub(free) as u64
    }

    /// The handshake is over: sizes are final.
    pub(super) fn learn_overhead(&mut self) {
        let mtu = usize::from(self.conn.current_mtu());
        self.overhead = mtu.saturating_sub(self.conn.datagrams().max_size().unwrap_or(0));
    }

    pub(super) fn send(&mut self, datagram: Bytes) -> Result<(), SendError> {
        if self.phase != Phase::Up {
            return Err(SendError::NotConnected);
        }
        let result = self
            .conn
            .datagrams()
            .send(datagram, false)
            .map_err(|error| match error {
                SendDatagramError::TooLarge => SendError::TooLarge(self.max_datagram()),
                SendDatagramError::Blocked(_) => SendError::Full,
                SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled => {
                    SendError::NotConnected
                }
            });
        let queued = self.queued();
        self.state.set_queued(queued);
        result
    }

    /// Sends a small datagram although the window is full. What is queued leaves before it.
    pub(super) fn send_urgent(&mut self, datagram: Bytes) -> Result<(), SendError> {
        self.send(datagram)?;
        // Should large datagrams wait for an acknowledgement, a PING goes before them.
        self.conn.ping();
        self.state.let_through(URGENT_SLACK);
        Ok(())
    }

    pub(super) fn max_datagram(&self) -> usize {
        usize::from(self.conn.current_mtu()).saturating_sub(self.overhead)
    }

    /// Sends what is due into `buf` (empty), keeping the path state up to date.
    pub(super) fn poll_transmit(
        &mut self,
        now: std::time::Instant,
        segments_max: usize,
        buf: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        let transmit = self.conn.poll_transmit(now, segments_max, buf);
        if transmit.is_some() {
            let stats = self.conn.stats();
            self.change_keys(now, stats.udp_tx.datagrams);
            let frames = ack_eliciting(&stats.frame_tx);
            let probe = stats.path.sent_plpmtud_probes;
            if frames != self.frames_sent && probe == self.probes_sent {
                self.state.commit_sent(now, buf.len() as u64);
            }
            (self.frames_sent, self.probes_sent) = (frames, probe);
        }
        let queued = self.queued();
        self.state.set_queued(queued);
        if queued == 0 {
            self.state.end_let_through();
        }
        transmit
    }

    /// Asks for new keys when the present ones have protected enough; the next packet has them.
    //= RFC 9001 §6.1
    //# An endpoint MUST NOT initiate a key update prior to having confirmed the handshake.
    fn change_keys(&mut self, now: std::time::Instant, sent: u64) {
        if self.phase != Phase::Up {
            return;
        }
        let updates = self.conn.key_updates();
        let Rekey { since, .. } = self.rekey;
        let Some(since) = since.filter(|_| updates == self.rekey.updates) else {
            self.rekey = Rekey {
                updates,
                since: Some(now),
                sent,
            };
            return;
        };
        if now.saturating_duration_since(since) >= REKEY_TIME
            || sent - self.rekey.sent >= REKEY_DATAGRAMS
        {
            // Does nothing while the last change is under way; then the next datagram asks again.
            self.conn.force_key_update();
        }
    }

    /// After [`Self::poll_transmit`] gave nothing: finds out what blocks.
    pub(super) fn note_block(&mut self, to_instant: impl Fn(std::time::Instant) -> Instant) {
        let mtu = u64::from(self.conn.current_mtu());
        let window_full = self.state.in_flight() + mtu >= self.conn.congestion_state().window();
        let paced = self.queued() > 0 && !window_full;
        self.pacer = if paced {
            self.conn.poll_timeout().map(to_instant)
        } else {
            None
        };
    }

    /// Whether anything in the packets received since the last call counted.
    pub(super) fn received_something(&mut self) -> bool {
        let stats = self.conn.stats();
        let frames = stats.frame_rx.datagram + stats.frame_rx.acks + ack_eliciting(&stats.frame_rx);
        core::mem::replace(&mut self.frames_received, frames) != frames
    }

    pub(super) fn confirmed(&self) -> bool {
        self.conn.stats().frame_rx.handshake_done > 0
    }

    pub(super) fn snapshot(&self) -> PathSnapshot {
        let stats = self.conn.stats().path;
        self.state.snapshot(&Sending {
            cwnd: stats.cwnd,
            srtt: stats.rtt,
            mtu: u64::from(stats.current_mtu),
            next_credit: self.pacer,
            max_datagram: self.max_datagram(),
            sent_packets: stats.sent_packets,
            lost_packets: stats.lost_packets,
        })
    }

    pub(super) fn counters(&self) -> ConnectionCounters {
        let stats = self.conn.stats();
        ConnectionCounters {
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            sent_datagrams: stats.udp_tx.datagrams,
            received_datagrams: stats.udp_rx.datagrams,
            lost_packets: stats.path.lost_packets,
            black_holes: stats.path.black_holes_detected,
            congestion_events: stats.path.congestion_events,
            key_updates: self.conn.key_updates(),
        }
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.conn.remote_address()
    }
}

/// Number of frames that ask for an acknowledgement (RFC 9000 §13.2.1) and can occur here.
fn ack_eliciting(frames: &FrameStats) -> u64 {
    frames.datagram
        + frames.ping
        + frames.crypto
        + frames.new_connection_id
        + frames.retire_connection_id
        + frames.path_challenge
        + frames.path_response
        + frames.ack_frequency
        + frames.immediate_ack
        + u64::from(frames.handshake_done)
}

/// Why a connection ended, in our words. `connecting` says which side this is.
pub(super) fn close_reason(error: ConnectionError, connecting: bool) -> CloseReason {
    let refused = TransportErrorCode::crypto(ALERT_KEY_REFUSED);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match error {
        ConnectionError::TimedOut => CloseReason::TimedOut,
        ConnectionError::Reset => CloseReason::Reset,
        ConnectionError::LocallyClosed => CloseReason::Local,
        ConnectionError::ApplicationClosed(close) => CloseReason::PeerClosed(text(&close.reason)),
        ConnectionError::TransportError(error) if error.code == refused => {
            CloseReason::KeyRejected(refused_here(connecting).to_owned())
        }
        ConnectionError::ConnectionClosed(close) if close.error_code == refused => {
            refused_there(connecting)
        }
        error @ (ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::CidsExhausted) => CloseReason::Transport(error.to_string()),
    }
}

/// Whether the peer has ended the connection, so that no more packets are due.
pub(super) const fn is_end_by_peer(error: &ConnectionError) -> bool {
    matches!(
        error,
        ConnectionError::ConnectionClosed(_)
            | ConnectionError::ApplicationClosed(_)
            | ConnectionError::Reset
    )
}

pub(crate) const fn refused_here(connecting: bool) -> &'static str {
    if connecting {
        "the peer's key is not the expected one: check its address, and whether its key was replaced"
    } else {
        "the peer's key is not on the list"
    }
}

pub(crate) fn refused_there(connecting: bool) -> CloseReason {
    if connecting {
        CloseReason::KeyUnknown
    } else {
        let why = "the peer expects another key: give it the key of this gateway";
        CloseReason::KeyRejected(why.to_owned())
    }
}
