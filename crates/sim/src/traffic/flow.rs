//! Any flow of a run, behind one set of methods.

use super::Outbox;
use super::delays::{Delays, Pauses};
use super::multipath::Multipath;
use super::probe::{Call, Ping};
use super::transfer::Transfer;
use super::web::User;
use crate::host::SenderStats;
use crate::packet::{Body, Packet};

/// What a flow carries.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Data one way.
    Transfer(Box<Transfer>),
    /// The same over several paths.
    Multipath(Box<Multipath>),
    /// Echo requests.
    Ping(Box<Ping>),
    /// A call.
    Call(Box<Call>),
    /// Page loads.
    Web(Box<User>),
}

/// A flow and the section of the plan it belongs to.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What it carries.
    pub kind: Kind,
    section: usize,
    warm: bool,
    warm_bytes: u64,
    /// Of the packets of bulk data that arrived in the counted time.
    pub delays: Delays,
    /// Kept where the plan limits the receiver's window.
    pub pauses: Option<Pauses>,
}

impl Flow {
    /// A flow of the plan's `[[traffic]]` section of this number.
    #[must_use]
    pub fn new(kind: Kind, section: usize) -> Self {
        Self {
            kind,
            section,
            warm: false,
            warm_bytes: 0,
            delays: Delays::default(),
            pauses: None,
        }
    }

    /// Number of its section.
    #[must_use]
    pub const fn section(&self) -> usize {
        self.section
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        match &self.kind {
            Kind::Transfer(flow) => flow.due_ns(),
            Kind::Multipath(flow) => flow.due_ns(),
            Kind::Ping(flow) => flow.due_ns(),
            Kind::Call(flow) => flow.due_ns(),
            Kind::Web(flow) => flow.due_ns(),
        }
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        match &mut self.kind {
            Kind::Transfer(flow) => flow.on_timer(now_ns, out),
            Kind::Multipath(flow) => flow.on_timer(now_ns, out),
            Kind::Ping(flow) => flow.on_timer(now_ns, out),
            Kind::Call(flow) => flow.on_timer(now_ns, out),
            Kind::Web(flow) => flow.on_timer(now_ns, out),
        }
    }

    /// A packet of the flow arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let before = self.delivered_bytes();
        match &mut self.kind {
            Kind::Transfer(flow) => flow.on_packet(now_ns, packet, out),
            Kind::Multipath(flow) => flow.on_packet(now_ns, packet, out),
            Kind::Ping(flow) => flow.on_packet(now_ns, packet, out),
            Kind::Call(flow) => flow.on_packet(now_ns, packet),
            Kind::Web(flow) => flow.on_packet(now_ns, packet, out),
        }
        if let Body::Data { sent_ns, .. } = packet.body
            && self.warm
            && self.is_bulk()
        {
            self.delays.add(now_ns.saturating_sub(sent_ns));
        }
        let news = self.delivered_bytes() > before;
        if let Some(pauses) = self.pauses.as_mut().filter(|_| news) {
            pauses.on_delivered(now_ns);
        }
    }

    /// Whether it is a bulk transfer.
    const fn is_bulk(&self) -> bool {
        matches!(self.kind, Kind::Transfer(_) | Kind::Multipath(_))
    }

    /// What a bulk transfer's sender counted.
    #[must_use]
    pub fn sender_stats(&self) -> Option<SenderStats> {
        match &self.kind {
            Kind::Transfer(flow) => Some(flow.stats()),
            Kind::Multipath(flow) => Some(flow.stats()),
            Kind::Ping(_) | Kind::Call(_) | Kind::Web(_) => None,
        }
    }

    /// Application bytes delivered by bulk transfers.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Transfer(flow) => flow.delivered_bytes(),
            Kind::Multipath(flow) => flow.delivered_bytes(),
            Kind::Ping(_) | Kind::Call(_) | Kind::Web(_) => 0,
        }
    }

    /// Congestion window in segments; zero where there is none.
    #[must_use]
    pub fn cwnd(&self) -> u32 {
        match &self.kind {
            Kind::Transfer(flow) => flow.cwnd(),
            Kind::Multipath(flow) => flow.cwnd(),
            Kind::Ping(_) | Kind::Call(_) | Kind::Web(_) => 0,
        }
    }

    /// The warm-up is over.
    pub fn mark_warm(&mut self) {
        self.warm = true;
        self.warm_bytes = self.delivered_bytes();
    }

    /// Application bytes delivered since the warm-up.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        self.delivered_bytes() - self.warm_bytes
    }
}
