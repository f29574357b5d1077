//! Datagrams, and TCP connections with unread bytes, that wait for their turn. Deficit round robin over the sites
//! that sent them (Shreedhar and Varghese, SIGCOMM 1995): one site that sends more than a hub can work off delays
//! and loses its own datagrams only. What is not read from a TCP connection stays in the kernel, and pushes back
//! on the sender.
//!
//! Invariants: a queue is listed in `turns` exactly while something in it waits for its turn only, in `paced` while
//! its rate holds it back, and in `sizes` while it holds datagrams. `bytes` is the sum over all queues. Nothing here
//! looks through the queues.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use ropewalk_transport::{SocketId, begins_connection};
use ropewalk_types::{Ecn, Instant, count_steps};
use rustc_hash::FxHashMap;

use crate::io::StreamId;
use crate::rate::Bucket;
use crate::tuning::{
    FIRST_PACKET_PATIENCE, INTAKE_BYTES, INTAKE_ITEM_BYTES, QUANTUM, RATE_BURST, RATE_BYTES_MAX,
    RATE_BYTES_MIN, RATE_DELAY, STRANGER_WORK, STREAM_BYTES, STREAM_BYTES_ALONE, STREAM_BYTES_WORK,
    WAITING_OF_KEY,
};

/// A datagram and where it came from, as [`Session::handle_udp`](crate::Session::handle_udp) takes them.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub socket: SocketId,
    pub remote: SocketAddr,
    pub local_ip: Option<IpAddr>,
    pub ecn: Ecn,
    pub data: BytesMut,
}

impl Arrival {
    fn bytes(&self) -> usize {
        self.data.len() + INTAKE_ITEM_BYTES
    }
}

/// Whose datagrams stand in one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sender {
    /// The site with this index at the hub.
    Site(usize),
    /// All connections that have proved a key and belong to no tunnel here: of sites that another hub serves, or that
    /// have not said hello yet, and of invitations.
    Waiting,
    /// Everybody who has not proved a key.
    Stranger,
}

/// What a sender may have of this gateway's time and line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Who.
    pub sender: Sender,
    /// The first bytes of the key, if this is one of many who wait for a tunnel. Nobody finds a key with eight wanted bytes.
    pub key: u64,
    /// Turns beside those of others, at least 1.
    pub weight: u32,
    /// Bits per second, if bounded.
    pub rate: Option<u64>,
}

/// What may be worked off now.
#[derive(Debug)]
pub(crate) enum Work {
    /// A datagram.
    Datagram(Arrival),
    /// So many bytes at most of a TCP connection.
    Stream(StreamId, usize),
}

/// A datagram that waits.
#[derive(Debug)]
struct Waits {
    since: Instant,
    /// See [`Share::key`].
    key: u64,
    arrival: Arrival,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waits>,
    bytes: usize,
    /// How many datagrams of each key wait, in a queue that many share; else empty.
    of_key: FxHashMap<u64, u8>,
    /// TCP connections with unread bytes.
    streams: VecDeque<StreamId>,
    /// Whether one of them comes before the next datagram: once in each turn.
    stream_first: bool,
    /// Work that it may still cause in this turn, in datagrams of a site.
    credit: u32,
    weight: u32,
    bucket: Option<Bucket>,
    /// Where the queue is listed, while anything waits.
    place: Option<Place>,
    /// Its size class in `sizes`, while it holds datagrams.
    size: Option<u32>,
}

/// Where a queue is listed.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In `turns`, by this number.
    Turn(u64),
    /// In `paced`, as its rate lets the next datagram through then.
    Paced(Instant),
}

/// The datagrams of all senders.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    queues: FxHashMap<Sender, Queue>,
    /// Whose turn it is, by numbers that grow.
    turns: BTreeMap<u64, Sender>,
    turns_given: u64,
    paced: BTreeSet<(Instant, Sender)>,
    /// The queues by the logarithm of their bytes for their weight, which rarely changes.
    sizes: BTreeSet<(u32, Sender)>,
    bytes: usize,
    /// Datagrams dropped because all together had too many waiting, or because first packets were too old.
    dropped: u64,
    /// Datagrams dropped because their sender sends more than its rate.
    over_rate: u64,
}

impl Intake {
    /// Whether no datagram waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether a datagram waits for its turn only.
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Datagrams dropped because more came than could be worked off, each of a sender that had many waiting, and first
    /// packets that were too old.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Datagrams dropped because their sender sends more than its rate.
    pub const fn over_rate(&self) -> u64 {
        self.over_rate
    }

    /// When [`Self::next`] gives something; long past while a datagram waits for its turn only.
    pub fn due(&self) -> Option<Instant> {
        if self.turns.is_empty() {
            self.paced.first().map(|&(at, _)| at)
        } else {
            Some(Instant::ZERO)
        }
    }

    /// Gives the datagram back if it has to wait neither for others of its sender nor for its rate.
    pub fn pass(&mut self, now: Instant, share: Share, arrival: Arrival) -> Option<Arrival> {
        let waits = self.queues.get(&share.sender);
        let waits = waits.is_some_and(|queue| !queue.is_idle());
        match share.rate {
            None if !waits => return Some(arrival),
            Some(rate) if !waits => {
                let queue = self.queues.entry(share.sender).or_default();
                let bucket = queue.bucket.get_or_insert_default();
                if bucket.takes(now, rate, RATE_BURST, arrival.data.len()) {
                    return Some(arrival);
                }
            }
            None | Some(_) => {}
        }
        self.push(now, share, arrival);
        None
    }

    /// Lets a datagram wait. One of the longest queues loses its oldest datagrams when all together have too many
    /// bytes. The datagram is dropped if many share the queue, and its key has enough in it.
    pub fn push(&mut self, now: Instant, share: Share, mut arrival: Arrival) {
        let queue = Self::queue(&mut self.queues, now, share);
        if share.sender == Sender::Waiting && !queue.admits(share.key) {
            self.dropped += 1;
            return;
        }
        // What waits must not keep the large block in memory that it came in.
        arrival.data = BytesMut::from(&arrival.data[..]);
        self.bytes += arrival.bytes();
        queue.bytes += arrival.bytes();
        queue.waiting.push_back(Waits {
            since: now,
            key: share.key,
            arrival,
        });
        let limit = share.rate.map(rate_bytes);
        while limit.is_some_and(|limit| queue.bytes > limit) && queue.waiting.len() > 1 {
            self.bytes -= queue.drop_oldest();
            self.over_rate += 1;
        }
        queue.list_size(share.sender, &mut self.sizes);
        if queue.place.is_none() {
            self.list(now, share.sender);
        }
        // The longest queue for its weight may be one of many that hold a single short datagram.
        while self.bytes > INTAKE_BYTES && self.shorten_longest() {}
    }

    /// Lets a TCP connection wait that has unread bytes. It must not wait already.
    pub fn push_stream(&mut self, now: Instant, share: Share, stream: StreamId) {
        let queue = Self::queue(&mut self.queues, now, share);
        queue.streams.push_back(stream);
        if queue.place.is_none() {
            self.list(now, share.sender);
        }
    }

    /// Counts bytes that were read from a TCP connection of a sender, for its rate and its turn.
    pub fn charge(&mut self, now: Instant, sender: Sender, bytes: usize) {
        let Some(queue) = self.queues.get_mut(&sender) else {
            return;
        };
        let work = u32::try_from(stream_work(bytes)).unwrap_or(u32::MAX);
        queue.credit = queue.credit.saturating_sub(work);
        if let Some(bucket) = &mut queue.bucket {
            bucket.charge(now, bytes);
        }
        self.settle(now, sender);
    }

    /// A queue has had something: it keeps its place while something waits that still belongs to its turn.
    fn settle(&mut self, now: Instant, sender: Sender) {
        let Some(queue) = self.queues.get_mut(&sender) else {
            return;
        };
        let bucket = queue.bucket.as_ref();
        let held_back = bucket.is_some_and(|bucket| bucket.due(now, RATE_BURST).is_some());
        if queue.is_idle() {
            queue.credit = 0;
            self.unlist(sender);
            self.forget_idle(sender);
        } else if held_back || queue.credit == 0 {
            self.unlist(sender);
            self.list(now, sender);
        }
    }

    fn queue(queues: &mut FxHashMap<Sender, Queue>, now: Instant, share: Share) -> &mut Queue {
        let queue = queues.entry(share.sender).or_default();
        queue.weight = share.weight.max(1);
        match share.rate {
            Some(rate) => queue.bucket.get_or_insert_default().set_rate(now, rate),
            None => queue.bucket = None,
        }
        queue
    }

    /// Puts a queue in which something waits where it belongs.
    fn list(&mut self, now: Instant, sender: Sender) {
        let Some(queue) = self.queues.get_mut(&sender) else {
            return;
        };
        let bucket = queue.bucket.as_ref();
        if let Some(at) = bucket.and_then(|bucket| bucket.due(now, RATE_BURST)) {
            queue.place = Some(Place::Paced(at));
            self.paced.insert((at, sender));
        } else {
            self.turns_given += 1;
            // A turn that the rate has interrupted goes on: else a connection would always come first.
            if queue.credit == 0 {
                queue.credit = QUANTUM * queue.weight;
                queue.stream_first = true;
            }
            queue.place = Some(Place::Turn(self.turns_given));
            self.turns.insert(self.turns_given, sender);
        }
    }

    /// A queue is to be listed elsewhere, or nowhere.
    fn unlist(&mut self, sender: Sender) {
        let queue = self.queues.get_mut(&sender);
        match queue.and_then(|queue| queue.place.take()) {
            Some(Place::Turn(number)) => {
                self.turns.remove(&number);
            }
            Some(Place::Paced(at)) => {
                self.paced.remove(&(at, sender));
            }
            None => {}
        }
    }

    /// Halves a queue that has at least half as many bytes for its weight as any.
    fn shorten_longest(&mut self) -> bool {
        let longest = self.sizes.last().map(|&(_, sender)| sender);
        let Some((sender, queue)) =
            longest.and_then(|sender| Some((sender, self.queues.get_mut(&sender)?)))
        else {
            // Nothing waits, so what the count says is wrong. It must not keep the thread here.
            self.bytes = 0;
            return false;
        };
        for _ in 0..queue.waiting.len().div_ceil(2) {
            self.bytes -= queue.drop_oldest();
            self.dropped += 1;
        }
        queue.list_size(sender, &mut self.sizes);
        if queue.is_idle() {
            self.unlist(sender);
            self.forget_idle(sender);
        }
        true
    }

    /// A queue in which nothing waits goes, unless its bucket remembers what its sender has had.
    fn forget_idle(&mut self, sender: Sender) {
        let queue = self.queues.get(&sender);
        if queue.is_some_and(|queue| queue.is_idle() && queue.bucket.is_none()) {
            self.queues.remove(&sender);
        }
    }

    /// The next one whose turn it is.
    pub fn next(&mut self, now: Instant) -> Option<Work> {
        while let Some(&(at, sender)) = self.paced.first()
            && at <= now
        {
            count_steps(1);
            self.unlist(sender);
            self.list(now, sender);
        }
        let sender = loop {
            count_steps(1);
            let (_, &sender) = self.turns.first_key_value()?;
            if sender != Sender::Stranger || !self.forget_stale(now) {
                break sender;
            }
        };
        let alone = self.turns.len() == 1;
        let queue = self.queues.get_mut(&sender)?;
        let next = queue.next(now, alone)?;
        if let Work::Datagram(arrival) = &next {
            self.bytes -= arrival.bytes();
            queue.list_size(sender, &mut self.sizes);
        }
        // What a reading brings is charged once it is known.
        let work = match sender {
            Sender::Stranger => STRANGER_WORK,
            Sender::Waiting | Sender::Site(_) => 1,
        };
        queue.credit = queue.credit.saturating_sub(work);
        self.settle(now, sender);
        Some(next)
    }

    /// Drops first packets that came too long ago. Their senders repeat them, or have given the attempt up.
    /// Whether there were any: then others may have their turn.
    fn forget_stale(&mut self, now: Instant) -> bool {
        let Some(queue) = self.queues.get_mut(&Sender::Stranger) else {
            return false;
        };
        let before = self.dropped;
        while queue.waiting.front().is_some_and(|first| {
            now.since(first.since) > FIRST_PACKET_PATIENCE && begins_connection(&first.arrival.data)
        }) {
            self.bytes -= queue.drop_oldest();
            self.dropped += 1;
        }
        let any = self.dropped > before;
        if any {
            queue.list_size(Sender::Stranger, &mut self.sizes);
            self.settle(now, Sender::Stranger);
        }
        any
    }

    /// A sender is gone.
    pub fn forget(&mut self, sender: Sender) {
        self.unlist(sender);
        if let Some(queue) = self.queues.remove(&sender) {
            self.bytes -= queue.bytes;
            if let Some(size) = queue.size {
                self.sizes.remove(&(size, sender));
            }
        }
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.streams.is_empty()
    }

    /// Takes the next one out.
    fn next(&mut self, now: Instant, alone: bool) -> Option<Work> {
        if (self.stream_first || self.waiting.is_empty())
            && let Some(stream) = self.streams.pop_front()
        {
            self.stream_first = false;
            let bytes = if alone {
                STREAM_BYTES_ALONE
            } else {
                STREAM_BYTES
            };
            // Datagrams of the sender wait until what was read has passed at its rate.
            let bucket = self.bucket.as_ref();
            let fits = bucket.map(|bucket| bucket.bytes(RATE_BURST).max(STREAM_BYTES_WORK));
            return Some(Work::Stream(stream, fits.unwrap_or(bytes).min(bytes)));
        }
        let arrival = self.pop()?;
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(now, arrival.data.len());
        }
        Some(Work::Datagram(arrival))
    }

    /// Drops the oldest datagram; its bytes.
    fn drop_oldest(&mut self) -> usize {
        count_steps(1);
        self.pop().map_or(0, |oldest| oldest.bytes())
    }

    fn pop(&mut self) -> Option<Arrival> {
        let Waits { key, arrival, .. } = self.waiting.pop_front()?;
        self.bytes -= arrival.bytes();
        if !self.of_key.is_empty()
            && let Entry::Occupied(mut waiting) = self.of_key.entry(key)
        {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        Some(arrival)
    }

    /// Counts a datagram of this key, unless the key has enough in this queue.
    fn admits(&mut self, key: u64) -> bool {
        let waiting = self.of_key.entry(key).or_default();
        let admits = *waiting < WAITING_OF_KEY;
        *waiting += u8::from(admits);
        admits
    }

    /// Lists the queue by its size now.
    fn list_size(&mut self, sender: Sender, sizes: &mut BTreeSet<(u32, Sender)>) {
        let size = (self.bytes / self.weight.max(1) as usize).max(1).ilog2();
        let size = (!self.waiting.is_empty()).then_some(size);
        if size == self.size {
            return;
        }
        if let Some(old) = std::mem::replace(&mut self.size, size) {
            sizes.remove(&(old, sender));
        }
        sizes.extend(size.map(|size| (size, sender)));
    }
}

/// What bytes that were read from a TCP connection count for beyond the reading itself, in datagrams of a site. The
/// reading counts as one.
pub(crate) const fn stream_work(bytes: usize) -> usize {
    bytes / STREAM_BYTES_WORK
}

/// Bytes that may wait behind a rate in bits per second.
fn rate_bytes(rate: u64) -> usize {
    let bytes = rate as f64 / 8.0 * RATE_DELAY.as_secs_f64();
    (bytes as usize).clamp(RATE_BYTES_MIN, RATE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::{Duration, Random, steps};

    const NOW: Instant = Instant::from_millis(1_000);

    fn share(sender: Sender, weight: u32, rate: Option<u64>) -> Share {
        Share {
            sender,
            key: 0,
            weight,
            rate,
        }
    }

    /// A datagram of this size that begins with its sender and number.
    fn arrival(sender: u8, number: u32, size: usize) -> Arrival {
        let mut data = BytesMut::zeroed(size.max(5));
        data[0] = sender;
        data[1..5].copy_from_slice(&number.to_be_bytes());
        Arrival {
            socket: SocketId(0),
            remote: ([127, 0, 0, 1], 1).into(),
            local_ip: None,
            ecn: Ecn::NotEct,
            data,
        }
    }

    #[test]
    fn a_key_that_floods_the_queue_of_those_who_wait_costs_the_others_one_turn() {
        let mut intake = Intake::default();
        let waiting = |key| Share {
            key,
            ..share(Sender::Waiting, 1, None)
        };
        for number in 0..1_000 {
            intake.push(NOW, waiting(1), arrival(201, number, 100));
        }
        assert_eq!(intake.dropped(), 1_000 - u64::from(WAITING_OF_KEY));
        intake.push(NOW, waiting(2), arrival(202, 0, 100));
        for site in 0..50 {
            for number in 0..5 {
                let share = share(Sender::Site(site.into()), 1, None);
                intake.push(NOW, share, arrival(site, number, 100));
            }
        }
        // One turn of those who wait has the flood, all sites have theirs, and the next turn has the other key.
        let mut order = vec![];
        while let Some(Work::Datagram(arrival)) = intake.next(NOW) {
            order.push(arrival.data[0]);
        }
        let flood = usize::try_from(QUANTUM).unwrap();
        assert_eq!(order.len(), flood + 50 * 5 + 1);
        assert!(order[..flood].iter().all(|&first| first == 201));
        assert_eq!(order.last(), Some(&202));
        // What has had its turn makes room.
        intake.push(NOW, waiting(1), arrival(201, 0, 100));
        assert!(!intake.is_empty());
    }

    #[test]
    fn first_packets_of_too_long_ago_are_dropped_and_nothing_else() {
        let mut intake = Intake::default();
        // An Initial packet of version 1 with an identifier of 16 bytes, as that of an attempt.
        let first = |number: u8| {
            let mut packet = arrival(0, number.into(), 100);
            packet.data[..6].copy_from_slice(&[0xc0, 0, 0, 0, 1, 16]);
            packet.data[99] = number;
            packet
        };
        let (stranger, site) = (
            share(Sender::Stranger, 1, None),
            share(Sender::Site(1), 1, None),
        );
        for (ms, number) in [(0, 0), (50, 1), (190, 2)] {
            let now = NOW + Duration::from_millis(ms);
            intake.push(now, stranger, first(number));
            intake.push(now, site, arrival(1, number.into(), 100));
        }
        let late = NOW + Duration::from_millis(60) + FIRST_PACKET_PATIENCE;
        let mut left: Vec<_> = std::iter::from_fn(|| match intake.next(late) {
            Some(Work::Datagram(arrival)) if arrival.data[0] == 0xc0 => Some((0, arrival.data[99])),
            Some(Work::Datagram(arrival)) => Some((arrival.data[0], arrival.data[4])),
            _ => None,
        })
        .collect();
        left.sort_unstable();
        assert_eq!(left, [(0, 2), (1, 0), (1, 1), (1, 2)]);
        assert!(intake.is_empty() && !intake.has_turns());
        assert_eq!(intake.dropped(), 2);
        // All of them may be too old.
        intake.push(NOW, share(Sender::Stranger, 1, None), first(0));
        assert!(intake.next(late).is_none() && intake.is_empty() && !intake.has_turns());
        // What goes on with a handshake is not.
        for known in [
            [0xc0, 0, 0, 0, 1, 6],
            [0xe0, 0, 0, 0, 1, 16],
            [0x40, 0, 0, 0, 1, 16],
        ] {
            let mut packet = first(0);
            packet.data[..6].copy_from_slice(&known);
            intake.push(NOW, share(Sender::Stranger, 1, None), packet);
            assert!(intake.next(late).is_some(), "{known:?}");
        }
    }

    #[test]
    fn a_wrong_count_of_bytes_ends_no_loop_late_and_is_set_right() {
        let mut intake = Intake {
            bytes: 10 * INTAKE_BYTES,
            ..Intake::default()
        };
        intake.push(NOW, share(Sender::Site(0), 1, None), arrival(1, 0, 100));
        assert!(intake.bytes <= INTAKE_BYTES, "{}", intake.bytes);
        assert!(!intake.has_turns());
        intake.push(NOW, share(Sender::Site(0), 1, None), arrival(1, 1, 100));
        assert!(next(&mut intake, NOW).is_some());
    }

    /// The next one, which is a datagram.
    fn next(intake: &mut Intake, now: Instant) -> Option<Arrival> {
        match intake.next(now)? {
            Work::Datagram(arrival) => Some(arrival),
            Work::Stream(..) => panic!("nobody has one"),
        }
    }

    fn senders(intake: &mut Intake, now: Instant, count: usize) -> Vec<u8> {
        let first = |_| next(intake, now).map(|arrival| arrival.data[0]);
        (0..count).map_while(first).collect()
    }

    #[test]
    fn a_sender_of_few_datagrams_does_not_wait_for_one_of_many() {
        let mut intake = Intake::default();
        for number in 0..1_000 {
            intake.push(
                NOW,
                share(Sender::Site(1), 1, None),
                arrival(1, number, 1_400),
            );
        }
        for number in 0..10 {
            intake.push(
                NOW,
                share(Sender::Site(2), 1, None),
                arrival(2, number, 100),
            );
        }
        let first = senders(&mut intake, NOW, QUANTUM as usize + 10);
        assert_eq!(first.iter().filter(|sender| **sender == 2).count(), 10);
    }

    #[test]
    fn turns_follow_the_weights_and_strangers_come_rarely() {
        let mut intake = Intake::default();
        for number in 0..2_000 {
            intake.push(NOW, share(Sender::Site(1), 1, None), arrival(1, number, 5));
            intake.push(NOW, share(Sender::Site(3), 3, None), arrival(3, number, 5));
            intake.push(NOW, share(Sender::Stranger, 1, None), arrival(0, number, 5));
        }
        let first = senders(&mut intake, NOW, 10 * (4 * QUANTUM as usize + 1));
        let count = |of: u8| first.iter().filter(|sender| **sender == of).count();
        assert_eq!(count(3), 3 * count(1));
        assert_eq!(count(0) * STRANGER_WORK as usize, count(1));
    }

    #[test]
    fn who_sends_too_much_loses_and_nobody_else() {
        let mut intake = Intake::default();
        for number in 0..50 {
            intake.push(
                NOW,
                share(Sender::Site(2), 1, None),
                arrival(2, number, 1_400),
            );
        }
        for number in 0..10_000 {
            intake.push(
                NOW,
                share(Sender::Site(1), 1, None),
                arrival(1, number, 1_400),
            );
            assert!(intake.bytes <= INTAKE_BYTES);
        }
        let (dropped, rest) = (intake.dropped(), senders(&mut intake, NOW, 20_000));
        assert_eq!(rest.iter().filter(|sender| **sender == 2).count(), 50);
        assert_eq!(rest.len() as u64 + dropped, 10_050);
        assert!(dropped > 5_000, "{dropped} were dropped");
    }

    #[test]
    fn what_a_full_intake_costs_does_not_grow_with_the_number_of_senders() {
        for senders in [2, 16_000] {
            let mut intake = Intake::default();
            let before = steps();
            let count = 40_000;
            for number in 0..count {
                let of = Sender::Site(number as usize % senders);
                intake.push(NOW, share(of, 1, None), arrival(1, number, 300));
                assert!(intake.bytes <= INTAKE_BYTES);
            }
            let dropped = intake.dropped();
            assert!(dropped > 10_000, "{dropped} were dropped");
            let left = std::iter::from_fn(|| next(&mut intake, NOW)).count() as u64;
            assert_eq!(left + dropped, u64::from(count));
            let cost = steps() - before;
            assert!(
                cost < 2 * u64::from(count),
                "{cost} steps of {senders} senders"
            );
        }
    }

    #[test]
    fn a_connection_over_tcp_has_turns_beside_datagrams_and_all_of_them_alone() {
        let mut intake = Intake::default();
        let (tcp, udp) = (Sender::Site(1), Sender::Site(2));
        let (mut read, mut datagrams) = (0, 0);
        intake.push_stream(NOW, share(tcp, 1, None), StreamId(7));
        for number in 0..2_000 {
            intake.push(NOW, share(udp, 1, None), arrival(2, number, 1_400));
        }
        while datagrams < 1_600 {
            match intake.next(NOW) {
                Some(Work::Datagram(_)) => datagrams += 1,
                Some(Work::Stream(stream, bytes)) => {
                    read += bytes;
                    // Whatever is read, more comes.
                    intake.push_stream(NOW, share(tcp, 1, None), stream);
                }
                None => panic!("there is more"),
            }
        }
        let worth = read / STREAM_BYTES_WORK;
        assert!(
            (1_000..=1_800).contains(&worth),
            "{worth} beside {datagrams}"
        );
        intake.forget(udp);
        let next = intake.next(NOW);
        assert!(matches!(
            next,
            Some(Work::Stream(StreamId(7), STREAM_BYTES_ALONE))
        ));
        assert!(!intake.has_turns());
    }

    #[test]
    fn a_reading_counts_for_what_was_read() {
        let (tcp, udp) = (Sender::Site(1), Sender::Site(2));
        // Bytes of each reading, and how many readings of ten come before the other site's turn.
        for (bytes, expected) in [(100, 10), (STREAM_BYTES, 2)] {
            let mut intake = Intake::default();
            for stream in 0..10 {
                intake.push_stream(NOW, share(tcp, 1, None), StreamId(stream));
            }
            intake.push(NOW, share(udp, 1, None), arrival(2, 0, 1_400));
            let mut read = 0;
            while let Some(Work::Stream(..)) = intake.next(NOW) {
                read += 1;
                intake.charge(NOW, tcp, bytes);
            }
            assert_eq!(read, expected, "readings of {bytes} bytes");
        }
    }

    #[test]
    fn datagrams_beside_tcp_connections_of_one_rate_wait_for_some_milliseconds() {
        let rate = 1_000_000;
        let mut intake = Intake::default();
        let slow = share(Sender::Site(1), 1, Some(rate));
        let (mut sent_at, mut longest, mut came, mut read) = (NOW, Duration::ZERO, 0, 0);
        // Three connections that always have more, alone at the hub.
        for stream in 0..3 {
            intake.push_stream(NOW, slow, StreamId(stream));
        }
        for step in 0..2_000_u32 {
            let now = NOW + Duration::from_millis(1) * step;
            if step % 100 == 0 {
                sent_at = now;
                let passed = intake.pass(now, slow, arrival(1, step, 500));
                came += usize::from(passed.is_some());
            }
            while let Some(work) = intake.next(now) {
                match work {
                    Work::Datagram(_) => {
                        came += 1;
                        longest = longest.max(now.since(sent_at));
                    }
                    Work::Stream(stream, bytes) => {
                        read += bytes;
                        intake.charge(now, Sender::Site(1), bytes);
                        intake.push_stream(now, slow, stream);
                    }
                }
            }
        }
        assert_eq!((came, intake.dropped(), intake.over_rate()), (20, 0, 0));
        // A piece takes 11 ms, and one may come before the datagram.
        assert!(longest < Duration::from_millis(30), "{longest:?}");
        let all = read + 20 * 500;
        assert!((245_000..255_000).contains(&all), "{all} bytes in 2 s");
    }

    #[test]
    fn the_bound_holds_beside_any_number_of_short_queues() {
        let mut intake = Intake::default();
        for site in 1..=9_000 {
            let sender = share(Sender::Site(site), 1, None);
            intake.push(NOW, sender, arrival(1, 0, 300));
        }
        // Long datagrams of a site whose weight makes its queue no longer than the others.
        for number in 0..10 {
            let heavy = share(Sender::Site(0), 2_000, None);
            intake.push(NOW, heavy, arrival(0, number, 65_000));
            assert!(intake.bytes <= INTAKE_BYTES, "{} bytes", intake.bytes);
        }
    }

    #[test]
    fn bytes_over_tcp_count_for_the_rate() {
        let mut intake = Intake::default();
        let slow = share(Sender::Site(1), 1, Some(8_000_000));
        let mut read = 0;
        for step in 0..2_000_u32 {
            let now = NOW + Duration::from_millis(1) * step;
            if step % 100 == 0 && !intake.has_turns() && intake.due().is_none() {
                intake.push_stream(now, slow, StreamId(7));
            }
            while let Some(Work::Stream(stream, bytes)) = intake.next(now) {
                read += bytes;
                intake.charge(now, Sender::Site(1), bytes);
                intake.push_stream(now, slow, stream);
            }
        }
        // 8 Mbit/s for 2 s, and one reading more.
        assert!((1_990_000..2_070_000).contains(&read), "{read}");
    }

    #[test]
    fn a_rate_holds_one_sender_back_and_no_other() {
        let mut intake = Intake::default();
        let slow = share(Sender::Site(1), 1, Some(8_000_000));
        let (mut slow_bytes, mut fast) = (0, 0);
        for step in 0..2_000_u32 {
            let now = NOW + Duration::from_millis(1) * step;
            // 8 Mbit/s are one datagram of 1,000 bytes each millisecond; twice that comes.
            for half in 0..2 {
                let passed = intake.pass(now, slow, arrival(1, 2 * step + half, 1_000));
                slow_bytes += passed.map_or(0, |arrival| arrival.data.len());
            }
            let passed = intake.pass(
                now,
                share(Sender::Site(2), 1, None),
                arrival(2, step, 1_000),
            );
            fast += usize::from(passed.is_some());
            while let Some(arrival) = next(&mut intake, now) {
                slow_bytes += arrival.data.len();
            }
        }
        assert_eq!(fast, 2_000);
        assert!((1_990_000..2_010_000).contains(&slow_bytes), "{slow_bytes}");
        assert!(
            intake.due().is_some_and(|due| due > NOW),
            "the rest waits for its time"
        );
        assert!(intake.bytes <= rate_bytes(8_000_000));
        // Twice the rate came, and the hub had nothing else to do.
        assert_eq!(intake.dropped(), 0);
        assert!(intake.over_rate() > 1_800, "{}", intake.over_rate());
    }

    #[test]
    fn each_sender_keeps_its_order_whatever_happens() {
        let mut random = Random::new(7);
        let mut intake = Intake::default();
        // So many that a queue of one long datagram can be the longest.
        let (mut sent, mut seen) = ([0_u32; 128], [0_u32; 128]);
        let mut streams = BTreeSet::new();
        let mut now = NOW;
        for _ in 0..50_000 {
            let of = (random.next_u64() % 128) as u8;
            let sender = if of == 0 {
                Sender::Stranger
            } else {
                Sender::Site(of.into())
            };
            let rate = (of == 5).then_some(2_000_000);
            match random.next_u64() % 10 {
                0..5 => {
                    sent[usize::from(of)] += 1;
                    let size =
                        5 + (random.next_u64() % [1_400, 65_000][usize::from(of % 2)]) as usize;
                    let arrival = arrival(of, sent[usize::from(of)], size);
                    intake.push(now, share(sender, u32::from(of) + 1, rate), arrival);
                }
                5..9 => match intake.next(now) {
                    Some(Work::Datagram(arrival)) => {
                        let of = usize::from(arrival.data[0]);
                        let number = u32::from_be_bytes(arrival.data[1..5].try_into().unwrap());
                        assert!(number > seen[of], "{number} after {}", seen[of]);
                        seen[of] = number;
                    }
                    Some(Work::Stream(stream, _)) => {
                        assert!(streams.remove(&stream), "it waited once");
                        intake.charge(now, sender, 1_000);
                    }
                    None => {}
                },
                _ if random.next_u64().is_multiple_of(100) => {
                    intake.forget(sender);
                    streams.retain(|StreamId(stream)| *stream != u32::from(of));
                }
                _ if random.next_u64().is_multiple_of(4) => {
                    let stream = StreamId(of.into());
                    if streams.insert(stream) {
                        intake.push_stream(now, share(sender, u32::from(of) + 1, rate), stream);
                    }
                }
                _ => now += Duration::from_micros(random.next_u64() % 2_000),
            }
            let bytes: usize = intake.queues.values().map(|queue| queue.bytes).sum();
            assert_eq!(bytes, intake.bytes);
            assert!(bytes <= INTAKE_BYTES);
            let queues = || intake.queues.values();
            let busy = queues().filter(|queue| !queue.is_idle()).count();
            assert_eq!(busy, intake.turns.len() + intake.paced.len());
            let waiting = queues().filter(|queue| !queue.waiting.is_empty());
            assert_eq!(waiting.count(), intake.sizes.len());
            let waiting = queues().map(|queue| queue.streams.len());
            assert_eq!(waiting.sum::<usize>(), streams.len());
            let mut idle = queues().filter(|queue| queue.is_idle());
            assert!(idle.all(|queue| queue.bucket.is_some()));
        }
        while let Some(due) = intake.due() {
            now = now.max(due);
            if let Some(Work::Stream(stream, _)) = intake.next(now) {
                assert!(streams.remove(&stream));
            }
        }
        assert!(intake.is_empty() && streams.is_empty());
    }
}
