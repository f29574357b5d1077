//! Probes: of idle paths, of silent ones, and behind the newest packet of a path that loses some.

use super::super::tuning::{IDLE_TURNS, PROBE_BYTES};
use super::Paths;
use crate::tunnel::Outgoing;
use bytes::Bytes;
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::emit_probe;

impl Paths {
    /// When an idle path is probed next, and which. A path is idle when it has carried nothing for
    /// the interval. While the whole tunnel is idle the paths take turns. So a peer that has gone
    /// is noticed sooner than by any one path.
    pub(super) fn idle_probe(&self) -> Option<(Instant, PathId)> {
        let interval = self.probe_interval?;
        let (id, oldest) = self.iter().min_by_key(|(_, path)| path.last_sent)?;
        let newest = self.iter().map(|(_, path)| path.last_sent).max()?;
        let due = (oldest.last_sent + interval).min(newest + interval / IDLE_TURNS);
        Some((due, id))
    }

    /// Asks every path for a sign of life at the next opportunity.
    pub fn ask_all(&mut self) {
        for (_, path) in self.iter_mut() {
            path.asked = true;
        }
    }

    /// Appends a probe for a path that has carried nothing for long, and for those whose silence
    /// raises doubt.
    pub fn poll_probes(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let due = self.idle_probe().filter(|(at, _)| *at <= now);
        let alone = self.none_certain(Some(now)).then(|| self.sharers());
        for (id, path) in self.iter_mut() {
            let asked = std::mem::take(&mut path.asked);
            let idle = asked || due.is_some_and(|(_, path)| path == id);
            let doubt = path
                .liveness
                .doubt_due(&path.snapshot, alone)
                .is_some_and(|at| at <= now);
            if doubt {
                path.liveness.on_probed(now);
            }
            let tail = path.tail_due.is_some_and(|at| at <= now);
            if tail {
                path.coding.on_pause();
            }
            if idle && path.liveness.undelivered.is_none() {
                path.sent_log.forget_old(now);
            }
            if idle || doubt || tail {
                let mut bytes = Vec::with_capacity(PROBE_BYTES);
                let newest = path.arrivals.newest();
                emit_probe(path.stamp(now, PROBE_BYTES), newest, &mut bytes);
                out.push(Outgoing {
                    path: id,
                    datagram: Bytes::from(bytes),
                    dscp: 0,
                    urgent: doubt,
                });
            }
        }
    }

    /// Tunnels that share probes with this one. One whose paths are only in doubt shares nothing: the answer to a probe may
    /// still spare it an outage.
    pub(super) fn sharers(&self) -> u32 {
        if self.all_down() { self.outages } else { 1 }
    }

    /// Whether every path has fallen silent, by `now` or else by when it was last probed. Then the
    /// tunnel has only silent paths to look to.
    pub(super) fn none_certain(&self, now: Option<Instant>) -> bool {
        self.iter().all(|(_, path)| {
            let probed = path.liveness.probed(&path.snapshot);
            probed || now.is_some_and(|now| path.in_doubt(now))
        })
    }
}
