//! Congestion control of a path: which algorithm, and the state a scheduler needs of it.
//!
//! Every algorithm runs behind a `monitor::Monitor`, which counts what is in flight, measures the
//! delivery rate and the current silence, and publishes them through `shared::PathState`.
//!
//! Invariant: `in flight = sent − acknowledged − lost` over ack-eliciting packets, corrected by
//! the connection's own count after every batch of acknowledgements.

mod bdp;
mod filter;
mod jitter;
pub mod model;
mod monitor;
mod shared;
#[cfg(test)]
pub(crate) mod trap;
mod tuning;

use std::{sync::Arc, time::Instant};

use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, CubicConfig, NewRenoConfig,
};

pub use ropewalk_types::CongestionControl;

/// Parts that a flow is counted in: paths that share a bottleneck stand for a part of each flow.
pub const FLOW_PARTS: u8 = 16;
pub(crate) use shared::{PathState, Sending};

/// Builds the controllers of one connection, all of which publish into the same state.
pub(crate) struct Factory {
    /// Which algorithm.
    pub kind: CongestionControl,
    /// Where to publish.
    pub state: Arc<PathState>,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = match self.kind {
            CongestionControl::NewReno => monitor::Algorithm::Foreign(
                Arc::new(NewRenoConfig::default()).build(now, current_mtu),
            ),
            CongestionControl::Cubic => monitor::Algorithm::Foreign(
                Arc::new(CubicConfig::default()).build(now, current_mtu),
            ),
            CongestionControl::Bbr => {
                monitor::Algorithm::Foreign(Arc::new(BbrConfig::default()).build(now, current_mtu))
            }
            CongestionControl::Bdp => {
                monitor::Algorithm::Bdp(Box::new(bdp::Bdp::new(now, current_mtu)))
            }
        };
        let monitor = Box::new(monitor::Monitor::new(
            now,
            inner,
            self.state.clone(),
            current_mtu,
        ));
        #[cfg(test)]
        let monitor = Box::new(trap::Trap {
            inner: monitor,
            state: self.state.clone(),
        });
        monitor
    }
}
