//! Who waits for a status. A status of a hub takes its engine some milliseconds, in which no packet moves.

use std::sync::mpsc::SyncSender;

use ropewalk_api::Status;
use ropewalk_types::{Duration, Instant};

/// Least time between two statuses, as a multiple of what the last one took: 6 ms for 1,000 sites with two paths. Larger:
/// whoever asks in a loop costs packets less time, and many who ask at once wait longer.
const PAUSE: u32 = 9;
/// Longest time between two statuses. On a machine that did not run this thread meanwhile, a status takes seconds, of
/// which packets had nothing. Longer: a status of many more sites stays within its share. Shorter: whoever asks, and waits
/// 10 s at most, has an answer sooner.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Those who wait. All of them get the same answer.
#[derive(Debug)]
pub(super) struct Asked<T = SyncSender<Status>> {
    waiting: Vec<T>,
    /// From when on the next status may be made.
    next: Instant,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            next: Instant::ZERO,
        }
    }
}

impl<T> Asked<T> {
    /// Somebody asks.
    pub fn push(&mut self, reply: T) {
        self.waiting.push(reply);
    }

    /// When somebody is to be answered.
    pub fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// Whom to answer now.
    pub fn take(&mut self, now: Instant) -> Vec<T> {
        if self.next > now {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting)
    }

    /// The answers took from `begun` to `end`.
    pub fn answered(&mut self, begun: Instant, end: Instant) {
        self.next = end + (end.since(begun) * PAUSE).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_it_is_asked_statuses_take_a_tenth_of_the_time_and_nobody_is_left_out() {
        let took = Duration::from_millis(6);
        let (mut asked, mut now, mut spent) = (Asked::default(), Instant::ZERO, Duration::ZERO);
        let mut answered = 0;
        // Somebody asks each millisecond.
        for asker in 0..10_000 {
            asked.push(asker);
            now += Duration::from_millis(1);
            let some = asked.take(now);
            if some.is_empty() {
                continue;
            }
            answered += some.len();
            let begun = now;
            now += took;
            spent += took;
            asked.answered(begun, now);
            assert!(asked.take(now).is_empty() && asked.due().is_none());
        }
        now += took * PAUSE;
        answered += asked.take(now).len();
        assert_eq!(answered, 10_000);
        assert!(
            spent * 9 <= now.since(Instant::ZERO),
            "{spent:?} of {now:?}"
        );
        assert!(
            spent * 12 >= now.since(Instant::ZERO),
            "{spent:?} of {now:?}"
        );
    }

    #[test]
    fn a_status_that_a_busy_machine_held_up_makes_nobody_wait_for_long() {
        let mut asked = Asked::default();
        let (begun, end) = (Instant::from_millis(5), Instant::from_millis(3_005));
        asked.answered(begun, end);
        asked.push(1);
        assert!(asked.due().is_some_and(|due| due <= end + PAUSE_MAX));
        assert_eq!(asked.take(end + PAUSE_MAX), [1]);
    }

    #[test]
    fn a_single_one_waits_for_nothing() {
        let mut asked = Asked::default();
        let now = Instant::from_millis(5);
        assert!(asked.due().is_none() && asked.take(now).is_empty());
        asked.push(1);
        assert!(asked.due().is_some_and(|due| due <= now));
        assert_eq!(asked.take(now), [1]);
    }
}
