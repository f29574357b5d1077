//! Acknowledging for receivers that cannot be reached, and answering for it.
//!
//! For every connection whose opening was seen, this side keeps copies of the bytes that its host
//! sent and the other end has not acknowledged yet, without a hole and within [`Limits`]. In an
//! outage this side acknowledges these bytes with a window of zero. Then it must deliver them: it
//! sends them again until the receiver acknowledges them. When acknowledgements stay away for too
//! long, or the tunnel ends, the sender is reset, because only a reset tells it that its bytes are
//! lost. Invariant: only kept bytes are acknowledged, and acknowledged bytes are never dropped
//! without a reset.

use super::segment::{ACK, Bare, FIN, RST, SYN, Segment, Template, URG, before, write};
use crate::hold::Limits;
use crate::hold::tuning::{
    IDLE, KEPT_COST, PROXY_FLOWS_MAX, RESEND, RESEND_MAX, RESEND_WAIT_MAX, SWEEP_INTERVAL,
};
use crate::reorder::Inner;
use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, FlowKey, Instant, PacketInfo};
use std::collections::{BTreeMap, VecDeque};

/// All connections that are followed, by the flow of the data.
#[derive(Debug, Default)]
pub(super) struct ProxyAck {
    flows: BTreeMap<FlowKey, ProxiedFlow>,
    /// Bytes of packets kept in all of them.
    bytes: u64,
    /// When vanished ones were looked for last.
    swept: Instant,
    limits: Limits,
    /// Connections reset since the start.
    pub resets: u64,
}

/// One direction of a connection: from a host on this side to one beyond the tunnel.
#[derive(Debug)]
struct ProxiedFlow {
    /// Shift of windows that each end's SYN said, once it was seen: the host's, the other's.
    shifts: [Option<Option<u8>>; 2],
    said: Said,
    /// The newest acknowledgement of the receiver.
    last: Option<LastSegment>,
    /// What it has not acknowledged, from `start` to `next` without a hole.
    kept: VecDeque<HostPacket>,
    bytes: u64,
    start: u32,
    next: u32,
    /// Acknowledged to the host up to here, and not by the receiver.
    promised: Option<u32>,
    /// When the receiver last acknowledged more, or what it misses was sent again.
    progress: Instant,
    /// How long its next acknowledgement is awaited.
    wait: Duration,
    /// When the receiver last acknowledged more or the path came back, while a promise is to be
    /// kept and there is a path.
    delivering: Option<Instant>,
    /// What was promised is lost: the host is told so until it believes it.
    lost: bool,
    /// Whether the host, and the other end, has ended its direction.
    finished: [bool; 2],
    touched: Instant,
}

/// What the host said last of the way to itself.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// What it has acknowledged: what a segment to it is numbered.
    ack: u32,
    window: u16,
    /// Timestamp value and echo.
    times: Option<(u32, u32)>,
}

#[derive(Debug)]
struct LastSegment {
    template: Template,
    ack: u32,
    /// End of the receiver's window.
    edge: u32,
    timestamp: Option<u32>,
}

/// A packet of the host's.
#[derive(Debug)]
struct HostPacket {
    end: u32,
    packet: Bytes,
    checksum_partial: bool,
    timestamp: Option<u32>,
}

impl HostPacket {
    /// The packet as the host would send it again now. The receiver may have seen the host's newest
    /// timestamp. Then it drops older ones for ever (PAWS, RFC 7323 §5.3). It also drops segments
    /// that acknowledge too little of its own bytes (RFC 5961 §5.2).
    fn renewed(&self, said: Said) -> Bytes {
        let Some(segment) = Segment::parse(&self.packet) else {
            return self.packet.clone();
        };
        let (mut packet, partial) = (BytesMut::from(&self.packet[..]), self.checksum_partial);
        segment.set_ack(&mut packet, said.ack, partial);
        segment.set_window(&mut packet, said.window, partial);
        if let Some(times) = said.times {
            segment.set_timestamps(&mut packet, times, partial);
        }
        packet.freeze()
    }
}

/// What becomes of a packet of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It goes its way.
    Goes,
    /// It only asked what was answered here.
    Answered,
}

impl ProxyAck {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Bytes of packets kept.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Connections that are followed.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Connections with a promise to keep.
    pub fn promised(&self) -> usize {
        let flows = self.flows.values();
        flows.filter(|flow| flow.promised.is_some()).count()
    }

    /// A packet of a host on this side, on its way into the tunnel.
    pub fn on_ingress(
        &mut self,
        now: Instant,
        ip: &[u8],
        info: &PacketInfo,
        checksum_partial: bool,
        outage: bool,
        out: &mut impl Extend<Bytes>,
    ) -> Taken {
        let Some(segment) = Segment::read(ip, info) else {
            return Taken::Goes;
        };
        if segment.has(RST) {
            self.forget(&segment.flow);
            return Taken::Goes;
        }
        if segment.has(SYN) {
            self.open(now, segment.flow, 0, segment.window_shift(ip));
            return Taken::Goes;
        }
        let room = self.limits.bytes_max.saturating_sub(self.bytes);
        let Some(flow) = self.flows.get_mut(&segment.flow) else {
            return Taken::Goes;
        };
        flow.touched = now;
        flow.finished[0] |= segment.has(FIN);
        flow.said = Said {
            ack: segment.ack,
            window: segment.window,
            times: segment.timestamps(ip).or(flow.said.times),
        };
        if flow.lost {
            out.extend(flow.word(flow.next, 0, RST));
            return Taken::Answered;
        }
        let room = room.min(self.limits.flow_bytes_max.saturating_sub(flow.bytes));
        self.bytes -= flow.bytes;
        flow.keep(&segment, ip, checksum_partial, room);
        self.bytes += flow.bytes;
        if !outage {
            return Taken::Goes;
        }
        let was = flow.promised;
        flow.promise(out);
        // A probe of the window is one number back and has no data (RFC 9293 §3.8.6.1).
        let asks = segment.len() == 0 && was.is_some_and(|to| before(segment.seq, to));
        if asks { Taken::Answered } else { Taken::Goes }
    }

    /// A packet for a host on this side.
    pub fn on_egress(&mut self, now: Instant, inner: &mut Inner) {
        let Some(segment) = Segment::parse(&inner.data) else {
            return;
        };
        let key = segment.flow.reversed();
        if segment.has(RST) {
            let known = self.flows.get(&key);
            if known.is_some_and(|flow| flow.ends_by(&segment)) {
                self.forget(&key);
            }
            return;
        }
        if segment.has(SYN) {
            self.open(now, key, 1, segment.window_shift(&inner.data));
        }
        let Some(flow) = self.flows.get_mut(&key).filter(|_| segment.has(ACK)) else {
            return;
        };
        flow.touched = now;
        flow.finished[1] |= segment.has(FIN);
        self.bytes -= flow.bytes;
        flow.acknowledged(now, &segment, &inner.data);
        self.bytes += flow.bytes;
        let Some(to) = flow.promised else {
            if flow.is_over() {
                self.forget(&key);
            }
            return;
        };
        let mut changed = BytesMut::from(&inner.data[..]);
        segment.set_ack(&mut changed, to, inner.checksum_partial);
        segment.set_window(&mut changed, flow.window(to), inner.checksum_partial);
        inner.data = changed.freeze();
    }

    /// Every path is down: acknowledges all that is kept.
    pub fn begin(&mut self, out: &mut impl Extend<Bytes>) {
        for flow in self.flows.values_mut() {
            flow.delivering = None;
            flow.promise(out);
        }
    }

    /// A path is back: lets the senders go on, behind what was promised.
    pub fn end(&mut self, now: Instant, out: &mut impl Extend<Bytes>) {
        for flow in self.flows.values_mut() {
            let Some(to) = flow.promised else { continue };
            flow.progress = now;
            flow.wait = RESEND;
            flow.delivering = Some(now);
            out.extend(flow.word(to, flow.window(to), 0));
        }
    }

    /// When [`Self::resend`] is wanted, while there is a path.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.flows.values();
        let due = flows.filter(|flow| flow.delivering.is_some() && flow.promised.is_some());
        due.map(|flow| flow.progress + flow.wait).min()
    }

    /// Appends what receivers still miss of what was promised, and resets what lasts too long.
    pub fn resend(
        &mut self,
        now: Instant,
        out: &mut impl Extend<Bytes>,
        again: &mut Vec<(Bytes, bool)>,
    ) {
        let mut late = Vec::new();
        for (key, flow) in &mut self.flows {
            let (Some(since), Some(to)) = (flow.delivering, flow.promised) else {
                continue;
            };
            if now >= since + self.limits.tcp_age_max {
                late.push(*key);
            } else if now >= flow.progress + flow.wait {
                flow.progress = now;
                flow.wait = (flow.wait * 2).min(RESEND_WAIT_MAX);
                let promised = flow.kept.iter().filter(|kept| !before(to, kept.end));
                let first = promised.take(RESEND_MAX);
                let said = flow.said;
                again.extend(first.map(|kept| (kept.renewed(said), kept.checksum_partial)));
            }
        }
        for key in late {
            self.lose(&key, out);
        }
    }

    /// Resets every connection whose promise can no longer be kept: the tunnel ends.
    pub fn abandon(&mut self, out: &mut impl Extend<Bytes>) {
        let open: Vec<FlowKey> = self.flows.keys().copied().collect();
        for key in open {
            self.lose(&key, out);
            self.forget(&key);
        }
    }

    /// Gives a promise up and resets the host. A host that has got more than it acknowledged does
    /// not believe a reset (RFC 5961 §3.2). So each of its later segments is answered with another
    /// reset.
    fn lose(&mut self, key: &FlowKey, out: &mut impl Extend<Bytes>) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        let Some(to) = flow.promised.take() else {
            return;
        };
        out.extend(flow.word(to, 0, RST));
        self.resets += 1;
        self.bytes -= flow.bytes;
        flow.bytes = 0;
        flow.kept.clear();
        flow.delivering = None;
        flow.lost = true;
    }

    fn forget(&mut self, key: &FlowKey) {
        if let Some(flow) = self.flows.remove(key) {
            self.bytes -= flow.bytes;
        }
    }

    /// Lets go of connections whose receivers have vanished, so that others may keep something.
    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) < SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        let vanished = |flow: &ProxiedFlow| flow.is_idle(now) && !flow.kept.is_empty();
        let gone = self.flows.iter().filter(|(_, flow)| vanished(flow));
        let gone: Vec<FlowKey> = gone.map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| self.forget(key));
    }

    /// One end opens a connection: what it says of its windows.
    fn open(&mut self, now: Instant, key: FlowKey, end: usize, shift: Option<u8>) {
        self.sweep(now);
        let known = self.flows.get(&key);
        // Ports may be used again, but not while something is promised.
        let again = known.is_some_and(|flow| flow.last.is_some() && flow.promised.is_none());
        if again {
            self.forget(&key);
        }
        if self.flows.len() >= PROXY_FLOWS_MAX && !self.flows.contains_key(&key) {
            let gone = self.flows.iter().find(|(_, flow)| flow.is_idle(now));
            let Some(gone) = gone.map(|(key, _)| *key) else {
                return;
            };
            self.forget(&gone);
        }
        let flow = self
            .flows
            .entry(key)
            .or_insert_with(|| ProxiedFlow::new(now));
        flow.shifts[end] = Some(shift);
    }
}

impl ProxiedFlow {
    fn new(now: Instant) -> Self {
        Self {
            shifts: [None; 2],
            said: Said::default(),
            last: None,
            kept: VecDeque::new(),
            bytes: 0,
            start: 0,
            next: 0,
            promised: None,
            progress: now,
            wait: RESEND,
            delivering: None,
            lost: false,
            finished: [false; 2],
            touched: now,
        }
    }

    /// Whether nothing was said for long, and nothing is promised.
    fn is_idle(&self, now: Instant) -> bool {
        self.promised.is_none() && now.since(self.touched) >= IDLE
    }

    /// Whether both ends have ended it and nothing is left to be acknowledged.
    fn is_over(&self) -> bool {
        self.finished == [true; 2] && self.kept.is_empty() && self.promised.is_none()
    }

    /// Whether a reset of the receiver's is the end. While something is promised it must be one
    /// that the host certainly believes: otherwise nobody would answer for the promise.
    const fn ends_by(&self, reset: &Segment) -> bool {
        self.promised.is_none() || reset.seq == self.said.ack
    }

    /// Shift of the receiver's windows; windows are scaled if both ends say so (RFC 7323 §2.2).
    fn shift(&self) -> Option<u8> {
        match self.shifts {
            [Some(Some(_)), Some(Some(shift))] => Some(shift),
            [Some(_), Some(_)] => Some(0),
            _ => None,
        }
    }

    /// Keeps a segment, if `room` is left for it. Behind a hole everything begins anew, unless something
    /// is promised.
    fn keep(&mut self, segment: &Segment, ip: &[u8], checksum_partial: bool, room: u64) {
        let bytes = ip.len() as u64 + KEPT_COST;
        let end = segment.seq_end();
        let plain = segment.len() > 0 && !segment.has(FIN | URG);
        if self.last.is_none() || !plain || !before(self.next, end) || bytes > room {
            return;
        }
        if before(self.next, segment.seq) {
            if self.promised.is_some() {
                return;
            }
            self.kept.clear();
            self.bytes = 0;
            self.start = segment.seq;
        }
        self.next = end;
        self.bytes += bytes;
        self.kept.push_back(HostPacket {
            end,
            packet: Bytes::copy_from_slice(ip),
            checksum_partial,
            timestamp: segment.timestamps(ip).map(|(value, _)| value),
        });
    }

    /// Takes an acknowledgement of the receiver in: what it has got need not be kept any more.
    fn acknowledged(&mut self, now: Instant, segment: &Segment, ip: &[u8]) {
        // The window of a SYN is never scaled (RFC 7323 §2.2).
        let shift = if segment.has(SYN) {
            Some(0)
        } else {
            self.shift()
        };
        let Some(shift) = shift else { return };
        let ack = segment.ack;
        let known = self.last.as_ref().map(|last| last.ack);
        if known.is_some_and(|known| before(ack, known)) {
            return;
        }
        if known != Some(ack) {
            self.progress = now;
            self.wait = RESEND;
            self.delivering = self.delivering.map(|_| now);
        }
        self.last = Some(LastSegment {
            template: segment.template(ip),
            ack,
            edge: ack.wrapping_add(u32::from(segment.window) << shift),
            timestamp: segment.timestamps(ip).map(|(value, _)| value),
        });
        while let Some(first) = self.kept.front().filter(|first| !before(ack, first.end)) {
            self.bytes -= first.packet.len() as u64 + KEPT_COST;
            self.kept.pop_front();
        }
        if self.kept.is_empty() && (known.is_none() || before(self.next, ack)) {
            self.start = ack;
            self.next = ack;
        }
        if self.promised.is_some_and(|to| !before(ack, to)) {
            self.promised = None;
            self.delivering = None;
        }
    }

    /// Acknowledges all that is kept, if there is anything.
    fn promise(&mut self, out: &mut impl Extend<Bytes>) {
        let reaches = |last: &LastSegment| !before(last.ack, self.start);
        let whole = self.last.as_ref().is_some_and(reaches);
        if whole && !self.kept.is_empty() && self.shift().is_some() {
            self.promised = Some(self.next);
            out.extend(self.word(self.next, 0, 0));
        }
    }

    /// What is left of the receiver's window behind `to`, as its window field says it.
    fn window(&self, to: u32) -> u16 {
        let Some(last) = &self.last else { return 0 };
        let left = if before(to, last.edge) {
            last.edge.wrapping_sub(to) >> self.shift().unwrap_or(0)
        } else {
            0
        };
        u16::try_from(left).unwrap_or(u16::MAX)
    }

    /// A segment to the host in the receiver's name.
    fn word(&self, ack: u32, window: u16, flags: u8) -> Option<Bytes> {
        let last = self.last.as_ref()?;
        let echo = self.kept.back().and_then(|kept| kept.timestamp);
        let bare = Bare {
            seq: self.said.ack,
            ack,
            window,
            flags,
            timestamps: last.timestamp.zip(echo),
        };
        Some(Bytes::from(write(&last.template, bare)))
    }
}
