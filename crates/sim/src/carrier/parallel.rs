//! Several paths beside each other, without any tunnel: each packet says which one it takes.

use super::direct::Direct;
use super::{Arrival, Carrier, Core};
use crate::packet::Packet;
use ropewalk_netem::{Counters, Side};
use ropewalk_types::Instant;

/// Links by the number of the subflow that takes them; component `n` is link `n`.
#[derive(Debug)]
pub struct Parallel {
    links: Vec<Direct>,
}

impl Parallel {
    /// Packets of subflow `n` take `links[n]`.
    #[must_use]
    pub const fn new(links: Vec<Direct>) -> Self {
        Self { links }
    }

    /// Asks one link, which numbers its own component from zero.
    fn at<T>(
        &mut self,
        core: &mut Core,
        index: usize,
        ask: impl FnOnce(&mut Direct, &mut Core) -> T,
    ) -> T {
        core.first += index;
        let answer = ask(&mut self.links[index], core);
        core.first -= index;
        answer
    }
}

impl Carrier for Parallel {
    fn components(&self) -> usize {
        self.links.len()
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let index = usize::from(packet.subflow);
        self.at(core, index, |link, core| link.send(core, direction, packet));
    }

    fn wake(&mut self, core: &mut Core, component: usize, arrivals: &mut Vec<Arrival>) {
        self.at(core, component, |link, core| link.wake(core, 0, arrivals));
    }

    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>) {
        for index in 0..self.links.len() {
            self.at(core, index, |link, core| link.settle(core, arrivals));
        }
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        // A link that is not of this path answers with nothing.
        let each = self.links.iter_mut();
        let mut each = each.map(|link| link.counters(now, path, direction));
        each.find(|counters| *counters != Counters::default())
            .unwrap_or_default()
    }

    fn tunnel_report(&self, _direction: Side) -> Option<ropewalk_plan::TunnelReport> {
        None
    }

    fn packets(&self) -> u64 {
        0
    }
}
