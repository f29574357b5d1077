//! The ingress: binds the heads of flows to paths, late, and writes their headers.

use super::buffers::SendBuffers;
use super::copies::{self, Openings};
use super::headers;
use super::load::FlowLoad;
use super::paths::{Path, Paths};
use super::repair::RetransmitQueue;
use super::rescue;
use super::send_options::{Order, SendOptions};
use super::tuning::{
    FULL_AFTER, FULL_FOR, PIECE_MIN, RATE_INTERVAL, SPARSE_CREDIT_MAX, SUBTUNNEL_OVERHEAD,
};
use super::{Outgoing, TunnelStats};
use crate::hold::Limits;
use crate::path::PathView;
use crate::protect::{Classes, Protection};
use crate::queue::{IngressQueue, Packet};
use crate::rescue::Rescuer;
use crate::schedule::{Decision, FLOW_BUCKETS, Head, PathSet, Scheduler};
use bytes::{Buf, BytesMut};
use ropewalk_headers::Compressor;
use ropewalk_types::{Buckets, Instant, PathId};
use ropewalk_wire::{DATA_HEADER, DataHeader, FRAGMENT_HEADER, FragmentHeader, HEADROOM, Stamp};
use std::sync::Arc;

/// Ingress side of a tunnel.
#[derive(Debug)]
pub(super) struct Ingress {
    pub queue: IngressQueue,
    /// Used instead of the queue, if there are any.
    pub buffers: Option<Box<SendBuffers>>,
    pub scheduler: Scheduler,
    /// What was lost and goes first.
    pub retransmit: RetransmitQueue,
    /// How packets are protected.
    pub classes: Arc<Classes>,
    /// What sparse flows sent last, and what of it is awaited.
    pub rescuer: Rescuer,
    /// The inner MTU where one is configured, bytes.
    pub inner_mtu: Option<usize>,
    /// `None` when headers travel in full.
    pub compressor: Option<Compressor>,
    /// Bytes that were not sent.
    pub headers_saved: u64,
    flow_seq: Buckets<u16>,
    loads: Buckets<FlowLoad>,
    pub(super) views: Vec<PathView>,
    /// When a flow that was told to wait may be asked again.
    pub(super) wake: Option<Instant>,
    rate_due: Instant,
    /// When nothing waited last.
    pub(super) relaxed_at: Instant,
    openings: Openings,
    /// What sparse flows may send before what a dead path carried, bytes.
    sparse_credit: u64,
    /// Until when the paths count as full.
    full_until: Instant,
    /// Bounds of what is held in an outage.
    pub limits: Limits,
    /// Whether the egress is asked to keep packets in order.
    order: Order,
}

impl Ingress {
    pub fn with(
        mut queue: IngressQueue,
        mut scheduler: Scheduler,
        classes: Arc<Classes>,
        limits: Limits,
        send: SendOptions,
    ) -> Self {
        queue.set_hold_limits(limits);
        if send.buffer_packets.is_some() {
            scheduler.use_send_buffers();
        }
        Self {
            queue,
            buffers: send
                .buffer_packets
                .map(|max| Box::new(SendBuffers::new(max))),
            limits,
            order: send.order,
            scheduler,
            classes,
            retransmit: RetransmitQueue::default(),
            rescuer: Rescuer::default(),
            inner_mtu: send.inner_mtu,
            compressor: send.compress_headers.then(Compressor::default),
            headers_saved: 0,
            flow_seq: Buckets::new(FLOW_BUCKETS),
            loads: Buckets::new(FLOW_BUCKETS),
            views: Vec::new(),
            wake: None,
            rate_due: Instant::ZERO,
            relaxed_at: Instant::ZERO,
            full_until: Instant::ZERO,
            openings: Openings::default(),
            sparse_credit: SPARSE_CREDIT_MAX,
        }
    }

    /// Uses another scheduler from the next packet on.
    pub fn set_scheduler(&mut self, mut scheduler: Scheduler) {
        if self.buffers.is_some() {
            scheduler.use_send_buffers();
        }
        self.scheduler = scheduler;
    }

    /// Gives the memory of flows back that have been idle for long.
    pub fn give_back(&mut self, now: Instant) {
        self.queue.forget_idle();
        self.scheduler.forget_idle(now);
        self.loads.forget(|load| load.is_over(now));
        self.rescuer.forget_old(now);
        if let Some(compressor) = &mut self.compressor {
            compressor.forget(now);
        }
    }

    /// Takes a packet in.
    pub fn push(&mut self, packet: Packet) {
        match &mut self.buffers {
            None => self.queue.push(packet),
            Some(buffers) => buffers.push(packet),
        }
    }

    /// Bytes of inner packets that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.queue.bytes() + self.buffers.as_ref().map_or(0, |buffers| buffers.bytes())
    }

    /// A path is gone for good.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.scheduler.on_path_removed(path);
        if let Some(buffers) = &mut self.buffers {
            buffers.on_path_removed(path);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.wake,
            self.rescuer.poll_timeout(),
            self.retransmit.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Binds up to `max` packets.
    pub fn schedule(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        stats: &mut TunnelStats,
        out: &mut Vec<Outgoing>,
        max: usize,
    ) {
        self.wake = None;
        if let Some(mut buffers) = self.buffers.take() {
            self.schedule_buffered(now, &mut buffers, paths, stats, out, max);
            self.buffers = Some(buffers);
            return;
        }
        if self.queue.packets() == 0 {
            self.relaxed_at = now;
        }
        stats.protection_bytes +=
            rescue::flush(now, &mut self.rescuer, self.compressor.as_ref(), paths, out);
        self.encode(now, paths);
        if self.queue.packets() == 0 && self.retransmit.is_empty() {
            return;
        }
        if now >= self.rate_due {
            self.rate_due = now + RATE_INTERVAL;
            self.queue
                .set_paths(paths.rate(), paths.longest_delays(now));
        }
        paths.views(now, &mut self.views);
        let mut bound = 0;
        if self.sparse_credit > 0 && self.retransmit.is_doubtful() {
            bound = self.bind_waiting(now, paths, stats, out, max, Turns::Sparse);
        }
        let before = self.retransmit.bytes;
        self.retransmit
            .flush(now, &mut self.views, self.compressor.as_ref(), paths, out);
        self.sparse_credit =
            (self.sparse_credit + self.retransmit.bytes - before).min(SPARSE_CREDIT_MAX);
        self.bind_waiting(now, paths, stats, out, max - bound, Turns::All);
        if self.queue.packets() == 0 {
            self.relaxed_at = now;
        }
        self.encode(now, paths);
        self.retransmit
            .flush(now, &mut self.views, self.compressor.as_ref(), paths, out);
    }

    /// Binds up to `max` packets of the queue for which there is room; returns how many.
    fn bind_waiting(
        &mut self,
        now: Instant,
        paths: &mut Paths,
        stats: &mut TunnelStats,
        out: &mut Vec<Outgoing>,
        max: usize,
        turns: Turns,
    ) -> usize {
        let mut bound = 0;
        while bound < max {
            let Some(flow) = self.queue.turn() else { break };
            let Some(bytes) = self.queue.head(flow) else {
                break;
            };
            if turns == Turns::Sparse && !self.goes_first(flow, bytes) {
                self.queue.skip();
                continue;
            }
            let head = Head {
                flow,
                bytes: bytes as u64,
                flow_backlog: self.queue.flow_bytes(flow),
                backlog: self.queue.bytes(),
            };
            match self.scheduler.pick(now, &head, &self.views) {
                Decision::Send(set) if !set.is_empty() => {
                    if let Some(packet) = self.queue.pop(now, flow) {
                        bound += 1;
                        if turns == Turns::Sparse {
                            self.sparse_credit = self.sparse_credit.saturating_sub(bytes as u64);
                        }
                        stats.tx_packets += 1;
                        stats.tx_bytes += bytes as u64;
                        let how = self.protect(now, &packet, set, paths);
                        stats.count_bound(bytes as u64, how.set.len());
                        self.bind(now, packet, &head, how, paths, out);
                    }
                }
                Decision::WaitFlow(until) => {
                    self.wake = [self.wake, until].into_iter().flatten().min();
                    self.queue.skip();
                }
                Decision::Send(_) | Decision::WaitAll => break,
            }
        }
        self.queue.end_round();
        bound
    }

    /// Whether the head packet of `flow` goes before what a dead path carried. TCP does not: what it lacks
    /// may be there.
    fn goes_first(&self, flow: u16, bytes: usize) -> bool {
        let is_thin = self.loads[flow].is_thin();
        is_thin && !self.queue.is_head_tcp(flow) && bytes as u64 <= self.sparse_credit
    }

    /// How a packet that leaves over the paths `set` is protected.
    pub(super) fn protect(
        &mut self,
        now: Instant,
        packet: &Packet,
        set: PathSet,
        paths: &mut Paths,
    ) -> Binding {
        let bytes = packet.len();
        let load = &mut self.loads[packet.flow];
        load.count(now, bytes as u64);
        self.openings.earn(now, bytes);
        let class = self.classes.get(packet.class);
        let protection = class.protection;
        let adaptive = protection == Protection::Adaptive;
        let prompt = adaptive && !packet.tcp && load.is_thin();
        let mut set = set;
        if protection == Protection::Duplicate {
            set = copies::duplicated(now, set, class, bytes, paths);
        }
        if adaptive && load.is_opening() {
            set = self.openings.spare(now, set, bytes, paths);
        }
        if prompt {
            set = copies::undoubted(now, set, bytes, paths);
        }
        Binding {
            set,
            protection,
            prompt,
        }
    }

    /// Whether the paths are filled, and by more than one flow.
    pub fn is_shared(&self, now: Instant) -> bool {
        now < self.full_until && self.queue.backlogged_flows(2) == 2
    }

    /// Takes in the repair symbols that are due. Where packets wait for long, each takes the place of
    /// one.
    pub(super) fn encode(&mut self, now: Instant, paths: &mut Paths) {
        if now.since(self.relaxed_at) >= FULL_AFTER {
            self.full_until = now + FULL_FOR;
        }
        self.retransmit.encode(now, now < self.full_until, paths);
    }

    fn bind(
        &mut self,
        now: Instant,
        packet: Packet,
        head: &Head,
        how: Binding,
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        self.account(now, head, how.set, how.set);
        let header = self.header(&packet, head, how);
        self.leave(now, (packet, header), how, paths, out);
    }

    /// The packet at the head was bound to the paths of `set`, and waits on those of `queued`.
    pub(super) fn account(&mut self, now: Instant, head: &Head, set: PathSet, queued: PathSet) {
        for id in set.iter() {
            if let Some(view) = self.views.iter_mut().find(|v| v.id == id) {
                self.scheduler.on_sent(now, head, view);
                if queued.contains(id) {
                    let bytes = outer_bytes(head.bytes);
                    view.free = view.free.saturating_sub(bytes);
                    view.queued += bytes;
                }
            }
        }
    }

    /// The header of the next packet of a flow.
    pub(super) fn header(&mut self, packet: &Packet, head: &Head, how: Binding) -> DataHeader {
        let heavy = self.loads[head.flow].is_heavy();
        let flow_seq = &mut self.flow_seq[head.flow];
        let header = DataHeader {
            stamp: Stamp::default(),
            checksum_partial: packet.checksum_partial,
            ordered: self.order == Order::On
                && (self.scheduler.must_order(head.flow) || packet.in_order || heavy),
            copy: how.set.len() > 1,
            prompt: how.prompt,
            compressed: false,
            flow: head.flow,
            class: packet.class,
            flow_seq: *flow_seq,
        };
        *flow_seq = flow_seq.wrapping_add(1);
        header
    }

    /// Hands a packet over to the transports of its paths.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        (packet, mut header): (Packet, DataHeader),
        Binding {
            set,
            protection,
            prompt,
        }: Binding,
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        let (dscp, tcp) = (packet.dscp, packet.tcp);
        let mut data = packet.data;
        if let Some(compressor) = &mut self.compressor {
            let room = set.iter().filter_map(|id| paths.get(id));
            let room = room.map(|path| path.snapshot.max_datagram).min();
            let room = room.unwrap_or(0).saturating_sub(DATA_HEADER);
            let saved = headers::compress(now, compressor, &header, &mut data, HEADROOM, room);
            header.compressed = saved > 0;
            self.headers_saved += saved as u64;
        }
        let mut targets = set.iter().peekable();
        let mut first_copy = None;
        while let Some(id) = targets.next() {
            let Some(path) = paths.get_mut(id) else {
                continue;
            };
            // The last target takes the buffer itself; only copies are copied.
            let buffer = if targets.peek().is_some() {
                data.clone()
            } else {
                std::mem::take(&mut data)
            };
            let bound = out.len();
            let how = ((dscp, tcp), protection);
            let whole = emit(now, path, id, header, buffer, how, out);
            if prompt && let Some(first) = out.get(bound) {
                self.rescuer.keep(now, id, first.datagram.clone(), dscp);
            }
            // Of two copies one may be lost.
            if set.len() == 2
                && let Some(path_seq) = whole
            {
                match first_copy {
                    None => first_copy = Some((id, path_seq)),
                    Some(first) => paths.link_copy(first, (id, path_seq)),
                }
            }
        }
    }
}

/// Bytes of a path's window that an inner packet of `bytes` takes.
pub(super) const fn outer_bytes(bytes: u64) -> u64 {
    bytes + DATA_HEADER as u64 + SUBTUNNEL_OVERHEAD
}

/// Whose packets are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turns {
    All,
    /// Packets of calls and games, as far as their credit goes. Packets of a dead path go before
    /// all else, and calls behind them would be silent for as long as that takes.
    Sparse,
}

/// How a packet leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) set: PathSet,
    protection: Protection,
    /// The egress asks for it as soon as it is overdue.
    prompt: bool,
}

impl Binding {
    /// The same over these paths.
    pub(super) const fn only(self, set: PathSet) -> Self {
        Self { set, ..self }
    }
}

/// Writes the headers of one packet for one path, in pieces if the path takes no whole one.
///
/// Returns the packet's number on the path if the packet left in one piece.
fn emit(
    now: Instant,
    path: &mut Path,
    id: PathId,
    mut header: DataHeader,
    mut data: BytesMut,
    ((dscp, tcp), protection): ((u8, bool), Protection),
    out: &mut Vec<Outgoing>,
) -> Option<u16> {
    let length = data.len() - HEADROOM;
    let room = path.snapshot.max_datagram;
    if length + DATA_HEADER <= room {
        header.stamp = path.stamp(now, length + DATA_HEADER);
        let start = HEADROOM - DATA_HEADER;
        let front: &mut [u8; DATA_HEADER] = (&mut data[start..HEADROOM])
            .try_into()
            .expect("the slice is DATA_HEADER long by construction");
        header.emit(front);
        let mut datagram = data.freeze();
        datagram.advance(start);
        path.remember(now, &datagram, (dscp, tcp), protection);
        out.push(Outgoing {
            path: id,
            datagram,
            dscp,
            urgent: false,
        });
        return Some(header.stamp.path_seq);
    }
    let piece = room.saturating_sub(FRAGMENT_HEADER).max(PIECE_MIN);
    let mut offset = 0;
    while offset < length {
        let end = (offset + piece).min(length);
        header.stamp = path.stamp(now, end - offset + FRAGMENT_HEADER);
        let fragment = FragmentHeader {
            offset: u16::try_from(offset).unwrap_or(u16::MAX),
            total: u16::try_from(length).unwrap_or(u16::MAX),
        };
        let mut front = [0; FRAGMENT_HEADER];
        header.emit_fragment(&fragment, &mut front);
        let mut datagram = BytesMut::with_capacity(FRAGMENT_HEADER + end - offset);
        datagram.extend_from_slice(&front);
        datagram.extend_from_slice(&data[HEADROOM + offset..HEADROOM + end]);
        let datagram = datagram.freeze();
        path.remember(now, &datagram, (dscp, tcp), protection);
        out.push(Outgoing {
            path: id,
            datagram,
            dscp,
            urgent: false,
        });
        offset = end;
    }
    None
}
