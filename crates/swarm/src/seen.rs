//! What a site has seen.

use ropewalk_types::{Duration, Instant};

use crate::roam::Moved;

/// What a site has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Its starts: the first one, and one after each absence.
    pub(crate) starts: Vec<Start>,
    /// Times its tunnel went down.
    pub(crate) downs: u64,
    /// Pings before hostile hosts begin, and with them.
    pub(crate) pings: [Pings; 2],
    /// Traffic before hostile hosts begin, and with them.
    pub(crate) load: [Loaded; 2],
    /// Moves, and moves that could not be made.
    pub(crate) moved: Vec<Moved>,
    pub(crate) not_moved: u64,
    /// Times it vanished.
    pub(crate) vanished: u64,
    /// Times it moved to another hub.
    pub(crate) hub_moves: u64,
    /// Longest time without an answered ping, once one was answered.
    pub(crate) silence: Option<Duration>,
}

/// How a start went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// How long after it the first path was up, and all of them.
    pub(crate) joined: Option<Duration>,
    pub(crate) whole: Option<Duration>,
}

/// What a site has seen of its pings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pings {
    pub(crate) sent: u64,
    /// Bytes of answers.
    pub(crate) answered_bytes: u64,
    /// How long answers took, microseconds.
    pub(crate) round_trips: Vec<u32>,
}

/// What a site has seen of its traffic.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    /// Packets.
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Bytes of answers, with their IP headers.
    pub(crate) answered_bytes: u64,
}

impl Seen {
    /// No ping was answered from `last`, if there was any, until now.
    pub(crate) fn silence(&mut self, last: Option<Instant>, now: Instant) {
        let silence = last.map(|last| now.since(last));
        self.silence = self.silence.max(silence);
    }

    /// Whether its tunnel has come up, since it came back if it was away.
    pub(crate) fn is_joined(&self) -> bool {
        // A site that is away has vanished more often than it came back.
        self.starts.len() as u64 > self.vanished
            && self
                .starts
                .last()
                .is_some_and(|start| start.joined.is_some())
    }
}
