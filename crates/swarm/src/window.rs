//! How many packets of a site may be without an answer: a window as that of TCP.
//!
//! Sources: growth, halving and pauses as RFC 5681; a packet is lost when one that was sent clearly later is
//! answered, as RFC 8985. Nothing is sent again.

use std::collections::VecDeque;

use ropewalk_types::Instant;

use crate::tuning::{WINDOW_FIRST, WINDOW_LEAST, WINDOW_PATIENCE, WINDOW_REORDERING};

/// Half of the numbers that 16 bits have: those under way, and those given up, are fewer each.
const NUMBERS: u16 = u16::MAX / 2;

/// Packets under way, oldest first, and how many may be.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    flights: VecDeque<Flight>,
    /// Numbers that were given up, oldest first: their answers may still come.
    given_up: VecDeque<u16>,
    /// Number of the oldest.
    first: u16,
    unanswered: usize,
    size: f64,
    most: f64,
    threshold: f64,
    /// What was sent before does not shrink the window again.
    shrunk: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Instant,
    answered: bool,
}

impl Window {
    /// An empty one that begins small, and never has more than so many packets.
    pub(crate) const fn new(most: f64) -> Self {
        Self {
            flights: VecDeque::new(),
            given_up: VecDeque::new(),
            first: 0,
            unanswered: 0,
            size: WINDOW_FIRST.min(most),
            most,
            threshold: most,
            shrunk: Instant::ZERO,
        }
    }

    /// Whether one more may leave.
    pub(crate) fn is_open(&self) -> bool {
        ((self.unanswered + 1) as f64) <= self.size && self.flights.len() < usize::from(NUMBERS)
    }

    /// A packet leaves; numbers follow each other.
    pub(crate) fn on_sent(&mut self, now: Instant, number: u16) {
        if self.flights.is_empty() {
            self.first = number;
        }
        self.unanswered += 1;
        self.flights.push_back(Flight {
            sent: now,
            answered: false,
        });
    }

    /// An answer came; false if one came before, or nobody asked.
    pub(crate) fn on_answer(&mut self, number: u16) -> bool {
        let index = usize::from(number.wrapping_sub(self.first));
        let Some(flight) = self.flights.get_mut(index) else {
            return self.take_given_up(number);
        };
        if std::mem::replace(&mut flight.answered, true) {
            return false;
        }
        let sent = flight.sent;
        let full = (self.unanswered + 1) as f64 > self.size;
        self.unanswered -= 1;
        if full {
            let step = if self.size < self.threshold {
                1.0
            } else {
                1.0 / self.size
            };
            self.size = (self.size + step).min(self.most);
        }
        while let Some(&oldest) = self.flights.front() {
            if !oldest.answered && oldest.sent + WINDOW_REORDERING >= sent {
                break;
            }
            self.drop_oldest(oldest, sent);
        }
        true
    }

    /// Gives up what has waited too long, and begins anew if there was any.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        let mut late = false;
        while let Some(&oldest) = self.flights.front() {
            if !oldest.answered && oldest.sent + WINDOW_PATIENCE > now {
                break;
            }
            late |= !oldest.answered;
            self.drop_oldest(oldest, now);
        }
        if late {
            self.size = WINDOW_LEAST;
        }
    }

    /// When [`Self::on_timeout`] is wanted.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.flights.front()?.sent + WINDOW_PATIENCE)
    }

    /// There was a pause: what the window was says little now (RFC 5681 §4.1).
    pub(crate) const fn rest(&mut self) {
        self.size = self.size.min(WINDOW_FIRST);
    }

    /// Forgets what is under way, as a new connection.
    pub(crate) fn reset(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        *self = Self {
            flights,
            ..Self::new(self.most)
        };
        self.flights.clear();
    }

    /// Whether this number was given up, and is answered now.
    fn take_given_up(&mut self, number: u16) -> bool {
        let Some(&first) = self.given_up.front() else {
            return false;
        };
        let age = |number: u16| number.wrapping_sub(first);
        let found = self
            .given_up
            .binary_search_by_key(&age(number), |one| age(*one));
        found.is_ok_and(|at| self.given_up.remove(at).is_some())
    }

    fn drop_oldest(&mut self, oldest: Flight, newest: Instant) {
        self.flights.pop_front();
        let number = self.first;
        self.first = number.wrapping_add(1);
        if oldest.answered {
            return;
        }
        self.given_up.push_back(number);
        let again = |one: &u16| number.wrapping_sub(*one) >= NUMBERS;
        while self.given_up.front().is_some_and(again) {
            self.given_up.pop_front();
        }
        self.unanswered -= 1;
        if oldest.sent >= self.shrunk {
            self.threshold = (self.size / 2.0).max(WINDOW_LEAST);
            self.size = self.threshold;
            self.shrunk = newest;
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_types::Duration;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Sends what may be sent; how many.
    fn fill(window: &mut Window, now: Instant, number: &mut u16) -> usize {
        let before = window.unanswered;
        while window.is_open() {
            *number = number.wrapping_add(1);
            window.on_sent(now, *number);
        }
        window.unanswered - before
    }

    #[test]
    fn answers_open_the_window_and_it_doubles_in_a_round_trip() {
        let (mut window, mut number) = (Window::new(256.0), u16::MAX - 4);
        let first = fill(&mut window, at(0), &mut number);
        assert_eq!(first, WINDOW_FIRST as usize);
        assert!(!window.is_open());
        for answer in 0..first as u16 {
            assert!(window.on_answer((u16::MAX - 3).wrapping_add(answer)));
            fill(&mut window, at(10), &mut number);
        }
        assert_eq!(window.unanswered, 2 * first);
        assert!(!window.on_answer(5), "a copy");
        assert!(!window.on_answer(5_000), "an answer of nobody");
        window.rest();
        assert_eq!(window.size, WINDOW_FIRST);
    }

    #[test]
    fn a_packet_is_lost_when_one_sent_clearly_later_is_answered() {
        let mut window = Window::new(256.0);
        for number in 0..10 {
            window.on_sent(at(u64::from(number) * 10), number);
        }
        // Two paths may overtake each other.
        assert!(window.on_answer(1) && window.on_answer(0));
        let size = window.size;
        assert!(window.on_answer(3));
        assert_eq!(window.unanswered, 7, "number 2 may still come");
        assert!(!window.on_answer(3), "a copy");
        let slack = WINDOW_REORDERING.as_millis() as u16 / 10;
        assert!(window.on_answer(2 + slack + 1));
        assert_eq!(window.unanswered, 5, "number 2 is lost");
        assert!(window.size < size);
        let once = window.size;
        assert!(window.on_answer(2 + slack + 3));
        assert!(window.size >= once, "the same trouble shrinks it once");
        assert!(!window.on_answer(0), "a copy of one whose place has left");
        assert!(window.on_answer(2), "late, but it came");
        assert!(!window.on_answer(2), "a copy of that");
    }

    #[test]
    fn late_answers_and_their_copies_are_told_apart_while_numbers_repeat() {
        let (mut window, mut number) = (Window::new(8.0), u16::MAX - 100);
        let mut now = at(0);
        for round in 0..40_000 {
            number = number.wrapping_add(1);
            window.on_sent(now, number);
            now += WINDOW_PATIENCE;
            window.on_timeout(now);
            // Every third one is answered, twice, when its place has left.
            if round % 3 == 0 {
                assert!(window.on_answer(number));
                assert!(!window.on_answer(number));
            }
            assert!(window.given_up.len() <= usize::from(NUMBERS));
        }
        assert!(window.given_up.len() > 20_000, "{}", window.given_up.len());
    }

    #[test]
    fn silence_empties_the_window() {
        let (mut window, mut number) = (Window::new(256.0), 0);
        fill(&mut window, at(0), &mut number);
        let due = window.poll_timeout().expect("something is under way");
        window.on_timeout(due - Duration::from_millis(1));
        assert!(!window.is_open());
        window.on_timeout(due);
        assert_eq!((window.unanswered, window.size), (0, WINDOW_LEAST));
        assert_eq!(window.poll_timeout(), None);
        fill(&mut window, at(5_000), &mut number);
        window.reset();
        assert_eq!((window.unanswered, window.size), (0, WINDOW_FIRST));
    }
}
