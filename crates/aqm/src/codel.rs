//! CoDel, the control law of RFC 8289 §5, for one queue.

use crate::Verdict;
use crate::tuning::BACKLOG_MIN;
use ropewalk_types::{Duration, Instant};

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
    /// Judges a packet that waited for `sojourn` and leaves `backlog` bytes behind. After a packet
    /// that is dropped, the next one is to be judged at the same `now`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{CODEL_INTERVAL, CODEL_TARGET};

    const PARAMETERS: (Duration, Duration) = (CODEL_TARGET, CODEL_INTERVAL);

    /// Times in ms at which a queue that always waits `sojourn` is told of congestion, when a packet
    /// leaves each millisecond.
    fn congested(codel: &mut CoDel, from: u64, to: u64, sojourn_ms: u64) -> Vec<u64> {
        let sojourn = Duration::from_millis(sojourn_ms);
        let judge = |ms: &u64| {
            let now = Instant::from_millis(*ms);
            codel.judge(now, sojourn, PARAMETERS, 100_000) == Verdict::Congested
        };
        (from..to).filter(judge).collect()
    }

    #[test]
    fn drops_follow_the_inverse_square_root_of_their_number() {
        let times = congested(&mut CoDel::default(), 0, 500, 20);
        // The first after an interval, then after interval/sqrt(n).
        let mut wanted = vec![100.0];
        for count in 1..8_u32 {
            wanted.push(wanted[wanted.len() - 1] + 100.0 / f64::from(count).sqrt());
        }
        for (found, wanted) in times.iter().zip(wanted) {
            assert!((*found as f64 - wanted).abs() <= 1.0, "{times:?}");
        }
    }

    #[test]
    fn a_delay_below_the_target_ends_dropping_and_a_return_soon_goes_on_near_the_last_rate() {
        let mut codel = CoDel::default();
        let first = congested(&mut codel, 0, 600, 20);
        assert_eq!(congested(&mut codel, 600, 650, 2), []);
        let second = congested(&mut codel, 650, 900, 20);
        assert_eq!(second[0], 750, "an interval after the return");
        assert!(second[1] - second[0] < first[1] - first[0], "{second:?}");
    }

    #[test]
    fn one_waiting_packet_is_never_congestion() {
        let mut codel = CoDel::default();
        for ms in 0..1_000 {
            let now = Instant::from_millis(ms);
            let verdict = codel.judge(now, Duration::from_secs(1), PARAMETERS, 1_500);
            assert_eq!(verdict, Verdict::Pass);
        }
    }
}
