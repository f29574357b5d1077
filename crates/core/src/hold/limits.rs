//! How much is held, for how long, what goes when that is too much, and what senders are told.

use core::str::FromStr;

use ropewalk_types::Duration;

/// Bounds of what is held in one direction of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of inner packets.
    pub bytes_max: u64,
    /// Most bytes of one flow bucket.
    pub flow_bytes_max: u64,
    /// Most inner packets.
    pub packets_max: usize,
    /// TCP segments older than this are dropped at the return.
    pub tcp_age_max: Duration,
    /// The same for everything else: QUIC and calls gain nothing by packets their ends have given
    /// up.
    pub other_age_max: Duration,
    /// What senders of TCP are told.
    pub freeze: Freeze,
}

/// Whether senders of TCP on this side are stopped with windows of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freeze {
    /// No: they stop by themselves after one window.
    #[default]
    Off,
    /// When the end of the last path has been announced: in the genuine acknowledgements that
    /// still come. Nothing is acknowledged that the receiver has not got.
    Planned,
    /// When every path is down: with acknowledgements of what is kept here, as in "Improving
    /// Performance of TCP for Wireless Network using SDN", ICDCN 2019, section 2.2. What was
    /// acknowledged exists here only until the receiver acknowledges it.
    ProxyAck,
}

impl FromStr for Freeze {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "off" => Ok(Self::Off),
            "planned" => Ok(Self::Planned),
            "custody" => Ok(Self::ProxyAck),
            _ => Err(format!(
                "{name:?} is no way to freeze senders: there are \"off\", \"planned\" and \"custody\""
            )),
        }
    }
}

/// Which packet of a flow makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The newest: what comes after a hole is worth nothing to a receiver that waits for order.
    Newest,
    /// The oldest: it is worth least to a receiver that plays as things come.
    Oldest,
}

impl Limits {
    /// How long a packet may be held.
    #[must_use]
    pub const fn age_max(&self, tcp: bool) -> Duration {
        if tcp {
            self.tcp_age_max
        } else {
            self.other_age_max
        }
    }

    /// Which packet goes from a flow whose newest packet is TCP, or is not.
    #[must_use]
    pub const fn victim(newest_is_tcp: bool) -> Victim {
        if newest_is_tcp {
            Victim::Newest
        } else {
            Victim::Oldest
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_max: 19 << 20,
            flow_bytes_max: 8 << 20,
            packets_max: 32_768,
            tcp_age_max: Duration::from_secs(60),
            other_age_max: Duration::from_secs(2),
            freeze: Freeze::Off,
        }
    }
}
