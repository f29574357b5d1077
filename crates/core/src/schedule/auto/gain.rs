//! Whether striping a flow brings enough.
//!
//! Over paths that differ, or lose, a striped flow pays: its packets wait for each other, and it
//! meets the losses and the jitter of every path it uses. What the other paths carried of it is weighed against all it sent, and
//! where that is little the flow stays at home for a while, longer each time.

use super::trust::Backoff;
use crate::path::PathView;
use ropewalk_types::{Duration, Instant};

/// Part of a flow's bytes, one in so many, that the other paths must carry.
const WORTH_ONE_IN: u64 = 8;
/// How long what striping brings is watched, beside [`ROUND_TRIPS`] ...
const WATCH: Duration = Duration::from_secs(1);
/// ... of the path, which need not have been used before and has to find its rate first.
const ROUND_TRIPS: u32 = 12;
/// How long a flow stays at home at first.
const PAUSE_MIN: Duration = Duration::from_secs(10);

/// Striping that rests for longer than this, or one and a half round trips, begins anew: a flow
/// that seldom has more to send than its home takes says nothing of the other path.
const REST: Duration = Duration::from_millis(200);

/// What striping brings one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gain {
    /// Bytes sent, and those of them that did not go home, since the watch began.
    sent: u64,
    away: u64,
    /// When they are weighed; `None` while nothing is watched.
    weighed_at: Option<Instant>,
    /// When the watch ends unless more goes away.
    rests_at: Instant,
    pause: Backoff,
}

impl Gain {
    /// Notes that `bytes` of the flow went over `path`.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, path: &PathView, at_home: bool) {
        if now >= self.rests_at {
            (self.sent, self.away, self.weighed_at) = (0, 0, None);
        }
        self.sent = self.sent.saturating_add(bytes);
        if !at_home {
            self.away = self.away.saturating_add(bytes);
            self.rests_at = now + REST.max(path.srtt * 3 / 2);
            self.weighed_at
                .get_or_insert(now + WATCH + path.srtt * ROUND_TRIPS);
        }
        if self.weighed_at.is_some_and(|at| now >= at) {
            if self.away < self.sent / WORTH_ONE_IN {
                self.pause.fail_at_least(now, PAUSE_MIN);
            }
            (self.sent, self.away, self.weighed_at) = (0, 0, None);
        }
    }

    /// Whether the flow may be striped.
    pub(super) fn worth_it(&self, now: Instant) -> bool {
        now >= self.pause.due
    }
}
