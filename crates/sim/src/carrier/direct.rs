//! One path without any tunnel.

use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::events::Item;
use crate::packet::Packet;
use ropewalk_netem::{Counters, Link, Refused, Side};
use ropewalk_types::Instant;

/// A link as it is.
#[derive(Debug)]
pub struct Direct {
    link: Link<Packet>,
    path: usize,
}

impl Direct {
    /// Carries everything over this link, the plan's path of this number.
    #[must_use]
    pub const fn new(link: Link<Packet>, path: usize) -> Self {
        Self { link, path }
    }
}

impl Carrier for Direct {
    fn components(&self) -> usize {
        1
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let now = core.now();
        let bytes = packet.bytes as usize;
        if let Some(capture) = &mut core.trace.capture {
            capture.bare(core.now_ns, self.path, (direction, true), packet);
        }
        let sent = self.link.enqueue(now, direction, bytes, *packet);
        if let Err(Refused { reason, item }) = sent {
            let place = (self.path, direction);
            core.trace
                .dropped(core.now_ns, place, reason, Item::Host(&item));
        }
    }

    fn wake(&mut self, core: &mut Core, _component: usize, arrivals: &mut Vec<Arrival>) {
        let now = core.now();
        for direction in Side::ALL {
            while let Some(packet) = self.link.poll(now, direction) {
                let place = (self.path, direction);
                core.trace
                    .delivered(core.now_ns, place, Item::Host(&packet));
                if let Some(capture) = &mut core.trace.capture {
                    capture.bare(core.now_ns, self.path, (direction, false), &packet);
                }
                arrivals.push((direction, packet));
            }
            while let Some(packet) = self.link.poll_lost(direction) {
                let place = (self.path, direction);
                core.trace.lost(core.now_ns, place, Item::Host(&packet));
            }
        }
    }

    fn settle(&mut self, core: &mut Core, _arrivals: &mut Vec<Arrival>) {
        let due_ns = self.link.poll_timeout().map_or(NEVER, Instant::as_nanos);
        core.look_at(0, due_ns.max(core.now_ns));
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        if path != self.path {
            return Counters::default();
        }
        self.link.advance(now);
        self.link.counters(direction)
    }

    fn tunnel_report(&self, _direction: Side) -> Option<ropewalk_plan::TunnelReport> {
        None
    }

    fn packets(&self) -> u64 {
        0
    }
}
