//! How many repair symbols packets need.

use super::BLOCK_PACKETS;
use super::tuning::{
    LOSS_MIN, PACKETS_MAX, REDUNDANCY_MAX, REPAIR_SYMBOLS_MAX, RESIDUAL, RESIDUAL_BLOCK,
};
use crate::estimate::Gilbert;

/// Repair symbols per packet, `0.0..=0.5`, for a path that loses as `gilbert` says. They make up
/// for the losses in all blocks of `packets` but one of a thousand, if that many are allowed.
#[must_use]
pub fn redundancy(gilbert: Gilbert, packets: f64) -> f64 {
    if gilbert.p / (gilbert.p + gilbert.r) < LOSS_MIN {
        return 0.0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let packets = packets.clamp(1.0, PACKETS_MAX) as usize;
    let count = repair_symbols(gilbert, packets, RESIDUAL).unwrap_or(REPAIR_SYMBOLS_MAX);
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let wanted = count as f64 / packets as f64;
    wanted.min(REDUNDANCY_MAX)
}

/// Repair symbols of a block that is incomplete in one of a hundred cases without repairs.
#[must_use]
pub fn block_combinations(gilbert: Gilbert) -> usize {
    if gilbert.p / (gilbert.p + gilbert.r) < LOSS_MIN {
        return 0;
    }
    let count = repair_symbols(gilbert, BLOCK_PACKETS, RESIDUAL_BLOCK);
    count.unwrap_or(BLOCK_PACKETS).min(BLOCK_PACKETS)
}

/// Fewest repair symbols that make up for the losses among `packets` packets and themselves, on a
/// path that loses as `gilbert` says. They fail with a chance of at most `residual`. `None` when
/// even the most allowed do not suffice.
///
/// The chance is that of more losses among all than there are repair symbols: exact for a block, and
/// about right for a window that slides as far. Counted loss by loss along the two states of the
/// model, as for any such chain.
fn repair_symbols(gilbert: Gilbert, packets: usize, residual: f64) -> Option<usize> {
    let Gilbert { p, r } = gilbert;
    if p <= 0.0 || packets == 0 {
        return Some(0);
    }
    let bad = p / (p + r);
    // Chance of `j` losses so far with the last packet received, and lost.
    let mut good = [0.0; REPAIR_SYMBOLS_MAX + 2];
    let mut lost = [0.0; REPAIR_SYMBOLS_MAX + 2];
    (good[0], lost[1]) = (1.0 - bad, bad);
    let mut sent = 1;
    for count in 0..=REPAIR_SYMBOLS_MAX {
        while sent < packets + count {
            step(gilbert, &mut good, &mut lost);
            sent += 1;
        }
        let enough: f64 = (0..=count).map(|j| good[j] + lost[j]).sum();
        if 1.0 - enough <= residual {
            return Some(count);
        }
    }
    None
}

/// One packet more. What exceeds the arrays is too much in any case.
fn step(Gilbert { p, r }: Gilbert, good: &mut [f64], lost: &mut [f64]) {
    let mut from = (0.0, 0.0);
    for (good, lost) in good.iter_mut().zip(lost) {
        let (was_good, was_lost) = (*good, *lost);
        *good = was_good * (1.0 - p) + was_lost * r;
        *lost = from.0 * p + from.1 * (1.0 - r);
        from = (was_good, was_lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn independent(loss: f64) -> Gilbert {
        Gilbert {
            p: loss,
            r: 1.0 - loss,
        }
    }

    fn bursts(loss: f64, mean: f64) -> Gilbert {
        let r = 1.0 / mean;
        Gilbert {
            p: r * loss / (1.0 - loss),
            r,
        }
    }

    #[test]
    fn as_many_as_chance_asks_for() {
        // Computed beforehand by enumeration and by chance.
        assert!(redundancy(bursts(0.2, 4.0), 20.0) <= REDUNDANCY_MAX);
        assert!(redundancy(independent(0.000_9), 20.0) <= 0.0);
        for (gilbert, packets, expected) in [
            (independent(0.05), 20, 4),
            (independent(0.05), 40, 6),
            (independent(0.1), 20, 7),
            (independent(0.1), 40, 10),
            (independent(0.2), 20, 12),
            (independent(0.2), 40, 19),
            (bursts(0.05, 4.0), 20, 14),
            (bursts(0.05, 4.0), 40, 18),
            (bursts(0.2, 4.0), 20, 26),
            (bursts(0.2, 4.0), 40, 37),
        ] {
            assert_eq!(
                repair_symbols(gilbert, packets, 0.01),
                Some(expected),
                "{gilbert:?}, {packets}"
            );
        }
    }

    #[test]
    fn nothing_for_nothing_and_no_end_is_known() {
        assert_eq!(repair_symbols(independent(0.0), 40, 0.001), Some(0));
        assert_eq!(repair_symbols(independent(0.3), 0, 0.001), Some(0));
        assert_eq!(repair_symbols(bursts(0.6, 900.0), 100, 0.001), None);
    }
}
