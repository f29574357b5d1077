//! What schedulers, queues and reports are told of the paths together.

use super::super::tuning::SMALL_WINDOW;
use super::{Path, Paths};
use crate::path::PathView;
use crate::queue::Delays;
use ropewalk_types::{Duration, Instant, PathId, PathSnapshot, Rate};
use ropewalk_wire::DATA_HEADER;

impl Paths {
    /// The path with the shortest round trip, and the next one; those of better standing first.
    pub fn quickest_two(&self) -> [Option<PathId>; 2] {
        let mut best = [None; 2];
        for (id, path) in self.iter() {
            let rank = Some((path.standing(), path.snapshot.srtt, id));
            if best[0].is_none() || rank < best[0] {
                best = [rank, best[0]];
            } else if best[1].is_none() || rank < best[1] {
                best[1] = rank;
            }
        }
        best.map(|rank| rank.map(|(_, _, id)| id))
    }

    /// Shortest smoothed round trip of the usable paths.
    pub fn quickest_srtt(&self) -> Option<Duration> {
        let usable = self.iter().filter(|(_, path)| path.usable());
        usable.map(|(_, path)| path.snapshot.srtt).min()
    }

    /// Shortest round trip that a usable path has shown.
    pub fn quickest_min_rtt(&self) -> Option<Duration> {
        let usable = self.iter().filter(|(_, path)| path.usable());
        usable.map(|(_, path)| path.snapshot.min_rtt).min()
    }

    /// The views the scheduler may choose from: the paths of the best standing. What a suspect path carries is lost
    /// as a rule, so one whose end is announced goes before it. Standby paths come only when nothing else is left.
    pub fn views(&mut self, now: Instant, views: &mut Vec<PathView>) {
        views.clear();
        let best = self.iter().map(|(_, p)| p.standing()).min();
        let eligible = |p: &Path| Some(p.standing()) == best;
        let any_active = self.iter().any(|(_, p)| eligible(p) && !p.config.standby);
        let chosen = self
            .iter()
            .filter(|(_, p)| eligible(p) && (!p.config.standby || !any_active));
        for (id, path) in chosen {
            let s = &path.snapshot;
            views.push(PathView {
                id,
                config: path.config.clone(),
                srtt: s.srtt,
                rttvar: s.rttvar,
                min_rtt: s.min_rtt,
                owd_relative: Duration::ZERO,
                cwnd: s.cwnd,
                in_flight: s.in_flight,
                queued: s.queued,
                free: s.free,
                next_credit: s.next_credit,
                rate: rate_floor(s),
                payload_max: s.max_datagram.saturating_sub(DATA_HEADER),
                loss: path.loss.loss_lately(now),
            });
        }
        self.owd.fill(now, views);
    }

    /// Sum of the rates of usable paths.
    pub fn rate(&self) -> Rate {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable.fold(Rate::ZERO, |sum, (_, p)| {
            let s = &p.snapshot;
            let rate = if s.rate > Rate::ZERO {
                s.rate
            } else {
                Rate::from_transfer(s.cwnd, s.srtt)
            };
            sum.saturating_add(rate)
        })
    }

    /// The longest delays of usable paths. A repair adds a round trip where there is nearly always
    /// something missing.
    pub fn longest_delays(&self, now: Instant) -> Delays {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable.fold(Delays::default(), |longest, (_, path)| {
            let s = &path.snapshot;
            let loss = path.loss.loss_steady(now).unwrap_or(0.0);
            let missing = (loss * path.coding.packets_per_round_trip(s)).min(1.0);
            Delays {
                rtt: longest.rtt.max(s.min_rtt),
                srtt: longest.srtt.max(s.srtt),
                queued: longest.queued.max(s.srtt.saturating_sub(s.min_rtt)),
                rttvar: longest.rttvar.max(s.rttvar),
                repair: longest.repair.max(s.min_rtt.mul_f64(missing)),
            }
        })
    }
}

/// The measured rate, or that of a small window per round trip. A path that carried little for a
/// while must not look too slow to be given work again.
fn rate_floor(snapshot: &PathSnapshot) -> Rate {
    if snapshot.rate == Rate::ZERO {
        return Rate::ZERO;
    }
    let window = snapshot.cwnd.min(SMALL_WINDOW);
    snapshot
        .rate
        .max(Rate::from_transfer(window, snapshot.srtt))
}
