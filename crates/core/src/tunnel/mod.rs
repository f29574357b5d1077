//! One tunnel between two gateways, both directions, as a state machine without I/O.
//!
//! Inner packets enter with [`Tunnel::handle_inner`], wait in the ingress queue until a path can
//! take them, and leave with [`Tunnel::poll_transmit`]. Datagrams of the peer enter with
//! [`Tunnel::handle_datagram`] and leave in order with [`Tunnel::poll_inner`]. The caller keeps the
//! transports: before each round it reports every path with [`Tunnel::update_path`]. Invariant: a
//! packet is either in the queue, handed to a path, or counted as dropped.

mod buffers;
mod code;
mod copies;
mod egress;
mod footprint;
mod fragment;
mod headers;
mod ingress;
mod load;
mod observe;
mod outage;
mod paths;
mod repair;
mod report;
mod rescue;
mod rest;
mod send_options;
mod succeed;
mod too_big;
mod tuning;

pub use footprint::Footprint;
pub use observe::Observer;
pub use paths::{PathState, PathStats};
pub use send_options::{Order, SendOptions};
use tuning::FLOWS_COUNTED;
pub use tuning::{INNER_MTU_USUAL, SEND_BUFFER_MAX};

use crate::hold::freeze::{Freezer, Taken};
use crate::hold::{Hold, HoldStats, Limits};
use crate::path::PathConfig;
use crate::protect::Classes;
use crate::queue::{IngressQueue, QueueStats};
use crate::reorder::{Inner, Reorder, ReorderStats};
use crate::schedule::{FLOW_BUCKETS, Policy, Scheduler, SchedulerKind};
use bytes::Bytes;
use egress::Egress;
use ingress::Ingress;
use observe::Observed;
use paths::Paths;
use rest::Rest;
use ropewalk_headers::{PacketSizes, limit_segments};
use ropewalk_types::{Duration, Instant, PacketInfo, PathId, PathSnapshot, Random, Rate};
use std::sync::Arc;
use too_big::TooBig;

/// Settings of one side of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Scheduler when sending.
    pub scheduler: SchedulerKind,
    /// Sends a probe on a path that carried nothing for this long. While the whole tunnel is idle,
    /// one path after the other is probed four times as often. `None` leaves that to the peer. One
    /// side of a tunnel is enough: the other answers with a report.
    pub probe_interval: Option<Duration>,
    /// What is protected against loss, and how.
    pub classes: Arc<Classes>,
    /// What is kept while no path is up.
    pub hold: Limits,
    /// What published systems do otherwise when sending.
    pub send: SendOptions,
}

/// A datagram bound to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The path that carries it.
    pub path: PathId,
    /// The datagram.
    pub datagram: Bytes,
    /// Differentiated services codepoint for the outer header.
    pub dscp: u8,
    /// A probe of a path that has fallen silent: it has to leave although the window is full.
    pub urgent: bool,
}

/// Counters of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelStats {
    /// Inner packets and bytes bound to paths.
    pub tx_packets: u64,
    /// Inner bytes bound to paths.
    pub tx_bytes: u64,
    /// Inner packets delivered at this egress.
    pub rx_packets: u64,
    /// Inner bytes delivered at this egress.
    pub rx_bytes: u64,
    /// Datagrams that did not parse.
    pub malformed: u64,
    /// Packets of the peer whose headers could not be restored: the reference is not known.
    pub headers_unknown: u64,
    /// Bytes that compressed headers saved, each packet once.
    pub headers_saved: u64,
    /// Inner packets that were not IP or too long.
    pub invalid_inner: u64,
    /// UDP packets that do not fit a datagram and forbid fragments.
    pub too_big: u64,
    /// Datagrams the peer missed, or may have missed, and that were sent again.
    pub repairs_sent: u64,
    /// Datagrams that should have been sent again and were not: too many waited, or no path takes
    /// one of that size any more.
    pub repairs_dropped: u64,
    /// Repair symbols of packets sent ahead of losses.
    pub coded_sent: u64,
    /// Packets of the peer that were lost and recovered from repair symbols.
    pub recovered: u64,
    /// Datagrams of the peer that were missing and asked for.
    pub repairs_asked: u64,
    /// Packets of the peer that were overdue and asked for.
    pub rescues_asked: u64,
    /// Packets that the peer awaited and that were sent again at once.
    pub rescued: u64,
    /// Bytes of all datagrams that carried inner packets for the first time.
    pub data_bytes: u64,
    /// Bytes of what protection added: copies, repair symbols, repairs.
    pub protection_bytes: u64,
    /// Fragments dropped: incomplete in time, or contradictory.
    pub fragments_dropped: u64,
    /// Inner packets that a full send buffer dropped.
    pub buffer_drops: u64,
    /// Outages of all paths.
    pub hold: HoldStats,
    /// The ingress queue.
    pub queue: QueueStats,
    /// The egress.
    pub reorder: ReorderStats,
}

impl TunnelStats {
    /// An inner packet of `bytes` was bound to so many paths, at least one: all but one are copies.
    fn count_bound(&mut self, bytes: u64, paths: usize) {
        let datagram = bytes + ropewalk_wire::DATA_HEADER as u64;
        self.data_bytes += datagram;
        self.protection_bytes += datagram * (paths as u64 - 1);
    }
}

/// One tunnel.
#[derive(Debug)]
pub struct Tunnel {
    paths: Paths,
    ingress: Ingress,
    egress: Egress,
    hold: Hold,
    freezer: Freezer,
    too_big: TooBig,
    flow_secret: u64,
    stats: TunnelStats,
    now: Instant,
    observed: Observed,
    rest: Rest,
}

impl Tunnel {
    /// A tunnel without paths. `seed` decides the flow hash.
    #[must_use]
    pub fn new(config: TunnelConfig, seed: u64) -> Self {
        let scheduler = Scheduler::new(config.scheduler);
        Self::with(&config, seed, scheduler)
    }

    /// [`Tunnel::new`] with a scheduler of the caller's instead of the configured one.
    #[must_use]
    pub fn with_policy(config: &TunnelConfig, seed: u64, policy: Box<dyn Policy>) -> Self {
        Self::with(config, seed, Scheduler::with_policy(policy))
    }

    fn with(config: &TunnelConfig, seed: u64, scheduler: Scheduler) -> Self {
        Self {
            paths: Paths::new(config.probe_interval, config.classes.redundancy),
            ingress: Ingress::with(
                IngressQueue::new(),
                scheduler,
                Arc::clone(&config.classes),
                config.hold,
                config.send,
            ),
            egress: Egress::new(),
            hold: Hold::default(),
            freezer: Freezer::new(config.hold, config.send.accelerate),
            too_big: TooBig::default(),
            flow_secret: Random::new(seed).next_u64(),
            stats: TunnelStats::default(),
            now: Instant::ZERO,
            observed: Observed::default(),
            rest: Rest::default(),
        }
    }

    /// Adds a path, or replaces the one with the same identifier; its sequence starts anew at
    /// both ends.
    pub fn add_path(&mut self, now: Instant, id: PathId, config: PathConfig) {
        self.tick(now);
        self.remove_path(now, id);
        self.paths.add(now, id, config);
    }

    /// [`Tunnel::add_path`] for a connection that takes its path back from a newer one. The peer never left it, and
    /// its numbers go on.
    pub fn take_path_back(&mut self, now: Instant, id: PathId, config: PathConfig) {
        self.add_path(now, id, config);
        self.egress.reorder.requests.on_path_taken_back(id);
    }

    /// Takes a path away.
    pub fn remove_path(&mut self, now: Instant, id: PathId) {
        self.tick(now);
        if self.paths.remove(now, id) {
            self.ingress.on_path_removed(id);
            self.egress.reorder.on_path_removed(id);
            self.egress.decoding.on_path_removed(id);
            self.reinject(now);
        }
    }

    /// How many flows have more than one full packet waiting, of those whose turn is next.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "FLOWS_COUNTED is small")]
    pub fn waiting_flows(&self) -> u8 {
        self.ingress.queue.backlogged_of_next(FLOWS_COUNTED) as u8
    }

    /// Takes the transport's report of a path in. The path's state follows from it.
    pub fn update_path(&mut self, now: Instant, id: PathId, snapshot: PathSnapshot) {
        self.tick(now);
        self.paths.update(now, id, snapshot);
        self.reinject(now);
    }

    /// Changes the user's marks of a path; nothing under way is disturbed.
    pub fn set_path_config(&mut self, id: PathId, config: PathConfig) {
        if let Some(path) = self.paths.get_mut(id) {
            path.config = config;
        }
    }

    /// The peer has started anew: its sequence numbers mean nothing any more. What is held is
    /// forgotten.
    pub fn reset_exit(&mut self) {
        let mut reorder = Reorder::new();
        reorder.requests = std::mem::take(&mut self.egress.reorder.requests);
        reorder.requests.on_peer_started();
        self.egress = Egress::with(reorder);
        if let Some(compressor) = &mut self.ingress.compressor {
            compressor.reset();
        }
    }

    /// Asks every path for a sign of life: the peer may have started anew.
    pub fn ask_all_paths(&mut self) {
        self.paths.ask_all();
    }

    /// State of a path, if it exists.
    #[must_use]
    pub fn path_state(&self, id: PathId) -> Option<PathState> {
        self.paths.get(id).map(|p| p.state())
    }

    /// Whether any path is up.
    #[must_use]
    pub fn any_up(&self) -> bool {
        self.paths.iter().any(|(_, p)| p.usable())
    }

    /// Scheduler in use when sending.
    #[must_use]
    pub const fn scheduler(&self) -> SchedulerKind {
        self.ingress.scheduler.kind()
    }

    /// Why the scheduler does what it does.
    #[must_use]
    pub fn scheduler_reason(&self) -> String {
        self.ingress.scheduler.reason()
    }

    /// Uses another scheduler from the next packet on. What waits at the ingress stays there.
    pub fn set_scheduler(&mut self, kind: SchedulerKind) {
        self.ingress.scheduler.switch(kind);
    }

    /// [`Self::set_scheduler`] with a scheduler of the caller's.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.ingress.set_scheduler(Scheduler::with_policy(policy));
    }

    /// Tells `observer` of every datagram, and of every packet that the ingress queue drops, from now on.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.ingress.queue.keep_dropped();
        self.observed.0 = Some(observer);
    }

    /// Takes an inner packet in: [`ropewalk_wire::HEADROOM`] free bytes, then one IP packet.
    pub fn handle_inner(&mut self, now: Instant, data: bytes::BytesMut, checksum_partial: bool) {
        let ip = data.get(ropewalk_wire::HEADROOM..);
        match ip.and_then(PacketInfo::parse) {
            Some(info) => self.handle_parsed(now, data, checksum_partial, &info),
            None => {
                self.tick(now);
                self.stats.invalid_inner += 1;
            }
        }
    }

    /// [`Self::handle_inner`] of a packet that the caller has read.
    pub fn handle_parsed(
        &mut self,
        now: Instant,
        data: bytes::BytesMut,
        checksum_partial: bool,
        info: &PacketInfo,
    ) {
        self.tick(now);
        let ip = &data[ropewalk_wire::HEADROOM..];
        if ip.len() > usize::from(u16::MAX) {
            self.stats.invalid_inner += 1;
            return;
        }
        let flow = flow_bucket(info, self.flow_secret);
        let (whole, compressed) = (self.paths.whole(), self.ingress.compressor.is_some());
        if self
            .too_big
            .refuses(now, ip, (info, flow), whole, compressed)
        {
            return;
        }
        let outage = self.hold.is_outage();
        let taken = self
            .freezer
            .on_ingress(now, (ip, flow), info, checksum_partial, outage);
        if taken != Taken::Answered {
            self.enqueue(now, data, checksum_partial, info, taken == Taken::Kept);
        }
    }

    fn enqueue(
        &mut self,
        now: Instant,
        data: bytes::BytesMut,
        checksum_partial: bool,
        info: &PacketInfo,
        promised: bool,
    ) {
        // What is held for long must not keep the large block in memory that it came in.
        let data = if self.hold.is_outage() {
            bytes::BytesMut::from(&data[..])
        } else {
            data
        };
        let ip = &data[ropewalk_wire::HEADROOM..];
        let flow = flow_bucket(info, self.flow_secret);
        self.rest.busy(now);
        self.ingress.push(crate::queue::Packet {
            in_order: info.tcp_in_order(ip),
            tcp: info.is_tcp(),
            promised,
            class: self.ingress.classes.of(info, ip.len()),
            data,
            flow,
            checksum_partial,
            ecn: info.ecn,
            dscp: info.dscp,
            arrived: now,
        });
    }

    /// Bounds the memory of packets that wait from now on, bytes: of those that wait for a path and those that wait
    /// for order together. 32 KiB are always allowed on the way to a path. What finds no room leaves out of order.
    /// Call before each packet: either kind may take what the other one leaves.
    pub fn set_room(&mut self, bytes: u64) {
        let (queue, reorder) = (&mut self.ingress.queue, &mut self.egress.reorder);
        queue.set_room(bytes.saturating_sub(reorder.memory()));
        reorder.set_room(bytes.saturating_sub(queue.memory()));
    }

    /// Memory of packets that wait here, for a path or for order, bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.ingress.queue.memory() + self.egress.reorder.memory()
    }

    /// Binds waiting packets to paths that have room, and appends what is due besides (reports,
    /// probes). At most `max` packets; returns how many datagrams were appended.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<Outgoing>, max: usize) -> usize {
        self.tick(now);
        let before = out.len();
        self.follow_outage(now);
        self.follow_freeze(now);
        if self.hold.since().is_some() {
            self.poll_outage(now, out);
            self.tell_sent(now, &out[before..]);
            return out.len() - before;
        }
        if self.freezer.settles() {
            let queue = &self.ingress.queue;
            self.freezer
                .settle(now, queue.flow_share(), |bucket| queue.flow_bytes(bucket));
        }
        self.poll_requests(now, out);
        self.poll_awaited(now, out);
        self.poll_headers(now, out);
        self.poll_report(now, out);
        self.paths.poll_probes(now, out);
        self.ingress
            .schedule(now, &mut self.paths, &mut self.stats, out, max);
        self.tell_sent(now, &out[before..]);
        out.len() - before
    }

    fn tell_sent(&mut self, now: Instant, sent: &[Outgoing]) {
        let Some(observer) = &mut self.observed.0 else {
            return;
        };
        let backlog = self.ingress.waiting_bytes();
        for outgoing in sent {
            if let Some(path) = self.paths.get(outgoing.path) {
                observer.on_sent(now, outgoing, &path.snapshot, backlog);
            }
        }
        for packet in self.ingress.queue.take_dropped() {
            observer.on_dropped(now, &packet.data[ropewalk_wire::HEADROOM..]);
        }
    }

    /// The next inner packet, in order.
    pub fn poll_inner(&mut self) -> Option<Inner> {
        if let Some(written) = self.freezer.poll().or_else(|| self.too_big.poll()) {
            return Some(written);
        }
        loop {
            let inner = self.egress.reorder.poll()?;
            if let Some(inner) = self.pass(inner) {
                return Some(inner);
            }
        }
    }

    /// A packet that leaves for a host, unless the host need not get it.
    fn pass(&mut self, mut inner: Inner) -> Option<Inner> {
        let waiting = |bucket| self.ingress.queue.flow_bytes(bucket);
        let says = self.freezer.on_egress(self.now, &mut inner, waiting);
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += inner.bytes() as u64;
        self.rest.busy(self.now);
        says.then(|| {
            self.limit_segments(&mut inner);
            inner
        })
    }

    /// Tells the host that gets this handshake of segments that fit: their packets leave here.
    fn limit_segments(&self, inner: &mut Inner) {
        // Handshakes come with full headers, in one piece.
        if !inner.head.is_empty() {
            return;
        }
        let whole = self.paths.whole();
        let sizes = PacketSizes {
            whole,
            most: self.ingress.inner_mtu.unwrap_or(whole.max(INNER_MTU_USUAL)),
            compressed: self.ingress.compressor.is_some(),
        };
        if let Some(limited) = limit_segments(&inner.data, sizes, inner.checksum_partial) {
            inner.data = limited;
        }
    }

    /// When [`Tunnel::handle_timeout`] is wanted, if nothing else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // A report waits for a path to carry it: without one there is nothing to be done in time.
        let report = self.egress.report_due().filter(|_| !self.paths.is_empty());
        // In an outage nothing is sent but probes: whatever else is due to be sent is not missed.
        let sends = [
            self.egress.poll_ask_timeout(),
            self.ingress.poll_timeout(),
            self.headers_due(),
            report,
            self.freezer.poll_timeout(),
        ];
        let sends = sends.into_iter().flatten().min();
        [
            self.egress.poll_timeout(),
            sends.filter(|_| !self.paths.all_down()),
            self.paths.poll_timeout(),
            self.hold.poll_timeout(),
            self.give_back_due(),
            (self.freezer.is_waiting() || self.too_big.is_waiting()).then_some(self.now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Ends holds and suspicions that are due. Poll for packets and datagrams afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tick(now);
        self.set_patience();
        self.egress.release_due(now, &mut self.stats);
        if self.hold.sweeps(now) {
            self.ingress.queue.expire_all(now);
        }
        self.paths.handle_timeout(now);
        self.resend_promised(now);
        self.reinject(now);
        self.give_back(now);
    }

    /// The time of the last call.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Bytes waiting at the ingress.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        self.ingress.waiting_bytes()
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> TunnelStats {
        let mut stats = self.stats;
        stats.queue = self.ingress.queue.stats();
        if let Some(buffers) = &self.ingress.buffers {
            stats.queue.dropped_full += buffers.arrivals_dropped;
            stats.buffer_drops = buffers.dropped;
        }
        stats.reorder = self.egress.reorder.stats();
        stats.repairs_sent = self.ingress.retransmit.sent;
        stats.repairs_dropped = self.ingress.retransmit.dropped;
        stats.coded_sent = self.ingress.retransmit.coded;
        stats.rescues_asked = self.egress.rhythms.asked();
        stats.rescued = self.ingress.rescuer.rescued;
        stats.headers_saved = self.ingress.headers_saved;
        stats.too_big = self.too_big.refused;
        stats.protection_bytes += self.ingress.retransmit.bytes;
        stats.hold.replayed = stats.queue.replayed;
        stats.hold.dropped_full = stats.queue.held_full;
        stats.hold.dropped_old += stats.queue.held_old;
        stats.hold.stopped = self.freezer.stopped();
        stats.hold.proxy_ack_bytes = self.freezer.proxy_ack_bytes();
        stats.hold.resets = self.freezer.resets();
        stats.hold.accelerated = self.freezer.accelerated();
        stats.hold.resent = self.freezer.resent();
        self.hold.count(self.now, &mut stats.hold);
        stats.recovered = self.egress.decoding.recovered;
        stats.repairs_asked = self.egress.reorder.requests.asked();
        stats
    }

    /// Counters and estimates of a path.
    #[must_use]
    pub fn path_stats(&self, id: PathId) -> Option<PathStats> {
        self.paths.stats(self.now, id)
    }

    /// What a path carries towards the peer when it is full, if it was for `lately`.
    #[must_use]
    pub fn full_rate(&self, id: PathId, lately: Duration) -> Option<Rate> {
        self.paths.get(id)?.full_rate(self.now, lately)
    }

    /// Largest inner packet that the paths take whole, bytes. A size that the paths take for a moment only
    /// does not count.
    #[must_use]
    pub const fn whole_max(&self) -> usize {
        self.paths.whole()
    }

    fn tick(&mut self, now: Instant) {
        debug_assert!(now >= self.now, "time went backwards");
        self.now = now;
    }
}

/// Bucket of a flow.
#[expect(clippy::cast_possible_truncation, reason = "the modulus fits")]
fn flow_bucket(info: &PacketInfo, secret: u64) -> u16 {
    (info.flow.hash(secret) % FLOW_BUCKETS as u64) as u16
}

impl Egress {
    fn new() -> Self {
        Self::with(Reorder::new())
    }
}

#[cfg(test)]
mod tests;
