//! Which path each backlogged flow is pinned on.
//!
//! A flow's cost on a path is the time to move once more the bytes it has moved so far, plus the
//! path's relative delay. The flow moves them at the share it may expect there: the path's rate
//! over its residents, capped by what a loss-driven sender reaches at the path's loss. A new flow
//! takes the cheapest path; a flow moves only for a clear gain, and flows move one at a time.
//! Invariant: residents count each backlogged flow at most once per epoch.

use super::tuning::{
    ALIKE, CHARGED_DELAYS, DEMAND_WEIGHT, EPOCH, HORIZON_BYTES_MAX, MOVE_AGAIN, MOVE_GAIN,
    MOVE_INTERVAL, OVERFLOW,
};
use crate::path::{PathView, SLOT_BYTES};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

/// Residents per path.
#[derive(Debug)]
pub(super) struct PinnedPaths {
    now: Instant,
    epoch: u32,
    epoch_end: Instant,
    residents: [u16; PATHS_MAX],
    counting: [u16; PATHS_MAX],
    next_move: Instant,
    /// Bytes of flows pinned on each path in this epoch, whatever path they took.
    sending: [u64; PATHS_MAX],
    /// The same per second, smoothed over epochs.
    demand: [f64; PATHS_MAX],
}

impl Default for PinnedPaths {
    fn default() -> Self {
        Self {
            now: Instant::ZERO,
            epoch: 2,
            epoch_end: Instant::ZERO,
            residents: [0; PATHS_MAX],
            counting: [0; PATHS_MAX],
            next_move: Instant::ZERO,
            sending: [0; PATHS_MAX],
            demand: [0.0; PATHS_MAX],
        }
    }
}

impl PinnedPaths {
    /// Begins a new epoch when the old one is over.
    pub(super) fn roll(&mut self, now: Instant) {
        self.now = now;
        if now < self.epoch_end {
            return;
        }
        self.residents = std::mem::take(&mut self.counting);
        let took = now.since(self.epoch_end - EPOCH).max(EPOCH).as_secs_f64();
        let weight = 1.0 - (1.0 - DEMAND_WEIGHT).powf(took / EPOCH.as_secs_f64());
        let sending = std::mem::take(&mut self.sending);
        for (demand, bytes) in self.demand.iter_mut().zip(sending) {
            *demand += (as_f64(bytes) / took - *demand) * weight;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.epoch_end = now + EPOCH;
    }

    /// The time of the last decision.
    pub(super) const fn now(&self) -> Instant {
        self.now
    }

    /// Counts a flow pinned on `path`, once per epoch; `counted_in` is the epoch it was last
    /// counted in.
    pub(super) fn count(&mut self, path: PathId, counted_in: &mut u32) {
        let index = usize::from(path.0) % PATHS_MAX;
        if counted_in.wrapping_add(1) < self.epoch {
            // A new resident shows at once, so that flows starting together spread.
            self.residents[index] = self.residents[index].saturating_add(1);
        }
        if *counted_in != self.epoch {
            *counted_in = self.epoch;
            self.counting[index] = self.counting[index].saturating_add(1);
        }
    }

    /// `path` is gone for good.
    pub(super) fn on_path_removed(&mut self, path: PathId) {
        if let Some(demand) = self.demand.get_mut(usize::from(path.0)) {
            (*demand, self.sending[usize::from(path.0)]) = (0.0, 0);
        }
    }

    /// Notes that a flow pinned on `path` sent `bytes`, over whatever path.
    pub(super) fn sent(&mut self, path: PathId, bytes: u64) {
        if let Some(sending) = self.sending.get_mut(usize::from(path.0)) {
            *sending += bytes;
        }
    }

    /// Whether the flows pinned on `path` send more than it carries.
    pub(super) fn overflows(&self, path: &PathView) -> bool {
        let demand = self.demand.get(usize::from(path.id.0));
        demand.is_some_and(|demand| demand * 8.0 > bits_per_sec(path) * OVERFLOW)
    }

    /// Backlogged flows pinned on `path`.
    pub(super) fn residents(&self, path: PathId) -> u16 {
        self.residents
            .get(usize::from(path.0))
            .copied()
            .unwrap_or(0)
    }

    /// The cheapest path for a flow of `bytes` that is now pinned on `old`.
    pub(super) fn best<'a>(
        &self,
        bytes: u64,
        old: Option<&PathView>,
        paths: impl Iterator<Item = &'a PathView>,
    ) -> Option<&'a PathView> {
        let cost = |path: &PathView| self.cost(bytes, path, old.is_some_and(|o| o.id == path.id));
        // Paths that have carried nothing differ by chance only: then the first one is taken.
        paths.reduce(|first, path| {
            if cost(path) * ALIKE < cost(first) {
                path
            } else {
                first
            }
        })
    }

    /// Whether a flow that moved last at `moved_at` may move now.
    pub(super) fn may_look(&self, now: Instant, moved_at: Instant) -> bool {
        now >= self.next_move && now.since(moved_at) >= MOVE_AGAIN
    }

    /// Whether a flow gains clearly by moving from `old` to `best`.
    pub(super) fn is_better(&self, bytes: u64, old: &PathView, best: &PathView) -> bool {
        let moved = self.cost(bytes, best, false) * MOVE_GAIN;
        old.id != best.id && moved < self.cost(bytes, old, true)
    }

    /// A flow moved.
    pub(super) fn moved(&mut self, now: Instant, from: PathId, to: PathId) {
        self.next_move = now + MOVE_INTERVAL;
        let (from, to) = (
            usize::from(from.0) % PATHS_MAX,
            usize::from(to.0) % PATHS_MAX,
        );
        for counts in [&mut self.residents, &mut self.counting] {
            counts[from] = counts[from].saturating_sub(1);
            counts[to] = counts[to].saturating_add(1);
        }
    }

    /// Seconds; smaller is better.
    fn cost(&self, bytes: u64, path: &PathView, resident: bool) -> f64 {
        let others = self.residents(path.id) - u16::from(resident && self.residents(path.id) > 0);
        let share = bits_per_sec(path) / f64::from(others + 1);
        let share = share
            .min(sender_rate(residual(path.loss), path.srtt))
            .max(1.0);
        as_f64(bytes.clamp(SLOT_BYTES, HORIZON_BYTES_MAX)) * 8.0 / share
            + path.owd_relative.as_secs_f64() * CHARGED_DELAYS
    }

    /// Whether `path` is worth its loss for a flow striped over `pinned path` and `path`: the flow
    /// keeps at least what both carry, or `path` loses at most as much as `pinned path`.
    pub(super) fn loss_allows(&self, pinned_path: &PathView, path: &PathView) -> bool {
        if path.loss <= pinned_path.loss * 1.5 + 1e-4 {
            return true;
        }
        let (a, b) = (bits_per_sec(pinned_path), bits_per_sec(path));
        let mixed = (residual(pinned_path.loss) * a + residual(path.loss) * b) / (a + b);
        let flows = self
            .residents
            .iter()
            .map(|n| f64::from(*n))
            .sum::<f64>()
            .max(1.0);
        flows * sender_rate(mixed, pinned_path.srtt.max(path.srtt)) >= a + b
    }

    /// Where the flows are that have packets waiting, in words.
    pub(super) fn describe(&self) -> String {
        let pinned_paths: Vec<String> = self
            .residents
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(path, count)| format!("{count} on path {path}"))
            .collect();
        if pinned_paths.is_empty() {
            "no flow has packets that wait: each packet takes the path that delivers it first"
                .into()
        } else {
            format!("flows with packets that wait: {}", pinned_paths.join(", "))
        }
    }
}

/// Loss that a flow sees: a packet and both repairs that the egress waits for must be lost.
fn residual(loss: f64) -> f64 {
    loss.powi(3)
}

/// What one loss-driven sender reaches: the average window of CUBIC, in its own region and in
/// the Reno-friendly one, per round trip.
fn sender_rate(loss: f64, srtt: Duration) -> f64 {
    if loss <= 0.0 {
        return f64::INFINITY;
    }
    //= RFC 9438 §5: AVG_W_cubic = 1.054 RTT^0.75 / p^0.75 packets for C = 0.4. Standard TCP (RFC
    // 3649): 1.2 / p^0.5.
    let rtt = srtt.as_secs_f64().max(1e-4);
    let cubic = 1.054 * rtt.powf(0.75) / loss.powf(0.75);
    let reno = 1.2 / loss.sqrt();
    cubic.max(reno) * as_f64(SLOT_BYTES) * 8.0 / rtt
}

fn bits_per_sec(path: &PathView) -> f64 {
    as_f64(path.rate_or_window().bits_per_sec().max(1))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes and rates are far below 2^53"
)]
fn as_f64(value: u64) -> f64 {
    value as f64
}
