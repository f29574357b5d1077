//! One end of a TCP connection below a gateway, as the kernel has it: what is lost is sent again,
//! and what comes early waits.
//!
//! Invariant: the session gets every byte once and in order, or the connection ends.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_session::TcpInfo;
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
/// Round-trip time before the first one is measured.
const RTT_UNKNOWN: Duration = Duration::from_millis(100);
/// How often the other end is told again that this one is closed: for half a minute.
const CLOSES: u32 = 8;
/// Acknowledgements of the same place that stand for a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;

/// A packet that is not acknowledged yet.
#[derive(Clone, Debug)]
struct Segment {
    at: u64,
    data: Bytes,
    /// When it was sent; `None` once it was sent again (RFC 6298 §3).
    sent: Option<Instant>,
    /// It was sent again since the last loss.
    repeated: bool,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub device: Option<Arc<str>>,
    pub port: u16,
    pub remote: SocketAddr,
    pub connected: bool,
    /// The other end has opened the connection.
    pub accepted: bool,
    sent: u64,
    unacknowledged: VecDeque<Segment>,
    unacknowledged_bytes: usize,
    srtt: Duration,
    rttvar: Duration,
    min_rtt: Duration,
    acknowledged_at: Instant,
    duplicates: u32,
    /// Everything before this place was sent before the last loss.
    recover: u64,
    received: u64,
    /// What the session has not read yet: stands for the buffer of the kernel.
    pub unread: BytesMut,
    early: BTreeMap<u64, Bytes>,
    wait: Duration,
    due: Instant,
    /// How often the other end is still told that this one is closed.
    closes: u32,
}

impl Tcp {
    pub fn new(device: Option<Arc<str>>, port: u16, remote: SocketAddr, connected: bool) -> Self {
        Self {
            device,
            port,
            remote,
            connected,
            accepted: connected,
            sent: 0,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            srtt: RTT_UNKNOWN,
            rttvar: RTT_UNKNOWN / 2,
            min_rtt: RTT_UNKNOWN,
            acknowledged_at: Instant::ZERO,
            duplicates: 0,
            recover: 0,
            received: 0,
            unread: BytesMut::new(),
            early: BTreeMap::new(),
            wait: WAIT_MIN,
            due: Instant::FAR_FUTURE,
            closes: 0,
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

    /// Tells the other end that this one is closed, and again for some time.
    pub fn close(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        (self.closes, self.wait) = (CLOSES, WAIT_MIN);
        out.push(self.packet(Body::TcpClose));
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
            self.unacknowledged.push_back(Segment {
                at: self.sent,
                data,
                sent: Some(now),
                repeated: false,
            });
            self.sent += segment.len() as u64;
        }
        self.unacknowledged_bytes += taken;
        if taken > 0 && self.due == Instant::FAR_FUTURE {
            self.due = now + self.wait;
        }
        taken
    }

    /// Bytes arrived; acknowledges them. Whether more are in order now, in `unread`.
    pub fn on_data(&mut self, at: u64, data: Bytes, out: &mut Vec<Outgoing>) -> bool {
        if at >= self.received && self.early.len() < BUFFER / SEGMENT * 2 {
            self.early.insert(at, data);
        }
        let before = self.received;
        while let Some(data) = self.early.remove(&self.received) {
            self.received += data.len() as u64;
            self.unread.extend_from_slice(&data);
        }
        out.push(self.packet(Body::TcpAck(self.received)));
        self.received > before
    }

    /// The other end has everything before `place`; whether the buffer has room again.
    pub fn on_ack(&mut self, now: Instant, place: u64, out: &mut Vec<Outgoing>) -> bool {
        let full = self.unacknowledged_bytes >= BUFFER;
        let before = self.unacknowledged.len();
        let mut sent = None;
        let acknowledged = |segment: &Segment| segment.at < place;
        while self.unacknowledged.front().is_some_and(acknowledged)
            && let Some(segment) = self.unacknowledged.pop_front()
        {
            self.unacknowledged_bytes -= segment.data.len();
            sent = segment.sent;
        }
        if let Some(sent) = sent {
            self.measure(now.since(sent));
        }
        self.acknowledged_at = now;
        if self.unacknowledged.len() < before {
            (self.duplicates, self.wait) = (0, WAIT_MIN);
            self.due = now + self.wait;
            if place < self.recover {
                // What was sent with the lost one is lost, too: twice as much after each round trip.
                self.repeat(2, out);
            }
        } else {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES {
                self.recover = self.sent;
                self.repeat(1, out);
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
        if self.closes > 0 {
            self.closes -= 1;
            out.push(self.packet(Body::TcpClose));
            if self.closes == 0 {
                self.due = Instant::FAR_FUTURE;
            }
        } else if self.connected {
            self.recover = self.sent;
            let again = self.unacknowledged.iter_mut();
            again.for_each(|segment| segment.repeated = false);
            self.repeat(1, out);
        } else {
            out.push(self.packet(Body::TcpOpen));
        }
    }

    /// Sends the oldest of those again that were not since the last loss.
    fn repeat(&mut self, count: usize, out: &mut Vec<Outgoing>) {
        let recover = self.recover;
        let lost = self.unacknowledged.iter_mut();
        let lost = lost.filter(|segment| segment.at < recover && !segment.repeated);
        let again: Vec<Body> = lost
            .take(count)
            .map(|segment| {
                (segment.sent, segment.repeated) = (None, true);
                Body::TcpData(segment.at, segment.data.clone())
            })
            .collect();
        out.extend(again.into_iter().map(|body| self.packet(body)));
    }

    /// A round trip took so long (RFC 6298 §2).
    fn measure(&mut self, rtt: Duration) {
        if self.min_rtt == RTT_UNKNOWN {
            (self.srtt, self.rttvar, self.min_rtt) = (rtt, rtt / 2, rtt);
        }
        self.rttvar = (self.rttvar * 3 + self.srtt.abs_diff(rtt)) / 4;
        self.srtt = (self.srtt * 7 + rtt) / 8;
        self.min_rtt = self.min_rtt.min(rtt);
    }

    /// What the kernel tells of the connection. All that was taken is under way.
    pub fn info(&self, now: Instant) -> TcpInfo {
        TcpInfo {
            srtt: self.srtt,
            rttvar: self.rttvar,
            min_rtt: self.min_rtt,
            cwnd_bytes: BUFFER as u64,
            in_flight_bytes: self.unacknowledged_bytes as u64,
            acked_bytes: self.sent - self.unacknowledged_bytes as u64,
            last_ack_age: now.since(self.acknowledged_at),
            ..TcpInfo::default()
        }
    }
}
