//! Whether striping a flow brings enough.
//!
//! A striped flow pays where paths differ or lose. Its packets wait for each other, and it meets
//! the losses and the jitter of every path it uses. What such paths carried of it is weighed
//! against all it sent. Where that is little, and they do not look as if they could carry more, the
//! flow leaves them for a while, longer each time.

use super::trust::Backoff;
use super::tuning::{
    MAY_BRING_MORE, PAUSE_FORGIVEN_AFTER, PAUSE_MIN, REST, WATCH, WATCH_ROUND_TRIPS, WORTH_ONE_IN,
};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, Rate};

/// What striping brings one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gain {
    /// Bytes sent while the flow was striped, and those of them that did not go pinned path.
    sent: u64,
    away: u64,
    /// How long it was, and up to when that is counted.
    watched: Duration,
    counted: Instant,
    /// When the watch rests unless more goes away.
    rests_at: Instant,
    /// Rate of the pinned path when striping was last considered.
    pinned_rate: Rate,
    /// Paths that cost a flow pinned there something, as bits.
    costly: u16,
    pause: Backoff,
}

impl Gain {
    /// Notes what striping over `path` would mean for the flow at `pinned path`.
    pub(super) fn consider(&mut self, pinned_path: &PathView, path: &PathView, costs: bool) {
        self.pinned_rate = pinned_path.rate_or_window();
        let bit = 1 << (path.id.0 % 16);
        self.costly = (self.costly & !bit) | if costs { bit } else { 0 };
    }

    /// Notes that `bytes` of the flow went over `path`.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, path: &PathView, at_home: bool) {
        if now < self.rests_at {
            self.sent = self.sent.saturating_add(bytes);
            self.watched += now.since(self.counted);
        }
        self.counted = now;
        if at_home || self.costly & (1 << (path.id.0 % 16)) == 0 {
            return;
        }
        self.rests_at = now + REST.max(path.min_rtt * 3 / 2);
        self.away = self.away.saturating_add(bytes);
        if self.watched >= WATCH + path.min_rtt * WATCH_ROUND_TRIPS {
            let rate = path.rate.max(Rate::from_transfer(path.cwnd, path.srtt));
            let sparse = rate.bits_per_sec() < self.pinned_rate.bits_per_sec() / MAY_BRING_MORE;
            if sparse && self.away < self.sent / WORTH_ONE_IN {
                self.pause.fail(now, PAUSE_MIN, PAUSE_FORGIVEN_AFTER);
            }
            self.forget();
        }
    }

    /// What was seen so far is another flow's.
    pub(super) const fn forget(&mut self) {
        (self.sent, self.away, self.watched) = (0, 0, Duration::ZERO);
    }

    /// Whether the flow may be striped over paths that cost it something.
    pub(super) fn worth_it(&self, now: Instant) -> bool {
        now >= self.pause.due
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::inputs::view;
    use super::*;

    /// Sends 1,000 bytes every millisecond for `ms`, one in `one_in` away from pinned path, from `from` on.
    fn stripe(gain: &mut Gain, from: Instant, ms: u64, one_in: u64) -> Instant {
        let mut path = view(1, 50, 9);
        path.rate = Rate::from_bits_per_sec(800_000);
        path.cwnd = 5_000;
        gain.consider(&view(0, 50, 9), &path, true);
        for n in 0..ms {
            let now = from + Duration::from_millis(n);
            gain.sent(now, 1_000, &path, n % one_in != 0);
        }
        from + Duration::from_millis(ms)
    }

    #[test]
    fn what_brings_little_is_left_and_tried_again_less_and_less_often() {
        let mut gain = Gain::default();
        let start = Instant::from_millis(1_000);
        let end = stripe(&mut gain, start, 1_500, 20);
        assert!(gain.worth_it(end), "a second and twelve round trips");
        let end = stripe(&mut gain, end, 200, 20);
        assert!(!gain.worth_it(end));
        let again = end + PAUSE_MIN;
        assert!(gain.worth_it(again));
        let end = stripe(&mut gain, again, 1_800, 20);
        assert!(!gain.worth_it(end + PAUSE_MIN));
        assert!(gain.worth_it(end + PAUSE_MIN * 2));
    }

    #[test]
    fn what_brings_much_is_kept() {
        let mut gain = Gain::default();
        let end = stripe(&mut gain, Instant::from_millis(1_000), 10_000, 4);
        assert!(gain.worth_it(end));
    }

    /// Sends a twentieth over `path` for ten seconds; whether that was always worth it.
    fn kept(path: &PathView, costs: bool) -> bool {
        let mut gain = Gain::default();
        let pinned_path = view(0, 50, 9);
        gain.consider(&pinned_path, path, costs);
        (0..10_000).all(|n| {
            let (now, at_home) = (Instant::from_millis(n), n % 20 != 0);
            gain.sent(
                now,
                1_000,
                if at_home { &pinned_path } else { path },
                at_home,
            );
            gain.worth_it(now)
        })
    }

    #[test]
    fn only_a_thin_path_that_costs_something_is_left() {
        let fast = view(1, 50, 9);
        let mut sparse = fast.clone();
        (sparse.rate, sparse.cwnd) = (Rate::from_bits_per_sec(800_000), 5_000);
        assert!(kept(&fast, true), "it may yet bring more");
        assert!(kept(&sparse, false));
        assert!(!kept(&sparse, true));
    }

    #[test]
    fn time_at_home_does_not_count() {
        let mut gain = Gain::default();
        let mut now = Instant::from_millis(1_000);
        for _ in 0..20 {
            now = stripe(&mut gain, now, 1_000, 4);
            for n in 0..2_000 {
                gain.sent(now + Duration::from_millis(n), 1_000, &view(0, 50, 9), true);
            }
            now += Duration::from_secs(2);
            assert!(gain.worth_it(now), "a quarter while it was striped");
        }
    }
}
