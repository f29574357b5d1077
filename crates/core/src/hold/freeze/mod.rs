//! Freeze: senders of TCP on this side are stopped with windows of zero, and let go again. Or they are
//! acknowledged here at all times: acceleration.
//!
//! What is known of connections is only looked at while it is needed: with [`Freeze::Planned`]
//! from the announcement to the return, with [`Freeze::ProxyAck`] always. What is written for hosts
//! goes before what the tunnel delivers. Sources: RFC 9293 §3.8.6 on windows of zero; "Freeze-TCP",
//! INFOCOM 2000, for stopping a sender one round trip ahead.

mod planned;
mod proxy_ack;
mod segment;
#[cfg(test)]
mod tests;

use crate::hold::tuning::{ASK, PATIENCE, PLANNED_FLOWS_MAX, PROXY_FLOWS_MAX};
use crate::hold::{Freeze, Limits};
use crate::reorder::Inner;
use bytes::Bytes;
use planned::Planned;
use proxy_ack::ProxyAck;
pub(crate) use proxy_ack::Taken;
use ropewalk_types::{Instant, PacketInfo};
use std::collections::VecDeque;

/// Most connections that are followed, in either way.
pub(crate) const FLOWS_MAX: usize = PLANNED_FLOWS_MAX + PROXY_FLOWS_MAX;

/// How the paths are, as far as freezing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// A path is usable and not in doubt.
    Fine,
    /// No path is usable, but one still carries something.
    Ending,
    /// Every path is down.
    Down,
    /// None of these for certain.
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreezeState {
    Open,
    /// Senders are told to stop since then.
    Frozen(Instant),
    /// They were, and nothing came of it: not again before a path is fine.
    Spent,
}

/// Stops senders and lets them go.
#[derive(Debug)]
pub(crate) struct Freezer {
    mode: Freeze,
    state: FreezeState,
    ask: Instant,
    planned: Planned,
    proxy_ack: ProxyAck,
    /// Packets for this side's hosts.
    out: VecDeque<Bytes>,
    /// Times that a connection's sender was told to stop.
    stopped: u64,
}

impl Freezer {
    /// With `accelerate` senders are acknowledged at all times, which implies [`Freeze::ProxyAck`].
    pub fn new(limits: Limits, accelerate: bool) -> Self {
        Self {
            mode: if accelerate {
                Freeze::ProxyAck
            } else {
                limits.freeze
            },
            state: FreezeState::Open,
            ask: Instant::ZERO,
            planned: Planned::default(),
            proxy_ack: ProxyAck::new(limits, accelerate),
            out: VecDeque::new(),
            stopped: 0,
        }
    }

    /// Whether [`Self::settle`] may have something to do.
    pub const fn settles(&self) -> bool {
        self.proxy_ack.is_busy()
    }

    /// Times that a connection's sender was told to stop.
    pub const fn stopped(&self) -> u64 {
        self.stopped
    }

    /// Connections that are followed.
    pub fn flows(&self) -> usize {
        self.planned.len() + self.proxy_ack.len()
    }

    /// Bytes kept besides what is held: in TCP proxy acknowledgement.
    pub const fn proxy_ack_bytes(&self) -> u64 {
        self.proxy_ack.bytes()
    }

    /// Connections reset because what was acknowledged for them could not be delivered.
    pub const fn resets(&self) -> u64 {
        self.proxy_ack.resets
    }

    /// Connections whose senders were acknowledged at all times.
    pub const fn accelerated(&self) -> u64 {
        self.proxy_ack.accelerated
    }

    /// Segments sent again of what was acknowledged here.
    pub const fn resent(&self) -> u64 {
        self.proxy_ack.resent
    }

    /// Follows the paths; true when the senders that were stopped are let go.
    pub fn follow(&mut self, now: Instant, outlook: Outlook) -> bool {
        if self.mode != Freeze::Planned {
            return false;
        }
        match (self.state, outlook) {
            (FreezeState::Open, Outlook::Ending) => {
                self.state = FreezeState::Frozen(now);
                self.ask = now;
            }
            (FreezeState::Frozen(_), Outlook::Fine) => return self.thaw(FreezeState::Open),
            (FreezeState::Frozen(since), Outlook::Ending | Outlook::Unclear)
                if now.since(since) >= PATIENCE =>
            {
                return self.thaw(FreezeState::Spent);
            }
            (FreezeState::Spent, Outlook::Fine) => self.state = FreezeState::Open,
            (FreezeState::Open | FreezeState::Spent, _) | (FreezeState::Frozen(_), _) => {}
        }
        false
    }

    fn thaw(&mut self, state: FreezeState) -> bool {
        self.state = state;
        self.planned.thaw(&mut self.out);
        true
    }

    /// Every path is down.
    pub fn on_down(&mut self) {
        if self.mode == Freeze::ProxyAck {
            self.proxy_ack.begin(&mut self.out);
            self.stopped += self.proxy_ack.promised() as u64;
        }
    }

    /// A path is back.
    pub fn on_back(&mut self, now: Instant) {
        match self.mode {
            Freeze::Off => {}
            Freeze::Planned => {
                self.thaw(FreezeState::Open);
            }
            Freeze::ProxyAck => self.proxy_ack.end(now, &mut self.out),
        }
    }

    /// Whether senders are told to stop because of an announcement.
    pub const fn is_frozen(&self) -> bool {
        self.frozen_since().is_some()
    }

    /// Since when they are.
    pub const fn frozen_since(&self) -> Option<Instant> {
        match self.state {
            FreezeState::Frozen(since) => Some(since),
            FreezeState::Open | FreezeState::Spent => None,
        }
    }

    /// Whether it is time to ask the paths for a sign of life.
    pub fn asks(&mut self, now: Instant) -> bool {
        let due = self.is_frozen() && self.ask <= now;
        if due {
            self.ask = now + ASK;
        }
        due
    }

    /// A packet of a host on this side.
    pub fn on_ingress(
        &mut self,
        now: Instant,
        (ip, bucket): (&[u8], u16),
        info: &PacketInfo,
        partial: bool,
        outage: bool,
    ) -> Taken {
        if self.mode != Freeze::ProxyAck {
            return Taken::Goes;
        }
        self.proxy_ack
            .on_ingress(now, (ip, bucket), info, partial, outage, &mut self.out)
    }

    /// Acknowledges what came, if that is asked for at all times.
    /// `waiting` has the bytes of a bucket at the ingress, of which it should have `share` at most.
    pub fn settle(&mut self, now: Instant, share: u64, waiting: impl Fn(u16) -> u64) {
        self.proxy_ack.settle(now, share, waiting, &mut self.out);
    }

    /// A packet for a host on this side; false when the host need not get it. `waiting` has
    /// the bytes of a bucket at the ingress.
    pub fn on_egress(
        &mut self,
        now: Instant,
        inner: &mut Inner,
        waiting: impl Fn(u16) -> u64,
    ) -> bool {
        match self.mode {
            Freeze::Off => {}
            Freeze::Planned if self.is_frozen() => {
                inner.join();
                self.stopped += u64::from(self.planned.on_egress(inner));
            }
            Freeze::Planned => {}
            Freeze::ProxyAck => {
                inner.join();
                return self.proxy_ack.on_egress(now, inner, waiting);
            }
        }
        true
    }

    /// Whether [`Self::poll`] has something.
    pub fn is_waiting(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next packet written here for a host on this side.
    pub fn poll(&mut self) -> Option<Inner> {
        let data = self.out.pop_front()?;
        Some(Inner::whole(data, false))
    }

    /// When [`Self::handle_timeout`] or [`Self::follow`] is wanted, while there is a path.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let asks = self.is_frozen().then_some(self.ask);
        asks.into_iter().chain(self.proxy_ack.poll_timeout()).min()
    }

    /// Appends what has to be sent again of what was acknowledged here: packets, and whether their
    /// checksum is partial.
    pub fn handle_timeout(&mut self, now: Instant, again: &mut Vec<(Bytes, bool)>) {
        if self.proxy_ack.poll_timeout().is_some_and(|at| at <= now) {
            self.proxy_ack.resend(now, &mut self.out, again);
        }
    }

    /// The tunnel ends: resets connections whose acknowledged bytes would be lost, and lets the others
    /// go on.
    pub fn abandon(&mut self) {
        self.proxy_ack.abandon(&mut self.out);
        self.planned.thaw(&mut self.out);
        self.state = FreezeState::Open;
    }
}
