//! The egress: removes copies and, for flows the ingress marks as spread over paths, restores order.
//!
//! A packet waits only for packets that may still come. Every path keeps its own order. So a held
//! packet is released once each active path has delivered something bound later, because then
//! nothing before the packet is under way. A bounded time limits the rest. A long run that becomes
//! due leaves paced, because receivers' buffers are short, and within 50 ms. A packet that comes
//! after it was given up is passed on late, never lost. Invariant: a held packet is newer than
//! everything delivered of its flow, and no sequence number is delivered twice within the window of
//! [`SEEN_WINDOW`]. (Copy removal as in RFC 8655 §3.2.2.2, sequence numbers per flow.)

mod flow;
mod tuning;

pub(crate) use tuning::{HELD_MAX, PLACES_MAX};
pub use tuning::{HOLD_MAX, HOLD_WINDOW, SEEN_WINDOW};

use crate::repair::Requests;
use crate::schedule::FLOW_BUCKETS;
use bytes::{Bytes, BytesMut};
use flow::{Arrival, Flow, PLACE_BYTES};
use ropewalk_types::{Buckets, Duration, Instant, PATHS_MAX, PathId, count_steps};
use ropewalk_wire::{DataHeader, Stamp, Timestamp};
use std::collections::VecDeque;
use tuning::{
    ACTIVE, EXACT_FLOWS, HOLD_BEGINNING, HOLD_MARGIN, HOLD_UNKNOWN, LOOK_FLOW, LOOK_INTERVAL,
    LOOK_STEPS,
};

/// A packet for the inner network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The headers of IP and TCP, if they were restored apart from the rest, or one in front of a packet; empty
    /// otherwise.
    pub head: Bytes,
    /// One IP packet, or what follows `head`.
    pub data: Bytes,
    /// The upper-layer checksum holds only the pseudo-header sum.
    pub checksum_partial: bool,
}

impl Inner {
    /// A packet in one piece.
    #[must_use]
    pub const fn whole(data: Bytes, checksum_partial: bool) -> Self {
        Self {
            head: Bytes::new(),
            data,
            checksum_partial,
        }
    }

    /// The packet's first bytes, with all of its headers.
    #[must_use]
    pub fn front(&self) -> &[u8] {
        if self.head.is_empty() {
            &self.data
        } else {
            &self.head
        }
    }

    /// The piece of memory that [`Self::front`] is.
    pub(crate) fn front_mut(&mut self) -> &mut Bytes {
        if self.head.is_empty() {
            &mut self.data
        } else {
            &mut self.head
        }
    }

    /// Bytes of the packet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Puts the packet into one piece, all of it in `data`.
    pub fn join(&mut self) {
        if !self.head.is_empty() {
            let mut joined = BytesMut::with_capacity(self.bytes());
            joined.extend_from_slice(&self.head);
            joined.extend_from_slice(&self.data);
            (self.head, self.data) = (Bytes::new(), joined.freeze());
        }
    }
}

/// Counters of the egress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReorderStats {
    /// Packets delivered.
    pub delivered: u64,
    /// Packets that did not come next in their flow's sequence.
    pub reordered: u64,
    /// Packets held for order.
    pub held: u64,
    /// Holds ended by time.
    pub hold_timeouts: u64,
    /// Copies removed.
    pub duplicates: u64,
    /// Packets delivered after they had been given up.
    pub late: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PathClock {
    /// Latest send time seen, and when it was seen.
    newest: Timestamp,
    heard: Option<Instant>,
    /// Smoothed receive minus send time, µs, and its deviation.
    delay_us: i64,
    deviation_us: i64,
}

/// The egress side of one tunnel.
#[derive(Debug)]
pub struct Reorder {
    flows: Buckets<Flow>,
    /// A bit for each flow bucket that has ever carried a packet.
    started: Box<[u64; FLOW_BUCKETS / 64]>,
    /// Flows that hold packets.
    holding: Vec<u16>,
    /// Where in `holding` the next look begins: at the first, unless they are too many for one look.
    next_look: usize,
    /// Whether a look had no steps left for all of them: what is left waits for the next one.
    is_cut: bool,
    /// When flows are looked at again that are too many for one look.
    look_at: Instant,
    held: usize,
    /// Bytes of the packets held.
    held_bytes: usize,
    /// What packets and places may take together, bytes.
    room: u64,
    /// Places there is memory for, in all flows together.
    places: usize,
    /// When memory that flows need no more may be looked for again.
    sweep_at: Instant,
    ready: VecDeque<Inner>,
    paths: [PathClock; PATHS_MAX],
    /// What is missing and asked for: worth waiting for a little longer.
    pub requests: Requests,
    stats: ReorderStats,
}

impl Default for Reorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Reorder {
    /// An egress that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            flows: Buckets::new(FLOW_BUCKETS),
            started: Box::new([0; FLOW_BUCKETS / 64]),
            holding: Vec::new(),
            next_look: 0,
            is_cut: false,
            look_at: Instant::ZERO,
            held: 0,
            held_bytes: 0,
            room: u64::MAX,
            places: 0,
            sweep_at: Instant::ZERO,
            ready: VecDeque::new(),
            paths: Default::default(),
            requests: Requests::default(),
            stats: ReorderStats::default(),
        }
    }

    /// Gives the memory of flows back that have been idle for long. Their next packet begins anew.
    pub fn forget_idle(&mut self, now: Instant) {
        let mut places = 0;
        self.flows.forget(|flow| flow.is_forgettable(now));
        for flow in self.flows.iter_mut() {
            if !flow.holds() {
                flow.shrink();
            }
            places += flow.places();
        }
        self.places = places;
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
        }
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> ReorderStats {
        self.stats
    }

    /// How many packets are held, and for how many places there is memory.
    pub(crate) const fn kept(&self) -> (usize, usize) {
        (self.held, self.places)
    }

    /// Bounds the memory of what is held from now on, bytes. Where there is no room, nothing waits for order.
    pub const fn set_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// Memory that packets which are held take, and their places, bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        (self.held_bytes + self.places * PLACE_BYTES) as u64
    }

    /// Notes that `path` delivered a datagram with this stamp.
    pub fn on_path_heard(&mut self, now: Instant, path: PathId, stamp: Stamp) {
        self.requests.on_datagram(now, path, stamp);
        let sent_at = stamp.sent_at;
        let clock = &mut self.paths[path.index()];
        let delay = i64::from(Timestamp::from_instant(now).distance(sent_at)) * 16;
        if clock.heard.is_none_or(|at| now.since(at) > ACTIVE) {
            (clock.delay_us, clock.deviation_us, clock.newest) = (delay, 0, sent_at);
        } else {
            let error = delay - clock.delay_us;
            clock.delay_us += error / 8;
            clock.deviation_us += (error.abs() - clock.deviation_us) / 4;
            if sent_at.distance(clock.newest) > 0 {
                clock.newest = sent_at;
            }
        }
        clock.heard = Some(now);
    }

    /// Takes a packet of a flow in; what is due comes out of [`Reorder::poll`]. Returns whether
    /// it came after it had been given up.
    pub fn on_packet(&mut self, now: Instant, header: &DataHeader, inner: Inner) -> bool {
        let bytes = inner.bytes();
        let mut arrival = self.arrival(now, header);
        if self.no_room_for(now, header, bytes, arrival) {
            // What waits for its pace only leaves first, then what waits for missing packets.
            self.release_whole_run(header.flow);
            arrival = self.arrival(now, header);
        }
        if self.no_room_for(now, header, bytes, arrival) {
            self.release_all(header.flow);
            arrival = self.arrival(now, header);
        }
        match arrival {
            Arrival::Next => {
                self.ready.push_back(inner);
                self.stats.delivered += 1;
                if self.flows[header.flow].holds() {
                    self.release_run(now, header.flow);
                }
                false
            }
            Arrival::Duplicate => {
                self.stats.duplicates += 1;
                false
            }
            Arrival::Late => {
                self.stats.reordered += 1;
                self.stats.late += 1;
                self.stats.delivered += 1;
                self.ready.push_back(inner);
                true
            }
            arrival if !self.no_room_for(now, header, bytes, arrival) => {
                self.stats.reordered += 1;
                self.hold(now, header, inner);
                false
            }
            Arrival::Ahead | Arrival::Beyond => {
                self.stats.reordered += 1;
                self.flows[header.flow].skip_to(header);
                self.ready.push_back(inner);
                self.stats.delivered += 1;
                false
            }
        }
    }

    fn arrival(&mut self, now: Instant, header: &DataHeader) -> Arrival {
        let (word, bit) = (usize::from(header.flow / 64), 1 << (header.flow % 64));
        let again = self.started[word] & bit != 0;
        self.started[word] |= bit;
        self.flows[header.flow].arrival(now, header, again)
    }

    /// Whether there may be memory for this packet's place; flows that hold nothing give theirs back.
    fn make_places(&mut self, now: Instant, header: &DataHeader) -> bool {
        let flow = &self.flows[header.flow];
        let more = flow.places_with(header) - flow.places();
        if self.places + more > PLACES_MAX && self.sweep_at <= now {
            self.sweep_at = now + LOOK_INTERVAL;
            count_steps(FLOW_BUCKETS * LOOK_FLOW);
            for flow in self.flows.iter_mut().filter(|flow| !flow.holds()) {
                self.places -= flow.places();
                flow.shrink();
            }
        }
        let flow = &self.flows[header.flow];
        self.places + flow.places_with(header) - flow.places() <= PLACES_MAX
    }

    fn no_room_for(
        &mut self,
        now: Instant,
        header: &DataHeader,
        bytes: usize,
        arrival: Arrival,
    ) -> bool {
        match arrival {
            Arrival::Ahead => {
                let flow = &self.flows[header.flow];
                let places = flow.places_with(header) - flow.places();
                let more = (bytes + places * PLACE_BYTES) as u64;
                self.held >= HELD_MAX
                    || self.memory().saturating_add(more) > self.room
                    || !self.make_places(now, header)
            }
            Arrival::Beyond => true,
            Arrival::Next | Arrival::Duplicate | Arrival::Late => false,
        }
    }

    fn hold(&mut self, now: Instant, header: &DataHeader, inner: Inner) {
        let mut longest = self.hold_time();
        let flow = &mut self.flows[header.flow];
        if flow.begins {
            longest = longest.min(HOLD_BEGINNING);
        }
        let deadline = now + longest;
        let bytes = inner.bytes();
        if !core::mem::replace(&mut flow.listed, true) {
            self.holding.push(header.flow);
        }
        let places = flow.places();
        // What needs no order waits for nothing; only its place is kept, for those that do.
        let (waits, passes, kept) = if header.ordered {
            (Some(inner), None, bytes)
        } else {
            (None, Some(inner), 0)
        };
        let new = flow.hold(header, waits, deadline);
        self.places += flow.places() - places;
        if !new {
            self.stats.duplicates += 1;
            return;
        }
        flow.earn(bytes);
        self.held += 1;
        self.held_bytes += kept;
        self.stats.held += u64::from(header.ordered);
        if let Some(inner) = passes {
            self.stats.delivered += 1;
            self.ready.push_back(inner);
        }
    }

    /// How long a missing packet may still be on its way: the spread of the active paths' delays
    /// and what they vary.
    fn hold_time(&self) -> Duration {
        if self.paths.iter().filter(|p| p.heard.is_some()).count() < 2 {
            return HOLD_UNKNOWN;
        }
        let mut active = self.paths.iter().filter(|p| p.heard.is_some());
        let Some(first) = active.next() else {
            return HOLD_UNKNOWN;
        };
        let (mut low, mut high) = (first.delay_us, first.delay_us + 4 * first.deviation_us);
        for path in active {
            low = low.min(path.delay_us);
            high = high.max(path.delay_us + 4 * path.deviation_us);
        }
        let spread = Duration::from_micros(u64::try_from(high - low).unwrap_or(0));
        (spread * 2 + HOLD_MARGIN).min(HOLD_MAX)
    }

    /// Send time before which nothing is under way on any active path. The time is unknown while
    /// fewer than two paths have delivered: the packet may be on a path not heard yet.
    fn horizon(&self) -> Option<Timestamp> {
        let mut active = self.paths.iter().filter(|p| p.heard.is_some());
        let first = active.next()?;
        let second = active.next()?;
        let earlier = |a: Timestamp, b: &PathClock| {
            if b.newest.distance(a) < 0 {
                b.newest
            } else {
                a
            }
        };
        Some(active.fold(earlier(first.newest, second), earlier))
    }

    /// Forgets a path: nothing more will come from it.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.paths[path.index()] = PathClock::default();
        self.requests.on_path_removed(path);
    }

    /// Releases what need not wait any longer. Call it once per batch of datagrams and when
    /// [`Reorder::poll_timeout`] is due.
    pub fn release_due(&mut self, now: Instant) {
        // What is left of a look waits for the next one, however many datagrams come before.
        if self.holding.is_empty() || self.is_cut && now < self.look_at {
            return;
        }
        for path in &mut self.paths {
            if path.heard.is_some_and(|at| now.since(at) > ACTIVE) {
                path.heard = None;
            }
        }
        let horizon = self.horizon();
        let mut steps = 0;
        while let Some(&flow) = self.holding.get(self.next_look) {
            if steps >= LOOK_STEPS || !self.look_at(now, flow, horizon, &mut steps) {
                break;
            }
            self.next_look += 1;
            steps += LOOK_FLOW;
        }
        count_steps(steps);
        self.is_cut = self.next_look < self.holding.len();
        if !self.is_cut {
            self.next_look = 0;
            self.forget_idle_holders();
        }
        self.look_at = now + LOOK_INTERVAL;
    }

    /// Releases what need not wait any longer of one flow. False when that takes more steps than a look may
    /// have.
    fn look_at(
        &mut self,
        now: Instant,
        flow: u16,
        horizon: Option<Timestamp>,
        steps: &mut usize,
    ) -> bool {
        self.release_run(now, flow);
        while let Some((sent_at, deadline)) = self.gap(flow) {
            let overtaken = horizon.is_some_and(|h| h.distance(sent_at) > 0);
            if !overtaken && deadline > now {
                break;
            }
            if *steps >= LOOK_STEPS {
                return false;
            }
            let until = self.requests.worth_waiting(sent_at, steps);
            if let Some(until) = until.filter(|at| *at > now) {
                self.flows[flow].wait_until(until);
                break;
            }
            if !overtaken {
                self.stats.hold_timeouts += 1;
            }
            self.flows[flow].give_up_gap();
            self.release_run(now, flow);
        }
        true
    }

    fn forget_idle_holders(&mut self) {
        let flows = &mut self.flows;
        self.holding.retain(|&flow| {
            let flow = &mut flows[flow];
            flow.listed = flow.holds();
            flow.listed
        });
    }

    /// Send time and deadline of the packet of `flow` that waits behind missing ones.
    fn gap(&self, flow: u16) -> Option<(Timestamp, Instant)> {
        let flow = &self.flows[flow];
        flow.first_held().filter(|_| !flow.is_due())
    }

    fn release_run(&mut self, now: Instant, flow: u16) {
        while let Some(place) = self.flows[flow].pop_due(now) {
            self.released(place);
        }
    }

    /// Releases what is next in order, whatever its pace.
    fn release_whole_run(&mut self, flow: u16) -> usize {
        let mut released = 0;
        while let Some(place) = self.flows[flow].pop_next() {
            self.released(place);
            released += 1;
        }
        released
    }

    fn release_all(&mut self, flow: u16) {
        while self.flows[flow].holds() {
            self.flows[flow].give_up_gap();
            if self.release_whole_run(flow) == 0 {
                // The count of what is held is wrong. It must not keep the thread here.
                return;
            }
        }
    }

    fn released(&mut self, place: Option<Inner>) {
        self.held -= 1;
        if let Some(inner) = place {
            self.held_bytes -= inner.bytes();
            self.ready.push_back(inner);
            self.stats.delivered += 1;
        }
    }

    /// The next packet for the inner network.
    pub fn poll(&mut self) -> Option<Inner> {
        self.ready.pop_front()
    }

    /// When the oldest hold ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.holding.len() > EXACT_FLOWS || self.is_cut {
            return Some(self.look_at);
        }
        count_steps(self.holding.len());
        let holds = self.holding.iter();
        holds.filter_map(|&f| self.flows[f].next_release()).min()
    }

    /// The spread of one-way delays in use for holds, for `status`.
    #[must_use]
    pub fn current_hold(&self) -> Duration {
        self.hold_time()
    }
}

#[cfg(test)]
mod tests;
