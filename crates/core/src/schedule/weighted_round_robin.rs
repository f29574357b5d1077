//! Weighted round robin: bytes in proportion to a set weight or to the measured rate.
//!
//! Source: smooth weighted round robin with a byte deficit, after Shreedhar and Varghese,
//! "Efficient fair queuing using deficit round robin" (SIGCOMM 1995), for paths instead of queues.
//! Each packet is an income shared by weight. The path that carries it pays its length. The path
//! with the largest balance is next. Deviation: a full path is passed over instead of waited for.
//! Its balance is bounded, so that it cannot come back for more than [`BALANCE_MAX`] in a row.

use super::tuning::{BALANCE_MAX, BITS_PER_SEC_PER_WEIGHT};
use super::{Decision, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Instant, PATHS_MAX, PathId};

/// Balance per path, and the shares of the round the last decision was made in.
#[derive(Debug, Default)]
pub(super) struct WeightedRoundRobin {
    balance: [f64; PATHS_MAX],
    share: [f64; PATHS_MAX],
}

impl Policy for WeightedRoundRobin {
    fn pick(&mut self, _now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let sum: f64 = paths.iter().map(weight).sum();
        self.share = [0.0; PATHS_MAX];
        for path in paths {
            if let Some(share) = self.share.get_mut(usize::from(path.id.0)) {
                *share = weight(path) / sum;
            }
        }
        let balance = |path: &PathView| {
            let index = usize::from(path.id.0);
            self.balance.get(index).copied().unwrap_or(0.0)
                + self.share.get(index).copied().unwrap_or(0.0) * bytes(head)
        };
        paths
            .iter()
            .filter(|path| has_room(path, head))
            .max_by(|a, b| balance(a).total_cmp(&balance(b)).then(b.id.cmp(&a.id)))
            .map_or(Decision::WaitAll, send)
    }

    fn on_sent(&mut self, _now: Instant, head: &Head, path: &PathView) {
        for (index, balance) in self.balance.iter_mut().enumerate() {
            let paid = if index == usize::from(path.id.0) {
                bytes(head)
            } else {
                0.0
            };
            *balance += self.share[index] * bytes(head) - paid;
            *balance = balance.clamp(-BALANCE_MAX, BALANCE_MAX);
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        if let Some(balance) = self.balance.get_mut(usize::from(path.0)) {
            *balance = 0.0;
        }
    }

    fn reason(&self) -> String {
        let shares: Vec<String> = self
            .share
            .iter()
            .enumerate()
            .filter(|(_, share)| **share > 0.0)
            .map(|(path, share)| format!("path {path} {:.0} %", share * 100.0))
            .collect();
        format!("shares by weight: {}", shares.join(", "))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "packet lengths are far below 2^53"
)]
fn bytes(head: &Head) -> f64 {
    head.bytes as f64
}

/// The set weight, or the measured rate; at least one bit per second, so that no path starves.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share needs no more than 53 bits"
)]
fn weight(path: &PathView) -> f64 {
    match path.config.weight {
        Some(weight) => f64::from(weight.max(1)) * BITS_PER_SEC_PER_WEIGHT,
        None => (path.rate_or_window().bits_per_sec() as f64).max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;
    use ropewalk_types::Rate;

    fn shares(paths: &[PathView], packets: u32) -> [u32; 2] {
        let mut policy = WeightedRoundRobin::default();
        let mut sent = [0; 2];
        for _ in 0..packets {
            let Decision::Send(set) = policy.pick(Instant::ZERO, &head(0), paths) else {
                panic!("both paths have room")
            };
            let id = set.iter().next().unwrap();
            policy.on_sent(Instant::ZERO, &head(0), &paths[usize::from(id.0)]);
            sent[usize::from(id.0)] += 1;
        }
        sent
    }

    #[test]
    fn bytes_follow_the_set_weights() {
        let mut paths = [view(0, 50, 9), view(1, 50, 9)];
        paths[0].config.weight = Some(3);
        paths[1].config.weight = Some(1);
        assert_eq!(shares(&paths, 400), [300, 100]);
    }

    #[test]
    fn without_weights_bytes_follow_the_measured_rates() {
        let mut paths = [view(0, 50, 9), view(1, 50, 9)];
        paths[0].rate = Rate::from_bits_per_sec(10_000_000);
        paths[1].rate = Rate::from_bits_per_sec(40_000_000);
        assert_eq!(shares(&paths, 500), [100, 400]);
    }

    #[test]
    fn a_full_path_is_passed_over_and_does_not_hoard() {
        let mut paths = [view(0, 50, 0), view(1, 50, 9)];
        assert_eq!(shares(&paths, 1_000), [0, 1_000]);
        let mut policy = WeightedRoundRobin {
            balance: [0.0; PATHS_MAX],
            share: [0.0; PATHS_MAX],
        };
        for _ in 0..1_000 {
            policy.pick(Instant::ZERO, &head(0), &paths);
            policy.on_sent(Instant::ZERO, &head(0), &paths[1]);
        }
        assert!(policy.balance[0] <= BALANCE_MAX);
        paths[1].free = 0;
        assert_eq!(
            policy.pick(Instant::ZERO, &head(0), &paths),
            Decision::WaitAll
        );
    }
}
