//! Smooth weighted round robin: a sequence in which every uplink comes up as often as its weight
//! says, spread as evenly as can be.
//!
//! Source: each turn every candidate earns its weight, the richest is taken and pays the sum of
//! all weights. Over a whole round the counts are exact, and within it no count is off by more
//! than one per candidate.

/// Which candidate comes at each of `places`, for candidates with these weights. Weights are first
/// rounded to whole places by largest remainder, so that one round of the table is exact; whoever
/// has a weight gets a place. Empty when all weights are 0 or there are fewer places than weights.
#[must_use]
pub fn sequence(weights: &[u64], places: usize) -> Vec<usize> {
    let counts = apportion(weights, places);
    let total: i64 = counts.iter().sum();
    if total == 0 {
        return Vec::new();
    }
    let mut balance = vec![0_i64; counts.len()];
    let turn = |_| {
        for (balance, count) in balance.iter_mut().zip(&counts) {
            *balance += count;
        }
        // The first of equals, so that the order never depends on anything but the weights.
        let richest = (0..balance.len())
            .filter(|&index| counts[index] > 0)
            .max_by(|&a, &b| balance[a].cmp(&balance[b]).then(b.cmp(&a)))
            .unwrap_or(0);
        balance[richest] -= total;
        richest
    };
    (0..places).map(turn).collect()
}

/// How many of `places` each weight gets: by largest remainder, and at least one each. All 0 when all
/// weights are 0 or there are fewer places than weights.
#[must_use]
pub fn apportion(weights: &[u64], places: usize) -> Vec<i64> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let some = weights.iter().filter(|&&weight| weight > 0).count();
    if sum == 0 || some > places {
        return vec![0; weights.len()];
    }
    let exact = |index: usize| u128::from(weights[index]) * places as u128;
    let whole = |index: usize| i64::try_from(exact(index) / sum).unwrap_or(i64::MAX);
    let mut counts: Vec<i64> = (0..weights.len()).map(whole).collect();
    let left = i64::try_from(places).unwrap_or(i64::MAX) - counts.iter().sum::<i64>();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(exact(index) % sum), index));
    for &index in order.iter().take(usize::try_from(left).unwrap_or(0)) {
        counts[index] += 1;
    }
    for &index in &order {
        if counts[index] == 0 {
            // There is one with two: there are at least as many places as weights.
            let richest = (0..counts.len()).max_by_key(|&index| counts[index]);
            counts[richest.unwrap_or(index)] -= 1;
            counts[index] = 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn weights_interleave_instead_of_coming_in_runs() {
        assert_eq!(sequence(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(sequence(&[1, 1], 4), [0, 1, 0, 1]);
        assert_eq!(sequence(&[0, 3], 2), [1, 1]);
        assert!(sequence(&[0, 0], 4).is_empty());
        assert!(sequence(&[], 4).is_empty());
        assert!(sequence(&[1, 1, 1], 2).is_empty());
    }

    proptest! {
        #[test]
        fn every_prefix_is_close_to_the_weights(
            weights in prop::collection::vec(0_u64..1_000_000_000, 1..15),
        ) {
            let places = super::super::SLOTS;
            let sequence = sequence(&weights, places);
            let sum: u64 = weights.iter().sum();
            prop_assume!(sum > 0);
            prop_assert_eq!(sequence.len(), places);
            let some = weights.iter().filter(|&&weight| weight > 0).count() as f64;
            for (index, &weight) in weights.iter().enumerate() {
                let count = sequence.iter().filter(|&&at| at == index).count();
                prop_assert_eq!(count > 0, weight > 0);
                // Each of the others may have taken one place to be there at all.
                let exact = weight as f64 / sum as f64 * places as f64;
                prop_assert!((count as f64 - exact).abs() <= some + 1.0, "{} of {}", count, exact);
                let share = count as f64 / places as f64;
                let mut seen = 0.0;
                for (turn, &at) in sequence.iter().enumerate() {
                    seen += f64::from(u8::from(at == index));
                    let due = share * (turn + 1) as f64;
                    prop_assert!((seen - due).abs() <= some, "{} of {} at {}", seen, due, turn);
                }
            }
        }
    }
}
