//! Datagrams that wait for their turn. Deficit round robin over the sites that sent them (Shreedhar and
//! Varghese, SIGCOMM 1995): one site that sends more than a hub can work off delays and loses its own datagrams
//! only.
//!
//! Invariants: a queue is listed in `turns` exactly while it holds datagrams that its rate lets through, and in
//! `paced` while it holds datagrams that its rate holds back. `bytes` is the sum over all queues.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use ropewalk_transport::SocketId;
use ropewalk_types::{Ecn, Instant};
use rustc_hash::FxHashMap;

use crate::rate::Bucket;
use crate::tuning::{
    INTAKE_BYTES, INTAKE_ITEM_BYTES, QUANTUM, RATE_BURST, RATE_BYTES_MAX, RATE_BYTES_MIN,
    RATE_DELAY, STRANGER_WORK,
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
    /// Everybody who has not said hello.
    Stranger,
}

/// What a sender may have of this gateway's time and line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Who.
    pub sender: Sender,
    /// Turns beside those of others, at least 1.
    pub weight: u32,
    /// Bits per second, if bounded.
    pub rate: Option<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arrival>,
    bytes: usize,
    /// Work that it may still cause in this turn, in datagrams of a site.
    credit: u32,
    weight: u32,
    bucket: Option<Bucket>,
    /// When the rate lets the next datagram through, while the queue is in `paced`.
    paced: Option<Instant>,
}

/// The datagrams of all senders.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    queues: FxHashMap<Sender, Queue>,
    turns: VecDeque<Sender>,
    paced: BTreeSet<(Instant, Sender)>,
    bytes: usize,
    /// Datagrams dropped because their sender had too many waiting.
    dropped: u64,
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

    /// Datagrams dropped because their sender had too many waiting.
    pub const fn dropped(&self) -> u64 {
        self.dropped
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
        let waits = waits.is_some_and(|queue| !queue.waiting.is_empty());
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

    /// Lets a datagram wait. The longest queue loses its oldest datagrams when all together have too many bytes.
    pub fn push(&mut self, now: Instant, share: Share, mut arrival: Arrival) {
        // What waits must not keep the large block in memory that it came in.
        arrival.data = BytesMut::from(&arrival.data[..]);
        let queue = self.queues.entry(share.sender).or_default();
        queue.weight = share.weight.max(1);
        match share.rate {
            Some(rate) => queue.bucket.get_or_insert_default().set_rate(now, rate),
            None => queue.bucket = None,
        }
        self.bytes += arrival.bytes();
        queue.bytes += arrival.bytes();
        let first = queue.waiting.is_empty();
        queue.waiting.push_back(arrival);
        let limit = share.rate.map(rate_bytes);
        while let Some(limit) = limit
            && queue.bytes > limit
            && queue.waiting.len() > 1
            && let Some(oldest) = queue.waiting.pop_front()
        {
            queue.bytes -= oldest.bytes();
            self.bytes -= oldest.bytes();
            self.dropped += 1;
        }
        if first {
            self.list(now, share.sender);
        }
        if self.bytes > INTAKE_BYTES {
            self.shorten_longest();
        }
    }

    /// Puts a queue that has datagrams where it belongs.
    fn list(&mut self, now: Instant, sender: Sender) {
        let Some(queue) = self.queues.get_mut(&sender) else {
            return;
        };
        match queue
            .bucket
            .as_ref()
            .and_then(|bucket| bucket.due(now, RATE_BURST))
        {
            Some(at) => {
                queue.paced = Some(at);
                self.paced.insert((at, sender));
            }
            None => {
                queue.credit = QUANTUM * queue.weight;
                self.turns.push_back(sender);
            }
        }
    }

    /// Halves the queue with most bytes for its weight.
    fn shorten_longest(&mut self) {
        let longest = self
            .queues
            .iter_mut()
            .max_by_key(|(sender, queue)| (queue.bytes / queue.weight.max(1) as usize, **sender));
        let Some((&sender, queue)) = longest else {
            return;
        };
        for _ in 0..queue.waiting.len().div_ceil(2) {
            if let Some(oldest) = queue.waiting.pop_front() {
                queue.bytes -= oldest.bytes();
                self.bytes -= oldest.bytes();
                self.dropped += 1;
            }
        }
        if queue.waiting.is_empty() {
            if let Some(at) = queue.paced.take() {
                self.paced.remove(&(at, sender));
            }
            self.turns.retain(|one| *one != sender);
            if queue.bucket.is_none() {
                self.queues.remove(&sender);
            }
        }
    }

    /// The next datagram whose turn it is.
    pub fn next(&mut self, now: Instant) -> Option<Arrival> {
        while let Some(&(at, sender)) = self.paced.first()
            && at <= now
        {
            self.paced.pop_first();
            if let Some(queue) = self.queues.get_mut(&sender) {
                queue.paced = None;
                queue.credit = QUANTUM * queue.weight;
                self.turns.push_back(sender);
            }
        }
        let &sender = self.turns.front()?;
        let queue = self.queues.get_mut(&sender)?;
        let arrival = queue.waiting.pop_front()?;
        queue.bytes -= arrival.bytes();
        self.bytes -= arrival.bytes();
        if let Some(bucket) = &mut queue.bucket {
            bucket.charge(now, arrival.data.len());
        }
        let work = match sender {
            Sender::Site(_) => 1,
            Sender::Stranger => STRANGER_WORK,
        };
        queue.credit = queue.credit.saturating_sub(work);
        let held_back = queue
            .bucket
            .as_ref()
            .is_some_and(|b| b.due(now, RATE_BURST).is_some());
        if queue.waiting.is_empty() {
            self.turns.pop_front();
            // A bucket remembers what its sender has had.
            if queue.bucket.is_none() {
                self.queues.remove(&sender);
            }
        } else if held_back || queue.credit == 0 {
            self.turns.pop_front();
            self.list(now, sender);
        }
        Some(arrival)
    }

    /// A sender is gone.
    pub fn forget(&mut self, sender: Sender) {
        let Some(queue) = self.queues.remove(&sender) else {
            return;
        };
        self.bytes -= queue.bytes;
        if let Some(at) = queue.paced {
            self.paced.remove(&(at, sender));
        } else if !queue.waiting.is_empty() {
            self.turns.retain(|one| *one != sender);
        }
    }
}

/// Bytes that may wait behind a rate in bits per second.
fn rate_bytes(rate: u64) -> usize {
    let bytes = rate as f64 / 8.0 * RATE_DELAY.as_secs_f64();
    (bytes as usize).clamp(RATE_BYTES_MIN, RATE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::{Duration, Random};

    const NOW: Instant = Instant::from_millis(1_000);

    fn share(sender: Sender, weight: u32, rate: Option<u64>) -> Share {
        Share {
            sender,
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

    fn senders(intake: &mut Intake, now: Instant, count: usize) -> Vec<u8> {
        let next = |_| intake.next(now).map(|arrival| arrival.data[0]);
        (0..count).map_while(next).collect()
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
            while let Some(arrival) = intake.next(now) {
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
    }

    #[test]
    fn each_sender_keeps_its_order_whatever_happens() {
        let mut random = Random::new(7);
        let mut intake = Intake::default();
        // So many that a queue of one long datagram can be the longest.
        let (mut sent, mut seen) = ([0_u32; 128], [0_u32; 128]);
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
                5..9 => {
                    if let Some(arrival) = intake.next(now) {
                        let of = usize::from(arrival.data[0]);
                        let number = u32::from_be_bytes(arrival.data[1..5].try_into().unwrap());
                        assert!(number > seen[of], "{number} after {}", seen[of]);
                        seen[of] = number;
                    }
                }
                _ if random.next_u64().is_multiple_of(100) => intake.forget(sender),
                _ => now += Duration::from_micros(random.next_u64() % 2_000),
            }
            let bytes: usize = intake.queues.values().map(|queue| queue.bytes).sum();
            assert_eq!(bytes, intake.bytes);
            let waiting = intake
                .queues
                .values()
                .filter(|queue| !queue.waiting.is_empty());
            assert_eq!(waiting.count(), intake.turns.len() + intake.paced.len());
            let mut idle = intake.queues.values().filter(|q| q.waiting.is_empty());
            assert!(idle.all(|queue| queue.bucket.is_some()));
        }
        while let Some(due) = intake.due() {
            now = now.max(due);
            assert!(intake.next(now).is_some());
        }
        assert!(intake.is_empty());
    }
}
