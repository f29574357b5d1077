//! For tests of what a panic inside the QUIC library does: a controller that panics on demand. The
//! library calls it in the midst of its own work.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Instant,
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerMetrics},
};

use super::PathState;

/// The call in which a controller panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Call {
    /// A packet was sent.
    Sent = 1,
    /// A packet was acknowledged.
    Acknowledged,
    /// A packet was lost.
    Lost,
}

/// Which call panics next; 0 for none.
#[derive(Debug, Default)]
pub(crate) struct Fuse(AtomicU8);

impl Fuse {
    /// Lets the next such call panic.
    pub(crate) fn light(&self, call: Call) {
        self.0.store(call as u8, Relaxed);
    }

    fn reached(&self, call: Call) {
        assert!(self.0.load(Relaxed) != call as u8, "as the test wants");
    }
}

/// The controller that is behind it, until the fuse burns.
pub(super) struct Trap {
    pub inner: Box<dyn Controller>,
    pub state: Arc<PathState>,
}

impl Controller for Trap {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.state.fuse.reached(Call::Sent);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.state.fuse.reached(Call::Acknowledged);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.state.fuse.reached(Call::Lost);
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn pacing_window(&self) -> u64 {
        self.inner.pacing_window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            state: Arc::clone(&self.state),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
