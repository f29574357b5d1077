//! Combinations: made here of what each path carried, and solved here for what each path lost.

use super::Tunnel;
use super::paths::Paths;
use super::repair::Again;
use crate::code::{Coded, Decoder};
use bytes::Bytes;
use ropewalk_types::{Duration, Ecn, Instant, PATHS_MAX, PathId};
use ropewalk_wire::{CodedHeader, DATA_HEADER, Datagram, Part, Stamp};

/// Fronts of combinations whose rest has not come yet.
pub(super) const FRONTS_MAX: usize = 8;

impl Again {
    /// Takes in the combinations that are due.
    pub fn encode(&mut self, now: Instant, paths: &mut Paths) {
        let room = paths.payload_max().unwrap_or(0);
        for (id, path) in paths.iter_mut() {
            let Some(coded) = path.encoder.poll() else {
                continue;
            };
            if room == 0 {
                continue; // no path is up: there is none to send it over in time
            }
            let fits = coded.symbol.len() <= room;
            let (front, rest) = coded.symbol.split_at(coded.symbol.len().min(room));
            let part = if fits { Part::Whole } else { Part::Front };
            self.push_coded(now, id, emit(id, &coded, part, front));
            if !fits {
                self.push_coded(now, id, emit(id, &coded, Part::Rest, rest));
            }
        }
    }
}

fn emit(path: PathId, coded: &Coded, part: Part, sum: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(DATA_HEADER + sum.len());
    let header = CodedHeader {
        stamp: Stamp::default(),
        path: path.0,
        first: coded.first,
        count: coded.count,
        seed: coded.seed,
        part,
    };
    header.emit(&mut bytes);
    bytes.extend_from_slice(sum);
    bytes.into()
}

/// What combinations of the peer's packets have told so far.
#[derive(Debug, Default)]
pub(super) struct Decoding {
    paths: [Option<Box<Decoder>>; PATHS_MAX],
    fronts: Vec<(CodedHeader, Bytes)>,
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

    /// How many fronts wait for their rest, how many equations there are, and how many unknowns
    /// in all of them.
    pub fn kept(&self) -> (usize, usize, usize) {
        let kept = self.paths.iter().flatten().map(|decoder| decoder.kept());
        kept.fold((self.fronts.len(), 0, 0), |sum, (equations, unknowns)| {
            (sum.0, sum.1 + equations, sum.2 + unknowns)
        })
    }

    /// The numbers of this path start anew.
    pub fn on_path_removed(&mut self, path: PathId) {
        self.paths[path.index()] = None;
        self.fronts.retain(|(header, _)| header.path != path.0);
    }

    /// Puts a combination together; `None` while half of it is missing.
    fn assemble(&mut self, header: &CodedHeader, sum: Bytes) -> Option<Vec<u8>> {
        let same = |front: &CodedHeader| {
            (front.path, front.first, front.count, front.seed)
                == (header.path, header.first, header.count, header.seed)
        };
        match header.part {
            Part::Whole => Some(sum.into()),
            Part::Front => {
                if self.fronts.len() == FRONTS_MAX {
                    self.fronts.remove(0);
                }
                self.fronts.push((*header, sum));
                None
            }
            Part::Rest => {
                let at = self.fronts.iter().position(|(front, _)| same(front))?;
                let mut whole: Vec<u8> = self.fronts.remove(at).1.into();
                whole.extend_from_slice(&sum);
                Some(whole)
            }
        }
    }
}

impl Tunnel {
    /// A combination, or half of one, arrived.
    pub(super) fn handle_coded(&mut self, now: Instant, header: &CodedHeader, sum: Bytes) {
        let path = PathId(header.path);
        if self.paths.get(path).is_none() {
            return;
        }
        let Some(symbol) = self.exit.decoding.assemble(header, sum) else {
            return;
        };
        let decoder = self.exit.decoding.paths[path.index()]
            .get_or_insert_with(|| Box::new(Decoder::new(now)));
        decoder.on_coded(
            now,
            Coded {
                first: header.first,
                count: header.count,
                seed: header.seed,
                symbol,
            },
        );
        let wait = decoder.patience();
        self.exit.reorder.requests.set_code_wait(path, wait);
        self.deliver_recovered(now, path);
    }

    /// Passes on what was recovered of `path`: as if it had come, but it says nothing of the path.
    pub(super) fn deliver_recovered(&mut self, now: Instant, path: PathId) {
        while let Some((number, packet)) = self.exit.decoding.paths[path.index()]
            .as_mut()
            .and_then(|decoder| decoder.poll())
        {
            let data = Bytes::from(packet);
            let Some(datagram) = self.parse(&data) else {
                continue;
            };
            if matches!(datagram, Datagram::Data { .. } | Datagram::Fragment { .. }) {
                self.exit.decoding.recovered += 1;
                self.exit.reorder.requests.on_recovered(path, number);
                self.take(now, path, Ecn::NotEct, data, datagram);
            }
        }
    }

    /// Forgets paths whose packets are not combined any more.
    pub(super) fn forget_idle_decoders(&mut self, now: Instant) {
        for (id, slot) in (0..).zip(&mut self.exit.decoding.paths) {
            if slot.as_ref().is_some_and(|decoder| decoder.is_idle(now)) {
                *slot = None;
                let requests = &mut self.exit.reorder.requests;
                requests.set_code_wait(PathId(id), Duration::ZERO);
            }
        }
    }
}
