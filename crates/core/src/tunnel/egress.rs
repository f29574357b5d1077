//! The egress: parses datagrams, puts fragments together, hands packets to the reordering, and
//! counts what the ingress should know.

use super::code::Decoding;
use super::fragment::Reassembly;
use super::headers::Expanding;
use super::tuning::REPORT_INTERVAL;
use super::{Tunnel, TunnelStats};
use crate::queue::mark_ce;
use crate::reorder::{Inner, Reorder};
use crate::rescue::Rhythms;
use bytes::{Buf, Bytes, BytesMut};
use ropewalk_types::{Ecn, Instant, PathId};
use ropewalk_wire::{Control, DataHeader, Datagram, Stamp};

/// Totals at the last report, to report differences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    pub held: u64,
    pub hold_timeouts: u64,
}

/// Egress side of a tunnel.
#[derive(Debug)]
pub(super) struct Egress {
    pub reorder: Reorder,
    pub fragments: Reassembly,
    pub decoding: Decoding,
    pub expanding: Expanding,
    pub rhythms: Rhythms,
    /// Start of the report period under way; `None` while nothing arrived.
    pub period_start: Option<Instant>,
    pub reported: Reported,
}

impl Egress {
    pub fn with(reorder: Reorder) -> Self {
        Self {
            reorder,
            fragments: Reassembly::default(),
            decoding: Decoding::default(),
            expanding: Expanding::default(),
            rhythms: Rhythms::default(),
            period_start: None,
            reported: Reported::default(),
        }
    }

    pub fn report_due(&self) -> Option<Instant> {
        self.period_start.map(|start| start + REPORT_INTERVAL)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let release = self.reorder.poll_timeout();
        release
            .into_iter()
            .chain(self.fragments.poll_timeout())
            .min()
    }

    /// When there is something overdue to ask the peer for.
    pub fn poll_ask_timeout(&self) -> Option<Instant> {
        let missing = self.reorder.requests.poll_timeout();
        missing.into_iter().chain(self.rhythms.poll_timeout()).min()
    }

    pub fn release_due(&mut self, now: Instant, stats: &mut TunnelStats) {
        stats.fragments_dropped += self.fragments.expire(now);
        self.reorder.release_due(now);
    }
}

impl Tunnel {
    /// Takes a datagram of the peer in. Control messages are the caller's and are returned.
    /// Malformed ones are counted and dropped.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        ecn: Ecn,
        data: Bytes,
    ) -> Option<Control> {
        self.tick(now);
        if let Some(observer) = &mut self.observed.0 {
            observer.on_received(now, path, &data);
        }
        let datagram = self.parse(&data)?;
        let stamp = datagram.stamp();
        if let Some(stamp) = stamp {
            self.heard(now, path, stamp, data.len());
        }
        let learned =
            stamp.is_some_and(|stamp| self.egress.decoding.learn(path, stamp, &datagram, &data));
        let control = self.take(now, path, ecn, data, datagram);
        if learned {
            self.deliver_recovered(now, path);
        }
        control
    }

    /// Takes a datagram of a connection that `path` has left since. Its packets are delivered, but
    /// its number and time say nothing of the path as it is now.
    pub fn handle_straggler(
        &mut self,
        now: Instant,
        path: PathId,
        ecn: Ecn,
        data: Bytes,
    ) -> Option<Control> {
        self.tick(now);
        let datagram = self.parse(&data)?;
        self.take(now, path, ecn, data, datagram)
    }

    pub(super) fn parse(&mut self, data: &Bytes) -> Option<Datagram> {
        let datagram = Datagram::parse(data);
        self.stats.malformed += u64::from(datagram.is_err());
        datagram.ok()
    }

    pub(super) fn take(
        &mut self,
        now: Instant,
        path: PathId,
        ecn: Ecn,
        data: Bytes,
        datagram: Datagram,
    ) -> Option<Control> {
        match datagram {
            Datagram::Data { header, at } => {
                let mut inner = data;
                inner.advance(at);
                self.deliver(now, path, &header, ecn, inner);
            }
            Datagram::Fragment {
                header,
                fragment,
                at,
            } => {
                let piece = data.slice(at..);
                if let Some(inner) = self.egress.fragments.insert(now, &header, fragment, &piece) {
                    self.deliver(now, path, &header, ecn, inner);
                }
            }
            Datagram::Report { report, .. } => self.handle_report(now, &report),
            Datagram::Probe { newest, .. } => {
                self.egress.period_start.get_or_insert(now);
                if let Some(newest) = newest {
                    self.paths.on_newest(now, path, newest);
                    self.reinject(now);
                }
            }
            Datagram::Nack { at, .. } => self.handle_missing(now, &data[at..]),
            Datagram::DeadlineNack { at, .. } => self.handle_awaited(now, &data[at..]),
            Datagram::Headers { headers, at, .. } => {
                self.handle_headers(now, &headers, &data[at..])
            }
            Datagram::HeaderNotices { at, .. } => self.handle_header_notices(&data[at..]),
            Datagram::Coded { header, at } => self.handle_coded(now, &header, data.slice(at..)),
            Datagram::Control(control) => return Some(control),
        }
        None
    }

    /// Ends a batch of datagrams: releases what need not wait any longer.
    pub fn end_batch(&mut self, now: Instant) {
        self.set_patience();
        self.egress.release_due(now, &mut self.stats);
    }

    fn heard(&mut self, now: Instant, id: PathId, stamp: Stamp, length: usize) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        path.stats.rx_datagrams += 1;
        path.stats.rx_bytes += length as u64;
        path.arrivals
            .on_packet(now, stamp.path_seq, stamp.sent_at.bits(), length);
        self.egress.reorder.on_path_heard(now, id, stamp);
        let awaited = self.freezer.frozen_since();
        if self.paths.on_heard(now, id, awaited) {
            self.freezer.on_back(now);
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        path: PathId,
        header: &DataHeader,
        outer: Ecn,
        data: Bytes,
    ) {
        self.egress.period_start.get_or_insert(now);
        let mut inner = if header.compressed {
            match self.expanded(now, path, header, &data) {
                Some(inner) => inner,
                None => return,
            }
        } else {
            Inner::whole(data, header.checksum_partial)
        };
        if header.prompt {
            self.egress.rhythms.on_packet(now, header);
        }
        if outer == Ecn::Ce {
            mark(&mut inner);
        }
        if self.egress.reorder.on_packet(now, header, inner)
            && let Some(path) = self.paths.get_mut(path)
        {
            path.late = path.late.saturating_add(1);
        }
    }
}

/// An outer congestion mark goes into an inner packet that can carry it (RFC 6040 §4.2).
///
/// A packet that cannot carry the mark is passed on unmarked instead of dropped. QUIC sets ECT on
/// every outer packet, also around inner packets without ECT, and the sub-tunnel's congestion
/// control has already answered the mark.
fn mark(inner: &mut Inner) {
    if !matches!(Ecn::of(inner.front()), Some(Ecn::Ect0 | Ecn::Ect1)) {
        return;
    }
    let mut marked = BytesMut::from(inner.front());
    mark_ce(&mut marked);
    *inner.front_mut() = marked.freeze();
}
