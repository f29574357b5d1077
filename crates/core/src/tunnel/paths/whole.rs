//! The largest inner packet that the paths take whole, as connections should be told.

use super::Paths;
use crate::tunnel::tuning::SHRINK_AFTER;
use ropewalk_types::Instant;
use ropewalk_wire::DATA_HEADER;

/// Follows the paths. A connection keeps the size of its segments for as long as it lives. So a
/// connection is not told of a size that a path has only just found, or takes for a moment: its
/// packets leave in pieces meanwhile.
#[derive(Debug, Default)]
pub(super) struct Whole {
    current: Option<usize>,
    /// Since when the paths take less than that.
    short_since: Option<Instant>,
}

impl Whole {
    /// The paths take packets of at most `now_taken` bytes whole; `None` without a usable path.
    fn follow(&mut self, now: Instant, now_taken: Option<usize>) {
        let Some(bytes) = now_taken else { return };
        if self.current.is_none_or(|current| bytes >= current) {
            self.short_since = None;
        } else if now.since(*self.short_since.get_or_insert(now)) < SHRINK_AFTER {
            return;
        }
        self.current = Some(bytes);
    }
}

impl Paths {
    /// Largest inner packet that every usable path takes whole at this moment; the smallest of the
    /// paths' sizes, bytes.
    pub fn payload_max(&self) -> Option<usize> {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable
            .map(|(_, p)| p.snapshot.max_datagram.saturating_sub(DATA_HEADER))
            .min()
    }

    /// The paths may take other sizes than before.
    pub fn follow_sizes(&mut self, now: Instant) {
        let now_taken = self.payload_max();
        self.whole.follow(now, now_taken);
    }

    /// Largest inner packet that the paths take whole, bytes: a larger size counts at once, a smaller
    /// one when it has lasted. `None` before the first path.
    pub const fn whole(&self) -> Option<usize> {
        self.whole.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::Duration;

    #[test]
    fn a_larger_size_counts_at_once_and_a_smaller_one_after_twenty_seconds() {
        let mut whole = Whole::default();
        let mut at = |seconds, bytes| {
            whole.follow(Instant::ZERO + Duration::from_secs(seconds), bytes);
            whole.current
        };
        assert_eq!(at(0, None), None);
        assert_eq!(at(0, Some(1_435)), Some(1_435));
        assert_eq!(at(1, Some(1_300)), Some(1_435));
        assert_eq!(at(15, Some(1_435)), Some(1_435));
        assert_eq!(at(16, Some(1_300)), Some(1_435), "the wait begins anew");
        assert_eq!(at(17, None), Some(1_435));
        assert_eq!(at(35, Some(1_300)), Some(1_435));
        assert_eq!(at(36, Some(1_300)), Some(1_300));
    }
}
