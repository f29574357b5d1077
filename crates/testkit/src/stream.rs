//! One end of a TCP connection below a gateway, as the kernel has it: what is lost is sent again,
//! and what comes early waits.
//!
//! Invariant: the session gets every byte once and in order, or the connection ends.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use ropewalk_types::{Duration, Instant};

use crate::host::Outgoing;
use crate::packet::Body;

/// Bytes that are under way at most: the send buffer of the kernel.
const BUFFER: usize = 64 * 1024;
/// Largest TCP payload of a packet, bytes.
const SEGMENT: usize = 1_400;
/// The first and the longest time without an acknowledgement until a packet is sent again.
const WAIT_MIN: Duration = Duration::from_millis(400);
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Acknowledgements of the same place that stand for a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub device: Option<Arc<str>>,
    pub port: u16,
    pub remote: SocketAddr,
    pub connected: bool,
    sent: u64,
    unacknowledged: VecDeque<(u64, Bytes)>,
    unacknowledged_bytes: usize,
    duplicates: u32,
    received: u64,
    early: BTreeMap<u64, Bytes>,
    wait: Duration,
    due: Instant,
}

impl Tcp {
    pub fn new(device: Option<Arc<str>>, port: u16, remote: SocketAddr, connected: bool) -> Self {
        Self {
            device,
            port,
            remote,
            connected,
            sent: 0,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            duplicates: 0,
            received: 0,
            early: BTreeMap::new(),
            wait: WAIT_MIN,
            due: Instant::FAR_FUTURE,
        }
    }

    /// A packet of this connection.
    pub fn packet(&self, body: Body) -> Outgoing {
        Outgoing {
            device: self.device.clone(),
            port: self.port,
            to: self.remote,
            body,
        }
    }

    /// Asks the other end to open the connection, and again until it has.
    pub fn open(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        out.push(self.packet(Body::TcpOpen));
        self.due = now + self.wait;
    }

    /// The other end has answered.
    pub const fn opened(&mut self) {
        self.connected = true;
        self.due = Instant::FAR_FUTURE;
        self.wait = WAIT_MIN;
    }

    /// Takes as many bytes as the buffer has room for; their number.
    pub fn write(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<Outgoing>) -> usize {
        let taken = bytes.len().min(BUFFER - self.unacknowledged_bytes);
        for segment in bytes[..taken].chunks(SEGMENT) {
            let data = Bytes::copy_from_slice(segment);
            out.push(self.packet(Body::TcpData(self.sent, data.clone())));
            self.unacknowledged.push_back((self.sent, data));
            self.sent += segment.len() as u64;
        }
        self.unacknowledged_bytes += taken;
        if taken > 0 && self.due == Instant::FAR_FUTURE {
            self.due = now + self.wait;
        }
        taken
    }

    /// Bytes arrived; hands over what is in order now, and acknowledges.
    pub fn on_data(&mut self, at: u64, data: Bytes, out: &mut Vec<Outgoing>) -> Vec<Bytes> {
        if at >= self.received && self.early.len() < BUFFER / SEGMENT * 2 {
            self.early.insert(at, data);
        }
        let mut ready = Vec::new();
        while let Some(data) = self.early.remove(&self.received) {
            self.received += data.len() as u64;
            ready.push(data);
        }
        out.push(self.packet(Body::TcpAck(self.received)));
        ready
    }

    /// The other end has everything before `place`; whether the buffer has room again.
    pub fn on_ack(&mut self, now: Instant, place: u64, out: &mut Vec<Outgoing>) -> bool {
        let full = self.unacknowledged_bytes >= BUFFER;
        let before = self.unacknowledged.len();
        while self.unacknowledged.front().is_some_and(|(at, _)| *at < place) {
            let (_, data) = self.unacknowledged.pop_front().expect("there is a front");
            self.unacknowledged_bytes -= data.len();
        }
        if self.unacknowledged.len() < before {
            (self.duplicates, self.wait) = (0, WAIT_MIN);
            self.due = now + self.wait;
        } else {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES {
                self.repeat(out);
            }
        }
        if self.unacknowledged.is_empty() {
            self.due = Instant::FAR_FUTURE;
        }
        full && self.unacknowledged_bytes < BUFFER
    }

    /// When [`Self::on_timeout`] is wanted.
    pub const fn due(&self) -> Instant {
        self.due
    }

    /// Sends again what was not answered for too long.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        if self.due > now {
            return;
        }
        self.wait = (self.wait * 2).min(WAIT_MAX);
        self.due = now + self.wait;
        self.duplicates = 0;
        if self.connected {
            self.repeat(out);
        } else {
            out.push(self.packet(Body::TcpOpen));
        }
    }

    fn repeat(&self, out: &mut Vec<Outgoing>) {
        let first = self.unacknowledged.front();
        out.extend(first.map(|(at, data)| self.packet(Body::TcpData(*at, data.clone()))));
    }
}
