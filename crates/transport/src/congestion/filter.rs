//! Best value over a sliding window of time, in constant space.
//!
//! Keeps the best, second and third best of successively later thirds of the window, so that an
//! expired best is replaced by a recent one. Source: the windowed filter BBR uses (Cardwell et
//! al., draft-cardwell-iccrg-bbr-congestion-control §4.1.1.3, after Kathleen Nichols).

use std::time::{Duration, Instant};

/// Smallest value seen within a window; negate to get the largest.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowedMin {
    best: [(Instant, f64); 3],
}

impl WindowedMin {
    pub(super) fn new(now: Instant, value: f64) -> Self {
        Self {
            best: [(now, value); 3],
        }
    }

    /// Smallest value of the window.
    pub(super) fn get(&self) -> f64 {
        self.best[0].1
    }

    /// Forgets everything but `value`.
    pub(super) fn reset(&mut self, now: Instant, value: f64) {
        self.best = [(now, value); 3];
    }

    /// Takes `value` in and forgets what is older than `window`.
    pub(super) fn update(&mut self, now: Instant, value: f64, window: Duration) {
        let age = |at: Instant| now.saturating_duration_since(at);
        if value <= self.best[0].1 || age(self.best[2].0) > window {
            self.reset(now, value);
            return;
        }
        if value <= self.best[1].1 {
            self.best[1] = (now, value);
            self.best[2] = (now, value);
        } else if value <= self.best[2].1 {
            self.best[2] = (now, value);
        }
        if age(self.best[0].0) > window {
            self.best = [self.best[1], self.best[2], (now, value)];
            if age(self.best[0].0) > window {
                self.best = [self.best[1], self.best[2], (now, value)];
            }
        } else if self.best[1].0 == self.best[0].0 && age(self.best[1].0) > window / 4 {
            self.best[1] = (now, value);
            self.best[2] = (now, value);
        } else if self.best[2].0 == self.best[1].0 && age(self.best[2].0) > window / 2 {
            self.best[2] = (now, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_minimum_after_the_window() {
        let start = Instant::now();
        let window = Duration::from_secs(10);
        let mut filter = WindowedMin::new(start, 1.0);
        for second in 1..=9 {
            filter.update(start + Duration::from_secs(second), 5.0, window);
            assert_eq!(filter.get(), 1.0, "second {second}");
        }
        for second in 11..14 {
            filter.update(start + Duration::from_secs(second), 5.0, window);
        }
        assert_eq!(filter.get(), 5.0);
        filter.update(start + Duration::from_secs(14), 0.5, window);
        assert_eq!(filter.get(), 0.5);
    }
}
