//! What the transport of a path reports to the tunnel.

use crate::{Duration, Instant, Rate};

/// What the transport of a path reports; refreshed before every scheduling round.
///
/// Byte counts are of the sub-tunnel's own packets (QUIC or TLS records), not inner packets.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSnapshot {
    /// Smoothed round-trip time (RFC 9002 §5.3).
    pub srtt: Duration,
    /// Round-trip time variation (RFC 9002 §5.3).
    pub rttvar: Duration,
    /// Smallest round-trip time lately seen.
    pub min_rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes sent and neither acknowledged nor lost.
    pub in_flight: u64,
    /// Bytes handed to the transport and not sent yet.
    pub queued: u64,
    /// Bytes the transport takes now: what window and pacer leave.
    pub free: u64,
    /// When the pacer, if it is what blocks, lets the next packet go.
    pub next_credit: Option<Instant>,
    /// Delivery rate estimate (BBR's method); zero before the first estimate.
    pub rate: Rate,
    /// Largest datagram the path takes now, in bytes.
    pub max_datagram: usize,
    /// Start of the current silence: the oldest send since which nothing was acknowledged.
    pub silent_since: Option<Instant>,
    /// When the oldest packet that is neither acknowledged nor lost was sent, as far as known.
    pub oldest_sent: Option<Instant>,
    /// Packets sent, for the loss ratio.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
}

impl Default for PathSnapshot {
    fn default() -> Self {
        Self {
            srtt: Duration::from_millis(100),
            rttvar: Duration::from_millis(50),
            min_rtt: Duration::from_millis(100),
            cwnd: 12_000,
            in_flight: 0,
            queued: 0,
            free: 12_000,
            next_credit: None,
            rate: Rate::ZERO,
            max_datagram: 1_162,
            silent_since: None,
            oldest_sent: None,
            sent_packets: 0,
            lost_packets: 0,
        }
    }
}
