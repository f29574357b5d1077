//! One connection that carries data one way: sender, receiver, and what was delivered.

use super::{Outbox, back};
use crate::engine::NEVER;
use crate::host::SenderStats;
use crate::host::tcp;
use crate::packet::{Ack, Body, Packet, TCP_HEADERS};
use ropewalk_netem::Side;

/// A connection.
#[derive(Clone, Debug)]
pub struct Transfer {
    flow: u16,
    use_count: u16,
    /// Where the data goes.
    data: Side,
    segment_bytes: u32,
    start_ns: u64,
    started: bool,
    sender: tcp::Sender,
    receiver: tcp::Receiver,
}

impl Transfer {
    /// A bulk connection: always something to send from `start_ns` on.
    #[must_use]
    pub fn bulk(flow: u16, data: Side, start_ns: u64, sender: tcp::Sender, mss: u32) -> Self {
        Self {
            flow,
            use_count: 0,
            data,
            segment_bytes: mss,
            start_ns,
            started: false,
            sender,
            receiver: tcp::Receiver::new(),
        }
    }

    /// Application bytes delivered in order.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        u64::from(self.receiver.delivered()) * u64::from(self.segment_bytes)
    }

    /// The sender's counters.
    #[must_use]
    pub fn stats(&self) -> SenderStats {
        self.sender.stats()
    }

    /// The sender's window in segments.
    #[must_use]
    pub fn cwnd(&self) -> u32 {
        self.sender.cwnd()
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        if !self.started {
            return self.start_ns;
        }
        let sender = self.sender.due_ns().unwrap_or(NEVER);
        sender.min(self.receiver.due_ns().unwrap_or(NEVER))
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        if !self.started && now_ns >= self.start_ns {
            self.started = true;
            self.sender.offer(now_ns, u32::MAX);
        }
        if let Some(ack) = self.receiver.on_timer(now_ns) {
            self.acknowledge(ack, out);
        }
        if let Some(segment) = self.sender.on_timer(now_ns) {
            self.emit(now_ns, segment, out);
        }
        self.pump(now_ns, out);
    }

    /// A packet of this connection arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        if packet.use_count != self.use_count {
            return;
        }
        match packet.body {
            Body::Data { segment, stamp } => {
                if let Some(ack) = self.receiver.on_segment(now_ns, segment, stamp) {
                    self.acknowledge(ack, out);
                }
            }
            Body::Ack(ack) => {
                self.sender.on_ack(now_ns, &ack);
                self.pump(now_ns, out);
            }
            Body::Ping(_) | Body::Pong(_) | Body::Voice(_) | Body::Request(_) => {}
        }
    }

    fn pump(&mut self, now_ns: u64, out: &mut Outbox) {
        while let Some(segment) = self.sender.poll(now_ns) {
            self.emit(now_ns, segment, out);
        }
    }

    fn emit(&self, now_ns: u64, segment: u32, out: &mut Outbox) {
        let stamp = tcp::Sender::clock(now_ns);
        let body = Body::Data { segment, stamp };
        out.push((self.data, self.packet(TCP_HEADERS + self.segment_bytes, body)));
    }

    fn acknowledge(&self, ack: Ack, out: &mut Outbox) {
        out.push((back(self.data), self.packet(ack.tcp_bytes(), Body::Ack(ack))));
    }

    const fn packet(&self, bytes: u32, body: Body) -> Packet {
        Packet {
            flow: self.flow,
            use_count: self.use_count,
            bytes,
            body,
        }
    }
}
