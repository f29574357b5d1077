//! Repairs: NACKs of this egress go to the peer's ingress, answers to the peer's NACKs leave
//! here, ahead of everything that waits.

use super::headers;
use super::paths::Paths;
use super::tuning::{
    CODED_AGE_MAX, COPIES_MAX, COPY_SPACING_MAX, COPY_SPACING_MIN, COPY_SPACING_SHARE, ELSEWHERE,
    NACK_BYTES, PATIENCE_MARGIN, PATIENCE_MAX, PATIENCE_ROUND_TRIPS, RETRANSMIT_MAX, SINGLE_LOSSES,
    SINGLE_LOSSES_SHARED,
};
use super::{Outgoing, Tunnel, fragment};
use crate::path::PathView;
use crate::repair::Sent;
use crate::schedule::PathSet;
use bytes::{Bytes, BytesMut};
use ropewalk_headers::Compressor;
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{
    DATA_HEADER, Datagram, DeadlineNack, NACK_RUNS_MAX, NackRun, emit_nack, nack_runs, restamp,
};
use std::collections::VecDeque;

/// What goes ahead of everything that waits.
#[derive(Debug)]
struct Waiting {
    sent: Sent,
    what: What,
    /// Copies yet to be sent, and where the last one went, with its number there.
    left: usize,
    last: Option<(PathId, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Lost on this path.
    Lost(PathId),
    /// Its first sending may have arrived.
    Doubtful,
    /// A repair symbol of packets of this path.
    RepairSymbol(PathId),
}

impl Waiting {
    const fn new(sent: Sent, what: What, copies: u8) -> Self {
        Self {
            sent,
            what,
            left: copies as usize,
            last: None,
        }
    }

    const fn is_combination(&self) -> bool {
        matches!(self.what, What::RepairSymbol(_))
    }

    /// The path that it had better not take: losses come in bursts.
    const fn avoids(&self) -> Option<PathId> {
        match self.what {
            What::Lost(path) | What::RepairSymbol(path) => Some(path),
            What::Doubtful => None,
        }
    }

    /// Whether the egress may get it more than once.
    fn is_copied(&self) -> bool {
        self.what == What::Doubtful || self.last.is_some() || self.left > 1
    }
}

/// What is to be sent again, and repair symbols.
#[derive(Debug, Default)]
pub(super) struct RetransmitQueue {
    waiting: VecDeque<Waiting>,
    /// Further copies, and when they follow.
    later: VecDeque<(Instant, Waiting)>,
    /// Datagrams sent again since the start.
    pub sent: u64,
    /// Datagrams given up: too many waited, or no path takes even a piece of it.
    pub dropped: u64,
    /// Repair symbols sent.
    pub coded: u64,
    /// Bytes of all of these.
    pub bytes: u64,
}

impl RetransmitQueue {
    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.later.is_empty()
    }

    /// Whether what waits first is of a path that has died, and there may be much of it.
    pub fn is_doubtful(&self) -> bool {
        let first = self.waiting.front();
        first.is_some_and(|first| first.what == What::Doubtful)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.later.len()
    }

    /// When the next copy follows.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.later.front().map(|(at, _)| *at)
    }

    /// Takes in a datagram that was lost on `path`. What was lost twice would be late if it were lost
    /// once more, all the more if it was lost thrice: it goes in copies. While the paths are `shared`
    /// only its own flow waits for it, and each copy costs the others: they come later.
    pub fn push_lost(&mut self, path: PathId, mut sent: Sent, shared: bool) {
        sent.losses = sent.losses.saturating_add(1);
        let single = if shared {
            SINGLE_LOSSES_SHARED
        } else {
            SINGLE_LOSSES
        };
        let copies = (sent.losses.max(single) - single + 1).min(COPIES_MAX);
        self.push_back(Waiting::new(sent, What::Lost(path), copies));
    }

    /// Takes in a datagram that may have arrived.
    pub fn push_doubtful(&mut self, sent: Sent) {
        self.push_back(Waiting::new(sent, What::Doubtful, 1));
    }

    /// Takes a repair symbol of packets of `path` in.
    pub fn push_coded(&mut self, now: Instant, path: PathId, datagram: Bytes) {
        let sent = Sent {
            datagram,
            dscp: 0,
            tcp: false,
            at: now,
            losses: 0,
            copy: None,
        };
        self.push_back(Waiting::new(sent, What::RepairSymbol(path), 1));
    }

    /// Puts pieces of what waits first in its place; each goes in as many copies as it would have.
    fn replace_first(&mut self, pieces: Vec<Bytes>) {
        let Some(Waiting {
            sent, what, left, ..
        }) = self.waiting.pop_front()
        else {
            return;
        };
        // What was missed last waits longest for its turn.
        while self.len() + pieces.len() > RETRANSMIT_MAX && self.waiting.pop_back().is_some() {
            self.dropped += 1;
        }
        for datagram in pieces.into_iter().rev() {
            let sent = Sent {
                datagram,
                copy: None,
                ..sent.clone()
            };
            self.waiting.push_front(Waiting {
                sent,
                what,
                left,
                last: None,
            });
        }
    }

    fn push_back(&mut self, waiting: Waiting) {
        if self.len() >= RETRANSMIT_MAX {
            let copy = || self.later.pop_front().map(|(_, copy)| copy);
            if let Some(oldest) = self.waiting.pop_front().or_else(copy) {
                self.dropped += u64::from(!oldest.is_combination() && oldest.last.is_none());
            }
        }
        self.waiting.push_back(waiting);
    }

    /// Sends what some path has room for, over the path that delivers it first.
    pub fn flush(
        &mut self,
        now: Instant,
        views: &mut [PathView],
        compressor: Option<&Compressor>,
        paths: &mut Paths,
        out: &mut Vec<Outgoing>,
    ) {
        let due = self.later.partition_point(|(at, _)| *at <= now);
        for (_, copy) in self.later.drain(..due).rev() {
            self.waiting.push_front(copy);
        }
        let most = views.iter().map(room).max().unwrap_or(0);
        while let Some(next) = self.waiting.front_mut() {
            let full = compressor.and_then(|c| headers::in_full(c, &next.sent.datagram, most));
            if let Some(full) = full {
                next.sent.datagram = full;
            }
            // A path that loses may be taken for one that takes less for a while.
            let pieces = match next.what {
                What::RepairSymbol(_) => Vec::new(),
                What::Lost(_) | What::Doubtful => fragment::split(&next.sent.datagram, most),
            };
            if !pieces.is_empty() {
                self.replace_first(pieces);
                continue;
            }
            let stale = next.is_combination() && now.since(next.sent.at) > CODED_AGE_MAX;
            let bytes = next.sent.datagram.len() as u64;
            let fits = |view: &PathView| bytes <= room(view) as u64;
            let possible = !stale && views.iter().any(fits);
            let first = next.last.is_none();
            let (mut taken, mut last, mut refused) = (PathSet::default(), None, false);
            while next.left > 0 {
                let best = views
                    .iter_mut()
                    .filter(|view| possible && fits(view) && !taken.contains(view.id))
                    .min_by_key(|view| (view.free < bytes, delivered(now, next, view), view.id));
                if best.as_ref().is_some_and(|view| view.free < bytes) {
                    break;
                }
                let Some(view) = best else { break };
                if send(now, next, view, paths, out).is_none() {
                    refused = true;
                    break;
                }
                next.left -= 1;
                taken = taken.with(view.id);
                last = Some(view.id);
                self.bytes += bytes;
            }
            if last.is_none() && !refused && possible {
                return;
            }
            match (next.is_combination(), last) {
                (false, Some(_)) => self.sent += u64::from(first),
                (false, None) => self.dropped += u64::from(first),
                (true, sent) => self.coded += u64::from(sent.is_some()),
            }
            let Some(next) = self.waiting.pop_front() else {
                return;
            };
            let spacing = |id| views.iter().find(|view| view.id == id).map(spacing);
            if let Some(spacing) = last.and_then(spacing)
                && next.left > 0
            {
                let at = now + spacing;
                let place = self.later.partition_point(|(other, _)| *other <= at);
                self.later.insert(place, (at, next));
            }
        }
    }
}

/// Bytes of the largest datagram that a path takes.
const fn room(view: &PathView) -> usize {
    DATA_HEADER + view.payload_max
}

/// How much later than one copy another one follows on the same path.
fn spacing(view: &PathView) -> Duration {
    (view.srtt / COPY_SPACING_SHARE).clamp(COPY_SPACING_MIN, COPY_SPACING_MAX)
}

/// When a path may be expected to have delivered it, less what a path to be avoided costs.
fn delivered(now: Instant, waiting: &Waiting, view: &PathView) -> Instant {
    let bytes = waiting.sent.datagram.len() as u64;
    let lost = view.srtt.mul_f64(view.loss.clamp(0.0, 1.0));
    let preference = if waiting.avoids() == Some(view.id) {
        ELSEWHERE
    } else {
        Duration::ZERO
    };
    view.arrival(now, bytes) + lost + preference
}

/// Sends one datagram over one path; `None` when that cannot be.
fn send(
    now: Instant,
    waiting: &mut Waiting,
    view: &mut PathView,
    paths: &mut Paths,
    out: &mut Vec<Outgoing>,
) -> Option<()> {
    let path = paths.get_mut(view.id)?;
    let mut again = BytesMut::from(&waiting.sent.datagram[..]);
    let stamp = path.stamp(now, again.len());
    restamp(&mut again, stamp, waiting.is_copied()).ok()?;
    let datagram = again.freeze();
    let Sent { dscp, tcp, .. } = waiting.sent;
    if !waiting.is_combination() {
        let number = stamp.path_seq;
        path.coding.encoder.on_sent(now, number, &datagram, false);
        path.remember_lost(now, &datagram, (dscp, tcp), waiting.sent.losses);
        if let Some(last) = waiting.last.replace((view.id, number)) {
            paths.link_copy(last, (view.id, number));
        }
    }
    let bytes = datagram.len() as u64;
    view.free = view.free.saturating_sub(bytes);
    view.queued += bytes;
    let path = view.id;
    out.push(Outgoing {
        path,
        datagram,
        dscp,
        urgent: false,
    });
    Some(())
}

impl Tunnel {
    /// Appends a NACK for missing numbers, if there are any, on the quickest path and on a second
    /// one if there is one. A lost NACK costs a round trip.
    pub(super) fn poll_requests(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let requests = &mut self.egress.reorder.requests;
        if requests.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let carriers = self.paths.quickest_two();
        if carriers[0].is_none() {
            return;
        }
        let mut runs = Vec::with_capacity(NACK_RUNS_MAX);
        requests.poll(now, NACK_RUNS_MAX, &mut runs);
        if runs.is_empty() {
            return;
        }
        for id in carriers.into_iter().flatten() {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            let mut bytes = Vec::with_capacity(NACK_BYTES);
            emit_nack(path.stamp(now, NACK_BYTES), &runs, &mut bytes);
            out.push(Outgoing {
                path: id,
                datagram: Bytes::from(bytes),
                dscp: 0,
                urgent: false,
            });
        }
    }

    /// The peer misses these numbers.
    pub(super) fn handle_missing(&mut self, now: Instant, payload: &[u8]) {
        let shared = self.ingress.is_shared(now);
        let mut prompt = Vec::new();
        // Runs may overlap: a message costs no more than what there is to answer.
        let places = self.paths.iter().map(|(_, path)| path.sent_log.len());
        let mut left: usize = places.sum();
        for NackRun { path, first, count } in nack_runs(payload) {
            let (id, count) = (PathId(path), u16::from(count));
            let Some(path) = self.paths.wants_repair(now, id) else {
                continue;
            };
            path.coding.encoder.on_repair(first, count);
            path.coding.blocks.on_repair(first, count);
            for number in path.sent_log.among(first, count).take(left) {
                left -= 1;
                let path = self.paths.get_mut(id);
                let Some(sent) = path.and_then(|path| path.sent_log.take(number)) else {
                    continue;
                };
                // Of several copies one may be lost.
                let copied = |copy| self.paths.unlink_copy((id, number), copy);
                if sent.copy.is_some_and(copied) {
                    continue;
                }
                match Datagram::parse(&sent.datagram) {
                    Ok(Datagram::Data { header, .. })
                        if header.prompt
                            && self.ingress.rescuer.knows(header.flow, header.flow_seq) =>
                    {
                        prompt.push(DeadlineNack {
                            flow: header.flow,
                            flow_seq: header.flow_seq,
                        });
                    }
                    _ => self.ingress.retransmit.push_lost(id, sent, shared),
                }
            }
        }
        for packet in prompt {
            self.rescue(now, packet);
        }
    }

    /// Sends what went over a path that has just become suspect over the others, if there are any.
    pub(super) fn reinject(&mut self, now: Instant) {
        if self.paths.all_down() {
            // Nothing can take it now: the oldest are what a receiver waits for.
            self.paths.doubtful.truncate(RETRANSMIT_MAX);
            return;
        }
        self.paths.collect_undelivered();
        for sent in self.paths.doubtful.drain(..) {
            if now.since(sent.at) > self.ingress.limits.other_age_max && !sent.tcp {
                self.stats.hold.dropped_old += 1;
            } else {
                self.ingress.retransmit.push_doubtful(sent);
            }
        }
    }

    /// Tells the egress how long a repair may take.
    pub(super) fn set_patience(&mut self) {
        let Some(srtt) = self.paths.quickest_srtt() else {
            return;
        };
        self.egress.fragments.set_round_trip(srtt);
        let spread = self.egress.reorder.current_hold();
        let patience = srtt * PATIENCE_ROUND_TRIPS + spread + PATIENCE_MARGIN;
        self.egress
            .reorder
            .requests
            .set_patience(patience.min(PATIENCE_MAX), srtt + PATIENCE_MARGIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_more_often_goes_in_more_copies_and_later_while_others_fill_the_paths() {
        let copies = |losses, shared| {
            let mut again = RetransmitQueue::default();
            let sent = Sent {
                datagram: Bytes::new(),
                dscp: 0,
                tcp: false,
                at: Instant::ZERO,
                losses,
                copy: None,
            };
            again.push_lost(PathId(0), sent, shared);
            again.waiting[0].left
        };
        assert_eq!(
            [0, 1, 2, 9].map(|losses| copies(losses, false)),
            [1, 2, 3, 3]
        );
        assert_eq!(
            [0, 1, 2, 3, 4, 9].map(|losses| copies(losses, true)),
            [1, 1, 1, 2, 3, 3]
        );
    }
}
