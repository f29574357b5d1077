//! The largest inner packet that the paths take whole, as connections should be told.

use super::Paths;
use crate::tunnel::tuning::{INNER_MTU_USUAL, SIZE_LASTS, WHOLE_USUAL};
use ropewalk_types::Instant;
use ropewalk_wire::DATA_HEADER;
use std::cmp::Ordering;

/// Follows the paths. A connection keeps the size of its segments for as long as it lives. So another
/// size counts only when it has lasted: paths begin with small packets and lose large ones for a moment, and
/// a path of small packets may be away for a moment while one of large packets stays. Packets that do not fit
/// leave in pieces meanwhile. Only a size that hosts expect anyway counts at once.
#[derive(Debug)]
pub(super) struct Whole {
    current: usize,
    /// Since when the paths take more than that, or less than that.
    differs: Option<(Ordering, Instant)>,
}

impl Default for Whole {
    /// What most paths take, until these say otherwise.
    fn default() -> Self {
        Self {
            current: WHOLE_USUAL,
            differs: None,
        }
    }
}

impl Whole {
    /// The paths take packets of at most `now_taken` bytes whole; `None` without a usable path.
    fn follow(&mut self, now: Instant, now_taken: Option<usize>) {
        let Some(bytes) = now_taken else { return };
        let side = bytes.cmp(&self.current);
        let usual = side.is_ge() && bytes <= INNER_MTU_USUAL;
        if !usual && side.is_ne() {
            let since = match self.differs {
                Some((before, since)) if before == side => since,
                _ => now,
            };
            self.differs = Some((side, since));
            if now.since(since) < SIZE_LASTS {
                return;
            }
        }
        self.differs = None;
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

    /// Largest inner packet that the paths take whole, bytes: another size counts when it has lasted.
    pub const fn whole(&self) -> usize {
        self.whole.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::Duration;

    #[test]
    fn another_size_counts_after_twenty_seconds_and_a_usual_one_at_once() {
        let mut whole = Whole::default();
        let mut at = |seconds, bytes| {
            whole.follow(Instant::ZERO + Duration::from_secs(seconds), bytes);
            whole.current
        };
        assert_eq!(at(0, None), WHOLE_USUAL);
        assert_eq!(at(0, Some(1_200)), WHOLE_USUAL, "a path has only begun");
        assert_eq!(at(1, Some(1_450)), 1_450, "hosts expect that");
        assert_eq!(at(2, Some(8_900)), 1_450, "a small path may come back");
        assert_eq!(at(21, Some(8_900)), 1_450);
        assert_eq!(at(22, Some(8_900)), 8_900);
        assert_eq!(at(23, Some(1_300)), 8_900);
        assert_eq!(at(36, Some(8_900)), 8_900);
        assert_eq!(at(37, Some(1_300)), 8_900, "the wait begins anew");
        assert_eq!(at(38, None), 8_900);
        assert_eq!(at(56, Some(1_300)), 8_900);
        assert_eq!(at(57, Some(1_300)), 1_300);
        assert_eq!(at(58, Some(8_900)), 1_300);
        assert_eq!(
            at(59, Some(1_200)),
            1_300,
            "the other way: the wait begins anew"
        );
        assert_eq!(at(78, Some(8_900)), 1_300);
    }
}
