//! What a path is given ahead of losses: repair symbols, sized by what it loses, and the budget of
//! a path that costs money.

use super::super::tuning::{SIZED_FOR, UNKNOWN_RATE_MAX, UNKNOWN_REDUNDANCY, USUAL_BYTES};
use crate::code::{BlockEncoder, Encoder, block_combinations, redundancy};
use crate::estimate::LossEstimator;
use ropewalk_types::{Duration, Instant, PathSnapshot};

/// The repair symbols of a path.
#[derive(Debug)]
pub(in crate::tunnel) struct Coding {
    /// What repair symbols are made of.
    pub encoder: Encoder,
    /// The same for packets that are combined in blocks.
    pub blocks: BlockEncoder,
    /// Repair symbols per packet instead of as many as the loss asks for.
    fixed_redundancy: Option<f64>,
    /// Until when redundancy stays as it is.
    sized_until: Instant,
}

impl Coding {
    pub fn new(fixed_redundancy: Option<f64>) -> Self {
        Self {
            encoder: Encoder::default(),
            blocks: BlockEncoder::default(),
            fixed_redundancy,
            sized_until: Instant::ZERO,
        }
    }

    /// Follows what the path loses, with as many repair symbols as make up for it within a round
    /// trip. While that is not known yet a slow path gets some anyway: what is lost at the start of
    /// a transfer costs it most.
    pub fn size(&mut self, now: Instant, loss: &LossEstimator, s: &PathSnapshot) {
        // Reports of one path may come in any number; what follows from them takes its time.
        if now < self.sized_until {
            return;
        }
        self.sized_until = now + SIZED_FOR;
        let steady = loss.loss_steady(now);
        let gilbert = loss.gilbert_with(steady.unwrap_or(0.0));
        let wanted = match (self.fixed_redundancy, steady) {
            (Some(fixed), _) => fixed,
            (None, Some(_)) => redundancy(gilbert, self.packets_per_round_trip(s)),
            (None, None) if s.rate < UNKNOWN_RATE_MAX => UNKNOWN_REDUNDANCY,
            (None, None) => 0.0,
        };
        self.encoder.set_redundancy(wanted);
        if self.blocks.is_used() {
            self.blocks.set_repair_symbols(block_combinations(gilbert));
        }
    }

    /// Packets sent in the shortest round trip, by their pace or else by the path's.
    pub fn packets_per_round_trip(&self, s: &PathSnapshot) -> f64 {
        let interval = match self.encoder.interval() {
            Duration::ZERO => s.rate.time_for(USUAL_BYTES),
            interval => interval,
        };
        s.min_rtt.as_secs_f64() / interval.as_secs_f64().max(1e-9)
    }

    /// Nothing has followed the newest packet for a while.
    pub fn on_pause(&mut self) {
        self.encoder.on_pause();
        self.blocks.on_pause();
    }
}

/// What protection may spend on a path that costs money: a bucket that holds what ten minutes bring.
#[derive(Clone, Copy, Debug)]
pub(in crate::tunnel) struct Budget {
    bytes: f64,
    at: Instant,
}

impl Budget {
    pub const fn new(now: Instant) -> Self {
        let bytes = f64::INFINITY; // full, whatever that is
        Self { bytes, at: now }
    }

    /// Whether so many bytes may be spent at `hourly` bytes an hour; they count as spent then.
    pub fn spend(&mut self, now: Instant, hourly: u64, bytes: usize) -> bool {
        let hourly = hourly as f64;
        let earned = hourly * now.since(self.at).as_secs_f64() / 3_600.0;
        self.bytes = (self.bytes + earned).min(hourly / 6.0);
        self.at = now;
        let enough = self.bytes >= bytes as f64;
        if enough {
            self.bytes -= bytes as f64;
        }
        enough
    }
}
