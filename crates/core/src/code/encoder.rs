//! The ingress's side: what a path carried last, and when a repair symbol of it is due.

use super::WINDOW_PACKETS;
use super::coefficient::coefficient;
use super::symbol::{self, Check};
use super::tuning::{
    COVERINGS, DEBT_MAX, DUE_MAX, INTERVAL_MAX, SOONER, SPAN_MAX, WINDOW_MIN, WINDOW_TIME,
};
use bytes::Bytes;
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{CODED_SEEDS, DATA_HEADER};
use std::collections::VecDeque;

/// One repair symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// Number of the first packet covered.
    pub first: u16,
    /// Numbers covered, at least 1.
    pub count: u8,
    /// Decides the coefficients.
    pub seed: u8,
    /// A bit for each number, the lowest bit of the first byte for the first: those set are combined.
    pub combined: Vec<u8>,
    /// The repair symbol, as long as the longest packet and its check.
    pub symbol: Vec<u8>,
}

impl Coded {
    /// Bytes that tell which of `count` numbers are combined.
    #[must_use]
    pub const fn bitmap_bytes(count: u8) -> usize {
        count.div_ceil(8) as usize
    }

    /// The numbers combined.
    pub fn numbers(&self) -> impl Iterator<Item = u16> {
        let set = |n: &u16| {
            let byte = self.combined.get(usize::from(n / 8));
            byte.is_some_and(|byte| byte & (1 << (n % 8)) != 0)
        };
        (0..u16::from(self.count))
            .filter(set)
            .map(|n| self.first.wrapping_add(n))
    }
}

/// A packet that repair symbols cover.
#[derive(Debug)]
pub(super) struct Covered {
    pub number: u16,
    pub at: Instant,
    datagram: Bytes,
    check: Option<Check>,
}

impl Covered {
    pub fn new(at: Instant, number: u16, datagram: &Bytes) -> Self {
        Self {
            number,
            at,
            datagram: datagram.clone(),
            check: None,
        }
    }
}

/// The repair symbol of packets, at least one, in the order of their numbers, which span less than
/// [`SPAN_MAX`].
pub(super) fn combine(packets: &mut [Covered], seed: u8) -> Coded {
    let first = packets.first().map_or(0, |packet| packet.number);
    let span = packets
        .last()
        .map_or(0, |packet| packet.number.wrapping_sub(first));
    debug_assert!(span < SPAN_MAX, "a span of {span} does not fit");
    let count = u8::try_from(span).unwrap_or(u8::MAX - 1) + 1;
    let mut combined = vec![0; Coded::bitmap_bytes(count)];
    let mut symbol = Vec::new();
    for packet in packets {
        let n = packet.number.wrapping_sub(first);
        combined[usize::from(n / 8)] |= 1 << (n % 8);
        let factor = coefficient(seed, packet.number);
        let datagram = &packet.datagram;
        let check = *packet.check.get_or_insert_with(|| symbol::check(datagram));
        symbol::add(&mut symbol, factor, datagram, check);
    }
    Coded {
        first,
        count,
        seed,
        combined,
        symbol,
    }
}

/// The last packets of one path.
#[derive(Debug, Default)]
pub struct Encoder {
    window: VecDeque<Covered>,
    redundancy: f64,
    /// Most packets in the window.
    window_max: usize,
    credit: f64,
    /// Mean time between two packets, and when the last one was sent.
    interval: Duration,
    sent_at: Option<Instant>,
    /// Until when repair symbols are wanted whatever they cost.
    wanted_until: Option<Instant>,
    /// Packets since the last repair symbol.
    uncovered: usize,
    seed: u8,
    /// Repair symbols would cost more than they save.
    closed: bool,
    due: VecDeque<Coded>,
}

impl Encoder {
    /// Sets how many repair symbols follow each packet, on average.
    pub fn set_redundancy(&mut self, redundancy: f64) {
        self.redundancy = redundancy;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let covering =
            (COVERINGS / redundancy.max(f64::MIN_POSITIVE)).clamp(WINDOW_MIN, 1e6) as usize;
        self.window_max = covering.min(WINDOW_PACKETS);
        if redundancy == 0.0 {
            *self = Self {
                seed: self.seed,
                ..Self::default()
            };
        }
    }

    /// Repair symbols per packet.
    #[must_use]
    pub const fn redundancy(&self) -> f64 {
        self.redundancy
    }

    /// Mean time between two packets; zero before the second.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        self.interval
    }

    /// Forgets what is too old to be covered.
    pub fn forget_old(&mut self, now: Instant) {
        self.window
            .retain(|packet| now.since(packet.at) <= WINDOW_TIME);
        if self.window.is_empty() {
            self.window = VecDeque::new();
        }
    }

    /// Whether a repair symbol is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Makes no repair symbols while `closed`, except of packets that are wanted to have some.
    pub const fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Whether the packets sent last want repair symbols whatever these cost.
    #[must_use]
    pub fn is_wanted(&self, now: Instant) -> bool {
        self.wanted_until.is_some_and(|until| now < until)
    }

    /// Whether repair symbols come clearly sooner than what is sent again after a round trip of `rtt`.
    #[must_use]
    pub fn is_sooner_than(&self, rtt: Duration) -> bool {
        let between = self.interval.as_secs_f64() / self.redundancy.max(f64::MIN_POSITIVE);
        between * SOONER < rtt.as_secs_f64()
    }

    /// How many packets the next repair symbol would cover.
    pub(crate) fn len(&self) -> usize {
        self.window.len()
    }

    /// The path carries `datagram`, a packet or fragment with its whole header, under this number;
    /// numbers must not go back.
    ///
    /// Packets that are `wanted` get repair symbols whether these pay or not.
    pub fn on_sent(&mut self, now: Instant, number: u16, datagram: &Bytes, wanted: bool) {
        if self.redundancy == 0.0 || datagram.len() < DATA_HEADER {
            return;
        }
        if wanted {
            self.wanted_until = Some(now + WINDOW_TIME);
            self.closed = false;
        }
        self.window.push_back(Covered::new(now, number, datagram));
        while self.window.front().is_some_and(|first| {
            now.since(first.at) > WINDOW_TIME
                || number.wrapping_sub(first.number) >= SPAN_MAX
                || self.window.len() > self.window_max
        }) {
            self.window.pop_front();
        }
        let last = self.sent_at.replace(now).unwrap_or(now);
        self.interval = (self.interval * 31 + now.since(last).min(INTERVAL_MAX)) / 32;
        self.uncovered += 1;
        self.credit += self.redundancy;
        if self.credit >= 1.0 {
            self.combine();
            // What could not be made now is not made up for later.
            self.credit = self.credit.min(1.0);
        }
    }

    /// The peer asked for `count` numbers from `first` on: it gets these packets by themselves, and
    /// repair symbols that still covered them would be solved no sooner for that.
    pub fn on_repair(&mut self, first: u16, count: u16) {
        let asked = |covered: &Covered| covered.number.wrapping_sub(first) < count;
        if self.window.iter().any(asked) {
            self.window.retain(|covered| !asked(covered));
        }
    }

    /// Nothing followed the last packets: they are covered now, if the budget allows it.
    pub fn on_pause(&mut self) {
        if self.uncovered > 0 && self.credit > 1.0 - DEBT_MAX {
            self.combine();
        }
    }

    /// The next repair symbol that is due, if one is.
    pub fn poll(&mut self) -> Option<Coded> {
        self.due.pop_front()
    }

    fn combine(&mut self) {
        if self.closed || self.window.is_empty() || self.due.len() >= DUE_MAX {
            return;
        }
        self.credit -= 1.0;
        self.uncovered = 0;
        self.seed = (self.seed + 1) % CODED_SEEDS;
        let coded = combine(self.window.make_contiguous(), self.seed);
        self.due.push_back(coded);
    }
}
