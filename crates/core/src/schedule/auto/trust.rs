//! Which paths are worth using, and whether striping works, by what the egress reports.
//!
//! Invariant: at least one of the paths shown is open.

use super::tuning::{
    ASSESS_INTERVAL, BACKOFF_MAX, BACKOFF_MIN, COPIES_FOR_LAG, COPIES_FOR_LOSS, FORGIVE_AFTER,
    FORGIVE_LOSS_AFTER, LAG_FINE, LAG_HIGH, LOSS_FINE, LOSS_HIGH, LOSS_LASTS, STALL_PACKETS,
    STALL_SHARE,
};
use crate::estimate::EgressFeedback;
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

/// Why a path is not used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    Loss(f64),
    Lag(Duration),
}

impl Reason {
    const fn copies(self) -> u8 {
        match self {
            Self::Loss(_) => COPIES_FOR_LOSS,
            Self::Lag(_) => COPIES_FOR_LAG,
        }
    }

    const fn forgiven_after(self) -> Duration {
        match self {
            Self::Loss(_) => FORGIVE_LOSS_AFTER,
            Self::Lag(_) => FORGIVE_AFTER,
        }
    }
}

/// Attempts that are made less and less often while they fail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    /// When the next attempt is due.
    pub due: Instant,
    interval: Duration,
}

impl Backoff {
    /// Another failure: the next attempt is one interval away, the one after twice that. What
    /// went well for `forgiven` since the last attempt ends that: back to `shortest`.
    pub fn fail(&mut self, now: Instant, shortest: Duration, forgiven: Duration) {
        if now.since(self.due) > forgiven {
            self.interval = shortest;
        }
        self.interval = self.interval.max(shortest);
        self.due = now + self.interval;
        self.interval = (self.interval * 2).min(BACKOFF_MAX);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct PathTrust {
    excluded: Option<Reason>,
    /// Since when it has lost too much.
    lossy_since: Option<Instant>,
    retry: Backoff,
    copies_left: u8,
}

/// Judgement of every path.
#[derive(Debug, Default)]
pub(super) struct Trust {
    paths: [PathTrust; PATHS_MAX],
    next_assessment: Instant,
    exclusions: u64,
    striping: Backoff,
    stalled: u32,
    seen: u32,
    pauses: u64,
    paused: bool,
}

impl Trust {
    /// Whether `path` may carry traffic that depends on it.
    pub(super) fn open(&self, path: PathId) -> bool {
        self.paths
            .get(usize::from(path.0))
            .is_none_or(|path| path.excluded.is_none())
    }

    /// Judges the paths shown, if it is time to.
    pub(super) fn assess(&mut self, now: Instant, paths: &[PathView]) {
        let all_excluded = !paths.iter().any(|path| self.open(path.id));
        if now < self.next_assessment && !all_excluded {
            return;
        }
        self.next_assessment = now + ASSESS_INTERVAL;
        // A path that lags is nothing to flee to from one that loses.
        let timely = paths.iter().filter(|path| !self.lags(path));
        let cleanest = timely.map(|path| path.loss).fold(1.0, f64::min);
        for path in paths {
            let lags = self.lags(path);
            let Some(trust) = self.paths.get_mut(usize::from(path.id.0)) else {
                continue;
            };
            let out = trust.excluded.is_some();
            let loss_limit = if out { LOSS_FINE } else { LOSS_HIGH };
            let lossy = path.loss > loss_limit && cleanest < LOSS_FINE;
            let since = if lossy {
                *trust.lossy_since.get_or_insert(now)
            } else {
                trust.lossy_since = None;
                now
            };
            let reason = if lags {
                Some(Reason::Lag(path.owd_relative))
            } else if lossy && (out || now.since(since) >= LOSS_LASTS) {
                Some(Reason::Loss(path.loss))
            } else {
                None
            };
            if let Some(reason) = reason
                && !out
            {
                self.exclusions += 1;
                trust.retry.fail(now, BACKOFF_MIN, reason.forgiven_after());
                trust.copies_left = 0;
            }
            trust.excluded = reason;
        }
        // The fastest path may be the lossy one: if nothing is left, everything is used.
        if !paths.iter().any(|path| self.open(path.id)) {
            for path in paths {
                if let Some(trust) = self.paths.get_mut(usize::from(path.id.0)) {
                    trust.excluded = None;
                }
            }
        }
    }

    /// Whether `path` comes too late, or not clearly sooner again.
    fn lags(&self, path: &PathView) -> bool {
        let limit = if self.open(path.id) {
            LAG_HIGH
        } else {
            LAG_FINE
        };
        path.owd_relative > limit
    }

    /// Whether an excluded path should get a copy of the packet being sent.
    pub(super) fn wants_copy(&mut self, now: Instant, path: PathId) -> bool {
        let Some(trust) = self.paths.get_mut(usize::from(path.0)) else {
            return false;
        };
        let Some(reason) = trust.excluded else {
            return false;
        };
        if now >= trust.retry.due {
            // Nothing went well because nobody sent anything.
            trust.retry.fail(now, BACKOFF_MIN, BACKOFF_MAX);
            trust.copies_left = reason.copies();
        }
        trust.copies_left > 0
    }

    /// A copy was sent over an excluded path.
    pub(super) fn copy_sent(&mut self, path: PathId) {
        if let Some(trust) = self.paths.get_mut(usize::from(path.0)) {
            trust.copies_left = trust.copies_left.saturating_sub(1);
        }
    }

    /// Whether striping pauses because it stalled the egress.
    pub(super) fn striping_paused(&self, now: Instant) -> bool {
        self.paused && now < self.striping.due
    }

    /// Learns from a report whether striping stalls the egress.
    pub(super) fn on_feedback(&mut self, now: Instant, feedback: &EgressFeedback, striping: bool) {
        if !striping || self.striping_paused(now) {
            (self.seen, self.stalled) = (0, 0);
            return;
        }
        let late: u32 = feedback.paths.iter().map(|path| path.late_packets).sum();
        let received: u32 = feedback
            .paths
            .iter()
            .map(|path| path.received_packets)
            .sum();
        // A hold for a packet that was lost ends by time however the flow is sent.
        let lost: u32 = feedback.paths.iter().map(|path| path.lost_packets).sum();
        let timeouts = feedback.hold_timeouts.saturating_sub(lost);
        self.stalled = self.stalled.saturating_add(late.saturating_add(timeouts));
        self.seen = self.seen.saturating_add(received);
        if self.seen < STALL_PACKETS {
            return;
        }
        if f64::from(self.stalled) > STALL_SHARE * f64::from(self.seen) {
            // On slow paths a verdict takes long: only a good one forgives.
            self.striping.fail(now, BACKOFF_MIN, Duration::MAX);
            self.paused = true;
            self.pauses += 1;
        } else if now.since(self.striping.due) > FORGIVE_AFTER {
            self.striping = Backoff::default();
        }
        (self.seen, self.stalled) = (0, 0);
    }

    /// `path` is gone for good.
    pub(super) fn on_path_removed(&mut self, path: PathId) {
        if let Some(trust) = self.paths.get_mut(usize::from(path.0)) {
            *trust = PathTrust::default();
        }
    }

    /// What is excluded and why, in words; `None` when nothing ever was.
    pub(super) fn describe(&self, now: Instant) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        for (path, trust) in self.paths.iter().enumerate() {
            match trust.excluded {
                Some(Reason::Loss(loss)) => {
                    parts.push(format!("path {path} not used: loses {:.0} %", loss * 100.0));
                }
                Some(Reason::Lag(lag)) => {
                    parts.push(format!(
                        "path {path} not used: {} ms later",
                        lag.as_millis()
                    ));
                }
                None => {}
            }
        }
        if self.exclusions > 0 {
            parts.push(format!("paths excluded: {}", times(self.exclusions)));
        }
        if self.striping_paused(now) {
            let why = "each flow keeps to one path for now, as packets over several came too late";
            parts.push(why.to_owned());
        } else if self.pauses > 0 {
            parts.push(format!(
                "several paths for one flow were paused {}, as packets came too late",
                times(self.pauses)
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn times(count: u64) -> String {
    if count == 1 {
        "once".to_owned()
    } else {
        format!("{count} times")
    }
}
