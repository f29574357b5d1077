//! What a path looks like to the tunnel: the user's marks and the scheduler's view.

mod map;

pub(crate) use map::PathMap;

use ropewalk_types::{Duration, Instant, PathId, Rate};
use serde::{Deserialize, Serialize};

/// What protection may cost on a metered path unless told, bytes per hour: rescues for several calls.
pub const METERED_HOURLY: u64 = 20 << 20;
/// Most bottlenecks that are told apart: four bits of a message say which.
pub const BOTTLENECK_MAX: u8 = 15;
/// Bytes that count as one slot where a rule speaks of packets.
pub const SLOT_BYTES: u64 = 1_400;

/// What the user said of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathConfig {
    /// Carries traffic only while no path that is not standby can.
    pub standby: bool,
    /// Costs money by the byte: `cost-aware` uses it last.
    pub metered: bool,
    /// Number of the bottleneck that the path shares with others of the same number, 1 to
    /// [`BOTTLENECK_MAX`].
    pub bottleneck: Option<u8>,
    /// Share under weighted round robin, 1..=1000; `None` follows the measured rate.
    pub weight: Option<u16>,
    /// Bytes per hour that copies, repair symbols and rescues may cost on this path; `None` is
    /// [`METERED_HOURLY`] on a metered path and any number on others.
    pub protection_hourly: Option<u64>,
}

impl PathConfig {
    /// Bytes per hour that protection may cost; `None` for any number.
    #[must_use]
    pub fn protection_hourly(&self) -> Option<u64> {
        self.protection_hourly
            .or(self.metered.then_some(METERED_HOURLY))
    }
}

/// What a scheduler sees of one path. Only usable paths are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PathView {
    /// The path.
    pub id: PathId,
    /// The user's marks.
    pub config: PathConfig,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time lately seen.
    pub min_rtt: Duration,
    /// One-way delay towards the peer minus that of the fastest path, both as uncongested and
    /// queued right now; the clock offset cancels. Half the RTT difference until measured.
    pub owd_relative: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes given to the transport and not sent yet.
    pub queued: u64,
    /// Bytes the path takes now.
    pub free: u64,
    /// When the pacer lets the next packet go, if it is what blocks.
    pub next_credit: Option<Instant>,
    /// Delivery rate; zero when unknown.
    pub rate: Rate,
    /// Largest inner packet the path takes unfragmented.
    pub payload_max: usize,
    /// Share of packets lost lately, `0.0..=1.0`.
    pub loss: f64,
}

impl PathView {
    /// Whole slots the path takes now: `cwnd − inflight − queued` in packets, limited by pacing.
    #[must_use]
    pub const fn free_slots(&self) -> u64 {
        self.free / SLOT_BYTES
    }

    /// The delivery rate, or before the first estimate the window per round trip.
    #[must_use]
    pub fn rate_or_window(&self) -> Rate {
        if self.rate > Rate::ZERO {
            self.rate
        } else {
            Rate::from_transfer(self.cwnd, self.srtt)
        }
    }

    /// Predicted arrival of `bytes` handed to this path at `now`, on a clock shared by all paths of
    /// the tunnel. The sum of the wait for credit, the time to drain the queue, and the relative
    /// delay.
    #[must_use]
    pub fn arrival(&self, now: Instant, bytes: u64) -> Instant {
        let wait = self.next_credit.map_or(Duration::ZERO, |at| at.since(now));
        let drain = self
            .rate_or_window()
            .time_for(self.queued + bytes)
            .min(Duration::from_secs(10));
        now + wait + drain + self.owd_relative
    }
}
