//! The ingress's side: the last packets of flows that keep a rhythm, and those being rescued.

use super::tuning::{AGE_MAX, APART, ASKED_MAX, KEPT_MAX, TIMES, UNDER_WAY_MAX};
use bytes::Bytes;
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{Datagram, DeadlineNack};
use std::collections::VecDeque;

#[derive(Debug)]
struct Kept {
    flow: u16,
    flow_seq: u16,
    datagram: Bytes,
    dscp: u8,
    at: Instant,
    path: PathId,
    path_seq: u16,
    rescued: u8,
    rescued_at: Instant,
}

/// A packet on its way out again.
#[derive(Clone, Debug)]
pub struct Rescue {
    /// The datagram as first sent.
    pub datagram: Bytes,
    /// Differentiated services codepoint.
    pub dscp: u8,
    /// Nothing of this rescue has been sent yet: that much is a repair, whatever it costs.
    pub first: bool,
    left: u8,
    due: Instant,
}

/// What an ingress keeps for rescue.
#[derive(Debug, Default)]
pub struct Rescuer {
    kept: VecDeque<Kept>,
    under_way: Vec<Rescue>,
    /// Packets rescued since the start, each once for every NACK.
    pub rescued: u64,
}

impl Rescuer {
    /// Packets kept, and packets being rescued.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.kept.len(), self.under_way.len())
    }

    /// The most that [`Rescuer::kept`] says.
    #[must_use]
    pub const fn limit() -> (usize, usize) {
        (KEPT_MAX, UNDER_WAY_MAX)
    }

    /// `path` carries this datagram, a whole packet of a flow or the first part of one.
    pub fn keep(&mut self, now: Instant, path: PathId, datagram: Bytes, dscp: u8) {
        let Ok(Datagram::Data { header, .. } | Datagram::Fragment { header, .. }) =
            Datagram::parse(&datagram)
        else {
            return;
        };
        let old = |kept: &&Kept| now.since(kept.at) > AGE_MAX;
        while self.kept.len() >= KEPT_MAX || self.kept.front().filter(old).is_some() {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept {
            flow: header.flow,
            flow_seq: header.flow_seq,
            datagram,
            dscp,
            at: now,
            path,
            path_seq: header.stamp.path_seq,
            rescued: 0,
            rescued_at: Instant::ZERO,
        });
    }

    /// Forgets what is too old.
    pub fn forget_old(&mut self, now: Instant) {
        self.kept.retain(|kept| now.since(kept.at) <= AGE_MAX);
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
    }

    /// Whether this packet is kept: otherwise it can only be repaired.
    #[must_use]
    pub fn knows(&self, flow: u16, flow_seq: u16) -> bool {
        let mut newest = self.kept.iter().rev();
        newest.any(|kept| kept.flow == flow && kept.flow_seq == flow_seq)
    }

    /// The peer awaits this packet. Returns the path that seems to have lost it, and its number
    /// there. `None` when it has not been sent yet, is too old, or was rescued less than `same`
    /// ago, because a NACK comes on two paths.
    pub fn ask(
        &mut self,
        now: Instant,
        DeadlineNack { flow, flow_seq }: DeadlineNack,
        same: Duration,
    ) -> Option<(PathId, u16)> {
        let wanted = |kept: &&mut Kept| kept.flow == flow && kept.flow_seq == flow_seq;
        let kept = self.kept.iter_mut().rev().find(wanted)?;
        let again = kept.rescued > 0 && now.since(kept.rescued_at) < same;
        if again || kept.rescued >= ASKED_MAX || now.since(kept.at) > AGE_MAX {
            return None;
        }
        (kept.rescued, kept.rescued_at) = (kept.rescued + 1, now);
        if self.under_way.len() == UNDER_WAY_MAX {
            self.under_way.remove(0);
        }
        self.under_way.push(Rescue {
            datagram: kept.datagram.clone(),
            dscp: kept.dscp,
            first: true,
            left: TIMES,
            due: now,
        });
        self.rescued += 1;
        Some((kept.path, kept.path_seq))
    }

    /// When [`Rescuer::poll`] has something to send, if anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.iter().map(|rescue| rescue.due).min()
    }

    /// What is to be sent now, on two paths.
    pub fn poll(&mut self, now: Instant) -> Option<Rescue> {
        let at = self.under_way.iter().position(|rescue| rescue.due <= now)?;
        let rescue = &mut self.under_way[at];
        rescue.left -= 1;
        rescue.due = now + APART;
        let next = rescue.clone();
        rescue.first = false;
        if next.left == 0 {
            self.under_way.remove(at);
        }
        Some(next)
    }
}
