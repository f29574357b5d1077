//! One direction of one connection: what the network does to its datagrams, and what a transport
//! would report of it.

use ropewalk_types::{Duration, Instant, PathSnapshot, Random, Rate};
use std::collections::VecDeque;

/// What the network does to the datagrams of one direction of one path.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Share of datagrams that are lost, percent; all of them at 100.
    pub loss: u8,
    /// Share of datagrams that arrive more than once, percent.
    pub copies: u8,
    /// Share of datagrams that come seconds late, percent.
    pub stragglers: u8,
    /// One-way delay, milliseconds.
    pub delay: u16,
    /// Most that is added to it, at random for each datagram, milliseconds.
    pub jitter: u16,
    /// Window of the transport, bytes.
    pub window: u32,
    /// Rate the transport reports, Mbit/s.
    pub rate: u16,
    /// Longest datagram, bytes.
    pub datagram: u16,
    /// Share of datagrams that arrive with a congestion mark, percent.
    pub marks: u8,
}

impl Weather {
    /// A good path.
    pub const FAIR: Self = Self {
        loss: 0,
        copies: 0,
        stragglers: 0,
        delay: 10,
        jitter: 0,
        window: 100_000,
        rate: 50,
        datagram: 1_400,
        marks: 0,
    };

    /// When the copies of a datagram sent now arrive, in no order; none when it is lost.
    pub fn arrivals(&self, now: Instant, random: &mut Random) -> Vec<Instant> {
        let mut percent = |share: u8| random.next_u64() % 100 < u64::from(share);
        let copies = match (percent(self.loss), percent(self.copies)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2 + usize::from(percent(30)),
        };
        let late = percent(self.stragglers);
        let arrival = |_| {
            let jitter = random.next_u64() % (u64::from(self.jitter) * 1_000 + 1);
            let later = if late {
                random.next_u64() % 4_000_000
            } else {
                0
            };
            now + self.delay() + Duration::from_micros(jitter + later)
        };
        (0..copies).map(arrival).collect()
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(u64::from(self.delay))
    }
}

/// The sending side of one direction.
#[derive(Debug)]
pub struct Lane {
    /// What happens to datagrams from now on.
    pub weather: Weather,
    /// When each datagram under way is acknowledged or given up, and its bytes.
    under_way: VecDeque<(Instant, u64)>,
    silent_since: Option<Instant>,
}

impl Lane {
    pub fn new(weather: Weather) -> Self {
        Self {
            weather,
            under_way: VecDeque::new(),
            silent_since: None,
        }
    }

    /// Another connection takes over.
    pub fn renew(&mut self) {
        *self = Self::new(self.weather.clone());
    }

    /// A datagram leaves.
    pub fn send(&mut self, now: Instant, bytes: usize) {
        let settled = now + self.round_trip();
        let later = self.under_way.partition_point(|(at, _)| *at <= settled);
        self.under_way.insert(later, (settled, bytes as u64));
        self.silent_since.get_or_insert(now);
    }

    /// When [`Lane::settle`] is wanted.
    pub fn next(&self) -> Option<Instant> {
        self.under_way.front().map(|(at, _)| *at)
    }

    /// Acknowledges what is due, unless nothing gets through at present: then the transport asks
    /// again and again.
    pub fn settle(&mut self, now: Instant) {
        while self.next().is_some_and(|at| at <= now) {
            self.under_way.pop_front();
            if self.weather.loss < 100 {
                self.silent_since = (!self.under_way.is_empty()).then_some(now);
            } else if self.under_way.is_empty() {
                let again = now + self.round_trip() + Duration::from_millis(200);
                self.under_way.push_back((again, 0));
                break;
            }
        }
    }

    fn round_trip(&self) -> Duration {
        2 * self.weather.delay() + Duration::from_millis(u64::from(self.weather.jitter))
    }

    pub fn snapshot(&self) -> PathSnapshot {
        let in_flight = self.under_way.iter().map(|(_, bytes)| bytes).sum();
        let cwnd = u64::from(self.weather.window);
        PathSnapshot {
            srtt: self.round_trip(),
            rttvar: Duration::from_millis(u64::from(self.weather.jitter)) / 2,
            min_rtt: 2 * self.weather.delay(),
            cwnd,
            in_flight,
            free: cwnd.saturating_sub(in_flight),
            rate: Rate::from_bits_per_sec(u64::from(self.weather.rate) * 1_000_000),
            max_datagram: usize::from(self.weather.datagram),
            silent_since: self.silent_since,
            ..PathSnapshot::default()
        }
    }
}
