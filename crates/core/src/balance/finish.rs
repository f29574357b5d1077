//! Least expected finish: each new flow goes where it would be done first.
//!
//! Source: join the shortest queue with unequal servers: argmin of (backlog + size) / capacity.
//! The kernel hands out places by a table, so the rule is played ahead for the flows that are
//! expected until the next table.

use ropewalk_types::Rate;

/// An uplink as the rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes that its present flows are taken to want still.
    pub backlog_bytes: u64,
    /// What it carries.
    pub capacity: Rate,
}

/// Most flows that are played ahead. More: exacter shares where many flows are expected, more work
/// per table.
pub const FLOWS_MAX: usize = 4_096;

/// How many of the next `count` flows of `size_bytes` each go to each uplink; uplinks without capacity
/// get none. At most [`FLOWS_MAX`] are placed.
#[must_use]
pub fn place(loads: &[Load], size_bytes: u64, count: usize) -> Vec<u64> {
    let mut backlogs: Vec<u64> = loads.iter().map(|load| load.backlog_bytes).collect();
    let mut placed = vec![0_u64; loads.len()];
    for _ in 0..count.min(FLOWS_MAX) {
        let finish = |index: usize| {
            let bytes = backlogs[index].saturating_add(size_bytes);
            bytes as f64 / loads[index].capacity.bits_per_sec() as f64
        };
        let open = (0..loads.len()).filter(|&index| loads[index].capacity.bits_per_sec() > 0);
        let Some(best) = open.min_by(|&a, &b| finish(a).total_cmp(&finish(b)).then(a.cmp(&b)))
        else {
            break;
        };
        backlogs[best] = backlogs[best].saturating_add(size_bytes);
        placed[best] += 1;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(backlog_bytes: u64, mbit: u64) -> Load {
        Load {
            backlog_bytes,
            capacity: Rate::from_bits_per_sec(mbit * 1_000_000),
        }
    }

    #[test]
    fn idle_uplinks_share_by_capacity_and_busy_ones_are_spared() {
        assert_eq!(place(&[load(0, 30), load(0, 10)], 1_000, 4), [3, 1]);
        let busy = [load(10_000_000, 30), load(0, 10)];
        assert_eq!(place(&busy, 100_000, 4), [0, 4], "a full fast uplink waits");
        assert_eq!(place(&[load(0, 0), load(9, 1)], 1, 2), [0, 2]);
        assert_eq!(place(&[load(0, 0)], 1, 2), [0]);
    }

    proptest! {
        #[test]
        fn nobody_would_have_finished_a_flow_sooner_elsewhere(
            parts in prop::collection::vec((0_u64..50_000_000, 1_u64..1_000), 1..8),
            count in 1_usize..200,
        ) {
            let loads: Vec<Load> = parts.iter().map(|&(bytes, mbit)| load(bytes, mbit)).collect();
            let size = 200_000;
            let placed = place(&loads, size, count);
            prop_assert_eq!(placed.iter().sum::<u64>(), count as u64);
            let end = |index: usize, more: u64| {
                let bytes = loads[index].backlog_bytes + (placed[index] + more) * size;
                bytes as f64 / loads[index].capacity.bits_per_sec() as f64
            };
            for used in (0..loads.len()).filter(|&index| placed[index] > 0) {
                for other in 0..loads.len() {
                    prop_assert!(end(used, 0) <= end(other, 1) + 1e-9);
                }
            }
        }
    }
}
