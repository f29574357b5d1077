//! Repair symbols: made here of what each path carried, and solved here for what each path lost.

use super::Tunnel;
use super::paths::{Path, Paths};
use super::repair::RetransmitQueue;
use super::tuning::{CHEAP, HALVES_MAX};
use crate::code::{Coded, Decoder};
use bytes::Bytes;
use ropewalk_types::{Duration, Ecn, Instant, PATHS_MAX, PathId};
use ropewalk_wire::{CodedHeader, DATA_HEADER, Datagram, Part, Stamp};

impl RetransmitQueue {
    /// Takes in the repair symbols that are due. Those that cost more than little have to be worth it:
    /// the paths have room, and repairs would come later.
    pub fn encode(&mut self, now: Instant, full: bool, paths: &mut Paths) {
        let coded =
            |path: &Path| path.coding.encoder.redundancy() > 0.0 || path.coding.blocks.is_due();
        if !paths.iter().any(|(_, path)| coded(path)) {
            return;
        }
        let mut rests = Vec::new();
        let room = paths.payload_max().unwrap_or(0);
        let repair = paths.quickest_min_rtt().unwrap_or(Duration::ZERO);
        let capacity = paths.rate().bits_per_sec() as f64;
        for (id, path) in paths.iter_mut() {
            let cost = path.coding.encoder.redundancy() * path.snapshot.rate.bits_per_sec() as f64;
            let unknown = path.loss.loss_steady(now).is_none();
            let wanted = path.coding.encoder.is_wanted(now);
            let worthwhile =
                unknown || wanted || !full && path.coding.encoder.is_sooner_than(repair);
            path.coding
                .encoder
                .set_closed(cost > CHEAP * capacity && !worthwhile);
            while let Some(coded) = path
                .coding
                .encoder
                .poll()
                .or_else(|| path.coding.blocks.poll())
            {
                rests.extend(self.push(now, id, path, &coded, room));
            }
            for rest in rests.drain(..) {
                self.push_coded(now, id, rest);
            }
        }
    }

    /// Takes in one repair symbol. Returns the second part of a symbol that does not fit a
    /// datagram: datagrams alike in length next to each other leave in one go.
    fn push(
        &mut self,
        now: Instant,
        id: PathId,
        path: &mut Path,
        coded: &Coded,
        room: usize,
    ) -> Option<Bytes> {
        // Without a path that is up there is none to send it over in time.
        if room == 0 || !path.afford(now, coded.symbol.len()) {
            return None;
        }
        let (bitmap, sum) = (&coded.combined[..], &coded.symbol[..]);
        let whole = bitmap.len() + sum.len();
        if whole <= room {
            self.push_coded(now, id, emit(id, coded, Part::Whole, &[bitmap, sum]));
            return None;
        }
        let (front, rest) = sum.split_at(room.saturating_sub(bitmap.len()).min(sum.len()));
        self.push_coded(now, id, emit(id, coded, Part::Front, &[bitmap, front]));
        Some(emit(id, coded, Part::Rest, &[rest]))
    }
}

fn emit(path: PathId, coded: &Coded, part: Part, pieces: &[&[u8]]) -> Bytes {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut bytes = Vec::with_capacity(DATA_HEADER + length);
    let header = CodedHeader {
        stamp: Stamp::default(),
        path: path.0,
        first: coded.first,
        count: coded.count,
        seed: coded.seed,
        part,
    };
    header.emit(&mut bytes);
    for piece in pieces {
        bytes.extend_from_slice(piece);
    }
    bytes.into()
}

/// What repair symbols of the peer's packets have told so far.
#[derive(Debug, Default)]
pub(super) struct Decoding {
    paths: [Option<Box<Decoder>>; PATHS_MAX],
    halves: Vec<(CodedHeader, Bytes)>,
    /// Packets recovered.
    pub recovered: u64,
}

impl Decoding {
    /// A datagram arrived; whether something may have been recovered by that.
    pub fn learn(&mut self, path: PathId, stamp: Stamp, datagram: &Datagram, data: &Bytes) -> bool {
        let Some(Some(decoder)) = self.paths.get_mut(path.index()) else {
            return false;
        };
        let packet = matches!(datagram, Datagram::Data { .. } | Datagram::Fragment { .. });
        decoder.on_datagram(stamp.path_seq, packet.then_some(data));
        true
    }

    /// How many halves wait for their other half, how many equations there are, and how many unknowns
    /// in all of them.
    pub fn kept(&self) -> (usize, usize, usize) {
        let kept = self.paths.iter().flatten().map(|decoder| decoder.kept());
        kept.fold((self.halves.len(), 0, 0), |sum, (equations, unknowns)| {
            (sum.0, sum.1 + equations, sum.2 + unknowns)
        })
    }

    /// The numbers of this path start anew.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.paths[path.index()] = None;
        self.halves.retain(|(header, _)| header.path != path.0);
    }

    /// Puts a repair symbol together; `None` while half of it is missing.
    fn assemble(&mut self, header: &CodedHeader, sum: Bytes) -> Option<Vec<u8>> {
        if header.part == Part::Whole {
            return Some(sum.into());
        }
        // The halves may take different paths, and come in either order.
        let same = |half: &CodedHeader| {
            (half.path, half.first, half.count, half.seed)
                == (header.path, header.first, header.count, header.seed)
        };
        let Some(at) = self.halves.iter().position(|(half, _)| same(half)) else {
            if self.halves.len() == HALVES_MAX {
                self.halves.remove(0);
            }
            self.halves.push((*header, sum));
            return None;
        };
        let (half, _) = &self.halves[at];
        if half.part == header.part {
            return None; // the same half again
        }
        let (_, other) = self.halves.remove(at);
        let (front, rest) = if header.part == Part::Front {
            (sum, other)
        } else {
            (other, sum)
        };
        let mut whole: Vec<u8> = front.into();
        whole.extend_from_slice(&rest);
        Some(whole)
    }
}

impl Tunnel {
    /// A repair symbol, or half of one, arrived.
    pub(super) fn handle_coded(&mut self, now: Instant, header: &CodedHeader, sum: Bytes) {
        let path = PathId(header.path);
        if self.paths.get(path).is_none() {
            return;
        }
        let Some(mut combined) = self.egress.decoding.assemble(header, sum) else {
            return;
        };
        let bitmap = Coded::bitmap_bytes(header.count);
        if combined.len() <= bitmap {
            self.stats.malformed += 1;
            return;
        }
        let symbol = combined.split_off(bitmap);
        let decoder = self.egress.decoding.paths[path.index()]
            .get_or_insert_with(|| Box::new(Decoder::new(now)));
        decoder.on_coded(
            now,
            Coded {
                first: header.first,
                count: header.count,
                seed: header.seed,
                combined,
                symbol,
            },
        );
        let (wait, until) = (decoder.patience(), decoder.expected_until());
        self.egress
            .reorder
            .requests
            .set_code_wait(path, wait, until);
        self.deliver_recovered(now, path);
    }

    /// Passes on what was recovered of `path`: as if it had come, but it says nothing of the path.
    pub(super) fn deliver_recovered(&mut self, now: Instant, path: PathId) {
        while let Some((number, packet)) = self.egress.decoding.paths[path.index()]
            .as_mut()
            .and_then(|decoder| decoder.poll())
        {
            let data = Bytes::from(packet);
            let Some(datagram) = self.parse(&data) else {
                continue;
            };
            if matches!(datagram, Datagram::Data { .. } | Datagram::Fragment { .. }) {
                self.egress.decoding.recovered += 1;
                self.egress.reorder.requests.on_recovered(path, number);
                self.take(now, path, Ecn::NotEct, data, datagram);
            }
        }
    }

    /// Forgets paths whose packets are not combined any more.
    pub(super) fn forget_idle_decoders(&mut self, now: Instant) {
        for (id, slot) in (0..).zip(&mut self.egress.decoding.paths) {
            if slot.as_ref().is_some_and(|decoder| decoder.is_idle(now)) {
                *slot = None;
                let requests = &mut self.egress.reorder.requests;
                requests.set_code_wait(PathId(id), Duration::ZERO, Instant::ZERO);
            }
        }
    }
}
