//! CoDel, the control law of RFC 8289 §5, for one flow bucket.

use ropewalk_types::{Duration, Instant};

/// Acceptable standing delay (RFC 8289 §4.2, raised from 5 ms: the packet still has to wait for
/// the window of a path whose round trip is tens of milliseconds, and a single loss-based flow
/// needs some queue to keep paths full after it has halved).
pub const TARGET: Duration = Duration::from_millis(10);
/// Largest target, reached on very thin paths.
pub const TARGET_MAX: Duration = Duration::from_millis(60);
/// Time the delay must exceed the target before the first drop (RFC 8289 §4.3).
const INTERVAL: Duration = Duration::from_millis(100);
/// A backlog below one packet is never congestion (RFC 8289 §5.4).
const BACKLOG_MIN: u64 = 1_514;

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
        target: Duration,
        backlog: u64,
    ) -> Verdict {
        if sojourn < target || backlog <= BACKLOG_MIN {
            self.above_until = None;
            self.dropping = false;
            return Verdict::Pass;
        }
        let Some(above_until) = self.above_until else {
            self.above_until = Some(now + INTERVAL);
            return Verdict::Pass;
        };
        if self.dropping {
            if now < self.next {
                return Verdict::Pass;
            }
            self.count = self.count.saturating_add(1);
            self.next += self.spacing();
            return Verdict::Congested;
        }
        if now < above_until {
            return Verdict::Pass;
        }
        self.dropping = true;
        // RFC 8289 §5.3: start near the rate that controlled the queue the last time.
        let delta = self.count.saturating_sub(self.count_last);
        let recent = now.since(self.next) < INTERVAL * 16;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.count_last = self.count;
        self.next = now + self.spacing();
        Verdict::Congested
    }

    fn spacing(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}
