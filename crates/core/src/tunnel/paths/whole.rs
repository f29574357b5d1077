//! The largest inner packet that the paths take whole, as connections should be told.

use super::Paths;
use crate::tunnel::tuning::{INNER_MTU_USUAL, SIZE_LASTS, WHOLE_USUAL};
use ropewalk_types::Instant;
use ropewalk_wire::DATA_HEADER;
use std::cmp::Ordering;

/// Follows the paths. A connection keeps the size of its segments for as long as it lives. So another
/// size counts only when it has lasted. A path begins with small packets, and loses large ones for a moment. A path
/// of small packets may be away for a moment, too. Packets that do not fit leave in pieces meanwhile. Only a size
/// that hosts expect anyway counts at once.
#[derive(Debug)]
pub(super) struct Whole {
    current: usize,
    /// That the paths take more than that or less, since when, and the least that they took meanwhile.
    differs: Option<(Ordering, Instant, usize)>,
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
        let Some(bytes) = now_taken else {
            // Paths come back one by one, and the first one says nothing of the others.
            self.differs = self.differs.filter(|(side, ..)| side.is_lt());
            return;
        };
        // Hosts expect that much.
        self.current = self.current.max(bytes.min(INNER_MTU_USUAL));
        let side = bytes.cmp(&self.current);
        if side.is_eq() {
            self.differs = None;
            return;
        }
        let (since, least) = match self.differs {
            Some((before, since, least)) if before == side => (since, least.min(bytes)),
            _ => (now, bytes),
        };
        self.differs = Some((side, since, least));
        if now.since(since) >= SIZE_LASTS {
            self.differs = None;
            self.current = if side.is_gt() { least } else { bytes };
        }
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
        assert_eq!(at(2, Some(8_900)), 1_500, "a small path may come back");
        assert_eq!(at(10, None), 1_500);
        assert_eq!(at(29, Some(8_900)), 1_500, "the wait begins anew");
        assert_eq!(at(30, Some(8_800)), 1_500);
        assert_eq!(at(49, Some(8_900)), 8_800, "the least of the wait");
        assert_eq!(at(53, Some(1_300)), 8_800);
        assert_eq!(at(66, Some(8_800)), 8_800);
        assert_eq!(at(67, Some(1_300)), 8_800, "the wait begins anew");
        assert_eq!(at(68, None), 8_800);
        assert_eq!(at(86, Some(1_300)), 8_800);
        assert_eq!(at(87, Some(1_300)), 1_300);
        assert_eq!(at(88, Some(1_200)), 1_300);
    }
}
