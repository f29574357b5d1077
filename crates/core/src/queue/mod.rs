//! The ingress queue: the only place where inner packets wait.
//!
//! FQ-CoDel (RFC 8290) over [`FLOW_BUCKETS`] buckets, with late binding. The head of a bucket can
//! be looked at and left there while no path suits it. Other buckets go on. CoDel (RFC 8289) judges
//! a packet only when it leaves. Invariant: `bytes` is the sum of the bytes in all buckets, and
//! every bucket that holds packets is in exactly one of the two lists.

mod tuning;

pub(crate) use tuning::LIMIT_PACKETS;

use crate::hold::{Limits, Victim};
use crate::schedule::FLOW_BUCKETS;
use bytes::BytesMut;
use ropewalk_aqm::{CoDel, Verdict};
pub use ropewalk_types::mark_ce;
use ropewalk_types::{Duration, Ecn, Instant, Rate};
use ropewalk_wire::HEADROOM;
use std::collections::VecDeque;
use tuning::{
    BACKLOG_BYTES, CLUMP_RTTVARS, DROP_BATCH, HELD_DROP_BATCH, INTERVAL_MIN, LIMIT_BYTES_MAX,
    LIMIT_BYTES_MIN, LIMIT_TIME, QUANTUM, REPAIRS, REPAIRS_MAX, TARGET_MAX, TARGET_MIN,
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

#[derive(Debug, Default)]
struct Bucket {
    packets: VecDeque<Packet>,
    bytes: u64,
    deficit: i64,
    codel: CoDel,
    listed: bool,
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

/// The ingress queue of one tunnel.
#[derive(Debug)]
pub struct IngressQueue {
    buckets: Vec<Bucket>,
    /// Buckets that have just become active go first (RFC 8290 §4.2).
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    /// Set aside until the end of the round.
    skipped_new: Vec<u16>,
    skipped_old: Vec<u16>,
    bytes: u64,
    packets: usize,
    limit_bytes: u64,
    target: Duration,
    interval: Duration,
    /// Bounds of what is held in an outage.
    limits: Limits,
    held: HeldBacklog,
    stats: QueueStats,
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
    /// An empty queue for paths of unknown rate.
    #[must_use]
    pub fn new() -> Self {
        let mut buckets = Vec::new();
        buckets.resize_with(FLOW_BUCKETS, Bucket::default);
        Self {
            buckets,
            new: VecDeque::new(),
            old: VecDeque::new(),
            skipped_new: Vec::new(),
            skipped_old: Vec::new(),
            bytes: 0,
            packets: 0,
            limit_bytes: LIMIT_BYTES_MIN,
            target: TARGET_MIN,
            interval: INTERVAL_MIN,
            limits: Limits::default(),
            held: HeldBacklog::default(),
            stats: QueueStats::default(),
        }
    }

    /// Follows the paths. The sum of their rates, their longest round trip with its largest
    /// variation, and the time for repairs decide CoDel's target and interval and the byte limit.
    /// Where round trips vary, acknowledgements and so packets come in clumps. A clump that waits
    /// is not a standing queue.
    pub fn set_paths(&mut self, sum: Rate, rtt: Duration, rttvar: Duration, repair: Duration) {
        let repairs = (repair * REPAIRS).min(REPAIRS_MAX);
        self.limit_bytes = sum
            .bytes_in(LIMIT_TIME + repairs)
            .clamp(LIMIT_BYTES_MIN, LIMIT_BYTES_MAX);
        // RFC 8289 §4.4: below a few Mbit/s even two packets take longer than the target.
        let two_packets = sum.time_for(2 * QUANTUM.unsigned_abs());
        let target = (rtt / 2).max(two_packets);
        self.target = target.clamp(TARGET_MIN, TARGET_MAX)
            + (rttvar * CLUMP_RTTVARS).min(TARGET_MAX)
            + repairs / 2;
        self.interval = INTERVAL_MIN.max(rtt + repairs + self.target);
    }

    /// Sets the bounds of what is held in an outage.
    pub const fn set_hold_limits(&mut self, limits: Limits) {
        self.limits = limits;
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
        self.buckets[usize::from(flow)].bytes
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Takes a packet in. When the queue is full the fattest flow pays (RFC 8290 §4.1.3).
    pub fn push(&mut self, packet: Packet) {
        let flow = packet.flow;
        if self.held.now {
            self.expire(packet.arrived, flow);
        }
        let bucket = &mut self.buckets[usize::from(flow)];
        self.stats.enqueued += 1;
        self.bytes += packet.len() as u64;
        self.packets += 1;
        bucket.bytes += packet.len() as u64;
        bucket.packets.push_back(packet);
        if !bucket.listed {
            bucket.listed = true;
            bucket.deficit = QUANTUM;
            self.new.push_back(flow);
        }
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
        while self.bytes > self.limit_bytes + held || self.packets > LIMIT_PACKETS {
            self.drop_from_fattest();
        }
    }

    /// Drops what has become too old at the front of a flow that gets a packet.
    fn expire(&mut self, now: Instant, flow: u16) {
        while let Some(oldest) = self.buckets[usize::from(flow)].packets.front()
            && now.since(oldest.arrived) > self.limits.age_max(oldest.tcp)
        {
            self.take(flow, Victim::Oldest);
            self.stats.held_old += 1;
        }
    }

    /// Drops what has become too old in all flows, so that an outage that lasts costs no memory.
    pub fn expire_all(&mut self, now: Instant) {
        let listed: Vec<u16> = self.new.iter().chain(&self.old).copied().collect();
        for flow in listed {
            self.expire(now, flow);
        }
    }

    /// Drops what is too much to be held; `flow` has just got a packet.
    fn keep_limits(&mut self, flow: u16) {
        while self.buckets[usize::from(flow)].bytes > self.limits.flow_bytes_max {
            self.drop_held(flow);
        }
        while self.bytes > self.limits.bytes_max || self.packets > self.limits.packets_max {
            let listed = self.new.iter().chain(&self.old);
            let Some(&fattest) = listed.max_by_key(|&&f| self.buckets[usize::from(f)].bytes) else {
                return;
            };
            // Several at once, so that a flood does not search the list for every packet.
            for _ in 0..HELD_DROP_BATCH {
                self.drop_held(fattest);
            }
        }
    }

    fn drop_held(&mut self, flow: u16) {
        let newest = self.buckets[usize::from(flow)].packets.back();
        let Some(tcp) = newest.map(|packet| packet.tcp) else {
            return;
        };
        self.take(flow, Limits::victim(tcp));
        self.stats.held_full += 1;
    }

    /// Takes a packet out of a flow while everything is held.
    fn take(&mut self, flow: u16, victim: Victim) {
        let bucket = &mut self.buckets[usize::from(flow)];
        let packet = match victim {
            Victim::Newest => bucket.packets.pop_back(),
            Victim::Oldest => bucket.packets.pop_front(),
        };
        if let Some(packet) = packet {
            let bytes = packet.len() as u64;
            bucket.bytes -= bytes;
            self.bytes -= bytes;
            self.packets -= 1;
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

    fn drop_from_fattest(&mut self) {
        let listed = self.new.iter().chain(&self.old);
        let Some(&fattest) = listed.max_by_key(|&&f| self.buckets[usize::from(f)].bytes) else {
            return;
        };
        // Many at once, so that a flood does not search the list for every packet.
        let goal = self.buckets[usize::from(fattest)].bytes / 2;
        for _ in 0..DROP_BATCH {
            let bucket = &mut self.buckets[usize::from(fattest)];
            let Some(packet) = bucket.packets.pop_front() else {
                break;
            };
            let bytes = packet.len() as u64;
            bucket.bytes -= bytes;
            self.bytes -= bytes;
            self.packets -= 1;
            self.stats.dropped_full += 1;
            let left = bucket.bytes;
            self.release(packet.arrived, packet.arrived, bytes);
            if left <= goal {
                break;
            }
        }
    }

    /// The flow whose turn it is, if any packet waits.
    pub fn turn(&mut self) -> Option<u16> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            let flow = *list.front()?;
            let bucket = &mut self.buckets[usize::from(flow)];
            if bucket.packets.is_empty() {
                list.pop_front();
                if from_new {
                    // A flow cannot jump the queue by sending one packet at a time.
                    self.old.push_back(flow);
                } else {
                    bucket.listed = false;
                }
            } else if bucket.deficit <= 0 {
                bucket.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(flow);
            } else {
                return Some(flow);
            }
        }
    }

    /// How many flows have more than one full packet waiting, counted up to `max`.
    #[must_use]
    pub fn backlogged_flows(&self, max: usize) -> usize {
        let flows = self.new.iter().chain(&self.old);
        let backlogged = |flow: &&u16| self.buckets[usize::from(**flow)].bytes > BACKLOG_BYTES;
        flows.filter(backlogged).take(max).count()
    }

    /// Sets the flow whose turn it is aside for this round, its credit kept: no path suits it now.
    /// It keeps its place, so that flows do not fall behind those just served.
    pub fn skip(&mut self) {
        if let Some(flow) = self.new.pop_front() {
            self.skipped_new.push(flow);
        } else if let Some(flow) = self.old.pop_front() {
            self.skipped_old.push(flow);
        }
    }

    /// Ends a round: the flows skipped in it stand first again, in their order.
    pub fn end_round(&mut self) {
        while let Some(flow) = self.skipped_new.pop() {
            self.new.push_front(flow);
        }
        while let Some(flow) = self.skipped_old.pop() {
            self.old.push_front(flow);
        }
    }

    /// Bytes of the head packet of `flow`, if one waits.
    #[must_use]
    pub fn head(&self, flow: u16) -> Option<usize> {
        self.buckets[usize::from(flow)]
            .packets
            .front()
            .map(Packet::len)
    }

    /// Whether the head packet of `flow` is TCP; false when none waits.
    #[must_use]
    pub fn is_head_tcp(&self, flow: u16) -> bool {
        let head = self.buckets[usize::from(flow)].packets.front();
        head.is_some_and(|packet| packet.tcp)
    }

    /// Takes the head packet of `flow` out, after CoDel has had its say. `None` when CoDel
    /// dropped it: ask for the turn again.
    pub fn pop(&mut self, now: Instant, flow: u16) -> Option<Packet> {
        let bucket = &mut self.buckets[usize::from(flow)];
        let mut packet = bucket.packets.pop_front()?;
        let bytes = packet.len() as u64;
        bucket.bytes -= bytes;
        self.bytes -= bytes;
        self.packets -= 1;
        let age = now.since(packet.arrived);
        if self.release(now, packet.arrived, bytes) {
            let bucket = &mut self.buckets[usize::from(flow)];
            if age > self.limits.age_max(packet.tcp) {
                self.stats.held_old += 1;
                return None;
            }
            bucket.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
            self.stats.replayed += 1;
            self.stats.dequeued += 1;
            return Some(packet);
        }
        // Those behind held ones are not to blame for their wait.
        let sojourn = if self.held.bytes > 0 {
            Duration::ZERO
        } else {
            now.since(packet.arrived.max(self.held.replayed))
        };
        let bucket = &mut self.buckets[usize::from(flow)];
        match bucket
            .codel
            .judge(now, sojourn, (self.target, self.interval), bucket.bytes)
        {
            Verdict::Pass => {}
            Verdict::Congested if matches!(packet.ecn, Ecn::Ect0 | Ecn::Ect1) => {
                self.stats.marked += 1;
                packet.mark_ce();
            }
            Verdict::Congested | Verdict::Drop => {
                self.stats.dropped_codel += 1;
                return None;
            }
        }
        bucket.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        self.stats.dequeued += 1;
        Some(packet)
    }
}

#[cfg(test)]
mod tests;
