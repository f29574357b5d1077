//! When an idle uplink is probed for its capacity, and what the rounds of probing found.
//!
//! A few rounds follow each other at first; their median is the first estimate. Later rounds are rare.

use core::time::Duration;

use ropewalk_types::{Instant, Rate};

use super::train::Estimates;

/// Rounds that are tried at first, in multiples of those that an estimate needs: some targets
/// answer none. More: an estimate is likelier, and costs more bytes.
const TRIES: u32 = 3;

/// Pause between the rounds of a first estimate: another uplink may be probed meanwhile. Longer:
/// less load in the first seconds, later estimates.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How often one uplink is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Rounds of the first estimate.
    pub first: u32,
    /// From the end of one of the first rounds to the next one.
    pub first_pause: Duration,
    /// From the end of a later round to the next one.
    pub interval: Duration,
}

/// The rounds of one uplink.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    estimates: Estimates,
    begun: u32,
    found: u32,
    due: Instant,
}

impl Rounds {
    /// None yet; the first one is due at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            due: now,
            ..Self::default()
        }
    }

    /// When the next round is due.
    #[must_use]
    pub const fn due(&self) -> Instant {
        self.due
    }

    /// A round begins; how many there have been with it.
    pub fn begin(&mut self, now: Instant, pace: Pace) -> u32 {
        self.begun += 1;
        // Until it has ended.
        self.due = now + pace.interval;
        self.begun
    }

    /// A round has ended and found a rate, or none.
    pub fn end(&mut self, now: Instant, rate: Option<Rate>, pace: Pace) {
        if let Some(rate) = rate {
            self.found += 1;
            self.estimates.push(rate);
        }
        self.due = now + pause(self.begun, self.found, pace);
    }

    /// Rates of the last rounds, the oldest first.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        self.estimates.rates()
    }

    /// What is known so far, if only by one round: for the size of the next one.
    #[must_use]
    pub fn guess(&self) -> Option<Rate> {
        self.estimates.middle()
    }

    /// The median of the last rounds, once there are three.
    #[must_use]
    pub fn estimate(&self) -> Option<Rate> {
        self.estimates.median()
    }
}

/// From the end of a round to the next, after so many rounds of which so many found a rate.
const fn pause(begun: u32, found: u32, pace: Pace) -> Duration {
    if found < pace.first && begun < TRIES * pace.first {
        pace.first_pause
    } else {
        pace.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        first: 3,
        first_pause: FIRST_PAUSE,
        interval: Duration::from_secs(300),
    };

    #[test]
    fn the_first_estimate_is_sought_at_once_and_for_a_while_only() {
        assert_eq!(pause(2, 2, PACE), PACE.first_pause);
        assert_eq!(pause(3, 3, PACE), PACE.interval);
        assert_eq!(
            pause(8, 2, PACE),
            PACE.first_pause,
            "some targets answer none"
        );
        assert_eq!(pause(9, 2, PACE), PACE.interval, "none of them does");
    }

    #[test]
    fn an_estimate_is_the_median_of_rounds_that_found_something() {
        let mut rounds = Rounds::new(Instant::from_millis(7));
        assert_eq!(rounds.due(), Instant::from_millis(7));
        for (rate, guess, estimate) in [
            (Some(10), Some(10), None),
            (None, Some(10), None),
            (Some(30), Some(30), None),
            (Some(20), Some(20), Some(20)),
        ] {
            rounds.begin(Instant::ZERO, PACE);
            rounds.end(Instant::ZERO, rate.map(Rate::from_bits_per_sec), PACE);
            let bits = |rate: Option<Rate>| rate.map(Rate::bits_per_sec);
            assert_eq!(
                (bits(rounds.guess()), bits(rounds.estimate())),
                (guess, estimate)
            );
        }
        assert_eq!(rounds.due(), Instant::ZERO + PACE.interval);
        assert_eq!(rounds.rates().count(), 3);
    }
}
