//! The largest inner packet that the paths take whole, as connections should be told.

use super::Paths;
use crate::tunnel::tuning::{SHRINK_AFTER, WHOLE_USUAL};
use ropewalk_types::Instant;
use ropewalk_wire::DATA_HEADER;

/// Follows the paths. A connection keeps the size of its segments for as long as it lives. So a smaller
/// size counts only when it has lasted: paths begin with small packets, and lose large ones for a
/// moment. Packets that do not fit leave in pieces meanwhile.
#[derive(Debug)]
pub(super) struct Whole {
    current: usize,
    /// Since when the paths take less than that.
    short_since: Option<Instant>,
}

impl Default for Whole {
    /// What most paths take, until these say otherwise.
    fn default() -> Self {
        Self {
            current: WHOLE_USUAL,
            short_since: None,
        }
    }
}

impl Whole {
    /// The paths take packets of at most `now_taken` bytes whole; `None` without a usable path.
    fn follow(&mut self, now: Instant, now_taken: Option<usize>) {
        let Some(bytes) = now_taken else { return };
        if bytes >= self.current {
            self.short_since = None;
        } else if now.since(*self.short_since.get_or_insert(now)) < SHRINK_AFTER {
            return;
        }
        self.current = bytes;
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
    /// one when it has lasted.
    pub const fn whole(&self) -> usize {
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
        assert_eq!(at(0, None), WHOLE_USUAL);
        assert_eq!(at(0, Some(1_200)), WHOLE_USUAL, "a path has only begun");
        assert_eq!(at(1, Some(8_900)), 8_900);
        assert_eq!(at(2, Some(1_300)), 8_900);
        assert_eq!(at(15, Some(8_900)), 8_900);
        assert_eq!(at(16, Some(1_300)), 8_900, "the wait begins anew");
        assert_eq!(at(17, None), 8_900);
        assert_eq!(at(35, Some(1_300)), 8_900);
        assert_eq!(at(36, Some(1_300)), 1_300);
    }
}
