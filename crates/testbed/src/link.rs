//! One link between two namespaces: emulated by `ropewalk-linkem`, or a bare veth pair.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::namespace::{Namespace, veth};
use crate::process::Process;

/// How a link behaves.
#[derive(Clone, Debug)]
pub enum LinkSpec {
    /// A veth pair without any limit.
    Unshaped {
        /// MTU in bytes.
        mtu: u32,
        /// Whether the pair passes UDP segments whole, as a network card that segments would.
        udp_segmentation: bool,
    },
    /// A link that `ropewalk-linkem` emulates.
    Emulated {
        /// Towards the site.
        down: Shape,
        /// From the site.
        up: Shape,
        /// MTU in bytes.
        mtu: u32,
        /// Seed of losses and jitter.
        seed: u64,
    },
}

/// One direction of an emulated link.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// How much it carries.
    pub capacity: Capacity,
    /// Time a packet is under way.
    pub delay: Duration,
    /// Standard deviation of the delay; order is kept.
    pub jitter: Duration,
    /// Share of packets lost at random, `0.0..=1.0`.
    pub loss: f64,
    /// Bytes that may wait.
    pub queue_bytes: u64,
}

/// How much a link carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Capacity {
    /// A fixed rate of IP packets, Mbit/s.
    Fixed(f64),
    /// A recording in a file.
    Trace(PathBuf),
}

/// A link in being.
#[derive(Debug)]
pub struct Link {
    emulator: Option<Process>,
}

impl LinkSpec {
    /// A fixed rate and delay, the same both ways, without loss.
    #[must_use]
    pub fn steady(rate_mbit: f64, delay: Duration) -> Self {
        let shape = Shape::steady(rate_mbit, delay);
        Self::Emulated { down: shape.clone(), up: shape, mtu: 1_500, seed: 1 }
    }

    /// A bare veth pair of Ethernet's MTU.
    #[must_use]
    pub const fn unshaped(udp_segmentation: bool) -> Self {
        Self::Unshaped { mtu: 1_500, udp_segmentation }
    }

    /// The same link with random loss in both directions.
    #[must_use]
    pub fn with_loss(mut self, share: f64) -> Self {
        if let Self::Emulated { down, up, .. } = &mut self {
            (down.loss, up.loss) = (share, share);
        }
        self
    }

    /// The same link with this queue in both directions, bytes.
    #[must_use]
    pub fn with_queue(mut self, bytes: u64) -> Self {
        if let Self::Emulated { down, up, .. } = &mut self {
            (down.queue_bytes, up.queue_bytes) = (bytes, bytes);
        }
        self
    }

    /// The same link with this MTU, bytes.
    #[must_use]
    pub fn with_mtu(mut self, bytes: u32) -> Self {
        match &mut self {
            Self::Unshaped { mtu, .. } | Self::Emulated { mtu, .. } => *mtu = bytes,
        }
        self
    }

    /// The same link with another seed.
    #[must_use]
    pub fn with_seed(mut self, number: u64) -> Self {
        if let Self::Emulated { seed, .. } = &mut self {
            *seed = number;
        }
        self
    }
}

impl Shape {
    /// A fixed rate and delay without loss, and the default queue.
    #[must_use]
    pub const fn steady(rate_mbit: f64, delay: Duration) -> Self {
        Self {
            capacity: Capacity::Fixed(rate_mbit),
            delay,
            jitter: Duration::ZERO,
            loss: 0.0,
            queue_bytes: QUEUE_BYTES,
        }
    }
}

impl Link {
    /// Joins two namespaces; both ends are up when this returns.
    ///
    /// # Errors
    /// If a name is taken, or the emulator is missing or refuses its arguments.
    pub(crate) fn create(
        spec: &LinkSpec,
        site: (&Namespace, &str),
        hub: (&Namespace, &str),
        directory: &Path,
    ) -> Result<Self> {
        match spec {
            LinkSpec::Unshaped { mtu, udp_segmentation } => {
                veth(site, hub, *mtu)?;
                for (namespace, interface) in [site, hub] {
                    namespace.set_offload(
                        interface,
                        "tx-udp-segmentation",
                        *udp_segmentation,
                    )?;
                }
                Ok(Self { emulator: None })
            }
            LinkSpec::Emulated { .. } => anyhow::bail!("later {}", directory.display()),
        }
    }

    /// Whether this link is emulated.
    #[must_use]
    pub const fn is_emulated(&self) -> bool {
        self.emulator.is_some()
    }

    /// Lets every packet vanish, both ways, or no longer.
    ///
    /// # Errors
    /// If the emulator does not answer.
    pub fn set_blackhole(&mut self, on: bool) -> Result<()> {
        anyhow::bail!("later {on}")
    }
}

/// Default queue of an emulated link, bytes.
pub const QUEUE_BYTES: u64 = 128 * 1024;
