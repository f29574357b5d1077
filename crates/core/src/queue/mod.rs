//! The ingress queue: the only place where inner packets wait.
//!
//! FQ-CoDel (RFC 8290) over [`FLOW_BUCKETS`] buckets, with late binding. The head of a bucket can
//! be looked at and left there while no path suits it. Other buckets go on. CoDel (RFC 8289) judges
//! a packet only when it leaves. The turns of buckets are those of `ropewalk-aqm`. Invariant: `bytes`
//! is the sum of the bytes in all buckets.

mod tuning;

pub(crate) use tuning::LIMIT_PACKETS;

use crate::hold::{Limits, Victim};
use crate::schedule::FLOW_BUCKETS;
use bytes::BytesMut;
use ropewalk_aqm::tuning::QUANTUM;
use ropewalk_aqm::{FlowQueues, Queued, Verdict};
pub use ropewalk_types::mark_ce;
use ropewalk_types::{Duration, Ecn, Instant, Rate};
use ropewalk_wire::HEADROOM;
use tuning::{
    ACCELERATE_BYTES_MIN, ACCELERATE_TIME, BACKLOG_BYTES, CLUMP_RTTVARS, DROP_BATCH,
    HELD_DROP_BATCH, INTERVAL_MIN, LIMIT_BYTES_MAX, LIMIT_BYTES_MIN, LIMIT_TIME, PACKET_CHARGE,
    QUEUED_MAX, REPAIRS, REPAIRS_MAX, ROOM_MIN, SHARE_BYTES_MIN, SHARES_MAX, TARGET_MAX,
    TARGET_MIN,
};

/// One inner packet on its way in.
#[derive(Debug)]
pub struct Packet {
    /// [`HEADROOM`] free bytes, then the IP packet.
    pub data: BytesMut,
    /// Flow bucket.
    pub flow: u16,
    /// The upper-layer checksum holds only the pseudo-header sum.
    pub checksum_partial: bool,
    /// Its receiver waits for order itself: a TCP segment with data, or one that opens or ends a
    /// connection.
    pub in_order: bool,
    /// It is TCP, which repairs its losses itself.
    pub tcp: bool,
    /// It is kept here, and its sender is told that it has arrived: a drop tells the sender nothing.
    pub promised: bool,
    /// Service class.
    pub class: u8,
    /// ECN field of the inner header.
    pub ecn: Ecn,
    /// Differentiated services codepoint.
    pub dscp: u8,
    /// When it arrived at the ingress.
    pub arrived: Instant,
}

impl Packet {
    /// Bytes of the inner IP packet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len() - HEADROOM
    }

    /// Whether there is no IP packet at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.len() <= HEADROOM
    }

    /// The same packet once more.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            data: self.data.clone(),
            ..*self
        }
    }

    /// Sets the ECN field of the inner header to "congestion experienced".
    fn mark_ce(&mut self) {
        mark_ce(&mut self.data[HEADROOM..]);
        self.ecn = Ecn::Ce;
    }
}

impl Queued for Packet {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Counters of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets that entered.
    pub enqueued: u64,
    /// Packets that left towards a path.
    pub dequeued: u64,
    /// Packets CoDel dropped.
    pub dropped_codel: u64,
    /// Packets dropped because the queue was full.
    pub dropped_full: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets that were held in an outage and left after it.
    pub replayed: u64,
    /// Packets dropped in an outage because too much was held.
    pub held_full: u64,
    /// Packets dropped because they had been held for too long.
    pub held_old: u64,
}

/// The longest delays of the usable paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// Smallest round trip of a path.
    pub rtt: Duration,
    /// Standing queue of a path: by how much its round trip is longer than its smallest one.
    pub queued: Duration,
    /// Smoothed round trip of a path, queue included.
    pub srtt: Duration,
    /// Variation of a path's round trip.
    pub rttvar: Duration,
    /// What repairs add to a round trip.
    pub repair: Duration,
}

/// The ingress queue of one tunnel.
#[derive(Debug)]
pub struct IngressQueue {
    buckets: FlowQueues<Packet>,
    bytes: u64,
    packets: usize,
    /// Most memory that may be taken, bytes.
    room: u64,
    limit_bytes: u64,
    /// Bytes that all flows together should have waiting whose senders are acknowledged here.
    share_bytes: u64,
    target: Duration,
    interval: Duration,
    /// Bounds of what is held in an outage.
    limits: Limits,
    held: HeldBacklog,
    stats: QueueStats,
    /// What was dropped, for somebody who wants to know.
    dropped: Option<Vec<Packet>>,
}

/// What of the queue is held, or was until lately: packets that arrived before the end of the
/// last outage. CoDel has no say in them, and those behind them are not to blame for their wait.
#[derive(Clone, Copy, Debug, Default)]
struct HeldBacklog {
    /// In an outage.
    now: bool,
    /// Bytes that still wait of what an outage left.
    bytes: u64,
    /// When the last outage ended.
    until: Instant,
    /// When the last of what it left had gone.
    replayed: Instant,
}

impl Default for IngressQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl IngressQueue {
    /// Gives the memory of flows back in which nothing waits.
    pub fn forget_idle(&mut self) {
        self.buckets.forget();
    }

    /// An empty queue for paths of unknown rate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: FlowQueues::new(FLOW_BUCKETS),
            bytes: 0,
            packets: 0,
            room: u64::MAX,
            limit_bytes: LIMIT_BYTES_MIN,
            share_bytes: ACCELERATE_BYTES_MIN,
            target: TARGET_MIN,
            interval: INTERVAL_MIN,
            limits: Limits::default(),
            held: HeldBacklog::default(),
            stats: QueueStats::default(),
            dropped: None,
        }
    }

    /// Follows the paths. The sum of their rates and their [`Delays`] decide CoDel's target and
    /// interval and the byte limit. Where round trips vary, acknowledgements and so packets come in
    /// clumps. A clump that waits is not a standing queue. Where others fill a path's queue, a
    /// sender's round trip is that of the full queue.
    pub fn set_paths(&mut self, sum: Rate, delays: Delays) {
        let repairs = (delays.repair * REPAIRS).min(REPAIRS_MAX);
        self.limit_bytes = sum
            .bytes_in(LIMIT_TIME + repairs)
            .clamp(LIMIT_BYTES_MIN, LIMIT_BYTES_MAX);
        self.share_bytes = sum.bytes_in(ACCELERATE_TIME).max(ACCELERATE_BYTES_MIN);
        // RFC 8289 §4.4: below a few Mbit/s even two packets take longer than the target.
        let two_packets = sum.time_for(2 * QUANTUM.unsigned_abs());
        let target = (delays.rtt / 2).max(two_packets);
        self.target = target.clamp(TARGET_MIN, TARGET_MAX)
            + (delays.rttvar * CLUMP_RTTVARS).min(TARGET_MAX)
            + repairs / 2
            + delays.queued.min(QUEUED_MAX) / 2;
        let round_trip = delays.srtt.min(delays.rtt + QUEUED_MAX).max(delays.rtt);
        self.interval = INTERVAL_MIN.max(round_trip + repairs + self.target);
    }

    /// Sets the bounds of what is held in an outage.
    pub const fn set_hold_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Bounds the memory that all packets take from now on, bytes; 32 KiB are always allowed. What is beyond goes
    /// when the next packet comes.
    pub fn set_room(&mut self, bytes: u64) {
        self.room = bytes.max(ROOM_MIN);
    }

    /// Memory that the packets take, bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.bytes + self.packets as u64 * PACKET_CHARGE
    }

    /// An outage begins: what waits and what comes is held.
    pub const fn hold(&mut self) {
        self.held.now = true;
    }

    /// It is over: what is held leaves as paths take it.
    pub const fn replay(&mut self, now: Instant) {
        if !self.held.now {
            return;
        }
        self.held.now = false;
        self.held.bytes = self.bytes;
        self.held.until = now;
        self.held.replayed = now;
    }

    /// Bytes that are held, or were and still wait.
    #[must_use]
    pub const fn held_bytes(&self) -> u64 {
        if self.held.now {
            self.bytes
        } else {
            self.held.bytes
        }
    }

    /// Bytes waiting.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets waiting.
    #[must_use]
    pub const fn packets(&self) -> usize {
        self.packets
    }

    /// Bytes waiting in one bucket.
    #[must_use]
    pub fn flow_bytes(&self, flow: u16) -> u64 {
        self.buckets.bytes(flow)
    }

    /// Bytes that a flow should have waiting whose sender is slowed by this queue: its share of what
    /// all may have waiting.
    #[must_use]
    pub fn flow_share(&self) -> u64 {
        let flows = self.backlogged_flows(SHARES_MAX).max(1) as u64;
        (self.share_bytes / flows).max(SHARE_BYTES_MIN)
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Keeps what is dropped from now on, for [`Self::take_dropped`].
    pub fn keep_dropped(&mut self) {
        self.dropped.get_or_insert_default();
    }

    /// The packets that were dropped since the last call, if they are kept.
    pub fn take_dropped(&mut self) -> Vec<Packet> {
        self.dropped
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn drop_packet(&mut self, packet: Packet) {
        if let Some(dropped) = &mut self.dropped {
            dropped.push(packet);
        }
    }

    /// Takes a packet in. When the queue is full the fattest flow pays (RFC 8290 §4.1.3).
    pub fn push(&mut self, packet: Packet) {
        let flow = packet.flow;
        if self.held.now {
            self.expire(packet.arrived, flow);
        }
        self.stats.enqueued += 1;
        self.bytes += packet.bytes();
        self.packets += 1;
        self.buckets.push(flow, packet);
        if self.held.now {
            self.keep_limits(flow);
            return;
        }
        // What an outage left has bounds of its own, and is not to pay for what comes after it.
        let held = if self.held.bytes > 0 {
            self.limits.bytes_max
        } else {
            0
        };
        while self.bytes > self.limit_bytes + held
            || self.packets > LIMIT_PACKETS
            || self.memory() > self.room
        {
            if !self.drop_from_fattest() {
                self.count_nothing();
                return;
            }
        }
    }

    /// Nothing waits, so what the counts say is wrong. They must not keep the thread in a loop.
    const fn count_nothing(&mut self) {
        (self.bytes, self.packets) = (0, 0);
    }

    /// Drops what has become too old at the front of a flow that gets a packet.
    fn expire(&mut self, now: Instant, flow: u16) {
        while let Some(oldest) = self.buckets.front(flow)
            && now.since(oldest.arrived) > self.limits.age_max(oldest.tcp)
        {
            self.take(flow, Victim::Oldest);
            self.stats.held_old += 1;
        }
    }

    /// Drops what has become too old in all flows, so that an outage that lasts costs no memory.
    pub fn expire_all(&mut self, now: Instant) {
        let listed: Vec<u16> = self.buckets.listed().collect();
        for flow in listed {
            self.expire(now, flow);
        }
    }

    /// Drops what is too much to be held; `flow` has just got a packet.
    fn keep_limits(&mut self, flow: u16) {
        while self.buckets.bytes(flow) > self.limits.flow_bytes_max && self.drop_held(flow) {}
        while self.bytes > self.limits.bytes_max
            || self.packets > self.limits.packets_max
            || self.memory() > self.room
        {
            let fattest = self.buckets.fattest();
            // Several at once, so that a flood does not search the list for every packet.
            let drop = |flow| {
                (0..HELD_DROP_BATCH)
                    .filter(|_| self.drop_held(flow))
                    .count()
            };
            if fattest.map_or(0, drop) == 0 {
                self.count_nothing();
                return;
            }
        }
    }

    /// Drops a packet of a flow while everything is held; false when it has none.
    fn drop_held(&mut self, flow: u16) -> bool {
        let newest = self.buckets.back(flow);
        let Some(tcp) = newest.map(|packet| packet.tcp) else {
            return false;
        };
        self.take(flow, Limits::victim(tcp));
        self.stats.held_full += 1;
        true
    }

    /// Takes a packet out of a flow while everything is held.
    fn take(&mut self, flow: u16, victim: Victim) {
        let packet = match victim {
            Victim::Newest => self.buckets.pop_back(flow),
            Victim::Oldest => self.buckets.pop_front(flow),
        };
        if let Some(packet) = packet {
            self.bytes -= packet.bytes();
            self.packets -= 1;
            self.drop_packet(packet);
        }
    }

    /// Counts a packet of what an outage left as gone, if it is one.
    fn release(&mut self, now: Instant, arrived: Instant, bytes: u64) -> bool {
        if self.held.bytes == 0 || arrived > self.held.until {
            return false;
        }
        self.held.bytes = self.held.bytes.saturating_sub(bytes);
        if self.held.bytes == 0 {
            self.held.replayed = now;
        }
        true
    }

    /// Drops of the flow that has most waiting; false when nothing waits.
    fn drop_from_fattest(&mut self) -> bool {
        let Some(fattest) = self.buckets.fattest() else {
            return false;
        };
        // Many at once, so that a flood does not search the list for every packet.
        let goal = self.buckets.bytes(fattest) / 2;
        let mut dropped = false;
        for _ in 0..DROP_BATCH {
            let Some(packet) = self.buckets.pop_front(fattest) else {
                break;
            };
            dropped = true;
            let bytes = packet.bytes();
            self.bytes -= bytes;
            self.packets -= 1;
            self.stats.dropped_full += 1;
            self.release(packet.arrived, packet.arrived, bytes);
            self.drop_packet(packet);
            if self.buckets.bytes(fattest) <= goal {
                break;
            }
        }
        dropped
    }

    /// The flow whose turn it is, if any packet waits.
    pub fn turn(&mut self) -> Option<u16> {
        self.buckets.turn()
    }

    /// How many flows have more than one full packet waiting, counted up to `max`.
    #[must_use]
    pub fn backlogged_flows(&self, max: usize) -> usize {
        let backlogged = |flow: &u16| self.buckets.bytes(*flow) > BACKLOG_BYTES;
        self.buckets.listed().filter(backlogged).take(max).count()
    }

    /// How many of the next `listed` flows have more than one full packet waiting.
    #[must_use]
    pub fn backlogged_of_next(&self, listed: usize) -> usize {
        let backlogged = |flow: &u16| self.buckets.bytes(*flow) > BACKLOG_BYTES;
        self.buckets
            .listed()
            .take(listed)
            .filter(backlogged)
            .count()
    }

    /// Sets the flow whose turn it is aside for this round, its credit kept: no path suits it now.
    /// It keeps its place, so that flows do not fall behind those just served.
    pub fn skip(&mut self) {
        self.buckets.skip();
    }

    /// Ends a round: the flows skipped in it stand first again, in their order.
    pub fn end_round(&mut self) {
        self.buckets.end_round();
    }

    /// Bytes of the head packet of `flow`, if one waits.
    #[must_use]
    pub fn head(&self, flow: u16) -> Option<usize> {
        self.buckets.front(flow).map(Packet::len)
    }

    /// Whether the head packet of `flow` is TCP; false when none waits.
    #[must_use]
    pub fn is_head_tcp(&self, flow: u16) -> bool {
        let head = self.buckets.front(flow);
        head.is_some_and(|packet| packet.tcp)
    }

    /// Takes the head packet of `flow` out, after CoDel has had its say. `None` when CoDel
    /// dropped it: ask for the turn again.
    pub fn pop(&mut self, now: Instant, flow: u16) -> Option<Packet> {
        let mut packet = self.buckets.pop_front(flow)?;
        let bytes = packet.bytes();
        self.bytes -= bytes;
        self.packets -= 1;
        let age = now.since(packet.arrived);
        if self.release(now, packet.arrived, bytes) {
            if age > self.limits.age_max(packet.tcp) {
                self.stats.held_old += 1;
                self.drop_packet(packet);
                return None;
            }
            self.buckets.charge(flow, bytes);
            self.stats.replayed += 1;
            self.stats.dequeued += 1;
            return Some(packet);
        }
        // Those behind held ones are not to blame for their wait.
        let sojourn = if self.held.bytes > 0 || packet.promised {
            Duration::ZERO
        } else {
            now.since(packet.arrived.max(self.held.replayed))
        };
        let parameters = (self.target, self.interval);
        match self.buckets.judge(now, flow, sojourn, parameters) {
            Verdict::Pass => {}
            Verdict::Congested if matches!(packet.ecn, Ecn::Ect0 | Ecn::Ect1) => {
                self.stats.marked += 1;
                packet.mark_ce();
            }
            Verdict::Congested | Verdict::Drop => {
                self.stats.dropped_codel += 1;
                self.drop_packet(packet);
                return None;
            }
        }
        self.buckets.charge(flow, bytes);
        self.stats.dequeued += 1;
        Some(packet)
    }
}

#[cfg(test)]
mod tests;
