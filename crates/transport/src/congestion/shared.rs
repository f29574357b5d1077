//! What a controller tells the owner of its connection.
//!
//! `quinn-proto` owns the controller and shows it only as `&dyn Controller`, which cannot be
//! downcast by reference; cloning it to look inside would allocate. So the two sides share relaxed
//! atomics. On every common CPU a relaxed load or store is a plain one. Only one thread uses them,
//! so nothing contends. Each value stands alone, so no ordering is needed.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use ropewalk_types::{Duration, PathSnapshot, Rate};

use super::tuning::{QUEUE_PACKETS, QUEUE_PACKETS_MAX, QUEUE_TIME};

/// No instant.
const NONE: u64 = u64::MAX;

/// What the owner of a connection adds to a report of its path.
pub(crate) struct Sending {
    pub cwnd: u64,
    pub srtt: Duration,
    pub mtu: u64,
    pub next_credit: Option<ropewalk_types::Instant>,
    pub max_datagram: usize,
    pub sent_packets: u64,
    pub lost_packets: u64,
}

/// Live state of one path, written by its controller and by the owner of the connection.
#[derive(Debug)]
pub(crate) struct PathState {
    base: Instant,
    in_flight: AtomicU64,
    /// Most bytes in flight since the last batch of acknowledgements.
    peak: AtomicU64,
    silent_since: AtomicU64,
    oldest_sent: AtomicU64,
    /// Bytes in flight that the owner takes for lost before the connection finds them so.
    declared_lost: AtomicU64,
    /// What the window is at least, so that what is urgent leaves.
    window_min: AtomicU64,
    rate: AtomicU64,
    min_rtt: AtomicU64,
    srtt: AtomicU64,
    rttvar: AtomicU64,
    queued: AtomicU64,
    /// Most flows with data waiting since this was last asked.
    flows: AtomicU8,
    /// Something was queued since this was last asked.
    paced: AtomicBool,
    commit: AtomicBool,
    /// Lets the controller panic.
    #[cfg(test)]
    pub(crate) fuse: super::trap::Fuse,
}

impl PathState {
    /// State of a path with nothing sent; instants count from `base`.
    pub(crate) fn new(base: Instant) -> Self {
        Self {
            base,
            in_flight: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            silent_since: AtomicU64::new(NONE),
            oldest_sent: AtomicU64::new(NONE),
            declared_lost: AtomicU64::new(0),
            window_min: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            min_rtt: AtomicU64::new(NONE),
            srtt: AtomicU64::new(NONE),
            rttvar: AtomicU64::new(NONE),
            queued: AtomicU64::new(0),
            flows: AtomicU8::new(0),
            paced: AtomicBool::new(false),
            commit: AtomicBool::new(false),
            #[cfg(test)]
            fuse: super::trap::Fuse::default(),
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
            self.oldest_sent.store(self.nanos(now), Relaxed);
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

    /// Most bytes in flight since [`Self::end_peak`].
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Begins anew with [`Self::peak`].
    pub(super) fn end_peak(&self) {
        self.peak.store(self.in_flight(), Relaxed);
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
        if bytes > 0 {
            self.paced.store(true, Relaxed);
        }
    }

    /// How many flows have data waiting for the path, in parts of [`FLOW_PARTS`].
    pub(crate) fn set_waiting_flows(&self, flows: u8) {
        if flows > self.flows.load(Relaxed) {
            self.flows.store(flows, Relaxed);
        }
    }

    /// Most flows that had data waiting since this was last asked.
    pub(super) fn take_waiting_flows(&self) -> u8 {
        self.flows.swap(0, Relaxed)
    }

    /// Whether anything was queued since this was last asked.
    pub(super) fn take_paced(&self) -> bool {
        let paced = self.paced.load(Relaxed);
        if paced {
            self.paced.store(false, Relaxed);
        }
        paced
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

    /// When the oldest packet that is still out was sent.
    fn oldest_sent(&self) -> Option<ropewalk_types::Instant> {
        let nanos = self.oldest_sent.load(Relaxed);
        (nanos != NONE).then(|| ropewalk_types::Instant::from_nanos(nanos))
    }

    pub(super) fn set_oldest_sent(&self, at: Option<Instant>) {
        self.oldest_sent
            .store(at.map_or(NONE, |at| self.nanos(at)), Relaxed);
    }

    /// Everything in flight is lost and leaves the window, though the connection may not know yet.
    pub(crate) fn declare_lost(&self) {
        self.declared_lost.store(self.in_flight(), Relaxed);
    }

    /// Bytes in flight that do not count in the window.
    pub(super) fn declared_lost(&self) -> u64 {
        self.declared_lost.load(Relaxed)
    }

    /// The connection has found out itself that `bytes` are lost, and what is in flight now.
    pub(super) fn found_lost(&self, bytes: u64) {
        let declared_lost = self.declared_lost();
        if declared_lost > 0 {
            let left = declared_lost.saturating_sub(bytes).min(self.in_flight());
            self.declared_lost.store(left, Relaxed);
        }
    }

    /// Makes room for `bytes` more than are in flight and queued, until the queue is empty.
    pub(crate) fn let_through(&self, bytes: u64) {
        let window = self.in_flight() + self.queued() + bytes;
        self.window_min.store(window, Relaxed);
    }

    /// Ends what [`Self::let_through`] allows.
    pub(crate) fn end_let_through(&self) {
        if self.window_min.load(Relaxed) > 0 {
            self.window_min.store(0, Relaxed);
        }
    }

    /// The window that results from the algorithm's.
    pub(super) fn effective_window(&self, window: u64) -> u64 {
        (window + self.declared_lost()).max(self.window_min.load(Relaxed))
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

    /// Smoothed round-trip time (RFC 9002 §5.3) without the delay of acknowledgements of lone packets.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        let nanos = self.srtt.load(Relaxed);
        (nanos != NONE).then(|| Duration::from_nanos(nanos))
    }

    pub(super) fn set_srtt(&self, rtt: Duration) {
        self.srtt.store(whole_nanos(rtt), Relaxed);
    }

    /// Round-trip time variation (RFC 9002 §5.3).
    pub(crate) fn rttvar(&self) -> Option<Duration> {
        let nanos = self.rttvar.load(Relaxed);
        (nanos != NONE).then(|| Duration::from_nanos(nanos))
    }

    pub(super) fn set_rttvar(&self, variation: Duration) {
        self.rttvar.store(whole_nanos(variation), Relaxed);
    }

    /// The report for the scheduler.
    pub(crate) fn snapshot(&self, sending: &Sending) -> PathSnapshot {
        let &Sending { srtt, mtu, .. } = sending;
        // At times both are too long by a delay of acknowledgements: QUIC's on idle paths, the
        // other on busy ones. QUIC takes the delay off only if it knows the smallest RTT exactly.
        let srtt = self.srtt().map_or(srtt, |own| own.min(srtt));
        let queued = self.queued();
        let declared_lost = self.declared_lost();
        let cwnd = sending.cwnd.saturating_sub(declared_lost);
        let in_flight = self.in_flight().saturating_sub(declared_lost);
        let rate = self.rate();
        // Something stays queued behind window and pacer, or a fast path would wait for the
        // scheduler; two packets or a millisecond are enough. With nothing queued the pacer takes
        // its rate at once, and only then do packets wait.
        let time = if queued == 0 {
            QUEUE_TIME * 5 / 4
        } else {
            QUEUE_TIME
        };
        let pace = rate.max(Rate::from_transfer(cwnd, srtt)).bytes_in(time);
        let behind = if queued == 0 {
            pace + QUEUE_PACKETS * mtu
        } else {
            pace
        };
        let slack = behind
            .min(QUEUE_PACKETS_MAX * mtu.min(1_500))
            .max(QUEUE_PACKETS * mtu);
        let room = (cwnd + QUEUE_PACKETS * mtu).saturating_sub(in_flight + queued);
        PathSnapshot {
            srtt,
            rttvar: self.rttvar().unwrap_or(srtt / 2),
            min_rtt: self.min_rtt().unwrap_or(srtt),
            cwnd,
            in_flight,
            queued,
            free: room.min(slack.saturating_sub(queued)),
            next_credit: sending.next_credit,
            rate,
            max_datagram: sending.max_datagram,
            silent_since: self.silent_since(),
            oldest_sent: self.oldest_sent(),
            sent_packets: sending.sent_packets,
            lost_packets: sending.lost_packets,
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        whole_nanos(at.saturating_duration_since(self.base))
    }
}

fn whole_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NONE - 1)
}
