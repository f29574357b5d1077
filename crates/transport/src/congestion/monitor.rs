//! The wrapper around every congestion controller: counts what is in flight, samples delivery
//! rate and RTT, and passes each event on.
//!
//! Invariants: records of sends are ordered by time. Everything acknowledged or lost is taken out
//! of them, so that "records left" means "something is out there". Source: delivery rate, Cheng et
//! al., draft-cheng-iccrg-delivery-rate-estimation §2.

use std::{
    any::Any,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerMetrics},
};

use super::{
    PathState,
    bdp::{AckBatch, Bdp},
    filter::WindowedMin,
    tuning::{
        FORGET_AFTER, MIN_RTT_WINDOW, RATE_WINDOW_MIN, RATE_WINDOW_RTTS, RECORDS_MAX,
        SILENCE_MARGIN, WINDOW_SLACK,
    },
};
use crate::quic::ACK_DELAY;

/// The algorithm that decides the window.
pub(super) enum Algorithm {
    /// One of `quinn-proto`.
    Foreign(Box<dyn Controller>),
    /// Ours.
    Bdp(Box<Bdp>),
}

impl Algorithm {
    fn clone_box(&self) -> Self {
        match self {
            Self::Foreign(inner) => Self::Foreign(inner.clone_box()),
            Self::Bdp(inner) => Self::Bdp(inner.clone()),
        }
    }
}

/// Packets sent at one instant, with the delivery state at that time.
#[derive(Clone, Copy, Debug)]
struct Record {
    sent: Instant,
    /// Bytes neither acknowledged nor lost.
    bytes: u64,
    /// Bytes delivered before this was sent, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// Send time of the packet whose acknowledgement was the last before this was sent.
    first_sent: Instant,
    app_limited: bool,
}

/// A controller that watches.
pub(super) struct Monitor {
    inner: Algorithm,
    state: Arc<PathState>,
    mtu: u16,
    records: VecDeque<Record>,
    /// Sent, but not known yet whether an acknowledgement will come.
    pending: Option<(Instant, u64)>,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    /// Until this much is delivered, samples are limited by the application.
    app_limited_until: u64,
    /// The batch being read: newest record, packets, bytes, byte seconds, smallest RTT, and whether
    /// the window was used up before it.
    newest: Option<Record>,
    batch_packets: u32,
    batch_bytes: u64,
    batch_byte_seconds: f64,
    batch_rtt_min: Duration,
    batch_used_up: bool,
    /// Largest delivery rate, negated.
    rate: Option<WindowedMin>,
    min_rtt: Option<WindowedMin>,
    srtt: f64,
    rttvar: f64,
    /// When the last batch came.
    acked_at: Instant,
    /// The RTT of the last batch was left out.
    skipped: bool,
}

impl Monitor {
    pub(super) fn new(now: Instant, inner: Algorithm, state: Arc<PathState>, mtu: u16) -> Self {
        state.set_in_flight(0);
        state.end_peak();
        state.set_silent_since(None);
        state.take_commit();
        Self {
            inner,
            state,
            mtu,
            records: VecDeque::new(),
            pending: None,
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            app_limited_until: 0,
            newest: None,
            batch_packets: 0,
            batch_bytes: 0,
            batch_byte_seconds: 0.0,
            batch_rtt_min: Duration::MAX,
            batch_used_up: false,
            rate: None,
            min_rtt: None,
            srtt: 0.0,
            rttvar: 0.0,
            acked_at: now,
            skipped: false,
        }
    }

    /// Records what was sent last once the owner has said that it will be acknowledged.
    fn settle(&mut self) {
        let Some((sent, bytes)) = self.pending.take() else {
            return;
        };
        if !self.state.take_commit() {
            return;
        }
        if self.records.is_empty() {
            // After a pause the clock of the samples starts anew.
            self.first_sent = sent;
            self.delivered_at = sent;
        }
        if let Some(last) = self.records.back_mut()
            && last.sent == sent
        {
            last.bytes += bytes;
            return;
        }
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(Record {
            sent,
            bytes,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.delivered < self.app_limited_until,
        });
    }

    /// The delivery rate the batch shows, and whether the application limited it.
    fn rate_sample(&mut self, now: Instant) -> Option<(f64, bool)> {
        let newest = self.newest?;
        self.first_sent = newest.sent;
        let ack_time = now.saturating_duration_since(newest.delivered_at);
        let send_time = newest.sent.saturating_duration_since(newest.first_sent);
        let interval = ack_time.max(send_time).as_secs_f64();
        if interval <= 0.0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let rate = (self.delivered - newest.delivered) as f64 / interval;
        Some((rate, newest.app_limited))
    }

    /// Reads the batch of acknowledgements that just ended and starts the next one.
    fn finish_batch(&mut self, now: Instant, in_flight: u64) {
        let packets = core::mem::take(&mut self.batch_packets);
        let bytes = core::mem::take(&mut self.batch_bytes);
        let byte_seconds = core::mem::take(&mut self.batch_byte_seconds);
        let rtt_min = core::mem::replace(&mut self.batch_rtt_min, Duration::MAX);
        if bytes == 0 {
            return;
        }
        let sample = self.rate_sample(now);
        let newest_sent = self.newest.take().map_or(now, |newest| newest.sent);
        let rtt_sample = if packets == 1 {
            self.without_delay(rtt_min)
        } else {
            rtt_min
        };
        self.skipped = !self.skipped && self.ends_silence(now, rtt_sample);
        if !self.skipped {
            self.update_rtt(now, rtt_sample);
        }
        self.acked_at = now;
        self.update_rate(now, sample);
        self.prune(newest_sent, in_flight);
        self.state
            .set_silent_since((!self.records.is_empty()).then_some(now));
        self.state
            .set_oldest_sent(self.records.front().map(|record| record.sent));
        // Little is ever queued here, by design: what tells is whether the window was used up
        // between two batches, or the pacer held something back.
        let app_limited = !self.batch_used_up && self.state.queued() == 0;
        self.state.end_peak();
        let paced = self.state.take_paced();
        if app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
        if let Algorithm::Bdp(inner) = &mut self.inner {
            inner.on_ack(&AckBatch {
                now,
                bytes,
                byte_seconds,
                rtt_min,
                newest_sent,
                in_flight,
                app_limited,
                paced,
                flows: self.state.take_waiting_flows(),
            });
        }
    }

    /// Whether a packet may not have fitted in the window since the last batch. That packet waits at
    /// the scheduler, so the connection has none to send, and takes itself for limited by the
    /// application (RFC 9002 §7.8).
    fn window_used_up(&self) -> bool {
        let slack = WINDOW_SLACK.max(2 * u64::from(self.mtu));
        self.state.peak() + slack >= self.window()
    }

    /// Takes out records that are acknowledged, and those whose packets the connection has given
    /// up without saying so, as it does with packets of a finished handshake.
    fn prune(&mut self, newest_sent: Instant, in_flight: u64) {
        if in_flight == 0 {
            self.records.clear();
            return;
        }
        let horizon = Duration::from_secs_f64(2.0 * self.srtt + 4.0 * self.rttvar) + FORGET_AFTER;
        while self.records.front().is_some_and(|record| {
            record.bytes == 0 || newest_sent.saturating_duration_since(record.sent) > horizon
        }) {
            self.records.pop_front();
        }
    }

    /// The RTT that the acknowledgement of a lone packet shows. The peer waits for more packets, up
    /// to [`ACK_DELAY`], unless a packet of its own takes the acknowledgement along sooner.
    fn without_delay(&self, rtt: Duration) -> Duration {
        let least = self
            .min_rtt
            .map_or(rtt, |filter| Duration::from_secs_f64(filter.get()));
        rtt.saturating_sub(ACK_DELAY).max(least).min(rtt)
    }

    /// Whether the batch ends an unusual silence. Then its newest packet may have come long before, and the
    /// acknowledgement of that time is lost: an outage would count as a round trip. Where the path has become longer,
    /// the next batch shows it.
    fn ends_silence(&self, now: Instant, rtt: Duration) -> bool {
        let usual = Duration::from_secs_f64(2.0 * self.srtt + 4.0 * self.rttvar) + SILENCE_MARGIN;
        let silence = now.saturating_duration_since(self.acked_at).min(rtt);
        self.srtt > 0.0 && silence > usual
    }

    fn update_rtt(&mut self, now: Instant, rtt: Duration) {
        let sample = rtt.as_secs_f64();
        match &mut self.min_rtt {
            Some(filter) => filter.update(now, sample, MIN_RTT_WINDOW),
            None => self.min_rtt = Some(WindowedMin::new(now, sample)),
        }
        if self.srtt == 0.0 {
            (self.srtt, self.rttvar) = (sample, sample / 2.0);
        } else {
            self.rttvar += ((sample - self.srtt).abs() - self.rttvar) / 4.0;
            self.srtt += (sample - self.srtt) / 8.0;
        }
        let min = self.min_rtt.map_or(sample, |filter| filter.get());
        self.state.set_min_rtt(Duration::from_secs_f64(min));
        self.state.set_srtt(Duration::from_secs_f64(self.srtt));
        self.state.set_rttvar(Duration::from_secs_f64(self.rttvar));
    }

    fn update_rate(&mut self, now: Instant, sample: Option<(f64, bool)>) {
        let Some((sample, app_limited)) = sample else {
            return;
        };
        let window = Duration::from_secs_f64(self.srtt * RATE_WINDOW_RTTS).max(RATE_WINDOW_MIN);
        match &mut self.rate {
            Some(filter) if !app_limited || -sample <= filter.get() => {
                filter.update(now, -sample, window);
            }
            Some(_) => {}
            None => self.rate = Some(WindowedMin::new(now, -sample)),
        }
        self.state
            .set_rate(self.rate.map_or(0.0, |filter| -filter.get()));
    }
}

impl Monitor {
    /// Takes one acknowledged packet out of the records; the algorithm hears of the batch.
    pub(super) fn acknowledge(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.settle();
        self.state.subtract_in_flight(bytes);
        self.delivered += bytes;
        self.delivered_at = now;
        let in_flight_for = now.saturating_duration_since(sent);
        if self.batch_packets == 0 {
            // The window may grow with each packet of the batch.
            self.batch_used_up = self.window_used_up();
        }
        self.batch_packets += 1;
        self.batch_bytes += bytes;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        {
            self.batch_byte_seconds += bytes as f64 * in_flight_for.as_secs_f64();
        }
        self.batch_rtt_min = self.batch_rtt_min.min(in_flight_for);
        // Acknowledged packets come in ascending order, mostly from the oldest record on.
        let oldest = self
            .records
            .front()
            .is_some_and(|oldest| oldest.sent == sent);
        let at = if oldest {
            0
        } else {
            self.records.partition_point(|record| record.sent < sent)
        };
        if let Some(record) = self
            .records
            .get_mut(at)
            .filter(|record| record.sent == sent)
        {
            record.bytes = record.bytes.saturating_sub(bytes);
            if self.newest.is_none_or(|newest| newest.sent < sent) {
                self.newest = Some(*record);
            }
            if oldest && record.bytes == 0 {
                self.records.pop_front();
            }
        }
    }
}

impl Controller for Monitor {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.settle();
        self.pending = Some((now, bytes));
        if let Algorithm::Foreign(inner) = &mut self.inner {
            inner.on_sent(now, bytes, last_packet_number);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.acknowledge(now, sent, bytes);
        let app_limited = app_limited && !self.batch_used_up;
        if let Algorithm::Foreign(inner) = &mut self.inner {
            inner.on_ack(now, sent, bytes, app_limited, rtt);
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.settle();
        self.state.set_in_flight(in_flight);
        self.state.found_lost(0);
        let app_limited = app_limited && !self.batch_used_up;
        self.finish_batch(now, in_flight);
        if let Algorithm::Foreign(inner) = &mut self.inner {
            inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.settle();
        self.state.subtract_in_flight(lost_bytes);
        self.state.found_lost(lost_bytes);
        if lost_bytes > 0 {
            // Loss is found by time: all that was sent up to then is acknowledged or lost.
            while self
                .records
                .front()
                .is_some_and(|record| record.sent <= sent)
            {
                self.records.pop_front();
            }
            if self.state.in_flight() == 0 {
                // What is left are packets that the connection has given up without saying so.
                self.records.clear();
            }
            if self.records.is_empty() {
                self.state.set_silent_since(None);
            }
            self.state
                .set_oldest_sent(self.records.front().map(|record| record.sent));
        }
        match &mut self.inner {
            Algorithm::Foreign(inner) => {
                inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
            }
            Algorithm::Bdp(inner) => inner.on_congestion(sent, lost_bytes),
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        match &mut self.inner {
            Algorithm::Foreign(inner) => inner.on_mtu_update(new_mtu),
            Algorithm::Bdp(inner) => inner.on_mtu_update(new_mtu),
        }
    }

    fn window(&self) -> u64 {
        let window = match &self.inner {
            Algorithm::Foreign(inner) => inner.window(),
            Algorithm::Bdp(inner) => inner.window(),
        };
        self.state.effective_window(window)
    }

    fn pacing_window(&self) -> u64 {
        let burst = match &self.inner {
            Algorithm::Bdp(inner) => inner.pacing_gain(),
            Algorithm::Foreign(_) => 1,
        };
        self.window().saturating_mul(burst)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        // The clone serves a new path on which nothing is in flight yet.
        let mut clone = Self::new(
            self.delivered_at,
            self.inner.clone_box(),
            self.state.clone(),
            self.mtu,
        );
        (clone.rate, clone.min_rtt) = (self.rate, self.min_rtt);
        (clone.srtt, clone.rttvar) = (self.srtt, self.rttvar);
        Box::new(clone)
    }

    fn initial_window(&self) -> u64 {
        match &self.inner {
            Algorithm::Foreign(inner) => inner.initial_window(),
            Algorithm::Bdp(inner) => inner.initial_window(),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
