//! Bytes received, in steps of a tenth of a second.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Counts bytes by when they came.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    begin: Instant,
    bytes: Vec<u64>,
}

impl Steps {
    pub(crate) fn new(begin: Instant) -> Self {
        Self {
            begin,
            bytes: Vec::new(),
        }
    }

    /// Counts bytes that came now.
    pub(crate) fn add(&mut self, bytes: u64) {
        let step = self.begin.elapsed().as_millis() / STEP.as_millis();
        let step = usize::try_from(step).unwrap_or(STEPS_MAX).min(STEPS_MAX);
        if self.bytes.len() <= step {
            self.bytes.resize(step + 1, 0);
        }
        self.bytes[step] += bytes;
    }

    pub(crate) fn sum(&self) -> u64 {
        self.bytes.iter().sum()
    }

    pub(crate) fn bytes(&self) -> &[u64] {
        &self.bytes
    }
}

/// Now, as seconds since 1970, so that two programs of one machine can be compared.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// Length of a step.
pub(crate) const STEP: Duration = Duration::from_millis(100);
/// A day; later bytes count in the last step.
const STEPS_MAX: usize = 24 * 3_600 * 10;
