//! One direction of a link: queue → serialiser → loss → delay.
//!
//! All stages run in the caller's time: a late call computes what would have happened on time,
//! so rate and delay do not depend on how often the caller polls. Unless reordering is on,
//! packets leave in the order in which they entered, whatever the jitter.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use ropewalk_types::{Duration, Instant, Random};
use serde::{Deserialize, Serialize};

use crate::capacity::{Capacity, Serialiser};
use crate::loss::{LossModel, LossProcess};
use crate::queue::{Aqm, Carried, Fate, Queue};

/// Queue limit in packets unless a plan says otherwise: Linux's default transmit queue length.
pub const QUEUE_PACKETS_DEFAULT: u64 = 1_000;
/// Packets on their way (sent, not yet arrived); more are dropped and counted.
pub const IN_FLIGHT_PACKETS_MAX: usize = 131_072;
/// Lost items kept for [`Direction::poll_lost`]; more are dropped with their content.
const LOST_KEPT_MAX: usize = 64;

/// What a direction does to packets.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionConfig {
    /// Rate or trace of the serialiser.
    pub capacity: Capacity,
    /// Propagation delay, after the serialiser.
    pub delay: Duration,
    /// Standard deviation of the normal deviate added to the delay; never below zero delay.
    pub jitter: Duration,
    /// Whether jitter may let packets overtake each other.
    pub reorder: bool,
    /// Random loss, after the serialiser: lost packets have used capacity.
    pub loss: LossModel,
    /// Waiting bytes above which arrivals are dropped; the packet being sent does not count.
    pub queue_bytes_max: Option<u64>,
    /// Waiting packets above which arrivals are dropped; the packet being sent does not count.
    pub queue_packets_max: Option<u64>,
    /// Larger packets are dropped silently, as a hop that sends no ICMP would.
    pub mtu: Option<u64>,
    /// Whether everything that leaves the serialiser vanishes.
    pub blackhole: bool,
    /// How the queue is managed.
    pub aqm: Aqm,
    /// Whether the management marks packets that can be marked, instead of dropping them.
    pub ecn: bool,
    /// Standing delay that the management aims at; that of its RFC unless given.
    pub aqm_target: Option<Duration>,
    /// CoDel's interval; that of its RFC unless given.
    pub aqm_interval: Option<Duration>,
    /// Packets that can be marked are, when they have waited for longer; also without management.
    pub ce_threshold: Option<Duration>,
}

impl Default for DirectionConfig {
    fn default() -> Self {
        Self {
            capacity: Capacity::Unlimited,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: false,
            loss: LossModel::None,
            queue_bytes_max: None,
            queue_packets_max: Some(QUEUE_PACKETS_DEFAULT),
            mtu: None,
            blackhole: false,
            aqm: Aqm::None,
            ecn: false,
            aqm_target: None,
            aqm_interval: None,
            ce_threshold: None,
        }
    }
}

/// New values for some settings of a direction; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// See [`DirectionConfig::capacity`]; a trace starts at the time of the change.
    pub capacity: Option<Capacity>,
    /// See [`DirectionConfig::delay`]; applies to packets that leave the serialiser from now on.
    pub delay: Option<Duration>,
    /// See [`DirectionConfig::jitter`].
    pub jitter: Option<Duration>,
    /// See [`DirectionConfig::reorder`].
    pub reorder: Option<bool>,
    /// See [`DirectionConfig::loss`].
    pub loss: Option<LossModel>,
    /// See [`DirectionConfig::queue_bytes_max`]; packets already waiting stay.
    pub queue_bytes_max: Option<Option<u64>>,
    /// See [`DirectionConfig::queue_packets_max`]; packets already waiting stay.
    pub queue_packets_max: Option<Option<u64>>,
    /// See [`DirectionConfig::mtu`].
    pub mtu: Option<Option<u64>>,
    /// See [`DirectionConfig::blackhole`]; packets already on their way still arrive.
    pub blackhole: Option<bool>,
    /// See [`DirectionConfig::aqm`]; packets already waiting stay, the new rule knows nothing yet.
    pub aqm: Option<Aqm>,
    /// See [`DirectionConfig::ecn`].
    pub ecn: Option<bool>,
    /// See [`DirectionConfig::aqm_target`].
    pub aqm_target: Option<Option<Duration>>,
    /// See [`DirectionConfig::aqm_interval`].
    pub aqm_interval: Option<Option<Duration>>,
    /// See [`DirectionConfig::ce_threshold`].
    pub ce_threshold: Option<Option<Duration>>,
}

impl DirectionConfig {
    /// This configuration with the settings of `change`.
    #[must_use]
    pub fn with(mut self, change: &Change) -> Self {
        self.apply(change);
        self
    }

    fn apply(&mut self, change: &Change) {
        fn set<V: Clone>(slot: &mut V, value: &Option<V>) {
            if let Some(value) = value {
                slot.clone_from(value);
            }
        }
        set(&mut self.capacity, &change.capacity);
        set(&mut self.delay, &change.delay);
        set(&mut self.jitter, &change.jitter);
        set(&mut self.reorder, &change.reorder);
        set(&mut self.loss, &change.loss);
        set(&mut self.queue_bytes_max, &change.queue_bytes_max);
        set(&mut self.queue_packets_max, &change.queue_packets_max);
        set(&mut self.mtu, &change.mtu);
        set(&mut self.blackhole, &change.blackhole);
        set(&mut self.aqm, &change.aqm);
        set(&mut self.ecn, &change.ecn);
        set(&mut self.aqm_target, &change.aqm_target);
        set(&mut self.aqm_interval, &change.aqm_interval);
        set(&mut self.ce_threshold, &change.ce_threshold);
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    Queue,
    /// The packet was larger than the MTU.
    Mtu,
    /// Random loss.
    Loss,
    /// The blackhole was on.
    Blackhole,
    /// More than [`IN_FLIGHT_PACKETS_MAX`] packets were on their way.
    InFlight,
    /// The queue's management.
    Aqm,
}

/// What happened in one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that entered.
    pub sent_packets: u64,
    /// Bytes that entered.
    pub sent_bytes: u64,
    /// Packets that left at the other end.
    pub delivered_packets: u64,
    /// Bytes that left at the other end.
    pub delivered_bytes: u64,
    /// Packets dropped because the queue was full.
    pub dropped_queue: u64,
    /// Packets dropped because they were larger than the MTU.
    pub dropped_mtu: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Runs of consecutive random losses; `dropped_loss / loss_bursts` is the mean burst.
    pub loss_bursts: u64,
    /// Packets lost to the blackhole.
    pub dropped_blackhole: u64,
    /// Packets dropped because too many were on their way.
    pub dropped_in_flight: u64,
    /// Packets waiting or being sent now.
    pub queued_packets: u64,
    /// Bytes waiting or being sent now.
    pub queued_bytes: u64,
    /// Most bytes that ever waited.
    pub queued_bytes_peak: u64,
    /// Packets sent and not yet arrived.
    pub in_flight_packets: u64,
    /// Packets dropped by the queue's management.
    pub dropped_aqm: u64,
    /// Packets marked "congestion experienced" by the queue, those that were marked before included.
    pub marked: u64,
}

impl Counters {
    /// Packets dropped for any reason.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped_queue
            + self.dropped_mtu
            + self.dropped_loss
            + self.dropped_blackhole
            + self.dropped_in_flight
            + self.dropped_aqm
    }
}

/// A packet that was not accepted, given back with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// Why.
    pub reason: DropReason,
    /// The content.
    pub item: T,
}

/// One direction of a link carrying items of type `T`.
#[derive(Debug)]
pub struct Direction<T> {
    config: DirectionConfig,
    serialiser: Serialiser,
    queue: Queue<T>,
    in_service: Option<InService<T>>,
    /// Packets on their way whose arrival times ascend.
    ordered: VecDeque<Flying<T>>,
    /// Packets on their way that were sent while reordering was allowed.
    unordered: BinaryHeap<Flying<T>>,
    /// Latest arrival given to a packet that must keep its order.
    last_arrival: Instant,
    sequence: u64,
    loss: LossProcess,
    lost_before: bool,
    jitter_random: Random,
    lost: VecDeque<T>,
    counters: Counters,
    now: Instant,
}

#[derive(Debug)]
struct InService<T> {
    item: T,
    bytes: u64,
    /// What was still to be sent at `since`.
    bytes_left: u64,
    since: Instant,
    finish: Instant,
}

#[derive(Debug)]
struct Flying<T> {
    arrival: Instant,
    sequence: u64,
    bytes: u64,
    item: T,
}

impl<T: Carried> Direction<T> {
    /// A direction that starts at [`Instant::ZERO`]; all randomness follows from `seed`.
    #[must_use]
    pub fn new(config: DirectionConfig, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let serialiser = Serialiser::new(config.capacity.clone(), Instant::ZERO);
        let (loss, jitter) = (random.fork(), random.fork());
        Self {
            queue: Queue::new(config.aqm, random.fork()),
            config,
            serialiser,
            in_service: None,
            ordered: VecDeque::new(),
            unordered: BinaryHeap::new(),
            last_arrival: Instant::ZERO,
            sequence: 0,
            loss: LossProcess::new(loss),
            lost_before: false,
            jitter_random: jitter,
            lost: VecDeque::new(),
            counters: Counters::default(),
            now: Instant::ZERO,
        }
    }

    /// Takes in a packet of `bytes` (its IP length) at `now`.
    ///
    /// # Errors
    /// Gives the item back when the packet is larger than the MTU or the queue is full; both are
    /// counted as sent and dropped.
    pub fn enqueue(&mut self, now: Instant, bytes: usize, item: T) -> Result<(), Refused<T>> {
        self.advance(now);
        let bytes = bytes as u64;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += bytes;
        if self.config.mtu.is_some_and(|mtu| bytes > mtu) {
            self.counters.dropped_mtu += 1;
            return Err(Refused {
                reason: DropReason::Mtu,
                item,
            });
        }
        if self.in_service.is_none() {
            self.serve(self.now, bytes, item);
            self.advance(now);
            return Ok(());
        }
        match self.queue.push(self.now, bytes, item, &self.config) {
            Ok(marked) => self.counters.marked += u64::from(marked),
            Err(refused) => {
                match refused.reason {
                    DropReason::Aqm => self.counters.dropped_aqm += 1,
                    DropReason::Queue
                    | DropReason::Mtu
                    | DropReason::Loss
                    | DropReason::Blackhole
                    | DropReason::InFlight => self.counters.dropped_queue += 1,
                }
                return Err(refused);
            }
        }
        while let Some(victim) = self.queue.overflow(&self.config) {
            self.counters.dropped_queue += 1;
            self.keep_lost(victim);
        }
        let peak = &mut self.counters.queued_bytes_peak;
        *peak = self.queue.bytes().max(*peak);
        Ok(())
    }

    /// The next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<T> {
        self.advance(now);
        let from_unordered = match (self.ordered.front(), self.unordered.peek()) {
            (Some(a), Some(b)) => b > a,
            (None, Some(_)) => true,
            (Some(_) | None, None) => false,
        };
        let next = if from_unordered {
            self.unordered.peek()
        } else {
            self.ordered.front()
        };
        next.filter(|flying| flying.arrival <= self.now)?;
        let flying = if from_unordered {
            self.unordered.pop()
        } else {
            self.ordered.pop_front()
        }?;
        self.counters.delivered_packets += 1;
        self.counters.delivered_bytes += flying.bytes;
        Some(flying.item)
    }

    /// Gives back the content of a lost packet, so that its buffer can be used again.
    ///
    /// Optional: a bounded number is kept, the rest is dropped.
    pub fn poll_lost(&mut self) -> Option<T> {
        self.lost.pop_front()
    }

    /// When [`Self::poll`] may next have something; `None` while nothing is inside.
    ///
    /// May be early, never late.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flying = match (self.ordered.front(), self.unordered.peek()) {
            (Some(a), Some(b)) => Some(a.arrival.min(b.arrival)),
            (Some(a), None) => Some(a.arrival),
            (None, b) => b.map(|b| b.arrival),
        };
        let served = self.in_service.as_ref().map(|service| {
            // Without jitter the arrival is known already, which spares the caller a wake-up.
            let delay = if self.config.jitter.is_zero() {
                self.config.delay
            } else {
                Duration::ZERO
            };
            service.finish + delay
        });
        match (flying, served) {
            // What keeps its order cannot arrive before what is on its way.
            (Some(flying), Some(_)) if !self.config.reorder && self.unordered.is_empty() => {
                Some(flying)
            }
            (Some(flying), Some(served)) => Some(flying.min(served)),
            (flying, served) => flying.or(served),
        }
    }

    /// Carries out `change` at `now`; the packet being sent goes on with what is left of it.
    pub fn apply(&mut self, now: Instant, change: &Change) {
        self.advance(now);
        let before = self.config.aqm;
        self.config.apply(change);
        if self.config.aqm != before {
            self.queue.manage(self.config.aqm);
        }
        if let Some(capacity) = &change.capacity {
            let old = core::mem::replace(
                &mut self.serialiser,
                Serialiser::new(capacity.clone(), self.now),
            );
            if let Some(service) = &mut self.in_service {
                let sent = old.sent_between(service.since, self.now);
                service.bytes_left = service.bytes_left.saturating_sub(sent);
                service.since = self.now;
                service.finish = self.serialiser.finish(self.now, service.bytes_left);
            }
        }
        self.advance(now);
    }

    /// Settings in force.
    #[must_use]
    pub const fn config(&self) -> &DirectionConfig {
        &self.config
    }

    /// What happened so far, as of the last call with a time.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let (service_packets, service_bytes) = self
            .in_service
            .as_ref()
            .map_or((0, 0), |service| (1, service.bytes));
        Counters {
            queued_packets: self.queue.packets() + service_packets,
            queued_bytes: self.queue.bytes() + service_bytes,
            in_flight_packets: (self.ordered.len() + self.unordered.len()) as u64,
            ..self.counters
        }
    }

    /// Sends what has left the serialiser by `now`, each packet at its own time.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(service) = self
            .in_service
            .take_if(|service| service.finish <= self.now)
        {
            let finish = service.finish;
            self.depart(finish, service.bytes, service.item);
            while let Some(left) = self.queue.pop(finish, &self.config) {
                if left.fate == Fate::Dropped {
                    self.counters.dropped_aqm += 1;
                    self.keep_lost(left.item);
                    continue;
                }
                self.counters.marked += u64::from(left.fate == Fate::Marked);
                self.serve(finish, left.bytes, left.item);
                break;
            }
        }
    }

    fn serve(&mut self, start: Instant, bytes: u64, item: T) {
        let finish = self.serialiser.finish(start, bytes);
        self.in_service = Some(InService {
            item,
            bytes,
            bytes_left: bytes,
            since: start,
            finish,
        });
    }

    /// A packet leaves the serialiser: it is lost, or arrives after the delay.
    fn depart(&mut self, at: Instant, bytes: u64, item: T) {
        // The loss process steps for every packet, so that a blackhole does not shift it.
        let lost = self.loss.next_is_lost(&self.config.loss);
        if self.config.blackhole {
            self.counters.dropped_blackhole += 1;
            return self.keep_lost(item);
        }
        let burst_began = lost && !self.lost_before;
        self.lost_before = lost;
        if lost {
            self.counters.dropped_loss += 1;
            self.counters.loss_bursts += u64::from(burst_began);
            return self.keep_lost(item);
        }
        if self.ordered.len() + self.unordered.len() >= IN_FLIGHT_PACKETS_MAX {
            self.counters.dropped_in_flight += 1;
            return self.keep_lost(item);
        }
        let arrival = at + self.draw_delay();
        let sequence = self.sequence;
        self.sequence += 1;
        if self.config.reorder {
            self.unordered.push(Flying {
                arrival,
                sequence,
                bytes,
                item,
            });
        } else {
            // Order by construction: no arrival before that of the predecessor.
            self.last_arrival = self.last_arrival.max(arrival);
            self.ordered.push_back(Flying {
                arrival: self.last_arrival,
                sequence,
                bytes,
                item,
            });
        }
    }

    fn draw_delay(&mut self) -> Duration {
        if self.config.jitter.is_zero() {
            return self.config.delay;
        }
        let deviation = self.jitter_random.normal() * self.config.jitter.as_secs_f64();
        let seconds = self.config.delay.as_secs_f64() + deviation;
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(self.config.delay)
    }

    fn keep_lost(&mut self, item: T) {
        if self.lost.len() < LOST_KEPT_MAX {
            self.lost.push_back(item);
        }
    }
}

impl<T> PartialEq for Flying<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Flying<T> {}

impl<T> PartialOrd for Flying<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Greatest is what arrives first, as [`BinaryHeap`] wants it; ties break by sequence.
impl<T> Ord for Flying<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival, other.sequence).cmp(&(self.arrival, self.sequence))
    }
}

#[cfg(test)]
mod tests;
