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

use core::{fmt, str::FromStr};
use std::{sync::Arc, time::Instant};

use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, CubicConfig, NewRenoConfig,
};
use serde::{Deserialize, Serialize};

pub(crate) use shared::{PathState, Sending};

/// The congestion control of one path in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CongestionControl {
    /// RFC 9002 §7, what CCID 2 is.
    #[serde(rename = "newreno")]
    NewReno,
    /// RFC 9438.
    Cubic,
    /// BBR version 1 as quinn-proto has it.
    Bbr,
    /// Window from measured rate and delay; rides random loss; the default.
    #[default]
    Bdp,
}

impl CongestionControl {
    /// Every algorithm.
    pub const ALL: [Self; 4] = [Self::NewReno, Self::Cubic, Self::Bbr, Self::Bdp];

    /// The name used in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "newreno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Bdp => "bdp",
        }
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control {0:?}: use newreno, cubic, bbr or bdp")]
pub struct UnknownCongestionControl(String);

impl FromStr for CongestionControl {
    type Err = UnknownCongestionControl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| UnknownCongestionControl(text.to_owned()))
    }
}

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
        Box::new(monitor::Monitor::new(now, inner, self.state.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_text_form() {
        for kind in CongestionControl::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        let error = "vegas".parse::<CongestionControl>().unwrap_err();
        assert!(error.to_string().contains("use newreno, cubic, bbr or bdp"));
    }
}
