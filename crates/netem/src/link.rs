//! A link: two directions with one clock, and changes at given times.
//!
//! A change takes effect exactly at its time, also when the caller comes late: packets that left
//! the serialiser before it are treated by the old settings, later ones by the new.

use ropewalk_types::{Duration, Instant, Random};
use serde::{Deserialize, Serialize};

use crate::direction::{Change, Counters, Direction, DirectionConfig, Refused};
use crate::queue::Carried;

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// From end A (the site, by convention) to end B.
    Up,
    /// From end B to end A.
    Down,
}

impl Side {
    /// Both sides, up first.
    pub const ALL: [Self; 2] = [Self::Up, Self::Down];

    const fn index(self) -> usize {
        self as usize
    }
}

/// Which directions a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// One direction.
    One(Side),
    /// Both.
    Both,
}

impl Selector {
    /// Whether `side` is meant.
    #[must_use]
    pub fn includes(self, side: Side) -> bool {
        match self {
            Self::One(one) => one == side,
            Self::Both => true,
        }
    }
}

/// Everything about a link, ready to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// All randomness follows from it.
    pub seed: u64,
    /// From A to B.
    pub up: DirectionConfig,
    /// From B to A.
    pub down: DirectionConfig,
    /// In any order.
    pub changes: Vec<TimedChange>,
}

/// New settings from a given time on.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedChange {
    /// Time since the start of the link.
    pub at: Duration,
    /// Settings from A to B.
    pub up: Change,
    /// Settings from B to A.
    pub down: Change,
}

/// A link carrying items of type `T`; it starts at [`Instant::ZERO`].
#[derive(Debug)]
pub struct Link<T> {
    directions: [Direction<T>; 2],
    /// Ascending in time.
    changes: Vec<TimedChange>,
    changes_done: usize,
}

impl<T: Carried> Link<T> {
    /// A link at rest.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        let mut seeds = Random::new(config.seed);
        let mut changes = config.changes;
        changes.sort_by_key(|change| change.at);
        Self {
            directions: [
                Direction::new(config.up, seeds.next_u64()),
                Direction::new(config.down, seeds.next_u64()),
            ],
            changes,
            changes_done: 0,
        }
    }

    /// Takes in a packet of `bytes` (its IP length) at `now`.
    ///
    /// # Errors
    /// See [`Direction::enqueue`].
    pub fn enqueue(
        &mut self,
        now: Instant,
        side: Side,
        bytes: usize,
        item: T,
    ) -> Result<(), Refused<T>> {
        self.carry_out_changes(now);
        self.directions[side.index()].enqueue(now, bytes, item)
    }

    /// The next packet that has arrived in `side`'s direction by `now`.
    pub fn poll(&mut self, now: Instant, side: Side) -> Option<T> {
        self.carry_out_changes(now);
        self.directions[side.index()].poll(now)
    }

    /// See [`Direction::poll_lost`].
    pub fn poll_lost(&mut self, side: Side) -> Option<T> {
        self.directions[side.index()].poll_lost()
    }

    /// When [`Self::poll`] may next have something, or a change is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let change = self
            .changes
            .get(self.changes_done)
            .map(|change| Instant::ZERO + change.at);
        self.next_arrival().into_iter().chain(change).min()
    }

    /// When [`Self::poll`] may next have something of what is inside now; `None` when nothing is.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        let arrivals = self.directions.iter().filter_map(Direction::poll_timeout);
        arrivals.min()
    }

    /// Changes settings now; timed changes that follow still happen.
    pub fn apply(&mut self, now: Instant, selector: Selector, change: &Change) {
        self.carry_out_changes(now);
        for side in Side::ALL
            .into_iter()
            .filter(|side| selector.includes(*side))
        {
            self.directions[side.index()].apply(now, change);
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self, side: Side) -> Counters {
        self.directions[side.index()].counters()
    }

    /// Settings in force.
    #[must_use]
    pub fn config(&self, side: Side) -> &DirectionConfig {
        self.directions[side.index()].config()
    }

    /// Brings both directions to `now`, so that the counters are those of that time.
    pub fn advance(&mut self, now: Instant) {
        self.carry_out_changes(now);
        self.directions
            .iter_mut()
            .for_each(|direction| direction.advance(now));
    }

    fn carry_out_changes(&mut self, now: Instant) {
        while let Some(change) = self.changes.get(self.changes_done) {
            let at = Instant::ZERO + change.at;
            if at > now {
                return;
            }
            self.directions[Side::Up.index()].apply(at, &change.up);
            self.directions[Side::Down.index()].apply(at, &change.down);
            self.changes_done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Capacity;
    use ropewalk_types::Rate;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn fixed(bits: u64) -> Capacity {
        Capacity::Fixed(Rate::from_bits_per_sec(bits))
    }

    #[test]
    fn a_timed_blackhole_starts_at_its_time_though_polled_late() {
        let on = Change {
            blackhole: Some(true),
            ..Change::default()
        };
        let change = TimedChange {
            at: Duration::from_millis(500),
            up: Change::default(),
            down: on,
        };
        let mut link = Link::new(LinkConfig {
            changes: vec![change],
            ..LinkConfig::default()
        });
        assert!(link.enqueue(ms(499), Side::Down, 1_000, 'b').is_ok());
        assert!(link.enqueue(ms(501), Side::Down, 1_000, 'c').is_ok());
        assert!(link.enqueue(ms(501), Side::Up, 1_000, 'd').is_ok());
        assert_eq!(link.poll(ms(2_000), Side::Down), Some('b'));
        assert_eq!(link.poll(ms(2_000), Side::Down), None);
        assert_eq!(link.poll(ms(2_000), Side::Up), Some('d'));
        assert_eq!(link.counters(Side::Down).dropped_blackhole, 1);
    }

    #[test]
    fn a_rate_change_applies_to_the_rest_of_the_packet_being_sent() {
        // 1,000 bytes: 500 in the first half second, the rest ten times as fast.
        let slow = DirectionConfig {
            capacity: fixed(8_000),
            ..DirectionConfig::default()
        };
        let faster = Change {
            capacity: Some(fixed(80_000)),
            ..Change::default()
        };
        let planned = LinkConfig {
            up: slow.clone(),
            changes: vec![TimedChange {
                at: Duration::from_millis(500),
                up: faster.clone(),
                down: Change::default(),
            }],
            ..LinkConfig::default()
        };
        let by_plan = Link::new(planned);
        let by_hand = Link::new(LinkConfig {
            up: slow,
            ..LinkConfig::default()
        });
        for (mut link, manual) in [(by_plan, false), (by_hand, true)] {
            assert!(link.enqueue(ms(0), Side::Up, 1_000, 'a').is_ok());
            if manual {
                link.apply(ms(500), Selector::Both, &faster);
            }
            assert_eq!(link.poll(ms(549), Side::Up), None);
            assert_eq!(link.poll_timeout(), Some(ms(550)));
            assert_eq!(link.poll(ms(550), Side::Up), Some('a'));
        }
    }

    #[test]
    fn the_two_directions_draw_different_random_numbers() {
        let lossy = DirectionConfig {
            loss: crate::LossModel::Bernoulli(0.5),
            ..Default::default()
        };
        let mut link = Link::new(LinkConfig {
            up: lossy.clone(),
            down: lossy,
            ..LinkConfig::default()
        });
        let mut pattern = |side| {
            (0..64u64)
                .map(|at| {
                    assert!(link.enqueue(ms(at), side, 100, ()).is_ok());
                    link.poll(ms(at), side).is_some()
                })
                .collect::<Vec<_>>()
        };
        assert_ne!(pattern(Side::Up), pattern(Side::Down));
    }
}
