//! Memory that is given back after traffic.
//!
//! Tables of a tunnel grow with the flows that use it. While there is traffic, and once after it, what
//! has been idle for long is let go, so that a tunnel that rests costs little. In an outage nothing
//! is given back, but when it has lasted for longer than anything is held. A machine that stood still may
//! have been cut off as well, and does not know that yet.

use super::Tunnel;
use super::tuning::{GIVE_BACK_INTERVAL, GIVE_BACK_LOOKS, GONE_AFTER, STANDSTILL};
use ropewalk_types::Instant;

/// When memory is given back next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    due: Option<Instant>,
    /// Packets in both directions at the last look, and looks since these came.
    packets: u64,
    looks: u8,
}

impl Rest {
    /// An outage is over.
    pub fn postpone(&mut self, now: Instant) {
        self.due = self.due.map(|due| due.max(now + GIVE_BACK_INTERVAL));
    }

    /// There is traffic.
    #[inline]
    pub fn busy(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + GIVE_BACK_INTERVAL);
        }
    }
}

impl Tunnel {
    /// When memory may be given back. What waits in an outage, or was under way before it, is needed
    /// after it, unless that lasts for longer than anything is held.
    pub(super) fn give_back_due(&self) -> Option<Instant> {
        let due = self.rest.due?;
        match self.hold.since() {
            Some(since) => Some(due.max(since + GONE_AFTER)),
            None => (!self.paths.all_down()).then_some(due),
        }
    }

    /// Gives memory back, if it is time to.
    pub(super) fn give_back(&mut self, now: Instant) {
        let Some(due) = self.give_back_due().filter(|due| *due <= now) else {
            return;
        };
        if now.since(due) > STANDSTILL {
            // This machine stood still. Flows look idle, and copies of what came before may still come.
            self.rest.postpone(now);
            return;
        }
        let packets = self.stats.tx_packets + self.stats.rx_packets;
        self.rest.looks = self.rest.looks.saturating_add(1);
        if packets != self.rest.packets {
            (self.rest.packets, self.rest.looks) = (packets, 0);
        }
        let again = self.rest.looks < GIVE_BACK_LOOKS;
        self.rest.due = again.then_some(now + GIVE_BACK_INTERVAL);
        self.ingress.give_back(now);
        let egress = &mut self.egress;
        egress.reorder.forget_idle(now);
        egress.expanding.forget(now);
        if self.hold.since().is_some() {
            egress.fragments.clear();
        }
        for (_, path) in self.paths.iter_mut() {
            path.sent_log.give_back(now);
            path.coding.encoder.forget_old(now);
        }
    }
}
