//! A bound on the bytes per second of one site.

use ropewalk_types::{Duration, Instant};

/// Lets bytes through at a rate on average, and a burst in a row after a pause (the virtual
/// scheduling algorithm of ITU-T I.371, for bytes).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// Bits per second; 0 until set.
    rate: u64,
    /// When all that has passed would have passed at exactly the rate.
    until: Instant,
}

impl Bucket {
    /// Uses this rate, bits per second, from now on.
    pub fn set_rate(&mut self, now: Instant, rate: u64) {
        if self.rate != rate {
            (self.rate, self.until) = (rate, now);
        }
    }

    /// Bytes that pass in this time.
    pub fn bytes(&self, time: Duration) -> usize {
        (self.rate as f64 / 8.0 * time.as_secs_f64()) as usize
    }

    /// When the next bytes may pass; `None` for now. `burst` is what may pass in a row, in time at the rate.
    pub fn due(&self, now: Instant, burst: Duration) -> Option<Instant> {
        let ahead = self.until.since(now);
        (self.rate > 0 && ahead > burst).then(|| self.until - burst)
    }

    /// Counts bytes that pass.
    pub fn charge(&mut self, now: Instant, bytes: usize) {
        if self.rate == 0 {
            return;
        }
        let time = Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate as f64);
        self.until = self.until.max(now) + time;
    }

    /// Whether bytes may pass now at this rate; if so, they count.
    pub fn takes(&mut self, now: Instant, rate: u64, burst: Duration, bytes: usize) -> bool {
        self.set_rate(now, rate);
        let passes = self.due(now, burst).is_none();
        if passes {
            self.charge(now, bytes);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_at_the_rate_after_a_short_burst() {
        let burst = Duration::from_millis(4);
        let mut bucket = Bucket::default();
        let mut passed = 0;
        for step in 0..10_000 {
            let now = Instant::from_millis(1_000) + Duration::from_micros(step * 100);
            passed += usize::from(bucket.takes(now, 8_000_000, burst, 500)) * 500;
        }
        // 1 MB/s over one second, and the burst.
        assert!((1_000_000..=1_010_000).contains(&passed), "{passed} bytes");
        let now = Instant::from_millis(2_000);
        bucket.charge(now, 20_000);
        assert!(bucket.due(now, burst).is_some());
        assert!(bucket.due(now + Duration::from_millis(25), burst).is_none());
    }
}
