//! What a controller tells the owner of its connection.
//!
//! `quinn-proto` owns the controller and shows it only as `&dyn Controller`, which cannot be
//! downcast by reference; cloning it to look inside would allocate. The two sides therefore share
//! relaxed atomics: on every common CPU a relaxed load or store is a plain one, and only one
//! thread uses them, so nothing contends. Each value stands alone, so no ordering is needed.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use ropewalk_types::{Duration, Rate};

/// No instant.
const NONE: u64 = u64::MAX;

/// Live state of one path, written by its controller and by the owner of the connection.
#[derive(Debug)]
pub(crate) struct PathState {
    base: Instant,
    in_flight: AtomicU64,
    /// Most bytes in flight since the last batch of acknowledgements.
    peak: AtomicU64,
    silent_since: AtomicU64,
    rate: AtomicU64,
    min_rtt: AtomicU64,
    rttvar: AtomicU64,
    queued: AtomicU64,
    commit: AtomicBool,
}

impl PathState {
    /// State of a path with nothing sent; instants count from `base`.
    pub(crate) fn new(base: Instant) -> Self {
        Self {
            base,
            in_flight: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            silent_since: AtomicU64::new(NONE),
            rate: AtomicU64::new(0),
            min_rtt: AtomicU64::new(NONE),
            rttvar: AtomicU64::new(NONE),
            queued: AtomicU64::new(0),
            commit: AtomicBool::new(false),
        }
    }

    /// The owner saw that what was last sent asks for an acknowledgement.
    pub(crate) fn commit_sent(&self, now: Instant, bytes: u64) {
        let in_flight = self.in_flight() + bytes;
        self.in_flight.store(in_flight, Relaxed);
        self.peak
            .store(self.peak.load(Relaxed).max(in_flight), Relaxed);
        self.commit.store(true, Relaxed);
        if self.silent_since.load(Relaxed) == NONE {
            self.silent_since.store(self.nanos(now), Relaxed);
        }
    }

    /// Whether [`Self::commit_sent`] was called since the last time this was asked.
    pub(super) fn take_commit(&self) -> bool {
        let commit = self.commit.load(Relaxed);
        if commit {
            self.commit.store(false, Relaxed);
        }
        commit
    }

    /// Most bytes in flight since this was last asked.
    pub(super) fn take_peak(&self) -> u64 {
        let peak = self.peak.load(Relaxed);
        self.peak.store(self.in_flight(), Relaxed);
        peak
    }

    /// Bytes in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn set_in_flight(&self, bytes: u64) {
        self.in_flight.store(bytes, Relaxed);
    }

    pub(super) fn subtract_in_flight(&self, bytes: u64) {
        self.in_flight
            .store(self.in_flight().saturating_sub(bytes), Relaxed);
    }

    /// Bytes the owner has queued behind the window.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    pub(crate) fn set_queued(&self, bytes: u64) {
        self.queued.store(bytes, Relaxed);
    }

    /// Since when packets are out and nothing was acknowledged.
    pub(crate) fn silent_since(&self) -> Option<ropewalk_types::Instant> {
        let nanos = self.silent_since.load(Relaxed);
        (nanos != NONE).then(|| ropewalk_types::Instant::from_nanos(nanos))
    }

    pub(super) fn set_silent_since(&self, at: Option<Instant>) {
        self.silent_since
            .store(at.map_or(NONE, |at| self.nanos(at)), Relaxed);
    }

    /// Delivery rate; zero before the first estimate.
    pub(crate) fn rate(&self) -> Rate {
        Rate::from_bits_per_sec(self.rate.load(Relaxed))
    }

    pub(super) fn set_rate(&self, bytes_per_sec: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates"
        )]
        self.rate.store((bytes_per_sec * 8.0) as u64, Relaxed);
    }

    /// Smallest round-trip time lately seen.
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        let nanos = self.min_rtt.load(Relaxed);
        (nanos != NONE).then(|| Duration::from_nanos(nanos))
    }

    pub(super) fn set_min_rtt(&self, rtt: Duration) {
        self.min_rtt.store(whole_nanos(rtt), Relaxed);
    }

    /// Round-trip time variation (RFC 9002 §5.3).
    pub(crate) fn rttvar(&self) -> Option<Duration> {
        let nanos = self.rttvar.load(Relaxed);
        (nanos != NONE).then(|| Duration::from_nanos(nanos))
    }

    pub(super) fn set_rttvar(&self, variation: Duration) {
        self.rttvar.store(whole_nanos(variation), Relaxed);
    }

    fn nanos(&self, at: Instant) -> u64 {
        whole_nanos(at.saturating_duration_since(self.base))
    }
}

fn whole_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NONE - 1)
}
