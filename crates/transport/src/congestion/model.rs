//! The default congestion control of a sub-tunnel without its connection, for simulators.
//!
//! Whoever models a sub-tunnel reports packets sent, acknowledged and lost, and gets the same
//! window and the same report for the scheduler as from a real connection. The algorithms of
//! `quinn-proto` need that crate's own round-trip estimator and are not offered here.

use std::sync::Arc;

use quinn_proto::congestion::Controller;
use ropewalk_types::{Duration, Instant, PathSnapshot};

use super::{PathState, Sending, bdp::Bdp, monitor::Algorithm, monitor::Monitor};

/// What a modelled sub-tunnel knows besides its congestion control.
#[derive(Clone, Copy, Debug)]
pub struct ModelReport {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// When the pacer, if that is what blocks, lets the next packet go.
    pub next_credit: Option<Instant>,
    /// Largest datagram, bytes.
    pub max_datagram: usize,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
}

/// Congestion control of one path in one direction.
pub struct ModelPath {
    base: std::time::Instant,
    monitor: Monitor,
    state: Arc<PathState>,
    mtu: u16,
}

impl ModelPath {
    /// The default control of a path that carries UDP payloads of `mtu` bytes. `base` is any
    /// instant of the system: only differences matter.
    #[must_use]
    pub fn new(base: std::time::Instant, now: Instant, mtu: u16) -> Self {
        let state = Arc::new(PathState::new(base));
        let at = base + Duration::from_nanos(now.as_nanos());
        let algorithm = Algorithm::Bdp(Box::new(Bdp::new(at, mtu)));
        let monitor = Monitor::new(at, algorithm, state.clone(), mtu);
        Self {
            base,
            monitor,
            state,
            mtu,
        }
    }

    fn at(&self, now: Instant) -> std::time::Instant {
        self.base + Duration::from_nanos(now.as_nanos())
    }

    /// A packet of `bytes` of UDP payload that will be acknowledged was sent.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        let at = self.at(now);
        self.monitor.on_sent(at, bytes, 0);
        self.state.commit_sent(at, bytes);
    }

    /// One packet sent at `sent` is acknowledged; call [`Self::on_end_acks`] after the last.
    pub fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.monitor.acknowledge(self.at(now), self.at(sent), bytes);
    }

    /// All packets of one acknowledgement were reported.
    pub fn on_end_acks(&mut self, now: Instant, in_flight: u64) {
        let at = self.at(now);
        self.monitor.on_end_acks(at, in_flight, false, None);
    }

    /// `bytes` were lost, the newest of them sent at `sent`.
    pub fn on_lost(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let (now, sent) = (self.at(now), self.at(sent));
        self.monitor.on_congestion_event(now, sent, false, bytes);
    }

    /// Bytes handed over and not sent yet.
    pub fn set_queued(&mut self, bytes: u64) {
        self.state.set_queued(bytes);
    }

    /// As [`crate::Endpoint::declare_lost`].
    pub fn declare_lost(&mut self) {
        self.state.declare_lost();
    }

    /// Congestion window, bytes.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.monitor.window()
    }

    /// The report for the scheduler.
    #[must_use]
    pub fn snapshot(&self, report: &ModelReport) -> PathSnapshot {
        self.state.snapshot(&Sending {
            cwnd: self.window(),
            srtt: report.srtt,
            mtu: u64::from(self.mtu),
            next_credit: report.next_credit,
            max_datagram: report.max_datagram,
            sent_packets: report.sent_packets,
            lost_packets: report.lost_packets,
        })
    }
}

impl core::fmt::Debug for ModelPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ModelPath")
            .field("window", &self.window())
            .finish_non_exhaustive()
    }
}
