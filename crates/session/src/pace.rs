//! A bound on how often something happens.

use ropewalk_types::{Duration, Instant};

/// Lets something happen once per interval on average, and several times in a row after a pause (the
/// virtual scheduling algorithm of ITU-T I.371).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// When the next one would be in time if all had come evenly.
    next: Instant,
}

impl Pace {
    /// Whether it may happen now; if so, it counts as happened. `burst` is the most in a row, at
    /// least 1.
    pub fn allows(&mut self, now: Instant, interval: Duration, burst: u32) -> bool {
        let ahead = interval * burst.saturating_sub(1);
        if self.next.since(now) > ahead {
            return false;
        }
        self.next = self.next.max(now) + interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_per_interval() {
        let (interval, mut pace) = (Duration::from_secs(1), Pace::default());
        let start = Instant::from_millis(10_000);
        let passed = |pace: &mut Pace, from: u64| {
            let times = (from..from + 50).map(|tenth| start + Duration::from_millis(tenth * 100));
            times.filter(|now| pace.allows(*now, interval, 3)).count()
        };
        assert_eq!(passed(&mut pace, 0), 3 + 4);
        assert_eq!(passed(&mut pace, 50), 5);
        assert_eq!(
            passed(&mut pace, 1_000),
            3 + 4,
            "a pause counts up to the burst"
        );
    }
}
