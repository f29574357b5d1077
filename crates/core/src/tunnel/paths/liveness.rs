//! Whether a path works, as far as its silence and the peer's word tell.
//!
//! A path is suspect while data has been under way on it for clearly longer than two round trips,
//! with a probe in between, and without any acknowledgement. It is suspect, too, while the peer
//! says so of its own direction. Suspicion is cheap and reversible: the scheduler merely looks
//! elsewhere. Declaring a path dead, and building a new connection, is the gateway's part.

use super::super::tuning::{
    DOUBT_MARGIN, DOUBT_PROBES, PEER_SUSPECT, ROUNDING, SUSPECT_MARGIN, SUSPECT_MIN,
};
use crate::hold::Probing;
use ropewalk_types::{Duration, Instant, PathSnapshot};

/// State of a path as the scheduler treats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Works as far as known.
    Up,
    /// Silent, in one direction or both, since the instant; used only when no other path is up.
    Suspect(Instant),
}

/// How gladly a path is used, from the best to the worst. A worse one is used only while there is no better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::tunnel) enum Standing {
    /// It works as far as known.
    Usable,
    /// It works, and its end has been announced.
    Leaving,
    /// The peer gets no acknowledgements, and this side does.
    PeerSuspect,
    /// This side gets no acknowledgements.
    Suspect,
}

/// What is known of a path's life.
#[derive(Debug)]
pub(in crate::tunnel) struct PathLiveness {
    suspect_since: Option<Instant>,
    peer_suspect: Option<PeerSuspect>,
    /// When the last datagram of the peer came.
    pub heard_at: Instant,
    /// The silence under way counts from here: the path has shown life since it began.
    pub excused_at: Instant,
    /// What it carried since then may not have arrived, and has not been sent again.
    pub undelivered: Option<Instant>,
    /// Its end has been announced: used only while there is nothing else.
    pub leaving: bool,
    /// When silence was last answered with a probe.
    probed_at: Instant,
}

/// The peer's word that it gets no acknowledgements on a path.
#[derive(Clone, Copy, Debug)]
struct PeerSuspect {
    since: Instant,
    until: Instant,
}

impl PathLiveness {
    pub const fn new(now: Instant) -> Self {
        Self {
            suspect_since: None,
            peer_suspect: None,
            heard_at: now,
            excused_at: Instant::ZERO,
            undelivered: None,
            leaving: false,
            probed_at: Instant::ZERO,
        }
    }

    /// A path that works one way only is suspect as well.
    pub fn state(&self) -> PathState {
        let peers = self.peer_suspect.map(|word| word.since);
        let since = self.suspect_since.into_iter().chain(peers).min();
        since.map_or(PathState::Up, PathState::Suspect)
    }

    /// Whether this side gets no acknowledgements.
    pub const fn suspect(&self) -> bool {
        self.suspect_since.is_some()
    }

    /// When the silence began for which it is suspect.
    pub const fn suspect_since(&self) -> Option<Instant> {
        self.suspect_since
    }

    pub fn usable(&self) -> bool {
        self.standing() == Standing::Usable
    }

    /// How gladly the path is used.
    pub const fn standing(&self) -> Standing {
        if self.suspect_since.is_some() {
            Standing::Suspect
        } else if self.peer_suspect.is_some() {
            Standing::PeerSuspect
        } else if self.leaving {
            Standing::Leaving
        } else {
            Standing::Usable
        }
    }

    /// A sign of life: the path is back in both directions, as far as this side can tell.
    pub const fn revive(&mut self, now: Instant) {
        self.excused_at = now;
        self.suspect_since = None;
        self.excuse_peer(now);
    }

    /// A sign of life of the peer's direction.
    pub const fn excuse_peer(&mut self, now: Instant) {
        self.excused_at = now;
        self.peer_suspect = None;
        self.leaving = false;
    }

    /// Judges the silence under way; whether the path has become suspect, or is no longer.
    pub fn judge(&mut self, now: Instant, s: &PathSnapshot) -> bool {
        let silent = self.silent_since(s);
        let suspect = silent.filter(|&since| now.since(since) > patience(s));
        if suspect.is_some() == self.suspect() {
            return false;
        }
        self.suspect_since = suspect;
        if let Some(since) = suspect {
            self.undelivered = Some(unacknowledged(since, s));
        } else {
            self.leaving = false;
        }
        true
    }

    /// The peer gets no acknowledgements on this path, or gets them again.
    pub fn peer_says(&mut self, now: Instant, s: &PathSnapshot, suspect: bool) {
        // What the peer says now it may have said before it heard of the return.
        let stale = suspect && now.since(self.excused_at) < patience(s);
        if stale && self.excused_at > Instant::ZERO {
            return;
        }
        let since = self.peer_suspect.map_or(now, |word| word.since);
        self.peer_suspect = suspect.then(|| PeerSuspect {
            since,
            until: now + PEER_SUSPECT,
        });
    }

    /// Forgets the peer's word when it has not been repeated.
    pub fn expire(&mut self, now: Instant) {
        self.peer_suspect = self.peer_suspect.filter(|word| word.until > now);
    }

    /// When the path becomes suspect, or a word of the peer is forgotten.
    pub fn poll_timeout(&self, s: &PathSnapshot) -> Option<Instant> {
        let silence = self.silent_since(s).filter(|_| !self.suspect());
        let suspect = silence.map(|since| since + patience(s) + ROUNDING);
        let word = self.peer_suspect.map(|word| word.until);
        suspect.into_iter().chain(word).min()
    }

    /// The silence under way, less what a sign of life excuses.
    fn silent_since(&self, s: &PathSnapshot) -> Option<Instant> {
        Some(s.silent_since?.max(self.excused_at))
    }

    /// When the silence under way calls for a probe: once, and again and again while all paths are
    /// silent, as they are in so many tunnels of the process. Before the path is suspect, a round trip has
    /// [`DOUBT_PROBES`] of them at most.
    pub fn doubt_due(&self, s: &PathSnapshot, alone: Option<u32>) -> Option<Instant> {
        let since = s.silent_since?;
        if self.probed_at < since || self.probed_at == Instant::ZERO {
            return doubted_at(s);
        }
        let again = |tunnels| Probing::interval(self.probed_at.since(since), tunnels);
        // A path in mere doubt is late, most likely. More probes before an answer can come would make it later.
        let least = if self.suspect() {
            Duration::ZERO
        } else {
            s.srtt / DOUBT_PROBES
        };
        alone.map(|tunnels| self.probed_at + again(tunnels).max(least))
    }

    /// Silence has been answered with a probe.
    pub const fn on_probed(&mut self, now: Instant) {
        self.probed_at = now;
    }

    /// Whether the silence under way has been answered with a probe.
    pub fn probed(&self, s: &PathSnapshot) -> bool {
        s.silent_since.is_some_and(|since| self.probed_at >= since)
    }

    /// Whether it has been silent for long enough to be doubted.
    pub fn in_doubt(&self, now: Instant, s: &PathSnapshot) -> bool {
        self.suspect() || doubted_at(s).is_some_and(|at| at <= now)
    }
}

/// What was sent before is acknowledged, or known to be lost. The last acknowledgement before a silence was of what had
/// been sent a round trip earlier. Over TCP it may have said nothing new.
pub(in crate::tunnel) fn unacknowledged(silence: Instant, s: &PathSnapshot) -> Instant {
    let last = silence - s.srtt - s.rttvar;
    s.oldest_sent.map_or(last, |oldest| oldest.min(last))
}

/// Silence after which a probe asks for a sign of life. The last packet may have been lost, or the
/// peer has nothing more to answer (compare RFC 9002 §6.2).
fn doubt(s: &PathSnapshot) -> Duration {
    s.srtt + 2 * s.rttvar + DOUBT_MARGIN
}

/// Silence after which the path is suspect: the probe, too, should have been answered.
fn patience(s: &PathSnapshot) -> Duration {
    (2 * s.srtt + 4 * s.rttvar + SUSPECT_MARGIN).max(SUSPECT_MIN)
}

/// When the silence under way first calls for a probe: an acknowledgement is overdue, and none
/// of another packet has come, either.
fn doubted_at(s: &PathSnapshot) -> Option<Instant> {
    let since = s.silent_since?;
    let oldest = s.oldest_sent.unwrap_or(since);
    let quiet = 2 * s.rttvar + DOUBT_MARGIN;
    Some((oldest + doubt(s)).max(since + quiet))
}
