//! The egress's side: when the next packet of each flow is due, and what is overdue.

use super::tuning::{
    AGAIN_AFTER, ASKED_MAX, BEATS_MIN, FLOWS_MAX, GAP_AGE_MAX, GAPS_MAX, INTERVAL_MAX,
    INTERVAL_MIN, MARGIN_MIN, MARGIN_STRAYS, STEP_MAX, STRAY_MAX,
};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{DataHeader, DeadlineNack, TIMESTAMP_UNIT_NANOS, Timestamp};

#[derive(Clone, Copy, Debug)]
struct RhythmGap {
    flow_seq: u16,
    found: Instant,
    due: Instant,
    asked: u8,
}

/// One flow.
#[derive(Debug)]
struct Rhythm {
    flow: u16,
    /// The number that comes next, and when it may be expected.
    next: u16,
    expected: Instant,
    /// When the last packet that came in time was sent, and its number.
    sent: Timestamp,
    sent_seq: u16,
    heard: Instant,
    /// Seconds between two packets as sent, and how much arrivals stray from that.
    interval: f64,
    stray: f64,
    beats: u8,
    gaps: Vec<RhythmGap>,
    /// When the next packet is overdue, or asked for again; `None` while it is not awaited.
    due: Option<Instant>,
    asked: u8,
}

/// The rhythms of all flows that have one.
#[derive(Debug, Default)]
pub struct Rhythms {
    flows: Vec<Rhythm>,
    asked: u64,
}

impl Rhythms {
    /// Packets asked for since the start.
    #[must_use]
    pub const fn asked(&self) -> u64 {
        self.asked
    }

    /// Flows followed, and gaps looked after in all of them.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        let gaps = self.flows.iter().map(|rhythm| rhythm.gaps.len());
        (self.flows.len(), gaps.sum())
    }

    /// The most that [`Rhythms::kept`] says.
    #[must_use]
    pub const fn limit() -> (usize, usize) {
        (FLOWS_MAX, FLOWS_MAX * GAPS_MAX)
    }

    /// A packet of a flow whose packets are to be asked for came in.
    pub fn on_packet(&mut self, now: Instant, header: &DataHeader) {
        let known = self.flows.iter().position(|r| r.flow == header.flow);
        let Some(at) = known else {
            if self.flows.len() == FLOWS_MAX
                && let Some(oldest) = (0..FLOWS_MAX).min_by_key(|&n| self.flows[n].heard)
            {
                self.flows.swap_remove(oldest);
            }
            self.flows.push(Rhythm::new(now, header));
            return;
        };
        self.flows[at].on_packet(now, header);
    }

    /// When [`Rhythms::poll`] has something to ask for, if anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.flows
            .iter()
            .flat_map(|rhythm| rhythm.gaps.iter().map(|gap| gap.due).chain(rhythm.due))
            .min()
    }

    /// Appends what is overdue, at most `max` packets in all; `rtt` is what an answer takes.
    pub fn poll(
        &mut self,
        now: Instant,
        rtt: Duration,
        max: usize,
        packets: &mut Vec<DeadlineNack>,
    ) {
        let before = packets.len();
        for rhythm in &mut self.flows {
            rhythm.poll(now, rtt, max, packets);
        }
        self.asked += (packets.len() - before) as u64;
    }
}

impl Rhythm {
    fn new(now: Instant, header: &DataHeader) -> Self {
        Self {
            flow: header.flow,
            next: header.flow_seq.wrapping_add(1),
            expected: now,
            sent: header.stamp.sent_at,
            sent_seq: header.flow_seq,
            heard: now,
            interval: 0.0,
            stray: 0.0,
            beats: 0,
            gaps: Vec::new(),
            due: None,
            asked: 0,
        }
    }

    fn on_packet(&mut self, now: Instant, header: &DataHeader) {
        let step = header.flow_seq.wrapping_sub(self.next);
        if step >= 0x8000 {
            // Late, or rescued: no longer missing.
            self.gaps.retain(|gap| gap.flow_seq != header.flow_seq);
            if self.due.is_none() && self.asked > 0 && !header.copy {
                // After a pause the flow goes on with what was awaited in vain.
                self.gaps.clear();
                self.next = header.flow_seq.wrapping_add(1);
                (self.sent, self.sent_seq) = (header.stamp.sent_at, header.flow_seq);
                self.heard = now;
                self.asked = 0;
                self.expected = now + Duration::from_secs_f64(self.interval);
                self.due = self.is_steady().then(|| self.expected + self.margin());
            }
            return;
        }
        if step > STEP_MAX {
            *self = Self::new(now, header);
            return;
        }
        for n in 0..step {
            self.miss(now, self.next.wrapping_add(n));
        }
        // A rescued packet keeps no rhythm; the one after it is due as if it had come in time.
        if header.copy && self.asked > 0 {
            self.expected += Duration::from_secs_f64(self.interval) * (u32::from(step) + 1);
        } else {
            self.beat(now, header);
        }
        self.heard = now;
        self.next = header.flow_seq.wrapping_add(1);
        self.asked = 0;
        self.due = self.is_steady().then(|| self.expected + self.margin());
    }

    /// Learns from a packet that was sent in time.
    fn beat(&mut self, now: Instant, header: &DataHeader) {
        let steps = f64::from(header.flow_seq.wrapping_sub(self.sent_seq).max(1));
        let units = header.stamp.sent_at.distance(self.sent);
        let passed = f64::from(units) * TIMESTAMP_UNIT_NANOS as f64 / 1e9 / steps;
        (self.sent, self.sent_seq) = (header.stamp.sent_at, header.flow_seq);
        if !(0.0..=INTERVAL_MAX * 2.0).contains(&passed) {
            (self.beats, self.stray) = (0, 0.0);
        } else if self.beats == 0 {
            (self.interval, self.beats) = (passed, 1);
        } else {
            let late = now.since(self.expected).max(self.expected.since(now));
            let stray = (passed - self.interval).abs().max(late.as_secs_f64());
            self.interval += (passed - self.interval) / 8.0;
            // What follows a loss came by another path, or late: it says nothing of the next.
            if self.beats > 1 && steps < 2.0 && self.asked == 0 {
                self.stray += (stray.min(self.interval) - self.stray) / 8.0;
            }
            self.beats = self.beats.saturating_add(1);
        }
        self.expected = now + Duration::from_secs_f64(self.interval);
    }

    fn is_steady(&self) -> bool {
        self.beats >= BEATS_MIN
            && (INTERVAL_MIN..=INTERVAL_MAX).contains(&self.interval)
            && self.stray <= self.interval * STRAY_MAX
    }

    fn margin(&self) -> Duration {
        Duration::from_secs_f64(MARGIN_MIN.max(self.stray * MARGIN_STRAYS))
    }

    fn miss(&mut self, now: Instant, flow_seq: u16) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.remove(0);
        }
        // Another path may only be a little slower.
        let (due, asked) = if flow_seq == self.next && self.asked > 0 {
            (self.due.unwrap_or(now), self.asked)
        } else {
            (now + self.margin(), 0)
        };
        self.gaps.push(RhythmGap {
            flow_seq,
            found: now,
            due,
            asked,
        });
    }

    fn poll(&mut self, now: Instant, rtt: Duration, max: usize, packets: &mut Vec<DeadlineNack>) {
        let again = now + rtt + AGAIN_AFTER;
        let flow = self.flow;
        for gap in &mut self.gaps {
            if gap.due <= now && packets.len() < max {
                let flow_seq = gap.flow_seq;
                packets.push(DeadlineNack { flow, flow_seq });
                (gap.due, gap.asked) = (again, gap.asked + 1);
            }
        }
        self.gaps
            .retain(|gap| gap.asked < ASKED_MAX && now.since(gap.found) < GAP_AGE_MAX);
        if self.due.is_none_or(|due| due > now) || packets.len() >= max {
            return;
        }
        let flow_seq = self.next;
        packets.push(DeadlineNack { flow, flow_seq });
        self.asked += 1;
        self.due = (self.asked < ASKED_MAX).then_some(again);
        if self.due.is_none() {
            // Nothing comes any more: the flow pauses, and what was awaited was never sent.
            self.gaps.clear();
        }
        // The packet after it may be overdue, too, before this one is asked for again.
        let following = self.expected + Duration::from_secs_f64(self.interval) + self.margin();
        if self.due.is_some_and(|due| following < due) && self.gaps.len() < GAPS_MAX {
            self.gaps.push(RhythmGap {
                flow_seq,
                found: now,
                due: again,
                asked: 1,
            });
            self.next = self.next.wrapping_add(1);
            self.expected += Duration::from_secs_f64(self.interval);
            self.due = Some(following.max(now));
        }
    }
}
