//! Acknowledging for receivers, and answering for it: in outages, or at all times.
//!
//! For every connection whose opening was seen, this side keeps copies of the bytes that its host
//! sent and the other end has not acknowledged yet, without a hole and within [`Limits`]. In an
//! outage this side acknowledges these bytes with a window of zero. Then it must deliver them: it
//! sends them again until the receiver acknowledges them. When acknowledgements stay away for too
//! long, or the tunnel ends, the sender is reset, because only a reset tells it that its bytes are
//! lost. Invariant: only kept bytes are acknowledged, and acknowledged bytes are never dropped
//! without a reset.
//!
//! With acceleration this side acknowledges at all times. The window that the host is told is then
//! what is left of the receiver's window, and no more than may wait at the ingress. So the host is
//! slowed by this side's queue instead of by losses and long round trips.

use super::segment::{ACK, Bare, FIN, RST, SYN, Segment, Template, URG, before, write};
use crate::hold::Limits;
use crate::hold::tuning::{
    IDLE, KEPT_COST, KEPT_SPARE, LOOK_INTERVAL, PROXY_FLOWS_MAX, REORDERING, RESEND, RESEND_MAX,
    RESEND_WAIT_MAX, SWEEP_INTERVAL, WINDOW_STEP,
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
    /// Hosts are acknowledged at all times, not in outages only.
    accelerate: bool,
    /// Bytes that each of them may have waiting at the ingress.
    share: u64,
    /// Connections whose hosts may be owed an acknowledgement or a larger window.
    busy: Vec<FlowKey>,
    /// Connections reset, connections accelerated, and segments sent again since the start.
    pub resets: u64,
    pub accelerated: u64,
    pub resent: u64,
}

/// One direction of a connection: from a host on this side to one beyond the tunnel.
#[derive(Debug)]
struct ProxiedFlow {
    /// First sequence number of the host, and the end of what it has sent.
    opened: Option<u32>,
    sent: Option<u32>,
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
    /// Bucket of the flow at the ingress.
    bucket: u16,
    /// The flow is in [`ProxyAck::busy`].
    busy: bool,
    /// The flow is in [`ProxyAck::accelerated`].
    counted: bool,
    /// The host's newest segment with data is kept, so the host is slowed by what it is offered.
    keeps: bool,
    /// The host was told last that it may send up to here.
    offered: Option<u32>,
    /// From here to the receiver's acknowledgement and back, smoothed, and its variation (RFC 6298).
    round_trip: Option<(Duration, Duration)>,
    /// Packets that are sent again at once when nothing comes any more, and the end of what was kept
    /// when that began.
    burst: usize,
    recovery: Option<u32>,
    /// When the newest packet was sent of which the receiver said that it has it, and its end.
    newest: Option<(Instant, u32)>,
    /// When lost packets are to be looked for.
    look: Option<Instant>,
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
    from: u32,
    end: u32,
    packet: Bytes,
    checksum_partial: bool,
    timestamp: Option<u32>,
    /// When it was sent last: when it came, unless it was sent again.
    sent: Instant,
    /// It was sent once, and the path was up all the time.
    timed: bool,
    /// The receiver has it, and misses something before it.
    selected: bool,
}

impl HostPacket {
    /// The newer one of `newest` and of this packet, which has arrived. Sooner than a round trip after
    /// the packet was sent again, an earlier copy has (RFC 8985 §6.2, step 2).
    fn newer(
        &self,
        newest: Option<(Instant, u32)>,
        now: Instant,
        round_trip: Option<(Duration, Duration)>,
    ) -> Option<(Instant, u32)> {
        let copy =
            !self.timed && round_trip.is_none_or(|(smooth, _)| now.since(self.sent) < smooth);
        if copy || newest.is_some_and(|newest| !self.is_after(newest)) {
            return newest;
        }
        Some((self.sent, self.end))
    }

    /// Whether the packet was sent after another one; those that came together left in order.
    fn is_after(&self, (sent, end): (Instant, u32)) -> bool {
        self.sent > sent || self.sent == sent && before(end, self.end)
    }

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
    /// So does it, and its bytes are or will be acknowledged here.
    Kept,
    /// It only asked what was answered here.
    Answered,
}

impl ProxyAck {
    pub fn new(limits: Limits, accelerate: bool) -> Self {
        Self {
            limits,
            accelerate,
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
        (ip, bucket): (&[u8], u16),
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
            self.open(now, segment.flow, 0, segment.seq, (&segment, ip));
            return Taken::Goes;
        }
        let room = self.limits.bytes_max.saturating_sub(self.bytes);
        let Some(flow) = self.flows.get_mut(&segment.flow) else {
            return Taken::Goes;
        };
        flow.touched = now;
        flow.finished[0] |= segment.has(FIN);
        flow.sent = flow.sent.map(|sent| match segment.all_end() {
            end if before(sent, end) => end,
            _ => sent,
        });
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
        let kept = flow.keep(now, &segment, ip, checksum_partial, room);
        self.bytes += flow.bytes;
        if !outage {
            let promises = self.accelerate && (kept || flow.is_behind(&segment));
            if promises {
                self.accelerated += u64::from(!core::mem::replace(&mut flow.counted, true));
                flow.bucket = bucket;
                if !core::mem::replace(&mut flow.busy, true) {
                    self.busy.push(segment.flow);
                }
            }
            flow.keeps = kept || flow.keeps && segment.len() == 0;
            return match (promises, kept) {
                (true, true) => Taken::Kept,
                // What was acknowledged already: a probe of the window, or a copy because the
                // acknowledgement was lost.
                (true, false) => {
                    out.extend(flow.again());
                    Taken::Answered
                }
                (false, _) => Taken::Goes,
            };
        }
        let was = flow.promised;
        flow.promise(out);
        // A probe of the window is one number back and has no data (RFC 9293 §3.8.6.1).
        let asks = segment.len() == 0 && was.is_some_and(|to| before(segment.seq, to));
        if asks { Taken::Answered } else { Taken::Goes }
    }

    /// A packet for a host on this side; false when it says nothing that the host does not know.
    /// `waiting` has the bytes of a bucket at the ingress.
    pub fn on_egress(
        &mut self,
        now: Instant,
        inner: &mut Inner,
        waiting: impl Fn(u16) -> u64,
    ) -> bool {
        let Some(segment) = Segment::parse(&inner.data) else {
            return true;
        };
        let key = segment.flow.reversed();
        if segment.has(RST) {
            let known = self.flows.get(&key);
            if known.is_some_and(|flow| flow.ends_by(&segment)) {
                self.forget(&key);
            }
            return true;
        }
        if segment.has(SYN) {
            let opened = segment.ack.wrapping_sub(1);
            self.open(now, key, 1, opened, (&segment, &inner.data));
        }
        let Some(flow) = self.flows.get_mut(&key).filter(|_| segment.has(ACK)) else {
            return true;
        };
        flow.touched = now;
        flow.finished[1] |= segment.has(FIN);
        self.bytes -= flow.bytes;
        flow.acknowledged(now, &segment, &inner.data);
        self.bytes += flow.bytes;
        let promised = flow.promised;
        if promised.is_none() && flow.is_over() {
            self.forget(&key);
            return true;
        }
        let known = flow.shift().is_some() && !segment.has(SYN);
        let accelerates = self.accelerate && known && (flow.keeps || promised.is_some());
        let (to, window) = match promised {
            _ if accelerates => {
                let to = promised.unwrap_or(segment.ack);
                // Nobody would tell the host of a window that opens while nothing is promised.
                let least = if promised.is_some() { 0 } else { WINDOW_STEP };
                let room = self.share.saturating_sub(waiting(flow.bucket));
                let room = flow.room(room, self.bytes, self.limits);
                let edge = flow.edge(to, room.max(u64::from(least)));
                // Old numbers ask the host something.
                let bare = segment.len() == 0 && !segment.has(FIN);
                let asks = before(segment.seq, flow.said.ack);
                if promised.is_some() && bare && !asks && !flow.is_worth_telling(edge) {
                    return false;
                }
                flow.offered = Some(edge);
                (to, flow.field(to, edge))
            }
            Some(to) => (to, flow.window(to)),
            None => return true,
        };
        let mut changed = BytesMut::from(&inner.data[..]);
        if promised.is_some() {
            segment.set_ack(&mut changed, to, inner.checksum_partial);
        }
        segment.set_window(&mut changed, window, inner.checksum_partial);
        inner.data = changed.freeze();
        true
    }

    /// Whether a host may be owed an acknowledgement or a larger window.
    pub const fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Acknowledges what came since the last call, and tells hosts of windows that have opened.
    /// `waiting` has the bytes of a bucket at the ingress, of which it should have `share` at most.
    pub fn settle(
        &mut self,
        now: Instant,
        share: u64,
        waiting: impl Fn(u16) -> u64,
        out: &mut impl Extend<Bytes>,
    ) {
        self.share = share;
        let (flows, bytes, limits) = (&mut self.flows, self.bytes, self.limits);
        self.busy.retain(|key| {
            let Some(flow) = flows.get_mut(key) else {
                return false;
            };
            let room = share.saturating_sub(waiting(flow.bucket));
            let room = flow.room(room, bytes, limits);
            flow.settle(now, room, out);
            flow.busy = flow.promised.is_some();
            flow.busy
        });
    }

    /// Every path is down: acknowledges all that is kept.
    pub fn begin(&mut self, out: &mut impl Extend<Bytes>) {
        for flow in self.flows.values_mut() {
            flow.delivering = None;
            flow.offered = None;
            // How long an acknowledgement takes now says nothing of the path.
            flow.kept.iter_mut().for_each(|kept| kept.timed = false);
            flow.promise(out);
        }
    }

    /// A path is back: lets the senders go on, behind what was promised.
    pub fn end(&mut self, now: Instant, out: &mut impl Extend<Bytes>) {
        for (key, flow) in &mut self.flows {
            let Some(to) = flow.promised else { continue };
            flow.deliver(now);
            // All that was under way is lost.
            (flow.burst, flow.recovery) = (RESEND_MAX, Some(to));
            if !self.accelerate {
                out.extend(flow.word(to, flow.window(to), 0));
            } else if !core::mem::replace(&mut flow.busy, true) {
                self.busy.push(*key);
            }
        }
    }

    /// When [`Self::resend`] is wanted, while there is a path.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.flows.values();
        let due = flows.filter(|flow| flow.delivering.is_some() && flow.promised.is_some());
        due.map(|flow| {
            let silence = flow.progress + flow.wait;
            flow.look.map_or(silence, |look| silence.min(look))
        })
        .min()
    }

    /// Appends what receivers still miss of what was promised, and resets what lasts too long.
    pub fn resend(
        &mut self,
        now: Instant,
        out: &mut impl Extend<Bytes>,
        again: &mut Vec<(Bytes, bool)>,
    ) {
        let mut late = Vec::new();
        let before_these = again.len();
        for (key, flow) in &mut self.flows {
            let (Some(since), Some(to)) = (flow.delivering, flow.promised) else {
                continue;
            };
            if now >= since + self.limits.tcp_age_max {
                late.push(*key);
                continue;
            }
            let lost = flow.look.take_if(|look| *look <= now).and(flow.newest);
            let overdue = flow.overdue();
            let mut most = 0;
            if now >= flow.progress + flow.wait {
                flow.wait = (flow.wait * 2).min(RESEND_WAIT_MAX);
                flow.recovery.get_or_insert(flow.next);
                most = flow.burst;
                flow.burst = (most * 2).min(RESEND_MAX);
                // A receiver may drop what it had selected (RFC 2018 §8).
                if flow.kept.front().is_some_and(|first| first.selected) {
                    flow.kept.iter_mut().for_each(|kept| kept.selected = false);
                }
            }
            let said = flow.said;
            let promised = flow.kept.iter_mut().filter(|kept| !before(to, kept.end));
            let missing = promised.filter(|kept| !kept.selected);
            for (nth, kept) in missing.take(RESEND_MAX).enumerate() {
                // Something that was sent later has arrived.
                let overtaken = lost.is_some_and(|newest| !kept.is_after(newest));
                if nth < most || overtaken && now >= kept.sent + overdue {
                    (kept.sent, kept.timed) = (now, false);
                    flow.progress = now;
                    again.push((kept.renewed(said), kept.checksum_partial));
                } else if overtaken {
                    let look = kept.sent + overdue;
                    flow.look = Some(flow.look.map_or(look, |next| next.min(look)));
                }
            }
        }
        self.resent += (again.len() - before_these) as u64;
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

    /// One end opens a connection whose host begins with the number `opened`: what it says of its
    /// windows.
    fn open(
        &mut self,
        now: Instant,
        key: FlowKey,
        end: usize,
        opened: u32,
        (syn, ip): (&Segment, &[u8]),
    ) {
        self.sweep(now);
        if syn.is_bound(ip) {
            self.forget(&key);
            return;
        }
        // Ports may be used again. A host that opens another connection has none of the promise. The
        // other end may only seem to open one while something is promised.
        let again = self.flows.get(&key).is_some_and(|flow| {
            let other = flow.last.is_some() && flow.opened != Some(opened);
            other && (end == 0 || flow.promised.is_none())
        });
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
        flow.shifts[end] = Some(syn.window_shift(ip));
        if end == 0 {
            flow.opened = Some(opened);
            flow.sent = Some(syn.all_end());
        }
    }
}

impl ProxiedFlow {
    fn new(now: Instant) -> Self {
        Self {
            opened: None,
            sent: None,
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
            bucket: 0,
            busy: false,
            counted: false,
            keeps: false,
            offered: None,
            round_trip: None,
            burst: 1,
            recovery: None,
            newest: None,
            look: None,
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

    /// Keeps a segment, if `room` is left for it; answers whether it did. Behind a hole everything
    /// begins anew, unless something is promised.
    fn keep(
        &mut self,
        now: Instant,
        segment: &Segment,
        ip: &[u8],
        checksum_partial: bool,
        room: u64,
    ) -> bool {
        let bytes = ip.len() as u64 + KEPT_COST;
        let end = segment.seq_end();
        let plain = segment.len() > 0 && !segment.has(FIN | URG);
        let Some(last) = &self.last else {
            return false;
        };
        // What probes a window is not wanted yet.
        let offered = self.offered.filter(|offered| before(last.edge, *offered));
        let known = self.shift().is_some();
        let probes = self.offered.is_some() && before(offered.unwrap_or(last.edge), end);
        if !plain || !known || probes || !before(self.next, end) || bytes > room {
            return false;
        }
        if before(self.next, segment.seq) {
            if self.promised.is_some() {
                return false;
            }
            self.kept.clear();
            self.bytes = 0;
            self.start = segment.seq;
        }
        self.next = end;
        self.bytes += bytes;
        self.kept.push_back(HostPacket {
            from: segment.seq,
            end,
            packet: Bytes::copy_from_slice(ip),
            checksum_partial,
            timestamp: segment.timestamps(ip).map(|(value, _)| value),
            sent: now,
            timed: true,
            selected: false,
        });
        true
    }

    /// Whether a segment of the host's says only what was acknowledged here: it comes again, or
    /// asks for the window (RFC 9293 §3.8.6.1).
    fn is_behind(&self, segment: &Segment) -> bool {
        let plain = !segment.has(FIN | URG);
        self.promised.is_some_and(|to| match segment.len() {
            0 => before(segment.seq, to),
            _ => plain && !before(to, segment.seq_end()),
        })
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
        let beyond = self.sent.is_some_and(|sent| before(sent, ack));
        if beyond || known.is_some_and(|known| before(ack, known)) {
            return;
        }
        let edge = ack.wrapping_add(u32::from(segment.window) << shift);
        if known != Some(ack) {
            self.progress = now;
            self.delivering = self.delivering.map(|_| now);
            if self.recovery.is_some_and(|to| !before(ack, to)) {
                (self.burst, self.recovery) = (1, None);
            }
        }
        // A receiver that is there and has no room is waited for.
        if segment.window == 0 {
            self.delivering = self.delivering.map(|_| now);
        }
        self.last = Some(LastSegment {
            template: segment.template(ip),
            ack,
            edge,
            timestamp: segment.timestamps(ip).map(|(value, _)| value),
        });
        let mut came = None;
        while let Some(first) = self.kept.front().filter(|first| !before(ack, first.end)) {
            self.bytes -= first.packet.len() as u64 + KEPT_COST;
            came = first.timed.then_some(first.sent);
            self.newest = first.newer(self.newest, now, self.round_trip);
            self.kept.pop_front();
        }
        // The start stays near: numbers wrap after 4 GiB.
        if before(self.start, ack) {
            self.start = ack;
        }
        if let Some(came) = came {
            self.took(now.since(came));
        }
        for block in segment.blocks(ip) {
            self.select(now, block);
        }
        if known != Some(ack) {
            self.wait = self.patience();
        }
        if self.kept.is_empty() {
            self.kept.shrink_to(KEPT_SPARE);
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

    /// The receiver has what lies between two numbers, and misses something before it.
    fn select(&mut self, now: Instant, (from, to): (u32, u32)) {
        let first = self.kept.partition_point(|kept| !before(from, kept.end));
        for kept in self.kept.range_mut(first..) {
            if before(to, kept.end) {
                break;
            }
            if before(kept.from, from) {
                continue;
            }
            if !core::mem::replace(&mut kept.selected, true) {
                self.newest = kept.newer(self.newest, now, self.round_trip);
                self.look.get_or_insert(now + LOOK_INTERVAL);
            }
        }
    }

    /// How long after it was sent a packet is lost that others overtook: a round trip, and what
    /// packets may overtake each other by (RFC 8985 §6.2, step 5).
    fn overdue(&self) -> Duration {
        self.round_trip
            .map_or(RESEND, |(smooth, _)| smooth + smooth / REORDERING)
            .max(LOOK_INTERVAL)
    }

    /// An acknowledgement of the receiver took so long (RFC 6298 §2).
    fn took(&mut self, time: Duration) {
        self.round_trip = Some(
            self.round_trip
                .map_or((time, time / 2), |(smooth, variation)| {
                    let error = time.max(smooth) - time.min(smooth);
                    ((smooth * 7 + time) / 8, (variation * 3 + error) / 4)
                }),
        );
    }

    /// How long the next acknowledgement of the receiver is awaited.
    fn patience(&self) -> Duration {
        let (smooth, variation) = self.round_trip.unwrap_or_default();
        (smooth + variation * 4).clamp(RESEND, RESEND_WAIT_MAX)
    }

    /// What is promised is on its way from now on.
    fn deliver(&mut self, now: Instant) {
        self.progress = now;
        self.wait = self.patience();
        self.delivering = Some(now);
    }

    /// Whether what is kept follows on what the receiver has.
    fn is_whole(&self) -> bool {
        let reaches = |last: &LastSegment| !before(last.ack, self.start);
        let whole = self.last.as_ref().is_some_and(reaches);
        whole && !self.kept.is_empty() && self.shift().is_some()
    }

    /// Acknowledges what is kept, or only tells of a larger window if it is worth it.
    fn settle(&mut self, now: Instant, room: u64, out: &mut impl Extend<Bytes>) {
        if !self.is_whole() {
            return;
        }
        let to = self.next;
        let new = self.promised != Some(to);
        self.promised = Some(to);
        if self.delivering.is_none() {
            self.deliver(now);
        }
        let edge = self.edge(to, room);
        if new || self.is_worth_telling(edge) {
            self.offered = Some(edge);
            out.extend(self.word(to, self.field(to, edge), 0));
        }
    }

    /// What the host may send beyond what is kept: what waits must fit at the ingress, and what is
    /// kept must fit in the limits with what it costs besides. Half is left to other connections.
    fn room(&self, ingress: u64, kept: u64, limits: Limits) -> u64 {
        let flow = limits.flow_bytes_max.saturating_sub(self.bytes);
        let all = limits.bytes_max.saturating_sub(kept) / 2;
        let left = flow.min(all);
        ingress.min(left - left / 8)
    }

    /// Up to where the host may send when it was acknowledged `to`: what is left of the receiver's
    /// window, and no more than `room` bytes. What was offered once stays.
    fn edge(&self, to: u32, room: u64) -> u32 {
        let receiver = self.last.as_ref().map_or(to, |last| last.edge);
        let left = if before(to, receiver) {
            receiver.wrapping_sub(to)
        } else {
            0
        };
        let shift = self.shift().unwrap_or(0);
        let most = u32::from(u16::MAX) << shift;
        let left = left.min(most).min(u32::try_from(room).unwrap_or(most));
        let edge = to.wrapping_add(left >> shift << shift);
        self.offered
            .filter(|offered| before(edge, *offered))
            .unwrap_or(edge)
    }

    /// Whether an edge is so far beyond what was offered last that the host should know (RFC 9293
    /// §3.8.6.2.2).
    fn is_worth_telling(&self, edge: u32) -> bool {
        let whole = self
            .last
            .as_ref()
            .map_or(0, |last| last.edge.wrapping_sub(last.ack));
        let step = WINDOW_STEP.min(whole / 2).max(1);
        self.offered
            .is_none_or(|offered| edge.wrapping_sub(offered) >= step)
    }

    /// What the host was told last, once more.
    fn again(&self) -> Option<Bytes> {
        let to = self.promised?;
        self.word(to, self.field(to, self.offered.unwrap_or(to)), 0)
    }

    /// The window field for an edge.
    fn field(&self, to: u32, edge: u32) -> u16 {
        let left = if before(to, edge) {
            edge.wrapping_sub(to) >> self.shift().unwrap_or(0)
        } else {
            0
        };
        u16::try_from(left).unwrap_or(u16::MAX)
    }

    /// Acknowledges all that is kept, if there is anything.
    fn promise(&mut self, out: &mut impl Extend<Bytes>) {
        if self.is_whole() {
            self.promised = Some(self.next);
            out.extend(self.word(self.next, 0, 0));
        }
    }

    /// What is left of the receiver's window behind `to`, as its window field says it.
    fn window(&self, to: u32) -> u16 {
        self.last
            .as_ref()
            .map_or(0, |last| self.field(to, last.edge))
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
