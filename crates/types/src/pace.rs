//! A bound on how often something happens, such as a line in the log.

use crate::{Duration, Instant};

/// One peer or one kind of error causes a line in the log once in this time on average. Longer: a shorter log, of
/// which one site fills less.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// And this often in a row: a line for the start, the end and every path of a site, and a few besides.
const LINES: u32 = 40;

/// Lets something happen once per interval on average, and several times in a row after a pause (the
/// virtual scheduling algorithm of ITU-T I.371).
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
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

/// Lines in the log that somebody else can cause: 40 in a row, and one in a second on average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines {
    pace: Pace,
    left_out: u64,
}

impl Lines {
    /// Whether one more may be written now. If not, it counts as left out.
    pub fn allow(&mut self, now: Instant) -> bool {
        let allowed = self.pace.allows(now, LINE_INTERVAL, LINES);
        self.left_out += u64::from(!allowed);
        allowed
    }

    /// How many were left out.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many were left out since the last call.
    pub const fn take_left_out(&mut self) -> u64 {
        std::mem::replace(&mut self.left_out, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_leaves_one_a_second_and_their_number() {
        let mut lines = Lines::default();
        let at = Instant::from_millis;
        let first = (0..100).filter(|_| lines.allow(at(5_000))).count();
        assert_eq!((first, lines.left_out()), (40, 60));
        assert!(!lines.allow(at(5_999)));
        assert!(lines.allow(at(6_000)));
        assert_eq!(lines.take_left_out(), 61);
        assert!(!lines.allow(at(6_001)));
        assert!(lines.allow(at(7_500)));
        assert_eq!(lines.take_left_out(), 1);
    }

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
