//! Repairs: questions of this exit go to the peer's entry, answers to the peer's questions leave
//! here, ahead of everything that waits.

use super::paths::Paths;
use super::{Outgoing, Tunnel};
use crate::path::PathView;
use crate::repair::Sent;
use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{DATA_HEADER, MISSING_RUNS_MAX, MissingRun, emit_missing, missing_runs, restamp};
use std::collections::VecDeque;

/// Most datagrams that wait for being sent again; beyond that the oldest is given up.
const AGAIN_MAX: usize = 4_096;
/// Longest that the exit waits for a repair.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Most round trips that a packet that was asked for is waited for: its repair may be lost, too.
const PATIENCE_ROUND_TRIPS: u32 = 3;
/// Delayed answers and a busy machine.
const PATIENCE_MARGIN: Duration = Duration::from_millis(10);

/// What is to be sent again.
#[derive(Debug, Default)]
pub(super) struct Again {
    waiting: VecDeque<(Sent, bool)>,
    /// Datagrams sent again since the start.
    pub sent: u64,
    /// Datagrams given up: too many waited, or no path takes one of that size any more.
    pub dropped: u64,
}

impl Again {
    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a datagram in; `copy` when its first sending may have arrived.
    pub fn push(&mut self, sent: Sent, copy: bool) {
        if self.waiting.len() == AGAIN_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back((sent, copy));
    }

    /// Sends what some path has room for, over the path that delivers it first.
    pub fn flush(
        &mut self,
        now: Instant,
        views: &mut [PathView],
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        while let Some((sent, copy)) = self.waiting.front() {
            let bytes = sent.datagram.len() as u64;
            let delivered = |view: &PathView| {
                view.arrival(now, bytes) + view.srtt.mul_f64(view.loss.clamp(0.0, 1.0))
            };
            let fits = |view: &&mut PathView| {
                sent.datagram.len() <= DATA_HEADER + view.payload_max
            };
            let best = views
                .iter_mut()
                .filter(fits)
                .min_by_key(|view| (view.free < bytes, delivered(view), view.id));
            if best.as_ref().is_some_and(|view| view.free < bytes) {
                return;
            }
            let taken = best.and_then(|view| Some((paths.get_mut(view.id)?, view)));
            let before = self.sent;
            if let Some((path, view)) = taken {
                let mut again = BytesMut::from(&sent.datagram[..]);
                let dscp = sent.dscp;
                let stamp = path.stamp(now, again.len());
                if restamp(&mut again, stamp, *copy).is_ok() {
                    let datagram = again.freeze();
                    path.remember(now, &datagram, dscp);
                    view.free -= bytes;
                    view.queued += bytes;
                    self.sent += 1;
                    let path = view.id;
                    out.push(Outgoing {
                        path,
                        datagram,
                        dscp,
                    });
                }
            }
            self.dropped += u64::from(self.sent == before);
            self.waiting.pop_front();
        }
    }
}

impl Tunnel {
    /// Appends a question for what is missing, if anything is: on the quickest path, and on a
    /// second one if there is one, for a question that is lost costs a round trip.
    pub(super) fn poll_requests(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let requests = &mut self.exit.reorder.requests;
        if requests.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let carriers = self.paths.quickest_two();
        if carriers[0].is_none() {
            return;
        }
        let mut runs = Vec::with_capacity(MISSING_RUNS_MAX);
        requests.poll(now, MISSING_RUNS_MAX, &mut runs);
        for id in carriers.into_iter().flatten() {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            let mut bytes = Vec::with_capacity(QUESTION_BYTES);
            emit_missing(path.stamp(now, QUESTION_BYTES), &runs, &mut bytes);
            out.push(Outgoing {
                path: id,
                datagram: Bytes::from(bytes),
                dscp: 0,
            });
        }
    }

    /// The peer misses these numbers.
    pub(super) fn handle_missing(&mut self, now: Instant, payload: &[u8]) {
        for MissingRun { path, first, count } in missing_runs(payload) {
            let Some(log) = self.paths.wants_repair(now, PathId(path)) else {
                continue;
            };
            for n in 0..u16::from(count) {
                if let Some(sent) = log.take(first.wrapping_add(n)) {
                    self.entry.again.push(sent, false);
                }
            }
        }
    }

    /// Sends what went over a path that has just become suspect over the others, if there are any.
    pub(super) fn reinject(&mut self) {
        if self.paths.doubtful.is_empty() {
            return;
        }
        let others = self.paths.quickest_srtt().is_some();
        for sent in self.paths.doubtful.drain(..).filter(|_| others) {
            self.entry.again.push(sent, true);
        }
    }

    /// Tells the exit how long a repair may take.
    pub(super) fn set_patience(&mut self) {
        let Some(srtt) = self.paths.quickest_srtt() else {
            return;
        };
        let spread = self.exit.reorder.current_hold();
        let patience = srtt * PATIENCE_ROUND_TRIPS + spread + PATIENCE_MARGIN;
        self.exit
            .reorder
            .requests
            .set_patience(patience.min(PATIENCE_MAX));
    }
}

/// Room for a question of average length.
const QUESTION_BYTES: usize = 30;
