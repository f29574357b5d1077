//! CoDel, the control law of RFC 8289 §5, for one flow bucket.

use super::tuning::BACKLOG_MIN;
use ropewalk_types::{Duration, Instant};

/// What to do with a packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it go.
    Pass,
    /// Mark it, or drop it when it cannot be marked.
    Congested,
}

/// State of the control law.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoDel {
    /// When the delay will have been above target for an interval; `None` while below.
    above_until: Option<Instant>,
    dropping: bool,
    next: Instant,
    count: u32,
    count_last: u32,
}

impl CoDel {
    /// Judges a packet that waited for `sojourn` and leaves `backlog` bytes behind.
    pub fn judge(
        &mut self,
        now: Instant,
        sojourn: Duration,
        (target, interval): (Duration, Duration),
        backlog: u64,
    ) -> Verdict {
        if sojourn < target || backlog <= BACKLOG_MIN {
            self.above_until = None;
            self.dropping = false;
            return Verdict::Pass;
        }
        let Some(above_until) = self.above_until else {
            self.above_until = Some(now + interval);
            return Verdict::Pass;
        };
        if self.dropping {
            if now < self.next {
                return Verdict::Pass;
            }
            self.count = self.count.saturating_add(1);
            self.next += self.spacing(interval);
            return Verdict::Congested;
        }
        if now < above_until {
            return Verdict::Pass;
        }
        self.dropping = true;
        // RFC 8289 §5.3: start near the rate that controlled the queue the last time.
        let delta = self.count.saturating_sub(self.count_last);
        let recent = now.since(self.next) < interval * 16;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.count_last = self.count;
        self.next = now + self.spacing(interval);
        Verdict::Congested
    }

    fn spacing(&self, interval: Duration) -> Duration {
        interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}
