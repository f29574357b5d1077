//! What a tunnel does otherwise when sending, as systems in publications do.

use core::fmt;
use core::str::FromStr;

/// Whether the egress of the peer puts what this side sends in order.
///
/// `Off` leaves order to the receiver of each flow: nothing waits at the egress. Copies are removed
/// in either case. HTMT's tunnel has no reordering buffer at its exit (abstract of its paper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// TCP data, heavy flows and flows over several paths are put in order.
    #[default]
    On,
    /// Every packet is delivered when it comes.
    Off,
}

impl Order {
    /// The name in configuration and plans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!(
                "{name:?} is no order: there are \"on\" and \"off\""
            )),
        }
    }
}

/// How one side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// Whether the egress puts packets in order.
    pub order: Order,
    /// The inner MTU, bytes, where one is configured: TCP is told of segments that fit.
    pub inner_mtu: Option<usize>,
    /// Inner headers are compressed, once the egress of the peer confirms to know them.
    pub compress_headers: bool,
    /// Senders of TCP are acknowledged here at all times, in the receiver's name. This side then
    /// answers for the delivery.
    pub accelerate: bool,
    /// Packets that the send buffer of each path holds, at least 1; `None` binds packets late.
    pub buffer_packets: Option<usize>,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            order: Order::default(),
            inner_mtu: None,
            compress_headers: true,
            accelerate: false,
            buffer_packets: None,
        }
    }
}
