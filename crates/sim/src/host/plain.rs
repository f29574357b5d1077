//! TCP without options, for the hosts of the TCP/NC paper: NewReno with neither timestamps nor window
//! scaling. That they have no selective acknowledgements either is our assumption. A receiver
//! acknowledges two segments at once, or one after 200 ms, as ns-3 does by default.

use super::SenderStats;
use super::ranges::Ranges;
use crate::packet::Ack;
use ropewalk_tcpnc::new_reno::{NewReno, Verdict};
use ropewalk_types::Instant;

/// IPv4 and TCP.
pub const HEADERS: u32 = 40;
/// Largest window without scaling, bytes of packets: the paper counts headers.
const WINDOW_BYTES: u32 = 65_535;
/// Longest delay of an acknowledgement.
const DELAY_NS: u64 = 200 * super::MS;
/// Segments for which one is sent at once.
const DELAY_SEGMENTS: u32 = 2;

/// The sending side.
#[derive(Clone, Debug)]
pub struct Sender {
    tcp: NewReno,
    available: u32,
    /// To be sent again beyond the window.
    again: Option<u32>,
    stats: SenderStats,
}

impl Sender {
    /// A sender of segments in packets of so many bytes.
    #[must_use]
    pub fn new(packet_bytes: u32) -> Self {
        Self {
            tcp: NewReno::new(WINDOW_BYTES / packet_bytes.max(1), true),
            available: 0,
            again: None,
            stats: SenderStats::default(),
        }
    }

    /// Offers so many segments more.
    pub fn offer(&mut self, segments: u32) {
        self.available = self.available.saturating_add(segments);
    }

    /// Counters.
    #[must_use]
    pub const fn stats(&self) -> SenderStats {
        self.stats
    }

    /// Window in segments.
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        self.tcp.cwnd()
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.tcp.due().map(Instant::as_nanos)
    }

    /// The next segment to send now, if any: call until `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<u32> {
        let now = Instant::from_nanos(now_ns);
        let repaired = self.again.take().map(|number| (number, true));
        let (number, again) = repaired.or_else(|| self.tcp.poll(now, self.available))?;
        self.stats.sent += 1;
        self.stats.retransmits += u64::from(again);
        Some(number)
    }

    /// Takes an acknowledgement in. One that says nothing new is a duplicate: the receiver sends
    /// such only for segments that are not the next one.
    pub fn on_ack(&mut self, now_ns: u64, ack: &Ack) {
        let verdict = self.tcp.on_ack(Instant::from_nanos(now_ns), ack.next, true);
        if verdict == Verdict::Retransmit {
            self.again = Some(self.tcp.una());
        }
    }

    /// Lets the timer run out if it is due.
    pub fn on_timer(&mut self, now_ns: u64) {
        if self.tcp.on_timer(Instant::from_nanos(now_ns)) {
            self.again = None;
            self.stats.timeouts += 1;
        }
    }
}

/// The receiving side.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    next: u32,
    beyond: Ranges,
    unacknowledged: u32,
    due_ns: Option<u64>,
}

impl Receiver {
    /// Segments delivered in order so far.
    #[must_use]
    pub const fn delivered(&self) -> u32 {
        self.next
    }

    /// When an acknowledgement is due that was delayed.
    #[must_use]
    pub const fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Takes a segment in; the acknowledgement if one leaves at once.
    pub fn on_segment(&mut self, now_ns: u64, segment: u32) -> Option<Ack> {
        if segment != self.next {
            if segment > self.next {
                self.beyond.insert(segment);
            }
            return Some(self.acknowledge());
        }
        self.next += 1;
        let filled = self.beyond.take_from(self.next);
        self.next = filled.unwrap_or(self.next);
        self.unacknowledged += 1;
        let gap = filled.is_some() || !self.beyond.is_empty();
        if self.unacknowledged >= DELAY_SEGMENTS || gap {
            return Some(self.acknowledge());
        }
        self.due_ns = Some(now_ns + DELAY_NS);
        None
    }

    /// The delayed acknowledgement, if it is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Option<Ack> {
        self.due_ns.filter(|&due| due <= now_ns)?;
        Some(self.acknowledge())
    }

    fn acknowledge(&mut self) -> Ack {
        (self.unacknowledged, self.due_ns) = (0, None);
        Ack {
            next: self.next,
            ..Ack::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_segment_is_sent_again_after_three_duplicates() {
        let (mut sender, mut receiver) = (Sender::new(1_040), Receiver::default());
        sender.offer(100);
        let mut sent = vec![sender.poll(0).unwrap()];
        // The first flight has one segment; each round acknowledges what has arrived.
        for round in 1..=8_u64 {
            for number in std::mem::take(&mut sent) {
                let lost = number == 20 && round < 8 && sender.stats().retransmits == 0;
                let now_ns = round * 20_000_000;
                let ack = (!lost)
                    .then(|| receiver.on_segment(now_ns, number))
                    .flatten();
                if let Some(ack) = ack {
                    sender.on_ack(now_ns, &ack);
                }
                while let Some(number) = sender.poll(now_ns) {
                    sent.push(number);
                }
            }
            let late = receiver.on_timer(u64::MAX);
            if let Some(ack) = late {
                sender.on_ack(round * 20_000_000, &ack);
            }
            while let Some(number) = sender.poll(round * 20_000_000) {
                sent.push(number);
            }
        }
        assert!(receiver.delivered() > 21, "{}", receiver.delivered());
        assert_eq!(
            (sender.stats().retransmits, sender.stats().timeouts),
            (1, 0)
        );
    }
}
