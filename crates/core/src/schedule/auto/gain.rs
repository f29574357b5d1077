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

/// What striping brings one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gain {
    sent: u64,
    away: u64,
    /// When it is weighed; `None` while the flow stays at home.
    weighed_at: Option<Instant>,
    pause: Backoff,
}

impl Gain {
    /// Notes that `bytes` of the flow went over `path`.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, path: &PathView, at_home: bool) {
        self.sent = self.sent.saturating_add(bytes);
        if !at_home {
            self.away = self.away.saturating_add(bytes);
        }
        match self.weighed_at {
            None if at_home => self.sent = 0,
            None => self.weighed_at = Some(now + WATCH + path.srtt * ROUND_TRIPS),
            Some(at) if now >= at => {
                if self.away < self.sent / WORTH_ONE_IN {
                    self.pause.fail_at_least(now, PAUSE_MIN);
                }
                (self.sent, self.away, self.weighed_at) = (0, 0, None);
            }
            Some(_) => {}
        }
    }

    /// Whether the flow may be striped.
    pub(super) fn worth_it(&self, now: Instant) -> bool {
        now >= self.pause.due
    }
}
