//! QUIC as HTTP/3 servers send it: packet numbers, losses by a packet and a time threshold,
//! everything repaired in new packets (RFC 9000, RFC 9002).

use super::congestion::{AckSample, Controller, MIN_WINDOW, RateSample, Window};
use super::pacing::Pacing;
use super::ranges::Ranges;
use super::rtt::Rtt;
use super::{MS, RECEIVE_WINDOW_BYTES, SenderStats};
use crate::packet::{Ack, BLOCKS_MAX};
use ropewalk_plan::Congestion;

use ropewalk_types::Random;
use std::collections::VecDeque;

/// kTimeThreshold in eighths (RFC 9002 §6.1.2), and kGranularity.
const TIME_THRESHOLD_EIGHTHS: u64 = 9;
const GRANULARITY_NS: u64 = MS;
/// max_ack_delay of the receiver (RFC 9000 §18.2).
const ACK_DELAY_NS: u64 = 25 * MS;
/// Round-trip time before the first sample (RFC 9002 §6.2.2).
const INITIAL_RTT_NS: u64 = 333 * MS;
/// Pacing relative to a window per round trip (RFC 9002 §7.7), and packets of a burst.
const PACING_GAIN: f64 = 1.25;
const PACING_BURST_MIN: u32 = 10;
/// Timeouts in a row that mean persistent congestion (RFC 9002 §7.6).
const PERSISTENT_TIMEOUTS: u32 = 3;
/// Round trips for which a packet given up is remembered, to learn that it was given up wrongly.
const MEMORY_RTTS: u64 = 3;
/// Most doublings of the timeout.
const BACKOFF_MAX: u32 = 10;

/// What a sender is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of data in a packet.
    pub segment_bytes: u32,
    /// Congestion control.
    pub congestion: Congestion,
    /// kPacketThreshold.
    pub packet_threshold: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Out,
    Acked,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    content: u32,
    fate: Fate,
    at_ns: u64,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    app_limited: bool,
}

/// One connection's sender.
#[derive(Clone, Debug)]
pub struct Sender {
    settings: Settings,
    rtt: Rtt,
    window: Window,
    controller: Controller,
    stats: SenderStats,
    pacing: Pacing,
    packets: VecDeque<Sent>,
    /// Number of the first remembered packet, of the first that may be out, and of the next.
    first: u32,
    scan: u32,
    next: u32,
    in_flight: u32,
    largest_acked: Option<u32>,
    /// The next new content, and what there is; content to be sent again.
    content: u32,
    available: u32,
    again: VecDeque<u32>,
    /// Send time after which a loss is a new event.
    recovery_ns: Option<u64>,
    timeouts: u32,
    loss_due_ns: Option<u64>,
    probe_due_ns: Option<u64>,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    app_limited_until: u64,
    window_limited: bool,
}

impl Sender {
    /// A sender with nothing to send.
    #[must_use]
    pub fn new(settings: Settings, random: Random) -> Self {
        Self {
            settings,
            rtt: Rtt::default(),
            window: Window::default(),
            controller: Controller::new(settings.congestion, random),
            stats: SenderStats::default(),
            pacing: Pacing::new(PACING_BURST_MIN),
            packets: VecDeque::new(),
            first: 0,
            scan: 0,
            next: 0,
            in_flight: 0,
            largest_acked: None,
            content: 0,
            available: 0,
            again: VecDeque::new(),
            recovery_ns: None,
            timeouts: 0,
            loss_due_ns: None,
            probe_due_ns: None,
            delivered: 0,
            delivered_ns: 0,
            first_sent_ns: 0,
            app_limited_until: 0,
            window_limited: false,
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

    /// Window in packets.
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let something = self.has_new() || !self.again.is_empty();
        let paced = something && self.in_flight < self.window.cwnd;
        let paced_ns = paced.then_some(self.pacing.due_ns());
        [
            paced_ns.filter(|at| *at > 0),
            self.loss_due_ns,
            self.probe_due_ns,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether there is data that the receiver has room for.
    fn has_new(&self) -> bool {
        let room = RECEIVE_WINDOW_BYTES / u64::from(self.settings.segment_bytes);
        self.content < self.available && u64::from(self.content) < self.delivered + room
    }

    fn pacing_per_sec(&self) -> f64 {
        self.controller.pacing_per_sec().unwrap_or_else(|| {
            let rtt_ns = self.rtt.smoothed_or(INITIAL_RTT_NS);
            PACING_GAIN * f64::from(self.window.cwnd) * 1e9 / rtt_ns as f64
        })
    }

    /// The next content and packet number to send now, if any: call until `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<(u32, u32)> {
        if self.in_flight >= self.window.cwnd {
            self.window_limited = true;
            return None;
        }
        let per_sec = self.pacing_per_sec();
        if !self.pacing.allows(now_ns, per_sec) {
            return None;
        }
        let content = if let Some(content) = self.again.pop_front() {
            self.stats.retransmits += 1;
            content
        } else if self.has_new() {
            self.content += 1;
            self.content - 1
        } else {
            self.app_limited_until = (self.delivered + u64::from(self.in_flight)).max(1);
            return None;
        };
        self.pacing.on_sent(now_ns, per_sec);
        Some((content, self.send(now_ns, content)))
    }

    fn send(&mut self, now_ns: u64, content: u32) -> u32 {
        if self.in_flight == 0 {
            (self.first_sent_ns, self.delivered_ns) = (now_ns, now_ns);
        }
        let number = self.next;
        self.next += 1;
        self.in_flight += 1;
        self.stats.sent += 1;
        self.packets.push_back(Sent {
            content,
            fate: Fate::Out,
            at_ns: now_ns,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            app_limited: self.delivered < self.app_limited_until,
        });
        self.arm_probe(now_ns);
        number
    }

    /// Takes an acknowledgement in; `echo` says in microseconds how long it was held.
    pub fn on_ack(&mut self, now_ns: u64, ack: &Ack) {
        let prior_in_flight = self.in_flight;
        let mut sample = AckSample {
            now_ns,
            prior_in_flight,
            ..AckSample::default()
        };
        let mut newest: Option<(u32, Sent)> = None;
        let mut grows = 0;
        for &(start, end) in ack.blocks() {
            for number in start.max(self.first)..end.min(self.next) {
                let Some(sent) = self.acknowledge(number, &mut sample) else {
                    continue;
                };
                grows += u32::from(self.recovery_ns.is_none_or(|at| sent.at_ns > at));
                self.delivered_ns = now_ns;
                if newest.is_none_or(|(known, _)| number > known) {
                    newest = Some((number, sent));
                }
            }
        }
        let Some((number, sent)) = newest else { return };
        if self.largest_acked.is_none_or(|largest| number > largest) {
            self.largest_acked = Some(number);
            self.sample_rtt(now_ns - sent.at_ns, u64::from(ack.echo) * 1_000);
            sample.rtt_ns = Some(self.rtt.latest_ns);
        }
        self.timeouts = 0;
        sample.rate = Some(self.rate_sample(&sent));
        sample.lost = self.find_losses(now_ns);
        sample.delivered = self.delivered;
        sample.in_flight = self.in_flight;
        sample.window_limited = self.window_limited || prior_in_flight >= self.window.cwnd / 2;
        sample.recovering = sample.lost > 0;
        if !self.controller.on_every_ack(&mut self.window, &sample) && grows > 0 {
            sample.acked = grows;
            self.controller.on_ack(&mut self.window, &sample);
        }
        self.window_limited = false;
        self.forget(now_ns);
        self.arm_probe(now_ns);
    }

    fn acknowledge(&mut self, number: u32, sample: &mut AckSample) -> Option<Sent> {
        let sent = self.packets.get_mut((number - self.first) as usize)?;
        let before = sent.fate;
        sent.fate = Fate::Acked;
        match before {
            Fate::Acked => None,
            Fate::Lost => {
                self.stats.spurious += 1;
                None
            }
            Fate::Out => {
                let sent = *sent;
                self.in_flight -= 1;
                self.delivered += 1;
                sample.acked += 1;
                Some(sent)
            }
        }
    }

    /// RFC 9002 §5.3.
    fn sample_rtt(&mut self, rtt_ns: u64, held_ns: u64) {
        let held_ns = held_ns.min(ACK_DELAY_NS);
        let min_ns = self.rtt.min_ns;
        let adjusted = if min_ns > 0 && rtt_ns >= min_ns + held_ns {
            rtt_ns - held_ns
        } else {
            rtt_ns
        };
        self.rtt.sample(adjusted);
        self.rtt.latest_ns = rtt_ns;
    }

    fn rate_sample(&mut self, sent: &Sent) -> RateSample {
        self.first_sent_ns = sent.at_ns;
        let send_ns = sent.at_ns.saturating_sub(sent.first_sent_ns);
        let ack_ns = self.delivered_ns.saturating_sub(sent.delivered_ns);
        RateSample {
            prior_delivered: sent.delivered,
            delivered: self.delivered - sent.delivered,
            interval_ns: send_ns.max(ack_ns),
            app_limited: sent.app_limited,
        }
    }

    /// RFC 9002 §6.1: packets overtaken by enough others, or for long enough, are lost.
    fn find_losses(&mut self, now_ns: u64) -> u32 {
        self.loss_due_ns = None;
        let Some(largest) = self.largest_acked else {
            return 0;
        };
        let reference = self.rtt.smoothed_ns.max(self.rtt.latest_ns);
        let patience_ns = (reference * TIME_THRESHOLD_EIGHTHS / 8).max(GRANULARITY_NS);
        let (mut lost, mut newest_ns) = (0, 0);
        let mut number = self.scan;
        while number < largest {
            let Some(sent) = self.packets.get_mut((number - self.first) as usize) else {
                break;
            };
            if sent.fate == Fate::Out {
                let old = now_ns.saturating_sub(sent.at_ns) >= patience_ns;
                if !old && number + self.settings.packet_threshold > largest {
                    self.loss_due_ns = Some(sent.at_ns + patience_ns);
                    // Later ones were sent later and are nearer: they are not lost either.
                    break;
                }
                sent.fate = Fate::Lost;
                newest_ns = sent.at_ns;
                self.again.push_back(sent.content);
                self.in_flight -= 1;
                lost += 1;
            }
            number += 1;
        }
        self.scan = self.scan.max(number);
        if lost > 0 && self.recovery_ns.is_none_or(|at| newest_ns > at) {
            self.recovery_ns = Some(now_ns);
            self.window.ssthresh = self.controller.on_loss(&self.window);
            if !self.controller.is_model_based() {
                self.window.cwnd = self.window.ssthresh;
                self.window.credit = 0;
            }
        }
        lost
    }

    fn forget(&mut self, now_ns: u64) {
        let memory_ns = MEMORY_RTTS * self.rtt.smoothed_ns;
        while let Some(sent) = self.packets.front() {
            let old = now_ns.saturating_sub(sent.at_ns) > memory_ns;
            let settled = sent.fate == Fate::Acked || (sent.fate == Fate::Lost && old);
            if !settled || self.first >= self.scan {
                break;
            }
            self.packets.pop_front();
            self.first += 1;
        }
    }

    /// RFC 9002 §6.2.1.
    fn arm_probe(&mut self, now_ns: u64) {
        if self.in_flight == 0 {
            self.probe_due_ns = None;
            return;
        }
        let smoothed_ns = self.rtt.smoothed_or(INITIAL_RTT_NS);
        let variation_ns = (4 * self.rtt.variation_ns).max(GRANULARITY_NS);
        let wait_ns = (smoothed_ns + variation_ns + ACK_DELAY_NS) << self.timeouts.min(BACKOFF_MAX);
        self.probe_due_ns = Some(now_ns + wait_ns);
    }

    /// Lets the timers that are due run; content and number of a probe, if one is to be sent.
    pub fn on_timer(&mut self, now_ns: u64) -> Option<(u32, u32)> {
        if self.loss_due_ns.is_some_and(|at| at <= now_ns) {
            self.find_losses(now_ns);
            self.arm_probe(now_ns);
        }
        self.probe_due_ns.filter(|at| *at <= now_ns)?;
        self.timeouts += 1;
        self.stats.timeouts += 1;
        if self.timeouts >= PERSISTENT_TIMEOUTS && !self.controller.is_model_based() {
            self.window.ssthresh = self.controller.on_loss(&self.window);
            self.controller.on_timeout();
            self.window.cwnd = MIN_WINDOW;
        }
        let oldest = self.packets.iter().find(|sent| sent.fate == Fate::Out);
        let content = oldest.map(|sent| sent.content)?;
        self.stats.retransmits += 1;
        Some((content, self.send(now_ns, content)))
    }
}

/// One connection's receiver (RFC 9000 §13.2).
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    numbers: Ranges,
    largest: Option<u32>,
    largest_at_ns: u64,
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

    /// Takes a packet in; the acknowledgement if one leaves at once.
    pub fn on_packet(&mut self, now_ns: u64, content: u32, number: u32) -> Option<Ack> {
        let expected = self.largest.map_or(0, |largest| largest + 1);
        self.numbers.insert(number);
        if self.largest.is_none_or(|largest| number > largest) {
            self.largest = Some(number);
            self.largest_at_ns = now_ns;
        }
        if content == self.next {
            self.next += 1;
            if let Some(end) = self.beyond.take_from(self.next) {
                self.next = end;
            }
        } else if content > self.next {
            self.beyond.insert(content);
        }
        self.unacknowledged += 1;
        if self.unacknowledged >= 2 || number != expected {
            return Some(self.acknowledge(now_ns, number));
        }
        self.due_ns = Some(now_ns + ACK_DELAY_NS);
        None
    }

    /// The delayed acknowledgement, if it is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Option<Ack> {
        self.due_ns.filter(|&due| due <= now_ns)?;
        let largest = self.largest?;
        Some(self.acknowledge(now_ns, largest))
    }

    fn acknowledge(&mut self, now_ns: u64, number: u32) -> Ack {
        self.unacknowledged = 0;
        self.due_ns = None;
        let held_us = now_ns.saturating_sub(self.largest_at_ns) / 1_000;
        let mut ack = Ack {
            echo: u32::try_from(held_us).unwrap_or(u32::MAX),
            ..Ack::default()
        };
        let newest = self.numbers.containing(number);
        if let Some(range) = newest {
            ack.push(range);
        }
        let others = self.numbers.as_slice().iter().rev();
        for &range in others.take(BLOCKS_MAX) {
            if Some(range) != newest {
                ack.push(range);
            }
        }
        ack
    }
}
