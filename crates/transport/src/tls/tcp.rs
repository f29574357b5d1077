//! What the kernel knows of the TCP connection, as a path the scheduler can compare with others.
//!
//! Invariant: `free` leaves no more than [`QUEUE_TIME`] of data between the scheduler and TCP.

use ropewalk_types::{Duration, Instant, PathSnapshot, Rate};

use super::{
    DATAGRAM_MAX,
    tuning::{QUEUE_BYTES, QUEUE_TIME},
};

/// What the kernel says of the TCP connection below (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time lately seen.
    pub min_rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes in the socket's buffer and not sent yet.
    pub not_sent_bytes: u64,
    /// Delivery rate.
    pub delivery_rate: Rate,
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments sent again.
    pub segments_retransmitted: u64,
    /// Time since the last ACK came.
    pub last_ack_age: Duration,
}

/// The latest report and what follows from several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpView {
    info: TcpInfo,
    silent_since: Option<Instant>,
}

impl TcpView {
    pub(super) fn update(&mut self, now: Instant, info: TcpInfo) {
        let last_ack = now - info.last_ack_age;
        // The silence begins with the last ACK, or with the first send after a pause.
        self.silent_since = match self.silent_since {
            _ if info.in_flight_bytes == 0 => None,
            Some(since) => Some(since.max(last_ack)),
            None => Some(now),
        };
        self.info = info;
    }

    pub(super) fn snapshot(&self, staged: u64) -> PathSnapshot {
        let info = &self.info;
        let queued = staged + info.not_sent_bytes;
        let pace = info
            .delivery_rate
            .max(Rate::from_transfer(info.cwnd_bytes, info.srtt));
        let slack = pace
            .bytes_in(QUEUE_TIME)
            .clamp(QUEUE_BYTES.0, QUEUE_BYTES.1);
        let room = (info.cwnd_bytes + slack).saturating_sub(info.in_flight_bytes + queued);
        PathSnapshot {
            srtt: info.srtt,
            rttvar: info.rttvar,
            min_rtt: info.min_rtt,
            cwnd: info.cwnd_bytes,
            in_flight: info.in_flight_bytes,
            queued,
            free: room.min(slack.saturating_sub(queued)),
            next_credit: None,
            rate: info.delivery_rate,
            max_datagram: DATAGRAM_MAX,
            silent_since: self.silent_since,
            oldest_sent: self.silent_since,
            sent_packets: info.segments_sent,
            lost_packets: info.segments_retransmitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(in_flight_bytes: u64, last_ack_age: Duration) -> TcpInfo {
        TcpInfo {
            srtt: Duration::from_millis(20),
            cwnd_bytes: 14_000,
            in_flight_bytes,
            last_ack_age,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn silence_starts_with_the_first_send_after_a_pause() {
        let mut view = TcpView::default();
        view.update(
            Instant::from_millis(5_000),
            info(1_400, Duration::from_secs(4)),
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_000))
        );
        view.update(
            Instant::from_millis(5_300),
            info(1_400, Duration::from_secs(5)),
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_000))
        );
        view.update(
            Instant::from_millis(5_400),
            info(1_400, Duration::from_millis(50)),
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_350))
        );
        view.update(
            Instant::from_millis(5_500),
            info(0, Duration::from_millis(50)),
        );
        assert_eq!(view.snapshot(0).silent_since, None);
    }

    #[test]
    fn nothing_is_free_behind_a_queue() {
        let mut view = TcpView::default();
        view.update(Instant::ZERO, info(0, Duration::ZERO));
        assert!(view.snapshot(0).free >= 8 * 1024);
        assert_eq!(view.snapshot(64 * 1024).free, 0);
        view.update(Instant::ZERO, info(40_000, Duration::ZERO));
        assert_eq!(view.snapshot(0).free, 0);
    }
}
