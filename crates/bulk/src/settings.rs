//! How QUIC is configured.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};

/// What the sending end decides.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SenderSettings {
    /// Congestion control of this end when it sends.
    #[arg(long, value_enum, default_value = "cubic")]
    pub(crate) congestion: Congestion,
    /// A packet counts as lost once one this many numbers later was acknowledged (RFC 9002
    /// §6.1.1 recommends 3).
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) packet_threshold: u32,
}

/// Congestion controls of the QUIC stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Congestion {
    /// RFC 9002.
    Newreno,
    /// RFC 9438.
    Cubic,
    /// BBR version 1.
    Bbr,
}

impl SenderSettings {
    /// Transport parameters of a connection.
    pub(crate) fn transport(self) -> Result<TransportConfig> {
        let controller: Arc<dyn ControllerFactory + Send + Sync> = match self.congestion {
            Congestion::Newreno => Arc::new(NewRenoConfig::default()),
            Congestion::Cubic => Arc::new(CubicConfig::default()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
        };
        let window = VarInt::from_u32(WINDOW_BYTES);
        let idle = IdleTimeout::try_from(IDLE_TIMEOUT).context("the idle timeout is too long")?;
        let mut transport = TransportConfig::default();
        transport
            .packet_threshold(self.packet_threshold)
            .congestion_controller_factory(controller)
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(u64::from(WINDOW_BYTES))
            .max_idle_timeout(Some(idle));
        Ok(transport)
    }
}

/// Flow control must not be the limit: enough for 200 Mbit/s at 600 ms.
const WINDOW_BYTES: u32 = 16 << 20;
/// A connection that hears nothing for this long is broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
