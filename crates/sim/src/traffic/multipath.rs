//! One MPTCP connection that carries data one way (RFC 8684), as Linux sends it.
//!
//! Every path has a subflow: a TCP sender and receiver with congestion control of its own, not
//! coupled to the others, as Linux has it. Data is given to subflows in bursts and stays with them.
//! Rules and constants are those of `net/mptcp/protocol.c` and `pm_netlink.c` of Linux 6.
//!
//! Both ends are one value, so what a data sequence signal would map is looked up instead of sent.

use super::{Outbox, back};
use crate::engine::NEVER;
use crate::host::ranges::Ranges;
use crate::host::tcp::{Receiver, Sender, Settings};
use crate::host::{RECEIVE_WINDOW_BYTES, SenderStats};
use crate::packet::{Ack, Body, Packet, TCP_HEADERS, Upper};
use crate::traffic::transfer::Address;
use ropewalk_types::{Ecn, Random};
use std::collections::VecDeque;

/// Bytes that the data sequence signal takes in a packet with data: acknowledgement of 32 bits and
/// mapping of 64 bits, padded (RFC 8684 §3.3).
pub const SIGNAL_BYTES: u32 = 24;
/// Bytes of an acknowledgement of 32 bits in a packet without data.
const ACK_SIGNAL_BYTES: u32 = 8;
/// Blocks that fit beside timestamps and that acknowledgement.
const BLOCKS: u8 = 2;
/// Bytes given to a subflow at once (`MPTCP_SEND_BURST_SIZE`).
const BURST_BYTES: u32 = 65_400;
/// Bytes sent again at once, the most of a `mptcp_data_frag`.
const REINJECTED_BYTES: u32 = 32 * 1024;
/// Windows of data that a subflow's send buffer holds (`tcp_sndbuf_expand`: `sndbuf_expand` 2).
const BUFFERED_WINDOWS: u32 = 2;
/// Segments of the first buffer.
const BUFFERED_MIN: u32 = 20;
/// Timeouts in a row without an answer after which a subflow is stale (`stale_loss_cnt`).
const STALE_TIMEOUTS: u32 = 4;

/// A subflow: both of its ends.
#[derive(Clone, Debug)]
struct Subflow {
    sender: Box<Sender>,
    receiver: Receiver,
    /// Which segments of the data its segments are, from `mapped_from` on.
    mapped: VecDeque<u32>,
    mapped_from: u32,
    /// Mean of the pacing rate, segments per second (`avg_pacing_rate`).
    pacing: f64,
    /// The first unacknowledged segment at the last timeout, and timeouts since it is the first.
    seen: u32,
    silent: u32,
    stale: bool,
    /// Clock of the newest acknowledgement.
    echo: u32,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Multipath {
    address: Address,
    segment_bytes: u32,
    start_ns: u64,
    subflows: Vec<Subflow>,
    /// Segments of the data: the next new one, the first that is not acknowledged, and how many
    /// may be between.
    next: u32,
    una: u32,
    window: u32,
    /// What goes once more, over another subflow.
    again: VecDeque<u32>,
    reinjected: u64,
    started: bool,
    timer_ns: Option<u64>,
    /// The receiver: the next segment of the data, and what came beyond.
    expected: u32,
    beyond: Ranges,
}

impl Multipath {
    /// A bulk connection over `paths` paths; `settings` are those of every subflow.
    pub fn bulk(
        address: Address,
        start_ns: u64,
        settings: Settings,
        paths: usize,
        random: &mut Random,
    ) -> Self {
        let window = settings.window_bytes.min(RECEIVE_WINDOW_BYTES);
        let window = window / u64::from(settings.segment_bytes);
        let mut subflow = || Subflow {
            sender: Box::new(Sender::new(settings, random.fork())),
            receiver: Receiver::new(),
            mapped: VecDeque::new(),
            mapped_from: 0,
            pacing: 0.0,
            seen: 0,
            silent: 0,
            stale: false,
            echo: 0,
        };
        Self {
            address,
            segment_bytes: settings.segment_bytes,
            start_ns,
            subflows: (0..paths).map(|_| subflow()).collect(),
            next: 0,
            una: 0,
            window: u32::try_from(window).unwrap_or(u32::MAX).max(1),
            again: VecDeque::new(),
            reinjected: 0,
            started: false,
            timer_ns: None,
            expected: 0,
            beyond: Ranges::default(),
        }
    }

    /// Application bytes delivered in order.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        u64::from(self.expected) * u64::from(self.segment_bytes)
    }

    /// Windows of all subflows together, segments.
    #[must_use]
    pub fn cwnd(&self) -> u32 {
        self.subflows.iter().map(|flow| flow.sender.cwnd()).sum()
    }

    /// Counters of all subflows together; what goes over another subflow counts as sent again.
    #[must_use]
    pub fn stats(&self) -> SenderStats {
        let mut sum = SenderStats {
            retransmits: self.reinjected,
            ..SenderStats::default()
        };
        for stats in self.subflows.iter().map(|flow| flow.sender.stats()) {
            sum.sent += stats.sent;
            sum.retransmits += stats.retransmits;
            sum.spurious += stats.spurious;
            sum.timeouts += stats.timeouts;
        }
        sum
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        let flows = self.subflows.iter();
        let ends = flows.flat_map(|flow| [flow.sender.due_ns(), flow.receiver.due_ns()]);
        let own = [self.timer_ns, (!self.started).then_some(self.start_ns)];
        ends.chain(own).flatten().min().unwrap_or(NEVER)
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        self.started |= now_ns >= self.start_ns;
        for index in 0..self.subflows.len() {
            if let Some(ack) = self.subflows[index].receiver.on_timer(now_ns) {
                self.acknowledge(now_ns, index, ack, out);
            }
            if let Some(segment) = self.subflows[index].sender.on_timer(now_ns) {
                self.emit(now_ns, index, segment, out);
            }
        }
        if self.timer_ns.is_some_and(|at| at <= now_ns) {
            self.on_timeout();
            self.arm(now_ns);
        }
        self.pump(now_ns, out);
    }

    /// A packet of this connection arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let index = usize::from(packet.subflow);
        let Some(flow) = self.subflows.get_mut(index) else {
            return;
        };
        match packet.body {
            Body::Data { segment, stamp, .. } => {
                let from = flow.receiver.delivered();
                let ack = flow.receiver.on_segment(now_ns, segment, stamp);
                // A subflow hands on what is in its own order.
                for number in from..flow.receiver.delivered() {
                    let data = flow.mapped[(number - flow.mapped_from) as usize];
                    if data >= self.expected {
                        self.beyond.insert(data);
                    }
                }
                if let Some(end) = self.beyond.take_from(self.expected) {
                    self.expected = end;
                }
                if let Some(ack) = ack {
                    self.acknowledge(now_ns, index, ack, out);
                }
            }
            Body::Ack(ack) => {
                flow.sender.on_ack(now_ns, &ack);
                flow.echo = flow.echo.max(packet.clock);
                (flow.stale, flow.silent) = (false, 0);
                while flow.mapped_from < flow.sender.una() {
                    flow.mapped.pop_front();
                    flow.mapped_from += 1;
                }
                if ack.data_next > self.una {
                    self.una = ack.data_next;
                    self.arm(now_ns);
                }
                self.pump(now_ns, out);
            }
            Body::Ping(_) | Body::Pong(_) | Body::Voice { .. } | Body::Request(_) => {}
        }
    }

    /// Gives data to subflows, and sends what their windows allow.
    fn pump(&mut self, now_ns: u64, out: &mut Outbox) {
        if self.started {
            while let Some(index) = self.choose() {
                self.give(now_ns, index);
            }
            if self.timer_ns.is_none() && self.una < self.next {
                self.arm(now_ns);
            }
        }
        for index in 0..self.subflows.len() {
            while let Some(segment) = self.subflows[index].sender.poll(now_ns) {
                self.emit(now_ns, index, segment, out);
            }
        }
    }

    /// Whether there is a segment to give away.
    fn has_data(&self) -> bool {
        !self.again.is_empty() || self.next - self.una < self.window
    }

    /// The subflow that has sent what it holds soonest, if its buffer has room
    /// (`mptcp_subflow_get_send`).
    fn choose(&mut self) -> Option<usize> {
        if !self.has_data() {
            return None;
        }
        let flows = self.subflows.iter_mut().enumerate();
        let lingers = flows.filter(|(_, flow)| !flow.stale).map(|(index, flow)| {
            if flow.pacing <= 0.0 {
                flow.pacing = flow.sender.pacing_estimate();
            }
            (f64::from(flow.sender.queued()) / flow.pacing, index)
        });
        let (_, index) = lingers.min_by(|a, b| a.0.total_cmp(&b.0))?;
        self.subflows[index].has_room().then_some(index)
    }

    /// Gives a subflow a burst.
    fn give(&mut self, now_ns: u64, index: usize) {
        let left = (self.window - (self.next - self.una).min(self.window)).max(1);
        let burst = (BURST_BYTES / self.segment_bytes).clamp(1, left);
        let flow = &mut self.subflows[index];
        let (held, given) = (f64::from(flow.sender.queued()), f64::from(burst));
        let pacing = flow.sender.pacing_estimate();
        flow.pacing = (flow.pacing * held + pacing * given) / (held + given);
        for _ in 0..burst {
            if !self.has_data() || !self.subflows[index].has_room() {
                return;
            }
            let data = self.again.pop_front().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            if data >= self.una {
                self.subflows[index].take(now_ns, data);
            }
        }
    }

    /// Nothing was acknowledged for long (`__mptcp_retrans`): an idle subflow sends what is first
    /// once more, and what silent subflows hold goes to others.
    fn on_timeout(&mut self) {
        for index in 0..self.subflows.len() {
            let others = self.subflows.iter().enumerate();
            let others = others
                .filter(|(other, flow)| *other != index && !flow.stale)
                .count();
            let flow = &mut self.subflows[index];
            let silent = flow.sender.queued() > 0 && flow.sender.una() == flow.seen;
            flow.silent = if silent { flow.silent + 1 } else { 0 };
            flow.seen = flow.sender.una();
            if flow.silent >= STALE_TIMEOUTS && others > 0 && !flow.stale {
                flow.stale = true;
                let held: Vec<u32> = flow.mapped.iter().copied().collect();
                self.reinject(held.into_iter());
            }
        }
        let idle = |flow: &Subflow| !flow.stale && flow.sender.queued() == 0;
        if self.subflows.iter().any(idle) {
            let end = (self.una + REINJECTED_BYTES / self.segment_bytes).min(self.next);
            self.reinject(self.una..end);
        }
    }

    fn reinject(&mut self, segments: impl Iterator<Item = u32>) {
        for data in segments {
            if data >= self.una && !self.again.contains(&data) {
                self.again.push_back(data);
                self.reinjected += 1;
            }
        }
    }

    /// The longest timeout of a subflow that has something (`mptcp_timeout_from_subflow`).
    fn arm(&mut self, now_ns: u64) {
        let flows = self.subflows.iter().filter(|flow| flow.sender.queued() > 0);
        let longest = flows.map(|flow| flow.sender.timeout_ns()).max();
        self.timer_ns = longest
            .filter(|_| self.una < self.next)
            .map(|wait_ns| now_ns + wait_ns);
    }

    fn emit(&self, now_ns: u64, index: usize, segment: u32, out: &mut Outbox) {
        let body = Body::Data {
            segment,
            stamp: Sender::clock(now_ns),
            echo: self.subflows[index].echo,
            sent_ns: now_ns,
        };
        let bytes = self.segment_bytes + TCP_HEADERS + SIGNAL_BYTES;
        out.push((self.address.data, self.packet(now_ns, index, bytes, body)));
    }

    fn acknowledge(&self, now_ns: u64, index: usize, mut ack: Ack, out: &mut Outbox) {
        ack.count = ack.count.min(BLOCKS);
        ack.data_next = self.expected;
        let bytes = ack.tcp_bytes() + ACK_SIGNAL_BYTES;
        let packet = self.packet(now_ns, index, bytes, Body::Ack(ack));
        out.push((back(self.address.data), packet));
    }

    fn packet(&self, now_ns: u64, index: usize, bytes: u32, body: Body) -> Packet {
        Packet {
            flow: self.address.flow,
            use_count: self.address.use_count,
            subflow: u8::try_from(index).unwrap_or(u8::MAX),
            bytes,
            upper: Upper::Tcp,
            clock: Sender::clock(now_ns),
            ecn: Ecn::NotEct,
            reduced: false,
            body,
        }
    }
}

impl Subflow {
    /// Whether its send buffer takes a segment more.
    fn has_room(&self) -> bool {
        let most = (BUFFERED_WINDOWS * self.sender.cwnd()).max(BUFFERED_MIN);
        self.sender.queued() < most
    }

    fn take(&mut self, now_ns: u64, data: u32) {
        self.mapped.push_back(data);
        self.sender.offer(now_ns, 1);
    }
}
