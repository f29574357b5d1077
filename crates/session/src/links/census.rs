//! How many TCP connections are open, and which are in their handshake, without a look at each of them.
//!
//! Invariant: an open connection is counted once from [`Census::enter`] to [`Census::leave`].

use std::collections::BTreeMap;

use ropewalk_transport::{Source, gives_way};

use super::tuning::HANDSHAKES_MAX;
use crate::io::StreamId;

/// The open TCP connections of a gateway.
#[derive(Debug, Default)]
pub(super) struct Census {
    open: usize,
    /// Those in their handshake. The oldest have the smallest names.
    handshaking: BTreeMap<StreamId, Source>,
}

/// Whether another handshake may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// There is room.
    Room,
    /// In the place of this one, which has to end.
    Instead(StreamId),
    /// Others have fewer.
    Refused,
}

impl Census {
    /// Number of open connections.
    pub const fn open(&self) -> usize {
        self.open
    }

    /// Whether a handshake from `source` may begin. While all places are taken, another one gives way, or this one.
    pub fn place(&self, source: Source) -> Place {
        if self.handshaking.len() < HANDSHAKES_MAX {
            return Place::Room;
        }
        let open = self.handshaking.iter().map(|(&id, &from)| (id, from));
        gives_way(source, open).map_or(Place::Refused, Place::Instead)
    }

    /// A connection is open; `source` is that of a handshake which is still to come.
    pub fn enter(&mut self, id: StreamId, source: Option<Source>) {
        self.open += 1;
        if let Some(source) = source {
            self.handshaking.insert(id, source);
        }
    }

    /// The handshake of a connection is over, well or not.
    pub fn end_handshake(&mut self, id: StreamId) {
        self.handshaking.remove(&id);
    }

    /// An open connection is over, or is another worker's from now on. Once for each.
    pub fn leave(&mut self, id: StreamId) {
        self.open -= 1;
        self.end_handshake(id);
    }

    /// Whether the counts are those of these connections: their names, and whether each is in its handshake.
    #[cfg(test)]
    pub fn is_of(&self, streams: impl Iterator<Item = (StreamId, bool)>) -> bool {
        let (ids, handshaking): (Vec<_>, Vec<_>) = streams.unzip();
        let expected = ids.iter().zip(&handshaking).filter(|(_, is)| **is);
        self.open == ids.len() && self.handshaking.keys().eq(expected.map(|(id, _)| id))
    }
}
