//! Traffic that measures delay: pings and calls.

use super::{Outbox, back};
use crate::engine::NEVER;
use crate::packet::{Body, PING_BYTES, Packet, UDP_HEADERS, Upper};
use ropewalk_netem::Side;
use ropewalk_types::Ecn;

/// Echo requests from the site to the server.
#[derive(Clone, Debug)]
pub struct Ping {
    flow: u16,
    interval_ns: u64,
    warmup_ns: u64,
    end_ns: u64,
    next_ns: u64,
    sent_ns: Vec<u64>,
    /// Round-trip times of the counted ones, ms.
    pub rtt_ms: Vec<f64>,
}

impl Ping {
    /// One request every `interval_ns`; those sent after `warmup_ns` count.
    #[must_use]
    pub const fn new(flow: u16, interval_ns: u64, warmup_ns: u64, end_ns: u64) -> Self {
        Self {
            flow,
            interval_ns,
            warmup_ns,
            end_ns,
            next_ns: 0,
            sent_ns: Vec::new(),
            rtt_ms: Vec::new(),
        }
    }

    /// Requests sent in the counted time.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent_ns
            .iter()
            .filter(|at| **at >= self.warmup_ns)
            .count() as u64
    }

    /// When the next request is due.
    #[must_use]
    pub const fn due_ns(&self) -> u64 {
        self.next_ns
    }

    /// Sends what is due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        if now_ns < self.next_ns || now_ns >= self.end_ns {
            self.next_ns = if now_ns >= self.end_ns {
                NEVER
            } else {
                self.next_ns
            };
            return;
        }
        let number = u32::try_from(self.sent_ns.len()).unwrap_or(u32::MAX);
        self.sent_ns.push(now_ns);
        self.next_ns = now_ns + self.interval_ns;
        out.push((Side::Up, self.packet(Body::Ping(number))));
    }

    /// A request is answered, an answer counted.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        match packet.body {
            Body::Ping(number) => out.push((Side::Down, self.packet(Body::Pong(number)))),
            Body::Pong(number) => {
                let sent = self.sent_ns.get(number as usize).copied();
                if let Some(sent_ns) = sent.filter(|at| *at >= self.warmup_ns) {
                    self.rtt_ms.push((now_ns - sent_ns) as f64 / 1e6);
                }
            }
            Body::Data { .. } | Body::Ack(_) | Body::Voice { .. } | Body::Request(_) => {}
        }
    }

    const fn packet(&self, body: Body) -> Packet {
        Packet {
            flow: self.flow,
            use_count: 0,
            subflow: 0,
            bytes: PING_BYTES,
            upper: Upper::Echo,
            clock: 0,
            ecn: Ecn::NotEct,
            reduced: false,
            body,
        }
    }
}

/// What a call sends so shortly before the end is not counted: it may still be under way.
const UNCOUNTED_NS: u64 = 500_000_000;

/// A call: a small packet after the other, both ways.
#[derive(Clone, Debug)]
pub struct Call {
    flow: u16,
    interval_ns: u64,
    bytes: u32,
    warmup_ns: u64,
    end_ns: u64,
    next_ns: u64,
    /// Of the next packets, as RTP counts them.
    number: u16,
    /// Packets sent in the counted time, both ways, but for its last half second.
    pub sent: u64,
    /// One-way delays of the counted ones that arrived, ms.
    pub delay_ms: Vec<f64>,
}

impl Call {
    /// A packet of `payload` bytes each way every `interval_ns`.
    #[must_use]
    pub const fn new(
        flow: u16,
        interval_ns: u64,
        payload: u32,
        warmup_ns: u64,
        end_ns: u64,
    ) -> Self {
        Self {
            flow,
            interval_ns,
            bytes: UDP_HEADERS + payload,
            warmup_ns,
            end_ns,
            next_ns: 0,
            number: 0,
            sent: 0,
            delay_ms: Vec::new(),
        }
    }

    /// When the next packets are due.
    #[must_use]
    pub const fn due_ns(&self) -> u64 {
        self.next_ns
    }

    /// Sends what is due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        if now_ns < self.next_ns || now_ns >= self.end_ns {
            self.next_ns = if now_ns >= self.end_ns {
                NEVER
            } else {
                self.next_ns
            };
            return;
        }
        self.next_ns = now_ns + self.interval_ns;
        self.sent += if self.counts(now_ns) { 2 } else { 0 };
        for side in [Side::Up, back(Side::Up)] {
            let packet = Packet {
                flow: self.flow,
                use_count: 0,
                subflow: 0,
                bytes: self.bytes,
                upper: Upper::Udp,
                clock: 0,
                ecn: Ecn::NotEct,
                reduced: false,
                body: Body::Voice {
                    number: self.number,
                    sent_ns: now_ns,
                },
            };
            out.push((side, packet));
        }
        self.number = self.number.wrapping_add(1);
    }

    /// Whether packets sent then are counted.
    const fn counts(&self, sent_ns: u64) -> bool {
        let counted_ns = self.end_ns - self.warmup_ns;
        let last_ns = if counted_ns > 2 * UNCOUNTED_NS {
            self.end_ns - UNCOUNTED_NS
        } else {
            self.end_ns
        };
        self.warmup_ns <= sent_ns && sent_ns < last_ns
    }

    /// A packet arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet) {
        if let Body::Voice { sent_ns, .. } = packet.body
            && self.counts(sent_ns)
        {
            self.delay_ms
                .push(now_ns.saturating_sub(sent_ns) as f64 / 1e6);
        }
    }
}
