//! Repairs: questions of this exit go to the peer's entry, answers to the peer's questions leave
//! here, ahead of everything that waits.

use super::paths::Paths;
use super::{Outgoing, Tunnel};
use crate::path::PathView;
use crate::repair::Sent;
use bytes::{Bytes, BytesMut};
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{
    DATA_HEADER, MISSING_RUNS_MAX, MissingRun, emit_missing, missing_runs, restamp,
};
use std::collections::VecDeque;

/// Most datagrams that wait for being sent again; beyond that the oldest is given up.
pub(super) const AGAIN_MAX: usize = 4_096;
/// Age at which a combination is worth nothing any more.
const CODED_AGE_MAX: Duration = Duration::from_millis(100);
/// How much later a combination may arrive for taking another path than what it protects.
const CODED_ELSEWHERE: Duration = Duration::from_millis(10);
/// Longest that the exit waits for a repair.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Most round trips that a packet that was asked for is waited for: its repair may be lost, too.
const PATIENCE_ROUND_TRIPS: u32 = 3;
/// Delayed answers and a busy machine.
const PATIENCE_MARGIN: Duration = Duration::from_millis(10);

/// What goes ahead of everything that waits.
#[derive(Debug)]
struct Waiting {
    sent: Sent,
    /// Its first sending may have arrived.
    copy: bool,
    /// It combines packets of this path.
    codes: Option<PathId>,
}

/// What is to be sent again, and combinations.
#[derive(Debug, Default)]
pub(super) struct Again {
    waiting: VecDeque<Waiting>,
    /// Datagrams sent again since the start.
    pub sent: u64,
    /// Datagrams given up: too many waited, or no path takes one of that size any more.
    pub dropped: u64,
    /// Combinations sent.
    pub coded: u64,
}

impl Again {
    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a datagram in; `copy` when its first sending may have arrived.
    pub fn push(&mut self, sent: Sent, copy: bool) {
        self.push_back(Waiting {
            sent,
            copy,
            codes: None,
        });
    }

    /// Takes a combination of packets of `path` in.
    pub fn push_coded(&mut self, now: Instant, path: PathId, datagram: Bytes) {
        let (dscp, at) = (0, now);
        self.push_back(Waiting {
            sent: Sent { datagram, dscp, at },
            copy: false,
            codes: Some(path),
        });
    }

    fn push_back(&mut self, waiting: Waiting) {
        if self.waiting.len() == AGAIN_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.dropped += u64::from(oldest.codes.is_none());
        }
        self.waiting.push_back(waiting);
    }

    /// Sends what some path has room for, over the path that delivers it first.
    pub fn flush(
        &mut self,
        now: Instant,
        views: &mut [PathView],
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        while let Some(next) = self.waiting.front() {
            let stale = next.codes.is_some() && now.since(next.sent.at) > CODED_AGE_MAX;
            let bytes = next.sent.datagram.len() as u64;
            let best = views
                .iter_mut()
                .filter(|view| bytes <= (DATA_HEADER + view.payload_max) as u64 && !stale)
                .min_by_key(|view| (view.free < bytes, delivered(now, next, view), view.id));
            if best.as_ref().is_some_and(|view| view.free < bytes) {
                return;
            }
            let sent = best.is_some_and(|view| send(now, next, view, paths, out).is_some());
            match (next.codes.is_some(), sent) {
                (false, true) => self.sent += 1,
                (false, false) => self.dropped += 1,
                (true, sent) => self.coded += u64::from(sent),
            }
            self.waiting.pop_front();
        }
    }
}

/// When a path may be expected to have delivered it; combinations avoid the path they protect.
fn delivered(now: Instant, waiting: &Waiting, view: &PathView) -> Instant {
    let bytes = waiting.sent.datagram.len() as u64;
    let lost = view.srtt.mul_f64(view.loss.clamp(0.0, 1.0));
    let same = waiting.codes == Some(view.id);
    let preference = if same {
        CODED_ELSEWHERE
    } else {
        Duration::ZERO
    };
    view.arrival(now, bytes) + lost + preference
}

/// Sends one datagram over one path; `None` when that cannot be.
fn send(
    now: Instant,
    waiting: &Waiting,
    view: &mut PathView,
    paths: &mut Paths,
    out: &mut Vec<Outgoing>,
) -> Option<()> {
    let path = paths.get_mut(view.id)?;
    let Sent { datagram, dscp, .. } = &waiting.sent;
    let mut again = BytesMut::from(&datagram[..]);
    let stamp = path.stamp(now, again.len());
    restamp(&mut again, stamp, waiting.copy).ok()?;
    let (datagram, dscp) = (again.freeze(), *dscp);
    if waiting.codes.is_none() {
        path.remember(now, &datagram, dscp);
    }
    let bytes = datagram.len() as u64;
    view.free = view.free.saturating_sub(bytes);
    view.queued += bytes;
    let path = view.id;
    out.push(Outgoing {
        path,
        datagram,
        dscp,
    });
    Some(())
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
