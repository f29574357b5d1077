//! The clock of the data path.
//!
//! `CLOCK_BOOTTIME` and not `CLOCK_MONOTONIC`: it goes on while the machine sleeps. When a laptop
//! wakes, every timer that passed meanwhile fires at once. Dead paths are found within one probe
//! instead of one full timeout. Steps of the wall clock touch neither of the two.

use std::time::Duration;

use ropewalk_types::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Reads the clock as nanoseconds since the clock was made, and converts to and from
/// [`std::time::Instant`], which libraries such as `quinn-proto` want.
///
/// Both readings share one base, so that `to_std` and `from_std` are inverses for every instant
/// since the clock was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base_ns: u64,
    base_std: std::time::Instant,
}

impl Clock {
    /// A clock that starts near zero now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            base_ns: boottime_ns(),
            base_std: std::time::Instant::now(),
        }
    }

    /// Time since the clock was made; never goes back.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(boottime_ns().saturating_sub(self.base_ns))
    }

    /// The instant as the standard library has it. After the machine slept, such an instant lies
    /// ahead of `std::time::Instant::now()`: pass only converted instants to a library.
    #[must_use]
    pub fn to_std(&self, at: Instant) -> std::time::Instant {
        self.base_std + Duration::from_nanos(at.as_nanos().min(NANOS_MAX))
    }

    /// The inverse of [`Self::to_std`]; instants before the base count as the base.
    #[must_use]
    pub fn from_std(&self, at: std::time::Instant) -> Instant {
        Instant::ZERO + at.saturating_duration_since(self.base_std)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// A century: far beyond any deadline, and safe to add to any `std::time::Instant`.
const NANOS_MAX: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// Nanoseconds since the machine started, time asleep included.
fn boottime_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_to_std_and_back_is_the_identity() {
        let clock = Clock::new();
        for nanos in [0, 1, 999_999_999, 1_000_000_000_000] {
            let at = Instant::from_nanos(nanos);
            assert_eq!(clock.from_std(clock.to_std(at)), at);
        }
        assert!(clock.to_std(Instant::FAR_FUTURE) > std::time::Instant::now());
    }

    #[test]
    fn clock_advances_with_sleep() {
        let clock = Clock::new();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now().since(before) >= Duration::from_millis(5));
    }
}
