//! Messages of panics. The program goes on after most of them, and whoever can cause one could fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One message in this time on average, as of the lines of a site. Longer: a shorter log.
const INTERVAL: Duration = Duration::from_secs(1);
/// And this many in a row.
const IN_A_ROW: u32 = 40;

/// Lets the messages of panics through at a bounded rate, from now on and for all threads.
pub fn limit_messages() {
    let usual = std::panic::take_hook();
    let (start, limit) = (Instant::now(), Mutex::new(Limit::default()));
    std::panic::set_hook(Box::new(move |panic| {
        let admitted = {
            let mut limit = limit.lock().unwrap_or_else(PoisonError::into_inner);
            limit.admit(start.elapsed())
        };
        let Some(left_out) = admitted else { return };
        if left_out > 0 {
            tracing::error!(left_out, "panics of which the log has no message");
        }
        usual(panic);
    }));
}

/// The virtual scheduling algorithm of ITU-T I.371.
#[derive(Debug, Default)]
struct Limit {
    /// When the next message would be in time if all had come evenly.
    next: Duration,
    left_out: u64,
}

impl Limit {
    /// How many were left out before this one; `None` when this one is left out, too.
    fn admit(&mut self, now: Duration) -> Option<u64> {
        if self.next.saturating_sub(now) > INTERVAL * (IN_A_ROW - 1) {
            self.left_out += 1;
            return None;
        }
        self.next = self.next.max(now) + INTERVAL;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_panics_leaves_one_message_a_second_and_their_number() {
        let mut limit = Limit::default();
        let mut admit = |ms| limit.admit(Duration::from_millis(ms));
        let first = (0..100).filter(|_| admit(0).is_some()).count();
        assert_eq!(first, 40);
        assert_eq!(admit(999), None);
        assert_eq!(admit(1_000), Some(61));
        assert_eq!(admit(1_001), None);
        assert_eq!(admit(2_500), Some(1));
    }
}
