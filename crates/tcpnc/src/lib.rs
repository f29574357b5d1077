//! TCP/NC as far as its authors publish it: the tunnel between two gateways that Ropewalk is compared
//! with. It is no part of the product.
//!
//! One session carries the IP packets of all hosts. TCP NewReno ([`new_reno`]) decides when a packet
//! may leave. A layer of network coding below it ([`encoder`], [`decoder`]) sends `n + k`
//! combinations over GF(256) for the `n` packets of a coding window, none of them a packet itself.
//! The paper names no field, so that one is assumed. The sink
//! acknowledges the oldest packet that is not *seen*, so that TCP does not notice losses that the
//! combinations recover. The redundancy follows from the losses that the source observes
//! ([`adapt`]). What no public source gives is marked as assumed in [`tuning`].
//!
//! Everything is sans-IO: the simulator and the program for network namespaces run the same code.
//! Equal inputs give equal outputs.
//!
//! Sources: Nguyen Viet Ha and Masato Tsuru, "On the characteristics of TCP/NC tunneling in
//! heterogeneous environments"; Ha, Kumazoe and Tsuru, IEICE Trans. Commun. E100-B (2017) and E101-B
//! (2018); Sundararajan et al., "Network coding meets TCP" (INFOCOM 2009).

#![forbid(unsafe_code)]

pub mod adapt;
pub mod decoder;
pub mod encoder;
pub mod new_reno;
pub mod tuning;
pub mod wire;

use adapt::Observer;
use decoder::Decoder;
use encoder::Encoder;
use new_reno::{NewReno, Verdict};
use ropewalk_types::Instant;
use std::collections::VecDeque;
use tuning::{FLUSH, PACKET_MAX, SEND_BUFFER_PACKETS, WINDOW_MAX, WINDOW_PACKETS};
use wire::{Ack, Datagram, Malformed};

/// How much redundancy coding windows get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// What the observed losses want.
    #[default]
    Adaptive,
    /// Always `k` combinations beyond `n` packets.
    Fixed {
        /// Packets of a coding window, at least 1.
        n: u8,
        /// Combinations beyond them.
        k: u8,
    },
}

/// Counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets taken in.
    pub accepted: u64,
    /// Packets refused by the full send buffer.
    pub refused: u64,
    /// Combinations sent.
    pub combinations: u64,
    /// Of them, those that repaired what TCP found lost.
    pub retransmissions: u64,
    /// Timeouts of TCP.
    pub timeouts: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Combinations that told nothing new.
    pub dependent: u64,
}

/// One end of a session: it sends and receives.
///
/// After every call, [`Self::poll_transmit`] and [`Self::poll_packet`] until they give nothing.
#[derive(Clone, Debug)]
pub struct Endpoint {
    redundancy: Redundancy,
    tcp: NewReno,
    /// Packets that TCP has not sent yet.
    unsent: VecDeque<Vec<u8>>,
    accepted: u32,
    encoder: Encoder,
    observer: Observer,
    arrived: u32,
    flush: Option<Instant>,
    decoder: Decoder,
    acks: VecDeque<Ack>,
    stats: Stats,
}

impl Endpoint {
    /// An end of a session that is established.
    #[must_use]
    pub fn new(redundancy: Redundancy) -> Self {
        Self {
            redundancy,
            tcp: NewReno::new(WINDOW_MAX, false),
            unsent: VecDeque::new(),
            accepted: 0,
            encoder: Encoder::default(),
            observer: Observer::default(),
            arrived: 0,
            flush: None,
            decoder: Decoder::default(),
            acks: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes an inner packet in; false if the send buffer is full, or the packet too long.
    pub fn offer(&mut self, now: Instant, packet: &[u8]) -> bool {
        if self.buffered() >= SEND_BUFFER_PACKETS || packet.len() > PACKET_MAX {
            self.stats.refused += 1;
            return false;
        }
        self.unsent.push_back(packet.to_vec());
        self.accepted += 1;
        self.stats.accepted += 1;
        self.pump(now);
        true
    }

    /// A datagram of the peer came.
    ///
    /// # Errors
    /// If it is none.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) -> Result<(), Malformed> {
        match Datagram::read(datagram)? {
            Datagram::Combination(combination) => {
                let transmission = combination.transmission;
                let innovative = self.decoder.on_combination(combination);
                self.stats.dependent += u64::from(!innovative);
                self.acks.push_back(Ack {
                    next: self.decoder.unseen(),
                    transmission,
                    innovative,
                });
            }
            Datagram::Ack(ack) => self.on_ack(now, &ack),
        }
        Ok(())
    }

    /// An acknowledgement of a combination that told nothing new does not count as a duplicate: TCP
    /// would take three of them for a loss.
    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        if ack.transmission >= self.encoder.transmissions() {
            return;
        }
        self.observer.on_arrival(ack.transmission);
        self.arrived = self.arrived.max(ack.transmission);
        let verdict = self.tcp.on_ack(now, ack.next, ack.innovative);
        self.encoder.forget_before(self.tcp.una());
        match verdict {
            Verdict::Fine => {}
            Verdict::Retransmit | Verdict::Recovering => self.repair(self.arrived),
        }
        self.pump(now);
    }

    /// [`Self::handle_timeout`] is wanted then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.tcp.due(), self.flush) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.tcp.on_timer(now) {
            self.repair(u32::MAX);
        }
        if self.flush.is_some_and(|at| at <= now) {
            let (n, k) = self.parameters();
            self.encoder.close(n, k);
            self.flush = None;
        }
        self.pump(now);
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        if let Some(ack) = self.acks.pop_front() {
            return Some(Datagram::Ack(ack).write());
        }
        let combination = self.encoder.poll()?;
        Some(Datagram::Combination(combination).write())
    }

    /// The next packet that came through.
    pub fn poll_packet(&mut self) -> Option<Vec<u8>> {
        let packet = self.decoder.poll()?;
        self.stats.delivered += 1;
        Some(packet)
    }

    /// Packets in TCP's send buffer: unacknowledged and unsent ones.
    #[must_use]
    pub fn buffered(&self) -> usize {
        (self.accepted - self.tcp.una()) as usize
    }

    /// Packets and combinations beyond them of a coding window now (`n`, `k`).
    #[must_use]
    pub const fn parameters(&self) -> (u8, u8) {
        match self.redundancy {
            Redundancy::Adaptive => (WINDOW_PACKETS, self.observer.redundancy()),
            Redundancy::Fixed { n, k } => (n, k),
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            combinations: self.encoder.transmissions().into(),
            retransmissions: self.encoder.retransmissions(),
            timeouts: self.tcp.timeouts(),
            ..self.stats
        }
    }

    /// What the session does at present, for a reader.
    #[must_use]
    pub fn reason(&self) -> String {
        let (n, k) = self.parameters();
        let losses = self.observer.losses();
        format!(
            "n {n}, k {k}, window {}, observed loss {:.1} %, again {:.1} %",
            self.tcp.cwnd(),
            losses.loss * 100.0,
            losses.again * 100.0
        )
    }

    fn repair(&mut self, arrived: u32) {
        let (n, k) = self.parameters();
        self.encoder.repair(self.tcp.una(), arrived, n, k);
    }

    fn pump(&mut self, now: Instant) {
        let (n, k) = self.parameters();
        while let Some((_, _)) = self.tcp.poll(now, self.accepted) {
            let Some(packet) = self.unsent.pop_front() else {
                break;
            };
            self.encoder.push(&packet, n, k);
            self.flush = self.encoder.is_open().then(|| now + FLUSH);
        }
    }
}

#[cfg(test)]
mod tests;
