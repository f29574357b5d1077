//! Who waits for a status. A status of a hub takes its engine some milliseconds, in which no packet moves.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;

use ropewalk_api::Status;
use ropewalk_types::Instant;

/// Least time between two statuses, as a multiple of what the last one took: 6 ms for 1,000 sites with two paths. Larger:
/// whoever asks in a loop costs packets less time, and many who ask at once wait longer.
const PAUSE: u32 = 9;

/// Those who wait, in the order in which they asked. One is answered in a turn.
#[derive(Debug)]
pub(super) struct Asked<T = SyncSender<Status>> {
    waiting: VecDeque<T>,
    /// From when on the next one may be answered.
    next: Instant,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            next: Instant::ZERO,
        }
    }
}

impl<T> Asked<T> {
    /// Somebody asks.
    pub fn push(&mut self, reply: T) {
        self.waiting.push_back(reply);
    }

    /// When somebody is to be answered.
    pub fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// Whom to answer now.
    pub fn take(&mut self, now: Instant) -> Option<T> {
        if self.next > now {
            return None;
        }
        self.waiting.pop_front()
    }

    /// An answer took from `begun` to `end`.
    pub fn answered(&mut self, begun: Instant, end: Instant) {
        self.next = end + end.since(begun) * PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::Duration;

    #[test]
    fn however_many_ask_statuses_take_a_tenth_of_the_time_and_all_are_answered_in_order() {
        let took = Duration::from_millis(6);
        let (mut asked, mut now, mut spent) = (Asked::default(), Instant::ZERO, Duration::ZERO);
        (0..100).for_each(|asker| asked.push(asker));
        let mut answered = Vec::new();
        while let Some(due) = asked.due() {
            now = now.max(due);
            let Some(asker) = asked.take(now) else {
                panic!("who is due is answered")
            };
            answered.push(asker);
            let begun = now;
            now += took;
            spent += took;
            asked.answered(begun, now);
            assert_eq!(asked.take(now), None, "one in a turn");
        }
        assert_eq!(answered, (0..100).collect::<Vec<_>>());
        assert!(
            spent <= now.since(Instant::ZERO) / 9,
            "{spent:?} of {now:?}"
        );
    }

    #[test]
    fn a_single_one_waits_for_nothing() {
        let mut asked = Asked::default();
        let now = Instant::from_millis(5);
        assert_eq!((asked.due(), asked.take(now)), (None, None));
        asked.push(1);
        assert_eq!(
            (asked.due().map(|at| at <= now), asked.take(now)),
            (Some(true), Some(1))
        );
    }
}
