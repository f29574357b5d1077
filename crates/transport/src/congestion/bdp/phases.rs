//! What the window does in a round, and what follows from what the round showed.

use std::time::Instant;

use super::Bdp;
use super::tuning::*;

/// What the window is doing; one round each unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BdpPhase {
    /// Doubles every round trip until the rate stops growing or delay shows.
    Startup {
        best: f64,
        stale: u8,
        /// Rounds without growth in which the application had no more to send: they say nothing.
        quiet: u8,
        /// The last round showed a queue, standing or of bursts: only the doubling is allowed for.
        full: bool,
    },
    /// Lets the queue run empty so that the floor is seen; a deep one also shows the loss that
    /// stays when less is sent. `round` counts the rounds of this one.
    Drain { deep: bool, round: u8 },
    /// Stays, for the given number of rounds.
    Cruise(u8),
    /// Sends more.
    Probe,
    /// Waits for what the probe shows, compared with the rate before it.
    Judge { before: f64 },
}

/// What the round that just ended showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub now: Instant,
    pub rate: f64,
    pub floor: f64,
    pub app_limited: bool,
    /// Most of it was sent while more waited.
    pub wanted: bool,
    pub guarded: bool,
    /// What was sent queued behind itself: its bursts were faster than the path.
    pub clumped: bool,
    /// Its bursts queued, if not for long: the path is not much faster than what they come to.
    pub bursts: bool,
    /// Standing queue in seconds.
    pub queue: f64,
    /// Share of packets lost.
    pub lost: f64,
}

impl Bdp {
    pub(super) fn next_phase(&mut self, seen: &Seen) {
        self.phase = match self.phase {
            BdpPhase::Startup {
                best, stale, quiet, ..
            } => self.after_startup(seen, best, stale, quiet),
            BdpPhase::Drain { deep, round } if round + 1 < drain_rounds(deep) => BdpPhase::Drain {
                deep,
                round: round + 1,
            },
            BdpPhase::Drain { .. } => BdpPhase::Cruise(CRUISE_ROUNDS - 1),
            BdpPhase::Cruise(left) if self.hungry > 0 => BdpPhase::Cruise(left),
            BdpPhase::Cruise(0) if !seen.guarded && !seen.app_limited => BdpPhase::Probe,
            BdpPhase::Cruise(0) => self.drain(seen),
            BdpPhase::Cruise(left) => BdpPhase::Cruise(left - 1),
            BdpPhase::Probe => BdpPhase::Judge {
                before: self.rate(),
            },
            BdpPhase::Judge { before } => self.after_probe(seen, before),
        };
    }

    fn after_startup(&mut self, seen: &Seen, best: f64, stale: u8, quiet: u8) -> BdpPhase {
        // Jitter looks like a queue, but lets the rate grow.
        let spike = self.spikes.largest();
        let noise = (STARTUP_VARIATION * self.variation.mean).max(STARTUP_SPIKES * spike);
        let full = seen.guarded && seen.queue > (seen.floor * STARTUP_QUEUE).max(noise);
        let stale_max = if spike > STARTUP_SPIKE {
            STARTUP_STALE_ROUNDS_SPIKES
        } else {
            STARTUP_STALE_ROUNDS
        };
        let grew = seen.rate > best * STARTUP_GROWTH;
        let (stale, quiet) = match (grew, seen.wanted || seen.guarded || seen.clumped) {
            (true, _) => (0, 0),
            (false, true) => (stale + 1, quiet),
            (false, false) => (stale, quiet.saturating_add(1)),
        };
        let overflowed = seen.lost > STARTUP_LOSS && seen.queue > 0.0;
        if (full && !grew) || stale >= stale_max || overflowed {
            self.deep_due = seen.now;
            return self.drain(seen);
        }
        let best = if grew { seen.rate } else { best };
        BdpPhase::Startup {
            best,
            stale,
            quiet,
            full: full || (seen.bursts && seen.floor > LONG_PATH),
        }
    }

    fn after_probe(&mut self, seen: &Seen, before: f64) -> BdpPhase {
        let expected = self.probe_extra(before) / (before * self.sojourn);
        if seen.guarded || seen.rate < before * (1.0 + expected / 2.0) {
            self.drain(seen)
        } else {
            (self.hungry, self.hungry_stale) = (HUNGRY_PROBED, 0);
            BdpPhase::Cruise(CRUISE_ROUNDS - 1)
        }
    }

    fn drain(&mut self, seen: &Seen) -> BdpPhase {
        let since = seen.now.saturating_duration_since(self.deep_last);
        let known = self.loss_drained.packets >= LOSS_PACKETS_KNOWN;
        let doubt = self.loss > self.believed() && (!known || since >= DRAIN_DOUBT_INTERVAL);
        let deep = doubt || seen.now >= self.deep_due;
        if deep {
            self.deep_last = seen.now;
            self.deep_due = seen.now + DRAIN_DEEP_INTERVAL;
        }
        BdpPhase::Drain { deep, round: 0 }
    }
}

/// Rounds of a drain.
const fn drain_rounds(deep: bool) -> u8 {
    if deep {
        DRAIN_DEEP_ROUNDS
    } else {
        DRAIN_ROUNDS
    }
}
