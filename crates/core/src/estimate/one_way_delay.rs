//! One-way delay of each path relative to the fastest, without synchronised clocks.
//!
//! The exit reports receive time minus send time on its own clock; the unknown offset is the
//! same on every path and cancels in differences. The smallest delay of the last
//! [`WINDOW`] is the path as uncongested; the mean of the newest report adds what is queued now.
//! A path without reports is placed by half its round-trip time.

use super::{ExitFeedback, delay_difference_us};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

/// How long a smallest delay counts.
pub const WINDOW: Duration = Duration::from_secs(10);
/// After this a report says nothing of the queue any more.
const FRESH: Duration = Duration::from_millis(500);
/// Parts the window is kept in, so that it slides.
const PARTS: usize = 5;

#[derive(Clone, Copy, Debug)]
struct Path {
    /// Smallest delay in each part of the window.
    minima: [Option<i64>; PARTS],
    part_start: Instant,
    mean_us: i64,
    heard: Instant,
}

/// Delays of all paths of a tunnel in one direction.
#[derive(Debug, Default)]
pub struct OneWayDelay {
    paths: [Option<Path>; PATHS_MAX],
}

impl OneWayDelay {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a report in.
    pub fn on_feedback(&mut self, now: Instant, feedback: &ExitFeedback) {
        for seen in &feedback.paths {
            let Some(delay) = seen.delay else { continue };
            let path = self.paths[seen.path.index()].get_or_insert(Path {
                minima: [None; PARTS],
                part_start: now,
                mean_us: delay.mean_us,
                heard: now,
            });
            while now.since(path.part_start) > WINDOW / PARTS as u32 {
                path.part_start += WINDOW / PARTS as u32;
                path.minima.rotate_right(1);
                path.minima[0] = None;
            }
            let part = &mut path.minima[0];
            *part = Some(part.map_or(delay.min_us, |old| earlier(old, delay.min_us)));
            path.mean_us = delay.mean_us;
            path.heard = now;
        }
    }

    /// Forgets a path.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.paths[path.index()] = None;
    }

    /// Smallest delay of the window, on the exit's clock.
    fn base(&self, id: PathId) -> Option<i64> {
        let path = self.paths[id.index()].as_ref()?;
        path.minima.iter().flatten().copied().reduce(earlier)
    }

    /// Delay of `id` as it is now: the smallest, and what the last report shows queued.
    fn current(&self, now: Instant, id: PathId) -> Option<i64> {
        let base = self.base(id)?;
        let path = self.paths[id.index()].as_ref()?;
        if now.since(path.heard) > FRESH {
            return Some(base);
        }
        Some(base + delay_difference_us(path.mean_us, base).max(0))
    }

    /// Delay of `id` relative to the fastest measured path; zero when unknown.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    pub fn relative(&self, now: Instant, id: PathId) -> Duration {
        let Some(own) = self.current(now, id) else {
            return Duration::ZERO;
        };
        let all = (0..PATHS_MAX).filter_map(|i| self.current(now, PathId(i as u8)));
        let best = all.reduce(earlier).unwrap_or(own);
        micros(delay_difference_us(own, best))
    }

    /// Fills `owd_relative` of every view. Paths not measured yet are placed by half the
    /// difference of their smallest round-trip times.
    pub fn fill(&self, now: Instant, views: &mut [PathView]) {
        let Some(reference) = views
            .iter()
            .find_map(|v| self.current(now, v.id).map(|delay| (delay, v.min_rtt)))
        else {
            let best = views.iter().map(|v| v.min_rtt).min().unwrap_or_default();
            for view in views {
                view.owd_relative = (view.min_rtt - best) / 2;
            }
            return;
        };
        let (delay, rtt) = reference;
        let place = |view: &PathView| {
            self.current(now, view.id).map_or_else(
                || (signed(view.min_rtt) - signed(rtt)) / 2,
                |own| delay_difference_us(own, delay),
            )
        };
        let best = views.iter().map(place).min().unwrap_or(0);
        for view in views {
            view.owd_relative = micros(place(view) - best);
        }
    }
}

fn earlier(a: i64, b: i64) -> i64 {
    if delay_difference_us(a, b) <= 0 { a } else { b }
}

fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

fn signed(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{DelaySample, PathFeedback};

    fn report(delays: &[(u8, i64)]) -> ExitFeedback {
        let paths = delays.iter().map(|&(path, us)| PathFeedback {
            path: PathId(path),
            received_packets: 1,
            delay: Some(DelaySample {
                min_us: us,
                mean_us: us,
            }),
            ..PathFeedback::default()
        });
        ExitFeedback {
            paths: paths.collect(),
            ..ExitFeedback::default()
        }
    }

    #[test]
    fn the_clock_offset_cancels() {
        for offset in [0, 77_000_000, crate::estimate::DELAY_MODULUS_US - 10_000] {
            let mut owd = OneWayDelay::new();
            let wrap = |us: i64| (us + offset).rem_euclid(crate::estimate::DELAY_MODULUS_US);
            owd.on_feedback(
                Instant::ZERO,
                &report(&[(0, wrap(25_000)), (1, wrap(35_000))]),
            );
            assert_eq!(owd.relative(Instant::ZERO, PathId(0)), Duration::ZERO);
            assert_eq!(
                owd.relative(Instant::ZERO, PathId(1)),
                Duration::from_millis(10)
            );
        }
    }

    #[test]
    fn an_old_minimum_leaves_the_window() {
        let mut owd = OneWayDelay::new();
        owd.on_feedback(Instant::ZERO, &report(&[(0, 20_000), (1, 20_000)]));
        for s in 1..15 {
            owd.on_feedback(
                Instant::from_millis(s * 1_000),
                &report(&[(0, 20_000), (1, 60_000)]),
            );
        }
        assert_eq!(owd.base(PathId(1)), Some(60_000));
    }

    #[test]
    fn unmeasured_paths_are_placed_by_half_their_round_trip() {
        let view = |id: u8, ms: u64| PathView {
            id: PathId(id),
            config: crate::path::PathConfig::default(),
            srtt: Duration::from_millis(ms),
            rttvar: Duration::ZERO,
            min_rtt: Duration::from_millis(ms),
            owd_relative: Duration::ZERO,
            cwnd: 0,
            in_flight: 0,
            queued: 0,
            free: 0,
            next_credit: None,
            rate: ropewalk_types::Rate::ZERO,
            payload_max: 1_400,
            loss: 0.0,
        };
        let mut views = [view(0, 50), view(1, 70), view(2, 90)];
        let mut owd = OneWayDelay::new();
        owd.fill(Instant::ZERO, &mut views);
        assert_eq!(views[1].owd_relative, Duration::from_millis(10));
        owd.on_feedback(Instant::ZERO, &report(&[(0, 500_000), (1, 540_000)]));
        owd.fill(Instant::ZERO, &mut views);
        assert_eq!(views[1].owd_relative, Duration::from_millis(40));
        assert_eq!(views[2].owd_relative, Duration::from_millis(20));
    }
}
