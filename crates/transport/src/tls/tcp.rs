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
    /// Bytes acknowledged since the connection began.
    pub acked_bytes: u64,
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
    /// What was queued before is acknowledged.
    acked_before: Instant,
    /// When the report came that looked furthest, and where what was queued by then ends in the stream, bytes.
    mark: (Instant, u64),
}

impl TcpView {
    /// Takes a report in. What is queued now ends at `end` in the stream, bytes, or a little before.
    pub(super) fn update(&mut self, now: Instant, info: TcpInfo, end: u64) {
        if info.acked_bytes >= self.mark.1 {
            self.acked_before = self.mark.0;
            self.mark = (now, end);
        }
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
            // An acknowledgement in a silence may be one of TCP's that says again what is missing.
            oldest_sent: self.silent_since.map(|since| since.min(self.acked_before)),
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
            0,
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_000))
        );
        view.update(
            Instant::from_millis(5_300),
            info(1_400, Duration::from_secs(5)),
            0,
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_000))
        );
        view.update(
            Instant::from_millis(5_400),
            info(1_400, Duration::from_millis(50)),
            0,
        );
        assert_eq!(
            view.snapshot(0).silent_since,
            Some(Instant::from_millis(5_350))
        );
        view.update(
            Instant::from_millis(5_500),
            info(0, Duration::from_millis(50)),
            0,
        );
        assert_eq!(view.snapshot(0).silent_since, None);
    }

    #[test]
    fn the_oldest_byte_under_way_is_known_though_acknowledgements_say_nothing_new() {
        let mut view = TcpView::default();
        let at = Instant::from_millis;
        let report = |acked_bytes| TcpInfo {
            acked_bytes,
            ..info(1_400, Duration::ZERO)
        };
        let mut oldest = |ms, acked, end| {
            view.update(at(ms), report(acked), end);
            view.snapshot(0).oldest_sent
        };
        oldest(1_000, 0, 0);
        oldest(1_002, 0, 500);
        // What is queued from 1,002 ms on is lost, and repeated acknowledgements come.
        let seen = [1_100, 1_200, 1_300, 1_400].map(|ms| oldest(ms, 500, ms - 500));
        assert_eq!(seen, [Some(at(1_002)); 4]);
        oldest(1_500, 900, 900);
        assert_eq!(oldest(1_502, 900, 900), Some(at(1_500)));
    }

    #[test]
    fn nothing_is_free_behind_a_queue() {
        let mut view = TcpView::default();
        view.update(Instant::ZERO, info(0, Duration::ZERO), 0);
        assert!(view.snapshot(0).free >= 8 * 1024);
        assert_eq!(view.snapshot(64 * 1024).free, 0);
        view.update(Instant::ZERO, info(40_000, Duration::ZERO), 0);
        assert_eq!(view.snapshot(0).free, 0);
    }
}
