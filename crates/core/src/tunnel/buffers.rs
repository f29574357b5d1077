//! Send buffers: packets are bound to a path in the order of their arrival, and a full buffer drops
//! them. For experiments with published schedulers only; gateways bind late unless told.
//!
//! Packets wait in one first-in first-out queue, as in the queue of a TUN interface. The scheduler
//! is asked for the packet at the head. A scheduler that waits for a free slot keeps the head, and
//! all packets behind it, waiting. A scheduler that fills send buffers
//! ([`Policy::fills_buffers`](crate::schedule::Policy::fills_buffers)) is shown room on every path.
//! A bound packet leaves at once while the window of its path is open. Otherwise the packet waits in
//! the send buffer of the path, or is dropped if the buffer is full: so does a DCCP socket of Linux
//! with `tx_qlen` packets, and so do OTIAS and AFMT in the HTMT paper (sections III and V).
//! Binding on arrival is our reading of the authors' program; the paper does not describe it.
//!
//! Invariant: a buffer holds at most [`SendOptions::buffer_packets`](super::SendOptions) packets. A
//! packet that the transport holds because the window has room for only a part of it counts.

use super::ingress::{Binding, Ingress, outer_bytes};
use super::paths::Paths;
use super::tuning::ENTRY_PACKETS_MAX;
use super::{Outgoing, TunnelStats, rescue};
use crate::path::{PathMap, PathView};
use crate::queue::Packet;
use crate::schedule::{Decision, Head, PathSet};
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::DataHeader;
use std::collections::VecDeque;

/// A packet that is bound to the path in whose buffer it waits.
#[derive(Debug)]
struct Bound {
    packet: Packet,
    header: DataHeader,
    how: Binding,
}

/// The queue of arrivals, and a send buffer for each path.
#[derive(Debug)]
pub(super) struct SendBuffers {
    packets_max: usize,
    arrivals: VecDeque<Packet>,
    arrivals_bytes: u64,
    buffers: PathMap<VecDeque<Bound>>,
    /// Packets that the queue of arrivals had no room for.
    pub arrivals_dropped: u64,
    /// Packets that a send buffer had no room for.
    pub dropped: u64,
}

impl SendBuffers {
    /// Empty buffers of `packets_max` packets each.
    pub fn new(packets_max: usize) -> Self {
        Self {
            packets_max: packets_max.max(1),
            arrivals: VecDeque::new(),
            arrivals_bytes: 0,
            buffers: PathMap::default(),
            arrivals_dropped: 0,
            dropped: 0,
        }
    }

    /// Takes a packet in, or drops the packet if too many wait.
    pub fn push(&mut self, packet: Packet) {
        if self.arrivals.len() >= ENTRY_PACKETS_MAX {
            self.arrivals_dropped += 1;
            return;
        }
        self.arrivals_bytes += packet.len() as u64;
        self.arrivals.push_back(packet);
    }

    /// Whether nothing waits, bound or not.
    fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.buffers.iter().all(|(_, buffer)| buffer.is_empty())
    }

    /// Bytes of inner packets that wait, bound or not.
    pub fn bytes(&self) -> u64 {
        let waiting = self.buffers.iter().map(|(_, buffer)| bytes_of(buffer));
        self.arrivals_bytes + waiting.sum::<u64>()
    }

    /// Drops what waits for a path that is gone.
    pub fn on_path_removed(&mut self, path: PathId) {
        let buffer = self.buffers.remove(path);
        self.dropped += buffer.map_or(0, |buffer| buffer.len() as u64);
    }

    /// Decides what the head of the queue of arrivals looks like to a scheduler.
    fn head(&self) -> Option<Head> {
        let packet = self.arrivals.front()?;
        Some(Head {
            flow: packet.flow,
            bytes: packet.len() as u64,
            flow_backlog: packet.len() as u64,
            backlog: self.arrivals_bytes,
        })
    }

    fn pop(&mut self) -> Option<Packet> {
        let packet = self.arrivals.pop_front()?;
        self.arrivals_bytes -= packet.len() as u64;
        Some(packet)
    }

    /// Whether one more packet may wait for the path of `view`, which counts what waits already.
    fn has_place(&self, view: &PathView) -> bool {
        let buffered = self.buffers.get(view.id);
        let buffered = buffered.map_or((0, 0), |buffer| (buffer.len(), bytes_of(buffer)));
        let overhang = (view.in_flight + view.queued).saturating_sub(view.cwnd + buffered.1);
        // A packet leaves while any of the window is left, so one at most is held beyond it.
        buffered.0 + usize::from(overhang > 0) < self.packets_max
    }

    /// Whether a packet may leave on the path of `view` before any other.
    fn is_open(&self, view: &PathView) -> bool {
        let is_empty = self.buffers.get(view.id).is_none_or(VecDeque::is_empty);
        is_empty && view.in_flight + view.queued < view.cwnd
    }
}

fn bytes_of(buffer: &VecDeque<Bound>) -> u64 {
    buffer.iter().map(|bound| bound.packet.len() as u64).sum()
}

impl Ingress {
    /// Does what [`Ingress::schedule`] does, with send buffers instead of late binding. At least `max`
    /// datagrams are appended if so much can leave.
    pub fn schedule_buffered(
        &mut self,
        now: Instant,
        buffers: &mut SendBuffers,
        paths: &mut Paths,
        stats: &mut TunnelStats,
        out: &mut Vec<Outgoing>,
        max: usize,
    ) {
        if buffers.is_empty() {
            self.relaxed_at = now;
        }
        stats.protection_bytes +=
            rescue::flush(now, &mut self.rescuer, self.compressor.as_ref(), paths, out);
        self.encode(now, paths);
        paths.views(now, &mut self.views);
        self.retransmit
            .flush(now, &mut self.views, self.compressor.as_ref(), paths, out);
        self.ignore_pacing();
        self.drain(now, buffers, paths, out);
        self.show_buffers(buffers);
        let before = out.len();
        while out.len() - before < max
            && let Some(head) = buffers.head()
        {
            let set = match self.scheduler.pick(now, &head, &self.views) {
                Decision::Send(set) if !set.is_empty() => set,
                Decision::WaitFlow(until) => {
                    self.wake = until;
                    break;
                }
                Decision::Send(_) | Decision::WaitAll => break,
            };
            let Some(packet) = buffers.pop() else { break };
            stats.tx_packets += 1;
            stats.tx_bytes += head.bytes;
            let how = self.protect(now, &packet, set, paths);
            let bound = self.put(now, buffers, (packet, head, how), paths, out);
            if bound > 0 {
                stats.count_bound(head.bytes, bound);
            }
        }
        if buffers.is_empty() {
            self.relaxed_at = now;
        }
        self.encode(now, paths);
        self.retransmit
            .flush(now, &mut self.views, self.compressor.as_ref(), paths, out);
    }

    /// Shows what the transport paces within the window as sent.
    fn ignore_pacing(&mut self) {
        for view in &mut self.views {
            let paced = view.cwnd.saturating_sub(view.in_flight).min(view.queued);
            view.in_flight += paced;
            view.queued -= paced;
        }
    }

    /// Lets packets leave the buffers while the windows of their paths are open.
    fn drain(
        &mut self,
        now: Instant,
        buffers: &mut SendBuffers,
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        for index in 0..self.views.len() {
            let id = self.views[index].id;
            let Some(buffer) = buffers.buffers.get_mut(id) else {
                continue;
            };
            while let view = &mut self.views[index]
                && view.in_flight + view.queued < view.cwnd
                && let Some(bound) = buffer.pop_front()
            {
                view.in_flight += outer_bytes(bound.packet.len() as u64);
                self.leave(now, (bound.packet, bound.header), bound.how, paths, out);
            }
        }
    }

    /// Makes the views those of a system with send buffers: what waits counts as queued, and only
    /// the window limits what a path takes.
    fn show_buffers(&mut self, buffers: &SendBuffers) {
        let fills_buffers = self.scheduler.fills_buffers();
        for view in &mut self.views {
            view.queued += buffers.buffers.get(view.id).map_or(0, bytes_of);
            view.next_credit = None;
            view.free = if fills_buffers {
                u64::MAX
            } else {
                view.cwnd.saturating_sub(view.in_flight + view.queued)
            };
        }
    }

    /// Sends a bound packet, puts the packet into send buffers, or drops the packet. Returns over how many
    /// paths it leaves.
    fn put(
        &mut self,
        now: Instant,
        buffers: &mut SendBuffers,
        (packet, head, how): (Packet, Head, Binding),
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) -> usize {
        let (mut open, mut buffered) = (PathSet::EMPTY, PathSet::EMPTY);
        for view in self.views.iter().filter(|view| how.set.contains(view.id)) {
            if buffers.is_open(view) {
                open = open.with(view.id);
            } else if buffers.has_place(view) {
                buffered = buffered.with(view.id);
            } else {
                buffers.dropped += 1;
            }
        }
        // The scheduler has decided, whatever the buffer does; only a packet that stays is queued.
        self.account(now, &head, how.set, buffered);
        for view in self.views.iter_mut().filter(|view| open.contains(view.id)) {
            let bytes = outer_bytes(head.bytes);
            view.in_flight += bytes;
            view.free = view.free.saturating_sub(bytes);
        }
        let leaves = open.union(buffered).len();
        if leaves == 0 {
            return 0;
        }
        let header = self.header(&packet, &head, how);
        for id in buffered.iter() {
            let bound = Bound {
                packet: packet.copy(),
                header,
                how: how.only(PathSet::one(id)),
            };
            match buffers.buffers.get_mut(id) {
                Some(buffer) => buffer.push_back(bound),
                None => buffers.buffers.insert(id, VecDeque::from([bound])),
            }
        }
        if !open.is_empty() {
            let how = how.only(open);
            self.leave(now, (packet, header), how, paths, out);
        }
        leaves
    }
}
