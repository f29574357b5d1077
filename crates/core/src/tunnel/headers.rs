//! Header compression at work: headers are announced and confirmed here, and packets get theirs back.

use super::tuning::{APART_MIN, EXPANDED_CHUNK, HEADERS_BYTES};
use super::{Outgoing, Tunnel};
use crate::reorder::Inner;
use bytes::{Buf, Bytes, BytesMut};
use ropewalk_headers::{Compressor, ExpandError, Expander, HEADERS_MAX};
use ropewalk_types::{Instant, PathId};
use ropewalk_wire::{
    DATA_HEADER, DataHeader, Datagram, Stamp, emit_header_notices, emit_headers, header_notices,
};

/// The protocol number of TCP.
const TCP: u8 = 6;

/// The egress's side, with memory for packets with full headers.
#[derive(Debug, Default)]
pub(super) struct Expanding {
    expander: Expander,
    chunk: BytesMut,
}

impl Expanding {
    /// Gives the memory of flows back that have been silent for long.
    pub fn forget(&mut self, now: Instant) {
        self.expander.forget(now);
    }

    fn expand(
        &mut self,
        now: Instant,
        header: &DataHeader,
        compressed: &Bytes,
    ) -> Result<Inner, ExpandError> {
        let most = compressed.len() + HEADERS_MAX;
        if self.chunk.capacity() < most {
            // One allocation for many packets; the memory is freed with the last of them.
            self.chunk = BytesMut::with_capacity(most.max(EXPANDED_CHUNK));
        }
        let partial = header.checksum_partial;
        let payload = self.expander.expand(
            now,
            header.flow,
            header.flow_seq,
            partial,
            compressed,
            &mut self.chunk,
        )?;
        // Large payloads are TCP's as a rule, and stay where they are.
        if compressed.len() - payload >= APART_MIN && has_tcp_headers_only(&self.chunk) {
            return Ok(Inner {
                head: self.chunk.split().freeze(),
                data: compressed.slice(payload..),
                checksum_partial: partial,
            });
        }
        self.chunk.extend_from_slice(&compressed[payload..]);
        Ok(Inner::whole(self.chunk.split().freeze(), partial))
    }
}

/// Whether these are the headers of a TCP segment and nothing else.
fn has_tcp_headers_only(headers: &[u8]) -> bool {
    match headers.first().map(|first| first >> 4) {
        Some(4) => headers.get(9) == Some(&TCP),
        _ => headers.get(6) == Some(&TCP),
    }
}

impl Tunnel {
    /// Appends headers for the peer to know, and answers to those of the peer, on the quickest path.
    pub(super) fn poll_headers(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let compressor = self.ingress.compressor.as_mut();
        let is_due =
            |compressor: &Compressor| compressor.poll_timeout().is_some_and(|at| at <= now);
        let announces = compressor.as_deref().is_some_and(is_due);
        let answers = self.egress.expanding.expander.has_notices();
        if !announces && !answers {
            return;
        }
        let [Some(id), _] = self.paths.quickest_two() else {
            return;
        };
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let mut send = |datagram: Vec<u8>| {
            out.push(Outgoing {
                path: id,
                datagram: Bytes::from(datagram),
                dscp: 0,
                urgent: false,
            });
        };
        if let Some(compressor) = compressor.filter(|_| announces) {
            compressor.announce(now, |headers, inner| {
                let mut bytes = Vec::with_capacity(HEADERS_BYTES);
                emit_headers(path.stamp(now, HEADERS_BYTES), headers, inner, &mut bytes);
                send(bytes);
            });
        }
        if answers {
            let notices = self.egress.expanding.expander.take_notices();
            let mut bytes = Vec::with_capacity(HEADERS_BYTES);
            emit_header_notices(path.stamp(now, HEADERS_BYTES), &notices, &mut bytes);
            send(bytes);
        }
    }

    /// When headers, or answers to those of the peer, are due.
    pub(super) fn headers_due(&self) -> Option<Instant> {
        if self.egress.expanding.expander.has_notices() {
            return Some(self.now);
        }
        self.ingress.compressor.as_ref()?.poll_timeout()
    }

    /// The peer says what it knows of headers.
    pub(super) fn handle_header_notices(&mut self, payload: &[u8]) {
        if let Some(compressor) = &mut self.ingress.compressor {
            for notice in header_notices(payload) {
                compressor.on_notice(notice);
            }
        }
    }

    /// The peer announces headers.
    pub(super) fn handle_headers(
        &mut self,
        now: Instant,
        headers: &ropewalk_wire::Headers,
        inner: &[u8],
    ) {
        let learned = self.egress.expanding.expander.learn(now, headers, inner);
        self.stats.malformed += u64::from(learned.is_err());
    }

    /// The inner packet with full headers; `None`, and counted, when that cannot be.
    pub(super) fn expanded(
        &mut self,
        now: Instant,
        path: PathId,
        header: &DataHeader,
        compressed: &Bytes,
    ) -> Option<Inner> {
        match self.egress.expanding.expand(now, header, compressed) {
            Ok(inner) => Some(inner),
            Err(ExpandError::Unknown) => {
                self.stats.headers_unknown += 1;
                let seq = header.stamp.path_seq;
                self.egress.reorder.requests.on_unreadable(now, path, seq);
                None
            }
            Err(ExpandError::Invalid) => {
                self.stats.malformed += 1;
                None
            }
        }
    }
}

/// What the ingress should send instead of a datagram that it sent before: the packet with full headers,
/// where the egress could not read it any more, or no path takes more than `most` bytes. A packet in full may
/// leave in pieces.
pub(super) fn in_full(compressor: &Compressor, datagram: &Bytes, most: usize) -> Option<Bytes> {
    let Ok(Datagram::Data { header, at }) = Datagram::parse(datagram) else {
        return None;
    };
    let compressed = &datagram[at..];
    let is_readable = || compressor.is_readable(header.flow, compressed);
    if !header.compressed || datagram.len() <= most && is_readable() {
        return None;
    }
    let mut full = BytesMut::with_capacity(datagram.len() + HEADERS_MAX);
    full.resize(DATA_HEADER, 0);
    let partial = header.checksum_partial;
    compressor
        .expand(header.flow, header.flow_seq, partial, compressed, &mut full)
        .ok()?;
    let plain = DataHeader {
        compressed: false,
        stamp: Stamp::default(),
        ..header
    };
    let front = full.first_chunk_mut::<DATA_HEADER>()?;
    plain.emit(front);
    Some(full.freeze())
}

/// Compresses the headers of `packet`, which has `headroom` bytes in front, if the result fits `room`.
/// Returns how many bytes that saves: none if it did not.
pub(super) fn compress(
    now: Instant,
    compressor: &mut Compressor,
    header: &DataHeader,
    packet: &mut BytesMut,
    headroom: usize,
    room: usize,
) -> usize {
    let removed = compressor.compress(
        now,
        header.flow,
        header.flow_seq,
        header.checksum_partial,
        &mut packet[headroom..],
        room,
    );
    let Some(removed) = removed else { return 0 };
    // The bytes before stay free: they were those of the headers.
    packet.advance(removed);
    removed
}
