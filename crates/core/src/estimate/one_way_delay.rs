//! One-way delays of the paths relative to each other.
//!
//! The egress reports receive time minus send time per path. The offset between the two clocks is
//! the same on every path of a tunnel, so it cancels in differences: no synchronisation is needed.
//! A path that carried traffic lately counts with its smoothed mean delay, queues included. Its
//! queues drain while nothing is under way on it, so a quiet path counts with its minimum of the
//! last [`DELAY_WINDOW_SECS`] seconds of traffic. Paths never measured count with half their round-trip
//! time, placed beside the measured ones.
//!
//! Invariant: relative delays are at least zero, and zero for the fastest of the paths compared.
//! Source: the relative form of the delay test in Sailer and Hähner, "HTMT: High-throughput
//! multipath tunnelling for asymmetric paths", section IV, without round-trip times.

use super::feedback::{EgressFeedback, PathFeedback, delay_difference_us};
use super::tuning::{CURRENT_MAX_AGE, DELAY_JUMP_US, DELAY_WINDOW_SECS, FOREIGN_FOR};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

const SLOTS: usize = DELAY_WINDOW_SECS as usize;

#[derive(Clone, Copy, Debug)]
struct PathDelay {
    /// Minimum per second: the second and the delay.
    minima: [Option<(u64, i64)>; SLOTS],
    /// Minimum over the window, as of the last traffic.
    base_us: i64,
    /// Smoothed mean, less what has drained since.
    current_us: i64,
    updated: Instant,
    /// Smoothed mean of the last report.
    reported_us: i64,
    /// While nothing is under way: up to when the drain is taken off.
    idle_at: Option<Instant>,
    /// Until when nothing is taken off: the queue was somebody else's.
    foreign_until: Instant,
}

impl PathDelay {
    fn estimate_us(&self, now: Instant) -> i64 {
        if now.since(self.updated) <= CURRENT_MAX_AGE {
            self.current_us
        } else {
            self.base_us
        }
    }

    /// Nothing is under way on the path: what queue of ours there was drains.
    fn drain(&mut self, now: Instant) {
        let since = self.idle_at.replace(now).unwrap_or(now);
        if now >= self.foreign_until {
            let left = self.current_us - micros(now.since(since));
            self.current_us = left.max(self.base_us).min(self.current_us);
        }
    }

    fn update(&mut self, now: Instant, min_us: i64, mean_us: i64) {
        // Every packet since still met half of what should have drained: it was not ours.
        let half = self.base_us + (self.reported_us - self.base_us) / 2;
        if self.current_us < half && min_us > half {
            self.foreign_until = now + FOREIGN_FOR;
        }
        let quiet = now.since(self.updated) > CURRENT_MAX_AGE;
        self.current_us = if quiet {
            mean_us
        } else {
            self.current_us.midpoint(mean_us)
        };
        self.updated = now;
        self.idle_at = self.idle_at.map(|_| now);
        self.reported_us = self.current_us;
        let second = now.as_nanos() / 1_000_000_000;
        let slot = &mut self.minima[usize::try_from(second % DELAY_WINDOW_SECS).unwrap_or(0)];
        *slot = match *slot {
            Some((at, old)) if at == second => Some((at, old.min(min_us))),
            _ => Some((second, min_us)),
        };
        let live = self
            .minima
            .iter()
            .flatten()
            .filter(|(at, _)| at + DELAY_WINDOW_SECS > second);
        self.base_us = live.map(|(_, delay)| *delay).min().unwrap_or(min_us);
    }
}

/// Delays of all paths of one direction of a tunnel.
#[derive(Clone, Debug, Default)]
pub struct OneWayDelay {
    /// The first delay seen: others are unwrapped around it.
    origin_us: Option<i64>,
    paths: [Option<PathDelay>; PATHS_MAX],
}

impl OneWayDelay {
    /// Nothing measured yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a report of the egress in.
    pub fn on_feedback(&mut self, now: Instant, feedback: &EgressFeedback) {
        for path in &feedback.paths {
            self.on_path(now, path);
        }
    }

    fn on_path(&mut self, now: Instant, feedback: &PathFeedback) {
        let Some(delay) = feedback.delay else { return };
        let index = usize::from(feedback.path.0);
        if index >= PATHS_MAX {
            return;
        }
        let origin = *self.origin_us.get_or_insert(delay.min_us);
        let mut min_us = delay_difference_us(delay.min_us, origin);
        let queue_us = delay_difference_us(delay.mean_us, delay.min_us).max(0);
        if self.paths[index].is_some_and(|old| (min_us - old.base_us).abs() > DELAY_JUMP_US) {
            self.paths = [None; PATHS_MAX];
            self.origin_us = Some(delay.min_us);
            min_us = 0;
        }
        let mean_us = min_us + queue_us;
        self.paths[index]
            .get_or_insert(PathDelay {
                minima: [None; SLOTS],
                base_us: min_us,
                current_us: mean_us,
                updated: now,
                reported_us: mean_us,
                idle_at: None,
                foreign_until: Instant::ZERO,
            })
            .update(now, min_us, mean_us);
    }

    /// `path` is gone for good.
    pub fn on_path_removed(&mut self, path: PathId) {
        if let Some(delay) = self.paths.get_mut(usize::from(path.0)) {
            *delay = None;
        }
    }

    /// Sets the relative delay of each view among these views.
    pub fn fill(&mut self, now: Instant, views: &mut [PathView]) {
        for view in views.iter() {
            let delay = self.paths.get_mut(usize::from(view.id.0));
            if let Some(Some(delay)) = delay {
                if view.in_flight == 0 && view.queued == 0 {
                    delay.drain(now);
                } else {
                    delay.idle_at = None;
                }
            }
        }
        // What makes half the round-trip time of a measured path comparable to its delay.
        let anchor = views
            .iter()
            .find_map(|view| Some(self.measured_us(now, view.id)? - micros(view.srtt / 2)));
        let estimate = |view: &PathView| {
            self.measured_us(now, view.id)
                .unwrap_or_else(|| anchor.unwrap_or(0) + micros(view.srtt / 2))
        };
        let Some(fastest) = views.iter().map(estimate).min() else {
            return;
        };
        for view in views {
            view.owd_relative = duration(estimate(view) - fastest);
        }
    }

    /// Relative delay of `path` among the measured paths; zero when it was never measured.
    #[must_use]
    pub fn relative(&self, now: Instant, path: PathId) -> Duration {
        let Some(own) = self.measured_us(now, path) else {
            return Duration::ZERO;
        };
        let all = self
            .paths
            .iter()
            .flatten()
            .map(|delay| delay.estimate_us(now));
        duration(own - all.min().unwrap_or(own))
    }

    /// How far the present delay of `path` is above its minimum: the queue on the way.
    #[must_use]
    pub fn queueing(&self, now: Instant, path: PathId) -> Duration {
        let delay = self.paths.get(usize::from(path.0)).copied().flatten();
        delay.map_or(Duration::ZERO, |delay| {
            duration(delay.estimate_us(now) - delay.base_us)
        })
    }

    fn measured_us(&self, now: Instant, path: PathId) -> Option<i64> {
        let delay = self.paths.get(usize::from(path.0))?.as_ref()?;
        Some(delay.estimate_us(now))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::feedback::{DELAY_MODULUS_US, DelaySample};
    use super::*;
    use crate::path::PathConfig;
    use ropewalk_types::Rate;

    fn report(delays: &[(u8, i64, i64)]) -> EgressFeedback {
        let path = |&(id, min_us, mean_us): &(u8, i64, i64)| PathFeedback {
            path: PathId(id),
            received_packets: 10,
            delay: Some(DelaySample {
                min_us: min_us.rem_euclid(DELAY_MODULUS_US),
                mean_us: mean_us.rem_euclid(DELAY_MODULUS_US),
            }),
            ..PathFeedback::default()
        };
        EgressFeedback {
            paths: delays.iter().map(path).collect(),
            ..EgressFeedback::default()
        }
    }

    fn view(id: u8, rtt_ms: u64) -> PathView {
        PathView {
            id: PathId(id),
            config: PathConfig::default(),
            srtt: Duration::from_millis(rtt_ms),
            rttvar: Duration::ZERO,
            min_rtt: Duration::from_millis(rtt_ms),
            owd_relative: Duration::ZERO,
            cwnd: 0,
            in_flight: 1_400,
            queued: 0,
            free: 0,
            next_credit: None,
            rate: Rate::ZERO,
            payload_max: 1_400,
            loss: 0.0,
        }
    }

    fn filled(owd: &mut OneWayDelay, now_ms: u64, rtts: &[u64]) -> Vec<u64> {
        let mut views: Vec<_> = (0..).zip(rtts).map(|(id, &rtt)| view(id, rtt)).collect();
        owd.fill(Instant::from_millis(now_ms), &mut views);
        views
            .iter()
            .map(|view| u64::try_from(view.owd_relative.as_millis()).unwrap())
            .collect()
    }

    #[test]
    fn any_clock_offset_cancels_also_at_the_wrap() {
        for offset in [
            0,
            -123_456_789,
            DELAY_MODULUS_US - 10_000,
            DELAY_MODULUS_US / 2 - 10_000,
        ] {
            let mut owd = OneWayDelay::new();
            let (fast, slow) = (offset + 5_000, offset + 25_000);
            owd.on_feedback(Instant::ZERO, &report(&[(0, slow, slow), (1, fast, fast)]));
            assert_eq!(filled(&mut owd, 0, &[10, 300]), [20, 0], "offset {offset}");
            assert_eq!(
                owd.relative(Instant::ZERO, PathId(0)),
                Duration::from_millis(20)
            );
        }
    }

    #[test]
    fn unmeasured_paths_fall_back_to_half_the_round_trip() {
        let mut owd = OneWayDelay::new();
        assert_eq!(filled(&mut owd, 0, &[50, 70]), [0, 10]);
        // Measured: 1 is 30 ms behind 0. Path 2 lies 25 ms behind 0 by half its RTT.
        owd.on_feedback(Instant::ZERO, &report(&[(0, 0, 0), (1, 30_000, 30_000)]));
        assert_eq!(filled(&mut owd, 0, &[50, 70, 100]), [0, 30, 25]);
    }

    #[test]
    fn a_queue_counts_while_there_is_traffic_and_is_forgotten_after() {
        let mut owd = OneWayDelay::new();
        owd.on_feedback(Instant::ZERO, &report(&[(0, 0, 0), (1, 10_000, 10_000)]));
        for period in 1..20 {
            let now = Instant::from_millis(period * 100);
            owd.on_feedback(now, &report(&[(0, 50_000, 60_000), (1, 10_000, 10_000)]));
        }
        assert_eq!(filled(&mut owd, 1_900, &[50, 50]), [49, 0]);
        assert_eq!(
            owd.queueing(Instant::from_millis(1_900), PathId(0))
                .as_millis(),
            59
        );
        assert_eq!(filled(&mut owd, 4_000, &[50, 50]), [0, 10]);
    }

    /// Path 0 with a queue of 300 ms, as reported at 100 ms, and path 1.
    fn queued() -> OneWayDelay {
        let mut owd = OneWayDelay::new();
        owd.on_feedback(Instant::ZERO, &report(&[(0, 0, 0), (1, 10_000, 10_000)]));
        for _ in 0..20 {
            let queue = report(&[(0, 300_000, 300_000), (1, 10_000, 10_000)]);
            owd.on_feedback(Instant::from_millis(100), &queue);
        }
        owd
    }

    fn lag(owd: &mut OneWayDelay, now_ms: u64, in_flight: u64) -> u128 {
        let mut views = [view(0, 50), view(1, 50)];
        views[0].in_flight = in_flight;
        owd.fill(Instant::from_millis(now_ms), &mut views);
        views[0].owd_relative.as_millis()
    }

    #[test]
    fn a_queue_drains_while_nothing_is_under_way_and_stays_drained() {
        let mut owd = queued();
        let seen = [100, 250, 280].map(|now| lag(&mut owd, now, 0));
        assert_eq!(seen, [289, 139, 109]);
        assert_eq!(lag(&mut owd, 300, 1_400), 109, "a packet is under way");
        assert_eq!(lag(&mut owd, 600, 0), 109, "it was until now");
        assert_eq!(lag(&mut owd, 800, 0), 0, "for 200 ms");
        let mut fed = queued();
        assert_eq!(lag(&mut fed, 800, 1_400), 289, "a queue that is fed");
    }

    #[test]
    fn a_queue_of_others_does_not_drain() {
        let mut owd = queued();
        let seen = [100, 400].map(|now| lag(&mut owd, now, 0));
        assert_eq!(seen, [289, 0]);
        let queue = report(&[(0, 300_000, 300_000), (1, 10_000, 10_000)]);
        for _ in 0..10 {
            owd.on_feedback(Instant::from_millis(500), &queue);
        }
        let found = lag(&mut owd, 500, 1_400);
        assert!(found > 280, "{found}");
        for now in [500, 700, 900] {
            assert_eq!(lag(&mut owd, now, 0), found, "it was not ours");
        }
    }

    #[test]
    fn an_old_minimum_gives_way_to_a_path_that_became_slower() {
        let mut owd = OneWayDelay::new();
        for second in 0..12 {
            let delay = if second == 0 { 0 } else { 40_000 };
            let now = Instant::from_millis(second * 1_000);
            owd.on_feedback(now, &report(&[(0, delay, delay), (1, 10_000, 10_000)]));
        }
        assert_eq!(filled(&mut owd, 14_000, &[50, 50]), [30, 0]);
    }

    #[test]
    fn a_clock_that_jumps_voids_the_history() {
        let mut owd = OneWayDelay::new();
        owd.on_feedback(Instant::ZERO, &report(&[(0, 0, 0), (1, 10_000, 10_000)]));
        let jump = 60_000_000;
        let after = report(&[(0, jump, jump), (1, jump + 15_000, jump + 15_000)]);
        owd.on_feedback(Instant::from_millis(100), &after);
        assert_eq!(filled(&mut owd, 3_000, &[50, 50]), [0, 15]);
    }
}
