//! One connection that carries data one way: sender, receiver, and what was delivered.

use super::{Outbox, back};
use crate::engine::NEVER;
use crate::host::{SenderStats, plain, quic, tcp};
use crate::packet::{Ack, Body, Packet, QUIC_HEADERS, TCP_HEADERS, Upper};
use ropewalk_netem::Side;
use ropewalk_types::Ecn;

/// Header of a stream frame with offset and length (RFC 9000 §19.8).
const STREAM_HEADER: u32 = 8;

/// Both ends of a connection.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp(Box<tcp::Sender>, tcp::Receiver),
    /// TCP without options.
    Plain(Box<plain::Sender>, plain::Receiver),
    /// QUIC.
    Quic(Box<quic::Sender>, quic::Receiver),
}

impl Protocol {
    /// TCP ends, with the payload of a segment in packets of at most `mtu` bytes.
    #[must_use]
    pub const fn tcp_payload(mtu: u32) -> u32 {
        mtu - TCP_HEADERS
    }

    /// The same for QUIC.
    #[must_use]
    pub const fn quic_payload(mtu: u32) -> u32 {
        mtu - QUIC_HEADERS - STREAM_HEADER
    }
}

/// How a connection is addressed.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Number of the flow.
    pub flow: u16,
    /// Which use of it.
    pub use_count: u16,
    /// Where the data goes.
    pub data: Side,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Transfer {
    address: Address,
    /// Bytes of data in a segment, and of the packet that carries it.
    segment_bytes: u32,
    packet_bytes: u32,
    /// When a bulk connection starts; `NEVER` once it has.
    start_ns: u64,
    /// When both ends stop; `NEVER` unless set.
    until_ns: u64,
    /// First segment that was never sent.
    fresh_from: u32,
    /// TCP: clock of the newest acknowledgement.
    echo: u32,
    protocol: Protocol,
}

impl Transfer {
    /// A bulk connection: always something to send from `start_ns` on.
    #[must_use]
    pub const fn bulk(address: Address, start_ns: u64, protocol: Protocol, mtu: u32) -> Self {
        let segment_bytes = match protocol {
            Protocol::Tcp(..) => Protocol::tcp_payload(mtu),
            Protocol::Plain(..) => mtu - plain::HEADERS,
            Protocol::Quic(..) => Protocol::quic_payload(mtu),
        };
        Self {
            address,
            segment_bytes,
            packet_bytes: mtu,
            start_ns,
            until_ns: NEVER,
            fresh_from: 0,
            echo: 0,
            protocol,
        }
    }

    /// Both ends give the connection up at that time: what is on its way is for nobody.
    pub const fn stop_at(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// A connection that sends only what is offered.
    #[must_use]
    pub const fn on_demand(address: Address, protocol: Protocol, mtu: u32) -> Self {
        Self::bulk(address, NEVER, protocol, mtu)
    }

    /// Segments delivered in order.
    #[must_use]
    pub const fn delivered(&self) -> u32 {
        match &self.protocol {
            Protocol::Tcp(_, receiver) => receiver.delivered(),
            Protocol::Plain(_, receiver) => receiver.delivered(),
            Protocol::Quic(_, receiver) => receiver.delivered(),
        }
    }

    /// Application bytes delivered in order.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        u64::from(self.delivered()) * u64::from(self.segment_bytes)
    }

    /// The sender's counters.
    #[must_use]
    pub const fn stats(&self) -> SenderStats {
        match &self.protocol {
            Protocol::Tcp(sender, _) => sender.stats(),
            Protocol::Plain(sender, _) => sender.stats(),
            Protocol::Quic(sender, _) => sender.stats(),
        }
    }

    /// The sender's window in segments.
    #[must_use]
    pub const fn cwnd(&self) -> u32 {
        match &self.protocol {
            Protocol::Tcp(sender, _) => sender.cwnd(),
            Protocol::Plain(sender, _) => sender.cwnd(),
            Protocol::Quic(sender, _) => sender.cwnd(),
        }
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        let (sender, receiver) = match &self.protocol {
            Protocol::Tcp(sender, receiver) => (sender.due_ns(), receiver.due_ns()),
            Protocol::Plain(sender, receiver) => (sender.due_ns(), receiver.due_ns()),
            Protocol::Quic(sender, receiver) => (sender.due_ns(), receiver.due_ns()),
        };
        let ends = sender.unwrap_or(NEVER).min(receiver.unwrap_or(NEVER));
        let due_ns = ends.min(self.start_ns);
        if due_ns < self.until_ns {
            due_ns
        } else {
            NEVER
        }
    }

    /// Offers so many segments more and sends what may go.
    pub fn offer(&mut self, now_ns: u64, segments: u32, out: &mut Outbox) {
        match &mut self.protocol {
            Protocol::Tcp(sender, _) => sender.offer(now_ns, segments),
            Protocol::Plain(sender, _) => sender.offer(segments),
            Protocol::Quic(sender, _) => sender.offer(segments),
        }
        self.pump(now_ns, out);
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        if now_ns >= self.start_ns {
            self.start_ns = NEVER;
            self.offer(now_ns, u32::MAX, out);
        }
        let (ack, probe) = match &mut self.protocol {
            Protocol::Tcp(sender, receiver) => {
                let ack = receiver.on_timer(now_ns);
                let stamp = tcp::Sender::clock(now_ns);
                (ack, sender.on_timer(now_ns).map(|segment| (segment, stamp)))
            }
            Protocol::Plain(sender, receiver) => {
                sender.on_timer(now_ns);
                (receiver.on_timer(now_ns), None)
            }
            Protocol::Quic(sender, receiver) => {
                (receiver.on_timer(now_ns), sender.on_timer(now_ns))
            }
        };
        if let Some(ack) = ack {
            self.acknowledge(now_ns, ack, out);
        }
        if let Some((segment, stamp)) = probe {
            self.emit(now_ns, segment, stamp, out);
        }
        self.pump(now_ns, out);
    }

    /// A packet of this connection arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        if packet.use_count != self.address.use_count || now_ns >= self.until_ns {
            return;
        }
        match packet.body {
            Body::Data { segment, stamp, .. } => {
                let ack = match &mut self.protocol {
                    Protocol::Tcp(_, receiver) => {
                        receiver.on_marks(packet.ecn == Ecn::Ce, packet.reduced);
                        receiver.on_segment(now_ns, segment, stamp)
                    }
                    Protocol::Plain(_, receiver) => receiver.on_segment(now_ns, segment),
                    Protocol::Quic(_, receiver) => receiver.on_packet(now_ns, segment, stamp),
                };
                if let Some(ack) = ack {
                    self.acknowledge(now_ns, ack, out);
                }
            }
            Body::Ack(ack) => {
                match &mut self.protocol {
                    Protocol::Tcp(sender, _) => {
                        // RFC 7323 §4.3, rule 2: an older one was overtaken.
                        self.echo = self.echo.max(packet.clock);
                        sender.on_ack(now_ns, &ack);
                    }
                    Protocol::Plain(sender, _) => sender.on_ack(now_ns, &ack),
                    Protocol::Quic(sender, _) => sender.on_ack(now_ns, &ack),
                }
                self.pump(now_ns, out);
            }
            Body::Ping(_) | Body::Pong(_) | Body::Voice { .. } | Body::Request(_) => {}
        }
    }

    fn pump(&mut self, now_ns: u64, out: &mut Outbox) {
        let stamp = tcp::Sender::clock(now_ns);
        loop {
            let next = match &mut self.protocol {
                Protocol::Tcp(sender, _) => sender.poll(now_ns).map(|segment| (segment, stamp)),
                Protocol::Plain(sender, _) => sender.poll(now_ns).map(|segment| (segment, 0)),
                Protocol::Quic(sender, _) => sender.poll(now_ns),
            };
            let Some((segment, stamp)) = next else { break };
            self.emit(now_ns, segment, stamp, out);
        }
    }

    fn emit(&mut self, sent_ns: u64, segment: u32, stamp: u32, out: &mut Outbox) {
        let body = Body::Data {
            segment,
            stamp,
            echo: self.echo,
            sent_ns,
        };
        let mut packet = self.packet(sent_ns, self.packet_bytes, body);
        let fresh = segment >= self.fresh_from;
        self.fresh_from = self.fresh_from.max(segment + 1);
        // RFC 3168 §6.1.5: what is sent again cannot be marked.
        if let Protocol::Tcp(sender, _) = &mut self.protocol
            && sender.ecn()
            && fresh
        {
            packet.ecn = Ecn::Ect0;
            packet.reduced = sender.take_reduced();
        }
        out.push((self.address.data, packet));
    }

    fn acknowledge(&self, now_ns: u64, ack: Ack, out: &mut Outbox) {
        let bytes = match &self.protocol {
            Protocol::Tcp(..) => ack.tcp_bytes(),
            Protocol::Plain(..) => plain::HEADERS,
            Protocol::Quic(..) => ack.quic_bytes(),
        };
        let packet = self.packet(now_ns, bytes, Body::Ack(ack));
        out.push((back(self.address.data), packet));
    }

    fn packet(&self, now_ns: u64, bytes: u32, body: Body) -> Packet {
        let (upper, clock) = match self.protocol {
            Protocol::Tcp(..) => (Upper::Tcp, tcp::Sender::clock(now_ns)),
            Protocol::Plain(..) => (Upper::PlainTcp, 0),
            Protocol::Quic(..) => (Upper::Udp, 0),
        };
        Packet {
            flow: self.address.flow,
            use_count: self.address.use_count,
            subflow: 0,
            bytes,
            upper,
            clock,
            ecn: Ecn::NotEct,
            reduced: false,
            body,
        }
    }
}
