//! What a path carries when it is full: only then its rate of delivery says what it can carry.

use super::tuning::{FULL_GAP, FULL_LASTS, FULL_PERIOD};
use ropewalk_types::{Duration, Instant, Rate};

/// Largest rate of delivery of a path while its window was full and a queue stood on it. At other times the rate is
/// what there was to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullRate {
    /// Largest of this period, and of the one before.
    best: [Rate; 2],
    begun: Option<Instant>,
    /// Since when the path is full with short pauses at most, and when it was full last.
    run: Option<(Instant, Instant)>,
    /// When the rate counted last.
    last: Option<Instant>,
}

impl FullRate {
    /// The path is full and delivers `rate`.
    pub fn on_full(&mut self, now: Instant, rate: Rate) {
        let since = match self.run {
            Some((since, last)) if now.since(last) < FULL_GAP => since,
            _ => now,
        };
        self.run = Some((since, now));
        // A burst fills the first windows of a path that could carry more.
        if now.since(since) < FULL_LASTS {
            return;
        }
        let age = self.begun.map(|begun| now.since(begun));
        if age.is_none_or(|age| age >= FULL_PERIOD) {
            let is_before = age.is_some_and(|age| age < 2 * FULL_PERIOD);
            let before = if is_before { self.best[0] } else { Rate::ZERO };
            (self.best, self.begun) = ([Rate::ZERO, before], Some(now));
        }
        self.best[0] = self.best[0].max(rate);
        self.last = Some(now);
    }

    /// What the path carries when it is full; `None` if it was not for `lately`.
    #[must_use]
    pub fn get(&self, now: Instant, lately: Duration) -> Option<Rate> {
        let is_new = self.last.is_some_and(|last| now.since(last) < lately);
        let rate = self.best[0].max(self.best[1]);
        (is_new && rate > Rate::ZERO).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_largest_rate_of_the_last_two_periods_counts() {
        let rate = Rate::from_bits_per_sec;
        let mut full = FullRate::default();
        assert_eq!(full.get(at(0), MINUTE), None);
        full.on_full(at(0), rate(50_000));
        assert_eq!(full.get(at(0), MINUTE), None, "a burst");
        for second in 1..=11 {
            let bits = if second == 2 { 9_000 } else { 4_000 };
            full.on_full(at(second), rate(bits));
            let most = if second == 1 { 4_000 } else { 9_000 };
            assert_eq!(full.get(at(second), MINUTE), Some(rate(most)));
        }
        for second in 12..=21 {
            full.on_full(at(second), rate(3_000));
        }
        assert_eq!(
            full.get(at(21), MINUTE),
            Some(rate(4_000)),
            "the peak is over"
        );
        assert_eq!(full.get(at(80), MINUTE), Some(rate(4_000)));
        assert_eq!(full.get(at(81), MINUTE), None, "nothing new for a minute");
        full.on_full(at(100), rate(500));
        full.on_full(at(101), rate(500));
        assert_eq!(
            full.get(at(101), MINUTE),
            Some(rate(500)),
            "what was before is old"
        );
    }

    #[test]
    fn bursts_do_not_fill_a_path() {
        let mut full = FullRate::default();
        for second in (0..60).step_by(3) {
            full.on_full(at(second), Rate::from_bits_per_sec(500));
            assert_eq!(full.get(at(second), MINUTE), None);
        }
    }
}
