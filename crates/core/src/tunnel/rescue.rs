//! Rescue at work: NACKs of this egress go to the peer's ingress, and what the peer awaits leaves here.

use super::headers;
use super::paths::Paths;
use super::tuning::{DEADLINE_NACK_BYTES, RTT_UNKNOWN, SAME_NACK};
use super::{Outgoing, Tunnel};
use crate::rescue::{DOUBT, Rescuer};
use bytes::{Bytes, BytesMut};
use ropewalk_headers::Compressor;
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::{
    DEADLINE_NACKS_MAX, DeadlineNack, deadline_nacks, emit_deadline_nack, restamp,
};

impl Tunnel {
    /// Appends a NACK for what is overdue, if anything is, on the two quickest paths.
    pub(super) fn poll_awaited(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let rhythms = &mut self.egress.rhythms;
        if rhythms.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let rtt = self.paths.quickest_srtt().unwrap_or(RTT_UNKNOWN);
        let mut packets = Vec::new();
        rhythms.poll(now, rtt, DEADLINE_NACKS_MAX, &mut packets);
        if packets.is_empty() {
            return;
        }
        for id in self.paths.quickest_two().into_iter().flatten() {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            let mut bytes = Vec::with_capacity(DEADLINE_NACK_BYTES);
            emit_deadline_nack(path.stamp(now, DEADLINE_NACK_BYTES), &packets, &mut bytes);
            out.push(Outgoing {
                path: id,
                datagram: Bytes::from(bytes),
                dscp: 0,
                urgent: false,
            });
        }
    }

    /// The peer awaits these packets.
    pub(super) fn handle_awaited(&mut self, now: Instant, payload: &[u8]) {
        for packet in deadline_nacks(payload) {
            self.rescue(now, packet);
        }
    }

    /// Rescues a packet that was lost, if it is one of those kept for that.
    pub(super) fn rescue(&mut self, now: Instant, packet: DeadlineNack) {
        let srtt = |id: Option<PathId>| self.paths.get(id?).map(|path| path.snapshot.srtt);
        let [first, second] = self.paths.quickest_two().map(srtt);
        let apart = second
            .unwrap_or_default()
            .abs_diff(first.unwrap_or_default())
            / 2;
        let same = apart + SAME_NACK;
        let Some((id, number)) = self.ingress.rescuer.ask(now, packet, same) else {
            return;
        };
        if let Some(path) = self.paths.get_mut(id) {
            path.doubt_until = now + DOUBT;
            // Once is enough.
            path.sent_log.take(number);
            path.coding.encoder.on_repair(number, 1);
        }
    }
}

/// Sends what is being rescued over the two quickest paths; returns the bytes.
pub(super) fn flush(
    now: Instant,
    rescuer: &mut Rescuer,
    compressor: Option<&Compressor>,
    paths: &mut Paths,
    out: &mut Vec<Outgoing>,
) -> u64 {
    let mut bytes = 0;
    while let Some(mut rescue) = rescuer.poll(now) {
        let full = compressor.and_then(|c| headers::in_full(c, &rescue.datagram, usize::MAX));
        if let Some(full) = full {
            rescue.datagram = full;
        }
        let mut repair = rescue.first;
        for id in paths.quickest_two().into_iter().flatten() {
            let Some(path) = paths.get_mut(id) else {
                continue;
            };
            let mut datagram = BytesMut::from(&rescue.datagram[..]);
            let fits = datagram.len() <= path.snapshot.max_datagram;
            if !fits || !(repair || path.afford(now, datagram.len())) {
                continue;
            }
            repair = false;
            let stamp = path.stamp(now, datagram.len());
            if restamp(&mut datagram, stamp, true).is_err() {
                continue;
            }
            bytes += datagram.len() as u64;
            out.push(Outgoing {
                path: id,
                datagram: datagram.freeze(),
                dscp: rescue.dscp,
                urgent: false,
            });
        }
    }
    bytes
}
