//! The sending side: what to send next, timers, and reading acknowledgements.

use super::recovery::Recovery;
use super::scoreboard::{APP_LIMITED, OUT, RETRANSMITTED, SACKED, Scoreboard, Segment};
use crate::host::congestion::{AckSample, Controller, RateSample, Window};
use crate::host::pacing::Pacing;
use crate::host::rtt::{RTO_MAX_NS, RTO_MIN_NS, Rtt};
use crate::host::{MS, SenderStats};
use crate::packet::{Ack, BLOCKS_MAX};
use ropewalk_plan::Congestion;
use ropewalk_types::Random;

/// Least time a timer adds (Linux `TCP_TIMEOUT_MIN`: two ticks of 250 a second).
pub(super) const TIMER_MIN_NS: u64 = 8 * MS;
/// Segments a paced sender sends at once at least, as Linux.
const PACING_BURST_MIN: u32 = 2;
/// Pause after which the window starts anew, in retransmission timeouts (RFC 5681 §4.1).
const RESTART_TIMEOUTS: u64 = 1;

/// How losses are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossDetection {
    /// By time, after a reordering window (RFC 8985), as Linux.
    #[default]
    Rack,
    /// By so many segments acknowledged beyond (RFC 6675), and no tail loss probes.
    Duplicates(u32),
}

/// What a sender is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of data in a segment.
    pub segment_bytes: u32,
    /// Congestion control.
    pub congestion: Congestion,
    /// How losses are found.
    pub detection: LossDetection,
    /// The receiver's window, bytes: [`RECEIVE_WINDOW_BYTES`](crate::host::RECEIVE_WINDOW_BYTES)
    /// unless a plan says otherwise.
    pub window_bytes: u64,
    /// Whether segments can be marked instead of lost (RFC 3168).
    pub ecn: bool,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Retransmit,
    Probe,
    Reorder,
}

/// One connection's sender.
#[derive(Clone, Debug)]
pub struct Sender {
    pub(super) board: Scoreboard,
    pub(super) rtt: Rtt,
    pub(super) window: Window,
    pub(super) controller: Controller,
    pub(super) recovery: Recovery,
    pub(super) stats: SenderStats,
    pub(super) detection: LossDetection,
    window_max: u32,
    /// Segments there are to send.
    available: u32,
    transmissions: u64,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    app_limited_until: u64,
    window_limited: bool,
    most_out: u32,
    timer: Option<(u64, Timer)>,
    backoff: u32,
    pacing: Pacing,
    last_sent_ns: u64,
    /// Blocks of the last acknowledgement, so that they are not walked through again.
    seen: [(u32, u32); BLOCKS_MAX],
    probe_sent: bool,
    ecn: bool,
    /// The next new segment says that the window was reduced.
    tell_reduced: bool,
}

/// What an acknowledgement brought, while it is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    pub acked: u32,
    pub lost: u32,
    /// Round trip of the oldest and of the newest segment sent once.
    first_rtt_ns: Option<u64>,
    last_rtt_ns: Option<u64>,
    newest: Option<Segment>,
    pub advanced: bool,
}

impl Sender {
    /// A sender with nothing to send.
    #[must_use]
    pub fn new(settings: Settings, random: Random) -> Self {
        let window_max = (settings.window_bytes / u64::from(settings.segment_bytes)).max(1);
        Self {
            board: Scoreboard::default(),
            rtt: Rtt::default(),
            window: Window::default(),
            controller: Controller::new(settings.congestion, random),
            recovery: Recovery::default(),
            stats: SenderStats::default(),
            detection: settings.detection,
            window_max: u32::try_from(window_max).unwrap_or(u32::MAX),
            available: 0,
            transmissions: 0,
            delivered: 0,
            delivered_ns: 0,
            first_sent_ns: 0,
            app_limited_until: 0,
            window_limited: false,
            most_out: 0,
            timer: None,
            backoff: 0,
            pacing: Pacing::new(PACING_BURST_MIN),
            last_sent_ns: 0,
            seen: [(0, 0); BLOCKS_MAX],
            probe_sent: false,
            ecn: settings.ecn,
            tell_reduced: false,
        }
    }

    /// Whether segments can be marked.
    #[must_use]
    pub const fn ecn(&self) -> bool {
        self.ecn
    }

    /// Whether a new segment says that the window was reduced; one does for each reduction.
    pub const fn take_reduced(&mut self) -> bool {
        std::mem::replace(&mut self.tell_reduced, false)
    }

    /// Offers so many segments more.
    pub fn offer(&mut self, now_ns: u64, segments: u32) {
        if self.board.is_idle() && self.last_sent_ns > 0 {
            let idle_ns = now_ns.saturating_sub(self.last_sent_ns);
            self.controller.on_restart(idle_ns);
            if idle_ns > RESTART_TIMEOUTS * self.rtt.timeout_ns()
                && !self.controller.is_model_based()
            {
                self.window.cwnd = self.window.cwnd.min(Window::default().cwnd);
            }
        }
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
        self.window.cwnd
    }

    /// The first segment that is not acknowledged.
    #[must_use]
    pub const fn una(&self) -> u32 {
        self.board.una
    }

    /// Segments offered and not acknowledged, sent or not.
    #[must_use]
    pub const fn queued(&self) -> u32 {
        self.available - self.board.una
    }

    /// The rate that Linux would pace at, segments per second (`tcp_update_pacing_rate`).
    #[must_use]
    pub fn pacing_estimate(&self) -> f64 {
        let slow_start = self.window.cwnd < self.window.ssthresh / 2;
        let gain = if slow_start { 2.0 } else { 1.2 };
        let rtt_ns = self.rtt.smoothed_or(MS) as f64;
        gain * f64::from(self.window.cwnd) * 1e9 / rtt_ns
    }

    /// Retransmission timeout without backoff.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.rtt.timeout_ns()
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let paced_ns = self.pacing.due_ns();
        let paced = (paced_ns > 0 && self.has_something()).then_some(paced_ns);
        let timer = self.timer.map(|(at, _)| at);
        match (paced, timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether [`Self::poll`] would send if the pacing allowed it: a wake-up for nothing would come
    /// again at once.
    fn has_something(&self) -> bool {
        self.board.in_flight < self.window.cwnd && (self.board.repeats() || self.has_fresh())
    }

    /// Whether there is a segment never sent that the receiver has room for.
    const fn has_fresh(&self) -> bool {
        let next = self.board.next;
        next < self.available && next - self.board.una < self.window_max
    }

    /// The next segment to send now, if any: call until `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<u32> {
        if self.board.in_flight >= self.window.cwnd {
            self.window_limited = true;
            return None;
        }
        if !self.pacing_allows(now_ns) {
            return None;
        }
        if let Some(number) = self.board.next_lost() {
            self.recovery.on_retransmit(now_ns);
            self.send(now_ns, number);
            return Some(number);
        }
        let number = self.board.next;
        if number >= self.available {
            self.app_limited_until = (self.delivered + u64::from(self.board.in_flight)).max(1);
            return None;
        }
        if number - self.board.una >= self.window_max {
            return None;
        }
        self.send(now_ns, number);
        Some(number)
    }

    fn pacing_allows(&mut self, now_ns: u64) -> bool {
        let rate = self.controller.pacing_per_sec();
        rate.is_none_or(|per_sec| self.pacing.allows(now_ns, per_sec))
    }

    fn send(&mut self, now_ns: u64, number: u32) {
        if self.board.in_flight == 0 {
            (self.first_sent_ns, self.delivered_ns) = (now_ns, now_ns);
        }
        self.transmissions += 1;
        let limited = self.delivered < self.app_limited_until;
        let fresh = number == self.board.next;
        self.board.record(
            number,
            Segment {
                sent_ns: now_ns,
                delivered: self.delivered,
                delivered_ns: self.delivered_ns,
                first_sent_ns: self.first_sent_ns,
                transmission: self.transmissions,
                marks: OUT | if limited { APP_LIMITED } else { 0 },
            },
        );
        self.stats.sent += 1;
        self.recovery.sent += 1;
        self.most_out = self.most_out.max(self.board.in_flight);
        self.last_sent_ns = now_ns;
        if fresh {
            self.arm(now_ns);
        } else {
            self.stats.retransmits += 1;
            if self.timer.is_none() {
                self.arm_retransmit(now_ns);
            }
        }
        if let Some(per_sec) = self.controller.pacing_per_sec() {
            self.pacing.on_sent(now_ns, per_sec);
        }
    }

    /// Takes an acknowledgement in.
    pub fn on_ack(&mut self, now_ns: u64, ack: &Ack) {
        if ack.next > self.board.next {
            return;
        }
        let prior_in_flight = self.board.in_flight;
        let prior_highest = self.board.highest_sacked;
        let mut batch = Batch::default();
        if ack.duplicate {
            self.on_duplicate(ack);
        }
        while self.board.una < ack.next {
            let number = self.board.una;
            let Some(segment) = self.board.pop() else {
                break;
            };
            batch.advanced = true;
            if !segment.has(SACKED) {
                self.recovery.note_order(number, prior_highest, &segment);
                self.deliver(now_ns, &segment, &mut batch);
            }
        }
        self.read_blocks(now_ns, ack, prior_highest, &mut batch);
        self.update_rtt(&batch);
        let rate = self.rate_sample(&batch);
        self.find_losses(now_ns, &mut batch);
        self.change_state(now_ns, ack, &mut batch, prior_in_flight);
        if ack.congested && self.ecn {
            self.tell_reduced |= self.answer_mark();
        }
        let sample = AckSample {
            now_ns,
            acked: batch.acked,
            lost: batch.lost,
            rtt_ns: batch.last_rtt_ns,
            rate,
            delivered: self.delivered,
            in_flight: self.board.in_flight,
            prior_in_flight,
            window_limited: self.is_window_limited(),
            recovering: self.recovery.repairing(),
        };
        self.set_window(&sample, &batch);
        if batch.advanced {
            self.backoff = 0;
            self.probe_sent = false;
        }
        if batch.advanced || batch.acked > 0 {
            self.arm(now_ns);
        }
    }

    fn read_blocks(&mut self, now_ns: u64, ack: &Ack, prior_highest: u32, batch: &mut Batch) {
        let seen = self.seen;
        let from = usize::from(ack.duplicate);
        for &(start, end) in ack.blocks().iter().skip(from) {
            let mut number = start.max(self.board.una);
            let end = end.min(self.board.next);
            while number < end {
                // Skip what an earlier block said already.
                if let Some(&(_, known)) = seen.iter().find(|b| b.0 <= number && number < b.1) {
                    number = known;
                    continue;
                }
                if let Some(segment) = self.board.sack(number) {
                    self.recovery.note_order(number, prior_highest, &segment);
                    self.board.highest_sacked = self.board.highest_sacked.max(number + 1);
                    self.deliver(now_ns, &segment, batch);
                }
                number += 1;
            }
        }
        self.seen = [(0, 0); BLOCKS_MAX];
        for (slot, &block) in self.seen.iter_mut().zip(ack.blocks().iter().skip(from)) {
            *slot = block;
        }
    }

    fn deliver(&mut self, now_ns: u64, segment: &Segment, batch: &mut Batch) {
        batch.acked += 1;
        self.delivered += 1;
        self.delivered_ns = now_ns;
        let rtt_ns = now_ns - segment.sent_ns;
        if !segment.has(RETRANSMITTED) {
            batch.first_rtt_ns.get_or_insert(rtt_ns);
            batch.last_rtt_ns = Some(rtt_ns);
        }
        if batch
            .newest
            .is_none_or(|newest| newest.transmission < segment.transmission)
        {
            batch.newest = Some(*segment);
        }
        self.recovery.advance_rack(now_ns, segment, &self.rtt);
    }

    fn update_rtt(&mut self, batch: &Batch) {
        if let Some(rtt_ns) = batch.first_rtt_ns {
            self.rtt.sample(rtt_ns);
            if let Some(last) = batch.last_rtt_ns {
                self.rtt.min_ns = self.rtt.min_ns.min(last);
            }
        }
    }

    fn rate_sample(&mut self, batch: &Batch) -> Option<RateSample> {
        let newest = batch.newest?;
        self.first_sent_ns = newest.sent_ns;
        let send_ns = newest.sent_ns.saturating_sub(newest.first_sent_ns);
        let ack_ns = self.delivered_ns.saturating_sub(newest.delivered_ns);
        let interval_ns = send_ns.max(ack_ns);
        // Shorter than a round trip: acknowledgements of a retransmission's original.
        let usable = interval_ns >= self.rtt.min_ns;
        Some(RateSample {
            prior_delivered: newest.delivered,
            delivered: self.delivered - newest.delivered,
            interval_ns: if usable { interval_ns } else { 0 },
            app_limited: newest.has(APP_LIMITED),
        })
    }

    /// Linux `tcp_is_cwnd_limited`: in slow start half a window in use is enough.
    fn is_window_limited(&self) -> bool {
        if self.window.slow_start() {
            self.window.cwnd < 2 * self.most_out.max(1)
        } else {
            self.window_limited
        }
    }

    fn set_window(&mut self, sample: &AckSample, batch: &Batch) {
        let set = self.controller.on_every_ack(&mut self.window, sample);
        if !set {
            if self.recovery.reducing() {
                self.reduce(batch);
            } else if batch.advanced {
                // Linux `tcp_may_raise_cwnd`: only what arrives in order lets the window grow.
                self.controller.on_ack(&mut self.window, sample);
            }
        }
        if batch.advanced {
            self.window_limited = false;
            self.most_out = self.board.in_flight;
        }
    }

    /// Arms the timer after new data or an acknowledgement.
    fn arm(&mut self, now_ns: u64) {
        if self.board.is_idle() {
            self.timer = None;
            return;
        }
        if let Some(wait_ns) = self.reorder_wait(now_ns) {
            self.timer = Some((now_ns + wait_ns + TIMER_MIN_NS, Timer::Reorder));
            return;
        }
        self.arm_retransmit(now_ns);
        let probes = self.detection == LossDetection::Rack;
        let quiet = !self.recovery.repairing() && self.board.sacked == 0;
        if probes && quiet && !self.probe_sent && self.rtt.smoothed_ns > 0 && self.backoff == 0 {
            // RFC 8985 §7.2.
            let mut probe_ns = 2 * self.rtt.smoothed_ns;
            probe_ns += if self.board.in_flight == 1 {
                RTO_MIN_NS
            } else {
                TIMER_MIN_NS
            };
            if let Some((at, _)) = self.timer
                && now_ns + probe_ns < at
            {
                self.timer = Some((now_ns + probe_ns, Timer::Probe));
            }
        }
    }

    fn arm_retransmit(&mut self, now_ns: u64) {
        let timeout_ns = (self.rtt.timeout_ns() << self.backoff.min(10)).min(RTO_MAX_NS);
        self.timer = Some((now_ns + timeout_ns, Timer::Retransmit));
    }

    /// Lets the timers that are due run; a segment to send beyond the window, if one is.
    pub fn on_timer(&mut self, now_ns: u64) -> Option<u32> {
        let (_, timer) = self.timer.filter(|&(at, _)| at <= now_ns)?;
        self.timer = None;
        match timer {
            Timer::Reorder => {
                let mut batch = Batch::default();
                self.find_losses(now_ns, &mut batch);
                if batch.lost > 0 {
                    self.enter_recovery(self.board.in_flight + batch.lost);
                    self.reduce(&batch);
                }
                self.arm(now_ns);
                None
            }
            Timer::Probe => {
                self.probe_sent = true;
                let number = if self.board.next < self.available {
                    self.board.next
                } else {
                    self.board.next - 1
                };
                self.send(now_ns, number);
                self.arm_retransmit(now_ns);
                Some(number)
            }
            Timer::Retransmit => {
                self.on_timeout(now_ns);
                None
            }
        }
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.stats.timeouts += 1;
        self.backoff += 1;
        self.time_out();
        self.pacing.reset();
        self.arm_retransmit(now_ns);
    }
}
